"""Attention of a block of query rows of one kv head (prefill), vectorised over the rows.

    Qᵀ = the rows' queries, scaled and transposed
    for each block of keys that a row of the block may see
      Sᵀ[key, row] = Σ K[key, d] · Qᵀ[d, row]             register tiles
      masks, the maximum m, P = exp(S - m), the sum of P
      Oᵀ[d, row] = Oᵀ · correction + Σ V[key, d] · Pᵀ[key, row]     register tiles
    the rows of O, transposed back, over the sums

Vectorised over rows, keys and values are broadcast loads in place, whatever their strides; the
softmax has no reduction across lanes; and masks by position are vector comparisons. A row's sums
go block by block of keys, so its bits do not depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cpu.codegen.attention.masks import MaskedBlock
from rlx.backends.cpu.codegen.attention.operands import base, greater, share, weight
from rlx.backends.cpu.codegen.attention.query_block import BLOCKS_PER_POLL, KEY_BLOCK
from rlx.backends.cpu.codegen.gemm.register_transpose import for_each_vector, transpose_square
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.math.expression_vectors import on_vectors
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.kernel.attention import INF, K, Q, V


class VectorisedRows(MaskedBlock):
    """The function for blocks of as many rows as a register tile has columns."""

    def _unit(self) -> None:
        code, form = self.code, self.form
        self._load_rows(self.at["q"], form.q, Q, form.depth, self._scaled)
        self._clear()
        low, high = self._seen()
        with code.count(low, high, KEY_BLOCK, BLOCKS_PER_POLL) as key:
            self._block(key, code.least(code.i64("sub", high, key), KEY_BLOCK))
        self._finish()

    def _block(self, key: str, count: Bound) -> None:
        form, s = self.form, self.at["s"]
        place, row, step = self._lines("k", form.k, K, key, count, form.depth)
        self._product((place, row, step), count, self.at["q"], form.depth, s, is_first=True)
        self._adjust(key, count)
        self._weigh(count)
        place, row, step = self._lines("v", form.v, V, key, count, self.size(form.value_depth))
        left = (place, step, row)
        self._product(left, self.size(form.value_depth), s, count, self.at["o"], is_first=False)

    def _scaled(self, x: Vec) -> Vec:
        return on_vectors(self.form.scaled, x)

    # -- softmax ----------------------------------------------------------------------------------

    def _clear(self) -> None:
        code, zero = self.code, self.code.const(0, self.kind)
        self._keep(self.top, [zero.like(-INF)] * len(self.top))
        self._keep(self.total, [zero] * len(self.total))
        extent = self.size(self.form.value_depth)
        with code.count(0, code.i64("mul", extent, self.width), code.lanes) as at:
            store(code, zero, self.kind, advanced(code, self.at["o"], at, self.kind))

    def _weigh(self, count: Bound) -> None:
        """Online softmax: scores become weights; earlier sums are corrected for a new maximum."""
        old = self._kept(self.top)
        self._find_top(count)
        top = [base(m) for m in self._kept(self.top)]
        correction = [weight(a, b) for a, b in zip(old, top)]
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
        self._keep(slots, [greater(x, y) for x, y in zip(found, self._kept(slots))])

    def _exponentials(self, count: Bound, top: Sequence[Vec]) -> list[Vec]:
        """exp(score - maximum), in place, and their sums."""
        code = self.code
        slots = [self._slot() for _ in top]
        self._keep(slots, [code.const(0, self.kind)] * len(top))
        with code.count(0, count, 1) as line:
            made: list[Vec] = []
            for at, m in zip(self._vectors(line), top):
                made.append(weight(load(code, self.kind, at), m))
                store(code, made[-1], self.kind, at)
            self._keep(slots, [a + b for a, b in zip(self._kept(slots), made)])
        return self._kept(slots)

    def _correct(self, correction: Sequence[Vec]) -> None:
        """Scale the weighted sums so far, where a row's maximum changed."""
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
        return [self.code.verbatim(f"load {kind}, ptr {s}", self.kind) for s in slots]

    def _keep(self, slots: Sequence[str], values: Sequence[Vec]) -> None:
        self.code.do(*(f"store {v.type} {v.text}, ptr {s}" for s, v in zip(slots, values)))

    # -- results ----------------------------------------------------------------------------------

    def _finish(self) -> None:
        """The rows of the result: weighted sums over sums of weights. Lanes past the last row
        duplicate the last, bit by bit, so they may be stored, too."""
        code = self.code
        with code.count(0, self._until_vector(), code.lanes) as lane:
            total = load(code, self.kind, self._of(self.totals, 0, lane))
            self._store_rows(share(self.form, total, self.keys), lane)

    def _until_vector(self) -> Bound:
        """The end of the last vector that has a row."""
        return self.width if self.tiling.vectors == 1 else self.count

    def _store_rows(self, shares: Vec, lane: str) -> None:
        code, layout, dtype = self.code, self.form.out, self.form.dtype
        number, step = len(self.form.operands), self.size(layout.strides[3])
        extent = self.size(self.form.value_depth)
        across = self._padded(extent)
        with code.count(0, extent, code.lanes) as at:
            for n in range(code.lanes):
                line = self._of(self.at["o"], code.i64("add", at, n), lane)
                store(code, load(code, self.kind, line) * shares, self.kind, line)
            to = advanced(code, self.at["rows"], at, self.kind), across
            transpose_square(code, self.kind, (self._of(self.at["o"], at, lane), self.width), to)
        with self._rows(lane, layout, number, across) as (row, line):

            def copied(at: str, mask: Vec | None) -> None:
                value = load(code, self.kind, advanced(code, line, at, self.kind))
                where = advanced(code, row, code.i64("mul", at, step), dtype)
                store(code, value, dtype, where, step, mask)

            for_each_vector(code, extent, copied)
