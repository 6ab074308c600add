"""Tracing: a Python function, run once on nodes, is a graph; `jit` compiles it on first use.

Arrays become inputs, by position or keyword, alone or in dicts, lists and tuples; what else is
given by keyword, or inside of them, is a Python value, seen as it is while tracing. NumPy arrays
that the function closes over become constants.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from rlx.core.arguments import FUNCTION, NONE, TEXT
from rlx.core.arrays import as_array, is_array
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.public_calls import public, public_class, require_signature
from rlx.core.shape import Shape
from rlx.frontends.structures import Structure, distinct, flattened, has_leaf, rebuilt
from rlx.ir.mir import Graph, MirModule, Node

LOG = logging.getLogger("rlx")
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Traced:
    """The graph of a function, and the structure of what it returned."""

    graph: Graph
    results: Structure

    def packed(self, results: Sequence[Any]) -> Any:
        """Results as the function returned them."""
        return rebuilt(self.results, iter(results))


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a function is called with: arrays by name, and the structures they stand in."""

    leaves: Mapping[str, Any]
    positional: tuple[Structure, ...]
    named: tuple[tuple[str, Structure], ...]

    @classmethod
    def of(
        cls, function: Function, args: Sequence[Any], attrs: Mapping[str, Any], name: str
    ) -> Arguments:
        leaves: dict[str, Any] = {}
        labels = _input_names(function, len(args), attrs, name)
        given = [_positional(a, label, name) for label, a in zip(labels, args)]
        positional = tuple(flattened(a, n, _is_input, leaves) for n, a in zip(labels, given))
        named = tuple((n, _named(n, v, leaves)) for n, v in sorted(attrs.items()))
        return cls({n: _leaf(a, f"{name}: {n}") for n, a in leaves.items()}, positional, named)

    def applied(self, function: Function, leaves: Sequence[Any]) -> Any:
        """The function on these in place of the arrays."""
        rest = iter(leaves)
        args = [rebuilt(s, rest) for s in self.positional]
        return function(*args, **{n: rebuilt(s, rest) for n, s in self.named})

    def key(self, name: str) -> Any:
        """What a compile is for: shapes, structures and Python values."""
        shape = next((n for n, a in self.leaves.items() if isinstance(a, Shape)), None)
        if shape is not None:
            raise GraphError(f"{name}: {shape} is a rlx.Shape. Call it on arrays, or rlx.trace it.")
        shapes = tuple((tuple(a.shape), str(a.dtype)) for a in self.leaves.values())
        made = (shapes, self.positional, self.named)
        try:
            hash(made)
        except TypeError as error:
            odd = next((n for n, s in self.named if not _is_hashable(s)), "in a structure")
            raise GraphError(
                f"{name}: keyword {odd!r} is a value that cannot be a key of what was compiled "
                f"({error}). Give an array, or a number, string or tuple."
            ) from None
        return made


def _named(name: str, value: Any, leaves: dict[str, Any]) -> Structure:
    """Of a keyword: a structure where there is an array in it, else a Python value."""
    from rlx.frontends.structures import Static

    if has_leaf(value, _is_input):
        return flattened(value, name, _is_input, leaves)
    return Static(value, distinct(value))


@public
def trace(function: Function, *shapes: Any, name: str | None = None, **attrs: Any) -> Graph:
    """The graph of `function` for inputs of `shapes`: each a rlx.Shape, or an array to read it off.

    Inputs are named after the function's parameters; `attrs` are its keyword arguments.
    """
    FUNCTION.check("function", function, GraphError)
    (NONE | TEXT).check("name", name, GraphError)
    called = name or _name_of(function)
    return _traced(function, _as_shapes(shapes, called), attrs, called).graph


def _as_shapes(given: Sequence[Any], name: str) -> list[Any]:
    """A list of dims is refused: to a call it would be an array, to `g.input` a shape."""
    for value in given:
        is_list = isinstance(value, list | tuple) and not has_leaf(value, _is_input)
        if is_list and all(isinstance(d, int | str | Dim | np.generic) for d in value):
            dims = ", ".join(map(repr, value))
            raise GraphError(
                f"{name}: {value!r} may be dims or an array. Write rlx.Shape([{dims}]) for inputs "
                f"of these dims, or np.array([{dims}]) for one like this array."
            )
    return list(given)


