"""If-conversion: a branch that syncs with the host, or selects over both sides, by the gate.

Where a target's branch is taken by the host, the device stands still until the host has seen the
condition. Computing both sides and selecting costs their arithmetic and traffic instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.core.errors import UnsupportedError
from rlx.cost.decision import Candidate
from rlx.cost.gate import GraphIoProfile, fusion_benefit
from rlx.ir.inline import inline
from rlx.ir.mir import Graph, Node
from rlx.passes.bodies import with_bodies
from rlx.passes.context import Context
from rlx.passes.fusion.graph_facts import per_call_of
from rlx.passes.legalise import lowered_once

WHAT = "select_instead_of_branch"
WHY = "both sides are computed, and the device does not wait for the host to see the condition"


def select_branches(graph: Graph, ctx: Context) -> Graph:
    """The graph with every branch as selects for which the gate says so; nothing is asked where
    a branch costs no sync."""
    if "if" not in ctx.target.syncs:
        return graph
    return with_bodies(graph, lambda each: _selected(each, ctx))


def _selected(graph: Graph, ctx: Context) -> Graph:
    per_call = per_call_of(graph.order())
    chosen = [n for n in graph.order() if n.op == "if" and _pays(n, n in per_call, ctx)]
    return lowered_once(graph, set(chosen)) if chosen else graph


def _pays(node: Node, is_per_call: bool, ctx: Context) -> bool:
    """What the gate says; a branch that cannot be written out is a refusal."""
    if not is_per_call:
        return False
    try:
        after = _sketch(node, lambda new, given: node.decl.lowered(given, node.attrs, new))
    except UnsupportedError as error:
        ctx.log.refuse(WHAT, node, str(error), kind="lowering")
        return False
    sides = [_side(node, node.attrs[k]) for k in ("then", "else")]
    return ctx.log.decide(_candidate(node, sides, after, ctx)).verdict


def _side(node: Node, body: Graph) -> Graph:
    return _sketch(node, lambda new, given: inline(new, body, given[1:]))


def _candidate(node: Node, sides: Sequence[Graph], after: Graph, ctx: Context) -> Candidate:
    """A branch is its condition, seen by the host, and the dearer of its sides."""
    terms, gate = ctx.terms, ctx.gate
    costs = [_total(side, ctx) for side in sides]
    dearer = max(costs, key=lambda c: -gate.score_ns(fusion_benefit(GraphIoProfile(), c)))
    before = dearer + GraphIoProfile(0, 1, 0, 0)
    computes = [terms.compute(side.order()) for side in sides]
    both = terms.compute(after.order())
    more = both.peak_flops - max(c.peak_flops for c in computes)
    benefit = fusion_benefit(before, _total(after, ctx))
    return Candidate(WHAT, (node,), benefit, more, both.working_set_bytes, kind="lowering", why=WHY)


def _total(graph: Graph, ctx: Context) -> GraphIoProfile:
    return sum(map(ctx.terms.of, graph.order()), GraphIoProfile())


def _sketch(node: Node, make: Callable[[Graph, list[Node]], Sequence[Node]]) -> Graph:
    """What `make` makes of the operands of a node, as a graph of its own."""
    graph = Graph(WHAT)
    graph.traces_lines = False
    given = [graph.input(f"v{i}", n.shape) for i, n in enumerate(node.inputs)]
    graph.set_outputs(list(make(graph, given)))
    return graph
