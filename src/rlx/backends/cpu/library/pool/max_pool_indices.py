"""Max pooling that also returns the index of each maximum.

As other pools, windows are reduced over columns and then along a row, with the index of each value
in its image carried along. Of equal values the lowest index wins, whatever the order of comparison:
so the separable reduction finds what one walk through the window would. Padding is the least value
with the greatest index.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from rlx.backends.cpu.codegen.loop.vector_access import advanced, store
from rlx.backends.cpu.library.pool.pool import (
    MAX_UNROLLED_TAPS,
    TAPS_PER_POLL,
    Pool,
    Unit,
    pool_sequence,
    strided_load,
)
from rlx.backends.cpu.library.strided_copy import at, dim_lanes, step, unrolled_vector_loop
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import DimLike, is_static, product
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.kernel.program.schedule import Schedule

F32, I32, I64 = DType.F32, DType.I32, DType.I64
Best = tuple[Vec, Vec]
"""A value, and its index in the image."""


class MaxPoolWithIndices(Pool):
    """A pool with two results."""

    __slots__ = ()

    @staticmethod
    def width(given: Step, shape: Shape, axis: int) -> int:
        """Lanes must fit an index as well."""
        dtype = shape.dtype if shape.dtype.compute.itemsize >= 4 else F32
        return dim_lanes(given.isa, dtype, shape.dims[axis])

    @property
    def is_direct(self) -> bool:
        return False

    @property
    def index_dtype(self) -> DType:
        """The dtype of indices in an image."""
        size = product(self.image)
        return I32 if is_static(size) and size < self.padding_index(I32) else I64

    def padding_index(self, dtype: DType) -> int:
        """The index of padding."""
        return (1 << 8 * dtype.itemsize - 1) - 1

    @property
    def scratch(self) -> int:
        return self.scratch_elements * (self.dtype.compute.itemsize + self.index_dtype.itemsize)

    def index_scratch(self, w: Writer) -> str:
        """The scratch of indices, after the values."""
        size = self.scratch_elements * self.dtype.compute.itemsize
        return w.code.advanced("%scratch", size, DType.U8)

    # -- the better of two ------------------------------------------------------------------------

    def start(self, w: Writer) -> Best:
        none = w.code.const(self.identity, self.dtype.compute)
        return none, w.code.const(self.padding_index(self.index_dtype), self.index_dtype)

    def better(self, a: Best, b: Best) -> Best:
        (x, p), (y, q) = a, b
        is_more, is_same = y > x, y.equals(x)
        if x.is_float:
            x_is_nan, y_is_nan = x.is_nan(), y.is_nan()
            is_more = is_more | (y_is_nan & ~x_is_nan)
            is_same = is_same | (y_is_nan & x_is_nan)
        wins = is_more | (is_same & (q < p))
        return y.where(wins, x), q.where(wins, p)

    def best_to_scratch(self, w: Writer, best: Best, place: Bound) -> None:
        self.to_scratch(w, best[0], place)
        where = advanced(w.code, self.index_scratch(w), place, self.index_dtype)
        store(w.code, best[1], self.index_dtype, where)

    def best_from_scratch(self, w: Writer, place: Bound, stride: int) -> Best:
        where = strided_load(w, self.index_scratch(w), place, stride, self.index_dtype)
        return self.from_scratch(w, place, stride), where

    # -- columns ----------------------------------------------------------------------------------

    def fill_padding(self, w: Writer, low: Bound, high: Bound) -> None:
        low, high = (w.code.i64("mul", p, self.channel_block) for p in (low, high))
        best = self.start(w)
        with w.code.count(low, high, self.lanes) as i:
            self.best_to_scratch(w, best, i)

    def reduce_columns(
        self, w: Writer, unit: Unit, first: Bound, part: tuple[Bound, Bound]
    ) -> None:
        code, stride = w.code, self.given.operands[0].strides[-1]
        base = self.corner(w, unit, first)

        def over_row(i: Bound, count: int, mask: Vec | None) -> None:
            place = at(w, base, step(w, i, stride))
            lanes = code.iota(self.index_dtype)
            begun = [self.splat(w, at(w, first, i, n * self.lanes)) + lanes for n in range(count)]
            for n, best in enumerate(self.reduced(w, unit, place, begun, stride, mask)):
                self.best_to_scratch(w, best, at(w, i, n * self.lanes))

        if not self.is_nhwc:
            unrolled_vector_loop(w, *part, self.unroll, over_row)
            return
        with code.count(*part, 1) as i:
            pixel = at(w, base, step(w, i, stride))
            start, column = code.i64("mul", i, self.channel_block), self.splat(w, at(w, first, i))

            def over_channels(c: Bound, count: int, mask: Vec | None) -> None:
                found = self.reduced(w, unit, at(w, pixel, c), [column] * count, 1, mask)
                for n, best in enumerate(found):
                    self.best_to_scratch(w, best, at(w, start, c, n * self.lanes))

            unrolled_vector_loop(w, 0, unit.channels, self.unroll, over_channels)

    def reduced(
        self, w: Writer, unit: Unit, place: Bound, columns: Sequence[Vec], stride: DimLike,
        mask: Vec | None,
    ) -> list[Best]:  # fmt: skip
        """The best over the rows inside the image, for some vectors of a row."""
        code, x, windows = w.code, self.given.operands[0], self.windows
        best = [_BestVariable(w, self.start(w)) for _ in columns]
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
        return w.code.splat(number, I64).to(self.index_dtype)

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

        def over_row(i: Bound, count: int, mask: Vec | None) -> None:
            for n in range(count):
                j = at(w, i, n * self.lanes)
                best = self.best_of_row(w, code.i64("mul", j, stride), stride)
                steps = [step(w, j, v.strides[-1]) for v in (values, indices)]
                put(best, steps, -1, code.splat(channel, I64), mask)

        if not self.is_nhwc:
            unrolled_vector_loop(w, 0, many, self.unroll, over_row)
            return
        with code.count(0, many, 1) as j:
            begun = code.i64("mul", j, stride * self.channel_block)

            def over_channels(c: Bound, count: int, mask: Vec | None) -> None:
                for n in range(count):
                    place = at(w, c, n * self.lanes)
                    best = self.best_of_row(w, at(w, begun, place), 1)
                    steps = [
                        at(w, step(w, j, v.strides[-1]), step(w, place, v.strides[1]))
                        for v in (values, indices)
                    ]
                    image = code.splat(at(w, channel, place), I64) + code.iota(I64)
                    put(best, steps, 1, image, mask)

            unrolled_vector_loop(w, 0, unit.channels, self.unroll, over_channels)

    def best_of_row(self, w: Writer, place: Bound, stride: int) -> Best:
        """The best over the taps of a row's windows."""
        code, many = w.code, self.taps[-1]
        offsets = self.windows.dilation[-1] * self.channel_block
        best = _BestVariable(w, self.best_from_scratch(w, place, stride))

        def add(tap: Bound) -> None:
            found = self.best_from_scratch(w, at(w, place, code.i64("mul", tap, offsets)), stride)
            best.set(self.better(best.get(), found))

        if many <= MAX_UNROLLED_TAPS:
            for tap in range(1, many):
                add(tap)
        else:
            with code.count(1, many, 1, TAPS_PER_POLL) as tap:
                add(tap)
        return best.get()

    def index(self, w: Writer, place: Vec, image: Vec) -> Vec:
        """The index in flattened x; that of padding is -1."""
        size = w.code.splat(w.size(product(self.image)), I64)
        found = self.in_storage_order(w, place).to(I64) + image * size
        return found.where(place.differs(self.padding_index(self.index_dtype)), -1)

    def in_storage_order(self, w: Writer, place: Vec) -> Vec:
        """A row-major index, as it is or column-major."""
        if not self.given.node.attrs["column_major"]:
            return place
        made, image = place.like(0), self.image
        for axis in reversed(range(len(image))):
            size = self.splat(w, w.code.most(1, w.size(image[axis])))
            made = made + place % size * self.splat(w, w.size(product(image[:axis])))
            place = place / size
        return made


class _BestVariable:
    """The best so far, carried through loops."""

    def __init__(self, w: Writer, best: Best) -> None:
        self.code, self.dtypes = w.code, [v.dtype for v in best]
        self.slots = [(w.code.slot(v.type), v.type) for v in best]
        self.set(best)

    def get(self) -> Best:
        value, place = (
            self.code.vector_of(self.code.let(f"load {kind}, ptr {slot}"), dtype)
            for (slot, kind), dtype in zip(self.slots, self.dtypes)
        )
        return value, place

    def set(self, best: Best) -> None:
        for value, (slot, kind) in zip(best, self.slots):
            self.code.do(f"store {kind} {value.text}, ptr {slot}")


def make_max_pool_with_indices(given: Step, name: str) -> Schedule[Task]:
    return pool_sequence(MaxPoolWithIndices.of(given), name)
