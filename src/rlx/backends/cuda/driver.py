"""Single programs on a device, with buffers by name: for experiments and tests of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlx.backends.cuda.device import CudaDevice
from rlx.backends.cuda.ptx.printer import Architecture
from rlx.backends.cuda.staging import Array
from rlx.backends.gpu.device import Kernel, Memory
from rlx.backends.gpu.simt.program import Program


class Driver:
    """One device and one queue."""

    def __init__(self, number: int = 0) -> None:
        self.device = CudaDevice(number)
        self.queue = self.device.queue()

    @property
    def architecture(self) -> Architecture:
        return self.device.generation.architecture

    def load(self, program: Program) -> Kernel:
        """A verified program, assembled."""
        (code,) = self.device.assemble([program])
        return self.device.load(code)

    def allocate(self, size: int) -> Memory:
        return self.device.allocate(size)

    def free(self, memory: Memory) -> None:
        self.device.free(memory)

    def write(self, memory: Memory, array: Array) -> None:
        self.queue.write(memory.address, array)

    def read(self, memory: Memory, array: Array) -> None:
        """Into a contiguous array, at once."""
        self.queue.read(memory.address, array)
        self.queue.wait()

    def launch(
        self, kernel: Kernel, buffers: Mapping[str, Memory], sizes: Mapping[str, int]
    ) -> None:
        """Enqueue a kernel on buffers by name."""
        self.queue.launch(kernel, [buffers[b].address for b in kernel.code.buffers], sizes)

    def wait(self) -> None:
        self.queue.wait()

    def time_ns(self, enqueue: Callable[[], None]) -> float:
        return self.queue.time_ns(enqueue)
