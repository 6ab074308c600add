"""Bessel functions of orders 0 and 1, and Airy's, each by Chebyshev series fitted to it.

Beside the zeros at which a series is factored, errors are a few roundings of the function's size
around, not of a value near 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.ops.math import chebyshev_series as fitted
from rlx.ops.math.elementwise import odd
from rlx.ops.math.special_functions import by_series, chebyshev, polynomial

ROOT_HALF = math.sqrt(0.5)
Zeros = tuple[tuple[float, float], ...]


# -- of the first and second kind -----------------------------------------------------------------


def _within_8(a: Any, series: Sequence[float]) -> Any:
    """A series of a² up to 64."""
    low = ops.minimum(a, 8.0)
    return chebyshev(ops.sub(ops.mul(ops.mul(low, low), 1.0 / 32.0), 1.0), series)


def _factors(a: Any, zeros: Zeros) -> Any:
    """Π (a² - zero²): exact near a zero, which is a sum of two numbers."""
    made: Any = None
    for high, low in zeros:
        one = ops.mul(ops.sub(ops.sub(a, high), low), ops.add(a, high))
        made = one if made is None else ops.mul(made, one)
    return made


def _waves(a: Any, order: int) -> tuple[Any, Any]:
    """J and Y of order 0 or 1, from 8 on: √(2/πa) times a cosine and a sine of a less a phase, each
    with a part that is out of phase."""
    a = ops.maximum(a, 8.0)
    sin, cos, over = ops.sin(a), ops.cos(a), ops.div(8.0, a)
    t = ops.sub(ops.mul(ops.mul(over, over), 2.0), 1.0)
    tables = ((fitted.P0, fitted.Q0), (fitted.P1, fitted.Q1))[order]
    in_phase, out = chebyshev(t, tables[0]), ops.div(chebyshev(t, tables[1]), a)
    plus, minus = ops.add(sin, cos), ops.sub(sin, cos)
    c, s = (plus, minus) if order == 0 else (minus, ops.neg(plus))
    size = ops.mul(ops.sqrt(ops.div(2.0 / math.pi, a)), ROOT_HALF)
    j = ops.mul(size, ops.sub(ops.mul(in_phase, c), ops.mul(out, s)))
    return j, ops.mul(size, ops.add(ops.mul(in_phase, s), ops.mul(out, c)))


def _near_or_far(a: Any, near: Any, far: Any) -> Any:
    """By the series up to 8, else by waves, which are 0 at infinity."""
    far = ops.where(ops.is_inf(a), 0.0, far)
    return ops.where(ops.less_equal(a, 8.0), near, far)


def _j0_near(a: Any) -> Any:
    return ops.mul(_within_8(a, fitted.J0), _factors(a, fitted.J0_ZEROS))


def _j1_near(a: Any) -> Any:
    return ops.mul(ops.mul(_within_8(a, fitted.J1), _factors(a, fitted.J1_ZEROS)), a)


def bessel_j0(x: Any) -> Any:
    """The Bessel function of the first kind, of order 0."""
    a = ops.abs(x)
    return _near_or_far(a, _j0_near(a), _waves(a, 0)[0])


def bessel_j1(x: Any) -> Any:
    """The Bessel function of the first kind, of order 1."""
    a = ops.abs(x)
    return odd(x, _near_or_far(a, _j1_near(a), _waves(a, 1)[0]))


def bessel_y0(x: Any) -> Any:
    """The Bessel function of the second kind, of order 0: NaN below 0, -inf at 0."""
    log = ops.mul(ops.log(x), 2.0 / math.pi)
    near = ops.add(_within_8(x, fitted.Y0), ops.mul(log, _j0_near(x)))
    return _near_or_far(x, near, _waves(x, 0)[1])


def bessel_y1(x: Any) -> Any:
    """The Bessel function of the second kind, of order 1: NaN below 0, -inf at 0."""
    log = ops.sub(ops.mul(ops.log(x), _j1_near(x)), ops.div(1.0, x))
    near = ops.add(ops.mul(_within_8(x, fitted.Y1), x), ops.mul(log, 2.0 / math.pi))
    near = ops.where(ops.equal(x, 0.0), -np.inf, near)
    return _near_or_far(x, near, _waves(x, 1)[1])


def spherical_bessel_j0(x: Any) -> Any:
    """sin x / x, and 1 at 0."""
    quotient = ops.div(ops.sin(x), x)
    made = ops.where(ops.is_inf(x), 0.0, quotient)
    return ops.where(ops.equal(x, 0.0), 1.0, made)


bessel_j0 = by_series(bessel_j0, flops="100*out")
bessel_j1 = by_series(bessel_j1, flops="100*out")
bessel_y0 = by_series(bessel_y0, flops="150*out")
bessel_y1 = by_series(bessel_y1, flops="150*out")
spherical_bessel_j0 = by_series(spherical_bessel_j0, flops="40*out")


# -- modified, of the first kind ------------------------------------------------------------------


def _scaled_i0(a: Any) -> Any:
    """e⁻ᵃ I₀(a) of a ≥ 0."""
    near, far = _near_8(a, fitted.I0), _beyond_8(a, fitted.I0_FAR)
    return ops.where(ops.less_equal(a, 8.0), near, far)


def _near_8(a: Any, series: Sequence[float]) -> Any:
    """A series on 0 to 8."""
    return chebyshev(ops.sub(ops.mul(ops.minimum(a, 8.0), 0.25), 1.0), series)


def _beyond_8(a: Any, series: Sequence[float]) -> Any:
    """A series of 8/a from 0 to 1, over √a."""
    far = ops.maximum(a, 8.0)
    return ops.div(chebyshev(ops.sub(ops.div(16.0, far), 1.0), series), ops.sqrt(far))


def _grown(scaled: Any, a: Any) -> Any:
    """times eᵃ, in two halves, as it overflows before the product does."""
    half = ops.exp(ops.mul(a, 0.5))
    return ops.where(ops.is_inf(a), np.inf, ops.mul(ops.mul(scaled, half), half))


def _scaled_i1(a: Any) -> Any:
    """e⁻ᵃ I₁(a) of a ≥ 0."""
    near = ops.mul(_near_8(a, fitted.I1), ops.minimum(a, 8.0))
    return ops.where(ops.less_equal(a, 8.0), near, _beyond_8(a, fitted.I1_FAR))


def i0(x: Any) -> Any:
    """The modified Bessel function of the first kind, of order 0: the shape of Kaiser windows."""
    a = ops.abs(x)
    return _grown(_scaled_i0(a), a)


def i1(x: Any) -> Any:
    """The modified Bessel function of the first kind, of order 1."""
    a = ops.abs(x)
    return odd(x, _grown(_scaled_i1(a), a))


def i0e(x: Any) -> Any:
    """e^-|x| times i0."""
    return _scaled_i0(ops.abs(x))


def i1e(x: Any) -> Any:
    """e^-|x| times i1."""
    return odd(x, _scaled_i1(ops.abs(x)))


i0 = by_series(i0, flops="140*out")
i1 = by_series(i1, flops="140*out")
i0e = by_series(i0e, flops="140*out")
i1e = by_series(i1e, flops="140*out")


# -- modified, of the second kind -----------------------------------------------------------------

_POWERS = 14
"""Terms of the power series of I₀ and I₁ up to 2, where they are exact to f64."""


def _power_series(x: Any, order: int) -> Any:
    """I₀, or 2 I₁ / x, up to 2: Σ (x²/4)ᵏ / (k! (k + order)!)."""
    terms = [1.0 / (math.factorial(k) * math.factorial(k + order)) for k in range(_POWERS)]
    return polynomial(ops.mul(ops.mul(x, x), 0.25), terms)


def _within_2(x: Any, series: Sequence[float]) -> Any:
    """A series of x² up to 4."""
    return chebyshev(ops.sub(ops.mul(ops.mul(x, x), 0.5), 1.0), series)


def _beyond_2(x: Any, series: Sequence[float]) -> Any:
    """A series of 2/x from 0 to 1, over √x."""
    far = ops.maximum(x, 2.0)
    return ops.div(chebyshev(ops.sub(ops.div(4.0, far), 1.0), series), ops.sqrt(far))


def _k_near(x: Any, order: int) -> Any:
    """K₀ or K₁ up to 2. NaN below 0, infinite at 0."""
    low = ops.minimum(x, 2.0)
    log = ops.log(ops.mul(low, 0.5))
    if order == 0:
        made = ops.sub(_within_2(low, fitted.K0), ops.mul(log, _power_series(low, 0)))
    else:
        grown = ops.mul(ops.mul(log, _power_series(low, 1)), ops.mul(low, 0.5))
        made = ops.add(ops.div(_within_2(low, fitted.K1), low), grown)
    return ops.where(ops.equal(x, 0.0), np.inf, made)


def _k(x: Any, order: int, *, is_scaled: bool) -> Any:
    near, far = _k_near(x, order), _beyond_2(x, (fitted.K0_FAR, fitted.K1_FAR)[order])
    if is_scaled:
        near = ops.mul(near, ops.exp(ops.minimum(x, 2.0)))
    else:
        far = ops.mul(far, ops.exp(ops.neg(x)))
    return ops.where(ops.greater(x, 2.0), far, near)


def k0(x: Any) -> Any:
    """The modified Bessel function of the second kind, of order 0: NaN below 0, inf at 0."""
    return _k(x, 0, is_scaled=False)


def k1(x: Any) -> Any:
    """The modified Bessel function of the second kind, of order 1: NaN below 0, inf at 0."""
    return _k(x, 1, is_scaled=False)


def k0e(x: Any) -> Any:
    """eˣ times k0."""
    return _k(x, 0, is_scaled=True)


def k1e(x: Any) -> Any:
    """eˣ times k1."""
    return _k(x, 1, is_scaled=True)


k0 = by_series(k0, flops="160*out")
k1 = by_series(k1, flops="160*out")
k0e = by_series(k0e, flops="160*out")
k1e = by_series(k1e, flops="160*out")


# -- Airy -----------------------------------------------------------------------------------------


def airy_ai(x: Any) -> Any:
    """Airy's function Ai: it falls for x above 0 and oscillates below."""
    middle = chebyshev(ops.div(ops.add(ops.clamp(x, min=-4.0, max=2.0), 1.0), 3.0), fitted.AI)
    made = ops.where(ops.greater(x, 2.0), _airy_falling(x), middle)
    return ops.where(ops.less(x, -4.0), _airy_waves(x), made)


