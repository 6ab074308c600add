"""Pooling: max, average and Lp over windows of [batch, channels, *image], or over whole images.

Strides, padding, dilations and `ceil` are those of `rlx.ops.nn.window_geometry`, and ONNX's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike, dim_max, product
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError
from rlx.core.shape import Shape
from rlx.ops.compose import dims_of, dtype_of, nullary
from rlx.ops.draw import Draw, Spec
from rlx.ops.nn.window_geometry import (
    Windows,
    draw_image,
    draw_kernel,
    margins,
    padded,
    with_default_strides,
)
from rlx.ops.op import Array, Kind, op

Drawn = tuple[list[Spec], dict[str, Any]]


def _pool_shape(x: Shape, **geometry: Any) -> Shape:
    windows = Windows(**geometry)
    windows.check(x.rank)
    for span, before, after in zip(windows.spans, windows.before, windows.after):
        if not isinstance(span, Dim) and max(before, after) >= span:
            raise GraphError(f"padding: {windows.padding} is not less than the window's {span}")
    return Shape([*x.dims[:2], *windows.counts(x.dims[2:])], x.dtype)


def _pool_flops(shapes: Sequence[Shape], results: Sequence[Shape], attrs: Any) -> DimLike:
    return results[0].num_elements * product(attrs["kernel"])


def _window_axes(taps: Array) -> tuple[int, ...]:
    return tuple(range(taps.ndim // 2 + 1, taps.ndim))


def _summed(taps: Sequence[Any]) -> Any:
    total = taps[0]
    for tap in taps[1:]:
        total = ops.add(total, tap)
    return total


def _draw_pool(draw: Draw, letter: str) -> tuple[Spec, dict[str, Any]]:
    kernel, geometry = draw_kernel(draw)
    spans = Windows(kernel, **geometry).spans
    geometry["padding"] = tuple(
        min(p, int(s) - 1) for p, s in zip(geometry["padding"], (*spans, *spans))
    )
    image = draw_image(draw, Windows(kernel, **geometry))
    dims = (draw.integer(0, 2), draw.integer(0, 3), *image)
    return Spec(dims, draw.dtype(letter)), {**geometry, "kernel": kernel, "ceil": draw.coin()}


# -- the greatest ---------------------------------------------------------------------------------


def _lowest(dtype: DType) -> float:
    """What never wins: an integer dtype's least is 0 or a power of two, so a float holds it."""
    return float(np.iinfo(dtype.numpy).min) if dtype.is_integer else -np.inf


@op(
    "n[n c *s] -> n[n c ...]",
    kind=Kind.SPECIAL,
    shape=_pool_shape,
    flops=_pool_flops,
    aliases=("max_pool1d", "max_pool2d", "max_pool3d"),
)
def max_pool(
    x: Array,
    *,
    kernel: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
    ceil: bool = False,
) -> Array:
    """The greatest element of each window; padding never wins, a NaN does. A window without data
    gives the least value of the dtype."""
    windows = Windows(kernel, stride, padding, dilation, ceil)
    taps = windows.taps(x, _lowest(DType.of(x.dtype)))
    return taps.max(_window_axes(taps))


max_pool.normal(with_default_strides)


@max_pool.lowering
def _(x: Any, **geometry: Any) -> Any:
    best, *rest = Windows(**geometry).shifts(x, _lowest(dtype_of(x)))
    for tap in rest:
        best = ops.maximum(best, tap)
    return best


@max_pool.sample
def _(draw: Draw) -> Drawn:
    spec, attrs = _draw_pool(draw, "n")
    return [spec], attrs


def _indexed_shape(x: Shape, *, column_major: bool, **geometry: Any) -> tuple[Shape, Shape]:
    made = _pool_shape(x, **geometry)
    return made, made.with_dtype(DType.I64)


