"""Special functions, and complex numbers by their parts, angle and magnitude.

Where a function is spelled as a series here, its reference is that spelling carried out in f64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.compose import dims_of
from rlx.dtype import DType
from rlx.errors import GraphError
from rlx.op import Array, Kind, op
from rlx.ops.elementwise import UNARY, elementwise, make_complex, odd
from rlx.shape import Shape

PAIR = "f[~s], f[~s] -> f[~s]"
SLOPE = 2.0 / math.sqrt(math.pi)  # of erf at 0


def _each(function: Callable[[float], float], x: Array) -> Array:
    """A function of the standard library at every element; at a pole, or past f64, infinity."""

    def value(v: float) -> float:
        try:
            return function(v)
        except (ValueError, OverflowError):
            return math.inf

    flat = x.astype(np.float64).reshape(-1).tolist()
    return np.fromiter(map(value, flat), np.float64, len(flat)).reshape(x.shape)


def _in_f64(spelled: Callable[[Any], Any], x: Array) -> Array:
    return spelled(x.astype(np.float64)).astype(x.dtype)


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Σ coefficients[k] · xᵏ."""
    total = ops.mul(x, coefficients[-1])
    for c in coefficients[-2:0:-1]:
        total = ops.mul(ops.add(total, c), x)
    return ops.add(total, coefficients[0])


# -- the error function ---------------------------------------------------------------------------


@elementwise(UNARY, flops="25*out", why_no_lowering="a primitive: each target approximates it")
def erfc(x: Array) -> Array:
    """1 - erf x, accurate where that is small."""
    return _each(math.erfc, x).astype(x.dtype)


@elementwise(UNARY, flops="120*out")
def erfinv(x: Array) -> Array:
    """The number whose erf is x: NaN outside of -1 to 1, infinite at them."""
    return _in_f64(_erfinv, x)


def _erfinv(y: Any) -> Any:
    """Winitzki's formula, within 1 in 500, then Halley's method, which triples the digits.

    Beyond 1/2, the rest to 1 is what is compared: it keeps its digits.
    """
    a = ops.abs(y)
    log = ops.mul(ops.log1p(ops.neg(ops.mul(a, a))), 0.5)
    middle = ops.add(log, 2.0 / (math.pi * 0.147))
    root = ops.sqrt(ops.sub(ops.mul(middle, middle), ops.mul(log, 2.0 / 0.147)))
    x = ops.sqrt(ops.maximum(ops.sub(root, middle), 0.0))
    x = ops.where(ops.less(a, 0.1), ops.mul(a, 1.0 / SLOPE), x)
    for _ in range(3):
        by_erf = ops.sub(ops.erf(x), a)
        by_rest = ops.sub(ops.sub(1.0, a), ops.erfc(x))
        miss = ops.where(ops.less(a, 0.5), by_erf, by_rest)
        step = ops.div(miss, ops.mul(ops.exp(ops.neg(ops.mul(x, x))), SLOPE))
        x = ops.sub(x, ops.div(step, ops.add(ops.mul(x, step), 1.0)))
    x = ops.where(ops.equal(a, 1.0), np.inf, x)
    return odd(y, ops.where(ops.greater(a, 1.0), np.nan, x))


@erfinv.lowering
def _(x: Any) -> Any:
    return _erfinv(x)


# -- the gamma function ---------------------------------------------------------------------------

SHIFT = 8
"""Stirling's series is taken from here on, where eight terms of it are exact to f64."""
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12, -3617 / 8160)


@elementwise(UNARY, flops="50*out", aliases=("gammaln",))
def lgamma(x: Array) -> Array:
    """log |Γ(x)|; infinite at 0, -1, -2, … and both ends."""
    return _each(math.lgamma, x).astype(x.dtype)


