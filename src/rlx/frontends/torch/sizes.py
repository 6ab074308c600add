"""SymInts as named dims: the sympy expression of a size, over the same symbols and ranges."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlx.core.dim import DimLike, dim_max, dim_min, product
from rlx.core.errors import UnsupportedError
from rlx.frontends.named_dims import NamedDims, SizeRange
from rlx.frontends.torch.namespaces import torch
from rlx.frontends.torch.quotients import constant_of, folded, quotients

MAX_SIZE = 1 << 40
"""Bounds above it are torch's way to state that there is none."""


SPECIALISED = 2
"""The least size that torch traces with where any is meant; what it made serves 1 as well."""


class Sizes:
    """The symbols of a graph, and the dims that stand for them."""

    def __init__(
        self, ranges: Mapping[Any, Any], names: Mapping[str, str], known: NamedDims | None = None
    ) -> None:
        self._ranges = {str(symbol): found for symbol, found in ranges.items()}
        self._names, self._known = names, known or NamedDims()
        self._dims: dict[str, DimLike] = {}
        self._deferred: dict[str, Callable[[], DimLike]] = {}
        self._nested: dict[DimLike, DimLike] = {}
        """A quotient as torch simplifies it → the same as a quotient of a quotient."""

    def of(self, value: Any) -> DimLike:
        """The dim of an int, a SymInt or a sympy expression."""
        if isinstance(value, int):
            return value
        if isinstance(value, torch.SymInt):
            return self.of(value.node.expr)
        if not value.is_Integer:
            return self._expression(value)
        return int(value)

    def dims(self, tensor: Any) -> tuple[DimLike, ...]:
        return tuple(self.of(d) for d in tensor.shape)

    def learn(self, dims: Sequence[DimLike], stated: Sequence[DimLike]) -> None:
        """Take dims of a result for those that torch states, where one is the other with quotients
        of quotients folded: the sizes of one window after another."""
        for ours, theirs in zip(dims, stated):
            if ours != theirs and folded(ours) == folded(theirs):
                for atom in quotients(ours):
                    flat = folded(atom)
                    offset = constant_of(flat)
                    self._nested[flat - offset] = atom - offset

    def is_unknown(self, value: Any) -> bool:
        """Is it a size that data decides, and that no node has been found to measure yet?"""
        if not isinstance(value, torch.SymInt) or not value.node.expr.is_Symbol:
            return False
        name = str(value.node.expr)
        return _is_unbacked(name) and name not in self._dims and name not in self._deferred

    def bind(self, value: Any, dim: DimLike) -> None:
        """State which dim a symbol of data is."""
        self._dims[str(value.node.expr)] = dim

    def defer(self, value: Any, make: Callable[[], DimLike]) -> None:
        """State how a symbol that is a value becomes a size, should it be one."""
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
            self._deferred[str(value.node.expr)] = make

    def is_deferred(self, value: Any) -> bool:
        """Is it made of values that have not been sizes so far?"""
        names = {str(s) for s in value.node.expr.free_symbols}
        return any(n in self._deferred and n not in self._dims for n in names)

    def bounds(self, name: str) -> tuple[int, int | None]:
        found = self._ranges.get(name)
        if found is None:
            return 0, None
        low, high = _finite(found.lower), _finite(found.upper)
        return (1 if low == SPECIALISED else max(low or 0, 0)), high

    def _symbol(self, name: str) -> DimLike:
        if name not in self._dims:
            self._dims[name] = self._made(name)
        return self._dims[name]

    def _made(self, name: str) -> DimLike:
        if name in self._deferred:
            return self._deferred[name]()
        if _is_unbacked(name):
            raise UnsupportedError(f"a size that data decides, {name}, is not measured by any op")
        return self._known.size_of(self._names.get(name, name), SizeRange(*self.bounds(name)))

    def _expression(self, expr: Any) -> DimLike:
        if expr.is_Symbol:
            return self._symbol(str(expr))
        kind = type(expr).__name__
        if kind in ("CeilToInt", "TruncToInt", "FloorToInt"):
            return self._rounded(kind, expr)
        parts = [self.of(a) for a in expr.args]
        if expr.is_Pow and isinstance(parts[1], int) and parts[1] >= 0:
            return product([parts[0]] * parts[1])
        combine = _COMBINED.get(kind)
        if combine is None:
            raise UnsupportedError(f"rlx has no dim for the size {expr} ({kind})")
        made: DimLike = functools.reduce(combine, parts)
        return self._nested.get(made, made)

    def _rounded(self, kind: str, expr: Any) -> DimLike:
        """⌈a / b⌉ or ⌊a / b⌋ of sizes."""
        (inner,) = expr.args
        if type(inner).__name__ != "IntTrueDiv":
            raise UnsupportedError(f"rlx has no dim for the size {expr}, computed in floats")
        above, below = (self.of(a) for a in inner.args)
        return -((-above) // below) if kind == "CeilToInt" else above // below


_COMBINED: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Max": dim_max,
    "Min": dim_min,
}


def _is_unbacked(name: str) -> bool:
    return name.startswith("u") and name[1:].isdigit()


def _finite(bound: Any) -> int | None:
    try:
        number = int(bound)
    except (TypeError, OverflowError, ValueError, AttributeError):
        return None
    return number if abs(number) < MAX_SIZE else None
