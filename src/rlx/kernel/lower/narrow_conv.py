"""Lowering convolutions of few channels to implicit GEMM along the rows of windows.

    acc[n, y, x, o] = Σ_{u, r} rows[n, y·s + u·d, x·s·C + r] · w[o, r % C, u, r // C]

A window's taps along the last axis and their channels are one run r of neighbours, if the channels
are: the image is written down NHWC, with its border, and with so many channels C that every window
starts at a multiple of a unit of neighbours. Channels and taps that a unit has too many count 0:
the filters are 0 there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from rlx.core.dim import DimLike, dim_max, is_static
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Node
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Affine, Axis, Expr, Exprs, Kernel, Store
from rlx.kernel.lower.conv import Conv, flat, one_axis_each, position, with_operand
from rlx.kernel.lower.nhwc_conv import implicit_gemm
from rlx.kernel.refusal import NotLowered, Refusal, attempt
from rlx.kernel.rewrite import Rewriter, substitution

MAX_WASTE = 4
"""Channels written down for one of the image, below which it pays to."""
MIN_UNIT = 4
"""Channels in multiples of these are neighbours enough as they are."""


def lower_narrow_conv(
    node: Node, operands: Sequence[Layout], results: Sequence[Layout], unit: int
) -> tuple[Kernel, Contract] | Refusal:
    """The contraction of a step with one convolution of few channels, and the kernel that writes
    its image down: one more operand, behind the others."""
    return attempt(lambda: _lowered(Conv.of(node, operands, results), node.op, unit))


@dataclass(frozen=True, slots=True)
class _Runs:
    """What is written down of an image."""

    channels: int
    taps: int
    """Along the last axis."""

    @classmethod
    def of(cls, conv: Conv, unit: int) -> _Runs:
        windows, channels = conv.windows, conv.anchor.inputs[1].shape.dims[1]
        taps = windows.kernel[-1]
        if conv.groups > 1 or windows.dilation[-1] > 1 or not is_static(taps):
            raise NotLowered("the taps of a row of a window are no neighbours")
        if not is_static(channels) or channels < 1 or channels % MIN_UNIT == 0:
            raise NotLowered("its channels are neighbours as they are")
        made = _up(channels, unit // gcd(unit, windows.stride[-1]))
        if made >= MAX_WASTE * channels:
            raise NotLowered("most of what it would write down would be zeros")
        return cls(made, _up(taps, unit // gcd(unit, made)))


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


def _lowered(conv: Conv, name: str, unit: int) -> tuple[Kernel, Contract]:
    runs, exprs, axes = _Runs.of(conv, unit), Exprs(), conv.refined()
    image = _image(conv, exprs, runs)
    batch, made, *places = (position(r) for r in axes)
    sizes = (*conv.windows.kernel[:-1], runs.taps, runs.channels)
    if not all(is_static(s) and s > 0 for s in sizes):
        raise NotLowered("the sizes of its kernels are not known")
    inner = [Axis(f"k{i}", s) for i, s in enumerate(sizes)]
    *taps, channel = map(Affine.of, inner)
    windows = conv.windows
    seen = [p * s + t * d for p, s, t, d in zip(places, windows.stride, taps, windows.dilation)]
    strides = Layout.contiguous(image.results[0].dims).strides
    number = len(conv.image.operands)
    left = exprs.load(number, flat((batch, *seen, channel), strides), image.results[0].dtype)
    right = _filters(conv, exprs, made, channel, taps)
    contract = implicit_gemm(conv, name, axes, tuple(inner), left, right)
    return image, with_operand(contract, image.results[0])


def _filters(
    conv: Conv, exprs: Exprs, made: Affine, channel: Affine, taps: Sequence[Affine]
) -> Expr:
    """Of an output channel, at a channel and a tap; 0 behind the last of either."""
    of_kernels = one_axis_each(conv.kernels, conv.anchor)
    where = dict(zip(of_kernels, (made, channel, *taps)))
    value = Rewriter(exprs, substitution(where))(conv.kernels.stores[0].value)
    dims = conv.anchor.inputs[1].shape.dims
    return _inside(exprs, _inside(exprs, value, channel, dims[1]), taps[-1], dims[-1])


def _image(conv: Conv, exprs: Exprs, runs: _Runs) -> Kernel:
    """The image with its border and all channels of a run, along which neighbours are."""
    windows, shape = conv.windows, conv.anchor.inputs[0].shape
    spans = (*windows.spans[:-1], runs.taps)
    rooms: list[DimLike] = [
        dim_max(0, (count - 1) * step + span)
        for count, step, span in zip(conv.anchor.shape.dims[2:], windows.stride, spans)
    ]
    sizes = (shape.dims[0], *rooms, runs.channels)
    axes = [Axis(f"t{i}", size) for i, size in enumerate(sizes)]
    batch, *places, channel = map(Affine.of, axes)
    places = [p + -before for p, before in zip(places, windows.before)]
    moves = dict(zip(one_axis_each(conv.image, conv.anchor), (batch, channel, *places)))
    value = Rewriter(exprs, substitution(moves))(conv.image.stores[0].value)
    for place, dim in zip((channel, *places), shape.dims[1:]):
        value = _inside(exprs, value, place, dim)
    layout = Layout.contiguous([a.extent for a in axes])
    store = Store(0, flat(map(Affine.of, axes), layout.strides), value)
    made = Shape(layout.dims, value.dtype)
    return Kernel("image", tuple(axes), (store,), conv.image.operands, (made,))


def _inside(exprs: Exprs, value: Expr, place: Affine, dim: DimLike) -> Expr:
    """A value where there is one; 0 elsewhere."""
    zero = exprs.const(np.zeros((), value.dtype.numpy), value.dtype)
    return exprs.choose(exprs.inside(place, 0, dim), value, zero)
