"""Plans written by hand or read from a file, verified like the planner's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlx.core.dim import evaluate
from rlx.core.representative import representative
from rlx.cost.target import Target
from rlx.ir.lir import BufferPlan, IoManifest, LirModule, Slot, Space
from rlx.ir.mir import Graph, MirModule, Node
from rlx.ir.plan_nodes import planned_nodes, planned_symbols
from rlx.plan.check.checker import require_sound
from rlx.plan.phases import derive_phases, mark_demanded


def with_plan(
    module: MirModule | Graph, plan: BufferPlan, target: Target, options: Any = None
) -> LirModule:
    """A module with this plan, of which the checker found nothing wrong. What follows from the
    graph does not depend on who wrote the plan: the same plan has the same fingerprint."""
    held = MirModule(module) if isinstance(module, Graph) else module
    graph, own = held.graph, IoManifest.collect(held)
    at_end: tuple[str, ...] | None = getattr(options, "at_end", None)
    if at_end is not None and not plan.phases:
        mark_demanded(graph, at_end)
    sizes = plan.representative or representative(planned_symbols(graph))
    whole = replace(
        plan,
        assignments=_with_external(graph, plan),
        weight_bytes=plan.weight_bytes or _end_of_weights(plan, sizes),
        phases=plan.phases or derive_phases(planned_nodes(graph)),
        io=replace(own, at_end=at_end) if plan.io == IoManifest() else plan.io,
        dynamic_symbols=planned_symbols(graph),
        representative=sizes,
    )
    made = LirModule(held, whole, target, "" if options is None else options.text())
    require_sound(made)
    return made


def _with_external(graph: Graph, plan: BufferPlan) -> dict[Node, Slot]:
    """Slots of what a call or a session is given, and of what it returns, are external."""
    outside = {*graph.given, *map(plan.root, graph.outputs)}
    return {
        node: replace(slot, is_external=node in outside and slot.space is not Space.WEIGHTS)
        for node, slot in plan.assignments.items()
    }


def _end_of_weights(plan: BufferPlan, sizes: Mapping[str, int]) -> int:
    """The bytes of weights, at representative sizes."""
    slots = [s for s in plan.assignments.values() if s.space is Space.WEIGHTS]
    return max((evaluate(s.offset + s.size, sizes) for s in slots), default=0)
