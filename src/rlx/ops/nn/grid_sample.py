"""Grid sampling: images interpolated at given positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike, product
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape, dims_differ
from rlx.ops.compose import dims_of, dtype_of, filled, nullary
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array, Kind, op

Mode = Literal["nearest", "linear", "cubic"]
Padding = Literal["zeros", "border", "reflection"]
_KEYS = -0.75
"""The parameter of Keys' cubic convolution that grids are read with."""


def size_of(x: Any, dim: DimLike, dtype: DType | None = None) -> Any:
    """A size as a number, or its node where it is not known yet."""
    if isinstance(dim, Dim):
        return nullary(x, "extent", dim=dim, dtype=dtype or dtype_of(x))
    return dim if dtype is DType.I64 else float(dim)


def check_image(x: Shape) -> None:
    if 0 in x.dims[2:]:
        raise GraphError(f"x is {x}: an empty image has no pixels to read")


# -- grids ----------------------------------------------------------------------------------------


def _sampled_shape(x: Shape, grid: Shape, **_: Any) -> Shape:
    check_image(x)
    rank = x.rank - 2
    if rank < 1 or grid.rank != x.rank or grid.dims[-1] != rank or grid.dims[0] != x.dims[0]:
        what = (
            f"x is {x} and grid {grid}: expected x [n, c, …] with as many more axes as the grid "
            "[n, …, coordinates] has, and one coordinate for each"
        )
        ends = (*grid.dims[:1], *grid.dims[-1:]) if grid.rank == x.rank else ()
        raise dims_differ(what, ends, (x.dims[0], rank))
    return x.with_dims((*x.dims[:2], *grid.dims[1:-1]))


def _sampled_flops(shapes: Sequence[Shape], results: Sequence[Shape], attrs: Any) -> DimLike:
    taps = {"nearest": 1, "linear": 2, "cubic": 4}[attrs["mode"]]
    return results[0].num_elements * (2 * taps ** (shapes[0].rank - 2))


@op(
    "f[...], f[...] -> f[...]",
    kind=Kind.SPECIAL,
    shape=_sampled_shape,
    flops=_sampled_flops,
    jumps=True,
)
def grid_sample(
    x: Array,
    grid: Array,
    *,
    mode: Mode = "linear",
    padding: Padding = "zeros",
    align_corners: bool = False,
) -> Array:
    """x [n, c, …] read where `grid` [n, …, coordinates] says, the last axis of x first: -1 and 1
    are the edges of the image, or with `align_corners` the centres of its outermost pixels.
    Halfway, `nearest` takes the even pixel. Outside are zeros, the border, or the image mirrored
    at its edges: a position there is moved inside, but for `cubic` the pixels that it is made of
    are, each separately."""
    return _sampled(x, grid, mode=mode, padding=padding, align_corners=align_corners)


@grid_sample.lowering
def _sampled(x: Any, grid: Any, *, mode: Mode, padding: Padding, align_corners: bool) -> Any:
    n, c, *image = dims_of(x)
    wanted, rank = dims_of(grid)[1:-1], len(image)
    points = ops.reshape(grid, dims=(n, product(wanted), rank))
    place: Any = 0
    weight: Any = None
    inside: Any = None
    for axis, dim in enumerate(image):
        at = ops.narrow(points, axis=2, start=rank - 1 - axis, length=1)
        taps = _taps(at, dim, mode, padding, align_corners)
        index, mine, is_inside = (_on_axis(t, axis, rank) for t in taps)
        place = ops.add(ops.mul(place, size_of(x, dim, DType.I64)), index) if axis else index
        weight = mine if weight is None else ops.mul(weight, mine)
        inside = is_inside if inside is None else ops.logical_and(inside, is_inside)
    count = dims_of(place)[1:]
    rows = ops.reshape(ops.transpose(_flat(x), perm=(0, 2, 1)), dims=(n, product(image), c))
    chosen = ops.reshape(place, dims=(n, product(count), 1))
    seen = ops.reshape(ops.gather_nd(rows, chosen, batch_dims=1), dims=(n, *count, c))
    if padding == "zeros":
        seen = ops.where(ops.expand_dims(inside, axes=(rank + 2,)), seen, 0.0)
    mixed = ops.mul(seen, ops.expand_dims(weight, axes=(rank + 2,)))
    made = ops.sum(mixed, axes=tuple(range(2, rank + 2)))
    return ops.reshape(ops.transpose(made, perm=(0, 2, 1)), dims=(n, c, *wanted))


def _flat(x: Any) -> Any:
    n, c, *image = dims_of(x)
    return ops.reshape(x, dims=(n, c, product(image)))


def _on_axis(taps: Any, axis: int, rank: int) -> Any:
    """[n, points, taps] with the taps on one of `rank` axes."""
    n, points, count = dims_of(taps)
    return ops.reshape(taps, dims=(n, points, *(count if a == axis else 1 for a in range(rank))))


