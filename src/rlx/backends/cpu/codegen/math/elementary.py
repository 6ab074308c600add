"""Elementary functions as vector code: precise, with exact specials, and NaN in gives NaN out.

Errors, in units in the last place, over all inputs tried (the tests hold them): exp, log, sin and
cos at most 1, tanh, erf and expm1 2, in f32 and f64; atan2 and pow 1 in f32 and 2 in f64; erfc 1
and 6. Where multiply-adds are not fused, tanh of f32 2.5. The polynomials interpolate at
Chebyshev's nodes; their own errors are below 2⁻²⁶ for f32 and 2⁻⁵⁶ for f64, unless stated.

A bound is tested by a comparison that NaN fails, and the failing side keeps x, so a clamp never
turns NaN into a number.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cpu.codegen.math.range_reduction import quarter_turns
from rlx.backends.cpu.llvm.multiply_add import near_fma
from rlx.backends.cpu.llvm.values import Vec, fma, two_product, two_sum
from rlx.core.dtype import DType

F32, F64 = DType.F32, DType.F64
INF, NAN = float("inf"), float("nan")

LOG2_E = 1.4426950408889634
# ln 2 in two parts; the first has trailing zeros, so that a small whole number times it is exact
LN2 = {F32: (0.693145751953125, 1.428606765330187e-06),
       F64: (0.693147180601954460144043, -4.200915072681084597935359e-11)}  # fmt: skip
# adding it rounds to a whole number and leaves that number in the low bits
ROUNDER = {F32: 1.5 * 2.0**23, F64: 1.5 * 2.0**52}
MANTISSA = {F32: 23, F64: 52}
BIAS = {F32: 127, F64: 1023}
BITS = {F32: DType.I32, F64: DType.I64}


def polynomial(x: Vec, coefficients: Sequence[float]) -> Vec:
    """Horner's rule, the highest power first."""
    value = x.like(coefficients[0])
    for c in coefficients[1:]:
        value = near_fma(value, x, c)
    return value


# -- exponentials ---------------------------------------------------------------------------------

EXP = {  # (eʳ - 1 - r) / r² for |r| ≤ ln 2 / 2
    F32: (1.989198131397769e-4, 1.3934541928270264e-3, 8.333310024225292e-3, 4.1666456809677876e-2,
          0.16666666682534356, 0.5),
    F64: (2.0915442297780115e-9, 2.5106274733573295e-8, 2.75572718102198e-7, 2.755725283351691e-6,
          2.4801587327007187e-5, 1.9841269876864355e-4, 1.3888888888883327e-3,
          8.333333333325545e-3, 4.166666666666667e-2, 0.16666666666666671, 0.5),
}  # fmt: skip
EXP_ENDS = {F32: (-104.0, 89.0), F64: (-746.0, 710.0)}
"""Below and above, the result is 0 and infinite."""


def exp_parts(x: Vec, coefficients: Sequence[float]) -> tuple[Vec, Vec, Vec]:
    """n as a float and as an integer, and eʳ - 1 with x = n ln 2 + r."""
    kind = x.dtype
    low, high = EXP_ENDS[kind]
    x = x.like(low).where(x < low, x)
    x = x.like(high).where(x > high, x)
    n, whole = whole_steps(x)
    r = near_fma(n, -LN2[kind][1], near_fma(n, -LN2[kind][0], x))
    return n, whole, near_fma(r * r, polynomial(r, coefficients), r)


def whole_steps(x: Vec) -> tuple[Vec, Vec]:
    """x / ln 2 as the nearest whole number, a float and an integer."""
    kind = x.dtype
    shifted = near_fma(x, LOG2_E, ROUNDER[kind])
    whole = shifted.bits(BITS[kind]) - x.like(ROUNDER[kind]).bits(BITS[kind])
    return shifted - ROUNDER[kind], whole


