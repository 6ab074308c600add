"""Functions of one element, or of several that broadcast."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.core.dtype import DType
from rlx.ops.draw import Spec
from tests.onnx.differential.drawing import (
    MICROSOFT,
    Array,
    Draw,
    Node,
    Operand,
    Rounding,
    draws,
    explain,
)

NEAR_ONE = Rounding(8.0, 1.0)
"""Of functions that are differences of numbers near 1, as 1 + e^x is."""


@draws(
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Cosh", "Erf",
    "Exp", "Floor", "Identity", "IsNaN", "Log", "Neg", "Not", "Reciprocal", "Relu", "Round",
    "Sign", "Sinh", "Softsign", "Sqrt", "Tan", "Tanh",
)  # fmt: skip
def _unary(d: Draw) -> Node:
    return d.node(d.tensor(d.dims(), d.kind_of(0)))


@draws("Swish")
def _swish(d: Draw) -> Node:
    alpha = d.some(alpha=float(d.choice((1.0, 0.5, -2.0, 0.0))))
    return d.node(d.tensor(d.dims(), "T"), tolerance=Rounding(16.0, 30.0), **alpha)


@draws("SwiGLU")
def _gated(d: Draw) -> Node:
    dims = d.dims()
    operands = [d.tensor(dims, "T") for _ in range(2)]
    tolerance = Rounding(16.0, 30.0 * 30.0)
    return d.node(*operands, tolerance=tolerance, **d.some(alpha=float(d.choice((1.0, 0.5, -2.0)))))


@draws("Cos", "Sin", "Sigmoid", "Softplus", "HardSwish", "Mish")
def _near_one(d: Draw) -> Node:
    return d.node(d.tensor(d.dims(), d.kind_of(0)), tolerance=NEAR_ONE)


PARAMETERS: dict[str, tuple[str, ...]] = {
    "Celu": ("alpha",),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Selu": ("alpha", "gamma"),
    "Shrink": ("bias", "lambd"),
    "ThresholdedRelu": ("alpha",),
}


@draws(*PARAMETERS)
def _with_parameters(d: Draw) -> Node:
    numbers = (0.5, 1.0, 0.0, -1.5, 2.0, 0.01, 1.6732632, 3.0)
    attrs = {name: float(d.choice(numbers)) for name in PARAMETERS[d.op]}
    if d.op == "Celu" and attrs["alpha"] == 0:  # divides by it
        attrs["alpha"] = 1.0
    kind = d.kind_of(0)
    is_real = kind.numpy.kind not in "iu"  # whole results must be ones that the dtype has
    attrs |= {} if is_real else {"bias": 0.0 if kind.numpy.kind == "u" else 1.5}
    x = d.tensor(d.dims(), kind, "any" if is_real else "plain")
    return d.node(x, tolerance=NEAR_ONE, **d.some(**attrs))


@draws("Gelu")
def _gelu(d: Draw) -> Node:
    x = d.tensor(d.dims(), "T")
    return d.node(x, tolerance=NEAR_ONE, **d.some(approximate=d.choice(("none", "tanh"))))


@draws("IsInf")
def _is_inf(d: Draw) -> Node:
    x = d.tensor(d.dims(), "T1")
    signs = d.some(detect_negative=d.integer(0, 1), detect_positive=d.integer(0, 1))
    return d.node(x, **signs)


@draws("PRelu")
def _prelu(d: Draw) -> Node:
    dims = d.dims(1, 4)
    slope = dims[d.integer(0, len(dims)) :] if d.opset >= 7 else dims[1:2] if d.coin() else (1,)
    slope = tuple(1 if d.coin(0.3) else n for n in slope) if d.opset >= 7 else slope
    return d.node(d.tensor(dims, "T"), d.tensor(slope, "T"))


# -- two and more operands ------------------------------------------------------------------------


@draws("Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Equal", "Less", "Greater")
def _binary(d: Draw) -> Node:
    kind = d.kind_of(0)
    if d.opset < 7:
        return _with_broadcast_attribute(d, kind)
    one, other = d.broadcastable(2)
    return d.node(d.tensor(one, kind), _divisor(d, d.tensor(other, kind)))


def _divisor(d: Draw, operand: Operand) -> Operand:
    """Of integers none is zero, nor -1 under the least: processors trap at either."""
    array = operand.array
    if d.op not in ("Div", "Mod") or array.dtype.kind not in "iu":
        return operand
    return Operand(np.where((array == 0) | (array == -1), array.dtype.type(3), array))


def _with_broadcast_attribute(d: Draw, kind: DType) -> Node:
    """Before opset 7 the second operand is a run of the first's dims, from `axis` on."""
    dims = d.dims(1, 4)
    if d.coin(0.3):
        return d.node(d.tensor(dims, kind), _divisor(d, d.tensor(dims, kind)))
    first = d.integer(0, len(dims) - 1)
    last = d.integer(first + 1, len(dims))
    axis = {"axis": d.signed(first, len(dims))} if last != len(dims) or d.coin() else {}
    other = d.tensor(dims[first:last], kind)
    return d.node(d.tensor(dims, kind), _divisor(d, other), broadcast=1, **axis)


