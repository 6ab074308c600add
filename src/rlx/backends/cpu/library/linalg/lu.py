"""LU factorisation with partial pivoting, blocked: solve, slogdet, lu_factor.

A block of columns is eliminated, then what is to its right is updated by one product. The pivot of
a column is the first entry of greatest |re| + |im| among those left.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.cpu.codegen.math import elementary
from rlx.backends.cpu.library.counters import Variable
from rlx.backends.cpu.library.linalg.matrix import BLOCK, Matrix, Range
from rlx.backends.cpu.library.linalg.numbers import Cell, RealCell
from rlx.backends.cpu.library.linalg.unit import MatrixKernel, Room, Unit
from rlx.backends.cpu.llvm.values import Bound
from rlx.backends.cpu.program.task import Step, Task
from rlx.kernel.program.schedule import Schedule

Swap = Callable[[Bound, Bound], None]
"""Emitted where two rows are swapped, with their indices."""


def factorise(a: Matrix, note_pivot: Swap, when_swapped: Swap) -> None:
    """a becomes l, whose diagonal of ones is not stored, and u. `note_pivot` has every column and
    the row of its pivot, `when_swapped` only those that differ."""
    code = a.w.code
    size = code.least(a.rows, a.columns)
    with code.count(0, size, BLOCK, 1) as first:
        end = code.least(code.i64("add", first, BLOCK), size)
        with code.count(first, end, 1) as k:
            pivot = _pivot(a, k)
            note_pivot(k, pivot)
            with code.when(code.compare("ne", pivot, k)):
                a.row(k).swap(a.row(pivot), a.whole)
                when_swapped(k, pivot)
            _eliminate(a, k, (code.i64("add", k, 1), end))
        rest = (end, a.columns)
        with code.count(first, end, 1) as i:
            row, known = code.i64("add", i, 1), (first, i)
            a.subtract_product(a.get, a, (i, row), known, rest)
        a.subtract_product(a.get, a, (end, a.rows), (first, end), rest)


def _pivot(a: Matrix, k: Bound) -> Bound:
    """The row of the column's greatest entry, the first of equals."""
    code = a.w.code
    found, most = Variable(code, k), RealCell(code, a.get(k, k).size1())
    with code.count(code.i64("add", k, 1), a.rows, 1) as i:
        size = a.get(i, k).size1()
        with code.when((size > most.get()).lane()):
            found.set(i)
            most.set(size)
    return found.get()


def _eliminate(a: Matrix, k: Bound, columns: Range) -> None:
    """Divide what is below the pivot by it, and update those columns. A pivot of 0 is skipped:
    what is below is 0 as well."""
    code, pivot = a.w.code, a.get(k, k)
    below, has_pivot = code.i64("add", k, 1), (~pivot.is_zero()).lane()
    with code.when(has_pivot), code.count(below, a.rows, 1) as i:
        row = a.row(i)
        factor = row.get(k) / pivot
        row.set(k, factor)
        row.add(-factor, a.row(k), columns)


def is_singular(a: Matrix) -> str:
    """Is a pivot 0? As an i1."""
    code = a.w.code
    found = Variable(code, "false", "i1")
    with code.count(0, a.rows, 1) as i, code.when(a.get(i, i).is_zero().lane()):
        found.set("true")
    return found.get()


def _nothing(_: Bound, __: Bound) -> None:
    pass


# -- solve ----------------------------------------------------------------------------------------


def make_solve(given: Step, name: str) -> Schedule[Task]:
    """The solution for as many right sides as b has columns."""
    a, b = (i.shape for i in given.node.inputs)
    parts, vectors = 2 if a.dtype.is_complex else 1, given.node.attrs["vectors"]
    sides = 1 if vectors else b.dims[-1]
    stack = given.node.shape.dims[: -1 if vectors else -2]
    n = a.dims[-1]
    rooms = {"a": Room(n, n, parts), "b": Room(n, sides, parts)}

    def body(unit: Unit) -> None:
        _solve(unit, vectors)

    return MatrixKernel(given, stack, rooms, body).schedule(name, "blocked LU, then substitution")


