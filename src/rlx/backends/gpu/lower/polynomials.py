"""Polynomials that approximate functions: interpolation, and evaluation by multiply-adds."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from rlx.core.dtype import DType
from rlx.kernel.precision import Precision
from rlx.program.builder import Builder
from rlx.program.values import Var

TAIL_ENDS = {Precision.BF16: 12.9, Precision.F16: 5.7}
TAIL_POINTS = (0.00896, 0.0771, 0.20279, 0.37376, 0.56893, 0.7577, 0.90698, 0.98933)
"""log₂ ½erfc(y / √2), whose exponential is the normal distribution's tail, is nearly a parabola: a
polynomial that meets it at these parts of the way to where the tail is less than the least number,
by which its greatest error is the least. As the number of terms is even, it falls on from there."""
FUNCTIONS: dict[str, Callable[[float], float]] = {
    "tanh": math.tanh,
    "sigmoid": lambda x: 1.0 / (1.0 + math.exp(-x)),
}


def horner(b: Builder, x: Var, terms: Sequence[float]) -> Var:
    """Σ terms[k] · xᵏ."""
    total = b.const(terms[-1], DType.F32)
    for term in reversed(terms[:-1]):
        total = b.fma(total, x, term)
    return total


def chebyshev_points(low: float, high: float, count: int) -> list[float]:
    """Where a polynomial that meets a function is off by little more than the best one."""
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    return [middle + half * math.cos(math.pi * (k + 0.5) / count) for k in range(count)]


@functools.cache
def odd_polynomial(name: str, reach: float, count: int) -> tuple[tuple[float, ...], float]:
    """The interpolation of (f(√t) - f(0)) / √t at Chebyshev's points of [0, reach²], as powers of
    t, and its greatest relative error on |x| ≤ reach."""
    f = FUNCTIONS[name]
    points = chebyshev_points(0.0, reach * reach, count)
    terms = interpolated(points, [(f(math.sqrt(t)) - f(0.0)) / math.sqrt(t) for t in points])
    samples = [reach * k / 256 for k in range(-256, 257) if k]
    made = [f(0.0) + x * sum(c * x ** (2 * i) for i, c in enumerate(terms)) for x in samples]
    return terms, max(abs(y / f(x) - 1.0) for x, y in zip(samples, made))


@functools.cache
def log_tail(precision: Precision) -> tuple[tuple[float, ...], float]:
    """The terms of log₂ ½erfc(y / √2), and the greatest relative error of its exponential."""
    end = TAIL_ENDS[precision]
    points = [end * part for part in TAIL_POINTS]
    terms = interpolated(points, [_log_tail(y) for y in points])
    samples = [end * k / 512 for k in range(513)]
    made = [sum(c * y**i for i, c in enumerate(terms)) for y in samples]
    return terms, max(abs(2.0 ** (z - _log_tail(y)) - 1.0) for y, z in zip(samples, made))


def _log_tail(y: float) -> float:
    return math.log2(0.5 * math.erfc(y * math.sqrt(0.5)))


def interpolated(points: Sequence[float], values: Sequence[float]) -> tuple[float, ...]:
    """Newton's divided differences, expanded to powers."""
    table = list(values)
    for order in range(1, len(points)):
        for i in range(len(points) - 1, order - 1, -1):
            table[i] = (table[i] - table[i - 1]) / (points[i] - points[i - order])
    terms = [table[-1]]
    for point, value in zip(reversed(points[:-1]), reversed(table[:-1])):
        shifted = [0.0, *terms]
        terms = [s - point * t for s, t in zip(shifted, [*terms, 0.0])]
        terms[0] += value
    return tuple(terms)
