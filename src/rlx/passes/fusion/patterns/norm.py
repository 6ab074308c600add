"""Norms of a residual sum, norms steered by a condition, and norms followed by a reshape that only
flattens the leading dims."""

from __future__ import annotations

from rlx.core.dim import product
from rlx.ir.mir import Node
from rlx.ops.op import Kind
from rlx.passes.fusion import reasons
from rlx.passes.fusion.graph_facts import Facts
from rlx.passes.fusion.matches import Found, Match, Miss
from rlx.passes.fusion.patterns.common import at_each, why_escapes
from rlx.rules.match import is_literal


def _of_sum(node: Node, facts: Facts, what: str, fused: str) -> Found:
    """norm(x + residual). Where the sum has other readers, a region keeps both values."""
    add = node.inputs[0]
    if add.op != "add" or not facts.is_inner(add, (node,)):
        return None
    if add.inputs[0].shape != add.inputs[1].shape:
        if any(map(facts.is_weight, add.inputs)):
            return None  # a bias, not a residual
        return Miss(what, node, reasons.RESIDUAL_SHAPE)
    attrs = dict(node.attrs)
    return Match(
        what,
        (node,),
        (add, node),
        (*add.inputs, *node.inputs[1:]),
        lambda x, *rest: (x.graph.node(fused, (x, *rest), attrs),),
    )


def _is_of_last_axis(node: Node) -> bool:
    return node.attrs["axis"] == node.inputs[0].shape.rank - 1


def _residual_ln(node: Node, facts: Facts) -> Found:
    return _of_sum(node, facts, "fuse_residual_ln", "fused_residual_ln")


def _residual_rms(node: Node, facts: Facts) -> Found:
    return _of_sum(node, facts, "fuse_residual_rms_norm", "fused_residual_rms_norm")


def _steered(node: Node, facts: Facts) -> Found:
    """layer_norm(x) · (1 + scale) + shift. Half floats round each step."""
    if node.dtype.compute is not node.dtype:
        return None
    for scaled, shift in (node.inputs, node.inputs[::-1]):
        parts = _scaled_norm(scaled) if scaled.shape == node.shape else None
        if parts is not None and not why_escapes((parts[0], scaled), (scaled, node), facts):
            return _ada_layer_norm(node, scaled, shift, *parts)
    return None


def _ada_layer_norm(node: Node, scaled: Node, shift: Node, norm: Node, scale: Node) -> Match:
    what, op, eps = "fuse_ada_layer_norm", "ada_layer_norm", {"eps": norm.attrs["eps"]}
    make = lambda *operands: (operands[0].graph.node(op, operands, eps),)
    return Match(what, (node,), (norm, scaled, node), (norm.inputs[0], shift, scale), make)


def _scaled_norm(scaled: Node) -> tuple[Node, Node] | None:
    """A plain layer norm of the last axis and the scale, of norm · (1 + scale)."""
    for norm, factor in (scaled.inputs, scaled.inputs[::-1]) if scaled.op == "mul" else ():
        is_plain = norm.op == "layer_norm" and _is_of_last_axis(norm) and len(norm.inputs) == 1
        scale = _one_plus(factor) if is_plain and norm.shape == scaled.shape else None
        if scale is not None:
            return norm, scale
    return None


def _one_plus(factor: Node) -> Node | None:
    """The scale of 1 + scale, moved or not."""
    if factor.op != "add":
        return None
    for scale, one in (factor.inputs, factor.inputs[::-1]):
        if is_literal(one, 1) and scale.shape == factor.shape:
            return scale
    return None


def _flattened(node: Node, facts: Facts) -> Found:
    """reshape(rms_norm(x)) to rows: the norm of x as rows, so that its reader reads the norm."""
    norm = node.inputs[0]
    if norm.op != "rms_norm" or not _is_of_last_axis(norm) or not _flattens(node):
        return None
    source = norm.inputs[0]
    if source.decl.kind is Kind.ELEMENTWISE:
        return None  # the norm belongs with what computes its row
    if why_escapes((norm,), (node,), facts) or facts.is_output(node):
        return None
    dims, eps = node.attrs["dims"], norm.attrs["eps"]

    def make(x: Node, *weights: Node) -> tuple[Node]:
        rows = x.graph.node("reshape", (x,), {"dims": dims})
        return (x.graph.node("rms_norm", (rows, *weights), {"axis": 1, "eps": eps}),)

    return Match("fuse_rms_norm_reshape", (node,), (norm, node), norm.inputs, make, is_free=True)


def _flattens(node: Node) -> bool:
    """Does the reshape only join the dims before the last?"""
    given, made = node.inputs[0].shape.dims, node.shape.dims
    return len(given) > 2 and made == (product(given[:-1]), given[-1])


fuse_residual_ln = at_each("layer_norm", _residual_ln)
fuse_residual_rms_norm = at_each("rms_norm", _residual_rms)
fuse_ada_layer_norm = at_each("add", _steered)
fuse_rms_norm_reshape = at_each("reshape", _flattened)
