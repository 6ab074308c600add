"""Elementwise calls: NumPy's names where jax means the same, else what makes them ours.

XLA divides an integer by zero to -1 and leaves out-of-range conversions to the device: both are
stated here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.backends.engine.calls import Site
from rlx.backends.tpu.calls.table import TABLE
from rlx.backends.tpu.namespaces import jnp, lax
from rlx.core.dtype import DType
from rlx.ops.math.activation import SQRT_HALF

TABLE.named(
    jnp,
    add="add",
    sub="subtract",
    mul="multiply",
    maximum="maximum",
    minimum="minimum",
    neg="negative",
    abs="abs",
    sign="sign",
    square="square",
    sqrt="sqrt",
    exp="exp",
    exp2="exp2",
    expm1="expm1",
    log="log",
    log1p="log1p",
    log2="log2",
    log10="log10",
    sin="sin",
    cos="cos",
    tan="tan",
    asin="arcsin",
    acos="arccos",
    atan="arctan",
    atan2="arctan2",
    sinh="sinh",
    cosh="cosh",
    asinh="arcsinh",
    acosh="arccosh",
    atanh="arctanh",
    tanh="tanh",
    floor="floor",
    ceil="ceil",
    trunc="trunc",
    round="rint",
    real="real",
    imag="imag",
    conj="conjugate",
    rem="fmod",
    mod="remainder",
    cbrt="cbrt",
    hypot="hypot",
    logaddexp="logaddexp",
    heaviside="heaviside",
    angle="angle",
)
TABLE.named(
    jnp,
    equal="equal",
    not_equal="not_equal",
    less="less",
    less_equal="less_equal",
    greater="greater",
    greater_equal="greater_equal",
    logical_and="logical_and",
    logical_or="logical_or",
    logical_xor="logical_xor",
    logical_not="logical_not",
    where="where",
    is_nan="isnan",
    is_inf="isinf",
    is_finite="isfinite",
    bit_and="bitwise_and",
    bit_or="bitwise_or",
    bit_xor="bitwise_xor",
    bit_not="bitwise_not",
)
TABLE.named(lax, erf="erf")
TABLE.derived(
    "fma",
    "rsqrt",
    "shift_left",
    "shift_right",
    "relu",
    "sigmoid",
    "gelu_tanh",
    "silu",
    "elu",
    "selu",
    "leaky_relu",
    "softplus",
    "hard_sigmoid",
    "hard_swish",
    "mish",
    "softsign",
    "log_sigmoid",
    "celu",
    "thresholded_relu",
    "shrink",
    "prelu",
    "logit",
    "xlogy",
    "complex_norm_sq",
    "view_as_real",
    "stop_gradient",
    "gated_residual",
)


def _is_whole(x: Any) -> bool:
    return np.dtype(x.dtype).kind in "iu"


@TABLE.call("div")
def div(x: Any, y: Any) -> Any:
    if _is_whole(x):
        return _quotient(x, y)
    return _complex_quotient(x, y) if np.dtype(x.dtype).kind == "c" else jnp.divide(x, y)


def _complex_quotient(x: Any, y: Any) -> Any:
    """Smith's formula, as NumPy has it: XLA gives 0 over infinity although a part of it is NaN."""
    a, b, c, d = jnp.real(x), jnp.imag(x), jnp.real(y), jnp.imag(y)
    by_real, is_zero = jnp.abs(c) >= jnp.abs(d), (c == 0) & (d == 0)
    ratio = jnp.where(by_real, d / c, c / d)
    scale = jnp.where(by_real, 1 / (c + d * ratio), 1 / (d + c * ratio))
    re = jnp.where(by_real, a + b * ratio, a * ratio + b) * scale
    im = jnp.where(by_real, b - a * ratio, b * ratio - a) * scale
    over = jnp.abs(c)
    return lax.complex(jnp.where(is_zero, a / over, re), jnp.where(is_zero, b / over, im))


@TABLE.call("reciprocal")
def reciprocal(x: Any) -> Any:
    return div(jnp.ones((), x.dtype), x)


def _quotient(x: Any, y: Any) -> Any:
    """Truncated; 0 by zero. The least integer over -1 wraps in XLA."""
    x, y = jnp.broadcast_arrays(x, y)
    safe = jnp.where(y == 0, jnp.ones_like(y), y)
    return jnp.where(y == 0, jnp.zeros_like(x), lax.div(x, safe))


