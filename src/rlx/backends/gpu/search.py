"""Timed search of schedules: of the programs that a launch may be, the one that is fastest here.

The cost model ranks the schedules of a kernel. Where a device is there, those that are predicted to
be nearly as fast as the first are compiled, checked against it on random numbers, and timed; what
takes the largest part of a call comes first, equal launches are tried once, and when the time is
up, the prediction stands. What was found is kept in the cache, by the program's text, the device
and its driver.

Results are the same bits whatever the search finds: only schedules that add sums up in the same
order are candidates, and one that gives other bits is not taken. `tune="full"` takes any order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.backends.gpu.device import Code, Device
from rlx.backends.gpu.runtime.lay_out import span_of
from rlx.backends.gpu.runtime.routine import Span
from rlx.backends.gpu.runtime.trial import Effort, Problem, Trial
from rlx.backends.gpu.simt.program import Program
from rlx.backends.gpu.simt.text import text
from rlx.backends.gpu.task import GpuTask, Launch, Variant, taken_launches
from rlx.backends.gpu.verify import verify
from rlx.core.dim import evaluate, symbols_of
from rlx.core.disk_cache import Cache, key_of
from rlx.core.errors import Error
from rlx.core.extent import ceiling
from rlx.core.tune import Tune
from rlx.ir.lir import Phase
from rlx.kernel.program.program import KernelProgram, KernelSequence, ProgramStep
from rlx.kernel.program.schedule import Buffer

BUDGET_S = 2.0
"""For all launches of a program."""
LEAST_SHARE = 0.01
"""Of what all launches are predicted to take, for one to be tried."""
LEAST_GAIN = 0.03
"""Of its time: less is the noise of measuring."""
MAX_TRIED = 5
"""Programs of a launch."""
MAX_RATIO = 1.6
"""Of the first's predicted time: what is predicted to take longer is not tried."""
BATCH = 8
"""Programs that are assembled together, by as many threads."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured of a launch."""

    note: str
    """The schedule that was taken."""
    times_ns: Mapping[str, float]
    """By schedule; those that gave other results have none."""


@dataclass(slots=True)
class Tuned:
    """Launches as they were found to be fastest, and their programs and code as far as these are
    there, by key."""

    launches: dict[object, Launch] = field(default_factory=dict[object, Launch])
    programs: dict[object, Program] = field(default_factory=dict[object, Program])
    codes: dict[object, Code] = field(default_factory=dict[object, Code])


@dataclass(frozen=True, slots=True)
class Search:
    """A search on one device."""

    device: Device
    cache: Cache | None
    tune: Tune
    budget_s: float = BUDGET_S
    effort: Effort | None = None
    clock: Callable[[], float] = time.perf_counter

    def tuned(self, program: KernelProgram) -> Tuned:
        """The launches of a program that are worth it, as they are fastest."""
        return self.find(_largest(program))

    def find(self, problems: Iterable[Problem]) -> Tuned:
        """The fastest programs of some launches, as far as there is time, in order."""
        made, end = Tuned(), self.clock() + self.budget_s
        waiting = list[_Try]()
        for problem in problems:
            tried = _Try.of(problem, self.tune)
            found = self._known(tried)
            if found is None:
                waiting.append(tried)
                made.programs[problem.launch.key] = tried.program
            else:
                made.launches[problem.launch.key] = tried.taken(found)
        took = 0.0
        for batch in _batches(waiting):
            start = self.clock()
            if start + took >= end:  # another one like the longest would not be done in time
                break
            self._try(batch, made, end)
            took = max(took, self.clock() - start)
        return made

    def known(self, problem: Problem) -> Found | None:
        """What was measured of a launch before."""
        return self._known(_Try.of(problem, self.tune))

    def _try(self, batch: list[_Try], made: Tuned, end: float) -> None:
        try:
            codes = iter(self.device.assemble([verify(p) for t in batch for p in t.programs]))
        except Error:  # a program that the assembler does not take is no reason to fail
            return
        for tried in batch:
            own = [next(codes) for _ in tried.variants]
            if self.clock() >= end:
                made.codes[tried.launch.key] = own[0]
                continue
            found = self._measured(tried, own)
            if found is None:
                continue
            number, facts = found
            made.launches[tried.launch.key] = tried.taken(facts)
            del made.programs[tried.launch.key]
            made.codes[tried.launch.key] = own[number]
            self._store(tried, facts)

    def _measured(self, tried: _Try, codes: list[Code]) -> tuple[int, Found] | None:
        """The number of the fastest program, and the times of all; nothing where they cannot be
        run, such as in the memory there is."""
        try:
            trial = Trial(self.device, tried.problem, tried.program, self.effort)
        except (Error, MemoryError):
            return None
        try:
            kernels = list(map(self.device.load, codes))
            first = trial.results(kernels[0])
            right = [i for i, k in enumerate(kernels) if i == 0 or self._agrees(trial, first, k)]
            times = trial.times_ns([kernels[i] for i in right])
        except (Error, MemoryError):
            return None
        finally:
            trial.close()
        best = int(np.argmin(times))
        number = right[best] if times[best] < (1 - LEAST_GAIN) * times[0] else 0
        notes = [tried.variants[i].note for i in right]
        return number, Found(tried.variants[number].note, dict(zip(notes, times)))

    def _agrees(self, trial: Trial, first: Mapping[str, Any], kernel: Any) -> bool:
        got = trial.results(kernel)
        if self.tune == "full":
            return trial.are_close(first, got)
        return all(np.array_equal(first[name], got[name]) for name in first)

    # -- cache -----------------------------------------------------------------------------------

    def _key(self, tried: _Try) -> str:
        device = self.device.name, self.device.driver
        return key_of("schedule", text(tried.program), *device, self.tune, tried.problem.facts)

    def _known(self, tried: _Try) -> Found | None:
        """By this process, or in the cache."""
        key = self._key(tried)
        found = self.device.searched.get(key) or self._cached(key)
        is_known = found is not None and any(v.note == found.note for v in tried.variants)
        return found if is_known else None

    def _cached(self, key: str) -> Found | None:
        entry = None if self.cache is None else self.cache.get(key)
        if entry is None:
            return None
        return Found(str(entry.head.get("schedule")), dict(entry.head.get("times_ns") or {}))

    def _store(self, tried: _Try, found: Found) -> None:
        key = self._key(tried)
        self.device.searched[key] = found
        if self.cache is not None:
            head = {"kind": "schedule", "name": tried.launch.name}
            held = {"schedule": found.note, "times_ns": dict(found.times_ns)}
            self.cache.put(key, {**head, **held}, {})


