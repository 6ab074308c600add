"""Fast f32 elementary functions that trade their last bits for speed.

Errors in ULP (the tests hold them): exp 3, log 3, tanh 3, erf 4, sin and cos 2. Special values are
those of the precise functions, which also serve what is not here: f64, and angles too large to be
reduced in f32. NaN in gives NaN out.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.cpu.codegen.math import elementary as maths
from rlx.backends.cpu.codegen.math.elementary import EXP, LN2, ROUNDER, polynomial
from rlx.backends.cpu.llvm.values import Vec, fma
from rlx.core.dtype import DType

F32 = DType.F32
EXP_SHORT = (  # (eʳ - 1 - r) / r² for |r| ≤ ln 2 / 2, below 2⁻²³ of eʳ
    8.312514532420656e-3, 4.189020954463252e-2, 0.16667114872029465, 0.49999231137248196,
)  # fmt: skip
LOG_SHORT = (  # (log(1 + f) - f + f²/2) / f³ for √½ ≤ 1 + f < √2
    9.048524857818417e-2, -0.14030799149181003, 0.14703925864743853, -0.1660272741923234,
    0.19984222537425578, -0.25000702402973357, 0.333334154019075,
)  # fmt: skip
ERF_SHORT = (  # -log(1 - erf x) / x for 0 ≤ x ≤ 4
    4.07005415731802e-5, -3.8094503344737247e-4, 1.2515846109959973e-3, 2.0594800717774794e-4,
    -1.9321887134801673e-2, 0.10281447280188497, 0.6366164872559624, 1.1283792074490706,
)  # fmt: skip
HALF_PI = (1.5707963705062866, -4.371138828673793e-8, -1.7151245100058819e-15)
"""Its sum is π/2; each part has the 24 bits of f32."""
NEAR = 8192.0
"""Below, the quadrant index has 13 bits, and the remainder after the first part is exact."""


def exp(x: Vec) -> Vec:
    n, whole, less_one = maths.exp_parts(x, EXP_SHORT)
    return maths.times_power(less_one + 1.0, n, whole)


def log(x: Vec) -> Vec:
    e, m = maths.mantissa_of(x)
    f = m - 1.0
    square = f * f
    rest = fma(polynomial(f, LOG_SHORT) * square, f, square * -0.5)
    high, low = LN2[F32]
    return maths.log_specials(x, fma(e, high, f + fma(e, low, rest)))


def tanh(x: Vec) -> Vec:
    """u / (u + 1) with u = (e^(2|x|) - 1) / 2."""
    u = maths.half_expm1(x.abs())
    return (u / (u + 1.0)).copysign(x)


def erf(x: Vec) -> Vec:
    """1 - e^(-y) with y = -log(1 - erf |x|)."""
    size = x.abs()
    size = size.like(4.0).where(size > 4.0, size)
    return maths.expm1_within(-(size * polynomial(size, ERF_SHORT)), EXP[F32]).copysign(x)


def sin(x: Vec) -> Vec:
    return _wave(x, 0, maths.sin).where(x.differs(0.0), x)


def cos(x: Vec) -> Vec:
    return _wave(x, 1, maths.cos)


def _wave(x: Vec, ahead: int, precise: Callable[[Vec], Vec]) -> Vec:
    """sin of x plus `ahead` quadrants; large angles take the precise path, if there are any."""
    code = x.code
    is_far = ~(x.abs() < NEAR)
    near = _near_wave(x.like(0.0).where(is_far, x), ahead)
    slot = code.variable(near)
    with code.when(is_far.any()):
        far = code.outlined(f"precise_{precise.__name__}", precise, x)
        code.store(slot, far.where(is_far, near))
    return code.load(slot, near.dtype)


def _near_wave(x: Vec, ahead: int) -> Vec:
    shifted = fma(x, 2.0 / 3.141592653589793, ROUNDER[F32])
    n = shifted - ROUNDER[F32]
    quarters = shifted.bits(DType.I32) + ahead
    r = x
    for part in HALF_PI:
        r = fma(n, -part, r)
    z = r * r
    sine = fma(r * z, polynomial(z, maths.SIN[F32]), r)
    cosine = fma(z * z, polynomial(z, maths.COS[F32]), fma(z, -0.5, 1.0))
    value = cosine.where((quarters & 1).differs(0), sine)
    return (-value).where((quarters & 2).differs(0), value)


FUNCTIONS: dict[str, Callable[[Vec], Vec]] = {
    "exp": exp, "log": log, "tanh": tanh, "erf": erf, "sin": sin, "cos": cos,
}  # fmt: skip
