"""Eigendecomposition of any matrix, in complex arithmetic: Hessenberg form by Householder
reflections, Schur form by implicit QR iterations with Wilkinson's shifts, then the eigenvectors of
the triangle by back substitution.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.library.counters import Variable
from rlx.backends.cpu.library.linalg.eigh import accumulate_shifted, epsilon, fix_phases
from rlx.backends.cpu.library.linalg.householder import apply, reflect
from rlx.backends.cpu.library.linalg.matrix import BLOCK, Matrix, Range, Row
from rlx.backends.cpu.library.linalg.numbers import Cell, Number, hypot
from rlx.backends.cpu.library.linalg.unit import MatrixKernel, Room, Unit
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dtype import DType
from rlx.kernel.program.schedule import Schedule

ITERATIONS = 90
"""QR iterations for one eigenvalue; two or three is usual."""
EXCEPTIONAL = 10
"""After so many iterations without an eigenvalue, the shift is another: some matrices are fixed
points of the usual one."""


def make_eig(given: Step, name: str) -> Schedule[Task]:
    """Eigenvalues in order, and eigenvectors."""
    shape = given.node.inputs[0].shape
    *stack, n, _ = shape.dims
    rooms = {
        "a": Room(n, n, 2), "h": Room(n, n, 2), "v": Room(n, n, 2), "z": Room(n, n, 2),
        "tau": Room(1, n, 2), "w": Room(1, n, 2), "d": Room(1, n, 2),
    }  # fmt: skip
    kernel = MatrixKernel(given, tuple(stack), rooms, _eig)
    return kernel.schedule(name, "Hessenberg, then implicit QR to Schur form")


def _eig(unit: Unit) -> None:
    code, a = unit.w.code, unit.matrices["a"]
    is_bad = unit.read(0, "a", transpose=True)
    is_good = Variable(code, code.negated(is_bad), "i1")
    with code.when(is_good.get()):
        h, z, v, d = (unit.matrices[n] for n in "hzvd")
        scale = a.scale_down()
        _hessenberg(unit)
        is_good.set(_Schur(code, h, z).iterate())
        _vectors(h, z, v, unit.matrices["w"].row(0), d.row(0))
        d.row(0).update(d.whole, lambda x: x * scale)
        _sort(d.row(0), v, has_pairs=not unit.given.node.inputs[0].shape.dtype.is_complex)
        fix_phases(v)
        unit.write(0, "d")
        unit.write(1, "v", transpose=True)
    with code.when(code.negated(is_good.get())):
        unit.fill_all(float("nan"))


def _hessenberg(unit: Unit) -> None:
    """h becomes qᴴ · a · q, 0 below its first subdiagonal, and the rows of z the columns of q. The
    rows of a are columns."""
    a, h, v, z = (unit.matrices[n] for n in "ahvz")
    taus, w = (unit.matrices[n].row(0) for n in ("tau", "w"))
    code, n = a.w.code, a.rows
    last = code.i64("sub", n, 1)
    with code.count(0, last, 1, BLOCK) as k:
        below, row = code.i64("add", k, 1), v.row(k)
        row.copy(a.row(k), (below, n))
        tau = reflect(row, below, n)
        taus.set(k, tau)
        a.row(k).fill(row.zero(), (below, n))
        a.row(k).set(below, row.get(below))
        row.set(below, row.one())
        with code.count(below, n, 1) as j:
            apply(row, tau.conj(), below, a.row(j), n)
        _reflect_columns(a, row, tau, (below, n), w)
    with code.count(0, n, 1) as i, code.count(0, n, 1) as j:
        h.set(i, j, a.get(j, i))
    accumulate_shifted(v, taus, last, z)


def _reflect_columns(a: Matrix, v: Row, tau: Number, columns: Range, w: Row) -> None:
    """a := a · H: a - tau · (a · v) · vᴴ, in all rows of a."""
    code = a.w.code
    w.fill(w.zero(), a.whole)
    with code.count(*columns, 1) as j:
        w.add(v.get(j), a.row(j), a.whole)
    with code.count(*columns, 1) as j:
        a.row(j).add(-(v.get(j).conj() * tau), w, a.whole)


# -- Schur form -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Schur:
    """QR iterations on a Hessenberg matrix; the rows of z are rotated along."""

    code: Code
    h: Matrix
    z: Matrix

    def iterate(self) -> str:
        """h becomes upper triangular; whether it converged, as an i1."""
        code, n = self.code, self.h.rows
        end, since = Variable(code, n), Variable(code, 0)
        left = Variable(code, code.i64("mul", n, ITERATIONS))

        def more() -> str:
            has_rows = code.compare("gt", end.get(), 0)
            return code.both(has_rows, code.compare("gt", left.get(), 0))

        with code.loop_while(more):
            code.poll()
            left.add(-1)
            since.add(1)
            last = code.i64("sub", end.get(), 1)
            start = self.block_start(last)
            is_single = code.compare("eq", start, last)
            with code.when(is_single):
                end.set(last)
                since.set(0)
            with code.when(code.negated(is_single)):
                self.step(start, last, since.get())
        return code.compare("eq", end.get(), 0)

    def block_start(self, last: Bound) -> str:
        """The first row of the block that ends with `last`; what is left of it becomes 0."""
        code, h = self.code, self.h
        found, is_open = Variable(code, last), Variable(code, "true", "i1")

        def more() -> str:
            is_inside = code.compare("gt", found.get(), 0)
            return code.both(is_inside, is_open.get())

        with code.loop_while(more):
            k = found.get()
            before = code.i64("sub", k, 1)
            size = h.get(before, before).size1() + h.get(k, k).size1()
            tiny = 2.0**-110 if h.dtype is DType.F32 else 2.0**-960
            limit = size * epsilon(h.dtype) + tiny
            is_open.set((h.get(k, before).size1() > limit).lane())
            with code.when(is_open.get()):
                found.set(before)
            with code.when(code.negated(is_open.get())):
                h.set(k, before, h.row(0).zero())
        return found.get()

    def step(self, start: Bound, last: Bound, since: Bound) -> None:
        """One implicit QR step on the rows start … last."""
        code, h = self.code, self.h
        shift = self.shift(last, since)
        with code.count(start, last, 1) as k:
            after = code.i64("add", k, 1)
            is_first = code.compare("eq", k, start)
            before = code.choose(is_first, start, code.i64("sub", k, 1))
            x, y = Cell(code, h.get(k, before)), Cell(code, h.get(after, before))
            with code.when(is_first):
                x.set(h.get(k, k) - shift)
            c, s = _rotation(x.get(), y.get())
            _rotate(h.row(k), h.row(after), c, s, (before, h.columns))
            end = code.least(code.i64("add", k, 3), code.i64("add", last, 1))
            self.rotate_columns(k, after, c, s, end)
            _rotate(self.z.row(k), self.z.row(after), c, s.conj(), self.z.whole)
            with code.when(code.negated(is_first)):
                h.set(after, before, h.row(0).zero())

    def rotate_columns(self, k: Bound, after: Bound, c: Vec, s: Number, end: Bound) -> None:
        with self.code.count(0, end, 1) as i:
            row = self.h.row(i)
            mine, its = row.get(k), row.get(after)
            row.set(k, (mine * c).plus(s.conj(), its))
            row.set(after, (its * c).plus(-s, mine))

    def shift(self, last: Bound, since: Bound) -> Number:
        """The eigenvalue of the last 2 × 2 block that is next to its last entry; now and then
        another number."""
        code, h = self.code, self.h
        before = code.i64("sub", last, 1)
        corner, side = h.get(last, last), h.get(last, before)
        half = (h.get(before, before) - corner) * 0.5
        product = h.get(before, last) * side
        root = (product.plus(half, half)).sqrt()
        is_same = (half.real * root.real + half.imag * root.imag) >= 0.0
        over = half + root.where(is_same, -root)
        usual = corner - (product / over).where(~over.is_zero(), h.row(0).zero())
        shift = Cell(code, usual)
        turn = code.integer("rem", since, EXCEPTIONAL, DType.U64)
        with code.when(code.compare("eq", turn, 0)):
            shift.set(corner + corner.of_real(side.size1() * 0.75))
        return shift.get()


def _rotation(x: Number, y: Number) -> tuple[Vec, Number]:
    """(c, s), c real, with c · y = conj(s) · x: it takes (x, y) to (r, 0)."""
    size, other = x.abs(), y.abs()
    r = hypot(size, other)
    is_any = r > 0.0
    c = (size / r).where(is_any, 1.0)
    return c, (x.phase() * y.conj()).over(r).where(is_any, x.of_real(r.like(0.0)))


def _rotate(row: Row, other: Row, c: Vec, s: Number, columns: Range) -> None:
    """The row becomes c · row + s · other, the other c · other - conj(s) · row."""

    def body(j: Bound, mask: Vec | None) -> None:
        mine, its = row.load(j, mask), other.load(j, mask)
        row.store(j, (mine * c).plus(s, its), mask)
        other.store(j, (its * c).plus(-s.conj(), mine), mask)

    row.each(columns, body)


# -- eigenvectors ---------------------------------------------------------------------------------


def _vectors(t: Matrix, z: Matrix, v: Matrix, x: Row, d: Row) -> None:
    """The rows of v become eigenvectors of z · t · zᴴ, and d the diagonal of t."""
    code, n = t.w.code, t.rows
    least = t.greatest_part() * epsilon(t.dtype) + (2.0**-60 if t.dtype is DType.F32 else 2.0**-500)
    with code.count(0, n, 1, 1) as i:
        value = t.get(i, i)
        d.set(i, value)
        after = code.i64("add", i, 1)
        x.set(i, x.one())
        with code.count(0, i, 1) as step:
            j = code.i64("sub", code.i64("sub", i, 1), step)
            total = t.row(j).dot(x, (code.i64("add", j, 1), after), conjugate=False)
            apart = t.get(j, j) - value
            over = apart.where(apart.size1() > least, apart.of_real(least))
            x.set(j, -total / over)
            _keep_small(x, j, after)
        row = v.row(i)
        row.fill(row.zero(), v.whole)
        with code.count(0, after, 1) as j:
            row.add(x.get(j), z.row(j), v.whole)
        norm = row.norm(v.whole)
        row.update(v.whole, lambda y: y.over(norm))


def _keep_small(x: Row, j: Bound, end: Bound) -> None:
    """Divide what is known of a vector by its newest entry where that is great."""
    size = x.get(j).greatest_part()
    with x.w.code.when((size > (2.0**40 if x.dtype is DType.F32 else 2.0**300)).lane()):
        x.update((j, end), lambda y: y.over(size))


def _sort(values: Row, vectors: Matrix, *, has_pairs: bool) -> None:
    """By real parts, then imaginary parts, by selection. The real parts of conjugate pairs differ
    by roundings, so where there are pairs, those that near count as equal."""
    code, n = values.w.code, vectors.rows
    count = code.splat(n, DType.I64).to(values.dtype)
    near = values.greatest_part((0, n)) * count * (8.0 * epsilon(values.dtype) * has_pairs)
    with code.count(0, n, 1, BLOCK) as i:
        best, least = Variable(code, i), Cell(code, values.get(i))
        with code.count(code.i64("add", i, 1), n, 1) as j:
            value, now = values.get(j), least.get()
            apart = value.real - now.real
            is_tied = (apart.abs() <= near) & (value.imag < now.imag)
            with code.when(((apart < -near) | is_tied).lane()):
                best.set(j)
                least.set(value)
        with code.when(code.compare("ne", best.get(), i)):
            values.set(best.get(), values.get(i))
            values.set(i, least.get())
            vectors.row(i).swap(vectors.row(best.get()), vectors.whole)
