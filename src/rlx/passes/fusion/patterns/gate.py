"""Residuals to which a block adds as much as its gate lets through."""

from __future__ import annotations

from rlx.core.dim import provably_le
from rlx.ir.mir import Node
from rlx.passes.fusion.graph_facts import Facts
from rlx.passes.fusion.matches import Found, Match
from rlx.passes.fusion.patterns.common import at_each
from rlx.rules.match import scalar_of


def _gated(node: Node, facts: Facts) -> Found:
    """residual + gate · x, with a gate for many elements. Half floats round the product."""
    if not node.dtype.is_float or node.dtype.compute is not node.dtype:
        return None
    for residual, product in (node.inputs, node.inputs[::-1]):
        if product.op != "mul" or product.shape != node.shape or residual.shape != node.shape:
            continue
        if facts.is_weight(residual) or not facts.is_inner(product, (node,)):
            continue
        for x, gate in (product.inputs, product.inputs[::-1]):
            if x.shape == node.shape and _is_gate(gate, node):
                make = lambda *parts: (parts[0].graph.node("gated_residual", parts),)
                what, operands = "fuse_gated_residual", (x, gate, residual)
                return Match(what, (node,), (product, node), operands, make)
    return None


def _is_gate(gate: Node, node: Node) -> bool:
    """Is it broadcast, and no mere number?"""
    is_fewer = provably_le(gate.shape.num_elements * 2, node.shape.num_elements)
    return is_fewer and gate.rank > 0 and scalar_of(gate) is None


fuse_gated_residual = at_each("add", _gated)
