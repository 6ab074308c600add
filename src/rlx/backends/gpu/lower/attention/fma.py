"""Attention by multiply-adds of single threads, for dtypes without matrix tiles.

Sixteen neighbouring threads share some rows. Thread x of them has the keys x, x + 16, … of a tile
of scores, and vectors of the values x, x + 16, …; weights go from one to the other through shared
memory. Rows there are one vector longer than a multiple of all banks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rlx.backends.gpu.lower.attention.frame import (
    Loader,
    Panel,
    Row,
    Source,
    cycled,
    vector_width,
)
from rlx.backends.gpu.lower.attention.kernel import AttentionKernel
from rlx.backends.gpu.lower.attention.softmax import MaskLoads, State, has_mask_operand, tree
from rlx.backends.gpu.schedule.attention import (
    LANES,
    fma_pitches,
    fma_width,
)
from rlx.kernel.attention import K, V
from rlx.program.values import SharedRef, Var, Variable

UNROLLED = 2
"""Vectors of the depth, or of keys, in one step of a loop."""


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """A row, and this thread's part of it."""

    number: Var
    """In the block."""
    row: Row
    state: State
    sums: list[Variable]


class FmaKernel(AttentionKernel):
    """One program."""

    is_scaled = True

    def declare(self) -> None:
        form, schedule = self.form, self.schedule
        self.width = fma_width(form)
        self.depth_pitch, self.value_pitch, self.key_pitch = fma_pitches(schedule, form)
        rows, keys, stages = schedule.rows, schedule.keys, schedule.stages
        self.queries = self._shared("queries", rows * self.depth_pitch)
        self.key_tile = self._shared("keys", stages * keys * self.depth_pitch)
        self.value_tile = self._shared("values", stages * keys * self.value_pitch)
        self.weights = self._shared("weights", rows * self.key_pitch)
        self.value_width = _value_width(self.value_pitch, self.width)

    def _shared(self, name: str, count: int) -> SharedRef:
        return self.b.shared(name, self.form.sums, count)

    # -- the program -----------------------------------------------------------------------------

    def build(self) -> None:
        b, schedule = self.b, self.schedule
        self.frame.begin(self.machine.has_dependent_launch)
        self.loader = Loader(self.frame, b.made.block, self.machine.has_async_copy)
        self.tiles = self.frame.tiles(schedule.keys)
        self.x, team = b.thread % LANES, b.thread // LANES
        self.rows = [
            self._row(team * schedule.thread_rows + i) for i in range(schedule.thread_rows)
        ]
        self._load_queries()
        if schedule.stages > 1:
            with b.when(self.tiles.low < self.tiles.high):
                self._load(self.tiles.low)
        carried = [v for r in self.rows for v in (*r.state.carried, *r.sums)]
        with b.loop(self.tiles.low, self.tiles.high, carry=carried) as tile:
            self._next(tile)
            self._tile(tile)
        for row, total in zip(self.rows, self._totals()):
            self._finish(row, total)

    def _row(self, number: Var) -> ThreadRow:
        b = self.b
        sums = [b.variable(0.0, self.form.sums) for _ in range(self.value_pitch // LANES)]
        return ThreadRow(number, self.row(number), self.softmax.state(), sums)

    def _load_queries(self) -> None:
        """Multiplied by the scale, as the form has it."""
        form, frame, row = self.form, self.frame, self.row
        width = vector_width(form.q, form.sums, self.machine.vector_bytes)
        at: Callable[[Var], Var] = lambda r: frame.of_row(form.q, row(r))
        source = Source(frame.q, at, form.q.strides[3], form.depth, width)
        loader = _ScaledLoader(frame, self.b.made.block, is_async=False)
        panels = self._panels(self.depth_pitch - self.width, self.depth_pitch)
        rows = self.schedule.rows
        loader.load(source, self.queries, 0, panels, rows, lambda r: row(r).is_inside)
        if form.rotary is not None:
            self.request_angles()
            self.b.barrier()
            self.turn_queries(self.queries, panels)

    def _panels(self, columns: int, pitch: int) -> tuple[Panel, ...]:
        return (Panel(0, columns, pitch, 0),)

    def _load(self, tile: Var) -> None:
        keys = self.schedule.keys
        first, stage = tile * keys, self._stage(tile)
        pairs = [
            (K, self.key_tile, self.depth_pitch - self.width, self.depth_pitch),
            (V, self.value_tile, self.value_pitch, self.value_pitch),
        ]
        for number, memory, columns, pitch in pairs:
            to, panels = stage * (keys * pitch), self._panels(columns, pitch)
            vector = self.machine.vector_bytes
            self.loader.load_keys(number, first, memory, to, panels, keys, vector)
        if self.machine.has_async_copy:
            self.b.async_commit()

    def _stage(self, tile: Var) -> Var:
        return cycled(tile - self.tiles.low, self.schedule.stages)[0]

    def _next(self, tile: Var) -> None:
        """Wait for the tile's copies, and start those of the next one."""
        b = self.b
        if self.schedule.stages == 1:
            b.barrier()
            self._load(tile)
        if self.machine.has_async_copy:
            b.async_wait(0)
        b.barrier()
        keys, columns = self.schedule.keys, self.depth_pitch - self.width
        base = self._stage(tile) * (keys * self.depth_pitch)
        self.turn_keys(tile * keys, self.key_tile, base, self._panels(columns, self.depth_pitch))
        if self.schedule.stages > 1:
            with b.when(tile + 1 < self.tiles.high):
                self._load(tile + 1)

    # -- one tile of keys ------------------------------------------------------------------------

    def _tile(self, tile: Var) -> None:
        first, stage = tile * self.schedule.keys, self._stage(tile)
        columns = [self.x + c for c in range(0, self.schedule.keys, LANES)]
        scores = self._scores(stage, columns)
        loads = MaskLoads(self.frame, first) if has_mask_operand(self.frame) else None

        def shown(own: ThreadRow, found: list[Var]) -> list[Var]:
            made = [self.softmax.score(s) for s in found]
            if loads is not None:
                marks = [loads.element(own.row, c) for c in columns]
                made = [self.softmax.masked(s, m) for s, m in zip(made, marks)]
            bounds = self.softmax.bounds(own.row, first)
            return [self.softmax.shown(s, c, bounds) for s, c in zip(made, columns)]

        if self.has_warps:
            for own, found in zip(self.rows, scores):
                self._store_weights(own, columns, *self._updated(own, shown(own, found)))
        else:
            held = [shown(own, found) for own, found in zip(self.rows, scores)]
            tops = self._exchanged([self.softmax.top(s) for s in held], Var.max)
            for own, made, top in zip(self.rows, held, tops):
                weights = self.softmax.weights(own.state, made, top)
                self._store_weights(own, columns, *weights)
        self._meet()
        self._weighed(stage)
        self._meet()

    def _updated(self, own: ThreadRow, scores: list[Var]) -> tuple[list[Var], Var]:
        return self.softmax.update(own.state, scores, LANES)

    def _store_weights(
        self, own: ThreadRow, columns: list[Var], weights: list[Var], factor: Var
    ) -> None:
        for column, weight in zip(columns, weights):
            self.weights[own.number * self.key_pitch + column] = weight
        for total in own.sums:
            total *= factor

    # -- threads that share rows -----------------------------------------------------------------

    @property
    def has_warps(self) -> bool:
        return self.machine.warp > 1

    def _meet(self) -> None:
        """All threads that share rows are here: those of a warp, or else of the block."""
        self.b.barrier("warp" if self.has_warps else "block")

    def _exchanged(self, own: list[Var], combine: Callable[[Var, Var], Var]) -> list[Var]:
        """A value of each row, combined over the threads that share it, by way of the memory of
        weights, neighbours first."""
        b, width, found = self.b, self.width, list[Var]()
        for row, value in zip(self.rows, own):
            self.weights[row.number * self.key_pitch + self.x] = value
        b.barrier()
        for row in self.rows:
            start = row.number * self.key_pitch
            parts = [self.weights.load(start + s, width) for s in range(0, LANES, width)]
            found.append(tree([v for part in parts for v in part], combine))
        b.barrier()
        return found

    def _scores(self, stage: Var, columns: list[Var]) -> list[list[Var]]:
        b, pitch, step = self.b, self.depth_pitch, self.width * UNROLLED
        totals = [[b.variable(0.0, self.form.sums) for _ in columns] for _ in self.rows]
        base = stage * (self.schedule.keys * pitch)
        carried = [t for row in totals for t in row]
        with b.loop(0, pitch - self.width, step, carry=carried) as at:
            for more in range(0, step, self.width):
                starts = [base + c * pitch + at + more for c in columns]
                keys = [self.key_tile.load(s, self.width) for s in starts]
                for own, row in zip(self.rows, totals):
                    left = self.queries.load(own.number * pitch + at + more, self.width)
                    for total, right in zip(row, keys):
                        for q, k in zip(left, right):
                            total.set(b.fma(q, k, total))
        return [[*row] for row in totals]

    def _weighed(self, stage: Var) -> None:
        """Weights times values, added to the sums."""
        b, width, keys = self.b, self.width, self.schedule.keys
        base = stage * (keys * self.value_pitch)
        carried = [t for r in self.rows for t in r.sums]
        with b.loop(0, keys, width, carry=carried) as key:
            weights = [self.weights.load(r.number * self.key_pitch + key, width) for r in self.rows]
            for i in range(width):
                values = self._values(base + (key + i) * self.value_pitch)
                for own, given in zip(self.rows, weights):
                    for total, value in zip(own.sums, values):
                        total.set(b.fma(given[i], value, total))

    def _values(self, base: Var) -> list[Var]:
        """This thread's columns of a row of values."""
        width = self.value_width
        starts = range(0, self.value_pitch, LANES * width)
        found = [self.value_tile.load(base + self.x * width + s, width) for s in starts]
        return [v for part in found for v in part]

    # -- results ---------------------------------------------------------------------------------

    def _totals(self) -> Iterator[Var]:
        """The sums of the rows' weights."""
        own = [r.state.total for r in self.rows]
        if self.has_warps:
            return (self.b.warp_reduce("add", t, LANES) for t in own)
        return iter(self._exchanged([*own], Var.__add__))

    def _finish(self, own: ThreadRow, total: Var) -> None:
        b, width = self.b, self.value_width
        starts = range(0, self.value_pitch, LANES * width)
        values: list[tuple[Var, list[Var]]] = []
        for number, start in enumerate(starts):
            held = [*own.sums[number * width : (number + 1) * width]]
            values.append((self.x * width + start, [b.variable(v) for v in held]))
        self.results.store(own.row, own.state.most, total, values, self.x.eq(0), self.softmax)


def _value_width(columns: int, most: int) -> int:
    """Neighbouring columns of a thread: vectors that divide the columns of sixteen threads."""
    width = most
    while columns % (LANES * width):
        width //= 2
    return width


class _ScaledLoader(Loader):
    """Queries times the scale."""

    def _moved(
        self, source: Source, memory: SharedRef, there: Var, index: Var, mask: Var | None
    ) -> None:
        values = self.b.load(source.buffer, index, source.width, mask)
        scale = self.frame.form.scale
        held = [v.to(memory.dtype) * scale for v in values]
        self.b.shared_store(memory, there, held)
