"""Lowering convolutions of few channels to implicit GEMM along the rows of windows.

    acc[n, y, x, o] = Σ_{u, r} blocks[n, y + u, (x · B) + r] · w[o, …],   r over taps and a block

Steps of windows become channels: a block of B numbers is the s · s pixels, with their channels,
that a window moves by. Windows then go along blocks one by one, and a window's taps along the last
axis are one run of neighbours, which starts at a multiple of a unit of them. The image is written
down so, with its border; channels and taps that a unit has too many count 0, as the filters are 0
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from rlx.core.dim import DimLike, dim_max, is_static
from rlx.core.dtype import DType
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
"""Products for one of the convolution's, below which it pays to."""
MIN_UNIT = 4
"""Channels in multiples of these are neighbours enough as they are."""


def lower_narrow_conv(
    node: Node, operands: Sequence[Layout], results: Sequence[Layout], unit: int
) -> tuple[Kernel, Contract] | Refusal:
    """The contraction of a step with one convolution of few channels, and the kernel that writes
    its image down: one more operand, behind the others."""
    return attempt(lambda: _lowered(Conv.of(node, operands, results), node.op, unit))


@dataclass(frozen=True, slots=True)
class _Blocks:
    """What is written down of an image."""

    sides: tuple[int, ...]
    """Pixels of a block along each axis."""
    channels: int
    taps: tuple[int, ...]
    """Blocks of a window along each axis."""

    @classmethod
    def of(cls, conv: Conv, unit: int) -> _Blocks:
        channels, *kernel = conv.anchor.inputs[1].shape.dims[1:]
        windows = conv.windows
        sizes = [k for k in kernel if is_static(k)]
        if conv.groups > 1 or windows.dilation[-1] > 1 or len(sizes) < len(kernel):
            raise NotLowered("the taps of a row of a window are no neighbours")
        if not is_static(channels) or channels < 1 or channels % MIN_UNIT == 0:
            raise NotLowered("its channels are neighbours as they are")
        sides = tuple(1 if d > 1 else s for s, d in zip(windows.stride, windows.dilation))
        made = _up(channels, unit // gcd(unit, prod(sides)))
        taps = tuple(-(-k // side) for k, side in zip(sizes, sides))
        if prod(taps) * prod(sides) * made >= MAX_WASTE * prod(sizes) * channels:
            raise NotLowered("most of what it would multiply would be zeros")
        return cls(sides, made, taps)


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


def _lowered(conv: Conv, name: str, unit: int) -> tuple[Kernel, Contract]:
    blocks, exprs, axes = _Blocks.of(conv, unit), Exprs(), conv.refined()
    image = _image(conv, exprs, blocks)
    batch, made, *places = (position(r) for r in axes)
    sizes = (*blocks.taps, *blocks.sides, blocks.channels)
    inner = [Axis(f"k{i}", size) for i, size in enumerate(sizes) if size != 1]
    numbers = iter(map(Affine.of, inner))
    *at, channel = (next(numbers) if size != 1 else Affine() for size in sizes)
    taps, within = at[: len(blocks.taps)], at[len(blocks.taps) :]
    windows = conv.windows
    seen = [
        p * (s // side) + t * d
        for p, s, side, t, d in zip(places, windows.stride, blocks.sides, taps, windows.dilation)
    ]
    strides = Layout.contiguous(image.results[0].dims).strides
    number, dtype = len(conv.image.operands), image.results[0].dtype
    left = exprs.load(number, flat((batch, *seen, *within, channel), strides), dtype)
    steps = [t * side + w for t, side, w in zip(taps, blocks.sides, within)]
    right = _filters(conv, exprs, made, channel, steps)
    contract = implicit_gemm(conv, name, axes, tuple(inner), left, right)
    return image, with_operand(contract, image.results[0])


def _filters(
    conv: Conv, exprs: Exprs, made: Affine, channel: Affine, taps: Sequence[Affine]
) -> Expr:
    """Of an output channel, at a channel and a tap; 0 behind the last of either."""
    of_kernels = one_axis_each(conv.kernels, conv.anchor)
    where = dict(zip(of_kernels, (made, channel, *taps)))
    value = Rewriter(exprs, substitution(where))(conv.kernels.stores[0].value)
    for place, dim in zip((channel, *taps), conv.anchor.inputs[1].shape.dims[1:]):
        value = _inside(exprs, value, place, dim)
    return value


def _image(conv: Conv, exprs: Exprs, blocks: _Blocks) -> Kernel:
    """The image with its border, block by block."""
    windows, shape = conv.windows, conv.anchor.inputs[0].shape
    rooms: list[DimLike] = [
        dim_max(0, (count - 1) * (step // side) + (taps - 1) * dilation + 1)
        for count, step, side, taps, dilation in zip(
            conv.anchor.shape.dims[2:], windows.stride, blocks.sides, blocks.taps, windows.dilation
        )
    ]
    sizes = (shape.dims[0], *rooms, *blocks.sides, blocks.channels)
    axes = [Axis(f"t{i}", size) for i, size in enumerate(sizes)]
    batch, *along, channel = map(Affine.of, axes)
    count = len(rooms)
    places = [
        b * side + w + -before
        for b, side, w, before in zip(along, blocks.sides, along[count:], windows.before)
    ]
    moves = dict(zip(one_axis_each(conv.image, conv.anchor), (batch, channel, *places)))
    value = _half(exprs, Rewriter(exprs, substitution(moves))(conv.image.stores[0].value))
    for place, dim in zip((channel, *places), shape.dims[1:]):
        value = _inside(exprs, value, place, dim)
    layout = Layout.contiguous([a.extent for a in axes])
    store = Store(0, flat(map(Affine.of, axes), layout.strides), value)
    made = Shape(layout.dims, value.dtype)
    return Kernel("image", tuple(axes), (store,), conv.image.operands, (made,))


def _half(exprs: Exprs, value: Expr) -> Expr:
    """A value of f32 that holds a half float as that."""
    found = (exprs.narrowed(value, half) for half in (DType.BF16, DType.F16))
    return next((x for x in found if x is not None), value)


def _inside(exprs: Exprs, value: Expr, place: Affine, dim: DimLike) -> Expr:
    """A value where there is one; 0 elsewhere."""
    zero = exprs.const(np.zeros((), value.dtype.numpy), value.dtype)
    return exprs.choose(exprs.inside(place, 0, dim), value, zero)
