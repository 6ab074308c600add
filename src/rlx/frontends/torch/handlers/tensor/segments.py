"""Sums, means and extrema of runs of rows; histograms."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call, Unused, rank
from rlx.ir.mir import Node

REDUCED: dict[str, Any] = {"sum": "add", "mean": "add", "max": "max", "min": "min", "prod": "mul"}
IDENTITY = {"sum": 0.0, "mean": 0.0, "max": float("-inf"), "min": float("inf"), "prod": 1.0}


def _combined(call: Call, rows: Node, places: Node, count: DimLike, how: str, start: float) -> Node:
    """Rows of equal places combined, in as many rows as there are places."""
    dtype = rows.shape.dtype
    first = ops.expand(call.constant(start, dtype), dims=(count, *rows.shape.dims[1:]))
    return ops.scatter(first, places, rows, axis=0, reduction=REDUCED[how])


def _sizes(
    call: Call, places: Node, count: DimLike, dtype: DType, weight: Node | None = None
) -> Node:
    zeros = ops.expand(call.constant(0, dtype), dims=(count,))
    ones = (
        weight
        if weight is not None
        else ops.expand(call.constant(1, dtype), dims=places.shape.dims)
    )
    return ops.scatter(zeros, places, ones, axis=0, reduction="add")


def _column(x: Node, like: Node) -> Node:
    return ops.reshape(x, dims=(x.shape.dims[0], *[1] * (rank(like) - 1)))


@handles("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    call: Call, x: Node, indices: Node, offsets: Node, mode: int = 0,
    per_sample_weights: Node | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> list[Any]:  # fmt: skip
    """Rows of a table, combined bag by bag; a bag ends where the next begins."""
    how = ("sum", "mean", "max")[mode]
    count = offsets.shape.dims[0] - (1 if include_last_offset else 0)
    starts = ops.narrow(offsets, axis=0, start=0, length=count) if include_last_offset else offsets
    total = indices.shape.dims[0]
    places = ops.sub(ops.searchsorted(call.node(starts, DType.I64), call.positions((total,), 0),
                                      side="right"), 1)  # fmt: skip
    rows = ops.gather(x, indices, axis=0)
    if per_sample_weights is not None:
        rows = ops.mul(rows, ops.expand_dims(per_sample_weights, axes=(1,)))
    counts = ops.not_equal(call.node(indices, DType.I64), call.constant(padding_idx, DType.I64))
    unused = call.constant(IDENTITY[how], rows.shape.dtype)
    rows = ops.where(ops.expand_dims(counts, axes=(1,)), rows, unused)
    made = _combined(call, rows, places, count, how, IDENTITY[how])
    sizes = _sizes(call, places, count, DType.F32, ops.cast(counts, to=DType.F32))
    if how == "mean":
        made = ops.div(made, call.node(_column(ops.maximum(sizes, 1.0), made), made.shape.dtype))
    if how == "max":
        is_empty = ops.equal(_column(sizes, made), 0.0)
        made = ops.where(is_empty, call.constant(0, made.shape.dtype), made)
    return [made, *(Unused(call.op) for _ in call.value[1:])]


@handles("segment_reduce")
def segment_reduce(
    call: Call, x: Node, reduce: str, lengths: Node | None = None, offsets: Node | None = None,
    axis: int = 0, unsafe: bool = False, initial: Any = None,
) -> Node:  # fmt: skip
    given = lengths if lengths is not None else offsets
    call.require(axis == 0 and given is not None and rank(given) == 1, "segments along other axes")
    assert given is not None
    total = x.shape.dims[0]
    ends = ops.cumsum(call.node(given, DType.I64), axis=0)
    if offsets is not None:
        count = offsets.shape.dims[0] - 1
        ends = ops.narrow(call.node(offsets, DType.I64), axis=0, start=1, length=count)
    places = ops.searchsorted(ends, call.positions((total,), 0), side="right")
    count = ends.shape.dims[0]
    start = IDENTITY[reduce] if initial is None else float(initial)
    made = _combined(call, x, places, count, reduce, start)
    if reduce != "mean":
        return made
    sizes = _column(_sizes(call, places, count, x.shape.dtype), made)
    if initial is None:
        return ops.div(made, sizes)
    is_empty = ops.equal(sizes, 0.0)
    return ops.where(is_empty, call.constant(start, x.shape.dtype), ops.div(made, sizes))


# -- histograms ------------------------------------------------------------------------------------


def _edges(call: Call, column: Node, bins: int, limits: Any) -> Node:
    """Equal bins between limits, or between the least and the greatest element."""
    dtype = column.shape.dtype
    if limits is None and column.shape.dims[0] != 0:
        low, high = ops.min(column), ops.max(column)
    else:
        low, high = (call.constant(v, dtype) for v in limits or (0.0, 1.0))
    is_point = ops.equal(low, high)
    low = ops.where(is_point, ops.sub(low, 0.5), low)
    high = ops.where(is_point, ops.add(high, 0.5), high)
    step = ops.div(ops.sub(high, low), float(bins))
    places = call.node(call.positions((bins + 1,), 0), dtype)
    rising = ops.add(low, ops.mul(places, step))
    falling = ops.sub(high, ops.mul(ops.sub(float(bins), places), step))
    return ops.where(ops.less(places, float((bins + 1) // 2)), rising, falling)


def _counted(
    call: Call, points: Node, edges: list[Node], weight: Node | None, density: bool
) -> Node:
    """How much of the points [count, axes] falls into each cell; the last bin has both its ends."""
    dtype = points.shape.dtype
    count = points.shape.dims[0]
    place = call.constant(0, DType.I64)
    inside = call.constant(True, DType.BOOL)
    bins = [call.whole(e.shape.dims[0])[0] - 1 for e in edges]
    for axis, edge in enumerate(edges):
        column = ops.reshape(ops.narrow(points, axis=1, start=axis, length=1), dims=(count,))
        first, last = (ops.narrow(edge, axis=0, start=at, length=1) for at in (0, bins[axis]))
        at = ops.minimum(ops.sub(_upper_bound(call, edge, column), 1), bins[axis] - 1)
        is_in = ops.logical_and(ops.greater_equal(column, first), ops.less_equal(column, last))
        inside = ops.logical_and(inside, is_in)
        place = ops.add(ops.mul(place, bins[axis]), at)
    cells = 1
    for n in bins:
        cells *= n
    safe = ops.where(inside, place, call.constant(cells, DType.I64))
    weights = None if weight is None else ops.reshape(call.node(weight, dtype), dims=(count,))
    made = ops.narrow(_sizes(call, safe, cells + 1, dtype, weights), axis=0, start=0, length=cells)
    made = ops.reshape(made, dims=tuple(bins))
    return _as_density(made, edges) if density else made


def _upper_bound(call: Call, edges: Node, values: Node) -> Node:
    """Before which edge each value is, by bisection in torch's steps: its places among edges that
    do not rise are torch's as well."""
    (length,) = call.whole(edges.shape.dims[0])
    first = ops.expand(call.constant(0, DType.I64), dims=values.shape.dims)
    left = ops.expand(call.constant(length, DType.I64), dims=values.shape.dims)
    for _ in range(length.bit_length()):
        half = ops.floor_div(left, 2)
        middle = ops.add(first, half)
        seen = ops.take(edges, ops.minimum(middle, length - 1), axis=0)
        is_done = ops.equal(left, 0)
        is_below = ops.logical_or(is_done, ops.less(values, seen))
        first = ops.where(is_below, first, ops.add(middle, 1))
        left = ops.where(is_below, half, ops.sub(ops.sub(left, half), 1))
    return first