@lgamma.lowering
def _(x: Any) -> Any:
    """Below 1/2 by reflection: |Γ(x)| Γ(1 - x) = π / |sin πx|."""
    is_low = ops.less(x, 0.5)
    z = ops.where(is_low, ops.sub(1.0, x), x)
    large = _stirling(z)
    shifted = ops.add(z, float(SHIFT))
    small = ops.sub(_stirling(shifted), ops.log(_rising(z)))
    value = ops.where(ops.less(z, float(SHIFT)), small, large)
    value = ops.where(ops.is_inf(z), np.inf, value)
    sine = ops.abs(ops.sin(ops.mul(_fraction(x), math.pi)))
    mirrored = ops.sub(ops.sub(math.log(math.pi), ops.log(sine)), value)
    mirrored = ops.where(ops.logical_or(ops.equal(sine, 0.0), ops.is_inf(x)), np.inf, mirrored)
    return ops.where(is_low, mirrored, value)


def _fraction(x: Any) -> Any:
    """How far x lies from the nearest whole number: sines of πx keep their digits."""
    return ops.sub(x, ops.round(x))


def _rising(z: Any) -> Any:
    """z · (z + 1) · … · (z + 7)."""
    product = z
    for k in range(1, SHIFT):
        product = ops.mul(product, ops.add(z, float(k)))
    return product


def _stirling(z: Any) -> Any:
    """(z - 1/2) log z - z + log √2π + Σ Bₖ / …, each of the first two as small as they can be."""
    r = ops.div(1.0, z)
    series = ops.mul(_polynomial(ops.mul(r, r), STIRLING), r)
    main = ops.mul(ops.sub(z, 0.5), ops.sub(ops.log(z), 1.0))
    return ops.add(main, ops.add(series, 0.5 * math.log(2.0 * math.pi) - 0.5))


@elementwise(UNARY, flops="60*out", aliases=("psi",))
def digamma(x: Array) -> Array:
    """The slope of log Γ. NaN at -1, -2, … and -inf; at 0 infinite, with the other sign of x."""
    return _in_f64(_digamma, x)


def _digamma(x: Any) -> Any:
    """Below 0 by reflection, ψ(x) = ψ(1 - x) - π / tan πx; then ψ(z) = ψ(z + 1) - 1 / z."""
    is_low = ops.less(x, 0.0)
    z = ops.where(is_low, ops.sub(1.0, x), x)
    is_small = ops.less(z, float(SHIFT))
    far = ops.where(is_small, ops.add(z, float(SHIFT)), z)
    r = ops.div(1.0, far)
    r2 = ops.mul(r, r)
    tail = ops.add(ops.mul(r, 0.5), ops.mul(_polynomial(r2, DIGAMMA), r2))
    value = ops.sub(ops.log(far), tail)
    steps = ops.div(1.0, z)
    for k in range(1, SHIFT):
        steps = ops.add(steps, ops.div(1.0, ops.add(z, float(k))))
    value = ops.where(is_small, ops.sub(value, steps), value)
    angle = ops.mul(_fraction(x), math.pi)
    mirrored = ops.sub(value, ops.div(math.pi, ops.tan(angle)))
    mirrored = ops.where(ops.equal(angle, 0.0), np.nan, mirrored)
    return ops.where(is_low, mirrored, value)


@digamma.lowering
def _(x: Any) -> Any:
    return _digamma(x)


# -- Bessel ---------------------------------------------------------------------------------------


@elementwise(UNARY, flops="70*out")
def i0(x: Array) -> Array:
    """The modified Bessel function of the first kind, of order 0: the shape of Kaiser windows."""
    made = np.i0(np.asarray(x, np.float64)).reshape(x.shape)
    return np.where(np.isinf(x), np.inf, made)


