"""Special functions, and complex numbers by parts, angle and magnitude.

Where a function is defined by a series here, its reference is that series in f64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.compose import dims_of
from rlx.ops.cost import OpClass
from rlx.ops.math.elementwise import APPROXIMATED, UNARY, elementwise, make_complex, odd
from rlx.ops.op import Array, Kind, Op, op

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


def reference_in_f64(series: Callable[[Any], Any], x: Array) -> Array:
    return series(x.astype(np.float64)).astype(x.dtype)


def in_f64(series: Callable[[Any], Any], x: Any) -> Any:
    """A decomposition of a function of f32, computed in f64: its zeros, and the ends of its range,
    keep their digits."""
    if DType.of(x.dtype) is not DType.F32:
        return series(x)
    return ops.cast(series(ops.cast(x, to=DType.F64)), to=DType.F32)


def by_series(series: Callable[..., Any], signature: str = UNARY, **facts: Any) -> Op:
    """Declare a function whose meaning is its decomposition, in f64."""

    def reference(*given: Array, **attrs: Any) -> Array:
        wide = (g.astype(np.float64) for g in given)
        return series(*wide, **attrs).astype(given[0].dtype)

    functools.update_wrapper(reference, series)
    made: Op = elementwise(signature, **facts)(reference)

    @made.lowering
    def _(*given: Any, **attrs: Any) -> Any:
        if DType.of(given[0].dtype) is not DType.F32:
            return series(*given, **attrs)
        wide = (ops.cast(g, to=DType.F64) for g in given)
        return ops.cast(series(*wide, **attrs), to=DType.F32)

    return made


def chebyshev(t: Any, coefficients: Sequence[float]) -> Any:
    """Σ coefficients[k] · Tₖ(t), by Clenshaw's recurrence."""
    twice = ops.mul(t, 2.0)
    b, before = ops.mul(t, 0.0), ops.mul(t, 0.0)
    for c in coefficients[:0:-1]:
        b, before = ops.add(ops.sub(ops.mul(twice, b), before), c), b
    return ops.add(ops.sub(ops.mul(t, b), before), coefficients[0])


