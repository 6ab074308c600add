"""Triangles, identity matrices and one-hot encodings."""

from __future__ import annotations

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.frontends.onnx.handlers import MICROSOFT, handles
from rlx.frontends.onnx.handlers.tensor.shape_ops import wrapped
from rlx.frontends.onnx.node_call import Call
from rlx.ir.mir import Node
from rlx.ops.compose import nullary


@handles("Trilu")
@handles("Trilu", domain=MICROSOFT)
def trilu(call: Call) -> Node:
    """A diagonal that is data is compared with each element's own."""
    x, is_upper = call.node(0), bool(call.attr("upper", 1))
    if not call.has(1) or call.is_known(1):
        k = call.ints(1)[0] if call.has(1) else 0
        return ops.trilu(x, k=k, upper=is_upper)
    k = ops.reshape(call.node(1), dims=())
    own = _diagonals(call, x.shape.dims[-2:])
    kept = ops.greater_equal(own, k) if is_upper else ops.less_equal(own, k)
    return ops.where(kept, x, call.graph.constant(np.zeros((), x.shape.dtype.numpy)))


def _diagonals(call: Call, dims: tuple[DimLike, ...]) -> Node:
    """[m, n]: the number of each element's diagonal, counted upwards from the main one."""
    rows, columns = (
        nullary(call.graph, "iota", dims=dims, axis=axis, dtype=DType.I64) for axis in (0, 1)
    )
    return ops.sub(columns, rows)


@handles("EyeLike")
def eye_like(call: Call) -> Node:
    shape, kind = call.shape(0), call.attr("dtype")
    dtype = shape.dtype if kind is None else call.importer.reader.dtype(kind, call.label)
    if shape.rank != 2:
        raise call.unsupported(f"operand 0 is {shape}, expected a matrix")
    k = call.graph.constant(np.array(call.attr("k", 0), np.int64))
    return ops.cast(ops.equal(_diagonals(call, shape.dims), k), to=dtype)


@handles("OneHot", since=9)
def one_hot_from_front(call: Call) -> Node:
    return _one_hot(call, ops.cast(call.node(0), to=DType.I64), _depth(call))


@handles("OneHot", since=11)
def one_hot(call: Call) -> Node:
    """Negative indices count from the end."""
    depth = _depth(call)
    return _one_hot(call, wrapped(call, ops.cast(call.node(0), to=DType.I64), depth), depth)


def _depth(call: Call) -> DimLike:
    if call.shape(1).dtype.is_float:
        return int(call.array(1).reshape(-1)[0])
    (depth,) = call.dims(1)
    return depth


def _one_hot(call: Call, indices: Node, depth: DimLike) -> Node:
    rank = indices.shape.rank + 1
    axis = call.axis(call.attr("axis", -1), rank)
    every = nullary(call.graph, "iota", dims=(depth,), axis=0, dtype=DType.I64)
    after = tuple(range(1, rank - axis))
    every = ops.expand_dims(every, axes=after) if after else every
    hot = ops.equal(ops.expand_dims(indices, axes=(axis,)), every)
    off, on = (
        ops.reshape(ops.narrow(call.node(2), axis=0, start=i, length=1), dims=()) for i in (0, 1)
    )
    return ops.where(hot, on, off)
