"""Contractions in canonical form: einsum and dot_general as matmul, zero points dropped."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node, topological
from rlx.ops.draw import Draw
from rlx.rules.engine import Uses, rule

_SUMS = "terms as large as 40² summed in another order; integers must agree exactly"


@rule(
    lambda: ops.einsum,
    lambda: ops.dot_general,
    domain="plain",
    slack=256.0,
    valid_in_half_precision=True,
    why=_SUMS,
)
def einsum_as_matmul(node: Node) -> Any:
    """A contraction of two operands is a matrix product of their axes in order."""
    if len(node.inputs) != 2 or node.decl.lower is None:
        return None
    made: Node = node.decl.lower(*node.inputs, **node.attrs)
    inside = topological([made], node.inputs)[len(set(node.inputs)) :]
    allowed = ("matmul", "transpose", "reshape")
    return made if all(n.op in allowed or n in node.inputs for n in inside) else None


def _sample_transposed(draw: Draw) -> Node:
    graph, batch, dtype = Graph("sample"), draw.dims(0, 2), draw.dtype("t")
    m, k, n = (draw.size() for _ in range(3))
    perm = (*range(len(batch)), len(batch) + 1, len(batch))
    x, y = (
        ops.transpose(graph.input(name, Shape((*batch, *dims), dtype)), perm=perm)
        for name, dims in (("x", (k, m)), ("y", (n, k)))
    )
    return ops.transpose(ops.matmul(x, y), perm=perm)


@rule(
    lambda x, y, p: ops.transpose(
        ops.matmul(ops.transpose(x, perm=p), ops.transpose(y, perm=p)), perm=p
    ),
    sample=_sample_transposed,
    domain="plain",
    slack=256.0,
    valid_in_half_precision=True,
    why=_SUMS,
)
def transpose_of_matmul(x: Node, y: Node, p: tuple[int, ...], node: Node, uses: Uses) -> Any:
    """(XᵀYᵀ)ᵀ = YX."""
    swapped = (*range(len(p) - 2), len(p) - 1, len(p) - 2)
    if p != swapped or x.rank != len(p) or y.rank != len(p) or uses(node.inputs[0]) > 1:
        return None
    return ops.matmul(y, x)


def _sample_zero_points(draw: Draw) -> Node:
    op, graph = draw.choice((ops.conv_integer, ops.matmul_integer)), Graph("sample")
    case = draw.case(op)
    x, w = (graph.input(name, Shape(s.dims, s.dtype)) for name, s in zip("xw", case.specs))
    zeros = [graph.constant(np.zeros((), x.dtype.numpy))] if draw.coin() else []
    zeros = zeros or [graph.input("zero", Shape((), x.dtype))]
    count = 1 if op is ops.matmul_integer else w.shape.dims[0]
    zeros.append(graph.constant(np.zeros((count,) * draw.coin(), w.dtype.numpy)))
    return graph.node(op, (x, w, *zeros), case.attrs)


@rule(lambda: ops.conv_integer, lambda: ops.matmul_integer, sample=_sample_zero_points)
def drop_zero_points(node: Node) -> Any:
    """x - 0 = x: a zero point of 0 is dropped."""
    *kept, last = node.inputs
    if len(kept) < 2 or last.op != "constant" or bool(np.any(last.attrs["value"].array)):
        return None
    return node.graph.node(node.decl, kept, node.attrs)
