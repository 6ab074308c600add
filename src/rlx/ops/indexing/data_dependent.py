"""Ops with data-dependent result sizes: nonzero, unique, compress, non-max suppression.

Each of these ops names that size, `extent`; the shape rule says what it is at most.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.attrs import Axis
from rlx.core.dim import DimLike, dim_min, product, provably_le
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError
from rlx.core.extent import measured
from rlx.core.shape import Shape, may_exceed
from rlx.ops.compose import dims_of, dtype_of, filled, nullary
from rlx.ops.control_flow import scan_loop
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array, Kind, op

_COUNTED = "how many there are is data, which no simpler op can tell"

# -- elements -------------------------------------------------------------------------------------


def _nonzero_shape(x: Shape, *, at_most: DimLike | None, extent: str) -> Shape:
    most = x.num_elements if at_most is None else at_most
    return Shape((x.rank, measured(extent, most)), DType.I64)


@op(
    "a[...] -> i64[...]",
    kind=Kind.SPECIAL,
    shape=_nonzero_shape,
    flops="size0",
    is_exact=True,
    why_no_lowering=_COUNTED,
)
def nonzero(x: Array, *, at_most: DimLike | None = None, extent: str = "") -> Array:
    """The coordinates of the elements that are not 0, in row-major order: a row per axis, a column
    per element. A scalar has no axes, so only the number of columns tells. Where it is known that
    fewer than all are not 0, `at_most` saves memory; finding more is an error."""
    found = np.nonzero(x.reshape(-1) != 0)[0]
    if x.ndim == 0:
        return np.empty((0, len(found)), np.int64)
    return np.stack(np.unravel_index(found, x.shape)).astype(np.int64)


def _compressed(x: Shape, condition: Shape, *, axis: int | None, extent: str) -> Shape:
    size = x.num_elements if axis is None else x.dims[axis]
    if not provably_le(condition.dims[0], size):
        what = f"condition is {condition}, but only {size} elements are chosen from"
        raise may_exceed(what, condition.dims[0], size)
    found = measured(extent, condition.dims[0])
    return x.with_dims((found,)) if axis is None else x.with_dim(axis, found)


@op(
    "a[...], bool[n] -> a[...]",
    kind=Kind.SPECIAL,
    shape=_compressed,
    flops="size1",
    is_exact=True,
)
def compress(x: Array, condition: Array, *, axis: Axis | None = None, extent: str = "") -> Array:
    """The entries of an axis for which `condition` holds; without an axis, of all elements in
    order. Where the condition is shorter than the axis, the rest is left out."""
    return np.compress(condition, x, axis)


@compress.lowering
def _(x: Any, condition: Any, *, axis: int | None, extent: str) -> Any:
    rows = ops.nonzero(condition, extent=extent)
    where = ops.reshape(rows, dims=dims_of(rows)[1:])
    flat = ops.reshape(x, dims=(product(dims_of(x)),)) if axis is None else x
    return ops.gather(flat, where, axis=axis or 0)


def _unique_shape(x: Shape, *, axis: int | None, extent: str, **_: Any) -> tuple[Shape, ...]:
    found = measured(extent, x.num_elements if axis is None else x.dims[axis])
    values = x.with_dims((found,)) if axis is None else x.with_dim(axis, found)
    places = Shape((found,), DType.I64)
    inverse = Shape(x.dims if axis is None else (x.dims[axis],), DType.I64)
    return values, places, inverse, places


@op(
    "a[...] -> a[...], i64[...], i64[...], i64[...]",
    kind=Kind.SPECIAL,
    shape=_unique_shape,
    flops="size0",
    why_no_lowering=_COUNTED,
)
def unique(
    x: Array,
    *,
    axis: Axis | None = None,
    is_sorted: bool = True,
    equal_nan: bool = False,
    extent: str = "",
) -> tuple[Array, Array, Array, Array]:
    """The different elements of x, or entries of an axis: their values, where each is first, which
    of them each element is, and how often each occurs. In order of value, or of where they are
    first. No NaN equals another, as in the Array API, unless `equal_nan` says so, as in ONNX.
    Without an axis the third result has the dims of x."""
    table = x.reshape(-1, 1) if axis is None else np.moveaxis(x, axis, 0)
    rows = table.reshape(len(table), math.prod(table.shape[1:]))
    first, inverse, counts = _groups(rows, is_sorted, equal_nan)
    values = np.take(x.reshape(-1) if axis is None else x, first, axis or 0)
    return values, first, inverse.reshape(x.shape) if axis is None else inverse, counts


def _groups(rows: Array, is_sorted: bool, equal_nan: bool) -> tuple[Array, Array, Array]:
    """Of equal rows: where each is first, which group each row is in, and how many there are."""
    columns = [part for c in rows.T for part in ((c.real, c.imag) if c.dtype.kind == "c" else (c,))]
    order = np.lexsort((np.arange(len(rows)), *reversed(columns)))
    starts = np.zeros(len(rows), bool)
    starts[:1] = True
    for column in columns:
        now, before = column[order[1:]], column[order[:-1]]
        both_nan = (now != now) & (before != before)
        starts[1:] |= (now != before) & ~(both_nan if equal_nan else np.False_)
    first, group = order[starts], np.cumsum(starts) - 1
    rank = np.arange(len(first)) if is_sorted else np.argsort(np.argsort(first))
    inverse = np.empty(len(rows), np.int64)
    inverse[order] = rank[group]
    return first[np.argsort(rank)], inverse, np.bincount(inverse, minlength=len(first))


def _arange_shape(
    start: Shape, limit: Shape, delta: Shape, *, at_most: DimLike | None, extent: str
) -> Shape:
    return start.with_dims((measured(extent, at_most),))


@op(
    "n[], n[], n[] -> n[...]",
    kind=Kind.SPECIAL,
    shape=_arange_shape,
    aliases=("range",),
    jumps=True,
    why_no_lowering=_COUNTED,
)
def arange(
    start: Array,
    limit: Array,
    delta: Array,
    *,
    at_most: DimLike | None = None,
    extent: str = "",
) -> Array:
    """start + i * delta for i = 0, 1, … as long as that is before `limit`. `at_most` bounds how
    many there may be: without it no memory can be planned. With a constant number, use iota."""
    a, b, step = start.item(), limit.item(), delta.item()
    count = (b - a) / step if start.dtype.kind == "f" and step else math.nan
    if start.dtype.kind != "f" and step:
        count = -((a - b) // step)
    if not math.isfinite(count):
        raise Error(f"from {a} to {b} by {step} is no range: take finite numbers and a step not 0")
    size = max(0, math.ceil(count))
    if at_most is not None and size > int(at_most):
        raise Error(f"from {a} to {b} by {step} are {size} numbers, but at_most is {at_most}")
    return start + np.arange(size).astype(start.dtype) * delta


def _sized_shape(value: Shape, *, at_most: DimLike | None, extent: str) -> Shape:
    return Shape((measured(extent, at_most), 0), DType.BOOL)


@op(
    "i[] -> bool[...]",
    kind=Kind.SPECIAL,
    shape=_sized_shape,
    jumps=True,
    why_no_lowering=_COUNTED,
)
def as_size(value: Array, *, at_most: DimLike | None = None, extent: str = "") -> Array:
    """A number as a size: [value, 0], which has no elements and takes no memory. What shapes follow
    from the number are made of that size. A negative number is an error, and so is one above
    `at_most`."""
    size = int(value.item())
    if size < 0:
        raise Error(f"a size is {size}, which is negative. Give 0 or more")
    if at_most is not None and size > int(at_most):
        raise Error(f"a size is {size}, but at_most is {at_most}")
    return np.empty((size, 0), np.bool_)


@op(
    "i[], i[] -> i64[]",
    kind=Kind.SPECIAL,
    flops="1",
    jumps=True,
    why_no_lowering="an op that can fail on its data is not made of such that cannot",
    why_no_cases="operands that are drawn one by one are not equal",
)
def same_size(found: Array, wanted: Array) -> Array:
    """0 where two sizes are equal, and an error where they are not: for sizes that a model takes to
    be equal, and that only data can tell. No size found at run time is repeated to be another's,
    not even 1: what a result is of would then depend on data."""
    if found.item() != wanted.item():
        raise Error(
            f"the sizes {found.item()} and {wanted.item()} are to be equal, and differ. "
            "A size of 1 that is found at run time is not repeated either"
        )
    return np.zeros((), np.int64)


# -- boxes ----------------------------------------------------------------------------------------


def _kept_shape(
    boxes: Shape, scores: Shape, *, max_output_boxes_per_class: int, extent: str, **_: Any
) -> Shape:
    if max_output_boxes_per_class < 0:
        raise GraphError(f"max_output_boxes_per_class is {max_output_boxes_per_class}")
    most = _most_boxes(scores, max_output_boxes_per_class)
    return Shape((measured(extent, most), 3), DType.I64)


def _most_boxes(scores: Any, per_class: int) -> DimLike:
    batch, classes, count = dims_of(scores)
    return batch * classes * dim_min(count, per_class)


@op(
    "f[b n 4], f[b c n] -> i64[...]",
    kind=Kind.SPECIAL,
    shape=_kept_shape,
    flops="16*b*n*n + b*c*n*n",
)
def non_max_suppression(
    boxes: Array,
    scores: Array,
    *,
    max_output_boxes_per_class: int = 0,
    iou_threshold: float = 0.0,
    score_threshold: float | None = None,
    center_point_box: bool = False,
    extent: str = "",
) -> Array:
    """(batch, class, box) of the boxes that stay: for each batch and class the best score comes
    first, equals by index, and a box goes where it shares more than `iou_threshold` of its union
    with one that stays. Boxes are two corners (y, x, y, x), or with `center_point_box` centre and
    size (x, y, width, height). Scores must be above `score_threshold`; NaN never is."""
    clash = _clashes(boxes, iou_threshold, center_point_box)
    found: list[tuple[int, int, int]] = []
    for b, c in np.ndindex(*scores.shape[:2]):
        kept: list[int] = []
        for box in np.argsort(-scores[b, c], kind="stable"):
            if len(kept) == max_output_boxes_per_class:
                break
            score = scores[b, c, box]
            is_scored = score == score if score_threshold is None else score > score_threshold
            if is_scored and not clash[b, box, kept].any():
                kept.append(int(box))
        found += [(b, c, box) for box in kept]
    return np.array(found, np.int64).reshape(-1, 3)


def _clashes(boxes: Any, iou_threshold: float, center_point_box: bool) -> Any:
    """[b, n, n]: do two boxes share more than the threshold of their union? Not if one is empty."""
    one, other = (ops.narrow(boxes, axis=2, start=s, length=2) for s in (0, 2))
    if center_point_box:
        half = ops.div(other, 2.0)
        low, high = ops.sub(one, half), ops.add(one, half)
    else:
        low, high = ops.minimum(one, other), ops.maximum(one, other)
    area = _area(ops.sub(high, low))
    mine, theirs = ({"axes": (a,)} for a in (2, 1))
    lows = ops.maximum(ops.expand_dims(low, **mine), ops.expand_dims(low, **theirs))
    highs = ops.minimum(ops.expand_dims(high, **mine), ops.expand_dims(high, **theirs))
    shared = _area(ops.maximum(ops.sub(highs, lows), 0.0))
    first, second = ops.expand_dims(area, **mine), ops.expand_dims(area, **theirs)
    union = ops.sub(ops.add(first, second), shared)
    clash = ops.greater(ops.div(shared, union), iou_threshold)
    for size in (shared, first, second, union):
        clash = ops.logical_and(clash, ops.greater(size, 0.0))
    return clash


def _area(sides: Any) -> Any:
    """The product of the two sides on the last axis."""
    dims = dims_of(sides)
    a, b = (ops.narrow(sides, axis=len(dims) - 1, start=s, length=1) for s in (0, 1))
    return ops.reshape(ops.mul(a, b), dims=dims[:-1])


@non_max_suppression.lowering
def _(
    boxes: Any,
    scores: Any,
    *,
    max_output_boxes_per_class: int,
    iou_threshold: float,
    score_threshold: float | None,
    center_point_box: bool,
    extent: str,
) -> Any:
    """A loop from the best score to the worst, which carries what stays and how much that is."""
    dims = dims_of(scores)
    rank = ops.argsort(ops.neg(scores), axis=2)
    score = ops.take_along_axis(scores, rank, axis=2)
    low = -np.inf if score_threshold is None else score_threshold
    above = ops.greater_equal(score, low) if score_threshold is None else ops.greater(score, low)

    def step(carry: Any, x: Any, clash: Any) -> Any:
        kept, count = carry
        box, is_scored = x
        rows = ops.gather_nd(clash, ops.expand_dims(box, axes=(2,)), batch_dims=1)
        hits = ops.any(ops.logical_and(rows, kept), axes=(2,))
        room = ops.less(count, max_output_boxes_per_class)
        takes = ops.logical_and(ops.logical_and(is_scored, room), ops.logical_not(hits))
        mine = ops.logical_and(_is_box(box, dims[2]), ops.expand_dims(takes, axes=(2,)))
        more = ops.add(count, ops.cast(takes, to=DType.I64))
        return (ops.logical_or(kept, mine), more), takes

    clash = _clashes(boxes, iou_threshold, center_point_box)
    start = (filled(clash, False, dims), filled(rank, 0, dims[:2]))
    steps = tuple(ops.transpose(v, perm=(2, 0, 1)) for v in (rank, above))
    _, taken = scan_loop(step, start, steps, (clash,))
    most = _most_boxes(scores, max_output_boxes_per_class)
    found = ops.nonzero(ops.transpose(taken, perm=(1, 2, 0)), at_most=most, extent=extent)
    where = ops.transpose(found, perm=(1, 0))
    box = ops.reshape(ops.gather_nd(rank, where), dims=(dims_of(where)[0], 1))
    return ops.concat([ops.narrow(where, axis=1, start=0, length=2), box], axis=1)


def _is_box(box: Any, count: DimLike) -> Any:
    """[…, count]: is it this box?"""
    every = nullary(box, "iota", dims=(count,), axis=0, dtype=dtype_of(box))
    return ops.equal(ops.expand_dims(box, axes=(len(dims_of(box)),)), every)


# -- drawing --------------------------------------------------------------------------------------


@nonzero.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims = draw.dims()
    return [Spec(dims, draw.dtype("a"))], {"at_most": draw.choice((None, math.prod(dims)))}


@compress.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims = draw.dims(1, 4)
    axis = draw.integer(0, len(dims) - 1) if draw.coin(0.7) else None
    size = math.prod(dims) if axis is None else dims[axis]
    condition = Spec((draw.choice((size, draw.integer(0, size))),), DType.BOOL)
    return [Spec(dims, draw.dtype("a")), condition], {"axis": axis}


@unique.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims = draw.dims()
    axis = draw.integer(0, len(dims) - 1) if dims and draw.coin() else None
    attrs = {"axis": axis, "is_sorted": draw.coin(), "equal_nan": draw.coin()}
    return [Spec(dims, draw.dtype("a"))], attrs


@arange.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dtype = draw.dtype("n")
    ends = Spec((), dtype, "own")
    return [ends, ends, Spec((), dtype, "positive")], {"at_most": draw.choice((None, 5000))}


@as_size.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    return [Spec((), draw.dtype("i"), "positive")], {"at_most": draw.choice((None, 5000))}


@non_max_suppression.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    batch, classes, count, dtype = draw.size(), draw.size(), draw.size(), draw.dtype("f")
    attrs = {
        "max_output_boxes_per_class": draw.integer(0, 4),
        "iou_threshold": draw.choice((0.0, 0.2, 0.5)),
        "score_threshold": draw.choice((None, 0.0, 0.4)),
        "center_point_box": draw.coin(),
    }
    boxes = Spec((batch, count, 4), dtype, draw.choice(("any", "unit", "positive")))
    return [boxes, Spec((batch, classes, count), dtype, draw.choice(("any", "unit")))], attrs
