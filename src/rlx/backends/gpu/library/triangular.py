"""Triangular matrices: Cholesky factors, and systems solved by substitution.

A factor is one block's: column after column, a row of it a thread's. A system is one warp's for
each right-hand side: unknown after unknown, the threads divide each sum. Both work in the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.writer import View, Writer
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Schedule
from rlx.program.values import SharedRef, Var, Variable

BOOL = DType.BOOL
Number = list[Var]
"""Real part, and the imaginary one of a complex number."""


def multiplied(a: Number, b: Number) -> Number:
    if len(a) == 1:
        return [a[0] * b[0]]
    return [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]


def divided(a: Number, b: Number) -> Number:
    """Complex numbers by the ratio of the smaller part of the divisor to the greater (Smith)."""
    if len(a) == 1:
        return [a[0] / b[0]]
    is_wide = abs(b[0]) >= abs(b[1])
    big, small = b[0].where(is_wide, b[1]), b[1].where(is_wide, b[0])
    ratio = small / big
    whole = big + small * ratio
    x, y = a[0].where(is_wide, a[1]), a[1].where(is_wide, a[0])
    im = y - x * ratio
    return [(x + y * ratio) / whole, im.where(is_wide, -im) / whole]


def conjugated(a: Number) -> Number:
    return [a[0], *(-v for v in a[1:])]


@dataclass(frozen=True, slots=True)
class Matrices:
    """A stack of matrices, of which the two last axes may be exchanged and numbers conjugated."""

    view: View
    is_transposed: bool = False
    is_conjugated: bool = False

    @property
    def stack(self) -> tuple[DimLike, ...]:
        return self.view.layout.dims[:-2]

    def at(self, w: Writer, stack: Sequence[Var], row: Var, column: Var) -> Var:
        pair = (column, row) if self.is_transposed else (row, column)
        return w.at(self.view.layout, (*stack, *pair))

    def load(
        self, w: Writer, stack: Sequence[Var], row: Var, column: Var, mask: Var | None = None
    ) -> Number:
        values = w.load(self.view, self.at(w, stack, row, column), mask)
        wide = [v.to(v.dtype.compute) for v in values]
        return conjugated(wide) if self.is_conjugated else wide

    def store(
        self,
        w: Writer,
        stack: Sequence[Var],
        row: Var,
        column: Var,
        value: Number,
        mask: Var | None = None,
    ) -> None:
        given = conjugated(value) if self.is_conjugated else value
        parts = [v.to(self.view.dtype.real) for v in given]
        w.store(self.view, self.at(w, stack, row, column), parts, mask)

    def broadcast(self, stack: tuple[DimLike, ...]) -> Matrices:
        """The same for every matrix of a larger stack."""
        layout = self.view.layout
        outer = Layout(self.stack, layout.strides[:-2], layout.offset).expanded(stack)
        dims, strides = (*stack, *layout.dims[-2:]), (*outer.strides, *layout.strides[-2:])
        view = View(self.view.buffer, Layout(dims, strides, layout.offset), self.view.dtype)
        return Matrices(view, self.is_transposed, self.is_conjugated)


def _zeros(w: Writer, dtype: DType) -> list[Variable]:
    return [w.b.variable(0.0, dtype.real.compute) for _ in range(2 if dtype.is_complex else 1)]


# -- systems --------------------------------------------------------------------------------------


def make_triangular_solve(made: Launches) -> Schedule[GpuTask]:
    """t · x = b by substitution; x · t = b is tᵀ · xᵀ = bᵀ."""
    attrs, y = made.node.attrs, made.result()
    is_left, is_turned = attrs["left"], attrs["transpose"] != "none"
    result = Matrices(y, is_transposed=not is_left)
    is_conjugated = attrs["transpose"] == "adjoint" and y.dtype.is_complex
    t = Matrices(made.operand(0), is_turned == is_left, is_conjugated).broadcast(result.stack)
    b = Matrices(made.operand(1), not is_left).broadcast(result.stack)
    is_upper = attrs["upper"] ^ is_turned ^ (not is_left)
    columns = y.layout.dims[-1 if is_left else -2]
    count, warp, block = product(result.stack) * columns, made.machine.warp, made.machine.block
    per_block = block // warp

    def body(w: Writer) -> None:
        number = w.block_index() * per_block + w.wide(w.b.warp)
        with w.b.when(number < w.dim(count)):
            *stack, column = w.split(number, (*result.stack, columns))
            _Substitution(w, t, b, result, stack, column).run(is_upper, attrs["unit_diagonal"])

    made.program(
        "solve",
        body,
        grid=((count + (per_block - 1)) // per_block,),
        block=block,
        reads=(made.operand(0), made.operand(1)),
        updates=(y,),
        note="a warp a right-hand side",
    )
    return made.schedule()


@dataclass(frozen=True, slots=True)
class _Substitution:
    """One system of a program."""

    w: Writer
    t: Matrices
    b: Matrices
    x: Matrices
    stack: list[Var]
    column: Var

    def run(self, is_upper: bool, is_unit: bool) -> None:
        w, b = self.w, self.w.b
        n, lane = w.number(self.t.view.layout.dims[-1]), w.wide(b.lane)
        with b.loop(w.number(0), n) as step:
            i = n - 1 - step if is_upper else step
            total = _zeros(w, self.x.view.dtype)
            with b.loop(lane, step, b.made.warp, carry=total) as k:
                known = n - 1 - k if is_upper else k
                factor = self.t.load(w, self.stack, i, known)
                part = multiplied(factor, self.x.load(w, self.stack, known, self.column))
                for variable, value in zip(total, part):
                    variable.set(variable + value)
            sums = [b.warp_reduce("add", v, b.made.warp) for v in total]
            right = self.b.load(w, self.stack, i, self.column)
            value = [r - s for r, s in zip(right, sums)]
            if not is_unit:
                value = divided(value, self.t.load(w, self.stack, i, i))
            self.x.store(w, self.stack, i, self.column, value, b.lane.eq(0))
            b.barrier("warp")


# -- factors --------------------------------------------------------------------------------------


def make_cholesky(made: Launches) -> Schedule[GpuTask]:
    """l · lᴴ = a, of the lower triangle of a; of the upper one its adjoint."""
    is_upper, y = made.node.attrs["upper"], made.result()
    given = Matrices(made.operand(0), is_upper, is_upper and y.dtype.is_complex)
    result = Matrices(y, is_upper, is_upper and y.dtype.is_complex)

    def body(w: Writer) -> None:
        _Factor(w, given, result, w.split(w.block_index(), result.stack)).run()

    made.program(
        "factor",
        body,
        grid=(product(result.stack),),
        block=made.machine.block,
        reads=(made.operand(0),),
        updates=(y,),
        note="a block a matrix, a thread a row",
    )
    return made.schedule()


@dataclass(frozen=True, slots=True)
class _Factor:
    """One matrix of a program."""

    w: Writer
    a: Matrices
    factor: Matrices
    stack: list[Var]

    def run(self) -> None:
        w, b = self.w, self.w.b
        n, block = w.number(self.a.view.layout.dims[-1]), b.made.block
        pivot = b.shared("pivot", self.dtype, 1)
        strange = b.variable(False, BOOL)
        thread = w.wide(b.thread)
        with b.loop(w.number(0), n, carry=[strange]) as j:
            self._diagonal(j, pivot)
            b.barrier()
            root = pivot[0]
            with b.loop(thread, n, block, carry=[strange]) as i:
                value = self._entry(i, j, root)
                for part in value:
                    strange.set(strange | (part - part).ne(0.0))
                self.factor.store(w, self.stack, i, j, value)
            b.barrier()
        is_strange = b.block_reduce("max", strange)
        with b.when(is_strange):
            self._fill(thread, n)

    @property
    def dtype(self) -> DType:
        return self.a.view.dtype.real.compute

    def _rest(self, i: Var, j: Var) -> Number:
        """a_ij - Σ_(k<j) l_ik l*_jk."""
        w, total = self.w, _zeros(self.w, self.a.view.dtype)
        with w.b.loop(w.number(0), j, carry=total) as k:
            other = conjugated(self.factor.load(w, self.stack, j, k))
            part = multiplied(self.factor.load(w, self.stack, i, k), other)
            for variable, value in zip(total, part):
                variable.set(variable + value)
        return [x - t for x, t in zip(self.a.load(w, self.stack, i, j), total)]

    def _diagonal(self, j: Var, pivot: SharedRef) -> None:
        """The root of the real part, NaN where that is not positive."""
        b = self.w.b
        with b.when(b.thread.eq(0)):
            part = self._rest(j, j)[0]
            pivot[0] = b.call("sqrt", part.where(part > 0.0, float("nan")))

    def _entry(self, i: Var, j: Var, root: Var) -> Number:
        """Of column j: 0 above the diagonal, the root on it, and what is left over it below."""
        b = self.w.b
        found = [b.variable(0.0, self.dtype) for _ in range(self.a.view.parts)]
        with b.when(i > j, carry=found):
            for variable, value in zip(found, self._rest(i, j)):
                variable.set(value / root)
        first = root.where(i.eq(j), found[0])
        return [first, *found[1:]]

    def _fill(self, thread: Var, n: Var) -> None:
        """A matrix that is not positive definite has no factor: all of it is NaN."""
        w, b = self.w, self.w.b
        nothing: Number = [b.const(float("nan"), self.dtype)]
        nothing += [b.const(0.0, self.dtype)] * (self.a.view.parts - 1)
        with b.loop(thread, n * n, b.made.block) as number:
            self.factor.store(w, self.stack, number // n, number % n, nothing)
