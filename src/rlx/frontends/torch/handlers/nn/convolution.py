"""Convolutions."""

from __future__ import annotations

import math
from typing import Any

from rlx import ops
from rlx.core.dim import product
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call, pair, rank
from rlx.ir.mir import Node


def batched(x: Node, count: int) -> tuple[Node, bool]:
    """An image with a batch axis, and whether it had none."""
    is_single = rank(x) == count + 1
    return (ops.expand_dims(x, axes=(0,)) if is_single else x), is_single


def _convolved(
    call: Call, x: Node, weight: Node, bias: Node | None, padding: tuple[Any, ...], **how: Any
) -> Node:
    count = rank(weight) - 2
    image, is_single = batched(x, count)
    call.require(not call.dtype.is_complex, "a convolution of complex numbers")
    operands = (image, weight) if bias is None else (image, weight, bias)
    made = ops.conv(*operands, padding=padding, **how)
    return ops.squeeze(made, axes=(0,)) if is_single else made


def _transposed(call: Call, x: Node, weight: Node, bias: Node | None, **how: Any) -> Node:
    image, is_single = batched(x, rank(weight) - 2)
    call.require(not call.dtype.is_complex, "a transposed convolution of complex numbers")
    if call.dtype.is_float:
        operands = (image, weight) if bias is None else (image, weight, bias)
        made = ops.conv_transpose(*operands, **how)
    else:
        made = _transposed_integers(call, image, weight, bias, **how)
    return ops.squeeze(made, axes=(0,)) if is_single else made


def _transposed_integers(
    call: Call, x: Node, weight: Node, bias: Node | None, *, stride: tuple[int, ...],
    padding: tuple[int, ...], output_padding: tuple[int, ...], dilation: tuple[int, ...],
    groups: int,
) -> Node:  # fmt: skip
    """Products with the kernel, added up where they overlap. More of the last ones is shown with an
    output padding, and zeros after them."""
    channels, per_group, *kernel = call.whole(*weight.shape.dims, what="the kernel")
    batch, positions, count = x.shape.dims[0], product(x.shape.dims[2:]), len(kernel)
    rows = per_group * math.prod(kernel)
    taps = ops.reshape(weight, dims=(groups, channels // groups, rows))
    columns = ops.reshape(x, dims=(batch, groups, channels // groups, positions))
    made = ops.matmul(ops.transpose(taps, perm=(0, 2, 1)), columns)
    left = padding[:count]
    tail = tuple(max(o - p, 0) for o, p in zip(output_padding, left))
    summed = ops.col2im(
        ops.reshape(made, dims=(batch, groups * rows, positions)),
        image=tuple(d - t for d, t in zip(call.dims[-count:], tail)), kernel=tuple(kernel),
        stride=stride, dilation=dilation,
        padding=(*left, *(max(p - o, 0) for o, p in zip(output_padding, left))),
    )  # fmt: skip
    if any(tail):
        summed = ops.pad(summed, low=(0,) * (2 + count), high=(0, 0, *tail))
    if bias is None:
        return summed
    return ops.add(summed, ops.reshape(bias, dims=(groups * per_group, *[1] * count)))


@handles("conv1d", "conv2d", "conv3d")
def conv(
    call: Call, x: Node, weight: Node, bias: Node | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Node:  # fmt: skip
    count = rank(weight) - 2
    spread = pair(dilation, count)
    return _convolved(
        call, x, weight, bias, _padding(call, padding, weight, spread),
        stride=pair(stride, count), dilation=spread, groups=groups,
    )  # fmt: skip


def _padding(call: Call, padding: Any, weight: Node, dilation: tuple[int, ...]) -> tuple[Any, ...]:
    count = rank(weight) - 2
    if not isinstance(padding, str):
        return (*pair(padding, count), *pair(padding, count))
    kernel = call.whole(*weight.shape.dims[2:])
    total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, kernel)]
    return (*(t // 2 for t in total), *(t - t // 2 for t in total))


@handles("convolution", "_convolution", "convolution_overrideable", "mkldnn_convolution")
def convolution(
    call: Call, x: Node, weight: Node, bias: Node | None, stride: Any, padding: Any, dilation: Any,
    groups: int = 1, transposed: bool = False, output_padding: Any = 0,
) -> Node:  # fmt: skip
    count = rank(weight) - 2
    how = {"stride": pair(stride, count), "dilation": pair(dilation, count), "groups": groups}
    sides = (*pair(padding, count), *pair(padding, count))
    if not transposed:
        return _convolved(call, x, weight, bias, sides, **how)
    more = pair(output_padding, count)
    return _transposed(call, x, weight, bias, padding=sides, output_padding=more, **how)


@handles("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(
    call: Call, x: Node, weight: Node, bias: Node | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Node:  # fmt: skip
    return convolution(
        call, x, weight, bias, stride, padding, dilation, groups, True, output_padding
    )


@handles("im2col")
def im2col(call: Call, x: Node, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Node:
    image, is_single = batched(x, 2)
    made = ops.im2col(
        image, kernel=tuple(kernel_size), stride=tuple(stride), padding=(*padding, *padding),
        dilation=tuple(dilation),
    )  # fmt: skip
    return ops.squeeze(made, axes=(0,)) if is_single else made


@handles("col2im")
def col2im(call: Call, x: Node, output_size: Any, kernel_size: Any, dilation: Any, padding: Any,
           stride: Any) -> Node:  # fmt: skip
    columns, is_single = (ops.expand_dims(x, axes=(0,)), True) if rank(x) == 2 else (x, False)
    made = ops.col2im(
        columns, image=tuple(output_size), kernel=tuple(kernel_size), stride=tuple(stride),
        padding=(*padding, *padding), dilation=tuple(dilation),
    )  # fmt: skip
    return ops.squeeze(made, axes=(0,)) if is_single else made
