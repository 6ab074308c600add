"""Eigendecomposition of Hermitian matrices: reduction to a real tridiagonal matrix by Householder
reflections, then QL iterations with implicit shifts.

Vectors are the rows of a matrix, so that a rotation of two of them is a loop over contiguous ones.
"""

from __future__ import annotations

from rlx.backends.cpu.library.counters import Variable
from rlx.backends.cpu.library.linalg.cholesky import read_hermitian
from rlx.backends.cpu.library.linalg.householder import reflect
from rlx.backends.cpu.library.linalg.matrix import BLOCK, Matrix, Range, Row
from rlx.backends.cpu.library.linalg.numbers import Number, RealCell, givens, hypot
from rlx.backends.cpu.library.linalg.unit import MatrixKernel, Room, Unit
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dtype import DType
from rlx.kernel.program.schedule import Schedule

ITERATIONS = 60
"""QL iterations for one eigenvalue; two or three is usual."""


def epsilon(dtype: DType) -> float:
    return 2.0**-23 if dtype is DType.F32 else 2.0**-52


def make_eigh(given: Step, name: str) -> Schedule[Task]:
    """Eigenvalues, rising, and eigenvectors."""
    shape = given.node.inputs[0].shape
    *stack, n, _ = shape.dims
    parts = 2 if shape.dtype.is_complex else 1
    rooms = {
        "a": Room(n, n, parts), "z": Room(n, n, parts), "v": Room(n, n, parts),
        "tau": Room(1, n, parts), "w": Room(1, n, parts), "d": Room(1, n, 1), "e": Room(1, n, 1),
    }  # fmt: skip
    kernel = MatrixKernel(given, tuple(stack), rooms, _eigh)
    return kernel.schedule(name, "tridiagonal, then implicit QL")


def _eigh(unit: Unit) -> None:
    code, a = unit.w.code, unit.matrices["a"]
    read_hermitian(unit, "a", upper=unit.given.node.attrs["upper"])
    is_bad = _mirror(a)
    is_good = Variable(code, code.negated(is_bad), "i1")
    with code.when(is_good.get()):
        d, e = (unit.matrices[n].row(0) for n in "de")
        z = unit.matrices["z"]
        scale = a.scale_down()
        tridiagonalise(unit)
        is_good.set(ql(d, e, z))
        d.update((0, z.rows), lambda x: x * scale)
        sort_rows(d, z.rows, (z,), is_rising=True)
        fix_phases(z)
        unit.write(0, "d")
        unit.write(1, "z", transpose=True)
    with code.when(code.negated(is_good.get())):
        unit.fill_all(float("nan"))


def _mirror(a: Matrix) -> str:
    """Set the upper triangle by the lower; whether a number is not finite, as an i1."""
    code = a.w.code
    check = RealCell(code, a.row(0).zero().real)
    with code.count(0, a.rows, 1) as i, code.count(0, code.i64("add", i, 1), 1) as j:
        value = a.get(i, j)
        for part in value.parts:
            check.set(check.get() + part * 0.0)
        a.set(j, i, value.conj())
    return check.get().is_nan().lane()


# -- tridiagonal form -----------------------------------------------------------------------------


def tridiagonalise(unit: Unit) -> None:
    """d and e become the diagonals of qᴴ · a · q, and the rows of z the columns of q."""
    a, z, v = (unit.matrices[n] for n in "azv")
    taus, w, d, e = (unit.matrices[n].row(0) for n in ("tau", "w", "d", "e"))
    code, n = a.w.code, a.rows
    last = code.i64("sub", n, 1)
    with code.count(0, last, 1, BLOCK) as k:
        below = code.i64("add", k, 1)
        row = v.row(k)
        row.each((below, n), lambda j, mask: row.store(j, a.row(k).load(j, mask).conj(), mask))
        tau = reflect(row, below, n)
        e.set_real(k, row.real(below))
        row.set(below, row.one())
        taus.set(k, tau)
        _rank_two(a, row, tau, w, (below, n))
    with code.count(0, n, 1) as i:
        d.set_real(i, a.get(i, i).real)
    accumulate_shifted(v, taus, last, z)


def _rank_two(a: Matrix, v: Row, tau: Number, w: Row, rest: Range) -> None:
    """a := Hᴴ · a · H on its lower right block: a - v · wᴴ - w · vᴴ, w = tau · a · v less half of
    its projection on v."""
    code = a.w.code
    with code.count(*rest, 1) as i:
        w.set(i, a.row(i).dot(v, rest, conjugate=False) * tau)
    half = w.dot(v, rest, conjugate=True) * tau * -0.5
    w.add(half, v, rest)
    with code.count(*rest, 1) as i:
        row, vi, wi = a.row(i), -v.get(i), -w.get(i)

        def body(j: Bound, mask: Vec | None) -> None:
            made = row.load(j, mask).plus(vi, w.load(j, mask).conj())
            row.store(j, made.plus(wi, v.load(j, mask).conj()), mask)

        row.each(rest, body)


