"""What examples of ops share: arrays, and how far spellings of one formula may differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

CLOSE = {"rtol": 100 * 2.0**-24, "atol": 100 * 2.0**-24}
"""Spellings of one formula differ in the order of sums of at most 40 terms of size about 1, a few
sums deep: 100 roundings of an f32."""
Check = Callable[..., Any]


def i8(*values: int) -> Any:
    return np.array(values, np.int8)


def u8(*values: int) -> Any:
    return np.array(values, np.uint8)


def f32(*values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def randoms(*dims: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng([seed, *dims]).normal(size=dims).astype(np.float32)


def same(got: Any, *wanted: Any) -> None:
    """Equal, NaN and the sign of zero included."""
    array = np.asarray(wanted, got.dtype)
    np.testing.assert_array_equal(got, array)
    if array.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(got[array == 0]), np.signbit(array[array == 0]))
