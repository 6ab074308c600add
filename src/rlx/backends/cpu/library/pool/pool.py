"""Pools: windows folded in two steps, so that no lane ever asks where an image ends.

Of each row of results, the rows of the image that its windows see are folded into one row of
scratch memory; rows outside of the image are not among them. What lies beside that row holds what
changes no fold, so windows along it are folded whole, without a test. A window of k · k taps costs
about 2 · k folds where windows overlap.

Lanes go along the row, or along the channels where those lie side by side.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.library.strided_copy import Blocks, at, filled, runs, step
from rlx.backends.cpu.llvm.builder import Bound, Vec
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.program.task import (
    KernelSequence,
    Step,
    Task,
    buffers,
    estimated_ns,
    grain_of,
)
from rlx.core.dim import DimLike, is_static, product
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ops.nn.window_geometry import Windows

TOGETHER = 4
"""Vectors that are folded at a time, so that their operations overlap."""
ROW, PIXELS = 512, 32
"""Results of a row that are one unit of work: of one channel, or of some channels together. The
rows that they are folded from stay in the first cache."""
WRITTEN_OUT = 8
"""Taps along a row up to this many are written one by one."""
TAPS_POLLED = 1 << 12
"""Taps of a large window between two polls."""
FAR = 1 << 30
"""Past any window, and in the range of i32."""
STEPS = 4
"""Instructions of a fold."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Where some results of a row are: from the first to the end, of channels from the first."""

    outer: list[Bound]
    """Batch and channel, then the row."""
    low: Bound
    high: Bound
    channels: Bound
    """How many."""


