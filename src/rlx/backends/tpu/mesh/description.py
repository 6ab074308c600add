"""What is said of a plan on a mesh: for each product, how it is split and what that costs."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from rlx.backends.base import StepFacts, Steps
from rlx.backends.tpu.mesh.shard import shard
from rlx.cost.decision import Decision
from rlx.ir.lir import LirModule
from rlx.ir.mir import Node


def with_shardings(steps: Steps, lir: LirModule) -> Steps:
    """The steps of a plan with decisions of its mesh; that of an input is at its first reader."""
    if prod(lir.target.mesh.values()) == 1:
        return steps
    found = dict(steps)
    sharding = shard(lir.mir.graph, lir.target.mesh, lir.plan.representative)
    for node, decision in sharding.decisions:
        at = node if node in found else _reader(node, lir)
        if at is not None and at in found:
            found[at] = _with(found[at], decision)
    return found


def _reader(node: Node, lir: LirModule) -> Node | None:
    return next((n for n in lir.plan.schedule if node in n.inputs), None)


def _with(facts: StepFacts, decision: Decision) -> StepFacts:
    return replace(facts, decisions=(*facts.decisions, decision))
