"""What kernels cost on a device: launches in a graph, calls, bytes, arithmetic, products.

Everything is timed by the device's own clock on graphs of our kernels, as those are what runs; the
least time counts, since what disturbs only ever adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlx.backends.gpu.device import Array, Device, Graph, Kernel, Memory, Queue
from rlx.backends.gpu.runtime import probes
from rlx.core.dtype import DType
from rlx.cost.calibrate import Numbers, Progress
from rlx.cost.machine import CacheLevel
from rlx.program.program import Program
from rlx.program.verify import verify

F32, F64, F16, BF16 = DType.F32, DType.F64, DType.F16, DType.BF16


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    repeats: int = 20
    short: int = 4
    long: int = 36
    """Kernels of the two chains: what one more takes is the slope."""
    memory_bytes: int = 1 << 28
    """Copied at least, and four times the last cache."""
    readback_bytes: int = 16 << 20
    steps: int = 2048
    """Of arithmetic."""
    blocks: int = 8
    """Of each processor."""


class _Probe:
    """One device under measurement."""

    def __init__(self, device: Device, effort: Effort) -> None:
        self.device, self.effort = device, effort
        self.queue: Queue = device.queue()

    @cached_property
    def copy(self) -> Kernel:
        return self.load(probes.copying(self.device.machine))

    def load(self, program: Program) -> Kernel:
        (code,) = self.device.assemble([verify(program)])
        return self.device.load(code)

    def graph(self, kernel: Kernel, addresses: list[int], count: int, **sizes: int) -> Graph:
        def enqueue() -> None:
            for _ in range(count):
                self.queue.launch(kernel, addresses, sizes)

        return self.queue.record(enqueue)

    def least_ns(self, graph: Graph) -> float:
        graph.replay()
        return min(self.queue.time_ns(graph.replay) for _ in range(self.effort.repeats))

    def ns(self, kernel: Kernel, addresses: list[int], **sizes: int) -> float:
        """Of one launch among several."""
        graph = self.graph(kernel, addresses, 4, **sizes)
        try:
            return max(1.0, self.least_ns(graph) / 4)
        finally:
            graph.close()

    def host_ns(self, call: Callable[[], None]) -> float:
        """The least time of a call on the host's clock."""
        times: list[int] = []
        for _ in range(self.effort.repeats):
            start = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - start)
        return float(max(1, min(times)))

    def filled(self, size: int) -> Memory:
        memory = self.device.allocate(size)
        self.queue.fill(memory.address, size, 0)
        return memory

    # -- what is measured ------------------------------------------------------------------------

    def launches(self) -> float:
        """One more small kernel in a graph."""
        effort, memory = self.effort, self.filled(8 * probes.CHUNK)
        at = [memory.address, memory.address + 4 * probes.CHUNK]
        long, short = (
            self.least_ns(self.graph(self.copy, at, n, n=1)) for n in (effort.long, effort.short)
        )
        self.device.free(memory)
        return max(1.0, (long - short) / (effort.long - effort.short))

    def roundtrip(self) -> float:
        """A small kernel, and its result on the host."""
        memory, found = self.filled(8 * probes.CHUNK), np.empty(1, np.float32)
        at = [memory.address, memory.address + 4 * probes.CHUNK]

        def call() -> None:
            self.queue.launch(self.copy, at, {"n": 1})
            self.queue.read(at[1], found)
            self.queue.wait()

        taken = self.host_ns(call)
        self.device.free(memory)
        return taken

    def bandwidth(self, size: int) -> float:
        """GB/s of a copy that reads and writes so many bytes together."""
        chunks = max(1, size // (8 * probes.CHUNK))
        half = chunks * 4 * probes.CHUNK
        memory = self.filled(2 * half)
        taken = self.ns(self.copy, [memory.address, memory.address + half], n=chunks)
        self.device.free(memory)
        return 2 * half / taken

    def transposed(self, size: int) -> float:
        side = max(1, int((size / 8) ** 0.5) // probes.TILE) * probes.TILE
        half = 4 * side * side
        memory = self.filled(2 * half)
        kernel = self.load(probes.transposing())
        taken = self.ns(kernel, [memory.address, memory.address + half], r=side, c=side)
        self.device.free(memory)
        return 2 * half / taken

    def readback(self, size: int) -> float:
        memory, found = self.filled(size), np.empty(size, np.uint8)

        def call() -> None:
            self.queue.read(memory.address, found)
            self.queue.wait()

        taken = self.host_ns(call)
        self.device.free(memory)
        return size / taken

    def multiply_adds(self, dtype: DType) -> float:
        """GFLOP/s of a thread's own arithmetic."""
        each = 2 * probes.CHAINS * probes.BLOCK
        return self._rate(probes.multiply_adding(dtype), dtype.itemsize, each)

    def products(self, dtype: DType) -> float:
        """GFLOP/s of matrix instructions, the widest that there are."""
        if "wgmma" in self.device.machine.tiles:
            each = 2 * 2 * 64 * probes.COLUMNS * probes.DEPTH
            x = probes.factors(dtype)
            return self._rate(probes.warpgroup_multiplying(dtype), 4, each, x)
        warps = probes.BLOCK // 32
        return self._rate(probes.multiplying(dtype), 4, warps * probes.PRODUCTS * 2 * 16 * 8 * 16)

    def _rate(self, program: Program, itemsize: int, flops: int, *given: Array) -> float:
        """`flops` are those of a step of a block."""
        blocks, steps = self.effort.blocks * self.device.machine.processors, self.effort.steps
        held = [self.device.allocate(a.nbytes) for a in given]
        for memory, array in zip(held, given):
            self.queue.write(memory.address, array)
        held.append(self.device.allocate(blocks * program.block * itemsize))
        at = [memory.address for memory in held]
        taken = self.ns(self.load(program), at, blocks=blocks, steps=steps)
        for memory in held:
            self.device.free(memory)
        return flops * blocks * steps / taken


def measure(
    device: Device, progress: Progress, effort: Effort | None = None
) -> tuple[Numbers, ...]:
    """The device's numbers; a host's threads have no part in them."""
    probe = _Probe(device, effort or Effort())
    made = _Measured(probe, progress)
    try:
        return (made.numbers(),)
    finally:
        probe.queue.close()


class _Measured:
    """All of it, in steps that are reported."""

    def __init__(self, probe: _Probe, progress: Progress) -> None:
        self.probe, self._progress, self._done = probe, progress, 0
        self.has_tiles = bool(probe.device.machine.tiles & {"mma", "wgmma"})
        self.floats = (F32, F64) if probe.device.machine.has_f64 else (F32,)
        self.total = 5 + len(self.floats) + 2 * self.has_tiles + bool(probe.device.cache_bytes)

    def step(self, what: str) -> None:
        self._progress(self._done, self.total, what)
        self._done += 1

    def numbers(self) -> Numbers:
        probe, cache = self.probe, self.probe.device.cache_bytes
        self.step("launches in a graph")
        dispatch = probe.launches()
        self.step("round trips")
        roundtrip = probe.roundtrip()
        caches = self._caches(cache)
        self.step("memory")
        size = max(probe.effort.memory_bytes, 4 * cache)
        memory = probe.bandwidth(size)
        self.step("results")
        readback = probe.readback(probe.effort.readback_bytes)
        self.step("transposed copies")
        transposed = probe.transposed(size)
        rates = self._rates()
        return Numbers(
            1, dispatch, roundtrip, dispatch, caches, memory, readback, transposed, rates
        )

    def _caches(self, size: int) -> tuple[CacheLevel, ...]:
        """The last one: half of it is copied to and fro."""
        if not size:
            return ()
        self.step("cache")
        return (CacheLevel(size, self.probe.bandwidth(size // 2)),)

    def _rates(self) -> dict[DType, float]:
        """A complex product is four real ones, which its flops count."""
        found: dict[DType, float] = {}
        for dtype in self.floats:
            self.step(f"arithmetic in {dtype}")
            found[dtype] = self.probe.multiply_adds(dtype)
        for dtype in (F16, BF16):
            found[dtype] = found[F32]
            if self.has_tiles:
                self.step(f"products in {dtype}")
                found[dtype] = self.probe.products(dtype)
        parts = {DType.C64: F32, DType.C128: F64}
        return found | {c: found[part] for c, part in parts.items() if part in found}
