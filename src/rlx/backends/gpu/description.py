"""The steps of a plan described: which kernel form each has, which were refused, its launches."""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.base import StepFacts
from rlx.backends.step_facts import WHY, control_text, form_decision, refused_forms
from rlx.cost.decision import Decision
from rlx.ir.mir import Node
from rlx.kernel.program.lower_step import special_anchor
from rlx.kernel.program.program import KernelProgram, KernelSequence, Nested, ProgramStep

HasSpecial = Callable[[str], bool]


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
    tasks = tuple(t.text({}) for t in schedule.tasks)
    packed = tuple(f"packed when parameters are set: {p.task.text({})}" for p in schedule.packed)
    decisions = *refused_forms(lowering.refused), _taken(step.node, lowering, has_special)
    return StepFacts(lowering.form.value, (*packed, *tasks), decisions)


def _taken(node: Node, lowering: KernelSequence, has_special: HasSpecial) -> Decision:
    why = WHY[lowering.form].format(op=special_anchor(node, has_special).op)
    once = "; weights are packed once" if lowering.schedule.packed else ""
    return form_decision(lowering.form.value, why + once, is_taken=True)
