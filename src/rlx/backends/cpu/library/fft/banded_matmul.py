"""Banded matmul: a few rows times filters of which most entries are 0.

Filters are packed a vector of columns at a time, each such block with the range of rows in which
any of its columns is not 0: only those are multiplied. What is left out would add 0 where all
numbers are finite. Where one is not, 0 times it is NaN, and so all rows of the block are
multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.codegen.gemm.microkernel import below
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.library.fft.complex_io import StridedReals
from rlx.backends.cpu.library.shared_functions import helper
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.multiply_add import multiply_add
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.layout import Layout

ROWS_PER_BLOCK = 8
"""Rows multiplied together: as many accumulators as cover the latency of an FMA."""


@dataclass(frozen=True, slots=True)
class BandedMatmul:
    """Rows of `length` numbers, times `count` columns."""

    length: int
    count: DimLike
    dtype: DType
    isa: Isa

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.dtype)

    @property
    def blocks(self) -> DimLike:
        return (self.count + self.lanes - 1) // self.lanes

    @property
    def pitch(self) -> int:
        """Row stride of the input."""
        return -(-self.length // 16) * 16

    @property
    def row_bytes(self) -> int:
        return self.pitch * self.dtype.itemsize

    @property
    def range_offset(self) -> int:
        """Byte offset in a block of filters of its row range."""
        return self.length * self.lanes * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        return -(-(self.range_offset + 16) // 64) * 64

    @property
    def packed_bytes(self) -> DimLike:
        return self.blocks * self.block_bytes

    @property
    def product_pitch(self) -> DimLike:
        """Row stride of the product."""
        return self.blocks * self.lanes

    @property
    def scratch(self) -> DimLike:
        made = ROWS_PER_BLOCK * self.product_pitch * self.dtype.itemsize
        return ROWS_PER_BLOCK * self.row_bytes + made

    def row(self, code: Code, block: str, row: Bound) -> StridedReals:
        """A row of the input."""
        at = advanced(code, block, code.i64("mul", row, self.pitch), self.dtype)
        return StridedReals(at, self.dtype)

    def made(self, w: Writer, block: str, row: Bound) -> StridedReals:
        """A row of the product."""
        code = w.code
        start = code.i64("mul", row, w.size(self.product_pitch))
        at = advanced(code, block, code.i64("add", start, ROWS_PER_BLOCK * self.pitch), self.dtype)
        return StridedReals(at, self.dtype)

    # -- packing --------------------------------------------------------------------------------

    def pack(self, w: Writer, layout: Layout, dtype: DType) -> None:
        """A unit is a block: operand 0 to operand 1; the writer has as many lanes."""
        code, across = w.code, layout.strides[1]
        first, last = code.slot("i64"), code.slot("i64")
        with code.count("%start", code.least("%stop", w.size(self.blocks)), 1) as unit:
            code.do(f"store i64 {self.length}, ptr {first}", f"store i64 0, ptr {last}")
            start = code.i64("mul", unit, self.lanes)
            mask = below(code, code.i64("sub", w.size(self.count), start))
            to = self._block(code, w.buffer(1), unit)
            with code.count(0, self.length, 1) as k:
                place = w.place(layout, (k, start))
                value = w.load(0, place, dtype, w.size(across), mask).to(self.dtype)
                at = advanced(code, to, code.i64("mul", k, self.lanes), self.dtype)
                store(code, value, self.dtype, at)
                self._extend_range(code, value, k, first, last)
            self._store_range(code, to, first, last)

    def _block(self, code: Code, packed: str, unit: Bound) -> str:
        start = code.i64("mul", unit, self.block_bytes)
        return code.advanced(packed, start, DType.U8)

    def _extend_range(self, code: Code, value: Vec, k: str, first: str, last: str) -> None:
        """Extend the row range by a row with a nonzero entry."""
        with code.when(value.differs(0.0).any()):
            least = code.least(code.load_scalar(first, DType.I64), k)
            code.store_scalar(first, least, DType.I64)
            code.store_scalar(last, code.i64("add", k, 1), DType.I64)

    def _store_range(self, code: Code, to: str, first: str, last: str) -> None:
        for number, slot in enumerate((first, last)):
            at = code.advanced(to, self.range_offset + 8 * number, DType.U8)
            code.store_scalar(at, code.load_scalar(slot, DType.I64), DType.I64)

    # -- multiplication -------------------------------------------------------------------------

    def multiply(self, w: Writer, block: str, packed: str) -> None:
        """All rows of a block times all filters."""
        name = f"banded_matmul.{self.length}.{self.dtype}"
        args = "ptr %x, ptr %packed, ptr %y, i64 %blocks"
        helper(w.code, name, args, self._multiply, self.lanes)
        to = self.made(w, block, 0).pointer
        blocks = w.size(self.blocks)
        w.code.do(f"call void @{name}(ptr {block}, ptr {packed}, ptr {to}, i64 {blocks})")

    def _multiply(self, code: Code) -> None:
        has_nonfinite = self._has_nonfinite(code)
        pitch = code.i64("mul", "%blocks", self.lanes)
        with code.count(0, "%blocks", 1) as unit:
            filters = self._block(code, "%packed", unit)
            ends = [self._range_end(code, filters, n) for n in (0, 1)]
            low = code.choose(has_nonfinite, 0, ends[0])
            high = code.choose(has_nonfinite, self.length, ends[1])
            sums = self._sums(code, filters, low, high)
            start = code.i64("mul", unit, self.lanes)
            for row, value in enumerate(sums):
                place = code.i64("add", start, code.i64("mul", pitch, row))
                store(code, value, self.dtype, advanced(code, "%y", place, self.dtype))

    def _range_end(self, code: Code, filters: str, number: int) -> str:
        at = code.advanced(filters, self.range_offset + 8 * number, DType.U8)
        return code.load_scalar(at, DType.I64)

    def _sums(self, code: Code, filters: str, low: str, high: str) -> list[Vec]:
        zero = code.const(0.0, self.dtype)
        slots = [code.slot(zero.type) for _ in range(ROWS_PER_BLOCK)]
        code.do(*(f"store {zero.type} {zero.text}, ptr {s}" for s in slots))
        with code.count(low, high, 1) as k:
            at = advanced(code, filters, code.i64("mul", k, self.lanes), self.dtype)
            weight = load(code, self.dtype, at)
            here = advanced(code, "%x", k, self.dtype)
            for row, slot in enumerate(slots):
                x = load(code, self.dtype, advanced(code, here, row * self.pitch, self.dtype), 0)
                total = zero.made(f"load {zero.type}, ptr {slot}")
                total = multiply_add(x, weight, total)
                code.do(f"store {total.type} {total.text}, ptr {slot}")
        return [zero.made(f"load {zero.type}, ptr {s}") for s in slots]

    def _has_nonfinite(self, code: Code) -> str:
        """Is a number of the rows not finite? x · 0 is then NaN, and else 0. Rows past the last
        hold stale values, which at worst costs time."""
        zero = code.const(0.0, self.dtype)
        slot = code.slot(zero.type)
        code.do(f"store {zero.type} {zero.text}, ptr {slot}")
        whole = self.length // self.lanes * self.lanes
        with code.count(0, ROWS_PER_BLOCK, 1) as row:
            base = advanced(code, "%x", code.i64("mul", row, self.pitch), self.dtype)
            with code.count(0, whole, self.lanes) as k:
                self._accumulate_times_zero(
                    code, slot, load(code, self.dtype, advanced(code, base, k, self.dtype))
                )
            if whole < self.length:
                mask = below(code, self.length - whole)
                at = advanced(code, base, whole, self.dtype)
                self._accumulate_times_zero(code, slot, load(code, self.dtype, at, 1, mask))
        return zero.made(f"load {zero.type}, ptr {slot}").is_nan().any()

    def _accumulate_times_zero(self, code: Code, slot: str, value: Vec) -> None:
        total = value.made(f"load {value.type}, ptr {slot}") + value * 0.0
        code.do(f"store {total.type} {total.text}, ptr {slot}")
