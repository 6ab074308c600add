"""A plan as native code: kernels are compiled in threads while others are still being written."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count

from rlx.backends.cpu.assemble import DISPATCH
from rlx.backends.cpu.emit import Function
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.jit import joined, object_of
from rlx.backends.cpu.main import Assembled, assembled
from rlx.backends.cpu.native.blob import Blob
from rlx.backends.cpu.native.cores import default_threads
from rlx.backends.cpu.task import Machine
from rlx.backends.cpu.units import Units
from rlx.ir.lir import LirModule

MAX_THREADS = 8
"""Beyond, the writing of text takes longer than LLVM does."""

COLLECT_EVERY = 64
"""Builds: graphs and their nodes hold each other, and what passes have left behind would wait for
Python's collector until there is a quarter of everything of it."""
_BUILDS = count(1)


def built(lir: LirModule, machine: Machine, dispatch: str = DISPATCH) -> tuple[Assembled, Blob]:
    """The program of a plan, as text and as code."""
    with ThreadPoolExecutor(min(MAX_THREADS, default_threads())) as threads:
        build = _Build(machine.isa, threads)
        made = assembled(lir, machine, dispatch, build.add)
        blob = build.finish(made.routines)
    if next(_BUILDS) % COLLECT_EVERY == 0:
        gc.collect()
    return made, blob


class _Build:
    """Objects under way."""

    def __init__(self, isa: Isa, threads: ThreadPoolExecutor) -> None:
        self._isa, self._threads, self._units = isa, threads, Units(isa)
        self._made: list[Future[bytes]] = []

    def add(self, function: Function) -> None:
        self._compile(self._units.add(function))

    def finish(self, routines: Iterable[Function]) -> Blob:
        """The program; the last of these is what is called."""
        *others, run = routines
        shared = [t for f in (*others, run) for t in self._units.shared(f.shared)]
        self._compile(self._units.write([*shared, *(f.text for f in others)]))
        self._compile([self._units.last(run.text)])
        objects = [future.result() for future in self._made]
        return joined([objects[-1], *objects[:-1]], self._isa)

    def _compile(self, units: Iterable[str]) -> None:
        self._made += [self._submitted(unit) for unit in units]

    def _submitted(self, unit: str) -> Future[bytes]:
        """Where no thread can be started, done here."""
        try:
            return self._threads.submit(object_of, unit, self._isa)
        except RuntimeError:
            done: Future[bytes] = Future()
            done.set_result(object_of(unit, self._isa))
            return done
