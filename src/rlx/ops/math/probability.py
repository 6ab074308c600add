"""Tails and quantiles of the normal distribution, Poisson's, and terms of entropies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx import ops
from rlx.ops.math import chebyshev_series as fitted
from rlx.ops.math.elementwise import elementwise
from rlx.ops.math.special_functions import (
    PAIR,
    STIRLING,
    by_series,
    chebyshev,
    polynomial,
)
from rlx.ops.op import Array

ROOT_HALF = math.sqrt(0.5)
MIDDLE = 3.75
"""Where the variable of the series of erfcx is 0."""


def _erfcx_positive(a: Any) -> Any:
    """By a series over (a - 3.75) / (a + 3.75); from 1e8 on, 1 / (a √π)."""
    near = ops.minimum(a, 1e8)
    t = ops.div(ops.sub(near, MIDDLE), ops.add(near, MIDDLE))
    made = ops.div(chebyshev(t, fitted.ERFCX), ops.add(ops.mul(near, 2.0), 1.0))
    return ops.where(ops.greater(a, 1e8), ops.div(1.0 / math.sqrt(math.pi), a), made)


def _exp_of_square(x: Any) -> Any:
    """e^(x²), where the rounding of x² would cost digits."""
    square = ops.mul(x, x)
    rest = ops.fma(x, x, ops.neg(square))
    made = ops.exp(square)
    return ops.where(ops.is_finite(made), ops.add(made, ops.mul(made, rest)), made)


def erfcx(x: Any) -> Any:
    """e^(x²) erfc x, which neither underflows nor, for x above 0, overflows."""
    positive = _erfcx_positive(ops.abs(x))
    low = ops.minimum(x, 0.0)
    mirrored = ops.sub(ops.mul(_exp_of_square(low), 2.0), positive)
    return ops.where(ops.less(x, 0.0), mirrored, positive)


def log_ndtr(x: Any) -> Any:
    """The logarithm of the normal distribution function, accurate in its lower tail."""
    scaled = ops.mul(x, -ROOT_HALF)
    tail = ops.log(ops.mul(_erfcx_positive(ops.maximum(scaled, 0.0)), 0.5))
    low = ops.sub(tail, ops.mul(ops.mul(x, x), 0.5))
    high = ops.log1p(ops.mul(ops.erfc(ops.neg(scaled)), -0.5))
    return ops.where(ops.less(x, -1.0), low, high)


GUESS_TOP, GUESS_BOTTOM = (2.515517, 0.802853, 0.010328), (1.0, 1.432788, 0.189269, 0.001308)
"""Hastings's rational function for the upper quantile, within 4.5e-4."""


def ndtri(p: Any) -> Any:
    """The quantile of the normal distribution: the number that is undercut with probability p. NaN
    outside of 0 to 1, infinite at them."""
    is_high = ops.greater(p, 0.5)
    tail = ops.where(is_high, ops.sub(1.0, p), p)
    middle = ops.mul(ops.erfinv(ops.sub(ops.mul(p, 2.0), 1.0)), math.sqrt(2.0))
    far = _lower_quantile(ops.clamp(tail, min=5e-324, max=0.2))
    far = ops.where(is_high, ops.neg(far), far)
    made = ops.where(ops.greater(tail, 0.1), middle, far)
    made = ops.where(ops.equal(tail, 0.0), ops.where(is_high, np.inf, -np.inf), made)
    outside = ops.logical_or(ops.less(p, 0.0), ops.greater(p, 1.0))
    return ops.where(ops.logical_or(outside, ops.is_nan(p)), np.nan, made)


def _lower_quantile(p: Any) -> Any:
    """Hastings's guess, then Halley's method on the logarithm of the distribution, which triples
    the digits: the ratio of the distribution to its density is √(π/2) erfcx(-x/√2)."""
    log = ops.log(p)
    t = ops.sqrt(ops.mul(log, -2.0))
    top, bottom = (polynomial(t, c) for c in (GUESS_TOP, GUESS_BOTTOM))
    x = ops.sub(ops.div(top, bottom), t)
    for _ in range(2):
        tail = _erfcx_positive(ops.mul(x, -ROOT_HALF))
        ratio = ops.mul(tail, math.sqrt(math.pi / 2.0))
        value = ops.sub(ops.log(ops.mul(tail, 0.5)), ops.mul(ops.mul(x, x), 0.5))
        step = ops.mul(ops.sub(value, log), ratio)
        bend = ops.mul(ops.add(x, ops.div(1.0, ratio)), ops.mul(step, 0.5))
        x = ops.sub(x, ops.div(step, ops.add(bend, 1.0)))
    return x


STIRLING_FROM = 10.0
"""From here on by Stirling's formula, whose logarithms do not cancel."""


def poisson_pmf(k: Any, rate: Any) -> Any:
    """rateᵏ e^-rate / Γ(k + 1), of a rate above 0 and a k, whole or not, that is not below 0: the
    probability of k events where `rate` are expected."""
    small = ops.minimum(k, STIRLING_FROM)
    log = ops.sub(ops.mul(small, ops.log(rate)), rate)
    plain = ops.sub(log, ops.lgamma(ops.add(small, 1.0)))
    large = ops.maximum(k, STIRLING_FROM)
    mu = ops.div(ops.sub(rate, large), large)
    is_near = ops.less(ops.abs(mu), 0.5)
    log = ops.where(is_near, ops.log1p(mu), ops.log(ops.div(rate, large)))
    over = ops.div(1.0, large)
    stirling = ops.mul(over, polynomial(ops.mul(over, over), STIRLING))
    root = ops.mul(ops.log(ops.mul(large, 2.0 * math.pi)), 0.5)
    far = ops.sub(ops.sub(ops.mul(large, ops.sub(log, mu)), root), stirling)
    return ops.exp(ops.where(ops.less(k, STIRLING_FROM), plain, far))


poisson_pmf = by_series(poisson_pmf, PAIR, flops="150*out", draw="positive")
erfcx = by_series(erfcx, flops="120*out")
log_ndtr = by_series(log_ndtr, flops="150*out")
ndtri = by_series(ndtri, flops="400*out", draw="unit")


@elementwise("f[*s] -> f[*s]", flops="3*out")
def entr(x: Array) -> Array:
    """-x · log x: 0 at 0, -inf below."""
    made = -x * np.log(x)
    return np.where(x == 0, np.zeros((), x.dtype), np.where(x < 0, x.dtype.type(-np.inf), made))


@entr.lowering
def _(x: Any) -> Any:
    made = ops.where(ops.less(x, 0.0), -np.inf, ops.neg(ops.mul(x, ops.log(x))))
    return ops.where(ops.equal(x, 0.0), 0.0, made)


@elementwise(PAIR, flops="3*out")
def xlog1py(x: Array, y: Array) -> Array:
    """x · log(1 + y), and 0 where x is 0, unless y is NaN."""
    return np.where((x == 0) & ~np.isnan(y), np.zeros((), x.dtype), x * np.log1p(y))


@xlog1py.lowering
def _(x: Any, y: Any) -> Any:
    is_zero = ops.logical_and(ops.equal(x, 0.0), ops.logical_not(ops.is_nan(y)))
    return ops.where(is_zero, 0.0, ops.mul(x, ops.log1p(y)))
