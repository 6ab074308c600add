"""Regions of images: channels as lanes.

Images whose channels lie apart are first laid out with them side by side, so that a pixel is read
as whole vectors. Of `roi_align`, where a point of each bin lies and what the four pixels around it
weigh is computed for a vector of bins at a time, and kept for all channels. Edges are computed in
the order in which the op says it, for a rounding of one can change which pixels are read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.library.resize.coefficients import table
from rlx.backends.cpu.library.strided_copy import (
    Blocks,
    at,
    filled,
    index,
    lane_stride,
    runs,
    step,
    vectors,
)
from rlx.backends.cpu.llvm.builder import Bound, Vec
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.program.loop_task import copy_kernel, loop_task
from rlx.backends.cpu.program.task import (
    Buffer,
    KernelSequence,
    Step,
    Task,
    buffers,
    estimated_ns,
    grain_of,
)
from rlx.core.dim import DimLike, lower_bound
from rlx.core.dtype import DType
from rlx.core.layout import Layout

I64 = DType.I64
X, ROIS, IMAGES, Y = range(4)
POINTS_POLLED = 256
"""Points, or rows of them, between two polls: as many as a region says, whatever it says."""
STEPS = 4
"""Instructions of a pixel."""
TOGETHER = 4
"""Vectors of channels that are folded at a time."""


@dataclass(frozen=True, slots=True)
class _Regions(ABC):
    given: Step
    lanes: int
    x: Layout
    """Images with their channels side by side."""

    @classmethod
    def recipe(cls, given: Step, name: str) -> KernelSequence:
        """The task, and before it one that turns images round if their channels lie apart."""
        x, dtype = given.operands[X], given.node.shape.dtype
        lanes = filled(given.isa, dtype, x.dims[1])
        if x.strides[1] == 1:
            return KernelSequence((cls(given, lanes, x).task(name, Buffer("operand", X)),))
        dims = (x.dims[0], *x.dims[2:], x.dims[1])
        turned, temp = Layout.contiguous(dims).permuted((0, 3, 1, 2)), Buffer("temp", 0)
        moved = copy_kernel(given.node.inputs[X].shape, x, turned)
        first = loop_task(moved, [Buffer("operand", X)], [temp], given.machine, f"{name}.image")
        made = cls(given, lanes, turned).task(name, temp)
        return KernelSequence((first, made), (given.node.inputs[X].shape.size_bytes,))

    def task(self, name: str, image: Buffer) -> Task:
        w = Writer(self.given.isa, self.lanes)
        with self.units.each(w) as ((region,), low, high):
            self.unit(w, region, low, high)
        shape, units = self.given.node.shape, self.units.count
        ns = estimated_ns(shape.num_elements * self.pixels * STEPS, shape.size_bytes)
        given = (image, *buffers(3, 1)[1:])
        return Task(
            w.function(name), given, w.sizes, units, grain_of(units, ns), self.scratch,
            summary=f"{self.how}, lanes along channels",
        )  # fmt: skip

    @property
    def dtype(self) -> DType:
        return self.given.node.shape.dtype

    @property
    def wide(self) -> DType:
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
        """Where the image of a region begins."""
        place = w.place(self.given.operands[IMAGES], [region])
        dtype = self.given.node.inputs[IMAGES].shape.dtype
        number = index(w, IMAGES, place, dtype, w.size(self.x.dims[0]))
        return at(w, w.size(self.x.offset), step(w, number, self.x.strides[0]))

    def edge(self, w: Writer, region: Bound, number: int) -> Vec:
        """One of a region's four numbers times the scale, in every lane."""
        place = w.place(self.given.operands[ROIS], [region, number])
        return w.load(ROIS, place, self.dtype, 0) * self.scale

    def put(self, w: Writer, made: Vec, place: Bound, c: Bound, mask: Vec | None) -> None:
        """Channels of a bin, given where the first of all lies."""
        stride = self.y.strides[1]
        by = lane_stride(w, stride)
        w.store(made, Y, at(w, place, step(w, c, stride)), self.dtype, by, mask)

    # -- what an op says ----------------------------------------------------------------------

    @property
    @abstractmethod
    def units(self) -> Blocks:
        """Some bins of one region each."""

    @property
    @abstractmethod
    def pixels(self) -> int:
        """How many a result is made of, roughly."""

    @property
    @abstractmethod
    def how(self) -> str:
        """What the kernel does, for reports."""

    @property
    def scratch(self) -> DimLike:
        return 0

    @abstractmethod
    def unit(self, w: Writer, region: Bound, low: Bound, high: Bound) -> None:
        """Some bins of a region."""


