"""Results on their way to the host: copied to memory that can be mapped, which is mapped when
somebody waits. To map it is also how the device is waited for."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.backends.gpu.device import Array
from rlx.backends.wgpu.stream import Stream, Transfer

FIRST_BYTES = 64 << 10
MAX_BYTES = 64 << 20
"""Of the memory that is mapped: larger results come in pieces."""
ALIGN = 8
"""Of what is mapped."""
WORD_BYTES = 4


class Readback:
    """The results of one queue. One thread at a time uses it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._size = self._end = 0
        self._staging: Any = None
        self._waiting: list[tuple[Array, int]] = []
        self._source: Any = None
        """Words that are copied where somebody waits and reads nothing."""

    def read(self, buffer: Any, offset: int, raw: Array) -> None:
        """Bytes of a GPU buffer into an array of bytes, when all is finished."""
        for first in range(0, raw.nbytes, MAX_BYTES // 2):
            self._piece(buffer, offset + first, raw[first : first + MAX_BYTES // 2])

    def _piece(self, buffer: Any, offset: int, raw: Array) -> None:
        """The words that the bytes are in."""
        start = offset // WORD_BYTES * WORD_BYTES
        size = -(-(offset + raw.nbytes - start) // WORD_BYTES) * WORD_BYTES
        at = self._room(size)
        self._stream.run([Transfer(buffer, start, self._staging, at, size)])
        self._waiting.append((raw, at + offset - start))

    def _room(self, size: int) -> int:
        """The place of so many bytes in the memory."""
        if self._end + size > self._size and self._waiting:
            self.finish()
        if size > self._size:
            self._grow(size)
        at = self._end
        self._end += -(-size // ALIGN) * ALIGN
        return at

    def _grow(self, size: int) -> None:
        from wgpu import BufferUsage

        usage: Any = BufferUsage
        self._size = max(FIRST_BYTES, 1 << (size - 1).bit_length())
        with self._stream.calls("allocating memory for results") as device:
            self._staging = device.create_buffer(
                size=self._size, usage=usage.MAP_READ | usage.COPY_DST
            )
            if self._source is None:
                self._source = device.create_buffer(size=ALIGN, usage=usage.COPY_SRC)

    def finish(self) -> None:
        """Wait for the device; then all results are in their arrays."""
        from wgpu import MapMode

        mode: Any = MapMode
        if not self._waiting:
            at = self._room(WORD_BYTES)
            if self._source is None:
                self._grow(WORD_BYTES)
            self._stream.run([Transfer(self._source, 0, self._staging, at, WORD_BYTES)])
        end, waiting = self._end, self._waiting
        self._end, self._waiting = 0, []
        self._stream.submit()
        try:
            self._staging.map_sync(mode.READ, 0, -(-end // ALIGN) * ALIGN)
            found = np.frombuffer(self._staging.read_mapped(copy=False), np.uint8)
            for raw, at in waiting:
                raw[:] = found[at : at + raw.nbytes]
            del found
            self._staging.unmap()
        except Exception as error:
            self._staging, self._size = None, 0
            raise self._stream.failed("waiting for the device", error) from None
