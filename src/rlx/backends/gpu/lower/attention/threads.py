"""Attention by single threads, without a barrier: where those cost more than what they share.

A thread has a few rows, and goes along their keys a few at a time, straight from global memory:

    scores[row, key] = Σ_d query[row, d] · key[key, d]
    sums[row, column] = sums[row, column] · factor + Σ_key weight[row, key] · value[key, column]
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.gpu.lower.attention.frame import Row, vector_width
from rlx.backends.gpu.lower.attention.kernel import AttentionKernel
from rlx.backends.gpu.lower.attention.softmax import MaskLoads, State, has_mask_operand
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.program.values import BufferRef, Var, Variable

CHUNK = 4
"""Neighbours along the depth that are loaded at a time."""


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """A row, where its query is, and what is known of it."""

    row: Row
    start: Var
    state: State
    sums: list[Variable]


class ThreadKernel(AttentionKernel):
    """One program."""

    def declare(self) -> None:
        """Nothing is shared."""

    def build(self) -> None:
        b, schedule, frame = self.b, self.schedule, self.frame
        frame.begin(self.machine.has_dependent_launch)
        each = schedule.thread_rows
        first = b.thread * each
        self.rows = [self._row(first + i) for i in range(each)]
        tiles = frame.tiles_of(schedule.keys, frame.first + first, each)
        self.key_start, self.value_start = map(frame.of_kv_head, (self.form.k, self.form.v))
        carried = [v for r in self.rows for v in (*r.state.carried, *r.sums)]
        with b.loop(tiles.low, tiles.high, carry=carried) as tile:
            self._tile(tile * schedule.keys)
        for own in self.rows:
            self._finish(own)

    def _row(self, number: Var) -> ThreadRow:
        """Rows behind the last one are read as that, and not stored."""
        frame, form = self.frame, self.form
        flat = frame.first + number
        known = frame.row(flat.min(frame.count - 1))
        sums = [self.b.variable(0.0, form.sums) for _ in range(self.schedule.value_depth)]
        start = frame.of_row(form.q, known)
        row = Row(known.query, known.member, flat < frame.count)
        return ThreadRow(row, start, self.softmax.state(), sums)

    # -- a few keys ------------------------------------------------------------------------------

    def _tile(self, first: Var) -> None:
        count, frame = self.schedule.keys, self.frame
        inside = [None if self.keys_divide() else first + i < frame.keys for i in range(count)]
        columns = [self.b.index(i) for i in range(count)]
        loads = MaskLoads(frame, first) if has_mask_operand(frame) else None
        weights: list[list[Var]] = []
        for own, found in zip(self.rows, self._scores(first, inside)):
            made = [self.softmax.score(s) for s in found]
            if loads is not None:
                marks = [loads.element(own.row, c) for c in columns]
                made = [self.softmax.masked(s, m) for s, m in zip(made, marks)]
            bounds = self.softmax.bounds(own.row, first)
            made = [self.softmax.shown(s, c, bounds) for s, c in zip(made, columns)]
            found, factor = self.softmax.update(own.state, made, 1)
            weights.append(found)
            for total in own.sums:
                total *= factor
        self._weighed(first, inside, weights)

    def _scores(self, first: Var, inside: list[Var | None]) -> list[list[Var]]:
        b, form, frame = self.b, self.form, self.frame
        totals = [[b.variable(0.0, form.sums) for _ in inside] for _ in self.rows]
        chunk = self._chunk(self.schedule.depth)
        step = form.k.strides[2]
        starts = [self.key_start + frame.times(first + i, step) for i in range(len(inside))]
        carried = [t for row in totals for t in row]
        with b.loop(0, self.schedule.depth, chunk, carry=carried) as at:
            queries = [self._loaded(frame.q, form.q, r.start, at, chunk, None) for r in self.rows]
            for key, (start, mask) in enumerate(zip(starts, inside)):
                right = self._loaded(frame.k, form.k, start, at, chunk, mask)
                for left, row in zip(queries, totals):
                    for x, y in zip(left, right):
                        row[key].set(b.fma(x, y, row[key]))
        return [[*row] for row in totals]

    def _weighed(self, first: Var, inside: list[Var | None], weights: list[list[Var]]) -> None:
        """Weights times values, added to the sums."""
        b, form, frame, depth = self.b, self.form, self.frame, self.schedule.value_depth
        chunk, step = self._chunk(depth), form.v.strides[2]
        for key, mask in enumerate(inside):
            start = self.value_start + frame.times(first + key, step)
            for at in range(0, depth, chunk):
                values = self._loaded(frame.v, form.v, start, b.index(at), chunk, mask)
                for own, given in zip(self.rows, weights):
                    for total, value in zip(own.sums[at : at + chunk], values):
                        total.set(b.fma(given[key], value, total))

    def _chunk(self, depth: int) -> int:
        return next(c for c in (CHUNK, 2, 1) if depth % c == 0)

    def _loaded(
        self, buffer: BufferRef, layout: Layout, start: Var, at: Var, count: int, mask: Var | None
    ) -> list[Var]:
        """Neighbours along the depth, in the dtype of sums."""
        frame, bytes_ = self.frame, self.machine.vector_bytes
        width = min(count, vector_width(layout, buffer.dtype, bytes_))
        found: list[Var] = []
        for i in range(0, count, width):
            place = start + frame.times(at + i, layout.strides[3])
            found += self.b.load(buffer, place, width, mask)
        return [v.to(self.form.sums) for v in found]

    # -- results ---------------------------------------------------------------------------------

    def _finish(self, own: ThreadRow) -> None:
        b, depth = self.b, self.schedule.value_depth
        width = self._chunk(depth)
        values = [
            (b.index(at), [b.variable(v) for v in own.sums[at : at + width]])
            for at in range(0, depth, width)
        ]
        is_first = b.const(True, DType.BOOL)
        state = own.state
        self.results.store(own.row, state.most, state.total, values, is_first, self.softmax)