@functools.cache
def _bessel_series() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Chebyshev series of e⁻ˣ I₀(x) on 0 to 8, and of √x e⁻ˣ I₀(x) over 16/x - 1 from 8 on."""
    fit: Any = np.polynomial.chebyshev.chebinterpolate

    def near(t: Array) -> Array:
        x = 4.0 * (t + 1.0)
        return np.exp(-x) * np.i0(x)

    def far(t: Array) -> Array:
        """Past 500, where I₀ overflows, by its own series over 1 / 8x."""
        x = 16.0 / (t + 1.0)
        small = np.minimum(x, 500.0)
        terms = [math.prod((2 * j - 1) ** 2 / j for j in range(1, k + 1)) for k in range(8)]
        series = sum(c / (8.0 * x) ** k for k, c in enumerate(terms)) / math.sqrt(2.0 * math.pi)
        return np.where(x > 500.0, series, np.sqrt(small) * np.exp(-small) * np.i0(small))

    return tuple(map(float, fit(near, 28))), tuple(map(float, fit(far, 22)))


def _chebyshev(t: Any, coefficients: Sequence[float]) -> Any:
    """Clenshaw's recurrence."""
    twice = ops.mul(t, 2.0)
    b, before = ops.mul(t, 0.0), ops.mul(t, 0.0)
    for c in coefficients[:0:-1]:
        b, before = ops.add(ops.sub(ops.mul(twice, b), before), c), b
    return ops.add(ops.sub(ops.mul(t, b), before), coefficients[0])


@i0.lowering
def _(x: Any) -> Any:
    """e^x is taken in two halves, as it overflows before I₀ does."""
    a = ops.abs(x)
    near, far = _bessel_series()
    half = ops.exp(ops.mul(a, 0.5))
    low = ops.minimum(a, 8.0)
    inner = _chebyshev(ops.sub(ops.mul(low, 0.25), 1.0), near)
    high = ops.maximum(a, 8.0)
    outer = ops.div(_chebyshev(ops.sub(ops.div(16.0, high), 1.0), far), ops.sqrt(high))
    scaled = ops.where(ops.less_equal(a, 8.0), inner, outer)
    made = ops.mul(ops.mul(scaled, half), half)
    return ops.where(ops.is_inf(a), np.inf, made)


# -- logarithms, roots, steps ---------------------------------------------------------------------


@elementwise(UNARY, flops="4*out")
def cbrt(x: Array) -> Array:
    """The cube root of x, of either sign."""
    return np.cbrt(x)


@cbrt.lowering
def _(x: Any) -> Any:
    return odd(x, ops.pow(ops.abs(x), 1.0 / 3.0))


@elementwise(PAIR, is_commutative=True, flops="8*out")
def hypot(x: Array, y: Array) -> Array:
    """√(x² + y²), where the squares may overflow; infinite if one is, whatever the other."""
    return np.hypot(x, y)


@hypot.lowering
def _(x: Any, y: Any) -> Any:
    a, b = ops.abs(x), ops.abs(y)
    large, small = ops.maximum(a, b), ops.minimum(a, b)
    ratio = ops.div(small, ops.where(ops.equal(large, 0.0), 1.0, large))
    made = ops.mul(large, ops.sqrt(ops.add(ops.mul(ratio, ratio), 1.0)))
    return ops.where(ops.logical_or(ops.is_inf(a), ops.is_inf(b)), np.inf, made)


@elementwise(UNARY, flops="8*out", draw="unit")
def logit(x: Array, *, eps: float | None = None) -> Array:
    """log(x / (1 - x)), the inverse of sigmoid; `eps` keeps x between eps and 1 - eps."""
    x = x if eps is None else np.clip(x, x.dtype.type(eps), x.dtype.type(1.0 - eps))
    return np.log(x) - np.log1p(-x)


@logit.lowering
def _(x: Any, *, eps: float | None) -> Any:
    x = x if eps is None else ops.clamp(x, min=eps, max=1.0 - eps)
    return ops.sub(ops.log(x), ops.log1p(ops.neg(x)))


@elementwise(PAIR, flops="2*out")
def xlogy(x: Array, y: Array) -> Array:
    """x · log y, and 0 where x is 0, unless y is NaN: terms of an entropy."""
    return np.where((x == 0) & ~np.isnan(y), np.zeros((), x.dtype), x * np.log(y))


@xlogy.lowering
def _(x: Any, y: Any) -> Any:
    is_zero = ops.logical_and(ops.equal(x, 0.0), ops.logical_not(ops.is_nan(y)))
    return ops.where(is_zero, 0.0, ops.mul(x, ops.log(y)))


@elementwise(PAIR, is_commutative=True, flops="8*out")
def logaddexp(x: Array, y: Array) -> Array:
    """log(eˣ + eʸ), without overflow."""
    return np.logaddexp(x, y)


