"""Column reductions of a wide array: a row of accumulators in scratch, updated a few rows at a
time, so that memory is read along its rows and not in narrow columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rlx.backends.cpu.codegen.loop.combine import CHAIN, fold, identity, is_rounded, pairwise
from rlx.backends.cpu.codegen.loop.expressions import Expressions
from rlx.backends.cpu.codegen.loop.liveness import Liveness
from rlx.backends.cpu.codegen.loop.nest import LoopNest
from rlx.backends.cpu.codegen.loop.scope import LoopContext
from rlx.backends.cpu.codegen.loop.scratch import Scratch
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.schedule.loop_schedule import ROW_WIDTH
from rlx.core.dim import upper_bound
from rlx.core.dtype import DType
from rlx.kernel.expr import Affine, Axis, Expr, Load, Reduce, Store

Hoisted = tuple[dict[tuple[Expr, int], Vec], dict[Affine, Bound]]
"""Values and offsets that are invariant along a row."""


class ColumnReductions:
    """Reductions with a row of accumulators in scratch."""

    def __init__(
        self,
        context: LoopContext,
        scratch: Scratch,
        expressions: Expressions,
        liveness: Liveness,
        loops: LoopNest,
    ) -> None:
        self.context, self.code, self.scratch = context, context.code, scratch
        self.expressions, self.liveness, self.loops = expressions, liveness, loops

    def row_sweep(self, axis: Axis, stores: Sequence[Store], body: Callable[[], None]) -> None:
        """A block of columns at a time: reduce down the rows, then compute what follows."""
        for piece in self.loops.cuts.pieces(axis):
            first, last = self.loops.ends(piece, axis)
            step = self.code.count(first, last, ROW_WIDTH)
            with self.loops.piece(piece, is_lane=True), step as start:
                end = self.code.least(self.code.i64("add", start, ROW_WIDTH), last)
                with self.context.scope(row_start=start):
                    self.fold_down(axis, start, end, [s.value for s in stores])
                    self.loops.blocks(axis, start, end, body)

    def fold_down(self, lane: Axis, low: Bound, high: Bound, roots: Sequence[Expr]) -> None:
        """Compute all accumulators, those over the same axis together."""
        while True:
            todo = set(self.context.schedule.row_accumulators) - self.context.at.staged
            left = [r for r in self.liveness.live(roots) if r in todo]
            waiting = {r for r in left if any(n in left for n in self.liveness.live(r.args))}
            ready = [r for r in left if isinstance(r, Reduce) and r not in waiting]
            if not ready:
                return
            group = [r for r in ready if r.axis is ready[0].axis]
            self.fold_rows(group, lane, low, high)
            self.context.stage(group)

    def fold_rows(self, group: Sequence[Reduce], lane: Axis, low: Bound, high: Bound) -> None:
        axis, ends = group[0].axis, (low, high)
        most = upper_bound(axis.extent)
        wide = [r for r in group if is_rounded(r) and (most is None or most > CHAIN)]
        self.loops.blocks(lane, low, high, lambda: self.clear(group, wide))
        for piece in self.loops.cuts.pieces(axis):
            first, last = self.loops.bounds(piece)
            end = self.loops.whole(first, last, CHAIN) if wide else first
            with self.loops.piece(piece):
                if first != end:
                    polled = self.loops.iterations_per_poll(axis, CHAIN)
                    with self.code.count(first, end, CHAIN, polled) as start:
                        stop = self.code.i64("add", start, CHAIN)
                        self.add_run(group, lane, ends, start, stop)
                        self.loops.blocks(lane, low, high, lambda: self.flush_rows(wide))
                self.add_run(group, lane, ends, end, last, is_polled=not wide)
        if wide:
            self.loops.blocks(lane, low, high, lambda: self.join_rows(wide))

    def clear(self, group: Sequence[Reduce], wide: Sequence[Reduce]) -> None:
        for r in group:
            for copy in range(self.context.at.copies):
                self.scratch.store(r, copy, identity(self.code, r))
                if r in wide:
                    self.scratch.store_wide(r, copy, self.code.const(0, DType.F64))

    def flush_rows(self, wide: Sequence[Reduce]) -> None:
        """Add the accumulators to those in f64, and reset them."""
        for r in wide:
            for copy in range(self.context.at.copies):
                self.scratch.store_wide(r, copy, self.whole_sum(r, copy))
                self.scratch.store(r, copy, identity(self.code, r))

    def join_rows(self, wide: Sequence[Reduce]) -> None:
        for r in wide:
            for copy in range(self.context.at.copies):
                self.scratch.store(r, copy, self.whole_sum(r, copy).to(r.dtype.compute))

    def whole_sum(self, r: Reduce, copy: int) -> Vec:
        return self.scratch.load_wide(r, copy) + self.scratch.load(r, copy).to(DType.F64)

    def add_run(
        self,
        group: Sequence[Reduce],
        lane: Axis,
        ends: tuple[Bound, Bound],
        first: Bound,
        last: Bound,
        is_polled: bool = False,
    ) -> None:
        """Accumulate some rows, a few at a time."""
        together = self.context.schedule.row_step
        middle = self.loops.whole(first, last, together)
        for start, end, count in ((first, middle, together), (middle, last, 1)):
            if start != end:
                is_long = is_polled and count == together
                polled = self.loops.iterations_per_poll(group[0].axis, count) if is_long else 0
                with self.code.count(start, end, count, polled) as i:
                    self.add_rows(group, lane, ends, i, count)

    def add_rows(
        self, group: Sequence[Reduce], lane: Axis, ends: tuple[Bound, Bound], row: str, count: int
    ) -> None:
        """Accumulate some rows; what is invariant along a row is hoisted."""
        axis = group[0].axis
        places = [{axis: self.code.i64("add", row, n)} for n in range(count)]
        made = [self.hoisted(group, lane, place) for place in places]

        def add() -> None:
            rows: list[dict[tuple[Reduce, int], Vec]] = []
            for place, (values, offsets) in zip(places, made):
                index = {**self.context.at.index, **place}
                with self.context.scope(index=index, values=dict(values), offsets=dict(offsets)):
                    rows.append(self.bodies(group))
            for r, copy in rows[0]:
                total = pairwise(r, [found[r, copy] for found in rows])
                self.scratch.store(r, copy, fold(r, self.scratch.load(r, copy), total))

        self.loops.blocks(lane, *ends, add)

    def hoisted(self, group: Sequence[Reduce], lane: Axis, place: Mapping[Axis, Bound]) -> Hoisted:
        bodies = [r.args[0] for r in group]
        with self.context.scope(index={**self.context.at.index, **place}, lane=lane):
            for node in self.liveness.live_outside(bodies):
                if isinstance(node, Load):
                    self.context.base(node.at)
            self.liveness.hoist(bodies)
            return self.context.at.values, self.context.at.offsets

    def bodies(self, group: Sequence[Reduce]) -> dict[tuple[Reduce, int], Vec]:
        value, copies = self.expressions.value, range(self.context.at.copies)
        return {(r, copy): value(r.args[0], copy) for r in group for copy in copies}
