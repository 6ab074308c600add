"""JSON serialisation of dims, shapes and interfaces.

A size is a whole number, or a sum: a list of terms, each its factor and then names and calls
(`["max", a, b]`). The ranges of names are said once, in a table beside it. What is read back is
put together by the same arithmetic that made it, so it is as canonical, and as bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rlx.core.dim import Call, Dim, DimLike, Symbol, dim_max, dim_min, symbols_of
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.extent import measured
from rlx.core.requirements import Requirement
from rlx.core.shape import Shape
from rlx.ir.interface import Interface, Leaf
from rlx.ir.mir import NAMED_LEAVES

_CALLS: dict[str, Callable[[Any, Any], DimLike]] = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "max": dim_max,
    "min": dim_min,
}


# -- to JSON -------------------------------------------------------------------------------------


def dim_json(dim: DimLike) -> Any:
    if not isinstance(dim, Dim):
        return int(dim)
    return [[factor, *map(_atom_json, monomial)] for monomial, factor in dim.terms]


def _atom_json(atom: Symbol | Call) -> Any:
    return atom.name if isinstance(atom, Symbol) else [atom.fn, *map(dim_json, atom.args)]


def shape_json(shape: Shape) -> list[Any]:
    return [shape.dtype.value, *map(dim_json, shape.dims)]


def symbols_json(symbols: Iterable[Symbol], dims: Iterable[DimLike]) -> list[Any]:
    """The symbols, those in dims, and those in what bounds them; measured ones come last, as their
    bounds are over the others."""
    named = [*symbols, *(d.symbol for d in symbols_of(dims))]
    bounds = symbols_of([s.max for s in named if s and isinstance(s.max, Dim)])
    every = {s.name: s for s in (*(d.symbol for d in bounds), *named) if s}
    ordered = sorted(every.values(), key=lambda s: s.is_measured)
    return [[s.name, s.min, _bound_json(s), s.is_measured] for s in ordered]


def _bound_json(symbol: Symbol) -> Any:
    return None if symbol.max is None else dim_json(symbol.max)


def interface_json(interface: Interface) -> dict[str, Any]:
    return {
        "name": interface.name,
        "inputs": [[n.name, shape_json(n.shape)] for n in interface.inputs if n.op == "input"],
        "states": [[n.name, shape_json(n.shape), n.init, n.update] for n in interface.states],
        "params": [[n.name, shape_json(n.shape)] for n in interface.params],
        "outputs": [[name, shape_json(shape)] for name, shape in interface.outputs],
        "epilogue": [interface.late, interface.held_inputs, interface.held_outputs],
        "required": [[dim_json(r.size), r.why] for r in interface.required],
    }


def dims_of(interface: Interface) -> list[DimLike]:
    """Every dim that an interface mentions."""
    leaves = [n.shape for n in (*interface.inputs, *interface.params)]
    return [d for s in (*leaves, *(s for _, s in interface.outputs)) for d in s.dims]


# -- from JSON -----------------------------------------------------------------------------------


class Decoder:
    """Reads what was written with one table of names."""

    def __init__(self, symbols: Any) -> None:
        self.names: dict[str, Dim] = {}
        for name, low, high, is_measured in symbols:
            bound = None if high is None else self.dim(high)
            self.names[name] = measured(name, bound) if is_measured else Dim(name, low, bound)  # pyright: ignore[reportArgumentType]

    def dim(self, value: Any) -> DimLike:
        if isinstance(value, int):
            return value
        total: DimLike = 0
        for factor, *atoms in value:
            total = total + self._term(factor, atoms)
        return total

    def symbol(self, name: str) -> Symbol:
        """The symbol called `name`."""
        found = self.names[name].symbol
        assert found is not None
        return found

    def _term(self, factor: int, atoms: list[Any]) -> DimLike:
        term: DimLike = factor
        for atom in atoms:
            term = term * (self.names[atom] if isinstance(atom, str) else self._call(*atom))
        return term

    def _call(self, name: str, a: Any, b: Any) -> DimLike:
        return _CALLS[name](self.dim(a), self.dim(b))

    def shape(self, value: Any) -> Shape:
        dtype, *dims = value
        return Shape(map(self.dim, dims), DType(dtype))

    def interface(self, value: Mapping[str, Any]) -> Interface:
        inputs, params, states = (
            [self._leaf(op, *leaf) for leaf in value[f"{op}s"]] for op in NAMED_LEAVES
        )
        return Interface(
            text(value["name"]),
            (*inputs, *states),
            tuple(params),
            tuple((text(name), self.shape(shape)) for name, shape in value["outputs"]),
            *(tuple(map(int, numbers)) for numbers in value["epilogue"]),
            required=tuple(
                Requirement(self._formula(size), text(why)) for size, why in value["required"]
            ),
        )

    def _formula(self, value: Any) -> Dim:
        found = self.dim(value)
        if not isinstance(found, Dim):
            raise Error(f"expected a size that a call gives, found {found}")
        return found

    def _leaf(self, op: str, name: Any, shape: Any, init: Any = 0.0, update: Any = "") -> Leaf:
        return Leaf(op, text(name), self.shape(shape), float(init), text(update))


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise Error(f"expected text, found {value!r:.40}")
    return value
