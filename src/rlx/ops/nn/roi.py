"""Region-of-interest ops: ROI align, ROI pooling.

Edges are floats, so a rounding of one can change which pixels are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.compose import dims_of, dtype_of, filled, nullary
from rlx.ops.control_flow import scan_loop, while_loop
from rlx.ops.draw import Draw, Spec
from rlx.ops.indexing.gather import checked_indices
from rlx.ops.nn.grid_sample import check_image, last_of, size_of
from rlx.ops.op import Array, Kind, op


def _pooled_shape(
    x: Shape, rois: Shape, batch_indices: Shape, *, output_size: tuple[int, ...], **_: Any
) -> Shape:
    check_image(x)
    if len(output_size) != 2 or min(output_size) < 1:
        raise GraphError(f"output_size is {output_size}, expected two numbers from 1")
    return x.with_dims((rois.dims[0], x.dims[1], *output_size))


def _aligned_flops(shapes: Sequence[Shape], results: Sequence[Shape], attrs: Any) -> DimLike:
    """Four pixels per point; where how many points is data, as if it were two by two."""
    return results[0].num_elements * (8 * (attrs["sampling_ratio"] or 2) ** 2)


@op(
    "f[b c h w], f[k 4], i[k] -> f[k c ...]",
    kind=Kind.SPECIAL,
    shape=_pooled_shape,
    flops=_aligned_flops,
    jumps=True,
)
def roi_align(
    x: Array,
    rois: Array,
    batch_indices: Array,
    *,
    output_size: tuple[int, ...] = (1, 1),
    mode: Literal["avg", "max"] = "avg",
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    half_pixel: bool = True,
) -> Array:
    """Regions (x, y, x, y) of images cut into bins, and each bin the mean over points inside it,
    `sampling_ratio` squared or about one per pixel, each interpolated between four pixels. `max`
    is what ONNX says it is: the greatest of the points' pixels times their weights. Without
    `half_pixel`, pixel coordinates are those of their corners and regions are at least 1 wide."""
    checked_indices(batch_indices, 0, x.shape[0])
    table, facts = _regions(x, rois, batch_indices, output_size, sampling_ratio, spatial_scale,
                            half_pixel)  # fmt: skip
    made = filled(x, 0 if mode == "avg" else -np.inf, (len(rois), *output_size, x.shape[1]))
    for i in range(int(facts[-1].max(initial=0))):
        made = _pointed(made, np.int64(i), mode, table, *facts)
    return _finished(made, mode, facts[-1])


@roi_align.lowering
def _(
    x: Any,
    rois: Any,
    batch_indices: Any,
    *,
    output_size: tuple[int, ...],
    mode: str,
    sampling_ratio: int,
    spatial_scale: float,
    half_pixel: bool,
) -> Any:
    """A loop over the points of a bin, for all bins and regions at once."""
    table, facts = _regions(x, rois, batch_indices, output_size, sampling_ratio, spatial_scale,
                            half_pixel)  # fmt: skip
    first = 0 if mode == "avg" else -np.inf
    start = filled(x, first, (dims_of(rois)[0], *output_size, dims_of(x)[1]))
    one = filled(facts[-1], 0, ())
    if sampling_ratio > 0:

        def step(carry: Any, _: Any, *given: Any) -> Any:
            made, i = carry
            return (_pointed(made, i, mode, *given), ops.add(i, 1)), None

        (made, _), _ = scan_loop(step, (start, one), None, (table, *facts), sampling_ratio**2)
    else:
        most = ops.max(facts[-1], empty_ok=True)
        made, *_ = while_loop(
            lambda _made, i, most, *given: ops.less(i, most),
            lambda made, i, most, *given: (
                _pointed(made, i, mode, *given), ops.add(i, 1), most, *given
            ),
            start, one, most, table, *facts,
        )  # fmt: skip
    return _finished(made, mode, facts[-1])


def _regions(
    x: Any,
    rois: Any,
    batch_indices: Any,
    output_size: tuple[int, ...],
    ratio: int,
    scale: float,
    half_pixel: bool,
) -> tuple[Any, tuple[Any, ...]]:
    """The images with channels last; and of each region its image, where its bins start and how
    large they are, [k, bins] down and across, how many points a bin has across, and in all."""
    column = [ops.narrow(rois, axis=1, start=i, length=1) for i in range(4)]
    edges = [ops.sub(ops.mul(c, scale), 0.5 if half_pixel else 0.0) for c in column]
    facts: list[Any] = []
    points: list[Any] = []
    for axis, bins in ((1, output_size[0]), (0, output_size[1])):
        start, end = edges[axis], edges[axis + 2]
        length = ops.sub(end, start)
        length = length if half_pixel else ops.maximum(length, 1.0)
        size = ops.div(length, float(bins))
        steps = np.arange(bins).astype(dtype_of(rois).numpy)
        facts += [ops.add(start, ops.mul(size, steps)), size]
        own = ops.cast(ops.maximum(ops.ceil(size), 0.0), to=DType.I64)
        points.append(filled(own, ratio, dims_of(own)) if ratio > 0 else own)
    flat = [ops.reshape(p, dims=dims_of(p)[:1]) for p in points]
    image = ops.cast(batch_indices, to=DType.I64)
    table = ops.transpose(x, perm=(0, 2, 3, 1))
    return table, (image, *facts, *flat, ops.mul(flat[0], flat[1]))


def _pointed(
    made: Any, i: Any, mode: str, table: Any, image: Any, tops: Any, height: Any, lefts: Any,
    width: Any, down: Any, across: Any, count: Any,
) -> Any:  # fmt: skip
    """What is made so far, [k, rows, columns, c], with the i-th point of every bin."""
    _, h, w, _ = dims_of(table)
    columns = ops.maximum(across, 1)
    y = _point(ops.floor_div(i, columns), tops, height, down)
    x = _point(ops.mod(i, columns), lefts, width, across)
    rows, row_weights = _corners(y, h)
    cols, col_weights = _corners(x, w)
    parts: list[Any] = []
    for row, a in zip(rows, row_weights):
        for col, b in zip(cols, col_weights):
            weight = ops.mul(ops.expand_dims(a, axes=(2,)), ops.expand_dims(b, axes=(1,)))
            seen = ops.gather_nd(table, _joined(image, row, col))
            parts.append(ops.mul(seen, ops.expand_dims(weight, axes=(3,))))
    join = ops.add if mode == "avg" else ops.maximum
    point = join(join(parts[0], parts[1]), join(parts[2], parts[3]))
    is_there = ops.reshape(ops.less(i, count), dims=(*dims_of(count), 1, 1, 1))
    return ops.where(is_there, join(made, point), made)


def _point(i: Any, starts: Any, size: Any, count: Any) -> Any:
    """[k, bins]: the i-th of `count` sampling points of a bin."""
    whole = dtype_of(starts)
    part = ops.div(ops.add(ops.cast(i, to=whole), 0.5), ops.maximum(ops.cast(count, to=whole), 1.0))
    return ops.add(starts, ops.mul(size, ops.expand_dims(part, axes=(1,))))


def _corners(at: Any, dim: DimLike) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """The two pixels around each position and their weights; none more than 1 past the edge."""
    size, last = size_of(at, dim), last_of(at, dim)
    inside = ops.logical_and(ops.greater_equal(at, -1.0), ops.less_equal(at, size))
    kept = ops.maximum(at, 0.0)
    low = ops.minimum(ops.cast(ops.floor(kept), to=DType.I64), last)
    high = ops.minimum(ops.add(low, 1), last)
    part = ops.where(ops.less(low, last), ops.sub(kept, ops.cast(low, to=dtype_of(at))), 0.0)
    weights = tuple(ops.where(inside, v, 0.0) for v in (ops.sub(1.0, part), part))
    return (low, high), (weights[0], weights[1])


def _joined(image: Any, rows: Any, columns: Any) -> Any:
    """[k, rows, columns, 3]: the coordinates of pixels."""
    k, down = dims_of(rows)
    across = dims_of(columns)[1]
    parts = (
        ops.reshape(image, dims=(k, 1, 1, 1)),
        ops.reshape(rows, dims=(k, down, 1, 1)),
        ops.reshape(columns, dims=(k, 1, across, 1)),
    )
    return ops.concat([ops.expand(p, dims=(k, down, across, 1)) for p in parts], axis=3)


def _finished(made: Any, mode: str, count: Any) -> Any:
    """Sums as means; a bin without points is 0; channels in their place."""
    counts = ops.reshape(count, dims=(*dims_of(count), 1, 1, 1))
    if mode == "avg":
        result = ops.div(made, ops.cast(ops.maximum(counts, 1), to=dtype_of(made)))
    else:
        result = ops.where(ops.greater(counts, 0), made, 0.0)
    return ops.transpose(result, perm=(0, 3, 1, 2))


# -- the greatest pixel ---------------------------------------------------------------------------


@op(
    "f[b c h w], f[k 4], i[k] -> f[k c ...]",
    kind=Kind.SPECIAL,
    shape=_pooled_shape,
    flops="k*c*h*w",
    jumps=True,
)
def max_roi_pool(
    x: Array,
    rois: Array,
    batch_indices: Array,
    *,
    output_size: tuple[int, ...],
    spatial_scale: float = 1.0,
) -> Array:
    """Regions (x, y, x, y) of images, their edges rounded to whole pixels and both inside, cut
    into bins that overlap where they do not come out even; each bin its greatest pixel, or 0
    where it has none. ONNX's rois carry the batch index in front."""
    images = checked_indices(batch_indices, 0, x.shape[0])
    down, across = _cuts(x, rois, output_size, spatial_scale)
    made = np.zeros((len(rois), x.shape[1], *output_size), x.dtype)
    for r, p, q in np.ndindex(len(rois), *output_size):
        rows, columns = (slice(a[r, i], b[r, i]) for (a, b), i in ((down, p), (across, q)))
        part = x[images[r], :, rows, columns]
        if part.shape[1] and part.shape[2]:
            made[r, :, p, q] = part.max((1, 2))
    return made


