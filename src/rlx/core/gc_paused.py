"""Pausing the cyclic garbage collector while a compile runs.

Passes allocate objects by the hundred thousand, nearly all of which live until the compile ends. At
Python's default threshold the collector traverses them hundreds of times, for 10 % of compile time.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

GEN0_THRESHOLD = 200_000
"""Allocations between collections of generation 0: about those of a model of a thousand nodes, so
that garbage of larger ones is still reclaimed."""


@dataclass(slots=True)
class _ActiveCompiles:
    """The number of active compiles, and the threshold before the first of them."""

    lock: Lock = field(default_factory=Lock)
    count: int = 0
    before: int = 0


_ACTIVE = _ActiveCompiles()


@contextmanager
def gc_paused() -> Generator[None]:
    """Raise the generation-0 threshold for allocation-heavy code. The threshold is per process, so
    the last of several threads to leave restores it; a higher one, or 0 for never, stays."""
    active = _ACTIVE
    with active.lock:
        if active.count == 0:
            active.before = gc.get_threshold()[0]
            if 0 < active.before < GEN0_THRESHOLD:
                _set(GEN0_THRESHOLD)
        active.count += 1
    try:
        yield
    finally:
        with active.lock:
            active.count -= 1
            if active.count == 0 and gc.get_threshold()[0] == GEN0_THRESHOLD:
                _set(active.before)


def _set(young: int) -> None:
    gc.set_threshold(young, *gc.get_threshold()[1:])
