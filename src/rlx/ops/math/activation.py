"""Activations. Each is defined by its formula, so that a product with a gate is NaN where
infinity meets zero: what recognises `x · sigmoid(x)` as silu changes no value."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.error_function import erf
from rlx.ops.cost import OpClass
from rlx.ops.math.elementwise import UNARY, elementwise, odd
from rlx.ops.op import Array

activation = functools.partial(elementwise, UNARY)
SQRT_HALF = math.sqrt(0.5)
SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715
SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805


@elementwise("n[*s] -> n[*s]")
def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.maximum(x, np.zeros((), x.dtype))


@activation(flops="4*out")
def sigmoid(x: Array) -> Array:
    """1 / (1 + e⁻ˣ), through e^-|x|, which does not overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


@activation(flops="7*out", cost=OpClass.HYPERBOLIC)
def tanh(x: Array) -> Array:
    """The hyperbolic tangent."""
    return np.tanh(x)


@activation(flops="5*out")
def gelu(x: Array) -> Array:
    """x · Φ(x) with the normal distribution's Φ: x/2 · (1 + erf(x/√2))."""
    return 0.5 * x * (1 + erf(x * SQRT_HALF).astype(x.dtype))


@activation(flops="9*out")
def gelu_tanh(x: Array) -> Array:
    """gelu by tanh: x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))."""
    inner = SQRT_2_OVER_PI * (x + GELU_CUBIC * (x * x * x))
    return 0.5 * x * (1 + np.tanh(inner))


@activation(aliases=("swish",), flops="5*out")
def silu(x: Array) -> Array:
    """x · sigmoid(x)."""
    return x * sigmoid.reference(x)


@activation(flops="3*out")
def elu(x: Array, *, alpha: float = 1.0) -> Array:
    """x above 0, else alpha · (eˣ - 1)."""
    return np.where(x > 0, x, alpha * np.expm1(x))


@activation(flops="4*out")
def selu(x: Array) -> Array:
    """elu, scaled so that mean 0 and variance 1 stay what they are."""
    return SELU_SCALE * elu.reference(x, alpha=SELU_ALPHA)


@activation(flops="2*out")
def leaky_relu(x: Array, *, alpha: float = 0.01) -> Array:
    """x from 0 on, else alpha · x."""
    return np.where(x < 0, alpha * x, x)


@activation(flops="5*out")
def softplus(x: Array) -> Array:
    """log(1 + eˣ), as max(x, 0) + log(1 + e^-|x|), which does not overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


@activation(flops="4*out")
def hard_sigmoid(x: Array, *, alpha: float = 1.0 / 6.0, beta: float = 0.5) -> Array:
    """alpha · x + beta, between 0 and 1. ONNX's own default is alpha = 0.2."""
    return np.minimum(np.maximum(alpha * x + beta, 0), 1)


@activation(flops="5*out")
def hard_swish(x: Array) -> Array:
    """x · hard_sigmoid(x)."""
    return x * hard_sigmoid.reference(x)


@activation(flops="13*out")
def mish(x: Array) -> Array:
    """x · tanh(softplus(x))."""
    return x * np.tanh(softplus.reference(x))


@activation(flops="3*out")
def softsign(x: Array) -> Array:
    """x / (1 + |x|)."""
    return x / (1 + np.abs(x))


@activation(flops="5*out")
def log_sigmoid(x: Array) -> Array:
    """log sigmoid(x), as min(x, 0) - log(1 + e^-|x|), which does not overflow."""
    return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))


@activation(flops="6*out")
def celu(x: Array, *, alpha: float = 1.0) -> Array:
    """x above 0, else alpha · (e^(x/alpha) - 1): elu with a slope that does not break at 0."""
    return np.maximum(x, 0) + np.minimum(alpha * np.expm1(x / alpha), 0)


@activation(flops="2*out", jumps=True)
def thresholded_relu(x: Array, *, alpha: float = 1.0) -> Array:
    """x above alpha, else 0."""
    return np.where(x > alpha, x, np.zeros((), x.dtype))


