"""Quantisation, dequantisation, and integer matmuls and convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.onnx.handlers import MICROSOFT, codes, handles
from rlx.frontends.onnx.handlers.nn.convolution import (
    by_channel,
    convolved,
    less_zero_point,
    zero_point,
    zero_points,
)
from rlx.frontends.onnx.handlers.tensor.cast import encoded, number
from rlx.frontends.onnx.id_tensors import element_of
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.small_dtypes import Small
from rlx.frontends.onnx.values import Coded
from rlx.frontends.onnx.window_attributes import geometry
from rlx.ir.mir import Node

WHOLE = (DType.U8, DType.I8, DType.U16, DType.I16)
"""What numbers can be quantised to."""


# -- to and from ----------------------------------------------------------------------------------


@handles("QuantizeLinear")
@handles("QuantizeLinear", domain=MICROSOFT)
@codes
def quantise(call: Call) -> Node | Coded:
    """In the dtype of the scales, unless another precision is asked for."""
    scale, to = number(call, 1), _quantised(call)
    given = call.attr("precision", 0)
    dtype = call.importer.reader.dtype(given, call.label) if given else scale.shape.dtype
    if not dtype.is_float:
        raise call.unsupported(f"scales of {dtype}")
    x, scale = (ops.cast(v, to=dtype) for v in (number(call, 0), scale))
    if isinstance(to, Small):
        return _in_few_bits(call, x, scale, to)
    zero = [call.node(2)] if call.has(2) else []
    return ops.quantize_linear(x, scale, *zero, to=to, **_along(x, call))


def _quantised(call: Call) -> DType | Small:
    """What numbers are quantised to: the type of the zero point, or the one that is asked for."""
    reader, given = call.importer.reader, call.attr("output_dtype", 0)
    if call.has(2):
        to = element_of(call.value(2)) or call.shape(2).dtype
    else:
        to = (reader.element(given) or reader.dtype(given, call.label)) if given else DType.U8
    if to not in WHOLE and not isinstance(to, Small):
        raise call.unsupported(f"it quantises to {getattr(to, 'name', to)}")
    return to


def _in_few_bits(call: Call, x: Node, scale: Node, to: Small) -> Coded:
    """Integers saturate at their own ends after those of a byte; floats are rounded quotients."""
    if to.is_float:
        scales = _beside(call, x, scale)
        return encoded(call, ops.div(x, ops.cast(scales, to=x.shape.dtype)), to)
    zero = [number(call, 2)] if call.has(2) else []
    made = ops.quantize_linear(x, scale, *zero, to=to.storage, **_along(x, call))
    low = -(1 << (to.bits - 1)) if to.is_signed else 0
    ends = [np.array(n, to.storage.numpy) for n in (low, low + (1 << to.bits) - 1)]
    return Coded(ops.minimum(ops.maximum(made, ends[0]), ends[1]), to)


@handles("DequantizeLinear")
@handles("DequantizeLinear", domain=MICROSOFT)
@codes
def dequantise(call: Call) -> Node:
    given = call.attr("output_dtype", 0)
    scale = number(call, 1)
    if given:
        scale = ops.cast(scale, to=call.importer.reader.dtype(given, call.label))
    x = number(call, 0)
    if x.shape.dtype.is_float:
        return _scaled(call, x, scale)
    zero = [_zero(call)] if call.has(2) else []
    return ops.dequantize_linear(x, scale, *zero, **_along(x, call))


def _zero(call: Call) -> Node:
    is_few = element_of(call.value(2)) is not None
    return number(call, 2) if is_few or call.attr("block_size", 0) else zero_point(call, 2)


def _scaled(call: Call, x: Node, scale: Node) -> Node:
    """Floats of few bits have no zero point but 0; one that a call gives is taken to be it."""
    known = call.importer.as_array(call.value(2)) if call.has(2) else None
    if known is not None and bool(np.any(known.astype(np.float32) != 0)):
        raise call.unsupported("floats with a zero point")
    scales = _beside(call, x, scale)
    return ops.mul(ops.cast(x, to=scales.shape.dtype), scales)


def _beside(call: Call, x: Node, scale: Node) -> Node:
    """The scale of each element of x: what ones are, dequantised."""
    one = ops.expand(call.graph.constant(np.ones((), np.int8)), dims=x.shape.dims)
    return ops.dequantize_linear(one, scale, **_along(x, call))


def _along(x: Node, call: Call) -> dict[str, Any]:
    """The axis of the scales; tensors of rank 1 have only one."""
    axis = call.attr("axis", 1)
    return {"axis": 0 if x.shape.rank == 1 else axis, "block": call.attr("block_size", 0)}


@handles("DynamicQuantizeLinear")
def quantise_by_values(call: Call) -> tuple[Node, ...]:
    return tuple(ops.dynamic_quantize_linear(call.node(0)))


# -- matmuls --------------------------------------------------------------------------------------


@handles("MatMulInteger")
def matmul_integer(call: Call) -> Node:
    return integer_product(call, 0, 1, 2, 3)


def integer_product(call: Call, a: int, b: int, a_zero: int, b_zero: int) -> Node:
    """Of bytes less their zero points, where they are given, in i32."""
    zeros = zero_points(call, (a, a_zero), (b, b_zero))
    return ops.matmul_integer(call.node(a), call.node(b), *zeros)


@handles("QLinearMatMul")
def qlinear_matmul(call: Call) -> Node:
    return ops.qlinear_matmul(*_operands(call, 8))


def _operands(call: Call, count: int) -> list[Node]:
    """The operands with all scales of one dtype; half precision is computed in f32 anyway."""
    scales, zeros = (1, 4, 6), (2, 5, 7)
    dtypes = {call.shape(i).dtype for i in scales}
    to = dtypes.pop() if len(dtypes) == 1 else DType.F32
    given = [zero_point(call, i) if i in zeros else call.node(i) for i in range(count)]
    return [ops.cast(v, to=to) if i in scales else v for i, v in enumerate(given)]


@handles("QLinearConv")
@handles("QLinearConv", domain=MICROSOFT)
def qlinear_conv(call: Call) -> Node:
    if call.attr("channels_last", 0):
        raise call.unsupported("channels come last")
    x, w = call.shape(0), call.shape(3)
    found = geometry(call, x.dims[2:], w.dims[2:])
    if not found.is_plain:
        return _conv_of_any_padding(call)
    operands = _operands(call, 9 if call.has(8) else 8)
    return ops.qlinear_conv(*operands, groups=call.attr("group", 1), **found.attrs)


def _conv_of_any_padding(call: Call) -> Node:
    """What pads is 0 once zero points are taken off."""
    x = less_zero_point(call, 0, 2, ())
    w = less_zero_point(call, 3, 5, tuple(range(1, call.rank(3))))
    sums = convolved(call, x, w)
    sums = ops.add(sums, by_channel(call.node(8), sums)) if call.has(8) else sums
    x_scale, w_scale, y_scale = (ops.cast(call.node(i), to=DType.F32) for i in (1, 4, 6))
    w_scale = by_channel(w_scale, sums) if w_scale.shape.rank else w_scale
    real = ops.mul(ops.cast(sums, to=DType.F32), ops.div(ops.mul(x_scale, w_scale), y_scale))
    one = call.graph.constant(np.array(1.0, np.float32))
    return ops.quantize_linear(real, one, call.node(7), to=call.shape(7).dtype)
