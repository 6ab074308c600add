"""Functions of numbers against SciPy, NumPy and ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

from rlx import ops
from rlx.ops.op import lookup
from tests.sources.onnx_reference import run_onnx

RNG = np.random.default_rng(5)
EPS = 2.0**-52

ONNX: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "abs": ("Abs", [{}]),
    "neg": ("Neg", [{}]),
    "sign": ("Sign", [{}]),
    "sqrt": ("Sqrt", [{}]),
    "reciprocal": ("Reciprocal", [{}]),
    "exp": ("Exp", [{}]),
    "log": ("Log", [{}]),
    "sin": ("Sin", [{}]),
    "cos": ("Cos", [{}]),
    "tan": ("Tan", [{}]),
    "asin": ("Asin", [{}]),
    "acos": ("Acos", [{}]),
    "atan": ("Atan", [{}]),
    "sinh": ("Sinh", [{}]),
    "cosh": ("Cosh", [{}]),
    "asinh": ("Asinh", [{}]),
    "acosh": ("Acosh", [{}]),
    "atanh": ("Atanh", [{}]),
    "floor": ("Floor", [{}]),
    "ceil": ("Ceil", [{}]),
    "round": ("Round", [{}]),
    "is_nan": ("IsNaN", [{}]),
    "is_inf": ("IsInf", [{}]),
    "relu": ("Relu", [{}]),
    "sigmoid": ("Sigmoid", [{}]),
    "tanh": ("Tanh", [{}]),
    "elu": ("Elu", [{"alpha": 1.0}, {"alpha": 0.3}]),
    "selu": ("Selu", [{}]),
    "leaky_relu": ("LeakyRelu", [{"alpha": 0.01}, {"alpha": 2.0}]),
    "softplus": ("Softplus", [{}]),
    "softsign": ("Softsign", [{}]),
    "hard_sigmoid": ("HardSigmoid", [{"alpha": 0.2, "beta": 0.5}, {"alpha": 1.0, "beta": 0.1}]),
    "celu": ("Celu", [{"alpha": 1.0}, {"alpha": 0.3}]),
    "thresholded_relu": ("ThresholdedRelu", [{"alpha": 1.0}, {"alpha": -0.5}]),
    "shrink": ("Shrink", [{"lambd": 0.5, "bias": 0.0}, {"lambd": 1.0, "bias": 0.7}]),
    "silu": ("Swish", [{}]),
    "gelu": ("Gelu", [{}]),
    "hard_swish": ("HardSwish", [{}]),
    "mish": ("Mish", [{}]),
}
"""Ops of one operand, the ONNX op, and attributes, whose names are the same."""

NUMPY: dict[str, Callable[..., Any]] = {
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log1p": np.log1p,
    "log2": np.log2,
    "log10": np.log10,
    "trunc": np.trunc,
    "square": np.square,
    "cbrt": scipy.special.cbrt,
    "sinc": np.sinc,
    "rsqrt": lambda x: x**-0.5,
    "is_finite": np.isfinite,
    "erf": scipy.special.erf,
    "log_sigmoid": scipy.special.log_expit,
    "gelu_tanh": lambda x: x * scipy.special.expit(2 * (2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)),
}
"""Ops of one operand and what NumPy or SciPy calls them; gelu_tanh by tanh y = 2 expit 2y - 1."""

PAIRS: dict[str, Callable[..., Any]] = {
    "hypot": np.hypot,
    "xlogy": scipy.special.xlogy,
    "logaddexp": np.logaddexp,
    "heaviside": np.heaviside,
    "atan2": np.arctan2,
}

SOURCES = {
    **{name: f"onnx.reference {theirs}" for name, (theirs, _) in ONNX.items()},
    **dict.fromkeys((*NUMPY, *PAIRS), "numpy or scipy.special"),
    "erfc": "scipy.special.erfc",
    "erfinv": "scipy.special.erfinv",
    "lgamma": "scipy.special.gammaln",
    "digamma": "scipy.special.psi",
    "logit": "scipy.special.logit",
    "prelu": "onnx.reference PRelu",
    "angle": "numpy.angle",
    "polar": "cmath.rect",
    "complex_norm_sq": "numpy.abs, squared",
    "view_as_real": "the same memory, by numpy's view",
    "view_as_complex": "the same memory, by numpy's view",
    "hard_max": "onnx.reference Hardmax",
}

CORNERS = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -2.0, 1e-300, 700.0])


def numbers() -> np.ndarray:
    return np.concatenate([RNG.normal(size=200) * 3, RNG.uniform(-1, 1, 100), CORNERS])


def close(got: np.ndarray, want: np.ndarray, ulps: float) -> None:
    """Equal infinities and NaNs; else within `ulps` units of the last place, or of 1."""
    assert got.dtype == want.dtype
    eps = 2.0**-23 if got.dtype == np.float32 else EPS
    np.testing.assert_allclose(got, want, rtol=ulps * eps, atol=ulps * eps)


CASES = [(name, theirs, attrs) for name, (theirs, many) in ONNX.items() for attrs in many]


@pytest.mark.parametrize(("name", "theirs", "attrs"), CASES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_of_onnx(name: str, theirs: str, attrs: dict[str, float]) -> None:
    """ONNX keeps attributes, and the constants of functions it spells, as f32: those are compared
    in f32, on moderate numbers, where none of their steps overflows."""
    x = numbers()
    if name in ("selu", "silu", "gelu", "hard_swish", "mish"):
        x = x[np.abs(x) < 100].astype(np.float32)
    rounded = {k: float(np.float32(v)) for k, v in attrs.items()}
    (want,) = run_onnx(theirs, [x], attrs)
    close(lookup(name)(x, **rounded), want, 8)


@pytest.mark.parametrize("name", NUMPY)
def test_functions_of_one_number(name: str) -> None:
    x = numbers()
    with np.errstate(all="ignore"):
        x = np.abs(x) if name == "rsqrt" else x
        x = x[np.isfinite(x)] if name == "gelu_tanh" else x
        close(lookup(name)(x), NUMPY[name](x), 8)


@pytest.mark.parametrize("name", PAIRS)
def test_functions_of_two_numbers(name: str) -> None:
    x, y = numbers(), RNG.permutation(numbers())
    y[-len(CORNERS) :] = CORNERS
    with np.errstate(all="ignore"):
        close(lookup(name)(x, y), PAIRS[name](x, y), 4)
        close(lookup(name)(CORNERS[:, None], CORNERS), PAIRS[name](CORNERS[:, None], CORNERS), 4)


def relative(got: np.ndarray, want: np.ndarray) -> float:
    """The greatest difference over the value, where both are finite; the rest must be equal."""
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    got, want = got[finite], want[finite]
    return float(np.max(np.abs(got - want) / np.maximum(np.abs(want), 1e-300)))


def test_erfc_keeps_its_digits_where_it_is_small() -> None:
    """SciPy's own error reaches some 250 units of the last place in the tail."""
    x = np.linspace(-6.0, 26.0, 2001)
    assert relative(ops.erfc(x), scipy.special.erfc(x)) < 500 * EPS


