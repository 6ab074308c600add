"""Convolutions, and col2im."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike
from rlx.core.dtype import DType
from rlx.frontends.dim_ranges import require
from rlx.frontends.onnx.handlers import MICROSOFT, handles
from rlx.frontends.onnx.handlers.nn.activation import activated
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.values import Weight
from rlx.frontends.onnx.window_attributes import Geometry, geometry, per_axis, split_padding, steps
from rlx.ir.mir import Node


@handles("Conv")
def conv(call: Call) -> Node:
    return convolved(call, call.node(0), call.node(1), call.optional(2))


def convolved(call: Call, x: Node, w: Node, bias: Node | None = None) -> Node:
    """The convolution that a node's attributes speak of."""
    found = geometry(call, x.shape.dims[2:], w.shape.dims[2:])
    is_plain = all(isinstance(p, int) and p >= 0 for p in found.padding)
    attrs = found.attrs if is_plain else found.bare
    image = x if is_plain else found.around(x, 0.0)
    operands = [image, w] if bias is None else [image, w, bias]
    return ops.conv(*operands, groups=call.attr("group", 1), **attrs)


@handles("FusedConv", domain=MICROSOFT)
def fused_conv(call: Call) -> Node:
    """A convolution, plus what there is, through an activation."""
    made = conv(call)
    made = ops.add(made, call.node(3)) if call.has(3) else made
    return activated(call, made, call.attr("activation_params", ()))


@handles("ConvInteger")
def conv_integer(call: Call) -> Node:
    """In i32, of numbers less their zero points: what pads is then 0."""
    found = geometry(call, call.shape(0).dims[2:], call.shape(1).dims[2:])
    if found.is_plain:
        zeros = zero_points(call, (0, 2), (1, 3))
        operands = call.node(0), call.node(1), *zeros
        return ops.conv_integer(*operands, groups=call.attr("group", 1), **found.attrs)
    x = less_zero_point(call, 0, 2, ())
    w = less_zero_point(call, 1, 3, tuple(range(1, call.rank(1))))
    return convolved(call, x, w)


def zero_points(call: Call, *pairs: tuple[int, int]) -> list[Node]:
    """The zero points of operands, 0 for those that have none; nothing where none has."""
    if not any(call.has(zero) for _, zero in pairs):
        return []
    return [
        zero_point(call, zero)
        if call.has(zero)
        else call.graph.constant(np.zeros((), call.shape(number).dtype.numpy))
        for number, zero in pairs
    ]


def zero_point(call: Call, number: int) -> Node:
    """A zero point. Where a model brings as many as there are channels, and all of them are the
    same, one number says it: kernels are made for it."""
    value = call.value(number)
    if isinstance(value, Weight) and value.array.ndim == 1 and value.array.size > 1:
        first = value.array[0]
        if bool(np.all(value.array == first)):
            return call.graph.constant(np.asarray(first))
    return call.node(number)


def less_zero_point(call: Call, number: int, zero: int, axes: Sequence[int]) -> Node:
    """An operand as i32 with its zero point taken off; `axes` set a vector of them against it."""
    wide = ops.cast(call.node(number), to=DType.I32)
    if not call.has(zero):
        return wide
    point = ops.cast(call.node(zero), to=DType.I32)
    if point.shape.rank == 1 and point.shape.dims[0] == 1:
        point = ops.squeeze(point, axes=(0,))
    elif point.shape.rank == 1 and axes:
        point = ops.expand_dims(point, axes=tuple(axes))
    elif point.shape.rank > 0:
        raise call.unsupported(f"a zero point of {point.shape}")
    return ops.sub(wide, point)


# -- transposed -----------------------------------------------------------------------------------


@handles("ConvTranspose")
def conv_transpose(call: Call) -> Node:
    x, w, bias = call.node(0), call.node(1), call.optional(2)
    image = x.shape.dims[2:]
    found, more = _spread(call, image, w.shape.dims[2:])
    for n, size in zip(image, found.spread(image, more)):
        require(1, n, f"{call.label}: an image")
        require(0, size, f"{call.label}: padding")
    operands = [x, w] if bias is None else [x, w, bias]
    return ops.conv_transpose(
        *operands, groups=call.attr("group", 1), output_padding=more, **found.attrs
    )


