"""The loop nests of a kernel's stores: at each level what is invariant in deeper axes is computed,
and where all axes of a store are open, it is done."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from rlx.backends.cpu.codegen.loop.column_reductions import ColumnReductions
from rlx.backends.cpu.codegen.loop.expressions import Expressions
from rlx.backends.cpu.codegen.loop.liveness import Liveness
from rlx.backends.cpu.codegen.loop.load_store import LoadStore
from rlx.backends.cpu.codegen.loop.nest import LoopNest
from rlx.backends.cpu.codegen.loop.reductions import Reductions
from rlx.backends.cpu.codegen.loop.scope import LoopContext
from rlx.backends.cpu.codegen.loop.scratch import Scratch
from rlx.backends.cpu.codegen.math.storage_types import HALF_PRECISION
from rlx.backends.cpu.llvm.values import Bound
from rlx.backends.cpu.schedule.index_set_splitting import Piece
from rlx.core.dtype import DType
from rlx.kernel.expr import Apply, Axis, Expr, Store

BAND_ROWS = 256
"""Rows of a band of tiles: their cache lines stay resident until they are full."""


class StoreNests:
    """Emits all stores of a kernel, by what computes expressions, reductions and loops."""

    def __init__(self, context: LoopContext, *, is_streaming: bool) -> None:
        self.context, self.code = context, context.code
        self.memory = LoadStore(context, is_streaming=is_streaming)
        scratch = Scratch(context)
        self.loops = LoopNest(context)
        reduce = lambda r: self.reductions.reduce_alone(r)
        self.expressions = Expressions(context, self.memory, scratch, reduce)
        self.liveness = Liveness(context, self.expressions)
        self.reductions = Reductions(context, self.expressions, self.liveness, self.loops)
        self.column_reductions = ColumnReductions(
            context, scratch, self.expressions, self.liveness, self.loops
        )

    def emit(self) -> None:
        for stores in self.nests():
            self.nest(stores)

    def nests(self) -> list[list[Store]]:
        """Stores that share loops: each needs the outermost few. Others have loops of their own."""
        order = self.context.schedule.order
        shared: list[Store] = []
        alone: list[list[Store]] = []
        for store in self.context.kernel.stores:
            if self.context.kernel.results[store.result].num_elements == 0:
                continue
            is_outer = frozenset(order[: len(store.at.axes)]) == store.at.axes
            (shared.append(store) if is_outer and store.at.axes else alone.append([store]))
        return [shared, *alone] if shared else alone

    def nest(self, stores: list[Store]) -> None:
        needed = frozenset[Axis]().union(*(s.at.axes for s in stores))
        axes = tuple(a for a in self.context.schedule.order if a in needed)
        is_split = not needed.isdisjoint(self.context.schedule.parallel)
        with nullcontext() if is_split else self.in_first_part(), self.context.scope():
            self.level(axes, stores)

    def in_first_part(self) -> AbstractContextManager[None]:
        code = self.code
        low, high = code.compare("le", "%start", 0), code.compare("gt", "%stop", 0)
        return code.when(code.integer("and", low, high, DType.BOOL))

    def level(self, axes: tuple[Axis, ...], stores: Sequence[Store]) -> None:
        """Compute what is invariant here, do the stores whose axes are open, open the next axis."""
        self.reductions.reduce_ready([s.value for s in stores])
        here = [s for s in stores if s.at.axes <= self.context.at.index.keys()]
        self.store_all(here)
        deeper = [s for s in stores if s not in here]
        if not axes or not deeper:
            return
        self.liveness.hoist(s.value for s in deeper)
        schedule = self.context.schedule
        is_lane = axes[0] is schedule.vector
        if axes[0] is schedule.tile:
            self.tiles(axes[0], axes[1], deeper)
            return
        if is_lane and schedule.row_accumulators:
            rest = lambda: self.level((), deeper)
            self.column_reductions.row_sweep(axes[0], deeper, rest)
            return
        self.loops.sweep(axes[0], lambda: self.level(axes[1:], deeper), is_lane)

    def tiles(self, tile: Axis, lane: Axis, stores: Sequence[Store]) -> None:
        """Whole square tiles of both axes, then the columns and the rows that are left."""
        for rows in self.loops.cuts.pieces(tile):
            first, last = self.loops.ends(rows, tile)
            end = self.loops.whole(first, last, self.context.lanes)
            with self.loops.piece(rows):
                for columns in self.loops.cuts.pieces(lane):
                    with self.loops.piece(columns, is_lane=True):
                        polled = self.loops.polls(tile, BAND_ROWS)
                        self.tiled(tile, lane, (first, end), columns, stores, polled)
                self.loops.steps_of(tile, end, last, lambda: self.level((lane,), stores))

    def tiled(
        self,
        tile: Axis,
        lane: Axis,
        rows: tuple[Bound, Bound],
        columns: Piece,
        stores: Sequence[Store],
        polled: int,
    ) -> None:
        """Bands of rows; in a band column by column, so that cache lines are used up."""
        code, context, lanes = self.code, self.context, self.context.lanes
        low, high = self.loops.ends(columns, lane)
        end = self.loops.whole(low, high, lanes)
        with code.count(rows[0], rows[1], BAND_ROWS, polled) as band:
            stop = code.least(code.i64("add", band, BAND_ROWS), rows[1])
            with code.count(low, end, lanes) as j, code.count(band, stop, lanes) as i:
                index = {**context.at.index, tile: i, lane: j}
                with context.scope(index=index, lane=lane, tile=tile, copies=lanes):
                    self.store_all(stores)
        rest = lambda: self.loops.blocks(lane, end, high, lambda: self.level((), stores))
        if end != high:
            self.loops.steps_of(tile, rows[0], rows[1], rest)

    def store_all(self, stores: Sequence[Store]) -> None:
        """All values first, then all stores: an output may alias an input."""
        spread, copies = self.context.spread, self.context.at.copies
        count = {s: copies if spread in s.at.axes else 1 for s in stores}
        pairs = [(s, copy) for s in stores for copy in range(count[s])]
        values = [self.expressions.value(_unrounded(s.value), copy) for s, copy in pairs]
        for (store, copy), value in zip(pairs, values):
            self.memory.store(store, copy, value)


def _unrounded(value: Expr) -> Expr:
    """A cast to half precision just before a store is done by the store."""
    if isinstance(value, Apply) and value.op.name == "cast" and value.dtype in HALF_PRECISION:
        (given,) = value.args
        return given if given.dtype is DType.F32 else value
    return value
