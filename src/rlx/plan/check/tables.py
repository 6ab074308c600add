"""What a plan lists: its manifest, its named sizes, and the nodes of its tables must be those of
its graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from rlx.core.dim import DimLike, symbols_of
from rlx.core.extent import is_capacity, is_measured
from rlx.core.intervals import Interval
from rlx.ir.lir import BufferPlan, IoManifest
from rlx.ir.mir import Graph, Node
from rlx.ir.plan_nodes import planned_symbols
from rlx.plan.check.claims import Facts, Fault, Finding, finding


def check_tables(graph: Graph, facts: Facts) -> Iterator[Finding]:
    """What speaks of other nodes or sizes than the graph has."""
    plan = facts.plan
    if replace(plan.io, at_end=None) != IoManifest.collect(graph):
        message = "has other inputs, params, states or outputs than the graph"
        yield Finding(Fault.BAD_MANIFEST, facts.name, message)
    yield from _check_sizes(graph, plan)
    yield from _check_values(facts)
    yield from _check_roots(facts)
    nodes = set(facts.nodes)
    tables: Mapping[str, Mapping[Node, Any]] = {
        "phases": plan.phases, "in_place": plan.in_place, "written": plan.written,
    }  # fmt: skip
    for name, table in tables.items():
        for node in table:
            if node not in nodes:
                message = f"is in the plan's {name}, and no node that the graph computes"
                yield finding(Fault.BAD_SLOT, node, message)


def _check_values(facts: Facts) -> Iterator[Finding]:
    """Slots and views are of values; a node of several results has none, but its items."""
    values = set(facts.nodes)
    for node in (*facts.plan.assignments, *facts.plan.views):
        if node not in values:
            yield finding(Fault.BAD_SLOT, node, "is no value of the graph")
        elif node.has_items:
            yield finding(Fault.BAD_SLOT, node, "has several results: its items have the slots")


def _check_roots(facts: Facts) -> Iterator[Finding]:
    """A view has a root with a slot, the root's dtype, and the dims of its node."""
    plan = facts.plan
    for node, view in plan.views.items():
        root = view.root
        if node.is_leaf or root in plan.views or root not in plan.assignments:
            message = f"is no view of {root.label}, which must have a slot"
            yield finding(Fault.BAD_VIEW, node, message)
        elif (node.has_items, root.has_items) == (False, False) and (
            root.shape.dtype is not node.shape.dtype or view.layout.dims != node.shape.dims
        ):
            yield finding(Fault.BAD_VIEW, node, f"its layout is not that of {node.shape}")


def _check_sizes(graph: Graph, plan: BufferPlan) -> Iterator[Finding]:
    """Formulas are over the graph's named dims, each of which has a representative size."""
    symbols = planned_symbols(graph)
    for dim in symbols:
        if dim not in plan.dynamic_symbols:
            what = "capacity" if is_capacity(dim.name) else "dim"
            message = f"the plan does not know the {what} {dim.name}"
            yield Finding(Fault.BAD_SIZES, graph.name, message)
    if set(plan.dynamic_symbols) - set(symbols) or len(plan.dynamic_symbols) > len(symbols):
        yield Finding(Fault.BAD_SIZES, graph.name, "the plan has more named dims than the graph")
    if set(plan.representative) != {d.name for d in symbols}:
        message = "has representative sizes of other names than its named dims"
        yield Finding(Fault.BAD_SIZES, graph.name, message)
    for dim in symbols:
        size, (low, high) = plan.representative.get(dim.name, dim.min or 0), dim.bounds
        if size < (low or 0) or (high is not None and size > high):
            message = f"has the representative size {dim.name}={size}, outside of its range"
            yield Finding(Fault.BAD_SIZES, graph.name, message)
    known = {d.name: d.bounds for d in (*symbols, *graph.dynamic_symbols)}
    if unknown := _unknown(plan.arena_formula, known):
        yield Finding(Fault.BAD_SIZES, graph.name, f"the arena is a formula of {unknown}")
    for node, slot in plan.assignments.items():
        if unknown := _unknown(slot.offset, known) or _unknown(slot.size, known):
            yield finding(Fault.BAD_SLOT, node, f"its slot is a formula of {unknown}")


def _unknown(dim: DimLike, known: Mapping[str, Interval]) -> str:
    """A size of a formula that is no named dim of the graph, or is one in a smaller range: what is
    proved of a formula holds in the ranges of its own dims."""
    if isinstance(dim, int):
        return ""
    if is_measured(dim):
        return "a size that is not known before the graph runs"
    others = (d for d in symbols_of([dim]) if not _holds(d.bounds, known.get(d.name)))
    return next((f"{d.name}, which is no dim of the graph" for d in others), "")


def _holds(outer: Interval, inner: Interval | None) -> bool:
    """Is a range inside another?"""
    if inner is None:
        return False
    (low, high), (least, most) = outer, inner
    is_low = low is None or (least is not None and low <= least)
    return is_low and (high is None or (most is not None and most <= high))
