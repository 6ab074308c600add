"""Attention of a few queries (decode): split over keys, bound by reading keys and values once.

    for each chunk of keys of a kv head
      s[row, key] = Σ q[row, d] · k[key, d]     vectorised over the depth, then a horizontal sum
      the maximum m, p = exp(s - m), the sum of p                 vectorised over the keys
      o[row, d] = Σ p[row, key] · v[key, d]     vectorised over the depth
    for each kv head: combine the chunks, each scaled by its maximum

Chunks begin at multiples of a number of keys, and what a row does not see adds nothing: its bits
depend neither on threads nor on the rows beside it. Blocks of many queries over a cache (prefill)
are computed in the same way, chunk after chunk, so that a query gives what it gives alone (decode).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from rlx.backends.cpu.codegen.attention import operands
from rlx.backends.cpu.codegen.attention.operands import (
    CachedLine,
    base,
    greater,
    mask_of,
    share,
    weight,
)
from rlx.backends.cpu.codegen.gemm.microkernel import below
from rlx.backends.cpu.codegen.gemm.register_transpose import for_each_vector, horizontal_sums
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.math.expression_vectors import on_vectors
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.multiply_add import multiply_add
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.kernel.attention import INF, MASK, Attention, K, Positional, Q, V

KEYS_PER_CHUNK = 192
"""Enough that combining the chunks is cheap; a multiple of the lanes. Caches that are shifted by
multiples of it give the same bits."""
POSITIONS = 3
"""The buffer of positions in a cache."""
PREFETCH_KEYS = 32
"""Prefetch distance in keys."""


def chunks_of(form: Attention) -> DimLike:
    return (form.keys + KEYS_PER_CHUNK - 1) // KEYS_PER_CHUNK


def record_of(form: Attention, isa: Isa) -> DimLike:
    """Elements of a chunk's partial result for a row: weighted sums of values, then the
    maximum and the sum of weights."""
    lanes = isa.lanes(form.dtype)
    return (form.value_depth + lanes - 1) // lanes * lanes + lanes


def scratch_of(form: Attention, isa: Isa, rows: int) -> int:
    """Elements: the queries, in whole vectors, and the scores of a chunk."""
    return (_line_of(form, isa.lanes(form.dtype)) + KEYS_PER_CHUNK) * rows


def sizes_of(form: Attention, isa: Isa) -> tuple[DimLike, ...]:
    """The integer arguments of both functions."""
    more = (chunks_of(form), record_of(form, isa))
    return tuple(
        dict.fromkeys([*operands.sizes_of(form), *(d for d in more if not isinstance(d, int))])
    )


def _line_of(form: Attention, lanes: int) -> int:
    return -(-form.depth // lanes) * lanes


def _padded(rows: int) -> int:
    """Up to a power of two."""
    return 1 << (rows - 1).bit_length()


class _FewQueries(Writer, ABC):
    """What both functions share: rows of a kv head, and partial results of chunks."""

    def __init__(self, form: Attention, isa: Isa, rows: int) -> None:
        super().__init__(isa, isa.lanes(form.dtype))
        for dim in sizes_of(form, isa):
            self.size(dim)
        self.form, self.kind, self.rows = form, form.sums, rows
        self.chunks = self.size(chunks_of(form))
        self.record = self.size(record_of(form, isa))
        self.lines = self.code.i64("sub", self.record, self.code.lanes)
        self.first: Bound = 0
        self.last: Bound = self.code.i64("sub", self.size(form.queries), 1)
        """The queries that are computed together."""
        self.unit: Bound = 0

    def row(self, number: Bound, head: Bound) -> tuple[Bound, Bound]:
        """The head and the query of a row of a kv head; rows behind the last query repeat it."""
        code, group = self.code, self.form.group
        query, member = (code.let(f"{w} i64 {number}, {group}") for w in ("udiv", "urem"))
        query = code.least(code.i64("add", self.first, query), self.last)
        return code.i64("add", code.i64("mul", head, group), member), query

    @abstractmethod
    def record_of(self, chunk: Bound, row: Bound) -> str:
        """The address of a row's partial result of a chunk."""

    def record_at(self, unit: Bound, row: Bound) -> Bound:
        """Where the partial result of a row is among all, in elements."""
        code = self.code
        number = code.i64("add", code.i64("mul", unit, self.rows), row)
        return code.i64("mul", number, self.record)

    def batch_and_head(self, turn: Bound) -> tuple[str, str]:
        """An index as a batch and a kv head."""
        heads = self.form.kv_heads
        batch, head = (self.code.let(f"{w} i64 {turn}, {heads}") for w in ("udiv", "urem"))
        return batch, head

    def across(self, x: Vec, fold: Callable[[Vec, Vec], Vec]) -> Vec:
        """Reduce across the lanes, broadcast."""
        step = 1
        while step < self.code.lanes:
            x = fold(x, x.shuffled([n ^ step for n in range(self.code.lanes)]))
            step *= 2
        return x

    @contextmanager
    def units(self, per_head: Bound, queries_are: str = "eq") -> Generator[str]:
        """A loop over the units; none, where the number of queries is dynamic and not one, or, with
        "ne", where it is one."""
        code, queries = self.code, self.size(self.form.queries)
        heads = code.i64("mul", self.size(self.form.batch), self.form.kv_heads)
        stop = code.least("%stop", code.i64("mul", heads, per_head))
        if isinstance(queries, str):
            is_own = code.let(f"icmp {queries_are} i64 {queries}, 1")
            stop = code.choose(is_own, stop, 0)
        with code.count("%start", stop, 1) as unit:
            yield unit

    def span(self, batch: Bound, positions: int) -> Span:
        """The keys that a row of the batch reads: all of them; of a cache those up to its queries,
        from where the first of them sees any on. `positions` is the buffer of those."""
        code, form = self.code, self.form
        mask = form.mask if isinstance(form.mask, Positional) else None
        if form.cached is None:
            offset = 0 if mask is None else self.size(mask.offset)
            return Span(code, batch, offset, 0, self.size(form.keys), 0, self.chunks)
        entry, start = operands.enter_cache(self, form, batch, positions)
        low: Bound = 0
        if mask is not None and mask.window is not None:
            seen = code.i64("sub", code.i64("add", start, self.first), mask.window)
            low = code.integer("and", code.most(seen, 0), -code.lanes)
        end = code.i64("add", code.i64("add", start, self.last), 1)
        up = code.i64("add", end, KEYS_PER_CHUNK - 1)
        first = low if low == 0 else code.integer("div", low, KEYS_PER_CHUNK, DType.U64)
        chunks = code.i64("sub", code.integer("div", up, KEYS_PER_CHUNK, DType.U64), first)
        return Span(code, entry, start, low, end, first, chunks)

    def slots_of(self, values: Sequence[Vec]) -> Slots:
        return Slots(self.code, values)

    # -- chunks combined ---------------------------------------------------------------------------

    def combine(self, parts: Bound, row: Bound, out: str) -> None:
        """The result of a row, of the partial results of chunks."""
        self._combine(parts, row, self._share(parts, row), out)

    def _scalar(self, record: str, number: int) -> tuple[str, Vec]:
        place = advanced(self.code, record, self.code.i64("add", self.lines, number), self.kind)
        return place, load(self.code, self.kind, place, 0)

    def _share(self, parts: Bound, row: Bound) -> Vec:
        """One over the sum of weights; the maximum of each chunk becomes its weight."""
        code = self.code
        state = self.slots_of([code.const(-INF, self.kind), code.const(0, self.kind)])
        with code.count(0, parts, 1) as n:
            _, top = self._scalar(self.record_of(n, row), 0)
            state.set([greater(top, state.get()[0])])
        greatest = state.get()[0]
        subtracted = base(greatest)
        with code.count(0, parts, 1) as n:
            (place, top), (_, total) = (self._scalar(self.record_of(n, row), i) for i in (0, 1))
            factor = weight(top, subtracted)
            code.do(f"store {ELEMENT[self.kind]} {factor.lane()}, ptr {place}")
            now = state.get()
            state.set([now[0], now[1] + factor * total])
        return share(self.form, state.get()[1], self.size(self.form.keys))

    def _combine(self, parts: Bound, row: Bound, by: Vec, out: str) -> None:
        code, dtype, step = self.code, self.form.dtype, self.size(self.form.out.strides[3])

        def column(at: str, mask: Vec | None) -> None:
            sums = self.slots_of([code.const(0, self.kind)])
            with code.count(0, parts, 1) as n:
                record = self.record_of(n, row)
                values = load(code, self.kind, advanced(code, record, at, self.kind))
                sums.set([multiply_add(self._scalar(record, 0)[1], values, sums.get()[0])])
            where = advanced(code, out, code.i64("mul", at, step), dtype)
            store(code, sums.get()[0] * by, dtype, where, step, mask)

        for_each_vector(code, self.size(self.form.value_depth), column)


