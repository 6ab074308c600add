"""Enclosures: intervals that contain a function of one value, and its derivative.

Forward differentiation in interval arithmetic, of many intervals at once. What holds for the
enclosures holds for every number in the intervals, between any samples too: by the mean value
theorem, |f(x) - f(m)| ≤ |x - m| · max |f′|. A division by an interval with 0 in it, or a root of
one, has no bounds. The ends are rounded as float64 is, 2⁻⁴⁰ of what they are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Ends: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """low ≤ x ≤ high, for each of many."""

    low: Ends
    high: Ends

    @classmethod
    def point(cls, value: float | Ends) -> Interval:
        at = np.asarray(value, np.float64)
        return cls(at, at)

    @property
    def least_size(self) -> Ends:
        """Of the numbers in it, the least absolute value."""
        return np.maximum(0.0, np.maximum(self.low, -self.high))

    @property
    def greatest_size(self) -> Ends:
        return np.maximum(np.abs(self.low), np.abs(self.high))

    def __add__(self, other: Interval | float) -> Interval:
        by = other if isinstance(other, Interval) else Interval.point(other)
        return Interval(self.low + by.low, self.high + by.high)

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __sub__(self, other: Interval) -> Interval:
        return self + -other

    def __mul__(self, other: Interval | float) -> Interval:
        by = other if isinstance(other, Interval) else Interval.point(other)
        ends = [a * b for a in (self.low, self.high) for b in (by.low, by.high)]
        return Interval(np.minimum.reduce(ends), np.maximum.reduce(ends))

    @property
    def square(self) -> Interval:
        return Interval(self.least_size**2, self.greatest_size**2)

    @property
    def reciprocal(self) -> Interval:
        has_zero = (self.low <= 0.0) & (self.high >= 0.0)
        low, high = 1.0 / self.high, 1.0 / self.low
        return Interval(np.where(has_zero, -np.inf, low), np.where(has_zero, np.inf, high))

    def monotone(self, function: Callable[[Ends], Ends]) -> Interval:
        """The values of a function that grows."""
        return Interval(function(self.low), function(self.high))


@dataclass(frozen=True, slots=True, eq=False)
class Jet:
    """The values of a function on intervals, and those of its derivative."""

    value: Interval
    slope: Interval

    @classmethod
    def constant(cls, value: float) -> Jet:
        return cls(Interval.point(value), Interval.point(0.0))

    @classmethod
    def variable(cls, low: Ends, high: Ends) -> Jet:
        return cls(Interval(low, high), Interval.point(np.ones_like(low)))


def _product(x: Jet, y: Jet) -> Jet:
    return Jet(x.value * y.value, x.slope * y.value + x.value * y.slope)


def _quotient(x: Jet, y: Jet) -> Jet:
    inverse = y.value.reciprocal
    return _product(x, Jet(inverse, -(inverse.square * y.slope)))


def _tanh(x: Jet) -> Jet:
    value = x.value.monotone(np.tanh)
    return Jet(value, (-value.square + 1.0) * x.slope)


def _sigmoid(x: Jet) -> Jet:
    value = (x.value * 0.5).monotone(np.tanh) * 0.5 + 0.5
    return Jet(value, value * (-value + 1.0) * x.slope)


def _exp(x: Jet) -> Jet:
    value = x.value.monotone(np.exp)
    return Jet(value, value * x.slope)


def _erf(x: Jet) -> Jet:
    value = x.value.monotone(_ERF)
    density = (-x.value.square).monotone(np.exp) * (2.0 / math.sqrt(math.pi))
    return Jet(value, density * x.slope)


def _log(x: Jet) -> Jet:
    return Jet(x.value.monotone(np.log), x.value.reciprocal * x.slope)


def _sqrt(x: Jet) -> Jet:
    value = x.value.monotone(np.sqrt)
    return Jet(value, value.reciprocal * x.slope * 0.5)


_ERF: Callable[[Ends], Ends] = np.vectorize(math.erf, otypes=[np.float64])
FUNCTIONS: Mapping[str, Callable[[Jet], Jet]] = {
    "tanh": _tanh, "sigmoid": _sigmoid, "exp": _exp, "erf": _erf, "log": _log, "sqrt": _sqrt,
}  # fmt: skip
ARITHMETIC: Mapping[str, Callable[..., Jet]] = {
    "add": lambda x, y: Jet(x.value + y.value, x.slope + y.slope),
    "sub": lambda x, y: Jet(x.value - y.value, x.slope - y.slope),
    "neg": lambda x: Jet(-x.value, -x.slope),
    "mul": _product,
    "div": _quotient,
    "square": lambda x: Jet(x.value.square, x.value * x.slope * 2.0),
}
SMOOTH: Mapping[str, Callable[..., Jet]] = {**FUNCTIONS, **ARITHMETIC}
"""Ops that have enclosures, all of them differentiable."""


def polynomial(terms: Sequence[float], x: Interval) -> Interval:
    """Σ terms[k] · xᵏ, by Horner's rule."""
    total = Interval.point(terms[-1])
    for term in reversed(terms[:-1]):
        total = total * x + term
    return total


def distance(function: Jet, at_middle: Jet, terms: Sequence[float], x: Interval) -> Ends:
    """The most that a function differs from a polynomial on each interval, given what it is there
    and in the middle."""
    middle, half = (x.low + x.high) * 0.5, (x.high - x.low) * 0.5
    slopes = [k * t for k, t in enumerate(terms)][1:] or [0.0]
    off = at_middle.value - polynomial(terms, Interval.point(middle))
    return off.greatest_size + half * (function.slope - polynomial(slopes, x)).greatest_size