def accumulate_shifted(v: Matrix, taus: Row, count: Bound, z: Matrix) -> None:
    """The product of reflections, the k-th of which begins at row k + 1."""
    code = z.w.code
    z.fill_eye()
    with code.count(0, count, 1, BLOCK) as step:
        k = code.i64("sub", code.i64("sub", count, 1), step)
        below, tau, row = code.i64("add", k, 1), taus.get(k), v.row(k)
        with code.count(below, z.rows, 1) as j:
            rest, x = (below, z.columns), z.row(j)
            x.add(-(row.dot(x, rest, conjugate=True) * tau), row, rest)


# -- QL iterations --------------------------------------------------------------------------------


def ql(d: Row, e: Row, z: Matrix) -> str:
    """d becomes the eigenvalues of the tridiagonal matrix, and the rows of z are rotated along;
    whether all converged, as an i1."""
    code, n = z.w.code, z.rows
    left = Variable(code, code.i64("mul", n, ITERATIONS))
    with code.count(0, n, 1) as low:
        block = Variable(code, _block_end(d, e, low, n))
        with code.loop_while(lambda: _goes_on(z, block, low, left)):
            code.poll()
            _ql_step(d, e, z, low, block.get())
            block.set(_block_end(d, e, low, n))
            left.add(-1)
    return code.compare("gt", left.get(), 0)


def _goes_on(z: Matrix, block: Variable, low: Bound, left: Variable) -> str:
    code = z.w.code
    is_whole = code.compare("ne", block.get(), low)
    return code.both(is_whole, code.compare("gt", left.get(), 0))


def _block_end(d: Row, e: Row, low: Bound, n: Bound) -> str:
    """The first row from `low` on that no entry of e joins to the next."""
    code = d.w.code
    found, is_open = Variable(code, low), Variable(code, "true", "i1")
    last = code.i64("sub", n, 1)

    def more() -> str:
        is_inside = code.compare("lt", found.get(), last)
        return code.both(is_inside, is_open.get())

    with code.loop_while(more):
        m = found.get()
        after = code.i64("add", m, 1)
        size = (d.real(m).abs() + d.real(after).abs()) * epsilon(d.dtype)
        is_joined = (e.real(m).abs() > size).lane()
        is_open.set(is_joined)
        found.set(code.choose(is_joined, after, m))
    return found.get()


def _ql_step(d: Row, e: Row, z: Matrix, low: Bound, high: Bound) -> None:
    """One implicit QL step on the rows low … high, with Wilkinson's shift."""
    code, after = z.w.code, z.w.code.i64("add", low, 1)
    half = (d.real(after) - d.real(low)) / (e.real(low) * 2.0)
    root = hypot(half, half.like(1.0)).copysign(half)
    g = RealCell(code, d.real(high) - d.real(low) + e.real(low) / (half + root))
    s, c, p = (RealCell(code, half.like(v)) for v in (1.0, 1.0, 0.0))
    with code.count(low, high, 1) as step:
        i = code.i64("sub", code.i64("sub", high, 1), code.i64("sub", step, low))
        up = code.i64("add", i, 1)
        f, b = s.get() * e.real(i), c.get() * e.real(i)
        cos, sin, r = givens(g.get(), f)
        e.set_real(up, r)
        c.set(cos)
        s.set(sin)
        rest = d.real(up) - p.get()
        r = (d.real(i) - rest) * sin + cos * b * 2.0
        p.set(sin * r)
        d.set_real(up, rest + p.get())
        g.set(cos * r - b)
        z.row(up).rotate(z.row(i), cos, sin, z.whole)
    d.set_real(low, d.real(low) - p.get())
    e.set_real(low, g.get())
    e.set_real(high, g.get().like(0.0))


# -- order and signs ------------------------------------------------------------------------------


def sort_rows(values: Row, count: Bound, matrices: tuple[Matrix, ...], *, is_rising: bool) -> None:
    """Sort so many values and, along with them, rows of matrices, by selection."""
    code = values.w.code
    with code.count(0, count, 1, BLOCK) as i:
        best, most = Variable(code, i), RealCell(code, values.real(i))
        with code.count(code.i64("add", i, 1), count, 1) as j:
            value = values.real(j)
            with code.when((value < most.get() if is_rising else value > most.get()).lane()):
                best.set(j)
                most.set(value)
        with code.when(code.compare("ne", best.get(), i)):
            values.set_real(best.get(), values.real(i))
            values.set_real(i, most.get())
            for matrix in matrices:
                matrix.row(i).swap(matrix.row(best.get()), matrix.whole)


def fix_phases(z: Matrix, others: tuple[Matrix, ...] = (), first: Bound = 0) -> None:
    """Make the greatest entry of each row, the first of equals, real and positive; rows of the
    others of the same index are multiplied likewise."""
    code = z.w.code
    with code.count(first, z.rows, 1, BLOCK) as i:
        best, most = Variable(code, 0), RealCell(code, z.row(0).zero().real)
        with code.count(0, z.columns, 1) as j:
            size = z.get(i, j).abs()
            with code.when((size > most.get()).lane()):
                best.set(j)
                most.set(size)
        phase = z.get(i, best.get()).phase().conj()
        for matrix in (z, *others):
            with code.when(code.compare("lt", i, matrix.rows)):
                matrix.row(i).update(matrix.whole, lambda x: x * phase)
