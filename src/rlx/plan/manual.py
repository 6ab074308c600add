"""Plans written by hand or read from a file, verified like the planner's own."""

from __future__ import annotations

from dataclasses import replace

from rlx.core.errors import Error
from rlx.core.representative import representative
from rlx.cost.target import Target
from rlx.ir.lir import BufferPlan, IoManifest, LirModule
from rlx.ir.mir import Graph, MirModule
from rlx.ir.plan_nodes import planned_nodes, planned_symbols
from rlx.plan.check.checker import check
from rlx.plan.phases import derive_phases


def with_plan(module: MirModule | Graph, plan: BufferPlan, target: Target) -> LirModule:
    """A module with this plan, of which the checker found nothing wrong."""
    held = MirModule(module) if isinstance(module, Graph) else module
    graph = held.graph
    whole = replace(
        plan,
        phases=plan.phases or derive_phases(planned_nodes(graph)),
        io=IoManifest.collect(graph) if plan.io == IoManifest() else plan.io,
        dynamic_symbols=planned_symbols(graph),
        representative=plan.representative or representative(planned_symbols(graph)),
    )
    made = LirModule(held, whole, target)
    if found := check(made):
        listed = "\n  ".join(map(str, found[:10]))
        raise Error(f"{held.name}: the plan is not sound.\n  {listed}")
    return made
