"""Functions of f32 in f32 and integers, for targets without f64.

Where the CPU's page computes in f64, numbers here are sums of two f32. Products are split into
exact ones of 12 bits, as not every target rounds a multiply-add once. Errors, in units in the last
place, over all inputs tried: sin, cos, atan2 and pow 1, erfc 2, fmod none.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from rlx.backends.cpu.codegen.math import elementary as maths
from rlx.backends.cpu.codegen.math import range_reduction as angles
from rlx.core.dtype import DType
from rlx.program.builder import Builder
from rlx.program.values import Var

F32, I32, U32, U64 = DType.F32, DType.I32, DType.U32, DType.U64
Pair = tuple[Var, Var]
INF, NAN = float("inf"), float("nan")
SIGN = 1 << 31
UPPER = 0xFFFFF000
"""The bits of the 12 highest digits of an f32."""


def _f32(number: float) -> tuple[float, float]:
    """A number as the nearest f32, and that of the rest."""
    high = float(np.float32(number))
    return high, float(np.float32(number - high))


HALF_PI, QUARTER_PI, PI = _f32(maths.PI / 2), _f32(maths.PI / 4), _f32(maths.PI)
TWO_THIRDS = _f32(2 / 3)


# -- sums of two ----------------------------------------------------------------------------------


def two_sum(x: Var, y: Var) -> Pair:
    """x + y, and its exact rounding error."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def two_product(x: Var, y: Var) -> Pair:
    """x · y, and its exact rounding error."""
    high = x * y
    (a, b), (c, d) = _halves(x), _halves(y)
    return high, (((a * c - high) + a * d) + b * c) + b * d


def _halves(x: Var) -> Pair:
    high = (x.bits(U32) & UPPER).bits(F32)
    return high, x - high


def _polynomial(x: Var, coefficients: Sequence[float]) -> Var:
    value = x.builder.const(coefficients[0], F32)
    for c in coefficients[1:]:
        value = x.builder.fma(value, x, c)
    return value


def _quotient(x: Pair, y: Pair) -> Pair:
    """(x₀ + x₁) / (y₀ + y₁)."""
    q = x[0] / y[0]
    product, lost = two_product(q, y[0])
    return q, (((x[0] - product) - lost) + (x[1] - q * y[1])) / y[0]


def _copysign(x: Var, sign: Var) -> Var:
    return ((x.bits(U32) & (SIGN - 1)) | (sign.bits(U32) & SIGN)).bits(F32)


def _is_nan(x: Var) -> Var:
    return x.ne(x)


def _is_negative(x: Var) -> Var:
    return x.bits(I32) < 0


def _const(b: Builder, value: float) -> Var:
    return b.const(value, F32)


# -- exponentials ---------------------------------------------------------------------------------


def _exp(x: Pair) -> tuple[Pair, Var]:
    """e^(x₀ + x₁) as 2ⁿ times a sum of two; x₀ is clamped to where the result is 0 or infinite."""
    low, high = maths.EXP_ENDS[F32]
    first = x[0]
    b = first.builder
    more = x[1].where((first > low) & (first < high), 0.0)
    first = b.const(low, F32).where(first < low, first)
    first = b.const(high, F32).where(first > high, first)
    n = (first * maths.LOG2_E).round()
    # n times the first part of ln 2 is exact
    r, lost = two_sum(first - n * maths.LN2[F32][0], n * -maths.LN2[F32][1])
    rest = lost + more
    part = r * r * _polynomial(r, maths.EXP[F32])
    one, missed = two_sum(b.const(1.0, F32), r)
    return (one, missed + (part + rest * (one + part))), n.to(I32)


def _scaled(x: Var, n: Var) -> Var:
    """x · 2ⁿ in two steps, as 2ⁿ alone may be out of range."""
    half = n >> 1
    return x * ((half + 127) << 23).bits(F32) * ((n - half + 127) << 23).bits(F32)


# -- powers ---------------------------------------------------------------------------------------


