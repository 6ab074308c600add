"""Masks of a query block: which keys its rows see, and the masked scores."""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.cpu.codegen.attention.operands import has_one_mask, hidden, mask_of, window_of
from rlx.backends.cpu.codegen.attention.query_block import KEY_BLOCK, QueryBlock
from rlx.backends.cpu.codegen.loop.vector_access import load, store
from rlx.backends.cpu.codegen.math.expression_vectors import on_vectors
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.core.dtype import DType
from rlx.kernel.attention import MASK, MaskOperand, Positional, Visibility

FAR = 2**30


class MaskedBlock(QueryBlock):
    """A block whose scores are masked."""

    def _place_of(self, row: Bound) -> Bound:
        """The position of a row's query among the keys."""
        query = self.code.integer("div", row, self.form.group, DType.U64)
        return self.code.i64("add", query, self.position)

    def _seen(self) -> tuple[Bound, Bound]:
        """The range of keys visible to the rows of this block; its start is a block boundary."""
        code, mask = self.code, self.form.mask
        if not isinstance(mask, Positional):
            return 0, self.keys
        self.near, self.far = (self._place_of(r) for r in (self.first, self.last))
        high = code.least(self.keys, code.i64("add", self.far, 1))
        if mask.window is None:
            return 0, high
        low = code.most(code.i64("sub", self.near, mask.window), 0)
        number = code.integer("div", low, KEY_BLOCK, DType.U64)
        return code.i64("mul", number, KEY_BLOCK), high

    def _adjust(self, key: str, count: Bound) -> None:
        """Cap and mask the scores."""
        form, given = self.form, mask_of(self.form)
        if form.softcap is not None:
            self._change(count, lambda s, _line, _n: on_vectors(form.capped, s))
        if isinstance(form.mask, Positional):
            with self.code.when(self._is_partial(key, count)):
                self._change(count, self._seen_by_place(key))
        elif given is not None and has_one_mask(form):
            self._change(count, self._one_mask(key, given))
        elif given is not None:
            take = self._shown if isinstance(given, Visibility) else _as_it_is
            self._load_rows(self.at["mask"], given.layout, MASK, count, take, key)
            self._change(count, self._own_mask)

    def _change(self, count: Bound, made: Callable[[Vec, str, int], Vec]) -> None:
        """s[key, row] = made(s[key, row]) for all keys of the block."""
        code = self.code
        with code.count(0, count, 1) as line:
            for n, at in enumerate(self._vectors(line)):
                store(code, made(load(code, self.kind, at), line, n), self.kind, at)

    def _is_partial(self, key: str, count: Bound) -> str:
        """Is any key of the block hidden from any row?"""
        code, window = self.code, window_of(self.form)
        end = code.i64("add", key, count)
        is_late = code.compare("gt", end, code.i64("add", self.near, 1))
        if window is None:
            return is_late
        start = code.i64("sub", self.far, window)
        is_early = code.compare("lt", key, start)
        return code.either(is_late, is_early)

    def _seen_by_place(self, key: str) -> Callable[[Vec, str, int], Vec]:
        """Causal and sliding-window mask: hide keys after a row's position, and those too far
        before it."""
        code, window = self.code, window_of(self.form)
        # in a partially visible block, no distance exceeds the window plus a block
        kind = DType.I32 if (window or 0) < FAR else DType.I64
        queries = [self._queries(n * code.lanes, kind) for n in range(len(self.top))]
        start = code.i64("sub", self.near, key)

        def made(s: Vec, line: str, n: int) -> Vec:
            distance = queries[n] + self._splat(code.i64("sub", start, line), kind)
            return on_vectors(self.form.seen, s, distance)

        return made

    def _queries(self, start: int, kind: DType) -> Vec:
        """The queries of some lanes, relative to that of the first row."""
        code, group = self.code, self.form.group
        last = self._splat(code.i64("sub", self.count, 1), kind)
        row = code.iota(kind) + start
        row = row.where(row < last, last)
        if group == 1:
            return row
        member = self._splat(code.integer("rem", self.first, group, DType.U64), kind)
        unsigned = DType.U32 if kind is DType.I32 else DType.U64
        return ((row + member).bits(unsigned) / group).bits(kind)

    def _splat(self, number: Bound, kind: DType) -> Vec:
        code = self.code
        if isinstance(number, str) and kind is DType.I32:
            number = code.converted(number, DType.I64, DType.I32)
        return code.splat(number, kind)

    def _one_mask(self, key: str, mask: MaskOperand) -> Callable[[Vec, str, int], Vec]:
        """One mask element for all rows."""
        dtype, head = mask.dtype, self.code.i64("mul", self.head, self.form.group)

        def made(s: Vec, line: str, _n: int) -> Vec:
            at = self.place(mask.layout, (self.batch, head, 0, self.code.i64("add", key, line)))
            shown = load(self.code, dtype, self.pointer(MASK, at, dtype), 0)
            return on_vectors(self.form.masked, s, shown)

        return made

    def _own_mask(self, s: Vec, line: str, n: int) -> Vec:
        at = self._of(self.at["mask"], line, n * self.code.lanes)
        return on_vectors(self.form.masked, s, load(self.code, self.kind, at))

    def _shown(self, mask: Vec) -> Vec:
        """1 where a custom mask shows the key, else 0."""
        return self.code.const(0, self.kind).where(hidden(mask), 1)

    def _vectors(self, line: Bound) -> list[str]:
        return [self._of(self.at["s"], line, n * self.code.lanes) for n in range(len(self.top))]


def _as_it_is(x: Vec) -> Vec:
    return x
