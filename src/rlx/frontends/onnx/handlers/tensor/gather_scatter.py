"""Gather, scatter, compaction and unique."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import product
from rlx.core.dtype import DType
from rlx.frontends.onnx.data_dependent_sizes import as_long_as, count_of, counted
from rlx.frontends.onnx.handlers import codes, handles
from rlx.frontends.onnx.handlers.tensor.shape_ops import wrapped
from rlx.frontends.onnx.handlers.text.strings import unique_texts
from rlx.frontends.onnx.id_tensors import element_of
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.strings import TEXT
from rlx.frontends.onnx.values import Sizes, Value, Weight, sizes_of
from rlx.ir.mir import Node


def indices_of(call: Call, number: int, axis: int) -> Node:
    """Indices into an axis of the first operand, counted from the front."""
    return wrapped(call, call.node(number), call.shape(0).dims[axis])


@handles("GatherElements")
def gather_elements(call: Call) -> Node:
    """Where there are fewer indices than elements beside the axis, the first of them are meant."""
    axis = call.axis(call.attr("axis", 0), call.rank(0))
    x, where = call.node(0), indices_of(call, 1, axis)
    for i, (size, wanted) in enumerate(zip(x.shape.dims, where.shape.dims)):
        if i != axis and size != wanted:
            x = ops.narrow(x, axis=i, start=0, length=wanted)
    return ops.take_along_axis(x, where, axis=axis)


@handles("Scatter", "ScatterElements")
def scatter_elements(call: Call) -> Node:
    axis = call.axis(call.attr("axis", 0), call.rank(0))
    how: dict[str, Any] = {"axis": axis, "reduction": call.attr("reduction", "none")}
    return ops.scatter_elements(call.node(0), indices_of(call, 1, axis), call.node(2), **how)


def _places(call: Call, batch: int) -> Node:
    """Rows of coordinates, each counted from the front of its axis."""
    rows = call.node(1)
    count = rows.shape.dims[-1]
    sizes = call.shape(0).dims[batch : batch + int(count)]
    total = Sizes(tuple(sizes), (len(sizes),), rows.shape.dtype).node(call.graph)
    zero = call.graph.constant(np.zeros((), rows.shape.dtype.numpy))
    return ops.where(ops.less(rows, zero), ops.add(rows, total), rows)


@handles("GatherND")
def gather_nd(call: Call) -> Value:
    batch = call.attr("batch_dims", 0)
    return ops.gather_nd(call.node(0), _places(call, batch), batch_dims=batch)


@handles("ScatterND")
def scatter_nd(call: Call) -> Value:
    known = call.importer.as_array(call.value(1))
    sizes = [call.importer.as_sizes(call.value(i)) for i in (0, 2)]
    is_sizes = any(isinstance(call.value(i), Sizes) for i in (0, 2))
    reduction = call.attr("reduction", "none")
    if known is not None and is_sizes and None not in sizes and reduction == "none":
        made, updates = (s.array.copy() for s in sizes if s is not None)
        made[tuple(np.moveaxis(known, -1, 0))] = updates
        return sizes_of(made, call.shape(0).dtype)
    return ops.scatter_nd(call.node(0), _places(call, 0), call.node(2), reduction=reduction)


# -- finding --------------------------------------------------------------------------------------


@handles("NonZero")
def nonzero(call: Call) -> Value:
    known = call.importer.as_array(call.value(0))
    if known is not None and known.ndim:
        return Weight(call.outputs[0], np.array(np.nonzero(known), np.int64))
    x = call.node(0)
    if _is_filled(x):
        return _everywhere(x)
    same = counted(x)
    found = ops.nonzero(x)
    return found if same is x else as_long_as(found, 1, count_of(same))


def _is_filled(x: Node) -> bool:
    """Is it one number, which is not 0, at all places? So a range is written by some exporters."""
    if x.op != "expand" or x.inputs[0].op != "constant" or not x.shape.rank:
        return False
    value = x.inputs[0].attrs["value"].array
    return value.size == 1 and bool(value.reshape(())[()])


def _everywhere(x: Node) -> Node:
    dims = x.shape.dims
    how: dict[str, Any] = {"dims": dims, "dtype": DType.I64}
    rows = [x.graph.node("iota", (), {**how, "axis": i}) for i in range(len(dims))]
    flat = [ops.reshape(row, dims=(1, product(dims))) for row in rows]
    return flat[0] if len(flat) == 1 else ops.concat(flat, axis=0)


@handles("Compress")
def compress(call: Call) -> Node:
    axis = call.attr("axis")
    at = None if axis is None else call.axis(axis, call.rank(0))
    return ops.compress(call.node(0), call.node(1), axis=at)


@handles("Unique")
@codes
def unique(call: Call) -> tuple[Value, ...]:
    if element_of(call.value(0)) is TEXT:
        return unique_texts(call, lambda keys: _unique(call, keys))
    return _unique(call, call.node(0))


def _unique(call: Call, x: Node) -> tuple[Node, ...]:
    """NaNs are one value; without an axis, which of them each element is comes in a row."""
    axis = call.attr("axis")
    at = None if axis is None else call.axis(axis, x.shape.rank)
    how: dict[str, Any] = {"axis": at, "is_sorted": bool(call.attr("sorted", 1)), "equal_nan": True}
    values, first, inverse, counts = ops.unique(x, **how)
    return values, first, ops.reshape(inverse, dims=(product(inverse.shape.dims),)), counts


@handles("ReverseSequence")
def reverse_sequence(call: Call) -> Node:
    how = {"batch_axis": call.attr("batch_axis", 1), "time_axis": call.attr("time_axis", 0)}
    return ops.reverse_sequence(call.node(0), call.node(1), **how)


@handles("BitCast")
def bit_cast(call: Call) -> Node:
    x = call.node(0)
    to = call.importer.reader.dtype(call.required("to"), call.label)
    if x.shape.dtype is to:
        return x
    if DType.BOOL in (to, x.shape.dtype):
        return _truth(call, x, to)
    return ops.bitcast(x, to=to)


def _truth(call: Call, x: Node, to: DType) -> Node:
    """A truth value is a byte that is 0 or 1."""
    byte = x.shape.dtype if to is DType.BOOL else to
    if byte.itemsize != 1:
        raise call.unsupported(f"the bits of {x.shape.dtype} as {to}")
    return ops.cast(x, to=to)
