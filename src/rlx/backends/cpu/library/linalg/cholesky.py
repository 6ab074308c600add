"""Cholesky factorisation and substitution with a triangle."""

from __future__ import annotations

from rlx.backends.cpu.library.counters import Variable
from rlx.backends.cpu.library.linalg.lu import substitute
from rlx.backends.cpu.library.linalg.matrix import BLOCK, TILE_ROWS, Factors, Matrix
from rlx.backends.cpu.library.linalg.unit import MatrixKernel, Room, Unit
from rlx.backends.cpu.llvm.values import Bound
from rlx.backends.cpu.program.task import Step, Task
from rlx.kernel.program.schedule import Schedule


def make_cholesky(given: Step, name: str) -> Schedule[Task]:
    """Some rows of the upper factor at a time, by products with those above them."""
    shape = given.node.inputs[0].shape
    *stack, n, _ = shape.dims
    rooms = {"a": Room(n, n, 2 if shape.dtype.is_complex else 1)}
    kernel = MatrixKernel(given, tuple(stack), rooms, _cholesky)
    return kernel.schedule(name, "Cholesky by blocks of rows")


def _cholesky(unit: Unit) -> None:
    code, a = unit.w.code, unit.matrices["a"]
    upper = unit.given.node.attrs["upper"]
    unit.read(0, "a", transpose=not upper)
    if not upper:
        _conjugate(a)
    is_good = Variable(code, "true", "i1")
    with code.count(0, a.rows, TILE_ROWS, BLOCK) as first, code.when(is_good.get()):
        end = code.least(code.i64("add", first, TILE_ROWS), a.rows)
        a.subtract_product(_adjoint(a), a, (first, end), (0, first), (first, a.columns))
        with code.count(first, end, 1) as i:
            _finish_row(a, first, i, is_good)
    with code.when(is_good.get()):
        unit.write(0, "a", transpose=not upper, conjugate=not upper)
    with code.when(code.negated(is_good.get())):
        unit.fill(0, float("nan"))


def _adjoint(a: Matrix) -> Factors:
    return lambda i, k: a.get(k, i).conj()


def _conjugate(a: Matrix) -> None:
    if len(a.pointers) == 2:
        with a.w.code.count(0, a.rows, 1) as i:
            a.row(i).update(a.whole, lambda x: x.conj())


def _finish_row(a: Matrix, first: Bound, i: Bound, is_good: Variable) -> None:
    """Subtract the products with the rows of its block, and divide by the root of the pivot."""
    code, row, after = a.w.code, a.row(i), a.w.code.i64("add", i, 1)
    a.subtract_product(_adjoint(a), a, (i, after), (first, i), (i, a.columns))
    pivot = row.real(i)
    is_definite = ((pivot > 0.0) & (pivot < float("inf"))).lane()
    is_good.set(code.both(is_good.get(), is_definite))
    root = pivot.sqrt()
    row.fill(row.zero(), (0, i))
    row.update((after, a.columns), lambda x: x.over(root))
    row.set(i, row.zero().of_real(root))


def read_hermitian(unit: Unit, to: str, *, upper: bool) -> None:
    """Copy the lower triangle, or of `upper` the adjoint of the upper one; of the diagonal the real
    part. What is above the diagonal is left as it was given."""
    code, a = unit.w.code, unit.matrices[to]
    unit.read(0, to, transpose=upper)
    with code.count(0, a.rows, 1) as i:
        row = a.row(i)
        if upper and len(a.pointers) == 2:
            row.update((0, i), lambda x: x.conj())
        row.set(i, row.zero().of_real(row.real(i)))


# -- triangular_solve -----------------------------------------------------------------------------


def make_triangular_solve(given: Step, name: str) -> Schedule[Task]:
    """Substitution from the left: a system from the right is that of the transposes."""
    a, b = (i.shape for i in given.node.inputs)
    parts, n = 2 if a.dtype.is_complex else 1, a.dims[-1]
    sides = b.dims[-1 if given.node.attrs["left"] else -2]
    rooms = {"a": Room(n, n, parts), "b": Room(n, sides, parts)}
    kernel = MatrixKernel(given, given.node.shape.dims[:-2], rooms, _triangular_solve)
    return kernel.schedule(name, "substitution")


def _triangular_solve(unit: Unit) -> None:
    attrs, (a, b) = unit.given.node.attrs, (unit.matrices[n] for n in "ab")
    is_left, is_transposed = attrs["left"], attrs["transpose"] != "none"
    unit.read(0, "a", transpose=is_transposed == is_left)
    if attrs["transpose"] == "adjoint":
        _conjugate(a)
    unit.read(1, "b", transpose=not is_left)
    is_upper = attrs["upper"] ^ is_transposed ^ (not is_left)
    substitute(a, b, is_upper=is_upper, has_unit_diagonal=attrs["unit_diagonal"])
    unit.write(0, "b", transpose=not is_left)
