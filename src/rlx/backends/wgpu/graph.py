"""Recorded work: commands whose bind groups and params are made, which a replay only encodes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.gpu.device import Graph, StampedGraph
from rlx.backends.wgpu.params import Slots
from rlx.backends.wgpu.stream import Command, Stamps

if TYPE_CHECKING:
    from rlx.backends.wgpu.queue import WgpuQueue

MAX_QUERIES = 4096
"""Of a query set: the limit that every adapter has."""


class WgpuGraph(Graph):
    """Commands in order."""

    def __init__(
        self, queue: WgpuQueue, commands: Sequence[Command], slots: Sequence[Slots]
    ) -> None:
        self.commands = tuple(commands)
        self._queue, self._slots = queue, tuple(slots)

    def replay(self) -> None:
        self._queue.enqueue(self.commands)

    def close(self) -> None:
        slots, self._slots, self.commands = self._slots, (), ()
        if slots:
            self._queue.device.params.give(slots)

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


# -- by the device's clock ------------------------------------------------------------------------


class Queries:
    """Time stamps of the begins and ends of compute passes."""

    def __init__(self, queue: WgpuQueue, count: int) -> None:
        from wgpu import BufferUsage

        usage: Any = BufferUsage
        self._queue, self._count = queue, count
        with queue.device.stream.calls("making time stamps") as device:
            self.handle = device.create_query_set(type="timestamp", count=2 * count)
            self._buffer = device.create_buffer(
                size=16 * count, usage=usage.QUERY_RESOLVE | usage.COPY_SRC
            )

    def of_pass(self, number: int) -> Stamps:
        return Stamps(self.handle, 2 * number)

    def ticks(self) -> list[float]:
        """Of each pass, in the device's own unit, once all of them are done."""
        return [float(max(0, end - begin)) for begin, end in self._stamps()]

    def between(self) -> float:
        """From the begin of the first pass to that of the last."""
        found = self._stamps()
        return float(found[-1][0] - found[0][0])

    def _stamps(self) -> list[list[int]]:
        found = np.empty((self._count, 2), np.uint64)
        self._queue.device.stream.resolve(self.handle, 2 * self._count, self._buffer)
        self._queue.read_buffer(self._buffer, 0, found)
        self._queue.wait()
        return found.tolist()


class WgpuStampedGraph(StampedGraph):
    """A compute pass a part, each with the time at its begin and its end."""

    def __init__(self, queue: WgpuQueue, parts: Sequence[WgpuGraph]) -> None:
        self._queue, self._parts = queue, tuple(parts)
        self._queries = Queries(queue, len(parts))

    def replay(self) -> None:
        for i, part in enumerate(self._parts):
            self._queue.device.stream.stamped(part.commands, self._queries.of_pass(i))

    def stamps_ns(self) -> list[float]:
        """What is between two passes is nobody's."""
        scale = self._queue.device.ns_per_tick
        return list(accumulate((t * scale for t in self._queries.ticks()), initial=0.0))

    def close(self) -> None:
        for part in self._parts:
            part.close()


# -- by the host's --------------------------------------------------------------------------------


class HostStampedGraph(StampedGraph):
    """Parts of which each is waited for, as the adapter has no time stamps: what the host takes to
    enqueue them is a part of their times."""

    def __init__(self, queue: WgpuQueue, parts: Sequence[WgpuGraph]) -> None:
        self._queue, self._parts = queue, tuple(parts)
        self._times: list[int] = []

    def replay(self) -> None:
        self._queue.wait()
        self._times = [time.perf_counter_ns()]
        for part in self._parts:
            part.replay()
            self._queue.wait()
            self._times.append(time.perf_counter_ns())

    def stamps_ns(self) -> list[float]:
        return [float(t - self._times[0]) for t in self._times]

    def close(self) -> None:
        for part in self._parts:
            part.close()
