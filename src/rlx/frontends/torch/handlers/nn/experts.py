"""Grouped matrix products: one matrix for each run of rows, columns or terms, as mixtures of
experts take them."""

from __future__ import annotations

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call, rank
from rlx.ir.mir import Node


@handles("_grouped_mm", "transformers::grouped_mm_fallback")
def grouped_mm(
    call: Call, x: Node, mat2: Node | None = None, offs: Node | None = None,
    bias: Node | None = None, weight: Node | None = None,
) -> Node:  # fmt: skip
    """`offs` holds where each group ends: of rows where x is a matrix and the other has one for
    each group, of columns the other way round, of the terms of the sum where both are matrices."""
    other = weight if mat2 is None else mat2
    assert other is not None
    call.require(bias is None, "a bias")
    left, right = call.nodes(x, other)
    if offs is None:
        return ops.matmul(left, right)
    if rank(left) == 2 and rank(right) == 3:
        return _grouped_rows(call, left, right, offs)
    if rank(left) == 3:
        columns = _grouped_rows(call, ops.transpose(right), _transposed(left), offs)
        return ops.transpose(columns)
    return _grouped_terms(call, left, right, offs)


def _transposed(x: Node) -> Node:
    return ops.transpose(x, perm=(0, 2, 1))


def _groups(call: Call, count: Node, axis: int, offs: Node) -> Node:
    """The group of each row; rows behind the last group have the number of groups."""
    places = call.positions((count.shape.dims[axis],), 0)
    return ops.searchsorted(call.node(offs, DType.I64), places, side="right")


def _grouped_rows(call: Call, x: Node, w: Node, offs: Node) -> Node:
    """Each row times the matrix of its group; rows of no group are zeros."""
    groups = _groups(call, x, 0, offs)
    last = ops.sub(call.node(w.shape.dims[0], DType.I64), 1)
    made = ops.grouped_matmul(x, w, ops.minimum(groups, last))
    in_group = ops.expand_dims(ops.less_equal(groups, last), axes=(1,))
    return ops.where(in_group, made, call.constant(0, made.shape.dtype))


def _grouped_terms(call: Call, x: Node, y: Node, offs: Node) -> Node:
    """A product for each group, of its columns of x and rows of y."""
    groups = _groups(call, y, 0, offs)
    numbers = call.positions((offs.shape.dims[0], y.shape.dims[0]), 0)
    is_own = ops.expand_dims(ops.equal(numbers, groups), axes=(1,))
    own = ops.where(is_own, ops.expand_dims(x, axes=(0,)), call.constant(0, x.shape.dtype))
    return ops.matmul(own, y)
