"""Hurwitz's zeta function and the slopes of digamma."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.errors import GraphError
from rlx.ops.draw import Draw, Spec
from rlx.ops.math.special_functions import PAIR, by_series

DIRECT = 9
"""Terms that are added one by one, before Euler and Maclaurin's formula."""
BERNOULLI = (
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000,
    1 / 74724249600, -3617 / 10670622842880000, 43867 / 5109094217170944000,
)  # fmt: skip
"""B₂ₖ / (2k)!, for k from 1 on."""


def _positive_zeta(s: Any, q: Any) -> Any:
    """Σ (q + k)⁻ˢ of s > 1 and q > 0: nine terms, the integral of the rest, and its corrections by
    derivatives."""
    power = ops.neg(s)
    total = ops.pow(q, power)
    for k in range(1, DIRECT):
        total = ops.add(total, ops.pow(ops.add(q, float(k)), power))
    end = ops.add(q, float(DIRECT))
    last = ops.pow(end, power)
    total = ops.add(total, ops.div(ops.mul(last, end), ops.sub(s, 1.0)))
    total = ops.add(total, ops.mul(last, 0.5))
    factor = ops.div(ops.mul(s, last), end)
    over = ops.div(1.0, ops.mul(end, end))
    for k, b in enumerate(BERNOULLI):
        total = ops.add(total, ops.mul(factor, b))
        rising = ops.mul(ops.add(s, 2.0 * k + 1.0), ops.add(s, 2.0 * k + 2.0))
        factor = ops.mul(ops.mul(factor, rising), over)
    return total


def zeta(s: Any, q: Any) -> Any:
    """Hurwitz's zeta function, Σ (q + k)⁻ˢ over k from 0 on. Infinite for s = 1 and, past that, for
    q = 0, -1, …; NaN for s below 1, and for q below 0 unless s is whole."""
    is_low = ops.less_equal(q, 0.0)
    is_plain = ops.logical_and(ops.is_finite(s), ops.greater(s, 1.0))
    safe = ops.where(is_plain, s, 2.0)
    positive = _positive_zeta(safe, ops.where(is_low, 1.0, q))
    positive = ops.where(ops.is_inf(q), 0.0, positive)
    positive = ops.where(ops.is_inf(s), ops.pow(q, ops.neg(s)), positive)
    made = ops.where(is_low, _mirrored_zeta(safe, q), positive)
    made = ops.where(ops.less_equal(s, 1.0), ops.where(ops.equal(s, 1.0), np.inf, np.nan), made)
    return ops.where(ops.is_nan(q), q, ops.where(ops.is_nan(s), s, made))


def _mirrored_zeta(s: Any, q: Any) -> Any:
    """Below 0, of whole s: with f = q + m between 0 and 1, the terms from f on, and those up to it,
    which are (-1)ˢ times those of 1 - f but for what follows m of them."""
    whole = ops.floor(q)
    fraction = ops.sub(q, whole)
    is_pole = ops.equal(fraction, 0.0)
    f = ops.where(is_pole, 0.5, fraction)
    rest = ops.sub(1.0, f)
    low = ops.minimum(ops.where(ops.is_finite(q), q, -1.0), 0.0)
    before = ops.sub(_positive_zeta(s, rest), _positive_zeta(s, ops.sub(1.0, low)))
    half = ops.mul(s, 0.5)
    is_even = ops.equal(ops.floor(half), half)
    made = ops.add(_positive_zeta(s, f), ops.where(is_even, before, ops.neg(before)))
    made = ops.where(ops.equal(ops.floor(s), s), made, np.nan)
    return ops.where(is_pole, np.inf, made)


zeta = by_series(zeta, PAIR, flops="1200*out")


def polygamma(x: Any, *, n: int = 1) -> Any:
    """The n-th derivative of digamma, the 0-th itself; from the first on infinite at 0, -1, …."""
    if n < 0:
        raise GraphError(f"n is {n}, expected 0 or more")
    if n == 0:
        return ops.digamma(x)
    sign = 1.0 if n % 2 else -1.0
    order = ops.add(ops.mul(ops.where(ops.is_finite(x), x, 0.0), 0.0), n + 1.0)
    return ops.mul(ops.zeta(order, x), sign * math.factorial(n))


polygamma = by_series(polygamma, flops="1200*out")


# -- drawing --------------------------------------------------------------------------------------


@zeta.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims, dtype = draw.dims(0, 3), draw.dtype("f")
    return [Spec(dims, dtype, "positive"), Spec(dims, dtype, "positive")], {}


@polygamma.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    return [Spec(draw.dims(0, 3), draw.dtype("f"), "positive")], {"n": draw.integer(0, 4)}
