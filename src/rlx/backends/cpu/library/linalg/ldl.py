"""Bunch and Kaufman's factorisation l · d · lᵀ with blocks of one or two rows, and substitution."""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.library.counters import Variable
from rlx.backends.cpu.library.linalg.matrix import Matrix, Range, Row
from rlx.backends.cpu.library.linalg.numbers import Number, RealCell
from rlx.backends.cpu.library.linalg.unit import MatrixKernel, Room, Unit
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task
from rlx.kernel.program.schedule import Schedule
from rlx.ops.linalg.ldl import ALPHA


def make_ldl_factor(given: Step, name: str) -> Schedule[Task]:
    """Both factors in the lower triangle, and the pivots."""
    shape = given.node.inputs[0].shape
    *stack, n, _ = shape.dims
    parts = 2 if shape.dtype.is_complex else 1
    rooms = {"a": Room(n, n, parts), "w": Room(2, n, parts)}
    kernel = MatrixKernel(given, tuple(stack), rooms, _ldl_factor)
    return kernel.schedule(name, "Bunch and Kaufman's pivots")


def _ldl_factor(unit: Unit) -> None:
    code, a = unit.w.code, unit.matrices["a"]
    is_hermitian = unit.given.node.attrs["hermitian"]
    unit.read(0, "a")
    is_bad = _clean(a, is_hermitian)
    with code.when(is_bad):
        unit.fill(0, float("nan"))
        with code.count(0, a.rows, 1) as i:
            unit.write_index(1, i, code.i64("add", i, 1))
    with code.when(code.negated(is_bad)):
        _Elimination(code, a, unit.matrices["w"], is_hermitian).run(unit)
        unit.write(0, "a")


def _clean(a: Matrix, is_hermitian: bool) -> str:
    """Zeros above the diagonal, which has no imaginary parts if Hermitian; whether a number of the
    lower triangle is not finite, as an i1."""
    code = a.w.code
    check = RealCell(code, a.row(0).zero().real)
    with code.count(0, a.rows, 1) as i:
        row, after = a.row(i), code.i64("add", i, 1)
        row.fill(row.zero(), (after, a.columns))
        if is_hermitian:
            row.set(i, row.zero().of_real(row.real(i)))
        with code.count(0, after, 1) as j:
            for part in row.get(j).parts:
                check.set(check.get() + part * 0.0)
    return check.get().is_nan().lane()


