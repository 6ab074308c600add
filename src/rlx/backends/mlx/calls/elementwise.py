"""Elementwise arithmetic as calls of mlx.

mlx traps on integer division by zero and on the least integer divided by -1 (the process ends), so
divisors are replaced before; its casts of floats to integers wrap or are undefined; its complex
product follows C's Annex G, which makes infinities of NaNs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.backends.engine.calls import Site
from rlx.backends.mlx import numerics
from rlx.backends.mlx.calls.table import TABLE
from rlx.backends.mlx.namespaces import mx
from rlx.core.dtype import DType
from rlx.ops.op import lookup

FLOATS = frozenset({DType.F16, DType.BF16, DType.F32, DType.F64})
SINGLES = FLOATS - {DType.F64}

TABLE.named(mx, add="add", sub="subtract", neg="negative", abs="abs", square="square")
TABLE.named(mx, maximum="maximum", minimum="minimum", reciprocal="reciprocal", conj="conj")
TABLE.named(mx, real="real", imag="imag")
TABLE.named(mx, sqrt="sqrt", rsqrt="rsqrt", expm1="expm1", log="log", log1p="log1p", log2="log2")
TABLE.named(mx, log10="log10", tan="tan", asin="arcsin", acos="arccos", atan="arctan")
TABLE.named(mx, sinh="sinh", cosh="cosh", asinh="arcsinh", acosh="arccosh", atanh="arctanh")
TABLE.named(mx, floor="floor", ceil="ceil", trunc="trunc", round="round", atan2="arctan2")
TABLE.named(mx, tanh="tanh")
TABLE.named(mx, dtypes=SINGLES, erfinv="erfinv", logaddexp="logaddexp")
for function in (
    numerics.exp,
    numerics.sin,
    numerics.cos,
    numerics.sigmoid,
    numerics.erf,
    numerics.gelu,
):
    TABLE.call(function.__name__)(function)
TABLE.derived("gelu_tanh", "elu", "leaky_relu", "softplus", "hard_sigmoid", "softsign", "fma")
TABLE.derived("log_sigmoid", "celu", "thresholded_relu", "shrink", "prelu", "relu")


def is_whole(x: Any) -> bool:
    """Is it an array of integers?"""
    return bool(mx.issubdtype(x.dtype, mx.integer))


def is_signed(x: Any) -> bool:
    return bool(mx.issubdtype(x.dtype, mx.signedinteger))


# -- products and quotients -----------------------------------------------------------------------


@TABLE.call("mul")
def mul(x: Any, y: Any) -> Any:
    """Complex numbers by parts: NaN where infinity meets zero, as in NumPy."""
    if x.dtype != mx.complex64:
        return mx.multiply(x, y)
    a, b, c, d = mx.real(x), mx.imag(x), mx.real(y), mx.imag(y)
    return make_complex(a * c - b * d, a * d + b * c)


@TABLE.call("make_complex")
def make_complex(re: Any, im: Any) -> Any:
    """Pairs of floats, read as complex numbers: re + i·im would be NaN with infinite parts."""
    re, im = mx.broadcast_arrays(re, im)
    return mx.squeeze(mx.view(mx.stack([re, im], -1), mx.complex64), -1)


def _divisor(y: Any) -> Any:
    """What integers may be divided by: neither 0 nor -1, which trap."""
    trap = y == 0
    if is_signed(y):
        trap = mx.logical_or(trap, y == -1)
    return mx.where(trap, mx.ones_like(y), y)


def _by_trap(x: Any, y: Any, by_one: Any, quotient: Any) -> Any:
    """A quotient with what zero and -1 as divisors give."""
    made = mx.where(y == 0, mx.zeros_like(quotient), quotient)
    return mx.where(y == -1, by_one, made) if is_signed(x) else made


def _truncated(x: Any, y: Any) -> tuple[Any, Any]:
    """The quotient toward zero and the rest, of a divisor that does not trap. mlx's quotient is
    the floor, and its remainder has the sign of the divisor."""
    floor, rest = mx.floor_divide(x, y), mx.remainder(x, y)
    if not is_signed(x):
        return floor, rest
    is_below = mx.logical_and(rest != 0, (x < 0) != (y < 0))
    return mx.where(is_below, floor + 1, floor), mx.where(is_below, rest - y, rest)


@TABLE.call("div")
def div(x: Any, y: Any) -> Any:
    if x.dtype == mx.complex64:
        return _complex_quotient(x, y)
    if not is_whole(x):
        return mx.divide(x, y)
    quotient, _ = _truncated(x, _divisor(y))
    return _by_trap(x, y, -x, quotient)


def _complex_quotient(x: Any, y: Any) -> Any:
    """Smith's formula, as NumPy has it: with r the lesser part of y over the greater g, both parts
    are over g + r · lesser."""
    a, b, c, d = mx.real(x), mx.imag(x), mx.real(y), mx.imag(y)
    is_real = mx.abs(c) >= mx.abs(d)
    greater, lesser = mx.where(is_real, c, d), mx.where(is_real, d, c)
    one, other = mx.where(is_real, a, b), mx.where(is_real, b, a)
    r = lesser / greater
    by = 1.0 / (greater + lesser * r)
    im = mx.where(is_real, other - one * r, one * r - other)
    zero = mx.logical_and(c == 0, d == 0)
    re, im = (one + other * r) * by, im * by
    return make_complex(mx.where(zero, a / mx.abs(c), re), mx.where(zero, b / mx.abs(c), im))


@TABLE.call("rem")
def rem(x: Any, y: Any) -> Any:
    if not is_whole(x):
        return _float_rem(x, y)
    _, rest = _truncated(x, _divisor(y))
    return _by_trap(x, y, mx.zeros_like(rest), rest)


def _float_rem(x: Any, y: Any) -> Any:
    """C's fmod, of sizes: mlx's remainder adds the divisor where signs differ."""
    rest = mx.remainder(mx.abs(x), mx.abs(y))
    return mx.where(x < 0, -rest, mx.where(x == 0, x * mx.ones_like(rest), rest))


@TABLE.call("mod")
def mod(x: Any, y: Any) -> Any:
    if not is_whole(x):
        return mx.remainder(x, y)
    rest = mx.remainder(x, _divisor(y))
    return _by_trap(x, y, mx.zeros_like(rest), rest)


@TABLE.call("floor_div", dtypes=frozenset(d for d in DType if d.is_integer))
def floor_div(x: Any, y: Any) -> Any:
    return _by_trap(x, y, -x, mx.floor_divide(x, _divisor(y)))


@TABLE.call("pow")
def pow_(x: Any, y: Any) -> Any:
    """A negative power of an integer is that of its inverse, which is 0 but for ±1."""
    if not is_whole(x):
        return mx.power(x, y)
    made = mx.power(x, mx.maximum(y, 0))
    if not is_signed(x):
        return made
    inverse = mx.where(mx.bitwise_and(y, 1) != 0, x, mx.ones_like(x))
    inverse = mx.where(mx.abs(x) == 1, inverse, mx.zeros_like(x))
    return mx.where(y < 0, inverse, made)


@TABLE.call("sign")
def sign(x: Any) -> Any:
    """mlx takes NaN for 0."""
    return mx.sign(x) if is_whole(x) else mx.where(x != x, x, mx.sign(x))


@TABLE.call("silu")
def silu(x: Any) -> Any:
    return x * numerics.sigmoid(x)


@TABLE.call("exp2")
def exp2(x: Any) -> Any:
    return mx.power(mx.array(2.0, x.dtype), x)


@TABLE.call("erfc", limit=lambda _: None if numerics.on_processor() else NO_DOUBLES)
def erfc(x: Any) -> Any:
    return numerics.erfc(x)


NO_DOUBLES = "its tail takes doubles, which mlx has on the processor only"


@TABLE.call("clamp")
def clamp(x: Any, *, min: float | None, max: float | None, site: Site) -> Any:  # noqa: A002
    low, high = (None if b is None else _bound(b, site) for b in (min, max))
    x = x if low is None else mx.maximum(x, low)
    return x if high is None else mx.minimum(x, high)


def _bound(bound: float, site: Site) -> Any:
    """A bound in x's dtype; past an integer's range its end."""
    to = site.operands[0].dtype.compute
    made = lookup("cast").run([np.asarray(bound, np.float64)], {"to": to})
    return site.engine.constant(made)


# -- dtypes ---------------------------------------------------------------------------------------


@TABLE.call("cast")
def cast(x: Any, *, to: DType, site: Site) -> Any:
    given = site.operands[0].dtype
    if to is DType.BOOL:
        return x != 0
    if given.is_complex and not to.is_complex:
        x, given = mx.real(x), given.real
    if given.is_float and to.is_integer:
        return _saturated(x, to, site)
    if given is DType.F64 and to in (DType.BF16, DType.F16):
        return _half_of_double(x, to, site)
    return site.cast(x, to)


def _half_of_double(x: Any, to: DType, site: Site) -> Any:
    """bf16 is rounded by way of f32; f16 directly."""
    return site.cast(site.cast(x, DType.F32), to)


def _saturated(x: Any, to: DType, site: Site) -> Any:
    """Truncated toward zero; past the range its nearest end, and NaN as 0. The ends are powers of
    two, which every float dtype that holds them has exactly."""
    info = np.iinfo(to.numpy)
    wide = x.astype(mx.float32) if x.dtype in (mx.float16, mx.bfloat16) else x
    whole = mx.trunc(wide)
    least, past = float(info.min), float(info.max // 2 + 1) * 2.0
    is_high, is_low = whole >= past, whole < least
    inside = mx.where(mx.logical_or(mx.logical_or(is_high, is_low), x != x), 0.0, whole)
    made = _whole(inside, to, site)
    ends = [site.engine.constant(np.asarray(v, to.numpy)) for v in (info.max, info.min)]
    return mx.where(is_high, ends[0], mx.where(is_low, ends[1], made))


def _whole(x: Any, to: DType, site: Site) -> Any:
    """Whole numbers in range as integers. Through i64, as a float that is cast to an unsigned
    number by C may be anything; what is beyond i64 less its half, which is put back."""
    if to is not DType.U64:
        return site.cast(x.astype(mx.int64), to)
    half = 2.0**63
    is_large = x >= half
    low = mx.where(is_large, x - half, x).astype(mx.int64).astype(mx.uint64)
    top = mx.left_shift(mx.array(1, mx.uint64), mx.array(63, mx.uint64))
    return mx.where(is_large, low + top, low)


@TABLE.call("bitcast")
def bitcast(x: Any, *, to: DType, site: Site) -> Any:
    return mx.view(x, site.dtype(to))