def _log(x: Var) -> Pair:
    """log x of positive finite x: 2s + ⅔ s³ + … with s = (m - 1) / (m + 1), and e ln 2."""
    is_small = x < 2.0**-126
    lifted = (x * 2.0**25).where(is_small, x).bits(I32)
    root = x.builder.const(maths.SQRT_HALF, F32).bits(I32)
    e = (lifted - root) >> 23
    m = (lifted - (e << 23)).bits(F32)
    e = (e - x.builder.const(25, I32).where(is_small, 0)).to(F32)
    zero = x.builder.const(0.0, F32)
    s, s_low = _quotient((m - 1.0, zero), two_sum(m, x.builder.const(1.0, F32)))
    z, z_low = two_product(s, s)
    z_low = z_low + (s + s) * s_low
    a, a_low = two_product(z, x.builder.const(TWO_THIRDS[0], F32))
    a_low = a_low + (z * TWO_THIRDS[1] + z_low * TWO_THIRDS[0])
    a_low = a_low + z * z * _polynomial(z, maths.LOG_DD[2:])
    p, p_low = two_product(s, a)
    p_low = p_low + (s * a_low + s_low * a)
    total, rest = two_sum(s * 2.0, p)
    rest = rest + (s_low * 2.0 + p_low)
    high, lost = two_sum(e * maths.LN2[F32][0], total)
    return two_sum(high, lost + (e * maths.LN2[F32][1] + rest))


def power(b: Builder, x: Var, y: Var) -> Var:
    """e^(y log |x|), with the sign of odd powers; the rest is C's table of specials."""
    size, one = abs(x), _const(b, 1.0)
    is_plain = (size > 0.0) & (size < INF)
    high, low = _log(size.where(is_plain, one))
    at_ends = _const(b, -INF).where(size.eq(0.0), size)
    high, low = high.where(is_plain, at_ends), low.where(is_plain, 0.0)
    product, lost = two_product(high, y)
    lost = lost + low * y
    (near, more), n = _exp((product, lost.where(abs(lost) < 1.0, 0.0)))
    value = _scaled(near + more, n)
    value = product.where(_is_nan(product), value)
    value = one.where(size.eq(1.0) & ~_is_nan(y), value)
    is_whole = y.floor().eq(y)
    half = y * 0.5
    is_odd = is_whole & half.floor().ne(half) & (abs(y) < 2.0**24)
    value = (-value).where(is_odd & _is_negative(x), value)
    is_complex = (x < 0.0) & x.ne(-INF) & ~is_whole & (abs(y) < INF)
    value = _const(b, NAN).where(is_complex, value)
    return one.where(x.eq(1.0) | y.eq(0.0), value)


# -- angles ---------------------------------------------------------------------------------------


@functools.cache
def _two_over_pi() -> tuple[int, ...]:
    """Words of the binary digits of 2/π behind the point; the first word is in front of it."""
    words = 7
    digits = angles._two_over_pi(32 * words)  # pyright: ignore[reportPrivateUsage]
    return 0, *((digits >> (32 * (words - 1 - i))) & 0xFFFFFFFF for i in range(words))


def _quadrants(b: Builder, x: Var) -> tuple[Var, Pair]:
    """n modulo 4, and r with x = n · π/2 + r, |r| ≤ π/4, of x ≥ π/4 (Payne and Hanek): 24 digits
    of x times those 96 of 2/π that are not multiples of 4 or below all that counts."""
    table = b.table("two_over_pi", U32, list(map(float, _two_over_pi())))
    bits = x.bits(I32)
    at = (((bits >> 23) & 255) - 120).max(0)
    word, shift = at >> 5, (at & 31).to(U32)
    found = [b.table_load(table, (word + i).min(7)) for i in range(4)]
    window = [
        (high << shift) | ((low >> 1) >> (b.const(31, U32) - shift))
        for high, low in itertools.pairwise(found)
    ]
    digits = ((bits & 0x7FFFFF) | 0x800000).to(U64)
    w0, w1, w2 = (digits * w.to(U64) for w in window)
    w1 = w1 + (w2 >> 32)
    w0 = w0 + (w1 >> 32)
    top = (w0 << 32) | (w1 & 0xFFFFFFFF)
    n = (top >> 62).to(I32)
    fraction = (top << 2) | ((w2 & 0xFFFFFFFF) >> 30)
    is_above = (fraction >> 63).ne(0)
    size = (b.const(0, U64) - fraction).where(is_above, fraction)
    r = _times_half_pi(b, size)
    sign = _const(b, -1.0).where(is_above, 1.0)
    return n + is_above.to(I32), (r[0] * sign, r[1] * sign)


