"""Masks of a query block: which keys its rows see, and the masked scores."""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.cpu.codegen.attention.operands import INF, MASK, hidden
from rlx.backends.cpu.codegen.attention.query_block import KEY_BLOCK, QueryBlock
from rlx.backends.cpu.codegen.loop.vector_access import load, store
from rlx.backends.cpu.codegen.math import elementary as maths
from rlx.backends.cpu.llvm.builder import Bound, Vec
from rlx.core.dtype import DType

FAR = 2**30


class MaskedBlock(QueryBlock):
    """A block whose scores are masked."""

    def _place_of(self, row: Bound) -> Bound:
        """The position of a row's query among the keys."""
        code, spec = self.code, self.spec
        query = code.let(f"udiv i64 {row}, {spec.group}")
        ahead = code.i64("sub", self.size(spec.keys), self.size(spec.queries))
        return code.i64("add", query, ahead)

    def _seen(self) -> tuple[Bound, Bound]:
        """The range of keys visible to the rows of this block; its start is a block boundary."""
        code, spec = self.code, self.spec
        keys = self.size(spec.keys)
        if not spec.is_positional:
            return 0, keys
        self.near, self.far = (self._place_of(r) for r in (self.first, self.last))
        high = code.least(keys, code.i64("add", self.far, 1))
        if spec.window is None:
            return 0, high
        low = code.most(code.i64("sub", self.near, spec.window), 0)
        number = code.let(f"udiv i64 {low}, {KEY_BLOCK}")
        return code.i64("mul", number, KEY_BLOCK), high

    def _adjust(self, key: str, count: Bound) -> None:
        """Cap and mask the scores."""
        spec = self.spec
        if spec.softcap is not None:
            self._change(count, self._capped)
        if spec.is_positional:
            with self.code.when(self._is_partial(key, count)):
                self._change(count, self._seen_by_place(key))
        elif spec.has_one_mask:
            self._change(count, self._one_mask(key))
        elif spec.mask is not None:
            take = self._shown if spec.kind == "custom" else _as_it_is
            self._load_rows(self.at["mask"], spec.mask, MASK, count, take, key)
            self._change(count, self._own_mask)

    def _change(self, count: Bound, made: Callable[[Vec, str, int], Vec]) -> None:
        """s[key, row] = made(s[key, row]) for all keys of the block."""
        code = self.code
        with code.count(0, count, 1) as line:
            for n, at in enumerate(self._vectors(line)):
                store(code, made(load(code, self.kind, at), line, n), self.kind, at)

    def _capped(self, s: Vec, _line: str, _n: int) -> Vec:
        cap = self.spec.softcap
        assert cap is not None
        return maths.tanh(s * (1 / cap)) * cap

    def _is_partial(self, key: str, count: Bound) -> str:
        """Is any key of the block hidden from any row?"""
        code, window = self.code, self.spec.window
        end = code.i64("add", key, count)
        is_late = code.let(f"icmp sgt i64 {end}, {code.i64('add', self.near, 1)}")
        if window is None:
            return is_late
        start = code.i64("sub", self.far, window)
        is_early = code.let(f"icmp slt i64 {key}, {start}")
        return code.let(f"or i1 {is_late}, {is_early}")

    def _seen_by_place(self, key: str) -> Callable[[Vec, str, int], Vec]:
        """Causal and sliding-window mask: hide keys after a row's position, and those too far
        before it."""
        code, window = self.code, self.spec.window
        # in a partially visible block, no distance exceeds the window plus a block
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
        """The queries of some lanes, relative to that of the first row."""
        code, group = self.code, self.spec.group
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
        """One mask element for all rows."""
        layout, dtype, group = self.spec.mask, self.spec.mask_dtype, self.spec.group
        assert layout is not None
        head = self.code.i64("mul", self.head, group)

        def made(s: Vec, line: str, _n: int) -> Vec:
            at = self.place(layout, (self.batch, head, 0, self.code.i64("add", key, line)))
            return self.spec.masked(s, load(self.code, dtype, self.pointer(MASK, at, dtype), 0))

        return made

    def _own_mask(self, s: Vec, line: str, n: int) -> Vec:
        at = self._of(self.at["mask"], line, n * self.code.lanes)
        return self.spec.masked(s, load(self.code, self.kind, at))

    def _shown(self, mask: Vec) -> Vec:
        """1 where a custom mask shows the key, else 0."""
        return self.code.const(0, self.kind).where(hidden(mask), 1)

    def _vectors(self, line: Bound) -> list[str]:
        return [self._of(self.at["s"], line, n * self.code.lanes) for n in range(len(self.top))]


def _as_it_is(x: Vec) -> Vec:
    return x
