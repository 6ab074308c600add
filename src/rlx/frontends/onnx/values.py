"""The values that names stand for during import."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike, is_static
from rlx.core.dtype import DType
from rlx.core.errors import GraphError, UnsupportedError
from rlx.frontends.onnx.small_dtypes import Small, small_of
from rlx.frontends.onnx.strings import TEXT, Strings, Text
from rlx.ir.mir import Graph, Node, Origin

MAX_SIZES = 4096
"""Integer tensors up to this many elements are looked at as sizes."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """A small integer tensor whose elements are dims: known numbers, or formulas over named dims.

    They are computed where the model is read, so shapes that follow from shapes are no data.
    """

    dims: tuple[DimLike, ...]
    shape: tuple[int, ...]
    dtype: DType = DType.I64

    def __post_init__(self) -> None:
        if len(self.dims) != math.prod(self.shape) or any(d < 0 for d in self.shape):
            raise GraphError(f"{len(self.dims)} numbers are not of the shape {list(self.shape)}")

    @classmethod
    def of(cls, array: np.ndarray[Any, Any]) -> Sizes:
        dims = tuple(int(v) for v in array.reshape(-1))
        return cls(dims, array.shape, DType.of(array.dtype))

    @property
    def is_known(self) -> bool:
        return all(map(is_static, self.dims))

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """As elements that may be dims."""
        made = np.empty(len(self.dims), object)
        made[:] = self.dims
        return made.reshape(self.shape)

    def node(self, graph: Graph) -> Node:
        """The same tensor as a value of the graph."""
        if self.is_known:
            numbers = np.array([int(d) for d in self.dims], self.dtype.numpy)
            return graph.constant(numbers.reshape(self.shape))
        if self.shape == ():
            return self._one(graph, self.dims[0])
        parts = [ops.expand_dims(self._one(graph, d), axes=(0,)) for d in self.dims]
        return ops.reshape(ops.concat(parts, axis=0), dims=self.shape)

    def _one(self, graph: Graph, dim: DimLike) -> Node:
        if isinstance(dim, Dim):
            return graph.node("extent", (), {"dim": dim, "dtype": self.dtype})
        return graph.constant(np.array(int(dim), self.dtype.numpy))


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor that the model brings along; it becomes a param or a constant where it is used."""

    name: str
    array: np.ndarray[Any, Any]

    @property
    def dtype(self) -> DType:
        """Its dtype; an error where rlx has none such."""
        if self.element is not None:
            name = self.element.name
            raise UnsupportedError(f"{self.name!r} is a tensor of {name}s, which rlx computes not")
        return DType.of(self.array.dtype)

    @property
    def small(self) -> Small | None:
        """Its element type, where rlx has no dtype for it."""
        return small_of(self.array.dtype)

    @property
    def element(self) -> Element | None:
        return TEXT if self.array.dtype == object else self.small


Element = Small | Text
"""An element type that rlx has no dtype for; tensors of it are codes."""


@dataclass(frozen=True, slots=True)
class Coded:
    """A tensor as codes: its elements are of a type that rlx has no dtype for."""

    codes: Node
    element: Element


@dataclass(frozen=True, slots=True)
class Items:
    """A sequence of tensors whose length is known."""

    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Absent:
    """An optional that holds nothing."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """A map: its keys, and the value of each, as rows."""

    keys: Value
    values: Value


@dataclass(frozen=True, slots=True)
class Records:
    """A sequence of maps that have the same keys: a row of values for each."""

    keys: tuple[Any, ...]
    rows: Value


Value = Node | Sizes | Weight | Coded | Items | Absent | Pairs | Records


@dataclass(frozen=True, slots=True)
class Mapped:
    """What a call gave for a map: its keys, and the value of each."""

    keys: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]


Given = Any
"""What a call gives for an input: an array, a list of them for a sequence, None for nothing, and
Mapped for a map."""
Form = Any
"""The same with shapes instead of arrays."""


def form_of(given: Given) -> Form:
    match given:
        case list():
            return [form_of(g) for g in given]
        case Mapped():
            return ("map", len(given.keys))
        case _:
            return None if given is None else given.shape


def arrays_of(given: Given) -> list[np.ndarray[Any, Any]]:
    """The arrays of what a call gave, in order."""
    match given:
        case list():
            return [array for g in given for array in arrays_of(g)]
        case Mapped():
            return [given.keys, given.values]
        case _:
            return [] if given is None else [given]


def key_of(given: Given) -> Any:
    """Its identity by value."""
    match given:
        case list():
            return tuple(key_of(g) for g in given)
        case Mapped():
            return "map", key_of(given.keys), key_of(given.values)
        case np.ndarray() if given.dtype.hasobject:
            return given.shape, tuple(given.reshape(-1).tolist())
        case _:
            return None if given is None else (given.shape, given.dtype.str, given.tobytes())


def frozen(form: Form) -> Any:
    """A form that can be a key."""
    return ("list", *map(frozen, form)) if isinstance(form, list) else form


def filled(value: Value, arrays: Iterator[Any], strings: Strings) -> Given:
    """What a call gets for a result of this form, of the arrays that come next."""
    match value:
        case Items(values=values):
            return [filled(v, arrays, strings) for v in values]
        case Absent():
            return None
        case Coded(element=element):
            codes = np.asarray(next(arrays))
            return strings.decode(codes) if isinstance(element, Text) else element.decode(codes)
        case Pairs():
            keys, held = (filled(v, arrays, strings) for v in (value.keys, value.values))
            return dict(zip(keys.tolist(), held.tolist()))
        case Records():
            return [
                dict(zip(value.keys, row)) for row in filled(value.rows, arrays, strings).tolist()
            ]
        case _:
            return next(arrays)


def parts_of(value: Value) -> tuple[Value, ...]:
    """The values that a value is made of; none where it is a tensor or nothing."""
    match value:
        case Items(values=values):
            return values
        case Coded():
            return (value.codes,)
        case Pairs():
            return value.keys, value.values
        case Records():
            return (value.rows,)
        case _:
            return ()


def of_parts(value: Value, parts: Sequence[Any]) -> Value:
    """The same with other parts."""
    match value:
        case Items():
            return Items(tuple(parts))
        case Coded():
            return Coded(parts[0], value.element)
        case Pairs():
            return Pairs(*parts)
        case Records():
            return Records(value.keys, parts[0])
        case _:
            return value


def like(value: Value, flat: Iterator[Node]) -> Value:
    """A value of this form, of the tensors that come next."""
    if is_plain(value):
        return next(flat)
    return of_parts(value, [like(v, flat) for v in parts_of(value)])


def flattened(value: Value) -> list[Value]:
    """The tensors of a value, in order."""
    if is_plain(value):
        return [value]
    return [tensor for part in parts_of(value) for tensor in flattened(part)]


def is_plain(value: Value) -> bool:
    """Is it a tensor of a dtype that rlx has?"""
    return isinstance(value, Node | Sizes | Weight)


def sizes_of(array: np.ndarray[Any, Any], dtype: DType) -> Sizes:
    """Elements that may be dims, as a value."""
    return Sizes(tuple(array.reshape(-1)), array.shape, dtype)


def state_double(value: Value, name: str) -> None:
    """Mark f64 that the file names: other f64 is known to the importer alone."""
    if isinstance(value, Node) and any(s.dtype in (DType.F64, DType.C128) for s in value.shapes):
        value.graph.add_origins(value, (Origin("value", name),))
