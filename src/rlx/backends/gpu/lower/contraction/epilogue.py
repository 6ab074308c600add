"""What follows a product: finished sums through shared memory, then expressions of them, stored.

Sums are where matrix instructions leave them, spread over the threads of a warp. Shared memory
makes rows of them, so that everything that is read and stored with them is contiguous.
"""

from __future__ import annotations

from rlx.backends.gpu.lower.contraction.values import ProductValues
from rlx.backends.gpu.lower.elementwise import cast
from rlx.backends.gpu.lower.scopes import Scope, Values
from rlx.backends.gpu.schedule.mma import TILE, MmaSchedule
from rlx.backends.gpu.simt.values import SharedRef, Var
from rlx.kernel.expr import Accumulator

UNROLLED_NODES = 96
"""Expressions of the units that a thread has under way: more of them hide the latency of loads."""
MAX_UNROLLED = 4


class Epilogue:
    """The last part of a program."""

    def __init__(
        self, values: ProductValues, schedule: MmaSchedule, sums: SharedRef, row: Var, column: Var
    ) -> None:
        self.values, self.schedule, self.sums = values, schedule, sums
        self.row, self.column = row, column
        """The flat positions of the tile's first row and column."""
        self.width = min(values.product.store_width, schedule.columns)
        self.lines = schedule.rows // schedule.passes

    @property
    def warp(self) -> tuple[Var, Var, Var]:
        """The thread's warp along rows, columns and inner positions."""
        rows, columns, _ = self.schedule.warps
        warp = self.values.b.warp
        return warp % rows, warp // rows % columns, warp // (rows * columns)

    def store(self, tiles: list[list[Var]]) -> None:
        """Of every warp's matrices, some rows in each pass."""
        per_pass = len(tiles) // self.schedule.passes
        for number in range(self.schedule.passes):
            if number:
                self.values.b.barrier()
            self._keep(tiles[number * per_pass : (number + 1) * per_pass])
            self.values.b.barrier()
            self._units(number)

    def _keep(self, tiles: list[list[Var]]) -> None:
        b, pitch = self.values.b, self.schedule.pitch
        down, across, inner = self.warp
        line = inner * self.lines + down * (len(tiles) * TILE)
        column = across * self.schedule.warp_tile[1]
        for i, row in enumerate(tiles):
            for j, tile in enumerate(row):
                at = (line + i * TILE) * pitch + column + j * TILE
                b.tile_store(tile, self.sums, at, pitch)

    # -- units of neighbours ---------------------------------------------------------------------

    def _units(self, number: int) -> None:
        """Each thread some units, several of them at a time."""
        b, block = self.values.b, self.schedule.block
        total = self.lines * (self.schedule.columns // self.width)
        steps = -(-total // block)
        nodes = max(1, self.width * len(self.values.product.contract.epilogue))
        together = min(steps, MAX_UNROLLED, max(1, UNROLLED_NODES // nodes))
        if steps == together:
            self._some([b.thread + i * block for i in range(steps)], total, number)
            return
        with b.loop(b.thread, total, block * together) as at:
            self._some([at + i * block for i in range(together)], total, number)

    def _some(self, units: list[Var], total: int, number: int) -> None:
        """Everything is read before anything is stored, which might be the same memory."""
        values, stores = self.values, self.values.product.contract.stores
        values.vector = next(iter(values.product.columns[-1:]), None)
        scopes = [self._scopes(u, total, number) for u in units]
        made: list[list[Values]] = []
        for column, row in scopes:
            with values.inside(column), values.inside(row):
                made.append([values.value(s.value) for s in stores])
        for (column, row), kept in zip(scopes, made):
            with values.inside(column), values.inside(row):
                for store, value in zip(stores, kept):
                    values.store(store.result, store.at, value, values.masks(()))

    def _scopes(self, unit: Var, total: int, number: int) -> tuple[Scope, Scope]:
        values, schedule = self.values, self.schedule
        per_line = schedule.columns // self.width
        line, at = unit // per_line, unit % per_line * self.width
        is_there = None if total % schedule.block == 0 else unit < total
        own = schedule.warp_tile[0] // schedule.passes
        down = line // own * schedule.warp_tile[0] + number * own + line % own
        index = values.index_dtype
        columns, rows = values.product.columns, values.product.rows
        column = values.scope(columns, self.column + at.to(index), self.width)
        row = values.scope(rows, self.row + down.to(index))
        assert row.mask is not None
        row.mask = row.mask if is_there is None else row.mask & is_there
        self._give(row, line, at, is_there)
        return column, row

    def _give(self, scope: Scope, line: Var, at: Var, is_there: Var | None) -> None:
        """The finished sums as the values that they are."""
        total = self._summed(line, at, is_there)
        b = self.values.b
        for node in self.values.product.contract.epilogue:
            if isinstance(node, Accumulator):
                scope.known[node, ()] = [cast(b, v, node.dtype) for v in total]

    def _summed(self, line: Var, at: Var, is_there: Var | None) -> Values:
        """Those of warps that share the inner positions in their order."""
        pitch, total = self.schedule.pitch, list[Var]()
        for part in range(self.schedule.warps[2]):
            start = (line + part * self.lines) * pitch + at
            found = self._read(start, is_there)
            total = found if not total else [x + y for x, y in zip(total, found)]
        return total

    def _read(self, start: Var, is_there: Var | None) -> Values:
        at_once = min(self.width, 4)
        starts = range(0, self.width, at_once)
        return [v for s in starts for v in self.sums.load(start + s, at_once, is_there)]
