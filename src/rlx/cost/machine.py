"""The machine model: what prices, layouts, schedules and task sizes know of the hardware.

A target holds one `Machine`, and nothing else describes its hardware. The documented values below
are generic, the same everywhere; a backend replaces what its instruction set or device fixes, and a
calibration what it measured (`rlx.cost.calibrate`).

    launch, round trip, main memory, transfer to the host      gate
    arithmetic                                                 peak_gflops
    caches, and copies that transpose                          caches, transpose_gb_s
    vectors: lanes, registers                                  vector_bytes, vector_registers
    throughput per class of op                                 instructions
    parallel tasks: fork-join, and what one worker reaches     fork_join_ns, task_ns, worker_…
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlx.core.dim import DimLike, dim_max, dim_min
from rlx.core.dtype import DType
from rlx.cost.gate import IoFusionGate
from rlx.ops.cost import OpClass, Work

KB, MB = 1 << 10, 1 << 20
_MAX_UNITS = 1 << 40
"""More than any task has."""


INSTRUCTIONS: Mapping[OpClass, int] = {
    OpClass.ARITHMETIC: 1, OpClass.DIVISION: 8, OpClass.EXPONENTIAL: 20, OpClass.LOGARITHM: 36,
    OpClass.HYPERBOLIC: 27, OpClass.ERROR_FUNCTION: 34, OpClass.TRIGONOMETRIC: 58,
    OpClass.REMAINDER: 64, OpClass.ARCTANGENT: 160, OpClass.ERROR_TAIL: 190, OpClass.POWER: 240,
}  # fmt: skip
"""Of a machine with masked vectors and an instruction that scales by powers of two: counted in
single-precision code for AVX-512, and where code branches, timed against such a count."""


@dataclass(frozen=True, slots=True)
class CacheLevel:
    """A cache: its capacity and bandwidth."""

    bytes: int
    gb_s: float


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware of a target. GB/s are bytes per nanosecond, GFLOP/s flops per nanosecond."""

    gate: IoFusionGate
    """Launches, round trips, main memory, and transfers to the caller."""
    peak_gflops: Mapping[DType, float]
    """Of multiply-adds, two flops each, by all workers together."""
    caches: tuple[CacheLevel, ...]
    """Nearest first."""
    vector_bytes: int = 16
    """The width of a vector register; vectors are loaded at unit stride, so layouts matter."""
    vector_registers: int = 32
    has_fma: bool = True
    """Else a product takes a register of its own before it is added."""
    has_dot_products: bool = True
    """Does one instruction sum products of adjacent small integers?"""
    instructions: Mapping[OpClass, int] = field(default_factory=lambda: INSTRUCTIONS)
    """Vector instructions of one op of a class, each as long as a multiply-add. Two flops are one
    multiply-add."""
    transpose_gb_s: float = 25.0
    """Bandwidth of a transposing copy, read and written: a vector's numbers come from as many cache
    lines, half of which are evicted before they are used again."""
    fork_join_ns: float = 5_000.0
    """What starting and joining the workers of a parallel kernel takes."""
    task_ns: int = 4_000
    """Work that a worker takes at a time."""
    worker_flops_per_ns: int = 64
    """What kernels reach on one worker, roughly: the scale of task sizes, not a peak."""
    worker_bytes_per_ns: int = 16

    def __hash__(self) -> int:
        return hash((self.vector_bytes, self.vector_registers, self.caches, self.fork_join_ns))

    # -- rates -------------------------------------------------------------------------------------

    def gflops(self, dtype: DType) -> float:
        """The peak rate in `dtype`."""
        return self.peak_gflops.get(dtype, self.peak_gflops[DType.F32])

    def peak_flops(self, work: Work) -> DimLike:
        """Work in the unit of the peak rate: what multiply-adds of so many flops would take."""
        total: DimLike = work.get(OpClass.MULTIPLY_ADD, 0)
        for each, count in work.items():
            if each is not OpClass.MULTIPLY_ADD:
                total = total + 2 * self.instructions[each] * count
        return total

    def memory_gb_s(self, working_set_bytes: int) -> float:
        """The bandwidth of the smallest cache that holds the working set; else main memory's."""
        for level in self.caches:
            if working_set_bytes <= level.bytes:
                return level.gb_s
        return self.gate.memory_gb_s

    def transpose_gb_s_for(self, working_set_bytes: int) -> float:
        """The same of a transposing copy, which is never faster than a sequential one."""
        return min(self.transpose_gb_s, self.memory_gb_s(working_set_bytes))

    @property
    def second_level_gb_s(self) -> float:
        """The bandwidth behind the nearest cache."""
        return self.memory_gb_s(self.caches[0].bytes + 1 if self.caches else 0)

    # -- caches ------------------------------------------------------------------------------------

    @property
    def row_bytes(self) -> int:
        """A row up to this size stays cached while it is read again: a quarter of the second
        level."""
        return self.caches[min(1, len(self.caches) - 1)].bytes // 4 if self.caches else 0

    @property
    def cache_bytes(self) -> int:
        """The last cache."""
        return self.caches[-1].bytes if self.caches else 0

    # -- vectors -----------------------------------------------------------------------------------

    def lanes(self, dtype: DType) -> int:
        """Values of a dtype, as it is computed with, that fill one register."""
        return max(1, self.vector_bytes // dtype.compute.itemsize)

    @property
    def register_tiles(self) -> tuple[tuple[int, int], ...]:
        """(accumulator rows, vectors) of the register tiles of a matrix product, widest first."""
        return register_tiles(self.vector_registers, has_fma=self.has_fma)

    # -- parallel tasks ----------------------------------------------------------------------------

    @property
    def split_ns(self) -> int:
        """Work below this is done by one worker: starting and joining others takes as long."""
        return int(2 * self.fork_join_ns)

    def worker_ns(self, flops: DimLike, traffic_bytes: DimLike) -> DimLike:
        """What work takes on one worker, roughly: the longer of arithmetic and memory."""
        return dim_max(flops // self.worker_flops_per_ns, traffic_bytes // self.worker_bytes_per_ns)

    def units_per_task(self, units: DimLike, ns: DimLike) -> DimLike:
        """How many of `units` a worker takes at a time, when all of them take `ns` on one. Where
        that is little, all of them."""
        taken = dim_max(1, units * self.task_ns // dim_max(1, ns))
        if isinstance(ns, int):
            return units if ns < self.split_ns else taken
        return dim_max(taken, dim_min(units, self.split_ns // (ns + 1) * _MAX_UNITS))


def register_tiles(registers: int, *, has_fma: bool) -> tuple[tuple[int, int], ...]:
    """(rows, vectors), widest first. A tile of r rows and v vectors holds r·v accumulators, v
    vectors of one operand and a broadcast of the other; without multiply-adds, products too."""
    if registers >= 32:
        return ((6, 4), (8, 3), (12, 2), (12, 1))
    return ((6, 2), (8, 1)) if has_fma else ((4, 2), (8, 1))


# -- documented machines ---------------------------------------------------------------------------


def _rates(f32: float, f64: float, half: float) -> Mapping[DType, float]:
    """Peak GFLOP/s; a complex product is four real ones, which its flop count already says."""
    return {
        DType.F32: f32, DType.C64: f32, DType.F64: f64, DType.C128: f64,
        DType.F16: half, DType.BF16: half,
    }  # fmt: skip


# Gates: dispatch, round trip, memory, readback, unified, thunk penalty, minimum gain.
_CPU_GATE = IoFusionGate(50, 0, 50, 50, True, 0, 0)
_APPLE_GATE = IoFusionGate(500, 5_000, 200, 200, True, 2e6, 1_000)
_DISCRETE_GATE = IoFusionGate(2_000, 20_000, 800, 50, False, 15e6, 5_000)
_REMOTE_GATE = IoFusionGate(3_000, 30_000, 100, 40, False, 25e6, 10_000)
_SOFTWARE_GATE = IoFusionGate(15_000, 200_000, 10, 8, False, 0, 10_000)

_CPU_CACHES = (CacheLevel(32 * KB, 400), CacheLevel(MB, 200), CacheLevel(32 * MB, 100))
_APPLE_CACHES = (CacheLevel(16 * MB, 400),)

DOCUMENTED: Mapping[str, Machine] = {
    "cpu": Machine(_CPU_GATE, _rates(200, 100, 200), _CPU_CACHES),
    "cuda": Machine(
        _DISCRETE_GATE, _rates(12_000, 6_000, 100_000), (CacheLevel(40 * MB, 3_000),),
        transpose_gb_s=600,
    ),
    "rocm": Machine(
        _DISCRETE_GATE, _rates(20_000, 20_000, 150_000), (CacheLevel(8 * MB, 3_000),),
        transpose_gb_s=600,
    ),
    "metal": Machine(_APPLE_GATE, _rates(5_000, 5_000, 10_000), _APPLE_CACHES),
    "mlx": Machine(_APPLE_GATE, _rates(5_000, 100, 10_000), _APPLE_CACHES),
    "wgpu": Machine(_REMOTE_GATE, _rates(2_000, 2_000, 2_000), (CacheLevel(4 * MB, 200),)),
    "tpu": Machine(_REMOTE_GATE, _rates(20_000, 500, 100_000), (CacheLevel(16 * MB, 1_000),)),
}  # fmt: skip
"""By target: a processor with vectors of 128 bits, and a device of each kind."""

SOFTWARE_GPU = Machine(_SOFTWARE_GATE, _rates(30, 30, 30), (), transpose_gb_s=1)
"""A driver that runs shaders on some cores of the host: between what was measured of lavapipe and
of SwiftShader on two. A synchronisation costs its round trip and no more."""