def _solve(unit: Unit, vectors: bool) -> None:
    code, a, b = unit.w.code, unit.matrices["a"], unit.matrices["b"]
    is_bad = Variable(code, unit.read(0, "a"), "i1")
    is_bad_too = unit.read(1, "b", rank=1 if vectors else 2, transpose=vectors)
    is_bad.set(code.either(is_bad.get(), is_bad_too))
    with code.when(code.negated(is_bad.get())):
        factorise(a, _nothing, lambda k, p: b.row(k).swap(b.row(p), b.whole))
        is_bad.set(is_singular(a))
        with code.when(code.negated(is_bad.get())):
            substitute(a, b, is_upper=False, has_unit_diagonal=True)
            substitute(a, b, is_upper=True, has_unit_diagonal=False)
            unit.write(0, "b", transpose=vectors)
    with code.when(is_bad.get()):
        unit.fill(0, float("nan"))


def substitute(t: Matrix, b: Matrix, *, is_upper: bool, has_unit_diagonal: bool) -> None:
    """b becomes the x with t · x = b, of the triangle of t."""
    code, n = t.w.code, t.rows
    with code.count(0, n, 1, BLOCK) as step:
        i = code.i64("sub", code.i64("sub", n, 1), step) if is_upper else step
        after = code.i64("add", i, 1)
        b.subtract_product(t.get, b, (i, after), (after, n) if is_upper else (0, i), b.whole)
        if not has_unit_diagonal:
            pivot = t.get(i, i)
            b.row(i).update(b.whole, lambda x: x / pivot)


# -- slogdet --------------------------------------------------------------------------------------


def make_slogdet(given: Step, name: str) -> Schedule[Task]:
    """The product of the pivots: its phase, and the sum of the logarithms of their sizes."""
    shape = given.node.inputs[0].shape
    *stack, n, _ = shape.dims
    parts = 2 if shape.dtype.is_complex else 1
    rooms = {"a": Room(n, n, parts), "sign": Room(1, 1, parts), "log": Room(1, 1, 1)}
    return MatrixKernel(given, tuple(stack), rooms, _slogdet).schedule(name, "blocked LU")


def _slogdet(unit: Unit) -> None:
    code, a = unit.w.code, unit.matrices["a"]
    sign, log = (unit.matrices[n].row(0) for n in ("sign", "log"))
    is_bad = unit.read(0, "a")
    nan = sign.zero().real.like(float("nan"))
    sign.set(0, sign.zero().of_real(nan))
    log.set_real(0, nan)
    with code.when(code.negated(is_bad)):
        phase, total = Cell(code, sign.one()), RealCell(code, log.zero().real)
        factorise(a, _nothing, lambda k, p: phase.set(-phase.get()))
        with code.count(0, a.rows, 1) as i:
            pivot = a.get(i, i)
            phase.set((phase.get() * pivot.phase()).where(~pivot.is_zero(), sign.zero()))
            total.set(total.get() + elementary.log(pivot.abs()))
        sign.set(0, phase.get())
        log.set_real(0, total.get())
    for result, room in enumerate(("sign", "log")):
        unit.write(result, room)


# -- lu_factor ------------------------------------------------------------------------------------


def make_lu_factor(given: Step, name: str) -> Schedule[Task]:
    """Both factors in one matrix, and the row that each was swapped with."""
    shape = given.node.inputs[0].shape
    *stack, m, n = shape.dims
    rooms = {"a": Room(m, n, 2 if shape.dtype.is_complex else 1)}
    return MatrixKernel(given, tuple(stack), rooms, _lu_factor).schedule(name, "blocked LU")


def _lu_factor(unit: Unit) -> None:
    code, a = unit.w.code, unit.matrices["a"]
    is_bad = unit.read(0, "a")
    with code.when(is_bad):
        unit.fill(0, float("nan"))
        with code.count(0, code.least(a.rows, a.columns), 1) as i:
            unit.write_index(1, i, i)
    with code.when(code.negated(is_bad)):
        factorise(a, lambda k, p: unit.write_index(1, k, p), _nothing)
        unit.write(0, "a")