@draws("GreaterOrEqual", "LessOrEqual", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
def _binary_of_today(d: Draw) -> Node:
    one, other = d.broadcastable(2)
    kind = d.kind_of(0)
    return d.node(d.tensor(one, kind), d.tensor(other, kind))


@draws("BitShift")
def _shift(d: Draw) -> Node:
    one, other = d.broadcastable(2)
    x = d.tensor(one, "T")
    by = d.rng.integers(0, x.array.dtype.itemsize * 8, other).astype(x.array.dtype)
    return d.node(x, d.given(by), direction=d.choice(("LEFT", "RIGHT")))


@draws("Mod")
def _mod(d: Draw) -> Node:
    one, other = d.broadcastable(2)
    kind = d.kind("T")
    attrs = {"fmod": 1} if kind.numpy.kind == "f" or d.coin(0.4) else d.some(fmod=0)
    return d.node(d.tensor(one, kind), _divisor(d, d.tensor(other, kind)), **attrs)


@draws("Pow")
def _pow(d: Draw) -> Node:
    one, other = d.broadcastable(2)
    base = d.kind("T")
    power = d.kind("T1") if d.opset >= 12 else base
    if d.opset < 7:
        return _with_broadcast_attribute(d, base)
    if base.is_integer:  # the range of whole powers that a dtype holds
        x = d.given(d.rng.integers(0, 4, one).astype(base.numpy))
        y = d.given(d.rng.integers(0, 4, other).astype(power.numpy))
        return d.node(x, y)
    if power.numpy.kind in "iu" and power.numpy.itemsize > 2 and d.coin(0.3):  # signs and limits
        x = d.given(d.rng.choice([-1.0, 1.0, -0.5, 0.0], one).astype(base.numpy))
        large = d.rng.choice([2**24 + 1, 2**11 + 1, 257, 2**30, 2**31 - 1], other)
        return d.node(x, d.given(large.astype(power.numpy)))
    return d.node(d.tensor(one, base), d.tensor(other, power, "any" if base == power else "plain"))


@draws("Max", "Min", "Mean", "Sum")
def _of_several(d: Draw) -> Node:
    count = d.integer(1, 4)
    shapes = d.broadcastable(count) if d.opset >= 8 else [d.dims()] * count
    kind = d.kind("T")
    is_sum = d.op in ("Mean", "Sum")
    parts = [d.tensor(s, kind, "plain" if is_sum and d.coin() else "any") for s in shapes]
    return d.node(*parts, tolerance=Rounding(8.0, 100.0 if is_sum else 0.0))


@draws("Where")
def _where(d: Draw) -> Node:
    test, one, other = d.broadcastable(3)
    return d.node(d.tensor(test, "B"), d.tensor(one, "T"), d.tensor(other, "T"))


@draws("Clip")
def _clip(d: Draw) -> Node:
    x = d.tensor(d.dims(), "T")
    low, high = (d.choice((0, 1, 2, 5)) * d.choice((1, -1)) for _ in range(2))
    if d.opset < 11:
        return d.node(x, **d.some(min=float(min(low, high)), max=float(max(low, high))))
    if x.array.dtype.kind == "u":
        low, high = abs(low), abs(high)
    if d.coin(0.8):  # else the least is above the greatest
        low, high = min(low, high), max(low, high)
    bounds = [_scalar(d, v, x.array) if d.coin(0.8) else None for v in (low, high)]
    return d.node(x, *bounds)


def _scalar(d: Draw, value: Any, like: Array) -> Operand:
    return Operand(np.array(value, like.dtype), d.coin())


# -- dtypes ---------------------------------------------------------------------------------------


def _castable(d: Draw, source: DType, target: DType) -> Operand:
    """Values that the target has, but for rounding: what lies outside is the machine's own."""
    domain = "any" if not target.is_integer or source.is_integer else "plain"
    made = d.values(Spec(d.dims(), source, domain))
    if target.numpy.kind == "u" and not source.is_integer:
        made = np.abs(made)
    return d.given(made)


def _onnx_number(kind: DType) -> int:
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(kind.numpy))


