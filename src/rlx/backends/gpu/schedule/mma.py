"""How a product of half floats runs on matrix instructions of warps.

A block makes a tile of the result. Tiles of both operands go through shared memory, several stages
of them under way at a time; each warp multiplies a part of them, of which the sums are in its
registers. Where tiles are few, several warps share the inner positions of each, or several blocks
of a cluster.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import overload

from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.product import Product
from rlx.core.dim import DimLike, lower_bound, upper_bound

TILE = 16
"""Rows, columns and depth of the matrices that a warp multiplies at once."""
MANY = 4096
"""Rows or columns that are counted on where their number has no bound."""
SUMS_BYTES = 36 << 10
"""Of shared memory for finished sums: larger tiles are stored in several passes."""


@dataclass(frozen=True, slots=True)
class MmaSchedule:
    """A schedule of a product."""

    rows: int
    """Of a block's tile."""
    columns: int
    depth: int
    """Inner positions of a stage."""
    stages: int
    warps: tuple[int, int, int]
    """Along rows, columns and inner positions."""
    splits: int = 1
    """Blocks of a cluster that share the inner positions of a tile: each adds up what all of them
    have of some of its rows."""
    warp: int = 32
    constants: frozenset[int] = frozenset()
    """Operands that no kernel of a run writes: requested before the kernels before are done."""
    is_dependent: bool = False

    @property
    def block(self) -> int:
        """Threads."""
        rows, columns, inner = self.warps
        return rows * columns * inner * self.warp

    @property
    def warp_tile(self) -> tuple[int, int]:
        """Rows and columns that a warp has the sums of."""
        return self.rows // self.warps[0], self.columns // self.warps[1]

    @property
    def edge(self) -> int:
        """Rows and columns of a tile together: what is loaded at each inner position."""
        return self.rows + self.columns

    @property
    def pitch(self) -> int:
        """Of rows of finished sums: 8 more, so that the rows of a matrix are in unlike banks."""
        return self.columns + 8

    @property
    def passes(self) -> int:
        """In which finished sums are stored."""
        if self.splits > 1:
            return 1
        tiles, whole = self.warp_tile[0] // TILE, 4 * self.rows * self.pitch * self.warps[2]
        return next(
            (n for n in range(1, tiles) if tiles % n == 0 and whole <= SUMS_BYTES * n), tiles
        )

    @property
    def shared_bytes(self) -> int:
        operands = 2 * self.stages * self.depth * (self.rows + self.columns)
        return operands + 4 * self.rows * self.pitch * self.warps[2] // self.passes + 8

    @property
    def order(self) -> Hashable:
        """In which sums are added up: that of inner positions, unless several warps or blocks have
        parts of them, which are counted in stages."""
        parts = self.warps[2], self.splits
        return "mma", *parts, 0 if parts == (1, 1) else self.depth

    @property
    def text(self) -> str:
        """In a few words, for reports."""
        tile = f"{self.rows}x{self.columns}x{self.depth}"
        warps = "x".join(map(str, self.warps))
        split = f", inner positions split over {self.splits} blocks" if self.splits > 1 else ""
        return f"tiles of {tile} on matrix instructions, {self.stages} stages, {warps} warps{split}"


TILES = (
    (128, 128, (2, 2, 1)),
    (128, 64, (2, 2, 1)),
    (64, 128, (2, 2, 1)),
    (64, 64, (2, 2, 2)),
    (32, 128, (2, 4, 1)),
    (32, 64, (2, 2, 2)),
    (64, 32, (4, 1, 2)),
    (32, 32, (2, 1, 4)),
    (128, 16, (8, 1, 1)),
    (16, 128, (1, 4, 2)),
    (16, 64, (1, 2, 2)),
    (16, 32, (1, 1, 4)),
    (16, 16, (1, 1, 4)),
)
"""Rows, columns and warps of the tiles that are considered."""
ELEMENTWISE = (
    (128, 128, (4, 2, 1)),
    (128, 64, (4, 2, 1)),
    (64, 64, (2, 4, 1)),
    (32, 64, (2, 2, 1)),
    (16, 64, (1, 4, 1)),
    (64, 16, (4, 1, 1)),
)
"""The same where elements of an operand are read one by one: the code of a thread has each of its
elements in a stage, so that there are few of them."""
STAGES = 4
MAX_WHOLE = 12
"""Steps up to which each has a stage of its own."""
SPLITS = (1, 2, 4, 8)
MIN_SPLIT_ROWS = 8
"""Of a tile that each block of a cluster stores."""


def choose(
    product: Product, machine: GpuMachine, constants: frozenset[int] = frozenset()
) -> MmaSchedule | None:
    """The schedule that is predicted to take the fewest cycles; none if no tile has room."""
    fitting = candidates(product, machine, constants)
    return min(fitting, key=lambda w: cycles(product, w, machine), default=None)


def candidates(
    product: Product, machine: GpuMachine, constants: frozenset[int] = frozenset()
) -> list[MmaSchedule]:
    """Every schedule that is considered."""
    return [
        replace(
            w, warp=machine.warp, constants=constants, is_dependent=machine.has_dependent_launch
        )
        for w in _tiles(product, machine)
        if w.shared_bytes <= machine.shared_bytes
    ]


