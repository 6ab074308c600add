"""Memory of calls on a device: blocks that are given back when nobody holds them, and frames."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from rlx.backends.gpu.device import ALIGN, Device, Graph, Memory, Queue
from rlx.core.errors import Error

FIRST_FRAME = 1 << 20
"""Bytes of the first block of frames: few calls need another."""


class Block:
    """Bytes on a device; freed when nothing refers to them any more."""

    __slots__ = ("__weakref__", "address", "size")

    def __init__(self, device: Device, size: int) -> None:
        memory = device.allocate(size)
        self.address, self.size = memory.address, size
        weakref.finalize(self, _freed, device, memory).atexit = False


def _freed(device: Device, memory: Memory) -> None:
    device.free(memory)


class Frames:
    """A stack of frames. Blocks stay, so that equal calls find their frames at the same places."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._blocks: list[Block] = []
        self._used: list[int] = []
        """Bytes in use of each block."""
        self._top = -1

    def push(self, size: int) -> tuple[int, int]:
        """The address of a new frame, and the mark that `pop` goes back to."""
        mark, size = self.mark, -(-max(size, 1) // ALIGN) * ALIGN
        while self._top < 0 or self._used[self._top] + size > self._blocks[self._top].size:
            self._top += 1
            if self._top == len(self._blocks):
                last = self._blocks[-1].size if self._blocks else FIRST_FRAME // 2
                self._blocks.append(Block(self._device, max(size, 2 * last)))
                self._used.append(0)
            self._used[self._top] = 0
        address = self._blocks[self._top].address + self._used[self._top]
        self._used[self._top] += size
        return address, mark

    @property
    def mark(self) -> int:
        """Where the stack ends: the block, and the bytes in use of it."""
        return -1 if self._top < 0 else (self._top << 48) | self._used[self._top]

    def pop(self, mark: int) -> None:
        self._top = -1 if mark < 0 else mark >> 48
        if mark >= 0:
            self._used[self._top] = mark & ((1 << 48) - 1)


@dataclass(slots=True)
class Context:
    """What one call at a time uses: a queue, frames, tables, staging memory, recorded graphs."""

    device: Device
    queue: Queue
    frames: Frames
    sizes: Block
    """The table of measured sizes."""
    failures: Block
    staged: dict[tuple[str, int], Block] = field(default_factory=dict[tuple[str, int], Block])
    graphs: dict[object, Graph] = field(default_factory=dict[object, Graph])
    seen: set[object] = field(default_factory=set[object])
    """What was enqueued once: the second time it is recorded."""
    frame_bytes: dict[object, int] = field(default_factory=dict[object, int])
    """Of routines, at sizes that calls had."""

    @classmethod
    def new(cls, device: Device, symbols: int, failures: int, stream: int | None = None) -> Context:
        queue = device.queue(stream)
        sizes, noted = (Block(device, max(8, n)) for n in (8 * symbols, 4 * failures))
        for table in (sizes, noted):
            queue.fill(table.address, table.size, 0)
        return cls(device, queue, Frames(device), sizes, noted)

    def clear_failures(self) -> None:
        self.queue.fill(self.failures.address, self.failures.size, 0)

    def abandon(self) -> None:
        """A call ended before it was done: its frames are free, and what its kernels have noted is
        not the next one's."""
        self.frames.pop(-1)
        with suppress(Error):
            self.clear_failures()

    def room(self, size: int) -> Block:
        """Memory of its own."""
        return Block(self.device, max(1, size))

    def staging(self, kind: str, number: int, size: int) -> Block:
        """Memory for an input or output of the caller's; it stays where it is while it fits."""
        found = self.staged.get((kind, number))
        if found is None or found.size < size:
            found = self.staged[kind, number] = Block(self.device, max(1, size))
        return found


class Contexts:
    """Those that no call is using, the last used first."""

    def __init__(self, device: Device, symbols: int, failures: int) -> None:
        self._given = device, symbols, failures
        self._free: list[Context] = []
        self._lock = threading.Lock()

    def take(self) -> Context:
        with self._lock:
            if self._free:
                return self._free.pop()
        return Context.new(*self._given)

    def on(self, stream: int | None) -> Context:
        """A new one, which never comes back here; on a stream of another library, if one is
        given."""
        return Context.new(*self._given, stream)

    @contextmanager
    def taken(self) -> Generator[Context]:
        """One for a call."""
        with self.given_back(self.take()) as context:
            yield context

    @contextmanager
    def given_back(self, context: Context) -> Generator[Context]:
        """For the rest of a call: it is as it was when that ends, however it does."""
        try:
            yield context
        except BaseException:
            context.abandon()
            raise
        finally:
            self.give(context)

    def give(self, context: Context) -> None:
        with self._lock:
            self._free.append(context)