@dataclass(frozen=True, slots=True)
class _Try:
    """A launch with the programs that are considered."""

    problem: Problem
    variants: tuple[Variant, ...]
    """What was predicted to be the fastest first."""
    program: Program
    """Of the first."""

    @classmethod
    def of(cls, problem: Problem, tune: Tune) -> _Try:
        launch = problem.launch
        first, *others = launch.variants
        near = [c for c in others if c.predicted_ns <= MAX_RATIO * first.predicted_ns]
        same = [c for c in near if tune == "full" or c.order == first.order]
        variants = (first, *same[: MAX_TRIED - 1])
        return cls(problem, variants, launch.program())

    @property
    def launch(self) -> Launch:
        return self.problem.launch

    @property
    def programs(self) -> Iterator[Program]:
        yield self.program
        yield from (v.write(self.program.name) for v in self.variants[1:])

    def taken(self, found: Found) -> Launch:
        return self.launch.taking(next(c for c in self.variants if c.note == found.note))


def _batches(waiting: list[_Try]) -> Iterator[list[_Try]]:
    batch: list[_Try] = []
    for tried in waiting:
        if len(tried.variants) == 1:
            continue
        batch.append(tried)
        if sum(len(t.variants) for t in batch) >= BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


# -- what is tried --------------------------------------------------------------------------------


def _largest(program: KernelProgram) -> list[Problem]:
    """The launches that have other programs, those that take most of a call first."""
    found: dict[object, tuple[Problem, int]] = {}
    total = 0.0
    for problem in problems_of(program):
        key = problem.launch.key
        known, count = found.get(key, (problem, 0))
        found[key] = known, count + 1
        total += problem.launch.predicted_ns
    taken = [(p, n * p.launch.predicted_ns) for p, n in found.values()]
    large = [(p, t) for p, t in taken if t >= LEAST_SHARE * total]
    return [p for p, _ in sorted(large, key=lambda pair: -pair[1])]


def problems_of(program: KernelProgram) -> Iterator[Problem]:
    """Every launch of a call that has other programs, at the sizes that the plan was made for."""
    for top in program.main.calls:
        for step in top.within():
            if isinstance(step.lowering, KernelSequence):
                tasks: Sequence[GpuTask] = step.lowering.schedule.tasks
                sizes = program.lir.plan.representative
                launches = [t for t in taken_launches(tasks, sizes) if t.others]
                problems = (problem_of(t, step, program) for t in launches)
                yield from (p for p in problems if p is not None)


def problem_of(launch: Launch, step: ProgramStep, program: KernelProgram) -> Problem | None:
    """What a launch of a step is tried on; nothing where a size is known in a call alone, or there
    is nothing to do."""
    sizes = program.lir.plan.representative
    ends = {n: _end(span_of(step, b), sizes) for n, b in zip(launch.names, launch.buffers)}
    known = {name: end for name, end in ends.items() if end}
    if len(known) < len(ends):
        return None
    named = zip(launch.names, launch.buffers)
    weights = frozenset(name for name, b in named if _is_weight(b, step, program))
    return Problem(launch, sizes, known, weights)


def _is_weight(buffer: Buffer, step: ProgramStep, program: KernelProgram) -> bool:
    if buffer.kind != "operand":
        return buffer.kind == "packed"
    node = step.operands[buffer.index].node
    return program.main.plan.phases.get(node) is Phase.PROLOGUE and node.op != "input"


def _end(span: Span, sizes: Mapping[str, int]) -> int | None:
    """The bytes up to the last element that a layout reaches; none where it has no elements, or
    where that is known in a call alone."""
    layout = span.layout
    every = [ceiling(d) for d in (*layout.dims, *layout.strides, layout.offset)]
    if any(s.name not in sizes for s in symbols_of(every)):
        return None
    *rest, offset = (evaluate(d, sizes) for d in every)
    dims, strides = rest[: len(layout.dims)], rest[len(layout.dims) :]
    if 0 in dims:
        return None
    last = offset + sum((d - 1) * s for d, s in zip(dims, strides) if s > 0)
    return (last + 1) * span.itemsize
