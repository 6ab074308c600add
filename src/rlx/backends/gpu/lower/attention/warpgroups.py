"""Attention by products of four warps out of shared memory, which the copy engine fills.

    one thread, for each tile of rows:
        the queries, once those before are done with; then keys and values, tile by tile
    two groups of four warps, each 64 rows, for each tile of rows:
        scores of the first tile of keys; their weights
        for each other tile of keys:
            start its scores; start the weights before times their values
            weights of the scores, while the second product is under way
            correct the sums
        the last weights times their values; store

Blocks go on from one tile of rows to another, so that copies of the next one are under way while
results are stored. Tiles of keys are taken from the last one on: where queries see the keys up to
their position, that is the one whose scores are compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.gpu.lower.attention.frame import Panel, Row, Tiles, blocks, cycled
from rlx.backends.gpu.lower.attention.kernel import AttentionKernel
from rlx.backends.gpu.lower.attention.softmax import MaskLoads, has_mask_operand
from rlx.backends.gpu.lower.attention.tiles import LANES, WarpTile
from rlx.backends.gpu.schedule.attention import (
    GROUP_ROWS,
    PANEL,
    panels_bytes,
    warpgroup_registers,
)
from rlx.core.dim import DimLike, exact_div, upper_bound
from rlx.core.layout import Layout
from rlx.kernel.attention import Positional
from rlx.program.tensor_map import OuterDim
from rlx.program.thread_builder import I32
from rlx.program.types import TileType
from rlx.program.values import BufferRef, SharedRef, Var, Variable

QUERIES, KEYS, VALUES = "queries", "keys", "values"
TURNS, RESULTS = "turns", "results"
GROUP_THREADS = 128


class WarpgroupKernel(AttentionKernel):
    """One program."""

    def declare(self) -> None:
        form, schedule = self.form, self.schedule
        columns = -(-schedule.value_depth // 8) * 8
        self.value_panels = (Panel(0, columns, columns, 0),)
        self.operand_tile = TileType("a", 16, 16, form.dtype)
        self.score_tile = TileType("c", 16, schedule.keys, form.sums)
        self.groups = schedule.groups
        self._declare_memory()

    def _declare_memory(self) -> None:
        """Stages of copies, their barriers, and what the copy engine reads."""
        b, schedule, form, frame = self.b, self.schedule, self.form, self.frame
        rows, keys, stages = schedule.rows, schedule.keys, schedule.stages
        self.depth_panels, self.columns_panels = schedule.depth_panels, schedule.value_panels
        self.memory = {
            QUERIES: self._shared(QUERIES, rows * self.depth_panels * PANEL),
            KEYS: self._shared(KEYS, stages * keys * self.depth_panels * PANEL),
            VALUES: self._shared(VALUES, stages * keys * self.columns_panels * PANEL),
        }
        count = rows * self.columns_panels * PANEL
        self.staging = self._shared(RESULTS, count) if schedule.stages_results else None
        self.full = {n: b.mbarrier(f"{n}_full", 1 if n == QUERIES else stages) for n in self.memory}
        self.empty = {
            n: b.mbarrier(f"{n}_empty", 1 if n == QUERIES else stages) for n in self.memory
        }
        if schedule.takes_turns:
            b.mbarrier(TURNS, self.groups)
        self.maps = {
            QUERIES: self._query_map(form.q),
            KEYS: self._map(KEYS, frame.k, form.k),
            VALUES: self._map(VALUES, frame.v, form.v),
        }

    def _shared(self, name: str, count: int) -> SharedRef:
        return self.b.shared(name, self.form.dtype, count, is_swizzled=True)

    def _map(self, name: str, buffer: BufferRef, layout: Layout) -> str:
        """Matrices of keys, one for each batch and kv head."""
        batch, heads, length, depth = layout.dims
        across, of_head, down, _ = layout.strides
        outer = (OuterDim(batch, across), OuterDim(heads, of_head))
        return self.b.tensor_map(
            f"{name}_map", buffer, (length, depth), (self.schedule.keys, PANEL),
            pitch=down, offset=layout.offset, outer=outer,
        )  # fmt: skip

    def _query_map(self, layout: Layout) -> str:
        """The heads of a query that are taken together are the rows of a matrix."""
        batch, _, length, depth = layout.dims
        across, of_head, down, _ = layout.strides
        members = self.frame.members
        outer = (
            OuterDim(batch, across),
            OuterDim(self.form.heads // members, of_head * members),
            OuterDim(length, down, self.schedule.rows // members),
        )
        return self.b.tensor_map(
            f"{QUERIES}_map", self.frame.q, (members, depth), (members, PANEL),
            pitch=of_head, offset=layout.offset, outer=outer,
        )  # fmt: skip

    # -- the program -----------------------------------------------------------------------------

    def build(self) -> None:
        b, schedule = self.b, self.schedule
        if self.machine.has_dependent_launch:
            b.release_dependents()
        with b.when(b.thread.eq(0)):
            for name in self.memory:
                for stage in range(1 if name == QUERIES else schedule.stages):
                    b.mbarrier_init(self.full[name], 1, stage)
                    b.mbarrier_init(self.empty[name], 4 * self.groups, stage)
            for group in range(self.groups if schedule.takes_turns else 0):
                b.mbarrier_init(TURNS, 1, group)
        b.barrier()
        if self.machine.has_dependent_launch:
            b.wait_dependencies()
        self.work = self.frame.number(blocks(self.form, schedule.rows, members=schedule.members))
        for dim in self._sizes():
            self.frame.number(dim)
        with b.when(b.warp < 4 * self.groups):
            if schedule.limits_registers:
                b.register_limit(warpgroup_registers(self.groups)[1], is_more=True)
            self._multiply()
        with b.otherwise():
            if schedule.limits_registers:
                b.register_limit(warpgroup_registers(self.groups)[0], is_more=False)
            with b.when(b.thread.eq(GROUP_THREADS * self.groups)):
                self._copy()

    def _sizes(self) -> tuple[DimLike, ...]:
        form = self.form
        pairs = form.batch * (form.heads // self.frame.members)
        return (pairs if self.frame.section else form.batch, form.keys)

    def _place(self, number: Var, turn: Var) -> Var:
        """The tile of rows that a block does in its turn: every other turn in reverse order, since
        tiles come by their number of keys, and the first block would have the longest of each."""
        b = self.b
        first = number - b.block_index()
        count = b.block_count().min(self.work - first)
        return (first * 2 + (count - 1) - number).where((turn & 1).ne(0), number)

    # -- copies ----------------------------------------------------------------------------------

    def _copy(self) -> None:
        b, step, turn = self.b, self.b.variable(0), self.b.variable(0)
        with b.loop(b.block_index(), self.work, b.block_count(), carry=[step, turn]) as number:
            self.frame.at(self._place(number, turn))
            tiles = self.frame.tiles(self.schedule.keys)
            b.mbarrier_wait(self.empty[QUERIES], (turn + 1) & 1)
            self._copy_queries()
            with b.loop(0, tiles.high - tiles.low, carry=[step]) as number:
                first = (tiles.high - 1 - number) * self.schedule.keys
                self._copy_tile(KEYS, step, first, self.depth_panels)
                self._copy_tile(VALUES, step, first, self.columns_panels)
                step += 1
            turn += 1

    def _copy_queries(self) -> None:
        b, frame, rows = self.b, self.frame, self.schedule.rows
        b.mbarrier_arrive(self.full[QUERIES], 0, panels_bytes(rows, self.depth_panels))
        query = frame.first // frame.members
        for panel in range(self.depth_panels):
            b.bulk_copy(
                self.memory[QUERIES], panel * rows * PANEL, self.maps[QUERIES], 0, panel * PANEL,
                self.full[QUERIES], 0, (frame.batch, frame.unit, query),
            )  # fmt: skip

    def _copy_tile(self, name: str, step: Var, first: Var, panels: int) -> None:
        b, frame, keys = self.b, self.frame, self.schedule.keys
        stage, turn = self._stage(step)
        b.mbarrier_wait(self.empty[name], (turn + 1) & 1, stage)
        b.mbarrier_arrive(self.full[name], stage, panels_bytes(keys, panels))
        for panel in range(panels):
            at = stage * (keys * panels * PANEL) + panel * keys * PANEL
            b.bulk_copy(
                self.memory[name], at, self.maps[name], first, panel * PANEL,
                self.full[name], stage, (frame.batch, frame.kv_head),
            )  # fmt: skip

    def _stage(self, step: Var) -> tuple[Var, Var]:
        """The stage of a step, counted over all tiles of rows, and how often it was used before."""
        return cycled(step, self.schedule.stages)

    # -- products --------------------------------------------------------------------------------

    def _multiply(self) -> None:
        b, step, turn = self.b, self.b.variable(0), self.b.variable(0)
        self.group = b.warp >> 2
        with b.loop(b.block_index(), self.work, b.block_count(), carry=[step, turn]) as number:
            self.frame.at(self._place(number, turn))
            b.mbarrier_wait(self.full[QUERIES], turn & 1)
            self._rows(step)
            turn += 1

    def _rows(self, step: Variable) -> None:
        """A tile of rows."""
        tiles = self.frame.tiles(self.schedule.keys)
        own = self._own_tiles(tiles)
        self._skip(step, tiles.high - own.high)
        self._multiply_tiles(step + (tiles.high - own.high), own)
        step.set(step + (tiles.high - tiles.low))
        self._store()

    def _own_tiles(self, tiles: Tiles) -> Tiles:
        """Without the last tiles of the block that no row of the group sees by its position."""
        if not self._skips():
            return tiles
        first = self.frame.first + self.group * GROUP_ROWS
        found = self.frame.tiles_of(self.schedule.keys, first, GROUP_ROWS)
        ends = (found.full_low, found.full_high, found.high)
        return Tiles(tiles.low, *(end.max(tiles.low) for end in ends))

    def _skips(self) -> bool:
        """Only of many groups are there such tiles often enough to pay; turns go by products."""
        schedule = self.schedule
        are_many = schedule.groups > 2 and schedule.keys <= GROUP_ROWS
        return isinstance(self.form.mask, Positional) and are_many and not schedule.takes_turns

    def _skip(self, step: Var, count: Var) -> None:
        """Steps that are left to other groups: the copies of each are waited for and released."""
        if not self._skips():
            return
        with self.b.loop(0, count) as number:
            stage, turn = self._stage(step + number)
            for name in (KEYS, VALUES):
                self.b.mbarrier_wait(self.full[name], turn & 1, stage)
                self._arrive(name, stage)

    def _multiply_tiles(self, step: Var, tiles: Tiles) -> None:
        b, count = self.b, tiles.high - tiles.low
        self.tile = WarpTile(self, b.warp * 16)
        zero = b.tile_fill(self.operand_tile)
        self.weights = [b.variable(zero) for _ in range(self.schedule.keys // 16)]
        with b.when(count > 0, carry=[*self.tile.carried, *self.weights]):
            self._first(step, tiles)
        self._loops(step, tiles, count)
        self._arrive(QUERIES, b.index(0))
        with b.when(count > 0, carry=self.tile.sums):
            self._last(step + count - 1)

    def _first(self, step: Var, tiles: Tiles) -> None:
        self._take_turn(step)
        scores = self._scores(step)
        self._give_turn()
        marks = self._marks(tiles.high - 1)
        self.b.warpgroup_wait(0)
        self._release(KEYS, step)
        is_edge = isinstance(self.form.mask, Positional) or not self.keys_divide()
        weights, _ = self._weighed(scores, tiles.high - 1, marks, is_edge)
        self._keep(weights)

    def _last(self, step: Var) -> None:
        (sums,) = self.tile.sums
        tile = sums.value.type
        assert isinstance(tile, TileType)
        sums.set(self.b.tile_pack(tile, self.b.tile_elements(sums)))  # products change their own
        self._add(step)
        self.b.warpgroup_wait(0)
        self._release(VALUES, step)

    def _loops(self, step: Var, tiles: Tiles, count: Var) -> None:
        """Tiles that all rows see whole need no comparisons."""
        mask, b = self.form.mask, self.b
        start = (tiles.high - tiles.full_high).max(1)
        end = (tiles.high - tiles.full_low).max(start)
        if isinstance(mask, Positional) and not self._has_one_edge(mask):
            self._loop(step, tiles, b.const(1, I32), start.min(count), is_edge=True)
        most = upper_bound(self.form.keys)
        if most is None or most > self.schedule.keys:
            self._loop(step, tiles, start, end, is_edge=False)
        if isinstance(mask, Positional) and mask.window is not None:
            self._loop(step, tiles, end, count, is_edge=True)

    def _has_one_edge(self, mask: Positional) -> bool:
        """Are the positions of all rows of a tile in one tile of keys, which is the first?"""
        queries = self.schedule.rows // self.frame.members
        return self.schedule.keys % queries == 0 and exact_div(mask.offset, queries) is not None

    def _loop(self, step: Var, tiles: Tiles, low: Var, high: Var, *, is_edge: bool) -> None:
        b, carried = self.b, [*self.tile.carried, *self.weights]
        with b.loop(low, high, carry=carried) as number:
            now = step + number
            self._take_turn(now)
            scores = self._scores(now)
            self._add(now - 1)
            self._give_turn()
            tile = tiles.high - 1 - number
            marks = self._marks(tile)
            b.warpgroup_wait(1)
            self._release(KEYS, now)
            weights, factors = self._weighed(scores, tile, marks, is_edge)
            b.warpgroup_wait(0)
            self._release(VALUES, now - 1)
            self.tile.correct(factors)
            self._keep(weights)

    def _take_turn(self, step: Var) -> None:
        """The first group is the first: for it, a phase before the first one is over."""
        if self.schedule.takes_turns:
            is_first = self.b.const(1, I32).where(self.group.eq(0), 0)
            self.b.mbarrier_wait(TURNS, (step + is_first) & 1, self.group)

    def _give_turn(self) -> None:
        if self.schedule.takes_turns:
            after = (self.group + 1) % self.groups
            with self.b.when((self.b.thread % (4 * self.machine.warp)).eq(0)):
                self.b.mbarrier_arrive(TURNS, after)

    def _scores(self, step: Var) -> Var:
        """Products of queries and keys, started."""
        b, keys, rows = self.b, self.schedule.keys, self.schedule.rows
        stage, turn = self._stage(step)
        b.mbarrier_wait(self.full[KEYS], turn & 1, stage)
        total = b.tile_fill(self.score_tile)
        base = stage * (keys * self.depth_panels * PANEL)
        own = self.group * (GROUP_ROWS * PANEL)
        for panel in range(self.depth_panels):
            depth = min(PANEL, self.schedule.padded_depth - panel * PANEL)
            total = b.warpgroup_mul(
                total, self.memory[QUERIES], own + panel * rows * PANEL,
                self.memory[KEYS], base + panel * keys * PANEL, depth, is_async=True,
            )  # fmt: skip
        return total

    def _add(self, step: Var) -> None:
        """Weights times values, started."""
        b, keys = self.b, self.schedule.keys
        stage, turn = self._stage(step)
        b.mbarrier_wait(self.full[VALUES], turn & 1, stage)
        (sums,) = self.tile.sums
        base = stage * (keys * self.columns_panels * PANEL)
        made = b.warpgroup_mul_tiles(
            sums, self.weights, self.memory[VALUES], base, panel=keys * PANEL, is_async=True
        )
        sums.set(made)

    def _marks(self, tile: Var) -> list[list[Var]] | None:
        """Elements of the mask operand, on their way while products are."""
        if not has_mask_operand(self.frame):
            return None
        return self.tile.marks(MaskLoads(self.frame, tile * self.schedule.keys))

    def _weighed(
        self, scores: Var, tile: Var, marks: list[list[Var]] | None, is_edge: bool
    ) -> tuple[list[Var], list[Var]]:
        return self.tile.weighed(scores, tile * self.schedule.keys, marks, is_edge)

    def _keep(self, weights: list[Var]) -> None:
        for step, kept in enumerate(self.weights):
            kept.set(self.tile.operand(step, weights))

    def _release(self, name: str, step: Var) -> None:
        self._arrive(name, self._stage(step)[0])

    def _arrive(self, name: str, stage: Var) -> None:
        """Each warp by itself: it has waited for the copy, too. Products keep the warps of a group
        together, but where there are none, one that others arrive for could be left two phases
        behind, and would wait for ever."""
        with self.b.when(self.b.lane.eq(0)):
            self.b.mbarrier_arrive(self.empty[name], stage)

    # -- results ---------------------------------------------------------------------------------

    def _store(self) -> None:
        b, tile = self.b, self.tile
        totals = [b.warp_reduce("add", s.total, LANES) for s in tile.states]
        if self.staging is not None:
            self._store_staged(self.staging, [self.softmax.share(t) for t in totals])
            return
        is_first = (b.lane % LANES).eq(0)
        for half, (row, state, total) in enumerate(zip(tile.rows, tile.states, totals)):
            values = tile.vectors(half, self.results)
            self.results.store(row, state.most, total, values, is_first, self.softmax)

    def _store_staged(self, memory: SharedRef, shares: Sequence[Var]) -> None:
        """A warp's rows by way of its part of shared memory, from which it stores whole lines."""
        b, (sums,) = self.b, self.tile.sums
        own = b.warp * (16 * self.columns_panels * PANEL)
        held = [e * shares[i // 2 % 2] for i, e in enumerate(b.tile_elements(sums))]
        held += [b.const(0.0, self.form.sums)] * (len(held) % 8)
        b.barrier("warp")  # it has read what it stored there before
        for step in range(len(held) // 8):
            at = own + (step // 4 * (16 * PANEL) + step % 4 * 16)
            b.tile_store(self.tile.operand(step, held), memory, at, PANEL)
        b.barrier("warp")
        chunk, first = b.lane % 8, b.lane // 8
        for line in range(0, 16, 4):
            row = self.row(self.tile.first + first + line)
            start = own + (first + line) * PANEL + chunk * 8
            self._store_line(memory, start, row, chunk * 8)

    def _store_line(self, memory: SharedRef, start: Var, row: Row, column: Var) -> None:
        """Eight columns of a row of each panel."""
        b, frame, layout = self.b, self.frame, self.form.out
        assert self.results.out is not None
        base, depth = frame.of_row(layout, row), int(layout.dims[3])
        for panel in range(self.columns_panels):
            across = column + panel * PANEL
            is_there = across < depth if depth < (panel + 1) * PANEL else None
            inside = row.is_inside if is_there is None else row.is_inside & is_there
            values = b.shared_load(memory, start + panel * (16 * PANEL), 8, is_there)
            b.store(self.results.out, base + across.to(frame.index), values, inside)
