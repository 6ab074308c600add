"""Pricing a match: the cost terms of the nodes it removes minus those of the nodes it adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from rlx.cost.decision import Candidate
from rlx.cost.gate import fusion_benefit
from rlx.cost.profile import GraphIoProfile
from rlx.cost.terms import Terms
from rlx.ir.mir import Graph, Node
from rlx.passes.context import Context
from rlx.passes.fusion.graph_facts import Facts
from rlx.passes.fusion.matches import Match, sketch


def accepts(match: Match, facts: Facts, ctx: Context) -> bool:
    """Does the target have what the match makes, and is it worth making?"""
    drawn = sketch(match, facts)
    if reason := _why_missing(drawn, ctx):
        ctx.log.refuse(match.what, match.removed, reason, kind="kernel")
        return False
    if match.is_free:
        return ctx.log.choose(
            match.what, match.removed, True, "moves a view, costs nothing"
        ).verdict
    return ctx.log.decide(candidate(match, drawn, facts, ctx)).verdict


class Loss(TypedDict):
    """What a fusion that failed would have saved at least."""

    predicted_ns: float
    bytes_saved: int
    launches_saved: int


def loss(node: Node, ctx: Context) -> Loss:
    """Of a missed fusion into or out of `node`: a launch, and a value written and read."""
    size = 2 * sum(map(ctx.terms.bytes_of, node.shapes))
    ns = ctx.gate.dispatch_ns + size / ctx.target.machine.memory_gb_s(size)
    return {"predicted_ns": ns, "bytes_saved": size, "launches_saved": 1}


def candidate(match: Match, drawn: Graph, facts: Facts, ctx: Context) -> Candidate:
    """The match as the gate sees it."""
    terms = ctx.log.terms
    kept = [i for i, root in enumerate(match.roots) if facts.is_output(root)]
    added = [n for n in drawn.order() if not n.is_leaf]
    before = _total(terms, match.removed, [match.roots[i] for i in kept])
    after = _total(terms, added, [drawn.outputs[i] for i in kept])
    gone, come = terms.compute(match.removed), terms.compute(added)
    benefit = fusion_benefit(before, after)
    size = max(gone.working_set_bytes, come.working_set_bytes)
    return Candidate(match.what, match.removed, benefit, come.peak_flops - gone.peak_flops, size)


def _total(terms: Terms, nodes: Sequence[Node], outputs: Sequence[Node]) -> GraphIoProfile:
    return sum(map(terms.of, nodes), terms.readback(outputs))


def _why_missing(drawn: Graph, ctx: Context) -> str | None:
    """Why a node of it has no kernel on the target, or is ruled out; None if all have one."""
    for node in drawn.order():
        if node.is_leaf or node.op == "item":
            continue
        claim = ctx.target.claim(node)
        if not claim.is_native:
            return claim.reason
        preference, why = ctx.dispatch.prefer(node.op)
        if preference == "common":
            return f"{node.op} runs as its lowering: {why}"
    return None