def _times_half_pi(b: Builder, fraction: Var) -> Pair:
    """Digits behind the point times π/2."""
    words = [(fraction >> shift) & 0xFFFF for shift in (48, 32, 16, 0)]
    # pieces of 16 digits are exact; where the first are 0, the last ones count
    first, *pieces = (w.to(U32).to(F32) * 2.0 ** (-16 * i - 16) for i, w in enumerate(words))
    high, low = two_sum(first, pieces[0])
    low, lower = two_sum(low, pieces[1])
    high, low = two_sum(high, low + (lower + pieces[2]))
    r, lost = two_product(high, _const(b, HALF_PI[0]))
    return two_sum(r, lost + (high * HALF_PI[1] + low * HALF_PI[0]))


def _wave(b: Builder, x: Var, ahead: int) -> Var:
    """sin x, or cos x, which is a quadrant ahead."""
    size = abs(x)
    is_far = size > QUARTER_PI[0]
    held = [b.variable(v) for v in (b.const(0, I32), size, _const(b, 0.0))]
    with b.when(is_far, held):
        n, (r, rest) = _quadrants(b, size)
        for variable, value in zip(held, (n, r, rest)):
            variable.set(value)
    n, r, rest = (Var(b, v.value) for v in held)
    z = r * r
    sine = r + (r * z * _polynomial(z, maths.SIN[F32]) + (rest - z * 0.5 * rest))
    half = z * 0.5
    flat = 1.0 - half
    tail = ((1.0 - flat) - half) - r * rest
    cosine = flat + (z * z * _polynomial(z, maths.COS[F32]) + tail)
    quarters = n + ahead
    value = cosine.where((quarters & 1).ne(0), sine)
    value = (-value).where((quarters & 2).ne(0), value)
    if not ahead:
        value = (value.bits(U32) ^ (x.bits(U32) & SIGN)).bits(F32)
    return value.where(size < INF, NAN)


def sine(b: Builder, x: Var) -> Var:
    return x.where(abs(x) < 2.0**-12, _wave(b, x, 0))


def cosine(b: Builder, x: Var) -> Var:
    return _wave(b, x, 1)


def atan2(b: Builder, y: Var, x: Var) -> Var:
    """The angle of (x, y), by the smaller side over the larger."""
    a, c = abs(y), abs(x)
    is_steep = a > c
    low, high = c.where(is_steep, a), a.where(is_steep, c)
    scale = _const(b, 2.0**-64).where(high > 2.0**60, 1.0)
    scale = _const(b, 2.0**64).where(high < 2.0**-60, scale)
    low, high = low * scale, high * scale
    both = a.eq(INF) & c.eq(INF)
    one, zero = _const(b, 1.0), _const(b, 0.0)
    low, high = one.where(both, low), one.where(both | high.eq(0.0), high)
    is_wide = low > high * maths.TAN_EIGHTH
    less, more = two_sum(low, -high), two_sum(low, high)
    over = (less[0].where(is_wide, low), less[1].where(is_wide, zero))
    under = (more[0].where(is_wide, high), more[1].where(is_wide, zero))
    q, rest = _quotient(over, under)
    is_exact = (abs(over[0]) > 2.0**-90) & (abs(rest) < 1.0)
    rest = rest.where(is_exact, zero)
    q = q.where(high < INF, zero)
    z = q * q
    part = q * z * _polynomial(z, maths.ATAN) + rest
    part = part + _const(b, QUARTER_PI[1]).where(is_wide, zero)
    angle, part = _turned(_const(b, QUARTER_PI[0]).where(is_wide, zero), q, part, is_steep, HALF_PI)
    angle, part = _turned(angle, zero, part, _is_negative(x), PI)
    value = _copysign(angle + part, y)
    return _const(b, NAN).where(_is_nan(x) | _is_nan(y), value)


