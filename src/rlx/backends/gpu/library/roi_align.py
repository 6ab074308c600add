"""Region-of-interest align: a thread for each bin of each channel, points in a fixed order.

Edges are floats, of which a rounding can change what is read: they are computed as the op says.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.writer import View, Writer, is_row
from rlx.backends.gpu.lower.elementwise import cast
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import product
from rlx.core.dtype import DType
from rlx.kernel.program.schedule import Schedule
from rlx.program.values import Var

I64 = DType.I64
OUT_OF_RANGE = "a batch index is out of range"
Corners = list[tuple[Var, Var]]
"""Pixels along an axis (in the dtype of indices), and their weights."""


def make_roi_align(made: Launches) -> Schedule[GpuTask]:
    """Every bin the mean, or the greatest, of its points."""
    given = _RoiAlign(made, *(made.operand(i) for i in range(3)))
    y, block = made.result(), made.machine.block
    total = product(y.layout.dims)

    def body(w: Writer) -> None:
        with w.b.when(w.thread < w.dim(total)):
            position = w.split(w.thread, y.layout.dims)
            value = given.bin(w, position)
            w.store(y, w.at(y.layout, position), [value.to(y.dtype)])

    regions = given.regions.layout.dims[0]

    def check(w: Writer) -> None:
        inside = w.thread < w.dim(regions)
        image = w.load(given.images, w.at(given.images.layout, (w.thread,)), inside)[0]
        w.fail(inside & ~is_row(image, w.dim(given.x.layout.dims[0])), OUT_OF_RANGE)

    made.program(
        "check",
        check,
        grid=((regions + (block - 1)) // block,),
        block=block,
        reads=(given.images,),
        failures=(OUT_OF_RANGE,),
    )
    made.program(
        "align",
        body,
        grid=((total + (block - 1)) // block,),
        block=block,
        reads=(given.x, given.regions, given.images),
        writes=(y,),
        note="a thread a bin",
    )
    return made.schedule()


@dataclass(frozen=True, slots=True)
class _RoiAlign:
    made: Launches
    x: View
    regions: View
    images: View

    @property
    def dtype(self) -> DType:
        return self.x.dtype.compute

    def bin(self, w: Writer, position: list[Var]) -> Var:
        """The value of one bin of one channel."""
        b, (region, channel, *place) = w.b, position
        given = w.load(self.images, w.at(self.images.layout, (region,)))[0]
        inside = is_row(given, w.dim(self.x.layout.dims[0]))
        image = w.wide(given).where(inside, 0)
        axes = [self._axis(w, region, axis, place[axis]) for axis in range(2)]
        (top, height, down), (left, width, across) = axes
        is_mean = self.made.node.attrs["mode"] == "avg"
        total = b.variable(0.0 if is_mean else float("-inf"), self.dtype)
        with b.loop(b.const(0, I64), down, carry=[total]) as i:
            rows = self._corners(w, self._point(i, top, height, down), 2)
            with b.loop(b.const(0, I64), across, carry=[total]) as j:
                columns = self._corners(w, self._point(j, left, width, across), 3)
                value = self._interpolated(w, (image, channel), rows, columns, inside)
                total.set(total + value if is_mean else total.max(value))
        count = down * across
        if is_mean:
            return total / count.max(1).to(self.dtype)
        return total.where(count > 0, 0.0)

    def _axis(self, w: Writer, region: Var, axis: int, place: Var) -> tuple[Var, Var, Var]:
        """Where a bin begins along an axis, how large it is, and how many points it has."""
        attrs = self.made.node.attrs
        bins, half = attrs["output_size"][axis], attrs["half_pixel"]
        start, end = (
            w.element(self.regions, (region, n)) * attrs["spatial_scale"] - (0.5 if half else 0.0)
            for n in (1 - axis, 3 - axis)
        )
        length = end - start if half else (end - start).max(1.0)
        size = length / float(bins)
        first = start + size * place.to(self.dtype)
        ratio = attrs["sampling_ratio"]
        if ratio > 0:
            return first, size, w.b.const(ratio, I64)
        return first, size, cast(w.b, size.ceil().max(0.0), I64)

    def _point(self, i: Var, start: Var, size: Var, count: Var) -> Var:
        """The i-th of the points of a bin along an axis."""
        return start + size * ((i.to(self.dtype) + 0.5) / count.to(self.dtype).max(1.0))

    def _corners(self, w: Writer, at: Var, axis: int) -> Corners:
        """The two pixels around a position and their weights; none more than 1 past the edge."""
        size = w.number(self.x.layout.dims[axis])
        inside = (at >= -1.0) & (at <= size.to(self.dtype))
        kept, last = at.max(0.0), (size - 1).to(I64)
        low = cast(w.b, kept.floor(), I64).min(last)
        high = (low + 1).min(last)
        part = (kept - low.to(self.dtype)).where(low < last, 0.0)
        one = w.b.const(1.0, self.dtype)
        return [
            (w.wide(low), (one - part).where(inside, 0.0)),
            (w.wide(high), part.where(inside, 0.0)),
        ]

    def _interpolated(
        self, w: Writer, outer: tuple[Var, Var], rows: Corners, columns: Corners, inside: Var
    ) -> Var:
        parts: list[Var] = []
        for row, a in rows:
            for column, c in columns:
                is_there = inside & (row >= 0) & (column >= 0)
                seen = w.element(self.x, (*outer, row, column), is_there)
                parts.append(seen * (a * c))
        if self.made.node.attrs["mode"] == "avg":
            return (parts[0] + parts[1]) + (parts[2] + parts[3])
        return parts[0].max(parts[1]).max(parts[2].max(parts[3]))
