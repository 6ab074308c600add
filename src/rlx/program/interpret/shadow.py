"""Who touched a word of memory last: race detection.

Two accesses race if they are of different threads, one of them writes, and neither is ordered
before the other. Of each word the last write is known, and two readers since, if possible of two
warps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.program.interpret.order import Order

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses that nothing orders."""

    word: int
    thread: int
    other: int
    """The earlier one's; below -1 for a copy engine."""
    other_node: int
    is_write: bool
    was_write: bool


class _Last:
    """The last access of a kind to each word."""

    def __init__(self, words: int) -> None:
        self.thread = np.full(words, -1, np.int64)
        self.clock = np.zeros(words, np.int32)
        self.node = np.zeros(words, np.int32)

    def set(self, words: Array, threads: Array, clocks: Array, node: int) -> None:
        self.thread[words], self.clock[words], self.node[words] = threads, clocks, node


class Shadow:
    """The accesses to one array of memory."""

    def __init__(self, words: int, warp: int) -> None:
        self.warp = max(1, warp)
        self.writes, self.reads, self.more_reads = _Last(words), _Last(words), _Last(words)

    def read(self, order: Order, words: Array, threads: Array, node: int) -> Race | None:
        """Note that threads read words; the race with an earlier write, if there is one."""
        found = self._race(self.writes, order, words, threads, (False, True))
        clocks = order.clock(threads)
        first = self.reads
        stale = ~order.is_concurrent(threads, first.thread[words], first.clock[words])
        first.set(words[stale], threads[stale], clocks[stale], node)
        for group in (1, self.warp):
            rest = first.thread[words] // group != threads // group
            self.more_reads.set(words[rest], threads[rest], clocks[rest], node)
        return found

    def write(self, order: Order, words: Array, threads: Array, node: int) -> Race | None:
        """Note that threads write words; the race, if it is one."""
        found = self.check_write(order, words, threads)
        self.set_write(words, threads, order.clock(threads), node)
        twice = np.flatnonzero(self.writes.thread[words] != threads)
        if found is None and len(twice):
            at = int(twice[0])
            word = int(words[at])
            other = int(self.writes.thread[word])
            found = Race(word, int(threads[at]), other, node, True, True)
        return found

    def check_write(self, order: Order, words: Array, threads: Array) -> Race | None:
        return (
            self._race(self.writes, order, words, threads, (True, True))
            or self._race(self.reads, order, words, threads, (True, False))
            or self._race(self.more_reads, order, words, threads, (True, False))
        )

    def set_write(self, words: Array, threads: Array, clocks: Array, node: int) -> None:
        self.writes.set(words, threads, clocks, node)
        self.reads.thread[words] = self.more_reads.thread[words] = -1

    def _race(
        self, last: _Last, order: Order, words: Array, threads: Array, kinds: tuple[bool, bool]
    ) -> Race | None:
        wrong = order.is_concurrent(threads, last.thread[words], last.clock[words])
        if not wrong.any():
            return None
        at = int(np.flatnonzero(wrong)[0])
        word = int(words[at])
        return Race(word, int(threads[at]), int(last.thread[word]), int(last.node[word]), *kinds)
