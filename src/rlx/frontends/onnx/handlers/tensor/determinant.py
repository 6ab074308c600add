"""Determinants, by elimination."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import product
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.node_call import Call
from rlx.ir.mir import Node
from rlx.ops.compose import dims_of, dtype_of, filled, nullary
from rlx.ops.control_flow import scan_loop


@handles("Det")
def det(call: Call) -> Node:
    """The product of the pivots, each the greatest of what is left of its column. Rows stay where
    they are; what swaps they stand for shows in how many free rows are before each."""
    x = call.node(0)
    *batch, n, m = x.shape.dims if x.shape.rank > 1 else (0, 1)
    if n != m:
        raise GraphError(f"{call.label}: operand 0 is {x.shape}, expected square matrices")
    count, dtype = product(batch), x.shape.dtype
    if n == 0:
        return filled(x, 1.0, tuple(batch))
    matrix = ops.cast(ops.reshape(x, dims=(count, n, n)), to=dtype.compute)
    free = ops.expand(call.graph.constant(np.ones((1, 1), bool)), dims=(count, n))
    start = (matrix, filled(matrix, 1.0, (count,)), free)
    columns = nullary(call.graph, "iota", dims=(n,), axis=0, dtype=DType.I64)
    (_, made, _), _ = scan_loop(_eliminated, start, columns)
    return ops.cast(ops.reshape(made, dims=tuple(batch)), to=dtype)


def _eliminated(carry: Any, k: Any) -> tuple[Any, Any]:
    """One column: matrices [count, n, n], determinants so far, and which rows are free."""
    matrix, made, free = carry
    column = ops.gather(matrix, k, axis=2)
    best = ops.argmax(ops.where(free, ops.abs(column), -1.0), axis=1, keepdims=True)
    every = nullary(matrix, "iota", dims=dims_of(matrix)[1:2], axis=0, dtype=DType.I64)
    is_best = ops.equal(best, every)
    pivot = ops.sum(ops.where(is_best, column, 0.0), axes=(1,), keepdims=True)
    mine = ops.where(ops.expand_dims(is_best, axes=(2,)), matrix, 0.0)
    row = ops.sum(mine, axes=(1,), keepdims=True)
    left = ops.logical_and(free, ops.logical_not(is_best))
    ratio = ops.div(column, ops.where(ops.equal(pivot, 0.0), 1.0, pivot))
    ratio = ops.expand_dims(ops.where(left, ratio, 0.0), axes=(2,))
    signed = ops.mul(ops.squeeze(pivot, axes=(1,)), _sign(free, every, best, dtype_of(matrix)))
    return (ops.sub(matrix, ops.mul(ratio, row)), ops.mul(made, signed), left), made


def _sign(free: Any, every: Any, best: Any, dtype: DType) -> Any:
    """Of the swaps that bring a row up to the first free one: -1 for an odd number."""
    before = ops.logical_and(free, ops.less(every, best))
    swaps = ops.sum(ops.cast(before, to=DType.I64), axes=(1,))
    return ops.cast(ops.sub(1, ops.mul(ops.mod(swaps, 2), 2)), to=dtype)
