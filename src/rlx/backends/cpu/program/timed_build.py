"""A build of a program that keeps the time of every task.

It is the same text but for the one function that all tasks are called through, so that the kernels
are the ones of the program it tells about, and a program that nobody times pays nothing. Each part
that a worker does is a record: which task, which thread, from when till when.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.program.artefact import artefact_of
from rlx.backends.cpu.program.assemble import DISPATCH, Names
from rlx.backends.cpu.program.build import built
from rlx.backends.cpu.program.call_context import Word
from rlx.backends.cpu.program.task import Task
from rlx.backends.cpu.runtime.call import Entry
from rlx.backends.cpu.runtime.program import CpuProgram, Weights
from rlx.backends.cpu.runtime.support_code import Support
from rlx.backends.cpu.system.base import address_of
from rlx.backends.cpu.system.current import this_system
from rlx.backends.cpu.system.posix import c_library
from rlx.backends.timing import Run, Span, Timed
from rlx.core.errors import UnsupportedError
from rlx.ir.mir import Node
from rlx.kernel.program.program import KernelProgram, KernelSequence, ProgramStep, Subprogram
from rlx.ops.op import Array

HEAD, RECORD = 8, 8
"""Words before the records: how many were written, how many there is room for, the clock and the
thread's name as functions of the C library, and which clock; then the words of one record."""
MOST_RECORDS = 1 << 16
"""More are counted, not kept: a loop of a million steps does not fill the memory."""

_PART = f"""
define internal i64 @now(ptr %log) noinline {{
  %time = alloca [2 x i64], align 16
  %clock.at = getelementptr i64, ptr %log, i64 2
  %clock = load ptr, ptr %clock.at
  %kind.at = getelementptr i64, ptr %log, i64 4
  %kind.word = load i64, ptr %kind.at
  %kind = trunc i64 %kind.word to i32
  %bad = call i32 %clock(i32 %kind, ptr %time)
  %s = load i64, ptr %time
  %ns.at = getelementptr i64, ptr %time, i64 1
  %ns = load i64, ptr %ns.at
  %whole = mul i64 %s, 1000000000
  %sum = add i64 %whole, %ns
  ret i64 %sum
}}
define internal i32 @timed(ptr %given, ptr %sizes, i64 %start, i64 %stop, ptr %scratch,
    ptr %poll) noinline {{
entry:
  %buffers.at = getelementptr i64, ptr %given, i64 1
  %number.at = getelementptr i64, ptr %given, i64 2
  %log.at = getelementptr i64, ptr %given, i64 3
  %function = load ptr, ptr %given
  %buffers = load ptr, ptr %buffers.at
  %number = load i64, ptr %number.at
  %log = load ptr, ptr %log.at
  %from = call i64 @now(ptr %log)
  %code = call i32 %function(ptr %buffers, ptr %sizes, i64 %start, i64 %stop, ptr %scratch,
      ptr %poll)
  %till = call i64 @now(ptr %log)
  %index = atomicrmw add ptr %log, i64 1 monotonic
  %most.at = getelementptr i64, ptr %log, i64 1
  %most = load i64, ptr %most.at
  %fits = icmp ult i64 %index, %most
  br i1 %fits, label %keep, label %done
keep:
  %self.at = getelementptr i64, ptr %log, i64 3
  %self = load ptr, ptr %self.at
  %thread = call i64 %self()
  %apart = mul i64 %index, {RECORD}
  %place = add i64 %apart, {HEAD}
  %r0 = getelementptr i64, ptr %log, i64 %place
  %r1 = getelementptr i64, ptr %r0, i64 1
  %r2 = getelementptr i64, ptr %r0, i64 2
  %r3 = getelementptr i64, ptr %r0, i64 3
  store i64 %number, ptr %r0
  store i64 %thread, ptr %r1
  store i64 %from, ptr %r2
  store i64 %till, ptr %r3
  br label %done
done:
  ret i32 %code
}}
"""
_OUTER = f"""
define internal i32 @dispatch(ptr %context, ptr %function, ptr %buffers, ptr %sizes, i64 %units,
    i64 %grain, ptr %scratch, i64 %bytes, i64 %number) noinline {{
entry:
  %given = alloca [4 x i64], align 16
  %log.at = getelementptr i64, ptr %context, i64 {Word.LOG.value}
  %log = load ptr, ptr %log.at
  %off = icmp eq ptr %log, null
  br i1 %off, label %plain, label %timed
plain:
  %a = call i32 @untimed(ptr %context, ptr %function, ptr %buffers, ptr %sizes, i64 %units,
      i64 %grain, ptr %scratch, i64 %bytes, i64 %number)
  ret i32 %a
timed:
  %buffers.at = getelementptr i64, ptr %given, i64 1
  %number.at = getelementptr i64, ptr %given, i64 2
  %kept.at = getelementptr i64, ptr %given, i64 3
  store ptr %function, ptr %given
  store ptr %buffers, ptr %buffers.at
  store i64 %number, ptr %number.at
  store ptr %log, ptr %kept.at
  %b = call i32 @untimed(ptr %context, ptr @timed, ptr %given, ptr %sizes, i64 %units,
      i64 %grain, ptr %scratch, i64 %bytes, i64 %number)
  ret i32 %b
}}
"""
TIMED = "\n".join([_PART, DISPATCH.replace("@dispatch(", "@untimed("), _OUTER])


