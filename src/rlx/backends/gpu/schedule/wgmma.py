"""How a product runs on matrix instructions of four warps, out of shared memory that a copy engine
fills.

As many blocks as there are processors take tiles of the result in turn. One thread of a block keeps
the copy engine busy, several stages ahead; groups of four warps multiply, each 64 of the
tile's rows, the next stage under way before the one before is done. Finished sums are stored by the
warps that have them, or by others, while the next tile is multiplied.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import gcd

from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.mma import ceil_div, typical
from rlx.backends.gpu.schedule.product import Operand, Product, copied, stride_of
from rlx.backends.gpu.schedule.windows import WindowOperand, window_operand
from rlx.core.dim import DimLike, exact_div, provably_le
from rlx.core.dim import product as count_of
from rlx.kernel.expr import Accumulator, Apply, Axis, Load
from rlx.kernel.refusal import Refusal

DEPTH = 64
"""Inner positions of a stage: lines of 128 bytes."""
GROUP_ROWS = 64
"""Of the matrix that four warps multiply."""
COPYING = 4
"""Warps that copy where the copy engine does not."""
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
    """A schedule of a product."""

    columns: int
    """Of a tile."""
    stages: int
    left: BulkOperand | WindowOperand | None
    """As the copy engine reads it; none where the threads of four warps copy it."""
    right: BulkOperand | WindowOperand | None
    blocks: int
    """At most, as each takes tiles until none is left."""
    sums_bytes: int = 2
    """Of a finished sum in shared memory."""
    constants: frozenset[int] = frozenset()
    is_dependent: bool = False
    warp: int = 32
    flight: int = 1
    """Products of a group that are under way while the next is requested."""
    groups: int = 2
    """Of four warps, each with 64 rows of a tile."""
    storing: int = 0
    """Warps that compute and store what follows the sums of a tile while others multiply the next;
    none where those that multiply do that, too."""
    arriving: int = 1
    """Lanes of a warp that arrive at barriers of finished sums, as the machine asks for."""

    @property
    def rows(self) -> int:
        return self.groups * GROUP_ROWS

    @property
    def warps(self) -> int:
        """That multiply."""
        return 4 * self.groups

    @property
    def multiplying(self) -> int:
        """The first warp that multiplies: behind those that copy."""
        return 0 if self.is_bulk else COPYING

    @property
    def block(self) -> int:
        """Threads. A warp is enough to keep the copy engine busy: the others have its registers."""
        return (self.warps + self.storing + (1 if self.is_bulk else COPYING)) * self.warp

    @property
    def chunk(self) -> int:
        """Columns that are stored in a pass, or by a warp: a power of two, so that a thread's are
        the same in all of its rows."""
        if not self.storing:
            return gcd(self.columns, SUMS_BYTES // self.sums_bytes)
        whole = (c for c in reversed(COLUMNS) if self.columns % c == 0)
        return next(c for c in whole if self.storing % (self.columns // c) == 0)

    @property
    def chunks(self) -> int:
        return self.columns // self.chunk

    @property
    def kept(self) -> int:
        """Columns of finished sums that shared memory has room for."""
        return self.columns if self.storing else self.chunk

    @property
    def pitch(self) -> int:
        """Of rows of finished sums."""
        return self.kept + SUMS_PAD_BYTES // self.sums_bytes

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
        return (88, 208) if self.columns > 128 and not self.is_bulk else None

    @property
    def order(self) -> Hashable:
        """In which sums are added up: that of inner positions, whatever the tiles."""
        return "wgmma"

    @property
    def text(self) -> str:
        """In a few words, for reports."""
        tile = f"{self.rows}x{self.columns}x{DEPTH}"
        how = "bulk copies" if self.is_bulk else "copies by threads"
        apart = f", stored by {self.storing} warps" if self.storing else ""
        return f"tiles of {tile} by groups of four warps, {self.stages} stages of {how}{apart}"


COLUMNS = (256, 192, 128, 64)
STAGES = (8, 6, 5, 4, 3)
UNITS = frozenset(
    {"exp", "exp2", "expm1", "log", "log1p", "tanh", "erf", "erfc", "sigmoid", "sin", "cos", "pow"}
)
"""Functions that take special function units, or long polynomials."""
STORING = {256: 3, 192: 6, 128: 8, 64: 8}
"""Warps that store, by the columns of a tile. Each quarter of a processor has 512 registers for a
lane of its warps: three warps where sums take 128 of a thread's, four and five where they take 96
and 64. One warp copies; two that store in each quarter hide each other's latency."""
PRODUCTS_PER_CYCLE, STEP_CYCLES = 1860, 80
"""Multiply-adds of a processor, and what each stage takes beside them."""
BYTES_PER_CYCLE, WINDOW_BYTES_PER_CYCLE, THREAD_BYTES_PER_CYCLE = 64, 120, 33
"""Of stages that are filled from the second-level cache by the copy engine, of matrices and of
windows, or by threads."""
WINDOW_CYCLES = 430
"""Of each box of windows, beside its bytes."""
START_CYCLES = 1190
"""From the start of a block to its first products, beside the end of the kernel before."""
STORE_CYCLES, FUNCTION_CYCLES, LOAD_CYCLES = 24.0, 32.0, 15.0
"""Of a warp that stores a finished sum of each of its threads; more for each function of it, and
for each number that is read for it."""


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
    """Every schedule that is considered, or why there is none."""
    if "wgmma" not in machine.tiles or not machine.has_bulk_copy:
        return Refusal("the device has no products out of shared memory")
    sides: list[BulkOperand | WindowOperand | None] = []
    for operand in (product.left, product.right):
        bulk = bulk_operand(product, operand)
        if isinstance(bulk, Refusal) and (operand.source is None or operand.unit < UNIT):
            return bulk
        found = window_operand(product, operand) if isinstance(bulk, Refusal) else bulk
        sides.append(None if isinstance(found, Refusal) else found)
    size = max((s.dtype.itemsize for s in _sums(product)), default=2)
    rest = (machine.processors, size, constants, machine.has_dependent_launch)
    left, right = sides
    every = [
        WgmmaSchedule(c, 0, left, right, *rest, groups=g, storing=n, arriving=machine.arriving)
        for g, c, n in _tiles(left is not None, right is not None)
    ]
    candidates = [_staged(w, machine) for w in every]
    fitting = [w for w in candidates if w is not None]
    if not fitting:
        return Refusal("its stages do not fit shared memory")
    return fitting