# -- points between pixels ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Side:
    """An axis of a region: where its bins begin, lane by lane, how large they are and how many
    points each has."""

    starts: Vec
    size: Vec
    count: Bound

    def point(self, w: Writer, number: Bound) -> Vec:
        """Where a point lies, in the middle of its part of the bin."""
        whole, dtype = w.code.splat(number, I64), self.size.dtype
        count = w.code.splat(w.code.most(self.count, 1), I64).to(dtype)
        return self.starts + self.size * ((whole.to(dtype) + 0.5) / count)


Corners = tuple[tuple[Vec, Vec], tuple[Vec, Vec]]
"""Two pixels, as whole numbers, and their weights."""


class RoiAlign(_Regions):
    """`roi_align`."""

    __slots__ = ()

    @property
    def units(self) -> Blocks:
        return Blocks((self.y.dims[0], self.bins[0] * self.bins[1]), self.lanes)

    @property
    def pixels(self) -> int:
        return 4 * (self.given.node.attrs["sampling_ratio"] or 2) ** 2

    @property
    def how(self) -> str:
        return "points between pixels"

    @property
    def scratch(self) -> DimLike:
        """Bytes of a point's pixels and their weights, and of each bin's sums."""
        return self.before + self.lanes * self.row * self.wide.itemsize

    @property
    def before(self) -> int:
        return self.lanes * 4 * (I64.itemsize + self.wide.itemsize)

    @property
    def row(self) -> DimLike:
        """Sums of a bin: whole vectors."""
        return (self.x.dims[1] + self.lanes - 1) // self.lanes * self.lanes

    @property
    def is_mean(self) -> bool:
        return self.given.node.attrs["mode"] == "avg"

    def unit(self, w: Writer, region: Bound, low: Bound, high: Bound) -> None:
        code, bins = w.code, w.code.i64("sub", high, low)
        image = self.image(w, region)
        sides = [self.side(w, region, axis, low) for axis in (0, 1)]
        self.check(w, sides)
        first = code.const(0.0 if self.is_mean else -np.inf, self.wide)
        with code.count(0, step(w, bins, self.row), self.lanes) as i:
            self.keep(w, first, i)
        with code.count(0, sides[0].count, 1, POINTS_POLLED) as i:
            rows = self.corners(w, sides[0].point(w, i), 0)
            with code.count(0, sides[1].count, 1, POINTS_POLLED) as j:
                self.spill(w, rows, self.corners(w, sides[1].point(w, j), 1))
                self.add(w, image, bins)
        count = code.i64("mul", sides[0].count, sides[1].count)
        self.results(w, region, low, bins, count)

    def check(self, w: Writer, sides: list[_Side]) -> None:
        """A point of an image without pixels has none to read."""
        code = w.code
        for dim in self.x.dims[2:]:
            if lower_bound(dim) > 0:
                continue
            wrong = code.let(f"icmp eq i64 {w.size(dim)}, 0")
            for side in sides:
                has_points = code.let(f"icmp sgt i64 {side.count}, 0")
                wrong = code.let(f"and i1 {wrong}, {has_points}")
            w.fail(wrong, 1)

    def side(self, w: Writer, region: Bound, axis: int, low: Bound) -> _Side:
        """Down (0) or across (1). Regions are (x, y, x, y)."""
        attrs, bins = self.given.node.attrs, self.bins[axis]
        ends = [self.edge(w, region, 1 - axis + n) - self.offset for n in (0, 2)]
        length = ends[1] - ends[0]
        if not attrs["half_pixel"]:
            length = arith.maximum(length, length.like(1.0))
        size = length / float(bins)
        starts = ends[0] + size * self.steps(w, axis, low)
        if attrs["sampling_ratio"] > 0:
            return _Side(starts, size, attrs["sampling_ratio"])
        whole = -(-size).floor()
        own = arith.maximum(whole, whole.like(0.0)).to(I64).lane()
        return _Side(starts, size, own)

    @property
    def offset(self) -> float:
        return 0.5 if self.given.node.attrs["half_pixel"] else 0.0

    def steps(self, w: Writer, axis: int, low: Bound) -> Vec:
        """The number of each lane's bin along an axis; past the last bin any."""
        every = np.arange(-(-(self.bins[0] * self.bins[1]) // self.lanes) * self.lanes)
        every %= self.bins[0] * self.bins[1]
        found = every // self.bins[1] if axis == 0 else every % self.bins[1]
        base = table(w.code, found.astype(self.wide.numpy))
        return load(w.code, self.wide, advanced(w.code, base, low, self.wide))

    def corners(self, w: Writer, position: Vec, axis: int) -> Corners:
        """The two pixels around each position and their weights; none more than 1 past the
        edge."""
        code, dim = w.code, w.size(self.x.dims[2 + axis])
        last = code.splat(code.i64("sub", dim, 1), I64)
        inside = (position >= -1.0) & (position <= code.splat(dim, I64).to(self.wide))
        kept = arith.maximum(position, position.like(0.0))
        low = arith.minimum(kept.floor().to(I64), last)
        high = arith.minimum(low + 1, last)
        part = (kept - low.to(self.wide)).where(low < last, 0.0)
        weights = [v.where(inside, 0.0) for v in (part.like(1.0) - part, part)]
        stride = code.splat(w.size(self.x.strides[2 + axis]), I64)
        return (low * stride, high * stride), (weights[0], weights[1])

    def spill(self, w: Writer, rows: Corners, columns: Corners) -> None:
        """A point of each bin to scratch memory: its four pixels, then what they weigh."""
        code = w.code
        for r in (0, 1):
            for c in (0, 1):
                n = (2 * r + c) * self.lanes
                place, weight = rows[0][r] + columns[0][c], rows[1][r] * columns[1][c]
                store(code, place, I64, advanced(code, "%scratch", n, I64))
                store(code, weight, self.wide, advanced(code, self.weights(w), n, self.wide))

    def weights(self, w: Writer) -> str:
        return w.code.let(f"getelementptr i8, ptr %scratch, i64 {4 * self.lanes * I64.itemsize}")

    def sums(self, w: Writer, place: Bound) -> str:
        start = w.code.let(f"getelementptr i8, ptr %scratch, i64 {self.before}")
        return advanced(w.code, start, place, self.wide)

    def keep(self, w: Writer, value: Vec, place: Bound) -> None:
        store(w.code, value, self.wide, self.sums(w, place))

    def add(self, w: Writer, image: Bound, bins: Bound) -> None:
        """The point of each bin, in all channels."""
        code, join = w.code, (lambda a, b: a + b) if self.is_mean else arith.maximum
        weights = self.weights(w)
        with code.count(0, bins, 1) as b:
            to, pixels = step(w, b, self.row), list[tuple[Bound, Vec]]()
            for n in range(4):
                at_ = at(w, b, n * self.lanes)
                place = code.let(f"load i64, ptr {advanced(code, '%scratch', at_, I64)}")
                weight = load(code, self.wide, advanced(code, weights, at_, self.wide), 0)
                pixels.append((at(w, image, place), weight))

            def body(c: Bound, mask: Vec | None) -> None:
                seen = [w.load(X, at(w, p, c), self.dtype, 1, mask) * v for p, v in pixels]
                point = join(join(seen[0], seen[1]), join(seen[2], seen[3]))
                so_far = load(code, self.wide, self.sums(w, at(w, to, c)))
                self.keep(w, join(so_far, point), at(w, to, c))

            vectors(w, 0, w.size(self.x.dims[1]), body)

    def results(self, w: Writer, region: Bound, low: Bound, bins: Bound, count: Bound) -> None:
        """Sums as means; a bin without points is 0."""
        code, many = w.code, w.code.splat(count, I64)
        with code.count(0, bins, 1) as b:
            row, column = w.split(at(w, low, b), self.bins)
            place, from_ = w.place(self.y, [region, 0, row, column]), step(w, b, self.row)

            def body(c: Bound, mask: Vec | None) -> None:
                made = load(code, self.wide, self.sums(w, at(w, from_, c)))
                if self.is_mean:
                    made = made / arith.maximum(many, many.like(1)).to(self.wide)
                else:
                    made = made.where(many > 0, 0.0)
                self.put(w, made, place, c, mask)

            vectors(w, 0, w.size(self.x.dims[1]), body)


# -- the greatest pixel ---------------------------------------------------------------------------


class MaxRoiPool(_Regions):
    """`max_roi_pool`."""

    __slots__ = ()

    @property
    def units(self) -> Blocks:
        return Blocks((self.y.dims[0], self.bins[0]), 1)

    @property
    def pixels(self) -> int:
        return 16

    @property
    def how(self) -> str:
        return "the greatest pixels of bins"

    def unit(self, w: Writer, region: Bound, low: Bound, high: Bound) -> None:
        """A row of bins."""
        image, rows = self.image(w, region), self.cut(w, region, 0, low)
        with w.code.count(0, self.bins[1], 1) as q:
            columns = self.cut(w, region, 1, q)
            to = w.place(self.y, [region, 0, low, q])

            def body(c: Bound, count: int, mask: Vec | None) -> None:
                made = self.greatest(w, at(w, image, c), rows, columns, count, mask)
                for n, value in enumerate(made):
                    self.put(w, value, to, at(w, c, n * self.lanes), mask)

            runs(w, 0, w.size(self.x.dims[1]), TOGETHER, body)

    def cut(self, w: Writer, region: Bound, axis: int, number: Bound) -> tuple[Bound, Bound]:
        """The first pixel of a bin and the one after its last, down (0) or across (1)."""
        code, bins = w.code, self.bins[axis]
        start, end = (_rounded(self.edge(w, region, 1 - axis + n)) for n in (0, 2))
        length = end - start + 1.0
        size = arith.maximum(length, length.like(1.0)) / float(bins)
        steps = [code.splat(at(w, number, n), I64).to(self.wide) for n in (0, 1)]
        first = start + (size * steps[0]).floor()
        after = start - (-(size * steps[1])).floor()
        most = w.size(self.x.dims[2 + axis])
        low, high = (code.least(code.most(v.to(I64).lane(), 0), most) for v in (first, after))
        return low, high

    def greatest(
        self, w: Writer, base: Bound, rows: tuple[Bound, Bound], columns: tuple[Bound, Bound],
        count: int, mask: Vec | None,
    ) -> list[Vec]:  # fmt: skip
        """Of the pixels of a bin, in some vectors of channels; 0 where it has none."""
        code, none = w.code, w.code.const(-np.inf, self.wide)
        slots = [code.slot(none.type) for _ in range(count)]
        code.do(*(f"store {none.type} {none.text}, ptr {s}" for s in slots))
        with code.count(*rows, 1, POINTS_POLLED) as y, code.count(*columns, 1) as x:
            pixel = at(w, base, step(w, y, self.x.strides[2]), step(w, x, self.x.strides[3]))
            for n, slot in enumerate(slots):
                value = w.load(X, at(w, pixel, n * self.lanes), self.dtype, 1, mask)
                made = arith.maximum(value.made(f"load {value.type}, ptr {slot}"), value)
                code.do(f"store {made.type} {made.text}, ptr {slot}")
        tall, wide = (code.let(f"icmp slt i64 {a}, {b}") for a, b in (rows, columns))
        has_any = code.splat(code.let(f"and i1 {tall}, {wide}"), DType.BOOL)
        return [none.made(f"load {none.type}, ptr {s}").where(has_any, 0.0) for s in slots]


def _rounded(x: Vec) -> Vec:
    """To the nearest whole number, halves away from 0."""
    return (x.abs() + 0.5).floor().copysign(x)
