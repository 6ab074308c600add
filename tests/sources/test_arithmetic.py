"""Arithmetic against Python's: exact integers and fractions, math and cmath; clamp as in ONNX."""

from __future__ import annotations

import cmath
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.core.dtype import DType
from rlx.ops.op import lookup
from tests.sources.onnx_reference import run_onnx
from tests.sources.scalars import as_python, nearest, one_by_one, same, wrapped

MATH: dict[str, Callable[..., float]] = {
    "sqrt": math.sqrt,
    "cbrt": math.cbrt,
    "exp": math.exp,
    "exp2": math.exp2,
    "expm1": math.expm1,
    "log": math.log,
    "log1p": math.log1p,
    "log2": math.log2,
    "log10": math.log10,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "tanh": math.tanh,
    "asinh": math.asinh,
    "acosh": math.acosh,
    "atanh": math.atanh,
    "erf": math.erf,
    "erfc": math.erfc,
    "lgamma": math.lgamma,
    "atan2": math.atan2,
    "hypot": math.hypot,
    "pow": math.pow,
}
"""Ops and the functions of the C library that Python calls for them."""

EXACT: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "neg": operator.neg,
    "square": lambda x: x * x,
    "sign": lambda x: (x > 0) - (x < 0) if x == x else x,
    "reciprocal": lambda x: 1 / x if x else math.copysign(math.inf, x),
    "rsqrt": lambda x: (
        (1 / math.sqrt(x) if x else math.copysign(math.inf, x)) if not x < 0 else math.nan
    ),
    "floor": lambda x: _whole(math.floor, x),
    "ceil": lambda x: _whole(math.ceil, x),
    "trunc": lambda x: _whole(math.trunc, x),
    "round": lambda x: _whole(round, x),
    "is_nan": math.isnan,
    "is_inf": math.isinf,
    "is_finite": math.isfinite,
    "heaviside": lambda x, y: x if x != x else (y if x == 0 else float(x > 0)),
}
"""Ops that round once, or, like rsqrt in f64, at each of Python's steps."""


def _divided(x: int, y: int) -> int:
    quotient = abs(x) // abs(y) if y else 0
    return quotient if (x < 0) == (y < 0) else -quotient


def _power(x: int, y: int) -> int:
    if y >= 0:
        return pow(x, y, 2**64)
    return x if abs(x) == 1 and y % 2 else int(abs(x) == 1)


WHOLE: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _divided,
    "rem": lambda x, y: x - y * _divided(x, y) if y else 0,
    "mod": lambda x, y: x % y if y else 0,
    "floor_div": lambda x, y: x // y if y else 0,
    "pow": _power,
    "maximum": max,
    "minimum": min,
}
"""What Python's integers give, before they are wrapped."""

SOURCES = {
    **{name: f"math.{f.__name__}" for name, f in MATH.items()},
    **dict.fromkeys(EXACT, "Python's float arithmetic"),
    **dict.fromkeys(WHOLE, "Python's integers and fractions, rounded once"),
    "fma": "Python's integers and fractions, rounded after each step",
    "clamp": "onnx.reference Clip; Python's min and max",
    "cast": "Python's integers and fractions, rounded once; onnx.reference Cast",
    "make_complex": "Python's complex",
    "real": "Python's complex",
    "imag": "Python's complex",
    "conj": "Python's complex",
}
RNG = np.random.default_rng(3)
CORNERS = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, -2.5, 3.0, 1e-30, -1e30]
FLOATS = [np.float16, np.float32, np.float64]
INTEGERS = ["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"]


def _whole(function: Callable[[float], int], x: float) -> float:
    return math.copysign(float(function(x)), x) if math.isfinite(x) else x


def floats(dtype: Any, count: int = 60) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.array([*CORNERS, *(RNG.normal(size=count) * 3)]).astype(dtype)


