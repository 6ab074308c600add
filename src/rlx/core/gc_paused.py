"""Python's collector of cycles, told to look seldom while a compiler works.

Passes make objects by the hundred thousand, nearly all of which live until the compile ends. With
Python's own threshold the collector walks them hundreds of times, for a tenth of the whole time.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

YOUNG = 200_000
"""New objects before it looks at them: about what a model of a thousand nodes takes, so that what
larger ones leave behind is still given back."""


@dataclass(slots=True)
class _Patience:
    """How many compiles are under way, and the threshold that was set before the first."""

    lock: Lock = field(default_factory=Lock)
    count: int = 0
    before: int = 0


_PATIENCE = _Patience()


@contextmanager
def seldom_collected() -> Generator[None]:
    """Code that makes much and drops little. The threshold is the process's, so the last of several
    threads to leave sets it back; one that was higher, or 0 for never, stays."""
    patience = _PATIENCE
    with patience.lock:
        if patience.count == 0:
            patience.before = gc.get_threshold()[0]
            if 0 < patience.before < YOUNG:
                _set(YOUNG)
        patience.count += 1
    try:
        yield
    finally:
        with patience.lock:
            patience.count -= 1
            if patience.count == 0 and gc.get_threshold()[0] == YOUNG:
                _set(patience.before)


def _set(young: int) -> None:
    gc.set_threshold(young, *gc.get_threshold()[1:])
