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