@draws("Cast")
def _cast(d: Draw) -> Node:
    source, target = d.choice(d.admitted("T1")), d.choice(d.admitted("T2"))
    return d.node(_castable(d, source, target), to=_onnx_number(target), **d.some(saturate=1))


@draws("CastLike")
def _cast_like(d: Draw) -> Node:
    source, target = d.choice(d.admitted("T1")), d.choice(d.admitted("T2"))
    return d.node(_castable(d, source, target), d.tensor(d.dims(), target))


@draws("BitCast")
def _bit_cast(d: Draw) -> Node:
    source = d.kind("T1")
    fitting = [k for k in d.admitted("T2") if k.numpy.itemsize == source.numpy.itemsize]
    fitting = [k for k in fitting if (k is DType.BOOL) == (source is DType.BOOL)]
    return d.node(d.tensor(d.dims(), source), to=_onnx_number(d.choice(fitting)))


@draws("Dropout")
def _dropout(d: Draw) -> Node:
    x = d.tensor(d.dims(), "T")
    outputs = d.integer(1, 2)
    if d.opset < 12:
        test = {"is_test": 1} if d.has("is_test") else {}
        return d.node(x, outputs=outputs, **test, **d.some(ratio=0.3))
    kind = d.kind("T1")
    ratio = Operand(np.array(d.choice((0.0, 0.5)), kind.numpy), d.coin()) if d.coin() else None
    mode = Operand(np.array(False), d.coin()) if d.coin() else None
    if ratio is not None and ratio.array == 0 and d.coin():
        mode = Operand(np.array(True), d.coin())  # drops nothing
    return d.node(x, ratio, mode, outputs=outputs, **d.some(seed=1))


# -- onnxruntime's --------------------------------------------------------------------------------


@draws("FastGelu", "BiasGelu", domain=MICROSOFT)
def _biased_gelu(d: Draw) -> Node:
    dims = d.dims(1, 3, smallest=1)
    needs = d.op == "BiasGelu" or d.coin()
    bias = d.tensor(dims[-1:], DType.F32, "plain") if needs else None
    return d.node(d.tensor(dims, DType.F32, "plain"), bias, tolerance=NEAR_ONE)


@draws("Gelu", "QuickGelu", domain=MICROSOFT)
def _own_gelu(d: Draw) -> Node:
    attrs = d.some(alpha=float(d.choice((1.0, 1.702, 0.5)))) if d.op == "QuickGelu" else {}
    tolerance = Rounding(16.0, 30.0)  # x times a sigmoid that is a unit of 1 off
    return d.node(d.tensor(d.dims(), DType.F32, "plain"), tolerance=tolerance, **attrs)


