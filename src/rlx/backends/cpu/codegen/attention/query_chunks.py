"""Attention of many queries over a cache (prefill), with the sums of few queries (decode).

for each block of queries of a kv head
  for each chunk of keys: partial results of all rows, as one query has them
  for each row: combine the chunks
"""

from __future__ import annotations

from rlx.backends.cpu.codegen.attention.few_queries import (
    POSITIONS,
    KeyChunks,
    chunks_of,
    record_of,
    scratch_of,
)
from rlx.backends.cpu.codegen.loop.vector_access import advanced
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.values import Bound
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.kernel.attention import Attention

CHUNKS_PER_POLL = 8
"""Chunks of a block of queries between two polls."""


def block_scratch_of(form: Attention, isa: Isa, rows: int) -> DimLike:
    """Elements of a block of queries: partial results of all chunks, too."""
    return scratch_of(form, isa, rows) + chunks_of(form) * record_of(form, isa) * rows


def queries_per_block(form: Attention, isa: Isa) -> int:
    """As many as fill one vector with the scores of a key."""
    return max(1, isa.lanes(form.dtype) // form.group)


class QueryChunks(KeyChunks):
    """Blocks of many queries over a cache: all chunks of keys, one after the other, and then the
    chunks combined. A row has the bits that `KeyChunks` and `CombineChunks` give it."""

    def __init__(self, form: Attention, isa: Isa, rows: int) -> None:
        super().__init__(form, isa, rows)
        self.records = advanced(self.code, "%scratch", scratch_of(form, isa, rows), self.kind)

    def write(self) -> None:
        code, each = self.code, self.rows // self.form.group
        queries = self.size(self.form.queries)
        blocks = code.integer("div", code.i64("add", queries, each - 1), each, DType.U64)
        with self.units(blocks, "ne") as unit:
            turn, block = (code.let(f"{w} i64 {unit}, {blocks}") for w in ("udiv", "urem"))
            self.batch, self.head = self.batch_and_head(turn)
            self.first = code.i64("mul", block, each)
            last = code.i64("add", self.first, each)
            self.last = code.i64("sub", code.least(last, queries), 1)
            self._block()

    def _block(self) -> None:
        code, out = self.code, self.form.out
        span = self.span(self.batch, POSITIONS)
        self._load_queries()
        with code.count(0, span.chunks, 1, CHUNKS_PER_POLL) as chunk:
            self._chunk(span, chunk)
        with code.count(0, self.rows, 1) as row:
            place = self.place(out, (self.batch, *self.row(row, self.head), 0))
            made = self.pointer(len(self.form.operands), place, self.form.dtype)
            self.combine(span.chunks, row, made)

    def record_of(self, chunk: Bound, row: Bound) -> str:
        return advanced(self.code, self.records, self.record_at(chunk, row), self.kind)