def _traced(
    function: Function, shapes: Sequence[Any], attrs: Mapping[str, Any], name: str
) -> Traced:
    graph = Graph(name)
    given = Arguments.of(function, shapes, attrs, name)
    inputs = [graph.input(n, _shape_of(s, n, name)) for n, s in given.leaves.items()]
    with graph.tracing():
        made = given.applied(function, inputs)
    found: dict[str, Any] = {}
    try:
        structure = flattened(made, "", _is_result, found, has_values=False)
    except GraphError:
        raise _no_result(name, made) from None
    if not found:
        raise GraphError(f"{name} returned nothing. {RETURN}")
    nodes = {n: _node(graph, r) for n, r in found.items()}
    graph.set_outputs(nodes if isinstance(made, Mapping) else list(nodes.values()))
    return Traced(graph, structure)


def _name_of(function: Function) -> str:
    return getattr(function, "__name__", "traced").strip("<>")


def _input_names(function: Function, count: int, attrs: Mapping[str, Any], name: str) -> list[str]:
    """The parameters that `count` positional arguments meet; those of `*xs` are xs0, xs1, …"""
    try:
        bound = inspect.signature(function).bind(*range(count), **attrs)
    except (TypeError, ValueError) as error:
        raise GraphError(f"{name}: {error}. Give one shape per array parameter.") from None
    names: list[str] = []
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}{i}" for i in range(count - len(names))]
        elif len(names) < count:
            names.append(parameter.name)
    return names


RETURN = "Return a node, or a dict, list or tuple of nodes."


def _positional(value: Any, parameter: str, name: str) -> Any:
    """An array, or a structure with arrays; a list of numbers is an array."""
    if has_leaf(value, _is_input):
        return value
    if isinstance(value, list | np.generic):
        return as_array(value, f"{name}: {parameter}")
    raise GraphError(
        f"{name}: {parameter}: got {value!r} by position, expected an array or a rlx.Shape. "
        "Python values are given by keyword."
    )


def _plain_key(arrays: Sequence[Any]) -> Any:
    if any(type(a) is not np.ndarray for a in arrays):
        return None
    return tuple((a.shape, a.dtype) for a in arrays)


def _is_input(value: Any) -> bool:
    """NumPy's scalars are Python values: `axis=np.int64(0)`."""
    if isinstance(value, np.generic | type):
        return False
    is_typed = hasattr(value, "dtype") and hasattr(value, "shape")
    return is_typed or isinstance(value, Shape) or is_array(value)


def _leaf(value: Any, what: str) -> Any:
    """An array of NumPy's dtypes, and what stands for an array, as it is; others as executables
    read them."""
    has_dtype = isinstance(getattr(value, "dtype", None), np.dtype) and hasattr(value, "shape")
    is_read = has_dtype or isinstance(value, Shape | Node) or not is_array(value)
    return value if is_read else as_array(value, what)


def _is_result(value: Any) -> bool:
    return isinstance(value, Node | np.ndarray | np.generic | bool | int | float | complex)


def _no_result(name: str, made: Any) -> GraphError:
    odd = made
    while isinstance(odd, dict | list | tuple):
        parts: list[Any] = list(odd.values()) if isinstance(odd, dict) else list(odd)  # pyright: ignore
        odd = next((p for p in parts if not has_leaf(p, _is_result)), None)
    return GraphError(f"{name} returned {odd!r}. {RETURN}")


def _shape_of(given: Any, parameter: str, name: str) -> Shape:
    if isinstance(given, Shape):
        return given
    try:
        return Shape(given.shape, DType.of(given.dtype))
    except GraphError as error:
        raise GraphError(f"{name}: {parameter}: {error}") from None


def _node(graph: Graph, result: Any) -> Node:
    """A result as a node; what is known already is a constant."""
    return result if isinstance(result, Node) else graph.constant(result)