def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Σ coefficients[k] · xᵏ."""
    total = ops.mul(x, coefficients[-1])
    for c in coefficients[-2:0:-1]:
        total = ops.mul(ops.add(total, c), x)
    return ops.add(total, coefficients[0])


# -- the error function ---------------------------------------------------------------------------


@elementwise(UNARY, flops="25*out", cost=OpClass.ERROR_TAIL, why_no_lowering=APPROXIMATED)
def erfc(x: Array) -> Array:
    """1 - erf x, accurate where that is small."""
    return _each(math.erfc, x).astype(x.dtype)


@elementwise(UNARY, flops="120*out")
def erfinv(x: Array) -> Array:
    """The number whose erf is x: NaN outside of -1 to 1, infinite at them."""
    return reference_in_f64(_erfinv, x)


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
    return reference_in_f64(_lgamma, x)


@lgamma.lowering
def _(x: Any) -> Any:
    return in_f64(_lgamma, x)


ONE_LESS_GAMMA = 0.42278433509846713  # 1 - Euler's constant
NEAR_TWO = (  # (-1)ᵏ (ζ(k) - 1) / k, for k from 2 on
    0.3224670334241132, -0.0673523010531981, 0.020580808427784546, -0.007385551028673986,
    0.0028905103307415234, -0.001192753911703261, 0.0005096695247430425, -0.00022315475845357939,
    9.945751278180853e-05, -4.492623673813314e-05, 2.050721277567069e-05, -9.439488275268397e-06,
    4.374866789907488e-06, -2.039215753801366e-06, 9.55141213040742e-07, -4.492469198764566e-07,
    2.1207184805554665e-07, -1.0043224823968099e-07, 4.7698101693639804e-08,
    -2.2711094608943164e-08, 1.0838659214896955e-08, -5.183475041970047e-09,
    2.4836745438024785e-09, -1.1921401405860912e-09, 5.731367241678862e-10,
)  # fmt: skip


def _lgamma(x: Any) -> Any:
    """Below 0 by reflection, |Γ(x)| Γ(1 - x) = π / |sin πx|; up to 8 by Γ(z) = (z - 1) Γ(z - 1)
    from a series around 2, which is exact near the zeros at 1 and 2; further out by Stirling."""
    is_low = ops.less(x, 0.0)
    z = ops.where(is_low, ops.sub(1.0, x), x)
    value = ops.where(ops.less(z, float(SHIFT)), _lgamma_small(z), _stirling(z))
    value = ops.where(ops.is_inf(z), np.inf, value)
    sine = ops.abs(ops.sin(ops.mul(fraction(x), math.pi)))
    mirrored = ops.sub(ops.sub(math.log(math.pi), ops.log(sine)), value)
    mirrored = ops.where(ops.logical_or(ops.equal(sine, 0.0), ops.is_inf(x)), np.inf, mirrored)
    return ops.where(is_low, mirrored, value)


def _lgamma_small(z: Any) -> Any:
    """log Γ of 0 ≤ z < 8 from that of z's neighbour y with 1½ ≤ y < 2½: the logarithm of what is
    between them, taken of 1 + (z - 1) where that is near 1."""
    y, between = z, ops.cast(np.ones(()), to=DType.of(z.dtype))
    for _ in range(SHIFT - 2):
        is_far = ops.greater_equal(y, 2.5)
        y = ops.where(is_far, ops.sub(y, 1.0), y)
        between = ops.where(is_far, ops.mul(between, y), between)
    is_tiny, is_below = ops.less(z, 0.5), ops.less(z, 1.5)
    t = ops.sub(z, 1.0)
    t = ops.where(is_tiny, z, ops.where(is_below, t, ops.sub(y, 2.0)))
    series = ops.mul(t, ops.add(ops.mul(t, polynomial(t, NEAR_TWO)), ONE_LESS_GAMMA))
    below = ops.sub(series, ops.log1p(t))
    tiny = ops.sub(below, ops.log(z))
    return ops.where(is_tiny, tiny, ops.where(is_below, below, ops.add(series, ops.log(between))))


def fraction(x: Any) -> Any:
    """The distance of x from the nearest whole number: sines of πx keep their digits."""
    return ops.sub(x, ops.round(x))


def _stirling(z: Any) -> Any:
    """(z - 1/2) log z - z + log √2π + Σ Bₖ / …, each of the first two as small as they can be."""
    r = ops.div(1.0, z)
    series = ops.mul(polynomial(ops.mul(r, r), STIRLING), r)
    main = ops.mul(ops.sub(z, 0.5), ops.sub(ops.log(z), 1.0))
    return ops.add(main, ops.add(series, 0.5 * math.log(2.0 * math.pi) - 0.5))


@elementwise(UNARY, flops="60*out", aliases=("psi",))
def digamma(x: Array) -> Array:
    """The slope of log Γ. NaN at -1, -2, … and -inf; at 0 infinite, with the other sign of x."""
    return reference_in_f64(_digamma, x)


ROOT = (1.4616321449683622, 9.549995429965697e-17)
"""Where digamma is 0, as a sum."""
NEAR_ROOT = (  # its derivatives there over k!, for k from 1 on
    0.9676722454476212, -0.4427631689835921, 0.258499760955651, -0.16394270544240652,
    0.10782405069126237, -0.07219956125645471, 0.04880428816414311, -0.03316112647484736,
    0.022597648232218104, -0.01542476590494896, 0.010538791616612175, -0.007204534386356869,
    0.004926781395729853, -0.003369801655439328, 0.002305126326734928, -0.0015769367714301972,
    0.0010788252019162967, -0.0007380709389960052, 0.000504953265834602, -0.0003454680251063077,
    0.00023635601564027053, -0.00016170622091974803, 0.0001106337276874741,
    -7.569179582195066e-05,
)  # fmt: skip


def _digamma(x: Any) -> Any:
    """Around its root a series, which is exact there; else as `_digamma_far` has it."""
    t = ops.sub(ops.sub(x, ROOT[0]), ROOT[1])
    near = ops.mul(t, polynomial(t, NEAR_ROOT))
    return ops.where(ops.less(ops.abs(t), 0.3), near, _digamma_far(x))


def _digamma_far(x: Any) -> Any:
    """Below 0 by reflection, ψ(x) = ψ(1 - x) - π / tan πx; then ψ(z) = ψ(z + 1) - 1 / z."""
    is_low = ops.less(x, 0.0)
    z = ops.where(is_low, ops.sub(1.0, x), x)
    is_small = ops.less(z, float(SHIFT))
    far = ops.where(is_small, ops.add(z, float(SHIFT)), z)
    r = ops.div(1.0, far)
    r2 = ops.mul(r, r)
    tail = ops.add(ops.mul(r, 0.5), ops.mul(polynomial(r2, DIGAMMA), r2))
    value = ops.sub(ops.log(far), tail)
    steps = ops.div(1.0, z)
    for k in range(1, SHIFT):
        steps = ops.add(steps, ops.div(1.0, ops.add(z, float(k))))
    value = ops.where(is_small, ops.sub(value, steps), value)
    angle = ops.mul(fraction(x), math.pi)
    mirrored = ops.sub(value, ops.div(math.pi, ops.tan(angle)))
    mirrored = ops.where(ops.equal(angle, 0.0), np.nan, mirrored)
    return ops.where(is_low, mirrored, value)


@digamma.lowering
def _(x: Any) -> Any:
    return in_f64(_digamma, x)


# -- logarithms, roots, steps ---------------------------------------------------------------------


@elementwise(UNARY, flops="4*out")
def cbrt(x: Array) -> Array:
    """The cube root of x, of either sign."""
    return np.cbrt(x)


@cbrt.lowering
def _(x: Any) -> Any:
    """In f64, as an exponent of 1/3 in f32 is off by what the logarithm of x makes of it."""
    return in_f64(lambda x: odd(x, ops.pow(ops.abs(x), 1.0 / 3.0)), x)


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
    odds = (x + x - x.dtype.type(1)) / (x.dtype.type(1) - x)
    is_near = np.abs(x - x.dtype.type(0.5)) < x.dtype.type(0.25)
    return np.where(is_near, np.log1p(odds), np.log(x) - np.log1p(-x))


@logit.lowering
def _(x: Any, *, eps: float | None) -> Any:
    """Near its zero at 1/2 the odds less 1 are exact but for one rounding."""
    x = x if eps is None else ops.clamp(x, min=eps, max=1.0 - eps)
    near = ops.log1p(ops.div(ops.sub(ops.add(x, x), 1.0), ops.sub(1.0, x)))
    is_near = ops.less(ops.abs(ops.sub(x, 0.5)), 0.25)
    return ops.where(is_near, near, ops.sub(ops.log(x), ops.log1p(ops.neg(x))))


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
    """Equal operands are a separate case, as infinities have no difference."""
    apart = ops.abs(ops.sub(x, y))
    made = ops.add(ops.maximum(x, y), ops.log1p(ops.exp(ops.neg(apart))))
    return ops.where(ops.equal(x, y), ops.add(x, math.log(2.0)), made)


@elementwise(UNARY, flops="4*out")
def sinc(x: Array) -> Array:
    """sin πx / πx, and 1 at 0."""
    return np.where(x == 0, np.ones((), x.dtype), _sinpi(x) / (x * x.dtype.type(np.pi)))


@sinc.lowering
def _(x: Any) -> Any:
    quotient = ops.div(_sinpi(x), ops.mul(x, math.pi))
    return ops.where(ops.equal(x, 0.0), 1.0, quotient)


def _sinpi(x: Any) -> Any:
    """sin πx by the fraction of x, so that large x keep their digits: negative around odd
    numbers."""
    whole = ops.round(x)
    half = ops.mul(whole, 0.5)
    sine = ops.sin(ops.mul(ops.sub(x, whole), math.pi))
    return ops.where(ops.equal(ops.floor(half), half), sine, ops.neg(sine))


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
    """Real and imaginary parts, interleaved along a new last axis."""
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
    """The complex numbers whose parts are interleaved along the last axis."""
    return make_complex.reference(x[..., 0], x[..., 1])


@view_as_complex.lowering
def _(x: Any) -> Any:
    axis = len(dims_of(x)) - 1
    parts = [ops.narrow(x, axis=axis, start=i, length=1) for i in (0, 1)]
    return ops.make_complex(*(ops.squeeze(p, axes=(axis,)) for p in parts))


@view_as_complex.sample
def _(draw: Any) -> Any:
    from rlx.ops.draw import Spec

    return [Spec((*draw.dims(0, 4), 2), draw.choice((DType.F32, DType.F64)))], {}
