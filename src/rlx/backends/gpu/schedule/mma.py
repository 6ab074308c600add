"""How a product of half floats runs on matrix instructions of warps.

A block makes a tile of the result. Tiles of both operands go through shared memory, several stages
of them under way at a time; each warp multiplies a part of them, of which the sums are in its
registers. Where tiles are few, several warps share the inner positions of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.product import Product
from rlx.core.dim import DimLike, upper_bound

TILE = 16
"""Rows, columns and depth of the matrices that a warp multiplies at once."""
MANY = 4096
"""Rows or columns that are counted on where their number has no bound."""
SUMS_BYTES = 32 << 10
"""Of shared memory for finished sums: larger tiles are stored in several passes."""


@dataclass(frozen=True, slots=True)
class MmaSchedule:
    """One way to run a product."""

    rows: int
    """Of a block's tile."""
    columns: int
    depth: int
    """Inner positions of a stage."""
    stages: int
    warps: tuple[int, int, int]
    """Along rows, columns and inner positions."""
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
    def pitch(self) -> int:
        """Of rows of finished sums: 8 more, so that the rows of a matrix are in unlike banks."""
        return self.columns + 8

    @property
    def passes(self) -> int:
        """In which finished sums are stored."""
        tiles, whole = self.warp_tile[0] // TILE, 4 * self.rows * self.pitch * self.warps[2]
        return next(
            (n for n in range(1, tiles) if tiles % n == 0 and whole <= SUMS_BYTES * n), tiles
        )

    @property
    def shared_bytes(self) -> int:
        operands = 2 * self.stages * self.depth * (self.rows + self.columns)
        return operands + 4 * self.rows * self.pitch * self.warps[2] // self.passes

    @property
    def text(self) -> str:
        """In a few words, for reports."""
        tile = f"{self.rows}x{self.columns}x{self.depth}"
        warps = "x".join(map(str, self.warps))
        return f"tiles of {tile} on matrix instructions, {self.stages} stages, {warps} warps"


CANDIDATES = (
    (128, 128, 32, 4, (2, 2, 1)),
    (128, 64, 64, 3, (2, 2, 1)),
    (64, 128, 64, 3, (2, 2, 1)),
    (64, 64, 64, 3, (2, 2, 1)),
    (32, 128, 64, 3, (1, 4, 1)),
    (32, 64, 64, 4, (1, 2, 2)),
    (64, 32, 64, 4, (2, 1, 2)),
    (128, 16, 64, 4, (4, 1, 1)),
    (16, 128, 64, 4, (1, 4, 1)),
    (16, 64, 64, 4, (1, 2, 2)),
    (16, 32, 64, 4, (1, 1, 4)),
    (16, 16, 64, 2, (1, 1, 2)),
)
"""Rows, columns, depth, stages and warps that are considered."""


def choose(
    product: Product, machine: GpuMachine, constants: frozenset[int] = frozenset()
) -> MmaSchedule | None:
    """The schedule that is predicted to take the fewest cycles; none if no tile has room."""
    ways = [
        MmaSchedule(*c, machine.warp, constants, machine.has_dependent_launch) for c in CANDIDATES
    ]
    fitting = [w for w in ways if w.shared_bytes <= machine.shared_bytes]
    return min(fitting, key=lambda w: cycles(product, w, machine), default=None)


PRODUCTS_PER_CYCLE = 1100
"""Multiply-adds of a processor: what warps reach of what matrix instructions are able to."""
SHARED_BYTES_PER_CYCLE = 128
CACHE_BYTES_PER_CYCLE = 28
"""From the second-level cache to one processor."""
START_CYCLES = 2500
"""From the start of a block to its first products, and from its last ones to the end."""


def cycles(product: Product, schedule: MmaSchedule, machine: GpuMachine) -> float:
    """A prediction: the tiles of a processor one after the other, each bound by its products, by
    shared memory or by the cache that its operands come from."""
    batch, rows, columns, inner = (_count(d) for d in product.sizes)
    tiles = batch * _ceil(rows, schedule.rows) * _ceil(columns, schedule.columns)
    wide = sum(schedule.warp_tile) * schedule.block // schedule.warp
    shared = 2 * wide / schedule.warps[2] * inner / SHARED_BYTES_PER_CYCLE
    products = schedule.rows * schedule.columns * inner / PRODUCTS_PER_CYCLE
    cache = 2 * (schedule.rows + schedule.columns) * inner / CACHE_BYTES_PER_CYCLE
    stored = 12 * schedule.rows * schedule.columns / SHARED_BYTES_PER_CYCLE
    each = max(products, shared, cache) + stored
    return START_CYCLES + _ceil(tiles, machine.processors) * each


def _count(dim: DimLike) -> int:
    most = upper_bound(dim)
    return MANY if most is None else most


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
