"""Column reductions of a wide array: a row of accumulators in scratch, updated a few rows at a
time, so that memory is read along its rows and not in narrow columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rlx.backends.cpu.codegen.loop.combine import fold
from rlx.backends.cpu.codegen.loop.reductions import CHAIN, Reductions, is_rounded
from rlx.backends.cpu.llvm.builder import Bound, Vec
from rlx.core.dim import upper_bound
from rlx.core.dtype import DType
from rlx.kernel.expr import Affine, Axis, Expr, Load, Reduce, Store
from rlx.kernel.schedule import ROW_WIDTH

Hoisted = tuple[dict[tuple[Expr, int], Vec], dict[Affine, Bound]]
"""Values and offsets that are invariant along a row."""


class ColumnReductions(Reductions):
    """Reductions with a row of accumulators in scratch."""

    def row_sweep(
        self, axis: Axis, stores: Sequence[Store], body: Callable[[], None], is_shared: bool
    ) -> None:
        """A block of columns at a time: reduce down the rows, then compute what follows."""
        for piece in self.cuts.pieces(axis):
            first, last = self.ends(piece, is_shared)
            low = piece.low[0] - piece.low[1]
            decided = {**self.at.decided, **piece.decided}
            step = self.code.count(first, last, ROW_WIDTH)
            with self.scope(decided=decided, piece_low=low), step as start:
                end = self.code.least(self.code.i64("add", start, ROW_WIDTH), last)
                with self.scope(row_start=start):
                    self.fold_down(axis, start, end, [s.value for s in stores])
                    self.blocks(axis, start, end, body)

    def fold_down(self, lane: Axis, low: Bound, high: Bound, roots: Sequence[Expr]) -> None:
        """Compute all accumulators, those over the same axis together."""
        while True:
            todo = set(self.schedule.row_accumulators) - self.at.staged
            left = [r for r in self.live(roots) if r in todo]
            waiting = {r for r in left if any(n in left for n in self.live(r.args))}
            ready = [r for r in left if isinstance(r, Reduce) and r not in waiting]
            if not ready:
                return
            group = [r for r in ready if r.axis is ready[0].axis]
            self.fold_rows(group, lane, low, high)
            self.at = replace(self.at, staged=self.at.staged.union(group))

    def fold_rows(self, group: Sequence[Reduce], lane: Axis, low: Bound, high: Bound) -> None:
        axis, ends = group[0].axis, (low, high)
        most = upper_bound(axis.extent)
        wide = [r for r in group if is_rounded(r) and (most is None or most > CHAIN)]
        self.blocks(lane, low, high, lambda: self.clear(group, wide))
        for piece in self.cuts.pieces(axis):
            first, last = self.ends(piece, is_shared=False)
            end = self.whole(first, last, CHAIN) if wide else first
            with self.scope(decided={**self.at.decided, **piece.decided}):
                if first != end:
                    with self.code.count(
                        first, end, CHAIN, self.iterations_per_poll(axis, CHAIN)
                    ) as start:
                        stop = self.code.i64("add", start, CHAIN)
                        self.add_run(group, lane, ends, start, stop)
                        self.blocks(lane, low, high, lambda: self.flush_rows(wide))
                self.add_run(group, lane, ends, end, last, is_polled=not wide)
        if wide:
            self.blocks(lane, low, high, lambda: self.join_rows(wide))

    def clear(self, group: Sequence[Reduce], wide: Sequence[Reduce]) -> None:
        for r in group:
            for copy in range(self.at.copies):
                self.to_scratch(r, copy, self.identity(r))
                if r in wide:
                    self.to_wide_scratch(r, copy, self.code.const(0, DType.F64))

    def flush_rows(self, wide: Sequence[Reduce]) -> None:
        """Add the accumulators to those in f64, and reset them."""
        for r in wide:
            for copy in range(self.at.copies):
                self.to_wide_scratch(r, copy, self.whole_sum(r, copy))
                self.to_scratch(r, copy, self.identity(r))

    def join_rows(self, wide: Sequence[Reduce]) -> None:
        for r in wide:
            for copy in range(self.at.copies):
                self.to_scratch(r, copy, self.whole_sum(r, copy).to(r.dtype.compute))

    def whole_sum(self, r: Reduce, copy: int) -> Vec:
        return self.from_wide_scratch(r, copy) + self.from_scratch(r, copy).to(DType.F64)

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
        together = self.schedule.row_step
        middle = self.whole(first, last, together)
        for start, end, count in ((first, middle, together), (middle, last, 1)):
            if start != end:
                is_long = is_polled and count == together
                polled = self.iterations_per_poll(group[0].axis, count) if is_long else 0
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
                index = {**self.at.index, **place}
                with self.scope(index=index, values=dict(values), offsets=dict(offsets)):
                    rows.append(self.bodies(group))
            for r, copy in rows[0]:
                total = self.pairwise(r, [found[r, copy] for found in rows])
                self.to_scratch(r, copy, fold(r, self.from_scratch(r, copy), total))

        self.blocks(lane, *ends, add)

    def hoisted(self, group: Sequence[Reduce], lane: Axis, place: Mapping[Axis, Bound]) -> Hoisted:
        bodies = [r.args[0] for r in group]
        with self.scope(index={**self.at.index, **place}, lane=lane):
            for node in self.live_outside(bodies):
                if isinstance(node, Load):
                    self.base(node.at)
            self.hoist(bodies)
            return self.at.values, self.at.offsets

    def bodies(self, group: Sequence[Reduce]) -> dict[tuple[Reduce, int], Vec]:
        copies = range(self.at.copies)
        return {(r, copy): self.value(r.args[0], copy) for r in group for copy in copies}
