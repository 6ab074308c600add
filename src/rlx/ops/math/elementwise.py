"""Elementwise arithmetic; operands broadcast as in NumPy.

Nothing is undefined: integer division by zero gives 0, the least integer divided by -1 wraps,
and a float becomes an integer by truncation that saturates, with NaN as 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.error_function import erf as erf_of
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.cost import OpClass, conversion
from rlx.ops.op import Array, Kind, Op, op

PRIMITIVE = "a primitive: every target has it"
APPROXIMATED = "a primitive: each target approximates it"
UNARY = "f[*s] -> f[*s]"


def elementwise(signature: str, **facts: Any) -> Any:
    """Declare an elementwise op."""
    return op(signature, kind=Kind.ELEMENTWISE, **facts)


primitive = functools.partial(elementwise, why_no_lowering=PRIMITIVE)


def _function(
    function: Callable[..., Any], name: str, doc: str, signature: str = UNARY, **facts: Any
) -> Op:
    """Declare an op of one operand that NumPy has as a function."""

    def reference(x: Array) -> Array:
        return function(x)

    reference.__name__, reference.__doc__ = name, doc
    return elementwise(signature, **facts)(reference)


_primitive = functools.partial(_function, why_no_lowering=PRIMITIVE)


def _is_whole(x: Any) -> bool:
    return DType.of(x.dtype).is_integer


def _is_unsigned(x: Any) -> bool:
    return _is_whole(x) and not DType.of(x.dtype).is_signed


# -- arithmetic -----------------------------------------------------------------------------------


@primitive("t[~s], t[~s] -> t[~s]", is_commutative=True)
def add(x: Array, y: Array) -> Array:
    """x + y; integers wrap."""
    return np.add(x, y)


@primitive("t[~s], t[~s] -> t[~s]", aliases=("subtract",))
def sub(x: Array, y: Array) -> Array:
    """x - y; integers wrap."""
    return np.subtract(x, y)


@primitive("t[~s], t[~s] -> t[~s]", aliases=("multiply",), is_commutative=True)
def mul(x: Array, y: Array) -> Array:
    """x · y; integers wrap."""
    return np.multiply(x, y)


@primitive("t[~s], t[~s] -> t[~s]", aliases=("divide",), cost=OpClass.DIVISION)
def div(x: Array, y: Array) -> Array:
    """x / y. Integers truncate toward zero, and by zero give 0; the operator `/` makes them f32
    first."""
    if not _is_whole(x):
        return np.divide(x, y)
    return np.floor_divide(x - np.fmod(x, y), y)


@primitive("n[~s], n[~s] -> n[~s]", aliases=("fmod",), cost=OpClass.REMAINDER, jumps=True)
def rem(x: Array, y: Array) -> Array:
    """What truncating division leaves; the sign is that of x. Integers by zero give 0."""
    return np.fmod(x, y)


@elementwise("n[~s], n[~s] -> n[~s]", aliases=("remainder",), flops="3*out", jumps=True)
def mod(x: Array, y: Array) -> Array:
    """What flooring division leaves; the sign is that of y. Integers by zero give 0."""
    return np.remainder(x, y)


@mod.lowering
def _(x: Any, y: Any) -> Any:
    left = ops.rem(x, y)
    if _is_unsigned(x):
        return left
    moved = ops.where(_signs_differ(left, y), ops.add(left, y), left)
    if _is_whole(x):
        return moved
    zero = ops.where(ops.less(y, 0.0), -0.0, ops.mul(left, left))
    return ops.where(ops.equal(left, 0.0), zero, moved)


def _signs_differ(left: Any, y: Any) -> Any:
    """Does a remainder that is not 0 have another sign than the divisor?"""
    differ = ops.logical_xor(ops.less(left, 0), ops.less(y, 0))
    return ops.logical_and(differ, ops.not_equal(left, 0))


@elementwise("n[~s], n[~s] -> n[~s]", aliases=("floor_divide",), flops="4*out", jumps=True)
def floor_div(x: Array, y: Array) -> Array:
    """⌊x / y⌋. Integers by zero give 0, floats x / 0."""
    return np.floor_divide(x, y)


@floor_div.lowering
def _(x: Any, y: Any) -> Any:
    if _is_unsigned(x):
        return ops.div(x, y)
    left = ops.rem(x, y)
    if _is_whole(x):
        quotient = ops.div(x, y)
        return ops.where(_signs_differ(left, y), ops.sub(quotient, 1), quotient)
    quotient = ops.div(ops.sub(x, left), y)
    quotient = ops.where(_signs_differ(left, y), ops.sub(quotient, 1.0), quotient)
    floored = ops.floor(quotient)
    is_short = ops.greater(ops.sub(quotient, floored), 0.5)
    near = ops.where(is_short, ops.add(floored, 1.0), floored)
    plain = ops.div(x, y)
    zero = ops.mul(plain, 0.0)
    whole = ops.where(ops.equal(quotient, 0.0), zero, near)
    return ops.where(ops.equal(y, 0.0), plain, whole)


@primitive("n[~s], n[~s] -> n[~s]", aliases=("power",), cost=OpClass.POWER, jumps=True)
def pow(x: Array, y: Array) -> Array:
    """x to the power y. Integers wrap; a negative power of one is 1, of -1 is ±1, else 0."""
    if not _is_whole(x):
        return _float_power(x, y)
    is_odd = np.bitwise_and(y, 1) != 0
    inverse = np.where(np.abs(x) == 1, np.where(is_odd, x, 1), 0).astype(x.dtype)
    return np.where(y < 0, inverse, np.power(x, np.maximum(y, 0)))


def _float_power(x: Array, y: Array) -> Array:
    """NumPy takes the root for a single exponent of ½, which is not the power at -0 and -inf: with
    an exponent for each element, it does not look."""
    dims = np.broadcast_shapes(np.shape(x), np.shape(y))
    return np.power(x, np.array(np.broadcast_to(y, dims or (1,)))).reshape(dims)


@primitive("n[~s], n[~s] -> n[~s]", is_commutative=True)
def maximum(x: Array, y: Array) -> Array:
    """The greater; NaN if one is NaN."""
    return np.maximum(x, y)


@primitive("n[~s], n[~s] -> n[~s]", is_commutative=True)
def minimum(x: Array, y: Array) -> Array:
    """The lesser; NaN if one is NaN."""
    return np.minimum(x, y)


@elementwise("n[~s], n[~s], n[~s] -> n[~s]", flops="2*out")
def fma(x: Array, y: Array, z: Array) -> Array:
    """x · y + z, rounded after each step."""
    return x * y + z


@fma.lowering
def _(x: Any, y: Any, z: Any) -> Any:
    return ops.add(ops.mul(x, y), z)


neg = _primitive(
    np.negative, "neg", "-x; integers wrap.", "t[*s] -> t[*s]", aliases=("negative",), is_exact=True
)
abs_ = _primitive(
    np.abs, "abs", "The magnitude of x; the least integer stays.", "t[*s] -> t.real[*s]",
    aliases=("absolute",),
)  # fmt: skip
sign = _function(
    np.sign, "sign", "-1, 0 or 1; NaN stays.", "n[*s] -> n[*s]", flops="2*out", jumps=True
)
square = _function(np.square, "square", "x · x.", "t[*s] -> t[*s]", cost=OpClass.ARITHMETIC)


@sign.lowering
def _(x: Any) -> Any:
    """x · x is 0 of either zero and NaN of NaN."""
    one = ops.cast(1, to=x.dtype)
    rest = ops.mul(x, x)
    if not _is_unsigned(x):
        rest = ops.where(ops.less(x, 0), ops.neg(one), rest)
    return ops.where(ops.greater(x, 0), one, rest)


@square.lowering
def _(x: Any) -> Any:
    return ops.mul(x, x)


@elementwise("x[*s] -> x[*s]")
def reciprocal(x: Array) -> Array:
    """1 / x."""
    return np.divide(np.ones((), x.dtype), x)


@reciprocal.lowering
def _(x: Any) -> Any:
    return ops.div(1, x)


def _clamped(x: Shape, *, min: float | None, max: float | None) -> Shape:  # noqa: A002
    for bound in (min, max):
        if bound is not None and (math.isnan(bound) or (_is_whole(x) and bound % 1)):
            raise GraphError(f"the bound {bound} is no {x.dtype}. Cast x first, or change it")
    return x


@elementwise("n[*s] -> n[*s]", shape=_clamped, aliases=("clip",), flops="2*out")
def clamp(x: Array, *, min: float | None = None, max: float | None = None) -> Array:  # noqa: A002
    """x, but at least `min` and at most `max`; where they cross, `max`. NaN stays."""
    low, high = _bound(x, min), _bound(x, max)
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


@clamp.lowering
def _(x: Any, *, min: float | None, max: float | None) -> Any:  # noqa: A002
    low, high = _bound(x, min), _bound(x, max)
    x = x if low is None else ops.maximum(x, low)
    return x if high is None else ops.minimum(x, high)


@clamp.sample
def _(draw: Any) -> Any:
    from rlx.ops.draw import Spec

    low, high = (float(draw.integer(-3, 3)) if draw.coin(0.8) else None for _ in range(2))
    return [Spec(draw.dims(), draw.dtype("n"))], {"min": low, "max": high}


def _bound(x: Any, bound: float | None) -> Array | None:
    """`bound` in the dtype of x; past an integer's range its end, which bounds nothing more."""
    if bound is None:
        return None
    to = DType.of(x.dtype)
    if not to.is_integer:
        return np.asarray(bound, to.numpy)
    return _saturated(np.asarray(bound), to)


