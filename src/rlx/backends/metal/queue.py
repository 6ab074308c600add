"""A queue of work on Metal: launches in one encoder after the other, committed when somebody waits.

All queues of a device commit to one command queue of Metal, which runs command buffers in the order
in which they are committed. Dispatches of an encoder are serial: each sees what those before it
wrote. Host and GPU share all memory, so transfers are plain copies when the GPU is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.gpu.device import Array, Graph, Kernel, Queue, StampedGraph
from rlx.backends.metal.errors import run_error
from rlx.backends.metal.launch import Dispatch, Pipeline, dispatch
from rlx.backends.metal.machine import has_address_struct
from rlx.backends.metal.memory import Binding
from rlx.core.dlpack import METAL, ExchangeError

if TYPE_CHECKING:
    from rlx.backends.metal.device import MetalDevice

MAX_RUNNING = 32
"""Command buffers after which those that are done are forgotten."""
MAX_OPEN = 64
"""Dispatches after which an encoder is committed, so that the GPU begins while others follow."""
KEPT_NAMES = 8
"""Kernels that an error names."""


@dataclass(slots=True)
class Commands:
    """A command buffer of Metal, with one encoder."""

    buffer: Any
    encoder: Any
    names: list[str] = field(default_factory=list[str])
    pipeline: Pipeline | None = None
    bound: dict[int, tuple[Any, int]] = field(default_factory=dict[int, tuple[Any, int]])
    """What the encoder has at each index of its argument table."""


class MetalQueue(Queue):
    """Work in order. It is used by one thread at a time, but others may have it committed."""

    def __init__(self, device: MetalDevice, number: int) -> None:
        self.device, self.stream, self.device_id = device, number, (METAL, device.number)
        self._lock = threading.RLock()
        self._open: Commands | None = None
        self._running: list[Commands] = []
        self._recorded: list[Dispatch] | None = None
        self._encoded = 0

    # -- commands --------------------------------------------------------------------------------

    def _commands(self) -> Commands:
        if self._open is None:
            metal = self.device.metal
            buffer = self.device.commands.commandBuffer()
            kind = metal.module.MTLDispatchTypeSerial
            encoder = buffer.computeCommandEncoderWithDispatchType_(kind)
            self._open = Commands(buffer, encoder)
        return self._open

    def commit(self) -> None:
        """What is encoded so far is handed to the GPU."""
        with self._lock, self.device.metal.pool():
            commands, self._open = self._open, None
            if commands is not None:
                commands.encoder.endEncoding()
                commands.buffer.commit()
                self._running.append(commands)
            if len(self._running) > MAX_RUNNING:
                done = self.device.metal.module.MTLCommandBufferStatusCompleted
                self._running = [c for c in self._running if c.buffer.status() != done]

    def encode(self, work: Sequence[Dispatch]) -> None:
        with self._lock, self.device.metal.pool():
            for one in work:
                self._encode(self._commands(), one)

    def _encode(self, commands: Commands, one: Dispatch) -> None:
        """Only what differs from the launch before it is set."""
        encoder = commands.encoder
        if commands.pipeline is not one.pipeline:
            encoder.setComputePipelineState_(one.pipeline.state)
            commands.pipeline = one.pipeline
        bindings = [self.device.regions.binding(a) for a in one.addresses]
        count = len(bindings)
        if has_address_struct(count):
            self._set_struct(commands, bindings)
            count = 1
        else:
            self._set_buffers(commands, bindings)
        if one.sizes:
            self._set_bytes(commands, one.sizes, count)
        size = self.device.metal.module.MTLSize
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(size(*one.grid), size(one.block, 1, 1))
        if len(commands.names) < KEPT_NAMES and one.pipeline.name not in commands.names:
            commands.names.append(one.pipeline.name)

    def _set_buffers(self, commands: Commands, bindings: Sequence[Binding]) -> None:
        for index, found in enumerate(bindings):
            if commands.bound.get(index) != found:
                commands.encoder.setBuffer_offset_atIndex_(*found, index)
                commands.bound[index] = found

    def _set_struct(self, commands: Commands, bindings: Sequence[Binding]) -> None:
        """The GPU's addresses, and the buffers that they are in, which it must hold."""
        module = self.device.metal.module
        usage = module.MTLResourceUsageRead | module.MTLResourceUsageWrite
        addresses = [int(buffer.gpuAddress()) + offset for buffer, offset in bindings]
        for buffer in {id(b): b for b, _ in bindings}.values():
            commands.encoder.useResource_usage_(buffer, usage)
        self._set_bytes(commands, np.asarray(addresses, np.uint64).tobytes(), 0)

    def _set_bytes(self, commands: Commands, given: bytes, index: int) -> None:
        commands.encoder.setBytes_length_atIndex_(given, len(given), index)
        commands.bound.pop(index, None)

    # -- waiting ---------------------------------------------------------------------------------

    def wait(self) -> None:
        with self._lock, self.device.metal.pool():
            self.commit()
            running, self._running = self._running, []
            if running:
                running[-1].buffer.waitUntilCompleted()
            for commands in running:
                self._check(commands)

    def _check(self, commands: Commands) -> None:
        """Command buffers of a queue end in order, so the last one was waited for."""
        if commands.buffer.status() == self.device.metal.module.MTLCommandBufferStatusError:
            raise run_error(tuple(commands.names), commands.buffer.error())

    @property
    def is_idle(self) -> bool:
        with self._lock:
            done = self.device.metal.module.MTLCommandBufferStatusCompleted
            return self._open is None and all(c.buffer.status() >= done for c in self._running)

    def wait_for(self, stream: int) -> None:
        """Work of another queue that was committed runs first."""
        other = self.device.queue_of(stream)
        if other is not None and other is not self:
            other.commit()

    def order(self) -> None:
        """Every launch does."""

    # -- work ------------------------------------------------------------------------------------

    def write(self, address: int, array: Array) -> None:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.wait()
        self.device.regions.bytes_at(address, raw.nbytes)[:] = raw

    def read(self, address: int, array: Array) -> None:
        self.wait()
        found = self.device.regions.bytes_at(address, array.nbytes)
        array.reshape(-1).view(np.uint8)[:] = found

    def view(self, address: int, size: int) -> Array:
        self.wait()
        return self.device.regions.bytes_at(address, size)

    def share(self, address: int) -> None:
        raise ExchangeError(
            "memory of Metal has no address that other libraries know. Use numpy() for a copy, or "
            "np.asarray(array, copy=False) for a view, which is the same memory."
        )

    def copy(self, to: int, address: int, size: int) -> None:
        if size:
            kernel, count = self.device.transfers.copy(to, address, size)
            self.launch(kernel, (address, to), {"n": count})

    def fill(self, address: int, size: int, byte: int) -> None:
        if not size:
            return
        if self._recorded is None and self._open is None and not self._running:
            self.device.regions.bytes_at(address, size).fill(byte)
            return
        self.launch(self.device.transfers.fill, (address,), {"n": size, "byte": byte})

    def launch(self, kernel: Kernel, addresses: Sequence[int], sizes: Mapping[str, int]) -> None:
        one = dispatch(kernel, addresses, sizes)
        if one is None:
            return
        if self._recorded is not None:
            self._recorded.append(one)
            return
        self.encode((one,))
        self._encoded += 1
        if self._encoded % MAX_OPEN == 0:
            self.commit()

    # -- graphs ----------------------------------------------------------------------------------

    def _dispatches(self, enqueue: Callable[[], None]) -> tuple[Dispatch, ...]:
        before, self._recorded = self._recorded, []
        try:
            enqueue()
            return tuple(self._recorded)
        finally:
            self._recorded = before

    def record(self, enqueue: Callable[[], None]) -> Graph:
        return MetalGraph(self, self._dispatches(enqueue))

    def record_stamped(self, parts: Sequence[Callable[[], None]]) -> StampedGraph:
        return MetalStampedGraph(self, tuple(map(self._dispatches, parts)))

    def time_ns(self, enqueue: Callable[[], None]) -> float:
        """From the start of the first command buffer to the end of the last one."""
        self.wait()
        enqueue()
        times = self.timed()
        return times[-1][1] - times[0][0] if times else 0.0

    def timed(self) -> list[tuple[float, float]]:
        """When each command buffer that was not waited for began and ended, in nanoseconds."""
        with self._lock, self.device.metal.pool():
            self.commit()
            buffers = [c.buffer for c in self._running]
            self.wait()
            return [(1e9 * float(b.GPUStartTime()), 1e9 * float(b.GPUEndTime())) for b in buffers]


@dataclass(frozen=True, eq=False)
class MetalGraph(Graph):
    """Launches that are encoded again, in one command buffer: Metal runs each of those once."""

    queue: MetalQueue
    work: tuple[Dispatch, ...]

    def replay(self) -> None:
        self.queue.encode(self.work)
        self.queue.commit()


@dataclass(frozen=True, eq=False)
class MetalStampedGraph(StampedGraph):
    """Each part is a command buffer of its own, of which Metal notes when it began and ended. One
    without launches begins and ends where the one before it does."""

    queue: MetalQueue
    parts: tuple[tuple[Dispatch, ...], ...]

    def replay(self) -> None:
        self.queue.wait()
        for part in self.parts:
            self.queue.encode(part)
            self.queue.commit()

    def stamps_ns(self) -> list[float]:
        times = iter(self.queue.timed())
        stamps, end = list[float](), 0.0
        for part in self.parts:
            start, end = next(times) if part else (end, end)
            stamps.append(start)
        first = next((s for s in stamps if s), 0.0)
        return [max(0.0, s - first) for s in (*stamps, end)]