@dataclass(frozen=True, slots=True)
class Owner:
    """A step of the plan, and the tasks that are done for it."""

    node: Node
    tasks: tuple[str, ...]
    """The native functions it runs, in order; those of the steps inside it too."""


class _TimedEntry(Entry):
    """A way in that hands the log along; always step by step."""

    log = 0
    start_ns = stop_ns = 0
    """Of native code: arguments are bound before it, which Python does in this build."""

    def _natively(
        self, inputs: Sequence[Array], outputs: Sequence[Array | None]
    ) -> list[Array] | None:
        return None

    def _context(self, symbols: Array, needs: Array) -> Array:
        words = super()._context(symbols, needs)
        words[Word.LOG] = self.log
        return words

    def _call(self, words: Array) -> int:
        self.start_ns = self.start_ns or _clock()  # that of the first, where storage has grown
        code = super()._call(words)
        self.stop_ns = _clock()
        return code


class TimedProgram(CpuProgram, Timed):
    """A program whose runs tell when each of its steps was done, by which thread."""

    def __init__(self, program: KernelProgram, isa: Isa, threads: int, support: Support) -> None:
        made, blob, codegen_spans = built(program, isa, TIMED)
        artefact = artefact_of(made, blob, codegen_spans)
        super().__init__(artefact, threads, support)
        self.owners = tuple(Owner(w.node, _functions(w, made.names)) for w in made.main.calls)
        self._steps = _steps_of(made.main)
        steps = (*made.main.prologue, *made.main.packing, *made.main.calls)
        self._functions = {
            f: w.node for w in reversed(steps) for f in _all_functions(w, made.names)
        }

    def _way_in(self) -> Entry:
        return _TimedEntry(self.binding, self._loaded, self._support)

    @property
    def steps(self) -> tuple[Node, ...]:
        """What `Span.step` counts: the nodes that run on a call, in order."""
        return tuple(o.node for o in self.owners)

    @property
    def functions(self) -> Mapping[str, Node]:
        """Native function → the step that runs it, the first of several."""
        return self._functions

    def run_timed(self, weights: Weights, inputs: Sequence[Array]) -> Run:
        """One call, and its times."""
        entry = weights.entry
        assert isinstance(entry, _TimedEntry)
        log = _new_log()
        entry.log, entry.start_ns = log.ctypes.data, 0
        try:
            outputs = self.run(weights, inputs, [None] * len(self.interface.outputs))
        finally:
            entry.log = 0
        kept = min(int(log[0]), MOST_RECORDS)
        records = log[HEAD:].reshape(-1, RECORD)[:kept]
        records = records[np.argsort(records[:, 2], kind="stable")]
        spans, lost = tuple(self._spans(records)), int(log[0]) - kept
        return Run(entry.start_ns, entry.stop_ns, spans, lost, outputs)

    def _spans(self, records: Array) -> Iterator[Span]:
        """Records as spans of steps. Equal steps may share the tasks inside them: the time says
        which of them it was."""
        at, names = 0, dict[int, int]()
        for number, thread, start, stop in records[:, :4].tolist():
            owners = self._steps[number]
            at = next((s for s in owners if s >= at), owners[-1])
            yield Span(at, names.setdefault(thread, len(names)), start, stop)


def _steps_of(main: Subprogram) -> Mapping[int, list[int]]:
    """Task number → the steps of the plan that it is done for."""
    found: dict[int, list[int]] = {}
    for number_of_step, step in enumerate(main.calls):
        for number in dict.fromkeys(_numbers(step)):
            found.setdefault(number, []).append(number_of_step)
    return found


def _numbers(step: ProgramStep) -> Iterator[int]:
    """The rows of a step's tasks in the table of failures, and of the steps inside it."""
    for inner in step.within():
        tasks = sum(t is not None for t in inner.copies)
        if isinstance(inner.lowering, KernelSequence):
            tasks += len(inner.lowering.schedule.all_tasks)
        yield from range(inner.number, inner.number + max(1, tasks))


def _functions(step: ProgramStep, names: Names) -> tuple[str, ...]:
    """The functions of a step, and of those inside it."""
    tasks = (t for inner in step.within() for t in _tasks(inner, has_packing=False))
    return tuple(map(names.of, tasks))


def _all_functions(step: ProgramStep, names: Names) -> tuple[str, ...]:
    """Those that pack weights, too."""
    tasks = (t for inner in step.within() for t in _tasks(inner, has_packing=True))
    return tuple(map(names.of, tasks))


def _tasks(step: ProgramStep, *, has_packing: bool) -> Iterator[Task]:
    for copy in step.copies:
        yield from copy.schedule.tasks if copy is not None else ()
    if isinstance(step.lowering, KernelSequence):
        schedule = step.lowering.schedule
        yield from schedule.all_tasks if has_packing else schedule.tasks


def _new_log() -> Array:
    log = np.zeros(HEAD + RECORD * MOST_RECORDS, np.int64)
    if not hasattr(time, "CLOCK_MONOTONIC"):
        raise UnsupportedError(
            f"kernels are not timed under {this_system().title}. `rlx bench` times whole calls."
        )
    library = c_library()
    functions = address_of(library.clock_gettime), address_of(library.pthread_self)
    clock = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)  # macOS has the former
    log[1:5] = MOST_RECORDS, *functions, clock
    return log


def _clock() -> int:
    """The clock that native code reads."""
    return time.monotonic_ns()
