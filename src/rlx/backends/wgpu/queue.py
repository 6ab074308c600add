"""A queue of work on a wgpu device: what it enqueues is in order with all other work there is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.gpu.device import Array, ByteSpan, Graph, Kernel, Queue, StampedGraph
from rlx.backends.wgpu.copies import Moved, copy, fill
from rlx.backends.wgpu.graph import (
    MAX_QUERIES,
    HostStampedGraph,
    Queries,
    WgpuGraph,
    WgpuStampedGraph,
)
from rlx.backends.wgpu.launch import Prepared, prepare
from rlx.backends.wgpu.memory import placed
from rlx.backends.wgpu.readback import Readback
from rlx.backends.wgpu.stream import Command, Transfer
from rlx.core.dlpack import WEBGPU
from rlx.core.errors import Error

if TYPE_CHECKING:
    from rlx.backends.wgpu.device import WgpuDevice

WORD_BYTES = 4
Recorded = Prepared | Moved | Transfer


class WgpuQueue(Queue):
    """One thread at a time enqueues work; beside it others may read what the queue has written,
    and wait for it."""

    def __init__(self, device: WgpuDevice) -> None:
        self.device = device
        self.device_id = WEBGPU, device.number
        self._readback = Readback(device.stream)
        self._reading = threading.RLock()
        self._recorded: list[Recorded] | None = None
        self._is_stamped = False

    # -- copies ----------------------------------------------------------------------------------

    def write(self, address: int, array: Array) -> None:
        self._check_not_recording("write")
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if not raw.nbytes:
            return
        size = raw.nbytes // WORD_BYTES * WORD_BYTES
        if address % WORD_BYTES:
            self._write_through(address, raw)
        elif size == raw.nbytes:
            self._write_words(address, raw)
        elif self.device.buffers.is_whole(address, raw.nbytes):
            self._write_words(address, _padded(raw))
        else:
            if size:
                self._write_words(address, raw[:size])
            self._write_through(address + size, raw[size:])

    def _write_words(self, address: int, raw: Array) -> None:
        number, offset = placed(address)
        self.device.stream.write(self.device.buffers[number], offset, raw)

    def _write_through(self, address: int, raw: Array) -> None:
        """Bytes that are not whole words, by memory of their own and a copy on the device."""
        held = self.device.allocate(raw.nbytes)
        try:
            self._write_words(held.address, _padded(raw))
            self.copy(address, held.address, raw.nbytes)
        finally:
            self.device.free(held)

    def read(self, address: int, array: Array) -> None:
        self._check_not_recording("read")
        if not array.flags.c_contiguous:
            raise Error("results are read into contiguous arrays only; give one that is.")
        if array.nbytes:
            number, offset = placed(address)
            self.read_buffer(self.device.buffers[number], offset, array)

    def read_buffer(self, buffer: Any, offset: int, array: Array) -> None:
        """The same out of a GPU buffer."""
        with self._reading:
            self._readback.read(buffer, offset, array.reshape(-1).view(np.uint8))

    def copy(self, to: int, address: int, size: int) -> None:
        if size:
            in_pass = self._is_stamped
            self._add(list(copy(self.device.buffers, to, address, size, in_pass=in_pass)))

    def fill(self, address: int, size: int, byte: int) -> None:
        if size:
            self._add(list(fill(self.device.buffers, address, size, byte)))

    # -- kernels ---------------------------------------------------------------------------------

    def order(self) -> None:
        """Every launch begins when those before it have ended."""

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
        device = self.device
        given = kernel.handle, kernel.code, addresses, sizes, spans
        made = prepare(device.buffers, device.limits, *given)
        if made is not None:
            self._add([made])

    def _add(self, works: Sequence[Recorded]) -> None:
        """Record commands, or enqueue them now."""
        if self._recorded is not None:
            self._recorded += works
            return
        stream, params = self.device.stream, self.device.params
        for work in works:
            with stream.calls("enqueueing work"):
                if isinstance(work, Transfer):
                    stream.run([work])
                else:
                    slots = params.next(work.params)
                    stream.run([self.device.pipelines.dispatch(work, slots)])

    def enqueue(self, commands: Sequence[Command]) -> None:
        """Of a graph."""
        self._check_not_recording("replay")
        self.device.stream.run(commands)

    # -- graphs ----------------------------------------------------------------------------------

    def record(self, enqueue: Callable[[], None]) -> Graph:
        return self._recorded_graph(enqueue)

    def _recorded_graph(
        self, enqueue: Callable[[], None], *, is_stamped: bool = False
    ) -> WgpuGraph:
        self._check_not_recording("record")
        works = self._recorded = list[Recorded]()
        self._is_stamped = is_stamped
        try:
            enqueue()
        finally:
            self._recorded, self._is_stamped = None, False
        return self._made(works)

    def _made(self, works: Sequence[Recorded]) -> WgpuGraph:
        """A graph of these, with their params on the device."""
        blocks = [w.params for w in works if not isinstance(w, Transfer)]
        slots = self.device.params.taken(blocks) if blocks else []
        given = iter(slots)
        commands = [
            w if isinstance(w, Transfer) else self.device.pipelines.dispatch(w, next(given))
            for w in works
        ]
        return WgpuGraph(self, commands, slots)

    def record_stamped(self, parts: Sequence[Callable[[], None]]) -> StampedGraph:
        has_stamps = self.device.has_stamps and 2 * len(parts) <= MAX_QUERIES
        made = [self._recorded_graph(p, is_stamped=has_stamps) for p in parts]
        return WgpuStampedGraph(self, made) if has_stamps else HostStampedGraph(self, made)

    def _check_not_recording(self, what: str) -> None:
        if self._recorded is not None:
            raise Error(
                f"{what} while work is recorded: a graph holds launches, copies and fills of the "
                "device alone. Do it before or after."
            )

    # -- time ------------------------------------------------------------------------------------

    def wait(self) -> None:
        self._check_not_recording("wait")
        with self._reading:
            self._readback.finish()

    def time_ns(self, enqueue: Callable[[], None]) -> float:
        """By the device's clock, where it has one."""
        if not self.device.has_stamps:
            return self._host_time_ns(enqueue)
        queries = Queries(self, 1)
        with self.device.stream.timed(queries.of_pass(0)):
            enqueue()
        return queries.ticks()[0] * self.device.ns_per_tick

    def _host_time_ns(self, enqueue: Callable[[], None]) -> float:
        self.wait()
        start = time.perf_counter_ns()
        enqueue()
        self.wait()
        return float(time.perf_counter_ns() - start)


def _padded(raw: Array) -> Array:
    """Whole words."""
    return np.concatenate([raw, np.zeros(-raw.nbytes % WORD_BYTES, np.uint8)])
