"""Integer intervals; None is an open end."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import TypeAlias

Interval: TypeAlias = tuple["int | None", "int | None"]
Number: TypeAlias = int | float
"""A whole number, or an infinity."""


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
    """The range of a product: its ends are products of ends."""
    low: Number = 1
    high: Number = 1
    for part in parts:
        ends = [_times(a, b) for a in (low, high) for b in _unbounded(part)]
        low, high = min(ends), max(ends)
    return _finite(low), _finite(high)


def _unbounded(interval: Interval) -> tuple[Number, Number]:
    low, high = interval
    return -math.inf if low is None else low, math.inf if high is None else high


def _times(a: Number, b: Number) -> Number:
    """0 times what has no end is 0: each number of a range is finite."""
    return a * b if a and b else 0


def _finite(value: Number) -> int | None:
    return value if isinstance(value, int) else None


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
