"""What schedules for a GPU depend on: the sizes of its groups of threads, and its capabilities.

Capabilities select the form of a kernel before it is built, so that no printer has to emulate one.
The defaults are those of any GPU with warps of 32; a target states its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlx.core.dtype import DType

TileKind = Literal["mma", "wgmma", "mfma", "wmma", "simdgroup"]
"""Matrix instructions: of a warp, or of four warps out of shared memory (NVIDIA); of a wave (AMD:
mfma of data-centre chips, wmma of the others); of a simdgroup (Apple)."""

LANES = 32
"""Of a machine whose warps are not known: no GPU has wider accesses than 32 threads fill."""


@dataclass(frozen=True, slots=True)
class GpuMachine:
    """The numbers and capabilities of a device that a choice depends on."""

    warp: int = 32
    """Threads that exchange values without shared memory; 1 where programs cannot count on any:
    each thread then is a warp of its own."""
    block: int = 256
    """Threads of a block where nothing else asks for more or fewer."""
    max_block: int = 512
    vector_bytes: int = 16
    staged_vectors: int = 8
    """Vectors of a row that a thread keeps in registers."""
    stream_bytes: int = 128
    """Of a matrix that is read once, that each thread has on their way before it waits."""
    transfer_bytes: int = 32
    """Neighbouring bytes below which memory is not read at its full rate."""
    warp_row: int = 256
    """Elements up to which a row is one warp's."""
    thread_column: int = 16
    """Elements up to which a column is one thread's."""
    clock_ghz: float = 1.7
    """Under load: by which cycles are times."""
    processors: int = 64
    """Multiprocessors, or compute units: how many blocks make the device busy."""
    launch_bytes: int = 128 << 10
    """That one multiprocessor reads in the time that another launch costs."""
    shared_bytes: int = 48 << 10
    """Of shared memory that one block may have."""
    barrier_cycles: int = 40
    """Of a barrier, to each thread of a block: hundreds of instructions where a host's thread runs
    all threads of a block in turn."""
    load_cycles: int = 20
    """That shared memory saves of a load from global memory: none where both are the host's."""
    simd: int = 32
    """Threads that one instruction is for."""
    index_bits: Literal[32, 64] = 64
    """Of indices of elements: 32 where every buffer is below 2 GiB and wider integers are slow."""
    has_f64: bool = True
    """Floats of 64 bits."""
    tiles: frozenset[TileKind] = frozenset()
    """Matrix instructions."""
    has_async_copy: bool = False
    """Copies from global to shared memory that threads need not wait for."""
    has_bulk_copy: bool = False
    """A copy engine that moves boxes of tensors."""
    has_clusters: bool = False
    """Blocks that reach each other's shared memory."""
    has_dependent_launch: bool = False
    """A kernel may begin before the one it depends on has ended."""
    arriving: int = 1
    """Lanes of a warp that arrive at an mbarrier behind a barrier of the warp: one does so for all.
    Tools that do not see what such a barrier orders need all of them."""

    def pays_barrier(self, loads: int) -> bool:
        """Is a barrier cheaper than so many loads of each thread from global memory, which it lets
        shared memory serve?"""
        return loads * self.load_cycles >= self.barrier_cycles

    @property
    def wide_float(self) -> DType:
        """The widest float, for what is summed or made once more precisely than it is stored."""
        return DType.F64 if self.has_f64 else DType.F32

    @property
    def count_dtype(self) -> DType:
        """Of counts of elements, and of indices that are not known to fit in 32 bits."""
        return DType.I64 if self.index_bits == 64 else DType.I32

    @property
    def lanes(self) -> int:
        """Neighbouring threads that access memory together, whether they form a warp or not."""
        return lanes_of(self.warp)


def lanes_of(warp: int) -> int:
    """Threads of a warp; as many as access memory together where each is a warp of its own."""
    return warp if warp > 1 else LANES
