"""A few rows times filters of which most numbers are 0.

Filters are packed as many columns at a time as there are lanes, each such block with the rows from
the first to the last in which any of its columns is not 0: only those are multiplied. What is left
out would add 0 where all numbers are finite. Where one is not, 0 times it is NaN, and so all rows
of the block are multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.codegen.gemm.microkernel import below
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.library.fft.butterflies import multiply_add
from rlx.backends.cpu.library.fft.complex_io import Numbers
from rlx.backends.cpu.library.shared_functions import helper
from rlx.backends.cpu.llvm.builder import Bound, Code, Vec
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.layout import Layout

ROWS = 8
"""Rows that are multiplied together: as many sums as multiplications are under way at a time."""


@dataclass(frozen=True, slots=True)
class Bands:
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
        """From row to row of what is multiplied."""
        return -(-self.length // 16) * 16

    @property
    def row_bytes(self) -> int:
        return self.pitch * self.dtype.itemsize

    @property
    def ranges(self) -> int:
        """Bytes of a block of filters, before its first row and its last."""
        return self.length * self.lanes * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        return -(-(self.ranges + 16) // 64) * 64

    @property
    def packed_bytes(self) -> DimLike:
        return self.blocks * self.block_bytes

    @property
    def made_pitch(self) -> DimLike:
        """From row to row of what is made."""
        return self.blocks * self.lanes

    @property
    def scratch(self) -> DimLike:
        made = ROWS * self.made_pitch * self.dtype.itemsize
        return ROWS * self.row_bytes + made

    def row(self, code: Code, block: str, row: Bound) -> Numbers:
        """A row to be multiplied."""
        at = advanced(code, block, code.i64("mul", row, self.pitch), self.dtype)
        return Numbers(at, self.dtype)

    def made(self, w: Writer, block: str, row: Bound) -> Numbers:
        """A row of the product."""
        code = w.code
        start = code.i64("mul", row, w.size(self.made_pitch))
        at = advanced(code, block, code.i64("add", start, ROWS * self.pitch), self.dtype)
        return Numbers(at, self.dtype)

    # -- packing --------------------------------------------------------------------------------

    def pack(self, w: Writer, layout: Layout, dtype: DType) -> None:
        """A unit is a block: operand 0 to operand 1, which has as many lanes as the writer."""
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
                self._note(code, value, k, first, last)
            self._set_ranges(code, to, first, last)

    def _block(self, code: Code, packed: str, unit: Bound) -> str:
        start = code.i64("mul", unit, self.block_bytes)
        return code.let(f"getelementptr i8, ptr {packed}, i64 {start}")

    def _note(self, code: Code, value: Vec, k: str, first: str, last: str) -> None:
        """A row with a number other than 0: the first if there was none before."""
        with code.when(value.differs(0.0).any()):
            least = code.least(code.let(f"load i64, ptr {first}"), k)
            code.do(f"store i64 {least}, ptr {first}")
            code.do(f"store i64 {code.i64('add', k, 1)}, ptr {last}")

    def _set_ranges(self, code: Code, to: str, first: str, last: str) -> None:
        for number, slot in enumerate((first, last)):
            at = code.let(f"getelementptr i8, ptr {to}, i64 {self.ranges + 8 * number}")
            code.do(f"store i64 {code.let(f'load i64, ptr {slot}')}, ptr {at}")

    # -- multiplying ----------------------------------------------------------------------------

    def multiply(self, w: Writer, block: str, packed: str) -> None:
        """All rows of a block times all filters."""
        name = f"bands.{self.length}.{self.dtype}"
        args = "ptr %x, ptr %packed, ptr %y, i64 %blocks"
        helper(w.code, name, args, self._multiply, self.lanes)
        to = self.made(w, block, 0).pointer
        blocks = w.size(self.blocks)
        w.code.do(f"call void @{name}(ptr {block}, ptr {packed}, ptr {to}, i64 {blocks})")

    def _multiply(self, code: Code) -> None:
        wild = self._is_wild(code)
        pitch = code.i64("mul", "%blocks", self.lanes)
        with code.count(0, "%blocks", 1) as unit:
            filters = self._block(code, "%packed", unit)
            ends = [self._end(code, filters, n) for n in (0, 1)]
            low = code.let(f"select i1 {wild}, i64 0, i64 {ends[0]}")
            high = code.let(f"select i1 {wild}, i64 {self.length}, i64 {ends[1]}")
            sums = self._sums(code, filters, low, high)
            start = code.i64("mul", unit, self.lanes)
            for row, value in enumerate(sums):
                place = code.i64("add", start, code.i64("mul", pitch, row))
                store(code, value, self.dtype, advanced(code, "%y", place, self.dtype))

    def _end(self, code: Code, filters: str, number: int) -> str:
        at = code.let(f"getelementptr i8, ptr {filters}, i64 {self.ranges + 8 * number}")
        return code.let(f"load i64, ptr {at}")

    def _sums(self, code: Code, filters: str, low: str, high: str) -> list[Vec]:
        nothing = code.const(0.0, self.dtype)
        slots = [code.slot(nothing.type) for _ in range(ROWS)]
        code.do(*(f"store {nothing.type} {nothing.text}, ptr {s}" for s in slots))
        with code.count(low, high, 1) as k:
            at = advanced(code, filters, code.i64("mul", k, self.lanes), self.dtype)
            weight = load(code, self.dtype, at)
            here = advanced(code, "%x", k, self.dtype)
            for row, slot in enumerate(slots):
                x = load(code, self.dtype, advanced(code, here, row * self.pitch, self.dtype), 0)
                total = nothing.made(f"load {nothing.type}, ptr {slot}")
                total = multiply_add(x, weight, total)
                code.do(f"store {total.type} {total.text}, ptr {slot}")
        return [nothing.made(f"load {nothing.type}, ptr {s}") for s in slots]

    def _is_wild(self, code: Code) -> str:
        """Is a number of the rows not finite? x · 0 is then NaN, and else 0. Rows that are not
        there hold what was there, which at worst takes time."""
        nothing = code.const(0.0, self.dtype)
        slot = code.slot(nothing.type)
        code.do(f"store {nothing.type} {nothing.text}, ptr {slot}")
        whole = self.length // self.lanes * self.lanes
        with code.count(0, ROWS, 1) as row:
            base = advanced(code, "%x", code.i64("mul", row, self.pitch), self.dtype)
            with code.count(0, whole, self.lanes) as k:
                self._add_nothing(
                    code, slot, load(code, self.dtype, advanced(code, base, k, self.dtype))
                )
            if whole < self.length:
                mask = below(code, self.length - whole)
                at = advanced(code, base, whole, self.dtype)
                self._add_nothing(code, slot, load(code, self.dtype, at, 1, mask))
        return nothing.made(f"load {nothing.type}, ptr {slot}").is_nan().any()

    def _add_nothing(self, code: Code, slot: str, value: Vec) -> None:
        total = value.made(f"load {value.type}, ptr {slot}") + value * 0.0
        code.do(f"store {total.type} {total.text}, ptr {slot}")
