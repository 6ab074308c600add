"""Whole numbers, and ranges of them, from a least to a greatest; None where there is no end."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TypeAlias

Interval: TypeAlias = tuple["int | None", "int | None"]


def whole(value: object) -> int | None:
    """`value` as an int where it is a whole number, NumPy's among them; truth values are not."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None


def interval_sum(parts: Iterable[Interval]) -> Interval:
    low: int | None = 0
    high: int | None = 0
    for a, b in parts:
        low = None if low is None or a is None else low + a
        high = None if high is None or b is None else high + b
    return low, high


def interval_scale(interval: Interval, factor: int) -> Interval:
    low, high = (None if v is None else v * factor for v in interval)
    return (low, high) if factor >= 0 else (high, low)


def safe_div(a: int, b: int) -> int:
    return a // b if b else 0


def safe_mod(a: int, b: int) -> int:
    return a % b if b else 0


def interval_product(parts: Iterable[Interval]) -> Interval:
    """Exact where factors are not negative, as sizes are."""
    low = 1
    high: int | None = 1
    for a, b in parts:
        if a is None or a < 0:
            return None, None
        low, high = low * a, None if high is None or b is None else high * b
    return low, high


def interval_call(fn: str, first: Interval, second: Interval) -> Interval:
    """The range of a max, a min, a quotient or a remainder of numbers in these ranges."""
    (a, b), (c, d) = first, second
    if fn == "max":
        lows = [v for v in (a, c) if v is not None]
        return max(lows, default=None), None if b is None or d is None else max(b, d)
    if fn == "min":
        highs = [v for v in (b, d) if v is not None]
        return None if a is None or c is None else min(a, c), min(highs, default=None)
    if fn == "//" and c is not None and c == d and c > 0:
        return None if a is None else a // c, None if b is None else b // c
    if a is None or a < 0 or c is None or c < 0:
        return None, None
    if fn == "%":
        return 0, None if d is None else max(0, d - 1)
    return 0 if d is None or c == 0 else a // d, None if b is None else b // max(c, 1)
