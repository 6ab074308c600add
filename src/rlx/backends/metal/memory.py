"""Memory that host and GPU share: buffers of Metal by the address at which the host has them.

An address is the host's, so that arrays are written and read without a copy between; a launch
needs the buffer that it is in, and the offset there.
"""

from __future__ import annotations

import bisect
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.backends.gpu.device import Array, Memory
from rlx.backends.metal.library import Metal
from rlx.core.errors import OutOfMemoryError
from rlx.program.errors import LaunchError

LEAST_BYTES = 256
Binding = tuple[Any, int]
"""A buffer of Metal, and an offset in it."""


@dataclass(frozen=True, eq=False, slots=True)
class Region:
    """A buffer of Metal, and its bytes as the host has them."""

    buffer: Any
    bytes: Array

    @property
    def start(self) -> int:
        return self.bytes.ctypes.data


class Regions:
    """All buffers of a device. Metal keeps those that are in use until commands that name them are
    done, so that freeing one never waits."""

    def __init__(self, metal: Metal, device: Any) -> None:
        self._metal, self._device = metal, device
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._regions: dict[int, Region] = {}
        self._bindings: dict[int, Binding] = {}
        """By address, as far as launches have asked for them since a buffer was freed."""
        self._nothing = self._made(LEAST_BYTES)

    def _made(self, size: int) -> Region:
        most = int(self._device.maxBufferLength())
        if size > most:
            raise OutOfMemoryError(
                f"{size} bytes are more than a buffer of {self._device.name()} has, {most}. Use "
                "smaller inputs."
            )
        mode = self._metal.module.MTLResourceStorageModeShared
        buffer = self._device.newBufferWithLength_options_(size, mode)
        if buffer is None:
            raise OutOfMemoryError(
                f"{self._device.name()} has no {size} bytes left. Use smaller inputs, or free "
                "memory."
            )
        return Region(buffer, np.frombuffer(buffer.contents().as_buffer(size), np.uint8))

    def allocate(self, size: int) -> Memory:
        made = self._made(max(size, LEAST_BYTES))
        with self._lock:
            bisect.insort(self._starts, made.start)
            self._regions[made.start] = made
        return Memory(made.start, size)

    def free(self, memory: Memory) -> None:
        with self._lock:
            del self._regions[memory.address]
            self._starts.remove(memory.address)
            self._bindings.clear()

    def _at(self, address: int) -> Region | None:
        with self._lock:
            found = bisect.bisect_right(self._starts, address) - 1
            return self._regions[self._starts[found]] if found >= 0 else None

    def bytes_at(self, address: int, size: int) -> Array:
        """Bytes of the host from an address on."""
        region = self._at(address)
        first = address - region.start if region else 0
        if region is None or first + size > region.bytes.nbytes:
            raise LaunchError(f"{size} bytes at address {address} go beyond their memory.")
        return region.bytes[first : first + size]

    def binding(self, address: int) -> Binding:
        """What a launch is given for an address; of an array without elements, a buffer that
        nobody uses."""
        found = self._bindings.get(address)
        if found is None:
            region = self._at(address)
            is_inside = region is not None and address - region.start < region.bytes.nbytes
            region = region if is_inside and region is not None else self._nothing
            offset = address - region.start if is_inside else 0
            found = self._bindings[address] = region.buffer, offset
        return found