@activation(flops="4*out", jumps=True)
def shrink(x: Array, *, lambd: float = 0.5, bias: float = 0.0) -> Array:
    """x moved by `bias` towards 0 where it is farther than `lambd` from it, else 0. ONNX's names;
    without bias a hard shrink, with bias = lambd a soft one."""
    zero = np.zeros((), x.dtype)
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, zero))


@elementwise("n[~s], n[~s] -> n[~s]", flops="2*out")
def prelu(x: Array, slope: Array) -> Array:
    """x from 0 on, else slope · x."""
    return np.where(x < 0, slope * x, x)


# -- lowerings ------------------------------------------------------------------------------------


@relu.lowering
def _(x: Any) -> Any:
    return ops.maximum(x, 0)


@sigmoid.lowering
def _(x: Any) -> Any:
    e = ops.exp(ops.neg(ops.abs(x)))
    return ops.div(ops.where(ops.less(x, 0.0), e, 1.0), ops.add(e, 1.0))


@tanh.lowering
def _(x: Any) -> Any:
    """With t = e^(-2|x|) - 1, tanh |x| is -t / (t + 2)."""
    t = ops.expm1(ops.mul(ops.abs(x), -2.0))
    return odd(x, ops.div(ops.neg(t), ops.add(t, 2.0)))


@gelu.lowering
def _(x: Any) -> Any:
    gate = ops.add(ops.erf(ops.mul(x, SQRT_HALF)), 1.0)
    return ops.mul(ops.mul(x, 0.5), gate)


@gelu_tanh.lowering
def _(x: Any) -> Any:
    cube = ops.mul(ops.mul(x, x), x)
    inner = ops.mul(ops.add(x, ops.mul(cube, GELU_CUBIC)), SQRT_2_OVER_PI)
    return ops.mul(ops.mul(x, 0.5), ops.add(ops.tanh(inner), 1.0))


@silu.lowering
def _(x: Any) -> Any:
    return ops.mul(x, ops.sigmoid(x))


@elu.lowering
def _(x: Any, *, alpha: float) -> Any:
    return ops.where(ops.greater(x, 0.0), x, ops.mul(ops.expm1(x), alpha))


@selu.lowering
def _(x: Any) -> Any:
    return ops.mul(ops.elu(x, alpha=SELU_ALPHA), SELU_SCALE)


@leaky_relu.lowering
def _(x: Any, *, alpha: float) -> Any:
    return ops.where(ops.less(x, 0.0), ops.mul(x, alpha), x)


@softplus.lowering
def _(x: Any) -> Any:
    tail = ops.log1p(ops.exp(ops.neg(ops.abs(x))))
    return ops.add(ops.maximum(x, 0.0), tail)


@hard_sigmoid.lowering
def _(x: Any, *, alpha: float, beta: float) -> Any:
    return ops.clamp(ops.add(ops.mul(x, alpha), beta), min=0.0, max=1.0)


@hard_swish.lowering
def _(x: Any) -> Any:
    return ops.mul(x, ops.hard_sigmoid(x))


@mish.lowering
def _(x: Any) -> Any:
    return ops.mul(x, ops.tanh(ops.softplus(x)))


@softsign.lowering
def _(x: Any) -> Any:
    return ops.div(x, ops.add(ops.abs(x), 1.0))


@log_sigmoid.lowering
def _(x: Any) -> Any:
    tail = ops.log1p(ops.exp(ops.neg(ops.abs(x))))
    return ops.sub(ops.minimum(x, 0.0), tail)


@celu.lowering
def _(x: Any, *, alpha: float) -> Any:
    below = ops.mul(ops.expm1(ops.div(x, alpha)), alpha)
    return ops.add(ops.maximum(x, 0.0), ops.minimum(below, 0.0))


@thresholded_relu.lowering
def _(x: Any, *, alpha: float) -> Any:
    return ops.where(ops.greater(x, alpha), x, 0.0)


@shrink.lowering
def _(x: Any, *, lambd: float, bias: float) -> Any:
    above = ops.where(ops.greater(x, lambd), ops.sub(x, bias), 0.0)
    return ops.where(ops.less(x, -lambd), ops.add(x, bias), above)


@prelu.lowering
def _(x: Any, slope: Any) -> Any:
    return ops.where(ops.less(x, 0), ops.mul(x, slope), x)
