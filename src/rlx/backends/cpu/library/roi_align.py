"""ROI align and ROI max pooling, NHWC, vectorised over channels.

NCHW images are first transposed to NHWC, so that a pixel is read as whole vectors. For `roi_align`,
the offsets and bilinear weights of a sampling point are computed for a vector of bins at a time,
and staged for all channels. Bin edges are computed in the order that the op defines, for one
rounding can change which pixels are read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.library.resize.coefficients import constant_table
from rlx.backends.cpu.library.strided_copy import (
    Blocks,
    at,
    dim_lanes,
    load_index,
    masked_lane_stride,
    step,
    unrolled_vector_loop,
    vector_loop,
)
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task
from rlx.backends.cpu.schedule.loop import loop_task
from rlx.core.dim import DimLike, lower_bound
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.program.lower_step import copy_kernel
from rlx.kernel.program.schedule import Buffer, Schedule, buffers

I64 = DType.I64
X, ROIS, IMAGES, Y = range(4)
POINTS_PER_POLL = 256
"""Sampling points, or rows of them, between two polls: their number comes from the data."""
OPS_PER_PIXEL = 4
"""Instructions per pixel."""
UNROLL = 4
"""Vectors of channels that are reduced at a time."""


@dataclass(frozen=True, slots=True)
class _RoiKernel(ABC):
    given: Step
    lanes: int
    x: Layout
    """Images in NHWC."""

    @classmethod
    def kernel_sequence(cls, given: Step, name: str) -> Schedule[Task]:
        """The task, after one that transposes NCHW images to NHWC."""
        x, dtype = given.operands[X], given.node.shape.dtype
        lanes = dim_lanes(given.isa, dtype, x.dims[1])
        if x.strides[1] == 1:
            return Schedule((cls(given, lanes, x).task(name, Buffer("operand", X)),))
        dims = (x.dims[0], *x.dims[2:], x.dims[1])
        nhwc, temp = Layout.contiguous(dims).permuted((0, 3, 1, 2)), Buffer("temp", 0)
        copied = copy_kernel(given.node.inputs[X].shape, x, nhwc)
        first = loop_task(copied, [Buffer("operand", X)], [temp], given.machine, f"{name}.image")
        made = cls(given, lanes, nhwc).task(name, temp)
        return Schedule((first, made), (given.node.inputs[X].shape.size_bytes,))

    def task(self, name: str, image: Buffer) -> Task:
        shape, units = self.given.node.shape, self.units.count
        machine, steps = self.given.machine, shape.num_elements * self.pixels * OPS_PER_PIXEL
        grain = machine.units_per_task(units, machine.worker_ns(steps, shape.size_bytes))
        given = (image, *buffers(3, 1)[1:])
        return Task(
            TaskCode(name, self.source), given, units, grain, self.scratch,
            summary=f"{self.strategy}, vectorised over channels",
        )  # fmt: skip

    def source(self, name: str) -> Source:
        w = Writer(self.given.isa, self.lanes)
        with self.units.each(w) as ((region,), low, high):
            self.unit(w, region, low, high)
        return w.source(name)

    @property
    def dtype(self) -> DType:
        return self.given.node.shape.dtype

    @property
    def compute_dtype(self) -> DType:
        return self.dtype.compute

    @property
    def y(self) -> Layout:
        return self.given.results[0]

    @property
    def bins(self) -> tuple[int, int]:
        down, across = self.given.node.attrs["output_size"]
        return int(down), int(across)

    @property
    def scale(self) -> float:
        return self.given.node.attrs["spatial_scale"]

    def image(self, w: Writer, region: Bound) -> Bound:
        """The offset of a region's image."""
        place = w.place(self.given.operands[IMAGES], [region])
        dtype = self.given.node.inputs[IMAGES].shape.dtype
        number = load_index(w, IMAGES, place, dtype, w.size(self.x.dims[0]))
        return at(w, w.size(self.x.offset), step(w, number, self.x.strides[0]))

    def coordinate(self, w: Writer, region: Bound, number: int) -> Vec:
        """One of a region's four coordinates times the scale, broadcast."""
        place = w.place(self.given.operands[ROIS], [region, number])
        return w.load(ROIS, place, self.dtype, 0) * self.scale

    def put(self, w: Writer, made: Vec, place: Bound, c: Bound, mask: Vec | None) -> None:
        """Store channels of a bin, given the offset of its first."""
        stride = self.y.strides[1]
        by = masked_lane_stride(w, stride)
        w.store(made, Y, at(w, place, step(w, c, stride)), self.dtype, by, mask)

    # -- per op -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def units(self) -> Blocks:
        """Some bins of one region each."""

    @property
    @abstractmethod
    def pixels(self) -> int:
        """Pixels per result, roughly."""

    @property
    @abstractmethod
    def strategy(self) -> str:
        """The strategy, for reports."""

    @property
    def scratch(self) -> DimLike:
        return 0

    @abstractmethod
    def unit(self, w: Writer, region: Bound, low: Bound, high: Bound) -> None:
        """Some bins of a region."""