def _tiles(is_left_bulk: bool, is_right_bulk: bool) -> list[tuple[int, int, int]]:
    """Groups, columns and warps that store: threads copy powers of two of columns, and have no
    registers to spare."""
    if not (is_left_bulk and is_right_bulk):
        return [(2, c, 0) for c in COLUMNS if is_right_bulk or c & (c - 1) == 0]
    by_two = [(2, c, n) for c in COLUMNS for n in (0, STORING[c])]
    return [*by_two, *((1, c, 0) for c in COLUMNS)]


def _staged(schedule: WgmmaSchedule, machine: GpuMachine) -> WgmmaSchedule | None:
    """With as many stages as fit."""
    tried = (replace(schedule, stages=n) for n in STAGES)
    return next((w for w in tried if w.shared_bytes <= machine.shared_bytes), None)


def _sums(product: Product) -> Sequence[Accumulator]:
    return [n for n in product.contract.epilogue if isinstance(n, Accumulator)]


def cycles(product: Product, schedule: WgmmaSchedule, machine: GpuMachine) -> float:
    """A prediction: the tiles of a processor one after the other."""
    batch, rows, columns, inner = (typical(d) for d in product.sizes)
    tiles = batch * ceil_div(rows, schedule.rows) * ceil_div(columns, schedule.columns)
    area = schedule.rows * schedule.columns
    step = max(_filled(schedule), STEP_CYCLES + area * DEPTH / PRODUCTS_PER_CYCLE)
    multiplied = ceil_div(inner, DEPTH) * step
    stored = _store_cycles(product) * area / schedule.warp
    turns = ceil_div(tiles, machine.processors)
    if not schedule.storing:
        return START_CYCLES + turns * (multiplied + stored / schedule.warps)
    stored /= schedule.storing
    return START_CYCLES + max(turns * multiplied + stored, multiplied + turns * stored)


def _filled(schedule: WgmmaSchedule) -> float:
    """Cycles in which a stage is filled: the copy engine fills one operand after the other."""
    if not schedule.is_bulk:
        return 2 * DEPTH * (schedule.rows + schedule.columns) / THREAD_BYTES_PER_CYCLE
    sides = (schedule.left, schedule.rows), (schedule.right, schedule.columns)
    windows = sum(isinstance(s, WindowOperand) for s, _ in sides)
    rates = [WINDOW_BYTES_PER_CYCLE if isinstance(s, WindowOperand) else BYTES_PER_CYCLE
             for s, _ in sides]  # fmt: skip
    filled = sum(2 * DEPTH * size / rate for (_, size), rate in zip(sides, rates))
    return WINDOW_CYCLES * windows + filled


def _store_cycles(product: Product) -> float:
    """Of a warp, for a sum of each of its threads."""
    nodes = product.contract.epilogue
    functions = [n for n in nodes if isinstance(n, Apply) and n.op.name in UNITS]
    loads = [n for n in nodes if isinstance(n, Load) and n.free & set(product.rows)]
    return STORE_CYCLES + FUNCTION_CYCLES * len(functions) + LOAD_CYCLES * len(loads)


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
    if not all(provably_le(0, d) for d in (pitch, *(c for _, c in steps))):
        return Refusal("the lines of an operand are read backwards")
    if batch and not operand.is_along_inner and exact_div(_count(inner), DEPTH) is None:
        return Refusal("the lines behind its last inner position are those of another matrix")
    more: DimLike = 0
    for axis, moved in steps:
        more = more + moved * (axis.extent - 1)
    dims = _count(lines) + more, _count(along)
    return BulkOperand(source.operand, dims, pitch, source.at.offset, tuple(steps))


def _count(axes: Sequence[Axis]) -> DimLike:
    return count_of(a.extent for a in axes)
