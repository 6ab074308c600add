"""The steps of a plan described: which kernel form each has, which were refused, its launches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from rlx.backends.base import StepFacts
from rlx.backends.gpu.problems import problem_of
from rlx.backends.gpu.search import Found, Search
from rlx.backends.gpu.task import (
    Choice,
    GpuTask,
    HostTask,
    Launch,
    Variant,
    lines_of,
    taken_launches,
)
from rlx.backends.step_facts import WHY, control_text, form_decision, refused_forms
from rlx.core.dim import substitute
from rlx.core.units import time_text
from rlx.cost.decision import Decision
from rlx.ir.mir import Node
from rlx.kernel.program.lower_step import special_anchor
from rlx.kernel.program.program import (
    Branch,
    HostCall,
    KernelProgram,
    KernelSequence,
    Lowering,
    Nested,
    ProgramStep,
    ScanLoop,
    Subprogram,
    WhileLoop,
)

HasSpecial = Callable[[str], bool]
BY_SIZE = "schedule_by_size"
"""The decision that a call takes one of several schedules, by its sizes."""
ON_HOST = "run_on_host"
"""The decision that the host computes a step, as the device has no kernel for it."""
APPROXIMATE = "approximate_for_half_precision"
"""The decision that a kernel computes within a fraction of a unit in the last place of its results,
which are of half precision."""
SHOWN = 3
"""Schedules that were not taken, of one launch."""


def describe(
    program: KernelProgram, has_special: HasSpecial, search: Search | None = None
) -> dict[Node, StepFacts]:
    """Every step of the schedule → how it runs; with what was measured by the search, if there was
    one."""
    main = program.main
    is_searched = search is not None and search.has_time_for(program)
    facts = _Facts(program, has_special, search if is_searched else None)
    return {s.node: facts.of(s) for s in (*main.prologue, *main.calls)}


@dataclass(frozen=True, slots=True)
class _Facts:
    program: KernelProgram
    has_special: HasSpecial
    search: Search | None
    known: dict[object, Found | None] = field(default_factory=dict[object, "Found | None"])
    """What was measured, by the keys of launches."""

    def of(self, step: ProgramStep) -> StepFacts:
        lowering = step.lowering
        if not isinstance(lowering, KernelSequence):
            name, text = control_text(lowering)
            refused = refused_forms(lowering.refused) if isinstance(lowering, Nested) else ()
            found = *refused, form_decision(name, text, is_taken=True), *_on_host(lowering)
            return StepFacts(name, (text,), found)
        schedule = lowering.schedule
        tasks: tuple[GpuTask, ...] = schedule.tasks
        packed = [f"packed when parameters are set: {p.task.text({})}" for p in schedule.packed]
        taken = tuple(_on_host(lowering)) or (_taken(step.node, lowering, self.has_special),)
        forms = *refused_forms(lowering.refused), *taken
        sizes = (_by_size(t) for t in tasks if isinstance(t, Choice))
        at = self.program.lir.plan.representative
        usual = list(taken_launches(tasks, at))
        found = {t: self._found(t, step) for t in usual if t.others}
        variants = (_variant(t, f, at) for t, f in found.items())
        decisions = *forms, *sizes, *variants, *_approximations(usual)
        lines = lines_of(_with_variants(tasks, found))
        return StepFacts(lowering.form.value, (*packed, *lines), decisions)

    def _found(self, launch: Launch, step: ProgramStep) -> Found | None:
        if self.search is None:
            return None
        if launch.key not in self.known:
            problem = problem_of(launch, step, self.program)
            self.known[launch.key] = problem and self.search.known(problem)
        return self.known[launch.key]


def _with_variants(
    tasks: Iterable[GpuTask], found: Mapping[Launch, Found | None]
) -> Iterator[GpuTask]:
    """Tasks with the programs that were found to be the fastest."""

    def taken(launch: Launch) -> Launch:
        known = found.get(launch)
        if known is None:
            return launch
        return launch.taking(next(v for v in launch.variants if v.note == known.note))

    for task in tasks:
        if isinstance(task, Choice):
            yield replace(
                task,
                alternatives=tuple(
                    tuple(map(taken, alternative)) for alternative in task.alternatives
                ),
            )
        else:
            yield taken(task) if isinstance(task, Launch) else task


def _variant(launch: Launch, found: Found | None, sizes: Mapping[str, int]) -> Decision:
    """The schedule that was taken, of several, and what the next one takes more: by measured times
    where there are some, else by those that are predicted at these sizes."""
    times = {} if found is None else found.times_ns
    note = launch.note if found is None else found.note
    resize = lambda dim: substitute(dim, sizes)
    every = [replace(v, predicted_ns=v.ns_at(resize)) for v in launch.variants]
    taken = next(v for v in every if v.note == note)
    rest = sorted((v for v in every if v.note != note), key=lambda v: v.predicted_ns)
    tried = sorted((v for v in rest if v.note in times), key=lambda v: times[v.note])
    shown = (tried + [v for v in rest if v not in tried])[:SHOWN]
    why = "; ".join([_times(taken, times), *(f"not {_times(v, times)}" for v in shown)])
    known = times if tried else {v.note: v.predicted_ns for v in every}
    gain = known[shown[0].note] - known[note]
    if gain < 0:
        why = f"{why}; it serves a bucket of sizes, and was chosen at another of them"
    what = "choose_schedule"
    return Decision("", what, (), True, why, gain, is_reversible=False, kind="schedule")


def _approximations(launches: Iterable[Launch]) -> Iterator[Decision]:
    texts = (t.approximations() for t in launches if t.approximations is not None)
    for text in dict.fromkeys(filter(None, texts)):
        yield Decision("", APPROXIMATE, (), True, text, is_reversible=False, kind="precision")


def _times(variant: Variant, times: Mapping[str, float]) -> str:
    measured = times.get(variant.note)
    beside = "" if measured is None else f", measured {time_text(measured)}"
    return f"{variant.note} (predicted {time_text(variant.predicted_ns)}{beside})"


def _taken(node: Node, lowering: KernelSequence, has_special: HasSpecial) -> Decision:
    why = WHY[lowering.form].format(op=special_anchor(node, has_special).op)
    once = "; weights are packed once" if lowering.schedule.packed else ""
    return form_decision(lowering.form.value, why + once, is_taken=True)


def _on_host(lowering: Lowering) -> Iterator[Decision]:
    """What the host computes of a step, in it or in the bodies that it runs."""
    match lowering:
        case KernelSequence():
            hosts = [t for t in lowering.schedule.tasks if isinstance(t, HostTask)]
            yield from (_host(t.reason) for t in hosts)
        case Nested(body) | ScanLoop(body):
            yield from _in_body(body)
        case Branch(first, second) | WhileLoop(first, second):
            yield from (*_in_body(first), *_in_body(second))
        case HostCall():
            return


def _host(reason: str) -> Decision:
    return Decision("", ON_HOST, (), True, reason, is_reversible=False, kind="cut")


def _in_body(body: Subprogram) -> Iterator[Decision]:
    for step in (*body.prologue, *body.calls):
        yield from _on_host(step.lowering)


def _by_size(choice: Choice) -> Decision:
    """That a kernel has several schedules, and what decides between them."""
    buckets = choice.buckets
    edges = (f"{d} at {', '.join(map(str, e))}" for d, e in zip(buckets.sizes, buckets.edges))
    reason = f"{len(choice.alternatives)} schedules for buckets of sizes: {'; '.join(edges)}"
    return Decision("", BY_SIZE, (), True, reason, is_reversible=False, kind="kernel")