def power_of_two(n: Vec, kind: DType) -> Vec:
    return ((n + BIAS[kind]) << MANTISSA[kind]).bits(kind)


def scaled(x: Vec, n: Vec) -> Vec:
    """x · 2ⁿ in two steps, as 2ⁿ alone may be out of range."""
    half = n >> 1
    return x * power_of_two(half, x.dtype) * power_of_two(n - half, x.dtype)


def exp(x: Vec) -> Vec:
    """2ⁿ · eʳ."""
    n, whole, less_one = exp_parts(x, EXP[x.dtype])
    return times_power(less_one + 1.0, n, whole)


def times_power(x: Vec, n: Vec, whole: Vec) -> Vec:
    """x · 2ⁿ, where n is given as a float and as an integer."""
    if x.code.isa.has_scaling and x.code.lanes == x.code.isa.lanes(x.dtype):
        return x.code.scaled(x, n)
    return scaled(x, whole)


def expm1(x: Vec) -> Vec:
    """2ⁿ · (eʳ - 1) + (2ⁿ - 1); for large n the 1 is lost anyway."""
    _, n, less_one = exp_parts(x, EXP[x.dtype])
    half = n >> 1
    a, b = power_of_two(half, x.dtype), power_of_two(n - half, x.dtype)
    value = near_fma(less_one * a, b, near_fma(a, b, -1.0))
    value = ((less_one + 1.0) * a * b).where(n > MANTISSA[x.dtype] + 2, value)
    return x.where(x.equals(0.0), value)


TANH_F32 = (  # ((e²ʳ - 1) / 2 - r) / r² for 0 ≤ r ≤ ln 2 / 2
    5.956262121298662e-2, 0.12737397499511646, 0.334367630887071, 0.6665895816371712,
    1.0000018403514863,
)  # fmt: skip
TANH_F64 = (  # (tanh x / x - 1) / x² in x², below 0.55
    7.864624212169783e-6, -3.370544043637479e-5, 9.45407948223005e-5, -2.384686507800785e-4,
    5.899043213015435e-4, -1.4558189474962582e-3, 3.592126755268262e-3, -8.863235462250607e-3,
    2.1869488534042153e-2, -5.39682539682198e-2, 0.13333333333333312, -0.3333333333333333,
)  # fmt: skip


def tanh(x: Vec) -> Vec:
    """An odd polynomial near 0; further out 1 - 2u / (1 + u) with u = e^(-2|x|)."""
    if x.dtype is F32:
        return _tanh_f32(x)
    size, square = x.abs(), x * x
    near = near_fma(x * square, polynomial(square, TANH_F64), x)
    u = exp(size * -2.0)
    far = u.like(1.0) - u * 2.0 / (u + 1.0)
    return far.where(size > 0.55, near).copysign(x)


def _tanh_f32(x: Vec) -> Vec:
    """q = u / (u + 1) with u = (e^(2|x|) - 1) / 2; near 0 it is u - q u, in which what q has lost
    by rounding counts for little."""
    size = x.abs()
    u = half_expm1(size)
    q = u / (u + 1.0)
    return near_fma(-u, q, u).where(size < 0.3, q).copysign(x)


def half_expm1(x: Vec) -> Vec:
    """(e²ˣ - 1) / 2 of f32 x ≥ 0, up to 10: e²ˣ = 2ⁿ e²ʳ, where r ≥ 0, so that nothing cancels."""
    x = x.like(10.0).where(x > 10.0, x)
    n = (x * (2.0 * LOG2_E)).floor()
    high, low = LN2[F32]
    r = near_fma(n, -0.5 * low, near_fma(n, -0.5 * high, x))
    part = near_fma(r * r, polynomial(r, TANH_F32), r)
    whole = (n + ROUNDER[F32]).bits(DType.I32) - x.like(ROUNDER[F32]).bits(DType.I32)
    scale = times_power(x.like(1.0), n, whole)
    return near_fma(part, scale, near_fma(scale, 0.5, -0.5))


