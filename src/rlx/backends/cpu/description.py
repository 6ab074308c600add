"""The steps of a plan described: which kernel form each has, which were refused, its schedule."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.backends.base import StepFacts
from rlx.backends.cpu.kernels import has_dedicated
from rlx.backends.cpu.program.task import TaskKind
from rlx.backends.step_facts import WHY, control_text, form_decision, refused_forms
from rlx.core.dim import DimLike, evaluate
from rlx.core.extent import ceiling
from rlx.core.units import time_text
from rlx.cost.decision import Decision
from rlx.cost.machine import Machine
from rlx.ir.lir import LirModule, Phase
from rlx.ir.mir import Node
from rlx.kernel.program.lower_step import special_anchor
from rlx.kernel.program.program import (
    KernelForm,
    KernelProgram,
    KernelSequence,
    Nested,
    ProgramStep,
)


def describe(program: KernelProgram, threads: int) -> dict[Node, StepFacts]:
    """Every step of the schedule → how it runs, on so many threads."""
    lir, main = program.lir, program.main
    sizes = lir.plan.representative
    return {s.node: _facts(s, lir, sizes, threads) for s in (*main.prologue, *main.calls)}


def _facts(step: ProgramStep, lir: LirModule, sizes: Mapping[str, int], threads: int) -> StepFacts:
    lowering = step.lowering
    if not isinstance(lowering, KernelSequence):
        name, text = control_text(lowering)
        refused = refused_forms(lowering.refused) if isinstance(lowering, Nested) else ()
        return StepFacts(name, (text,), (*refused, form_decision(name, text, is_taken=True)))
    schedule = lowering.schedule
    tasks = tuple(t.text(sizes) for t in schedule.tasks)
    packed = tuple(f"packed when parameters are set: {p.task.text(sizes)}" for p in schedule.packed)
    decisions = (*refused_forms(lowering.refused), _taken(step.node, lowering))
    if lir.plan.phases[step.node] is not Phase.PROLOGUE:
        decisions += (_split(lowering, sizes, lir.target.machine, threads),)
    return StepFacts(_kind(lowering), (*packed, *tasks), decisions)


def _taken(node: Node, lowering: KernelSequence) -> Decision:
    why = WHY[lowering.form].format(op=special_anchor(node, has_dedicated).op)
    once = "; weights are packed once" if lowering.schedule.packed else ""
    return form_decision(lowering.form.value, why + once, is_taken=True)


def _kind(lowering: KernelSequence) -> str:
    """What its tasks are: a GEMM of short dot products, for one, is emitted as a loop nest."""
    if lowering.form in (KernelForm.DEDICATED, KernelForm.STRIDED_COPIES):
        return lowering.form.value
    kinds = {t.kind for t in lowering.schedule.tasks}
    if TaskKind.GEMM in kinds:
        form = KernelForm.GEMM if kinds == {TaskKind.GEMM} else KernelForm.GEMM_AND_LOOP
        return form.value
    has_dedicated = TaskKind.DEDICATED in kinds
    return KernelForm.DEDICATED_AND_LOOP.value if has_dedicated else KernelForm.LOOP.value


def _split(
    lowering: KernelSequence, sizes: Mapping[str, int], machine: Machine, threads: int
) -> Decision:
    """Is it parallelised? What it takes is known only as a number of grains."""
    counts = [(_at(t.units, sizes), _at(t.grain, sizes)) for t in lowering.schedule.tasks]
    is_split = any(grain < units for units, grain in counts)
    can_be = any(units > 1 for units, _ in counts)
    if is_split:
        parts = max(-(-units // max(1, grain)) for units, grain in counts)
        run = f"in parallel by {threads} threads" if threads > 1 else "by one thread"
        reason = f"split into {parts:,} tasks run {run}"
    elif can_be:
        reason = (
            f"less than {time_text(machine.split_ns)} of work: a fork-join would cost about as much"
        )
    else:
        reason = "nothing to split: one iteration"
    return Decision("", "split_work", (), is_split, reason, is_reversible=can_be, kind="schedule")


def _at(dim: DimLike, sizes: Mapping[str, int]) -> int:
    return evaluate(ceiling(dim), sizes)
