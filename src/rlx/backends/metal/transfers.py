"""Copies and fills on the GPU, as SIMT programs: Metal's own copy whole words only, and would end
the encoder that launches are in."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from rlx.backends.gpu.device import VECTOR_BYTES, Kernel
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.program.builder import Builder
from rlx.program.program import Program
from rlx.program.values import Var

if TYPE_CHECKING:
    from rlx.backends.metal.device import MetalDevice

THREADS = 256
WORDS = VECTOR_BYTES // 4


def copy_words() -> Program:
    """Of n vectors of 16 bytes."""
    b = _builder("copy_words")
    x, y = b.input("x", DType.U32), b.output("y", DType.U32)
    at, inside = _element(b)
    with b.when(inside):
        y.store(at * WORDS, x.load(at * WORDS, WORDS))
    return b.program()


def copy_bytes() -> Program:
    b = _builder("copy_bytes")
    x, y = b.input("x", DType.U8), b.output("y", DType.U8)
    at, inside = _element(b)
    with b.when(inside):
        y[at] = x[at]
    return b.program()


def fill_bytes() -> Program:
    """The lowest byte of a size, n times."""
    b = _builder("fill_bytes")
    y = b.output("y", DType.U8)
    at, inside = _element(b)
    byte = b.size("byte", Dim("byte")).to(DType.U8)
    with b.when(inside):
        y[at] = byte
    return b.program()


def _builder(name: str) -> Builder:
    """A thread for each of n."""
    return Builder(name, block=THREADS, grid=((Dim("n") + (THREADS - 1)) // THREADS,))


def _element(b: Builder) -> tuple[Var, Var]:
    """The thread's, and whether there is one."""
    at = b.block_index().to(DType.I64) * THREADS + b.thread.to(DType.I64)
    return at, at < b.size("n", Dim("n")).to(DType.I64)


class Transfers:
    """The kernels of a device, compiled when they are asked for first."""

    def __init__(self, device: MetalDevice) -> None:
        self._device = device

    def _loaded(self, program: Program) -> Kernel:
        (code,) = self._device.assemble([program])
        return self._device.load(code)

    @cached_property
    def _words(self) -> Kernel:
        return self._loaded(copy_words())

    @cached_property
    def _bytes(self) -> Kernel:
        return self._loaded(copy_bytes())

    @cached_property
    def fill(self) -> Kernel:
        return self._loaded(fill_bytes())

    def copy(self, to: int, address: int, size: int) -> tuple[Kernel, int]:
        """A kernel that copies so many bytes, and how many elements it counts."""
        if to % VECTOR_BYTES or address % VECTOR_BYTES or size % VECTOR_BYTES:
            return self._bytes, size
        return self._words, size // VECTOR_BYTES
