"""onnxruntime's quantised operators: dequantise, compute, quantise; and integer matmuls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.onnx.handlers import MICROSOFT, handler_of, handles
from rlx.frontends.onnx.handlers.nn.quantized import integer_product
from rlx.frontends.onnx.node_call import Call
from rlx.ir.mir import Node

UNARY = {
    "QLinearLeakyRelu": ("LeakyRelu", 16), "QLinearSigmoid": ("Sigmoid", 13),
    "QLinearSoftmax": ("Softmax", 13), "QLinearReduceMean": ("ReduceMean", 13),
    "QLinearAveragePool": ("AveragePool", 11), "QLinearGlobalAveragePool": ("GlobalAveragePool", 1),
}  # fmt: skip
"""The operator that is meant, and the opset whose attributes it has."""


def meant(call: Call, number: int) -> Node:
    """An operand, of which the scale and the zero point are the next two, as floats."""
    zero = [call.node(number + 2)] if call.has(number + 2) else []
    return ops.dequantize_linear(call.node(number), call.node(number + 1), *zero)


def again(call: Call, x: Node, scale: int, like: DType) -> Node:
    """Floats quantised by an operand, after which the zero point comes."""
    to = call.shape(scale + 1).dtype if call.has(scale + 1) else like
    zero = [call.node(scale + 1)] if call.has(scale + 1) else []
    return ops.quantize_linear(x, call.node(scale), *zero, to=to)


def plain(call: Call, name: str, version: int, *operands: Node) -> Node:
    """The operator of ONNX itself with these operands and the same attributes."""
    handler = handler_of("", name, version)
    assert handler is not None
    inner = replace(call, op=name, domain="", version=version, inputs=operands)
    made: Any = handler(inner)
    return made[0] if isinstance(made, tuple) else inner.as_node(made)


@handles(*UNARY, domain=MICROSOFT)
def unary(call: Call) -> Node:
    name, version = UNARY[call.op]
    x = meant(call, 0)
    is_last, rank = bool(call.attr("channels_last", 0)), x.shape.rank
    if is_last:
        x = ops.transpose(x, perm=(0, rank - 1, *range(1, rank - 1)))
    made = plain(call, name, call.attr("opset", version), x)
    if is_last:
        made = ops.transpose(made, perm=(0, *range(2, rank), 1))
    return again(call, made, 3, call.shape(0).dtype)


@handles("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def binary(call: Call) -> Node:
    op = ops.add if call.op == "QLinearAdd" else ops.mul
    return again(call, op(meant(call, 0), meant(call, 3)), 6, call.shape(0).dtype)


@handles("QLinearWhere", domain=MICROSOFT)
def where(call: Call) -> Node:
    made = ops.where(call.node(0), meant(call, 1), meant(call, 4))
    return again(call, made, 7, call.shape(1).dtype)


@handles("QLinearConcat", domain=MICROSOFT)
def concat(call: Call) -> Node:
    parts = [meant(call, i) for i in range(2, call.num_inputs, 3)]
    axis = call.axis(call.required("axis"), parts[0].shape.rank)
    return again(call, ops.concat(parts, axis=axis), 0, call.shape(2).dtype)


# -- matmuls --------------------------------------------------------------------------------------


@handles("QGemm", domain=MICROSOFT)
def gemm(call: Call) -> Node:
    """Quantised, or as floats where no scale of the result is given."""
    transposed = {
        i: ops.transpose(call.node(i), perm=(1, 0))
        for i, name in ((0, "transA"), (3, "transB"))
        if call.attr(name, 0)
    }
    inner = replace(call, inputs=tuple(transposed.get(i, v) for i, v in enumerate(call.inputs)))
    sums = integer_product(inner, 0, 3, 2, 5)
    sums = ops.add(sums, call.node(6)) if call.has(6) else sums
    alpha = call.graph.constant(np.array(call.attr("alpha", 1.0), np.float32))
    factor = ops.mul(ops.mul(call.node(1), call.node(4)), alpha)
    real = ops.mul(ops.cast(sums, to=DType.F32), factor)
    return again(call, real, 7, call.shape(0).dtype) if call.has(7) else real


@handles("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_to_float(call: Call) -> Node:
    sums = integer_product(call, 0, 1, 4, 5)
    return _scaled(call, sums, (call.node(2), call.node(3)), 6)


@handles("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_matmul(call: Call) -> Node:
    x, scale, zero = ops.dynamic_quantize_linear(call.node(0))
    inner = replace(call, inputs=(x, call.inputs[1], zero, *call.inputs[3:4]))
    sums = integer_product(inner, 0, 1, 2, 3)
    return _scaled(call, sums, (scale, call.node(2)), 4)


def _scaled(call: Call, sums: Node, scales: Sequence[Node], bias: int) -> Node:
    left, right = scales
    made = ops.mul(ops.cast(sums, to=right.shape.dtype), ops.mul(left, right))
    return ops.add(made, call.node(bias)) if call.has(bias) else made
