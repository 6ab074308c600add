"""Pad and crop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike, provably_le
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.frontends.dim_ranges import require
from rlx.frontends.onnx.data_dependent_sizes import scalar_size
from rlx.frontends.onnx.handlers import MICROSOFT, handles
from rlx.frontends.onnx.handlers.tensor.shape_ops import ENDLESS, cut
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.values import Sizes
from rlx.frontends.onnx.window_attributes import (
    cropped,
    has_to_crop,
    is_nothing,
    negative,
    positive,
    with_borders,
)
from rlx.ir.mir import Node
from rlx.ops.compose import nullary

EXACT = 2**53
"""Whole numbers up to here are floats."""


@handles("Pad", since=1)
def pad_by_attributes(call: Call) -> Node:
    pads = call.attr("pads") or call.required("paddings")
    x = call.node(0)
    one = np.array(call.attr("value", 0.0)).astype(x.shape.dtype.numpy)
    return _padded(call, x, _sides(call, pads, range(x.shape.rank)), call.graph.constant(one))


@handles("Pad", since=11)
@handles("Pad", domain=MICROSOFT)
def pad(call: Call) -> Node:
    x = call.node(0)
    axes = call.ints(3) if call.has(3) else range(x.shape.rank)
    value = call.node(2) if call.has(2) else call.graph.constant(np.zeros((), x.shape.dtype.numpy))
    ends = call.ends(1)
    x = _cropped_at_run_time(call, x, _sides(call, ends, axes))
    pads = [_added(e) if isinstance(e, Node) else e for e in ends]
    return _padded(call, x, _sides(call, pads, axes), value)


def _added(amount: Node) -> DimLike:
    """What a pad that is computed adds: nothing, where it takes off."""
    return scalar_size(ops.maximum(amount, 0))


def _cropped_at_run_time(call: Call, x: Node, sides: Sides) -> Node:
    """x without what computed pads take off: those that turn out to be negative."""
    for axis, (low, high) in enumerate(zip(*sides)):
        length = Sizes((x.shape.dims[axis],), ()).node(call.graph)
        taken = [ops.maximum(ops.neg(e), 0) if isinstance(e, Node) else None for e in (low, high)]
        if taken == [None, None]:
            continue
        start = 0 if taken[0] is None else taken[0]
        end = ENDLESS if taken[1] is None else ops.maximum(ops.sub(length, taken[1]), 0)
        x = cut(call, x, (start, end), axis, 1)
    return x


Sides = tuple[list[Any], list[Any]]
"""Dims, or values where they are computed."""


def _sides(call: Call, pads: Sequence[Any], axes: Sequence[int]) -> Sides:
    """What is added before and after each axis."""
    if len(pads) != 2 * len(axes):
        raise GraphError(f"{call.label}: {len(pads)} pads for {len(axes)} axes")
    rank = call.rank(0)
    low: list[Any] = [0] * rank
    high: list[Any] = [0] * rank
    for axis, before, after in zip(axes, pads, pads[len(axes) :]):
        at = call.axis(axis, rank)
        low[at], high[at] = before, after
    return low, high


def _padded(call: Call, x: Node, sides: Sides, value: Node) -> Node:
    mode = call.attr("mode", "constant")
    if mode == "constant":
        known = call.importer.as_array(value)
        plain = None if known is None else _plain(known)
        return with_borders(x, *sides, ops.reshape(value, dims=()) if plain is None else plain)
    for axis, (size, before, after) in enumerate(zip(x.shape.dims, *sides)):
        taken = negative(before) + negative(after)
        require(taken, size, f"{call.label}: what pads take off")
        if not has_to_crop(size, before, after):
            raise call.needs_shape(f"pads take {taken} of the {size} elements of axis {axis}")
    x = cropped(x, *([negative(a) for a in side] for side in sides))
    low, high = (tuple(positive(a) for a in side) for side in sides)
    if is_nothing((*low, *high)):
        return x
    if mode not in ("edge", "reflect", "wrap"):
        raise GraphError(f"{call.label}: mode {mode!r} is not one ONNX has")
    if all(_is_enough(mode, d, *pair) for d, *pair in zip(x.shape.dims, low, high)):
        return ops.pad(x, low=low, high=high, mode=mode)
    for axis, (before, after) in enumerate(zip(low, high)):
        if not is_nothing((before, after)):
            x = ops.gather(x, _places(call, x.shape.dims[axis], before, after, mode), axis=axis)
    return x


def _plain(value: np.ndarray[Any, Any]) -> float | None:
    """A number as the float that pads, where that holds it."""
    one = value.reshape(-1)[0]
    if value.dtype.kind in "iu" and abs(int(one)) > EXACT:
        return None
    return None if value.dtype.kind == "c" else float(one)


def _is_enough(mode: str, size: DimLike, *amounts: DimLike) -> bool:
    """Are there known to be as many elements as are wanted again?"""
    for amount in amounts:
        least = 1 if mode == "edge" else amount + 1 if mode == "reflect" else amount
        if not is_nothing((amount,)) and not provably_le(least, size):
            return False
    return True


MOST_LISTED = 1 << 20
"""Indices that are constants of the import; more are computed in the call, like unknown ones."""


def _places(call: Call, size: DimLike, low: DimLike, high: DimLike, mode: str) -> Node:
    """Which element stands at each place of a padded axis."""
    if size == 0:
        raise GraphError(f"{call.label}: mode {mode!r} has no elements to pad with")
    known = not any(isinstance(d, Dim) for d in (size, low, high))
    if known and int(low + size + high) <= MOST_LISTED:
        every = np.pad(np.arange(size), (int(low), int(high)), mode=mode)  # pyright: ignore
        return call.graph.constant(every.astype(np.int64))
    counted, first, count = (_number(call, d) for d in (size, low, size - 1))
    at = nullary(call.graph, "iota", dims=(low + size + high,), axis=0, dtype=DType.I64)
    at = ops.sub(at, first)
    if mode == "edge":
        return ops.minimum(ops.maximum(at, 0), count)
    if mode == "wrap":
        return ops.mod(at, counted)
    twice = ops.maximum(ops.mul(count, 2), 1)
    along = ops.mod(at, twice)
    return ops.minimum(along, ops.sub(twice, along))


def _number(call: Call, dim: DimLike) -> Node:
    return Sizes((dim,), ()).node(call.graph)


@handles("CenterCropPad")
def center_crop_pad(call: Call) -> Node:
    """The middle of each axis, or zeros around it; an odd one is at the end."""
    x, wanted = call.node(0), call.dims(1)
    rank = x.shape.rank
    axes = [call.axis(a, rank) for a in call.attr("axes", range(rank))]
    if len(axes) != len(wanted):
        raise GraphError(f"{call.label}: {len(wanted)} sizes for {len(axes)} axes")
    for axis, size in zip(axes, wanted):
        more = size - x.shape.dims[axis]
        before = positive(more) // 2 - negative(more) // 2
        low, high = (
            tuple(a if i == axis else 0 for i in range(rank)) for a in (before, more - before)
        )
        x = with_borders(x, low, high)
    return x
