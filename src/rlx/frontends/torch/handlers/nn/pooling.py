"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import product
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.handlers.nn.convolution import batched
from rlx.frontends.torch.node_call import Call, pair, rank
from rlx.ir.mir import Node


def _count(call: Call) -> int:
    """How many spatial axes the op's name says."""
    return int(next(c for c in call.op if c.isdigit()))


def _back(call: Call, made: Node, is_single: bool, fake: Any = None) -> Node:
    return ops.squeeze(made, axes=(0,)) if is_single else made


def _windows(count: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any,
             ceil_mode: bool) -> dict[str, Any]:  # fmt: skip
    kernel = pair(kernel_size, count)
    sides = pair(padding, count)
    return {
        "kernel": kernel,
        "stride": pair(stride, count) if stride not in (None, [], ()) else kernel,
        "padding": (*sides, *sides),
        "dilation": pair(dilation, count),
        "ceil": bool(ceil_mode),
    }


@handles("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(
    call: Call, x: Node, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> Node:  # fmt: skip
    count = _count(call)
    image, is_single = batched(x, count)
    how = _windows(count, kernel_size, stride, padding, dilation, ceil_mode)
    return _back(call, ops.max_pool(image, **how), is_single)


@handles("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool_with_indices(
    call: Call, x: Node, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> list[Node]:  # fmt: skip
    """Indices count inside of each image; the table's in the whole tensor."""
    count = _count(call)
    image, is_single = batched(x, count)
    how = _windows(count, kernel_size, stride, padding, dilation, ceil_mode)
    values, places = ops.max_pool_with_indices(image, **how)
    area = call.node(product(image.shape.dims[2:]), DType.I64)
    return [_back(call, v, is_single) for v in (values, ops.mod(places, area))]


@handles("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    call: Call, x: Node, kernel_size: Any, stride: Any = (), padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Node:  # fmt: skip
    count = _count(call)
    image, is_single = batched(x, count)
    how = _windows(count, kernel_size, stride, padding, 1, ceil_mode)
    if not image.shape.dtype.is_float:
        made = _whole_means(call, image, how, bool(count_include_pad), divisor_override)
        return _back(call, made, is_single)
    if divisor_override is not None:
        wide = call.node(image, call.wide)
        return _back(call, _summed(wide, how, divisor_override), is_single)
    del how["dilation"]
    made = ops.avg_pool(image, count_include_pad=bool(count_include_pad), **how)
    return _back(call, made, is_single)


def _summed(image: Node, how: dict[str, Any], divisor: int) -> Node:
    """Sums of windows over a number: of positive and negative parts, whose powers of 1 are sums."""
    positive = ops.lp_pool(ops.relu(image), p=1, **how)
    negative = ops.lp_pool(ops.relu(ops.neg(image)), p=1, **how)
    return ops.div(ops.sub(positive, negative), float(divisor))


def _whole_means(
    call: Call, image: Node, how: dict[str, Any], counts_padding: bool, divisor: int | None
) -> Node:
    """Sums of windows of integers, by a convolution with ones, over the elements of each: the
    quotient is rounded towards 0."""
    channels, *sizes = call.whole(*image.shape.dims[1:], what="the size of the image")
    result = call.whole(*call.fake.shape[-len(sizes) :], what="the size of the result")
    sides = how["padding"][: len(sizes)]
    axes = list(zip(sizes, result, how["kernel"], how["stride"], sides))
    after = tuple(max((o - 1) * s + k - n - p, 0) for n, o, k, s, p in axes)
    ones = call.constant(np.ones((channels, 1, *how["kernel"])), image.shape.dtype)
    sums = ops.conv(image, ones, stride=how["stride"], padding=(*sides, *after), groups=channels)
    sums = _cropped(sums, result)
    if divisor is None:
        return ops.div(sums, call.constant(_num_elements(axes, counts_padding), sums.shape.dtype))
    return ops.div(sums, call.constant(divisor, sums.shape.dtype))


def _cropped(x: Node, sizes: tuple[int, ...]) -> Node:
    """Without the windows that begin after the image."""
    for i, size in enumerate(sizes):
        x = ops.narrow(x, axis=2 + i, start=0, length=size)
    return x


def _num_elements(axes: Sequence[tuple[int, ...]], counts_padding: bool) -> Any:
    """How many elements each window has, of the image and, where they count, of its padding."""
    found = np.ones((1,) * len(axes), np.int64)
    for i, (size, windows, kernel, stride, side) in enumerate(axes):
        low = np.arange(windows) * stride - side
        high = np.minimum(low + kernel, size + side)
        if not counts_padding:
            low, high = np.maximum(low, 0), np.minimum(high, size)
        found = found * (high - low).reshape([-1 if a == i else 1 for a in range(len(axes))])
    return found


# -- adaptive pooling ------------------------------------------------------------------------------


def _adapted(x: Node, count: int, output_size: Any) -> tuple[Any, ...]:
    """The sizes of the result; None keeps that of the image."""
    image = x.shape.dims[2:]
    return tuple(i if o is None else o for i, o in zip(image, pair(output_size, count)))


@handles("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
         "_adaptive_avg_pool2d", "_adaptive_avg_pool3d")  # fmt: skip
def adaptive_avg_pool(call: Call, x: Node, output_size: Any) -> Node:
    count = _count(call)
    image, is_single = batched(x, count)
    sizes = _adapted(image, count, output_size)
    if all(s == 1 for s in sizes):
        made = ops.mean(image, axes=tuple(range(2, 2 + count)), keepdims=True)
        return _back(call, made, is_single)
    wanted = call.whole(*sizes, what="the size of the result")
    current = call.whole(*image.shape.dims[2:], what="the size of the image")
    if all(i % o == 0 for i, o in zip(current, wanted)):
        kernel = tuple(i // o for i, o in zip(current, wanted))
        return _back(call, ops.avg_pool(image, kernel=kernel, stride=kernel), is_single)
    return _back(call, _uneven_means(call, image, current, wanted), is_single)


def _edges(size: int, parts: int) -> list[tuple[int, int]]:
    """Where the windows of an uneven division begin and end."""
    return [(j * size // parts, -(-(j + 1) * size // parts)) for j in range(parts)]


def _uneven_means(call: Call, x: Node, current: tuple[int, ...], wanted: tuple[int, ...]) -> Node:
    """A product with a matrix of means along each axis."""
    wide = call.node(x, x.shape.dtype.compute)
    for i, (size, parts) in enumerate(zip(current, wanted)):
        means = np.zeros((size, parts), np.float64)
        for j, (low, high) in enumerate(_edges(size, parts)):
            means[low:high, j] = 1.0 / (high - low)
        axis = 2 + i
        order = (*(a for a in range(rank(x)) if a != axis), axis)
        rows = ops.matmul(ops.transpose(wide, perm=order), call.constant(means, wide.shape.dtype))
        wide = ops.transpose(rows, perm=tuple(int(a) for a in np.argsort(order)))
    return wide


@handles("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(call: Call, x: Node, output_size: Any) -> list[Node]:
    """The greatest of each window and its place in the image: windows as rows of indices."""
    count = _count(call)
    image, is_single = batched(x, count)
    sizes = call.whole(*_adapted(image, count, output_size), what="the size of the result")
    current = call.whole(*image.shape.dims[2:], what="the size of the image")
    if 0 in (*sizes, *current):
        return [call.filled(0, v) for v in call.value]
    places, valid = window_places(current, sizes)
    return [_back(call, m, is_single) for m in _maxima(call, image, sizes, places, valid)]


def window_places(current: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Any, Any]:
    """For each window of an uneven division, the places it sees, and which of them count."""
    edges = [_edges(c, s) for c, s in zip(current, sizes)]
    longest = [max(h - l for l, h in e) for e in edges]
    grid = np.zeros((1,), np.int64)
    valid = np.ones((1,), bool)
    places, seen = grid.reshape(1, 1), valid.reshape(1, 1)
    for size, edge, length in zip(current, edges, longest):
        starts = np.array([l for l, _ in edge])[:, None]
        ends = np.array([h for _, h in edge])[:, None]
        index = starts + np.arange(length)[None]
        ok = index < ends
        index = np.minimum(index, size - 1)
        places = (places[:, None, :, None] * size + index[None, :, None, :]).reshape(
            places.shape[0] * index.shape[0], -1
        )
        seen = (seen[:, None, :, None] & ok[None, :, None, :]).reshape(places.shape[0], -1)
    return places, seen


def _maxima(call: Call, image: Node, sizes: tuple[int, ...], places: Any, valid: Any) -> list[Node]:
    n, c = image.shape.dims[:2]
    flat = ops.reshape(image, dims=(n, c, product(image.shape.dims[2:])))
    seen = ops.gather(flat, call.graph.constant(places), axis=2)
    least = call.constant(_least(image.shape.dtype), image.shape.dtype)
    masked = ops.where(call.graph.constant(valid), seen, least)
    best = ops.argmax(masked, axis=3, keepdims=True)
    where = ops.expand(call.graph.constant(places), dims=seen.shape.dims)
    made = [ops.take_along_axis(v, best, axis=3) for v in (masked, where)]
    return [ops.reshape(m, dims=(n, c, *sizes)) for m in made]


def _least(dtype: DType) -> Any:
    return float("-inf") if dtype.is_float else np.iinfo(dtype.numpy).min


@handles("max_unpool2d", "max_unpool3d")
def max_unpool(call: Call, x: Node, indices: Node, output_size: Any, stride: Any = None,
               padding: Any = None) -> Node:  # fmt: skip
    """Elements put back at their places: each image's own, in one flat tensor."""
    count = _count(call)
    image, is_single = batched(x, count)
    places, _ = batched(indices, count)
    area = product(output_size)
    n, c = image.shape.dims[:2]
    flat = (n, c, product(image.shape.dims[2:]))
    zeros = ops.expand(call.constant(0, call.dtype), dims=(n, c, area))
    made = ops.scatter_elements(
        zeros, ops.reshape(places, dims=flat), ops.reshape(image, dims=flat), axis=2
    )
    return _back(call, ops.reshape(made, dims=(n, c, *output_size)), is_single)