# -- explained differences ------------------------------------------------------------------------

OLD: dict[str, Any] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power,
    "And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor, "Equal": np.equal,
    "Less": np.less, "Greater": np.greater,
}  # fmt: skip


def _broadcast_from_axis(node: Node) -> Array:
    x, y = node.array(0), node.array(1)
    axis = node.attrs.get("axis", x.ndim - y.ndim) % max(x.ndim, 1)
    y = y.reshape((*y.shape, *[1] * (x.ndim - axis - y.ndim)))
    if node.op == "Div" and x.dtype.kind in "iu":
        return np.trunc(x.astype(np.longdouble) / y).astype(x.dtype)
    made = OLD[node.op](x, y)
    return made.astype(x.dtype) if made.dtype != bool else made


explain(
    *OLD,
    right=_broadcast_from_axis,
    why="opset 6 broadcasts from `axis` on; onnx.reference knows later versions alone",
    when=lambda n: n.opset < 7 and "broadcast" in n.attrs,
)


def _slope_per_channel(node: Node) -> Array:
    x, slope = node.array(0), node.array(1)
    if slope.size != 1 and x.ndim > 1:
        slope = slope.reshape((slope.size, *[1] * (x.ndim - 2)))
    return np.where(x < 0, slope * x, x).astype(x.dtype)


explain(
    "PRelu",
    right=_slope_per_channel,
    why="opset 6 has one slope for each channel; onnx.reference broadcasts from the last axis",
    when=lambda n: n.opset < 7,
)


def _erf(node: Node) -> Array:
    x = node.array(0)
    return np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64)).astype(x.dtype)


explain(
    "Erf",
    right=_erf,
    why="onnx.reference computes double precision and integers in single",
    when=lambda n: n.array(0).dtype.name not in ("float32", "float16", "bfloat16"),
)


def _gelu_of_doubles(node: Node) -> Array:
    x = node.array(0)
    if node.attrs.get("approximate") == "tanh":
        return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / 2 * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2)))


explain(
    "Gelu",
    right=_gelu_of_doubles,
    why="onnx.reference computes erf of double precision in single",
    when=lambda n: n.array(0).dtype == np.float64 and n.domain == "",
)
explain(
    "HardSwish",
    right=lambda n: n.array(0) * np.clip(n.array(0) / 6 + 0.5, 0, 1),
    why="a sixth is a sixth, as in torch; the evaluators have it rounded to single precision",
    when=lambda n: n.array(0).dtype == np.float64,
)
explain(
    "Shrink",
    right="reference",
    why="onnxruntime computes double precision in single",
    when=lambda n: n.array(0).dtype == np.float64,
)


def _mask_kind(node: Node) -> Any:
    return np.bool_ if node.opset >= 10 else node.array(0).dtype


explain(
    "Dropout",
    right=lambda n: (n.array(0), np.ones(n.array(0).shape, _mask_kind(n))),
    why="nothing is dropped, so all are kept; before opset 12 onnxruntime says none is, and before "
    "opset 10 the mask has the operand's dtype, and a bool in onnx.reference",
    when=lambda n: n.opset < 12 and n.outputs == 2,
)
explain(
    "Sign",
    right="reference",
    why="the sign of NaN is NaN, as both have it for f32 and f64; of f16 onnxruntime has 0",
    when=lambda n: n.array(0).dtype == np.float16 and bool(np.isnan(n.array(0)).any()),
)
explain(
    "PRelu",
    right=lambda n: np.where(n.array(0) < 0, n.array(1) * n.array(0), n.array(0)),
    why="0 is no negative number, whatever its slope; onnx.reference multiplies it, also by NaN",
    when=lambda n: not np.isfinite(n.array(1).astype(np.float64)).all(),
)
explain(
    "Mod",
    right="reference",
    why="a remainder of integers is exact; onnxruntime computes fmod of them in floats",
    when=lambda n: n.array(0).dtype.kind in "iu" and n.attrs.get("fmod", 0) == 1,
)
