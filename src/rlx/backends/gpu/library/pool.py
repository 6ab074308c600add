"""Pooling over sliding windows: max, average, Lp, and where the greatest elements are.

Windows of few taps are loop kernels, one expression a tap, so that neighbours along a contiguous
axis are read as vectors. Larger ones, and those that say where, are loops over the taps in a
thread for each window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.writer import View, Writer
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import DimLike, product, provably_le
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.expr import Affine, Axis, Expr, Exprs, Kernel, Store, strided
from rlx.kernel.program.schedule import Schedule
from rlx.ops.nn.window_geometry import Windows
from rlx.program.values import Var, Variable

I64 = DType.I64
MAX_UNROLLED = 64
"""Taps of an expression."""


def make_pool(made: Launches) -> Schedule[GpuTask]:
    """max_pool, avg_pool, lp_pool."""
    pool = _Pool.of(made)
    taps = int(product(pool.windows.kernel))
    (pool.unrolled if taps <= MAX_UNROLLED else pool.looped)()
    return made.schedule()


def make_max_pool_with_indices(made: Launches) -> Schedule[GpuTask]:
    """The greatest element of each window, and where it is: the first of equals, or of NaNs."""
    pool = _Pool.of(made)
    where = made.result(1)
    pool.windowed(lambda w, position: pool.located(w, position, where), (pool.y, where))
    return made.schedule()


def lowest(dtype: DType) -> float:
    """What never wins."""
    return float(np.iinfo(dtype.numpy).min) if dtype.is_integer else float("-inf")


@dataclass(frozen=True, slots=True)
class _Pool:
    made: Launches
    windows: Windows
    x: View
    y: View

    @classmethod
    def of(cls, made: Launches) -> _Pool:
        names = ("kernel", "stride", "padding", "dilation", "ceil")
        windows = Windows(*(made.node.attrs[n] for n in names))
        return cls(made, windows, made.operand(0), made.result())

    @property
    def image(self) -> tuple[DimLike, ...]:
        return self.x.layout.dims[2:]

    @property
    def kind(self) -> str:
        return self.made.node.op

    @property
    def counts_padding(self) -> bool:
        return bool(self.made.node.attrs.get("count_include_pad"))

    def margins(self, axis: int) -> tuple[DimLike, DimLike]:
        """The part of the padded axis that counts for a mean: from, to."""
        if not self.counts_padding:
            return 0, self.image[axis]
        return -self.windows.before[axis], self.image[axis] + self.windows.after[axis]

    # -- expressions -----------------------------------------------------------------------------

    def unrolled(self) -> None:
        """A loop kernel whose expression has all taps."""
        axes = [Axis(f"d{i}", d) for i, d in enumerate(self.y.layout.dims)]
        e, special = Exprs(), self.made.special
        taps = [self._tap(e, axes, offsets) for offsets in self.windows.tap_offsets(None)]
        value = e.cast(self._folded(e, axes, taps), self.y.dtype)
        store = Store(0, strided(self.y.layout, axes), value)
        kernel = Kernel(self.kind, tuple(axes), (store,), special.operands, special.results)
        self.made.loop("", kernel, [self.x], [self.y])

    def _at(self, axes: Sequence[Axis], axis: int, offset: int) -> Affine:
        """Where a tap is along an axis of the image."""
        return Affine.of(axes[axis + 2]) * self.windows.stride[axis] + (
            offset - self.windows.before[axis]
        )

    def _tap(self, e: Exprs, axes: Sequence[Axis], offsets: Sequence[int]) -> Expr:
        """An element, or what counts nothing where it is outside of the image."""
        layout, guard = self.x.layout, None
        at = strided(Layout(layout.dims[:2], layout.strides[:2], layout.offset), axes[:2])
        for axis, offset in enumerate(offsets):
            position = self._at(axes, axis, offset)
            at = at + position * layout.strides[axis + 2]
            if not self._is_inside(axis, offset, 0, self.image[axis]):
                inside = e.inside(position, 0, self.image[axis])
                guard = inside if guard is None else e.op("logical_and", guard, inside)
        value = self._powered(e, e.widened(e.load(0, at, self.x.dtype)))
        if guard is None:
            return value
        nothing = lowest(self.x.dtype) if self.kind == "max_pool" else 0.0
        return e.choose(guard, value, e.number(nothing, value.dtype))

    def _is_inside(self, axis: int, offset: int, low: DimLike, high: DimLike) -> bool:
        """Is this tap of every window between the two?"""
        windows = self.windows
        first = offset - windows.before[axis]
        count = windows.counts(self.image)[axis]
        last = (count - 1) * windows.stride[axis] + first
        return provably_le(low, first) and provably_le(last + 1, high)

    def _powered(self, e: Exprs, value: Expr) -> Expr:
        if self.kind != "lp_pool":
            return value
        return _power(e, e.op("abs", value), self.made.node.attrs["p"])

    def _folded(self, e: Exprs, axes: Sequence[Axis], taps: Sequence[Expr]) -> Expr:
        total = taps[0]
        for tap in taps[1:]:
            total = e.op("maximum" if self.kind == "max_pool" else "add", total, tap)
        if self.kind == "lp_pool":
            return _power(e, total, 1 / self.made.node.attrs["p"])
        return total if self.kind == "max_pool" else e.op("div", total, self._count(e, axes, total))

    def _count(self, e: Exprs, axes: Sequence[Axis], total: Expr) -> Expr:
        """How many taps of a window count, and at least 1."""
        found = e.number(1.0, total.dtype)
        for axis, (taps, step) in enumerate(zip(self.windows.kernel, self.windows.dilation)):
            own = e.number(0.0, total.dtype)
            low, high = self.margins(axis)
            for tap in range(int(taps)):
                if self._is_inside(axis, tap * step, low, high):
                    own = e.op("add", own, 1.0)
                    continue
                inside = e.inside(self._at(axes, axis, tap * step), low, high)
                own = e.op("add", own, e.cast(inside, total.dtype))
            found = e.op("mul", found, own)
        return e.op("maximum", found, 1.0)

    # -- loops -----------------------------------------------------------------------------------

    def windowed(self, body: Callable[[Writer, list[Var]], None], writes: tuple[View, ...]) -> None:
        """A thread for each window; neighbouring threads do neighbours in memory."""
        made, block, dims = self.made, self.made.machine.block, self.y.layout.dims
        total = product(dims)

        def whole(w: Writer) -> None:
            with w.b.when(w.thread < w.dim(total)):
                body(w, w.split(w.thread, dims))

        made.program(
            "window",
            whole,
            grid=((total + (block - 1)) // block,),
            block=block,
            reads=(self.x,),
            writes=writes,
            note="a thread a window",
        )

    def looped(self) -> None:
        """The fold of each window, tap by tap."""

        def body(w: Writer, position: list[Var]) -> None:
            total = (self._greatest if self.kind == "max_pool" else self._sum)(w, position)
            w.store(self.y, w.at(self.y.layout, position), [total.to(self.y.dtype)])

        self.windowed(body, (self.y,))

    def _least(self, w: Writer) -> Variable:
        dtype, least = self.x.dtype.compute, lowest(self.x.dtype)
        return w.b.variable(int(least) if dtype.is_integer else least, dtype)

    def _greatest(self, w: Writer, position: list[Var]) -> Var:
        total = self._least(w)

        def tap(places: list[Var], inside: Var, _: Var) -> None:
            value = w.element(self.x, (*position[:2], *places), inside)
            total.set(total.max(value).where(inside, total))

        self._taps(w, position, [total], tap)
        return total

    def _sum(self, w: Writer, position: list[Var]) -> Var:
        """Of the elements over how many count, or of their powers."""
        total, count = (w.b.variable(0.0, self.x.dtype.compute) for _ in range(2))

        def tap(places: list[Var], inside: Var, counts: Var) -> None:
            value = w.element(self.x, (*position[:2], *places), inside)
            value = _raised(w, abs(value), self._p) if self.kind == "lp_pool" else value
            total.set((total + value).where(inside, total))
            count.set((count + 1.0).where(counts, count))

        self._taps(w, position, [total, count], tap)
        is_mean = self.kind == "avg_pool"
        return total / count.max(1.0) if is_mean else _raised(w, total, 1 / self._p)

    @property
    def _p(self) -> float:
        return self.made.node.attrs["p"]

    def _taps(
        self,
        w: Writer,
        position: list[Var],
        carry: Sequence[Variable],
        tap: Callable[[list[Var], Var, Var], None],
    ) -> None:
        """Loops over the taps of a window, in row-major order."""
        true = w.b.const(True, DType.BOOL)

        def axis_loop(axis: int, places: list[Var], inside: Var, counts: Var) -> None:
            if axis == len(self.image):
                tap(places, inside, counts)
                return
            low, high = self.margins(axis)
            start = position[axis + 2] * self.windows.stride[axis] - self.windows.before[axis]
            with w.b.loop(w.number(0), int(self.windows.kernel[axis]), carry=carry) as i:
                at = start + i * self.windows.dilation[axis]
                here = (at >= 0) & (at < w.dim(self.image[axis]))
                counted = (at >= w.number(low)) & (at < w.number(high))
                axis_loop(axis + 1, [*places, at], inside & here, counts & counted)

        axis_loop(0, [], true, true)

    def located(self, w: Writer, position: list[Var], where: View) -> None:
        """The greatest of a window, NaN before all, and its number in flattened x."""
        b, dtype = w.b, self.x.dtype.compute
        best, found, strides = self._least(w), b.variable(-1, I64), self._flat_strides()

        def tap(places: list[Var], inside: Var, _: Var) -> None:
            at = (*position[:2], *places)
            value = w.element(self.x, at, inside)
            number = b.const(0, I64)
            for place, stride in zip(at, strides):
                number = number + place.to(I64) * w.number(stride).to(I64)
            better = (found < 0) | (value > best)
            if dtype.is_float:
                better = better | (value.ne(value) & best.eq(best))
            better = inside & better
            best.set(value.where(better, best))
            found.set(number.where(better, found))

        self._taps(w, position, [best, found], tap)
        w.store(self.y, w.at(self.y.layout, position), [best.to(self.y.dtype)])
        w.store(where, w.at(where.layout, position), [found])

    def _flat_strides(self) -> list[DimLike]:
        """Of an element's number in flattened x, by rows or by columns of each image."""
        image = list(self.image)
        is_column_major = self.made.node.attrs["column_major"]
        order = image[::-1] if is_column_major else image
        inner = [product(order[i + 1 :]) for i in range(len(order))]
        size = product(image)
        own = inner[::-1] if is_column_major else inner
        return [self.x.layout.dims[1] * size, size, *own]


def _power(e: Exprs, x: Expr, exponent: float) -> Expr:
    """A number from 0 on to a power: a square, its root or itself where that is what it is."""
    if exponent in (1, 2, 0.5):
        return x if exponent == 1 else e.op("square" if exponent == 2 else "sqrt", x)
    return e.op("pow", x, exponent)


def _raised(w: Writer, x: Var, exponent: float) -> Var:
    """The same in a loop."""
    if exponent in (1, 2, 0.5):
        return x if exponent == 1 else x * x if exponent == 2 else w.b.call("sqrt", x)
    return w.b.call("pow", x, w.b.const(exponent, x.dtype))
