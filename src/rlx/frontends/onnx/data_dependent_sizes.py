"""Data-dependent sizes: values that become dims at run time.

An operand that decides a shape may be computed: the sum of a mask, the largest of some lengths. Its
elements are then measured sizes, found out by `as_size`, unless the graph says what they are: sizes
of other values, and how many elements are not 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike, dim_max, dim_min, product, provably_le
from rlx.core.dtype import DType
from rlx.core.errors import UnsupportedError
from rlx.core.extent import ceiling, is_measured
from rlx.frontends.dim_ranges import behind
from rlx.frontends.onnx.values import Sizes
from rlx.ir.mir import Node

if TYPE_CHECKING:
    from rlx.frontends.onnx.node_call import Call

MAX_ELEMENTS = 16
"""Of an operand that is looked at as sizes."""
MAX_DEPTH = 64
MAX_UNIFIED = 8
"""Times that sizes of one node's operands are taken to be equal."""
_SAME_ORDER = frozenset({"reshape", "squeeze", "expand_dims"})
_ARITHMETIC: dict[str, Any] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "maximum": dim_max, "minimum": dim_min,
}  # fmt: skip
_SAME_COUNT = frozenset({
    "reshape", "squeeze", "expand_dims", "transpose", "flip", "neg", "abs", "sign",
})  # fmt: skip
"""Ops whose results have as many elements that are not 0 as their operands."""


def sizes_of_data(node: Node) -> Sizes | None:
    """The elements of a small integer tensor as sizes; None where it is no such tensor."""
    shape = node.shape
    if not shape.is_static or shape.rank > 1 or not shape.dtype.is_integer:
        return None
    count = int(product(shape.dims))
    if count > MAX_ELEMENTS:
        return None
    dims = [element(node, i) for i in range(count)]
    found = [scalar_size(node, i) if d is None else d for i, d in enumerate(dims)]
    return Sizes(tuple(found), shape.static_dims, shape.dtype)


def scalar_size(node: Node, index: int = 0, most: DimLike | None = None) -> Dim:
    """An element as a size that is measured at run time."""
    found = ops.as_size(scalar(node, index), at_most=most).shape.dims[0]
    assert isinstance(found, Dim)
    return found


def distance(start: Node, end: Node, index: int) -> int | None:
    """What end - start of an element is at most, where the graph says that: 3 for i and i + 3, or
    for i and the least of i + 3 and a size."""
    one, first = _offset(start, index, 0)
    found = [last - first for other, last in _offsets(end, index, 0) if one == other]
    return min(found) if found else None


def _offsets(node: Node, index: int, depth: int) -> list[tuple[tuple[Node, int], int]]:
    """The elements that an element is the least of, each as another one and what is added."""
    index = 0 if node.shape.num_elements == 1 else index
    if depth <= MAX_DEPTH and node.op in _SAME_ORDER:
        return _offsets(node.inputs[0], index, depth + 1)
    if depth <= MAX_DEPTH and node.op == "minimum":
        pairs = (node.inputs, node.inputs[::-1])
        kept = [one for one, other in pairs if _is_size(other, index)]
        return [found for one in kept for found in _offsets(one, index, depth + 1)]
    return [_offset(node, index, depth)]


def _is_size(node: Node, index: int) -> bool:
    """Is an element known not to be negative, which would count from the back?"""
    size = element(node, index if node.shape.num_elements != 1 else 0)
    return size is not None and provably_le(0, size)


def _offset(node: Node, index: int, depth: int) -> tuple[tuple[Node, int], int]:
    """An element as another one and what is added to that."""
    index = 0 if node.shape.num_elements == 1 else index
    if depth > MAX_DEPTH:
        return (node, index), 0
    if node.op in _SAME_ORDER:
        return _offset(node.inputs[0], index, depth + 1)
    if node.op == "concat" and node.shape.rank == 1:
        ends = list(itertools.accumulate(i.shape.dims[0] for i in node.inputs))
        if all(isinstance(e, int) for e in ends):
            at = next(n for n, e in enumerate(ends) if index < int(e))
            before = int(ends[at - 1]) if at else 0
            return _offset(node.inputs[at], index - before, depth + 1)
    if node.op in ("add", "sub") and node.shape.dtype is DType.I64:
        one, other = node.inputs
        added = element(other, index if other.shape.num_elements != 1 else 0)
        if isinstance(added, int):
            base, first = _offset(one, index, depth + 1)
            return base, first + added if node.op == "add" else first - added
    return (node, index), 0


