"""How a product runs on matrix instructions of four warps, out of shared memory that a copy engine
fills.

As many blocks as there are processors take tiles of the result in turn. One thread of a block keeps
the copy engine busy, several stages ahead; two groups of four warps multiply, each half of the
tile's rows, the next stage under way before the one before is done.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.mma import ceil_div, typical
from rlx.backends.gpu.schedule.product import Operand, Product, copied, stride_of
from rlx.core.dim import DimLike, exact_div
from rlx.core.dim import product as count_of
from rlx.kernel.expr import Accumulator, Axis
from rlx.kernel.refusal import Refusal

DEPTH = 64
"""Inner positions of a stage: lines of 128 bytes."""
GROUP_ROWS = 64
"""Of the matrix that four warps multiply."""
GROUPS = 2
UNIT = 8
"""Half floats of 16 bytes: where the copy engine's matrices and their rows may start."""
SUMS_BYTES = 256
"""Of a row of finished sums in shared memory: as many columns as that are stored in a pass."""
SUMS_PAD_BYTES = 16
RESERVED_BYTES = 1024
"""Of shared memory, for barriers and alignment."""


@dataclass(frozen=True, slots=True)
class BulkOperand:
    """An operand as a matrix that the copy engine reads."""

    operand: int
    dims: tuple[DimLike, DimLike]
    """Lines and their elements."""
    pitch: DimLike
    offset: DimLike
    batch: tuple[tuple[Axis, DimLike], ...]
    """Lines that a step of each axis moves by."""


