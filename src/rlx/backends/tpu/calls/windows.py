"""Convolutions and pooling by XLA's own windows: their padding may be uneven, and they reach as far
past the image as `ceil` asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.engine.calls import Site
from rlx.backends.tpu.calls.contraction import HALVES, accumulator, exact
from rlx.backends.tpu.calls.table import TABLE
from rlx.backends.tpu.namespaces import jnp, lax
from rlx.core.dtype import DType
from rlx.ops.nn.window_geometry import Windows

Ints = Sequence[int]
MAX_TAPS = 64
"""Of a depthwise kernel whose taps are written out."""

# -- convolutions ---------------------------------------------------------------------------------


def _pairs(padding: Ints) -> list[tuple[int, int]]:
    axes = len(padding) // 2
    return list(zip(padding[:axes], padding[axes:]))


def _plus(sums: Any, bias: Any) -> Any:
    return sums if bias is None else sums + bias.reshape(-1, *[1] * (sums.ndim - 2))


def _convolved(x: Any, w: Any, site: Site, **geometry: Any) -> Any:
    """[batch, channels, *image] against [out, in, *kernel]; of nothing, zeros."""
    if not x.size or not w.size:
        return jnp.zeros(site.result.static_dims, exact(x)["preferred_element_type"])
    axes = "".join(chr(ord("a") + i) for i in range(x.ndim - 2))
    layout = (f"NC{axes}", f"OI{axes}", f"NC{axes}")
    return lax.conv_general_dilated(x, w, dimension_numbers=layout, **geometry, **exact(x, w))


@TABLE.call("conv", halves=True)
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
    def windows(x: Any, w: Any) -> Any:
        geometry = {"window_strides": stride, "padding": _pairs(padding), "rhs_dilation": dilation}
        return _convolved(x, w, site, **geometry, feature_group_count=groups)

    def taps(x: Any, w: Any) -> Any:
        return _by_taps(x, w, Windows(w.shape[2:], tuple(stride), tuple(padding), tuple(dilation)))

    if not _is_depthwise(x, w):
        return _plus(windows(x, w), bias)
    return _plus(lax.platform_dependent(x, w, cpu=taps, default=windows), bias)


def _is_depthwise(x: Any, w: Any) -> bool:
    return w.shape[1] == 1 and bool(x.size and w.size) and math.prod(w.shape[2:]) <= MAX_TAPS


def _by_taps(x: Any, w: Any, windows: Windows) -> Any:
    """Each channel by itself, as a sum of the shifted image times one tap after the other: XLA on
    processors makes one loop of it, and of convolutions of few channels none that is fast."""
    wide, axes = accumulator(x), len(windows.kernel)
    times = w.shape[0] // x.shape[1]
    channels = jnp.repeat(x, times, axis=1) if times > 1 else x
    around = [(0, 0, 0), (0, 0, 0), *((b, a, 0) for b, a in _pairs(windows.padding))]
    image = lax.pad(channels.astype(wide), wide.type(0), around)
    taps = w.astype(wide).reshape(w.shape[0], -1, *[1] * axes)
    counts, steps = windows.counts(x.shape[2:]), windows.stride
    total: Any = None
    for i, starts in enumerate(windows.tap_offsets()):
        ends = [s + (int(n) - 1) * step + 1 for s, n, step in zip(starts, counts, steps)]
        shifted = lax.slice(image, (0, 0, *starts), (*image.shape[:2], *ends), (1, 1, *steps))
        term = shifted * taps[:, i]
        total = term if total is None else total + term
    return total


@TABLE.call("wide_conv", halves=True)
def wide_conv(x: Any, w: Any, *, to: DType, site: Site, **geometry: Any) -> Any:
    if x.dtype != w.dtype or to is not DType.F32 or x.dtype not in HALVES:
        x, w = x.astype(to.numpy), w.astype(to.numpy)
    return conv(x, w, site=site, **geometry)


@TABLE.call("conv_transpose", halves=True)
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
    """The convolution of the image with stride - 1 zeros between its elements and the reversed
    kernel, [in, out per group, …] turned to [out, in per group, …]."""
    c, o, *kernel = w.shape
    if not c or not o:
        return _plus(jnp.zeros(site.result.static_dims, np.float32), bias)
    turned = jnp.swapaxes(w.reshape(groups, c // groups, o, *kernel), 1, 2)
    kernels = lax.rev(turned.reshape(groups * o, c // groups, *kernel), tuple(range(2, w.ndim)))
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    reach = [
        (s - 1 - b, s - 1 - a + more)
        for s, (b, a), more in zip(spans, _pairs(padding), output_padding)
    ]
    geometry = {"window_strides": (1,) * len(kernel), "padding": reach, "lhs_dilation": stride}
    made = _convolved(
        x, kernels, site, **geometry, rhs_dilation=dilation, feature_group_count=groups
    )
    return _plus(made, bias)


@TABLE.call("depthwise_conv1d_causal")
def depthwise_conv1d_causal(x: Any, w: Any, state: Any = None) -> Any:
    taps, length = w.shape[1], x.shape[1]
    before = jnp.zeros((len(x), taps - 1, x.shape[2]), x.dtype) if state is None else state
    whole = jnp.concatenate([before, x], axis=1)
    return sum(
        (whole[:, j : j + length] * w[:, j] for j in range(1, taps)), whole[:, :length] * w[:, 0]
    )


# -- pooling --------------------------------------------------------------------------------------


def _reduced(x: Any, first: Any, fold: Any, windows: Windows) -> Any:
    reach = windows.reach(x.shape[2:])
    return lax.reduce_window(
        x,
        np.asarray(first, x.dtype),
        fold,
        (1, 1, *map(int, windows.kernel)),
        (1, 1, *windows.stride),
        [(0, 0), (0, 0), *_pairs([int(r) for r in reach])],
        window_dilation=(1, 1, *windows.dilation),
    )


def _windows(x: Any, geometry: dict[str, Any]) -> Windows | None:
    """None where there is no data to look at."""
    return Windows(**geometry) if x.size else None


@TABLE.call("max_pool")
def max_pool(x: Any, *, site: Site, **geometry: Any) -> Any:
    wanted = np.dtype(x.dtype)
    lowest = np.iinfo(wanted).min if wanted.kind in "iu" else -np.inf
    windows = _windows(x, geometry)
    if windows is None:
        return jnp.full(site.result.static_dims, lowest, x.dtype)
    return _cut(_reduced(x, lowest, lax.max, windows), site)


@TABLE.call("avg_pool")
def avg_pool(x: Any, *, count_include_pad: bool, site: Site, **geometry: Any) -> Any:
    windows = _windows(x, geometry)
    if windows is None:
        return jnp.zeros(site.result.static_dims, x.dtype)
    sums = _cut(_reduced(x, 0, lax.add, windows), site)
    counts = _window_counts(windows, x.shape[2:], count_include_pad)
    return sums / np.maximum(counts, 1).astype(x.dtype)


@TABLE.call("lp_pool")
def lp_pool(x: Any, *, p: float, site: Site, **geometry: Any) -> Any:
    windows = _windows(x, geometry)
    if windows is None:
        return jnp.zeros(site.result.static_dims, x.dtype)
    powers = jnp.abs(x) ** x.dtype.type(p)
    return _cut(_reduced(powers, 0, lax.add, windows), site) ** x.dtype.type(1 / p)


def _cut(made: Any, site: Site) -> Any:
    """Padding that no window needs may make room for one more."""
    return made[tuple(slice(d) for d in site.result.static_dims)]


def _window_counts(windows: Windows, image: Ints, counts_padding: bool) -> Any:
    """How many elements each window divides by: a product of those along each axis."""
    total = np.ones((1,) * len(image), np.int64)
    for axis, (size, count) in enumerate(zip(image, windows.counts(image))):
        before, after = windows.before[axis], windows.after[axis]
        starts = np.arange(int(count)) * windows.stride[axis] - before
        taps = starts[:, None] + np.arange(int(windows.kernel[axis])) * windows.dilation[axis]
        low, high = (-before, size + after) if counts_padding else (0, size)
        along = ((taps >= low) & (taps < high)).sum(1)
        total = total * along.reshape([-1 if a == axis else 1 for a in range(len(image))])
    return total
