"""im2col, col2im and deformable convolution.

Strides, padding and dilations are those of `rlx.ops.nn.window_geometry`.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike, product
from rlx.core.errors import GraphError
from rlx.core.shape import Shape, dims_differ, indivisible
from rlx.ops.compose import dims_of, dtype_of, nullary
from rlx.ops.draw import Draw, Spec
from rlx.ops.nn.window_geometry import (
    Windows,
    cropped,
    draw_image,
    draw_kernel,
    interior_padded,
    padded,
    with_default_strides,
)
from rlx.ops.op import Array, Kind, op

Drawn = tuple[list[Spec], dict[str, Any]]


def _im2col_shape(x: Shape, **geometry: Any) -> Shape:
    windows = Windows(**geometry)
    windows.check(x.rank)
    rows = x.dims[1] * windows.area
    return Shape([x.dims[0], rows, product(windows.counts(x.dims[2:]))], x.dtype)


@op("t[n c *s] -> t[n ...]", kind=Kind.MOVEMENT, shape=_im2col_shape)
def im2col(
    x: Array,
    *,
    kernel: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
) -> Array:
    """[batch, channels · taps, windows]: what each window of the zero-padded image sees, as a
    column."""
    windows = Windows(kernel, stride, padding, dilation)
    taps, axes = windows.taps(x, 0), len(kernel)
    order = (0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes))
    count = int(np.prod(taps.shape[2 : 2 + axes]))
    return taps.transpose(order).reshape(len(x), x.shape[1] * int(windows.area), count)


im2col.normal(with_default_strides)


@im2col.lowering
def _(x: Any, **geometry: Any) -> Any:
    n, c, *image = dims_of(x)
    windows = Windows(**geometry)
    count = product(windows.counts(image))
    taps = [ops.reshape(t, dims=(n, c, 1, count)) for t in windows.shifts(x, 0.0)]
    return ops.reshape(ops.concat(taps, axis=2), dims=(n, c * windows.area, count))


def _col2im_shape(x: Shape, *, image: tuple[DimLike, ...], **geometry: Any) -> Shape:
    windows = Windows(**geometry)
    windows.check(2 + len(image))
    rows, count = x.dims[1:]
    area, wanted = windows.area, product(windows.counts(image))
    if rows % area != 0:
        raise GraphError(f"operand 0 is {x}: {rows} rows are not channels of {area} taps")
    if count != wanted:
        raise GraphError(f"operand 0 is {x}, expected {wanted} columns, one per window")
    return Shape([x.dims[0], rows // area, *image], x.dtype)


@op("t[n r m] -> t[n ...]", kind=Kind.SPECIAL, shape=_col2im_shape, flops="size0")
def col2im(
    x: Array,
    *,
    image: tuple[DimLike, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
) -> Array:
    """[batch, channels, *image] of columns as im2col gives them: where windows overlap, they add
    up; what lay in the padding is dropped. ONNX's Col2Im."""
    windows, sizes = Windows(kernel, stride, padding, dilation), [int(n) for n in image]
    counts = [int(c) for c in windows.counts(sizes)]
    channels = x.shape[1] // int(windows.area)
    return windows.spread(x.reshape(len(x), channels, *kernel, *counts), sizes)


@col2im.normal
def _(x: Shape, *, image: tuple[DimLike, ...], **attrs: Any) -> dict[str, Any]:
    return with_default_strides(Shape([0, 0, *image]), **attrs)