def _zeta(a: Any) -> Any:
    """⅔ a^(3/2)."""
    return ops.mul(ops.mul(a, ops.sqrt(a)), 2.0 / 3.0)


def _airy_falling(x: Any) -> Any:
    a = ops.maximum(x, 2.0)
    zeta = _zeta(a)
    t = ops.sub(ops.div(2.0 * 2.0 / 3.0 * 2.0**1.5, zeta), 1.0)
    size = ops.mul(ops.sqrt(ops.sqrt(a)), 2.0 * math.sqrt(math.pi))
    return ops.div(ops.mul(chebyshev(t, fitted.AI_FAR), ops.exp(ops.neg(zeta))), size)


def _airy_waves(x: Any) -> Any:
    """Below -4: a cosine of ζ - π/4, and a part out of phase, over √π |x|^¼; 0 at -inf."""
    a = ops.maximum(ops.neg(x), 4.0)
    zeta = _zeta(a)
    over = ops.div(16.0 / 3.0, zeta)
    t = ops.sub(ops.mul(ops.mul(over, over), 2.0), 1.0)
    sin, cos = ops.sin(zeta), ops.cos(zeta)
    in_phase = ops.mul(chebyshev(t, fitted.AI_COS), ops.add(sin, cos))
    out = ops.mul(ops.div(chebyshev(t, fitted.AI_SIN), zeta), ops.sub(sin, cos))
    size = ops.mul(ops.sqrt(ops.sqrt(a)), math.sqrt(2.0 * math.pi))
    return ops.where(ops.is_inf(x), 0.0, ops.div(ops.add(in_phase, out), size))


airy_ai = by_series(airy_ai, flops="220*out")
