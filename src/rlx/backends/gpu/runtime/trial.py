"""One launch tried on a device: each of its programs checked against the first, then timed.

Buffers hold random numbers. Weights are read from memory in a run, as others are read between two
uses of them: there are as many copies of them as the last cache does not hold, used in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlx.backends.gpu.device import Array, Device, Kernel
from rlx.backends.gpu.runtime.memory import Block
from rlx.backends.gpu.task import FAILURES, Launch
from rlx.core.dtype import DType
from rlx.program.program import Buffer, Program

PERIOD_BYTES = 1 << 20
"""Random numbers that are drawn; larger buffers repeat them."""
POISON = 0xFF
MAX_COPIES = 8
"""Of weights."""
TOLERANCE: Mapping[DType, float] = {DType.BF16: 2e-2, DType.F16: 3e-3, DType.F32: 1e-4}
"""Of the largest result: sums of the same numbers in another order differ by a few roundings."""
SAMPLE = 1 << 16
"""Results of which the largest counts."""
EXACT = 1e-9
"""The same of wider floats."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    rounds: int = 5
    """The programs take turns, so that what slows the device slows all; the least time counts."""
    round_ns: float = 100_000.0
    """Of launches in a row."""
    min_launches: int = 4
    max_launches: int = 24


@dataclass(frozen=True, slots=True)
class Problem:
    """What a launch is tried on."""

    launch: Launch
    sizes: Mapping[str, int]
    """Of named dims."""
    bytes_of: Mapping[str, int]
    """Of its buffers."""
    weights: frozenset[str]
    """Buffers that no kernel of a call writes."""


class Trial:
    """A launch's buffers on a device."""

    def __init__(
        self, device: Device, problem: Problem, program: Program, effort: Effort | None = None
    ) -> None:
        self.queue, self.problem, self.program = device.queue(), problem, program
        self.effort = effort or Effort()
        self._rng = np.random.default_rng(0)
        held = sum(problem.bytes_of[n] for n in problem.weights)
        wanted = -(-2 * device.cache_bytes // held) if held else 1
        self.copies = max(1, min(MAX_COPIES, wanted))
        self._blocks = {
            b.name: [
                self._filled(device, b) for _ in range(self.copies if self._is_weight(b) else 1)
            ]
            for b in program.buffers
        }

    def close(self) -> None:
        self.queue.wait()
        self.queue.close()
        self._blocks.clear()

    def _is_weight(self, buffer: Buffer) -> bool:
        return buffer.name in self.problem.weights

    def _filled(self, device: Device, buffer: Buffer) -> Block:
        """Random numbers of the buffer's dtype, repeated; nothing failed yet."""
        size = self.problem.bytes_of.get(buffer.name, 4)
        block = Block(device, max(1, size))
        if buffer.is_written:
            self.queue.fill(block.address, max(1, size), 0)
            return block
        drawn = self._numbers(buffer.dtype, min(size, PERIOD_BYTES))
        done = drawn.nbytes
        if done:
            self.queue.write(block.address, drawn)
        while 0 < done < size:
            more = min(done, size - done)
            self.queue.copy(block.address + done, block.address, more)
            done += more
        return block

    def _numbers(self, dtype: DType, size: int) -> Array:
        count = size // dtype.itemsize
        if dtype.is_float:
            drawn = self._rng.standard_normal(count, np.float32).astype(dtype.numpy)
        elif dtype.is_complex:
            drawn = self._rng.standard_normal(2 * count).view(np.complex128).astype(dtype.numpy)
        elif dtype.itemsize == 1 and dtype is not DType.BOOL:
            drawn = self._rng.integers(0, 256, count, np.uint8)
        else:  # places of gathers, among others: in range for most
            drawn = self._rng.integers(0, 2, count).astype(dtype.numpy)
        raw = np.zeros(size, np.uint8)
        raw[: drawn.nbytes] = drawn.view(np.uint8)
        return raw

    # -- results ---------------------------------------------------------------------------------

    def results(self, kernel: Kernel) -> dict[str, Array]:
        """What it writes, over memory that holds NaN."""
        written = [b for b in self.program.buffers if b.is_written and b.name != FAILURES]
        for buffer in written:
            block = self._blocks[buffer.name][0]
            self.queue.fill(block.address, block.size, POISON)
        self._launch(kernel, 0)
        found: dict[str, Array] = {}
        for buffer in written:
            block = self._blocks[buffer.name][0]
            found[buffer.name] = np.empty(block.size, np.uint8)
            self.queue.read(block.address, found[buffer.name])
        self.queue.wait()
        return found

    def are_close(self, first: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
        """Do results differ by no more than another order of sums makes them?"""
        return all(
            _are_close(first[b.name], other[b.name], b.dtype)
            for b in self.program.buffers
            if b.name in first
        )

    # -- times -----------------------------------------------------------------------------------

    def times_ns(self, kernels: Sequence[Kernel]) -> list[float]:
        """Of one launch of each among several in a row."""
        effort, predicted = self.effort, max(1.0, self.problem.launch.predicted_ns)
        least = max(effort.min_launches, self.copies, effort.round_ns / predicted)
        count = int(min(effort.max_launches, least))
        graphs = [self.queue.record(self._several(k, count)) for k in kernels]
        times = [list[float]() for _ in kernels]
        for graph in graphs:
            graph.replay()
        for _ in range(effort.rounds):
            for graph, taken in zip(graphs, times):
                taken.append(self.queue.time_ns(graph.replay) / count)
        for graph in graphs:
            graph.close()
        return list(map(min, times))

    def _several(self, kernel: Kernel, count: int) -> Callable[[], None]:
        def enqueue() -> None:
            for turn in range(count):
                self._launch(kernel, turn)

        return enqueue

    def _launch(self, kernel: Kernel, turn: int) -> None:
        blocks = [self._blocks[name] for name in kernel.code.buffers]
        addresses = [held[turn % len(held)].address for held in blocks]
        self.queue.launch(kernel, addresses, self.problem.sizes)


def _are_close(first: Array, other: Array, dtype: DType) -> bool:
    if not dtype.is_float:
        return bool(np.array_equal(first, other))
    whole = first.size // dtype.itemsize * dtype.itemsize
    raw = [x[:whole].view(f"u{dtype.itemsize}") for x in (first, other)]
    at = np.flatnonzero(raw[0] != raw[1])  # few, and those alone are converted
    a, b = (x[at].view(dtype.numpy).astype(np.float64) for x in raw)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return False
    sample = raw[0][:: max(1, raw[0].size // SAMPLE)].view(dtype.numpy).astype(np.float64)
    largest = np.max(np.abs(np.nan_to_num(sample)), initial=0.0)
    apart = np.max(np.abs(np.nan_to_num(a) - np.nan_to_num(b)), initial=0.0)
    return bool(apart <= largest * TOLERANCE.get(dtype, EXACT))
