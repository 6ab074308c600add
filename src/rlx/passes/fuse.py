"""Fusion: named shapes first, then regions around what is left. Each one is put to the gate.

Nothing here changes what the graph returns: a value the caller or another kernel reads stays.
"""

from __future__ import annotations

from collections.abc import Iterable

from rlx.ir.mir import Graph
from rlx.passes.ask import accepts, loss
from rlx.passes.bodies import with_bodies
from rlx.passes.context import Context
from rlx.passes.facts import Facts
from rlx.passes.patterns import PATTERNS
from rlx.passes.precision import reduce_precision
from rlx.passes.regions import fuse_regions
from rlx.passes.rewrite import Match, Miss, apply

SHARED_NODE = "a fusion that was taken before it holds one of its nodes"


def fuse(graph: Graph, ctx: Context) -> Graph:
    """The graph with fused ops and regions, in its branches and loop bodies too.

    What products are carried out in is settled between the two: products that share an operand
    are one by then, and regions take in what rounds their operands."""
    if ctx.options.skip_fusion:
        return reduce_precision(graph, ctx)
    named = with_bodies(graph, lambda each: fuse_named(each, ctx))
    return with_bodies(reduce_precision(named, ctx), lambda each: fuse_regions(each, ctx))


def fuse_named(graph: Graph, ctx: Context) -> Graph:
    """The graph with every accepted named shape, pattern by pattern."""
    facts = Facts.of(graph)
    for pattern in PATTERNS:
        made = apply(facts, list(_accepted(pattern(facts), facts, ctx)))
        facts = facts if made is facts.graph else Facts.of(made)
    return facts.graph


def _accepted(found: Iterable[Match | Miss], facts: Facts, ctx: Context) -> Iterable[Match]:
    """Matches that share no node, the first one first."""
    taken: set[object] = set()
    for each in found:
        if isinstance(each, Miss):
            ctx.log.note(each.what, each.node, False, each.reason, **loss(each.node, ctx))
        elif not taken.isdisjoint(each.removed):
            ctx.log.refuse(each.what, each.removed, SHARED_NODE, kind="kernel")
        elif accepts(each, facts, ctx):
            taken.update(each.removed)
            yield each