# -- functions ------------------------------------------------------------------------------------

sqrt = _primitive(np.sqrt, "sqrt", "√x; NaN below 0.", cost=OpClass.DIVISION)
exp = _primitive(np.exp, "exp", "eˣ.", cost=OpClass.EXPONENTIAL)
exp2 = _function(np.exp2, "exp2", "2ˣ.")
expm1 = _function(
    np.expm1, "expm1", "eˣ - 1, accurate near 0.", flops="4*out", cost=OpClass.LOGARITHM
)
log = _primitive(np.log, "log", "The natural logarithm of x.", cost=OpClass.LOGARITHM)
log1p = _function(np.log1p, "log1p", "log(1 + x), accurate near 0.", flops="5*out")
log2 = _function(np.log2, "log2", "The logarithm of x to base 2.", flops="2*out")
log10 = _function(np.log10, "log10", "The logarithm of x to base 10.", flops="2*out")
sin = _primitive(np.sin, "sin", "The sine of x.", cost=OpClass.TRIGONOMETRIC)
cos = _primitive(np.cos, "cos", "The cosine of x.", cost=OpClass.TRIGONOMETRIC)
tan = _function(np.tan, "tan", "The tangent of x.", flops="3*out")
_inverse = functools.partial(_function, flops="5*out")
asin = _inverse(np.arcsin, "asin", "The angle whose sine is x.", aliases=("arcsin",))
acos = _inverse(np.arccos, "acos", "The angle whose cosine is x.", aliases=("arccos",))
atan = _function(np.arctan, "atan", "The angle whose tangent is x.", aliases=("arctan",))
sinh = _function(np.sinh, "sinh", "(eˣ - e⁻ˣ) / 2.", flops="8*out")
cosh = _function(np.cosh, "cosh", "(eˣ + e⁻ˣ) / 2.", flops="7*out")
asinh = _function(
    np.arcsinh, "asinh", "The number whose sinh is x.", aliases=("arcsinh",), flops="10*out"
)
acosh = _function(
    np.arccosh, "acosh", "The number whose cosh is x.", aliases=("arccosh",), flops="9*out"
)
atanh = _function(
    np.arctanh, "atanh", "The number whose tanh is x.", aliases=("arctanh",), flops="6*out"
)
_rounding = functools.partial(_function, cost=OpClass.ARITHMETIC, jumps=True)
floor = _rounding(np.floor, "floor", "The whole number at or below x.", why_no_lowering=PRIMITIVE)
ceil = _rounding(np.ceil, "ceil", "The whole number at or above x.", flops="3*out")
trunc = _rounding(np.trunc, "trunc", "x without its fraction.", flops="3*out")
round_ = _rounding(
    np.rint, "round", "The nearest whole number; ties go to the even one.",
    aliases=("rint",), why_no_lowering=PRIMITIVE,
)  # fmt: skip


