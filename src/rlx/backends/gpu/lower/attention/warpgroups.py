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

from rlx.backends.gpu.lower.attention.frame import Frame, Panel, Row, Tiles, blocks, cycled
from rlx.backends.gpu.lower.attention.results import Results
from rlx.backends.gpu.lower.attention.softmax import MaskLoads, Softmax, has_mask_operand
from rlx.backends.gpu.lower.attention.tiles import LANES, WarpTile
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.attention import (
    GROUP_ROWS,
    PANEL,
    AttentionSchedule,
    panels_bytes,
    warpgroup_registers,
)
from rlx.backends.gpu.simt.builder import Builder
from rlx.backends.gpu.simt.nodes import TileType
from rlx.backends.gpu.simt.program import OuterDim
from rlx.backends.gpu.simt.thread_builder import I32
from rlx.backends.gpu.simt.values import BufferRef, SharedRef, Var, Variable
from rlx.core.dim import DimLike, exact_div, upper_bound
from rlx.core.layout import Layout
from rlx.kernel.attention import Attention, Positional

QUERIES, KEYS, VALUES = "queries", "keys", "values"
GROUP_THREADS = 128


class WarpgroupKernel:
    """One program."""

    def __init__(
        self,
        form: Attention,
        schedule: AttentionSchedule,
        machine: GpuMachine,
        constants: frozenset[int],
        b: Builder,
    ) -> None:
        self.form, self.schedule, self.machine, self.b = form, schedule, machine, b
        self.frame = Frame(b, form, schedule.rows, members=schedule.members)
        self.frame.take(constants)
        self.results = Results(self.frame, has_parts=False)
        self.softmax = Softmax(self.frame, is_scaled=False)
        columns = -(-schedule.value_depth // 8) * 8
        self.value_panels = (Panel(0, columns, columns, 0),)
        self.operand_tile = TileType("a", 16, 16, form.dtype)
        self.score_tile = TileType("c", 16, schedule.keys, form.sums)
        self.groups = schedule.rows // GROUP_ROWS
        self._declare()

    def _declare(self) -> None:
        b, schedule, form, frame = self.b, self.schedule, self.form, self.frame
        rows, keys, stages = schedule.rows, schedule.keys, schedule.stages
        self.depth_panels, self.columns_panels = schedule.depth_panels, schedule.value_panels
        self.memory = {
            QUERIES: self._shared(QUERIES, rows * self.depth_panels * PANEL),
            KEYS: self._shared(KEYS, stages * keys * self.depth_panels * PANEL),
            VALUES: self._shared(VALUES, stages * keys * self.columns_panels * PANEL),
        }
        self.full = {n: b.mbarrier(f"{n}_full", 1 if n == QUERIES else stages) for n in self.memory}
        self.empty = {
            n: b.mbarrier(f"{n}_empty", 1 if n == QUERIES else stages) for n in self.memory
        }
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

    def row(self, number: Var) -> Row:
        return self.frame.row(self.frame.first + number)

    # -- the program -----------------------------------------------------------------------------

    def build(self) -> None:
        b, schedule = self.b, self.schedule
        if self.machine.has_dependent_launch:
            b.release_dependents()
        with b.when(b.thread.eq(0)):
            for name in self.memory:
                for stage in range(1 if name == QUERIES else schedule.stages):
                    b.mbarrier_init(self.full[name], 1, stage)
                    b.mbarrier_init(self.empty[name], self.groups, stage)
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
        return (self.form.batch, self.form.keys)

    # -- copies ----------------------------------------------------------------------------------

    def _copy(self) -> None:
        b, step, turn = self.b, self.b.variable(0), self.b.variable(0)
        with b.loop(b.block_index(), self.work, b.block_count(), carry=[step, turn]) as place:
            self.frame.at(place)
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
        with b.loop(b.block_index(), self.work, b.block_count(), carry=[step, turn]) as place:
            self.frame.at(place)
            b.mbarrier_wait(self.full[QUERIES], turn & 1)
            self._rows(step)
            turn += 1

    def _rows(self, step: Variable) -> None:
        """A tile of rows."""
        b, keys = self.b, self.schedule.keys
        tiles = self.frame.tiles(keys)
        self.tile = WarpTile(self, b.warp * 16)
        count = tiles.high - tiles.low
        zero = b.tile_fill(self.operand_tile)
        self.weights = [b.variable(zero) for _ in range(keys // 16)]
        with b.when(count > 0, carry=[*self.tile.carried, *self.weights]):
            self._first(step, tiles)
        self._loops(step, tiles, count)
        self._arrive(QUERIES, b.index(0))
        with b.when(count > 0, carry=self.tile.sums):
            self._last(step + count - 1)
        step.set(step + count)
        self._store()

    def _first(self, step: Var, tiles: Tiles) -> None:
        scores = self._scores(step)
        self.b.warpgroup_wait(0)
        self._release(KEYS, step)
        is_edge = isinstance(self.form.mask, Positional) or not self._keys_divide()
        weights, _ = self._weighed(scores, tiles.high - 1, is_edge)
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
        if isinstance(mask, Positional):
            self._loop(step, tiles, b.const(1, I32), start.min(count), is_edge=True)
        most = upper_bound(self.form.keys)
        if most is None or most > self.schedule.keys:
            self._loop(step, tiles, start, end, is_edge=False)
        if isinstance(mask, Positional) and mask.window is not None:
            self._loop(step, tiles, end, count, is_edge=True)

    def _keys_divide(self) -> bool:
        return exact_div(self.form.keys, self.schedule.keys) is not None

    def _loop(self, step: Var, tiles: Tiles, low: Var, high: Var, *, is_edge: bool) -> None:
        b, carried = self.b, [*self.tile.carried, *self.weights]
        with b.loop(low, high, carry=carried) as number:
            now = step + number
            scores = self._scores(now)
            self._add(now - 1)
            b.warpgroup_wait(1)
            self._release(KEYS, now)
            weights, factors = self._weighed(scores, tiles.high - 1 - number, is_edge)
            b.warpgroup_wait(0)
            self._release(VALUES, now - 1)
            self.tile.correct(factors)
            self._keep(weights)

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

    def _weighed(self, scores: Var, tile: Var, is_edge: bool) -> tuple[list[Var], list[Var]]:
        first = tile * self.schedule.keys
        loads = MaskLoads(self.frame, first) if has_mask_operand(self.frame) else None
        return self.tile.weighed(scores, first, loads, is_edge)

    def _keep(self, weights: list[Var]) -> None:
        for step, kept in enumerate(self.weights):
            kept.set(self.tile.operand(step, weights))

    def _release(self, name: str, step: Var) -> None:
        self._arrive(name, self._stage(step)[0])

    def _arrive(self, name: str, stage: Var) -> None:
        """One thread of each group: the products of all of its warps are done."""
        with self.b.when((self.b.thread & (GROUP_THREADS - 1)).eq(0)):
            self.b.mbarrier_arrive(self.empty[name], stage)

    def _store(self) -> None:
        b, tile = self.b, self.tile
        for half, (row, state) in enumerate(zip(tile.rows, tile.states)):
            total = b.warp_reduce("add", state.total, LANES)
            is_first = (b.lane % LANES).eq(0)
            values = tile.vectors(half, self.results)
            self.results.store(row, state.most, total, values, is_first, self.softmax)
