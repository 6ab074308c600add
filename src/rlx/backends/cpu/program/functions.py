"""The functions of a subprogram, each of a bounded length: LLVM takes longer than linear time for
long ones. What would be longer is functions for its parts, and one that calls them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.function import Function
from rlx.backends.cpu.program.assemble import ARGS, MemoryNeeds, Names, StepWriter
from rlx.ir.lir import Phase
from rlx.kernel.program.program import KernelSequence, ProgramStep, Subprogram
from rlx.kernel.program.select import MAIN

STEPS_PER_FUNCTION = 24
"""Of a run of steps; one of more tasks is several parts."""
ITEMS_PER_FUNCTION = 128
"""Calls, copies and sizes of one function, where it has nothing else."""
T = TypeVar("T")


def functions_of(subprogram: Subprogram, isa: Isa, names: Names) -> Iterator[Function]:
    """The functions of a subprogram: what it needs, its prologue, and itself."""
    return _Functions(subprogram, isa, names).all()


def chunks(items: Sequence[T], most: int = ITEMS_PER_FUNCTION) -> Iterator[Sequence[T]]:
    """The items in runs of so many at most."""
    return (items[at : at + most] for at in range(0, len(items), most))


@dataclass(frozen=True, slots=True)
class _Functions:
    """Writes them."""

    subprogram: Subprogram
    isa: Isa
    names: Names

    def all(self) -> Iterator[Function]:
        subprogram = self.subprogram
        yield from self.needs()
        yield from self.prologue((*subprogram.prologue, *subprogram.packing))
        yield from self.calls(subprogram.calls)

    def writer(self) -> StepWriter:
        return StepWriter(self.subprogram, self.isa, self.names)

    def needs(self) -> Iterator[Function]:
        given, parts = self.subprogram, list[str]()
        steps = {id(w.lowering): w for w in (*given.prologue, *given.packing, *given.calls)}
        first, *rest = [*chunks([*steps.values()])] or [()]
        for some in rest:
            writer = MemoryNeeds(given, self.isa, self.names)
            parts.append(f"{given.name}.need{len(parts)}")
            yield writer.returning(parts[-1], writer.most(some))
        yield MemoryNeeds(given, self.isa, self.names).whole(first, parts)

    def prologue(self, steps: Sequence[ProgramStep]) -> Iterator[Function]:
        name, parts = f"{self.subprogram.name}.prologue", list[str]()
        numbered = list(enumerate(steps))
        for some in _parts(numbered, lambda each: _prepared_count(each[1])):
            writer = self.writer()
            for (number, step), tasks in some:
                writer.prepare(step, number, tasks)
            parts.append(f"{name}.part{len(parts)}")
            yield writer.finish(parts[-1])
        bodies = {
            r.name: (r, given) for w in self.subprogram.calls for r, given in w.bodies if r.bound
        }
        first, *rest = [*chunks([*bodies.values()])] or [()]
        for i, some in enumerate(rest):
            writer = self.writer()
            writer.prepare_bodies(some)
            parts.append(f"{name}.bodies{i}")
            yield writer.finish(parts[-1])
        parts = yield from self.grouped(name, parts)
        whole = self.calling(parts)
        whole.prepare_bodies(first)
        yield whole.finish(name, ARGS)

    def calls(self, steps: Sequence[ProgramStep]) -> Iterator[Function]:
        name, at = self.subprogram.name, _first_late(steps, self.subprogram)
        steady = yield from self.parts(steps[:at], 0)
        late = yield from self.parts(steps[at:], len(steady))
        steady = yield from self.grouped(f"{name}.steady", steady)
        late = yield from self.grouped(f"{name}.late", late)
        yield from self.delivering(name, [*steady, *late], *Phase)
        if name == MAIN:
            phases = Phase.PROLOGUE, Phase.STEADY_STATE
            yield from self.delivering(f"{name}.step", steady, *phases)
            yield from self.delivering(f"{name}.finish", late, Phase.EPILOGUE)

    def parts(
        self, steps: Sequence[ProgramStep], count: int
    ) -> Generator[Function, None, list[str]]:
        """Functions for runs of steps, numbered from `count` on: their names."""
        names: list[str] = []
        for some in _parts(steps, _task_count):
            writer = self.writer()
            for step, tasks in some:
                writer.step(step, tasks)
            names.append(f"{self.subprogram.name}.part{count + len(names)}")
            yield writer.finish(names[-1])
        return names

    def grouped(self, name: str, parts: list[str]) -> Generator[Function, None, list[str]]:
        """As few functions as one can call: parts, or functions that call them."""
        level = 0
        while len(parts) > ITEMS_PER_FUNCTION:
            groups: list[str] = []
            for some in chunks(parts):
                writer = self.writer()
                writer.call(some, "%behind")
                groups.append(f"{name}.group{level}.{len(groups)}")
                yield writer.finish(groups[-1])
            parts, level = groups, level + 1
        return parts

    def calling(self, parts: Sequence[str]) -> StepWriter:
        """A function that calls parts one after the other, and may do more behind them."""
        whole = self.writer()
        whole.call(parts, whole.end_of_arena())
        return whole

    def delivering(self, name: str, parts: Sequence[str], *phases: Phase) -> Iterator[Function]:
        """The function that runs these parts, and copies outputs of these phases."""
        first, *rest = [*chunks(self.writer().copied_outputs(*phases))] or [()]
        copies: list[str] = []
        for some in rest:
            writer = self.writer()
            writer.deliver(some)
            copies.append(f"{name}.outputs{len(copies)}")
            yield writer.finish(copies[-1])
        copies = yield from self.grouped(f"{name}.outputs", copies)
        whole = self.calling([*parts, *copies])
        whole.deliver(first)
        yield whole.finish(name, ARGS)


def _parts(items: Sequence[T], count_of: Callable[[T], int]) -> Iterator[list[tuple[T, range]]]:
    """Steps with their tasks, as many as a function has; one of many tasks is several."""
    run: list[tuple[T, range]] = []
    for item in items:
        count = count_of(item)
        if count > STEPS_PER_FUNCTION:
            yield from [run] if run else []
            run = []
            for first in range(0, count, STEPS_PER_FUNCTION):
                yield [(item, range(count)[first : first + STEPS_PER_FUNCTION])]
            continue
        run.append((item, range(count)))
        if len(run) == STEPS_PER_FUNCTION:
            yield run
            run = []
    yield from [run] if run else []


def _task_count(step: ProgramStep) -> int:
    """The tasks of a call; 1 where they cannot be parted."""
    lowering = step.lowering
    return len(lowering.schedule.tasks) if isinstance(lowering, KernelSequence) else 1


def _prepared_count(step: ProgramStep) -> int:
    """The same of the Prologue, where weights are packed by one task after the other."""
    return 1 if step.packed_offsets else _task_count(step)


def _first_late(steps: Sequence[ProgramStep], subprogram: Subprogram) -> int:
    """Where the Epilogue begins."""
    phases = subprogram.plan.phases
    late = (i for i, w in enumerate(steps) if phases[w.node] is Phase.EPILOGUE)
    return next(late, len(steps))