# -- logarithms -----------------------------------------------------------------------------------

LOG_F32 = (  # (log(1 + f) - f + f²/2) / f³ for √½ ≤ 1 + f < √2
    -6.201500119018334e-2, 0.10530864738938345, -0.10646191638199634, 0.1103778335905502,
    -0.12450743320911726, 0.14286524547786642, -0.16668001523071928, 0.20000010039684972,
    -0.24999990275042185, 0.3333333328119924,
)  # fmt: skip
LOG_F64 = (  # (log((1 + s) / (1 - s)) / s - 2) / s² in s²
    0.13086626147840102, 0.13268773138656885, 0.15386239702814658, 0.18181795640132906,
    0.22222222391713917, 0.2857142857080361, 0.4000000000000088, 0.6666666666666666,
)  # fmt: skip
SQRT_HALF = 0.7071067811865476


def mantissa_of(x: Vec) -> tuple[Vec, Vec]:
    """e and m with x = 2ᵉ · m and √½ ≤ m < √2, for positive finite x, denormals too."""
    kind, width = x.dtype, MANTISSA[x.dtype]
    is_small = x < 2.0 ** (1 - BIAS[kind])
    lifted = (x * 2.0 ** (width + 2)).where(is_small, x).bits(BITS[kind])
    e = (lifted - x.like(SQRT_HALF).bits(BITS[kind])) >> width
    m = (lifted - (e << width)).bits(kind)
    shift = e.like(width + 2).where(is_small, 0)
    return (e - shift).to(kind), m


def exponent(x: Vec) -> Vec:
    """⌊log₂ x⌋ of positive finite x, denormals too, as an integer; of 0 less than all others."""
    kind, width = x.dtype, MANTISSA[x.dtype]
    is_small = x < 2.0 ** (1 - BIAS[kind])
    lifted = (x * 2.0 ** (width + 2)).where(is_small, x).bits(BITS[kind]) >> width
    return lifted - lifted.like(width + 2 + BIAS[kind]).where(is_small, BIAS[kind])


def log_specials(x: Vec, value: Vec) -> Vec:
    value = x.where(x.equals(INF), value)
    value = x.like(-INF).where(x.equals(0.0), value)
    return value.where(x >= 0.0, x.like(NAN))


def log(x: Vec) -> Vec:
    """e ln 2 + log m, the small terms first."""
    e, m = mantissa_of(x)
    f = m - 1.0
    high, low = LN2[x.dtype]
    if x.dtype is F32:
        square = f * f
        rest = near_fma(polynomial(f, LOG_F32) * square, f, square * -0.5)
        return log_specials(x, near_fma(e, high, f + near_fma(e, low, rest)))
    s = f / (f + 2.0)
    z = s * s
    half = f * f * 0.5
    # log(1 + f) = f - (f²/2 - s (f²/2 + R))
    rest = near_fma(s, half + z * polynomial(z, LOG_F64), e * low)
    return log_specials(x, near_fma(e, high, f - (half - rest)))


LOG_DD = (  # (log((1 + s) / (1 - s)) / s - 2 - ⅔ s²) / s⁴ in s², below 2⁻⁶⁸
    0.11723051028097753, 0.11706248540922385, 0.13334804238225345, 0.15384594970895458,
    0.18181818335314403, 0.22222222221656232, 0.28571428571429364, 0.4,
)  # fmt: skip
LN2_DD = (0.6931471805599453, 2.3190468138462996e-17)
TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)


