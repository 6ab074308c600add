"""Bessel functions, tails of the normal distribution, zeta, incomplete gamma functions, recurrences
and bits of floats against SciPy, whose own errors are some roundings as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

from rlx import ops
from rlx.ops.op import lookup

SCIPY: dict[str, Callable[..., Any]] = {
    "bessel_j0": scipy.special.j0,
    "bessel_j1": scipy.special.j1,
    "bessel_y0": scipy.special.y0,
    "bessel_y1": scipy.special.y1,
    "i0": scipy.special.i0,
    "i1": scipy.special.i1,
    "i0e": scipy.special.i0e,
    "i1e": scipy.special.i1e,
    "k0": scipy.special.k0,
    "k1": scipy.special.k1,
    "k0e": scipy.special.k0e,
    "k1e": scipy.special.k1e,
    "airy_ai": lambda x: scipy.special.airy(x)[0],
    "spherical_bessel_j0": lambda x: scipy.special.spherical_jn(0, x),
    "erfcx": scipy.special.erfcx,
    "log_ndtr": scipy.special.log_ndtr,
    "ndtri": scipy.special.ndtri,
    "entr": scipy.special.entr,
}
SOURCES = {
    **dict.fromkeys(SCIPY, "scipy.special"),
    "xlog1py": "scipy.special.xlog1py",
    "poisson_pmf": "scipy.stats.poisson.pmf",
    "zeta": "scipy.special.zeta",
    "polygamma": "scipy.special.polygamma",
    "igamma": "scipy.special.gammainc",
    "igammac": "scipy.special.gammaincc",
    "orthogonal_polynomial": "scipy.special.eval_chebyt and others",
    "gcd": "numpy.gcd",
    "lcm": "numpy.lcm",
    "nextafter": "numpy.nextafter",
    "frexp": "numpy.frexp",
}
EPS = 2.0**-52
RNG = np.random.default_rng(7)
CORNERS = np.array([0.0, -0.0, 1.0, -1.0, np.nan, 2.0, 8.0, -4.0, 1e-300, 1e-10, 100.0, 600.0])
FLOORS = {"airy_ai": 0.2, "spherical_bessel_j0": 0.01}
"""The size of waves, next to whose zeros no digits are asked for."""
ROUNDINGS = {"log_ndtr": 600.0, "airy_ai": 400.0}
"""16 but where an operand's last bit is worth more: x² of a tail, |x|^1.5 of a phase."""


def numbers(name: str) -> np.ndarray:
    if name == "ndtri":
        tails = 10.0 ** RNG.uniform(-300, -1, 300)
        return np.concatenate([RNG.uniform(0, 1, 500), tails, 1 - 10 ** RNG.uniform(-15, -1, 100),
                               [0.0, 1.0, 0.5, 0.1, 0.9, -0.1, 1.1, np.nan]])  # fmt: skip
    given = [RNG.normal(size=500) * 3, RNG.uniform(-30, 30, 500), RNG.uniform(-1, 1, 200), CORNERS]
    return np.concatenate(given)


@pytest.mark.parametrize("name", SCIPY)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_of_one_number(name: str) -> None:
    x = numbers(name)
    got, want = lookup(name)(x), SCIPY[name](x)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    waves = np.sqrt(2 / np.pi / np.maximum(np.abs(x), 1.0)) if name.startswith("bessel") else 0.0
    size = np.maximum(np.abs(want), np.maximum(waves, np.where(x < 0, FLOORS.get(name, 0.0), 0)))
    if name == "spherical_bessel_j0":
        size = np.maximum(size, FLOORS[name])
    # SciPy rounds the phase of waves, x less π/4.
    limit = ROUNDINGS.get(name, 16.0) + (np.abs(x) if name.startswith("bessel") else 0.0)
    error = np.abs(got - want) / np.maximum(size * limit, 1e-290)
    assert error[finite].max() <= EPS, x[finite][error[finite].argmax()]