@dataclass(frozen=True, slots=True)
class _Elimination:
    """The lower triangle of a, eliminated block by block; w holds columns as rows."""

    code: Code
    a: Matrix
    w: Matrix
    is_hermitian: bool

    def turned(self, x: Number) -> Number:
        return x.conj() if self.is_hermitian else x

    def run(self, unit: Unit) -> None:
        code, n = self.code, self.a.rows
        k = Variable(code, 0)
        with code.loop_while(lambda: code.compare("lt", k.get(), n)):
            code.poll()
            now = k.get()
            after = code.i64("add", now, 1)
            row, is_single = self.choose(now)
            number = code.i64("add", row, 1)
            with code.when(is_single):
                self.exchange(now, now, row)
                unit.write_index(1, now, number)
                self.eliminate_one(now)
                k.set(after)
            with code.when(code.negated(is_single)):
                self.exchange(now, after, row)
                for place in (now, after):
                    unit.write_index(1, place, code.i64("sub", 0, number))
                self.eliminate_two(now)
                k.set(code.i64("add", now, 2))

    def choose(self, k: Bound) -> tuple[Bound, str]:
        """The row to swap with, and whether the block has one row, as an i1."""
        code, a = self.code, self.a
        here = a.get(k, k).size1()
        found, most = self.column_most(k, k)
        row, is_single = Variable(code, k), Variable(code, "true", "i1")
        is_small = ((here < most * ALPHA) & (most > 0.0)).lane()
        with code.when(is_small):
            beside = arith.maximum(self.row_most(found, k), self.column_most(found, found)[1])
            is_smaller = (here < most * ALPHA * (most / beside)).lane()
            with code.when(is_smaller):
                row.set(found)
                is_single.set((a.get(found, found).size1() >= beside * ALPHA).lane())
        return row.get(), is_single.get()

    def column_most(self, j: Bound, above: Bound) -> tuple[str, Vec]:
        """The row below `above` of a column's greatest entry, the first of equals, and its size."""
        code, a = self.code, self.a
        found, most = Variable(code, above), RealCell(code, a.row(0).zero().real)
        with code.count(code.i64("add", above, 1), a.rows, 1) as i:
            size = a.get(i, j).size1()
            with code.when((size > most.get()).lane()):
                found.set(i)
                most.set(size)
        return found.get(), most.get()

    def row_most(self, i: Bound, k: Bound) -> Vec:
        """The size of the greatest entry of a row between k and the diagonal."""
        most = RealCell(self.code, self.a.row(0).zero().real)
        with self.code.count(k, i, 1) as j:
            most.set(arith.maximum(most.get(), self.a.get(i, j).size1()))
        return most.get()

    def exchange(self, k: Bound, i: Bound, p: Bound) -> None:
        """Swap the rows and columns i and p of what is left, within the lower triangle."""
        code = self.code
        with code.when(code.compare("ne", i, p)):
            after = code.i64("add", p, 1)
            with code.count(after, self.a.rows, 1) as r:
                self.swap((r, i), (r, p))
            with code.count(code.i64("add", i, 1), p, 1) as r:
                self.swap((r, i), (p, r), is_turned=True)
            self.swap((i, i), (p, p))
            if self.is_hermitian:
                self.a.set(p, i, self.a.get(p, i).conj())
            with code.when(code.compare("gt", i, k)):
                self.swap((i, k), (p, k))

    def swap(self, one: Range, other: Range, *, is_turned: bool = False) -> None:
        mine, its = self.a.get(*one), self.a.get(*other)
        self.a.set(*one, self.turned(its) if is_turned else its)
        self.a.set(*other, self.turned(mine) if is_turned else mine)

    def eliminate_one(self, k: Bound) -> None:
        """Divide the column by d, and subtract its products with itself."""
        code, a = self.code, self.a
        pivot, column = a.get(k, k), self.w.row(0)
        below = code.i64("add", k, 1)
        has_pivot = (~pivot.is_zero()).lane()
        with code.when(has_pivot):
            with code.count(below, a.rows, 1) as i:
                column.set(i, self.turned(a.get(i, k)))
            with code.count(below, a.rows, 1) as i:
                factor = a.get(i, k) / pivot
                a.row(i).add(-factor, column, (below, code.i64("add", i, 1)))
                a.set(i, k, factor)

    def eliminate_two(self, k: Bound) -> None:
        """The same with two columns, by the inverse of a 2 × 2 block."""
        code, a, (x, y) = self.code, self.a, (self.w.row(n) for n in (0, 1))
        after, rest = code.i64("add", k, 1), code.i64("add", k, 2)
        with code.count(rest, a.rows, 1) as i:
            x.set(i, self.turned(a.get(i, k)))
            y.set(i, self.turned(a.get(i, after)))
        block = Block.of(a, k, self.is_hermitian)
        with code.count(rest, a.rows, 1) as i:
            first, second = block.from_right(a.get(i, k), a.get(i, after))
            end = code.i64("add", i, 1)
            a.row(i).add(-first, x, (rest, end))
            a.row(i).add(-second, y, (rest, end))
            a.set(i, k, first)
            a.set(i, after, second)


@dataclass(frozen=True, slots=True)
class Block:
    """A 2 × 2 block of d, its diagonal divided by what is beside it."""

    upper: Number
    lower: Number
    high: Number
    """Above the diagonal."""
    low: Number

    @classmethod
    def of(cls, a: Matrix, k: Bound, is_hermitian: bool) -> Block:
        after = a.w.code.i64("add", k, 1)
        low = a.get(after, k)
        high = low.conj() if is_hermitian else low
        first, last = a.get(k, k), a.get(after, after)
        if is_hermitian:
            first, last = (d.of_real(d.real) for d in (first, last))
        return cls(first / high, last / low, high, low)

    @property
    def over(self) -> Number:
        """The determinant, over the product of what is beside the diagonal."""
        return self.upper * self.lower - self.upper.of_real(self.upper.real.like(1.0))

    def solve(self, first: Number, second: Number) -> tuple[Number, Number]:
        """The x with d · x = (first, second)."""
        top, bottom, over = first / self.high, second / self.low, self.over
        return (self.lower * top - bottom) / over, (self.upper * bottom - top) / over

    def from_right(self, first: Number, second: Number) -> tuple[Number, Number]:
        """The x with x · d = (first, second): that of the transpose."""
        upper, lower = self.upper * self.high / self.low, self.lower * self.low / self.high
        return Block(upper, lower, self.low, self.high).solve(first, second)


# -- ldl_solve ------------------------------------------------------------------------------------


def make_ldl_solve(given: Step, name: str) -> Schedule[Task]:
    """Substitution block by block, there and back."""
    shape, _, b = (i.shape for i in given.node.inputs)
    *stack, n, _ = shape.dims
    parts = 2 if shape.dtype.is_complex else 1
    rooms = {"a": Room(n, n, parts), "b": Room(n, b.dims[-1], parts)}
    kernel = MatrixKernel(given, tuple(stack), rooms, _ldl_solve)
    return kernel.schedule(name, "substitution")


