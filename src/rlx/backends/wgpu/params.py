"""The uniform blocks of launches: slots of one GPU buffer, which a dispatch is given by offset.

Launches of recorded graphs have slots of their own, written once. Those that are enqueued one at a
time take the next slot of a ring, which is written when they are submitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rlx.backends.wgpu.stream import Stream

SLOT = 256
"""Bytes: the largest alignment of a uniform binding that there is."""
SLAB_SLOTS = 4096
RING_SLOTS = 256


class Slots(NamedTuple):
    """Some in a row, from the first on."""

    slab: int
    first: int
    num: int


def slots_for(size: int) -> int:
    return -(-size // SLOT)


class Params:
    """The slots of a device."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._slabs: list[Any] = []
        self._free: list[Slots] = []
        self._ring = bytearray(RING_SLOTS * SLOT)
        self._used = 0
        stream.before_submit = self._write_ring

    def buffer(self, slab: int) -> Any:
        return self._slabs[slab]

    # -- one at a time ---------------------------------------------------------------------------

    def next(self, block: bytes) -> Slots:
        """A slot of the ring for one launch, which is enqueued next."""
        count = slots_for(len(block))
        if self._used + count > RING_SLOTS:
            self._stream.submit()
        self._slab_of_ring()
        start = self._used
        self._ring[start * SLOT : start * SLOT + len(block)] = block
        self._used += count
        return Slots(0, start, count)

    def _slab_of_ring(self) -> None:
        if not self._slabs:
            self._grow()
            self._free = [Slots(0, RING_SLOTS, SLAB_SLOTS - RING_SLOTS)]

    def _write_ring(self) -> None:
        """Behind what was submitted before, and before what is submitted now."""
        if self._used:
            used, self._used = self._used * SLOT, 0
            self._stream.device.queue.write_buffer(self._slabs[0], 0, self._ring, 0, used)

    # -- of graphs -------------------------------------------------------------------------------

    def taken(self, blocks: Sequence[bytes]) -> list[Slots]:
        """Slots of a graph's launches, written."""
        with self._stream.calls("writing params"):
            counts = [slots_for(len(b)) for b in blocks]
            run = self._run(sum(counts))
            raw, made, first = bytearray(), list[Slots](), run.first
            for block, count in zip(blocks, counts):
                raw += block.ljust(count * SLOT, b"\0")
                made.append(Slots(run.slab, first, count))
                first += count
            self._stream.write(self._slabs[run.slab], run.first * SLOT, raw)
            return made

    def _run(self, count: int) -> Slots:
        """So many in a row: the first that are free."""
        self._slab_of_ring()
        for i, free in enumerate(self._free):
            if free.num >= count:
                self._free[i] = Slots(free.slab, free.first + count, free.num - count)
                return Slots(free.slab, free.first, count)
        self._grow(count)
        slab = len(self._slabs) - 1
        self._free.append(Slots(slab, count, max(SLAB_SLOTS, count) - count))
        return Slots(slab, 0, count)

    def give(self, slots: Sequence[Slots]) -> None:
        """Of a graph that is closed; its replays were enqueued before anything that comes."""
        if slots:
            last = slots[-1]
            count = last.first + last.num - slots[0].first
            self._free.append(Slots(last.slab, slots[0].first, count))
            self._join()

    def _join(self) -> None:
        """Neighbours that are free become one."""
        joined = list[Slots]()
        for free in sorted(f for f in self._free if f.num):
            last = joined[-1] if joined else None
            if last and last.slab == free.slab and last.first + last.num == free.first:
                joined[-1] = Slots(last.slab, last.first, last.num + free.num)
            else:
                joined.append(free)
        self._free = joined

    def _grow(self, count: int = 0) -> None:
        from wgpu import BufferUsage

        usage: Any = BufferUsage
        size = max(SLAB_SLOTS, count) * SLOT
        with self._stream.calls("allocating params") as device:
            self._slabs.append(
                device.create_buffer(size=size, usage=usage.UNIFORM | usage.COPY_DST)
            )
