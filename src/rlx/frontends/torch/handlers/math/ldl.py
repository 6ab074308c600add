"""Factors of symmetric and Hermitian matrices that need not be definite."""

from __future__ import annotations

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.handlers.math.factorization import stacked
from rlx.frontends.torch.node_call import Call, rank
from rlx.ir.mir import Node


@handles("linalg_ldl_factor_ex")
def ldl_factor(call: Call, x: Node, hermitian: bool = False) -> list[Node]:
    ld, pivots = ops.ldl_factor(x, hermitian=bool(hermitian))
    return [ld, pivots, _info(call, ld, pivots)]


def _info(call: Call, ld: Node, pivots: Node) -> Node:
    """Where the first block of one row that is 0 is, from 1 on; 0 if nowhere."""
    n = ld.shape.dims[-1]
    if n == 0:
        return ops.expand(call.constant(0, DType.I64), dims=ld.shape.dims[:-2])
    is_diagonal = ops.equal(call.positions((n, n), 0), call.positions((n, n), 1))
    zeros = ops.logical_and(ops.equal(ld, 0), is_diagonal)
    is_zero = ops.logical_and(ops.any(zeros, axes=(rank(ld) - 1,)), ops.greater(pivots, 0))
    first = ops.add(ops.argmax(ops.cast(is_zero, to=DType.U8), axis=-1), 1)
    return ops.where(ops.any(is_zero, axes=(-1,)), first, call.constant(0, DType.I64))


@handles("linalg_ldl_solve")
def ldl_solve(call: Call, x: Node, pivots: Node, B: Node, hermitian: bool = False) -> Node:
    lead = call.dims[:-2]
    swaps = ops.expand(call.node(pivots, DType.I64), dims=(*lead, x.shape.dims[-1]))
    return ops.ldl_solve(stacked(x, lead), swaps, stacked(B, lead), hermitian=bool(hermitian))
