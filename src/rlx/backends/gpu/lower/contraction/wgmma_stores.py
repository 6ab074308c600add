"""Stores of finished tiles: by the warps that multiplied them, or by others meanwhile.

A warp of those that multiply has 16 rows of a tile. It stores them by itself, some columns in each
pass; or it hands them over in shared memory, and multiplies the next tile.
"""

from __future__ import annotations

from rlx.backends.gpu.lower.contraction.epilogue import SumsStore
from rlx.backends.gpu.lower.contraction.tile_grid import TileGrid
from rlx.core.dim import exact_div
from rlx.core.dtype import DType
from rlx.program.types import TileType
from rlx.program.values import SharedRef, Var

F32 = DType.F32
SUMMED, STORED = "summed", "stored"
"""Rows of finished sums, by the warp that multiplies them."""


class TileStores:
    """Of one program."""

    def __init__(self, grid: TileGrid) -> None:
        self.grid, self.b = grid, grid.b
        self.schedule, self.values = grid.schedule, grid.values
        half, schedule = grid.product.dtype, grid.schedule
        kept = half if schedule.sums_bytes == half.itemsize else F32
        self.sums: SharedRef = self.b.shared("sums", kept, schedule.rows * schedule.pitch)
        self._in_front: list[SumsStore] = []

    def declare(self) -> None:
        """The barriers at which sums change hands."""
        for name in (SUMMED, STORED) if self.schedule.storing else ():
            self.b.mbarrier(name, self.schedule.warps)

    def initialise(self) -> None:
        """Them, by one thread."""
        schedule = self.schedule
        for warp in range(schedule.warps) if schedule.storing else ():
            self.b.mbarrier_init(SUMMED, schedule.arriving, warp)
            self.b.mbarrier_init(STORED, schedule.chunks * schedule.arriving, warp)

    @property
    def warp(self) -> Var:
        """Among those that multiply: 0 has the first rows."""
        return self.b.warp - self.schedule.multiplying

    # -- by warps that multiply ------------------------------------------------------------------

    def prepare(self) -> None:
        """What varies with columns alone, where warps that multiply store, and columns are the
        same."""
        if self.schedule.storing or not self.grid.has_same_columns:
            return
        self.grid.open(self.b.index(0))
        self._in_front = self._passes(self.b.index(0))

    def open(self, batch: Var) -> None:
        """The scope of a tile that is multiplied next."""
        if not self._in_front:
            self.grid.open(batch)

    def finish(self, total: Var, tile: Var, row: Var, column: Var) -> None:
        """Store a warp's sums of a tile, or hand them over."""
        if self.schedule.storing:
            self._hand_over(total, tile)
        else:
            self._store(total, row, self._in_front or self._passes(column))

    def _passes(self, column: Var) -> list[SumsStore]:
        """Of a warp's 16 rows, for each pass over some columns."""
        schedule = self.schedule
        first = self.warp * (16 * schedule.pitch)
        return [
            self._stored(column + start, first)
            for start in range(0, schedule.columns, schedule.chunk)
        ]

    def _store(self, total: Var, row: Var, passes: list[SumsStore]) -> None:
        """Each warp its 16 rows, some columns in each pass."""
        b = self.b
        held = b.tile_elements(total)
        count = len(held) // len(passes)
        for number, stored in enumerate(passes):
            b.barrier("warp")
            self._keep(held[number * count : (number + 1) * count], stored.first)
            b.barrier("warp")
            self._store_rows(stored, row + self.warp * 16)

    def _stored(self, column: Var, first: Var) -> SumsStore:
        """Of rows of a chunk of columns, for the threads of a warp."""
        schedule, values = self.schedule, self.values
        is_whole = exact_div(self.grid.product.sizes[2], schedule.columns) is not None
        return SumsStore(
            values, self.sums, first, 16, schedule.chunk, schedule.pitch, self.b.lane,
            schedule.warp, column.to(values.index_dtype), is_whole=is_whole,
        )  # fmt: skip

    def _store_rows(self, stored: SumsStore, row: Var) -> None:
        start = row.to(self.values.index_dtype)
        stored.store(lambda line: start + line.to(self.values.index_dtype))

    def _keep(self, held: list[Var], first: Var) -> None:
        """Pairs of neighbours, as threads hold them."""
        schedule = self.schedule
        places = self.b.tile_place(TileType("c", 16, 2 * len(held), F32))
        for i in range(0, len(held), 2):
            row, column = places[i]
            pair = [v.to(self.sums.dtype) for v in held[i : i + 2]]
            self.sums.store(first + row * schedule.pitch + column, pair)

    # -- by other warps --------------------------------------------------------------------------

    def _turn(self, tile: Var) -> Var:
        """The turn of a block's tile in the memory of sums: 0, then 1, then 0 …"""
        return tile // self.b.block_count() & 1

    def _hand_over(self, total: Var, tile: Var) -> None:
        """A warp's sums to memory, once what was there is stored."""
        b = self.b
        b.mbarrier_wait(STORED, self._turn(tile) ^ 1, self.warp)
        self._keep(b.tile_elements(total), self.warp * (16 * self.schedule.pitch))
        self._signal(SUMMED, self.warp)

    def _signal(self, mbarrier: str, which: Var) -> None:
        """All threads of a warp are done."""
        b = self.b
        b.barrier("warp")
        with b.when(b.lane < self.schedule.arriving):
            b.mbarrier_arrive(mbarrier, which)

    def store_handed_over(self) -> None:
        """Each warp a chunk of columns, of some rows: what varies with columns alone is loaded
        before the sums are there."""
        b, schedule = self.b, self.schedule
        tiles, chunks = self.grid.number(self.grid.tiles), schedule.chunks
        own = b.warp - schedule.warps
        at = own % chunks * schedule.chunk
        stored: SumsStore | None = None
        if self.grid.has_same_columns:
            self.grid.open(b.index(0))
            stored = self._stored(at, b.index(0))
        with b.loop(b.block_index(), tiles, b.block_count()) as tile:
            row, column, batch = self.grid.place(tile)
            if stored is None:
                self.grid.open(batch)
                stored = self._stored(column + at, b.index(0))
            with b.loop(own // chunks, schedule.warps, schedule.storing // chunks) as warp:
                b.mbarrier_wait(SUMMED, self._turn(tile), warp)
                stored.first = warp * (16 * schedule.pitch) + at
                self._store_rows(stored, row + warp * 16)
                self._signal(STORED, warp)