@TABLE.call("floor_div")
def floor_div(x: Any, y: Any) -> Any:
    """Of whole numbers the truncated quotient, one less where a remainder has the other sign."""
    if not _is_whole(x):
        return jnp.floor_divide(x, y)
    quotient, left = _quotient(x, y), jnp.fmod(x, y)
    is_short = (left != 0) & ((left < 0) != (y < 0)) & (y != 0)
    return jnp.where(is_short, quotient - 1, quotient)


@TABLE.call("pow")
def pow_(x: Any, y: Any) -> Any:
    return _whole_power(*jnp.broadcast_arrays(x, y)) if _is_whole(x) else jnp.power(x, y)


def _whole_power(x: Any, y: Any) -> Any:
    """By squaring, for as many bits as some exponent has; negative powers are 0 but those of ±1."""
    one, zero = jnp.ones_like(x), jnp.zeros_like(x)

    def step(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        made, square, left = state
        return jnp.where(left & 1 != 0, made * square, made), square * square, left >> 1

    start = (one, x, jnp.maximum(y, zero))
    made = lax.while_loop(lambda state: jnp.any(state[2] != 0), step, start)[0]
    inverse = jnp.where(jnp.abs(x) == 1, jnp.where(y & 1 != 0, x, one), zero)
    return jnp.where(y < 0, inverse, made)


@TABLE.call("clamp")
def clamp(x: Any, *, min: float | None, max: float | None) -> Any:  # noqa: A002
    x = x if min is None else jnp.maximum(x, _bound(min, x.dtype))
    return x if max is None else jnp.minimum(x, _bound(max, x.dtype))


def _bound(bound: float, dtype: Any) -> Any:
    """`bound` in the dtype; past an integer's range its end."""
    wanted = np.dtype(dtype)
    if wanted.kind not in "iu":
        return np.asarray(bound, wanted)
    info = np.iinfo(wanted)
    return wanted.type(int(max(int(info.min), min(bound, int(info.max)))))


@TABLE.call("gelu")
def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + lax.erf(x * SQRT_HALF))


@TABLE.call("erfc")
def erfc(x: Any) -> Any:
    """XLA's, which has the exponential of x² rounded: what the rounding left out is put back, as
    e^-(s + r) is about e^-s · (1 - r)."""
    made = lax.erfc(x)
    return jnp.where((x > 1) & (made > 0), made - made * _rounded_off_square(x), made)


def _rounded_off_square(x: Any) -> Any:
    """x² less what it is rounded to: exact products of the upper half of its bits and the rest."""
    bits, low_half = (np.uint64, 27) if x.dtype == np.float64 else (np.uint32, 12)
    kept = ~bits(2**low_half - 1)
    high = lax.bitcast_convert_type(lax.bitcast_convert_type(x, bits) & kept, x.dtype)
    low = x - high
    return ((high * high - x * x) + 2 * high * low) + low * low


# -- dtypes ---------------------------------------------------------------------------------------


@TABLE.call("cast")
def cast(x: Any, *, to: DType, site: Site) -> Any:
    given = site.operands[0].dtype
    if given.is_complex and not to.is_complex and to is not DType.BOOL:
        x, given = jnp.real(x), given.real
    if to is DType.BOOL:
        return x != 0
    if given.is_float and to.is_integer:
        return _saturated(x, to)
    if to is DType.BF16 and given is not DType.F16:
        x = x.astype(np.float32)
    return x.astype(to.numpy)


def _saturated(x: Any, to: DType) -> Any:
    """Truncated toward zero; past the range its end, NaN 0. Powers of two bound the range: they
    are exact in every float."""
    x = x if x.dtype == np.float64 else x.astype(np.float32)
    info = np.iinfo(to.numpy)
    least, past = x.dtype.type(info.min), x.dtype.type(2.0 ** (info.bits - to.is_signed))
    inside = (x > least) & (x < past)
    kept = jnp.where(inside, x, jnp.zeros_like(x)).astype(to.numpy)
    ends = jnp.where(x >= past, to.numpy.type(info.max), to.numpy.type(info.min))
    return jnp.where(inside, kept, jnp.where(jnp.isnan(x), to.numpy.type(0), ends))


@TABLE.call("bitcast")
def bitcast(x: Any, *, to: DType) -> Any:
    return lax.bitcast_convert_type(x, to.numpy)


@TABLE.call("make_complex")
def make_complex(re: Any, im: Any) -> Any:
    return lax.complex(*jnp.broadcast_arrays(re, im))


@TABLE.call("polar")
def polar(r: Any, theta: Any) -> Any:
    return make_complex(r * jnp.cos(theta), r * jnp.sin(theta))


@TABLE.call("view_as_complex")
def view_as_complex(x: Any) -> Any:
    return lax.complex(x[..., 0], x[..., 1])
