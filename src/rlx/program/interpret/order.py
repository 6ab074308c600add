"""Which accesses are ordered: happens-before between threads of a launch.

Each thread counts its releases. An access is stamped with its thread's count; it is ordered before
what another thread does later if that thread has learned of a count behind it, through a barrier
or an mbarrier. Where a program has block barriers only, all threads of a block learn everything at
once, and one count for a block is enough (`BlockOrder`); else every thread has a row of counts, a
vector clock (`ThreadOrder`).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]


class Order(Protocol):
    """The clocks of some whole clusters. Threads are numbered over the grid."""

    def clock(self, threads: Array) -> Array:
        """The stamp of an access now."""
        ...

    def is_concurrent(self, threads: Array, others: Array, clocks: Array) -> Array:
        """Is what another thread did at that clock unordered with what each thread does now?"""
        ...

    def barrier(self, slots: Array, group: int) -> None:
        """Groups of so many threads, each with its first one's slot, meet."""
        ...


class BlockOrder:
    """Only whole blocks meet."""

    def __init__(self, first: int, blocks: int, block: int) -> None:
        self.first, self.block = first, block
        self.epochs = np.zeros(blocks, np.int32)

    def _epoch(self, threads: Array) -> Array:
        return self.epochs[(threads - self.first) // self.block]

    def clock(self, threads: Array) -> Array:
        return self._epoch(threads)

    def is_concurrent(self, threads: Array, others: Array, clocks: Array) -> Array:
        same = threads // self.block == others // self.block
        recent = clocks == self._epoch(threads)
        return (others >= 0) & (threads != others) & (recent | ~same)

    def barrier(self, slots: Array, group: int) -> None:
        self.epochs[slots // self.block] += 1


class ThreadOrder:
    """A vector clock for each thread, over the threads of its cluster and the copy engines of its
    mbarriers; engine m of block r is column threads + r·mbarriers + m."""

    def __init__(self, first: int, lanes: int, cluster_threads: int, engines: int) -> None:
        self.first, self.size, self.engines = first, cluster_threads, engines
        self.known = np.zeros((lanes, cluster_threads + engines), np.int32)
        self.own = np.ones(lanes, np.int32)

    def clock(self, threads: Array) -> Array:
        return self.own[threads - self.first]

    def is_concurrent(self, threads: Array, others: Array, clocks: Array) -> Array:
        """Engines are numbered below -1: -2 - their column."""
        is_engine = others < -1
        column = np.where(is_engine, -2 - others, (others - self.first) % self.size)
        cluster = (threads - self.first) // self.size
        same = is_engine | (cluster == (others - self.first) // self.size)
        column = np.where(others == -1, 0, column)
        learned = self.known[threads - self.first, column] >= clocks
        return (others != -1) & (threads != others) & ~(same & learned)

    def barrier(self, slots: Array, group: int) -> None:
        rows = slots[:, None] + np.arange(group)
        met = self.released(rows.reshape(-1)).reshape(len(slots), group, -1).max(axis=1)
        self.known[rows] = met[:, None]

    def released(self, slots: Array) -> Array:
        """What the threads know, their own clocks included, which go on."""
        rows = self.known[slots].copy()
        rows[np.arange(len(slots)), slots % self.size] = self.own[slots]
        self.own[slots] += 1
        return rows

    def learn(self, slots: Array, rows: Array) -> None:
        self.known[slots] = np.maximum(self.known[slots], rows)
