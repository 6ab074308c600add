"""Kernel fusion: named patterns first, then regions of what is left. Each one is put to the gate.

Nothing here changes what the graph returns: a value the caller or another kernel reads stays.
"""

from __future__ import annotations

from collections.abc import Iterable

from rlx.ir.mir import Graph
from rlx.passes.bodies import with_bodies
from rlx.passes.context import Context
from rlx.passes.fusion import reasons
from rlx.passes.fusion.ask_gate import accepts, loss
from rlx.passes.fusion.few_rows import FEW_ROWS
from rlx.passes.fusion.graph_facts import Facts
from rlx.passes.fusion.matches import Match, Miss, apply
from rlx.passes.fusion.patterns import PATTERNS
from rlx.passes.fusion.regions import grow_regions
from rlx.rules import movement
from rlx.rules.engine import rewrite, ruleset

CONCAT_RULES = (
    movement.concat_of_one,
    movement.concat_of_adjacent_slices,
    movement.narrow_of_whole_axis,
)
MERGES = ("fuse_shared_input_matmul", "fuse_swiglu_dual_matmul")
"""What puts the weights of several products into one."""
SHARED_NODE = "a fusion that was taken before it holds one of its nodes"


def fuse_patterns(graph: Graph, ctx: Context) -> Graph:
    """The graph with named fused ops, in its branches and loop bodies too."""
    if ctx.options.skip_fusion:
        return graph
    return with_bodies(graph, lambda each: fuse_named(each, ctx))


def fuse_regions(graph: Graph, ctx: Context) -> Graph:
    """The graph with regions around what is left."""
    if ctx.options.skip_fusion:
        return graph
    return with_bodies(graph, lambda each: fuse_few_rows(grow_regions(each, ctx), ctx))


def fuse_few_rows(graph: Graph, ctx: Context) -> Graph:
    """The graph with what surrounds products of few rows and attention inside of their kernels."""
    if "few_rows" not in ctx.target.regions:
        return graph
    facts = Facts.of(graph)
    for pattern in FEW_ROWS:
        made = apply(facts, list(_accepted(pattern(facts), facts, ctx)))
        facts = facts if made is facts.graph else Facts.of(made)
    return facts.graph


def fuse_named(graph: Graph, ctx: Context) -> Graph:
    """The graph with every accepted named pattern, pattern by pattern."""
    facts = Facts.of(graph)
    for pattern in PATTERNS:
        made = apply(facts, list(_accepted(pattern(facts), facts, ctx)))
        facts = facts if made is facts.graph else Facts.of(made)
    return graph if facts.graph is graph else _without_concats(facts.graph, ctx)


def _without_concats(graph: Graph, ctx: Context) -> Graph:
    """Concats of parts that a fusion made contiguous are no copies any more."""
    if not any(node.op == "concat" for node in graph.order()):
        return graph
    return rewrite(graph, ruleset(CONCAT_RULES), ctx.rewrites, ask=ctx.log.rewrites)


def _accepted(found: Iterable[Match | Miss], facts: Facts, ctx: Context) -> Iterable[Match]:
    """Matches that share no node, the first one first."""
    taken: set[object] = set()
    for each in found:
        if isinstance(each, Miss):
            ctx.log.note(each.what, each.node, False, each.reason, **loss(each.node, ctx))
        elif not set(each.externals).isdisjoint(each.removed):
            continue  # both operands of a node are one value: what would go would be read, too
        elif not taken.isdisjoint(each.removed):
            ctx.log.refuse(each.what, each.removed, SHARED_NODE, kind="kernel")
        elif each.what in MERGES and ctx.target.splits_products:
            ctx.log.refuse(each.what, each.removed, reasons.ON_MESH, kind="kernel")
        elif len({n in facts.late for n in each.removed}) > 1:
            ctx.log.refuse(each.what, each.removed, reasons.OTHER_PHASE)
        elif accepts(each, facts, ctx):
            taken.update(each.removed)
            yield each
