"""A block of attention over a cache: some rows, which are queries of heads that share a kv head.

Of a chunk of keys, each thread makes the scores of one key with all rows; warps make weights of
the scores of a row, with the softmax kept up as chunks come (the maximum so far, and sums relative
to it); then groups of threads add up weighted values, each at some of the keys. The sums of groups
are added in order at the end. Caches that are quantised are multiplied with the scales of their
blocks as they are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlx.backends.gpu.library.cached_operands import NO_ROOM, NO_SLOT, Cached, Parts, Tile
from rlx.backends.gpu.library.writer import View, Writer, is_row
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.ops.nn.cached_attention import BLOCK
from rlx.program.nodes import MAX_VECTOR_BYTES
from rlx.program.values import SharedRef, Var, Variable

INF = math.inf
UNROLLED = 8
"""Vectors of a thread that are under way at once."""


def attend(
    w: Writer, given: Cached, tile: Tile, blocks: Sequence[DimLike], parts: Parts | None
) -> None:
    """The program: of one chunk of keys, which leaves parts, or of all of them."""
    row, part, first, *split = w.split(w.block_index(), blocks)
    kv_head, number = (part, w.number(0)) if tile.parts == 1 else w.split(
        part, (given.kv_heads, tile.parts)
    )  # fmt: skip
    chunk = split[0] if split else None
    _Block(w, given, tile, parts, row, kv_head, number, first * tile.queries, chunk).run()


@dataclass(slots=True)
class _Block:
    """The program of a block."""

    w: Writer
    given: Cached
    tile: Tile
    parts: Parts | None
    row: Var
    kv_head: Var
    part: Var
    """Of the heads of the kv head."""
    first: Var
    """The first query."""
    chunk: Var | None
    q: SharedRef = field(init=False)
    weights: SharedRef = field(init=False)
    """Of a chunk, row by row; scores at first."""
    factors: SharedRef = field(init=False)
    """What sums so far are multiplied with; at the end the sums of the weights."""
    tops: list[Variable] = field(init=False)
    totals: list[Variable] = field(init=False)
    """Of the rows of a warp: the greatest score, and the sum of the weights."""

    def run(self) -> None:
        slot, start, low, high = self._range()
        if self.parts is None:
            self._attend(slot, start, low, high)
            return
        with self.w.b.when(low < high):
            self._attend(slot, start, low, high)

    def _attend(self, slot: Var, start: Var, low: Var, high: Var) -> None:
        given, b, dtype, rows = self.given, self.w.b, self.given.dtype, self.tile.rows
        self.q = b.shared("q", dtype, rows * given.depth)
        self.weights = b.shared("weights", dtype, rows * given.chunk)
        self.factors = b.shared("factors", dtype, rows)
        self._stage()
        count = -(-rows // self._warps)
        self.tops = [b.variable(-INF, dtype) for _ in range(count)]
        self.totals = [b.variable(0.0, dtype) for _ in range(count)]
        sums = [b.variable(0.0, dtype) for _ in range(rows * given.thread_columns)]
        b.barrier()
        carry = [*self.tops, *self.totals, *sums]
        with b.loop(low, high, given.chunk, carry=carry) as base:
            self._score(slot, base, start)
            b.barrier()
            self._weigh()
            b.barrier()
            self._add(sums, slot, base, high)
            b.barrier()
        self._finish(sums)

    # -- what is read ------------------------------------------------------------------------------

    @property
    def _warps(self) -> int:
        return max(1, self.given.chunk // self.w.b.made.warp)

    def _range(self) -> tuple[Var, Var, Var, Var]:
        """The slot, where the row's queries stand, and the keys that the block reads, from a
        multiple of chunks on: none where the call is an error."""
        given, w, b = self.given, self.w, self.w.b
        start, fits = given.position(w, self.row)
        slot, is_known = self._slot()
        w.fail(~fits & b.thread.eq(0), NO_ROOM)
        w.fail(~is_known & b.thread.eq(0), NO_SLOT)
        last = (self.first + self.tile.queries).min(w.number(given.q.layout.dims[1]))
        high = (start + last).where(fits & is_known, 0)
        low = given.first(w, start + self.first) // given.chunk * given.chunk
        if self.chunk is not None:
            base = self.chunk * given.chunk
            low, high = low.max(base), high.min(base + given.chunk)
        return slot, start, self._same(low), self._same(high)

    def _same(self, value: Var) -> Var:
        """A value that is the same in all threads: bounds of loops with barriers are, which no
        compiler for machines without warps believes of what is loaded."""
        return self.w.b.block_reduce("max", value) if self.w.b.made.warp == 1 else value

    def _slot(self) -> tuple[Var, Var]:
        given, w = self.given, self.w
        if given.slots is None:
            return self.row, w.b.const(True, DType.BOOL)
        found = w.load(given.slots, w.at(given.slots.layout, [self.row]))[0]
        is_known = is_row(found, w.dim(given.keys.layout.dims[0]))
        return w.wide(found).where(is_known, 0), is_known

    def _place(self, row: Var | int) -> tuple[Var, Var, Var | None]:
        """The query and the head of a row of the tile, and whether there is one."""
        given, w, tile = self.given, self.w, self.tile
        shared = given.heads // given.kv_heads
        number = w.wide(row) if isinstance(row, Var) else w.number(row)
        query = self.first + number // tile.heads
        own = self.part * tile.heads + number % tile.heads
        is_some = query < w.dim(given.q.layout.dims[1]) if tile.queries > 1 else None
        if tile.heads * tile.parts > shared:
            is_head = own < shared
            is_some = is_head if is_some is None else is_some & is_head
        return query, self.kv_head * shared + own, is_some

    def _stage(self) -> None:
        """The rows of queries in shared memory."""
        given, w, b = self.given, self.w, self.w.b
        count = self.tile.rows * given.depth
        for start in range(0, count, given.chunk):
            flat = b.thread + start
            mask = flat < count if start + given.chunk > count else None
            query, head, is_some = self._place(flat // given.depth)
            column = head * given.depth + w.wide(flat % given.depth)
            where = w.at(given.q.layout, [self.row, query, column])
            (found,) = w.ref(given.q).load(where, 1, _both(mask, is_some))
            self.q.store(flat, [found.to(given.dtype)], mask)

    # -- scores ------------------------------------------------------------------------------------

    def _score(self, slot: Var, base: Var, start: Var) -> None:
        """The scores of the thread's key with all rows."""
        given, w, b = self.given, self.w, self.w.b
        key = base + w.wide(b.thread)
        is_held = key < start + w.dim(given.q.layout.dims[1])
        products = self._products(slot, key, is_held)
        for number, total in enumerate(products):
            query, _, is_some = self._place(number)
            place = start + query
            shown = key <= place
            if given.window is not None:
                shown = shown & (key >= given.first(w, place))
            is_seen = shown if is_some is None else shown & is_some
            score = self._scaled(total).where(is_seen, -INF)
            self.weights[b.thread + number * given.chunk] = score

    def _products(self, slot: Var, key: Var, is_held: Var) -> list[Variable]:
        given, w, b = self.given, self.w, self.w.b
        width, head = given.key_width, self.kv_head * given.depth
        at = w.at(given.keys.layout, [slot, key, head])
        scales = self._scales(0, slot, key, head)
        step, ref = int(given.keys.layout.strides[2]), w.ref(given.keys)
        vectors = given.depth // width
        held = next(n for n in range(min(UNROLLED, max(1, vectors)), 0, -1) if vectors % n == 0)
        totals = [b.variable(0.0, given.dtype) for _ in range(self.tile.rows)]

        def add(first: Var) -> None:
            places = [first + i * width for i in range(held)]
            loaded = [ref.load(at + p * step, width, is_held) for p in places]
            factors = [self._scale(0, scales, p, is_held) for p in places]
            for place, values, scale in zip(places, loaded, factors):
                self._multiply(totals, place, [self._cached(y, scale) for y in values])

        if vectors == held:
            add(w.number(0))
            return totals
        with b.loop(w.number(0), w.number(given.depth), held * width, carry=totals) as first:
            add(first)
        return totals

    def _multiply(self, totals: Sequence[Variable], place: Var, values: Sequence[Var]) -> None:
        """The products of some elements of the key with those of all rows."""
        given, b = self.given, self.w.b
        size = min(len(values), MAX_VECTOR_BYTES // given.dtype.itemsize)
        for number, total in enumerate(totals):
            for first in range(0, len(values), size):
                queries = self.q.load(place.to(DType.I32) + (number * given.depth + first), size)
                for x, y in zip(queries, values[first : first + size]):
                    total.set(b.fma(x, y, total))

    def _scales(self, number: int, slot: Var, key: Var, first: Var) -> Var | None:
        """Where the scales of a head begin, from an element of a row on; none of floats."""
        if not self.given.scales:
            return None
        layout = self.given.scales[number].layout
        return self.w.at(layout, [slot, key, first // BLOCK])

    def _scale(
        self, number: int, start: Var | None, element: Var, mask: Var | None = None
    ) -> Var | None:
        """Of an element of a head: blocks of a head are whole."""
        if start is None:
            return None
        view: View = self.given.scales[number]
        at = start + element // BLOCK * self.w.dim(view.layout.strides[2])
        return self.w.ref(view).load(at, 1, mask)[0].to(self.given.dtype)

    def _cached(self, value: Var, scale: Var | None) -> Var:
        """What is cached, rounded as queries are."""
        wide = value.to(self.given.dtype)
        return (wide if scale is None else wide * scale).to(self.given.q.dtype).to(self.given.dtype)

    def _scaled(self, score: Var) -> Var:
        given, b = self.given, self.w.b
        scale, softcap = given.attrs["scale"], given.attrs["softcap"]
        made = score * (1 / math.sqrt(given.depth) if scale is None else scale)
        return made if softcap is None else b.call("tanh", made / softcap) * softcap

    # -- weights -----------------------------------------------------------------------------------

    def _weigh(self) -> None:
        """Scores become weights, relative to the greatest score so far, a row by a warp."""
        b = self.w.b
        for number, (top, total) in enumerate(zip(self.tops, self.totals)):
            row, mask = self._own_row(number)
            most = b.warp_reduce("max", self._each(row, mask, None))
            before = b.variable(top)
            top.set(top.max(most))
            shift = top.where(top.ne(-INF), 0.0)
            factor = b.call("exp", before - shift)
            made = b.warp_reduce("add", self._each(row, mask, shift))
            total.set(total * factor + made)
            self.factors.store(row, [factor], _both(mask, b.lane.eq(0)))

    def _own_row(self, number: int) -> tuple[Var, Var | None]:
        """The row that a warp has, and whether there is one."""
        row = self.w.b.warp + number * self._warps
        is_full = (number + 1) * self._warps <= self.tile.rows
        return row, None if is_full else row < self.tile.rows

    def _each(self, row: Var, mask: Var | None, shift: Var | None) -> Var:
        """The greatest score of a thread; with a shift the sum of the weights, which are stored."""
        b, given = self.w.b, self.given
        warp = b.made.warp
        made = b.variable(-INF if shift is None else 0.0, given.dtype)

        def visit(at: Var) -> None:
            (score,) = self.weights.load(at, 1, mask)
            if shift is None:
                made.set(made.max(score))
                return
            weight = b.call("exp", score - shift)
            self.weights.store(at, [weight], mask)
            made.set(made + weight)

        first = row * given.chunk + b.lane
        if given.chunk // warp <= UNROLLED:
            for start in range(0, given.chunk, warp):
                visit(first + start)
            return made
        with b.loop(b.const(0, DType.I32), given.chunk, warp, carry=[made]) as start:
            visit(first + start)
        return made

    # -- values ------------------------------------------------------------------------------------

    def _add(self, sums: Sequence[Variable], slot: Var, base: Var, high: Var) -> None:
        """Weighted values of a chunk, at the keys of the thread's group."""
        given, b = self.given, self.w.b
        each = given.thread_columns
        for row in range(self.tile.rows):
            (factor,) = self.factors.load(row)
            for value in sums[row * each : (row + 1) * each]:
                value.set(value * factor)
        group, _, is_some = self._columns(0)
        keys = given.chunk // given.groups
        span = (high - base).min(given.chunk).to(DType.I32)
        held = min(keys, UNROLLED)

        def add(first: Var) -> None:
            at = [first + group + i * given.groups for i in range(held)]
            masks = [_both(is_some, key < span) for key in at]
            for turn in range(given.turns):
                self._add_turn(sums, turn, (slot, base), list(zip(at, masks)))

        if keys == held and keys * given.groups == given.chunk:
            add(b.const(0, DType.I32))
            return
        with b.loop(b.const(0, DType.I32), span, held * given.groups, carry=sums) as first:
            add(first)

    def _add_turn(
        self,
        sums: Sequence[Variable],
        turn: int,
        where: tuple[Var, Var],
        keys: Sequence[tuple[Var, Var | None]],
    ) -> None:
        given, w, b, (slot, base) = self.given, self.w, self.w.b, where
        width, ref = given.value_width, w.ref(given.values)
        _, column, _ = self._columns(turn)
        element = w.wide(column)
        head = self.kv_head * given.columns
        loaded: list[list[Var]] = []
        scales: list[Var | None] = []
        for key, mask in keys:
            own = _both(mask, column < given.columns) if given.turns > 1 else mask
            place = base + w.wide(key)
            at = w.at(given.values.layout, [slot, place, head])
            last = w.dim(given.values.layout.strides[2])
            loaded.append(ref.load(at + element * last, width, own))
            scales.append(self._scale(1, self._scales(1, slot, place, head), element, own))
        for (key, mask), values, scale in zip(keys, loaded, scales):
            wide = [self._cached(v, scale) for v in values]
            for row in range(self.tile.rows):
                (weight,) = self.weights.load(key + row * given.chunk, 1, mask)
                first = row * given.thread_columns + turn * width
                for total, value in zip(sums[first : first + width], wide):
                    total.set(b.fma(weight, value, total))

    def _columns(self, turn: int) -> tuple[Var, Var, Var | None]:
        """The group of a thread, its first column, and whether the thread is of any."""
        given, b = self.given, self.w.b
        if given.groups == 1:
            column = (b.thread + turn * given.chunk) * given.value_width
            is_full = given.turns * given.chunk == given.vectors
            return b.const(0, DType.I32), column, None if is_full else column < given.columns
        group = b.thread // given.vectors
        is_full = given.groups * given.vectors == given.chunk
        column = b.thread % given.vectors * given.value_width
        return group, column, None if is_full else group < given.groups

    # -- results -----------------------------------------------------------------------------------

    def _finish(self, sums: Sequence[Variable]) -> None:
        """The sums of groups, some rows at a time."""
        given, b, rows = self.given, self.w.b, self.tile.rows
        self._totals()
        size, left = given.groups * given.columns, given.shared_bytes - rows * given.row_bytes
        count = max(1, min(rows, left // given.sum_bytes))
        shared = b.shared("sums", given.dtype, count * size)
        for first in range(0, rows, count):
            held = min(count, rows - first)
            if first:
                b.barrier()
            for row in range(held):
                self._share(shared, sums, first + row, row * size)
            b.barrier()
            for start in range(0, held * given.columns, given.chunk):
                self._store(shared, first, start, held)

    def _totals(self) -> None:
        """The sums of the weights, to all threads or to memory."""
        w, b = self.w, self.w.b
        for number, (top, total) in enumerate(zip(self.tops, self.totals)):
            row, mask = self._own_row(number)
            one = _both(mask, b.lane.eq(0))
            if self.parts is None:
                self.factors.store(row, [total], one)
                continue
            own = _both(one, self._place(row)[2])
            w.ref(self.parts.stats).store(self._part_row(row) * 2, [top, total], own)

    def _part_row(self, row: Var) -> Var:
        query, head, _ = self._place(row)
        assert self.parts is not None
        assert self.chunk is not None
        return self.parts.row(self.w, self.given, (self.row, query, head, self.chunk))

    def _share(self, shared: SharedRef, sums: Sequence[Variable], row: int, start: int) -> None:
        """A thread's sums of a row."""
        given = self.given
        size = min(given.value_width, MAX_VECTOR_BYTES // given.dtype.itemsize)
        for turn in range(given.turns):
            group, column, is_some = self._columns(turn)
            at = group * given.columns + column + start
            first = row * given.thread_columns + turn * given.value_width
            for part in range(0, given.value_width, size):
                shared.store(at + part, sums[first + part : first + part + size], is_some)

    def _store(self, shared: SharedRef, first: int, start: int, rows: int) -> None:
        """A point of some rows: the sums of all groups, in order."""
        given, w, b = self.given, self.w, self.w.b
        flat = b.thread + start
        is_full = start + given.chunk <= rows * given.columns
        mask = None if is_full else flat < rows * given.columns
        row, column = flat // given.columns, flat % given.columns
        value = self._summed(shared, row * (given.groups * given.columns) + column, mask)
        query, head, is_some = self._place(row + first)
        own = _both(mask, is_some)
        if self.parts is not None:
            at = self._part_row(row + first) * given.columns + w.wide(column)
            w.ref(self.parts.sums).store(at, [value], own)
            return
        (total,) = self.factors.load(row + first, 1, mask)
        made = value / total.where(total.ne(0.0), 1.0)
        place = [self.row, query, head * given.columns + w.wide(column)]
        w.store(given.y, w.at(given.y.layout, place), [made.to(given.y.dtype)], own)

    def _summed(self, shared: SharedRef, at: Var, mask: Var | None) -> Var:
        b, given = self.w.b, self.given
        total = b.variable(0.0, given.dtype)
        if given.groups <= 2 * UNROLLED:
            for group in range(given.groups):
                total.set(total + shared.load(at + group * given.columns, 1, mask)[0])
            return total
        count = given.groups * given.columns
        with b.loop(b.const(0, DType.I32), count, given.columns, carry=[total]) as step:
            total.set(total + shared.load(at + step, 1, mask)[0])
        return total


def _both(a: Var | None, b: Var | None) -> Var | None:
    return b if a is None else a if b is None else a & b
