"""Attention for a block of query rows of one kv head, with a row in each lane.

    Qᵀ = the rows' queries, scaled and turned around
    for each block of keys that a row of the block may see
      Sᵀ[key, row] = Σ K[key, d] · Qᵀ[d, row]             register tiles
      masks, the greatest score, P = exp(S - greatest), the sum of P
      Oᵀ[d, row] = Oᵀ · correction + Σ V[key, d] · Pᵀ[key, row]     register tiles
    the rows of O, turned back, over the sums

With rows in the lanes, keys and values are read one by one where they lie, whatever their
strides; the softmax has nothing to add up across lanes; and masks by position are comparisons of
vectors. A row's sums go block by block of keys, so its bits do not depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from rlx.backends.cpu import maths
from rlx.backends.cpu.attention_form import INF, MASK, Form, K, Q, V, hidden
from rlx.backends.cpu.ir import ELEMENT, Bound, Vec
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.lanes import advanced, load, store
from rlx.backends.cpu.squares import in_vectors, turn
from rlx.backends.cpu.tile import tile_function
from rlx.backends.cpu.tiling import Tiling
from rlx.backends.cpu.writer import Writer
from rlx.dim import Dim, DimLike, dim_max, is_static
from rlx.dtype import DType
from rlx.ir.layout import Layout
from rlx.ir.mir import Graph
from rlx.kernel.contract import Contract
from rlx.kernel.form_contract import form_contract
from rlx.shape import Shape

KEY_BLOCK = 48
"""Keys whose scores are made at a time: a multiple of the lanes and of the tiles' rows."""
FAR = 2**30


