"""Where windows lie: the attributes that convolutions and pools share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlx import ops
from rlx.dim import Dim, DimLike, dim_max, provably_le
from rlx.errors import GraphError
from rlx.ir.mir import Node
from rlx.onnx.call import Call
from rlx.onnx.narrowing import require


@dataclass(frozen=True, slots=True)
class Geometry:
    """Kernel, stride and dilation per axis; padding before the data, then after it."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[DimLike, ...]
    ceil: bool = False

    @property
    def spans(self) -> tuple[int, ...]:
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation))

    @property
    def is_plain(self) -> bool:
        """Is the padding known, and never all that a window sees?"""
        return all(
            isinstance(p, int) and 0 <= p < s for p, s in zip(self.padding, (*self.spans,) * 2)
        )

    @property
    def attrs(self) -> dict[str, Any]:
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}

    @property
    def bare(self) -> dict[str, Any]:
        """The same for an image that has its padding already."""
        return {**self.attrs, "padding": (0,) * len(self.padding)}

    def passes(self, most: int) -> list[Geometry]:
        """The same windows; axis by axis, each with a window of 1 on the others, where they have
        more than `most` taps: greatest elements and means are those of rows of them."""
        if math.prod(self.kernel) <= most:
            return [self]
        return [self._along(axis) for axis in range(len(self.kernel)) if self._works(axis)]

    def _works(self, axis: int) -> bool:
        pads = (self.padding[axis], self.padding[axis + len(self.kernel)])
        return (self.kernel[axis], self.stride[axis], *pads) != (1, 1, 0, 0)

    def _along(self, axis: int) -> Geometry:
        def only(values: Sequence[Any], other: int) -> tuple[Any, ...]:
            return tuple(v if i == axis else other for i, v in enumerate(values))

        axes = len(self.kernel)
        padding = (*only(self.padding[:axes], 0), *only(self.padding[axes:], 0))
        return Geometry(
            only(self.kernel, 1),
            only(self.stride, 1),
            only(self.dilation, 1),
            padding,
            self.ceil,
        )

    def around(self, x: Node, value: float) -> Node:
        """The image with its padding as elements; less than none cuts elements off."""
        axes = len(self.kernel)
        low, high = (0, 0, *self.padding[:axes]), (0, 0, *self.padding[axes:])
        return with_borders(x, low, high, value)


def geometry(call: Call, image: Sequence[DimLike], kernel: Sequence[DimLike]) -> Geometry:
    """Of a node over an image with these sizes, from its attributes."""
    sizes = tuple(_static(call, k) for k in kernel)
    axes = len(image)
    stride = per_axis(call, "strides", axes, 1)
    dilation = per_axis(call, "dilations", axes, 1)
    if len(sizes) != axes:
        raise GraphError(f"{call.label}: a kernel of {len(sizes)} axes, an image of {axes}")
    auto = call.attr("auto_pad", "NOTSET")
    plain = Geometry(sizes, stride, dilation, (0,) * (2 * axes))
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return _same(call, plain, image, auto)
    pads = per_axis(call, "pads", 2 * axes, 0) if auto in ("NOTSET", "") else plain.padding
    for n, before, after, span in zip(image, pads, pads[axes:], plain.spans):
        require(span, n + before + after, f"{call.label}: a window")
    is_ceil = bool(call.attr("ceil_mode", 0)) and auto != "VALID"
    return replace(plain, padding=pads, ceil=is_ceil)


def per_axis(call: Call, name: str, count: int, default: int) -> tuple[int, ...]:
    found = tuple(call.attr(name) or (default,) * count)
    if len(found) != count:
        raise GraphError(f"{call.label}: {name} has {len(found)} numbers, expected {count}")
    return found


def _same(call: Call, plain: Geometry, image: Sequence[DimLike], auto: str) -> Geometry:
    """As many windows as strides fit; an odd element goes to the end, or to the beginning."""
    for n in image:
        require(1, n, f"{call.label}: an image")
    totals = [
        dim_max(0, ((n + s - 1) // s - 1) * s + span - n) if s > 1 else span - 1
        for n, s, span in zip(image, plain.stride, plain.spans)
    ]
    return Geometry(plain.kernel, plain.stride, plain.dilation, halves(call, totals, auto))


def halves(call: Call, totals: Sequence[DimLike], auto: str) -> tuple[DimLike, ...]:
    """Padding cut in two, begins then ends; SAME_UPPER has the greater half at the end."""
    if auto not in ("SAME_UPPER", "SAME_LOWER", "NOTSET", ""):
        raise GraphError(f"{call.label}: auto_pad {auto!r} is not one ONNX has")
    less = tuple(t // 2 for t in totals)
    more = tuple(t - h for t, h in zip(totals, less))
    return (*less, *more) if auto == "SAME_UPPER" else (*more, *less)


def _static(call: Call, size: DimLike) -> int:
    if isinstance(size, Dim):
        raise call.unsupported(f"a kernel has the size {size}, which is not known")
    return int(size)


def with_borders(
    x: Node, low: Sequence[DimLike], high: Sequence[DimLike], value: float = 0.0
) -> Node:
    """x with more elements of a value on each axis, or with fewer where a number is negative."""
    x = cropped(x, [negative(a) for a in low], [negative(a) for a in high])
    low, high = tuple(positive(a) for a in low), tuple(positive(a) for a in high)
    if is_nothing((*low, *high)):
        return x
    return ops.pad(x, low=low, high=high, value=value)


def cropped(x: Node, before: Sequence[DimLike], after: Sequence[DimLike]) -> Node:
    """x without as many elements at the ends of each axis."""
    if is_nothing((*before, *after)):
        return x
    stops = tuple(d - b for d, b in zip(x.shape.dims, after))
    return ops.slice(x, starts=tuple(before), stops=stops, steps=(1,) * len(stops))


def is_nothing(amounts: Sequence[DimLike]) -> bool:
    return all(isinstance(a, int) and a == 0 for a in amounts)


def negative(amount: DimLike) -> DimLike:
    """How much an amount takes off."""
    return positive(-amount)


def positive(amount: DimLike) -> DimLike:
    """How much an amount adds."""
    if isinstance(amount, Dim) and provably_le(amount, 0):
        return 0
    return dim_max(0, amount)