def test_functions_at_infinity() -> None:
    """Where SciPy has NaN for what has a limit."""
    for name, want in (
        ("bessel_j0", (0, 0)), ("bessel_j1", (0, 0)), ("i0", (np.inf, np.inf)),
        ("i1", (np.inf, -np.inf)), ("airy_ai", (0, 0)), ("spherical_bessel_j0", (0, 0)),
    ):  # fmt: skip
        np.testing.assert_array_equal(lookup(name)(np.array([np.inf, -np.inf])), want)
    assert ops.bessel_y0(np.array([np.inf]))[0] == 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_f32_is_rounded_once() -> None:
    x = RNG.normal(size=200).astype(np.float32) * 3
    for name in SCIPY.keys() - {"entr"}:
        wide = lookup(name)(x.astype(np.float64))
        np.testing.assert_array_equal(lookup(name)(x), wide.astype(np.float32))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_zeta_and_polygamma() -> None:
    s, q = RNG.uniform(1.01, 20, 500), 10 ** RNG.uniform(-2, 3, 500)
    np.testing.assert_allclose(ops.zeta(s, q), scipy.special.zeta(s, q), rtol=16 * EPS)
    corners = np.array([
        (1, 1), (0.5, 1), (2, 0), (3, -1), (2, -1.5), (2.5, -1.5), (np.nan, 1), (2, np.nan),
        (np.inf, 1), (3, -3.3), (4, -20.7), (2, np.inf),
    ])  # fmt: skip
    got, want = ops.zeta(*corners.T), scipy.special.zeta(*corners.T)
    np.testing.assert_allclose(got, want, rtol=64 * EPS)
    x = np.concatenate([10 ** RNG.uniform(-2, 3, 300), RNG.uniform(-10, 0, 100), [0.0, -3.0]])
    for n in range(1, 5):
        # Next to a zero between poles both lose what the nearest poles' terms have more of digits.
        size = np.abs(scipy.special.polygamma(n, np.abs(x - np.round(x)) + 1e-3))
        want = scipy.special.polygamma(n, x)
        finite = np.isfinite(want)
        got = ops.polygamma(x, n=n)
        np.testing.assert_array_equal(np.isfinite(got), finite)
        size = np.maximum(np.abs(want), np.where(x < 0, size, 0))[finite]
        assert np.all(np.abs(got - want)[finite] <= 64 * EPS * size)
    np.testing.assert_array_equal(ops.polygamma(x, n=0), ops.digamma(x))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_incomplete_gamma_functions() -> None:
    """The logarithm of the density, up to some hundreds, is what roundings are multiplied by; the
    upper share, where it is what is left of 1, is exact to a rounding of 1."""
    a, x = 10 ** RNG.uniform(-3, 3, 600), 10 ** RNG.uniform(-3, 3, 600)
    a[300:] = x[300:] * RNG.uniform(0.8, 1.2, 300)
    lower, upper = scipy.special.gammainc(a, x), scipy.special.gammaincc(a, x)
    np.testing.assert_allclose(ops.igamma(a, x), lower, rtol=4000 * EPS, atol=1e-250)
    np.testing.assert_allclose(ops.igammac(a, x), upper, rtol=4000 * EPS, atol=16 * EPS)
    ends = np.array([0.0, 1.0, np.inf, -1.0, np.nan])
    a, x = (v.ravel() for v in np.meshgrid(ends, ends))
    np.testing.assert_allclose(ops.igamma(a, x), scipy.special.gammainc(a, x), rtol=8 * EPS)
    np.testing.assert_allclose(ops.igammac(a, x), scipy.special.gammaincc(a, x), rtol=8 * EPS)


def test_incomplete_gamma_functions_beside_slow_ones() -> None:
    """A fraction that has converged stays, however long others take; large a takes no series. A
    rounding of x counts √a times where x is near a."""
    a = np.array([1.0, 0.5, 2.0, 9e4, 2e5, 1e30], np.float32)
    x = np.array([2.0, 2.0, 3.0, 9.02e4, 2.005e5, 1e30], np.float32)
    wide = a.astype(np.float64), x.astype(np.float64)
    eps = float(np.finfo(np.float32).eps)
    np.testing.assert_allclose(ops.igamma(a, x), scipy.special.gammainc(*wide), rtol=300 * eps)
    np.testing.assert_allclose(ops.igammac(a, x), scipy.special.gammaincc(*wide), rtol=300 * eps)