def scratch_places(form: Form, tiling: Tiling) -> dict[str, DimLike]:
    """Where the parts of what a block keeps begin, in elements, and where it ends."""
    width, lanes = tiling.columns, tiling.lanes
    depth, value_depth = ((d + lanes - 1) // lanes * lanes for d in (form.depth, form.value_depth))
    parts = {"q": depth * width, "s": KEY_BLOCK * width, "o": value_depth * width}
    if form.mask is not None and not form.has_one_mask:
        parts["mask"] = KEY_BLOCK * width
    if form.dtype is not form.compute:
        parts |= {"k": KEY_BLOCK * depth, "v": KEY_BLOCK * value_depth}
    parts["rows"] = dim_max(dim_max(depth, KEY_BLOCK), value_depth) * lanes
    places: list[DimLike] = [0]
    for extent in parts.values():
        places.append(places[-1] + extent)
    return dict(zip((*parts, "end"), places))


def product_of(dtype: DType) -> Contract:
    """What the register tiles of both products compute: left[line, step] · right[step, row], with
    any strides on the left."""
    g = Graph("product")
    m, k, n = (Dim(x) for x in ("lines", "steps", "rows"))
    left, right = g.input("left", Shape((m, k), dtype)), g.input("right", Shape((k, n), dtype))
    layouts = Layout.contiguous((k, m)).permuted((1, 0)), Layout.contiguous((k, n))
    return form_contract(g.matmul(left, right), layouts)


def sizes_of(form: Form, tiling: Tiling) -> tuple[DimLike, ...]:
    """The numbers that the function is given."""
    places = [p for p in scratch_places(form, tiling).values() if not is_static(p)]
    return tuple(dict.fromkeys([*form.sizes, *places]))


class Rows(Writer):
    """The function for blocks of as many rows as a register tile has columns."""

    def __init__(self, form: Form, tiling: Tiling, isa: Isa, *, has_one: bool) -> None:
        """Without `has_one`, a single query is no work."""
        super().__init__(isa, tiling.lanes)
        for dim in sizes_of(form, tiling):
            self.size(dim)
        self.form, self.tiling, self.contract = form, tiling, product_of(form.compute)
        self.kind, self.width, self.has_one = form.compute, tiling.columns, has_one
        self.at = {
            name: advanced(self.code, "%scratch", self.size(place), self.kind)
            for name, place in scratch_places(form, tiling).items()
        }
        kept = f"[{tiling.vectors} x {self.code.vector(ELEMENT[self.kind])}]"
        self.totals = self.code.slot(kept)
        self.total = [self._of(self.totals, 0, n * self.code.lanes) for n in range(tiling.vectors)]
        self.top = [self._slot() for _ in range(tiling.vectors)]

    def _slot(self) -> str:
        return self.code.slot(self.code.vector(ELEMENT[self.kind]))

    def write(self) -> None:
        """Units are numbered along the blocks of rows, then the kv heads, then the batch."""
        code, heads = self.code, self.form.kv_heads
        rows = code.i64("mul", self.size(self.form.queries), self.form.group)
        blocks = code.let(f"udiv i64 {code.i64('add', rows, self.width - 1)}, {self.width}")
        turns = code.i64("mul", self.size(self.form.batch), heads)
        with code.count("%start", self._stop(code.i64("mul", turns, blocks)), 1) as unit:
            turn, block = (code.let(f"{w} i64 {unit}, {blocks}") for w in ("udiv", "urem"))
            self.batch, self.head = (code.let(f"{w} i64 {turn}, {heads}") for w in ("udiv", "urem"))
            self.first = code.i64("mul", block, self.width)
            self.count = code.least(code.i64("sub", rows, self.first), self.width)
            self.last = code.i64("add", self.first, code.i64("sub", self.count, 1))
            self._unit()

    def _stop(self, units: Bound) -> Bound:
        stop = self.code.least("%stop", units)
        if self.has_one:
            return stop
        is_one = self.code.let(f"icmp eq i64 {self.size(self.form.queries)}, 1")
        return self.code.let(f"select i1 {is_one}, i64 0, i64 {stop}")

    def _unit(self) -> None:
        code, form = self.code, self.form
        self._load_rows(self.at["q"], form.q, Q, form.depth, self._scaled)
        self._clear()
        low, high = self._seen()
        with code.count(low, high, KEY_BLOCK) as key:
            self._block(key, code.least(code.i64("sub", high, key), KEY_BLOCK))
        self._finish()

    # -- rows of operands, turned around ----------------------------------------------------------

    def _row(self, row: Bound, layout: Layout, along: Bound = 0) -> Bound:
        """Where a row of the kv head lies."""
        code, group = self.code, self.form.group
        query, member = (code.let(f"{w} i64 {row}, {group}") for w in ("udiv", "urem"))
        head = code.i64("add", code.i64("mul", self.head, group), member)
        return self.place(layout, (self.batch, head, query, along))

    def _load_rows(
        self, to: str, layout: Layout, number: int, extent: Bound, made: Callable[[Vec], Vec],
        start: Bound = 0,
    ) -> None:  # fmt: skip
        """to[column, row] = made(operand[row, start + column]) for all rows of the block."""
        code, dtype, step = self.code, self._dtype(number), self.size(layout.strides[3])
        across = self._padded(extent)
        with code.count(0, self.width, code.lanes) as lane:
            with self._rows(lane, layout, number, across, start) as (row, line):

                def copied(at: str, mask: Vec | None) -> None:
                    where = advanced(code, row, code.i64("mul", at, step), dtype)
                    value = made(load(code, dtype, where, step, mask))
                    store(code, value, self.kind, advanced(code, line, at, self.kind))

                in_vectors(code, extent, copied)
            with code.count(0, extent, code.lanes) as at:
                given = advanced(code, self.at["rows"], at, self.kind)
                turn(code, self.kind, (given, across), (self._of(to, at, lane), self.width))

    @contextmanager
    def _rows(
        self, lane: str, layout: Layout, number: int, across: Bound, start: Bound = 0
    ) -> Generator[tuple[str, str]]:
        """A loop over the rows of some lanes: where each lies in an operand, and its line in
        scratch. Rows past the last are the last."""
        code = self.code
        with code.count(0, code.lanes, 1) as n:
            row = code.i64("add", self.first, code.i64("add", lane, n))
            place = self._row(code.least(row, self.last), layout, start)
            line = advanced(code, self.at["rows"], code.i64("mul", n, across), self.kind)
            yield self.pointer(number, place, self._dtype(number)), line

    def _padded(self, extent: Bound) -> Bound:
        """Up to whole vectors."""
        lanes = self.code.lanes
        if isinstance(extent, int):
            return -(-extent // lanes) * lanes
        return self._whole(self.code.i64("add", extent, lanes - 1))

    def _dtype(self, number: int) -> DType:
        is_mask = number == MASK and self.form.mask is not None
        return self.form.mask_dtype if is_mask else self.form.dtype

    def _scaled(self, x: Vec) -> Vec:
        return x * self.form.scale

    def _of(self, base: str, line: Bound, lane: Bound) -> str:
        """The address of lanes of rows in a part of scratch."""
        place = self.code.i64("add", self.code.i64("mul", line, self.width), lane)
        return advanced(self.code, base, place, self.kind)

    # -- which keys -------------------------------------------------------------------------------

    def _place_of(self, row: Bound) -> Bound:
        """The place of a row's query among the keys."""
        code, form = self.code, self.form
        query = code.let(f"udiv i64 {row}, {form.group}")
        ahead = code.i64("sub", self.size(form.keys), self.size(form.queries))
        return code.i64("add", query, ahead)

    def _seen(self) -> tuple[Bound, Bound]:
        """The keys that rows of this block may see; the first on the boundary of a block."""
        code, form = self.code, self.form
        keys = self.size(form.keys)
        if not form.is_positional:
            return 0, keys
        self.near, self.far = (self._place_of(r) for r in (self.first, self.last))
        high = code.least(keys, code.i64("add", self.far, 1))
        if form.window is None:
            return 0, high
        low = code.most(code.i64("sub", self.near, form.window), 0)
        number = code.let(f"udiv i64 {low}, {KEY_BLOCK}")
        return code.i64("mul", number, KEY_BLOCK), high

    # -- a block of keys --------------------------------------------------------------------------

    def _block(self, key: str, count: Bound) -> None:
        form, s = self.form, self.at["s"]
        place, row, step = self._lines("k", form.k, K, key, count, form.depth)
        self._product((place, row, step), count, self.at["q"], form.depth, s, is_first=True)
        self._adjust(key, count)
        self._weigh(count)
        place, row, step = self._lines("v", form.v, V, key, count, self.size(form.value_depth))
        left = (place, step, row)
        self._product(left, self.size(form.value_depth), s, count, self.at["o"], is_first=False)

    def _lines(
        self, name: str, layout: Layout, number: int, key: str, count: Bound, depth: Bound
    ) -> tuple[str, Bound, Bound]:
        """Where keys or values are read, how far the next is, and how far their next element."""
        start = self.place(layout, (self.batch, self.head, key, 0))
        pointer = self.pointer(number, start, self.form.dtype)
        row, step = (self.size(s) for s in layout.strides[2:])
        if self.form.dtype is self.kind:
            return pointer, row, step
        return self._widened(self.at[name], pointer, (row, step), count, depth)

    def _widened(
        self, to: str, pointer: str, strides: tuple[Bound, Bound], count: Bound, depth: Bound
    ) -> tuple[str, Bound, Bound]:
        """Half floats as f32, so that they are turned into it once for many rows."""
        code, dtype, (row, step) = self.code, self.form.dtype, strides
        across = self._padded(depth)
        with code.count(0, count, 1) as line:
            source = advanced(code, pointer, code.i64("mul", line, row), dtype)
            target = advanced(code, to, code.i64("mul", line, across), self.kind)

            def copied(at: str, mask: Vec | None) -> None:
                where = advanced(code, source, code.i64("mul", at, step), dtype)
                value = load(code, dtype, where, step, mask)
                store(code, value, self.kind, advanced(code, target, at, self.kind))

            in_vectors(code, depth, copied)
        return to, across, 1

    def _whole(self, extent: Bound) -> str:
        return self.code.let(f"and i64 {extent}, {-self.code.lanes}")

    def _product(
        self, left: tuple[str, Bound, Bound], lines: Bound, right: str, count: Bound, sums: str,
        *, is_first: bool,
    ) -> None:  # fmt: skip
        """sums[line, row] = or += Σ left[line, step] · right[step, row], by the largest tiles."""
        code, (base, row, step) = self.code, left
        at: Bound = 0
        for rows in self.tiling.rows:
            tile = tile_function(self.contract, self.tiling, code, rows, is_edge=False)
            until = self._until(at, lines, rows)
            with code.count(at, until, rows) as line:
                a = advanced(code, base, code.i64("mul", line, row), self.kind)
                given = f"ptr {a}, i64 {row}, i64 {step}, ptr {right}, i64 0, i64 {count}, i64 0"
                to = f"ptr {self._of(sums, line, 0)}, i1 {str(is_first).lower()}"
                code.do(f"call void @{tile}({given}, {to})")
            at = until

    def _until(self, at: Bound, end: Bound, size: int) -> Bound:
        left = self.code.i64("sub", end, at)
        if isinstance(left, int):
            return self.code.i64("add", at, left // size * size)
        count = self.code.let(f"udiv i64 {left}, {size}")
        return self.code.i64("add", at, self.code.i64("mul", count, size))

    # -- masks ------------------------------------------------------------------------------------

    def _adjust(self, key: str, count: Bound) -> None:
        """The scores as the softmax takes them."""
        form = self.form
        if form.softcap is not None:
            self._change(count, self._capped)
        if form.is_positional:
            with self.code.when(self._is_partial(key, count)):
                self._change(count, self._seen_by_place(key))
        elif form.has_one_mask:
            self._change(count, self._one_mask(key))
        elif form.mask is not None:
            take = self._shown if form.kind == "custom" else _as_it_is
            self._load_rows(self.at["mask"], form.mask, MASK, count, take, key)
            self._change(count, self._own_mask)

    def _change(self, count: Bound, made: Callable[[Vec, str, int], Vec]) -> None:
        """s[key, row] = made(s[key, row]) for all keys of the block."""
        code = self.code
        with code.count(0, count, 1) as line:
            for n, at in enumerate(self._vectors(line)):
                store(code, made(load(code, self.kind, at), line, n), self.kind, at)

    def _vectors(self, line: Bound) -> list[str]:
        return [self._of(self.at["s"], line, n * self.code.lanes) for n in range(len(self.top))]

    def _capped(self, s: Vec, _line: str, _n: int) -> Vec:
        cap = self.form.softcap
        assert cap is not None
        return maths.tanh(s * (1 / cap)) * cap

    def _is_partial(self, key: str, count: Bound) -> str:
        """Is a key of the block hidden from a row?"""
        code, window = self.code, self.form.window
        end = code.i64("add", key, count)
        is_late = code.let(f"icmp sgt i64 {end}, {code.i64('add', self.near, 1)}")
        if window is None:
            return is_late
        start = code.i64("sub", self.far, window)
        is_early = code.let(f"icmp slt i64 {key}, {start}")
        return code.let(f"or i1 {is_late}, {is_early}")

    def _seen_by_place(self, key: str) -> Callable[[Vec, str, int], Vec]:
        """Hide keys behind a row's place, and those too far before it."""
        code, window = self.code, self.form.window
        # in a block that is seen in part, no distance is above the window and a block
        kind = DType.I32 if (window or 0) < FAR else DType.I64
        queries = [self._queries(n * code.lanes, kind) for n in range(len(self.top))]
        start = code.i64("sub", self.near, key)

        def made(s: Vec, line: str, n: int) -> Vec:
            distance = queries[n] + self._splat(code.i64("sub", start, line), kind)
            shown = distance >= 0
            if window is not None:
                shown = shown & (distance <= window)
            return s.where(shown, -INF)

        return made

    def _queries(self, start: int, kind: DType) -> Vec:
        """The queries of some lanes, counted from that of the first row."""
        code, group = self.code, self.form.group
        last = self._splat(code.i64("sub", self.count, 1), kind)
        row = code.iota(kind) + start
        row = row.where(row < last, last)
        if group == 1:
            return row
        member = self._splat(code.let(f"urem i64 {self.first}, {group}"), kind)
        unsigned = DType.U32 if kind is DType.I32 else DType.U64
        return ((row + member).bits(unsigned) / group).bits(kind)

    def _splat(self, number: Bound, kind: DType) -> Vec:
        code = self.code
        if isinstance(number, str) and kind is DType.I32:
            number = code.let(f"trunc i64 {number} to i32")
        return code.splat(number, kind)

    def _one_mask(self, key: str) -> Callable[[Vec, str, int], Vec]:
        """One number of the mask for all rows."""
        layout, dtype, group = self.form.mask, self.form.mask_dtype, self.form.group
        assert layout is not None
        head = self.code.i64("mul", self.head, group)

        def made(s: Vec, line: str, _n: int) -> Vec:
            at = self.place(layout, (self.batch, head, 0, self.code.i64("add", key, line)))
            return self.form.masked(s, load(self.code, dtype, self.pointer(MASK, at, dtype), 0))

        return made

    def _own_mask(self, s: Vec, line: str, n: int) -> Vec:
        at = self._of(self.at["mask"], line, n * self.code.lanes)
        return self.form.masked(s, load(self.code, self.kind, at))

    def _shown(self, mask: Vec) -> Vec:
        """1 where a custom mask shows the key, else 0."""
        return self.code.const(0, self.kind).where(hidden(mask), 1)

    # -- softmax ----------------------------------------------------------------------------------

    def _clear(self) -> None:
        code, zero = self.code, self.code.const(0, self.kind)
        self._keep(self.top, [zero.like(-INF)] * len(self.top))
        self._keep(self.total, [zero] * len(self.total))
        extent = self.size(self.form.value_depth)
        with code.count(0, code.i64("mul", extent, self.width), code.lanes) as at:
            store(code, zero, self.kind, advanced(code, self.at["o"], at, self.kind))

    def _weigh(self, count: Bound) -> None:
        """Scores become weights; what was summed before is corrected for a new greatest score."""
        old = self._kept(self.top)
        self._find_top(count)
        top = [m.like(0.0).where(m.equals(-INF), m) for m in self._kept(self.top)]
        correction = [maths.exp(a - b) for a, b in zip(old, top)]
        sums = self._exponentials(count, top)
        totals = [t * c + s for t, c, s in zip(self._kept(self.total), correction, sums)]
        self._keep(self.total, totals)
        self._correct(correction)

    def _find_top(self, count: Bound) -> None:
        """Several keys at a time: a comparison waits for the one before it."""
        code, keys = self.code, max(1, 4 // self.tiling.vectors)
        many = [self.top, *([self._slot() for _ in self.top] for _ in range(keys - 1))]
        for slots in many[1:]:
            self._keep(slots, self._kept(self.top))
        whole = self._until(0, count, keys)
        for low, high, step in ((0, whole, keys), (whole, count, 1)):
            with code.count(low, high, step) as line:
                for n, slots in enumerate(many[:step]):
                    self._take_greater(slots, self._vectors(code.i64("add", line, n)))
        for slots in many[1:]:
            self._take_greater(self.top, slots)

    def _take_greater(self, slots: Sequence[str], places: Sequence[str]) -> None:
        found = [load(self.code, self.kind, at) for at in places]
        self._keep(slots, [_greater(x, y) for x, y in zip(found, self._kept(slots))])

    def _exponentials(self, count: Bound, top: Sequence[Vec]) -> list[Vec]:
        """exp(score - top), in place, and their sums."""
        code = self.code
        slots = [self._slot() for _ in top]
        self._keep(slots, [code.const(0, self.kind)] * len(top))
        with code.count(0, count, 1) as line:
            made: list[Vec] = []
            for at, m in zip(self._vectors(line), top):
                made.append(maths.exp(load(code, self.kind, at) - m))
                store(code, made[-1], self.kind, at)
            self._keep(slots, [a + b for a, b in zip(self._kept(slots), made)])
        return self._kept(slots)

    def _correct(self, correction: Sequence[Vec]) -> None:
        """The sums of values so far, times the correction where a row has one."""
        code = self.code
        changed = [c.differs(1.0) for c in correction]
        for more in changed[1:]:
            changed[0] = changed[0] | more
        with code.when(changed[0].any()), code.count(0, self.size(self.form.value_depth), 1) as d:
            for n, c in enumerate(correction):
                at = self._of(self.at["o"], d, n * code.lanes)
                store(code, load(code, self.kind, at) * c, self.kind, at)

    def _kept(self, slots: Sequence[str]) -> list[Vec]:
        kind = self.code.vector(ELEMENT[self.kind])
        return [Vec(self.code, self.code.let(f"load {kind}, ptr {s}"), self.kind) for s in slots]

    def _keep(self, slots: Sequence[str], values: Sequence[Vec]) -> None:
        self.code.do(*(f"store {v.type} {v.text}, ptr {s}" for s, v in zip(slots, values)))

    # -- results ----------------------------------------------------------------------------------

    def _finish(self) -> None:
        """The rows of the result: sums of values over sums of weights. Lanes past the last row
        are the same as the last, bit by bit, so they may be stored, too."""
        code, keys = self.code, self.size(self.form.keys)
        with code.count(0, self._until_vector(), code.lanes) as lane:
            total = load(code, self.kind, self._of(self.totals, 0, lane))
            self._store_rows(total.like(1.0) / self.form.divisor(total, keys), lane)

    def _until_vector(self) -> Bound:
        """Behind the last vector that has a row."""
        return self.width if self.tiling.vectors == 1 else self.count

    def _store_rows(self, shares: Vec, lane: str) -> None:
        code, layout, dtype = self.code, self.form.out, self.form.dtype
        number, step = MASK + (self.form.mask is not None), self.size(layout.strides[3])
        extent = self.size(self.form.value_depth)
        across = self._padded(extent)
        with code.count(0, extent, code.lanes) as at:
            for n in range(code.lanes):
                line = self._of(self.at["o"], code.i64("add", at, n), lane)
                store(code, load(code, self.kind, line) * shares, self.kind, line)
            to = advanced(code, self.at["rows"], at, self.kind), across
            turn(code, self.kind, (self._of(self.at["o"], at, lane), self.width), to)
        with self._rows(lane, layout, number, across) as (row, line):

            def copied(at: str, mask: Vec | None) -> None:
                value = load(code, self.kind, advanced(code, line, at, self.kind))
                where = advanced(code, row, code.i64("mul", at, step), dtype)
                store(code, value, dtype, where, step, mask)

            in_vectors(code, extent, copied)


def _as_it_is(x: Vec) -> Vec:
    return x


def _greater(x: Vec, y: Vec) -> Vec:
    """The greater; y where x is NaN, which the exponential still finds."""
    return x.where(x > y, y)
