"""Convolutions and pooling as calls of mlx, whose images are NHWC and kernels OHWI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.engine.calls import Site
from rlx.backends.mlx import numerics
from rlx.backends.mlx.calls.elementwise import SINGLES
from rlx.backends.mlx.calls.table import TABLE
from rlx.backends.mlx.namespaces import mx
from rlx.core.dtype import DType
from rlx.ops.nn.window_geometry import Windows

Ints = Sequence[int]


def channels_last(x: Any) -> Any:
    return mx.moveaxis(x, 1, -1)


def channels_first(x: Any) -> Any:
    return mx.moveaxis(x, -1, 1)


def _plus(made: Any, bias: Any) -> Any:
    """The bias before the channels move to the front, where it is the last axis."""
    return channels_first(made if bias is None else made + bias)


def _convolved(x: Any, w: Any, groups: int, **geometry: Any) -> Any:
    """mlx has groups along one or two axes: of three, each group is a convolution."""
    if groups == 1 or x.ndim < 5:
        return mx.conv_general(x, w, groups=groups, **geometry)
    parts = zip(mx.split(x, groups, axis=-1), mx.split(w, groups, axis=0))
    return mx.concatenate([mx.conv_general(a, b, **geometry) for a, b in parts], -1)


@TABLE.call("conv", dtypes=SINGLES, halves=True)
def conv(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
    site: Site,
) -> Any:
    axes = len(stride)
    x, w, bias = map(numerics.widened, (x, w, bias))
    if 0 in x.shape or 0 in w.shape or 0 in site.result.static_dims:
        zero = mx.zeros(site.result.static_dims, x.dtype)
        return zero if bias is None else zero + mx.reshape(bias, (-1, *[1] * axes))
    made = _convolved(
        channels_last(x),
        channels_last(w),
        groups,
        stride=list(stride),
        padding=(list(padding[:axes]), list(padding[axes:])),
        kernel_dilation=list(dilation),
    )
    return _plus(made, bias)


@TABLE.call("conv_transpose", dtypes=SINGLES, halves=True)
def conv_transpose(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    output_padding: Ints,
    groups: int,
    site: Site,
) -> Any:
    """The convolution of the image with zeros between its elements, and the kernel reversed."""
    c, o, *kernel = w.shape
    axes = len(kernel)
    x, w, bias = map(numerics.widened, (x, w, bias))
    if 0 in x.shape or 0 in w.shape or 0 in site.result.static_dims:
        zero = mx.zeros(site.result.static_dims, x.dtype)
        return zero if bias is None else zero + mx.reshape(bias, (-1, *[1] * axes))
    swapped = mx.swapaxes(mx.reshape(w, (groups, c // groups, o, *kernel)), 1, 2)
    kernels = mx.reshape(swapped, (groups * o, c // groups, *kernel))
    spans = [d * (k - 1) for k, d in zip(kernel, dilation)]
    before = [s - p for s, p in zip(spans, padding[:axes])]
    after = [s - p + m for s, p, m in zip(spans, padding[axes:], output_padding)]
    made = _convolved(
        channels_last(x),
        channels_last(kernels),
        groups,
        padding=([max(b, 0) for b in before], [max(a, 0) for a in after]),
        kernel_dilation=list(dilation),
        input_dilation=list(stride),
        flip=True,
    )
    sizes = zip(made.shape[1:-1], before, after)
    kept = [slice(max(-b, 0), n - max(-a, 0)) for n, b, a in sizes]
    return _plus(made[(slice(None), *kept)], bias)


@TABLE.call("max_pool")
def max_pool(
    x: Any,
    *,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil: bool,
    site: Site,
) -> Any:
    """The greatest of strided windows over the padded image."""
    if 0 in site.result.static_dims:
        return mx.zeros(site.result.static_dims, x.dtype)
    windows = Windows(tuple(kernel), tuple(stride), tuple(padding), tuple(dilation), ceil)
    seen = _windows(x, windows, _lowest(site.operands[0].dtype, site))
    return mx.max(seen, axis=list(range(-len(kernel), 0)))


def _lowest(dtype: DType, site: Site) -> Any:
    is_whole = dtype.is_integer
    least = np.iinfo(dtype.numpy).min if is_whole else -np.inf
    return site.engine.constant(np.asarray(least, dtype.numpy))


def _windows(x: Any, windows: Windows, fill: Any) -> Any:
    """[batch, channels, *counts, *kernel]: what each window sees, as a view."""
    image, axes = x.shape[2:], x.ndim - 2
    reach = [int(r) for r in windows.reach(image)]
    widths = [(0, 0), (0, 0), *zip(reach[:axes], reach[axes:])]
    whole = mx.pad(x, widths, constant_values=fill.astype(x.dtype)) if any(reach) else x
    strides = [1]
    for size in reversed(whole.shape[1:]):
        strides.insert(0, strides[0] * size)
    inner = strides[2:]
    steps = [s * n for s, n in zip(windows.stride, inner)]
    taps = [d * n for d, n in zip(windows.dilation, inner)]
    counts = [int(c) for c in windows.counts(image)]
    dims = (*x.shape[:2], *counts, *(int(k) for k in windows.kernel))
    return mx.as_strided(mx.contiguous(whole), dims, [*strides[:2], *steps, *taps])
