"""Window attributes: kernel, stride, dilation and padding of convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike, dim_max, provably_le
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.requirements import require_size
from rlx.frontends.dim_ranges import require
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.values import Sizes
from rlx.ir.mir import Node
from rlx.ops.compose import nullary


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
    def totals(self) -> tuple[DimLike, ...]:
        """All the padding of each axis."""
        axes = len(self.kernel)
        return tuple(a + b for a, b in zip(self.padding[:axes], self.padding[axes:]))

    def spread(self, image: Sequence[DimLike], more: Sequence[int]) -> list[DimLike]:
        """The sizes of what windows add up to, one for each element of an image, with `more`
        elements at the end and the padding removed."""
        sizes = zip(image, self.stride, self.spans, more, self.totals)
        return [(n - 1) * s + span + m - pads for n, s, span, m, pads in sizes]

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
        """The image with its padding as elements; negative padding crops."""
        axes = len(self.kernel)
        low, high = (0, 0, *self.padding[:axes]), (0, 0, *self.padding[axes:])
        return with_borders(x, low, high, value)


def steps(call: Call, image: Sequence[DimLike], kernel: Sequence[DimLike]) -> Geometry:
    """Kernel, stride and dilation of a node over an image with these sizes; no padding."""
    sizes = tuple(_static(call, k) for k in kernel)
    axes = len(image)
    stride = per_axis(call, "strides", axes, 1)
    dilation = per_axis(call, "dilations", axes, 1)
    if len(sizes) != axes:
        raise GraphError(f"{call.label}: a kernel of {len(sizes)} axes, an image of {axes}")
    return Geometry(sizes, stride, dilation, (0,) * (2 * axes))


def geometry(call: Call, image: Sequence[DimLike], kernel: Sequence[DimLike]) -> Geometry:
    """Of a node over an image with these sizes, from its attributes."""
    plain, axes = steps(call, image, kernel), len(image)
    auto = call.attr("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return _same(call, plain, image, auto)
    pads = per_axis(call, "pads", 2 * axes, 0) if auto in ("NOTSET", "") else plain.padding
    for n, before, after, span in zip(image, pads, pads[axes:], plain.spans):
        if isinstance(n, Dim):
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
    reach = [_reach(*each) for each in zip(image, plain.stride, plain.spans)]
    totals = [
        r - n if span >= s else dim_max(0, r - n)
        for n, r, s, span in zip(image, reach, plain.stride, plain.spans)
    ]
    before = split_padding(call, totals, auto)[: len(reach)]
    after = tuple(
        dim_max(0, r - n) - b if isinstance(n, int) else r - n - b
        for n, r, b in zip(image, reach, before)
    )
    return replace(plain, padding=(*before, *after))


def _reach(n: DimLike, stride: int, span: int) -> DimLike:
    """How many elements the windows see: from the first to the last of them, or all there are."""
    return (
        n + span - 1
        if stride == 1 or span == 1
        else ((n + stride - 1) // stride - 1) * stride + span
    )


def split_padding(call: Call, totals: Sequence[DimLike], auto: str) -> tuple[DimLike, ...]:
    """Padding split in two, begins then ends; SAME_UPPER has the greater half at the end."""
    if auto not in ("SAME_UPPER", "SAME_LOWER", "NOTSET", ""):
        raise GraphError(f"{call.label}: auto_pad {auto!r} is not one ONNX has")
    less = tuple(t // 2 for t in totals)
    more = tuple(t - h for t, h in zip(totals, less))
    return (*less, *more) if auto == "SAME_UPPER" else (*more, *less)


def _static(call: Call, size: DimLike) -> int:
    if isinstance(size, Dim):
        raise call.needs_shape(f"a kernel has the size {size}, which is not known")
    return int(size)


def placed(x: Node, axis: int, before: DimLike, length: DimLike, value: float | Node) -> Node:
    """An axis of this length that has x some elements into it, and a value elsewhere. Nothing need
    be known of the sizes: each element asks whether it is there."""
    rank, size = x.shape.rank, x.shape.dims[axis]
    start, count = (Sizes((d,), ()).node(x.graph) for d in (before, size))
    at = ops.sub(nullary(x, "iota", dims=(length,), axis=0, dtype=DType.I64), start)
    inside = ops.logical_and(ops.greater_equal(at, 0), ops.less(at, count))
    near = ops.maximum(ops.minimum(at, ops.sub(count, 1)), 0)
    if not provably_le(1, size):  # an index must be one of some element
        high = tuple(int(i == axis) for i in range(rank))
        x = ops.pad(x, low=(0,) * rank, high=high)
    after = tuple(range(1, rank - axis))
    inside = ops.expand_dims(inside, axes=after) if after else inside
    return ops.where(inside, ops.gather(x, near, axis=axis), _fill(x, value))


def _fill(x: Node, value: float | Node) -> Node:
    if isinstance(value, Node):
        return value
    return x.graph.constant(np.array(value).astype(x.shape.dtype.numpy))


def with_borders(
    x: Node, low: Sequence[DimLike], high: Sequence[DimLike], value: float | Node = 0.0
) -> Node:
    """x with more elements of a value on each axis, or with fewer where a number is negative. What
    is taken off one end may be more than x has: then it is of what the other end adds."""
    before, after = list(low), list(high)
    for axis, (size, a, b) in enumerate(zip(x.shape.dims, low, high)):
        require_size(size + a + b, f"pads of {a} and {b} take more than the {size} of axis {axis}")
        require(0, size + a + b, "what pads leave")
        if not (_has_sign(a) and _has_sign(b) and has_to_crop(size, a, b)):
            x = placed(x, axis, a, size + a + b, value)
            before[axis] = after[axis] = 0
    x = cropped(x, [negative(a) for a in before], [negative(a) for a in after])
    more = tuple(positive(a) for a in before), tuple(positive(a) for a in after)
    if is_nothing((*more[0], *more[1])):
        return x
    if isinstance(value, Node):
        return _beside(x, *more, value)
    return ops.pad(x, low=more[0], high=more[1], value=value)


def _beside(x: Node, low: Sequence[DimLike], high: Sequence[DimLike], value: Node) -> Node:
    """x between as much of a value that is data."""
    for axis, amounts in enumerate(zip(low, high)):
        dims = x.shape.dims
        before, after = (
            [] if is_nothing((a,))
            else [ops.expand(value, dims=(*dims[:axis], a, *dims[axis + 1 :]))]
            for a in amounts
        )  # fmt: skip
        x = ops.concat([*before, x, *after], axis=axis) if before or after else x
    return x


def _has_sign(amount: DimLike) -> bool:
    """Is it known whether an amount adds or takes off?"""
    return isinstance(amount, int) or provably_le(0, amount) or provably_le(amount, 0)


def has_to_crop(size: DimLike, before: DimLike, after: DimLike) -> bool:
    """Is an axis known to have as many elements as negative numbers take off?"""
    return provably_le(negative(before) + negative(after), size)


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
