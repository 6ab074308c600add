"""Sorting, selection by rank, and searching."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call, axis_of, rank
from rlx.ir.mir import Node


def _sortable(x: Node) -> Node:
    return ops.cast(x, to=DType.U8) if x.shape.dtype is DType.BOOL else x


def sorted_by_rank(x: Node, axis: int, descending: bool = False) -> tuple[Node, Node]:
    """The elements along an axis in order, and where they were."""
    wide = _sortable(x)
    order = ops.argsort(wide, axis=axis, descending=descending)
    return ops.take_along_axis(wide, order, axis=axis), order


@handles("sort", "msort")
def sort(call: Call, x: Node, stable: Any = None, dim: int = -1, descending: bool = False) -> Any:
    if not rank(x):
        return [x, call.constant(0, DType.I64)] if call.op == "sort" else x
    if call.op == "msort":
        return sorted_by_rank(x, 0)[0]
    return list(sorted_by_rank(x, axis_of(x, dim), bool(descending)))


@handles("argsort")
def argsort(call: Call, x: Node, stable: bool = False, dim: int = -1,
            descending: bool = False) -> Node:  # fmt: skip
    if not rank(x):
        return call.filled(0)
    return ops.argsort(_sortable(x), axis=axis_of(x, dim), descending=bool(descending))


@handles("topk")
def topk(call: Call, x: Node, k: Any, dim: int = -1, largest: bool = True,
         sorted: bool = True) -> list[Node]:  # noqa: A002  # fmt: skip
    if not rank(x):
        return [x, call.constant(0, DType.I64)] if k else [call.filled(0, v) for v in call.value]
    if call.dims[axis_of(x, dim)] == 0:
        return [call.filled(0, v) for v in call.value]
    return list(ops.top_k(_sortable(x), k=k, axis=axis_of(x, dim), largest=bool(largest)))


@handles("kthvalue")
def kthvalue(call: Call, x: Node, k: Any, dim: int = -1, keepdim: bool = False) -> list[Node]:
    if not rank(x):
        return [x, call.constant(0, DType.I64)]
    return _at_rank(call, x, axis_of(x, dim), k - 1)


def _at_rank(call: Call, x: Node, axis: int, place: Any) -> list[Node]:
    values, order = sorted_by_rank(x, axis)
    made = (ops.narrow(v, axis=axis, start=place, length=1) for v in (values, order))
    return [ops.reshape(m, dims=call.dims_of(v)) for m, v in zip(made, call.value)]


@handles("median", "nanmedian")
def median(call: Call, x: Node, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower of the two in the middle; NaN if one is, or the median of the others."""
    is_plain = not isinstance(call.value, tuple | list)
    if not rank(x):
        return x if is_plain else [x, call.constant(0, DType.I64)]
    flat = ops.reshape(x, dims=(x.shape.num_elements,)) if is_plain else x
    axis = 0 if is_plain else axis_of(x, dim or 0)
    size = flat.shape.dims[axis]
    if size == 0:
        call.refuse("the median of nothing")
    values, order = sorted_by_rank(flat, axis)
    place = _middle(call, flat, axis)
    picked = [ops.take_along_axis(v, place, axis=axis) for v in (values, order)]
    fakes = [call.value] if is_plain else call.value
    made = [ops.reshape(p, dims=call.dims_of(f)) for p, f in zip(picked, fakes)]
    return made[0] if is_plain else made


def _middle(call: Call, x: Node, axis: int) -> Node:
    """The rank of the median of each row; NaN, which sorts last, is the last."""
    size = call.node(x.shape.dims[axis], DType.I64)
    if not x.shape.dtype.is_float:
        dims = [1 if a == axis else d for a, d in enumerate(x.shape.dims)]
        return ops.expand(ops.floor_div(ops.sub(size, 1), 2), dims=tuple(dims))
    is_nan = ops.is_nan(x)
    count = ops.sum(ops.cast(is_nan, to=DType.I64), axes=(axis,), keepdims=True)
    if call.op == "nanmedian":
        known = ops.sub(size, count)
        return ops.maximum(ops.floor_div(ops.sub(known, 1), 2), 0)
    half = ops.floor_div(ops.sub(size, 1), 2)
    return ops.where(ops.greater(count, 0), ops.sub(size, count), half)