def _log_twice(x: Vec) -> tuple[Vec, Vec]:
    """log x of positive finite f64 as a sum of two: what a power needs to keep its digits."""
    e, m = mantissa_of(x)
    f, below = m - 1.0, m + 1.0
    s = f / below
    # m + 1 rounds by at most its last bit: its rest is m - (below - 1)
    left = fma(-s, below, f) - s * (m - (below - 1.0))
    s_low = left / below
    z, z_low = two_product(s, s)
    z_low = fma(s + s, s_low, z_low)
    a, a_low = two_product(z, z.like(TWO_THIRDS[0]))
    a_low = a_low + fma(z, TWO_THIRDS[1], z_low * TWO_THIRDS[0])
    a_low = fma(z * z, polynomial(z, LOG_DD), a_low)
    b, b_low = two_product(s, a)
    b_low = b_low + fma(s, a_low, s_low * a)
    total, rest = two_sum(s * 2.0, b)
    rest = rest + (s_low * 2.0 + b_low)
    c, c_low = two_product(e, e.like(LN2_DD[0]))
    high, lost = two_sum(c, total)
    return two_sum(high, lost + (fma(e, LN2_DD[1], c_low) + rest))


# -- powers ---------------------------------------------------------------------------------------


def power(x: Vec, y: Vec) -> Vec:
    """x to the power y, of floats."""
    if x.dtype is F32:
        return power(x.to(F64), y.to(F64)).to(F32)
    return x.code.outlined("power", _power, x, y)


def _power(x: Vec, y: Vec) -> Vec:
    """e^(y log |x|), with the sign of odd powers; the rest is C's table of specials."""
    size = x.abs()
    positive = size.where((size > 0.0) & (size < INF), size.like(1.0))
    high, low = _log_twice(positive)
    at_ends = x.like(-INF).where(size.equals(0.0), size)
    high = high.where((size > 0.0) & (size < INF), at_ends)
    product, lost = two_product(high, y)
    lost = fma(low, y, lost)
    near = exp(product)
    value = fma(near, lost.where(lost.abs() < 1.0, 0.0), near).where(near < INF, near)
    value = x.like(1.0).where(size.equals(1.0) & y.equals(y), value)
    is_whole = y.floor().equals(y)
    half = y * 0.5
    is_odd = is_whole & half.floor().differs(half) & (y.abs() < 2.0**53)
    is_negative = x.bits(DType.I64) < 0
    value = (-value).where(is_odd & is_negative, value)
    value = x.like(NAN).where((x < 0.0) & x.differs(-INF) & ~is_whole & (y.abs() < INF), value)
    return x.like(1.0).where(x.equals(1.0) | y.equals(0.0), value)


# -- trigonometry ---------------------------------------------------------------------------------

# (sin r / r - 1) / r² and (cos r - 1 + r²/2) / r⁴ in r², for |r| ≤ π/4
SIN = {F32: (2.7249314054698805e-6, -1.9840082012765537e-4, 8.333331865959414e-3,
             -0.16666666663832765),
       F64: (-7.586576588171072e-13, 1.6058529572267876e-10, -2.5052106219521894e-8,
             2.755731921930192e-6, -1.9841269841265017e-4, 8.333333333333331e-3,
             -0.16666666666666666)}  # fmt: skip
COS = {F32: (2.4547437210193199e-5, -1.3888300696903899e-3, 4.166666464745738e-2),
       F64: (-1.1382456778061306e-11, 2.0876143827993132e-9, -2.755731726000884e-7,
             2.480158729874307e-5, -1.3888888888887382e-3, 4.1666666666666664e-2)}  # fmt: skip


def sin(x: Vec) -> Vec:
    return _wave(x, 0).where(x.differs(0.0), x)


def cos(x: Vec) -> Vec:
    return _wave(x, 1)


def _wave(x: Vec, ahead: int) -> Vec:
    """sin of x plus `ahead` quadrants; f32 is reduced, and summed, in f64."""
    quarters, r, rest = quarter_turns(x.to(F64))
    quarters = quarters + ahead
    z = r * r
    if x.dtype is F32:
        sine = near_fma(r * z, polynomial(z, SIN[F32]), r)
        cosine = near_fma(z * z, polynomial(z, COS[F32]), near_fma(z, -0.5, 1.0))
    else:
        sine = r + near_fma(r * z, polynomial(z, SIN[F64]), near_fma(z * -0.5, rest, rest))
        half = z * 0.5
        flat = half.like(1.0) - half
        tail = ((flat.like(1.0) - flat) - half) - r * rest
        cosine = flat + near_fma(z * z, polynomial(z, COS[F64]), tail)
    value = cosine.where((quarters & 1).differs(0), sine)
    return (-value).where((quarters & 2).differs(0), value).to(x.dtype)


