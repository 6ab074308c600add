"""The steps of a plan described: which kernel form each has, which were refused, its launches."""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.base import StepFacts
from rlx.backends.gpu.task import Choice, GpuTask, lines_of
from rlx.backends.step_facts import WHY, control_text, form_decision, refused_forms
from rlx.cost.decision import Decision
from rlx.ir.mir import Node
from rlx.kernel.program.lower_step import special_anchor
from rlx.kernel.program.program import KernelProgram, KernelSequence, Nested, ProgramStep

HasSpecial = Callable[[str], bool]
BY_SIZE = "schedule_by_size"
"""The decision that a call takes one of several schedules, by its sizes."""


def describe(program: KernelProgram, has_special: HasSpecial) -> dict[Node, StepFacts]:
    """Every step of the schedule → how it runs."""
    main = program.main
    return {s.node: _facts(s, has_special) for s in (*main.prologue, *main.calls)}


def _facts(step: ProgramStep, has_special: HasSpecial) -> StepFacts:
    lowering = step.lowering
    if not isinstance(lowering, KernelSequence):
        name, text = control_text(lowering)
        refused = refused_forms(lowering.refused) if isinstance(lowering, Nested) else ()
        return StepFacts(name, (text,), (*refused, form_decision(name, text, is_taken=True)))
    schedule = lowering.schedule
    tasks: tuple[GpuTask, ...] = schedule.tasks
    packed = tuple(f"packed when parameters are set: {p.task.text({})}" for p in schedule.packed)
    decisions = *refused_forms(lowering.refused), _taken(step.node, lowering, has_special)
    decisions += tuple(_by_size(t) for t in tasks if isinstance(t, Choice))
    return StepFacts(lowering.form.value, (*packed, *lines_of(tasks)), decisions)


def _taken(node: Node, lowering: KernelSequence, has_special: HasSpecial) -> Decision:
    why = WHY[lowering.form].format(op=special_anchor(node, has_special).op)
    once = "; weights are packed once" if lowering.schedule.packed else ""
    return form_decision(lowering.form.value, why + once, is_taken=True)


def _by_size(choice: Choice) -> Decision:
    """That a kernel has several schedules, and what decides between them."""
    buckets = choice.buckets
    edges = (f"{d} at {', '.join(map(str, e))}" for d, e in zip(buckets.sizes, buckets.edges))
    reason = f"{len(choice.ways)} schedules, divided by {' and by '.join(edges)}"
    return Decision("", BY_SIZE, (), True, reason, is_reversible=False, kind="kernel")