def _turned(base: Var, more: Var, part: Var, mask: Var, whole: tuple[float, float]) -> Pair:
    """whole - angle where the mask holds; the angle is a sum of three."""
    angle, lost = two_sum(base, more)
    part = part + lost
    back, missed = two_sum(base.builder.const(whole[0], F32), -angle)
    return back.where(mask, angle), (missed + (whole[1] - part)).where(mask, part)


# -- the error function ---------------------------------------------------------------------------


def erfc(b: Builder, x: Var) -> Var:
    """1 - erf x, which keeps its digits where erf is near 1."""
    size = abs(x)
    tail = _erfc_tail(b, size)
    tail = (2.0 - tail).where(x < 0.0, tail)
    series = x * _polynomial(x * x, maths.ERF_F64[4:]) + x
    near = (0.5 - series) + 0.5
    return near.where(size < 0.5, x.where(_is_nan(x), tail))


def _erfc_tail(b: Builder, x: Var) -> Var:
    """erfc of x ≥ ½: e^(-x²) times a smooth part over 1 + 2x."""
    x = _const(b, 28.0).where(x > 28.0, x)
    smooth = _polynomial((x - 3.0) / (x + 3.0), maths.ERFCX)
    square, lost = two_product(x, x)
    (near, more), n = _exp((-square, -lost))
    product, rest = two_product(near, smooth)
    q, missed = _quotient((product, rest + more * smooth), two_sum(x * 2.0, _const(b, 1.0)))
    return _scaled(q + missed, n)


# -- remainders -----------------------------------------------------------------------------------


def fmod(b: Builder, x: Var, y: Var) -> Var:
    """Long division of the digits, as integers: eight of the quotient at a time."""
    a, c = x.bits(U32) & (SIGN - 1), y.bits(U32) & (SIGN - 1)
    is_plain = (a < 0x7F800000) & (c > 0) & (c <= 0x7F800000)
    is_less = a < c
    (digits, e), (divisor, f) = _digits(b, a), _digits(b, c)
    divisor = divisor.max(1)
    left = b.variable(digits % divisor)
    steps = b.variable((e - f).max(0))
    with b.repeat([left, steps]) as again:
        again.when(Var(b, steps.value) > 0)
        by = Var(b, steps.value).min(8)
        left.set((Var(b, left.value) << by.to(U32)) % divisor)
        steps.set(Var(b, steps.value) - by)
    rest = _undigits(b, Var(b, left.value), f)
    made = (a.where(is_less, rest) | (x.bits(U32) & SIGN)).bits(F32)
    return _const(b, NAN).where(~is_plain, made)


def _digits(b: Builder, bits: Var) -> tuple[Var, Var]:
    """The 24 digits of a number, and its exponent, 1 for the least ones."""
    exponent = (bits >> 23).to(I32)
    is_normal = exponent > 0
    return (bits & 0x7FFFFF) | b.const(0x800000, U32).where(is_normal, 0), exponent.max(1)


def _undigits(b: Builder, digits: Var, exponent: Var) -> Var:
    """The bits of a number of up to 24 digits: they are moved up as far as the exponent allows."""
    held = [b.variable(digits), b.variable(exponent)]
    with b.repeat(held) as again:
        here, e = (Var(b, h.value) for h in held)
        again.when((here < 0x800000) & (here > 0) & (e > 1))
        here, e = (Var(b, h.value) for h in held)
        held[0].set(here << 1)
        held[1].set(e - 1)
    here, e = (Var(b, h.value) for h in held)
    is_normal = here >= 0x800000
    normal = (here & 0x7FFFFF) | (e.to(U32) << 23)
    return normal.where(is_normal, here)


SINGLE: dict[str, Callable[..., Var]] = {
    "sin": sine,
    "cos": cosine,
    "pow": power,
    "atan2": atan2,
    "erfc": erfc,
    "fmod": fmod,
}
"""The functions whose f32 form elsewhere computes in f64, or counts on fused multiply-adds."""
