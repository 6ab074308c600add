"""Householder reflections, and QR factorisation by them: qr, geqrf, householder_product.

A reflection is H = 1 - tau · v · vᴴ with v[k] = 1 and zeros before it. Matrices are held
transposed, so that columns are contiguous.
"""

from __future__ import annotations

from rlx.backends.cpu.library.linalg.matrix import BLOCK, Matrix, Range, Row
from rlx.backends.cpu.library.linalg.numbers import Cell, Number, hypot
from rlx.backends.cpu.library.linalg.unit import MatrixKernel, Room, Unit
from rlx.backends.cpu.llvm.values import Bound
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import dim_min
from rlx.kernel.program.schedule import Schedule


def reflect(x: Row, k: Bound, end: Bound) -> Number:
    """Make x[k:end] into beta, which is real, and v behind it, with Hᴴ · x = beta · e; gives tau.
    It is 0, and H the identity, where there is nothing to do."""
    code = x.w.code
    rest = (code.i64("add", k, 1), end)
    alpha, norm = x.get(k), x.norm(rest)
    is_done = norm.equals(0.0) & alpha.imag.equals(0.0)
    size = hypot(hypot(alpha.real, alpha.imag), norm)
    beta = size.copysign(-alpha.real)
    tau = Cell(code, alpha.of_real(norm.like(0.0)))
    with code.when((~is_done).lane()):
        apart = alpha.of_real(beta) - alpha
        tau.set(apart.over(beta))
        factor = alpha.of_real(norm.like(1.0)) / -apart
        x.update(rest, lambda v: v * factor)
        x.set(k, alpha.of_real(beta))
    return tau.get()


def apply(v: Row, tau: Number, k: Bound, x: Row, end: Bound) -> None:
    """x[k:end] -= tau · (vᴴ · x) · v, with v[k] = 1 whatever is stored there."""
    code = x.w.code
    rest: Range = (code.i64("add", k, 1), end)
    factor = (v.dot(x, rest, conjugate=True) + x.get(k)) * tau
    x.set(k, x.get(k) - factor)
    x.add(-factor, v, rest)


def triangularise(a: Matrix, taus: Row) -> None:
    """The columns of a, its rows here, become those of r, with the reflections below them."""
    code, scale = a.w.code, a.scale_down()
    with code.count(0, code.least(a.rows, a.columns), 1, BLOCK) as k:
        tau = reflect(a.row(k), k, a.columns)
        taus.set(k, tau)
        with code.count(code.i64("add", k, 1), a.rows, 1) as j:
            apply(a.row(k), tau.conj(), k, a.row(j), a.columns)
    with code.count(0, a.rows, 1) as j:
        end = code.least(code.i64("add", j, 1), a.columns)
        a.row(j).update((0, end), lambda x: x * scale)


def accumulate(reflections: Matrix, taus: Row, count: Bound, q: Matrix) -> None:
    """The rows of q become the first columns of H₀ · H₁ · …, of `count` reflections."""
    code = q.w.code
    q.fill_eye()
    with code.count(0, count, 1, BLOCK) as step:
        k = code.i64("sub", code.i64("sub", count, 1), step)
        tau = taus.get(k)
        with code.count(k, q.rows, 1) as j:  # in those before it, rows from k on are still 0
            apply(reflections.row(k), tau, k, q.row(j), q.columns)


# -- qr -------------------------------------------------------------------------------------------


def make_qr(given: Step, name: str) -> Schedule[Task]:
    """q, and r with a diagonal that is not negative."""
    shape = given.node.inputs[0].shape
    *stack, m, n = shape.dims
    parts, k = 2 if shape.dtype.is_complex else 1, dim_min(m, n)
    width = m if given.node.attrs["complete"] else k
    rooms = {"a": Room(n, m, parts), "q": Room(width, m, parts), "tau": Room(1, k, parts)}
    kernel = MatrixKernel(given, tuple(stack), rooms, _qr)
    return kernel.schedule(name, "Householder reflections")


def _qr(unit: Unit) -> None:
    code = unit.w.code
    is_bad = unit.read(0, "a", transpose=True)
    with code.when(is_bad):
        unit.fill_all(float("nan"))
    with code.when(code.negated(is_bad)):
        a, q, taus = (unit.matrices[n] for n in ("a", "q", "tau"))
        triangularise(a, taus.row(0))
        accumulate(a, taus.row(0), taus.columns, q)
        _clear_below(a)
        _fix_signs(a, q, taus.columns)
        unit.write(0, "q", transpose=True)
        unit.write(1, "a", transpose=True)


def _clear_below(a: Matrix) -> None:
    """Zeros where the reflections are stored."""
    code = a.w.code
    with code.count(0, code.least(a.rows, a.columns), 1) as k:
        a.row(k).fill(a.row(k).zero(), (code.i64("add", k, 1), a.columns))


def _fix_signs(a: Matrix, q: Matrix, count: Bound) -> None:
    """Negate the columns of q and the rows of r whose diagonal entry is negative."""
    code = a.w.code
    with code.count(0, count, 1) as k, code.when((a.get(k, k).real < 0.0).lane()):
        q.row(k).update(q.whole, lambda x: -x)
        with code.count(k, a.rows, 1) as j:
            a.set(j, k, -a.get(j, k))


# -- the factors themselves -----------------------------------------------------------------------


def make_geqrf(given: Step, name: str) -> Schedule[Task]:
    """r, with the reflections below it, and their factors tau."""
    shape = given.node.inputs[0].shape
    *stack, m, n = shape.dims
    parts = 2 if shape.dtype.is_complex else 1
    rooms = {"a": Room(n, m, parts), "tau": Room(1, dim_min(m, n), parts)}
    kernel = MatrixKernel(given, tuple(stack), rooms, _geqrf)
    return kernel.schedule(name, "Householder reflections")


def _geqrf(unit: Unit) -> None:
    code = unit.w.code
    is_bad = unit.read(0, "a", transpose=True)
    with code.when(is_bad):
        unit.fill_all(float("nan"))
    with code.when(code.negated(is_bad)):
        triangularise(unit.matrices["a"], unit.matrices["tau"].row(0))
        unit.write(0, "a", transpose=True)
        unit.write(1, "tau")


def make_householder_product(given: Step, name: str) -> Schedule[Task]:
    """The first columns of the product of reflections."""
    shape, taus = (i.shape for i in given.node.inputs)
    *stack, m, n = shape.dims
    parts = 2 if shape.dtype.is_complex else 1
    rooms = {"a": Room(n, m, parts), "q": Room(n, m, parts), "tau": Room(1, taus.dims[-1], parts)}
    kernel = MatrixKernel(given, tuple(stack), rooms, _householder_product)
    return kernel.schedule(name, "Householder reflections")


def _householder_product(unit: Unit) -> None:
    code = unit.w.code
    is_bad = code.either(unit.read(0, "a", transpose=True), unit.read(1, "tau", rank=1))
    with code.when(is_bad):
        unit.fill_all(float("nan"))
    with code.when(code.negated(is_bad)):
        a, q, taus = (unit.matrices[n] for n in ("a", "q", "tau"))
        accumulate(a, taus.row(0), taus.columns, q)
        unit.write(0, "q", transpose=True)