@elementwise(UNARY, flops="2*out")
def rsqrt(x: Array) -> Array:
    """1 / √x."""
    return np.divide(np.ones((), x.dtype), np.sqrt(x))


@primitive("f[~s], f[~s] -> f[~s]", aliases=("arctan2",), cost=OpClass.ARCTANGENT, jumps=True)
def atan2(y: Array, x: Array) -> Array:
    """The angle of the point (x, y), from -π to π."""
    return np.arctan2(y, x)


@rsqrt.lowering
def _(x: Any) -> Any:
    return ops.div(1.0, ops.sqrt(x))


@exp2.lowering
def _(x: Any) -> Any:
    return ops.pow(2.0, x)


@expm1.lowering
def _(x: Any) -> Any:
    """Kahan: with u = eˣ rounded, (u - 1) · x / log u loses nothing near 0."""
    u = ops.exp(x)
    less_one = ops.sub(u, 1.0)
    near = ops.div(ops.mul(less_one, x), ops.log(u))
    far = ops.greater(ops.abs(x), 1.0)
    return ops.where(far, less_one, ops.where(ops.equal(u, 1.0), x, near))


@log1p.lowering
def _(x: Any) -> Any:
    """Kahan: with u = 1 + x rounded, log u · x / (u - 1) loses nothing near 0."""
    u = ops.add(x, 1.0)
    near = ops.mul(ops.log(u), ops.div(x, ops.sub(u, 1.0)))
    far = ops.greater(x, 1.0)
    return ops.where(far, ops.log(u), ops.where(ops.equal(u, 1.0), x, near))


