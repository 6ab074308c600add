"""Pinned host memory that copies go through.

The device copies by itself from and to memory that is pinned; NumPy's is not, and the driver would
wait for the stream before it copies such memory. So bytes are copied to pinned memory first, and a
slot of it is used again when the device has read it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.backends.cuda.context import Context

Array = np.ndarray[Any, Any]
Pieces = Sequence[tuple[int, int]]
"""Starts and sizes of parts of some bytes."""
ALIGN = 64
NO_TIMING = 2
"""The flag of events that only order work."""
BULK_THREADS, BULK_SLOTS, BULK_SLOT_BYTES = 4, 2, 1 << 20
BULK_PIECE_BYTES = 256 << 10
"""Parts of smaller copies, so that the device copies one while the host copies the next."""


def bytes_of(array: Array) -> Array:
    """The bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8)


class Pinned:
    """Pinned bytes."""

    def __init__(self, context: Context, size: int) -> None:
        self._context = context
        self.address = context.made("cuMemHostAlloc", size, 0)
        raw: Any = (ctypes.c_ubyte * size).from_address(self.address)
        self.view = memoryview(raw).cast("B")
        self.bytes: Array = np.frombuffer(raw, np.uint8)

    def close(self) -> None:
        self._context.quietly("cuMemFreeHost", self.address)


class Slots:
    """A ring of pinned slots. A slot is entered once the device is done with it."""

    def __init__(self, context: Context, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._context = context
        self._pinned = Pinned(context, count * size)
        self._events = [context.made("cuEventCreate", NO_TIMING) for _ in range(count)]
        self._is_used = [False] * count
        self._slot, self._filled = 0, 0
        self._copy = context.library["cuMemcpyHtoDAsync_v2"]

    def room(self, size: int, stream: int) -> tuple[int, Array]:
        """The address and the bytes of a piece of the ring, for a copy of the stream."""
        if self._filled + size > self.size:
            self._next(stream)
        start = self._slot * self.size + self._filled
        self._filled += -(-size // ALIGN) * ALIGN
        return self._pinned.address + start, self._pinned.bytes[start : start + size]

    def put(self, to: int, array: Array, size: int, stream: int) -> None:
        """A small array to the device, in fewer steps than `write`."""
        if self._filled + size > self.size:
            self._next(stream)
        start = self._slot * self.size + self._filled
        self._filled += -(-size // ALIGN) * ALIGN
        self._pinned.view[start : start + size] = array.tobytes()
        address = self._pinned.address + start
        code = self._copy(to, address, size, stream)
        if code:
            self._context.failed("cuMemcpyHtoDAsync_v2", code, to, address, size, stream)

    def _next(self, stream: int) -> None:
        """Close the slot behind the copies that were enqueued, and enter the next one."""
        if not self._is_used[self._slot]:
            self.seal(stream)
        self._slot, self._filled = (self._slot + 1) % self.count, 0
        self.finish(self._slot)

    def seal(self, stream: int) -> None:
        """The slot is used again behind what the stream has; nothing more goes into it."""
        self._context.streamed("cuEventRecord", self._events[self._slot], stream)
        self._is_used[self._slot] = True
        self._filled = self.size

    def finish(self, slot: int) -> None:
        """Wait until the device is done with a slot."""
        if self._is_used[slot]:
            self._context.streamed("cuEventSynchronize", self._events[slot])
            self._is_used[slot] = False

    def write(self, to: int, data: Array, stream: int, pieces: Pieces | None = None) -> None:
        """Bytes to the device, slot by slot; `data` may be changed afterwards."""
        for start, size in pieces or pieces_of(data.nbytes, self.size):
            address, room = self.room(size, stream)
            np.copyto(room, data[start : start + size])
            self._context.streamed("cuMemcpyHtoDAsync_v2", to + start, address, size, stream)

    def read(self, source: int, data: Array, stream: int, pieces: Pieces | None = None) -> None:
        """Bytes from the device; they are there when it returns. One slot is copied by the device
        while the host copies the one before."""
        last: tuple[int, int, Array] | None = None
        for start, size in pieces or pieces_of(data.nbytes, self.size):
            self._next(stream)
            address, room = self.room(size, stream)
            self._context.streamed("cuMemcpyDtoHAsync_v2", address, source + start, size, stream)
            self.seal(stream)
            self._taken(last, data)
            last = self._slot, start, room
        self._taken(last, data)

    def _taken(self, given: tuple[int, int, Array] | None, data: Array) -> None:
        if given is not None:
            slot, start, room = given
            self.finish(slot)
            np.copyto(data[start : start + room.nbytes], room)

    def close(self) -> None:
        for event in self._events:
            self._context.quietly("cuEventDestroy_v2", event)
        self._pinned.close()


def pieces_of(size: int, limit: int) -> Pieces:
    """Starts and sizes of the parts of at most `limit` bytes."""
    return [(start, min(limit, size - start)) for start in range(0, size, limit)]


class Bulk:
    """Large copies, by several threads: one copies about 10 GB/s to pinned memory, and the device
    takes several times that. Each has a ring of its own."""

    def __init__(self, context: Context) -> None:
        self._lock = threading.Lock()
        count = min(BULK_THREADS, os.cpu_count() or 1)
        self._rings = [Slots(context, BULK_SLOTS, BULK_SLOT_BYTES) for _ in range(count)]
        self._pool = ThreadPoolExecutor(count, "rlx-copy")

    def write(self, to: int, data: Array, stream: int) -> None:
        def copy(ring: Slots, pieces: Pieces) -> None:
            ring.write(to, data, stream, pieces)
            ring.seal(stream)  # the next copy may be another stream's

        self._each(copy, data.nbytes)

    def read(self, source: int, data: Array, stream: int) -> None:
        self._each(lambda ring, pieces: ring.read(source, data, stream, pieces), data.nbytes)

    def _each(self, copy: Callable[[Slots, Pieces], None], size: int) -> None:
        """Parts in turn to the threads; what is little is this one's."""
        parts = pieces_of(size, min(BULK_SLOT_BYTES, max(BULK_PIECE_BYTES, size // 16)))
        count = min(len(self._rings), len(parts) // 4)
        with self._lock:
            if count <= 1:
                copy(self._rings[0], parts)
                return
            given = [(self._rings[i], parts[i::count]) for i in range(count)]
            done = [self._pool.submit(copy, ring, part) for ring, part in given]
            for part in done:
                part.result()


@dataclass
class Readback:
    """Small results on their way to the host: into pinned bytes, and to their arrays after."""

    context: Context
    pinned: Pinned
    end: int = 0
    waiting: list[tuple[Array, int]] = field(default_factory=list[tuple[Array, int]])

    def has_room(self, size: int) -> bool:
        return self.end + size <= self.pinned.bytes.nbytes

    def read(self, source: int, array: Array, stream: int) -> None:
        start, size = self.end, array.nbytes
        self.end += -(-size // ALIGN) * ALIGN
        self.context.streamed(
            "cuMemcpyDtoHAsync_v2", self.pinned.address + start, source, size, stream
        )
        self.waiting.append((array, start))

    def close(self) -> None:
        self.pinned.close()

    def finish(self) -> None:
        """The device has copied all of them."""
        for array, start in self.waiting:
            raw = self.pinned.bytes[start : start + array.nbytes]
            np.copyto(array, raw.view(array.dtype).reshape(array.shape))
        self.waiting.clear()
        self.end = 0