def _cuts(
    x: Any, rois: Any, output_size: tuple[int, ...], scale: float
) -> tuple[tuple[Any, Any], ...]:
    """[k, bins]: the first pixel of each bin and the one after its last, down and across."""
    found: list[tuple[Any, Any]] = []
    for axis, bins in ((1, output_size[0]), (0, output_size[1])):
        start, end = (
            _rounded(ops.mul(ops.narrow(rois, axis=1, start=a, length=1), scale))
            for a in (axis, axis + 2)
        )
        size = ops.div(ops.maximum(ops.add(ops.sub(end, start), 1.0), 1.0), float(bins))
        steps = np.arange(bins + 1).astype(dtype_of(rois).numpy)
        first = ops.add(start, ops.floor(ops.mul(size, steps[:-1])))
        after = ops.add(start, ops.ceil(ops.mul(size, steps[1:])))
        most = size_of(x, dims_of(x)[3 - axis], DType.I64)
        both = (ops.cast(v, to=DType.I64) for v in (first, after))
        low, high = (ops.minimum(ops.maximum(v, 0), most) for v in both)
        found.append((low, high))
    return tuple(found)


def _rounded(x: Any) -> Any:
    """To the nearest whole number, ties away from 0."""
    return ops.mul(ops.sign(x), ops.floor(ops.add(ops.abs(x), 0.5)))