@log2.lowering
def _(x: Any) -> Any:
    return ops.mul(ops.log(x), 1.0 / math.log(2.0))


@log10.lowering
def _(x: Any) -> Any:
    return ops.mul(ops.log(x), 1.0 / math.log(10.0))


@tan.lowering
def _(x: Any) -> Any:
    return ops.div(ops.sin(x), ops.cos(x))


def _other_leg(x: Any) -> Any:
    """√(1 - x²), accurate where x is near ±1."""
    return ops.sqrt(ops.mul(ops.sub(1.0, x), ops.add(1.0, x)))


@asin.lowering
def _(x: Any) -> Any:
    return ops.atan2(x, _other_leg(x))


@acos.lowering
def _(x: Any) -> Any:
    return ops.atan2(_other_leg(x), x)


@atan.lowering
def _(x: Any) -> Any:
    return ops.atan2(x, 1.0)


def odd(x: Any, positive: Any) -> Any:
    """The odd function whose value at |x| is `positive`; zeros and NaN stay what they are."""
    negative = ops.where(ops.less(x, 0.0), ops.neg(positive), x)
    return ops.where(ops.greater(x, 0.0), positive, negative)


@sinh.lowering
def _(x: Any) -> Any:
    a = ops.abs(x)
    e = ops.expm1(a)
    near = ops.mul(ops.add(e, ops.div(e, ops.add(e, 1.0))), 0.5)
    return odd(x, ops.where(ops.less(a, 1.0), near, ops.sub(*_half_exponentials(a))))


@cosh.lowering
def _(x: Any) -> Any:
    return ops.add(*_half_exponentials(ops.abs(x)))


def _half_exponentials(a: Any) -> tuple[Any, Any]:
    """e^a / 2 and e^-a / 2 through e^(a/2), as e^a would overflow before its half does."""
    h = ops.exp(ops.mul(a, 0.5))
    return ops.mul(ops.mul(h, 0.5), h), ops.div(ops.div(0.5, h), h)