def integers(dtype: str) -> np.ndarray:
    """The ends of the range, small numbers, and some between."""
    info = np.iinfo(DType.of(dtype).numpy)
    near = [v for v in range(-9, 10) if v >= info.min]
    ends = [info.min, info.min + 1, info.max // 2, info.max - 1, info.max]
    between = RNG.integers(info.min, info.max, 60, info.dtype, endpoint=True)
    ties = [v for v in (2**24 + 1, 2**24 + 3, 2**32 + 2**24 + 1, 2**53 + 1) if v <= info.max]
    return np.array([*near, *ends, *ties, *between.tolist()], info.dtype)


def raised(function: Callable[..., float], *given: float) -> float:
    """What C gives where Python raises: NaN off the domain, inf past the range or at a pole."""
    try:
        return function(*given)
    except OverflowError:
        is_odd_power = function is math.pow and given[0] < 0 and given[1] % 2 == 1
        is_below = given[0] < 0 and function is math.sinh
        return -math.inf if is_odd_power or is_below else math.inf
    except ValueError:
        return math.inf if function is math.lgamma else math.nan


POLES = {
    "log": [0.0],
    "log2": [0.0],
    "log10": [0.0],
    "log1p": [-1.0],
    "atanh": [1.0, -1.0],
}


@pytest.mark.parametrize("name", MATH)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_are_those_of_math(name: str, dtype: Any) -> None:
    """NumPy's kernels keep within 4 units of the last place, in f32 of the f64 result. Near a
    root of sin, cos, tan or lgamma those are units of 1."""
    count = 2 if name in ("atan2", "hypot", "pow") else 1
    given = [RNG.permutation(floats(dtype, 200)) for _ in range(count)]
    if name in POLES:
        given = [x[~np.isin(x, POLES[name])] for x in given]
    if name == "pow":
        given = [x[given[0] != 0] for x in given]  # C raises for 0 to a negative power
    want = np.array(one_by_one(lambda *v: raised(MATH[name], *v), *given))
    got = lookup(name)(*given)
    assert got.dtype == dtype
    with np.errstate(over="ignore"):
        want = want.astype(dtype)
    ulps = 4 * np.finfo(dtype).eps
    np.testing.assert_allclose(got, want, rtol=ulps, atol=ulps if name in ROOTS else 1e-300)


ROOTS = ("sin", "cos", "tan", "lgamma", "log", "log2", "log10", "erfc")


def test_functions_at_their_poles() -> None:
    zero = np.array([0.0, -0.0])
    for name in ("log", "log2", "log10"):
        same(lookup(name)(zero), [-math.inf, -math.inf])
    same(ops.log1p(-np.ones(1)), [-math.inf])
    same(ops.atanh(np.array([1.0, -1.0])), [math.inf, -math.inf])
    same(ops.pow(zero, np.array([-1.0, -1.0])), [math.inf, -math.inf])
    same(ops.pow(zero, np.array([-2.0, -2.0])), [math.inf, math.inf])


@pytest.mark.parametrize("name", EXACT)
def test_functions_that_round_once(name: str) -> None:
    x = floats(np.float64, 200)
    given = [x, RNG.permutation(x)] if name == "heaviside" else [x]
    same(lookup(name)(*given), one_by_one(EXACT[name], *given))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", WHOLE)
def test_integers_wrap(name: str, dtype: str) -> None:
    x = integers(dtype)
    got = lookup(name)(x[:, None], x)
    assert got.dtype == x.dtype
    want = one_by_one(WHOLE[name], x[:, None], x)
    same(got, [wrapped(n, x.dtype) for n in want])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_of_three_and_one(dtype: str) -> None:
    x = integers(dtype)
    y, z = RNG.permutation(x), RNG.permutation(x)
    same(ops.fma(x, y, z), one_by_one(lambda *v: wrapped(v[0] * v[1] + v[2], x.dtype), x, y, z))
    same(ops.abs(x), one_by_one(lambda v: wrapped(abs(v), x.dtype), x))
    same(ops.neg(x), one_by_one(lambda v: wrapped(-v, x.dtype), x))
    same(ops.square(x), one_by_one(lambda v: wrapped(v * v, x.dtype), x))
    same(ops.sign(x), one_by_one(EXACT["sign"], x))


def _rounded(function: Callable[..., Any], dtype: Any) -> Callable[..., float]:
    """An exact function of finite numbers, rounded once; of others, what Python's floats give."""

    def made(*given: float) -> float:
        exact = all(map(math.isfinite, given))
        v = function(*map(Fraction, given)) if exact else function(*given)
        zero = function(*given)
        return nearest(v, dtype) if v or not exact else zero

    return made


STEPS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", STEPS)
def test_floats_round_once(name: str, dtype: Any) -> None:
    x = floats(dtype)
    same(lookup(name)(x[:, None], x), one_by_one(_rounded(STEPS[name], dtype), x[:, None], x))


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_divided(dtype: Any) -> None:
    """Quotients and what they leave are exact fractions, rounded once. Of numbers within a factor
    of 2^10 the floored quotient has no more digits than f16 holds."""
    x = floats(dtype, 30)
    x = x[np.isfinite(x) & (x != 0) & (np.abs(x) > 1e-2) & (np.abs(x) < 10)]
    pairs = (x[:, None], x)
    for name, function in (
        ("div", lambda a, b: a / b),
        ("mod", lambda a, b: a - math.floor(a / b) * b),
        ("rem", lambda a, b: a - math.trunc(a / b) * b),
        ("floor_div", lambda a, b: Fraction(math.floor(a / b))),
    ):
        want = one_by_one(lambda *v, f=function: nearest(f(*map(Fraction, v)), dtype), *pairs)
        np.testing.assert_array_equal(lookup(name)(*pairs).reshape(-1), np.array(want, dtype))


def test_floats_at_the_ends() -> None:
    """Zeros, infinities and NaN: C's division and fmod, and Python's modulus with its sign."""
    inf, nan = math.inf, math.nan
    x = np.array([1.0, -1.0, 0.0, nan, inf, -inf, 5.0, -5.0, 5.0, 1.0, -0.0])
    y = np.array([0.0, 0.0, 0.0, 1.0, 2.0, inf, inf, inf, -inf, nan, 3.0])
    same(ops.div(x, y), [inf, -inf, nan, nan, inf, nan, 0.0, -0.0, -0.0, nan, -0.0])
    same(ops.rem(x, y), [nan, nan, nan, nan, nan, nan, 5.0, -5.0, 5.0, nan, -0.0])
    for name, python in (("mod", operator.mod), ("floor_div", operator.floordiv)):
        inside = np.isfinite(x) & (y != 0)
        same(lookup(name)(x[inside], y[inside]), one_by_one(python, x[inside], y[inside]))
    same(ops.floor_div(x[:3], y[:3]), [inf, -inf, nan])
    same(ops.mod(x[:3], y[:3]), [nan] * 3)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_greater_and_the_lesser(dtype: Any) -> None:
    x = floats(dtype)
    x = x[(x != 0) | ~np.signbit(x)]  # which of two zeros is greater is not said

    def chosen(choose: Any) -> Any:
        return lambda a, b: math.nan if a != a or b != b else choose(a, b)

    same(ops.maximum(x[:, None], x), one_by_one(chosen(max), x[:, None], x))
    same(ops.minimum(x[:, None], x), one_by_one(chosen(min), x[:, None], x))
    for name, theirs in (("maximum", "Max"), ("minimum", "Min")):
        (want,) = run_onnx(theirs, [x[:, None], x])
        np.testing.assert_array_equal(lookup(name)(x[:, None], x), want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fma_rounds_after_each_step(dtype: Any) -> None:
    x, y, z = (RNG.permutation(floats(dtype, 300)) for _ in range(3))
    product, total = _rounded(operator.mul, dtype), _rounded(operator.add, dtype)
    same(ops.fma(x, y, z), one_by_one(lambda a, b, c: total(product(a, b), c), x, y, z))


# -- bounds and dtypes ----------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [(-1.0, 2.0), (None, 1.0), (0.0, None), (2.0, -1.0)])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "i64", "u8"])
def test_clamp(dtype: str, bounds: tuple[float | None, float | None]) -> None:
    to = DType.of(dtype)
    x = floats(to.numpy) if to.is_float else integers(dtype)
    low, high = bounds if to.is_float or to.is_signed else [b and max(b, 0.0) for b in bounds]

    def bounded(v: float) -> float:
        v = v if low is None or v != v else max(v, low)
        return v if high is None or v != v else min(v, high)

    got = ops.clamp(x, min=low, max=high)
    assert as_python(np.isnan(got)) == as_python(np.isnan(x))
    kept = ~np.isnan(x)
    np.testing.assert_array_equal(got[kept].tolist(), one_by_one(bounded, x[kept]))
    limits = [None if b is None else np.array(b, to.numpy) for b in (low, high)]
    (want,) = run_onnx("Clip", [x, *limits])
    np.testing.assert_array_equal(got, want)


def test_clamp_past_the_range_of_integers() -> None:
    x = integers("i8")
    np.testing.assert_array_equal(ops.clamp(x, min=-1e9, max=1e9), x)
    assert set(as_python(ops.clamp(x, min=1e9))) == {127}


def _cast(v: Any, to: DType) -> Any:
    if to is DType.BOOL:
        return v != 0
    if to.is_complex:
        part = to.real
        return complex(_cast(v.real, part), _cast(v.imag, part))
    v = v.real
    if to is DType.BF16:
        v = nearest(v, np.float32)
    if to.is_float:
        return nearest(v, to.numpy)
    if isinstance(v, int):
        return wrapped(v, to.numpy)
    info = np.iinfo(to.numpy)
    if math.isinf(v):
        return info.max if v > 0 else info.min
    return 0 if v != v else min(max(int(v), info.min), info.max)


def _values(given: DType) -> np.ndarray:
    """Corners of every dtype as far as `given` holds them, halves between numbers of narrower
    ones among them."""
    if given.is_integer:
        return integers(given.value)
    if given is DType.BOOL:
        return np.array([False, True])
    ties = [2048 + n for n in range(9)] + [256 + n / 2 for n in range(9)] + [1 + 2.0**-8 + 2.0**-30]
    ends = [
        s * v for v in (127.5, 255.9, 65519.0, 65520.0, 2.0**31, 2.0**63, 3.4e38) for s in (1, -1)
    ]
    x = np.concatenate([floats(np.float64), ties, ends])
    if given.is_complex:
        x = x + 1j * RNG.permutation(x[np.isfinite(x)])[RNG.integers(0, 20, len(x))]
    with np.errstate(all="ignore"):
        return x.astype(given.numpy)


@pytest.mark.parametrize("to", list(DType), ids=str)
@pytest.mark.parametrize("given", list(DType), ids=str)
def test_cast(given: DType, to: DType) -> None:
    x = _values(given)
    got = ops.cast(x, to=to)
    assert got.dtype == to.numpy
    same(got, one_by_one(lambda v: _cast(v, to), x))


@pytest.mark.parametrize("to", ["f16", "f32", "f64", "i32", "u8", "bool"])
@pytest.mark.parametrize("given", ["f32", "f64", "i64", "i8", "bool"])
def test_cast_is_onnxs_inside_the_range(given: str, to: str) -> None:
    from onnx.helper import np_dtype_to_tensor_dtype

    x = np.arange(100).astype(DType.of(given).numpy)
    kind = np_dtype_to_tensor_dtype(np.dtype(DType.of(to).numpy))
    (want,) = run_onnx("Cast", [x], {"to": kind})
    np.testing.assert_array_equal(ops.cast(x, to=to), want)


# -- complex numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_arithmetic(dtype: Any) -> None:
    """Sums are exact in their parts; products and quotients are within a few roundings of their
    magnitude, whichever formula is used."""
    x, y = _pairs(dtype)
    eps = np.finfo(dtype).eps
    np.testing.assert_array_equal(ops.add(x, y), _each(operator.add, x, y).astype(dtype))
    np.testing.assert_array_equal(ops.sub(x, y), _each(operator.sub, x, y).astype(dtype))
    for name, python in (("mul", operator.mul), ("div", operator.truediv)):
        want = _each(python, x, y)
        assert (np.abs(lookup(name)(x, y) - want) <= 8 * eps * np.abs(want)).all()


def _pairs(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    parts = RNG.normal(size=(4, 300))
    return (parts[0] + 1j * parts[1]).astype(dtype), (parts[2] + 1j * parts[3]).astype(dtype)


def _each(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    return np.array(one_by_one(function, *arrays))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parts_of_complex_numbers(dtype: Any) -> None:
    re, im = floats(dtype)[:, None], floats(dtype)
    z = ops.make_complex(re, im)
    same(z, one_by_one(complex, re, im))
    same(ops.real(z), one_by_one(lambda a, _: a, re, im))
    same(ops.imag(z), one_by_one(lambda _, b: b, re, im))
    same(ops.conj(z), one_by_one(lambda a, b: complex(a, b).conjugate(), re, im))


def test_magnitudes_of_complex_numbers() -> None:
    """Both are hypot's, which rounds once more than the nearest."""
    z, _ = _pairs(np.complex128)
    np.testing.assert_allclose(ops.abs(z), one_by_one(abs, z), rtol=2 * np.finfo(float).eps)
    np.testing.assert_allclose(
        ops.angle(z), one_by_one(cmath.phase, z), rtol=4 * np.finfo(float).eps
    )
