"""Contractions by other names."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.draw import Draw
from rlx.ir.mir import Graph, Node, topological
from rlx.rules.engine import Uses, rule
from rlx.shape import Shape

_SUMS = "terms as large as 40² summed in another order; integers must agree exactly"


@rule(lambda: ops.einsum, lambda: ops.dot_general, domain="plain", slack=256.0, why=_SUMS)
def contraction_as_product(node: Node) -> Any:
    """A contraction of two operands is a matrix product of their axes in order."""
    if len(node.inputs) != 2 or node.decl.lower is None:
        return None
    made: Node = node.decl.lower(*node.inputs, **node.attrs)
    inside = topological([made], node.inputs)[len(set(node.inputs)) :]
    allowed = ("matmul", "transpose", "reshape")
    return made if all(n.op in allowed or n in node.inputs for n in inside) else None


def _spell_transposed(draw: Draw) -> Node:
    graph, batch, dtype = Graph("spelled"), draw.dims(0, 2), draw.dtype("t")
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
    sample=_spell_transposed,
    domain="plain",
    slack=256.0,
    why=_SUMS,
)
def transpose_of_product(x: Node, y: Node, p: tuple[int, ...], node: Node, uses: Uses) -> Any:
    """(XᵀYᵀ)ᵀ = YX."""
    swapped = (*range(len(p) - 2), len(p) - 1, len(p) - 2)
    if p != swapped or x.rank != len(p) or y.rank != len(p) or uses(node.inputs[0]) > 1:
        return None
    return ops.matmul(y, x)