ATAN = (  # (atan z / z - 1) / z² in z², for |z| ≤ tan π/8
    -1.3892520207010398e-2, 3.0610274694365922e-2, -4.103337746741777e-2, 4.71912294243290e-2,
    -5.257998906332238e-2, 5.881920848081943e-2, -6.66664171730274e-2, 7.692306722341972e-2,
    -9.090909066620618e-2, 0.11111111110748203, -0.14285714285711462, 0.19999999999999991,
    -0.3333333333333333,
)  # fmt: skip
TAN_EIGHTH = 0.41421356237309503
QUARTER_PI, QUARTER_PI_LOW = 0.7853981633974483, 3.061616997868383e-17
PI, PI_LOW = 3.141592653589793, 1.2246467991473532e-16


def atan2(y: Vec, x: Vec) -> Vec:
    """The angle of (x, y), by the smaller side over the larger."""
    if x.dtype is F32:
        return atan2(y.to(F64), x.to(F64)).to(F32)
    return y.code.outlined("atan2", _atan2, y, x)


def _atan2(y: Vec, x: Vec) -> Vec:
    a, b = y.abs(), x.abs()
    is_steep = a > b
    low, high = b.where(is_steep, a), a.where(is_steep, b)
    # very large and very small sides are scaled so that their quotient keeps its digits
    scale = x.like(2.0**-600).where(high > 2.0**600, x.like(2.0**400).where(high < 2.0**-400, 1.0))
    low, high = low * scale, high * scale
    both = a.equals(INF) & b.equals(INF)
    low, high = x.like(1.0).where(both, low), x.like(1.0).where(both | high.equals(0.0), high)
    is_wide = low > high * TAN_EIGHTH
    over, under = (low - high).where(is_wide, low), (low + high).where(is_wide, high)
    q = over / under
    rest = fma(-q, under, over)
    # tiny sides leave no remainder that a product could represent
    rest = (rest / under).where((over.abs() > 2.0**-900) & (rest.abs() < INF), 0.0)
    z = q * q
    part = near_fma(q * z, polynomial(z, ATAN), rest)
    base = x.like(QUARTER_PI).where(is_wide, 0.0)
    part = part + x.like(QUARTER_PI_LOW).where(is_wide, 0.0)
    angle, part = _turned(base, q, part, is_steep, PI / 2, PI_LOW / 2)
    angle, part = _turned(angle, x.like(0.0), part, x.bits(DType.I64) < 0, PI, PI_LOW)
    return (angle + part).where(a.equals(a) & b.equals(b), a + b).copysign(y)


def _turned(
    base: Vec, more: Vec, part: Vec, mask: Vec, whole: float, low: float
) -> tuple[Vec, Vec]:
    """whole - angle where the mask holds; the angle is a sum of three."""
    angle, lost = two_sum(base, more)
    part = part + lost
    back, missed = two_sum(angle.like(whole), -angle)
    return back.where(mask, angle), (missed + (-part + low)).where(mask, part)


# -- the error function ---------------------------------------------------------------------------