def _tiles(product: Product, machine: GpuMachine) -> list[MmaSchedule]:
    if any(x.source is None and x.unit == 1 for x in (product.left, product.right)):
        return [MmaSchedule(rows, columns, 32, 2, warps) for rows, columns, warps in ELEMENTWISE]
    return [
        _staged(product, MmaSchedule(rows, columns, depth, STAGES, warps, split), machine)
        for rows, columns, warps in TILES
        for split in SPLITS
        if split == 1 or _can_split(product, rows, columns, split, machine)
        for depth in ((32, 64) if rows * columns > 64 * 128 else (64, 128))
    ]


def _can_split(product: Product, rows: int, columns: int, split: int, machine: GpuMachine) -> bool:
    """Has each block of a cluster rows to store, and a processor of its own?"""
    batch, m, n, _ = (typical(d) for d in product.sizes)
    blocks = batch * ceil_div(m, rows) * ceil_div(n, columns) * split
    has_rows = rows // split >= MIN_SPLIT_ROWS
    return machine.has_clusters and has_rows and blocks <= machine.processors


def _staged(product: Product, schedule: MmaSchedule, machine: GpuMachine) -> MmaSchedule:
    """A stage for each step, if there are few and they fit; else as many as do, up to four."""
    steps = steps_of(product, schedule)
    if isinstance(steps, int) and steps <= MAX_WHOLE:
        whole = replace(schedule, stages=max(2, steps))
        if whole.shared_bytes <= machine.shared_bytes:
            return whole
    fewer = (replace(schedule, stages=n) for n in range(STAGES, 2, -1))
    return next((w for w in fewer if w.shared_bytes <= machine.shared_bytes), schedule)


PRODUCTS_PER_CYCLE = 660
"""Multiply-adds of a processor: what warps reach of what matrix instructions are able to."""
SHARED_BYTES_PER_CYCLE = 97
CACHE_BYTES_PER_CYCLE = 64
"""From the second-level cache to one processor."""
ALL_CACHE_BYTES_PER_CYCLE = 6000
"""To all of them."""
CACHE_LATENCY = 380
"""Cycles, under load: with fewer bytes under way it bounds the rate."""
START_CYCLES = 2265
"""From the start of a block to its first products, and from its last ones to the end."""
STEP_CYCLES = 200
"""Of a step that waits for the stage it fills anew."""
WINDOW_CYCLES = 1.1
"""Of each unit that is read through a window: where it is, and whether that is in the image."""
CLUSTER_CYCLES = 1490
"""Of each block of a cluster, until all have pushed their sums."""


def cycles(product: Product, schedule: MmaSchedule, machine: GpuMachine) -> float:
    """A prediction: the tiles of a processor one after the other, each bound by its products, by
    shared memory or by the cache that its operands come from."""
    batch, rows, columns, inner = (typical(d) for d in product.sizes)
    inner = ceil_div(inner, schedule.splits)
    tiles = batch * ceil_div(rows, schedule.rows) * ceil_div(columns, schedule.columns)
    blocks = tiles * schedule.splits
    each = ceil_div(blocks, machine.processors)
    area = schedule.rows * schedule.columns
    wide = sum(schedule.warp_tile) * schedule.block // schedule.warp
    shared = 2 * wide / schedule.warps[2] * inner / SHARED_BYTES_PER_CYCLE
    bound = max(area * inner / PRODUCTS_PER_CYCLE, shared, _loaded(schedule, inner, each, machine))
    bound += WINDOW_CYCLES * _window_units(product, schedule) * inner
    total = max(each * bound, 2 * blocks * schedule.edge * inner / ALL_CACHE_BYTES_PER_CYCLE)
    steps = ceil_div(inner, schedule.depth)
    waits = 0 if steps <= schedule.stages else STEP_CYCLES * steps
    stored = each * 12 * area / schedule.splits / SHARED_BYTES_PER_CYCLE
    pushed = CLUSTER_CYCLES * schedule.splits if schedule.splits > 1 else 0
    starts = max(1.0, each / _resident(schedule, each, machine))
    return START_CYCLES * starts + total + waits + stored + pushed


def _resident(schedule: MmaSchedule, each: int, machine: GpuMachine) -> int:
    """Blocks that a processor holds at once: one starts while others multiply."""
    return max(1, min(each, machine.shared_bytes // schedule.shared_bytes))


def _window_units(product: Product, schedule: MmaSchedule) -> float:
    """Units of a tile at each inner position whose place in an image is found one by one."""
    sides = (product.left, schedule.rows), (product.right, schedule.columns)
    return sum(size / side.unit for side, size in sides if side.guards)


def _loaded(schedule: MmaSchedule, inner: int, each: int, machine: GpuMachine) -> float:
    """Cycles in which a block's operands come from the cache."""
    resident = _resident(schedule, each, machine)
    whole = 2 * schedule.edge * max(1, inner)
    under_way = min(whole, 2 * schedule.edge * schedule.depth * (schedule.stages - 1))
    return whole / min(CACHE_BYTES_PER_CYCLE, resident * under_way / CACHE_LATENCY)


def steps_of(product: Product, schedule: MmaSchedule) -> DimLike:
    """Stages of inner positions of one block."""
    return ceil_div(product.sizes[3], schedule.depth * schedule.splits)


def typical(dim: DimLike) -> int:
    """The size that a choice is made for."""
    most = upper_bound(dim)
    return max(MANY, lower_bound(dim)) if most is None else most


@overload
def ceil_div(a: int, b: int) -> int: ...
@overload
def ceil_div(a: DimLike, b: int) -> DimLike: ...
def ceil_div(a: DimLike, b: int) -> DimLike:
    return (a + (b - 1)) // b
