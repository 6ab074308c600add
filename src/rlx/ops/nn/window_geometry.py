"""Sliding-window geometry of convolutions and pooling: stride, padding, dilation.

Padding is all the numbers before the data, one per axis, then all those after it. A window starts
every `stride` steps and takes `dilation` steps between its taps; along one axis there are
(n + pads - span) // stride + 1 of them, where span = dilation * (taps - 1) + 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rlx import ops
from rlx.core.dim import Dim, DimLike, dim_max, dim_min, product
from rlx.core.errors import GraphError, UnsupportedError
from rlx.core.requirements import require_size
from rlx.core.shape import Shape
from rlx.ops.compose import dims_of
from rlx.ops.draw import Draw
from rlx.ops.op import Array

Ints = tuple[int, ...]
MAX_TAPS = 256
"""A lowering writes one slice per tap: past this many a target needs a kernel of its own."""


def count_of(room: DimLike, end: DimLike, step: int, *, ceil: bool) -> DimLike:
    """How many windows begin along an axis that has `room` beyond the first, before its `end`."""
    if not ceil:
        return room // step + 1
    return dim_min((room + step - 1) // step + 1, (end - 1) // step + 1)


@dataclass(frozen=True, slots=True)
class Windows:
    """The geometry of sliding windows over any number of axes. `ceil` adds one that runs over the
    end of the padding, as long as it starts before the data ends."""

    kernel: tuple[DimLike, ...]
    stride: Ints
    padding: Ints
    dilation: Ints
    ceil: bool = False

    def check(self, rank: int) -> None:
        """Every number is there, for an operand of `rank` dims, and in its range."""
        axes = rank - 2
        if axes < 1:
            raise GraphError(
                "operand 0 has no axes after batch and channels. Give one with at least 3 axes"
            )
        for name, values, count, least in (
            ("kernel", self.kernel, axes, 1),
            ("stride", self.stride, axes, 1),
            ("padding", self.padding, 2 * axes, 0),
            ("dilation", self.dilation, axes, 1),
        ):
            if len(values) != count or any(not isinstance(v, Dim) and v < least for v in values):
                shown = ", ".join(map(str, values))
                raise GraphError(f"{name}: expected {count} numbers from {least}, got ({shown})")

    @property
    def before(self) -> Ints:
        return self.padding[: len(self.kernel)]

    @property
    def after(self) -> Ints:
        return self.padding[len(self.kernel) :]

    @property
    def spans(self) -> tuple[DimLike, ...]:
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation))

    @property
    def area(self) -> DimLike:
        return product(self.kernel)

    def counts(self, image: Sequence[DimLike]) -> tuple[DimLike, ...]:
        """How many windows there are along each axis."""
        return tuple(self._count(axis, n) for axis, n in enumerate(image))

    def _count(self, axis: int, n: DimLike) -> DimLike:
        before, after, span = self.before[axis], self.after[axis], self.spans[axis]
        whole = n + before + after
        room = whole - span
        require_size(room, f"the window spans {span}, but the padded axis {axis + 2} is {whole}")
        return count_of(room, n + before, self.stride[axis], ceil=self.ceil)

    def reach(self, image: Sequence[DimLike]) -> tuple[DimLike, ...]:
        """What the windows read outside of the image: before it, then after it."""
        after: list[DimLike] = []
        for axis, (n, count) in enumerate(zip(image, self.counts(image))):
            end = (count - 1) * self.stride[axis] + self.spans[axis]
            after.append(dim_max(0, end - n - self.before[axis]))
        return (*self.before, *after)

    # -- in NumPy ---------------------------------------------------------------------------------

    def taps(self, x: Array, fill: Any) -> Array:
        """[batch, channels, *counts, *kernel]: what each window sees."""
        image = x.shape[2:]
        return self.seen(np.pad(x, margins(self.reach(image)), constant_values=fill), image)

    def seen(self, padded: Array, image: Sequence[int]) -> Array:
        """The same of an image that has been padded to its reach, or further."""
        axes = tuple(range(2, padded.ndim))
        every = sliding_window_view(padded, tuple(int(s) for s in self.spans), axes)
        steps = [slice(None, None, s) for s in (*self.stride, *self.dilation)]
        kept = [slice(int(c)) for c in self.counts(image)]
        return every[(slice(None), slice(None), *steps)][(slice(None), slice(None), *kept)]

    def spread(self, columns: Array, image: Sequence[int]) -> Array:
        """What taps, [batch, channels, *kernel, *counts], add up to where they came from."""
        axes = len(self.kernel)
        counts = columns.shape[2 + axes :]
        sizes = [n + b + a for n, b, a in zip(image, self.before, self.after)]
        made = np.zeros((*columns.shape[:2], *sizes), columns.dtype)
        for tap in np.ndindex(*columns.shape[2 : 2 + axes]):
            starts = [t * d for t, d in zip(tap, self.dilation)]
            place = [
                slice(s, s + c * step, step) for s, c, step in zip(starts, counts, self.stride)
            ]
            made[(..., *place)] += columns[(slice(None), slice(None), *tap)]
        return made[(..., *(slice(b, b + n) for b, n in zip(self.before, image)))]

    # -- in table ops -----------------------------------------------------------------------------

    def shifts(self, x: Any, value: float) -> list[Any]:
        """The taps in table ops: for each, the image shifted and strided."""
        image = dims_of(x)[2:]
        return self.shifted(padded(x, self.reach(image), value), image)

    def shifted(self, x: Any, image: Sequence[DimLike]) -> list[Any]:
        """The same of an image that has been padded to its reach, or further."""
        counts, outer = self.counts(image), dims_of(x)[:2]
        found: list[Any] = []
        for starts in self.tap_offsets():
            stops = [s + (m - 1) * step + 1 for s, m, step in zip(starts, counts, self.stride)]
            found.append(ops.slice(x, starts=(0, 0, *starts), stops=(*outer, *stops),
                                   steps=(1, 1, *self.stride)))  # fmt: skip
        return found

    def tap_offsets(self, limit: int | None = MAX_TAPS) -> Iterator[list[int]]:
        """The offset of each tap in its window; past the limit, one op per tap is not sensible."""
        sizes = tuple(k for k in self.kernel if not isinstance(k, Dim))
        if len(sizes) != len(self.kernel) or (limit is not None and np.prod(sizes) > limit):
            shown = " x ".join(map(str, self.kernel))
            raise UnsupportedError(f"a kernel of {shown} is lowered only up to {MAX_TAPS} taps")
        for tap in np.ndindex(*sizes):
            yield [int(t) * d for t, d in zip(tap, self.dilation)]


def interior_padded(x: Any, stride: Ints) -> Any:
    """[batch, channels, *image] with stride - 1 zeros after each element of each axis."""
    if all(s == 1 for s in stride):
        return x
    outer, image = dims_of(x)[:2], dims_of(x)[2:]
    single = [d for n in image for d in (n, 1)]
    high = [d for s in stride for d in (0, s - 1)]
    wide = ops.pad(ops.reshape(x, dims=(*outer, *single)), low=(0,) * (2 + len(high)),
                   high=(0, 0, *high), value=0.0)  # fmt: skip
    return ops.reshape(wide, dims=(*outer, *(n * s for n, s in zip(image, stride))))


def cropped(x: Any, before: Ints, image: Sequence[DimLike]) -> Any:
    """The crop of these sizes that starts `before` elements into [batch, channels, ...]."""
    for axis, (start, size) in enumerate(zip(before, image), 2):
        x = ops.narrow(x, axis=axis, start=start, length=size)
    return x


def padded(x: Any, reach: Sequence[DimLike], value: float) -> Any:
    """An image with more of `value` before and after it, in table ops."""
    if all(not isinstance(r, Dim) and r == 0 for r in reach):
        return x
    axes = len(reach) // 2
    return ops.pad(x, low=(0, 0, *reach[:axes]), high=(0, 0, *reach[axes:]), value=value)


def margins(reach: Sequence[DimLike]) -> list[tuple[int, int]]:
    """The same for `np.pad`."""
    axes = len(reach) // 2
    return [(0, 0), (0, 0), *((int(a), int(b)) for a, b in zip(reach[:axes], reach[axes:]))]


def with_default_strides(x: Shape, *_: Shape, **attrs: Any) -> dict[str, Any]:
    """Strides, padding and dilation that are left out, as numbers: 1, 0 and 1 for each axis."""
    axes = max(0, x.rank - 2)
    plain = {"stride": (1,) * axes, "padding": (0,) * (2 * axes), "dilation": (1,) * axes,
             "output_padding": (0,) * axes}  # fmt: skip
    return {k: attrs[k] or v for k, v in plain.items() if k in attrs}


# -- drawing --------------------------------------------------------------------------------------


def draw_kernel(draw: Draw) -> tuple[Ints, dict[str, Any]]:
    """A kernel of 1 to 3 axes, and its stride, padding and dilation."""
    axes = draw.integer(1, 3)
    kernel = tuple(draw.integer(1, 3 if axes < 3 else 2) for _ in range(axes))
    return kernel, {
        "stride": tuple(draw.integer(1, 3) for _ in range(axes)),
        "padding": tuple(draw.integer(0, 2) for _ in range(2 * axes)),
        "dilation": tuple(draw.integer(1, 2) for _ in range(axes)),
    }


def draw_image(draw: Draw, windows: Windows) -> list[int]:
    """Sizes that the window fits into."""
    least = [int(s) - b - a for s, b, a in zip(windows.spans, windows.before, windows.after)]
    return [max(0, n) + draw.integer(0, 4 if len(least) < 3 else 2) for n in least]
