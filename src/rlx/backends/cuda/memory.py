"""Device memory that is kept for reuse.

What is freed may still be read or written by work that was enqueued before. A block is given out
again only when every queue has done what it had been given by then: queues count what they are
given (`tick`), and are asked whether they have come that far (`has_reached`). The driver's own
free waits for the whole device instead.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

from rlx.backends.cuda.context import Context
from rlx.backends.gpu.device import Memory
from rlx.core.errors import Error, OutOfMemoryError

GRAIN = 512
"""Bytes that small blocks are rounded up to."""
STEPS = 8
"""Sizes between a power of two and the next: at most an eighth of a block is not used."""
KEPT_SHARE = 8
"""Memory that nobody uses is kept up to this part of the device's: other libraries need it, too."""
SHARED_BYTES = 256 << 20
"""Freed memory that other libraries may still use, beyond which the device is waited for."""


class Awaited(Protocol):
    """How far something has come."""

    @property
    def tick(self) -> int:
        """The number of the last thing that was enqueued; 0 where all is known to be done."""
        ...

    def has_reached(self, tick: int) -> bool:
        """Is it known to be done? Asking again later may help."""
        ...


class Freed(NamedTuple):
    """A block, and what must be done before it is used again."""

    address: int
    size: int
    after: Sequence[tuple[Awaited, int]]

    @property
    def is_ready(self) -> bool:
        for queue, tick in self.after:  # noqa: SIM110 (a generator takes longer than the loop)
            if not queue.has_reached(tick):
                return False
        return True


def rounded(size: int) -> int:
    """The size of the block that is allocated for so many bytes."""
    grain = max(GRAIN, (1 << max(1, size).bit_length() - 1) // STEPS)
    return -(-max(1, size) // grain) * grain


class _Idle:
    """The whole device, which was idle at certain times: what other libraries do with memory that
    they were given is on streams that nobody knows here."""

    tick = 1

    def has_reached(self, tick: int) -> bool:
        return self.tick > tick


class Allocator:
    """The device's memory. Its methods may be called by several threads, `free` also while the
    garbage collector interrupts one of them."""

    def __init__(self, context: Context, queues: Callable[[], Iterable[Awaited]]) -> None:
        self._context = context
        self._queues = queues
        self._lock = threading.Lock()
        self._sizes: dict[int, int] = {}
        self._returned: deque[Freed] = deque()
        self._kept: dict[int, list[Freed]] = {}
        self._kept_bytes = 0
        self._shared: set[int] = set()
        self._shared_bytes = 0
        self._idle = _Idle()

    @cached_property
    def _kept_limit(self) -> int:
        return self._context.memory_bytes[1] // KEPT_SHARE

    def allocate(self, size: int) -> Memory:
        with self._lock:
            self._collect()
            block = rounded(size)
            address = self._reused(block) or self._new(block, size)
            self._sizes[address] = block
            return Memory(address, size)

    def free(self, memory: Memory) -> None:
        size = self._sizes.pop(memory.address, None)
        if size is None:
            raise Error(f"there is no memory at {memory.address:#x} to free; was it freed?")
        after = [(q, tick) for q in self._queues() if (tick := q.tick)]
        if memory.address in self._shared:
            after.append((self._idle, self._idle.tick))
        self._returned.append(Freed(memory.address, size, after))
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def share(self, address: int) -> None:
        """Other libraries may use the block of this address on streams of theirs: it is reused
        only when the whole device has been idle after it was freed."""
        found = self._sizes
        start = address if address in found else _block_of(address, found)
        if start:
            self._shared.add(start)

    def trim(self) -> None:
        """Give all that nobody uses back to the driver, once the device is idle."""
        with self._lock:
            self._collect()
            self._trim()

    # -- with the lock ---------------------------------------------------------------------------

    def _collect(self) -> None:
        """What was returned is kept; all of it goes back where it is too much."""
        while self._returned:
            freed = self._returned.popleft()
            self._kept.setdefault(freed.size, []).append(freed)
            self._kept_bytes += freed.size
            if freed.address in self._shared:
                self._shared.remove(freed.address)
                self._shared_bytes += freed.size
        if self._kept_bytes > self._kept_limit:
            self._trim()

    def _trim(self) -> None:
        with self._context.idle() as is_idle:
            if not is_idle:
                return
            for freed in [f for blocks in self._kept.values() for f in blocks]:
                self._context.quietly("cuMemFree_v2", freed.address)
        self._kept.clear()
        self._kept_bytes = self._shared_bytes = 0

    def _reused(self, size: int) -> int:
        """A block of that size that is ready; 0 where there is none."""
        found = self._ready(size)
        if found or self._shared_bytes <= SHARED_BYTES:
            return found
        with self._context.idle() as is_idle:
            if is_idle:
                self._idle.tick += 1
                self._shared_bytes = 0
        return self._ready(size)

    def _ready(self, size: int) -> int:
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
            self._trim()
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


def _block_of(address: int, sizes: dict[int, int]) -> int:
    """The start of the block that an address is in; 0 where it is in none."""
    return next((a for a, n in list(sizes.items()) if a <= address < a + n), 0)