def _as_density(made: Node, edges: list[Node]) -> Node:
    total = ops.sum(made)
    for axis, edge in enumerate(edges):
        n = edge.shape.dims[0] - 1
        widths = ops.sub(ops.narrow(edge, axis=0, start=1, length=n),
                         ops.narrow(edge, axis=0, start=0, length=n))  # fmt: skip
        shape = [1] * rank(made)
        shape[axis] = n
        made = ops.div(made, ops.reshape(widths, dims=tuple(shape)))
    return ops.div(made, total)


@handles("histogram")
def histogram(call: Call, x: Node, bins: Any = 100, range: Any = None, weight: Node | None = None,  # noqa: A002
              density: bool = False) -> list[Node]:  # fmt: skip
    count = x.shape.num_elements
    flat = ops.reshape(x, dims=(count,))
    edges = bins if isinstance(bins, Node) else _edges(call, flat, bins, range)
    points = ops.reshape(flat, dims=(count, 1))
    return [_counted(call, points, [edges], weight, density), edges]


def _points(x: Node) -> Node:
    axes = x.shape.dims[-1]
    return ops.reshape(x, dims=(x.shape.num_elements // axes, axes))


def _all_edges(call: Call, points: Node, bins: Any, limits: Any) -> list[Node]:
    count = points.shape.dims[0]
    made: list[Node] = []
    for axis, n in enumerate(bins):
        column = ops.reshape(ops.narrow(points, axis=1, start=axis, length=1), dims=(count,))
        given = None if limits is None else limits[2 * axis : 2 * axis + 2]
        made.append(_edges(call, column, n, given))
    return made


@handles("_histogramdd_bin_edges")
def histogramdd_edges(call: Call, x: Node, bins: Any, range: Any = None,  # noqa: A002
                      weight: Node | None = None, density: bool = False) -> list[Node]:  # fmt: skip
    return _all_edges(call, _points(x), bins, range)


@handles("_histogramdd_from_bin_cts")
def histogramdd(call: Call, x: Node, bins: Any, range: Any = None,  # noqa: A002
                weight: Node | None = None, density: bool = False) -> Node:  # fmt: skip
    points = _points(x)
    return _counted(call, points, _all_edges(call, points, bins, range), weight, density)


@handles("_histogramdd_from_bin_tensors")
def histogramdd_of_edges(call: Call, x: Node, bins: Any, weight: Node | None = None,
                         density: bool = False) -> Node:  # fmt: skip
    return _counted(call, _points(x), list(bins), weight, density)