@col2im.lowering
def _(x: Any, *, image: tuple[DimLike, ...], **geometry: Any) -> Any:
    """col2im: each tap's elements, interior-padded by the stride and shifted, summed."""
    windows, n = Windows(**geometry), dims_of(x)[0]
    counts, area = windows.counts(image), windows.area
    taps = ops.reshape(x, dims=(n, dims_of(x)[1] // area, area, *counts))
    total = None
    for i, place in enumerate(windows.tap_offsets()):
        tap = ops.squeeze(ops.narrow(taps, axis=2, start=i, length=1), axes=(2,))
        rest = [s - 1 - p for s, p in zip(windows.spans, place)]
        laid = padded(interior_padded(tap, windows.stride), (*place, *rest), 0.0)
        total = laid if total is None else ops.add(total, laid)
    return cropped(total, windows.before, image)


def _draw_columns(draw: Draw) -> tuple[Windows, list[int], dict[str, Any]]:
    kernel, geometry = draw_kernel(draw)
    windows = Windows(kernel, **geometry)
    return windows, draw_image(draw, windows), {**geometry, "kernel": kernel}


@im2col.sample
def _(draw: Draw) -> Drawn:
    _, image, attrs = _draw_columns(draw)
    return [Spec((draw.size(), draw.size(), *image), draw.dtype("t"))], attrs


@col2im.sample
def _(draw: Draw) -> Drawn:
    windows, image, attrs = _draw_columns(draw)
    rows = draw.size() * int(windows.area)
    x = Spec((draw.size(), rows, int(product(windows.counts(image)))), draw.dtype("t"), "plain")
    return [x], {**attrs, "image": tuple(image)}


# -- taps that move -------------------------------------------------------------------------------


def _deform_shape(
    x: Shape, w: Shape, offset: Shape, *mask: Shape, groups: int, offset_groups: int,
    **geometry: Any,
) -> Shape:  # fmt: skip
    made = ops.conv(x, w, groups=groups, **geometry)
    if offset_groups < 1 or x.dims[1] % offset_groups != 0:
        what = f"{x.dims[1]} channels do not divide into {offset_groups} offset_groups"
        raise indivisible(what, x.dims[1], offset_groups)
    places = offset_groups * product(w.dims[2:])
    for i, (shape, each) in enumerate(zip((offset, *mask), (x.rank - 2, 1)), 2):
        wanted = (x.dims[0], places * each, *made.dims[2:])
        if shape.dims != wanted:
            what = f"operand {i} is {shape}, expected [{', '.join(map(str, wanted))}]"
            raise dims_differ(what, shape.dims, wanted)
    return made


def _deformed(
    x: Any, w: Any, offset: Any, mask: Any = None, *, groups: int, offset_groups: int,
    **geometry: Any,
) -> Any:  # fmt: skip
    n, _, *image = dims_of(x)
    o, i, *kernel = dims_of(w)
    windows = Windows(tuple(kernel), **geometry)
    counts, taps = windows.counts(image), windows.area
    each = (n, offset_groups, taps)
    moved = ops.reshape(offset, dims=(*each, len(kernel), *counts))
    where_ = [
        ops.add(ops.squeeze(ops.narrow(moved, axis=3, start=a, length=1), axes=(3,)),
                _tap_positions(x, windows, a, counts))
        for a in range(len(kernel))
    ]  # fmt: skip
    seen = _between(x, where_, offset_groups)
    if mask is not None:
        seen = ops.mul(seen, ops.reshape(mask, dims=(n, offset_groups, 1, taps, *counts)))
    columns = ops.reshape(seen, dims=(n, groups, i * taps, product(counts)))
    kernels = ops.reshape(w, dims=(groups, o // groups, i * taps))
    return ops.reshape(ops.matmul(kernels, columns), dims=(n, o, *counts))


def _tap_positions(x: Any, windows: Windows, axis: int, counts: tuple[DimLike, ...]) -> Any:
    """The position along `axis` of each tap of each window, without its offset: [taps, *counts]."""
    starts = ops.mul(nullary(x, "iota", dims=counts, axis=axis, dtype=dtype_of(x)),
                     float(windows.stride[axis]))  # fmt: skip
    places = np.array([p[axis] - windows.before[axis] for p in windows.tap_offsets(limit=None)])
    column = places.astype(dtype_of(x).numpy).reshape(-1, *[1] * len(counts))
    return ops.add(starts, column)


def _between(x: Any, positions: list[Any], offset_groups: int) -> Any:
    """x at `positions`, one [batch, groups, taps, *counts] per axis, linear between elements and
    zero outside: [batch, groups, channels per group, taps, *counts]."""
    n, c, *image = dims_of(x)
    each, spots = c // offset_groups, dims_of(positions[0])
    framed = padded(x, [1] * (2 * len(image)), 0.0)
    flat = ops.reshape(framed, dims=(n, offset_groups, each, product(d + 2 for d in image)))
    lows = [ops.floor(p) for p in positions]
    fractions = [ops.sub(p, low) for p, low in zip(positions, lows)]
    total = None
    for corner in itertools.product((0, 1), repeat=len(image)):
        index: Any = None
        weight: Any = None
        for bit, low, part, size in zip(corner, lows, fractions, image):
            share = part if bit else ops.sub(1.0, part)
            weight = share if weight is None else ops.mul(weight, share)
            place = _in_frame(ops.add(low, float(bit)), size)
            index = place if index is None else ops.add(ops.mul(index, _size(x, size + 2)), place)
        places = product(spots[2:])
        chosen = ops.expand(
            ops.reshape(index, dims=(*spots[:2], 1, places)), dims=(*spots[:2], each, places)
        )
        values = ops.reshape(ops.take_along_axis(flat, chosen, axis=3),
                             dims=(*spots[:2], each, *spots[2:]))  # fmt: skip
        share = ops.mul(values, ops.expand_dims(weight, axes=(2,)))
        total = share if total is None else ops.add(total, share)
    return total


def _size(x: Any, size: DimLike) -> Any:
    """A size as a whole number, or its node where it is not known yet."""
    return nullary(x, "extent", dim=size) if isinstance(size, Dim) else size


def _in_frame(position: Any, size: DimLike) -> Any:
    """The index of a whole position in an axis that has one zero before it and one after it."""
    near = ops.clamp(ops.cast(position, to="i64"), min=-1)
    return ops.add(ops.minimum(near, _size(position, size)), 1)


@op(
    "f[n c *s], f[o i *k], f[...], f[...]? -> f[n o ...]",
    kind=Kind.CONVOLUTION,
    shape=_deform_shape,
    flops="2*out*i*k + 16*c*k*size2",
)
def deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    mask: Array | None = None,
    *,
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
    groups: int = 1,
    offset_groups: int = 1,
) -> Array:
    """conv whose taps move by `offset` [batch, offset_groups · taps · axes, *windows] and read
    linearly between elements, zeros outside; `mask` [batch, offset_groups · taps, *windows] weighs
    them. Channels in one of `offset_groups` share their offsets. ONNX's DeformConv, whose bias is
    an add."""
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    return _deformed(x, w, offset, mask, groups=groups, offset_groups=offset_groups, **geometry)


deform_conv.normal(with_default_strides)
deform_conv.lowering(_deformed)


@deform_conv.sample
def _(draw: Draw) -> Drawn:
    windows, image, attrs = _draw_columns(draw)
    kernel, dtype = attrs.pop("kernel"), draw.dtype("f")
    groups, movers = draw.choice(((1, 1), (1, 2), (2, 1), (2, 2)))
    channels, outputs, batch = 2 * draw.integer(0, 1), groups * draw.integer(0, 2), draw.size()
    places = movers * int(windows.area)
    counts = tuple(int(c) for c in windows.counts(image))
    dims = [(batch, channels, *image), (outputs, channels // groups, *kernel),
            (batch, places * len(kernel), *counts)]  # fmt: skip
    dims += [(batch, places, *counts)] if draw.coin() else []
    specs = [Spec(d, dtype, "plain") for d in dims]
    return specs, {**attrs, "groups": groups, "offset_groups": movers}
