"""Elementwise operators; on sizes they are arithmetic of dims."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike, dim_max, dim_min
from rlx.core.dtype import DType
from rlx.frontends.dim_ranges import require
from rlx.frontends.onnx.handlers import handles, in_floats
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.values import Sizes, Value, sizes_of
from rlx.ir.mir import Node

UNARY = {
    "Reciprocal": ops.reciprocal, "Sqrt": ops.sqrt, "Exp": ops.exp, "Log": ops.log,
    "Sin": ops.sin, "Cos": ops.cos, "Tan": ops.tan, "Asin": ops.asin, "Acos": ops.acos,
    "Atan": ops.atan, "Sinh": ops.sinh, "Cosh": ops.cosh, "Asinh": ops.asinh, "Acosh": ops.acosh,
    "Atanh": ops.atanh, "Erf": ops.erf, "Sigmoid": ops.sigmoid, "Tanh": ops.tanh,
    "Softplus": ops.softplus, "Softsign": ops.softsign, "Mish": ops.mish,
}  # fmt: skip
"""Functions of real numbers."""
ROUNDED = {"Floor": ops.floor, "Ceil": ops.ceil, "Round": ops.round}
OF_ANY = {
    "Abs": ops.abs, "Neg": ops.neg, "Sign": ops.sign, "Not": ops.logical_not,
    "BitwiseNot": ops.bit_not, "Relu": ops.relu,
}  # fmt: skip
BINARY = {
    "And": ops.logical_and, "Or": ops.logical_or, "Xor": ops.logical_xor,
    "BitwiseAnd": ops.bit_and, "BitwiseOr": ops.bit_or, "BitwiseXor": ops.bit_xor,
}  # fmt: skip
ARITHMETIC: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "Add": (ops.add, operator.add),
    "Sub": (ops.sub, operator.sub),
    "Mul": (ops.mul, operator.mul),
}
COMPARED = {
    "Equal": ops.equal, "Less": ops.less, "Greater": ops.greater,
    "LessOrEqual": ops.less_equal, "GreaterOrEqual": ops.greater_equal,
}  # fmt: skip


def both_sizes(call: Call) -> tuple[Any, Any] | None:
    """Both operands as elements that are dims, where one of them is such and both are known."""
    values = [call.value(i) for i in (0, 1)]
    if not any(isinstance(v, Sizes) for v in values):
        return None
    found = [call.importer.as_sizes(v) for v in values]
    return None if None in found else (found[0].array, found[1].array)  # pyright: ignore[reportOptionalMemberAccess]


def of_sizes(call: Call, function: Callable[..., Any], pair: tuple[Any, Any]) -> Value:
    made = np.asarray(np.frompyfunc(function, 2, 1)(*pair), object)
    return sizes_of(made, call.shape(0).dtype)


def right(call: Call) -> Node:
    """The second operand; before opset 7 its dims were matched from an axis of the first on."""
    y = call.node(1)
    rank = call.rank(0)
    axis = call.attr("axis")
    if call.version >= 7 or axis is None or y.shape.rank == 0:
        return y
    behind = rank - (axis % rank if rank else 0) - y.shape.rank
    return ops.reshape(y, dims=(*y.shape.dims, *[1] * max(0, behind)))


@handles(*UNARY)
@in_floats
def unary(call: Call) -> Value:
    return UNARY[call.op](call.node(0))


@handles(*OF_ANY)
def of_any(call: Call) -> Value:
    value = call.value(0)
    if call.op == "Neg" and isinstance(value, Sizes):
        return Sizes(tuple(-d for d in value.dims), value.shape, value.dtype)
    return OF_ANY[call.op](call.node(0))


@handles(*ROUNDED)
def rounded(call: Call) -> Value:
    """Whole numbers are what they are rounded to."""
    is_whole = not call.shape(0).dtype.is_float
    return call.value(0) if is_whole else ROUNDED[call.op](call.node(0))


@handles("IsNaN")
def is_nan(call: Call) -> Node:
    return ops.is_nan(_as_float(call))


def _as_float(call: Call) -> Node:
    """Of whole numbers none is infinite, or none at all."""
    x = call.node(0)
    return x if x.shape.dtype.is_float else ops.cast(x, to=DType.F64)


@handles("Identity")
def identity(call: Call) -> Value:
    return call.value(0)


@handles(*ARITHMETIC)
def arithmetic(call: Call) -> Value:
    of_nodes, of_dims = ARITHMETIC[call.op]
    pair = both_sizes(call)
    if pair is not None:
        return of_sizes(call, of_dims, pair)
    return of_nodes(call.node(0), right(call))


@handles("Div")
def div(call: Call) -> Value:
    """Of integers towards zero."""
    pair = both_sizes(call)
    if pair is not None:
        return of_sizes(call, _towards_zero, pair)
    return ops.div(call.node(0), right(call))


def _towards_zero(a: DimLike, b: DimLike) -> DimLike:
    """Named dims get ranges where neither is negative; else of the parts that are positive and
    negative, of which one is 0."""
    for each in (a, b):
        if isinstance(each, Dim):
            require(0, each, "what is divided")
    (p, q), (r, s) = ((dim_max(v, 0), dim_max(-v, 0)) for v in (a, b))
    return _over(p, r) - _over(q, r) - _over(p, s) + _over(q, s)


def _over(a: DimLike, b: DimLike) -> DimLike:
    return 0 if b == 0 else a // b


@handles("Mod")
def mod(call: Call) -> Value:
    pair, is_of_c = both_sizes(call), call.attr("fmod", 0)
    if pair is not None:
        return of_sizes(call, _remainder if is_of_c else _modulo, pair)
    return (ops.rem if is_of_c else ops.mod)(call.node(0), call.node(1))


def _modulo(a: DimLike, b: DimLike) -> DimLike:
    return 0 if b == 0 else a % b


def _remainder(a: DimLike, b: DimLike) -> DimLike:
    """Of the sign of a."""
    return 0 if b == 0 else a - _towards_zero(a, b) * b


@handles("And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
def binary(call: Call) -> Value:
    of_nodes: Any = BINARY[call.op]
    return of_nodes(call.node(0), right(call))


@handles("PRelu")
def prelu(call: Call) -> Node:
    """Before opset 7 a slope of one dim is one for each channel."""
    x, slope = call.node(0), call.node(1)
    if call.version < 7 and slope.shape.rank == 1 and x.shape.rank > 1:
        slope = ops.reshape(slope, dims=(*slope.shape.dims, *[1] * (x.shape.rank - 2)))
    return ops.prelu(x, slope)


@handles("Pow")
def power(call: Call) -> Node:
    """The result has the base's dtype, whatever the exponent's."""
    base, exponent = call.node(0), right(call)
    if exponent.shape.dtype is base.shape.dtype:
        return ops.pow(base, exponent)
    dtype = base.shape.dtype
    if _is_held(call, exponent.shape.dtype, dtype):
        return ops.pow(base, ops.cast(exponent, to=dtype))
    if dtype.is_float:
        wide = ops.pow(ops.cast(base, to=DType.F64), ops.cast(exponent, to=DType.F64))
        return ops.cast(wide, to=dtype)
    wide = ops.pow(ops.cast(base, to=DType.F64), ops.cast(exponent, to=DType.F64))
    return ops.cast(_whole(wide), to=dtype)


def _is_held(call: Call, exponent: DType, dtype: DType) -> bool:
    """Does the base's dtype have the exponent's values? A rounded one may be another power, and of
    a negative base another sign."""
    if not dtype.is_float:
        return not exponent.is_float
    known = call.importer.as_array(call.value(1))
    if known is not None:
        with np.errstate(over="ignore"):
            return bool((known.astype(dtype.numpy).astype(np.float64) == known).all())
    bits = {DType.F64: 53, DType.F32: 24, DType.BF16: 8}.get(dtype, 11)
    if exponent.is_float:
        return np.dtype(exponent.numpy).itemsize < np.dtype(dtype.numpy).itemsize
    return np.dtype(exponent.numpy).itemsize * 8 <= bits or dtype is DType.F64


def _whole(x: Node) -> Node:
    """x, but exactly a whole number where it is one but for its rounding: 3⁶ may come as 728.99…
    and is truncated after."""
    nearest = ops.round(x)
    is_near = ops.less_equal(ops.abs(ops.sub(x, nearest)), ops.mul(ops.abs(x), 1e-14))
    return ops.where(is_near, nearest, x)


@handles(*COMPARED)
def compared(call: Call) -> Value:
    pair = both_sizes(call)
    if pair is not None:
        made = _decided(call.op, *pair)
        if made is not None:
            return call.graph.constant(made)
    return COMPARED[call.op](call.node(0), right(call))


def _decided(op: str, left: Any, right: Any) -> Any:
    """The comparison of dims, where it is the same for all sizes."""
    if op != "Equal":
        known = all(isinstance(d, int) for side in (left, right) for d in side.reshape(-1))
        if not known:
            return None
        fold = {"Less": np.less, "Greater": np.greater, "LessOrEqual": np.less_equal,
                "GreaterOrEqual": np.greater_equal}[op]  # fmt: skip
        return np.asarray(fold(left.astype(np.int64), right.astype(np.int64)))
    pairs = np.broadcast(left, right)
    found: list[bool] = []
    for a, b in pairs:
        if a == b:
            found.append(True)
        elif isinstance(a - b, int) or _is_negative(a, b):
            found.append(False)
        else:
            return None
    return np.array(found, bool).reshape(pairs.shape)


def _is_negative(a: Any, b: Any) -> bool:
    """A size is never a negative number, so it is no -1 that stands for something else."""
    numbers = [d for d in (a, b) if isinstance(d, int)]
    return len(numbers) == 1 and numbers[0] < 0


@handles("Max", "Min")
def extreme(call: Call) -> Value:
    if call.num_inputs == 2:
        pair = both_sizes(call)
        if pair is not None:
            return of_sizes(call, dim_max if call.op == "Max" else dim_min, pair)
    fold = ops.maximum if call.op == "Max" else ops.minimum
    total = call.node(0)
    for i in range(1, call.num_inputs):
        total = fold(total, call.node(i))
    return total


@handles("Sum", "Mean")
def summed(call: Call) -> Node:
    total = call.node(0)
    for i in range(1, call.num_inputs):
        total = ops.add(total, call.node(i))
    if call.op == "Mean":
        total = ops.div(total, _scalar(call, call.num_inputs, total))
    return total


def _scalar(call: Call, value: float, like: Node) -> Node:
    return call.graph.constant(np.array(value, like.shape.dtype.numpy))


@handles("Where")
def where(call: Call) -> Value:
    known = call.importer.as_array(call.value(0))
    sides = [call.importer.as_sizes(call.value(i)) for i in (1, 2)]
    is_sizes = any(isinstance(call.value(i), Sizes) for i in (1, 2))
    if known is not None and is_sizes and None not in sides:
        arrays = [s.array for s in sides if s is not None]
        return sizes_of(np.where(known, *arrays), call.shape(1).dtype)
    return ops.where(call.node(0), call.node(1), call.node(2))


@handles("BitShift")
def shifted(call: Call) -> Node:
    shift = ops.shift_left if call.required("direction") == "LEFT" else ops.shift_right
    return shift(call.node(0), call.node(1))


@handles("IsInf")
def is_inf(call: Call) -> Node:
    """Of one sign, where the other is not asked for."""
    x = _as_float(call)
    both = call.attr("detect_positive", 1), call.attr("detect_negative", 1)
    zero = _scalar(call, 0, x)
    signs = {(1, 0): ops.greater, (0, 1): ops.less}
    if both == (1, 1):
        return ops.is_inf(x)
    if both == (0, 0):
        return ops.logical_and(ops.is_inf(x), ops.logical_not(ops.is_inf(x)))
    return ops.logical_and(ops.is_inf(x), signs[both](x, zero))
