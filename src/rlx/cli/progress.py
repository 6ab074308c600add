"""Progress: a bar on a terminal; elsewhere a line now and then, for what takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeAlias

from rlx.core.printable import below, one_line

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with how many steps are done, of how many, and what comes next."""
FIRST_S, EVERY_S = 5.0, 15.0
"""Seconds before the first line, and between lines: what is over before prints none."""


@contextmanager
def progress(title: str) -> Generator[Progress]:
    """A bar on stderr that is removed at the end; it only pulses until it is given how many
    steps there are. Both ways say how long the rest may take."""
    if not sys.stderr.isatty():
        yield Lines(title, time.monotonic).report
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(file=below(sys.stderr)), transient=True) as bar:
        task = bar.add_task(escape(one_line(title)), total=None)

        def report(done: int, total: int, what: str) -> None:
            text = f"{title}: {what}" if what else title
            bar.update(task, completed=done, total=total, description=escape(one_line(text[:100])))

        yield report


class Lines:
    """Lines on stderr, for logs of what runs without a terminal."""

    def __init__(self, title: str, clock: Callable[[], float]) -> None:
        self._title, self._clock = title, clock
        self._start = self._began = clock()
        self._said = self._start + FIRST_S - EVERY_S
        self._total = -1

    def report(self, done: int, total: int, what: str) -> None:
        now = self._clock()
        if total != self._total:  # another list of steps: the estimate begins anew
            self._total, self._began = total, now
        if now - self._said < EVERY_S:
            return
        self._said = now
        text = f"{self._title}: {done} of {total}" + (f", {what}" if what else "")
        spent = f"{now - self._start:.0f} s so far"
        rest = f", about {self._left(now, done):.0f} s left" if done else ""
        print(f"{text} ({spent}{rest})", file=sys.stderr, flush=True)

    def _left(self, now: float, done: int) -> float:
        return (now - self._began) / done * (self._total - done)
