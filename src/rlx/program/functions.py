"""Functions that programs may call, each with the accuracy that every target must keep.

`precise` is for results of f32 and f64: errors in units in the last place, over all inputs, with
the specials of the op table. `fast` is for values that are rounded to half precision: what the
special function unit gives, with its relative error; exponentials and reciprocals that are less
than the least normal number are 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.core.dtype import DType

FLOATS = frozenset({DType.F32, DType.F64})


@dataclass(frozen=True, slots=True)
class Function:
    """A function of floats of one dtype."""

    name: str
    arity: int
    ulps: tuple[float, float]
    """The greatest error of `precise` in f32 and f64."""
    fast_error: float | None = None
    """The greatest relative error of `fast` in f32; None where there is no such form."""


FUNCTIONS: dict[str, Function] = {
    f.name: f
    for f in (
        # correctly rounded on every target
        Function("sqrt", 1, (0.5, 0.5), 2.0**-22),
        Function("rsqrt", 1, (1.5, 1.5), 2.0**-22),
        Function("reciprocal", 1, (0.5, 0.5), 2.0**-22),
        # of x log₂ e, whose rounding is up to 2⁻¹⁷ of the result where x is large
        Function("exp", 1, (2, 2), 2.0**-16),
        Function("exp2", 1, (2, 2), 2.0**-22),
        Function("expm1", 1, (2, 2)),
        Function("log", 1, (1, 1), 2.0**-21),
        Function("log1p", 1, (2, 2)),
        Function("sin", 1, (1, 1)),
        Function("cos", 1, (1, 1)),
        Function("tanh", 1, (2, 2), 2.0**-11),
        Function("atan2", 2, (1, 2)),
        Function("erf", 1, (2, 2)),
        Function("erfc", 1, (2, 6)),
        Function("pow", 2, (1, 2)),
        # the remainder with the sign of the first, exact
        Function("fmod", 2, (0, 0)),
    )
}
