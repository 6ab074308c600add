"""Singular value decomposition: reduction to a real bidiagonal matrix by Householder reflections,
then implicit QR iterations (Golub and Kahan).

A matrix with more columns than rows is decomposed as its adjoint, so that there are at least as
many rows. It is held transposed, and so are both sets of vectors: columns, which are reflected and
rotated, are contiguous.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.library.counters import Variable
from rlx.backends.cpu.library.linalg.eigh import (
    accumulate_shifted,
    epsilon,
    fix_phases,
    sort_rows,
)
from rlx.backends.cpu.library.linalg.householder import accumulate, apply, reflect
from rlx.backends.cpu.library.linalg.matrix import BLOCK, Matrix, Range, Row
from rlx.backends.cpu.library.linalg.numbers import RealCell, givens
from rlx.backends.cpu.library.linalg.unit import MatrixKernel, Room, Unit
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import dim_max, dim_min
from rlx.core.dtype import DType
from rlx.kernel.program.schedule import Schedule

ITERATIONS = 60
"""QR iterations for one singular value; two or three is usual."""


def make_svd(given: Step, name: str) -> Schedule[Task]:
    """u, s and vh."""
    shape = given.node.inputs[0].shape
    *stack, m, n = shape.dims
    parts, short, long = 2 if shape.dtype.is_complex else 1, dim_min(m, n), dim_max(m, n)
    width = long if given.node.attrs["full_matrices"] else short
    rooms = {
        "a": Room(short, long, parts), "g": Room(short, short, parts),
        "left": Room(width, long, parts), "right": Room(short, short, parts),
        "tau": Room(2, short, parts), "w": Room(1, long, parts),
        "s": Room(1, short, 1), "e": Room(1, short, 1),
    }  # fmt: skip
    kernel = MatrixKernel(given, tuple(stack), rooms, _svd)
    return kernel.schedule(name, "bidiagonal, then implicit QR")


def _svd(unit: Unit) -> None:
    code, a = unit.w.code, unit.matrices["a"]
    is_good = Variable(code, "false", "i1")
    for is_tall in (True, False):
        with _where_shape_is(unit, is_tall):
            is_bad = unit.read(0, "a", transpose=is_tall)
            is_good.set(code.negated(is_bad))
            if not is_tall and len(a.pointers) == 2:
                with code.count(0, a.rows, 1) as i:
                    a.row(i).update(a.whole, lambda x: x.conj())
    with code.when(is_good.get()):
        is_good.set(_decompose(unit))
        for is_tall in (True, False):
            with _where_shape_is(unit, is_tall):
                _write(unit, is_tall)
    with code.when(code.negated(is_good.get())):
        unit.fill_all(float("nan"))


@contextmanager
def _where_shape_is(unit: Unit, is_tall: bool) -> Generator[None]:
    """What runs where the matrix has at least as many rows as columns, or where it has fewer."""
    m, n = (unit.w.size(d) for d in unit.given.node.inputs[0].shape.dims[-2:])
    with unit.w.code.when(unit.w.code.let(f"icmp {'sge' if is_tall else 'slt'} i64 {m}, {n}")):
        yield


def _write(unit: Unit, is_tall: bool) -> None:
    left, right = unit.matrices["left"], unit.matrices["right"]
    u, v = ("left", "right") if is_tall else ("right", "left")
    fix_phases(unit.matrices[u], (unit.matrices[v],))
    if not is_tall:
        fix_phases(left, (), right.rows)
    unit.write(0, u, transpose=True)
    unit.write(1, "s")
    unit.write(2, v, conjugate=True)


def _decompose(unit: Unit) -> str:
    """s, and the vectors as rows of `left` and `right`; whether it converged, as an i1."""
    a, g, left, right = (unit.matrices[n] for n in ("a", "g", "left", "right"))
    s, e = (unit.matrices[n].row(0) for n in "se")
    scale = a.scale_down()
    bidiagonalise(unit)
    taus, code = unit.matrices["tau"], unit.w.code
    accumulate(a, taus.row(0), a.rows, left)
    accumulate_shifted(g, taus.row(1), code.i64("sub", a.rows, 1), right)
    is_good = _Bidiagonal(code, s, e, left, right).iterate()
    s.update((0, a.rows), lambda x: x * scale)
    sort_rows(s, a.rows, (left, right), is_rising=False)
    return is_good


def bidiagonalise(unit: Unit) -> None:
    """s and e become the diagonals of qᴴ · a · p; the reflections of q are left in a, those of p in
    g."""
    a, g, taus = (unit.matrices[n] for n in ("a", "g", "tau"))
    w, s, e = (unit.matrices[n].row(0) for n in "wse")
    code = a.w.code
    e.fill(e.zero(), (0, a.rows))
    with code.count(0, a.rows, 1, BLOCK) as k:
        after = code.i64("add", k, 1)
        tau = reflect(a.row(k), k, a.columns)
        taus.set(0, k, tau)
        s.set_real(k, a.get(k, k).real)
        with code.count(after, a.rows, 1) as j:
            apply(a.row(k), tau.conj(), k, a.row(j), a.columns)
        with code.when(code.compare("lt", after, a.rows)):
            row = g.row(k)
            with code.count(after, a.rows, 1) as j:
                row.set(j, a.get(j, k).conj())
            taus.set(1, k, reflect(row, after, a.rows))
            e.set_real(k, row.real(after))
            row.set(after, row.one())
            _reflect_rows(a, row, taus.row(1), k, w)


def _reflect_rows(a: Matrix, v: Row, taus: Row, k: Bound, w: Row) -> None:
    """a := a · H on the rows and columns behind k: a - tau · (a · v) · vᴴ."""
    code = a.w.code
    after = code.i64("add", k, 1)
    rest: Range = (after, a.columns)
    w.fill(w.zero(), rest)
    with code.count(after, a.rows, 1) as j:
        w.add(v.get(j), a.row(j), rest)
    with code.count(after, a.rows, 1) as j:
        a.row(j).add(-(v.get(j).conj() * taus.get(k)), w, rest)


@dataclass(frozen=True, slots=True)
class _Bidiagonal:
    """The iteration on a bidiagonal matrix, s its diagonal and e the one above."""

    code: Code
    s: Row
    e: Row
    left: Matrix
    right: Matrix

    @property
    def tiny(self) -> float:
        """What counts as 0 in a matrix whose greatest entry is about 1."""
        return 2.0**-100 if self.s.dtype is DType.F32 else 2.0**-900

    def iterate(self) -> str:
        """s becomes the singular values; whether all converged, as an i1."""
        code, n = self.code, self.right.rows
        end, left = Variable(code, n), Variable(code, code.i64("mul", n, ITERATIONS))

        def more() -> str:
            has_rows = code.compare("gt", end.get(), 0)
            return code.both(has_rows, code.compare("gt", left.get(), 0))

        with code.loop_while(more):
            code.poll()
            left.add(-1)
            p = end.get()
            last = code.i64("sub", p, 1)
            start = self.block_start(p)
            is_single = code.compare("eq", start, last)
            with code.when(is_single):
                self.make_positive(last)
                end.set(last)
            with code.when(code.negated(is_single)):
                self.step(start, p)
        return code.compare("eq", end.get(), 0)

    def block_start(self, p: Bound) -> str:
        """The first row of the block that ends before p; the entry of e before it becomes 0."""
        code = self.code
        found, is_open = Variable(code, code.i64("sub", p, 1)), Variable(code, "true", "i1")

        def more() -> str:
            is_inside = code.compare("gt", found.get(), 0)
            return code.both(is_inside, is_open.get())

        with code.loop_while(more):
            k = found.get()
            before = code.i64("sub", k, 1)
            size = self.s.real(before).abs() + self.s.real(k).abs()
            is_open.set((self.e.real(before).abs() > self.limit(size)).lane())
            with code.when(is_open.get()):
                found.set(before)
            with code.when(code.negated(is_open.get())):
                self.e.set_real(before, size.like(0.0))
        return found.get()

    def limit(self, size: Vec) -> Vec:
        """What is negligible beside a size."""
        return size * epsilon(self.s.dtype) + self.tiny

    def make_positive(self, k: Bound) -> None:
        with self.code.when((self.s.real(k) < 0.0).lane()):
            self.s.set_real(k, -self.s.real(k))
            self.right.row(k).update(self.right.whole, lambda x: -x)

    def step(self, start: Bound, p: Bound) -> None:
        """Split the block at a diagonal entry that is negligible, or else iterate."""
        code = self.code
        last, zero = code.i64("sub", p, 1), self.negligible(start, p)
        is_whole = code.compare("lt", zero, start)
        is_last = code.compare("eq", zero, last)
        with code.when(is_whole):
            self.qr_step(start, p)
        with code.when(is_last):
            self.clear_column(start, p)
        neither = code.either(is_whole, is_last)
        with code.when(code.negated(neither)):
            self.clear_row(zero, p)

    def negligible(self, start: Bound, p: Bound) -> str:
        """The last row of the block whose entry of s is negligible, or start - 1."""
        code = self.code
        found, is_open = Variable(code, code.i64("sub", p, 1)), Variable(code, "true", "i1")

        def more() -> str:
            is_inside = code.compare("ge", found.get(), start)
            return code.both(is_inside, is_open.get())

        with code.loop_while(more):
            k = found.get()
            size = RealCell(code, self.e.real(k).abs())
            with code.when(code.compare("gt", k, start)):
                size.set(size.get() + self.e.real(code.i64("sub", k, 1)).abs())
            is_open.set((self.s.real(k).abs() > self.limit(size.get())).lane())
            with code.when(is_open.get()):
                found.set(code.i64("sub", k, 1))
        with code.when(code.compare("ge", found.get(), start)):
            self.s.set_real(found.get(), self.s.zero().real)
        return found.get()

    def clear_column(self, start: Bound, p: Bound) -> None:
        """The last entry of s is 0: rotate the entry of e above it out, from the right."""
        code, s, e = self.code, self.s, self.e
        last, before = code.i64("sub", p, 1), code.i64("sub", p, 2)
        f = RealCell(code, e.real(before))
        e.set_real(before, e.zero().real)
        with code.count(start, last, 1) as step:
            j = code.i64("sub", before, code.i64("sub", step, start))
            cos, sin, r = givens(s.real(j), f.get())
            s.set_real(j, r)
            with code.when(code.compare("ne", j, start)):
                up = code.i64("sub", j, 1)
                f.set(-(sin * e.real(up)))
                e.set_real(up, cos * e.real(up))
            self.right.row(j).rotate(self.right.row(last), cos, sin, self.right.whole)

    def clear_row(self, zero: Bound, p: Bound) -> None:
        """That entry of s is 0: rotate the entry of e beside it out, from the left."""
        code, s, e = self.code, self.s, self.e
        f = RealCell(code, e.real(zero))
        e.set_real(zero, e.zero().real)
        with code.count(code.i64("add", zero, 1), p, 1) as j:
            cos, sin, r = givens(s.real(j), f.get())
            s.set_real(j, r)
            f.set(-(sin * e.real(j)))
            e.set_real(j, cos * e.real(j))
            self.left.row(j).rotate(self.left.row(zero), cos, sin, self.left.whole)

    def qr_step(self, start: Bound, p: Bound) -> None:
        """One implicit QR step on the rows start … p - 1."""
        code, s, e = self.code, self.s, self.e
        first, second = self.shifted(start, p)
        f, g = RealCell(code, first), RealCell(code, second)
        with code.count(start, code.i64("sub", p, 1), 1) as j:
            after = code.i64("add", j, 1)
            cos, sin, r = givens(f.get(), g.get())
            with code.when(code.compare("ne", j, start)):
                e.set_real(code.i64("sub", j, 1), r)
            mine, its, above = s.real(j), s.real(after), e.real(j)
            f.set(cos * mine + sin * above)
            above = cos * above - sin * mine
            self.right.row(j).rotate(self.right.row(after), cos, sin, self.right.whole)
            cos_left, sin_left, r = givens(f.get(), sin * its)
            s.set_real(j, r)
            its = cos * its
            f.set(cos_left * above + sin_left * its)
            s.set_real(after, cos_left * its - sin_left * above)
            e.set_real(j, above)
            g.set(sin_left * e.real(after))
            e.set_real(after, cos_left * e.real(after))
            self.left.row(j).rotate(self.left.row(after), cos_left, sin_left, self.left.whole)
        e.set_real(code.i64("sub", p, 2), f.get())

    def shifted(self, start: Bound, p: Bound) -> tuple[Vec, Vec]:
        """The first column of bᵀ · b less the shift, the eigenvalue of its last 2 × 2 block that is
        next to the last entry."""
        code, s, e = self.code, self.s, self.e
        values = [
            s.real(code.i64("sub", p, 1)), s.real(code.i64("sub", p, 2)),
            e.real(code.i64("sub", p, 2)), s.real(start), e.real(start),
        ]  # fmt: skip
        scale = values[0].abs()
        for value in values[1:]:
            scale = arith.maximum(scale, value.abs())
        last, before, above, mine, beside = (v / scale for v in values)
        b = ((before + last) * (before - last) + above * above) * 0.5
        c = (last * above) * (last * above)
        root = (b * b + c).sqrt().copysign(b)
        shift = (c / (b + root)).where(c > 0.0, 0.0)
        return (mine + last) * (mine - last) + shift, mine * beside