@logaddexp.lowering
def _(x: Any, y: Any) -> Any:
    """Equals are taken apart, as infinities have no difference."""
    apart = ops.abs(ops.sub(x, y))
    made = ops.add(ops.maximum(x, y), ops.log1p(ops.exp(ops.neg(apart))))
    return ops.where(ops.equal(x, y), ops.add(x, math.log(2.0)), made)


@elementwise(UNARY, flops="4*out")
def sinc(x: Array) -> Array:
    """sin πx / πx, and 1 at 0."""
    turned = x * x.dtype.type(np.pi)
    return np.where(x == 0, np.ones((), x.dtype), np.sin(turned) / turned)


@sinc.lowering
def _(x: Any) -> Any:
    turned = ops.mul(x, math.pi)
    return ops.where(ops.equal(x, 0.0), 1.0, ops.div(ops.sin(turned), turned))


@elementwise(PAIR, jumps=True, flops="3*out")
def heaviside(x: Array, at_zero: Array) -> Array:
    """0 below 0, 1 above, `at_zero` at 0; NaN stays."""
    return np.heaviside(x, at_zero)


@heaviside.lowering
def _(x: Any, at_zero: Any) -> Any:
    step = ops.where(ops.greater(x, 0.0), 1.0, ops.where(ops.is_nan(x), x, 0.0))
    return ops.where(ops.equal(x, 0.0), at_zero, step)


# -- complex numbers ------------------------------------------------------------------------------


@elementwise("c[*s] -> c.real[*s]", jumps=True, flops="4*out")
def angle(z: Array) -> Array:
    """The angle of z, from -π to π."""
    return np.angle(z)


@angle.lowering
def _(z: Any) -> Any:
    return ops.atan2(ops.imag(z), ops.real(z))


@elementwise("f[~s], f[~s] -> f.complex[~s]", flops="4*out")
def polar(r: Array, theta: Array) -> Array:
    """The number r e^(i theta)."""
    return make_complex.reference(r * np.cos(theta), r * np.sin(theta))


@polar.lowering
def _(r: Any, theta: Any) -> Any:
    return ops.make_complex(ops.mul(r, ops.cos(theta)), ops.mul(r, ops.sin(theta)))


@elementwise("c[*s] -> c.real[*s]", flops="3*out")
def complex_norm_sq(z: Array) -> Array:
    """re² + im²: |z|² without the root."""
    re, im = np.real(z), np.imag(z)
    return re * re + im * im


@complex_norm_sq.lowering
def _(z: Any) -> Any:
    re, im = ops.real(z), ops.imag(z)
    return ops.add(ops.mul(re, re), ops.mul(im, im))


@op("c[*s] -> c.real[*s 2]", kind=Kind.MOVEMENT)
def view_as_real(z: Array) -> Array:
    """Real and imaginary parts side by side, along a new last axis."""
    return np.stack([np.real(z), np.imag(z)], -1)


@view_as_real.lowering
def _(z: Any) -> Any:
    return ops.stack([ops.real(z), ops.imag(z)], axis=len(dims_of(z)))


def _paired(x: Shape) -> Shape:
    if x.dtype.complex.real is not x.dtype:
        raise GraphError(f"operand 0 is {x}: there is no complex dtype of its parts. Cast it first")
    return Shape(x.dims[:-1], x.dtype.complex)


@op("f[*s 2] -> f.complex[*s]", kind=Kind.MOVEMENT, shape=_paired)
def view_as_complex(x: Array) -> Array:
    """The complex numbers whose parts lie side by side along the last axis."""
    return make_complex.reference(x[..., 0], x[..., 1])


@view_as_complex.lowering
def _(x: Any) -> Any:
    axis = len(dims_of(x)) - 1
    parts = [ops.narrow(x, axis=axis, start=i, length=1) for i in (0, 1)]
    return ops.make_complex(*(ops.squeeze(p, axes=(axis,)) for p in parts))


@view_as_complex.sample
def _(draw: Any) -> Any:
    from rlx.draw import Spec

    return [Spec((*draw.dims(0, 4), 2), draw.choice((DType.F32, DType.F64)))], {}
