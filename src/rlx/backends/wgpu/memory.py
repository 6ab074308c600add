"""GPU buffers by number, and addresses in them.

An address is the number of a GPU buffer and a byte of it. Numbers are never used again, so that an
address of memory that is gone names nothing. Small blocks are parts of larger buffers, as each
buffer takes a driver's allocation; blocks that are freed are kept for those of their size.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from rlx.backends.gpu.device import ALIGN, Memory
from rlx.backends.wgpu.stream import Stream
from rlx.core.errors import Error, OutOfMemoryError
from rlx.core.memory_limits import physical_bytes

SHIFT = 40
"""Bits of an address that are the byte."""
SMALL_BYTES = 64 << 10
"""Up to which blocks are parts of a shared buffer."""
SLAB_BYTES = 1 << 20
STEPS = 8
"""Sizes between a power of two and the next: at most an eighth of a block is not used."""
KEPT_BYTES = 256 << 20
"""Of large blocks that nobody uses."""
SPARE_BYTES = 64 << 20
"""Of the host's memory that a driver in software leaves free: it does not survive a failed
allocation of its own."""
_NUMBERS = itertools.count(1)
"""Of GPU buffers, of all devices of the process: memory of one that is lost is not taken for that
of another."""


def rounded(size: int) -> int:
    """The size of the block that is allocated for so many bytes."""
    grain = max(ALIGN, (1 << max(1, size).bit_length() - 1) // STEPS)
    return -(-max(1, size) // grain) * grain


def placed(address: int) -> tuple[int, int]:
    """The number of a GPU buffer, and the byte of it."""
    return address >> SHIFT, address & ((1 << SHIFT) - 1)


class Buffers:
    """The memory of a device. Its methods may be called by several threads, `free` also while the
    garbage collector interrupts one of them."""

    def __init__(
        self, stream: Stream, limits: Mapping[str, int], name: str, is_software: bool
    ) -> None:
        self._stream, self._name, self._is_software = stream, name, is_software
        self.max_bytes = limits["max-buffer-size"] // ALIGN * ALIGN
        """Of one GPU buffer."""
        self.held_bytes = 0
        """Of all GPU buffers."""
        self._lock = threading.RLock()
        self._buffers: dict[int, Any] = {}
        self._sizes: dict[int, int] = {}
        """Of GPU buffers, by number."""
        self._blocks: dict[int, tuple[int, int]] = {}
        """Bytes of blocks that are in use, and those that were asked for, by address."""
        self._kept: dict[int, list[int]] = {}
        self._kept_bytes = 0
        self._returned: deque[int] = deque()
        self._slab_address = self._slab_end = 0

    def __getitem__(self, number: int) -> Any:
        """A GPU buffer."""
        found = self._buffers.get(number)
        if found is None:
            raise Error(
                f"there is no GPU buffer {number}: its memory was freed, or is another device's."
            )
        return found

    def size(self, number: int) -> int:
        self[number]
        return self._sizes[number]

    def is_whole(self, address: int, size: int) -> bool:
        """Are so many bytes from an address on all that a block was asked for? What it has beyond
        them is nobody's."""
        found = self._blocks.get(address)
        return found is not None and found[1] == size

    # -- blocks ----------------------------------------------------------------------------------

    def allocate(self, size: int) -> Memory:
        with self._lock:
            self._collect()
            block = rounded(size)
            kept = self._kept.get(block)
            if kept:
                address = kept.pop()
                self._kept_bytes -= block if block > SMALL_BYTES else 0
            else:
                address = self._part(block) if block <= SMALL_BYTES else self._new(block, size)
            self._blocks[address] = block, size
            return Memory(address, size)

    def free(self, memory: Memory) -> None:
        self._returned.append(memory.address)
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def _collect(self) -> None:
        while self._returned:
            address = self._returned.popleft()
            found = self._blocks.pop(address, None)
            if found is not None:
                size, _ = found
                self._kept.setdefault(size, []).append(address)
                self._kept_bytes += size if size > SMALL_BYTES else 0
        if self._kept_bytes > KEPT_BYTES:
            self.trim()

    def trim(self) -> None:
        """Give buffers that nobody uses back to the driver."""
        with self._lock:
            large = [s for s in self._kept if s > SMALL_BYTES]
            numbers = [placed(a)[0] for s in large for a in self._kept.pop(s)]
            self._kept_bytes = 0
            if numbers and not self._stream.lost:
                self._stream.submit()
            for number in numbers:
                self.held_bytes -= self._sizes.pop(number)
                self._buffers.pop(number).destroy()

    def _part(self, block: int) -> int:
        """Of the slab that is being cut up."""
        if self._slab_address + block > self._slab_end:
            self._slab_address = self._new(SLAB_BYTES, SLAB_BYTES)
            self._slab_end = self._slab_address + SLAB_BYTES
        address = self._slab_address
        self._slab_address += block
        return address

    # -- GPU buffers -----------------------------------------------------------------------------

    def _new(self, block: int, size: int) -> int:
        """The address of a new buffer."""
        if size > self.max_bytes:
            raise OutOfMemoryError(
                f"{size:,} bytes in one piece are needed, and a buffer of {self._name} has at most "
                f"{self.max_bytes:,} (maxBufferSize). Use smaller inputs or batches, or another "
                "target."
            )
        block = min(block, self.max_bytes)
        try:
            made = self._made(block)
        except OutOfMemoryError:
            self.trim()
            made = self._made(block)
        number = next(_NUMBERS)
        self._buffers[number], self._sizes[number] = made, block
        self.held_bytes += block
        return number << SHIFT

    def _made(self, size: int) -> Any:
        from wgpu import BufferUsage

        if self._is_software and size + SPARE_BYTES > _host_bytes():
            raise OutOfMemoryError(
                f"{size:,} bytes were asked for, and the host, whose memory {self._name} uses, has "
                f"{_host_bytes():,} left; rlx holds {self.held_bytes:,}. Use smaller inputs or "
                "batches, or close executables that are not needed."
            )
        usage: Any = BufferUsage
        with self._stream.calls(f"allocating {size:,} bytes") as device:
            return device.create_buffer(
                size=size, usage=usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
            )


def _host_bytes() -> int:
    """Of the host's memory that is free, as far as it is known."""
    try:
        with open("/proc/meminfo") as file:
            found = dict(line.split(":", 1) for line in file)
        return int(found["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return physical_bytes()
