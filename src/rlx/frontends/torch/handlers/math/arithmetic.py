"""Arithmetic: sums, products, quotients, powers, rounding, signs."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.torch.dtypes import dtype_of
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.handlers.math.complex_functions import complex_pow
from rlx.frontends.torch.handlers.math.signs import sign_bit, with_sign
from rlx.frontends.torch.namespaces import torch
from rlx.frontends.torch.node_call import Call
from rlx.ir.mir import Node


def scaled(call: Call, x: Node, factor: Any) -> Node:
    """x times a Python number, in its own dtype."""
    return x if _is_one(factor) else ops.mul(x, call.node(factor, x.shape.dtype))


def scaled_wide(call: Call, x: Node, factor: Any) -> Node:
    """x times a Python number of the result's dtype, for a sum that is rounded once. Torch's
    complex product with 1 is not x where a part is infinite: 0 · ∞ comes in."""
    if call.dtype.is_complex and _is_one(factor):
        re, im = ops.real(x), ops.imag(x)
        return ops.make_complex(ops.sub(re, ops.mul(im, 0.0)), ops.add(im, ops.mul(re, 0.0)))
    return x if _is_one(factor) else ops.mul(
        call.node(x, call.wide), call.node(call.node(factor, call.dtype), call.wide)
    )  # fmt: skip


def _is_one(factor: Any) -> bool:
    return isinstance(factor, bool | int | float) and factor == 1


@handles("add", "add_relu")
def add(call: Call, x: Any, other: Any, alpha: Any = 1) -> Node:
    x, y = call.nodes(x, other)
    if call.dtype is DType.BOOL:
        return ops.logical_or(x, y if alpha else call.constant(False, DType.BOOL))
    return _sum(call, x, scaled_wide(call, y, alpha))


def _sum(call: Call, x: Node, y: Node) -> Node:
    return ops.add(call.node(x, y.shape.dtype), y)


@handles("sub", "subtract")
def sub(call: Call, x: Any, other: Any, alpha: Any = 1) -> Node:
    x, y = call.nodes(x, other)
    y = scaled_wide(call, y, alpha)
    return ops.sub(call.node(x, y.shape.dtype), y)


@handles("rsub")
def rsub(call: Call, x: Any, other: Any, alpha: Any = 1) -> Node:
    x, y = call.nodes(x, other)
    x = scaled_wide(call, x, alpha)
    return ops.sub(call.node(y, x.shape.dtype), x)


@handles("mul", "multiply")
def mul(call: Call, x: Any, other: Any) -> Node:
    x, y = call.nodes(x, other)
    return ops.logical_and(x, y) if call.dtype is DType.BOOL else ops.mul(x, y)


@handles("div", "true_divide", "divide")
def div(call: Call, x: Any, other: Any, rounding_mode: str | None = None) -> Node:
    x, y = call.nodes(x, other)
    match rounding_mode:
        case "floor":
            return _floor_quotient(call, x, y)
        case "trunc" if call.dtype.is_float:
            return ops.trunc(ops.div(x, y))
        case _:
            return ops.div(x, y)


@handles("floor_divide")
def floor_divide(call: Call, x: Any, other: Any) -> Node:
    return _floor_quotient(call, *call.nodes(x, other))


def _floor_quotient(call: Call, x: Node, y: Node) -> Node:
    """⌊x / y⌋ as Python's floats have it: from the remainder, so that it fits it."""
    if not call.dtype.is_float:
        return ops.floor_div(x, y)
    return _python_floor(call, x, y)


def _python_floor(call: Call, x: Node, y: Node) -> Node:
    a, b = call.nodes(x, y)
    left = ops.rem(a, b)
    exact = ops.div(ops.sub(a, left), b)
    opposite = ops.logical_and(
        ops.not_equal(left, 0.0), ops.not_equal(ops.less(b, 0.0), ops.less(left, 0.0))
    )
    lower = ops.where(opposite, ops.sub(exact, 1.0), exact)
    floor = ops.floor(lower)
    near = ops.where(ops.greater(ops.sub(lower, floor), 0.5), ops.add(floor, 1.0), floor)
    signed = ops.where(ops.equal(lower, 0.0), ops.mul(ops.div(a, b), 0.0), near)
    return ops.where(ops.equal(b, 0.0), ops.div(a, b), signed)


@handles("fmod")
def fmod(call: Call, x: Any, other: Any) -> Node:
    return ops.rem(*call.nodes(x, other))


@handles("remainder")
def remainder(call: Call, x: Any, other: Any) -> Node:
    return ops.mod(*call.nodes(x, other))


@handles("pow", "float_power")
def pow_(call: Call, x: Any, exponent: Any) -> Node:
    if call.dtype.is_complex:
        base, power = call.nodes(x, exponent)
        return complex_pow(base, power, exponent)
    if isinstance(exponent, int | float) and not isinstance(exponent, bool):
        if exponent == 2:
            base = call.node(x, call.dtype)
            return ops.mul(base, base)
        if exponent == 0.5 and call.dtype.is_float:
            return ops.sqrt(call.node(x, call.dtype))
    return ops.pow(*call.nodes(x, exponent))


@handles("floor", "ceil", "trunc", "fix")
def rounded(call: Call, x: Node) -> Node:
    if not call.dtype.is_float:
        return x
    return getattr(ops, {"fix": "trunc"}.get(call.op.removesuffix("_"), call.op.removesuffix("_")))(
        x
    )


