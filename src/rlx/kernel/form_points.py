"""Forming convolutions whose results have their channels side by side.

    acc[n, y, x, o] = Σ_{u, v, i} image[n, y·s + u·d, x·s + v·d, i] · w[o, i, u, v]

The places of the windows are the rows, output channels the columns, and the input channels the
last inner axis. Lanes go along channels, so an image of any size fills them. The image is read
where it lies, border and all: what is outside of it is a condition on a window's place and a tap,
never on a channel.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.dim import DimLike, is_static
from rlx.ir.layout import Layout
from rlx.ir.mir import Node
from rlx.kernel.contract import Accumulator, Contract, Mover, collapsed, moved_map
from rlx.kernel.expr import Affine, Axis, Choose, Expr, Exprs, Inside, Kernel, Load, Store
from rlx.kernel.form import NotALoop
from rlx.kernel.form_contract import NotAContraction, Refined
from rlx.kernel.form_conv import Conv, flat, one_axis_each, position, prepared, with_operand
from rlx.shape import Shape

FEW_CHANNELS = 4
"""Up to here it does not matter where the channels of an image lie."""


def form_points(
    node: Node, operands: Sequence[Layout], results: Sequence[Layout]
) -> tuple[Kernel | None, Contract]:
    """The contraction of a step with one convolution, and the kernel that writes its image down if
    one must: it is then one more operand, behind the others."""
    try:
        conv = Conv.of(prepared(node), operands, results)
    except NotALoop as error:
        raise NotAContraction(str(error)) from error
    return _formed(conv, node.op)


def conditions_of(left: Expr) -> tuple[Expr, tuple[Inside, ...]]:
    """What a bordered operand reads, and where that is inside of the image; it is 0 elsewhere."""
    found: list[Inside] = []
    while isinstance(left, Choose) and isinstance(left.args[0], Inside):
        found.append(left.args[0])
        left = left.args[1]
    return left, tuple(found)


def _formed(conv: Conv, name: str) -> tuple[Kernel | None, Contract]:
    axes, exprs = conv.refined(), Exprs()
    channel, taps = _inner(conv.anchor.inputs[1].shape.dims[1:])
    batch, made, *places = (position(r) for r in axes)
    size = conv.anchor.inputs[1].shape.dims[1]
    windows = conv.windows
    seen = [
        p * s + t * d + -b
        for p, s, t, d, b in zip(places, windows.stride, taps, windows.dilation, windows.before)
    ]
    writing, value = _image(conv, exprs)
    at = (batch, conv.group(axes[1]) * size + channel, *seen)
    left = Mover(exprs, dict(zip(one_axis_each(conv.image, conv.anchor), at)))(value)
    left = conv.bordered(exprs, left, seen)
    of_kernels = one_axis_each(conv.kernels, conv.anchor)
    where = dict(zip(of_kernels, (made, channel, *taps)))
    right = Mover(exprs, where)(conv.kernels.stores[0].value)
    inner = tuple(a for t in (*taps, channel) for a in t.axes)
    inner = (*inner, Axis("one", 1)) if _is_by_itself(conv) else _with_last(inner, left)
    contract = _contract(conv, name, axes, inner, left, right)
    if writing is not None:
        contract = with_operand(contract, writing.results[0])
    return writing, collapsed(contract)


def _contract(
    conv: Conv, name: str, axes: Sequence[Refined], inner: tuple[Axis, ...], left: Expr, right: Expr
) -> Contract:
    shape, moves = conv.anchor.shape, conv.moves(axes)
    *outer, rows = (a for r in (axes[0], *axes[2:]) for a in r.axes)
    *more, columns = axes[1].axes if _is_by_itself(conv) else conv.channels(axes[1])
    total = Accumulator(shape.dtype, free=frozenset((*outer, *more, rows, columns)))
    move = Mover(Exprs(), moves, {conv.load: total})
    stores = tuple(
        Store(s.result, moved_map(s.at, moves), move(s.value)) for s in conv.after.stores
    )
    return Contract(
        name, (*more, *outer), rows, columns, inner, left, right, shape.dtype.compute, stores,
        conv.image.operands, conv.after.results,
    )  # fmt: skip


def _is_by_itself(conv: Conv) -> bool:
    """Has every channel a kernel of its own? The lanes then go along the groups."""
    return conv.groups == conv.anchor.shape.dims[1] == conv.anchor.inputs[0].shape.dims[1]


def is_by_itself(contract: Contract) -> bool:
    """Is each column a sum of its own column of the image?"""
    return contract.columns in contract.left.free


def _inner(dims: Sequence[DimLike]) -> tuple[Affine, list[Affine]]:
    """The channel of a group and the taps: axes where there is more than one."""
    if not all(is_static(d) and d > 0 for d in dims):
        raise NotAContraction("the sizes of its kernels are not known")
    channel, *taps = (
        Affine.of(Axis(f"k{i}", d)) if d != 1 else Affine() for i, d in enumerate(dims)
    )
    return channel, taps


def _with_last(inner: tuple[Axis, ...], left: Expr) -> tuple[Axis, ...]:
    """Inner axes of which no condition depends on the last; where there are conditions, its steps
    lie side by side, as the zeros do that are read outside of the image."""
    image, conditions = conditions_of(left)
    is_free = inner and not any(inner[-1] in c.free for c in conditions)
    if is_free and (not conditions or _is_beside(image, inner[-1])):
        return inner
    return (*inner, Axis("one", 1))


def _is_beside(image: Expr, axis: Axis) -> bool:
    return isinstance(image, Load) and image.at.coefficient(axis) == 1


def _image(conv: Conv, exprs: Exprs) -> tuple[Kernel | None, Expr]:
    """What the windows look at, over the axes of the image: as it is, if its channels lie side by
    side, else written down so."""
    value, shape = conv.image.stores[0].value, conv.anchor.inputs[0].shape
    axes = one_axis_each(conv.image, conv.anchor)
    if isinstance(value, Load) and not value.args:
        has_border = any(r != 0 for r in conv.windows.reach(shape.dims[2:]))
        channels = conv.anchor.inputs[1].shape.dims[1]
        is_one = channels == 1 and not _is_by_itself(conv)
        is_near = value.at.coefficient(axes[1]) == 1 or is_one
        is_few = is_static(channels) and channels <= FEW_CHANNELS and not _is_by_itself(conv)
        if is_near or (is_few and not has_border):
            return None, value
    order = (axes[0], *axes[2:], axes[1])
    layout = Layout.contiguous([a.extent for a in order])
    place = flat(map(Affine.of, order), layout.strides)
    made = Shape(layout.dims, shape.dtype)
    kernel = Kernel("image", order, (Store(0, place, value),), conv.image.operands, (made,))
    return kernel, exprs.load(len(conv.image.operands), place, shape.dtype)


def is_by_channel(contract: Contract) -> bool:
    """Do the results lie along the columns, enough of them for the lanes?"""
    columns = contract.columns
    is_wide = not is_static(columns.extent) or columns.extent > FEW_CHANNELS
    return is_wide and all(s.at.coefficient(columns) == 1 for s in contract.stores)


def points_of(contract: Contract) -> tuple[Axis, ...]:
    """The axes of the places of windows: all that the kernels do not vary with."""
    free = contract.right.free
    return (*(b for b in contract.batch if b not in free), contract.rows)


def is_product(contract: Contract) -> bool:
    """Is it a plain product after all: one tap, even steps, and rows the same for all columns?"""
    _, conditions = conditions_of(contract.left)
    is_flat = len(contract.inner) == 1 and len(points_of(contract)) == 1
    return is_flat and not conditions and not is_by_itself(contract)
