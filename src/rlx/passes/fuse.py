"""Fusion: named shapes first, then regions around what is left. Each one is put to the gate.

Nothing here changes what the graph returns: a value the caller or another kernel reads stays.
"""

from __future__ import annotations

from collections.abc import Iterable

from rlx.ir.mir import Graph
from rlx.passes.ask import accepts
from rlx.passes.bodies import with_bodies
from rlx.passes.context import Context
from rlx.passes.facts import Facts
from rlx.passes.patterns import PATTERNS
from rlx.passes.regions import fuse_regions
from rlx.passes.rewrite import Match, Miss, apply


def fuse(graph: Graph, ctx: Context) -> Graph:
    """The graph with fused ops and regions, in its branches and loop bodies too."""
    if ctx.options.skip_fusion:
        return graph
    return with_bodies(graph, lambda each: _fused(each, ctx))


def _fused(graph: Graph, ctx: Context) -> Graph:
    return fuse_regions(fuse_named(graph, ctx), ctx)


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
            ctx.log.refuse(each.what, (each.node,), each.reason)
        elif taken.isdisjoint(each.removed) and accepts(each, facts, ctx):
            taken.update(each.removed)
            yield each
