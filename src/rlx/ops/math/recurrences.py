"""Functions by a recurrence whose length is data: orthogonal polynomials, incomplete gamma
functions, greatest common divisors. Each is a loop that ends when no element takes another step."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.shape import broadcast
from rlx.ops.compose import dims_of, dtype_of, filled
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array, Kind, op

Drawn = tuple[list[Spec], dict[str, Any]]
Family = Literal[
    "chebyshev_t", "chebyshev_u", "chebyshev_v", "chebyshev_w",
    "hermite_h", "hermite_he", "laguerre_l", "legendre_p",
]  # fmt: skip


def _together(*values: Any) -> tuple[Any, ...]:
    """Values broadcast against each other."""
    dims = dims_of(values[0])
    for v in values[1:]:
        dims = broadcast(dims, dims_of(v))
    return tuple(ops.expand(v, dims=dims) for v in values)


# -- orthogonal polynomials -----------------------------------------------------------------------


def _second(family: Family, x: Any) -> Any:
    """The polynomial of order 1; that of order 0 is 1."""
    twice = ops.add(x, x)
    match family:
        case "chebyshev_u" | "hermite_h":
            return twice
        case "chebyshev_v":
            return ops.sub(twice, 1.0)
        case "chebyshev_w":
            return ops.add(twice, 1.0)
        case "laguerre_l":
            return ops.sub(1.0, x)
        case _:
            return x


def _next(family: Family, x: Any, k: Any, p: Any, before: Any) -> Any:
    """The polynomial of order k + 1 by those of order k and k - 1; k is an array of one number."""
    twice = ops.add(x, x)
    match family:
        case "hermite_h":
            return ops.sub(ops.mul(twice, p), ops.mul(ops.mul(k, 2.0), before))
        case "hermite_he":
            return ops.sub(ops.mul(x, p), ops.mul(k, before))
        case "laguerre_l":
            first = ops.mul(ops.sub(ops.add(ops.mul(k, 2.0), 1.0), x), p)
            return ops.div(ops.sub(first, ops.mul(k, before)), ops.add(k, 1.0))
        case "legendre_p":
            first = ops.mul(ops.mul(ops.add(ops.mul(k, 2.0), 1.0), x), p)
            return ops.div(ops.sub(first, ops.mul(k, before)), ops.add(k, 1.0))
        case _:
            return ops.sub(ops.mul(twice, p), before)


def _polynomial(x: Any, n: Any, *, family: Family, shifted: bool) -> Any:
    from rlx.ops.control_flow import while_loop

    x, order = _together(ops.sub(ops.add(x, x), 1.0) if shifted else x, ops.trunc(n))
    one = filled(x, 1, dims_of(x))
    first = _second(family, x)
    made = ops.where(ops.less(order, 0.0), 0.0, ops.where(ops.less(order, 1.0), one, first))
    last = ops.max(ops.where(ops.is_finite(order), order, 0.0), empty_ok=True)

    def more(k: Any, *rest: Any) -> Any:
        return ops.less(k, rest[-1])

    def step(k: Any, p: Any, before: Any, made: Any, x: Any, order: Any, last: Any) -> Any:
        after = _next(family, x, k, p, before)
        made = ops.where(ops.equal(order, ops.add(k, 1.0)), after, made)
        return ops.add(k, 1.0), after, p, made, x, order, last

    start = filled(x, 1, ())
    found = while_loop(more, step, start, first, one, made, x, order, last)
    return found[3]


@op("f[~s], f[~s] -> f[~s]", kind=Kind.SPECIAL, flops="40*out")
def orthogonal_polynomial(x: Array, n: Array, *, family: Family, shifted: bool = False) -> Array:
    """The polynomial of order n, a number without its fraction, of a family at x: Chebyshev's of
    four kinds, Hermite's (h, or he, the probabilists'), Laguerre's, Legendre's. 0 where n is below
    0. With `shifted`, at 2x - 1."""
    return _polynomial(x, n, family=family, shifted=shifted)


orthogonal_polynomial.lowering(_polynomial)


# -- incomplete gamma functions -------------------------------------------------------------------

MAX_TERMS = 20_000
"""Of a series or fraction: about 6 √a where x is near a."""


LARGE_A = {DType.F16: 1e4, DType.BF16: 1e4, DType.F32: 1e5, DType.F64: 1e7}
"""From here Temme's expansion is as exact as the dtype: what it leaves out is O(a^-1.5)."""


def _epsilon(x: Any) -> float:
    return float(np.finfo(dtype_of(x).numpy).eps)


def _loop(
    step: Callable[..., tuple[Any, ...]], is_open: Callable[..., Any], *carries: Any
) -> tuple[Any, ...]:
    """Carries after steps, as long as an element is open."""
    from rlx.ops.control_flow import while_loop

    def more(*given: Any) -> Any:
        return ops.any(is_open(*given))

    return while_loop(more, step, *carries, max_iterations=MAX_TERMS)


