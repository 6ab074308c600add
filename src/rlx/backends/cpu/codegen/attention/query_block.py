"""Query blocks vectorised over rows: their scratch layout, transposes, and products with keys and
values."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rlx.backends.cpu.codegen.attention import operands
from rlx.backends.cpu.codegen.attention.operands import CachedLine, has_one_mask, mask_of
from rlx.backends.cpu.codegen.gemm.register_tile import tile_function
from rlx.backends.cpu.codegen.gemm.register_transpose import for_each_vector, transpose_square
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.schedule.gemm_tiling import Tiling
from rlx.core.dim import Dim, DimLike, dim_max, is_static
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.kernel.attention import MASK, Attention, Positional
from rlx.kernel.contract import Contract
from rlx.kernel.lower.contract import contraction

BLOCKS_PER_POLL = 16
"""Blocks of keys between two polls."""
KEY_BLOCK = 48
"""Keys per block of scores: a multiple of the lanes and of the tiles' rows."""


def scratch_places(form: Attention, tiling: Tiling) -> dict[str, DimLike]:
    """The offsets of the parts of a block's scratch, in elements, and their end."""
    width, lanes = tiling.columns, tiling.lanes
    depth, value_depth = ((d + lanes - 1) // lanes * lanes for d in (form.depth, form.value_depth))
    parts = {"q": depth * width, "s": KEY_BLOCK * width, "o": value_depth * width}
    if mask_of(form) is not None and not has_one_mask(form):
        parts["mask"] = KEY_BLOCK * width
    if form.kv_dtype is not form.sums:
        parts |= {"k": KEY_BLOCK * depth, "v": KEY_BLOCK * value_depth}
    parts["rows"] = dim_max(dim_max(depth, KEY_BLOCK), value_depth) * lanes
    places: list[DimLike] = [0]
    for extent in parts.values():
        places.append(places[-1] + extent)
    return dict(zip((*parts, "end"), places))


def product_of(dtype: DType) -> Contract:
    """The contraction of the register tiles of both products: left[line, step] · right[step, row],
    with any strides on the left."""
    g = Graph("product")
    m, k, n = (Dim(x) for x in ("lines", "steps", "rows"))
    left, right = g.input("left", Shape((m, k), dtype)), g.input("right", Shape((k, n), dtype))
    layouts = Layout.contiguous((k, m)).permuted((1, 0)), Layout.contiguous((k, n))
    return contraction(g.matmul(left, right), layouts)


def sizes_of(form: Attention, tiling: Tiling) -> tuple[DimLike, ...]:
    """The integer arguments of the function."""
    places = [p for p in scratch_places(form, tiling).values() if not is_static(p)]
    return tuple(dict.fromkeys([*operands.sizes_of(form), *places]))


class QueryBlock(Writer):
    """The function for blocks of as many rows as a register tile has columns."""

    def __init__(self, form: Attention, tiling: Tiling, isa: Isa, *, has_one: bool) -> None:
        """Without `has_one`, a single query is a no-op."""
        super().__init__(isa, tiling.lanes)
        for dim in sizes_of(form, tiling):
            self.size(dim)
        self.form, self.tiling, self.contract = form, tiling, product_of(form.sums)
        self.kind, self.width, self.has_one = form.sums, tiling.columns, has_one
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
        """Units are numbered row blocks innermost, then the kv heads, then the batch."""
        code, heads = self.code, self.form.kv_heads
        rows = code.i64("mul", self.size(self.form.queries), self.form.group)
        blocks = code.integer("div", code.i64("add", rows, self.width - 1), self.width, DType.U64)
        turns = code.i64("mul", self.size(self.form.batch), heads)
        with code.count("%start", self._stop(code.i64("mul", turns, blocks)), 1) as unit:
            outer, block = (code.let(f"{w} i64 {unit}, {blocks}") for w in ("udiv", "urem"))
            self.batch, self.head = (
                code.let(f"{w} i64 {outer}, {heads}") for w in ("udiv", "urem")
            )
            self.first = code.i64("mul", block, self.width)
            self.count = code.least(code.i64("sub", rows, self.first), self.width)
            self.last = code.i64("add", self.first, code.i64("sub", self.count, 1))
            self._enter()
            self._unit()

    def _stop(self, units: Bound) -> Bound:
        stop = self.code.least("%stop", units)
        if self.has_one:
            return stop
        is_one = self.code.compare("eq", self.size(self.form.queries), 1)
        return self.code.choose(is_one, 0, stop)

    def _enter(self) -> None:
        """The entry of keys and values, how many of them there are, and where queries stand."""
        form = self.form
        mask = form.mask if isinstance(form.mask, Positional) else None
        if form.cached is None:
            self.entry, self.keys = self.batch, self.size(form.keys)
            self.position = 0 if mask is None else self.size(mask.offset)
            return
        self.entry, self.position = operands.enter_cache(self, form, self.batch, MASK)
        self.keys = self.code.i64("add", self.position, self.size(form.queries))

    def _unit(self) -> None:
        """One block of rows."""
        raise NotImplementedError

    # -- rows of operands, transposed -------------------------------------------------------------

    def _row(self, row: Bound, layout: Layout, along: Bound = 0) -> Bound:
        """The offset of a row of the kv head."""
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

                for_each_vector(code, extent, copied)
            with code.count(0, extent, code.lanes) as at:
                given = advanced(code, self.at["rows"], at, self.kind)
                transpose_square(
                    code, self.kind, (given, across), (self._of(to, at, lane), self.width)
                )

    @contextmanager
    def _rows(
        self, lane: str, layout: Layout, number: int, across: Bound, start: Bound = 0
    ) -> Generator[tuple[str, str]]:
        """A loop over the rows of some lanes: the offset of each in an operand, and its line in
        scratch. Rows past the last repeat the last."""
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
        mask = mask_of(self.form)
        return mask.dtype if mask is not None and number == MASK else self.form.dtype

    def _of(self, base: str, line: Bound, lane: Bound) -> str:
        """The address of a vector of rows in a part of scratch."""
        place = self.code.i64("add", self.code.i64("mul", line, self.width), lane)
        return advanced(self.code, base, place, self.kind)

    # -- products ---------------------------------------------------------------------------------

    def _lines(
        self, name: str, layout: Layout, number: int, key: str, count: Bound, depth: Bound
    ) -> tuple[str, Bound, Bound]:
        """The address of keys or values, the stride of keys, and the stride of their elements."""
        if self.form.kv_dtype is not self.kind:
            return self._widened(self.at[name], number, key, count, depth)
        start = self.place(layout, (self.entry, self.head, key, 0))
        row, step = (self.size(s) for s in layout.strides[2:])
        return self.pointer(number, start, self.kind), row, step

    def _widened(
        self, to: str, number: int, key: str, count: Bound, depth: Bound
    ) -> tuple[str, Bound, Bound]:
        """Half precision widened to f32, quantised keys multiplied by their scales, once for many
        rows."""
        code, across = self.code, self._padded(depth)
        with code.count(0, count, 1) as line:
            at_key = self.entry, self.head, code.i64("add", key, line)
            source = CachedLine.of(self, self.form, number, at_key)
            target = advanced(code, to, code.i64("mul", line, across), self.kind)

            def copied(at: str, mask: Vec | None) -> None:
                value = source.vector(at, mask)
                store(code, value, self.kind, advanced(code, target, at, self.kind))

            for_each_vector(code, depth, copied)
        return to, across, 1

    def _whole(self, extent: Bound) -> str:
        return self.code.integer("and", extent, -self.code.lanes)

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
        count = self.code.integer("div", left, size, DType.U64)
        return self.code.i64("add", at, self.code.i64("mul", count, size))
