"""Normalisations. Variances take two passes, mean first: one pass over squares would cancel."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.attrs import Axis
from rlx.core.dim import DimLike, exact_div, product
from rlx.core.errors import GraphError
from rlx.core.shape import Shape, dims_differ, indivisible
from rlx.ops.compose import dims_of
from rlx.ops.draw import Draw, Spec
from rlx.ops.math.reduction import LAST, mean
from rlx.ops.op import Array, Kind, op

# -- over the last axes ---------------------------------------------------------------------------


def _normed(x: Shape, *affine: Shape, axis: int, eps: float) -> Shape:
    for i, shape in enumerate(affine, 1):
        if shape.dims != x.dims[axis:]:
            wanted = ", ".join(map(str, x.dims[axis:]))
            what = f"operand {i} is {shape}, expected dims [{wanted}]: those of operand 0 from axis"
            raise dims_differ(f"{what} {axis}", shape.dims, x.dims[axis:])
    return x


def _last_axes(rank: int, axis: int) -> tuple[int, ...]:
    return tuple(range(axis, rank))


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    return mean.reference(x, axes=axes, keepdims=True)


def _standardised(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    centred = x - _mean(x, axes)
    return centred / np.sqrt(_mean(centred * centred, axes) + x.dtype.type(eps))


def _lowered_standardised(x: Any, axes: tuple[int, ...], eps: float) -> Any:
    centred = ops.sub(x, ops.mean(x, axes=axes, keepdims=True))
    variance = ops.mean(ops.mul(centred, centred), axes=axes, keepdims=True)
    return ops.div(centred, ops.sqrt(ops.add(variance, eps)))


def _scaled(x: Array, scale: Array | None, bias: Array | None) -> Array:
    """x · scale + bias, as far as they are given."""
    x = x if scale is None else x * scale
    return x if bias is None else x + bias


def _lowered_scaled(x: Any, scale: Any, bias: Any) -> Any:
    x = x if scale is None else ops.mul(x, scale)
    return x if bias is None else ops.add(x, bias)


_ROWS = "f[*s n], f[...]?, f[...]? -> f[...]"


@op(_ROWS, kind=Kind.ROW, shape=_normed, flops="8*out", reduces_trailing=True)
def layer_norm(
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    axis: Axis = LAST,
    eps: float = 1e-5,
) -> Array:
    """(x - mean) / sqrt(variance + eps) over the axes from `axis` to the last, then times scale,
    plus bias, where they are given: they have the dims of those axes."""
    return _scaled(_standardised(x, _last_axes(x.ndim, axis), eps), scale, bias)


@layer_norm.lowering
def _(x: Any, scale: Any = None, bias: Any = None, *, axis: int, eps: float) -> Any:
    axes = _last_axes(len(dims_of(x)), axis)
    return _lowered_scaled(_lowered_standardised(x, axes, eps), scale, bias)


@op(_ROWS, kind=Kind.ROW, shape=_normed, flops="5*out", reduces_trailing=True)
def rms_norm(
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    axis: Axis = LAST,
    eps: float = 1e-6,
) -> Array:
    """x / sqrt(mean of squares + eps) over the axes from `axis` to the last, then times scale,
    plus bias, where they are given: they have the dims of those axes."""
    square = _mean(x * x, _last_axes(x.ndim, axis))
    return _scaled(x / np.sqrt(square + x.dtype.type(eps)), scale, bias)


@rms_norm.lowering
def _(x: Any, scale: Any = None, bias: Any = None, *, axis: int, eps: float) -> Any:
    axes = _last_axes(len(dims_of(x)), axis)
    square = ops.mean(ops.mul(x, x), axes=axes, keepdims=True)
    return _lowered_scaled(ops.div(x, ops.sqrt(ops.add(square, eps))), scale, bias)


def _draw_rows(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims, dtype = draw.dims(1), draw.dtype("f")
    axis = draw.integer(-len(dims), -1)
    affine = [Spec(dims[axis:], dtype)] * draw.integer(0, 2)
    return [Spec(dims, dtype), *affine], {"axis": axis, "eps": draw.choice((1e-5, 1e-6, 0.0))}


layer_norm.sample(_draw_rows)
rms_norm.sample(_draw_rows)


# -- over channels, which are axis 1 --------------------------------------------------------------


def _grouped(x: Shape, *affine: Shape, groups: int, eps: float) -> Shape:
    if groups < 1 or exact_div(x.dims[1], groups) is None:
        what = f"operand 0 is {x}: {x.dims[1]} channels do not divide into groups={groups}"
        raise indivisible(what, x.dims[1], groups)
    return x


def _group_dims(dims: tuple[DimLike, ...], groups: int) -> tuple[DimLike, ...]:
    """[batch, channels, …] with each group's elements as one axis."""
    return (dims[0], groups, product((dims[1] // groups, *dims[2:])))


def _by_channel(rank: int, size: DimLike) -> tuple[DimLike, ...]:
    """The dims that set a vector of channels against [batch, channels, …]."""
    return (size, *[1] * (rank - 2))


@op("f[b c *s], f[c]?, f[c]? -> f[b c *s]", kind=Kind.ROW, shape=_grouped, flops="8*out")
def group_norm(
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    groups: int,
    eps: float = 1e-5,
) -> Array:
    """Layer norm of each of `groups` runs of channels (axis 1) with all that follows them, then
    times the channel's scale, plus its bias, where they are given."""
    rows = x.reshape(tuple(map(int, _group_dims(x.shape, groups))))
    return _scaled(_standardised(rows, (2,), eps).reshape(x.shape), *_wide(x, scale, bias))


@group_norm.lowering
def _(x: Any, scale: Any = None, bias: Any = None, *, groups: int, eps: float) -> Any:
    dims = dims_of(x)
    rows = ops.reshape(x, dims=_group_dims(dims, groups))
    made = ops.reshape(_lowered_standardised(rows, (2,), eps), dims=dims)
    return _lowered_scaled(made, *_lowered_wide(x, scale, bias))


def _wide(x: Array, *vectors: Array | None) -> list[Any]:
    """Vectors of channels, as far as they are given, set against x."""
    return [None if v is None else v.reshape(_by_channel(x.ndim, v.size)) for v in vectors]


def _lowered_wide(x: Any, *vectors: Any) -> list[Any]:
    return [None if v is None else _channels(v, dims_of(x)) for v in vectors]


def _channels(vector: Any, dims: tuple[DimLike, ...]) -> Any:
    wanted = _by_channel(len(dims), dims[1])
    return vector if len(wanted) == 1 else ops.reshape(vector, dims=wanted)


@group_norm.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    groups, dtype = draw.integer(1, 3), draw.dtype("f")
    channels = groups * draw.integer(0, 3)
    dims = (draw.size(), channels, *draw.dims(0, 3))
    affine = [Spec((channels,), dtype)] * draw.integer(0, 2)
    return [Spec(dims, dtype), *affine], {"groups": groups}


def _across(rank: int) -> tuple[int, ...]:
    """The axes of one channel's image."""
    return tuple(range(2, rank))


def _imaged(x: Shape, *affine: Shape, eps: float) -> Shape:
    if x.rank < 3:
        raise GraphError(f"operand 0 is {x}, expected axes after batch and channels")
    return x


_CHANNELS = "f[b c *s], f[c]?, f[c]? -> f[b c *s]"


@op(_CHANNELS, kind=Kind.ROW, shape=_imaged, flops="8*out")
def instance_norm(
    x: Array, scale: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5
) -> Array:
    """Layer norm of each channel's image, then times the channel's scale, plus its bias, where
    they are given."""
    return _scaled(_standardised(x, _across(x.ndim), eps), *_wide(x, scale, bias))


@instance_norm.lowering
def _(x: Any, scale: Any = None, bias: Any = None, *, eps: float) -> Any:
    made = _lowered_standardised(x, _across(len(dims_of(x))), eps)
    return _lowered_scaled(made, *_lowered_wide(x, scale, bias))


@op(_CHANNELS, kind=Kind.ROW, flops="8*out")
def layer_norm_2d(
    x: Array, scale: Array | None = None, bias: Array | None = None, *, eps: float = 1e-6
) -> Array:
    """Layer norm over the channels (axis 1) at each place of an image, then times the channel's
    scale, plus its bias, where they are given."""
    return _scaled(_standardised(x, (1,), eps), *_wide(x, scale, bias))


@layer_norm_2d.lowering
def _(x: Any, scale: Any = None, bias: Any = None, *, eps: float) -> Any:
    return _lowered_scaled(_lowered_standardised(x, (1,), eps), *_lowered_wide(x, scale, bias))


def _draw_channels(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims, dtype = (draw.size(), draw.size(), *draw.dims(1, 3)), draw.dtype("f")
    return [Spec(dims, dtype), *[Spec(dims[1:2], dtype)] * draw.integer(0, 2)], {"eps": 1e-3}


instance_norm.sample(_draw_channels)
layer_norm_2d.sample(_draw_channels)


@op("f[b c *s], f[c], f[c], f[c], f[c] -> f[b c *s]", kind=Kind.ROW, flops="6*out")
def batch_norm(
    x: Array, scale: Array, bias: Array, mean: Array, var: Array, *, eps: float = 1e-5
) -> Array:
    """(x - mean) / sqrt(var + eps) · scale + bias for each channel (axis 1), with the mean and the
    variance given: what a trained batch norm does when it is used."""
    per = _wide(x, scale, bias, mean, var)
    return (x - per[2]) / np.sqrt(per[3] + x.dtype.type(eps)) * per[0] + per[1]


@batch_norm.lowering
def _(x: Any, *vectors: Any, eps: float) -> Any:
    scale, bias, mean, var = _lowered_wide(x, *vectors)
    standard = ops.div(ops.sub(x, mean), ops.sqrt(ops.add(var, eps)))
    return ops.add(ops.mul(standard, scale), bias)


@batch_norm.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims, dtype = (draw.size(), draw.size(), *draw.dims(0, 3)), draw.dtype("f")
    domains = ("any", "any", "any", "positive")
    return [Spec(dims, dtype), *(Spec(dims[1:2], dtype, d) for d in domains)], {}