@op(
    "n[n c *s] -> n[n c ...], i64[n c ...]",
    kind=Kind.SPECIAL,
    shape=_indexed_shape,
    flops=_pool_flops,
    is_exact=True,
)
def max_pool_with_indices(
    x: Array,
    *,
    kernel: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
    ceil: bool = False,
    column_major: bool = False,
) -> tuple[Array, Array]:
    """max_pool, and where in the flattened x each greatest element is: the first of equals, or of
    NaNs; -1 for a window without data. With `column_major` (ONNX's storage_order 1) the first axis
    of an image counts fastest; batch and channels stay in front."""
    windows = Windows(kernel, stride, padding, dilation, ceil)
    taps = windows.taps(x, _lowest(DType.of(x.dtype)))
    seen = (*taps.shape[: x.ndim], int(windows.area))
    flat, places = (
        taps.reshape(seen),
        windows.taps(_flat_indices(x, column_major), -1).reshape(seen),
    )
    best, first = (a.argmax(-1)[..., None] for a in (_ordered(flat), places >= 0))
    where = np.where(np.take_along_axis(places, best, -1) >= 0, best, first)
    made, indices = (np.take_along_axis(a, where, -1)[..., 0] for a in (flat, places))
    return made, indices


def _ordered(x: Array) -> Array:
    return x.astype(np.float32) if DType.of(x.dtype).compute is not DType.of(x.dtype) else x


def _flat_indices(x: Any, column_major: bool) -> Any:
    """The index of each element of x in flattened x, by rows or by columns of each image."""
    n, c, *image = dims_of(x)
    image_order = tuple(reversed(image)) if column_major else tuple(image)
    count = product((n, c, *image))
    line = ops.reshape(nullary(x, "iota", dims=(count,), axis=0), dims=(n, c, *image_order))
    if not column_major:
        return line
    return ops.transpose(line, perm=(0, 1, *range(1 + len(image), 1, -1)))


max_pool_with_indices.normal(with_default_strides)


@max_pool_with_indices.lowering
def _(x: Any, *, column_major: bool, **geometry: Any) -> tuple[Any, Any]:
    windows = Windows(**geometry)
    taps = windows.shifts(x, _lowest(dtype_of(x)))
    places = windows.shifts(_flat_indices(x, column_major), -1.0)
    best, where = taps[0], places[0]
    for tap, place in zip(taps[1:], places[1:]):
        is_first = ops.logical_and(ops.less(where, 0), ops.greater_equal(place, 0))
        is_better = ops.logical_or(is_first, ops.greater(tap, best))
        if dtype_of(x).is_float:
            is_nan = ops.logical_and(ops.is_nan(tap), ops.logical_not(ops.is_nan(best)))
            is_better = ops.logical_or(is_better, is_nan)
        best, where = ops.where(is_better, tap, best), ops.where(is_better, place, where)
    return best, where


@max_pool_with_indices.sample
def _(draw: Draw) -> Drawn:
    spec, attrs = _draw_pool(draw, "n")
    return [spec], {**attrs, "column_major": draw.coin()}


def _unpooled(x: Shape, indices: Shape, *, image: tuple[DimLike, ...]) -> Shape:
    if len(image) != x.rank - 2:
        raise GraphError(f"image: expected {x.rank - 2} sizes, got {len(image)}")
    return x.with_dims([*x.dims[:2], *image])


@op(
    "a[n c *s], i[n c *s] -> a[n c ...]",
    kind=Kind.SPECIAL,
    shape=_unpooled,
    flops="size0",
    is_exact=True,
)
def max_unpool(x: Array, indices: Array, *, image: tuple[DimLike, ...]) -> Array:
    """Zeros [batch, channels, *image] with the elements of x put at `indices` of the flattened
    result; where one occurs twice, the last counts. The inverse of max_pool_with_indices, but for
    the rest of each window."""
    made = np.zeros((*x.shape[:2], *(int(n) for n in image)), x.dtype)
    where = indices.reshape(-1)
    outside = where[(where < 0) | (where >= made.size)]
    if outside.size:
        raise Error(f"index {outside[0]} is out of range for a result of {made.size} elements")
    made.reshape(-1)[where.astype(np.intp)] = x.reshape(-1)
    return made


