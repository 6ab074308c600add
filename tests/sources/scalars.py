"""Numbers one by one, by Python's own arithmetic: exact integers, fractions and their roundings."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

FORMATS = {
    np.dtype(np.float16): (11, -14, 15),
    np.dtype(ml_dtypes.bfloat16): (8, -126, 127),
    np.dtype(np.float32): (24, -126, 127),
    np.dtype(np.float64): (53, -1022, 1023),
}
"""Of each float dtype: digits, and the exponents of its least and its greatest normal numbers."""


def one_by_one(function: Callable[..., Any], *arrays: Any) -> list[Any]:
    """`function` of Python numbers at each index of the arrays, which broadcast."""
    spread = np.broadcast_arrays(*arrays)
    return [function(*given) for given in zip(*(a.reshape(-1).tolist() for a in spread))]


def wrapped(n: int, dtype: Any) -> int:
    """The integer of `dtype` that is n but for multiples of 2 to its width."""
    info = np.iinfo(dtype)
    return (n - info.min) % 2**info.bits + info.min


def nearest(v: Fraction | int | float, dtype: Any) -> float:
    """The number of a float dtype nearest to v, of two the even one; past the greatest, inf."""
    if isinstance(v, float) and not math.isfinite(v):
        return v
    exact = Fraction(v)
    if exact == 0:
        return float(v)
    digits, low, high = FORMATS[np.dtype(dtype)]
    last = Fraction(2) ** (max(_exponent(abs(exact)), low) - digits + 1)
    made = round(exact / last) * last
    if abs(made) >= Fraction(2) ** (high + 1):
        return math.copysign(math.inf, made)
    return math.copysign(float(made), exact)


def _exponent(v: Fraction) -> int:
    """⌊log₂ v⌋."""
    guess = v.numerator.bit_length() - v.denominator.bit_length()
    return guess if Fraction(2) ** guess <= v else guess - 1


def as_python(x: np.ndarray) -> list[Any]:
    return x.reshape(-1).tolist()


def same(got: np.ndarray, want: list[Any]) -> None:
    """Equal at each index: NaN is NaN, and a zero has its sign."""
    found = as_python(got)
    assert len(found) == len(want)
    wrong = [(i, a, b) for i, (a, b) in enumerate(zip(found, want)) if not _is_same(a, b)]
    assert not wrong, wrong[:5]


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, complex) or isinstance(b, complex):
        a, b = complex(a), complex(b)
        return _is_same(a.real, b.real) and _is_same(a.imag, b.imag)
    if a != a or b != b:
        return a != a and b != b
    return a == b and (a != 0 or math.copysign(1, a) == math.copysign(1, b))
