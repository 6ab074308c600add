"""Timed search of schedules: of the programs that a launch may be, the one that is fastest here.

The cost model ranks the schedules of a kernel. Where a device is there, those that are predicted to
be nearly as fast as the first are compiled, checked against it on random numbers, and timed; what
takes the largest part of a call comes first, equal launches are tried once, and when the time is
up, the prediction stands. What was found is kept in the cache, by the program's text, the sizes
that it was tried at, the device and its driver.

Results are the same bits whatever the search finds: only schedules that add sums up in the same
order are candidates, and one that gives other bits is not taken. `tune="full"` takes any order.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlx.backends.gpu.device import Code, Device
from rlx.backends.gpu.problems import largest
from rlx.backends.gpu.runtime.lay_out import launches_of
from rlx.backends.gpu.runtime.trial import Effort, Problem, Trial
from rlx.backends.gpu.task import Launch, Variant
from rlx.core.disk_cache import Cache, key_of
from rlx.core.errors import Error
from rlx.core.tune import Tune
from rlx.kernel.program.program import KernelProgram
from rlx.program.program import Program
from rlx.program.text import text
from rlx.program.verify import verify

BUDGET_S = 1.0
"""For all launches of a program, less what their code takes to be made."""
CODE_S = 0.02
"""Of a launch: a program of many kernels takes long enough to compile without a search."""
LEAST_GAIN = 0.03
"""Of its time: less is the noise of measuring."""
MAX_TRIED = 5
"""Programs of a launch."""
MAX_RATIO = 1.6
"""Of the first's predicted time: what is predicted to take longer is not tried."""
BATCH = 8
"""Programs that are assembled together, by as many threads."""
_WORD = re.compile(r"[\w.]+")
"""In texts of programs: names of dims, among others."""


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
        if not self.has_time_for(program):
            return Tuned()
        return self.find(largest(program), CODE_S * len(launches_of(program)))

    def has_time_for(self, program: KernelProgram) -> bool:
        """Is anything of a program tried? One of many kernels has the schedules that are predicted,
        whatever was measured in others: to ask what was, each program would have to be written."""
        return CODE_S * len(launches_of(program)) < self.budget_s

    def find(self, problems: Iterable[Problem], spent_s: float = 0.0) -> Tuned:
        """The fastest programs of some launches, as far as there is time, in order."""
        made, end = Tuned(), self.clock() + self.budget_s - spent_s
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
            codes = iter(self.device.assemble(verify(p) for t in batch for p in t.programs))
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
        """Which program is fastest depends on the sizes that it is tried at, and on how many
        processors there are: parts of a device have fewer under the same name."""
        device = self.device.name, self.device.driver, str(self.device.machine.processors)
        program = text(replace(tried.program, name="kernel"))
        words = frozenset(_WORD.findall(program))
        sizes = sorted((n, size) for n, size in tried.problem.sizes.items() if n in words)
        return key_of("schedule", program, str(sizes), *device, self.tune)

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
