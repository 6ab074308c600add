"""Lowering convolutions whose results are NHWC to implicit GEMM.

    acc[n, y, x, o] = Σ_{u, v, i} image[n, y·s + u·d, x·s + v·d, i] · w[o, i, u, v]

The places of the windows are the rows, output channels the columns, and the input channels the
last inner axis. Lanes go along channels, so an image of any size fills them. The image is read
where it lies, border and all: what is outside of it is a condition on a window's place and a tap,
never on a channel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlx.core.dim import DimLike, is_static
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Node
from rlx.kernel.contract import Contract, collapsed
from rlx.kernel.expr import (
    Affine,
    Axis,
    Choose,
    Expr,
    Exprs,
    Inside,
    Kernel,
    Load,
    Store,
    postorder,
)
from rlx.kernel.lower.contract import Refined
from rlx.kernel.lower.conv import Conv, flat, one_axis_each, position, with_operand
from rlx.kernel.refusal import NotLowered, Refusal, attempt
from rlx.kernel.rewrite import Rewriter, substitution
from rlx.ops.op import lookup

MAX_STRIDED_CHANNELS = 4
"""Up to here it does not matter where the channels of an image lie."""

Reads = Callable[[Expr, Expr, DType, bool], tuple[Expr, int]]
"""Of an image, its kernels, the dtype of the sums, and whether sums are over several channels: the
part of the image's value that is to lie in memory, what is left being done to what is read, or all
of it in a narrow dtype; and how many channels are read at once."""


def read_unchanged(
    image: Expr, kernels: Expr, sums: DType, is_over_channels: bool
) -> tuple[Expr, int]:
    del kernels, sums, is_over_channels
    return image, 1


def lower_nhwc_conv(
    node: Node,
    operands: Sequence[Layout],
    results: Sequence[Layout],
    reads: Reads = read_unchanged,
) -> tuple[Kernel | None, Contract] | Refusal:
    """The contraction of a step with one convolution, and the kernel that stages its image if one
    must: it is then one more operand, behind the others."""
    return attempt(lambda: _lowered(Conv.of(node, operands, results), node.op, reads))


def bounds_checks_of(left: Expr) -> tuple[Expr, tuple[Inside, ...]]:
    """What a bordered operand reads, and where that is inside of the image."""
    found: list[Inside] = []
    while isinstance(left, Choose) and isinstance(left.args[0], Inside):
        found.append(left.args[0])
        left = left.args[1]
    return left, tuple(found)


def padding_value_of(left: Expr) -> tuple[Expr, ...]:
    """What a bordered operand is elsewhere: the same on all sides."""
    is_bordered = isinstance(left, Choose) and isinstance(left.args[0], Inside)
    return (left.args[2],) if is_bordered else ()


def _lowered(conv: Conv, name: str, reads: Reads) -> tuple[Kernel | None, Contract]:
    axes, exprs = conv.refined(), Exprs()
    channel, taps = _inner(conv.anchor.inputs[1].shape.dims[1:])
    batch, made, *places = (position(r) for r in axes)
    size = conv.anchor.inputs[1].shape.dims[1]
    windows = conv.windows
    seen = [
        p * s + t * d + -b
        for p, s, t, d, b in zip(places, windows.stride, taps, windows.dilation, windows.before)
    ]
    image = _image(conv, exprs, reads)
    group = conv.group(axes[1])
    channels = (group * size + channel,) if len(image.axes) == len(axes) else (group, channel)
    at = substitution(dict(zip(image.axes, (batch, *channels, *seen))))
    left = Rewriter(exprs, at)(image.value)
    left = conv.bordered(exprs, left, seen)
    of_kernels = one_axis_each(conv.kernels, conv.anchor)
    where = dict(zip(of_kernels, (made, channel, *taps)))
    right = Rewriter(exprs, substitution(where))(conv.kernels.stores[0].value)
    inner = tuple(a for t in (*taps, channel) for a in t.axes)
    inner = (*inner, Axis("one", 1)) if _is_depthwise(conv) else _with_last(inner, left)
    contract = implicit_gemm(conv, name, axes, inner, left, right)
    if image.held is not None:
        contract = with_operand(contract, image.held)
    return image.writing, collapsed(contract)


def implicit_gemm(
    conv: Conv, name: str, axes: Sequence[Refined], inner: tuple[Axis, ...], left: Expr, right: Expr
) -> Contract:
    """The product whose rows are the places of windows, and whose columns are output channels."""
    shape, moves = conv.anchor.shape, conv.moves(axes)
    *outer, rows = (a for r in (axes[0], *axes[2:]) for a in r.axes)
    *more, columns = axes[1].axes if _is_depthwise(conv) else conv.channels(axes[1])
    totals = conv.totals((*outer, *more, rows, columns))
    rewriter = Rewriter(Exprs(), substitution(moves), totals)
    stores = tuple(map(rewriter.store, conv.after.stores))
    return Contract(
        name, (*more, *outer), rows, columns, inner, left, right, shape.dtype.compute, stores,
        conv.image.operands, conv.after.results,
    )  # fmt: skip


def _is_depthwise(conv: Conv) -> bool:
    """Has every channel a kernel of its own? The lanes then go along the groups."""
    return conv.groups == conv.anchor.shape.dims[1] == conv.anchor.inputs[0].shape.dims[1]


def is_depthwise(contract: Contract) -> bool:
    """Is each column a sum of its own column of the image?"""
    return contract.columns in contract.left.free


def _inner(dims: Sequence[DimLike]) -> tuple[Affine, list[Affine]]:
    """The channel of a group and the taps: axes where there is more than one."""
    if not all(is_static(d) and d > 0 for d in dims):
        raise NotLowered("the sizes of its kernels are not known")
    channel, *taps = (
        Affine.of(Axis(f"k{i}", d)) if d != 1 else Affine() for i, d in enumerate(dims)
    )
    return channel, taps


def _with_last(inner: tuple[Axis, ...], left: Expr) -> tuple[Axis, ...]:
    """Inner axes of which no condition depends on the last; where there are conditions, its steps
    are contiguous, as the zeros do that are read outside of the image."""
    image, conditions = bounds_checks_of(left)
    is_free = inner and not any(inner[-1] in c.free for c in conditions)
    if is_free and (not conditions or _is_beside(image, inner[-1])):
        return inner
    return (*inner, Axis("one", 1))


def _is_beside(image: Expr, axis: Axis) -> bool:
    """Is everything that is read along an axis read with unit stride?"""
    read = [n for n in postorder([image]) if isinstance(n, Load) and axis in n.free]
    return bool(read) and all(n.at.coefficient(axis) == 1 for n in read)


@dataclass(frozen=True, slots=True)
class _Image:
    """What the windows look at: a value over axes of the image, and the kernel that writes it
    down, as what, if one must."""

    value: Expr
    axes: tuple[Axis, ...]
    """Batch, channels or those of groups, places."""
    writing: Kernel | None = None
    held: Shape | None = None


def _image(conv: Conv, exprs: Exprs, reads: Reads) -> _Image:
    """The image as it is, if it is NHWC and its channels are read in whole runs, else written
    down so."""
    given = conv.image.stores[0].value
    axes = one_axis_each(conv.image, conv.anchor)
    channels, sums = conv.anchor.inputs[1].shape.dims[1], conv.anchor.shape.dtype.compute
    assert is_static(channels)
    kept, run = reads(given, conv.kernels.stores[0].value, sums, channels > 1)
    if channels % run == 0 and _is_near(conv, kept, axes[1], run):
        return _Image(given, axes)
    batch, joined, *places = axes
    if channels % run == 0:
        return _written(conv, exprs, kept, (batch, *places, joined), axes)
    group, channel = Axis("group", conv.groups), Axis("channel", -(-channels // run) * run)
    place = Affine.of(group) * channels
    order, over = (batch, *places, group, channel), (batch, group, channel, *places)
    if isinstance(kept, Load) and kept.at.coefficient(joined) == 1:
        at = Affine.of(channel)
        moved = Rewriter(exprs, substitution({joined: place + at}))(kept)
        value = _there(exprs, at, channels, moved)
        return _written(conv, exprs, kept, order, over, value)
    word = Axis("word", channel.extent // run)
    steps = [Affine.of(word) * run + i for i in range(run)]
    parts = [Rewriter(exprs, substitution({joined: place + at}))(kept) for at in steps]
    parts = [_there(exprs, at, channels, p) for at, p in zip(steps, parts)]
    return _written(conv, exprs, kept, order, over, _joined(exprs, parts), word)


def _there(exprs: Exprs, at: Affine, channels: int, value: Expr) -> Expr:
    """A value of a channel; 0 past the last one."""
    zero = exprs.const(np.zeros((), value.dtype.numpy), value.dtype)
    return exprs.choose(exprs.inside(at, 0, channels), value, zero)


def _joined(exprs: Exprs, parts: Sequence[Expr]) -> Expr:
    """A dot-product group of narrow numbers as one of 32 bits: it is not vectorised over."""
    size = parts[0].dtype.itemsize
    raw = {1: DType.U8, 2: DType.U16}[size]
    total: Expr | None = None
    for i, part in enumerate(parts):
        if raw is not part.dtype:
            part = exprs.apply(lookup("bitcast"), [part], {"to": raw}, raw)
        wide = exprs.apply(lookup("cast"), [part], {"to": DType.U32}, DType.U32)
        by = exprs.const(np.array(8 * size * i, np.uint32), DType.U32)
        moved = exprs.apply(lookup("shift_left"), [wide, by], {}, DType.U32)
        total = moved if total is None else exprs.apply(
            lookup("bit_or"), [total, moved], {}, DType.U32)  # fmt: skip
    assert total is not None
    return total


def _written(
    conv: Conv, exprs: Exprs, kept: Expr, order: Sequence[Axis], over: tuple[Axis, ...],
    value: Expr | None = None, word: Axis | None = None,
) -> _Image:  # fmt: skip
    """The image over axes in an order, by a kernel that writes `value` at each point of them: words
    of the last one, where an axis of these is given."""
    layout = Layout.contiguous([a.extent for a in order])
    place, number = flat(map(Affine.of, order), layout.strides), len(conv.image.operands)
    held = exprs.load(number, place, kept.dtype)
    given = conv.image.stores[0].value
    if kept in postorder([given]):
        image = Rewriter(exprs, replaced={kept: held})(given)
    else:
        image = exprs.apply(lookup("cast"), [held], {"to": given.dtype}, given.dtype)
    loops = tuple(order) if word is None else (*order[:-1], word)
    by_loop = Layout.contiguous([a.extent for a in loops])
    value = kept if value is None else value
    store = Store(0, flat(map(Affine.of, loops), by_loop.strides), value)
    made = Shape(by_loop.dims, value.dtype)
    kernel = Kernel("image", loops, (store,), conv.image.operands, (made,))
    return _Image(image, over, kernel, Shape(layout.dims, kept.dtype))


def _is_near(conv: Conv, image: Expr, along: Axis, run: int) -> bool:
    """Can windows look at it in place: is it NHWC, or has it few channels?"""
    if not isinstance(image, Load) or image.args:
        return False
    if run > 1:
        return image.at.coefficient(along) == 1
    dims = conv.anchor.inputs[0].shape.dims
    has_border = any(r != 0 for r in conv.windows.reach(dims[2:]))
    channels = conv.anchor.inputs[1].shape.dims[1]
    is_alone = _is_depthwise(conv)
    is_one = channels == 1 and not is_alone
    is_few = is_static(channels) and channels <= MAX_STRIDED_CHANNELS and not is_alone
    is_beside = image.at.coefficient(along) == 1 or is_one
    return is_beside or (is_few and not has_border)


def stores_nhwc(contract: Contract) -> bool:
    """Do the results lie along the columns, enough of them for the lanes?"""
    columns = contract.columns
    return has_vector_columns(contract) and all(
        s.at.coefficient(columns) == 1 for s in contract.stores
    )


def has_vector_columns(contract: Contract) -> bool:
    columns = contract.columns.extent
    return not is_static(columns) or columns > MAX_STRIDED_CHANNELS


def window_axes(contract: Contract) -> tuple[Axis, ...]:
    """The axes of the places of windows: all that the kernels do not vary with."""
    free = contract.right.free
    return (*(b for b in contract.batch if b not in free), contract.rows)


def is_plain_gemm(contract: Contract) -> bool:
    """Is it a plain product after all: one tap, even steps, and rows the same for all columns?"""
    _, conditions = bounds_checks_of(contract.left)
    is_flat = len(contract.inner) == 1 and len(window_axes(contract)) == 1
    return is_flat and not conditions and not is_depthwise(contract)
