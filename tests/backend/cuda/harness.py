"""A CUDA device with a queue, and a kernel whose order shows in every bit, for checks on a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.backends.cuda.device import CudaDevice
from rlx.backends.gpu.device import Kernel, Memory
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.program.builder import Builder
from rlx.program.program import Program
from rlx.program.verify import verify

Array = np.ndarray[Any, Any]
I32 = DType.I32
RNG = np.random.default_rng(int(time.time()))
F32_EPS = 2.0**-24


class Run:
    """A device with a queue, and kernels on NumPy arrays."""

    def __init__(self, device: CudaDevice | None = None) -> None:
        self.device = device or CudaDevice()
        self.queue = self.device.queue()

    def load(self, program: Program) -> Kernel:
        return self.device.load(self.device.assemble([verify(program)])[0])

    def put(self, array: Array) -> Memory:
        memory = self.device.allocate(array.nbytes)
        self.queue.write(memory.address, array)
        return memory

    def get(self, memory: Memory, like: Array) -> Array:
        made = np.empty_like(like)
        self.queue.read(memory.address, made)
        self.queue.wait()
        return made

    def repeated(
        self, kernel: Kernel, pairs: Sequence[Sequence[int]], **sizes: int
    ) -> Callable[[], None]:
        """Launches on pairs of addresses, one behind the other."""

        def enqueue() -> None:
            for pair in pairs:
                self.queue.launch(kernel, pair, sizes)

        return enqueue

    def kernel(self, program: Program, *arrays: Array, **sizes: int) -> list[Array]:
        """The buffers after a launch."""
        kernel, held = self.load(program), [self.put(a) for a in arrays]
        self.queue.launch(kernel, [m.address for m in held], sizes)
        made = [self.get(m, a) for m, a in zip(held, arrays)]
        for memory in held:
            self.device.free(memory)
        return made


def step(name: str = "step", block: int = 128) -> Program:
    """y = 3 x + 1 on i32, which wraps: order matters, and every bit counts. It begins before the
    kernel before it ends."""
    n = Dim("n")
    b = Builder(name, block=block, grid=((n + block - 1) // block,))
    x, y, count = b.input("x", I32, n), b.output("y", I32, n), b.size("n", n)
    b.release_dependents()
    i = b.block_index() * block + b.thread
    b.wait_dependencies()
    with b.when(i < count):
        y[i] = x[i] * 3 + 1
    return b.program()


def stepped(x: Array, count: int) -> Array:
    with np.errstate(over="ignore"):
        for _ in range(count):
            x = x * np.int32(3) + np.int32(1)
    return x


def host_us(f: Callable[[], Any], wait: Callable[[], None], count: int = 100) -> float:
    """What a call costs the host, in µs."""
    found: list[float] = []
    for _ in range(15):
        wait()
        start = time.perf_counter_ns()
        for _ in range(count):
            f()
        found.append((time.perf_counter_ns() - start) / count / 1e3)
    return statistics.median(found)