def scalar(node: Node, index: int = 0) -> Node:
    """One element, as i64."""
    flat = ops.reshape(node, dims=(product(node.shape.dims),))
    one = ops.narrow(flat, axis=0, start=index, length=1)
    return ops.cast(ops.reshape(one, dims=()), to=DType.I64)


def element(node: Node, index: int) -> DimLike | None:
    """What the graph says of an element: a number or a size; None where it depends on data."""
    return _Elements().of(node, index, 0)


@dataclass(frozen=True, slots=True)
class _Elements:
    """Elements that were looked at: where operands are shared, each is looked at once."""

    known: dict[tuple[Node, int], DimLike | None] = field(
        default_factory=dict[tuple[Node, int], DimLike | None]
    )

    def of(self, node: Node, index: int, depth: int) -> DimLike | None:
        if (node, index) not in self.known:
            self.known[node, index] = None if depth > MAX_DEPTH else self._of(node, index, depth)
        return self.known[node, index]

    def _of(self, node: Node, index: int, depth: int) -> DimLike | None:
        match node.op:
            case "constant":
                return int(node.attrs["value"].array.reshape(-1)[index])
            case "extent":
                return node.attrs["dim"]
            case "cast" if node.inputs[0].shape.dtype.is_integer:
                return self.of(node.inputs[0], index, depth + 1)
            case op if op in _SAME_ORDER:
                return self.of(node.inputs[0], index, depth + 1)
            case "concat" if node.shape.rank == 1:
                return self._of_concat(node, index, depth)
            case "narrow" if node.shape.rank == 1:
                start = node.attrs["start"]
                is_known = type(start) is int
                return self.of(node.inputs[0], start + index, depth + 1) if is_known else None
            case "gather" if node.inputs[0].shape.rank == 1 and node.inputs[1].op == "constant":
                at = int(node.inputs[1].attrs["value"].array.reshape(-1)[index])
                return self.of(node.inputs[0], at, depth + 1)
            case op if op in _ARITHMETIC:
                parts = [self._of_operand(i, index, depth) for i in node.inputs]
                return None if None in parts else _ARITHMETIC[op](*parts)
            case "sum" if index == 0 and node.shape.num_elements == 1:
                return _count(node.inputs[0])
            case _:
                return None

    def _of_operand(self, node: Node, index: int, depth: int) -> DimLike | None:
        return self.of(node, index if node.shape.num_elements != 1 else 0, depth + 1)

    def _of_concat(self, node: Node, index: int, depth: int) -> DimLike | None:
        for part in node.inputs:
            length = part.shape.dims[0]
            if not isinstance(length, int):
                return None
            if index < length:
                return self.of(part, index, depth + 1)
            index -= length
        return None


def _count(summed: Node) -> DimLike | None:
    """The sum of truth values is how many of them hold."""
    given = summed
    while given.op == "cast" and given.shape.dtype is not DType.BOOL:
        given = given.inputs[0]
    if given.shape.dtype is not DType.BOOL or not summed.shape.dtype.is_integer:
        return None
    return count_of(given)


def count_of(x: Node) -> DimLike:
    """How many elements of x are not 0: the same size for all that have as many."""
    return ops.nonzero(counted(x)).shape.dims[1]


def counted(x: Node) -> Node:
    """What x is made of whose elements are not 0 where those of x are not, in some order."""
    while True:
        if (
            x.op in _SAME_COUNT
            or (x.op == "cast" and _keeps_zeros(x))
            or (x.op == "not_equal" and _is_zero(x.inputs[1]))
        ):
            x = x.inputs[0]
        else:
            return x


