"""SwiGLU, the gated linear unit: up · silu(gate)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rlx.ir.mir import Node
from rlx.passes.fusion import reasons
from rlx.passes.fusion.graph_facts import Facts
from rlx.passes.fusion.matches import Found, Match, Miss
from rlx.passes.fusion.patterns.common import at_each, concatenated, is_linear, why_escapes


def _sides(node: Node) -> Iterator[tuple[Node, Node]]:
    """(silu, the other factor), for either order of the factors."""
    a, b = node.inputs
    for silu, other in ((a, b), (b, a)):
        if silu.op == "silu" and other is not silu:
            yield silu, other


class _Half(NamedTuple):
    """A value that is a run of another along its last axis."""

    whole: Node
    start: object
    length: object
    via: tuple[Node, ...]


def _half(node: Node) -> _Half | None:
    """`node` as a run along the last axis of the value it is cut from."""
    source = node.inputs[0] if node.inputs else node
    if node.op == "narrow" and node.attrs["axis"] == source.shape.rank - 1:
        return _Half(source, node.attrs["start"], node.attrs["length"], (node,))
    if node.op == "item" and source.op == "split":
        return _split_half(node, source)
    return None


def _split_half(node: Node, split: Node) -> _Half | None:
    whole, sizes, index = split.inputs[0], split.attrs["sizes"], node.attrs["index"]
    if split.attrs["axis"] != whole.shape.rank - 1 or len(sizes) != 2:
        return None
    return _Half(whole, sum(sizes[:index]), sizes[index], (split, node))


def _of_halves(node: Node, facts: Facts) -> Found:
    """up · silu(gate), both cut from one value."""
    for silu, other in _sides(node):
        gate, up = _half(silu.inputs[0]), _half(other)
        if gate is None or up is None or gate.whole is not up.whole:
            continue
        return _halves_match(node, silu, gate, up, facts)
    return None


def _halves_match(node: Node, silu: Node, gate: _Half, up: _Half, facts: Facts) -> Found:
    what = "fuse_swiglu"
    width = gate.whole.shape.dims[-1]
    starts = {gate.start, up.start}
    if gate.length != up.length or starts != {0, gate.length} or width != gate.length * 2:  # pyright: ignore[reportOperatorIssue]
        return Miss(what, node, reasons.UNEQUAL_HALVES)
    removed = tuple(dict.fromkeys((*gate.via, *up.via, silu, node)))
    if reason := why_escapes(removed[:-1], removed, facts):
        return Miss(what, node, reason)
    attrs = {"gate_first": gate.start == 0}
    return Match(
        what,
        (node,),
        removed,
        (gate.whole,),
        lambda cat: (cat.graph.node("fused_swiglu", (cat,), attrs),),
    )


def _of_products(node: Node, facts: Facts) -> Found:
    """(x · up) · silu(x · gate), the two products as one."""
    for silu, up in _sides(node):
        gate = silu.inputs[0]
        if is_linear(gate) and is_linear(up) and gate is not up:
            return _products_match(node, silu, gate, up, facts)
    return None


def _products_match(node: Node, silu: Node, gate: Node, up: Node, facts: Facts) -> Found:
    what = "fuse_swiglu_dual_matmul"
    (x, w_gate), (other, w_up) = gate.inputs, up.inputs
    if w_gate.shape != w_up.shape:
        return None
    if x is not other:
        return Miss(what, node, reasons.OTHER_INPUT)
    if not (facts.is_weight(w_gate) and facts.is_weight(w_up)):
        return Miss(what, node, reasons.NOT_WEIGHTS)
    removed = (gate, up, silu, node)
    if reason := why_escapes(removed[:-1], removed, facts):
        return Miss(what, node, reason)
    return Match(what, (node,), removed, (x, w_up, w_gate), _one_product)


def _one_product(x: Node, w_up: Node, w_gate: Node) -> tuple[Node]:
    """[up | gate] as one product; the weights are concatenated in the prologue."""
    both = x.graph.node("matmul", (x, concatenated((w_up, w_gate), 1)))
    return (x.graph.node("fused_swiglu", (both,), {"gate_first": False}),)


fuse_swiglu = at_each("mul", _of_halves)
fuse_swiglu_dual_matmul = at_each("mul", _of_products)
