"""Reductions, cumulative ops (scans), argmax and argmin."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike, dim_max, dim_min, product
from rlx.core.dtype import DType
from rlx.core.extent import is_measured
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.values import Sizes, Value, sizes_of
from rlx.ir.mir import Node
from rlx.ops.compose import nullary

FOLDS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip

OF_SIZES: dict[str, Any] = {
    "ReduceSum": np.add, "ReduceProd": np.multiply, "ReduceMax": np.frompyfunc(dim_max, 2, 1),
    "ReduceMin": np.frompyfunc(dim_min, 2, 1),
}  # fmt: skip
"""Folds of whole numbers that are formulas over sizes."""
REAL = ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
"""What they give of whole numbers is truncated."""


@handles(*FOLDS)
def folded(call: Call) -> Value:
    """Axes are an attribute or, in later opsets, an operand; none are all, or with
    noop_with_empty_axes none."""
    rank = call.rank(0)
    axes = call.attr("axes")
    if axes is None and call.has(1):
        axes = call.ints(1)
    chosen = tuple(call.axis(a, rank) for a in axes) if axes else tuple(range(rank))
    how: dict[str, Any] = {"axes": chosen, "keepdims": bool(call.attr("keepdims", 1))}
    is_each = not axes and bool(call.attr("noop_with_empty_axes", 0))
    value = call.value(0)
    if isinstance(value, Sizes) and value.dims and call.op in OF_SIZES and not is_each:
        return _of_sizes(OF_SIZES[call.op], value, how)
    x = call.node(0)
    if call.op not in REAL or x.shape.dtype.is_float:
        return _of_each(call.op, x) if is_each else _folded(call.op, x, how)
    wide = ops.cast(x, to=DType.F64)
    made = _of_each(call.op, wide) if is_each else _folded(call.op, wide, how)
    return ops.cast(made, to=x.shape.dtype)


def _of_sizes(fold: Any, value: Sizes, how: dict[str, Any]) -> Sizes:
    """Formulas over named dims stay such."""
    made = value.array
    for axis in sorted(how["axes"], reverse=True):
        made = np.asarray(fold.reduce(made, axis=axis, keepdims=how["keepdims"]), object)
    return sizes_of(made, value.dtype)


def _of_each(op: str, x: Node) -> Node:
    """The reduction of a single element."""
    match op:
        case "ReduceL1" | "ReduceL2":
            return ops.abs(x)
        case "ReduceLogSum":
            return ops.log(x)
        case "ReduceSumSquare":
            return ops.square(x)
        case _:
            return x


def _folded(op: str, x: Node, how: dict[str, Any]) -> Node:
    match op:
        case "ReduceSum":
            return ops.sum(x, **how)
        case "ReduceMean":
            return _mean(x, how)
        case "ReduceMax":
            return _extreme(ops.max, x, how)
        case "ReduceMin":
            return _extreme(ops.min, x, how)
        case "ReduceProd":
            return ops.prod(x, **how)
        case "ReduceL1":
            return ops.sum(ops.abs(x), **how)
        case "ReduceL2":
            return ops.sqrt(ops.sum(ops.square(x), **how))
        case "ReduceLogSum":
            return ops.log(ops.sum(x, **how))
        case "ReduceLogSumExp":
            return ops.log_sum_exp(x, **how)
        case _:
            return ops.sum(ops.square(x), **how)


def _mean(x: Node, how: dict[str, Any]) -> Node:
    """Of whole numbers towards zero."""
    dtype = x.shape.dtype
    if not dtype.is_integer:
        return ops.mean(x, **how)
    count = Sizes((product(x.shape.dims[a] for a in how["axes"]),), (), dtype)
    return ops.div(ops.sum(x, **how), count.node(x.graph))


def _extreme(fold: Any, x: Node, how: dict[str, Any]) -> Node:
    """Of truth values as of numbers; of nothing it is the least or the most there is."""
    how = {**how, "empty_ok": True}
    if x.shape.dtype is not DType.BOOL:
        return fold(x, **how)
    made = fold(ops.cast(x, to=DType.I8), **how)
    return ops.greater(made, x.graph.constant(np.zeros((), np.int8)))


@handles("ArgMax", "ArgMin")
def arg_extreme(call: Call) -> Node:
    """The first of equals, or with select_last_index the last; of none what is no index."""
    x = call.node(0)
    axis, keepdims = call.axis(call.attr("axis", 0), x.shape.rank), bool(call.attr("keepdims", 1))
    find = ops.argmax if call.op == "ArgMax" else ops.argmin
    if not call.attr("select_last_index", 0):
        return find(x, axis=axis, keepdims=keepdims)
    back = find(ops.flip(x, axes=(axis,)), axis=axis, keepdims=keepdims)
    last = Sizes((x.shape.dims[axis] - 1,), ()).node(call.graph)
    return ops.where(ops.greater(back, last), back, ops.sub(last, back))


@handles("CumSum", "CumProd")
def cumulative(call: Call) -> Node:
    (axis,) = call.ints(1)
    fold = ops.cumsum if call.op == "CumSum" else ops.cumprod
    return fold(
        call.node(0),
        axis=call.axis(axis, call.rank(0)),
        exclusive=bool(call.attr("exclusive", 0)),
        reverse=bool(call.attr("reverse", 0)),
    )


@handles("TopK", since=1)
def top_k_by_attribute(call: Call) -> tuple[Node, ...]:
    return _top(call, call.required("k"), call.attr("axis", -1), True)


@handles("TopK", since=10)
def top_k(call: Call) -> tuple[Node, ...]:
    axis, largest = call.attr("axis", -1), bool(call.attr("largest", 1))
    if call.is_computed(1):
        return _best(call, call.dims(1)[0], axis, largest)
    (k,) = call.ints(1)
    return _top(call, k, axis, largest)


def _top(call: Call, k: int, axis: int, largest: bool) -> tuple[Node, ...]:
    """Sorted, which is one of the orders that `sorted=0` allows."""
    at = call.axis(axis, call.rank(0))
    if is_measured(call.shape(0).dims[at]):
        return _best(call, k, axis, largest)
    return tuple(ops.top_k(call.node(0), k=k, axis=at, largest=largest))


def _best(call: Call, k: DimLike, axis: int, largest: bool) -> tuple[Node, ...]:
    """The best of all in order: an error at run time where there are fewer than k."""
    x, at = call.node(0), call.axis(axis, call.rank(0))
    order = ops.argsort(x, axis=at, descending=largest)
    line = nullary(call.graph, "iota", dims=(k,), axis=0, dtype=DType.I64)
    places = ops.gather(order, line, axis=at)
    return ops.take_along_axis(x, places, axis=at), places