def _keeps_zeros(cast: Node) -> bool:
    """Is nothing rounded to 0?"""
    given, made = cast.inputs[0].shape.dtype, cast.shape.dtype
    is_wider = given.is_integer and made.is_integer and given.itemsize <= made.itemsize
    return DType.BOOL in (given, made) or is_wider or (given.is_integer and made.is_float)


def _is_zero(node: Node) -> bool:
    return node.op == "constant" and not node.attrs["value"].array.any()


# -- sizes that are equal -------------------------------------------------------------------------


def as_long_as(x: Node, axis: int, size: DimLike) -> Node:
    """x, whose axis has `size` elements though the graph does not say so: an error where it has
    more or fewer."""
    if x.shape.dims[axis] == size:
        return x
    graph = x.graph
    found, wanted = (Sizes((d,), ()).node(graph) for d in (x.shape.dims[axis], size))
    how = {"dims": (size,), "axis": 0, "dtype": DType.I64}
    rows = ops.add(graph.node("iota", (), how), ops.same_size(found, wanted))
    return ops.gather(x, rows, axis=axis)


def unified(call: Call, error: BaseException) -> Call | None:
    """The call with operands of equal sizes, where this error says that two sizes, one of them
    measured, are to be equal; None where it says something else. Where they broadcast, one that is
    known to be at most 1 is repeated."""
    found = behind(error)
    if found is None or not (is_measured(found.left) or is_measured(found.right)):
        return None
    for old, new in ((found.right, found.left), (found.left, found.right)):
        inputs = [_with_size(v, old, new) for v in call.inputs]
        if found.may_repeat and (_is_at_most_one(old) or _is_at_most_one(new)):
            inputs = [_with_repeats(call, v, old, new) for v in call.inputs]
        if any(a is not b for a, b in zip(inputs, call.inputs)):
            return replace(call, inputs=tuple(inputs))
    return None


def _is_at_most_one(size: DimLike) -> bool:
    try:
        return provably_le(ceiling(size), 1)
    except UnsupportedError:
        return False


def _with_size(value: Any, old: DimLike, new: DimLike) -> Any:
    if not isinstance(value, Node) or not isinstance(old, Dim):
        return value
    for axis, dim in enumerate(value.shape.dims):
        if dim == old:
            value = as_long_as(value, axis, new)
    return value


def _with_repeats(call: Call, value: Any, old: DimLike, new: DimLike) -> Any:
    if not isinstance(value, Node) or not isinstance(old, Dim) or not _is_at_most_one(old):
        return value
    for axis, dim in enumerate(value.shape.dims):
        if dim == old and _meets(call, axis - value.shape.rank, new):
            value = _repeated(value, axis, new)
    return value


def _meets(call: Call, axis: int, size: DimLike) -> bool:
    """Has an operand this size on an axis, counted from the last?"""
    ranks = [v for v in call.inputs if isinstance(v, Node) and v.shape.rank >= -axis]
    return any(v.shape.dims[axis] == size for v in ranks)


def _repeated(x: Node, axis: int, size: DimLike) -> Node:
    """x broadcast along an axis to a size, if it has one element there; else as long as that."""
    graph = x.graph
    found, wanted = (Sizes((d,), ()).node(graph) for d in (x.shape.dims[axis], size))
    is_one = ops.equal(found, np.int64(1))
    shift = ops.same_size(ops.where(is_one, wanted, found), wanted)
    line = graph.node("iota", (), {"dims": (size,), "axis": 0, "dtype": DType.I64})
    return ops.gather(x, ops.add(ops.where(is_one, np.int64(0), line), shift), axis=axis)


def reshaped(x: Node, dims: Sequence[DimLike]) -> Node:
    """x in row-major order under dims that are computed: that there are as many elements is known
    when it runs."""
    total = product(x.shape.dims)
    rest = product(d for d in dims if d != -1)
    wanted = [total // dim_max(1, rest) if d == -1 else d for d in dims]
    flat = as_long_as(ops.reshape(x, dims=(total,)), 0, product(wanted))
    return ops.reshape(flat, dims=tuple(wanted))