def _ldl_solve(unit: Unit) -> None:
    unit.read(0, "a")
    unit.read(2, "b")
    solving = _Substitution(unit, unit.matrices["a"], unit.matrices["b"])
    solving.forward()
    solving.backward()
    unit.write(0, "b")


@dataclass(frozen=True, slots=True)
class _Substitution:
    unit: Unit
    a: Matrix
    b: Matrix

    @property
    def code(self) -> Code:
        return self.unit.w.code

    @property
    def is_hermitian(self) -> bool:
        return self.unit.given.node.attrs["hermitian"]

    def pivot(self, k: Bound) -> tuple[str, str]:
        """The row that a block was swapped with, and whether the pivot is positive, as an i1."""
        code = self.code
        value = self.unit.read_index(1, k)
        is_positive = code.compare("gt", value, 0)
        size = code.choose(is_positive, value, code.i64("sub", 0, value))
        number = code.least(code.most(size, 1), self.a.rows)
        return str(code.i64("sub", number, 1)), is_positive

    def is_single(self, k: Bound, is_positive: str) -> str:
        """Has the block that begins here one row?"""
        last = self.code.i64("sub", self.a.rows, 1)
        return self.code.either(is_positive, self.code.compare("eq", k, last))

    def swap(self, i: Bound, p: Bound) -> None:
        with self.code.when(self.code.compare("ne", i, p)):
            self.b.row(i).swap(self.b.row(p), self.b.whole)

    def subtract(self, i: Bound, k: Bound) -> None:
        """b[i] -= l[i, k] · b[k]."""
        self.b.row(i).add(-self.a.get(i, k), self.b.row(k), self.b.whole)

    def forward(self) -> None:
        """b := d⁻¹ · l⁻¹ · b. The first row of each block is marked, for the way back."""
        code, n = self.code, self.a.rows
        k = Variable(code, 0)
        with code.loop_while(lambda: code.compare("lt", k.get(), n)):
            code.poll()
            now = k.get()
            after, rest = code.i64("add", now, 1), code.i64("add", now, 2)
            row, is_positive = self.pivot(now)
            is_single = self.is_single(now, is_positive)
            with code.when(is_single):
                self.swap(now, row)
                with code.count(after, n, 1) as i:
                    self.subtract(i, now)
                self.divide(now)
                k.set(after)
            with code.when(code.negated(is_single)):
                self.swap(after, row)
                with code.count(rest, n, 1) as i:
                    self.subtract(i, now)
                    self.subtract(i, after)
                self.divide_two(now, after)
                k.set(rest)

    def divide(self, k: Bound) -> None:
        pivot = self.a.get(k, k)
        pivot = pivot.of_real(pivot.real) if self.is_hermitian else pivot
        self.b.row(k).update(self.b.whole, lambda x: x / pivot)
        self.mark(k, 1.0)

    def divide_two(self, k: Bound, after: Bound) -> None:
        block = Block.of(self.a, k, self.is_hermitian)
        top, bottom = self.b.row(k), self.b.row(after)

        def body(j: Bound, mask: Vec | None) -> None:
            first, second = block.solve(top.load(j, mask), bottom.load(j, mask))
            top.store(j, first, mask)
            bottom.store(j, second, mask)

        top.each(self.b.whole, body)
        self.mark(after, 2.0)

    def mark(self, last: Bound, size: float) -> None:
        """The size of a block, at its last row: what it divided by is not read again."""
        zero = self.a.row(0).zero()
        self.a.set(last, last, zero.of_real(zero.real.like(size)))

    def backward(self) -> None:
        """b := l⁻ᵀ · b."""
        code, n = self.code, self.a.rows
        k = Variable(code, code.i64("sub", n, 1))
        with code.loop_while(lambda: code.compare("ge", k.get(), 0)):
            code.poll()
            now = k.get()
            before, rest = code.i64("sub", now, 1), code.i64("add", now, 1)
            is_two = (self.a.get(now, now).real > 1.5).lane()
            first = code.choose(is_two, before, now)
            row, _ = self.pivot(first)
            self.subtract_transposed(now, rest)
            with code.when(is_two):
                self.subtract_transposed(before, rest)
            self.swap(now, row)
            k.set(code.i64("sub", first, 1))

    def subtract_transposed(self, k: Bound, rest: Bound) -> None:
        """b[k] -= Σ l[i, k] · b[i] over i from `rest` on, of conjugates if Hermitian."""
        row: Row = self.b.row(k)
        with self.code.count(rest, self.a.rows, 1) as i:
            factor = self.a.get(i, k)
            factor = factor.conj() if self.is_hermitian else factor
            row.add(-factor, self.b.row(i), self.b.whole)
