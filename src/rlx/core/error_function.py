"""The error function on arrays, which NumPy lacks: within 3 units in the last place of f64."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

STEP = 1.0 / 128.0
END = 6.0  # 1 - erf 6 is 2e-17: less than half the last bit of 1
TERMS = 8  # the next one is below (step / 2)⁹ · max |erf⁽⁹⁾| / 9!, about 3e-23


def erf(x: NDArray[Any]) -> NDArray[Any]:
    """2/√π · ∫₀ˣ e^(-t²) dt in f64, by Taylor's series from the nearest step."""
    h = np.fmin(np.abs(x.astype(np.float64)), END)
    row = np.rint(h / STEP).astype(np.intp)
    h -= row * STEP
    table = _series()
    total = np.take(table[-1], row, mode="clip")
    for coefficients in table[-2::-1]:
        total *= h
        total += np.take(coefficients, row, mode="clip")
    return np.where(np.isnan(x), x, np.copysign(total, x))


@functools.cache
def _series() -> NDArray[Any]:
    """The Taylor coefficients of erf at every step: row n holds those of hⁿ.

    The slope at x + h is 2/√π · e^(-x²) · g(h), and g' = -2(x + h) g gives each coefficient of
    g from the two before it.
    """
    at = np.arange(round(END / STEP) + 1) * STEP
    g = [np.ones_like(at), -2.0 * at]
    for n in range(2, TERMS):
        g.append(-2.0 / n * (at * g[n - 1] + g[n - 2]))
    slope = 2.0 / math.sqrt(math.pi) * np.exp(-at * at)
    value = np.array([math.erf(v) for v in at.tolist()])
    return np.stack([value, *(slope * c / (n + 1) for n, c in enumerate(g))])
