"""Pooling as a separable reduction, without boundary tests in the lanes.

For each row of results, the image rows that its windows cover are reduced into one row of scratch
memory; rows outside of the image are skipped. That row is padded with the identity of the
reduction, so windows along it are reduced whole. A window of k · k taps costs about 2 · k
operations where windows overlap.

Vectorised over the row (NCHW), or over the channels (NHWC).
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.library.strided_copy import Blocks, at, dim_lanes, step, unrolled_vector_loop
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import DimLike, is_static, product
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.kernel.program.schedule import Schedule, buffers
from rlx.ops.nn.window_geometry import Windows

UNROLL = 4
"""Vectors that are reduced at a time, so that their latencies overlap."""
ROW_BLOCK, PIXEL_BLOCK = 512, 32
"""Results of a row in one unit: of one channel, or of some channels together. The rows that they
are reduced from stay in the L1 cache."""
MAX_UNROLLED_TAPS = 8
"""Taps along a row up to this many are unrolled."""
TAPS_PER_POLL = 1 << 12
"""Taps of a large window between two polls."""
UNBOUNDED = 1 << 30
"""Past any window, and in the range of i32."""
OPS_PER_TAP = 4
"""Instructions per tap."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A range of a row's results, and of channels."""

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
    is_nhwc: bool
    """NHWC: vectorised over channels?"""
    lanes: int

    @classmethod
    def of(cls, given: Step) -> Self:
        node, (x,), y = given.node, given.operands, given.results[0]
        names = ("kernel", "stride", "padding", "dilation", "ceil")
        windows = Windows(**{k: node.attrs[k] for k in names})
        is_nhwc = x.strides[1] == y.strides[1] == 1 and x.strides[-1] != 1
        shape = node.shapes[0]
        return cls(given, windows, is_nhwc, cls.width(given, shape, 1 if is_nhwc else -1))

    @staticmethod
    def width(given: Step, shape: Shape, axis: int) -> int:
        """Lanes along an axis of the results."""
        return dim_lanes(given.isa, shape.dtype, shape.dims[axis])

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
        """Axes of a window other than the row's."""
        return len(self.image) - 1

    @property
    def taps(self) -> tuple[int, ...]:
        return tuple(int(k) for k in self.windows.kernel)

    @property
    def unroll(self) -> int:
        """Vectors that are reduced at a time: no more than the channels fill."""
        channels = self.shape.dims[1]
        if not self.is_nhwc or not is_static(channels):
            return UNROLL
        return max(1, min(UNROLL, channels // self.lanes))

    @property
    def channel_block(self) -> int:
        """Channels that are reduced together."""
        return self.unroll * self.lanes if self.is_nhwc else 1

    @property
    def units(self) -> Blocks:
        batch, channels = self.shape.dims[:2]
        blocks = 1 if self.is_direct else (channels + self.channel_block - 1) // self.channel_block
        block = PIXEL_BLOCK if self.is_nhwc else ROW_BLOCK
        return Blocks((batch, blocks, *self.counts), block)

    @property
    def scratch_elements(self) -> int:
        """Elements of the scratch row; loads and stores of whole vectors may go past its end."""
        stride, span = self.windows.stride[-1], int(self.windows.spans[-1])
        count, block = self.counts[-1], self.units.block
        windows = min(block, max(1, count)) if is_static(count) else block
        width = (windows - 1) * stride + span
        slack = (self.unroll + 2) * self.lanes * max(1, stride)
        return width * self.channel_block + slack

    @property
    def scratch(self) -> int:
        """Bytes of that row, where there is one."""
        return 0 if self.is_direct else self.scratch_elements * self.dtype.compute.itemsize

    # -- the reduction --------------------------------------------------------------------------

    @property
    def identity(self) -> float:
        """The identity of the reduction."""
        if not self.given.node.op.startswith("max_pool"):
            return 0
        return int(np.iinfo(self.dtype.numpy).min) if self.dtype.is_integer else -np.inf

    def fold(self, x: Vec, y: Vec) -> Vec:
        return arith.maximum(x, y) if self.given.node.op == "max_pool" else x + y

    def tap_value(self, x: Vec) -> Vec:
        """What is reduced of an element."""
        if self.given.node.op != "lp_pool":
            return x
        return _power(x.abs(), self.given.node.attrs["p"])

    def finish(self, w: Writer, reduced: Vec, count: Vec | None) -> Vec:
        match self.given.node.op:
            case "avg_pool":
                return reduced / (float(np.prod(self.taps)) if count is None else count)
            case "lp_pool":
                return _power(reduced, 1 / self.given.node.attrs["p"])
            case _:
                return reduced

    # -- the function ---------------------------------------------------------------------------

    def source(self, name: str) -> Source:
        w = Writer(self.given.isa, self.lanes)
        with self.units.each(w) as (outer, low, high):
            outer[1] = w.code.i64("mul", outer[1], self.channel_block)
            self.unit(w, Unit(outer, low, high, self.channels(w, outer[1])))
        return w.source(name)

    def channels(self, w: Writer, first: Bound) -> Bound:
        """How many of those from the first on are reduced together."""
        every = self.shape.dims[1]
        if self.is_direct:
            return w.size(every)
        if is_static(every) and every % self.channel_block == 0:
            return self.channel_block
        return w.code.least(w.code.i64("sub", w.size(every), first), self.channel_block)

    @property
    def is_direct(self) -> bool:
        """Are windows reduced from memory directly? Where none overlap along a row, no column is
        used twice."""
        return self.is_nhwc and self.windows.stride[-1] >= int(self.windows.spans[-1])

    def unit(self, w: Writer, unit: Unit) -> None:
        """The row of scratch memory, from its left padding to its right one, and its windows."""
        if self.is_direct:
            self.direct_windows(w, unit)
            return
        code, stride = w.code, self.windows.stride[-1]
        first = code.i64("sub", code.i64("mul", unit.low, stride), self.windows.before[-1])
        steps = code.i64("mul", at(w, unit.high, code.i64("sub", -1, unit.low)), stride)
        width = at(w, steps, int(self.windows.spans[-1]))
        low = code.most(0, code.i64("sub", 0, first))
        end = code.least(width, code.i64("sub", w.size(self.image[-1]), first))
        high = code.most(end, low)
        self.fill_padding(w, 0, low)
        self.reduce_columns(w, unit, first, (low, high))
        self.fill_padding(w, high, width)
        self.results(w, unit)

    def fill_padding(self, w: Writer, low: Bound, high: Bound) -> None:
        """Padding; what is written past it is overwritten later, or not used."""
        low, high = (w.code.i64("mul", p, self.channel_block) for p in (low, high))
        value = w.code.const(self.identity, self.dtype.compute)
        with w.code.count(low, high, self.lanes) as i:
            self.to_scratch(w, value, i)

    def reduce_columns(
        self, w: Writer, unit: Unit, first: Bound, part: tuple[Bound, Bound]
    ) -> None:
        """Each column of the rows inside the image, reduced into scratch memory."""
        x = self.given.operands[0]
        ends = [self.bounds(w, a, unit.outer[2 + a]) for a in range(self.rows)]
        base = self.corner(w, unit, first)

        def over_row(i: Bound, count: int, mask: Vec | None) -> None:
            place = at(w, base, step(w, i, x.strides[-1]))
            made = self.reduce_column(w, place, ends, count, mask, x.strides[-1])
            for n, value in enumerate(made):
                self.to_scratch(w, value, at(w, i, n * self.lanes))

        if not self.is_nhwc:
            unrolled_vector_loop(w, part[0], part[1], self.unroll, over_row)
            return
        with w.code.count(part[0], part[1], 1) as i:
            pixel = at(w, base, step(w, i, x.strides[-1]))
            start = w.code.i64("mul", i, self.channel_block)

            def over_channels(c: Bound, count: int, mask: Vec | None) -> None:
                made = self.reduce_column(w, at(w, pixel, c), ends, count, mask, 1)
                for n, value in enumerate(made):
                    self.to_scratch(w, value, at(w, start, c, n * self.lanes))

            unrolled_vector_loop(w, 0, unit.channels, self.unroll, over_channels)

    def direct_windows(self, w: Writer, unit: Unit) -> None:
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

            def over_channels(c: Bound, count: int, mask: Vec | None) -> None:
                made = self.reduce_column(w, at(w, corner, begun, c), ends, count, mask, 1)
                for n, value in enumerate(made):
                    place = at(w, to, c, n * self.lanes)
                    w.store(self.finish(w, value, area), 1, place, self.dtype, 1, mask)

            unrolled_vector_loop(w, 0, unit.channels, self.unroll, over_channels)

    def corner(self, w: Writer, unit: Unit, first: Bound) -> Bound:
        """The offset of tap 0 of every row axis and the first column, inside the image or not."""
        x = self.given.operands[0]
        place = at(w, w.size(x.offset), step(w, first, x.strides[-1]))
        for axis, position in enumerate(unit.outer[:2]):
            place = at(w, place, step(w, position, x.strides[axis]))
        for axis, position in enumerate(unit.outer[2:]):
            begun = w.code.i64("mul", position, self.windows.stride[axis])
            begun = w.code.i64("sub", begun, self.windows.before[axis])
            place = at(w, place, step(w, begun, x.strides[2 + axis]))
        return place

    def reduce_column(
        self, w: Writer, place: Bound, ends: list[tuple[Bound, Bound]], count: int,
        mask: Vec | None, stride: DimLike,
    ) -> list[Vec]:  # fmt: skip
        """The rows inside the image, for some vectors of a row."""
        x, code = self.given.operands[0], w.code
        start = [code.const(self.identity, self.dtype.compute)] * count
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
        if axis > 0 or math.prod(self.taps) <= TAPS_PER_POLL:
            return 0
        return max(1, TAPS_PER_POLL // math.prod(self.taps[1:]))

    def read(
        self, w: Writer, place: Bound, count: int, mask: Vec | None, stride: DimLike
    ) -> list[Vec]:
        offsets = [step(w, n * self.lanes, stride) for n in range(count)]
        by = w.size(stride)
        return [self.tap_value(w.load(0, at(w, place, a), self.dtype, by, mask)) for a in offsets]

    def results(self, w: Writer, unit: Unit) -> None:
        """The windows along the row."""
        y, code, stride = self.given.results[0], w.code, self.windows.stride[-1]
        base = w.place(y, [*unit.outer, unit.low])
        height = self.height(w, unit)
        many = w.code.i64("sub", unit.high, unit.low)

        def over_row(i: Bound, count: int, mask: Vec | None) -> None:
            for n in range(count):
                j = at(w, i, n * self.lanes)
                reduced = self.window(w, code.i64("mul", j, stride), stride)
                made = self.finish(w, reduced, self.area(w, unit, height, j, 1))
                place = at(w, base, step(w, j, y.strides[-1]))
                w.store(made, 1, place, self.dtype, w.size(y.strides[-1]), mask)

        if not self.is_nhwc:
            unrolled_vector_loop(w, 0, many, self.unroll, over_row)
            return
        with w.code.count(0, many, 1) as j:
            pixel = at(w, base, step(w, j, y.strides[-1]))
            begun = code.i64("mul", j, stride * self.channel_block)
            area = self.area(w, unit, height, j, 0)

            def over_channels(c: Bound, count: int, mask: Vec | None) -> None:
                for n in range(count):
                    place = at(w, c, n * self.lanes)
                    made = self.finish(w, self.window(w, at(w, begun, place), 1), area)
                    w.store(made, 1, at(w, pixel, place), self.dtype, 1, mask)

            unrolled_vector_loop(w, 0, unit.channels, self.unroll, over_channels)

    def window(self, w: Writer, place: Bound, stride: int) -> Vec:
        """The taps of a row's windows."""
        code, many = w.code, self.taps[-1]
        tap_stride = self.windows.dilation[-1] * self.channel_block
        total = self.from_scratch(w, place, stride)
        if many <= MAX_UNROLLED_TAPS:
            for tap in range(1, many):
                total = self.fold(
                    total, self.from_scratch(w, at(w, place, tap * tap_stride), stride)
                )
            return total
        slot = code.slot(total.type)
        code.do(f"store {total.type} {total.text}, ptr {slot}")
        with code.count(1, many, 1, TAPS_PER_POLL) as tap:
            value = self.from_scratch(w, at(w, place, code.i64("mul", tap, tap_stride)), stride)
            made = self.fold(value.made(f"load {value.type}, ptr {slot}"), value)
            code.do(f"store {made.type} {made.text}, ptr {slot}")
        return total.made(f"load {total.type}, ptr {slot}")

    # -- scratch memory -------------------------------------------------------------------------

    def to_scratch(self, w: Writer, value: Vec, place: Bound) -> None:
        dtype = self.dtype.compute
        store(w.code, value, dtype, advanced(w.code, "%scratch", place, dtype))

    def from_scratch(self, w: Writer, place: Bound, stride: int) -> Vec:
        return strided_load(w, "%scratch", place, stride, self.dtype.compute)

    # -- the extent of a window inside the image ------------------------------------------------

    def bounds(self, w: Writer, axis: int, position: Bound) -> tuple[Bound, Bound]:
        """The taps of a window that are inside the image."""
        if not self.windows.ceil and self.windows.before[axis] == self.windows.after[axis] == 0:
            return 0, self.taps[axis]
        return self.within(w, axis, position, 0, self.image[axis])

    def within(
        self, w: Writer, axis: int, position: Bound, low: DimLike, high: DimLike
    ) -> tuple[Bound, Bound]:
        """The taps of a window that are inside a part of an axis."""
        code, offsets = w.code, self.windows.dilation[axis]
        begun = code.i64("mul", position, self.windows.stride[axis])
        found: list[Bound] = []
        for end in (low, high):
            gap = code.i64("sub", w.size(end + self.windows.before[axis]), begun)
            gap = code.most(0, gap)
            number = (
                code.integer("div", at(w, gap, offsets - 1), offsets, DType.U64)
                if offsets > 1
                else gap
            )
            found.append(code.least(number, self.taps[axis]))
        return found[0], found[1]

    @property
    def is_counted(self) -> bool:
        """Do windows differ in how many elements they average?"""
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
        code, stride, offsets = w.code, self.windows.stride[-1], self.windows.dilation[-1]
        begun = code.i64("mul", at(w, unit.low, j), stride)
        number: list[Vec] = []
        for end in self.counted(self.rows):
            gap = code.i64("sub", w.size(end + self.windows.before[-1]), begun)
            near = code.most(-UNBOUNDED, code.least(gap, UNBOUNDED))
            first = code.converted(near, DType.I64, DType.I32)
            gaps = code.splat(first, DType.I32) - code.iota(DType.I32) * (stride * by)
            taps = (arith.maximum(gaps, gaps.like(0)) + (offsets - 1)) / offsets
            number.append(arith.minimum(taps, taps.like(self.taps[-1])))
        count = (number[1] - number[0]).to(self.dtype.compute) * height
        return arith.maximum(count, count.like(1))


def _power(x: Vec, exponent: float) -> Vec:
    """A non-negative number to a power."""
    if exponent == 1:
        return x
    if exponent in (2, 0.5):
        return x * x if exponent == 2 else x.sqrt()
    return arith.apply("pow", [x, x.like(exponent)], {}, x.dtype)


def strided_load(w: Writer, start: str, place: Bound, stride: int, dtype: DType) -> Vec:
    """Strided elements of scratch memory; stride 2 is deinterleaved from two vectors."""
    where = advanced(w.code, start, place, dtype)
    if stride != 2 or w.code.lanes == 1:
        return load(w.code, dtype, where, stride)
    lanes = w.code.lanes
    halves = [load(w.code, dtype, advanced(w.code, where, n, dtype)) for n in (0, lanes)]
    return halves[0].joined(halves[1], range(0, 2 * lanes, 2))


def make_pool(given: Step, name: str) -> Schedule[Task]:
    return pool_sequence(Pool.of(given), name)


def pool_sequence(made: Pool, name: str) -> Schedule[Task]:
    node, machine = made.given.node, made.given.machine
    folds = made.shape.num_elements * sum(made.taps) * OPS_PER_TAP
    traffic = sum((s.size_bytes for s in node.shapes), node.inputs[0].shape.size_bytes)
    units = made.units.count
    task = Task(
        TaskCode(name, made.source), buffers(1, len(made.given.results)), units,
        machine.units_per_task(units, machine.worker_ns(folds, traffic)), made.scratch,
        summary=_strategy(made, made.windows),
    )  # fmt: skip
    return Schedule((task,))


def _strategy(made: Pool, windows: Windows) -> str:
    lanes = "channels" if made.is_nhwc else "the row"
    area: Any = product(windows.kernel)
    taps = f"{area} taps" if is_static(area) else "taps"
    order = "at once" if made.is_direct else "over columns, then along the row"
    return f"windows of {taps}, reduced {order}; vectorised over {lanes}"
