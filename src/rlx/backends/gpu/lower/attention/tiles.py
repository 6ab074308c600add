"""Attention by matrix tiles of a warp: scores, weights and sums stay in registers.

A warp has some tiles of 16 rows. Keys and values come in tiles through shared memory, in stages:
one is computed with while the next is copied. The weights of a tile of keys, as they are left by
the first product, are the operand of the second one.

Of tiles of mma, four neighbouring lanes hold the two rows r and r + 8 of an accumulator, two
neighbouring columns of each 8x8 piece; an operand of 16x16 has the same pieces in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlx.backends.gpu.lower.attention.frame import (
    KeyPart,
    Loader,
    Panel,
    Row,
    Source,
    cycled,
    vector_width,
)
from rlx.backends.gpu.lower.attention.kernel import AttentionKernel
from rlx.backends.gpu.lower.attention.merge import merge_warps, prepare_cluster
from rlx.backends.gpu.lower.attention.results import Results
from rlx.backends.gpu.lower.attention.softmax import MaskLoads, Softmax, has_mask_operand
from rlx.backends.gpu.schedule.attention import panel_widths
from rlx.core.dim import exact_div, upper_bound
from rlx.core.dtype import DType
from rlx.kernel.attention import Attention, K, Positional, V
from rlx.program.builder import Builder
from rlx.program.types import TileType
from rlx.program.values import SharedRef, Var, Variable

LANES = 4
"""Neighbouring lanes that hold a row."""


def panels_of(columns: int, rows: int) -> tuple[Panel, ...]:
    """Columns in panels of a power of two, so that a swizzled row is read without conflicts."""
    found, first = list[Panel](), 0
    for width in panel_widths(columns):
        found.append(Panel(first, width, width, first * rows))
        first += width
    return tuple(found)


class RowKernel(Protocol):
    """What the rows of a warp need to know of the kernel that they are part of."""

    b: Builder
    form: Attention
    softmax: Softmax
    value_panels: tuple[Panel, ...]
    operand_tile: TileType
    score_tile: TileType

    def row(self, number: Var) -> Row:
        """A row of the block."""
        ...


class WarpTile:
    """The state of 16 rows of a warp: queries, sums of values, and the softmax of each row."""

    def __init__(self, kernel: RowKernel, first: Var) -> None:
        self.kernel, b = kernel, kernel.b
        self.first = first
        """Of the rows, in the block."""
        places = b.tile_place(kernel.score_tile)
        self.rows = [kernel.row(first + places[0][0]), kernel.row(first + places[2][0])]
        self.columns = [places[i - i // 2 % 2 * 2][1] for i in range(len(places))]
        """Of each element; both rows have the same."""
        self.states = [kernel.softmax.state() for _ in range(2)]
        tiles = [TileType("c", 16, p.pitch, kernel.form.sums) for p in kernel.value_panels]
        self.sums = [b.variable(b.tile_fill(t)) for t in tiles]

    @property
    def carried(self) -> list[Variable]:
        return [*(v for s in self.states for v in s.carried), *self.sums]

    def marks(self, loads: MaskLoads) -> list[list[Var]]:
        """What the mask operand has for the elements of both rows."""
        pairs = range(0, len(self.columns), 4)
        return [[m for i in pairs for m in loads.pair(r, self.columns[i])] for r in self.rows]

    def weighed(
        self, scores: Var, first: Var, marks: Sequence[Sequence[Var]] | None, is_edge: bool
    ) -> tuple[list[Var], list[Var]]:
        """The weights of a tile of keys, in the order of the tile's elements, and what the sums so
        far of both rows are multiplied by."""
        kernel, b = self.kernel, self.kernel.b
        held = b.tile_elements(scores)
        weights, factors = [held[0]] * len(held), list[Var]()
        for half, (row, state) in enumerate(zip(self.rows, self.states)):
            own = [i for i in range(len(held)) if i // 2 % 2 == half]
            made = [kernel.softmax.score(held[i]) for i in own]
            if marks is not None:
                made = [kernel.softmax.masked(s, m) for s, m in zip(made, marks[half])]
            if is_edge:
                bounds = kernel.softmax.bounds(row, first)
                made = [kernel.softmax.shown(s, self.columns[i], bounds) for s, i in zip(made, own)]
            found, factor = kernel.softmax.update(state, made, LANES)
            factors.append(factor)
            for i, w in zip(own, found):
                weights[i] = w
        return weights, factors

    def correct(self, factors: Sequence[Var]) -> None:
        b = self.kernel.b
        for total in self.sums:
            kept = [e * factors[i // 2 % 2] for i, e in enumerate(b.tile_elements(total))]
            tile = total.value.type
            assert isinstance(tile, TileType)
            total.set(b.tile_pack(tile, kept))

    def vectors(self, half: int, results: Results) -> list[tuple[Var, list[Var]]]:
        """The same, but the four lanes of a row exchange pairs, so that each has eight neighbours,
        where the result takes them at once."""
        b, pairs = self.kernel.b, self.elements(half)
        if not results.has_vectors(2 * LANES):
            return pairs
        lane, found = b.lane % LANES, list[tuple[Var, list[Var]]]()
        bits = [(lane & step).ne(0) for step in (1, 2)]
        whole = len(pairs) // LANES * LANES
        for first in range(0, whole, LANES):
            four = [values for _, values in pairs[first : first + LANES]]
            for step, bit in zip((1, 2), bits):
                four = _exchanged(b, four, step, bit)
            column = pairs[first][0] + lane * (2 * LANES - 2)
            found.append((column, [v for pair in four for v in pair]))
        return found + pairs[whole:]

    def operand(self, step: int, weights: Sequence[Var]) -> Var:
        """Sixteen keys' weights."""
        kernel = self.kernel
        own = [w.to(kernel.form.dtype) for w in weights[8 * step : 8 * step + 8]]
        return kernel.b.tile_pack(kernel.operand_tile, own)

    def elements(self, half: int) -> list[tuple[Var, list[Var]]]:
        """The sums that this thread has of a row: neighbouring columns, with the first one."""
        b, found = self.kernel.b, list[tuple[Var, list[Var]]]()
        for panel, sums in zip(self.kernel.value_panels, self.sums):
            kind = sums.value.type
            assert isinstance(kind, TileType)
            held, places = b.tile_elements(sums), b.tile_place(kind)
            for i in range(2 * half, len(held), 4):
                found.append((places[i][1] + panel.first, held[i : i + 2]))
        return found

    def add(self, step: int, weights: Sequence[Var], values: Sequence[Var]) -> None:
        """Sixteen keys' weights times their values, one tile of them for each panel."""
        b, left = self.kernel.b, self.operand(step, weights)
        for total, right in zip(self.sums, values):
            total.set(b.tile_mul(left, right, total))


