"""A plan as native code: kernels are compiled in threads while others are still being written."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from threading import get_ident

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.compile import joined, object_of
from rlx.backends.cpu.llvm.compile_units import Unit, Units
from rlx.backends.cpu.llvm.function import Function
from rlx.backends.cpu.program.assemble import DISPATCH
from rlx.backends.cpu.program.module import Assembled, assembled
from rlx.backends.cpu.runtime.blob import Blob
from rlx.backends.cpu.runtime.thread_count import default_threads
from rlx.backends.timing import CodegenSpan
from rlx.kernel.program.program import KernelProgram

MAX_THREADS = 8
"""Beyond, the writing of text takes longer than LLVM does."""


def built(
    program: KernelProgram, isa: Isa, dispatch: str = DISPATCH
) -> tuple[Assembled, Blob, tuple[CodegenSpan, ...]]:
    """A program as text and as code, and what each part of it took."""
    with ThreadPoolExecutor(min(MAX_THREADS, default_threads())) as threads:
        build = _Build(isa, threads)
        made = assembled(program, isa, dispatch, build.add)
        blob = build.linked(build.finish(made.subprograms))
    return made, blob, build.codegen_spans()


def built_units(program: KernelProgram, isa: Isa) -> tuple[Assembled, list[tuple[Unit, bytes]]]:
    """A program as text and as the objects of its units, that with what is called first."""
    with ThreadPoolExecutor(min(MAX_THREADS, default_threads())) as threads:
        build = _Build(isa, threads)
        made = assembled(program, isa, written=build.add)
        return made, build.finish(made.subprograms)


class _Build:
    """Objects under way."""

    def __init__(self, isa: Isa, threads: ThreadPoolExecutor) -> None:
        self._isa, self._threads, self._units = isa, threads, Units(isa)
        self._made: list[tuple[Unit, Future[bytes]]] = []
        self._spans: list[CodegenSpan] = []
        self._since = _now()

    def add(self, function: Function) -> None:
        self._record("write", (function.name,), self._since, len(function.text))
        self._compile(self._units.add(function))
        self._since = _now()

    def finish(self, subprograms: Iterable[Function]) -> list[tuple[Unit, bytes]]:
        """All objects; the last subprogram is what is called, and its object the first."""
        *others, run = subprograms
        names = tuple(f.name for f in (*others, run))
        self._record("write", names, self._since, sum(len(f.text) for f in (*others, run)))
        shared = [t for f in (*others, run) for t in self._units.shared(f.shared)]
        self._compile(self._units.write([*shared, *(f.text for f in others)]))
        self._compile(self._units.relaxed())
        self._compile([self._units.last(run.text)])
        *before, last = [(unit, future.result()) for unit, future in self._made]
        return [last, *before]

    def linked(self, made: Iterable[tuple[Unit, bytes]]) -> Blob:
        objects, start = [data for _, data in made], _now()
        blob = joined(objects, self._isa)
        self._record("link", ("run",), start, sum(map(len, objects)))
        return blob

    def _compile(self, units: Iterable[Unit]) -> None:
        self._made += [(unit, self._submitted(unit)) for unit in units]

    def _submitted(self, unit: Unit) -> Future[bytes]:
        """Where no thread can be started, done here."""
        try:
            return self._threads.submit(self._object, unit)
        except RuntimeError:
            done: Future[bytes] = Future()
            done.set_result(self._object(unit))
            return done

    def _object(self, unit: Unit) -> bytes:
        start = _now()
        made = object_of(unit.text, self._isa)
        self._record("compile", unit.functions, start, len(made))
        return made

    def _record(self, what: str, functions: tuple[str, ...], start: int, size: int) -> None:
        self._spans.append(CodegenSpan(what, functions, get_ident(), start, _now(), size))

    def codegen_spans(self) -> tuple[CodegenSpan, ...]:
        """What was done, by when it began; threads numbered, this one first."""
        spans = sorted(self._spans, key=lambda s: s.start_ns)
        numbers = {get_ident(): 0}
        for span in spans:
            numbers.setdefault(span.thread, len(numbers))
        return tuple(replace(s, thread=numbers[s.thread]) for s in spans)


def _now() -> int:
    return time.monotonic_ns()