@max_roi_pool.lowering
def _(
    x: Any, rois: Any, batch_indices: Any, *, output_size: tuple[int, ...], spatial_scale: float
) -> Any:
    """First the greatest pixels of every row in each column of bins, then those in each bin."""
    down, across = _cuts(x, rois, output_size, spatial_scale)
    rows = _greatest(ops.gather(x, batch_indices, axis=0), *across)
    made = _greatest(ops.transpose(rows, perm=(0, 1, 3, 2)), *down)
    empty = [ops.greater_equal(low, high) for low, high in (down, across)]
    none = ops.logical_or(
        ops.expand_dims(empty[0], axes=(2,)), ops.expand_dims(empty[1], axes=(1,))
    )
    best = ops.transpose(made, perm=(0, 1, 3, 2))
    return ops.where(ops.expand_dims(none, axes=(1,)), 0.0, best)


def _greatest(x: Any, low: Any, high: Any) -> Any:
    """[k, c, m, bins]: of [k, c, m, n] the greatest from `low` to before `high`, [k, bins]."""
    place = nullary(x, "iota", dims=dims_of(x)[3:], axis=0, dtype=DType.I64)
    first, after = (ops.expand_dims(edge, axes=(1, 2, 4)) for edge in (low, high))
    inside = ops.logical_and(ops.greater_equal(place, first), ops.less(place, after))
    seen = ops.where(inside, ops.expand_dims(x, axes=(3,)), -np.inf)
    return ops.max(seen, axes=(4,), empty_ok=True)


# -- drawing --------------------------------------------------------------------------------------


def _draw_regions(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dtype, count, batch = draw.dtype("f"), draw.size(), draw.integer(1, 3)
    specs = [
        Spec((batch, draw.integer(0, 3), draw.integer(1, 5), draw.integer(1, 5)), dtype, "plain"),
        Spec((count, 4), dtype, "positive"),
        Spec((count,), draw.dtype("i"), f"index:{batch}"),
    ]
    attrs = {
        "output_size": (draw.integer(1, 3), draw.integer(1, 3)),
        "spatial_scale": draw.choice((1.0, 1.5, -0.5)),
    }
    return specs, attrs


@roi_align.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    specs, attrs = _draw_regions(draw)
    more = {
        "mode": draw.choice(("avg", "max")),
        "sampling_ratio": draw.integer(0, 2),
        "half_pixel": draw.coin(),
    }
    return specs, {**attrs, **more}


max_roi_pool.sample(_draw_regions)
