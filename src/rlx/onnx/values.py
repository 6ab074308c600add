"""What names stand for while a model is read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx import ops
from rlx.dim import Dim, DimLike, is_static
from rlx.dtype import DType
from rlx.errors import GraphError, UnsupportedError
from rlx.ir.mir import Graph, Node
from rlx.onnx.small import widened

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
        if widened(self.array) is not None:
            kind = self.array.dtype.name
            raise UnsupportedError(f"{self.name!r} is {kind}, which is only read to be dequantised")
        return DType.of(self.array.dtype)


@dataclass(frozen=True, slots=True)
class Items:
    """A sequence of tensors whose length is known."""

    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Absent:
    """An optional that holds nothing."""


Value = Node | Sizes | Weight | Items | Absent
Given = Any
"""What a call gives for an input: an array, a list of them for a sequence, None for nothing."""
Form = Any
"""The same with the shapes of the arrays in their places."""


def form_of(given: Given) -> Form:
    if isinstance(given, list):
        return [form_of(g) for g in given]
    return None if given is None else given.shape


def arrays_of(given: Given) -> list[np.ndarray[Any, Any]]:
    """The arrays of what a call gave, in order."""
    if isinstance(given, list):
        return [array for g in given for array in arrays_of(g)]
    return [] if given is None else [given]


def key_of(given: Given) -> Any:
    """What tells it from others by value."""
    if isinstance(given, list):
        return tuple(key_of(g) for g in given)
    return None if given is None else (given.shape, given.tobytes())


def frozen(form: Form) -> Any:
    """A form that can be a key."""
    return ("list", *map(frozen, form)) if isinstance(form, list) else form


def filled(value: Value, arrays: Iterator[Any]) -> Given:
    """What a call gets for a result of this form, of the arrays that come next."""
    match value:
        case Items(values=values):
            return [filled(v, arrays) for v in values]
        case Absent():
            return None
        case _:
            return next(arrays)


def flattened(value: Value) -> list[Value]:
    """The tensors of a value, in order."""
    match value:
        case Items(values=values):
            return [tensor for v in values for tensor in flattened(v)]
        case Absent():
            return []
        case _:
            return [value]


def known_value(graph: Graph, given: Given) -> Value:
    """What a call gave, as a value that is known while reading."""
    if given is None:
        return Absent()
    if isinstance(given, list):
        return Items(tuple(known_value(graph, g) for g in given))
    return graph.constant(given)


def sizes_of(array: np.ndarray[Any, Any], dtype: DType) -> Sizes:
    """Elements that may be dims, as a value."""
    return Sizes(tuple(array.reshape(-1)), array.shape, dtype)
