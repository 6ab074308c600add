"""Matrices in scratch memory, and what factorisations do to their rows.

Rows are contiguous, so that a loop over a row is a loop over vectors. An algorithm that goes by
columns holds the transpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.library.linalg.numbers import Cell, Number, RealCell, lane_max, lane_sum
from rlx.backends.cpu.library.strided_copy import unrolled_vector_loop, vector_loop
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.core.dtype import DType

TILE_ROWS = 4
"""Rows of a product whose sums are held in registers at a time."""
BLOCK = 32
"""Columns that a blocked factorisation eliminates before it updates what is to the right."""

Range = tuple[Bound, Bound]
Factors = Callable[[Bound, Bound], Number]
"""The number of a row and a column, in every lane."""


@dataclass(frozen=True, slots=True)
class Row:
    """Consecutive numbers in memory."""

    w: Writer
    pointers: tuple[str, ...]
    """The first real part, and the first imaginary part."""
    dtype: DType

    def load(self, j: Bound, mask: Vec | None = None) -> Number:
        """A vector of numbers from the j-th on."""
        return Number(tuple(load(self.w.code, self.dtype, p, 1, mask) for p in self._at(j)))

    def store(self, j: Bound, value: Number, mask: Vec | None = None) -> None:
        for pointer, part in zip(self._at(j), value.parts, strict=True):
            store(self.w.code, part, self.dtype, pointer, 1, mask)

    def get(self, j: Bound) -> Number:
        """The j-th number, in every lane."""
        return Number(tuple(load(self.w.code, self.dtype, p, 0) for p in self._at(j)))

    def set(self, j: Bound, value: Number) -> None:
        """The j-th number, of the first lane."""
        kind = ELEMENT[self.dtype]
        for pointer, part in zip(self._at(j), value.parts, strict=True):
            lane = part.lane()
            self.w.code.do(f"store {kind} {lane}, ptr {pointer}, align {self.dtype.itemsize}")

    def real(self, j: Bound) -> Vec:
        return self.get(j).real

    def set_real(self, j: Bound, value: Vec) -> None:
        self.set(j, Number((value,)))

    def _at(self, j: Bound) -> list[str]:
        return [advanced(self.w.code, p, j, self.dtype) for p in self.pointers]

    # -- loops ----------------------------------------------------------------------------------

    def each(self, columns: Range, body: Callable[[Bound, Vec | None], None]) -> None:
        vector_loop(self.w, *columns, body)

    def update(self, columns: Range, change: Callable[[Number], Number]) -> None:
        """Replace each number."""
        self.each(columns, lambda j, mask: self.store(j, change(self.load(j, mask)), mask))

    def add(self, factor: Number, other: Row, columns: Range) -> None:
        """This row + factor · the other."""

        def body(j: Bound, mask: Vec | None) -> None:
            self.store(j, self.load(j, mask).plus(factor, other.load(j, mask)), mask)

        self.each(columns, body)

    def swap(self, other: Row, columns: Range) -> None:
        def body(j: Bound, mask: Vec | None) -> None:
            mine, its = self.load(j, mask), other.load(j, mask)
            self.store(j, its, mask)
            other.store(j, mine, mask)

        self.each(columns, body)

    def rotate(self, other: Row, c: Vec, s: Vec, columns: Range) -> None:
        """This row becomes c · this + s · the other, which becomes c · the other - s · this."""

        def body(j: Bound, mask: Vec | None) -> None:
            mine, its = self.load(j, mask), other.load(j, mask)
            self.store(j, mine * c + its * s, mask)
            other.store(j, its * c - mine * s, mask)

        self.each(columns, body)

    def fill(self, value: Number, columns: Range) -> None:
        self.each(columns, lambda j, mask: self.store(j, value, mask))

    def copy(self, other: Row, columns: Range) -> None:
        """Take the other's numbers."""
        self.each(columns, lambda j, mask: self.store(j, other.load(j, mask), mask))

    def dot(self, other: Row, columns: Range, *, conjugate: bool) -> Number:
        """Σ this · other, of this the conjugates where asked for."""
        total = Cell(self.w.code, self.zero())

        def body(j: Bound, mask: Vec | None) -> None:
            mine = self.load(j, mask)
            mine = mine.conj() if conjugate else mine
            total.set(total.get().plus(mine, other.load(j, mask)))

        self.each(columns, body)
        return Number(tuple(map(lane_sum, total.get().parts)))

    def greatest_part(self, columns: Range) -> Vec:
        """The greatest |re| or |im|."""
        most = RealCell(self.w.code, self.zero().real)
        self.each(
            columns,
            lambda j, mask: most.set(arith.maximum(most.get(), self.load(j, mask).greatest_part())),
        )
        return lane_max(most.get())

    def norm(self, columns: Range) -> Vec:
        """√Σ|x|², which overflows only where it must."""
        most = self.greatest_part(columns)
        total, over = RealCell(self.w.code, most.like(0.0)), (most.like(1.0) / most)
        factor = over.where(over < float("inf"), 1.0)  # of zeros, and of subnormal numbers

        def body(j: Bound, mask: Vec | None) -> None:
            for part in (self.load(j, mask) * factor).parts:
                total.set(total.get() + part * part)

        self.each(columns, body)
        return lane_sum(total.get()).sqrt() / factor

    def zero(self) -> Number:
        value = self.w.code.const(0.0, self.dtype)
        return Number(tuple(value for _ in self.pointers))

    def one(self) -> Number:
        zero = self.zero()
        return zero.of_real(zero.real.like(1.0))