def _spread(
    call: Call, image: Sequence[DimLike], kernel: Sequence[DimLike]
) -> tuple[Geometry, tuple[int, ...]]:
    """Padding that is removed, and elements that are added at the end. A size that is asked for is
    reached by cutting off, or, where it is greater, by adding."""
    auto, axes = call.attr("auto_pad", "NOTSET"), len(image)
    more = per_axis(call, "output_padding", axes, 0)
    plain = steps(call, image, kernel)
    wanted = call.attr("output_shape")
    if wanted:
        natural = plain.spread(image, more)
        totals = [_known(call, n - w) for n, w in zip(natural, wanted[-axes:])]
        grown = tuple(m + max(0, -t) for m, t in zip(more, totals))
        padding = split_padding(
            call, [max(0, t) for t in totals], "SAME_LOWER" if auto == "VALID" else auto
        )
        return replace(plain, padding=padding), grown
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = [span + m - s for s, span, m in zip(plain.stride, plain.spans, more)]
        grown = tuple(m + max(0, -t) for m, t in zip(more, totals))
        return replace(plain, padding=split_padding(call, [max(0, t) for t in totals], auto)), grown
    padding = per_axis(call, "pads", 2 * axes, 0) if auto in ("NOTSET", "") else plain.padding
    return replace(plain, padding=padding), more


def _known(call: Call, size: DimLike) -> int:
    if isinstance(size, Dim):
        raise call.needs_shape(f"output_shape is reached by cutting off {size}, which is not known")
    return size


# -- windows of other kinds -----------------------------------------------------------------------


@handles("DeformConv")
def deform_conv(call: Call) -> Node:
    x, w = call.node(0), call.node(1)
    found = geometry(call, x.shape.dims[2:], w.shape.dims[2:])
    operands = [x, w, call.node(2), *([call.node(4)] if call.has(4) else [])]
    made = ops.deform_conv(
        *operands,
        groups=call.attr("group", 1),
        offset_groups=call.attr("offset_group", 1),
        **found.attrs,
    )
    return ops.add(made, by_channel(call.node(3), made)) if call.has(3) else made


def by_channel(vector: Node, x: Node) -> Node:
    """A vector of channels set against [batch, channels, …]."""
    rank = x.shape.rank
    return ops.expand_dims(vector, axes=tuple(range(1, rank - 1))) if rank > 2 else vector


@handles("CausalConvWithState")
def causal_conv(call: Call) -> tuple[Node, Node]:
    """Causal depthwise convolution with a state; and the last elements for the next call."""
    x, w = call.node(0), call.node(1)
    before = w.shape.dims[2] - 1
    if call.has(3) and before != 0:
        seen = ops.concat([call.node(3), x], axis=2)
    else:
        seen = ops.pad(x, low=(0, 0, before), high=(0, 0, 0)) if before != 0 else x
    operands = [seen, w, *([call.node(2)] if call.has(2) else [])]
    made = ops.conv(*operands, groups=_channels(call, x))
    if call.attr("activation", "none") in ("silu", "swish"):
        made = ops.silu(made)
    length = seen.shape.dims[2]
    return made, ops.narrow(seen, axis=2, start=length - before, length=before)


def _channels(call: Call, x: Node) -> int:
    channels = x.shape.dims[1]
    if isinstance(channels, Dim):
        raise call.needs_shape(f"it has {channels} channels, a number that is not known")
    return channels


@handles("Col2Im")
def col2im(call: Call) -> Node:
    image, kernel = tuple(call.dims(1)), call.ints(2)
    attrs: dict[str, Any] = geometry(call, image, kernel).attrs
    return ops.col2im(call.node(0), image=image, kernel=tuple(kernel), **attrs)


__all__ = ["by_channel", "convolved", "less_zero_point", "zero_point", "zero_points"]
