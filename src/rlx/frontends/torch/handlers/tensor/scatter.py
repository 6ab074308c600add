"""Scattering: elements put, or combined, where indices say."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.handlers.math.arithmetic import scaled
from rlx.frontends.torch.handlers.tensor.gather import at_least_1d, wrapped
from rlx.frontends.torch.handlers.tensor.movement import bounds_of
from rlx.frontends.torch.node_call import Call, axis_of, rank
from rlx.ir.mir import Node

REDUCTIONS: dict[str | None, Any] = {
    None: "none", "sum": "add", "add": "add", "multiply": "mul", "prod": "mul", "amax": "max",
    "amin": "min",
}  # fmt: skip
STARTS = {"sum": 0.0, "mean": 0.0, "prod": 1.0}


@handles("scatter", "scatter_add", "scatter_reduce")
def scatter(
    call: Call, x: Node, dim: int, index: Node, src: Any = None, value: Any = None,
    reduce: str | None = None, include_self: bool = True,
) -> Node:  # fmt: skip
    how = "sum" if call.op.startswith("scatter_add") else reduce
    base, places = at_least_1d(x), at_least_1d(index)
    updates = _trimmed(call, src if src is not None else value, places)
    axis = axis_of(base, dim)
    if how == "mean" or not include_self:
        made = _reduced(call, base, places, updates, axis, how, include_self)
    else:
        made = _combined(base, places, updates, axis, how)
    return ops.reshape(made, dims=x.shape.dims)


def _trimmed(call: Call, src: Any, places: Node) -> Node:
    """Updates of the dims of their indices: torch reads no more of them."""
    updates = call.node(src, call.dtype)
    if not rank(updates):
        return ops.expand(updates, dims=places.shape.dims)
    for axis in range(rank(places)):
        if updates.shape.dims[axis] != places.shape.dims[axis]:
            updates = ops.narrow(updates, axis=axis, start=0, length=places.shape.dims[axis])
    return updates


def _combined(base: Node, places: Node, updates: Node, axis: int, how: str | None) -> Node:
    if base.shape.dtype is DType.BOOL and how is not None:
        wide = (ops.cast(v, to=DType.U8) for v in (base, updates))
        a, b = wide
        name: Any = {"sum": "max", "add": "max", "prod": "min", "multiply": "min"}.get(
            how, REDUCTIONS[how]
        )
        made = ops.scatter_elements(a, places, b, axis=axis, reduction=name)
        return ops.cast(made, to=DType.BOOL)
    return ops.scatter_elements(base, places, updates, axis=axis, reduction=REDUCTIONS[how])


def _identity(call: Call, how: str, dtype: DType) -> Any:
    if how in STARTS:
        return STARTS[how]
    if dtype.is_float:
        return float("-inf") if how == "amax" else float("inf")
    info = np.iinfo(dtype.numpy)
    return info.min if how == "amax" else info.max


def _reduced(
    call: Call, base: Node, places: Node, updates: Node, axis: int, how: str | None,
    include_self: bool,
) -> Node:  # fmt: skip
    """With the identity in place of what is written to, and divided by counts for means."""
    assert how is not None
    dtype = base.shape.dtype
    call.require(dtype is not DType.BOOL, "scatter_reduce of bools without what was there")
    ones = ops.expand(call.constant(1, dtype), dims=updates.shape.dims)
    zeros = ops.expand(call.constant(0, dtype), dims=base.shape.dims)
    counts = ops.scatter_elements(zeros, places, ones, axis=axis, reduction="add")
    is_written = ops.greater(counts, 0)
    start = base
    if not include_self:
        start = ops.where(is_written, call.constant(_identity(call, how, dtype), dtype), base)
    kind = "add" if how == "mean" else REDUCTIONS[how]
    made = ops.scatter_elements(start, places, updates, axis=axis, reduction=kind)
    if how != "mean":
        return made
    total = ops.add(counts, call.constant(1, dtype)) if include_self else counts
    safe = ops.where(is_written, total, call.constant(1, dtype))
    return ops.div(made, safe) if dtype.is_float else ops.floor_div(made, safe)


@handles("slice_scatter")
def slice_scatter(
    call: Call, x: Node, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Node:
    axis = axis_of(x, dim)
    size = x.shape.dims[axis]
    low, high = bounds_of(size, start, end)
    length = (high - low + step - 1) // step
    dims = (*x.shape.dims[:axis], length, *x.shape.dims[axis + 1 :])
    updates = ops.expand(call.node(src, x.shape.dtype), dims=dims)
    if length == size:
        return updates
    if step == 1:
        before = ops.narrow(x, axis=axis, start=0, length=low)
        after = ops.narrow(x, axis=axis, start=low + length, length=size - low - length)
        return ops.concat([before, updates, after], axis=axis)
    places = ops.mul(call.positions((length,), 0), call.constant(step, DType.I64))
    return ops.scatter(x, ops.add(places, call.node(low, DType.I64)), updates, axis=axis)


@handles("select_scatter")
def select_scatter(call: Call, x: Node, src: Any, dim: int, index: Any) -> Node:
    axis = axis_of(x, dim)
    updates = ops.expand(
        call.node(src, x.shape.dtype), dims=(*x.shape.dims[:axis], *x.shape.dims[axis + 1 :])
    )
    place = ops.reshape(wrapped(call, call.node(index, DType.I64), x.shape.dims[axis]), dims=(1,))
    return ops.scatter(x, place, ops.expand_dims(updates, axes=(axis,)), axis=axis)


@handles("diagonal_scatter")
def diagonal_scatter(
    call: Call, x: Node, src: Node, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Node:
    a, b = axis_of(x, dim1), axis_of(x, dim2)
    rest = [i for i in range(rank(x)) if i not in (a, b)]
    order = (*rest, a, b)
    moved = ops.transpose(x, perm=order)
    *lead, rows, columns = moved.shape.dims
    count = src.shape.dims[-1]
    first = max(0, offset) + max(0, -offset) * columns
    step = ops.mul(call.positions((count,), 0), call.node(columns + 1, DType.I64))
    flat = ops.reshape(moved, dims=(*lead, rows * columns))
    places = ops.add(step, call.node(first, DType.I64))
    made = ops.scatter(flat, places, call.node(src, call.dtype), axis=len(lead))
    back = ops.reshape(made, dims=moved.shape.dims)
    return ops.transpose(back, perm=tuple(int(i) for i in np.argsort(order)))


@handles("index_add", "index_copy", "index_fill", "index_reduce")
def index_update(
    call: Call, x: Node, dim: int, index: Node, source: Any = None, value: Any = None,
    alpha: Any = 1, reduce: str | None = None, include_self: bool = True,
) -> Node:  # fmt: skip
    base, places = at_least_1d(x), at_least_1d(index)
    axis = axis_of(base, dim)
    name = call.op.removesuffix("_")
    places = wrapped(call, places, base.shape.dims[axis])
    dims = (*base.shape.dims[:axis], places.shape.dims[0], *base.shape.dims[axis + 1 :])
    given = call.node(source if source is not None else value, call.dtype)
    updates = ops.reshape(given, dims=dims) if rank(given) else ops.expand(given, dims=dims)
    if name == "index_reduce":
        made = _index_reduced(call, base, places, updates, axis, str(reduce), include_self)
    else:
        made = ops.scatter(
            base, places, scaled(call, updates, alpha), axis=axis,
            reduction="add" if name == "index_add" else "none",
        )  # fmt: skip
    return ops.reshape(made, dims=x.shape.dims)


def _index_reduced(
    call: Call, base: Node, places: Node, updates: Node, axis: int, reduce: str, include_self: bool
) -> Node:
    """As scatter_reduce, of indices that are the same for all other axes."""
    how = {"prod": "prod", "mean": "mean", "amax": "amax", "amin": "amin"}[reduce]
    shape = [1] * rank(updates)
    shape[axis] = places.shape.dims[0]  # pyright: ignore[reportArgumentType, reportCallIssue]
    wide = ops.expand(ops.reshape(places, dims=tuple(shape)), dims=updates.shape.dims)
    if how == "mean" or not include_self:
        return _reduced(call, base, wide, updates, axis, how, include_self)
    return _combined(base, wide, updates, axis, how)


@handles("put")
def put(call: Call, x: Node, index: Node, source: Node, accumulate: bool = False) -> Node:
    count, total = x.shape.num_elements, index.shape.num_elements
    places = wrapped(call, ops.reshape(index, dims=(total,)), count)
    made = ops.scatter(
        ops.reshape(x, dims=(count,)), places, ops.reshape(source, dims=(total,)), axis=0,
        reduction="add" if accumulate else "none",
    )  # fmt: skip
    return ops.reshape(made, dims=x.shape.dims)


@handles("masked_scatter")
def masked_scatter(call: Call, x: Node, mask: Node, source: Node) -> Node:
    """The n-th place that the mask holds takes the n-th element of the source."""
    dims = call.dims
    wide = ops.reshape(ops.expand(call.node(mask, DType.BOOL), dims=dims), dims=(-1,))
    count = source.shape.num_elements
    order = ops.sub(ops.cumsum(ops.cast(wide, to=DType.I64), axis=0), 1)
    last = ops.sub(call.node(count, DType.I64), 1)
    safe = ops.maximum(ops.minimum(order, last), 0)
    taken = ops.gather(ops.reshape(source, dims=(count,)), safe, axis=0)
    base = ops.reshape(ops.expand(x, dims=dims), dims=(-1,))
    return ops.reshape(ops.where(wide, call.node(taken, call.dtype), base), dims=dims)
