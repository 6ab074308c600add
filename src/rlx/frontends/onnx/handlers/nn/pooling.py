"""Pooling, local and global."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import add
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike
from rlx.core.dtype import DType
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.window_attributes import Geometry, geometry, per_axis, with_borders
from rlx.ir.mir import Node
from rlx.ops.compose import filled
from rlx.ops.nn.window_geometry import MAX_TAPS, count_of


def _geometry(call: Call) -> Geometry:
    image = call.shape(0).dims[2:]
    found = geometry(call, image, call.required("kernel_shape"))
    for axis, n in enumerate(image):
        found = _fitted(found, axis, n)
    return found


def _fitted(found: Geometry, axis: int, n: DimLike) -> Geometry:
    """A window that is wider than all of an axis: one of the taps that there are. It is there where
    it begins less than a stride before it would fit, as runtimes have it that round towards 0."""
    axes = len(found.kernel)
    whole, step = n + found.totals[axis], found.stride[axis]
    if isinstance(whole, Dim) or found.spans[axis] <= whole or found.spans[axis] - whole >= step:
        return found
    taps = max(1, -(-whole // found.dilation[axis]))
    kernel = (*found.kernel[:axis], taps, *found.kernel[axis + 1 :])
    stride = (*found.stride[:axis], max(step, whole), *found.stride[axis + 1 : axes])
    return replace(found, kernel=kernel, stride=stride)


def _empty(x: Node, found: Geometry) -> Node | None:
    """The pool of an image that no window fits into."""
    image = x.shape.dims[2:]
    rooms = [n + p - span for n, p, span in zip(image, found.totals, found.spans)]
    if not any(isinstance(room, int) and room < 0 for room in rooms):
        return None
    ends = map(add, image, found.padding)
    counts = [
        0 if isinstance(room, int) and room < 0 else count_of(room, end, step, ceil=found.ceil)
        for room, end, step in zip(rooms, ends, found.stride)
    ]
    return filled(x, 0, (*x.shape.dims[:2], *counts))


def _mean(x: Node, pool: Callable[[Node], Node]) -> Node:
    """A pool of floats; of integers and truth values what torch gives: the number in f64, without
    what it has after the point."""
    dtype = x.shape.dtype
    if dtype.is_float:
        return pool(x)
    return ops.cast(pool(ops.cast(x, to=DType.F64)), to=dtype)


def _ordered(x: Node, pool: Callable[[Node], Any]) -> Any:
    """A pool of numbers; of truth values as bytes."""
    if x.shape.dtype is not DType.BOOL:
        return pool(x)
    made = pool(ops.cast(x, to=DType.U8))
    first, *rest = made if isinstance(made, tuple) else (made,)
    results = (ops.cast(first, to=DType.BOOL), *rest)
    return results if isinstance(made, tuple) else results[0]


@handles("MaxPool")
def max_pool(call: Call) -> Node | tuple[Node, ...]:
    return _ordered(call.node(0), lambda x: _greatest(call, x))


def _greatest(call: Call, x: Node) -> Node | tuple[Node, ...]:
    found = _geometry(call)
    if (none := _empty(x, found)) is not None:
        return (none, ops.cast(none, to=DType.I64)) if call.wants(1) else none
    if call.wants(1):
        return _with_indices(call, x, found)
    if _is_whole(x, found):
        return ops.global_max_pool(x)
    for each in found.passes(MAX_TAPS):
        how: dict[str, Any] = {"kernel": each.kernel, "ceil": each.ceil}
        if each.is_plain:
            x = ops.max_pool(x, **how, **each.attrs)
        else:
            x = ops.max_pool(each.around(x, _lowest(x)), **how, **each.bare)
    return x


def _is_whole(x: Node, found: Geometry) -> bool:
    """Is there one window, which is the image?"""
    return found.spans == found.kernel == x.shape.dims[2:] and not any(found.padding)


def _with_indices(call: Call, x: Node, found: Geometry) -> tuple[Node, ...]:
    if not all(isinstance(p, int) for p in found.padding):
        raise call.needs_shape(f"indices with padding of {found.padding}")
    if not found.is_plain:
        raise call.unsupported("indices with padding wider than the window")
    return tuple(
        ops.max_pool_with_indices(
            x,
            kernel=found.kernel,
            ceil=found.ceil,
            column_major=bool(call.attr("storage_order", 0)),
            **found.attrs,
        )
    )


def _lowest(x: Node) -> float:
    """What never is the greatest."""
    dtype = x.shape.dtype
    return -np.inf if dtype.is_float else float(np.iinfo(dtype.numpy).min)


@handles("AveragePool")
def average_pool(call: Call) -> Node:
    return _mean(call.node(0), lambda x: _average(call, x))


def _average(call: Call, x: Node) -> Node:
    found = _geometry(call)
    if (none := _empty(x, found)) is not None:
        return none
    if _is_whole(x, found):
        return ops.global_avg_pool(x)
    counts = bool(call.attr("count_include_pad", 0))
    for each in found.passes(MAX_TAPS):
        x = _averaged(x, each, counts)
    return x


def _averaged(x: Node, found: Geometry, counts_padding: bool) -> Node:
    how: dict[str, Any] = {"kernel": found.kernel, "ceil": found.ceil}
    if found.is_plain:
        return ops.avg_pool(x, count_include_pad=counts_padding, **how, **found.attrs)
    made = ops.avg_pool(found.around(x, 0.0), **how, **found.bare)
    if counts_padding:
        return made
    ones = found.around(filled(x, 1.0, (1, 1, *x.shape.dims[2:])), 0.0)
    share = ops.avg_pool(ones, **how, **found.bare)
    return ops.div(made, ops.where(ops.equal(share, 0.0), 1.0, share))


@handles("LpPool")
def lp_pool(call: Call) -> Node:
    return _mean(call.node(0), lambda x: _norm(call, x))


def _norm(call: Call, x: Node) -> Node:
    found = _geometry(call)
    how: dict[str, Any] = {"kernel": found.kernel, "ceil": found.ceil}
    how["p"] = float(call.attr("p", 2))
    if (none := _empty(x, found)) is not None:
        return none
    if found.is_plain:
        return ops.lp_pool(x, **how, **found.attrs)
    return ops.lp_pool(found.around(x, 0.0), **how, **found.bare)


@handles("GlobalAveragePool")
def global_average_pool(call: Call) -> Node:
    return _mean(call.node(0), ops.global_avg_pool)


@handles("GlobalMaxPool")
def global_max_pool(call: Call) -> Node:
    return _ordered(call.node(0), ops.global_max_pool)


@handles("GlobalLpPool")
def global_lp_pool(call: Call) -> Node:
    return _mean(call.node(0), lambda x: ops.global_lp_pool(x, p=float(call.attr("p", 2))))


@handles("MaxUnpool")
def max_unpool(call: Call) -> Node:
    """Indices count in the image that the windows came from; one of another size that is asked for
    begins with it."""
    x = call.node(0)
    image = _unpooled(call, x)
    made = ops.max_unpool(x, call.node(1), image=tuple(image))
    if not call.has(2):
        return made
    wanted = call.dims(2)
    more = [w - d for w, d in zip(wanted, made.shape.dims)]
    return with_borders(made, (0,) * len(more), more)


def _unpooled(call: Call, x: Node) -> list[DimLike]:
    kernel = call.required("kernel_shape")
    axes = len(kernel)
    stride, pads = per_axis(call, "strides", axes, 1), per_axis(call, "pads", 2 * axes, 0)
    sizes = zip(x.shape.dims[2:], stride, kernel, pads[:axes], pads[axes:], strict=True)
    return [(n - 1) * s + k - a - b for n, s, k, a, b in sizes]
