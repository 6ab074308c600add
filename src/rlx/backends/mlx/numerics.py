"""Elementary functions of mlx arrays to the accuracy that ops promise.

mlx's functions for the processor reduce the argument of exp in one step, which loses 32 units in
the last place at -87 and gives infinity from 88.5 on; compute exp, sin, cos, erf and sigmoid of
doubles in f32; and approximate erf to 1e-7 of 1, which is nothing near 0. expm1, tan, log and pow
are the C library's, within 1 unit in f32 and f64, so that the others are made of them. On a GPU
there are no doubles, and exp is the device's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rlx.backends.mlx.namespaces import mx

SQRT_HALF = math.sqrt(0.5)
LARGE = 1024
"""Elements whose sum mlx takes one after the other: the error of more is beyond one of ours."""


def on_processor() -> bool:
    """Does mlx compute on the processor, where doubles exist?"""
    return mx.default_device() == mx.Device(mx.cpu)


def widened(x: Any) -> Any:
    """What a function of mlx is given that computes half floats in f32 and rounds once in its
    kernels for GPUs, and is composed of ops that round each for the processor."""
    if x is None or x.dtype not in (mx.float16, mx.bfloat16) or not on_processor():
        return x
    return x.astype(mx.float32)


def exp(x: Any) -> Any:
    """eˣ by the square of e^(|x|/2), which is in range wherever the result is."""
    if x.dtype == mx.complex64 or not on_processor():
        return mx.exp(x)
    root = mx.expm1(mx.abs(x) * 0.5) + 1.0
    return mx.where(x < 0, 1.0 / root / root, root * root)


def sin(x: Any) -> Any:
    """2t / (1 + t²) with t = tan(x/2), whose zeros and poles are the zeros of the sine."""
    if x.dtype != mx.float64:
        return mx.sin(x)
    t = mx.tan(x * 0.5)
    return 2.0 * t / (1.0 + t * t)


def cos(x: Any) -> Any:
    """sin x / tan x: both are exact to their last digits where the cosine is small."""
    if x.dtype != mx.float64:
        return mx.cos(x)
    slope = mx.tan(x)
    return mx.where(slope == 0, 1.0, sin(x) / slope)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e⁻ˣ), through e^-|x|, which does not overflow."""
    if not on_processor():
        return mx.sigmoid(x)
    e = exp(-mx.abs(x))
    return mx.where(x < 0, e, 1.0) / (1.0 + e)


def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Horner's scheme, the highest power first."""
    total = x * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        total = total * x + c
    return total


def erf(x: Any) -> Any:
    """f32: 1 - e^(-y) with y = -log(1 - erf |x|), a smooth function. f64: x · P(x²) near 0, and
    1 - erfc |x| further out."""
    from rlx.backends.cpu.codegen.math.elementary import ERF_F32, ERF_F64, ERF_FIRST

    size = mx.abs(x)
    if x.dtype == mx.float64:
        near = x + x * polynomial(x * x, ERF_F64)
        return mx.where(size > 1.0, copysign(1.0 - _erfc_tail(size), x), near)
    size = mx.minimum(size, 4.0)
    rest = size * polynomial(size, (*ERF_F32, ERF_FIRST[1]))
    return copysign(-mx.expm1(-(size * ERF_FIRST[0] + rest)), x)


def erfc(x: Any) -> Any:
    """1 - erf x, which keeps its digits where erf is near 1: in f64, as x² has more digits than
    x."""
    from rlx.backends.cpu.codegen.math.elementary import ERF_F64

    wide = x.astype(mx.float64)
    tail = _erfc_tail(mx.abs(wide))
    tail = mx.where(wide < 0, 2.0 - tail, tail)
    near = (0.5 - (wide + wide * polynomial(wide * wide, ERF_F64))) + 0.5
    return mx.where(mx.abs(wide) < 0.5, near, tail).astype(x.dtype)


def _erfc_tail(x: Any) -> Any:
    """erfc of x ≥ ½: e^(-x²) times a smooth part. x² is taken of the leading digits of x, which is
    exact, and the rest is put back."""
    from rlx.backends.cpu.codegen.math.elementary import ERFCX

    x = mx.minimum(x, 28.0)
    t = (x - 3.0) / (x + 3.0)
    head = mx.round(x * 2.0**20) * 2.0**-20
    lost = (x - head) * (x + head)
    return exp(-head * head) * exp(-lost) * (polynomial(t, ERFCX) / (x * 2.0 + 1.0))


def copysign(size: Any, x: Any) -> Any:
    """A number of this size with the sign of x; zeros and NaN of x stay."""
    return mx.where(x > 0, size, mx.where(x < 0, -size, x))


def gelu(x: Any) -> Any:
    """x/2 · (1 + erf(x/√2))."""
    return 0.5 * x * (1.0 + erf(x * SQRT_HALF))


def total(x: Any, axes: Sequence[int], *, keepdims: bool) -> Any:
    """The sum over axes. mlx adds one element after the other on the processor, so that a sum of
    2²⁴ ones in f32 stays there: long sums are carried in f64."""
    axes = list(axes)
    if not axes:
        return x
    if 0 in x.shape:
        return _sum_of_nothing(x, axes, keepdims=keepdims)
    count = math.prod(x.shape[a] for a in axes)
    if count <= LARGE or x.dtype != mx.float32 or not on_processor():
        return mx.sum(x, axis=axes, keepdims=keepdims)
    return mx.sum(x.astype(mx.float64), axis=axes, keepdims=keepdims).astype(x.dtype)


def _sum_of_nothing(x: Any, axes: Sequence[int], *, keepdims: bool) -> Any:
    """Zeros: mlx reads a first element where NumPy's array has none."""
    kept = [1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes]
    return mx.zeros(kept, x.dtype)