class TileKernel(AttentionKernel):
    """One program."""

    def declare(self) -> None:
        form, schedule = self.form, self.schedule
        self.rows, self.keys = schedule.rows, schedule.keys
        self.value_panels = panels_of(schedule.padded_value_depth, schedule.keys)
        half, stages = form.dtype, schedule.stages
        self.own_keys = schedule.warp_keys
        """Keys of a tile that a warp has."""
        self.operand_tile = TileType("a", 16, 16, half)
        self.score_tile = TileType("c", 16, self.own_keys, form.sums)
        depth, values = schedule.padded_depth, schedule.padded_value_depth
        self.queries = self._shared("queries", schedule.rows * depth)
        self.key_tile = self._shared("keys", stages * schedule.keys * depth)
        self.value_tile = self._shared("values", stages * schedule.keys * values)

    def _shared(self, name: str, count: int) -> SharedRef:
        return self.b.shared(name, self.form.dtype, count, is_swizzled=True)

    def depth_panels(self, rows: int) -> tuple[Panel, ...]:
        return panels_of(self.schedule.padded_depth, rows)

    # -- the program -----------------------------------------------------------------------------

    def build(self) -> None:
        b, schedule = self.b, self.schedule
        self.loader = Loader(self.frame, b.made.block, self.machine.has_async_copy)
        is_dependent, is_brief = self.machine.has_dependent_launch, schedule.splits_warps
        self.frame.begin(is_dependent, self._begin_early, is_brief=is_brief)
        self._load_queries()
        for ahead in range(schedule.stages - 1):
            self._load_ahead(self.tiles.low + ahead, "new" if self._is_early else "all")
        self.request_angles()
        b.async_wait(max(0, schedule.stages - 2))
        b.barrier()
        self.turn_queries(self.queries, self.depth_panels(self.rows))
        each = schedule.warp_tiles
        own, self.first_key = b.warp * (16 * each), b.const(0, DType.I32)
        if schedule.splits_warps:
            own, self.first_key = self.first_key, b.warp * self.own_keys
        self.warp_tiles = [WarpTile(self, own + 16 * i) for i in range(each)]
        self.held = self._held_queries()
        self._loops()
        if schedule.splits_warps:
            merge_warps(self, self.warp_tiles[0])
            return
        for tile in self.warp_tiles:
            self._finish(tile)

    def _held_queries(self) -> list[list[Var]]:
        """Short ones stay in registers; others are read again for each tile of keys."""
        if not self.schedule.holds_queries:
            return []
        steps = range(self.schedule.padded_depth // 16)
        return [[self._query(t, s) for s in steps] for t in self.warp_tiles]

    def _query(self, tile: WarpTile, step: int) -> Var:
        """Sixteen columns of the rows."""
        panels = self.depth_panels(self.rows)
        panel = next(p for p in reversed(panels) if p.first <= step * 16)
        at = tile.first * panel.pitch + (panel.offset + step * 16 - panel.first)
        return self.b.tile_load(self.operand_tile, self.queries, at, panel.pitch)

    @property
    def _is_early(self) -> bool:
        return self.machine.has_dependent_launch and self.frame.has_early_past

    def _begin_early(self) -> None:
        """The first copies of past keys and values, if nothing before writes them; and the blocks
        of a cluster meet."""
        self.tiles = self.frame.tiles(self.keys)
        for ahead in range(self.schedule.stages - 1) if self._is_early else ():
            with self.b.when(self.tiles.low + ahead < self.tiles.high):
                self._load(self.tiles.low + ahead, "past")
        self.cluster_parts = prepare_cluster(self) if self.schedule.is_cluster else None

    def _load_ahead(self, tile: Var, part: KeyPart = "all") -> None:
        """A group of copies, empty where there is no such tile."""
        with self.b.when(tile < self.tiles.high):
            self._load(tile, part)
        self.b.async_commit()

    def _load_queries(self) -> None:
        form, frame = self.form, self.frame
        width = vector_width(form.q, form.dtype, self.machine.vector_bytes)

        def at(row: Var) -> Var:
            return frame.of_row(form.q, self.row(row))

        source = Source(frame.q, at, form.q.strides[3], form.depth, width)
        panels = self.depth_panels(self.rows)
        inside = None if self._rows_divide() else lambda row: self.row(row).is_inside
        self.loader.load(source, self.queries, 0, panels, self.rows, inside)
        if self.schedule.stages == 1:
            self.b.async_commit()

    def _rows_divide(self) -> bool:
        return exact_div(self.form.queries * self.form.group, self.rows) is not None

    def _load(self, tile: Var, part: KeyPart = "all") -> None:
        """A tile of keys and values to its stage."""
        schedule, first, stage = self.schedule, tile * self.keys, self._stage(tile)
        pairs = [
            (K, self.key_tile, schedule.padded_depth),
            (V, self.value_tile, schedule.padded_value_depth),
        ]
        for number, memory, columns in pairs:
            to, panels = stage * (self.keys * columns), panels_of(columns, self.keys)
            vector = self.machine.vector_bytes
            self.loader.load_keys(number, first, memory, to, panels, self.keys, vector, part)

    def _stage(self, tile: Var) -> Var:
        return cycled(tile - self.tiles.low, self.schedule.stages)[0]

    # -- the loop over tiles of keys -------------------------------------------------------------

    def _loops(self) -> None:
        """Tiles that all rows see whole need no comparisons."""
        tiles, mask = self.tiles, self.form.mask
        is_causal = isinstance(mask, Positional)
        if is_causal and mask.window is not None:
            self._loop(tiles.low, tiles.full_low, is_edge=True)
        most = upper_bound(self.form.keys)
        if most is None or most >= self.keys:
            self._loop(tiles.full_low, tiles.full_high, is_edge=False)
        if is_causal or not self.keys_divide():
            self._loop(tiles.full_high, tiles.high, is_edge=True)

    def _loop(self, low: Var, high: Var, *, is_edge: bool) -> None:
        carried = [v for t in self.warp_tiles for v in t.carried]
        with self.b.loop(low, high, carry=carried) as tile:
            self._next(tile)
            self._tile(tile, is_edge)

    def _next(self, tile: Var) -> None:
        """Wait for the tile's copies, and start those of a later one."""
        b, stages = self.b, self.schedule.stages
        if stages == 1:
            b.barrier()
            self._load(tile)
            b.async_commit()
        b.async_wait(max(0, stages - 2))
        b.barrier()
        base = self._stage(tile) * (self.keys * self.schedule.padded_depth)
        self.turn_keys(tile * self.keys, self.key_tile, base, self.depth_panels(self.keys))
        if stages > 1:
            self._load_ahead(tile + (stages - 1))

    def _tile(self, tile: Var, is_edge: bool) -> None:
        b, stage = self.b, self._stage(tile)
        first = tile * self.keys + self.first_key
        scores = self._scores(stage)
        loads = MaskLoads(self.frame, first) if has_mask_operand(self.frame) else None
        weights: list[list[Var]] = []
        for warp_tile, products in zip(self.warp_tiles, scores):
            marks = None if loads is None else warp_tile.marks(loads)
            found, factors = warp_tile.weighed(products, first, marks, is_edge)
            warp_tile.correct(factors)
            weights.append(found)
        base = stage * (self.keys * self.schedule.padded_value_depth)
        for step in range(self.own_keys // 16):
            values: list[Var] = []
            for panel in self.value_panels:
                kind = TileType("b", 16, panel.pitch, self.form.dtype)
                own = base + self.first_key * panel.pitch
                at = own + (panel.offset + step * 16 * panel.pitch)
                values.append(b.tile_load(kind, self.value_tile, at, panel.pitch))
            for warp_tile, own_weights in zip(self.warp_tiles, weights):
                warp_tile.add(step, own_weights, values)

    def _scores(self, stage: Var) -> list[Var]:
        """Products of the queries of each tile of rows and the keys."""
        b = self.b
        made = [b.tile_fill(self.score_tile) for _ in self.warp_tiles]
        kind = TileType("b", 16, self.own_keys, self.form.dtype)
        base = stage * (self.keys * self.schedule.padded_depth)
        for panel in self.depth_panels(self.keys):
            for column in range(0, panel.columns, 16):
                at = base + self.first_key * panel.pitch + column + panel.offset
                right = b.tile_load(kind, self.key_tile, at, panel.pitch, is_transposed=True)
                step = (panel.first + column) // 16
                for i, tile in enumerate(self.warp_tiles):
                    left = self.held[i][step] if self.held else self._query(tile, step)
                    made[i] = b.tile_mul(left, right, made[i])
        return made

    # -- results ---------------------------------------------------------------------------------

    def _finish(self, tile: WarpTile) -> None:
        b = self.b
        for half, (row, state) in enumerate(zip(tile.rows, tile.states)):
            total = b.warp_reduce("add", state.total, LANES)
            is_first = (b.lane % LANES).eq(0)
            values = tile.vectors(half, self.results)
            self.results.store(row, state.most, total, values, is_first, self.softmax)


def _exchanged(b: Builder, four: Sequence[list[Var]], step: int, bit: Var) -> list[list[Var]]:
    """One step of a transpose of four by four: lanes whose numbers differ in a bit exchange what
    belongs to the other."""
    made = [*four]
    for i in range(LANES):
        if i & step:
            continue
        low, high = four[i], four[i | step]
        kept = [h.where(bit, l) for l, h in zip(low, high)]
        given = [b.shuffle(l.where(bit, h), step) for l, h in zip(low, high)]
        made[i] = [g.where(bit, k) for g, k in zip(given, kept)]
        made[i | step] = [k.where(bit, g) for g, k in zip(given, kept)]
    return made