# -- bilinear sampling ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _AxisBins:
    """The bins of a region along an axis: their starts, lane by lane, their size and sampling
    points per bin."""

    starts: Vec
    size: Vec
    count: Bound

    def point(self, w: Writer, number: Bound) -> Vec:
        """The position of a sampling point, in the middle of its part of the bin."""
        whole, dtype = w.code.splat(number, I64), self.size.dtype
        count = w.code.splat(w.code.most(self.count, 1), I64).to(dtype)
        return self.starts + self.size * ((whole.to(dtype) + 0.5) / count)


Corners = tuple[tuple[Vec, Vec], tuple[Vec, Vec]]
"""Two pixels, as integers, and their weights."""


class RoiAlign(_RoiKernel):
    """`roi_align`."""

    __slots__ = ()

    @property
    def units(self) -> Blocks:
        return Blocks((self.y.dims[0], self.bins[0] * self.bins[1]), self.lanes)

    @property
    def pixels(self) -> int:
        return 4 * (self.given.node.attrs["sampling_ratio"] or 2) ** 2

    @property
    def strategy(self) -> str:
        return "bilinear sampling"

    @property
    def scratch(self) -> DimLike:
        """Bytes of the offsets and weights of a sampling point, and of each bin's sums."""
        return self.before + self.lanes * self.row * self.compute_dtype.itemsize

    @property
    def before(self) -> int:
        return self.lanes * 4 * (I64.itemsize + self.compute_dtype.itemsize)

    @property
    def row(self) -> DimLike:
        """Elements of a bin's sums: whole vectors."""
        return (self.x.dims[1] + self.lanes - 1) // self.lanes * self.lanes

    @property
    def is_mean(self) -> bool:
        return self.given.node.attrs["mode"] == "avg"

    def unit(self, w: Writer, region: Bound, low: Bound, high: Bound) -> None:
        code, bins = w.code, w.code.i64("sub", high, low)
        image = self.image(w, region)
        sides = [self.axis_bins(w, region, axis, low) for axis in (0, 1)]
        self.check(w, sides)
        first = code.const(0.0 if self.is_mean else -np.inf, self.compute_dtype)
        with code.count(0, step(w, bins, self.row), self.lanes) as i:
            self.to_scratch(w, first, i)
        with code.count(0, sides[0].count, 1, POINTS_PER_POLL) as i:
            rows = self.corners(w, sides[0].point(w, i), 0)
            with code.count(0, sides[1].count, 1, POINTS_PER_POLL) as j:
                self.spill(w, rows, self.corners(w, sides[1].point(w, j), 1))
                self.add(w, image, bins)
        count = code.i64("mul", sides[0].count, sides[1].count)
        self.results(w, region, low, bins, count)

    def check(self, w: Writer, sides: list[_AxisBins]) -> None:
        """Fail on a sampling point in an image without pixels."""
        code = w.code
        for dim in self.x.dims[2:]:
            if lower_bound(dim) > 0:
                continue
            wrong = code.compare("eq", w.size(dim), 0)
            for side in sides:
                has_points = code.compare("gt", side.count, 0)
                wrong = code.both(wrong, has_points)
            w.fail(wrong, 1)

    def axis_bins(self, w: Writer, region: Bound, axis: int, low: Bound) -> _AxisBins:
        """Bins along y (0) or x (1). Regions are (x, y, x, y)."""
        attrs, bins = self.given.node.attrs, self.bins[axis]
        ends = [self.coordinate(w, region, 1 - axis + n) - self.offset for n in (0, 2)]
        length = ends[1] - ends[0]
        if not attrs["half_pixel"]:
            length = arith.maximum(length, length.like(1.0))
        size = length / float(bins)
        starts = ends[0] + size * self.steps(w, axis, low)
        if attrs["sampling_ratio"] > 0:
            return _AxisBins(starts, size, attrs["sampling_ratio"])
        whole = -(-size).floor()
        own = arith.maximum(whole, whole.like(0.0)).to(I64).lane()
        return _AxisBins(starts, size, own)

    @property
    def offset(self) -> float:
        return 0.5 if self.given.node.attrs["half_pixel"] else 0.0

    def steps(self, w: Writer, axis: int, low: Bound) -> Vec:
        """The index of each lane's bin along an axis; past the last bin any."""
        every = np.arange(-(-(self.bins[0] * self.bins[1]) // self.lanes) * self.lanes)
        every %= self.bins[0] * self.bins[1]
        found = every // self.bins[1] if axis == 0 else every % self.bins[1]
        base = constant_table(w.code, found.astype(self.compute_dtype.numpy))
        return load(w.code, self.compute_dtype, advanced(w.code, base, low, self.compute_dtype))

    def corners(self, w: Writer, position: Vec, axis: int) -> Corners:
        """The two pixels around each position and their weights; 0 if more than 1 past the edge."""
        code, dim = w.code, w.size(self.x.dims[2 + axis])
        last = code.splat(code.i64("sub", dim, 1), I64)
        inside = (position >= -1.0) & (position <= code.splat(dim, I64).to(self.compute_dtype))
        clamped = arith.maximum(position, position.like(0.0))
        low = arith.minimum(clamped.floor().to(I64), last)
        high = arith.minimum(low + 1, last)
        part = (clamped - low.to(self.compute_dtype)).where(low < last, 0.0)
        weights = [v.where(inside, 0.0) for v in (part.like(1.0) - part, part)]
        stride = code.splat(w.size(self.x.strides[2 + axis]), I64)
        return (low * stride, high * stride), (weights[0], weights[1])

    def spill(self, w: Writer, rows: Corners, columns: Corners) -> None:
        """Stage a sampling point of each bin in scratch: four pixel offsets, then their weights."""
        code = w.code
        for r in (0, 1):
            for c in (0, 1):
                n = (2 * r + c) * self.lanes
                place, weight = rows[0][r] + columns[0][c], rows[1][r] * columns[1][c]
                store(code, place, I64, advanced(code, "%scratch", n, I64))
                store(
                    code,
                    weight,
                    self.compute_dtype,
                    advanced(code, self.weights(w), n, self.compute_dtype),
                )

    def weights(self, w: Writer) -> str:
        return w.code.advanced("%scratch", 4 * self.lanes * I64.itemsize, DType.U8)

    def sums(self, w: Writer, place: Bound) -> str:
        start = w.code.advanced("%scratch", self.before, DType.U8)
        return advanced(w.code, start, place, self.compute_dtype)

    def to_scratch(self, w: Writer, value: Vec, place: Bound) -> None:
        store(w.code, value, self.compute_dtype, self.sums(w, place))

    def add(self, w: Writer, image: Bound, bins: Bound) -> None:
        """Accumulate the sampling point of each bin, in all channels."""
        code, join = w.code, (lambda a, b: a + b) if self.is_mean else arith.maximum
        weights = self.weights(w)
        with code.count(0, bins, 1) as b:
            to, pixels = step(w, b, self.row), list[tuple[Bound, Vec]]()
            for n in range(4):
                at_ = at(w, b, n * self.lanes)
                place = code.load_scalar(advanced(code, "%scratch", at_, I64), DType.I64)
                weight = load(
                    code, self.compute_dtype, advanced(code, weights, at_, self.compute_dtype), 0
                )
                pixels.append((at(w, image, place), weight))

            def body(c: Bound, mask: Vec | None) -> None:
                seen = [w.load(X, at(w, p, c), self.dtype, 1, mask) * v for p, v in pixels]
                point = join(join(seen[0], seen[1]), join(seen[2], seen[3]))
                so_far = load(code, self.compute_dtype, self.sums(w, at(w, to, c)))
                self.to_scratch(w, join(so_far, point), at(w, to, c))

            vector_loop(w, 0, w.size(self.x.dims[1]), body)

    def results(self, w: Writer, region: Bound, low: Bound, bins: Bound, count: Bound) -> None:
        """Sums to means; a bin without sampling points is 0."""
        code, many = w.code, w.code.splat(count, I64)
        with code.count(0, bins, 1) as b:
            row, column = w.split(at(w, low, b), self.bins)
            place, from_ = w.place(self.y, [region, 0, row, column]), step(w, b, self.row)

            def body(c: Bound, mask: Vec | None) -> None:
                made = load(code, self.compute_dtype, self.sums(w, at(w, from_, c)))
                if self.is_mean:
                    made = made / arith.maximum(many, many.like(1)).to(self.compute_dtype)
                else:
                    made = made.where(many > 0, 0.0)
                self.put(w, made, place, c, mask)

            vector_loop(w, 0, w.size(self.x.dims[1]), body)


# -- max pooling ----------------------------------------------------------------------------------


class MaxRoiPool(_RoiKernel):
    """`max_roi_pool`."""

    __slots__ = ()

    @property
    def units(self) -> Blocks:
        return Blocks((self.y.dims[0], self.bins[0]), 1)

    @property
    def pixels(self) -> int:
        return 16

    @property
    def strategy(self) -> str:
        return "maximum over bins"

    def unit(self, w: Writer, region: Bound, low: Bound, high: Bound) -> None:
        """A row of bins."""
        image, rows = self.image(w, region), self.bin_range(w, region, 0, low)
        with w.code.count(0, self.bins[1], 1) as q:
            columns = self.bin_range(w, region, 1, q)
            to = w.place(self.y, [region, 0, low, q])

            def body(c: Bound, count: int, mask: Vec | None) -> None:
                made = self.max_pixels(w, at(w, image, c), rows, columns, count, mask)
                for n, value in enumerate(made):
                    self.put(w, value, to, at(w, c, n * self.lanes), mask)

            unrolled_vector_loop(w, 0, w.size(self.x.dims[1]), UNROLL, body)

    def bin_range(self, w: Writer, region: Bound, axis: int, number: Bound) -> tuple[Bound, Bound]:
        """The pixel range of a bin, along y (0) or x (1)."""
        code, bins = w.code, self.bins[axis]
        start, end = (_rounded(self.coordinate(w, region, 1 - axis + n)) for n in (0, 2))
        length = end - start + 1.0
        size = arith.maximum(length, length.like(1.0)) / float(bins)
        steps = [code.splat(at(w, number, n), I64).to(self.compute_dtype) for n in (0, 1)]
        first = start + (size * steps[0]).floor()
        after = start - (-(size * steps[1])).floor()
        most = w.size(self.x.dims[2 + axis])
        low, high = (code.least(code.most(v.to(I64).lane(), 0), most) for v in (first, after))
        return low, high

    def max_pixels(
        self, w: Writer, base: Bound, rows: tuple[Bound, Bound], columns: tuple[Bound, Bound],
        count: int, mask: Vec | None,
    ) -> list[Vec]:  # fmt: skip
        """The maximum over the pixels of a bin, in some vectors of channels; 0 where it has
        none."""
        code, none = w.code, w.code.const(-np.inf, self.compute_dtype)
        slots = [code.slot(none.type) for _ in range(count)]
        code.do(*(f"store {none.type} {none.text}, ptr {s}" for s in slots))
        with code.count(*rows, 1, POINTS_PER_POLL) as y, code.count(*columns, 1) as x:
            pixel = at(w, base, step(w, y, self.x.strides[2]), step(w, x, self.x.strides[3]))
            for n, slot in enumerate(slots):
                value = w.load(X, at(w, pixel, n * self.lanes), self.dtype, 1, mask)
                made = arith.maximum(value.made(f"load {value.type}, ptr {slot}"), value)
                code.do(f"store {made.type} {made.text}, ptr {slot}")
        has_rows, has_columns = (code.compare("lt", a, b) for a, b in (rows, columns))
        has_any = code.splat(code.both(has_rows, has_columns), DType.BOOL)
        return [none.made(f"load {none.type}, ptr {s}").where(has_any, 0.0) for s in slots]


def _rounded(x: Vec) -> Vec:
    """Round to nearest, halves away from 0."""
    return (x.abs() + 0.5).floor().copysign(x)


def make_roi_align(given: Step, name: str) -> Schedule[Task]:
    return RoiAlign.kernel_sequence(given, name)


def make_max_roi_pool(given: Step, name: str) -> Schedule[Task]:
    return MaxRoiPool.kernel_sequence(given, name)