def test_erfinv() -> None:
    y = np.concatenate(
        [np.linspace(-1, 1, 2001), [1e-300, 1e-9, 1 - 1e-10, -1 + 1e-14, 1.5, np.nan]]
    )
    assert relative(ops.erfinv(y), scipy.special.erfinv(y)) < 8 * EPS
    back = ops.erf(ops.erfinv(y))
    np.testing.assert_allclose(back, np.where(np.abs(y) > 1, np.nan, y), atol=EPS)


def test_lgamma() -> None:
    """Relative to 1 near its zeros, where both subtract."""
    x = np.concatenate([np.linspace(-30.3, 200, 2303), [1e-300, 1e10, 0.0, -1.0, -7.0, np.inf]])
    close(ops.lgamma(x), scipy.special.gammaln(x), 40)


def test_digamma() -> None:
    """Near a pole -n, where SciPy loses digits, ψ(e - n) is ψ(n + 1) - 1 / e, less e · 2ζ(2)."""
    x = np.linspace(-30.3, 200, 2303)
    x = x[(x > 0) | (np.abs(x - np.round(x)) > 0.06)]
    x = np.concatenate([x, [1e-3, 1e10, -3.0, np.inf, np.nan]])
    close(ops.digamma(x), scipy.special.psi(x), 60)
    e = 2.0**-30
    near = ops.digamma(np.array([-30.0]) + e)
    np.testing.assert_allclose(near, scipy.special.psi(31.0) - 1 / e, rtol=4 * EPS)
    np.testing.assert_array_equal(ops.digamma(np.array([0.0, -0.0])), [-np.inf, np.inf])


def test_logit() -> None:
    p = np.concatenate([np.linspace(0, 1, 1001), [1e-300, 1.5, -0.5, np.nan]])
    with np.errstate(all="ignore"):
        close(ops.logit(p), scipy.special.logit(p), 4)
    close(ops.logit(p[:1001], eps=0.1), scipy.special.logit(np.clip(p[:1001], 0.1, 0.9)), 4)


def test_prelu() -> None:
    x, slope = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(3, 1))
    close(ops.prelu(x, slope), run_onnx("PRelu", [x, slope])[0], 1)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_hard_max(axis: int) -> None:
    x = RNG.integers(0, 3, (4, 5, 3)).astype(float)
    np.testing.assert_array_equal(
        ops.hard_max(x, axis=axis), run_onnx("Hardmax", [x], {"axis": axis})[0]
    )


def test_complex_numbers() -> None:
    z = RNG.normal(size=50) + 1j * RNG.normal(size=50)
    close(ops.angle(z), np.angle(z), 2)
    close(ops.complex_norm_sq(z), np.abs(z) ** 2, 8)
    close(ops.polar(np.abs(z), np.angle(z)), z, 8)
    np.testing.assert_array_equal(ops.view_as_real(z), z.view(np.float64).reshape(50, 2))
    np.testing.assert_array_equal(ops.view_as_complex(z.view(np.float64).reshape(50, 2)), z)
