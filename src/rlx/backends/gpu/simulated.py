"""A device that is simulated: programs are interpreted on NumPy, with races and bounds checked.

Its code is the text of programs, which is parsed again when it is loaded.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.backends.gpu.capabilities import verify_on
from rlx.backends.gpu.device import (
    ALIGN,
    Array,
    ByteSpan,
    Code,
    Device,
    Graph,
    Kernel,
    Memory,
    Queue,
    StampedGraph,
)
from rlx.backends.gpu.machine import GpuMachine
from rlx.program.errors import LaunchError
from rlx.program.interpret.memory import BufferSpan
from rlx.program.interpret.run import launch
from rlx.program.parse import parse
from rlx.program.program import Program
from rlx.program.text import text

POISON = 0xFF
"""NaN in every float, -1 or the greatest integer: what nobody has written."""
SIMULATED = GpuMachine(
    processors=4,
    shared_bytes=227 << 10,
    tiles=frozenset({"mma", "wgmma"}),
    has_async_copy=True,
    has_bulk_copy=True,
    has_clusters=True,
    has_dependent_launch=True,
)
"""All that any device has, and few processors, so that small problems keep it busy."""


@dataclass(frozen=True)
class SimulatedDevice(Device):
    """Memory is NumPy arrays, by address."""

    machine: GpuMachine = SIMULATED
    clock: Callable[[], int] = time.perf_counter_ns
    """What its time stamps are of: what interpreting takes, as nothing is known of a real device's
    time."""
    _arrays: dict[int, Array] = field(default_factory=dict[int, Array], repr=False)
    _starts: list[int] = field(default_factory=list[int], repr=False)
    _searched: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    _lock: Any = field(default_factory=threading.RLock, repr=False)

    @property
    def searched(self) -> dict[str, Any]:
        return self._searched

    @property
    def name(self) -> str:
        return "simulated"

    @property
    def architecture(self) -> str:
        return "simulated"

    def assemble(self, programs: Iterable[Program]) -> list[Code]:
        """Programs that the machine can run: an error says what it does not have."""
        known = (verify_on(p, self.machine) for p in programs)
        return [Code.of(p, text(p).encode(), p.shared_bytes) for p in known]

    def load(self, code: Code) -> Kernel:
        return Kernel(code, parse(code.binary.decode()))

    def allocate(self, size: int) -> Memory:
        """Behind all that was there before, with a gap: nothing is ever at an address again."""
        with self._lock:
            last = self._starts[-1] if self._starts else 0
            end = last + (self._arrays[last].nbytes if last in self._arrays else ALIGN)
            address = -(-(end + ALIGN) // ALIGN) * ALIGN
            self._arrays[address] = np.full(max(1, size), POISON, np.uint8)
            self._starts.append(address)
            return Memory(address, size)

    def free(self, memory: Memory) -> None:
        with self._lock:
            del self._arrays[memory.address]
            self._starts.remove(memory.address)

    def queue(self, stream: int | None = None) -> Queue:
        return _Queue(self)

    def bytes_at(self, address: int) -> Array:
        """The memory from an address on; none where nothing is there, as of an empty slice."""
        with self._lock:
            found = bisect.bisect_right(self._starts, address) - 1
            start = self._starts[found] if found >= 0 else -1
            array = self._arrays.get(start)
        inside = array is not None and address - start <= array.nbytes
        return array[address - start :] if array is not None and inside else np.empty(0, np.uint8)


@dataclass(frozen=True)
class _Queue(Queue):
    """Work is done when it is enqueued, unless it is recorded."""

    device: SimulatedDevice
    recorded: list[list[Callable[[], None]]] = field(default_factory=list[list[Callable[[], None]]])

    def _do(self, work: Callable[[], None]) -> None:
        if self.recorded:
            self.recorded[-1].append(work)
        else:
            work()

    def write(self, address: int, array: Array) -> None:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._room(address, raw.nbytes)[:] = raw

    def read(self, address: int, array: Array) -> None:
        array.reshape(-1).view(np.uint8)[:] = self._room(address, array.nbytes)

    def copy(self, to: int, address: int, size: int) -> None:
        def work() -> None:
            self._room(to, size)[:] = self._room(address, size)

        self._do(work)

    def fill(self, address: int, size: int, byte: int) -> None:
        self._do(lambda: self._room(address, size).fill(byte))

    def _room(self, address: int, size: int) -> Array:
        found = self.device.bytes_at(address)[:size]
        if found.nbytes < size:
            raise LaunchError(f"{size} bytes at address {address} go beyond their memory.")
        return found

    def order(self) -> None:
        """Every launch does."""

    def launch(self, kernel: Kernel, addresses: Sequence[int], sizes: Mapping[str, int]) -> None:
        """Buffers reach to the end of their memory."""
        self._launch(kernel, addresses, sizes, ())

    def launch_within(
        self,
        kernel: Kernel,
        addresses: Sequence[int],
        sizes: Mapping[str, int],
        spans: Callable[[], Sequence[ByteSpan]],
    ) -> None:
        self._launch(kernel, addresses, sizes, spans())

    def _launch(
        self,
        kernel: Kernel,
        addresses: Sequence[int],
        sizes: Mapping[str, int],
        spans: Sequence[ByteSpan],
    ) -> None:
        program: Program = kernel.handle
        at = dict(zip(kernel.code.buffers, addresses, strict=True))
        within = dict(zip(kernel.code.buffers, spans))
        known = dict(sizes)

        def work() -> None:
            found = {
                b.name: self._typed(at[b.name], b.dtype.numpy, within.get(b.name))
                for b in program.buffers
            }
            arrays = {name: array for name, (array, _) in found.items()}
            ends = {name: BufferSpan(at[name], first) for name, (_, first) in found.items()}
            launch(program, arrays, known, None, ends)

        self._do(work)

    def _typed(self, address: int, dtype: Any, span: ByteSpan | None) -> tuple[Array, int]:
        """Whole elements up to the end, and the first that may be touched."""
        raw = self.device.bytes_at(address)
        size = np.dtype(dtype).itemsize
        first, end = (0, raw.nbytes) if span is None else span
        if end > raw.nbytes:
            raise LaunchError(f"{end} bytes at address {address} go beyond their memory.")
        return raw[: end // size * size].view(dtype), first // size

    def wait(self) -> None:
        return

    def record(self, enqueue: Callable[[], None]) -> Graph:
        self.recorded.append([])
        try:
            enqueue()
        finally:
            works = self.recorded.pop()
        return _Graph(tuple(works))

    def record_stamped(self, parts: Sequence[Callable[[], None]]) -> StampedGraph:
        return _Stamped(tuple(self.record(part) for part in parts), self.device.clock)

    def time_ns(self, enqueue: Callable[[], None]) -> float:
        start = self.device.clock()
        enqueue()
        return float(self.device.clock() - start)


@dataclass(frozen=True)
class _Graph(Graph):
    works: tuple[Callable[[], None], ...]

    def replay(self) -> None:
        for work in self.works:
            work()


@dataclass(frozen=True)
class _Stamped(StampedGraph):
    parts: tuple[Graph, ...]
    clock: Callable[[], int]
    times: list[int] = field(default_factory=list[int])

    def replay(self) -> None:
        self.times[:] = [self.clock()]
        for part in self.parts:
            part.replay()
            self.times.append(self.clock())

    def stamps_ns(self) -> list[float]:
        return [float(t - self.times[0]) for t in self.times]