@max_unpool.lowering
def _(x: Any, indices: Any, *, image: tuple[DimLike, ...]) -> Any:
    outer, count = dims_of(x)[:2], product(dims_of(x))
    zero = nullary(x, "constant", value=np.zeros((1,), dtype_of(x).numpy))
    nothing = ops.expand(zero, dims=(product((*outer, *image)),))
    where, values = (ops.reshape(v, dims=(count,)) for v in (indices, x))
    return ops.reshape(ops.scatter(nothing, where, values, axis=0), dims=(*outer, *image))


@max_unpool.sample
def _(draw: Draw) -> Drawn:
    image = draw.dims(1, 3, smallest=1)
    outer = (draw.size(1), draw.size(1))
    dims = (*outer, *(draw.size() for _ in image))
    indices = Spec(
        dims, draw.choice((DType.I32, DType.I64)), f"index:{int(np.prod((*outer, *image)))}"
    )
    return [Spec(dims, draw.dtype("a")), indices], {"image": image}


# -- means and norms ------------------------------------------------------------------------------


def _mean_shape(x: Shape, *, count_include_pad: bool, **geometry: Any) -> Shape:
    return _pool_shape(x, **geometry)


@op(
    "f[n c *s] -> f[n c ...]",
    kind=Kind.SPECIAL,
    shape=_mean_shape,
    flops=_pool_flops,
    aliases=("avg_pool1d", "avg_pool2d", "avg_pool3d"),
)
def avg_pool(
    x: Array,
    *,
    kernel: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
    ceil: bool = False,
    count_include_pad: bool = False,
) -> Array:
    """The mean of each window. `count_include_pad` divides by padding too, though never by what
    `ceil` reaches past it. A window that counts nothing gives 0."""
    windows, image = Windows(kernel, stride, padding, dilation, ceil), x.shape[2:]
    taps = windows.taps(x, 0)
    inner, outer = _counted(windows, image, count_include_pad)
    ones = np.pad(np.ones((1, 1, *image), x.dtype), margins(inner), constant_values=1)
    counts = windows.seen(np.pad(ones, margins(outer)), image).sum(_window_axes(taps))
    sums = taps.sum(_window_axes(taps))
    return np.divide(sums, counts, out=np.zeros_like(sums), where=counts != 0)


avg_pool.normal(with_default_strides)


def _counted(
    windows: Windows, image: Sequence[DimLike], count_include_pad: bool
) -> tuple[Sequence[DimLike], Sequence[DimLike]]:
    """What the windows reach outside of the image: the part that counts, and the rest."""
    reach = windows.reach(image)
    if not count_include_pad:
        return (0,) * len(reach), reach
    return windows.padding, [dim_max(0, r - p) for r, p in zip(reach, windows.padding)]


@avg_pool.lowering
def _(x: Any, *, count_include_pad: bool, **geometry: Any) -> Any:
    windows, image = Windows(**geometry), dims_of(x)[2:]
    total = _summed(windows.shifts(x, 0.0))
    if not windows.ceil and (count_include_pad or not any(windows.padding)):
        return ops.div(total, float(windows.area))  # pyright: ignore[reportArgumentType]
    inner, outer = _counted(windows, image, count_include_pad)
    one = nullary(x, "constant", value=np.ones((1,) * len(dims_of(x)), dtype_of(x).numpy))
    ones = padded(ops.expand(one, dims=(1, 1, *image)), inner, 1.0)
    counts = _summed(windows.shifted(padded(ones, outer, 0.0), image))
    return ops.div(total, ops.maximum(counts, 1.0))


@avg_pool.sample
def _(draw: Draw) -> Drawn:
    spec, attrs = _draw_pool(draw, "f")
    plain = Spec(spec.dims, spec.dtype, "plain")
    return [plain], {**attrs, "count_include_pad": draw.coin()}


