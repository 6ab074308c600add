"""The code of a program's launches: schedules searched, programs written, verified, assembled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from rlx.backends.gpu.device import Code
from rlx.backends.gpu.runtime.lay_out import launches_of
from rlx.backends.gpu.search import Search, Tuned
from rlx.backends.gpu.task import Launch
from rlx.backends.timing import CodegenSpan
from rlx.kernel.program.program import KernelProgram
from rlx.program.program import Program
from rlx.program.verify import verify


@dataclass(frozen=True, slots=True)
class Assembled:
    """All code, the number of each launch's by its key, and what it took to be made."""

    codes: tuple[Code, ...]
    numbers: Mapping[object, int]
    spans: tuple[CodegenSpan, ...]


def assembled(
    program: KernelProgram,
    assemble: Callable[[Iterable[Program]], list[Code]],
    search: Search | None,
) -> Assembled:
    """The code of all launches; those that a search has found are as it found them."""
    log = _Log()
    start = _clock()
    tuned = Tuned() if search is None else search.tuned(program)
    launches = {t.key: tuned.launches.get(t.key, t) for t in launches_of(program)}
    log.note("search", [c.name for c in tuned.codes.values()], start)
    missing: dict[object, Launch] = {
        key: t for key, t in launches.items() if key not in tuned.codes
    }
    start = _clock()
    made = assemble(_written(missing, tuned, log))
    log.note("assemble", [c.name for c in made], start, sum(len(c.binary) for c in made), thread=1)
    codes = {**tuned.codes, **dict(zip(missing, made))}
    numbers: dict[object, int] = {key: i for i, key in enumerate(launches)}
    return Assembled(tuple(codes[key] for key in launches), numbers, tuple(log.spans))


def _written(launches: Mapping[object, Launch], tuned: Tuned, log: _Log) -> Iterator[Program]:
    """Their programs, one at a time, so that each can be assembled while the next is written."""
    for key, launch in launches.items():
        start = _clock()
        made = verify(tuned.programs.get(key) or launch.program())
        log.note("write", [launch.name], start)
        yield made


class _Log:
    """Times of parts of it."""

    def __init__(self) -> None:
        self.spans: list[CodegenSpan] = []

    def note(
        self, what: str, names: list[str], start: int, size: int = 0, *, thread: int = 0
    ) -> None:
        if names:
            self.spans.append(CodegenSpan(what, tuple(names), thread, start, _clock(), size))


def _clock() -> int:
    """The clock of traces."""
    return time.monotonic_ns()
