"""The steps of a plan described: which call each is, which the host runs, and why."""

from __future__ import annotations

from rlx.backends.base import StepFacts
from rlx.backends.engine.engine import Engine
from rlx.backends.engine.module import Module
from rlx.backends.engine.steps import (
    ONLY_MOVES,
    ControlStep,
    HostStep,
    Segment,
    Step,
    Steps,
    each_step,
)
from rlx.cost.decision import Decision
from rlx.ir.lir import LirModule
from rlx.ir.mir import Node

ON_HOST = "run_on_host"
"""The decision that the host computes a step, as the engine does not."""


def describe(lir: LirModule, engine: Engine) -> dict[Node, StepFacts]:
    """Every step of the schedule → how it runs."""
    steps = Steps(Module.of(lir), engine)
    found: dict[Node, StepFacts] = {}
    for step in (*steps.prologue(steps.prologue_nodes), *steps.call):
        for node, facts in _facts(step, engine):
            found[node] = facts
    return {n: found[n] for n in lir.plan.schedule if n in found}


def _facts(step: Step, engine: Engine) -> list[tuple[Node, StepFacts]]:
    match step:
        case Segment():
            nodes = [n for n in step.nodes if n.op != "item"]
            return [(n, _called(n, engine)) for n in nodes]
        case HostStep():
            return [(step.node, _hosted("host", "its NumPy meaning", step.reason))]
        case ControlStep():
            return [(step.node, _controlled(step))]


def _called(node: Node, engine: Engine) -> StepFacts:
    row = engine.table.get(node.op)
    text = row.text if row else f"{engine.name}'s own {node.op}"
    return StepFacts("call", (text,))


def _hosted(strategy: str, text: str, reason: str) -> StepFacts:
    return StepFacts(strategy, (text,), (_on_host(reason),))


def _controlled(step: ControlStep) -> StepFacts:
    """The host takes it, and perhaps more inside of its bodies."""
    inner = [s for b in step.bodies.values() for s in each_step(b.steps)]
    hosts = [s for s in inner if isinstance(s, HostStep)]
    reasons = (step.reason, *(f"{s.node.label}: {s.reason}" for s in hosts))
    text = f"{step.node.op}, whose bodies are {len(inner)} steps"
    return _hosted("host loop", text, "; ".join(dict.fromkeys(reasons)))


def _on_host(reason: str) -> Decision:
    kind = "schedule" if reason == ONLY_MOVES else "cut"
    return Decision("", ON_HOST, (), True, reason, is_reversible=False, kind=kind)