def _norm_shape(x: Shape, *, p: float, **geometry: Any) -> Shape:
    if not p > 0:
        raise GraphError(f"p is {p}, expected a number above 0")
    return _pool_shape(x, **geometry)


@op("f[n c *s] -> f[n c ...]", kind=Kind.SPECIAL, shape=_norm_shape, flops=_pool_flops)
def lp_pool(
    x: Array,
    *,
    kernel: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
    ceil: bool = False,
    p: float = 2.0,
) -> Array:
    """(Σ |x|^p)^(1/p) over each window; padding adds nothing."""
    powers = np.abs(x) ** x.dtype.type(p)
    taps = Windows(kernel, stride, padding, dilation, ceil).taps(powers, 0)
    return taps.sum(_window_axes(taps)) ** x.dtype.type(1 / p)


lp_pool.normal(with_default_strides)


@lp_pool.lowering
def _(x: Any, *, p: float, **geometry: Any) -> Any:
    return _power(_summed(Windows(**geometry).shifts(_power(ops.abs(x), p), 0.0)), 1 / p)


def _power(x: Any, exponent: float) -> Any:
    """A number from 0 on to a power: a square, its root or itself where that is what it is."""
    if exponent == 1:
        return x
    if exponent in (2, 0.5):
        return ops.square(x) if exponent == 2 else ops.sqrt(x)
    return ops.pow(x, exponent)


@lp_pool.sample
def _(draw: Draw) -> Drawn:
    spec, attrs = _draw_pool(draw, "f")
    return [Spec(spec.dims, spec.dtype, "plain")], {**attrs, "p": draw.choice((1.0, 2.0, 3.0))}


# -- of whole images ------------------------------------------------------------------------------


def _whole(x: Shape, **_: Any) -> Shape:
    return x.with_dims([*x.dims[:2], *[1] * (x.rank - 2)])


def _image(x: Any) -> tuple[int, ...]:
    return tuple(range(2, len(dims_of(x))))


@op(
    "f[n c *s] -> f[n c ...]",
    kind=Kind.REDUCTION,
    shape=_whole,
    flops="size0",
    aliases=("global_avg_pool2d",),
)
def global_avg_pool(x: Array) -> Array:
    """The mean of each channel's image; of an empty one it is NaN."""
    return x.sum(_image(x), keepdims=True) / x.dtype.type(np.prod(x.shape[2:]))


@global_avg_pool.lowering
def _(x: Any) -> Any:
    return ops.mean(x, axes=_image(x), keepdims=True)


@op("n[n c *s] -> n[n c ...]", kind=Kind.REDUCTION, shape=_whole, flops="size0")
def global_max_pool(x: Array) -> Array:
    """The greatest element of each channel's image, or a NaN of it; of an empty one it is the
    least value of the dtype."""
    lowest = x.dtype.type(_lowest(DType.of(x.dtype)))
    return x.max(_image(x), keepdims=True, initial=lowest)


@global_max_pool.lowering
def _(x: Any) -> Any:
    return ops.max(x, axes=_image(x), keepdims=True, empty_ok=True)


def _whole_norm(x: Shape, *, p: float) -> Shape:
    if not p > 0:
        raise GraphError(f"p is {p}, expected a number above 0")
    return _whole(x)


@op(
    "f[n c *s] -> f[n c ...]", kind=Kind.REDUCTION, shape=_whole_norm, flops="3*size0", draw="plain"
)
def global_lp_pool(x: Array, *, p: float = 2.0) -> Array:
    """(Σ |x|^p)^(1/p) over each channel's image."""
    powers = np.abs(x) ** x.dtype.type(p)
    return powers.sum(_image(x), keepdims=True) ** x.dtype.type(1 / p)


@global_lp_pool.lowering
def _(x: Any, *, p: float) -> Any:
    powers = _power(ops.abs(x), p)
    return _power(ops.sum(powers, axes=_image(x), keepdims=True), 1 / p)