@dataclass(frozen=True, slots=True)
class WgmmaSchedule:
    """One way to run a product."""

    columns: int
    """Of a tile; it has 128 rows."""
    stages: int
    left: BulkOperand | None
    """As the copy engine reads it; none where the threads of four warps copy it."""
    right: BulkOperand | None
    blocks: int
    """At most, as each takes tiles until none is left."""
    sums_bytes: int = 2
    """Of a finished sum in shared memory."""
    constants: frozenset[int] = frozenset()
    is_dependent: bool = False
    warp: int = 32
    flight: int = 1
    """Products of a group that are under way while the next is requested."""

    @property
    def rows(self) -> int:
        return GROUPS * GROUP_ROWS

    @property
    def block(self) -> int:
        """Threads: those that multiply, and four warps that copy, or one thread of them."""
        return (GROUPS + 1) * 4 * self.warp

    @property
    def chunk(self) -> int:
        """Columns that are stored in a pass."""
        return min(self.columns, SUMS_BYTES // self.sums_bytes)

    @property
    def pitch(self) -> int:
        """Of rows of finished sums."""
        return self.chunk + SUMS_PAD_BYTES // self.sums_bytes

    @property
    def shared_bytes(self) -> int:
        stage = 2 * DEPTH * (self.rows + self.columns)
        return self.stages * stage + self.rows * self.pitch * self.sums_bytes + RESERVED_BYTES

    @property
    def is_bulk(self) -> bool:
        """Does the copy engine fill all stages?"""
        return self.left is not None and self.right is not None

    @property
    def lag(self) -> int:
        """Stages that threads have under way before they wait for the first of them; the others
        are there for products when threads wait."""
        return max(1, min(3, self.stages - 2))

    @property
    def registers(self) -> tuple[int, int] | None:
        """Of threads that copy and of those that multiply, where an even share is too few."""
        if self.is_bulk:
            return 40, 232
        return (88, 208) if self.columns > 128 else None

    @property
    def order(self) -> Hashable:
        """In which sums are added up: that of inner positions, whatever the tiles."""
        return "wgmma"

    @property
    def text(self) -> str:
        """In a few words, for reports."""
        tile = f"{self.rows}x{self.columns}x{DEPTH}"
        how = "bulk copies" if self.is_bulk else "copies by threads"
        return f"tiles of {tile} by groups of four warps, {self.stages} stages of {how}"


COLUMNS = (256, 128, 64)
STAGES = (8, 6, 5, 4, 3)
BYTES_PER_CYCLE = 33
"""Of stages that are filled and multiplied: what is reached with tiles of any size."""
START_CYCLES = 3500
"""From the start of a block to its first products, and from its last ones to the end."""


def choose(
    product: Product, machine: GpuMachine, constants: frozenset[int] = frozenset()
) -> WgmmaSchedule | Refusal:
    """The schedule that is predicted to take the fewest cycles, or why there is none."""
    found = candidates(product, machine, constants)
    if isinstance(found, Refusal):
        return found
    return min(found, key=lambda w: cycles(product, w, machine))


def candidates(
    product: Product, machine: GpuMachine, constants: frozenset[int] = frozenset()
) -> list[WgmmaSchedule] | Refusal:
    """Every way that is considered, or why there is none."""
    if "wgmma" not in machine.tiles or not machine.has_bulk_copy:
        return Refusal("the device has no products out of shared memory")
    sides: list[BulkOperand | None] = []
    for operand in (product.left, product.right):
        bulk = bulk_operand(product, operand)
        if isinstance(bulk, Refusal) and (operand.source is None or operand.unit < UNIT):
            return bulk
        sides.append(None if isinstance(bulk, Refusal) else bulk)
    size = max((s.dtype.itemsize for s in _sums(product)), default=2)
    rest = (machine.processors, size, constants, machine.has_dependent_launch)
    left, right = sides
    ways = [
        next((w for w in tried if w.shared_bytes <= machine.shared_bytes), None)
        for tried in ([WgmmaSchedule(c, s, left, right, *rest) for s in STAGES] for c in COLUMNS)
    ]
    fitting = [w for w in ways if w is not None]
    if not fitting:
        return Refusal("its stages do not fit shared memory")
    return fitting


def _sums(product: Product) -> Sequence[Accumulator]:
    return [n for n in product.contract.epilogue if isinstance(n, Accumulator)]


def cycles(product: Product, schedule: WgmmaSchedule, machine: GpuMachine) -> float:
    """A prediction: the tiles of a processor one after the other."""
    batch, rows, columns, inner = (typical(d) for d in product.sizes)
    tiles = batch * ceil_div(rows, schedule.rows) * ceil_div(columns, schedule.columns)
    stage = 2 * DEPTH * (schedule.rows + schedule.columns)
    stored = 12 * schedule.rows * schedule.columns / 128
    each = ceil_div(inner, DEPTH) * stage / BYTES_PER_CYCLE + stored
    return START_CYCLES + ceil_div(tiles, machine.processors) * each


def bulk_operand(product: Product, operand: Operand) -> BulkOperand | Refusal:
    """An operand whose tiles are boxes of one matrix, aligned to 16 bytes: what is outside of it
    reads as 0, so nothing else bounds its tiles."""
    source, guards = copied(operand.value)
    if source is None or guards:
        return Refusal("an operand is computed, or read through a window")
    inner, outer = operand.inner, operand.outer
    lines, along = (outer, inner) if operand.is_along_inner else (inner, outer)
    pitch, step = stride_of(source.at, lines), stride_of(source.at, along)
    if pitch is None or step != 1 or not inner or not outer:
        return Refusal("an operand is no matrix of contiguous lines")
    batch = [(a, exact_div(source.at.coefficient(a), pitch)) for a in product.batch]
    steps = [(a, c) for a, c in batch if c is not None]
    if len(steps) < len(batch) or any(
        exact_div(d, UNIT) is None for d in (pitch, source.at.offset)
    ):
        return Refusal("an operand is not aligned to 16 bytes")
    if batch and not operand.is_along_inner and exact_div(_count(inner), DEPTH) is None:
        return Refusal("the lines behind its last inner position are those of another matrix")
    more: DimLike = 0
    for axis, moved in steps:
        more = more + moved * (axis.extent - 1)
    dims = _count(lines) + more, _count(along)
    return BulkOperand(source.operand, dims, pitch, source.at.offset, tuple(steps))


def _count(axes: Sequence[Axis]) -> DimLike:
    return count_of(a.extent for a in axes)