def _taps(at: Any, dim: DimLike, mode: Mode, padding: Padding, align_corners: bool) -> Any:
    """For each position, which pixels of an axis it is made of, how much, and which exist."""
    size = size_of(at, dim)
    last = ops.sub(size, 1.0) if isinstance(dim, Dim) else size - 1.0
    up = ops.add(at, 1.0)
    scaled = ops.mul(ops.div(up, 2.0), last)
    pixel = scaled if align_corners else ops.div(ops.sub(ops.mul(up, size), 1.0), 2.0)
    pixel = ops.round(pixel) if mode == "nearest" else pixel
    if mode != "cubic":
        pixel = _brought_in(pixel, size, last, padding, align_corners)
    first = pixel if mode == "nearest" else ops.floor(pixel)
    offsets = {"nearest": [0.0], "linear": [0.0, 1.0], "cubic": [-1.0, 0.0, 1.0, 2.0]}[mode]
    places = ops.add(first, np.array(offsets, dtype_of(at).numpy))
    weights = _weights(ops.abs(ops.sub(pixel, places)), mode)
    inside = ops.logical_and(ops.greater_equal(places, 0.0), ops.less_equal(places, last))
    if padding == "reflection":
        places = _mirrored(places, size, last, align_corners)
    kept = ops.minimum(ops.maximum(ops.cast(places, to=DType.I64), 0), last_of(at, dim))
    return kept, weights, inside


def last_of(x: Any, dim: DimLike) -> Any:
    size = size_of(x, dim, DType.I64)
    return ops.sub(size, 1) if isinstance(dim, Dim) else size - 1


def _weights(distance: Any, mode: Mode) -> Any:
    if mode == "nearest":
        return filled(distance, 1.0, dims_of(distance))
    if mode == "linear":
        return ops.sub(1.0, distance)
    a = _KEYS
    near = ops.sub(ops.mul(distance, a + 2), a + 3)
    near = ops.add(ops.mul(near, ops.mul(distance, distance)), 1.0)
    far = ops.add(ops.mul(ops.sub(ops.mul(distance, a), 5 * a), distance), 8 * a)
    far = ops.sub(ops.mul(far, distance), 4 * a)
    return ops.where(ops.less_equal(distance, 1.0), near, far)


def _brought_in(pixel: Any, size: Any, last: Any, padding: Padding, align_corners: bool) -> Any:
    """A position past the edge, moved to the border or mirrored."""
    if padding == "zeros":
        return pixel
    if padding == "reflection":
        return _mirrored(pixel, size, last, align_corners)
    low, high = (0.0, last) if align_corners else (-0.5, ops.sub(size, 0.5))
    beyond = ops.logical_or(ops.less(pixel, low), ops.greater(pixel, high))
    return ops.where(beyond, ops.minimum(ops.maximum(pixel, 0.0), last), pixel)


def _mirrored(at: Any, size: Any, last: Any, align_corners: bool) -> Any:
    """A zigzag between the edges. One pixel by its centre has no width: then any serves."""
    low = 0.0 if align_corners else -0.5
    width = ops.maximum(last if align_corners else size, 1.0)
    twice = ops.mul(width, 2.0)
    along = ops.mod(ops.sub(at, low), twice)
    return ops.add(ops.minimum(along, ops.sub(twice, along)), low)


def _affine_shape(theta: Shape, *, sizes: tuple[int, ...], align_corners: bool) -> Shape:
    rank = len(sizes)
    if theta.dims[1:] != (rank, rank + 1):
        what = f"theta is {theta}, expected [n, {rank}, {rank + 1}] for {rank} sizes"
        raise dims_differ(what, theta.dims[1:], (rank, rank + 1))
    if any(s < 0 for s in sizes):
        raise GraphError(f"sizes {sizes} has one that is negative")
    return theta.with_dims((theta.dims[0], *sizes, rank))


@op("f[n r k] -> f[n ...]", kind=Kind.SPECIAL, shape=_affine_shape, flops="2*out*k")
def affine_grid(theta: Array, *, sizes: tuple[int, ...], align_corners: bool = False) -> Array:
    """The grid that reads an image of `sizes` through the affine map `theta` [n, r, r + 1], whose
    last column is the shift; for grid_sample."""
    return _affine(theta, sizes=sizes, align_corners=align_corners)


@affine_grid.lowering
def _affine(theta: Any, *, sizes: tuple[int, ...], align_corners: bool) -> Any:
    rank, n = len(sizes), dims_of(theta)[0]
    lines = [_centres(size, align_corners) for size in sizes]
    mesh = np.meshgrid(*lines, indexing="ij")
    every = np.stack([*reversed(mesh), np.ones(sizes)], axis=-1).reshape(-1, rank + 1)
    points = every.astype(dtype_of(theta).numpy)
    made = ops.matmul(points, ops.transpose(theta, perm=(0, 2, 1)))
    return ops.reshape(made, dims=(n, *sizes, rank))


def _centres(size: int, align_corners: bool) -> Array:
    """Where pixels are from -1 to 1; one pixel by its centre is in the middle."""
    at = np.arange(size, dtype=np.float64)
    if align_corners:
        return 2 * at / (size - 1) - 1 if size > 1 else np.zeros(size)
    return (2 * at + 1) / max(size, 1) - 1


# -- drawing --------------------------------------------------------------------------------------


@grid_sample.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    rank, dtype, n = draw.integer(1, 3), draw.dtype("f"), draw.size()
    image = tuple(draw.integer(1, 4) for _ in range(rank))
    wanted = tuple(draw.integer(0, 3) for _ in range(rank))
    specs = [
        Spec((n, draw.integer(0, 3), *image), dtype, "plain"),
        Spec((n, *wanted, rank), dtype, "plain"),
    ]
    attrs = {
        "mode": draw.choice(get_args(Mode)),
        "padding": draw.choice(get_args(Padding)),
        "align_corners": draw.coin(),
    }
    return specs, attrs


@affine_grid.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    sizes = tuple(draw.size() for _ in range(draw.integer(1, 3)))
    theta = Spec((draw.size(), len(sizes), len(sizes) + 1), draw.dtype("f"), "plain")
    return [theta], {"sizes": sizes, "align_corners": draw.coin()}