ERF_F32 = (  # -log(1 - erf x) / x for 0 ≤ x ≤ 4, but for the first of its powers
    -9.255497882151372e-6, 1.1763412017002948e-4, -6.328101180513388e-4, 1.6669758434754234e-3,
    -1.603409028111399e-4, -1.9153096370246037e-2, 0.10277784033696502, 0.6366193806709666,
)  # fmt: skip
ERF_FIRST = (1.12837922573089599609375, -5.4071226609375e-8)
"""That power's coefficient in two parts: an f32, and what it lacks."""
ERF_F64 = (  # erf x / x - 1 in x², below 1
    5.957176147748911e-11, -1.1372848856791674e-9, 1.4659775274047436e-8, -1.6350312701054695e-7,
    1.6461000484121368e-6, -1.4925595266831182e-5, 1.205533111164271e-4, -8.54832698083379e-4,
    5.2239776248180145e-3, -2.6866170645076793e-2, 0.11283791670954879, -0.3761263890318375,
    0.12837916709551258,
)  # fmt: skip
ERFCX = (  # e^(x²) erfc x (1 + 2x) in (x - 3) / (x + 3), for ½ ≤ x ≤ 28
    -4.325370719107278e-9, -1.0659628807393203e-8, 3.42329907978226e-8, 9.877438074940672e-8,
    -1.343231240945129e-7, -6.146346341425417e-7, 3.52693258412998e-7, 3.471616676593574e-6,
    -7.300550882569987e-7, -2.0100376113106086e-5, 4.949171447603332e-6, 1.2509932758636072e-4,
    -1.0515976008945177e-4, -7.798322714918795e-4, 1.8886903564002055e-3, 2.529391816335117e-3,
    -2.3770514918536378e-2, 6.830802734394434e-2, -0.11927366341531179, 0.12964515870276203,
    -4.7562294353450694e-2, -0.13562110612458119, 1.2530080582697297,
)  # fmt: skip


def erf(x: Vec) -> Vec:
    """x · P(x²) near 0, and 1 - erfc |x| further out."""
    if x.dtype is F32:
        return _erf_f32(x)
    size = x.abs()
    near = near_fma(x, polynomial(x * x, ERF_F64), x)
    far = x.code.outlined("erfc_tail", _erfc_tail, size)
    return (far.like(1.0) - far).copysign(x).where(size > 1.0, near)


def _erf_f32(x: Vec) -> Vec:
    """1 - e^(-y) with y = -log(1 - erf |x|), a smooth function; it keeps the digits of small x."""
    size = x.abs()
    size = size.like(4.0).where(size > 4.0, size)
    rest = size * polynomial(size, (*ERF_F32, ERF_FIRST[1]))
    return expm1_within(-near_fma(size, ERF_FIRST[0], rest), EXP[F32]).copysign(x)


def expm1_within(x: Vec, coefficients: Sequence[float]) -> Vec:
    """eˣ - 1 where 2ⁿ is in range."""
    n, whole = whole_steps(x)
    r = near_fma(n, -LN2[x.dtype][1], near_fma(n, -LN2[x.dtype][0], x))
    less_one = near_fma(r * r, polynomial(r, coefficients), r)
    scale = power_of_two(whole, x.dtype)
    return near_fma(less_one, scale, scale - 1.0)


def erfc(x: Vec) -> Vec:
    """1 - erf x, which keeps its digits where erf is near 1."""
    if x.dtype is F32:
        return erfc(x.to(F64)).to(F32)
    size = x.abs()
    tail = x.code.outlined("erfc_tail", _erfc_tail, size)
    tail = (tail.like(2.0) - tail).where(x < 0.0, tail)
    series = near_fma(x, polynomial(x * x, ERF_F64), x)
    near = (x.like(0.5) - series) + 0.5
    return near.where(size < 0.5, tail)


def _erfc_tail(x: Vec) -> Vec:
    """erfc of x ≥ ½: e^(-x²) times a smooth part; what x² loses to rounding is put back."""
    x = x.like(28.0).where(x > 28.0, x)
    t = (x - 3.0) / (x + 3.0)
    smooth = polynomial(t, ERFCX) / (x * 2.0 + 1.0)
    square, lost = two_product(x, x)
    return exp(-square) * near_fma(smooth, -lost, smooth)