@public_class
class Jit:
    """A function that is compiled for the shapes, dtypes and keyword values it is called with."""

    __name__: str
    __qualname__: str

    def __init__(self, function: Function, options: Mapping[str, Any]) -> None:
        if not callable(function):
            raise GraphError(f"jit takes a function, got {function!r}.")
        if options:
            from rlx.runtime.session import compile as compiled

            require_signature(compiled, (function,), options)
        self.function = function
        self._options = dict(options)
        self._compiled: dict[Any, tuple[Traced, Any]] = {}
        self._plain: dict[Any, tuple[Traced, Any]] = {}
        """The same for calls on NumPy arrays by position, by a key that is made in less time."""
        functools.update_wrapper(self, function)
        self.__name__ = _name_of(function)

    def __reduce__(self) -> str:
        """By name, as functions are; what was compiled stays in its process."""
        return self.__qualname__

    def __call__(self, *arrays: Any, **attrs: Any) -> Any:
        """Run on arrays. On nodes the function is inlined into the graph being built."""
        plain = _plain_key(arrays) if not attrs else None
        if plain is not None and plain in self._plain:
            traced, executable = self._plain[plain]
            made = executable(*arrays)
            return traced.packed(made if isinstance(made, tuple) else (made,))
        node = next((a for a in (*arrays, *attrs.values()) if isinstance(a, Node)), None)
        if node is not None:
            with node.graph.tracing():
                return self.function(*arrays, **attrs)
        given = Arguments.of(self.function, arrays, attrs, self.__name__)
        traced, executable = self._executable(given, arrays, attrs)
        if plain is not None:
            self._plain[plain] = traced, executable
        made = executable(*given.leaves.values())
        return traced.packed(made if isinstance(made, tuple) else (made,))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A method gets its object by position, where only arrays can stand: the error says so."""
        return self if instance is None else functools.partial(self, instance)

    def graph(self, *shapes: Any, **attrs: Any) -> Graph:
        """The graph for inputs of `shapes`, as traced."""
        given = _as_shapes(shapes, self.__name__)
        return _traced(self.function, given, attrs, self.__name__).graph

    def lower(self, *shapes: Any, **attrs: Any) -> MirModule:
        """The verified module for inputs of `shapes`."""
        return MirModule(self.graph(*shapes, **attrs))

    @property
    def compiled(self) -> int:
        """How many variants have been compiled."""
        return len(self._compiled)

    def _executable(
        self, given: Arguments, arrays: Sequence[Any], attrs: Mapping[str, Any]
    ) -> tuple[Traced, Any]:
        key = given.key(self.__name__)
        if key not in self._compiled:
            from rlx.runtime.session import compile as compiled

            if self._compiled:
                LOG.info("%s: compiled again: %s", self.__name__, self._news(key))
            traced = _traced(self.function, arrays, attrs, self.__name__)
            self._compiled[key] = traced, compiled(traced.graph, **self._options)
        return self._compiled[key]

    def _news(self, key: Any) -> str:
        """In what a call differs from the one that was compiled last."""
        before = next(reversed(self._compiled))
        kinds = ("shapes or dtypes", "structures of arguments", "values of keywords")
        changed = [k for k, old, new in zip(kinds, before, key) if old != new]
        shapes = ", ".join(f"{dtype}{list(dims)}" for dims, dtype in key[0])
        return f"{' and '.join(changed)} differ from those of the last compile ({shapes})"

    def __repr__(self) -> str:
        return f"<jit {self.__name__}: {self.compiled} compiled>"


@overload
def jit(function: Function, /) -> Jit: ...
@overload
def jit(**options: Any) -> Callable[[Function], Jit]: ...
@public
def jit(function: Function | None = None, /, **options: Any) -> Any:
    """Compile a function on first use: `@rlx.jit`, or `@rlx.jit(target="cpu")`.

    The options are those of `rlx.compile`.
    """
    if function is None:
        return lambda f: Jit(f, options)
    return Jit(function, options)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
