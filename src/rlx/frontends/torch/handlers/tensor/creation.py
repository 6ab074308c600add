"""Tensors of constants and positions, casts and copies."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call, converted
from rlx.ir.mir import Node


@handles("zeros", "zeros_like", "new_zeros", "zero", "empty", "empty_like", "new_empty",
         "empty_strided", "new_empty_strided", "empty_permuted")  # fmt: skip
def zeros(call: Call, *_: Any) -> Node:
    """Memory that torch leaves as it is holds zeros."""
    return call.filled(0)


@handles("ones", "ones_like", "new_ones")
def ones(call: Call, *_: Any) -> Node:
    return call.filled(1)


@handles("full", "full_like", "new_full")
def full(call: Call, x: Any, size: Any = None, fill_value: Any = 0) -> Node:
    return call.filled(fill_value)


@handles("fill")
def fill(call: Call, x: Any, value: Any) -> Node:
    return call.filled(value)


@handles("scalar_tensor")
def scalar_tensor(call: Call, x: Any) -> Node:
    return call.filled(x)


@handles("_to_copy", "to", "clone", "alias", "detach", "contiguous", "lift_fresh", "lift",
         "lift_fresh_copy", "type_as", "convert_element_type", "float", "detach_copy", "device_put",
         "_autocast_to_reduced_precision", "_autocast_to_full_precision", "cpu", "half", "double",
         "identity", "view_of", "pin_memory", "_pin_memory", "data")  # fmt: skip
def copied(call: Call, x: Any, *_: Any) -> Node:
    """The same values, as another dtype where torch's result has one."""
    return converted(call.node(x), call.dtype)


@handles("copy")
def copy(call: Call, x: Node, src: Any, non_blocking: bool = False) -> Node:
    return ops.expand(call.node(src, call.dtype), dims=call.dims)


@handles("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def dropout(call: Call, x: Node, p: float, train: bool) -> Node:
    if not train or p == 0:
        return x
    call.require(call.op.removesuffix("_") == "dropout", "this dropout in training")
    return _dropped(call, x, p)[0]


@handles("native_dropout")
def native_dropout(call: Call, x: Node, p: float, train: bool | None) -> list[Node]:
    if train is False or p == 0:
        return [x, call.filled(True, call.value[1])]
    return _dropped(call, x, p)


def _dropped(call: Call, x: Node, p: float) -> list[Node]:
    """x / (1 - p) where a drawn number says so, else 0; and where it said so."""
    stays = ops.expand(call.constant(1.0 - p, DType.F32), dims=x.shape.dims)
    mask = ops.bernoulli(
        stays, call.importer.random_state(), stream=call.importer.next_stream(), to=DType.BOOL
    )
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    return [ops.where(mask, ops.mul(x, scale), call.constant(0, x.shape.dtype)), mask]


@handles("arange")
def arange(call: Call, *_: Any) -> Node:
    """start + i · step; floats are computed in f64, as torch does."""
    start, step = call.args.get("start", 0), call.args.get("step", 1)
    places = call.positions(call.dims, 0)
    if isinstance(start, float) or isinstance(step, float) or call.dtype.is_float:
        wide = ops.mul(call.node(places, DType.F64), call.node(step, DType.F64))
        return ops.add(wide, call.node(start, DType.F64))
    made = places if step == 1 else ops.mul(places, call.node(step, DType.I64))
    return made if start == 0 else ops.add(made, call.node(start, DType.I64))


@handles("linspace")
def linspace(call: Call, x: Any, end: Any, steps: Any) -> Node:
    """From both ends to the middle, with a step of the result's dtype, as torch has it."""
    wide = call.dtype if call.dtype.is_float else DType.F64
    call.require(not call.dtype.is_complex, "linspace of complex numbers")
    count = call.dims[0]
    places = call.node(call.positions((count,), 0), wide)
    start, stop = (call.node(v, wide) for v in call.nodes(x, end))
    if count == 1:
        return ops.expand(start, dims=(1,))
    last = ops.sub(call.node(count, wide), 1.0)
    step = ops.div(ops.sub(stop, start), last)
    low = ops.add(start, ops.mul(places, step))
    high = ops.sub(stop, ops.mul(ops.sub(last, places), step))
    half = ops.floor(ops.div(call.node(count, wide), 2.0))
    return ops.where(ops.less(places, half), low, high)


@handles("eye")
def eye(call: Call, *_: Any) -> Node:
    return ops.equal(call.positions(call.dims, 0), call.positions(call.dims, 1))


@handles("tril_indices", "triu_indices")
def triangle_indices(call: Call, x: int, col: int, offset: int = 0) -> Node:
    import numpy as np

    rows, columns = call.whole(x, col)
    made = np.tril_indices(rows, offset, columns)
    if call.op == "triu_indices":
        made = np.triu_indices(rows, offset, columns)
    return call.graph.constant(np.stack(made).astype(np.int64))


@handles("one_hot")
def one_hot(call: Call, x: Node, num_classes: Any = -1) -> Node:
    call.require(isinstance(num_classes, int) and num_classes >= 0, "as many classes as data says")
    return ops.one_hot(x, depth=num_classes, to=DType.I64)
