"""The steps of a plan in words: which kernel runs each, how its work is cut, and why."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.backends.base import StepFacts
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.kernels import has_dedicated
from rlx.backends.cpu.program.kernel_sequence import alone
from rlx.backends.cpu.program.steps import Branch, Host, Loop, Lowering, Nested, ProgramStep, Scan
from rlx.backends.cpu.program.subprogram import SubprogramBuilder
from rlx.backends.cpu.program.task import SPLIT_NS, KernelSequence, Machine, Task
from rlx.core.dim import evaluate
from rlx.core.extent import ceiling
from rlx.cost.decision import Decision
from rlx.ir.lir import LirModule, Phase
from rlx.ir.mir import Node

WAYS = {
    Nested: ("steps", "it is no kernel as a whole, and runs as {count} smaller ones"),
    Branch: ("branch", "one of two routines, by its first operand"),
    Loop: ("loop", "a routine, for as long as its condition holds"),
    Scan: ("scan", "a routine, once for every slice"),
    Host: ("host", "the program that registered the op runs it"),
}


def describe(lir: LirModule, isa: Isa) -> dict[Node, StepFacts]:
    """Every step of the schedule → how it runs."""
    subprograms = SubprogramBuilder(Machine(isa), lir.target, forced=lir.split)
    main = subprograms.subprogram(lir.mir.graph, lir.plan, "main")
    sizes = lir.plan.representative
    return {w.node: _facts(w, lir, sizes) for w in (*main.prologue, *main.calls)}


def _facts(step: ProgramStep, lir: LirModule, sizes: Mapping[str, int]) -> StepFacts:
    way = step.lowering
    if not isinstance(way, KernelSequence):
        name, text = WAYS[type(way)]
        return StepFacts(name, (text.format(count=_count(way)),), _choice(name, text, way))
    tasks = tuple(_told(t, sizes) for t in way.tasks)
    packed = tuple(f"packed when parameters are set: {_told(p.task, sizes)}" for p in way.packed)
    kind = _kind(step.node, way)
    decisions = (_kernel(kind, step.node, way),)
    if lir.plan.phases[step.node] is not Phase.PROLOGUE:
        decisions += (_split(way, sizes),)
    return StepFacts(kind, (*packed, *tasks), decisions)


def _count(way: Lowering) -> int:
    return len(way.body.calls) if isinstance(way, Nested) else 0


def _choice(name: str, text: str, way: Lowering) -> tuple[Decision, ...]:
    reason = text.format(count=_count(way))
    return (Decision("", f"run_as_{name}", (), True, reason, is_reversible=False, kind="kernel"),)


def _kind(node: Node, way: KernelSequence) -> str:
    if has_dedicated(alone(node).op):
        return "algorithm"
    products = sum(t.summary.startswith("a product") for t in way.tasks)
    if not products:
        return "loops"
    return "product" if len(way.tasks) == products else "product and loops"


def _kernel(kind: str, node: Node, way: KernelSequence) -> Decision:
    """Which sort of kernel, and what speaks for it."""
    why = {
        "algorithm": f"{alone(node).op} has an algorithm of its own",
        "loops": "index by index, it is one nest of loops",
        "product": "it is a product with what comes before and after it",
        "product and loops": "a product, and loops for what cannot be done on its sums",
    }[kind]
    once = "; weights are packed once" if way.packed else ""
    what = f"run_as_{kind.replace(' ', '_')}"
    return Decision("", what, (), True, why + once, is_reversible=False, kind="kernel")


def _split(way: KernelSequence, sizes: Mapping[str, int]) -> Decision:
    """Is the work shared out? What it takes is known only as a number of grains."""
    counts = [(_at(t.units, sizes), _at(t.grain, sizes)) for t in way.tasks]
    is_split = any(grain < units for units, grain in counts)
    can_be = any(units > 1 for units, _ in counts)
    if is_split:
        parts = max(-(-units // max(1, grain)) for units, grain in counts)
        reason = f"it is cut into {parts:,} parts, which workers take one after the other"
    elif can_be:
        reason = f"less than {SPLIT_NS:,} ns of work: waking others takes about as long"
    else:
        reason = "it is one unit of work"
    return Decision("", "split_work", (), is_split, reason, is_reversible=can_be, kind="schedule")


def _told(task: Task, sizes: Mapping[str, int]) -> str:
    units, grain = _at(task.units, sizes), _at(task.grain, sizes)
    how = task.summary or "native code of its own"
    shared = f"{units:,} units, {grain:,} at a time" if grain < units else "one worker"
    return f"{task.function.name}: {how}; {shared}"


def _at(dim: object, sizes: Mapping[str, int]) -> int:
    return evaluate(ceiling(dim), sizes)  # pyright: ignore[reportArgumentType]