def _series(a: Any, x: Any) -> Any:
    """Σ xᵏ / ((a + 1) … (a + k)), which P is poisson_pmf times."""
    tiny = _epsilon(x) / 4.0

    def step(k: Any, term: Any, total: Any, x: Any) -> tuple[Any, ...]:
        term = ops.mul(term, ops.div(x, k))
        return ops.add(k, 1.0), term, ops.add(total, term), x

    def is_open(_: Any, term: Any, total: Any, __: Any) -> Any:
        return ops.greater(term, ops.mul(total, tiny))

    one = filled(x, 1, dims_of(x))
    return _loop(step, is_open, ops.add(a, 1.0), one, one, x)[2]


def _fraction(a: Any, x: Any) -> Any:
    """The continued fraction 1/(x + 1 - a - 1(1 - a)/(x + 3 - a - …)), by Lentz's method; Q is a
    times poisson_pmf times it. What has converged stays: roundings of further factors would add
    up, as long as the slowest element takes."""
    tiny = _epsilon(x)

    def step(i: Any, b: Any, c: Any, d: Any, h: Any, last: Any, a: Any) -> tuple[Any, ...]:
        an = ops.neg(ops.mul(i, ops.sub(i, a)))
        b = ops.add(b, 2.0)
        d = ops.div(1.0, ops.add(ops.mul(an, d), b))
        c = ops.add(b, ops.div(an, c))
        is_done = ops.less_equal(ops.abs(ops.sub(last, 1.0)), tiny)
        ratio = ops.where(is_done, 1.0, ops.mul(c, d))
        return ops.add(i, 1.0), b, c, d, ops.mul(h, ratio), ratio, a

    def is_open(*given: Any) -> Any:
        return ops.greater(ops.abs(ops.sub(given[5], 1.0)), tiny)

    one = filled(x, 1, dims_of(x))
    b = ops.add(ops.sub(x, a), 1.0)
    d = ops.div(1.0, b)
    return _loop(step, is_open, one, b, ops.mul(one, 1e30), d, d, ops.mul(one, 2.0), a)[4]


def _uniform(a: Any, x: Any, *, upper: bool) -> Any:
    """Temme's expansion for large a: erfc(∓η√(a/2)) / 2, with η²/2 = μ - log(1 + μ) and
    μ = x/a - 1, and its first correction, e^(-aη²/2) / √(2πa) (1/μ - 1/η)."""
    mu = ops.div(ops.sub(x, a), a)
    is_near = ops.less(ops.abs(mu), 0.05)
    terms = (ops.mul(ops.pow(ops.neg(mu), k), 1.0 / (k + 2)) for k in range(9))
    near = ops.mul(ops.mul(mu, mu), functools.reduce(ops.add, terms))
    half = ops.where(is_near, near, ops.sub(mu, ops.log1p(mu)))
    size = ops.sqrt(ops.mul(half, 2.0))
    eta = ops.where(ops.less(mu, 0.0), ops.neg(size), size)
    safe = ops.where(is_near, 1.0, eta)
    small = ops.add(ops.mul(eta, ops.add(ops.mul(eta, -2 / 135), 1 / 12)), -1 / 3)
    apart = ops.sub(ops.div(1.0, ops.where(is_near, 1.0, mu)), ops.div(1.0, safe))
    density = ops.div(ops.exp(ops.neg(ops.mul(a, half))), ops.sqrt(ops.mul(a, 2 * math.pi)))
    correction = ops.mul(density, ops.where(is_near, small, apart))
    root = ops.mul(eta, ops.sqrt(ops.mul(a, 0.5)))
    if upper:
        return ops.add(ops.mul(ops.erfc(root), 0.5), correction)
    return ops.sub(ops.mul(ops.erfc(ops.neg(root)), 0.5), correction)


def _incomplete(a: Any, x: Any, *, upper: bool) -> Any:
    """P by its series where x < a + 1, else Q by its fraction; the other is what is left of 1.
    Neither converges soon enough where a is large."""
    a, x = _together(a, x)
    is_good = ops.logical_and(ops.greater(a, 0.0), ops.greater(x, 0.0))
    is_good = ops.logical_and(is_good, ops.logical_and(ops.is_finite(a), ops.is_finite(x)))
    is_large = ops.greater(a, LARGE_A[dtype_of(a)])
    is_summed = ops.logical_and(is_good, ops.logical_not(is_large))
    is_low = ops.less(x, ops.add(a, 1.0))
    in_series = ops.logical_and(is_summed, is_low)
    in_fraction = ops.logical_and(is_summed, ops.logical_not(is_low))
    series = _series(ops.where(in_series, a, 1.0), ops.where(in_series, x, 1.0))
    fraction = _fraction(ops.where(in_fraction, a, 1.0), ops.where(in_fraction, x, 3.0))
    density = ops.poisson_pmf(ops.where(is_good, a, 1.0), ops.where(is_good, x, 1.0))
    p, q = ops.mul(series, density), ops.mul(ops.mul(fraction, density), a)
    p = ops.where(is_low, p, ops.sub(1.0, q))
    q = ops.where(is_low, ops.sub(1.0, p), q)
    far = _uniform(ops.where(is_large, a, 1.0), ops.where(is_good, x, 1.0), upper=upper)
    made = ops.where(is_large, far, q if upper else p)
    return _at_ends(a, x, is_good, made, upper=upper)