@dataclass(frozen=True, slots=True)
class Pool:
    given: Step
    windows: Windows
    is_across: bool
    """Are lanes channels?"""
    lanes: int

    @classmethod
    def of(cls, given: Step) -> Self:
        node, (x,), y = given.node, given.operands, given.results[0]
        names = ("kernel", "stride", "padding", "dilation", "ceil")
        windows = Windows(**{k: node.attrs[k] for k in names})
        is_across = x.strides[1] == y.strides[1] == 1 and x.strides[-1] != 1
        shape = node.shapes[0]
        return cls(given, windows, is_across, cls.width(given, shape, 1 if is_across else -1))

    @staticmethod
    def width(given: Step, shape: Shape, axis: int) -> int:
        """How many lanes there are along an axis of the results."""
        return filled(given.isa, shape.dtype, shape.dims[axis])

    # -- sizes ----------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        return self.given.node.shapes[0]

    @property
    def dtype(self) -> DType:
        return self.shape.dtype

    @property
    def counts(self) -> tuple[DimLike, ...]:
        return self.shape.dims[2:]

    @property
    def image(self) -> tuple[DimLike, ...]:
        return self.given.node.inputs[0].shape.dims[2:]

    @property
    def rows(self) -> int:
        """Axes of a window that are not along the row."""
        return len(self.image) - 1

    @property
    def taps(self) -> tuple[int, ...]:
        return tuple(int(k) for k in self.windows.kernel)

    @property
    def together(self) -> int:
        """Vectors that are folded at a time: no more than the channels fill."""
        channels = self.shape.dims[1]
        if not self.is_across or not is_static(channels):
            return TOGETHER
        return max(1, min(TOGETHER, channels // self.lanes))

    @property
    def beside(self) -> int:
        """Channels that are folded together."""
        return self.together * self.lanes if self.is_across else 1

    @property
    def units(self) -> Blocks:
        batch, channels = self.shape.dims[:2]
        across = 1 if self.is_once else (channels + self.beside - 1) // self.beside
        block = PIXELS if self.is_across else ROW
        return Blocks((batch, across, *self.counts), block)

    @property
    def room(self) -> int:
        """Elements of a row; loads and stores of whole vectors may go past its end."""
        stride, span = self.windows.stride[-1], int(self.windows.spans[-1])
        count, block = self.counts[-1], self.units.block
        windows = min(block, max(1, count)) if is_static(count) else block
        width = (windows - 1) * stride + span
        slack = (self.together + 2) * self.lanes * max(1, stride)
        return width * self.beside + slack

    @property
    def scratch(self) -> int:
        """Bytes of that row, where there is one."""
        return 0 if self.is_once else self.room * self.dtype.compute.itemsize

    # -- what is folded -------------------------------------------------------------------------

    @property
    def nothing(self) -> float:
        """What changes no fold."""
        if not self.given.node.op.startswith("max_pool"):
            return 0
        return int(np.iinfo(self.dtype.numpy).min) if self.dtype.is_integer else -np.inf

    def fold(self, x: Vec, y: Vec) -> Vec:
        return arith.maximum(x, y) if self.given.node.op == "max_pool" else x + y

    def seen(self, x: Vec) -> Vec:
        """What is folded of an element."""
        if self.given.node.op != "lp_pool":
            return x
        return _power(x.abs(), self.given.node.attrs["p"])

    def finished(self, w: Writer, folded: Vec, count: Vec | None) -> Vec:
        match self.given.node.op:
            case "avg_pool":
                return folded / (float(np.prod(self.taps)) if count is None else count)
            case "lp_pool":
                return _power(folded, 1 / self.given.node.attrs["p"])
            case _:
                return folded

    # -- the function ---------------------------------------------------------------------------

    def written(self) -> Writer:
        w = Writer(self.given.isa, self.lanes)
        with self.units.each(w) as (outer, low, high):
            outer[1] = w.code.i64("mul", outer[1], self.beside)
            self.unit(w, Unit(outer, low, high, self.channels(w, outer[1])))
        return w

    def channels(self, w: Writer, first: Bound) -> Bound:
        """How many of those from the first on are folded together."""
        every = self.shape.dims[1]
        if self.is_once:
            return w.size(every)
        if is_static(every) and every % self.beside == 0:
            return self.beside
        return w.code.least(w.code.i64("sub", w.size(every), first), self.beside)

    @property
    def is_once(self) -> bool:
        """Are windows folded whole, from memory? Where none overlap along a row there is nothing
        to share."""
        return self.is_across and self.windows.stride[-1] >= int(self.windows.spans[-1])

    def unit(self, w: Writer, unit: Unit) -> None:
        """The row of scratch memory, from its left margin to its right one, and its windows."""
        if self.is_once:
            self.whole(w, unit)
            return
        code, stride = w.code, self.windows.stride[-1]
        first = code.i64("sub", code.i64("mul", unit.low, stride), self.windows.before[-1])
        steps = code.i64("mul", at(w, unit.high, code.i64("sub", -1, unit.low)), stride)
        width = at(w, steps, int(self.windows.spans[-1]))
        low = code.most(0, code.i64("sub", 0, first))
        end = code.least(width, code.i64("sub", w.size(self.image[-1]), first))
        high = code.most(end, low)
        self.filled(w, 0, low)
        self.columns(w, unit, first, (low, high))
        self.filled(w, high, width)
        self.results(w, unit)

    def filled(self, w: Writer, low: Bound, high: Bound) -> None:
        """A margin; what is written past it is written again later, or not used."""
        low, high = (w.code.i64("mul", p, self.beside) for p in (low, high))
        value = w.code.const(self.nothing, self.dtype.compute)
        with w.code.count(low, high, self.lanes) as i:
            self.keep(w, value, i)

    def columns(self, w: Writer, unit: Unit, first: Bound, part: tuple[Bound, Bound]) -> None:
        """Each column of the rows that are seen, folded into scratch memory."""
        x = self.given.operands[0]
        ends = [self.bounds(w, a, unit.outer[2 + a]) for a in range(self.rows)]
        base = self.corner(w, unit, first)

        def along(i: Bound, count: int, mask: Vec | None) -> None:
            place = at(w, base, step(w, i, x.strides[-1]))
            made = self.column(w, place, ends, count, mask, x.strides[-1])
            for n, value in enumerate(made):
                self.keep(w, value, at(w, i, n * self.lanes))

        if not self.is_across:
            runs(w, part[0], part[1], self.together, along)
            return
        with w.code.count(part[0], part[1], 1) as i:
            pixel = at(w, base, step(w, i, x.strides[-1]))
            kept = w.code.i64("mul", i, self.beside)

            def across(c: Bound, count: int, mask: Vec | None) -> None:
                made = self.column(w, at(w, pixel, c), ends, count, mask, 1)
                for n, value in enumerate(made):
                    self.keep(w, value, at(w, kept, c, n * self.lanes))

            runs(w, 0, unit.channels, self.together, across)

    def whole(self, w: Writer, unit: Unit) -> None:
        """Windows without a row of scratch memory."""
        code, stride = w.code, self.given.operands[0].strides[-1]
        rows = [self.bounds(w, a, unit.outer[2 + a]) for a in range(self.rows)]
        corner, height = self.corner(w, unit, -self.windows.before[-1]), self.height(w, unit)
        with code.count(0, code.i64("sub", unit.high, unit.low), 1) as j:
            position = at(w, unit.low, j)
            ends = [*rows, self.bounds(w, self.rows, position)]
            begun = step(w, code.i64("mul", position, self.windows.stride[-1]), stride)
            area = self.area(w, unit, height, j, 0)
            to = w.place(self.given.results[0], [*unit.outer, position])

            def across(c: Bound, count: int, mask: Vec | None) -> None:
                made = self.column(w, at(w, corner, begun, c), ends, count, mask, 1)
                for n, value in enumerate(made):
                    place = at(w, to, c, n * self.lanes)
                    w.store(self.finished(w, value, area), 1, place, self.dtype, 1, mask)

            runs(w, 0, unit.channels, self.together, across)

    def corner(self, w: Writer, unit: Unit, first: Bound) -> Bound:
        """Where tap 0 of every axis of the rows and the first column lie, in the image or not."""
        x = self.given.operands[0]
        place = at(w, w.size(x.offset), step(w, first, x.strides[-1]))
        for axis, position in enumerate(unit.outer[:2]):
            place = at(w, place, step(w, position, x.strides[axis]))
        for axis, position in enumerate(unit.outer[2:]):
            begun = w.code.i64("mul", position, self.windows.stride[axis])
            begun = w.code.i64("sub", begun, self.windows.before[axis])
            place = at(w, place, step(w, begun, x.strides[2 + axis]))
        return place

    def column(
        self, w: Writer, place: Bound, ends: list[tuple[Bound, Bound]], count: int,
        mask: Vec | None, stride: DimLike,
    ) -> list[Vec]:  # fmt: skip
        """The rows that are seen at some vectors of a row."""
        x, code = self.given.operands[0], w.code
        start = [code.const(self.nothing, self.dtype.compute)] * count
        if not ends:
            found = self.read(w, place, count, mask, stride)
            return [self.fold(a, b) for a, b in zip(start, found)]
        slots = [code.slot(v.type) for v in start]
        code.do(*(f"store {v.type} {v.text}, ptr {s}" for v, s in zip(start, slots)))
        with ExitStack() as stack:
            for axis, (low, high) in enumerate(ends):
                tap = stack.enter_context(code.count(low, high, 1, self.polled(axis)))
                moved = code.i64("mul", tap, self.windows.dilation[axis])
                place = at(w, place, step(w, moved, x.strides[2 + axis]))
            found = self.read(w, place, count, mask, stride)
            for slot, value in zip(slots, found):
                before = value.made(f"load {value.type}, ptr {slot}")
                made = self.fold(before, value)
                code.do(f"store {made.type} {made.text}, ptr {slot}")
        return [start[0].made(f"load {start[0].type}, ptr {s}") for s in slots]

    def polled(self, axis: int) -> int:
        """Taps along an axis between two polls; windows that are small as a whole have none."""
        if axis > 0 or math.prod(self.taps) <= TAPS_POLLED:
            return 0
        return max(1, TAPS_POLLED // math.prod(self.taps[1:]))

    def read(
        self, w: Writer, place: Bound, count: int, mask: Vec | None, stride: DimLike
    ) -> list[Vec]:
        apart = [step(w, n * self.lanes, stride) for n in range(count)]
        by = w.size(stride)
        return [self.seen(w.load(0, at(w, place, a), self.dtype, by, mask)) for a in apart]

    def results(self, w: Writer, unit: Unit) -> None:
        """The windows along the row."""
        y, code, stride = self.given.results[0], w.code, self.windows.stride[-1]
        base = w.place(y, [*unit.outer, unit.low])
        height = self.height(w, unit)
        many = w.code.i64("sub", unit.high, unit.low)

        def along(i: Bound, count: int, mask: Vec | None) -> None:
            for n in range(count):
                j = at(w, i, n * self.lanes)
                folded = self.window(w, code.i64("mul", j, stride), stride)
                made = self.finished(w, folded, self.area(w, unit, height, j, 1))
                place = at(w, base, step(w, j, y.strides[-1]))
                w.store(made, 1, place, self.dtype, w.size(y.strides[-1]), mask)

        if not self.is_across:
            runs(w, 0, many, self.together, along)
            return
        with w.code.count(0, many, 1) as j:
            pixel = at(w, base, step(w, j, y.strides[-1]))
            begun = code.i64("mul", j, stride * self.beside)
            area = self.area(w, unit, height, j, 0)

            def across(c: Bound, count: int, mask: Vec | None) -> None:
                for n in range(count):
                    place = at(w, c, n * self.lanes)
                    made = self.finished(w, self.window(w, at(w, begun, place), 1), area)
                    w.store(made, 1, at(w, pixel, place), self.dtype, 1, mask)

            runs(w, 0, unit.channels, self.together, across)

    def window(self, w: Writer, place: Bound, stride: int) -> Vec:
        """The taps of a row's windows."""
        code, many = w.code, self.taps[-1]
        apart = self.windows.dilation[-1] * self.beside
        total = self.kept(w, place, stride)
        if many <= WRITTEN_OUT:
            for tap in range(1, many):
                total = self.fold(total, self.kept(w, at(w, place, tap * apart), stride))
            return total
        slot = code.slot(total.type)
        code.do(f"store {total.type} {total.text}, ptr {slot}")
        with code.count(1, many, 1, TAPS_POLLED) as tap:
            value = self.kept(w, at(w, place, code.i64("mul", tap, apart)), stride)
            made = self.fold(value.made(f"load {value.type}, ptr {slot}"), value)
            code.do(f"store {made.type} {made.text}, ptr {slot}")
        return total.made(f"load {total.type}, ptr {slot}")

    # -- scratch memory -------------------------------------------------------------------------

    def keep(self, w: Writer, value: Vec, place: Bound) -> None:
        dtype = self.dtype.compute
        store(w.code, value, dtype, advanced(w.code, "%scratch", place, dtype))

    def kept(self, w: Writer, place: Bound, stride: int) -> Vec:
        return spaced(w, "%scratch", place, stride, self.dtype.compute)

    # -- how much of a window there is ----------------------------------------------------------

    def bounds(self, w: Writer, axis: int, position: Bound) -> tuple[Bound, Bound]:
        """The taps of a window that lie in the image."""
        if not self.windows.ceil and self.windows.before[axis] == self.windows.after[axis] == 0:
            return 0, self.taps[axis]
        return self.within(w, axis, position, 0, self.image[axis])

    def within(
        self, w: Writer, axis: int, position: Bound, low: DimLike, high: DimLike
    ) -> tuple[Bound, Bound]:
        """The taps of a window that lie in a part of an axis."""
        code, apart = w.code, self.windows.dilation[axis]
        begun = code.i64("mul", position, self.windows.stride[axis])
        found: list[Bound] = []
        for end in (low, high):
            gap = code.i64("sub", w.size(end + self.windows.before[axis]), begun)
            gap = code.most(0, gap)
            number = code.let(f"udiv i64 {at(w, gap, apart - 1)}, {apart}") if apart > 1 else gap
            found.append(code.least(number, self.taps[axis]))
        return found[0], found[1]

    @property
    def is_counted(self) -> bool:
        """Do windows differ in how many elements they are the mean of?"""
        attrs, windows = self.given.node.attrs, self.windows
        if self.given.node.op != "avg_pool":
            return False
        return windows.ceil or (any(windows.padding) and not attrs["count_include_pad"])

    def counted(self, axis: int) -> tuple[DimLike, DimLike]:
        """The part of an axis that counts."""
        if not self.given.node.attrs["count_include_pad"]:
            return 0, self.image[axis]
        return -self.windows.before[axis], self.image[axis] + self.windows.after[axis]

    def height(self, w: Writer, unit: Unit) -> Vec | None:
        """How many rows of a window count."""
        if not self.is_counted:
            return None
        total: Bound = 1
        for axis in range(self.rows):
            low, high = self.within(w, axis, unit.outer[2 + axis], *self.counted(axis))
            total = w.code.i64("mul", total, w.code.i64("sub", high, low))
        return w.code.splat(total, DType.I64).to(self.dtype.compute)

    def area(self, w: Writer, unit: Unit, height: Vec | None, j: Bound, by: int) -> Vec | None:
        """How many elements of windows count, from the j-th of the unit on; at least 1."""
        if height is None:
            return None
        code, stride, apart = w.code, self.windows.stride[-1], self.windows.dilation[-1]
        begun = code.i64("mul", at(w, unit.low, j), stride)
        number: list[Vec] = []
        for end in self.counted(self.rows):
            gap = code.i64("sub", w.size(end + self.windows.before[-1]), begun)
            near = code.most(-FAR, code.least(gap, FAR))
            first = code.let(f"trunc i64 {near} to i32")
            gaps = code.splat(first, DType.I32) - code.iota(DType.I32) * (stride * by)
            taps = (arith.maximum(gaps, gaps.like(0)) + (apart - 1)) / apart
            number.append(arith.minimum(taps, taps.like(self.taps[-1])))
        count = (number[1] - number[0]).to(self.dtype.compute) * height
        return arith.maximum(count, count.like(1))


def _power(x: Vec, exponent: float) -> Vec:
    """A number from 0 on to a power."""
    if exponent == 1:
        return x
    if exponent in (2, 0.5):
        return x * x if exponent == 2 else x.sqrt()
    return arith.apply("pow", [x, x.like(exponent)], {}, x.dtype)


def spaced(w: Writer, start: str, place: Bound, stride: int, dtype: DType) -> Vec:
    """Elements of scratch memory, some apart; every second is taken out of two vectors."""
    where = advanced(w.code, start, place, dtype)
    if stride != 2 or w.code.lanes == 1:
        return load(w.code, dtype, where, stride)
    lanes = w.code.lanes
    halves = [load(w.code, dtype, advanced(w.code, where, n, dtype)) for n in (0, lanes)]
    return halves[0].joined(halves[1], range(0, 2 * lanes, 2))


def make_pool(given: Step, name: str) -> KernelSequence:
    return pooled(Pool.of(given), name)


def pooled(made: Pool, name: str) -> KernelSequence:
    w, node = made.written(), made.given.node
    folds = made.shape.num_elements * sum(made.taps) * STEPS
    traffic = sum((s.size_bytes for s in node.shapes), node.inputs[0].shape.size_bytes)
    units = made.units.count
    task = Task(
        w.function(name), buffers(1, len(made.given.results)), w.sizes, units,
        grain_of(units, estimated_ns(folds, traffic)), made.scratch,
        summary=_how(made, made.windows),
    )  # fmt: skip
    return KernelSequence((task,))


def _how(made: Pool, windows: Windows) -> str:
    lanes = "channels" if made.is_across else "a row"
    area: Any = product(windows.kernel)
    taps = f"{area} taps" if is_static(area) else "taps"
    order = "at once" if made.is_once else "in columns and then along a row"
    return f"windows of {taps}, folded {order}; lanes along {lanes}"
