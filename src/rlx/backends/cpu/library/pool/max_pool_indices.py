"""Pools that also say where the greatest element of a window is.

As other pools, windows are folded in columns and then along a row; beside each value goes where in
its image it lies. Of equals the one that lies first wins, whichever is met first: so the two steps
find what one walk through the window would. What lies outside of the image is the least there is,
and last.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from rlx.backends.cpu.codegen.loop.vector_access import advanced, store
from rlx.backends.cpu.library.pool.pool import TAPS_POLLED, WRITTEN_OUT, Pool, Unit, pooled, spaced
from rlx.backends.cpu.library.strided_copy import at, filled, runs, step
from rlx.backends.cpu.llvm.builder import Bound, Vec
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.program.task import KernelSequence, Step
from rlx.core.dim import DimLike, is_static, product
from rlx.core.dtype import DType
from rlx.core.shape import Shape

F32, I32, I64 = DType.F32, DType.I32, DType.I64
Best = tuple[Vec, Vec]
"""A value, and where it is in its image."""


class Indexed(Pool):
    """A pool with two results."""

    __slots__ = ()

    @staticmethod
    def width(given: Step, shape: Shape, axis: int) -> int:
        """Lanes hold a place as well."""
        dtype = shape.dtype if shape.dtype.compute.itemsize >= 4 else F32
        return filled(given.isa, dtype, shape.dims[axis])

    @property
    def is_once(self) -> bool:
        return False

    @property
    def counter(self) -> DType:
        """What places in an image are counted in."""
        size = product(self.image)
        return I32 if is_static(size) and size < self.last(I32) else I64

    def last(self, dtype: DType) -> int:
        """The place of what is nowhere."""
        return (1 << 8 * dtype.itemsize - 1) - 1

    @property
    def scratch(self) -> int:
        return self.room * (self.dtype.compute.itemsize + self.counter.itemsize)

    def places(self, w: Writer) -> str:
        """Where places are kept, behind the values."""
        size = self.room * self.dtype.compute.itemsize
        return w.code.let(f"getelementptr i8, ptr %scratch, i64 {size}")

    # -- the better of two ------------------------------------------------------------------------

    def start(self, w: Writer) -> Best:
        none = w.code.const(self.nothing, self.dtype.compute)
        return none, w.code.const(self.last(self.counter), self.counter)

    def better(self, a: Best, b: Best) -> Best:
        (x, p), (y, q) = a, b
        is_more, is_same = y > x, y.equals(x)
        if x.is_float:
            x_is_nan, y_is_nan = x.is_nan(), y.is_nan()
            is_more = is_more | (y_is_nan & ~x_is_nan)
            is_same = is_same | (y_is_nan & x_is_nan)
        wins = is_more | (is_same & (q < p))
        return y.where(wins, x), q.where(wins, p)

    def keep_best(self, w: Writer, best: Best, place: Bound) -> None:
        self.keep(w, best[0], place)
        where = advanced(w.code, self.places(w), place, self.counter)
        store(w.code, best[1], self.counter, where)

    def best_kept(self, w: Writer, place: Bound, stride: int) -> Best:
        where = spaced(w, self.places(w), place, stride, self.counter)
        return self.kept(w, place, stride), where

    # -- columns ----------------------------------------------------------------------------------

    def filled(self, w: Writer, low: Bound, high: Bound) -> None:
        low, high = (w.code.i64("mul", p, self.beside) for p in (low, high))
        best = self.start(w)
        with w.code.count(low, high, self.lanes) as i:
            self.keep_best(w, best, i)

    def columns(self, w: Writer, unit: Unit, first: Bound, part: tuple[Bound, Bound]) -> None:
        code, stride = w.code, self.given.operands[0].strides[-1]
        base = self.corner(w, unit, first)

        def along(i: Bound, count: int, mask: Vec | None) -> None:
            place = at(w, base, step(w, i, stride))
            lanes = code.iota(self.counter)
            begun = [self.splat(w, at(w, first, i, n * self.lanes)) + lanes for n in range(count)]
            for n, best in enumerate(self.folded(w, unit, place, begun, stride, mask)):
                self.keep_best(w, best, at(w, i, n * self.lanes))

        if not self.is_across:
            runs(w, *part, self.together, along)
            return
        with code.count(*part, 1) as i:
            pixel = at(w, base, step(w, i, stride))
            kept, column = code.i64("mul", i, self.beside), self.splat(w, at(w, first, i))

            def across(c: Bound, count: int, mask: Vec | None) -> None:
                found = self.folded(w, unit, at(w, pixel, c), [column] * count, 1, mask)
                for n, best in enumerate(found):
                    self.keep_best(w, best, at(w, kept, c, n * self.lanes))

            runs(w, 0, unit.channels, self.together, across)

    def folded(
        self, w: Writer, unit: Unit, place: Bound, columns: Sequence[Vec], stride: DimLike,
        mask: Vec | None,
    ) -> list[Best]:  # fmt: skip
        """The best of the rows that are seen, at some vectors of a row."""
        code, x, windows = w.code, self.given.operands[0], self.windows
        best = [_Best(w, self.start(w)) for _ in columns]
        row: Bound = 0
        with ExitStack() as stack:
            for axis in range(self.rows):
                low, high = self.bounds(w, axis, unit.outer[2 + axis])
                tap = stack.enter_context(code.count(low, high, 1, self.polled(axis)))
                moved = code.i64("mul", tap, windows.dilation[axis])
                place = at(w, place, step(w, moved, x.strides[2 + axis]))
                begun = code.i64("mul", unit.outer[2 + axis], windows.stride[axis])
                line = at(w, begun, moved, -windows.before[axis])
                row = at(w, row, step(w, line, product(self.image[axis + 1 :])))
            found = self.read(w, place, len(columns), mask, stride)
            for one, value, column in zip(best, found, columns):
                one.set(self.better(one.get(), (value, column + self.splat(w, row))))
        return [one.get() for one in best]

    def splat(self, w: Writer, number: Bound) -> Vec:
        return w.code.splat(number, I64).to(self.counter)

    # -- rows -------------------------------------------------------------------------------------

    def results(self, w: Writer, unit: Unit) -> None:
        code, (values, indices), stride = w.code, self.given.results, self.windows.stride[-1]
        many = code.i64("sub", unit.high, unit.low)
        bases = [w.place(v, [*unit.outer, unit.low]) for v in (values, indices)]
        channel = at(w, step(w, unit.outer[0], self.shape.dims[1]), unit.outer[1])

        def put(
            best: Best, steps: Sequence[Bound], axis: int, image: Vec, mask: Vec | None
        ) -> None:
            index = self.index(w, best[1], image)
            for n, (value, dtype) in enumerate(((best[0], self.dtype), (index, I64))):
                by = w.size(self.given.results[n].strides[axis])
                w.store(value, 1 + n, at(w, bases[n], steps[n]), dtype, by, mask)

        def along(i: Bound, count: int, mask: Vec | None) -> None:
            for n in range(count):
                j = at(w, i, n * self.lanes)
                best = self.best_of_row(w, code.i64("mul", j, stride), stride)
                steps = [step(w, j, v.strides[-1]) for v in (values, indices)]
                put(best, steps, -1, code.splat(channel, I64), mask)

        if not self.is_across:
            runs(w, 0, many, self.together, along)
            return
        with code.count(0, many, 1) as j:
            begun = code.i64("mul", j, stride * self.beside)

            def across(c: Bound, count: int, mask: Vec | None) -> None:
                for n in range(count):
                    place = at(w, c, n * self.lanes)
                    best = self.best_of_row(w, at(w, begun, place), 1)
                    steps = [
                        at(w, step(w, j, v.strides[-1]), step(w, place, v.strides[1]))
                        for v in (values, indices)
                    ]
                    image = code.splat(at(w, channel, place), I64) + code.iota(I64)
                    put(best, steps, 1, image, mask)

            runs(w, 0, unit.channels, self.together, across)

    def best_of_row(self, w: Writer, place: Bound, stride: int) -> Best:
        """The best tap of a row's windows."""
        code, many = w.code, self.taps[-1]
        apart = self.windows.dilation[-1] * self.beside
        best = _Best(w, self.best_kept(w, place, stride))

        def add(tap: Bound) -> None:
            found = self.best_kept(w, at(w, place, code.i64("mul", tap, apart)), stride)
            best.set(self.better(best.get(), found))

        if many <= WRITTEN_OUT:
            for tap in range(1, many):
                add(tap)
        else:
            with code.count(1, many, 1, TAPS_POLLED) as tap:
                add(tap)
        return best.get()

    def index(self, w: Writer, place: Vec, image: Vec) -> Vec:
        """Where in flattened x; nowhere is -1."""
        size = w.code.splat(w.size(product(self.image)), I64)
        found = self.turned(w, place).to(I64) + image * size
        return found.where(place.differs(self.last(self.counter)), -1)

    def turned(self, w: Writer, place: Vec) -> Vec:
        """A place by rows, as it is or by columns."""
        if not self.given.node.attrs["column_major"]:
            return place
        made, image = place.like(0), self.image
        for axis in reversed(range(len(image))):
            size = self.splat(w, w.code.most(1, w.size(image[axis])))
            made = made + place % size * self.splat(w, w.size(product(image[:axis])))
            place = place / size
        return made


class _Best:
    """The best so far, where it changes in loops."""

    def __init__(self, w: Writer, best: Best) -> None:
        self.code, self.dtypes = w.code, [v.dtype for v in best]
        self.slots = [(w.code.slot(v.type), v.type) for v in best]
        self.set(best)

    def get(self) -> Best:
        value, place = (
            Vec(self.code, self.code.let(f"load {kind}, ptr {slot}"), dtype)
            for (slot, kind), dtype in zip(self.slots, self.dtypes)
        )
        return value, place

    def set(self, best: Best) -> None:
        for value, (slot, kind) in zip(best, self.slots):
            self.code.do(f"store {kind} {value.text}, ptr {slot}")


def make_max_pool_with_indices(given: Step, name: str) -> KernelSequence:
    return pooled(Indexed.of(given), name)