@handles("round")
def round_(call: Call, x: Node, decimals: int = 0) -> Node:
    if not call.dtype.is_float:
        call.require(decimals >= 0, "rounding whole numbers to tens")
        return x
    if decimals == 0:
        return ops.round(x)
    wide = call.node(x, call.dtype.compute)
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return ops.div(ops.round(ops.mul(wide, scale)), scale)
    return ops.mul(ops.round(ops.div(wide, scale)), scale)


@handles("sign", "sgn")
def sign(call: Call, x: Node) -> Node:
    if x.shape.dtype is DType.BOOL:
        return x
    if not x.shape.dtype.is_complex:
        made = ops.sign(x)
        return ops.where(ops.is_nan(x), 0.0, made) if x.shape.dtype.is_float else made
    size = ops.abs(x)
    is_zero = ops.equal(size, 0.0)
    return ops.where(
        is_zero, x, ops.div(x, call.node(ops.where(is_zero, 1.0, size), x.shape.dtype))
    )


@handles("abs", "absolute")
def abs_(call: Call, x: Node) -> Node:
    return x if x.shape.dtype is DType.BOOL else ops.abs(x)


@handles("neg", "negative", "_neg_view")
def neg(call: Call, x: Node) -> Node:
    return ops.neg(x)


@handles("positive")
def positive(call: Call, x: Node) -> Node:
    return x


@handles("square")
def square(call: Call, x: Node) -> Node:
    wide = call.node(x, call.dtype)
    return ops.mul(wide, wide)


@handles("copysign")
def copysign(call: Call, x: Any, other: Any) -> Node:
    return with_sign(*call.nodes(x, other))


@handles("signbit")
def signbit(call: Call, x: Node) -> Node:
    if x.shape.dtype.is_float:
        return sign_bit(x)
    return call.filled(False) if x.shape.dtype is DType.BOOL else ops.less(x, 0)


@handles("maximum", "minimum")
def extremum(call: Call, x: Any, other: Any) -> Node:
    x, y = call.nodes(x, other)
    is_max = call.op.startswith("max")
    if call.dtype is DType.BOOL:
        return ops.logical_or(x, y) if is_max else ops.logical_and(x, y)
    return ops.maximum(x, y) if is_max else ops.minimum(x, y)


@handles("fmax", "fmin")
def extremum_without_nan(call: Call, x: Any, other: Any) -> Node:
    made = extremum_of(call, x, other)
    if not call.dtype.is_float:
        return made
    x, y = call.nodes(x, other)
    return ops.where(ops.is_nan(x), y, ops.where(ops.is_nan(y), x, made))


def extremum_of(call: Call, x: Any, other: Any) -> Node:
    x, y = call.nodes(x, other)
    is_max = "max" in call.op
    if call.dtype is DType.BOOL:
        return ops.logical_or(x, y) if is_max else ops.logical_and(x, y)
    return ops.maximum(x, y) if is_max else ops.minimum(x, y)


@handles("clamp", "clip")
def clamp(call: Call, x: Node, min: Any = None, max: Any = None) -> Node:  # noqa: A002
    made = call.node(x, call.dtype)
    if min is not None:
        made = ops.maximum(made, call.node(min, call.dtype))
    if max is not None:
        made = ops.minimum(made, call.node(max, call.dtype))
    return made


@handles("clamp_min")
def clamp_min(call: Call, x: Node, min: Any) -> Node:  # noqa: A002
    return clamp(call, x, min=min)


@handles("clamp_max")
def clamp_max(call: Call, x: Node, max: Any) -> Node:  # noqa: A002
    return clamp(call, x, max=max)


@handles("addcmul")
def addcmul(call: Call, x: Node, tensor1: Node, tensor2: Node, value: Any = 1) -> Node:
    x, a, b = call.wide_nodes(x, tensor1, tensor2)
    return ops.add(x, ops.mul(scaled(call, a, value), b))


@handles("addcdiv")
def addcdiv(call: Call, x: Node, tensor1: Node, tensor2: Node, value: Any = 1) -> Node:
    x, a, b = call.wide_nodes(x, tensor1, tensor2)
    return ops.add(x, ops.div(scaled(call, a, value), b))


@handles("lerp")
def lerp(call: Call, x: Node, end: Node, weight: Any) -> Node:
    x, y, w = call.wide_nodes(x, end, weight)
    step = ops.sub(y, x)
    near = ops.add(x, ops.mul(w, step))
    far = ops.sub(y, ops.mul(step, ops.sub(call.constant(1, call.wide), w)))
    return ops.where(ops.less(ops.abs(w), 0.5), near, far)


@handles("frexp")
def frexp(call: Call, x: Node) -> list[Node]:
    return list(ops.frexp(x))


@handles("ldexp")
def ldexp(call: Call, x: Any, other: Any) -> Node:
    """x · 2^other, with a power of the dtype of `other`."""
    power = dtype_of(torch.result_type(call.fakes["other"], 2.0))
    base, exponent = call.constant(2, power), call.node(other, power)
    made = complex_pow(base, exponent, other) if power.is_complex else ops.pow(base, exponent)
    return ops.mul(call.node(x, call.dtype), call.node(made, call.dtype))


@handles("gcd", "lcm")
def gcd(call: Call, x: Any, other: Any) -> Node:
    return (ops.gcd if call.op.startswith("gcd") else ops.lcm)(*call.nodes(x, other))
