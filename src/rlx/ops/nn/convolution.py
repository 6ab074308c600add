"""Convolution and transposed convolution: [batch, channels, *image] and [out, in, *kernel].

Strides and dilations are one number per axis; padding is all the numbers before the image, then
all those after it (top, left, bottom, right), as ONNX has them. See `rlx.ops.nn.window_geometry`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike, product
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.requirements import require_size
from rlx.core.shape import DimsDiffer, Shape, dims_differ, indivisible
from rlx.ops.compose import composed, dims_of
from rlx.ops.draw import Draw, Spec
from rlx.ops.nn.window_geometry import (
    Ints,
    Windows,
    cropped,
    draw_image,
    draw_kernel,
    interior_padded,
    padded,
    with_default_strides,
)
from rlx.ops.op import Array, Kind, op

Drawn = tuple[list[Spec], dict[str, Any]]


def _check_kernel(x: Shape, w: Shape) -> None:
    if w.rank != x.rank:
        raise GraphError(f"operand 1 is {w}, expected {x.rank} dims, as operand 0 has")


def _check_groups(channels: DimLike, inputs: DimLike, outputs: DimLike, groups: int) -> None:
    if groups < 1 or inputs * groups != channels:
        raise DimsDiffer(
            f"x has {channels} channels, but w takes {inputs} in each of {groups} groups",
            channels,
            inputs * groups,
        )
    if outputs % groups != 0:
        what = f"w gives {outputs} channels, which {groups} groups do not divide"
        raise indivisible(f"{what}. Give groups that do", outputs, groups)


def _plus(sums: Array, bias: Array | None) -> Array:
    return sums if bias is None else sums + bias.reshape(-1, *[1] * (sums.ndim - 2))


def _lowered_plus(sums: Any, bias: Any) -> Any:
    if bias is None:
        return sums
    return ops.add(sums, ops.expand_dims(bias, axes=tuple(range(1, len(dims_of(sums)) - 1))))


# -- the convolution ------------------------------------------------------------------------------


def _conv_shape(x: Shape, w: Shape, *_: Shape, groups: int, **geometry: Any) -> Shape:
    _check_kernel(x, w)
    windows = Windows(w.dims[2:], **geometry)
    windows.check(x.rank)
    _check_groups(x.dims[1], w.dims[1], w.dims[0], groups)
    return Shape([x.dims[0], w.dims[0], *windows.counts(x.dims[2:])], x.dtype)


@op(
    "n[n c *s], n[o i *k], n[o]? -> n[n o ...]",
    kind=Kind.CONVOLUTION,
    shape=_conv_shape,
    flops="2*out*i*k",
    aliases=("conv1d", "conv2d", "conv3d"),
)
def conv(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
    groups: int = 1,
) -> Array:
    """Sums over windows of the zero-padded image against each kernel. Input and output channels
    are cut into `groups` that see only each other; `bias` is added per output channel. Integers
    wrap."""
    o, i, *kernel = w.shape
    taps = Windows(tuple(kernel), stride, padding, dilation).taps(x, 0)
    axes, depth = len(kernel), int(np.prod([i, *kernel]))
    n, counts = x.shape[0], taps.shape[2 : 2 + axes]
    apart_ = taps.reshape(n, groups, i, *counts, *kernel)
    seen = np.moveaxis(apart_, 2, 2 + axes).reshape(n, groups, int(np.prod(counts)), depth)
    kernels = w.reshape(groups, o // groups, depth).transpose(0, 2, 1)
    return _plus(np.matmul(seen, kernels).swapaxes(2, 3).reshape(n, o, *counts), bias)


conv.normal(with_default_strides)


@conv.lowering
def _(x: Any, w: Any, bias: Any = None, *, groups: int, **geometry: Any) -> Any:
    (n, _, *image), (o, i, *kernel) = dims_of(x), dims_of(w)
    windows = Windows(tuple(kernel), **geometry)
    counts = windows.counts(image)
    many = [ops.reshape(t, dims=(n, groups, i, 1, product(counts))) for t in windows.shifts(x, 0.0)]
    seen = ops.reshape(
        ops.concat(many, axis=3), dims=(n, groups, i * windows.area, product(counts))
    )
    kernels = ops.reshape(w, dims=(groups, o // groups, i * windows.area))
    sums = ops.reshape(ops.matmul(kernels, seen), dims=(n, o, *counts))
    return _lowered_plus(sums, bias)


@conv.sample
def _(draw: Draw) -> Drawn:
    kernel, geometry = draw_kernel(draw)
    groups, per_group, dtype = draw.integer(1, 3), draw.integer(1, 3), draw.dtype("n")
    image = draw_image(draw, Windows(kernel, **geometry))
    outputs = groups * draw.integer(0, 3)
    dims = [(draw.integer(0, 2), groups * per_group, *image), (outputs, per_group, *kernel)]
    dims += [(outputs,)] if draw.coin() else []
    return [Spec(d, dtype, "plain") for d in dims], {**geometry, "groups": groups}


@composed("_[...], _[...] -> _[...]", kind=Kind.CONVOLUTION)
def wide_conv(
    x: Any,
    w: Any,
    *,
    to: DType,
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
    groups: int = 1,
) -> Any:
    """`conv` of both operands cast to `to`: numbers that are narrow in memory, summed wide."""
    wide = (ops.cast(v, to=to) for v in (x, w))
    return ops.conv(*wide, stride=stride, padding=padding, dilation=dilation, groups=groups)


wide_conv.normal(with_default_strides)


@wide_conv.sample
def _(draw: Draw) -> Drawn:
    case = draw.case(conv)
    dtypes = [draw.choice((DType.BF16, DType.F16)) for _ in range(2)]
    specs = [Spec(s.dims, d, "plain") for s, d in zip(case.specs, dtypes)]
    return specs, {**case.attrs, "to": DType.F32}


# -- the transposed convolution -------------------------------------------------------------------


def _transposed(windows: Windows, image: Sequence[DimLike], more: Ints) -> list[DimLike]:
    """The sizes of an image that the windows could have come from."""
    sizes: list[DimLike] = []
    for axis, (m, step, span) in enumerate(zip(image, windows.stride, windows.spans)):
        pads = windows.before[axis] + windows.after[axis]
        sizes.append((m - 1) * step + span + more[axis] - pads)
    return sizes


def _conv_transpose_shape(
    x: Shape, w: Shape, *bias: Shape, groups: int, output_padding: Ints, **geometry: Any
) -> Shape:
    _check_kernel(x, w)
    windows = Windows(w.dims[2:], **geometry)
    windows.check(x.rank)
    if len(output_padding) != x.rank - 2 or min(output_padding) < 0:
        raise GraphError(
            f"output_padding: expected {x.rank - 2} numbers from 0, got {output_padding}"
        )
    if groups < 1 or x.dims[1] % groups != 0:
        what = f"x has {x.dims[1]} channels, which {groups} groups do not divide"
        raise indivisible(f"{what}. Give groups that do", x.dims[1], groups)
    if bias and bias[0].dims[0] != w.dims[1] * groups:
        outputs = w.dims[1] * groups
        what = f"operand 2 is {bias[0]}, expected {outputs} output channels"
        raise DimsDiffer(what, bias[0].dims[0], outputs)
    sizes = _transposed(windows, x.dims[2:], output_padding)
    for axis, size in enumerate(sizes, 2):
        require_size(size, f"padding: axis {axis} of the result would have {size} elements")
    return Shape([x.dims[0], w.dims[1] * groups, *sizes], x.dtype)


@op(
    "f[n c *s], f[c o *k], f[p]? -> f[n ...]",
    kind=Kind.CONVOLUTION,
    shape=_conv_transpose_shape,
    flops="2*size0*o*k",
    aliases=("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
)
def conv_transpose(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
    output_padding: tuple[int, ...] = (),
    groups: int = 1,
) -> Array:
    """What conv's windows add up to: each element times the kernel [in, out per group, *kernel],
    laid where conv would have read it. `padding` is cut off; `output_padding` adds to the end, for
    a size that the stride alone cannot tell."""
    c, o, *kernel = w.shape
    n, _, *image = x.shape
    windows = Windows(tuple(kernel), stride, padding, dilation)
    rows = x.reshape(n, groups, c // groups, int(np.prod(image)))
    kernels = w.reshape(groups, c // groups, o * int(np.prod(kernel))).swapaxes(1, 2)
    columns = np.matmul(kernels, rows).reshape(n, groups * o, *kernel, *image)
    sizes = _transposed(windows, image, output_padding)
    return _plus(windows.spread(columns, [int(s) for s in sizes]), bias)


conv_transpose.normal(with_default_strides)


@conv_transpose.lowering
def _(
    x: Any, w: Any, bias: Any = None, *, groups: int, output_padding: Ints, **geometry: Any
) -> Any:
    """Convolutions: where f = q·s + p is an element of the result, its sum is over every s-th tap
    from p on, and the same for all q. So each p has channels of its own, and they are joined.

        y[q·s + p] = Σ_v x[q - v] · w[p + v·s]
    """
    kernel, image = dims_of(w)[2:], dims_of(x)[2:]
    windows = Windows(tuple(kernel), **geometry)
    sizes = _transposed(windows, image, output_padding)
    phases = _Phases.of(windows, output_padding)
    if phases is None:
        return _lowered_plus(_as_dilated_convolution(x, w, windows, groups, output_padding), bias)
    kernels = phases.kernels(w, groups)
    made = phases.summed(x, kernels, groups)
    return _lowered_plus(cropped(phases.joined(made, groups), phases.starts, sizes), bias)


@dataclass(frozen=True, slots=True)
class _Phases:
    """Along each axis: the spacing of the image's elements, the taps that one
    element of the result has, what they reach, and where the result begins."""

    stride: Ints
    taps: Ints
    dilation: Ints
    before: Ints
    after: Ints
    starts: Ints

    @classmethod
    def of(cls, windows: Windows, more: Ints) -> _Phases | None:
        """None where both stride and dilation are more than 1, or sizes are not known."""
        found: list[tuple[int, ...]] = []
        axes = zip(windows.kernel, windows.stride, windows.dilation, windows.before, windows.after)
        for (k, step, apart_, before, after), extra in zip(axes, more):
            if isinstance(k, Dim) or (step > 1 and apart_ > 1):
                return None
            taps = -(-k // step)
            reach, end = apart_ * (taps - 1), apart_ * (k - 1) + 1 + extra - after
            skipped = min(before // step, reach)
            far = max(skipped, -(-end // step) - 1)
            found.append((step, taps, apart_, reach - skipped, far, before - step * skipped))
        return cls(*zip(*found))

    def kernels(self, w: Any, groups: int) -> Any:
        """[groups · phases · out, in per group, *taps], backwards: where channels have unit stride,
        those of a phase do, too."""
        c, o, *kernel = dims_of(w)
        axes = len(kernel)
        rest = [t * s - k for t, s, k in zip(self.taps, self.stride, kernel)]
        whole = padded(w, (*[0] * axes, *rest), 0.0)
        cut = [d for pair in zip(self.taps, self.stride) for d in pair]
        many = ops.reshape(whole, dims=(groups, c // groups, o, *cut))
        perm = (0, *range(4, 3 + 2 * axes, 2), 2, 1, *range(3, 3 + 2 * axes, 2))
        flat = (groups * o * product(self.stride), c // groups, *self.taps)
        kernels = ops.reshape(ops.transpose(many, perm=perm), dims=flat)
        return ops.flip(kernels, axes=tuple(range(2, 2 + axes)))

    def summed(self, x: Any, kernels: Any, groups: int) -> Any:
        """The phases as channels. Where there are more taps than elements, the elements are the
        kernel and the taps the image: a product of the two is the same either way."""
        padding = (*self.before, *self.after)
        image = [n for n in dims_of(x)[2:] if not isinstance(n, Dim)]
        if len(image) < len(self.taps) or not self._is_larger(image, groups):
            return ops.conv(x, kernels, padding=padding, dilation=self.dilation, groups=groups)
        # y[q] = Σ_v k[v] · x[q + v - before], and Σ_i x[i] · k[i - q + before] for all i
        axes = tuple(range(2, 2 + len(image)))
        counts = [n + b + a - t + 1
                  for n, b, a, t in zip(image, self.before, self.after, self.taps)]  # fmt: skip
        low = [c - 1 - b for c, b in zip(counts, self.before)]
        high = [n + b - t for n, b, t in zip(image, self.before, self.taps)]
        reversed_kernels = _bordered(kernels, low, high)
        made = ops.conv(reversed_kernels, x)
        swapped = ops.flip(made, axes=axes)
        return ops.transpose(swapped, perm=(1, 0, *axes))

    def _is_larger(self, image: Sequence[int], groups: int) -> bool:
        if groups != 1 or max(self.dilation) > 1:
            return False
        return min(image) > 0 and prod(self.taps) > 4 * prod(image)

    def joined(self, made: Any, groups: int) -> Any:
        """[batch, groups · phases · out, *q] as [batch, groups · out, *(q · stride + phase)]."""
        if max(self.stride) == 1:
            return made
        n, channels, *places = dims_of(made)
        axes, kept = len(places), channels // product(self.stride)
        first = (groups,) if groups > 1 else ()
        cut = ops.reshape(made, dims=(n, *first, *self.stride, kept // groups, *places))
        phase = 1 + len(first)
        out = phase + axes
        pairs = [a for j in range(axes) for a in (out + 1 + j, phase + j)]
        moved = ops.transpose(cut, perm=(*range(phase), out, *pairs))
        sizes = [q * s for q, s in zip(places, self.stride)]
        return ops.reshape(moved, dims=(n, kept, *sizes))


def _bordered(x: Any, low: Sequence[int], high: Sequence[int]) -> Any:
    """More zeros before and after the image, or less of it where a number is negative."""
    wide = padded(x, (*(max(0, b) for b in low), *(max(0, a) for a in high)), 0.0)
    sizes = [n + b + a for n, b, a in zip(dims_of(x)[2:], low, high)]
    return cropped(wide, tuple(max(0, -b) for b in low), sizes)


def _as_dilated_convolution(x: Any, w: Any, windows: Windows, groups: int, more: Ints) -> Any:
    """Transposed convolution as a convolution of the interior-padded image with the flipped
    kernel."""
    (c, o, *kernel), image = dims_of(w), dims_of(x)[2:]
    axes = len(kernel)
    edges = [s - 1 for s in windows.spans]
    far = [e + m for e, m in zip(edges, more)]
    wide = padded(interior_padded(x, windows.stride), (*edges, *far), 0.0)
    swapped = ops.transpose(
        ops.reshape(w, dims=(groups, c // groups, o, *kernel)),
        perm=(0, 2, 1, *range(3, 3 + axes)),
    )
    kernels = ops.reshape(swapped, dims=(groups * o, c // groups, *kernel))
    kernels = ops.flip(kernels, axes=tuple(range(2, 2 + axes)))
    made = ops.conv(wide, kernels, dilation=windows.dilation, groups=groups)
    return cropped(made, windows.before, _transposed(windows, image, more))


@conv_transpose.sample
def _(draw: Draw) -> Drawn:
    kernel, geometry = draw_kernel(draw)
    more = tuple(draw.integer(0, 2) for _ in kernel)
    groups, dtype, outputs = draw.integer(1, 3), draw.dtype("f"), draw.integer(0, 2)
    windows = Windows(kernel, **geometry)
    image = [1 + draw.integer(0, 2) for _ in kernel]
    while any(not isinstance(s, Dim) and s < 0 for s in _transposed(windows, image, more)):
        image = [m + 1 for m in image]
    channels = groups * draw.integer(0, 2)
    dims = [(draw.integer(0, 2), channels, *image), (channels, outputs, *kernel)]
    dims += [(groups * outputs,)] if draw.coin() else []
    attrs = {**geometry, "output_padding": more, "groups": groups}
    return [Spec(d, dtype, "plain") for d in dims], attrs


# -- causal, one kernel per channel ---------------------------------------------------------------


def _causal_shape(x: Shape, w: Shape, *state: Shape) -> Shape:
    k, wanted = w.dims[1], (x.dims[0], w.dims[1] - 1, x.dims[2])
    if isinstance(k, Dim) or k < 1:
        raise GraphError(f"operand 1 is {w}, expected a kernel of a known size from 1")
    if state and state[0].dims != wanted:
        what = f"operand 2 is {state[0]}, expected [{', '.join(map(str, wanted))}]"
        raise dims_differ(what, state[0].dims, wanted)
    return x


@op(
    "f[b s c], f[c k], f[...]? -> f[b s c]",
    kind=Kind.CONVOLUTION,
    shape=_causal_shape,
    flops="2*out*k",
)
def depthwise_conv1d_causal(x: Array, w: Array, state: Array | None = None) -> Array:
    """y[t] = Σ w[j] · x[t - (k-1) + j] for each channel, x [batch, length, channels] and w
    [channels, k]: a step sees itself and the k - 1 before it. Those before the first are `state`
    [batch, k - 1, channels], or zeros; `causal_conv_state` gives the state of the next call."""
    before = np.zeros((len(x), w.shape[1] - 1, x.shape[2]), x.dtype) if state is None else state
    whole = np.concatenate([before, x], axis=1)
    taps = [whole[:, j : j + x.shape[1]] * w[:, j] for j in range(w.shape[1])]
    return np.sum(taps, axis=0)


@depthwise_conv1d_causal.lowering
def _(x: Any, w: Any, state: Any = None) -> Any:
    (_, length, channels), (_, k) = dims_of(x), dims_of(w)
    whole = (
        ops.pad(x, low=(0, k - 1, 0), high=(0, 0, 0)) if state is None
        else ops.concat([state, x], axis=1)
    )  # fmt: skip
    total = None
    for j in range(k):  # pyright: ignore[reportArgumentType]
        weight = ops.reshape(ops.narrow(w, axis=1, start=j, length=1), dims=(channels,))
        tap = ops.mul(ops.narrow(whole, axis=1, start=j, length=length), weight)
        total = tap if total is None else ops.add(total, tap)
    return total


@depthwise_conv1d_causal.sample
def _(draw: Draw) -> Drawn:
    dims, k, dtype = (draw.size(), draw.size(), draw.size()), draw.integer(1, 4), draw.dtype("f")
    state = [Spec((dims[0], k - 1, dims[2]), dtype, "plain")] if draw.coin() else []
    return [Spec(dims, dtype, "plain"), Spec((dims[2], k), dtype, "plain"), *state], {}