@dataclass(frozen=True, slots=True)
class Span:
    """The keys that one row of a batch reads, in chunks."""

    code: Code
    entry: Bound
    """Of keys and values."""
    position: Bound
    """Of the first query."""
    low: Bound
    """The first key that is read: a multiple of the lanes."""
    end: Bound
    first: Bound
    """The first chunk."""
    chunks: Bound
    """How many."""

    def has(self, chunk: Bound) -> str:
        return self.code.compare("lt", chunk, self.chunks)


class Slots:
    """Loop-carried values."""

    def __init__(self, code: Code, start: Sequence[Vec]) -> None:
        self.code, self.kind = code, start[0].dtype
        self.slots = [code.slot(v.type) for v in start]
        self.set(start)

    def get(self) -> list[Vec]:
        kind = self.code.vector(ELEMENT[self.kind])
        return [self.code.vector_of(self.code.let(f"load {kind}, ptr {s}"), self.kind)
                for s in self.slots]  # fmt: skip

    def set(self, values: Sequence[Vec]) -> None:
        self.code.do(*(f"store {v.type} {v.text}, ptr {s}" for s, v in zip(self.slots, values)))


class KeyChunks(_FewQueries):
    """Scores, weights and weighted sums of values of the chunks of keys: one partial result per
    row."""

    def __init__(self, form: Attention, isa: Isa, rows: int) -> None:
        super().__init__(form, isa, rows)
        lanes = self.code.lanes
        self.padded = min(_padded(rows), lanes)
        self.line = _line_of(form, lanes)
        self.q = "%scratch"
        self.s = advanced(self.code, self.q, self.line * rows, self.kind)

    def write(self) -> None:
        code = self.code
        with self.units(self.chunks) as self.unit:
            turn, chunk = (
                code.let(f"{w} i64 {self.unit}, {self.chunks}") for w in ("udiv", "urem")
            )
            self.batch, self.head = self.batch_and_head(turn)
            span = self.span(self.batch, POSITIONS)
            with code.when(span.has(chunk)) if self.form.cached else nullcontext():
                self._load_queries()
                self._chunk(span, chunk)

    def record_of(self, chunk: Bound, row: Bound) -> str:
        """A chunk is a unit."""
        del chunk
        at = self.record_at(self.unit, row)
        return self.pointer(len(self.form.operands), at, self.kind)

    def _chunk(self, span: Span, chunk: str) -> None:
        code = self.code
        start = code.i64("mul", code.i64("add", span.first, chunk), KEYS_PER_CHUNK)
        end = code.least(code.i64("add", start, KEYS_PER_CHUNK), span.end)
        self.entry, self.position = span.entry, span.position
        self.key = start if span.low == 0 else code.most(start, span.low)
        self.count = code.i64("sub", end, self.key)
        self._scores()
        with code.count(0, self.rows, 1) as row:
            self._weigh(row, self.record_of(chunk, row))
        self._values(chunk)

    def _load_queries(self) -> None:
        """Rows of whole vectors, scaled and zero-padded past the depth."""
        code, layout, dtype = self.code, self.form.q, self.form.dtype
        step = self.size(layout.strides[3])
        with code.count(0, self.rows, 1) as row:
            head, query = self.row(row, self.head)
            place = self.place(layout, (self.batch, head, query, 0))
            source = self.pointer(Q, place, dtype)
            line = advanced(code, self.q, code.i64("mul", row, self.line), self.kind)

            def copied(at: str, mask: Vec | None) -> None:
                where = advanced(code, source, code.i64("mul", at, step), dtype)
                value = on_vectors(self.form.scaled, load(code, dtype, where, step, mask))
                store(code, value, self.kind, advanced(code, line, at, self.kind))

            for_each_vector(code, self.form.depth, copied)

    # -- scores -----------------------------------------------------------------------------------

    def _scores(self) -> None:
        """As many keys at a time as fill one vector with the scores of all rows. The last vector
        overlaps the one before, and where there are fewer keys than that, the last is repeated."""
        code, keys = self.code, self.code.lanes // self.padded
        last = code.i64("sub", self.count, 1)
        steps = [code.least(n, last) for n in range(keys)]
        final = code.most(code.i64("sub", self.count, keys), 0)
        with code.count(0, self.count, keys) as number:
            at = code.least(number, final)
            first = code.i64("add", self.key, at)
            places = [self._line(K, code.i64("add", first, n)) for n in steps]
            for start in range(0, self.rows, self.padded):
                rows = range(start, min(start + self.padded, self.rows))
                self._store_scores(self._dots(places, rows), at, keys, rows)

    def _line(self, number: int, key: Bound) -> CachedLine:
        return CachedLine.of(self, self.form, number, (self.entry, self.head, key))

    def _dots(self, keys: Sequence[CachedLine], rows: range) -> Vec:
        """The dot products of some keys with some rows, one per lane, the keys innermost; excess
        lanes repeat the last row."""
        code = self.code
        slots = self.slots_of([code.const(0, self.kind)] * (len(rows) * len(keys)))

        def step(at: str, mask: Vec | None) -> None:
            right = [self._key(k, at, mask) for k in keys]
            lines = [advanced(code, self.q, r * self.line, self.kind) for r in rows]
            left = [load(code, self.kind, advanced(code, x, at, self.kind)) for x in lines]
            pairs = [(x, y) for x in left for y in right]
            slots.set([multiply_add(x, y, z) for (x, y), z in zip(pairs, slots.get())])

        for_each_vector(code, self.form.depth, step)
        sums = slots.get()
        while len(sums) < code.lanes:
            sums += sums[-len(keys) :]
        return horizontal_sums(sums)

    def _key(self, key: CachedLine, at: str, mask: Vec | None) -> Vec:
        distance = self.code.i64("mul", self.size(self.form.k.strides[2]), PREFETCH_KEYS)
        self._fetch(key.address(at), distance)
        return key.vector(at, mask)

    def _fetch(self, place: str, distance: Bound) -> None:
        """Prefetch a line: keys a page apart defeat the hardware prefetcher. Past the end of memory
        it does nothing."""
        where = advanced(self.code, place, distance, self.form.kv_dtype)
        self.code.intrinsic("prefetch.p0", "void", f"ptr {where}", "i32 0", "i32 2", "i32 1")

    def _store_scores(self, scores: Vec, at: Bound, keys: int, rows: range) -> None:
        code, element = self.code, ELEMENT[self.kind]
        for r in rows:
            order = ", ".join(f"i32 {(r - rows[0]) * keys + n}" for n in range(keys))
            text = f"shufflevector {scores.type} {scores.text}, {scores.type} poison"
            part = code.let(f"{text}, <{keys} x i32> <{order}>")
            to = advanced(code, self.s, code.i64("add", at, r * KEYS_PER_CHUNK), self.kind)
            size = self.kind.itemsize
            code.do(f"store <{keys} x {element}> {part}, ptr {to}, align {size}")

    # -- softmax ----------------------------------------------------------------------------------

    def _weigh(self, row: str, record: str) -> None:
        """Scores of a row become weights, zero-padded to a whole vector."""
        code = self.code
        line = advanced(code, self.s, code.i64("mul", row, KEYS_PER_CHUNK), self.kind)
        head, query = self.row(row, self.head)
        top = self.slots_of([code.const(-INF, self.kind)])

        def adjusted(at: str, mask: Vec | None) -> None:
            where = advanced(code, line, at, self.kind)
            s = self._adjusted(load(code, self.kind, where), (head, query), at, mask)
            s = s if mask is None else s.where(mask, -INF)
            store(code, s, self.kind, where)
            top.set([greater(s, top.get()[0])])

        for_each_vector(code, self.count, adjusted)
        greatest = self.across(top.get()[0], greater)
        subtracted = base(greatest)
        total = self.slots_of([code.const(0, self.kind)])
        with code.count(0, self.count, code.lanes) as at:
            where = advanced(code, line, at, self.kind)
            p = weight(load(code, self.kind, where), subtracted)
            store(code, p, self.kind, where)
            total.set([total.get()[0] + p])
        found = (greatest, self.across(total.get()[0], lambda a, b: a + b))
        for n, value in enumerate(found):
            place = advanced(code, record, code.i64("add", self.lines, n), self.kind)
            code.do(f"store {ELEMENT[self.kind]} {value.lane()}, ptr {place}")

    def _adjusted(self, s: Vec, row: tuple[Bound, Bound], at: str, mask: Vec | None) -> Vec:
        """Cap and mask the scores of some keys."""
        code, form = self.code, self.form
        key, (head, query) = code.i64("add", self.key, at), row
        s, given = on_vectors(form.capped, s), mask_of(form)
        if isinstance(form.mask, Positional):
            return on_vectors(form.seen, s, self._distance(key, query))
        if given is None:
            return s
        layout, dtype = given.layout, given.dtype
        place = self.pointer(MASK, self.place(layout, (self.batch, head, query, key)), dtype)
        step = self.size(layout.strides[3])
        shown = load(code, dtype, place, step, mask if step != 0 else None)
        return on_vectors(form.masked, s, shown)

    def _distance(self, key: Bound, query: Bound) -> Vec:
        """How far the keys from one on are before a query's position."""
        code = self.code
        start = code.i64("sub", code.i64("add", query, self.position), key)
        return code.splat(start, DType.I64) - code.iota(DType.I64)

    # -- values -----------------------------------------------------------------------------------

    def _values(self, chunk: str) -> None:
        """Weighted sums of values, as many columns at a time as registers hold."""
        code, extent = self.code, self.size(self.form.value_depth)
        # sums in half the registers leave room for weights and values
        vectors = max(1, code.isa.registers // 2 // self.rows)
        if isinstance(extent, int):
            vectors = min(vectors, max(1, -(-extent // code.lanes)))
        with code.count(0, extent, vectors * code.lanes) as column:
            self._columns(chunk, column, vectors)

    def _columns(self, chunk: str, column: str, vectors: int) -> None:
        code, extent = self.code, self.size(self.form.value_depth)
        distance = code.i64("mul", self.size(self.form.v.strides[2]), PREFETCH_KEYS)
        is_whole = isinstance(extent, int) and extent % (vectors * code.lanes) == 0
        left = code.i64("sub", extent, column)
        starts = [n * code.lanes for n in range(vectors)]
        masks = [None if is_whole else below(code, code.i64("sub", left, n)) for n in starts]
        sums = self.slots_of([code.const(0, self.kind)] * (self.rows * vectors))
        with code.count(0, self.count, 1) as key:
            line = self._line(V, code.i64("add", self.key, key))
            columns = [code.i64("add", column, n) for n in starts]
            for each in columns:
                self._fetch(line.address(each), distance)
            values = [line.vector(c, m) for c, m in zip(columns, masks)]
            weights = [self._weight(r, key) for r in range(self.rows)]
            pairs = [(w, v) for w in weights for v in values]
            sums.set([multiply_add(w, v, z) for (w, v), z in zip(pairs, sums.get())])
        self._store_sums(chunk, column, sums.get(), (starts, left))

    def _weight(self, row: int, key: str) -> Vec:
        place = advanced(
            self.code, self.s, self.code.i64("add", key, row * KEYS_PER_CHUNK), self.kind
        )
        return load(self.code, self.kind, place, 0)

    def _store_sums(
        self, chunk: str, column: str, sums: Sequence[Vec], ends: tuple[Sequence[int], Bound]
    ) -> None:
        """Whole vectors; a partial result is padded for the last, but not for one more."""
        code, (starts, left) = self.code, ends
        for r in range(self.rows):
            record = advanced(code, self.record_of(chunk, r), column, self.kind)
            for n, start in enumerate(starts):
                with code.when(code.compare("lt", start, left)):
                    place = advanced(code, record, start, self.kind)
                    store(code, sums[r * len(starts) + n], self.kind, place)


class CombineChunks(_FewQueries):
    """Combine the partial results of all chunks."""

    RECORDS, OUT, POSITIONS = 0, 1, 2

    def write(self) -> None:
        code = self.code
        with self.units(self.rows) as unit:
            turn, row = (code.let(f"{w} i64 {unit}, {self.rows}") for w in ("udiv", "urem"))
            batch, head = self.batch_and_head(turn)
            parts = self.span(batch, self.POSITIONS).chunks
            self.unit = code.i64("mul", turn, self.chunks)
            of_head, query = self.row(row, head)
            place = self.place(self.form.out, (batch, of_head, query, 0))
            self.combine(parts, row, self.pointer(self.OUT, place, self.form.dtype))

    def record_of(self, chunk: Bound, row: Bound) -> str:
        at = self.record_at(self.code.i64("add", self.unit, chunk), row)
        return self.pointer(self.RECORDS, at, self.kind)
