"""Tracing: a Python function, run once on nodes, is a graph; `jit` compiles it on first use.

Arrays are positional and become inputs; keyword arguments are Python values, seen as they are
while tracing. NumPy arrays that the function closes over become constants.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from rlx.core.arguments import FUNCTION, NONE, TEXT
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, MirModule, Node

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Traced:
    """The graph of a function, and the names its results go by where it returned a dict."""

    graph: Graph
    keys: tuple[Any, ...] | None
    is_single: bool

    def packed(self, results: Sequence[Any]) -> Any:
        """Results as the function returned them: alone, as a tuple, or by name."""
        if self.keys is not None:
            return dict(zip(self.keys, results))
        return results[0] if self.is_single else tuple(results)


def trace(function: Function, *shapes: Any, name: str | None = None, **attrs: Any) -> Graph:
    """The graph of `function` for inputs of `shapes`: each a rlx.Shape, or an array to read it off.

    Inputs are named after the function's parameters; `attrs` are its keyword arguments.
    """
    FUNCTION.check("function", function, GraphError)
    (NONE | TEXT).check("name", name, GraphError)
    return _traced(function, shapes, attrs, name or _name_of(function)).graph


def _traced(
    function: Function, shapes: Sequence[Any], attrs: Mapping[str, Any], name: str
) -> Traced:
    graph = Graph(name)
    labels = _input_names(function, len(shapes), attrs, name)
    inputs = [graph.input(n, _shape_of(s, n, name)) for n, s in zip(labels, shapes)]
    with graph.tracing():
        made = function(*inputs, **attrs)
    results = [_node(graph, r, name) for r in _results(made, name)]
    keys = tuple(made) if isinstance(made, Mapping) else None
    graph.set_outputs(results if keys is None else dict(zip(map(str, keys), results)))
    return Traced(graph, keys, is_single=not isinstance(made, Mapping | tuple | list))


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


def _shape_of(given: Any, parameter: str, name: str) -> Shape:
    if isinstance(given, Shape):
        return given
    if hasattr(given, "shape") and hasattr(given, "dtype"):
        try:
            return Shape(given.shape, DType.of(given.dtype))
        except GraphError as error:
            raise GraphError(f"{name}: {parameter}: {error}") from None
    raise GraphError(
        f"{name}: {parameter} is {given!r}, expected an array or a rlx.Shape. "
        "Python values are given by keyword."
    )


def _results(made: Any, name: str) -> list[Any]:
    results = list(made.values()) if isinstance(made, Mapping) else made
    results = list(results) if isinstance(results, tuple | list) else [results]
    if not results:
        raise GraphError(f"{name} returned nothing. Return a node, a tuple or a dict of nodes.")
    return results


def _node(graph: Graph, result: Any, name: str) -> Node:
    """A result as a node; what is known already is a constant."""
    if isinstance(result, Node):
        return result
    if isinstance(result, np.ndarray | np.generic | bool | int | float | complex):
        return graph.constant(result)
    raise GraphError(f"{name} returned {result!r}. Return a node, a tuple or a dict of nodes.")


class Jit:
    """A function that is compiled for the shapes, dtypes and keyword values it is called with."""

    __name__: str

    def __init__(self, function: Function, options: Mapping[str, Any]) -> None:
        if not callable(function):
            raise GraphError(f"jit takes a function, got {function!r}.")
        self.function = function
        self._options = dict(options)
        self._compiled: dict[Any, tuple[Traced, Any]] = {}
        functools.update_wrapper(self, function)
        self.__name__ = _name_of(function)

    def __call__(self, *arrays: Any, **attrs: Any) -> Any:
        """Run on arrays. On nodes the function is inlined into the graph being built."""
        node = next((a for a in arrays if isinstance(a, Node)), None)
        if node is not None:
            with node.graph.tracing():
                return self.function(*arrays, **attrs)
        given = [a if _is_array(a) else _array(a, self.__name__) for a in arrays]
        traced, executable = self._executable(given, attrs)
        made = executable(*given)
        return traced.packed(made if isinstance(made, tuple) else (made,))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A method gets its object by position, where only arrays can stand: the error says so."""
        return self if instance is None else functools.partial(self, instance)

    def graph(self, *shapes: Any, **attrs: Any) -> Graph:
        """The graph for inputs of `shapes`, as traced."""
        return _traced(self.function, shapes, attrs, self.__name__).graph

    def lower(self, *shapes: Any, **attrs: Any) -> MirModule:
        """The verified module for inputs of `shapes`."""
        return MirModule(self.graph(*shapes, **attrs))

    @property
    def compiled(self) -> int:
        """How many variants have been compiled."""
        return len(self._compiled)

    def _executable(self, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Traced, Any]:
        key = self._key(arrays, attrs)
        if key not in self._compiled:
            from rlx.runtime.session import compile as compiled

            traced = _traced(self.function, arrays, attrs, self.__name__)
            self._compiled[key] = traced, compiled(traced.graph, **self._options)
        return self._compiled[key]

    def _key(self, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
        shapes = tuple((tuple(a.shape), str(a.dtype)) for a in arrays)
        values = tuple((k, _distinct(v)) for k, v in sorted(attrs.items()))
        try:
            hash(values)
        except TypeError:
            odd = next(k for k, v in values if not _is_hashable(v))
            raise GraphError(
                f"{self.__name__}: keyword {odd!r} is {attrs[odd]!r}, which cannot be a key of "
                "what was compiled. Arrays are given by position."
            ) from None
        return shapes, values

    def __repr__(self) -> str:
        return f"<jit {self.__name__}: {self.compiled} compiled>"


@overload
def jit(function: Function, /) -> Jit: ...
@overload
def jit(**options: Any) -> Callable[[Function], Jit]: ...
def jit(function: Function | None = None, /, **options: Any) -> Any:
    """Compile a function on first use: `@rlx.jit`, or `@rlx.jit(target="cpu")`.

    The options are those of `rlx.compile`.
    """
    if function is None:
        return lambda f: Jit(f, options)
    return Jit(function, options)


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _array(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return np.asarray(value)
    raise GraphError(
        f"{name}: got {value!r} by position, expected an array. Python values are given by keyword."
    )


def _distinct(value: Any) -> Any:
    """A key that distinguishes what Python calls equal: 1, 1.0 and True; 0.0 and -0.0."""
    if isinstance(value, tuple):
        return tuple(_distinct(v) for v in value)
    return type(value), value.hex() if isinstance(value, float) else value


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