@dataclass(frozen=True, slots=True)
class Matrix:
    """A row-major matrix: a plane of real parts, then one of imaginary parts if it is complex."""

    w: Writer
    pointers: tuple[str, ...]
    dtype: DType
    rows: Bound
    columns: Bound

    def row(self, i: Bound) -> Row:
        place = self.w.code.i64("mul", i, self.columns)
        pointers = tuple(advanced(self.w.code, p, place, self.dtype) for p in self.pointers)
        return Row(self.w, pointers, self.dtype)

    def get(self, i: Bound, j: Bound) -> Number:
        return self.row(i).get(j)

    def set(self, i: Bound, j: Bound, value: Number) -> None:
        self.row(i).set(j, value)

    @property
    def whole(self) -> Range:
        """All columns."""
        return 0, self.columns

    def fill(self, value: Number) -> None:
        with self.w.code.count(0, self.rows, 1) as i:
            self.row(i).fill(value, self.whole)

    def fill_eye(self) -> None:
        """Ones on the diagonal."""
        row = self.row(0)
        self.fill(row.zero())
        with self.w.code.count(0, self.w.code.least(self.rows, self.columns), 1) as i:
            self.set(i, i, row.one())

    def greatest_part(self) -> Vec:
        """The greatest |re| or |im| of all."""
        most = RealCell(self.w.code, self.row(0).zero().real)
        with self.w.code.count(0, self.rows, 1) as i:
            most.set(arith.maximum(most.get(), self.row(i).greatest_part(self.whole)))
        return most.get()

    def scale_down(self) -> Vec:
        """Divide all numbers by the power of two at or below their greatest part, so that no square
        of one overflows, nor all of them underflow; gives the power, 1 where all are 0."""
        most = self.greatest_part()
        is_single = self.dtype is DType.F32
        bits, exponents = (DType.U32, 0xFF << 23) if is_single else (DType.U64, 0x7FF << 52)
        power = (most.bits(bits) & exponents).bits(self.dtype)
        normal = arith.maximum(power, most.like(2.0**-126 if is_single else 2.0**-1022))
        scale = normal.where(most > 0.0, 1.0)
        with self.w.code.count(0, self.rows, 1) as i:
            self.row(i).update(self.whole, lambda x: x.over(scale))
        return scale

    def subtract_product(
        self, left: Factors, right: Matrix, rows: Range, inner: Range, columns: Range
    ) -> None:
        """self[i, j] -= Σ left(i, k) · right[k, j], of all i, k and j in the ranges. The rows of
        `right` that are read must not be among those that are written."""
        code = self.w.code
        count = code.i64("sub", rows[1], rows[0])
        rest = code.i64("sub", count, code.integer("and", count, -TILE_ROWS))
        whole = code.i64("sub", rows[1], rest)
        for low, high, step in ((rows[0], whole, TILE_ROWS), (whole, rows[1], 1)):
            with code.count(low, high, step) as first:
                indices = [code.i64("add", first, n) for n in range(step)]
                self._tile(left, right, indices, inner, columns)

    def _tile(
        self, left: Factors, right: Matrix, indices: list[Bound], inner: Range, columns: Range
    ) -> None:
        """Rows by vectors of sums in registers: two of real numbers, one of complex ones."""
        code, mine = self.w.code, [self.row(i) for i in indices]

        def body(first: Bound, together: int, mask: Vec | None) -> None:
            places = [code.i64("add", first, n * code.lanes) for n in range(together)]
            sums = [[Cell(code, row.load(j, mask)) for j in places] for row in mine]
            with code.count(*inner, 1) as k:
                others = [right.row(k).load(j, mask) for j in places]
                for i, totals in zip(indices, sums):
                    factor = -left(i, k)
                    for total, other in zip(totals, others):
                        total.set(total.get().plus(factor, other))
            for row, totals in zip(mine, sums):
                for j, total in zip(places, totals):
                    row.store(j, total.get(), mask)

        unrolled_vector_loop(self.w, *columns, 3 - len(self.pointers), body)
