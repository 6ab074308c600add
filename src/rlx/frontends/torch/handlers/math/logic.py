"""Comparisons, logic, bits and selection."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call, converted
from rlx.ir.mir import Node

COMPARISONS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal", "less": "less", "less_equal": "less_equal", "greater": "greater",
    "greater_equal": "greater_equal", "not_equal": "not_equal",
}  # fmt: skip
ORDERED = frozenset({"less", "less_equal", "greater", "greater_equal"})


@handles(*COMPARISONS)
def compare(call: Call, x: Any, other: Any) -> Node:
    name = COMPARISONS[call.op.removesuffix("_")]
    dtype = call.promoted("self", "other")
    if dtype is DType.BOOL and name in ORDERED:
        dtype = DType.U8
    return getattr(ops, name)(*call.nodes(x, other, dtype=dtype))


@handles("logical_and", "logical_or", "logical_xor")
def logical(call: Call, x: Node, other: Node) -> Node:
    made = getattr(ops, call.op.removesuffix("_"))
    return made(converted(x, DType.BOOL), converted(call.node(other), DType.BOOL))


@handles("logical_not")
def logical_not(call: Call, x: Node) -> Node:
    return ops.logical_not(converted(x, DType.BOOL))


@handles("bitwise_not")
def bitwise_not(call: Call, x: Node) -> Node:
    return ops.logical_not(x) if x.shape.dtype is DType.BOOL else ops.bit_not(x)


BITS = {
    "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "__and__": "and",
    "__or__": "or", "__xor__": "xor", "__iand__": "and", "__ior__": "or", "__ixor__": "xor",
}  # fmt: skip


@handles(*BITS)
def bitwise(call: Call, x: Any, other: Any) -> Node:
    kind = "logical" if call.dtype is DType.BOOL else "bit"
    name = BITS[call.op if call.op.startswith("__") else call.op.removesuffix("_")]
    return getattr(ops, f"{kind}_{name}")(*call.nodes(x, other))


SHIFTS = {
    "bitwise_left_shift": "shift_left", "bitwise_right_shift": "shift_right",
    "__lshift__": "shift_left", "__rshift__": "shift_right",
}  # fmt: skip


@handles(*SHIFTS)
def shift(call: Call, x: Any, other: Any) -> Node:
    name = SHIFTS[call.op if call.op.startswith("__") else call.op.removesuffix("_")]
    if call.dtype.is_float:  # x · 2ʸ, what torch makes of a shift of floats
        x, y = call.nodes(x, other)
        power = ops.pow(call.constant(2, call.dtype), y)
        return ops.mul(x, power) if name == "shift_left" else ops.div(x, power)
    return getattr(ops, name)(*call.nodes(x, other))


@handles("where")
def where(call: Call, condition: Node, **sides: Any) -> Node:
    call.require("other" in sides, "where of a condition alone")
    x, y = call.nodes(sides["self"], sides["other"])
    return ops.where(converted(condition, DType.BOOL), x, y)


@handles("masked_fill")
def masked_fill(call: Call, x: Node, mask: Node, value: Any) -> Node:
    return ops.where(converted(mask, DType.BOOL), call.node(value, call.dtype), x)


@handles("isneginf", "isposinf")
def is_signed_inf(call: Call, x: Node) -> Node:
    if not x.shape.dtype.is_float:
        return call.filled(False)
    limit = float("-inf") if call.op == "isneginf" else float("inf")
    return ops.equal(x, limit)


@handles("isreal")
def isreal(call: Call, x: Node) -> Node:
    return ops.equal(ops.imag(x), 0.0) if x.shape.dtype.is_complex else call.filled(True)


@handles("isnan", "isinf", "isfinite")
def classified(call: Call, x: Node) -> Node:
    name = {"isnan": "is_nan", "isinf": "is_inf", "isfinite": "is_finite"}[call.op]
    if x.shape.dtype.is_float or x.shape.dtype.is_complex:
        return getattr(ops, name)(x)
    return call.filled(name == "is_finite")


@handles("nan_to_num")
def nan_to_num(
    call: Call, x: Node, nan: float | None = None, posinf: float | None = None,
    neginf: float | None = None,
) -> Node:  # fmt: skip
    if not x.shape.dtype.is_float:
        call.require(not x.shape.dtype.is_complex, "nan_to_num of complex numbers")
        return x
    import ml_dtypes

    limits = ml_dtypes.finfo(x.shape.dtype.numpy)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    made = ops.where(ops.is_nan(x), call.node(nan or 0.0, call.dtype), x)
    made = ops.where(ops.equal(x, float("inf")), call.node(high, call.dtype), made)
    return ops.where(ops.equal(x, float("-inf")), call.node(low, call.dtype), made)


@handles("heaviside")
def heaviside(call: Call, x: Node, values: Node) -> Node:
    x, at_zero = call.nodes(x, values)
    zero, one = call.nodes(0, 1)
    if call.dtype is DType.BOOL:
        return ops.where(x, one, at_zero)
    made = ops.where(ops.less(x, zero), zero, ops.where(ops.greater(x, zero), one, at_zero))
    return ops.where(ops.is_nan(x), zero, made) if call.dtype.is_float else made


@handles("isclose")
def isclose(
    call: Call, x: Node, other: Node, rtol: float = 1e-05, atol: float = 1e-08,
    equal_nan: bool = False,
) -> Node:  # fmt: skip
    dtype = call.promoted("self", "other")
    call.require(not dtype.is_complex, "isclose of complex numbers")
    x, y = call.nodes(x, other, dtype=dtype)
    same = ops.equal(x, y)
    if equal_nan and dtype.is_float:
        same = ops.logical_or(same, ops.logical_and(ops.is_nan(x), ops.is_nan(y)))
    if rtol == 0 and atol == 0:
        return same
    wide = dtype if dtype.is_float else DType.F32
    a, b = call.nodes(x, y, dtype=wide)
    gap = ops.abs(ops.sub(a, b))
    near = ops.less_equal(gap, ops.add(ops.mul(ops.abs(b), rtol), atol))
    return ops.logical_or(same, ops.logical_and(near, ops.is_finite(gap)))


@handles("equal")
def equal(call: Call, x: Node, other: Node) -> Node:
    return ops.all(ops.equal(*call.nodes(x, other, dtype=call.promoted("self", "other"))))