@handles("mode")
def mode(call: Call, x: Node, dim: int = -1, keepdim: bool = False) -> list[Node]:
    """The most frequent element, the least of equals, and where it is last."""
    if not rank(x):
        return [x, call.constant(0, DType.I64)]
    axis = axis_of(x, dim)
    wide = _sortable(x)
    same = ops.equal(ops.expand_dims(wide, axes=(axis + 1,)), ops.expand_dims(wide, axes=(axis,)))
    counts = ops.sum(ops.cast(same, to=DType.I64), axes=(axis + 1,))
    values, order = sorted_by_rank(wide, axis)
    best = ops.argmax(ops.take_along_axis(counts, order, axis=axis), axis=axis, keepdims=True)
    value = ops.take_along_axis(values, best, axis=axis)
    last = ops.where(ops.equal(wide, value), call.positions(x.shape.dims, axis),
                     call.constant(-1, DType.I64))  # fmt: skip
    place = ops.max(last, axes=(axis,), keepdims=True)
    return [ops.reshape(v, dims=call.dims_of(f)) for v, f in zip((value, place), call.value)]


@handles("bucketize")
def bucketize(call: Call, x: Any, boundaries: Node, out_int32: bool = False,
              right: bool = False) -> Node:  # fmt: skip
    return _searched(call, boundaries, x, right)


@handles("searchsorted")
def searchsorted(call: Call, x: Node, out_int32: bool = False, right: bool = False,
                 side: str | None = None, **given: Any) -> Node:  # fmt: skip
    call.require(given.get("sorter") is None, "edges in another order")
    values = given["self"]
    return _searched(call, x, values, right or side == "right")


def _searched(call: Call, edges: Node, values: Any, right: bool) -> Node:
    """How many edges are below; of edges in rows each value is compared with its row's."""
    value = call.node(values)
    wide = edges.shape.dtype if value.shape.dtype is edges.shape.dtype else DType.F64
    edges, value = call.node(edges, wide), call.node(value, wide)
    if rank(edges) == 1:
        return ops.searchsorted(edges, value, side="right" if right else "left")
    below = ops.less_equal if right else ops.less
    found = below(ops.expand_dims(edges, axes=(rank(edges) - 1,)),
                  ops.expand_dims(value, axes=(rank(value),)))  # fmt: skip
    return ops.sum(ops.cast(found, to=DType.I64), axes=(rank(found) - 1,))


@handles("isin")
def isin(call: Call, x: Any, test_elements: Any = None, assume_unique: bool = False,
         invert: bool = False, **other: Any) -> Node:  # fmt: skip
    given = test_elements if test_elements is not None else other.get("test_element")
    values, wanted = call.node(x), call.node(given)
    flat = ops.reshape(wanted, dims=(wanted.shape.num_elements,))
    same = ops.equal(ops.expand_dims(values, axes=(rank(values),)), flat)
    made = ops.any(same, axes=(rank(same) - 1,))
    return ops.logical_not(made) if invert else made


@handles("bincount")
def bincount(call: Call, x: Node, weights: Node | None = None, minlength: int = 0) -> Node:
    call.refuse("as many bins as data says")


@handles("histc")
def histc(call: Call, x: Node, bins: int = 100, min: Any = 0, max: Any = 0) -> Node:  # noqa: A002
    """How many elements each of equal bins has; without bounds, those of the data."""
    flat = ops.reshape(x, dims=(x.shape.num_elements,))
    low, high = call.nodes(min, max, dtype=x.shape.dtype)
    if min == max and x.shape.num_elements != 0:
        low, high = ops.min(flat), ops.max(flat)
    is_point = ops.equal(low, high)
    low, high = (ops.where(is_point, ops.sub(low, 1.0), low),
                 ops.where(is_point, ops.add(high, 1.0), high))  # fmt: skip
    place = ops.floor(ops.div(ops.mul(ops.sub(flat, low), float(bins)), ops.sub(high, low)))
    place = ops.cast(ops.minimum(place, float(bins - 1)), to=DType.I64)
    inside = ops.logical_and(ops.greater_equal(flat, low), ops.less_equal(flat, high))
    safe = ops.where(inside, place, call.constant(bins, DType.I64))
    zeros = ops.expand(call.constant(0, DType.I64), dims=(bins + 1,))
    ones = ops.expand(call.constant(1, DType.I64), dims=safe.shape.dims)
    counts = ops.scatter(zeros, safe, ones, axis=0, reduction="add")
    return ops.narrow(counts, axis=0, start=0, length=bins)
