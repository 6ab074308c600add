"""Device memory that is kept for reuse.

What is freed may still be read or written by work that was enqueued before. A block is given out
again only when every queue has done what it had been given by then: queues count what they are
given (`tick`), and are asked whether they have come that far (`has_reached`). The driver's own
free waits for the whole device instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from rlx.backends.cuda.context import Context
from rlx.backends.gpu.device import Memory
from rlx.core.errors import Error, OutOfMemoryError

GRAIN = 512
"""Bytes that small blocks are rounded up to."""
STEPS = 8
"""Sizes between a power of two and the next: at most an eighth of a block is not used."""
KEPT_SHARE = 8
"""Memory that nobody uses is kept up to this part of the device's: other libraries need it, too."""


class Progress(Protocol):
    """How far a queue has come."""

    @property
    def tick(self) -> int:
        """The number of the last thing that was enqueued; 0 where all is known to be done."""
        ...

    def has_reached(self, tick: int) -> bool:
        """Is it known to be done? Asking again later may help."""
        ...


@dataclass(frozen=True, slots=True)
class Freed:
    """A block, and what must be done before it is used again."""

    address: int
    size: int
    after: tuple[tuple[Progress, int], ...]

    @property
    def is_ready(self) -> bool:
        return all(queue.has_reached(tick) for queue, tick in self.after)


def rounded(size: int) -> int:
    """The size of the block that is allocated for so many bytes."""
    grain = max(GRAIN, (1 << max(1, size).bit_length() - 1) // STEPS)
    return -(-max(1, size) // grain) * grain


class Allocator:
    """The device's memory. Its methods may be called by several threads."""

    def __init__(self, context: Context, queues: Callable[[], Iterable[Progress]]) -> None:
        self._context = context
        self._queues = queues
        self._lock = threading.RLock()
        self._sizes: dict[int, int] = {}
        self._kept: dict[int, list[Freed]] = {}
        self._kept_bytes = 0
        self._kept_limit = context.memory_bytes[1] // KEPT_SHARE

    def allocate(self, size: int) -> Memory:
        with self._lock:
            block = rounded(size)
            address = self._reused(block) or self._new(block, size)
            self._sizes[address] = block
            return Memory(address, size)

    def free(self, memory: Memory) -> None:
        with self._lock:
            if memory.address not in self._sizes:
                raise Error(f"there is no memory at {memory.address:#x} to free; was it freed?")
            size = self._sizes.pop(memory.address)
            after = tuple((q, q.tick) for q in self._queues() if q.tick)
            self._kept.setdefault(size, []).append(Freed(memory.address, size, after))
            self._kept_bytes += size
            if self._kept_bytes > self._kept_limit:
                self.trim()

    def trim(self) -> None:
        """Give all that nobody uses back to the driver, once the device is idle."""
        with self._lock:
            self._context.quietly("cuCtxSynchronize")
            for freed in [f for blocks in self._kept.values() for f in blocks]:
                self._context.quietly("cuMemFree_v2", freed.address)
            self._kept.clear()
            self._kept_bytes = 0

    def _reused(self, size: int) -> int:
        """A block of that size that is ready; 0 where there is none."""
        blocks = self._kept.get(size, [])
        for i, freed in enumerate(blocks):
            if freed.is_ready:
                del blocks[i]
                self._kept_bytes -= size
                return freed.address
        return 0

    def _new(self, block: int, size: int) -> int:
        try:
            return self._context.made("cuMemAlloc_v2", block)
        except OutOfMemoryError:
            self.trim()
        try:
            return self._context.made("cuMemAlloc_v2", block)
        except OutOfMemoryError:
            free, total = self._context.memory_bytes
            held = sum(self._sizes.values())
            raise OutOfMemoryError(
                f"{size:,} bytes of GPU memory were asked for, and {free:,} of {total:,} are free; "
                f"rlx holds {held:,}. Use smaller inputs or batches, close executables that are "
                "not needed, or free memory that other libraries and processes hold."
            ) from None