def _at_ends(a: Any, x: Any, is_good: Any, made: Any, *, upper: bool) -> Any:
    """0 or 1 where a or x is 0 or infinite; NaN where one is below 0, or both are at one end."""
    low, high = (1.0, 0.0) if upper else (0.0, 1.0)
    is_low = ops.logical_or(ops.equal(x, 0.0), ops.is_inf(a))
    is_high = ops.logical_or(ops.equal(a, 0.0), ops.is_inf(x))
    ends = ops.where(is_low, low, ops.where(is_high, high, np.nan))
    is_bad = ops.logical_or(ops.logical_and(is_low, is_high), ops.less(ops.minimum(a, x), 0.0))
    is_bad = ops.logical_or(is_bad, ops.logical_or(ops.is_nan(a), ops.is_nan(x)))
    return ops.where(is_good, made, ops.where(is_bad, np.nan, ends))


@op("f[~s], f[~s] -> f[~s]", kind=Kind.SPECIAL, flops="400*out")
def igamma(a: Array, x: Array) -> Array:
    """The regularised lower incomplete gamma function P(a, x): the share of Γ(a)'s integral that is
    below x. NaN where a or x is below 0."""
    return _incomplete(a, x, upper=False)


@op("f[~s], f[~s] -> f[~s]", kind=Kind.SPECIAL, flops="400*out")
def igammac(a: Array, x: Array) -> Array:
    """The regularised upper incomplete gamma function Q(a, x) = 1 - P(a, x), accurate where that is
    small."""
    return _incomplete(a, x, upper=True)


igamma.lowering(lambda a, x: _incomplete(a, x, upper=False))
igammac.lowering(lambda a, x: _incomplete(a, x, upper=True))


# -- divisors -------------------------------------------------------------------------------------


@op("i[~s], i[~s] -> i[~s]", kind=Kind.SPECIAL, is_commutative=True, flops="80*out")
def gcd(x: Array, y: Array) -> Array:
    """The greatest number that divides both; 0 of zeros."""
    return np.gcd(x, y)


@gcd.lowering
def _(x: Any, y: Any) -> Any:
    x, y = _together(x, y)
    signed = dtype_of(x).is_signed
    given = (ops.abs(x), ops.abs(y)) if signed else (x, y)

    def step(a: Any, b: Any) -> tuple[Any, ...]:
        is_done = ops.equal(b, 0)
        rest = ops.rem(a, ops.where(is_done, 1, b))
        return ops.where(is_done, a, b), ops.where(is_done, b, rest)

    made = _loop(step, lambda _, b: ops.not_equal(b, 0), *given)[0]
    return ops.abs(made) if signed else made


@op("i[~s], i[~s] -> i[~s]", kind=Kind.SPECIAL, is_commutative=True, flops="80*out")
def lcm(x: Array, y: Array) -> Array:
    """The least positive number that both divide, wrapped; 0 if one is."""
    return np.lcm(x, y)


@lcm.lowering
def _(x: Any, y: Any) -> Any:
    shared = ops.gcd(x, y)
    a, b = (ops.abs(x), ops.abs(y)) if dtype_of(x).is_signed else (x, y)
    return ops.mul(ops.floor_div(a, ops.where(ops.equal(shared, 0), 1, shared)), b)


# -- drawing --------------------------------------------------------------------------------------


@orthogonal_polynomial.sample
def _(draw: Draw) -> Drawn:
    dims, dtype = draw.dims(0, 3), draw.choice((DType.F32, DType.F64))
    family = draw.choice(Family.__args__)  # pyright: ignore[reportAttributeAccessIssue]
    given = [Spec(dims, dtype, "unit"), Spec(dims, dtype, "positive")]
    return given, {"family": family, "shifted": draw.coin(0.3)}


def _draw_positive(draw: Draw) -> Drawn:
    dims, dtype = draw.dims(0, 3), draw.choice((DType.F32, DType.F64))
    return [Spec(dims, dtype, "positive"), Spec(dims, dtype, "positive")], {}


igamma.sample(_draw_positive)
igammac.sample(_draw_positive)
