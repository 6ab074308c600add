"""Matmul, Gemm and einsum."""

from __future__ import annotations

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.onnx.handlers import MICROSOFT, handles
from rlx.frontends.onnx.handlers.nn.activation import scalar
from rlx.frontends.onnx.node_call import Call
from rlx.ir.mir import Node


@handles("MatMul")
def matmul(call: Call) -> Node:
    return ops.matmul(call.node(0), call.node(1))


@handles("Gemm")
def gemm(call: Call) -> Node:
    """alpha · A' B' + beta · C."""
    a, b = call.node(0), call.node(1)
    a = ops.transpose(a, perm=(1, 0)) if call.attr("transA", 0) else a
    b = ops.transpose(b, perm=(1, 0)) if call.attr("transB", 0) else b
    made = _scaled(call, ops.matmul(a, b), call.attr("alpha", 1.0))
    if not call.has(2):
        return made
    return ops.add(made, _scaled(call, call.node(2), call.attr("beta", 1.0)))


def _scaled(call: Call, x: Node, factor: float) -> Node:
    if factor == 1.0:
        return x
    if x.shape.dtype.is_float:
        return ops.mul(x, scalar(call, factor, x))
    wide = ops.mul(ops.cast(x, to=DType.F64), call.graph.constant(np.array(factor)))
    return ops.cast(wide, to=x.shape.dtype)


@handles("FusedMatMul", domain=MICROSOFT)
def fused_matmul(call: Call) -> Node:
    a, b = call.node(0), call.node(1)
    a = _turned(a, call.attr("transA", 0), call.attr("transBatchA", 0))
    b = _turned(b, call.attr("transB", 0), call.attr("transBatchB", 0))
    return _scaled(call, ops.matmul(a, b), call.attr("alpha", 1.0))


def _turned(x: Node, last: int, batch: int) -> Node:
    """Batch dims between the first and last axis moved, then the last two exchanged."""
    rank = x.shape.rank
    order = list(range(rank))
    if batch and rank > 2:
        order = [*order[1:-1], order[0], order[-1]]
    if last and rank > 1:
        order[-2:] = order[-1], order[-2]
    return x if order == list(range(rank)) else ops.transpose(x, perm=tuple(order))


@handles("Einsum")
def einsum(call: Call) -> Node:
    return ops.einsum(call.nodes(), equation=call.required("equation"))