_LARGE = 1e8  # log 2x is asinh x and acosh x to the last bit of f64, and x² fits f32


@asinh.lowering
def _(x: Any) -> Any:
    a = ops.abs(x)
    a2 = ops.mul(a, a)
    root = ops.sqrt(ops.add(a2, 1.0))
    near = ops.log1p(ops.add(a, ops.div(a2, ops.add(root, 1.0))))
    return odd(x, ops.where(ops.greater(a, _LARGE), _log_of_twice(a), near))


@acosh.lowering
def _(x: Any) -> Any:
    t = ops.sub(x, 1.0)
    near = ops.log1p(ops.add(t, ops.mul(ops.sqrt(t), ops.sqrt(ops.add(t, 2.0)))))
    return ops.where(ops.greater(x, _LARGE), _log_of_twice(x), near)


def _log_of_twice(x: Any) -> Any:
    return ops.add(ops.log(x), math.log(2.0))


@atanh.lowering
def _(x: Any) -> Any:
    a = ops.abs(x)
    return odd(x, ops.mul(ops.log1p(ops.div(ops.mul(a, 2.0), ops.sub(1.0, a))), 0.5))


@ceil.lowering
def _(x: Any) -> Any:
    return ops.neg(ops.floor(ops.neg(x)))


@trunc.lowering
def _(x: Any) -> Any:
    return ops.where(ops.less(x, 0.0), ops.ceil(x), ops.floor(x))


@elementwise(UNARY, flops="20*out", cost=OpClass.ERROR_FUNCTION, why_no_lowering=APPROXIMATED)
def erf(x: Array) -> Array:
    """2/√π · ∫₀ˣ e^(-t²) dt."""
    return erf_of(x)


# -- dtypes and complex numbers -------------------------------------------------------------------


@primitive("a[*s] -> $to[*s]", aliases=("astype",), cost=conversion, is_exact=True)
def cast(x: Array, *, to: DType) -> Array:
    """x as another dtype. Floats become integers by truncation that saturates, NaN becomes 0;
    integers wrap; a complex number keeps its real part; bool is "not zero". Floats round to
    the nearest, to bf16 by way of f32."""
    given = DType.of(x.dtype)
    if given.is_complex and not to.is_complex and to is not DType.BOOL:
        x, given = np.real(x), given.real
    if to is DType.BOOL:
        return x != 0
    if given.is_float and to.is_integer:
        return _saturated(x.astype(np.float64), to)
    return x.astype(to.numpy)


def _saturated(x: Array, to: DType) -> Array:
    """Truncate toward zero; past the range the nearest end. 2^63 is exact in f64, 2^63 - 1 not."""
    info = np.iinfo(to.numpy)
    whole = np.trunc(np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf))
    inside = (whole > float(info.min) - 1.0) & (whole < float(info.max) + 1.0)
    kept = np.where(inside, whole, 0.0).astype(to.numpy)
    ends = np.array([info.min, info.max], to.numpy)
    high = ends[(whole > 0).astype(np.intp)]
    return np.where(inside & (whole < 2.0**info.bits), kept, high)


@primitive("f[~s], f[~s] -> f.complex[~s]", flops="0")
def make_complex(re: Array, im: Array) -> Array:
    """The complex number with these parts."""
    re, im = np.broadcast_arrays(re, im)
    made = np.empty(re.shape, DType.of(re.dtype).complex.numpy)
    made.real, made.imag = re, im
    return made


real = _primitive(np.real, "real", "The real part.", "c[*s] -> c.real[*s]", flops="0")
imag = _primitive(np.imag, "imag", "The imaginary part.", "c[*s] -> c.real[*s]", flops="0")
conj = _function(
    np.conjugate, "conj", "x with its imaginary part negated.", "c[*s] -> c[*s]",
    aliases=("conjugate",),
)  # fmt: skip


@conj.lowering
def _(x: Any) -> Any:
    return ops.make_complex(ops.real(x), ops.neg(ops.imag(x)))