POLYNOMIALS: dict[str, Callable[..., Any]] = {
    "chebyshev_t": scipy.special.eval_chebyt,
    "chebyshev_u": scipy.special.eval_chebyu,
    "chebyshev_v": lambda n, x: (
        scipy.special.eval_chebyu(n, x) - np.where(n > 0, scipy.special.eval_chebyu(n - 1, x), 0)
    ),
    "chebyshev_w": lambda n, x: (
        scipy.special.eval_chebyu(n, x) + np.where(n > 0, scipy.special.eval_chebyu(n - 1, x), 0)
    ),
    "hermite_h": scipy.special.eval_hermite,
    "hermite_he": scipy.special.eval_hermitenorm,
    "laguerre_l": scipy.special.eval_laguerre,
    "legendre_p": scipy.special.eval_legendre,
}


@pytest.mark.parametrize("family", POLYNOMIALS)
def test_orthogonal_polynomials(family: str) -> None:
    """Each step of a recurrence rounds what is as large as the greatest so far."""
    x, n = RNG.uniform(-1.5, 1.5, 300), RNG.integers(-1, 12, 300).astype(np.float64)
    whole = np.maximum(n, 0).astype(np.int64)
    for shifted in (False, True):
        at = 2 * x - 1 if shifted else x
        want = np.where(n < 0, 0.0, POLYNOMIALS[family](whole, at))
        sizes = [np.abs(POLYNOMIALS[family](np.minimum(whole, k), at)) for k in range(12)]
        got = ops.orthogonal_polynomial(x, n + 0.25 * (n >= 0), family=family, shifted=shifted)
        limit = 64 * EPS * np.maximum(np.max(sizes, axis=0), 1.0)
        assert np.all(np.abs(got - want) <= limit)


def test_divisors() -> None:
    x, y = RNG.integers(-50, 50, (2, 200))
    for dtype in (np.int32, np.int64, np.uint8):
        a, b = (np.abs(x), np.abs(y)) if dtype is np.uint8 else (x, y)
        a, b = a.astype(dtype), b.astype(dtype)
        np.testing.assert_array_equal(lookup("gcd").lower(a, b), np.gcd(a, b))
        np.testing.assert_array_equal(lookup("lcm").lower(a, b), np.lcm(a, b))
        np.testing.assert_array_equal(ops.gcd(a, b), np.gcd(a, b))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_bits_of_floats(dtype: Any) -> None:
    info = np.finfo(dtype)
    corners = [0, -0.0, np.inf, -np.inf, np.nan, info.tiny / 4, -info.smallest_subnormal, info.max]
    x = np.concatenate([RNG.normal(size=40), corners]).astype(dtype)
    y = RNG.permutation(x)
    np.testing.assert_array_equal(lookup("nextafter").lower(x, y), np.nextafter(x, y))
    np.testing.assert_array_equal(ops.nextafter(x, y), np.nextafter(x, y))
    for made in (ops.frexp(x), lookup("frexp").lower(x)):
        mantissa, exponent = np.frexp(x)
        np.testing.assert_array_equal(made[0], mantissa)
        np.testing.assert_array_equal(made[1], np.where(np.isfinite(x), exponent, 0))


def test_probabilities_of_poisson() -> None:
    """SciPy's are those of xlogy and gammaln, whose difference loses what they have more of digits:
    some hundreds of roundings where both are some hundreds."""
    k, rate = RNG.integers(0, 300, 200).astype(np.float64), RNG.uniform(0.1, 300, 200)
    want = scipy.stats.poisson.pmf(k, rate)
    np.testing.assert_allclose(ops.poisson_pmf(k, rate), want, rtol=4000 * EPS, atol=1e-290)


def test_terms_of_entropies() -> None:
    x, y = RNG.normal(size=100), RNG.uniform(-1, 3, 100)
    x[:3], y[:2] = 0, (-1, np.nan)
    got = ops.xlog1py(x, y)
    np.testing.assert_allclose(got, scipy.special.xlog1py(x, y), rtol=4 * EPS)
