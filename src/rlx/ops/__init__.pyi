"""Every op as a function. Written from the tables by `make docs`; do not edit."""

# pyright: reportOverlappingOverload=false, reportUnusedImport=false
# mypy: disable-error-code="overload-overlap"

from collections.abc import Sequence
from typing import Any, Literal, overload

from rlx.core.dim import Dim
from rlx.ir.mir import Graph, Node
from rlx.ir.operand_types import Array, DTypeLike, Operand, Symbol, Value

@overload
def item(*results: Value | Sequence[Value], index: int) -> Array:
    """One result of a node that has several."""
@overload
def item(*results: Operand | Sequence[Operand], index: int) -> Node: ...
@overload
def item(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def add(x: Value, y: Value, /) -> Array:
    """x + y; integers wrap."""
@overload
def add(x: Operand, y: Operand, /) -> Node: ...
@overload
def add(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def sub(x: Value, y: Value, /) -> Array:
    """x - y; integers wrap."""
@overload
def sub(x: Operand, y: Operand, /) -> Node: ...
@overload
def sub(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
subtract = sub
@overload
def mul(x: Value, y: Value, /) -> Array:
    """x · y; integers wrap."""
@overload
def mul(x: Operand, y: Operand, /) -> Node: ...
@overload
def mul(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
multiply = mul
@overload
def div(x: Value, y: Value, /) -> Array:
    """x / y. Integers truncate toward zero, and by zero give 0; the operator `/` makes them f32
    first.
    """
@overload
def div(x: Operand, y: Operand, /) -> Node: ...
@overload
def div(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
divide = div
@overload
def rem(x: Value, y: Value, /) -> Array:
    """What truncating division leaves; the sign is that of x. Integers by zero give 0."""
@overload
def rem(x: Operand, y: Operand, /) -> Node: ...
@overload
def rem(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
fmod = rem
@overload
def mod(x: Value, y: Value, /) -> Array:
    """What flooring division leaves; the sign is that of y. Integers by zero give 0."""
@overload
def mod(x: Operand, y: Operand, /) -> Node: ...
@overload
def mod(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
remainder = mod
@overload
def floor_div(x: Value, y: Value, /) -> Array:
    """⌊x / y⌋. Integers by zero give 0, floats x / 0."""
@overload
def floor_div(x: Operand, y: Operand, /) -> Node: ...
@overload
def floor_div(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
floor_divide = floor_div
@overload
def pow(x: Value, y: Value, /) -> Array:
    """x to the power y. Integers wrap; a negative power of one is 1, of -1 is ±1, else 0."""
@overload
def pow(x: Operand, y: Operand, /) -> Node: ...
@overload
def pow(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
power = pow
@overload
def maximum(x: Value, y: Value, /) -> Array:
    """The greater; NaN if one is NaN."""
@overload
def maximum(x: Operand, y: Operand, /) -> Node: ...
@overload
def maximum(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def minimum(x: Value, y: Value, /) -> Array:
    """The lesser; NaN if one is NaN."""
@overload
def minimum(x: Operand, y: Operand, /) -> Node: ...
@overload
def minimum(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def fma(x: Value, y: Value, z: Value, /) -> Array:
    """x · y + z, rounded after each step."""
@overload
def fma(x: Operand, y: Operand, z: Operand, /) -> Node: ...
@overload
def fma(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def neg(x: Value, /) -> Array:
    """-x; integers wrap."""
@overload
def neg(x: Operand, /) -> Node: ...
@overload
def neg(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
negative = neg
@overload
def abs(x: Value, /) -> Array:
    """The magnitude of x; the least integer stays."""
@overload
def abs(x: Operand, /) -> Node: ...
@overload
def abs(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
absolute = abs
@overload
def sign(x: Value, /) -> Array:
    """-1, 0 or 1; NaN stays."""
@overload
def sign(x: Operand, /) -> Node: ...
@overload
def sign(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def square(x: Value, /) -> Array:
    """x · x."""
@overload
def square(x: Operand, /) -> Node: ...
@overload
def square(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def reciprocal(x: Value, /) -> Array:
    """1 / x."""
@overload
def reciprocal(x: Operand, /) -> Node: ...
@overload
def reciprocal(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def clamp(x: Value, /, min: float | None = None, max: float | None = None) -> Array:
    """x, but at least `min` and at most `max`; where they cross, `max`. NaN stays."""
@overload
def clamp(x: Operand, /, min: float | None = None, max: float | None = None) -> Node: ...
@overload
def clamp(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
clip = clamp
@overload
def sqrt(x: Value, /) -> Array:
    """√x; NaN below 0."""
@overload
def sqrt(x: Operand, /) -> Node: ...
@overload
def sqrt(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def exp(x: Value, /) -> Array:
    """eˣ."""
@overload
def exp(x: Operand, /) -> Node: ...
@overload
def exp(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def exp2(x: Value, /) -> Array:
    """2ˣ."""
@overload
def exp2(x: Operand, /) -> Node: ...
@overload
def exp2(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def expm1(x: Value, /) -> Array:
    """eˣ - 1, accurate near 0."""
@overload
def expm1(x: Operand, /) -> Node: ...
@overload
def expm1(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def log(x: Value, /) -> Array:
    """The natural logarithm of x."""
@overload
def log(x: Operand, /) -> Node: ...
@overload
def log(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def log1p(x: Value, /) -> Array:
    """log(1 + x), accurate near 0."""
@overload
def log1p(x: Operand, /) -> Node: ...
@overload
def log1p(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def log2(x: Value, /) -> Array:
    """The logarithm of x to base 2."""
@overload
def log2(x: Operand, /) -> Node: ...
@overload
def log2(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def log10(x: Value, /) -> Array:
    """The logarithm of x to base 10."""
@overload
def log10(x: Operand, /) -> Node: ...
@overload
def log10(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def sin(x: Value, /) -> Array:
    """The sine of x."""
@overload
def sin(x: Operand, /) -> Node: ...
@overload
def sin(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def cos(x: Value, /) -> Array:
    """The cosine of x."""
@overload
def cos(x: Operand, /) -> Node: ...
@overload
def cos(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def tan(x: Value, /) -> Array:
    """The tangent of x."""
@overload
def tan(x: Operand, /) -> Node: ...
@overload
def tan(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def asin(x: Value, /) -> Array:
    """The angle whose sine is x."""
@overload
def asin(x: Operand, /) -> Node: ...
@overload
def asin(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
arcsin = asin
@overload
def acos(x: Value, /) -> Array:
    """The angle whose cosine is x."""
@overload
def acos(x: Operand, /) -> Node: ...
@overload
def acos(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
arccos = acos
@overload
def atan(x: Value, /) -> Array:
    """The angle whose tangent is x."""
@overload
def atan(x: Operand, /) -> Node: ...
@overload
def atan(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
arctan = atan
@overload
def sinh(x: Value, /) -> Array:
    """(eˣ - e⁻ˣ) / 2."""
@overload
def sinh(x: Operand, /) -> Node: ...
@overload
def sinh(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def cosh(x: Value, /) -> Array:
    """(eˣ + e⁻ˣ) / 2."""
@overload
def cosh(x: Operand, /) -> Node: ...
@overload
def cosh(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def asinh(x: Value, /) -> Array:
    """The number whose sinh is x."""
@overload
def asinh(x: Operand, /) -> Node: ...
@overload
def asinh(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
arcsinh = asinh
@overload
def acosh(x: Value, /) -> Array:
    """The number whose cosh is x."""
@overload
def acosh(x: Operand, /) -> Node: ...
@overload
def acosh(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
arccosh = acosh
@overload
def atanh(x: Value, /) -> Array:
    """The number whose tanh is x."""
@overload
def atanh(x: Operand, /) -> Node: ...
@overload
def atanh(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
arctanh = atanh
@overload
def floor(x: Value, /) -> Array:
    """The whole number at or below x."""
@overload
def floor(x: Operand, /) -> Node: ...
@overload
def floor(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def ceil(x: Value, /) -> Array:
    """The whole number at or above x."""
@overload
def ceil(x: Operand, /) -> Node: ...
@overload
def ceil(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def trunc(x: Value, /) -> Array:
    """x without its fraction."""
@overload
def trunc(x: Operand, /) -> Node: ...
@overload
def trunc(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def round(x: Value, /) -> Array:
    """The nearest whole number; ties go to the even one."""
@overload
def round(x: Operand, /) -> Node: ...
@overload
def round(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
rint = round
@overload
def rsqrt(x: Value, /) -> Array:
    """1 / √x."""
@overload
def rsqrt(x: Operand, /) -> Node: ...
@overload
def rsqrt(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def atan2(y: Value, x: Value, /) -> Array:
    """The angle of the point (x, y), from -π to π."""
@overload
def atan2(y: Operand, x: Operand, /) -> Node: ...
@overload
def atan2(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
arctan2 = atan2
@overload
def erf(x: Value, /) -> Array:
    """2/√π · ∫₀ˣ e^(-t²) dt."""
@overload
def erf(x: Operand, /) -> Node: ...
@overload
def erf(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def cast(x: Value, /, to: DTypeLike) -> Array:
    """x as another dtype. Floats become integers by truncation that saturates, NaN becomes 0;
    integers wrap; a complex number keeps its real part; bool is "not zero". Floats round to
    the nearest, to bf16 by way of f32.
    """
@overload
def cast(x: Operand, /, to: DTypeLike) -> Node: ...
@overload
def cast(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
astype = cast
@overload
def make_complex(re: Value, im: Value, /) -> Array:
    """The complex number with these parts."""
@overload
def make_complex(re: Operand, im: Operand, /) -> Node: ...
@overload
def make_complex(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def real(x: Value, /) -> Array:
    """The real part."""
@overload
def real(x: Operand, /) -> Node: ...
@overload
def real(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def imag(x: Value, /) -> Array:
    """The imaginary part."""
@overload
def imag(x: Operand, /) -> Node: ...
@overload
def imag(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def conj(x: Value, /) -> Array:
    """x with its imaginary part negated."""
@overload
def conj(x: Operand, /) -> Node: ...
@overload
def conj(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
conjugate = conj
@overload
def equal(x: Value, y: Value, /) -> Array:
    """x = y. NaN equals nothing; the two zeros are equal."""
@overload
def equal(x: Operand, y: Operand, /) -> Node: ...
@overload
def equal(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def not_equal(x: Value, y: Value, /) -> Array:
    """x ≠ y."""
@overload
def not_equal(x: Operand, y: Operand, /) -> Node: ...
@overload
def not_equal(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def less(x: Value, y: Value, /) -> Array:
    """x < y; false with NaN."""
@overload
def less(x: Operand, y: Operand, /) -> Node: ...
@overload
def less(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def less_equal(x: Value, y: Value, /) -> Array:
    """x ≤ y; false with NaN."""
@overload
def less_equal(x: Operand, y: Operand, /) -> Node: ...
@overload
def less_equal(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def greater(x: Value, y: Value, /) -> Array:
    """x > y; false with NaN."""
@overload
def greater(x: Operand, y: Operand, /) -> Node: ...
@overload
def greater(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def greater_equal(x: Value, y: Value, /) -> Array:
    """x ≥ y; false with NaN."""
@overload
def greater_equal(x: Operand, y: Operand, /) -> Node: ...
@overload
def greater_equal(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def logical_and(x: Value, y: Value, /) -> Array:
    """Both."""
@overload
def logical_and(x: Operand, y: Operand, /) -> Node: ...
@overload
def logical_and(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def logical_or(x: Value, y: Value, /) -> Array:
    """One or both."""
@overload
def logical_or(x: Operand, y: Operand, /) -> Node: ...
@overload
def logical_or(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def logical_xor(x: Value, y: Value, /) -> Array:
    """One, but not both."""
@overload
def logical_xor(x: Operand, y: Operand, /) -> Node: ...
@overload
def logical_xor(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def logical_not(x: Value, /) -> Array:
    """Not x."""
@overload
def logical_not(x: Operand, /) -> Node: ...
@overload
def logical_not(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def where(cond: Value, x: Value, y: Value, /) -> Array:
    """x where `cond` holds, else y."""
@overload
def where(cond: Operand, x: Operand, y: Operand, /) -> Node: ...
@overload
def where(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def is_nan(x: Value, /) -> Array:
    """Is x not a number?"""
@overload
def is_nan(x: Operand, /) -> Node: ...
@overload
def is_nan(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
isnan = is_nan
@overload
def is_inf(x: Value, /) -> Array:
    """Is x, or a part of it, infinite?"""
@overload
def is_inf(x: Operand, /) -> Node: ...
@overload
def is_inf(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
isinf = is_inf
@overload
def is_finite(x: Value, /) -> Array:
    """Is x neither infinite nor NaN?"""
@overload
def is_finite(x: Operand, /) -> Node: ...
@overload
def is_finite(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
isfinite = is_finite
@overload
def bit_and(x: Value, y: Value, /) -> Array:
    """The bits set in both."""
@overload
def bit_and(x: Operand, y: Operand, /) -> Node: ...
@overload
def bit_and(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
bitwise_and = bit_and
@overload
def bit_or(x: Value, y: Value, /) -> Array:
    """The bits set in one or both."""
@overload
def bit_or(x: Operand, y: Operand, /) -> Node: ...
@overload
def bit_or(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
bitwise_or = bit_or
@overload
def bit_xor(x: Value, y: Value, /) -> Array:
    """The bits set in one, but not both."""
@overload
def bit_xor(x: Operand, y: Operand, /) -> Node: ...
@overload
def bit_xor(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
bitwise_xor = bit_xor
@overload
def bit_not(x: Value, /) -> Array:
    """Every bit the other way."""
@overload
def bit_not(x: Operand, /) -> Node: ...
@overload
def bit_not(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
bitwise_not = bit_not
bitwise_invert = bit_not
invert = bit_not
@overload
def shift_left(x: Value, y: Value, /) -> Array:
    """x · 2ʸ, wrapping; 0 where y is the width or more, or negative."""
@overload
def shift_left(x: Operand, y: Operand, /) -> Node: ...
@overload
def shift_left(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
left_shift = shift_left
bitwise_left_shift = shift_left
@overload
def shift_right(x: Value, y: Value, /) -> Array:
    """⌊x / 2ʸ⌋; where y is the width or more, or negative: -1 of a negative x, else 0."""
@overload
def shift_right(x: Operand, y: Operand, /) -> Node: ...
@overload
def shift_right(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
right_shift = shift_right
bitwise_right_shift = shift_right
@overload
def bitcast(x: Value, /, to: DTypeLike) -> Array:
    """The same bits read as a number of another dtype of the same width."""
@overload
def bitcast(x: Operand, /, to: DTypeLike) -> Node: ...
@overload
def bitcast(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def relu(x: Value, /) -> Array:
    """max(x, 0)."""
@overload
def relu(x: Operand, /) -> Node: ...
@overload
def relu(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def sigmoid(x: Value, /) -> Array:
    """1 / (1 + e⁻ˣ), through e^-|x|, which does not overflow."""
@overload
def sigmoid(x: Operand, /) -> Node: ...
@overload
def sigmoid(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def tanh(x: Value, /) -> Array:
    """The hyperbolic tangent."""
@overload
def tanh(x: Operand, /) -> Node: ...
@overload
def tanh(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def gelu(x: Value, /) -> Array:
    """x · Φ(x) with the normal distribution's Φ: x/2 · (1 + erf(x/√2))."""
@overload
def gelu(x: Operand, /) -> Node: ...
@overload
def gelu(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def gelu_tanh(x: Value, /) -> Array:
    """gelu by tanh: x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))."""
@overload
def gelu_tanh(x: Operand, /) -> Node: ...
@overload
def gelu_tanh(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def silu(x: Value, /) -> Array:
    """x · sigmoid(x)."""
@overload
def silu(x: Operand, /) -> Node: ...
@overload
def silu(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
swish = silu
@overload
def elu(x: Value, /, alpha: float = 1.0) -> Array:
    """x above 0, else alpha · (eˣ - 1)."""
@overload
def elu(x: Operand, /, alpha: float = 1.0) -> Node: ...
@overload
def elu(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def selu(x: Value, /) -> Array:
    """elu, scaled so that mean 0 and variance 1 stay what they are."""
@overload
def selu(x: Operand, /) -> Node: ...
@overload
def selu(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def leaky_relu(x: Value, /, alpha: float = 0.01) -> Array:
    """x from 0 on, else alpha · x."""
@overload
def leaky_relu(x: Operand, /, alpha: float = 0.01) -> Node: ...
@overload
def leaky_relu(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def softplus(x: Value, /) -> Array:
    """log(1 + eˣ), as max(x, 0) + log(1 + e^-|x|), which does not overflow."""
@overload
def softplus(x: Operand, /) -> Node: ...
@overload
def softplus(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def hard_sigmoid(
    x: Value,
    /,
    alpha: float = 0.16666666666666666,
    beta: float = 0.5,
) -> Array:
    """alpha · x + beta, between 0 and 1. ONNX's own default is alpha = 0.2."""
@overload
def hard_sigmoid(
    x: Operand,
    /,
    alpha: float = 0.16666666666666666,
    beta: float = 0.5,
) -> Node: ...
@overload
def hard_sigmoid(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def hard_swish(x: Value, /) -> Array:
    """x · hard_sigmoid(x)."""
@overload
def hard_swish(x: Operand, /) -> Node: ...
@overload
def hard_swish(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def mish(x: Value, /) -> Array:
    """x · tanh(softplus(x))."""
@overload
def mish(x: Operand, /) -> Node: ...
@overload
def mish(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def softsign(x: Value, /) -> Array:
    """x / (1 + |x|)."""
@overload
def softsign(x: Operand, /) -> Node: ...
@overload
def softsign(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def log_sigmoid(x: Value, /) -> Array:
    """log sigmoid(x), as min(x, 0) - log(1 + e^-|x|), which does not overflow."""
@overload
def log_sigmoid(x: Operand, /) -> Node: ...
@overload
def log_sigmoid(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def celu(x: Value, /, alpha: float = 1.0) -> Array:
    """x above 0, else alpha · (e^(x/alpha) - 1): elu with a slope that does not break at 0."""
@overload
def celu(x: Operand, /, alpha: float = 1.0) -> Node: ...
@overload
def celu(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def thresholded_relu(x: Value, /, alpha: float = 1.0) -> Array:
    """x above alpha, else 0."""
@overload
def thresholded_relu(x: Operand, /, alpha: float = 1.0) -> Node: ...
@overload
def thresholded_relu(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def shrink(x: Value, /, lambd: float = 0.5, bias: float = 0.0) -> Array:
    """x moved by `bias` towards 0 where it is farther than `lambd` from it, else 0. ONNX's names;
    without bias a hard shrink, with bias = lambd a soft one.
    """
@overload
def shrink(x: Operand, /, lambd: float = 0.5, bias: float = 0.0) -> Node: ...
@overload
def shrink(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def prelu(x: Value, slope: Value, /) -> Array:
    """x from 0 on, else slope · x."""
@overload
def prelu(x: Operand, slope: Operand, /) -> Node: ...
@overload
def prelu(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def erfc(x: Value, /) -> Array:
    """1 - erf x, accurate where that is small."""
@overload
def erfc(x: Operand, /) -> Node: ...
@overload
def erfc(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def erfinv(x: Value, /) -> Array:
    """The number whose erf is x: NaN outside of -1 to 1, infinite at them."""
@overload
def erfinv(x: Operand, /) -> Node: ...
@overload
def erfinv(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def lgamma(x: Value, /) -> Array:
    """log |Γ(x)|; infinite at 0, -1, -2, … and both ends."""
@overload
def lgamma(x: Operand, /) -> Node: ...
@overload
def lgamma(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
gammaln = lgamma
@overload
def digamma(x: Value, /) -> Array:
    """The slope of log Γ. NaN at -1, -2, … and -inf; at 0 infinite, with the other sign of x."""
@overload
def digamma(x: Operand, /) -> Node: ...
@overload
def digamma(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
psi = digamma
@overload
def cbrt(x: Value, /) -> Array:
    """The cube root of x, of either sign."""
@overload
def cbrt(x: Operand, /) -> Node: ...
@overload
def cbrt(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def hypot(x: Value, y: Value, /) -> Array:
    """√(x² + y²), where the squares may overflow; infinite if one is, whatever the other."""
@overload
def hypot(x: Operand, y: Operand, /) -> Node: ...
@overload
def hypot(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def logit(x: Value, /, eps: float | None = None) -> Array:
    """log(x / (1 - x)), the inverse of sigmoid; `eps` keeps x between eps and 1 - eps."""
@overload
def logit(x: Operand, /, eps: float | None = None) -> Node: ...
@overload
def logit(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def xlogy(x: Value, y: Value, /) -> Array:
    """x · log y, and 0 where x is 0, unless y is NaN: terms of an entropy."""
@overload
def xlogy(x: Operand, y: Operand, /) -> Node: ...
@overload
def xlogy(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def logaddexp(x: Value, y: Value, /) -> Array:
    """log(eˣ + eʸ), without overflow."""
@overload
def logaddexp(x: Operand, y: Operand, /) -> Node: ...
@overload
def logaddexp(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def sinc(x: Value, /) -> Array:
    """sin πx / πx, and 1 at 0."""
@overload
def sinc(x: Operand, /) -> Node: ...
@overload
def sinc(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def heaviside(x: Value, at_zero: Value, /) -> Array:
    """0 below 0, 1 above, `at_zero` at 0; NaN stays."""
@overload
def heaviside(x: Operand, at_zero: Operand, /) -> Node: ...
@overload
def heaviside(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def angle(z: Value, /) -> Array:
    """The angle of z, from -π to π."""
@overload
def angle(z: Operand, /) -> Node: ...
@overload
def angle(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def polar(r: Value, theta: Value, /) -> Array:
    """The number r e^(i theta)."""
@overload
def polar(r: Operand, theta: Operand, /) -> Node: ...
@overload
def polar(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def complex_norm_sq(z: Value, /) -> Array:
    """re² + im²: |z|² without the root."""
@overload
def complex_norm_sq(z: Operand, /) -> Node: ...
@overload
def complex_norm_sq(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def view_as_real(z: Value, /) -> Array:
    """Real and imaginary parts, interleaved along a new last axis."""
@overload
def view_as_real(z: Operand, /) -> Node: ...
@overload
def view_as_real(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def view_as_complex(x: Value, /) -> Array:
    """The complex numbers whose parts are interleaved along the last axis."""
@overload
def view_as_complex(x: Operand, /) -> Node: ...
@overload
def view_as_complex(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def bessel_j0(x: Value, /) -> Array:
    """The Bessel function of the first kind, of order 0."""
@overload
def bessel_j0(x: Operand, /) -> Node: ...
@overload
def bessel_j0(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def bessel_j1(x: Value, /) -> Array:
    """The Bessel function of the first kind, of order 1."""
@overload
def bessel_j1(x: Operand, /) -> Node: ...
@overload
def bessel_j1(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def bessel_y0(x: Value, /) -> Array:
    """The Bessel function of the second kind, of order 0: NaN below 0, -inf at 0."""
@overload
def bessel_y0(x: Operand, /) -> Node: ...
@overload
def bessel_y0(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def bessel_y1(x: Value, /) -> Array:
    """The Bessel function of the second kind, of order 1: NaN below 0, -inf at 0."""
@overload
def bessel_y1(x: Operand, /) -> Node: ...
@overload
def bessel_y1(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def spherical_bessel_j0(x: Value, /) -> Array:
    """sin x / x, and 1 at 0."""
@overload
def spherical_bessel_j0(x: Operand, /) -> Node: ...
@overload
def spherical_bessel_j0(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def i0(x: Value, /) -> Array:
    """The modified Bessel function of the first kind, of order 0: the shape of Kaiser windows."""
@overload
def i0(x: Operand, /) -> Node: ...
@overload
def i0(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def i1(x: Value, /) -> Array:
    """The modified Bessel function of the first kind, of order 1."""
@overload
def i1(x: Operand, /) -> Node: ...
@overload
def i1(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def i0e(x: Value, /) -> Array:
    """e^-|x| times i0."""
@overload
def i0e(x: Operand, /) -> Node: ...
@overload
def i0e(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def i1e(x: Value, /) -> Array:
    """e^-|x| times i1."""
@overload
def i1e(x: Operand, /) -> Node: ...
@overload
def i1e(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def k0(x: Value, /) -> Array:
    """The modified Bessel function of the second kind, of order 0: NaN below 0, inf at 0."""
@overload
def k0(x: Operand, /) -> Node: ...
@overload
def k0(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def k1(x: Value, /) -> Array:
    """The modified Bessel function of the second kind, of order 1: NaN below 0, inf at 0."""
@overload
def k1(x: Operand, /) -> Node: ...
@overload
def k1(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def k0e(x: Value, /) -> Array:
    """eˣ times k0."""
@overload
def k0e(x: Operand, /) -> Node: ...
@overload
def k0e(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def k1e(x: Value, /) -> Array:
    """eˣ times k1."""
@overload
def k1e(x: Operand, /) -> Node: ...
@overload
def k1e(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def airy_ai(x: Value, /) -> Array:
    """Airy's function Ai: it falls for x above 0 and oscillates below."""
@overload
def airy_ai(x: Operand, /) -> Node: ...
@overload
def airy_ai(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def poisson_pmf(k: Value, rate: Value, /) -> Array:
    """rateᵏ e^-rate / Γ(k + 1), of a rate above 0 and a k, whole or not, that is not below 0: the
    probability of k events where `rate` are expected.
    """
@overload
def poisson_pmf(k: Operand, rate: Operand, /) -> Node: ...
@overload
def poisson_pmf(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def erfcx(x: Value, /) -> Array:
    """e^(x²) erfc x, which neither underflows nor, for x above 0, overflows."""
@overload
def erfcx(x: Operand, /) -> Node: ...
@overload
def erfcx(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def log_ndtr(x: Value, /) -> Array:
    """The logarithm of the normal distribution function, accurate in its lower tail."""
@overload
def log_ndtr(x: Operand, /) -> Node: ...
@overload
def log_ndtr(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def ndtri(p: Value, /) -> Array:
    """The quantile of the normal distribution: the number that is undercut with probability p. NaN
    outside of 0 to 1, infinite at them.
    """
@overload
def ndtri(p: Operand, /) -> Node: ...
@overload
def ndtri(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def entr(x: Value, /) -> Array:
    """-x · log x: 0 at 0, -inf below."""
@overload
def entr(x: Operand, /) -> Node: ...
@overload
def entr(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def xlog1py(x: Value, y: Value, /) -> Array:
    """x · log(1 + y), and 0 where x is 0, unless y is NaN."""
@overload
def xlog1py(x: Operand, y: Operand, /) -> Node: ...
@overload
def xlog1py(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def zeta(s: Value, q: Value, /) -> Array:
    """Hurwitz's zeta function, Σ (q + k)⁻ˢ over k from 0 on. Infinite for s = 1 and, past that, for
    q = 0, -1, …; NaN for s below 1, and for q below 0 unless s is whole.
    """
@overload
def zeta(s: Operand, q: Operand, /) -> Node: ...
@overload
def zeta(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def polygamma(x: Value, /, n: int = 1) -> Array:
    """The n-th derivative of digamma, the 0-th itself; from the first on infinite at 0, -1, …."""
@overload
def polygamma(x: Operand, /, n: int = 1) -> Node: ...
@overload
def polygamma(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def orthogonal_polynomial(
    x: Value,
    n: Value,
    /,
    family: Literal['chebyshev_t', 'chebyshev_u', 'chebyshev_v', 'chebyshev_w', 'hermite_h', 'hermite_he', 'laguerre_l', 'legendre_p'],
    shifted: bool = False,
) -> Array:
    """The polynomial of order n, a number without its fraction, of a family at x: Chebyshev's of
    four kinds, Hermite's (h, or he, the probabilists'), Laguerre's, Legendre's. 0 where n is below
    0. With `shifted`, at 2x - 1.
    """
@overload
def orthogonal_polynomial(
    x: Operand,
    n: Operand,
    /,
    family: Literal['chebyshev_t', 'chebyshev_u', 'chebyshev_v', 'chebyshev_w', 'hermite_h', 'hermite_he', 'laguerre_l', 'legendre_p'],
    shifted: bool = False,
) -> Node: ...
@overload
def orthogonal_polynomial(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def igamma(a: Value, x: Value, /) -> Array:
    """The regularised lower incomplete gamma function P(a, x): the share of Γ(a)'s integral that is
    below x. NaN where a or x is below 0.
    """
@overload
def igamma(a: Operand, x: Operand, /) -> Node: ...
@overload
def igamma(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def igammac(a: Value, x: Value, /) -> Array:
    """The regularised upper incomplete gamma function Q(a, x) = 1 - P(a, x), accurate where that is
    small.
    """
@overload
def igammac(a: Operand, x: Operand, /) -> Node: ...
@overload
def igammac(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def gcd(x: Value, y: Value, /) -> Array:
    """The greatest number that divides both; 0 of zeros."""
@overload
def gcd(x: Operand, y: Operand, /) -> Node: ...
@overload
def gcd(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def lcm(x: Value, y: Value, /) -> Array:
    """The least positive number that both divide, wrapped; 0 if one is."""
@overload
def lcm(x: Operand, y: Operand, /) -> Node: ...
@overload
def lcm(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def nextafter(x: Value, y: Value, /) -> Array:
    """The float next to x in the direction of y; y where they are equal."""
@overload
def nextafter(x: Operand, y: Operand, /) -> Node: ...
@overload
def nextafter(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def frexp(x: Value, /) -> tuple[Array, Array]:
    """m and n with x = m · 2ⁿ and 1/2 ≤ |m| < 1; x and 0 for 0, infinities and NaN."""
@overload
def frexp(x: Operand, /) -> tuple[Node, Node]: ...
@overload
def frexp(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def reshape(
    x: Value,
    /,
    dims: int | Dim | Sequence[int | Dim],
    *more_dims: int | Dim,
) -> Array:
    """The values in row-major order, under other dims. One dim may be given as -1."""
@overload
def reshape(
    x: Operand,
    /,
    dims: int | Dim | Sequence[int | Dim],
    *more_dims: int | Dim,
) -> Node: ...
@overload
def reshape(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def transpose(
    x: Value,
    /,
    perm: int | Sequence[int] | None = None,
    *more_perm: int,
) -> Array:
    """Axis i of the result is axis perm[i] of x; without `perm`, the axes in reverse."""
@overload
def transpose(
    x: Operand,
    /,
    perm: int | Sequence[int] | None = None,
    *more_perm: int,
) -> Node: ...
@overload
def transpose(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
permute_dims = transpose
permute = transpose
@overload
def expand(
    x: Value,
    /,
    dims: int | Dim | Sequence[int | Dim],
    *more_dims: int | Dim,
) -> Array:
    """x broadcast to `dims`: dims of 1 and missing leading ones are repeated."""
@overload
def expand(
    x: Operand,
    /,
    dims: int | Dim | Sequence[int | Dim],
    *more_dims: int | Dim,
) -> Node: ...
@overload
def expand(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
broadcast_to = expand
@overload
def squeeze(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    *more_axes: int,
    axis: Sequence[int] | None = None,
) -> Array:
    """x without these axes of size 1; without `axes`, without all that are 1."""
@overload
def squeeze(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    *more_axes: int,
    axis: Sequence[int] | None = None,
) -> Node: ...
@overload
def squeeze(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def expand_dims(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    *more_axes: int,
    axis: Sequence[int] | None = None,
) -> Array:
    """x with axes of size 1 added, so that these are their places in the result."""
@overload
def expand_dims(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    *more_axes: int,
    axis: Sequence[int] | None = None,
) -> Node: ...
@overload
def expand_dims(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
unsqueeze = expand_dims
@overload
def narrow(x: Value, /, axis: int, start: int | Dim, length: int | Dim) -> Array:
    """`length` entries of an axis, from `start`."""
@overload
def narrow(x: Operand, /, axis: int, start: int | Dim, length: int | Dim) -> Node: ...
@overload
def narrow(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def slice(
    x: Value,
    /,
    starts: Sequence[int | Dim],
    stops: Sequence[int | Dim],
    steps: Sequence[int] | None = None,
) -> Array:
    """x[starts:stops:steps] on every axis, as NumPy has it: negative bounds count from the back,
    and with a negative step a stop before -size goes on to the front.
    """
@overload
def slice(
    x: Operand,
    /,
    starts: Sequence[int | Dim],
    stops: Sequence[int | Dim],
    steps: Sequence[int] | None = None,
) -> Node: ...
@overload
def slice(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def concat(*xs: Value | Sequence[Value], axis: int) -> Array:
    """The operands one after the other along an axis."""
@overload
def concat(*xs: Operand | Sequence[Operand], axis: int) -> Node: ...
@overload
def concat(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
concatenate = concat
@overload
def stack(*xs: Value | Sequence[Value], axis: int = 0) -> Array:
    """The operands one after the other along a new axis, the `axis`-th of the result."""
@overload
def stack(*xs: Operand | Sequence[Operand], axis: int = 0) -> Node: ...
@overload
def stack(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def split(x: Value, /, sizes: Sequence[int | Dim], axis: int = 0) -> tuple[Array, ...]:
    """x cut along an axis into parts of these sizes, one result each."""
@overload
def split(x: Operand, /, sizes: Sequence[int | Dim], axis: int = 0) -> tuple[Node, ...]: ...
@overload
def split(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def pad(
    x: Value,
    /,
    low: Sequence[int | Dim],
    high: Sequence[int | Dim],
    value: float = 0.0,
    mode: Literal['constant', 'edge', 'reflect', 'wrap'] = 'constant',
) -> Array:
    """x with `low` entries before and `high` after it on each axis: a value, the edge, the
    entries mirrored at the edge, or those of the other end.
    """
@overload
def pad(
    x: Operand,
    /,
    low: Sequence[int | Dim],
    high: Sequence[int | Dim],
    value: float = 0.0,
    mode: Literal['constant', 'edge', 'reflect', 'wrap'] = 'constant',
) -> Node: ...
@overload
def pad(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def tile(
    x: Value,
    /,
    repeats: int | Dim | Sequence[int | Dim],
    *more_repeats: int | Dim,
) -> Array:
    """x repeated along each axis."""
@overload
def tile(
    x: Operand,
    /,
    repeats: int | Dim | Sequence[int | Dim],
    *more_repeats: int | Dim,
) -> Node: ...
@overload
def tile(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def flip(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    *,
    axis: int | Sequence[int] | None = None,
) -> Array:
    """x with these axes backwards; without `axes`, all of them."""
@overload
def flip(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    *,
    axis: int | Sequence[int] | None = None,
) -> Node: ...
@overload
def flip(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
reverse = flip
@overload
def gather(x: Value, indices: Value, /, axis: int = 0) -> Array:
    """The entries of an axis at `indices`, whose dims take the place of the axis."""
@overload
def gather(x: Operand, indices: Operand, /, axis: int = 0) -> Node: ...
@overload
def gather(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
take = gather
@overload
def embedding(table: Value, ids: Value, /) -> Array:
    """The rows of `table` at `ids`."""
@overload
def embedding(table: Operand, ids: Operand, /) -> Node: ...
@overload
def embedding(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def take_along_axis(x: Value, indices: Value, /, axis: int = -1) -> Array:
    """For each place of `indices`, the entry of x with that index on the axis, and otherwise
    in the same place.
    """
@overload
def take_along_axis(x: Operand, indices: Operand, /, axis: int = -1) -> Node: ...
@overload
def take_along_axis(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
gather_elements = take_along_axis
@overload
def scatter_add(x: Value, indices: Value, updates: Value, /, axis: int = 0) -> Array:
    """x with `updates` added to the entries of an axis at `indices`, in their order; the
    counterpart of gather.
    """
@overload
def scatter_add(x: Operand, indices: Operand, updates: Operand, /, axis: int = 0) -> Node: ...
@overload
def scatter_add(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def one_hot(indices: Value, /, depth: int, to: DTypeLike = ...) -> Array:
    """A row of `depth` per index: 1 at the index, else 0. An index out of range gives zeros."""
@overload
def one_hot(indices: Operand, /, depth: int, to: DTypeLike = ...) -> Node: ...
@overload
def one_hot(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def scatter(
    x: Value,
    indices: Value,
    updates: Value,
    /,
    axis: int = 0,
    reduction: Literal['none', 'add', 'mul', 'max', 'min'] = 'none',
) -> Array:
    """x with `updates` put into the entries of an axis at `indices`, or combined with them; the
    counterpart of gather.
    """
@overload
def scatter(
    x: Operand,
    indices: Operand,
    updates: Operand,
    /,
    axis: int = 0,
    reduction: Literal['none', 'add', 'mul', 'max', 'min'] = 'none',
) -> Node: ...
@overload
def scatter(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def scatter_elements(
    x: Value,
    indices: Value,
    updates: Value,
    /,
    axis: int = 0,
    reduction: Literal['none', 'add', 'mul', 'max', 'min'] = 'none',
) -> Array:
    """x with each update put into, or combined with, the element that has its index on the axis
    and otherwise its own place; the counterpart of take_along_axis.
    """
@overload
def scatter_elements(
    x: Operand,
    indices: Operand,
    updates: Operand,
    /,
    axis: int = 0,
    reduction: Literal['none', 'add', 'mul', 'max', 'min'] = 'none',
) -> Node: ...
@overload
def scatter_elements(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def gather_nd(x: Value, indices: Value, /, batch_dims: int = 0) -> Array:
    """For each row of `indices`, what x has at those coordinates. The first `batch_dims` axes
    belong together: each batch of indices reads its own part of x.
    """
@overload
def gather_nd(x: Operand, indices: Operand, /, batch_dims: int = 0) -> Node: ...
@overload
def gather_nd(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def scatter_nd(
    x: Value,
    indices: Value,
    updates: Value,
    /,
    reduction: Literal['none', 'add', 'mul', 'max', 'min'] = 'none',
) -> Array:
    """x with each update put into, or combined with, what is at the coordinates in its row of
    `indices`; the counterpart of gather_nd.
    """
@overload
def scatter_nd(
    x: Operand,
    indices: Operand,
    updates: Operand,
    /,
    reduction: Literal['none', 'add', 'mul', 'max', 'min'] = 'none',
) -> Node: ...
@overload
def scatter_nd(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def tensor_scatter(
    cache: Value,
    update: Value,
    starts: Value | None = None,
    /,
    *,
    axis: int = -2,
    mode: Literal['linear', 'circular'] = 'linear',
) -> Array:
    """The cache with `update` written over a run of `axis` that begins at `starts`, one place for
    each entry of axis 0, or at 0. A `circular` run goes on at the front where the axis ends, and
    its start may be anywhere; a linear one that leaves the axis is an error.
    """
@overload
def tensor_scatter(
    cache: Operand,
    update: Operand,
    starts: Operand | None = None,
    /,
    *,
    axis: int = -2,
    mode: Literal['linear', 'circular'] = 'linear',
) -> Node: ...
@overload
def tensor_scatter(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def sum(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    axis: int | Sequence[int] | None = None,
) -> Array:
    """The sum over `axes`, in the operand's dtype: integers wrap."""
@overload
def sum(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    axis: int | Sequence[int] | None = None,
) -> Node: ...
@overload
def sum(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def prod(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    axis: int | Sequence[int] | None = None,
) -> Array:
    """The product over `axes`, in the operand's dtype: integers wrap."""
@overload
def prod(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    axis: int | Sequence[int] | None = None,
) -> Node: ...
@overload
def prod(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def mean(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    axis: int | Sequence[int] | None = None,
) -> Array:
    """The sum over `axes` divided by their size; of nothing it is NaN. Floats and complex only:
    cast integers first, to the float that is meant.
    """
@overload
def mean(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    axis: int | Sequence[int] | None = None,
) -> Node: ...
@overload
def mean(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def max(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    empty_ok: bool = False,
    *,
    axis: int | Sequence[int] | None = None,
) -> Array:
    """The greatest element over `axes`; NaN wherever one is. An axis that turns out empty when
    the graph runs gives the identity: -inf, or the least integer.
    """
@overload
def max(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    empty_ok: bool = False,
    *,
    axis: int | Sequence[int] | None = None,
) -> Node: ...
@overload
def max(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def min(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    empty_ok: bool = False,
    *,
    axis: int | Sequence[int] | None = None,
) -> Array:
    """The least element over `axes`; NaN wherever one is. An axis that turns out empty when the
    graph runs gives the identity: inf, or the greatest integer.
    """
@overload
def min(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    empty_ok: bool = False,
    *,
    axis: int | Sequence[int] | None = None,
) -> Node: ...
@overload
def min(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def any(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    axis: int | Sequence[int] | None = None,
) -> Array:
    """Is an element over `axes` not zero? Of nothing: no."""
@overload
def any(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    axis: int | Sequence[int] | None = None,
) -> Node: ...
@overload
def any(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def all(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    axis: int | Sequence[int] | None = None,
) -> Array:
    """Is no element over `axes` zero? Of nothing: yes."""
@overload
def all(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    axis: int | Sequence[int] | None = None,
) -> Node: ...
@overload
def all(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def log_sum_exp(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    axis: int | Sequence[int] | None = None,
) -> Array:
    """log of the sum of exp(x) over `axes`, without overflow; of nothing, or of -inf, -inf."""
@overload
def log_sum_exp(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    axis: int | Sequence[int] | None = None,
) -> Node: ...
@overload
def log_sum_exp(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
logsumexp = log_sum_exp
@overload
def softmax(x: Value, /, axis: int = -1) -> Array:
    """exp(x - max) divided by its sum along `axis`. A row of -inf alone is NaN, as 0/0 is."""
@overload
def softmax(x: Operand, /, axis: int = -1) -> Node: ...
@overload
def softmax(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def log_softmax(x: Value, /, axis: int = -1) -> Array:
    """The logarithm of softmax, without taking it of small numbers."""
@overload
def log_softmax(x: Operand, /, axis: int = -1) -> Node: ...
@overload
def log_softmax(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def argmax(x: Value, /, keepdims: bool = False, *, axis: int | None = None) -> Array:
    """Where the greatest element along `axis` is, the first of equals; the first NaN if there is
    one. Without an axis, the index counts through all elements in order. An axis whose size
    is found while the graph runs, and is 0, gives the greatest i64, which is no index.
    """
@overload
def argmax(x: Operand, /, keepdims: bool = False, *, axis: int | None = None) -> Node: ...
@overload
def argmax(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def argmin(x: Value, /, keepdims: bool = False, *, axis: int | None = None) -> Array:
    """Where the least element along `axis` is, the first of equals; the first NaN if there is
    one. Without an axis, the index counts through all elements in order. An axis whose size
    is found while the graph runs, and is 0, gives the greatest i64, which is no index.
    """
@overload
def argmin(x: Operand, /, keepdims: bool = False, *, axis: int | None = None) -> Node: ...
@overload
def argmin(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def top_k(x: Value, /, k: int, axis: int = -1, largest: bool = True) -> tuple[Array, Array]:
    """The `k` greatest (or least) elements along `axis` in order, and where they were. Equals come
    by index; NaN counts as greater than all.
    """
@overload
def top_k(x: Operand, /, k: int, axis: int = -1, largest: bool = True) -> tuple[Node, Node]: ...
@overload
def top_k(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def cumsum(
    x: Value,
    /,
    axis: int = -1,
    exclusive: bool = False,
    reverse: bool = False,
) -> Array:
    """The cumulative sum along `axis`; `exclusive` leaves each element out of its own sum,
    `reverse` runs from the end. Integers wrap. Sums of f32 are carried in f64, those of f64 with
    what their roundings lose: an error does not grow with the length.
    """
@overload
def cumsum(
    x: Operand,
    /,
    axis: int = -1,
    exclusive: bool = False,
    reverse: bool = False,
) -> Node: ...
@overload
def cumsum(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
def iota(dims: Sequence[int | Dim], axis: int, dtype: DTypeLike = ...) -> Array:
    """Each element's position along `axis`, counted from 0."""
def extent(dim: int | Dim, dtype: DTypeLike = ...) -> Array:
    """The size `dim` as a value: what a formula over named dims comes to in this run."""
@overload
def argsort(x: Value, /, axis: int = -1, descending: bool = False) -> Array:
    """Where the elements along `axis` are, from the least to the greatest or the other way round;
    always stable. NaN counts as greater than all.
    """
@overload
def argsort(x: Operand, /, axis: int = -1, descending: bool = False) -> Node: ...
@overload
def argsort(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def sort(x: Value, /, axis: int = -1, descending: bool = False) -> Array:
    """The elements along `axis` from the least to the greatest, or the other way round; always
    stable. NaN counts as greater than all.
    """
@overload
def sort(x: Operand, /, axis: int = -1, descending: bool = False) -> Node: ...
@overload
def sort(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def searchsorted(
    edges: Value,
    values: Value,
    /,
    side: Literal['left', 'right'] = 'left',
) -> Array:
    """How many edges are less than each value (`left`), or not greater (`right`): where it would
    stand among them in order. Edges need not be sorted; NaN counts as greater than all.
    """
@overload
def searchsorted(
    edges: Operand,
    values: Operand,
    /,
    side: Literal['left', 'right'] = 'left',
) -> Node: ...
@overload
def searchsorted(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def cumprod(
    x: Value,
    /,
    axis: int = -1,
    exclusive: bool = False,
    reverse: bool = False,
) -> Array:
    """The cumulative product along `axis`; `exclusive` leaves each element out of its own product,
    `reverse` runs from the end. Integers wrap; products of f32 are carried in f64.
    """
@overload
def cumprod(
    x: Operand,
    /,
    axis: int = -1,
    exclusive: bool = False,
    reverse: bool = False,
) -> Node: ...
@overload
def cumprod(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def cummax(x: Value, /, axis: int = -1, reverse: bool = False) -> Array:
    """The greatest element so far along `axis`; from a NaN on, NaN."""
@overload
def cummax(x: Operand, /, axis: int = -1, reverse: bool = False) -> Node: ...
@overload
def cummax(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def cummin(x: Value, /, axis: int = -1, reverse: bool = False) -> Array:
    """The least element so far along `axis`; from a NaN on, NaN."""
@overload
def cummin(x: Operand, /, axis: int = -1, reverse: bool = False) -> Node: ...
@overload
def cummin(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def cum_log_sum_exp(x: Value, /, axis: int = -1, reverse: bool = False) -> Array:
    """log of the cumulative sum of exp(x) along `axis`, without overflow; of f32 carried in f64."""
@overload
def cum_log_sum_exp(x: Operand, /, axis: int = -1, reverse: bool = False) -> Node: ...
@overload
def cum_log_sum_exp(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def trilu(x: Value, /, k: int = 0, upper: bool = True) -> Array:
    """The upper triangle of each matrix, from the k-th diagonal on, or the lower one, up to it;
    0 elsewhere. Diagonals count from the main one upwards.
    """
@overload
def trilu(x: Operand, /, k: int = 0, upper: bool = True) -> Node: ...
@overload
def trilu(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def reverse_sequence(
    x: Value,
    lengths: Value,
    /,
    batch_axis: int = 1,
    time_axis: int = 0,
) -> Array:
    """Each sequence reversed up to its length, and as it is from there on."""
@overload
def reverse_sequence(
    x: Operand,
    lengths: Operand,
    /,
    batch_axis: int = 1,
    time_axis: int = 0,
) -> Node: ...
@overload
def reverse_sequence(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def nonzero(x: Value, /, at_most: int | Dim | None = None, *, extent: str = '') -> Array:
    """The coordinates of the elements that are not 0, in row-major order: a row per axis, a column
    per element. A scalar has no axes, so only the number of columns tells. Where it is known that
    fewer than all are not 0, `at_most` saves memory; finding more is an error.
    """
@overload
def nonzero(x: Operand, /, at_most: int | Dim | None = None, *, extent: str = '') -> Node: ...
@overload
def nonzero(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def compress(
    x: Value,
    condition: Value,
    /,
    *,
    axis: int | None = None,
    extent: str = '',
) -> Array:
    """The entries of an axis for which `condition` holds; without an axis, of all elements in
    order. Where the condition is shorter than the axis, the rest is left out.
    """
@overload
def compress(
    x: Operand,
    condition: Operand,
    /,
    *,
    axis: int | None = None,
    extent: str = '',
) -> Node: ...
@overload
def compress(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def unique(
    x: Value,
    /,
    is_sorted: bool = True,
    equal_nan: bool = False,
    *,
    axis: int | None = None,
    extent: str = '',
) -> tuple[Array, Array, Array, Array]:
    """The different elements of x, or entries of an axis: their values, where each is first, which
    of them each element is, and how often each occurs. In order of value, or of where they are
    first. No NaN equals another, as in the Array API, unless `equal_nan` says so, as in ONNX.
    Without an axis the third result has the dims of x.
    """
@overload
def unique(
    x: Operand,
    /,
    is_sorted: bool = True,
    equal_nan: bool = False,
    *,
    axis: int | None = None,
    extent: str = '',
) -> tuple[Node, Node, Node, Node]: ...
@overload
def unique(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def arange(
    start: Value,
    limit: Value,
    delta: Value,
    /,
    at_most: int | Dim | None = None,
    *,
    extent: str = '',
) -> Array:
    """start + i * delta for i = 0, 1, … as long as that is before `limit`. `at_most` bounds how
    many there may be: without it no memory can be planned. With a constant number, use iota.
    """
@overload
def arange(
    start: Operand,
    limit: Operand,
    delta: Operand,
    /,
    at_most: int | Dim | None = None,
    *,
    extent: str = '',
) -> Node: ...
@overload
def arange(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
range = arange
@overload
def as_size(
    value: Value,
    /,
    at_most: int | Dim | None = None,
    *,
    extent: str = '',
) -> Array:
    """A number as a size: [value, 0], which has no elements and takes no memory. What shapes follow
    from the number are made of that size. A negative number is an error, and so is one above
    `at_most`.
    """
@overload
def as_size(
    value: Operand,
    /,
    at_most: int | Dim | None = None,
    *,
    extent: str = '',
) -> Node: ...
@overload
def as_size(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def same_size(found: Value, wanted: Value, /) -> Array:
    """0 where two sizes are equal, and an error where they are not: for sizes that a model takes to
    be equal, and that only data can tell. No size found at run time is repeated to be another's,
    not even 1: what a result is of would then depend on data.
    """
@overload
def same_size(found: Operand, wanted: Operand, /) -> Node: ...
@overload
def same_size(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def non_max_suppression(
    boxes: Value,
    scores: Value,
    /,
    max_output_boxes_per_class: int = 0,
    iou_threshold: float = 0.0,
    score_threshold: float | None = None,
    center_point_box: bool = False,
    *,
    extent: str = '',
) -> Array:
    """(batch, class, box) of the boxes that stay: for each batch and class the best score comes
    first, equals by index, and a box goes where it shares more than `iou_threshold` of its union
    with one that stays. Boxes are two corners (y, x, y, x), or with `center_point_box` centre and
    size (x, y, width, height). Scores must be above `score_threshold`; NaN never is.
    """
@overload
def non_max_suppression(
    boxes: Operand,
    scores: Operand,
    /,
    max_output_boxes_per_class: int = 0,
    iou_threshold: float = 0.0,
    score_threshold: float | None = None,
    center_point_box: bool = False,
    *,
    extent: str = '',
) -> Node: ...
@overload
def non_max_suppression(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def matmul(x: Value, y: Value, /) -> Array:
    """The matrix product over the last two axes; the axes before them broadcast. An operand of
    rank 1 is a row on the left, a column on the right, and leaves no axis behind.
    """
@overload
def matmul(x: Operand, y: Operand, /) -> Node: ...
@overload
def matmul(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
mm = matmul
@overload
def wide_matmul(x: Value, y: Value, /, to: DTypeLike) -> Array:
    """`matmul` of both operands cast to `to`: numbers that are narrow in memory, summed wide."""
@overload
def wide_matmul(x: Operand, y: Operand, /, to: DTypeLike) -> Node: ...
@overload
def wide_matmul(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def einsum(*operands: Value | Sequence[Value], equation: str) -> Array:
    """Sums of products by NumPy's notation: each operand's axes named by letters, `...` for the
    axes before or between them. What the result does not name is summed; without `->` it names
    what occurs once, by the alphabet. Axes of one name have one size.
    """
@overload
def einsum(*operands: Operand | Sequence[Operand], equation: str) -> Node: ...
@overload
def einsum(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def dot_general(
    x: Value,
    y: Value,
    /,
    lhs_contract: Sequence[int],
    rhs_contract: Sequence[int],
    lhs_batch: Sequence[int] = (),
    rhs_batch: Sequence[int] = (),
) -> Array:
    """Products summed over the contracted axes, pair by pair, for each index of the batch axes.
    The result has the batch axes, then what is left of x, then what is left of y.
    """
@overload
def dot_general(
    x: Operand,
    y: Operand,
    /,
    lhs_contract: Sequence[int],
    rhs_contract: Sequence[int],
    lhs_batch: Sequence[int] = (),
    rhs_batch: Sequence[int] = (),
) -> Node: ...
@overload
def dot_general(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def layer_norm(
    x: Value,
    scale: Value | None = None,
    bias: Value | None = None,
    /,
    *,
    axis: int = -1,
    eps: float = 1e-05,
) -> Array:
    """(x - mean) / sqrt(variance + eps) over the axes from `axis` to the last, then times scale,
    plus bias, where they are given: they have the dims of those axes.
    """
@overload
def layer_norm(
    x: Operand,
    scale: Operand | None = None,
    bias: Operand | None = None,
    /,
    *,
    axis: int = -1,
    eps: float = 1e-05,
) -> Node: ...
@overload
def layer_norm(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def rms_norm(
    x: Value,
    scale: Value | None = None,
    bias: Value | None = None,
    /,
    *,
    axis: int = -1,
    eps: float = 1e-06,
) -> Array:
    """x / sqrt(mean of squares + eps) over the axes from `axis` to the last, then times scale,
    plus bias, where they are given: they have the dims of those axes.
    """
@overload
def rms_norm(
    x: Operand,
    scale: Operand | None = None,
    bias: Operand | None = None,
    /,
    *,
    axis: int = -1,
    eps: float = 1e-06,
) -> Node: ...
@overload
def rms_norm(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def group_norm(
    x: Value,
    scale: Value | None = None,
    bias: Value | None = None,
    /,
    *,
    groups: int,
    eps: float = 1e-05,
) -> Array:
    """Layer norm of each of `groups` runs of channels (axis 1) with all that follows them, then
    times the channel's scale, plus its bias, where they are given.
    """
@overload
def group_norm(
    x: Operand,
    scale: Operand | None = None,
    bias: Operand | None = None,
    /,
    *,
    groups: int,
    eps: float = 1e-05,
) -> Node: ...
@overload
def group_norm(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def instance_norm(
    x: Value,
    scale: Value | None = None,
    bias: Value | None = None,
    /,
    *,
    eps: float = 1e-05,
) -> Array:
    """Layer norm of each channel's image, then times the channel's scale, plus its bias, where
    they are given.
    """
@overload
def instance_norm(
    x: Operand,
    scale: Operand | None = None,
    bias: Operand | None = None,
    /,
    *,
    eps: float = 1e-05,
) -> Node: ...
@overload
def instance_norm(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def layer_norm_2d(
    x: Value,
    scale: Value | None = None,
    bias: Value | None = None,
    /,
    *,
    eps: float = 1e-06,
) -> Array:
    """Layer norm over the channels (axis 1) at each place of an image, then times the channel's
    scale, plus its bias, where they are given.
    """
@overload
def layer_norm_2d(
    x: Operand,
    scale: Operand | None = None,
    bias: Operand | None = None,
    /,
    *,
    eps: float = 1e-06,
) -> Node: ...
@overload
def layer_norm_2d(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def batch_norm(
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    var: Value,
    /,
    eps: float = 1e-05,
) -> Array:
    """(x - mean) / sqrt(var + eps) · scale + bias for each channel (axis 1), with the mean and the
    variance given: what a trained batch norm does when it is used.
    """
@overload
def batch_norm(
    x: Operand,
    scale: Operand,
    bias: Operand,
    mean: Operand,
    var: Operand,
    /,
    eps: float = 1e-05,
) -> Node: ...
@overload
def batch_norm(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def ada_layer_norm(x: Value, shift: Value, scale: Value, /, eps: float = 1e-06) -> Array:
    """layer_norm(x) · (1 + scale) + shift over the last axis. Shift and scale, which a condition
    gives, broadcast to x: [batch, 1, n] for a whole sequence.
    """
@overload
def ada_layer_norm(
    x: Operand,
    shift: Operand,
    scale: Operand,
    /,
    eps: float = 1e-06,
) -> Node: ...
@overload
def ada_layer_norm(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def gated_residual(x: Value, gate: Value, residual: Value, /) -> Array:
    """residual + gate · x: what a block adds, as much as its gate lets through."""
@overload
def gated_residual(x: Operand, gate: Operand, residual: Operand, /) -> Node: ...
@overload
def gated_residual(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def lp_normalization(x: Value, /, axis: int = -1, p: int = 2) -> Array:
    """x over its norm along an axis: Σ|x| for p = 1, √Σx² for p = 2; zeros where that is 0."""
@overload
def lp_normalization(x: Operand, /, axis: int = -1, p: int = 2) -> Node: ...
@overload
def lp_normalization(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def local_response_norm(
    x: Value,
    /,
    size: int,
    alpha: float = 0.0001,
    beta: float = 0.75,
    bias: float = 1.0,
) -> Array:
    """x / (bias + alpha/size · Σ x²)^beta, summed over `size` channels (axis 1) around each: of an
    even number, one more after it than before it. ONNX's LRN.
    """
@overload
def local_response_norm(
    x: Operand,
    /,
    size: int,
    alpha: float = 0.0001,
    beta: float = 0.75,
    bias: float = 1.0,
) -> Node: ...
@overload
def local_response_norm(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
lrn = local_response_norm
@overload
def mean_variance_normalization(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    eps: float = 1e-09,
    *,
    axis: int | Sequence[int] | None = None,
) -> Array:
    """(x - mean) / (√variance + eps) over these axes together; without `axes`, over all. ONNX's
    are (0, 2, 3) unless it says others.
    """
@overload
def mean_variance_normalization(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    eps: float = 1e-09,
    *,
    axis: int | Sequence[int] | None = None,
) -> Node: ...
@overload
def mean_variance_normalization(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def attention(
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    /,
    *,
    num_heads: int,
    kv_heads: int | None = None,
    mask_kind: Literal['none', 'causal', 'sliding_window', 'custom', 'bias'] = 'none',
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    masked_rows: Literal['zeros', 'nan'] = 'zeros',
) -> Array:
    """softmax(q·kᵀ · scale) · v for each head, with operands [batch, length, heads·depth] or
    [batch, heads, length, depth]. Query heads share the `kv_heads` in runs; v may have a depth of
    its own. `scale` is 1/√depth if not given; `softcap` c makes a score c·tanh(score/c), before
    masking.

    Query i stands at p = i + keys - queries. `causal` lets it see the keys up to p,
    `sliding_window` those from p - window to p; `custom` hides the keys whose mask ([batch, keys],
    or broadcast to [batch, heads, queries, keys]) is False or below 0.5; `bias` adds its mask to
    the scores. Under a mask, a query that sees no key, or only scores of -inf, gives
    `masked_rows`: zeros, or the NaN that a softmax of -inf alone is. Values at hidden keys must be
    finite: their weight is 0, not their product.
    """
@overload
def attention(
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Operand | None = None,
    /,
    *,
    num_heads: int,
    kv_heads: int | None = None,
    mask_kind: Literal['none', 'causal', 'sliding_window', 'custom', 'bias'] = 'none',
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    masked_rows: Literal['zeros', 'nan'] = 'zeros',
) -> Node: ...
@overload
def attention(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def rope(
    x: Value,
    cos: Value,
    sin: Value,
    /,
    head_dim: int | None = None,
    n_rot: int | None = None,
    interleaved: bool = False,
) -> Array:
    """Pairs of elements rotated by their position's angle: (a, b) becomes (a·cos - b·sin,
    b·cos + a·sin). x is [..., length, heads·head_dim], with one head if `head_dim` is not given;
    cos and sin are [..., length, n_rot/2] and broadcast. In each head the first `n_rot` elements
    (all, if not given) turn and the rest are copied: element i pairs with i + n_rot/2, or, if
    `interleaved`, element 2i with 2i + 1.
    """
@overload
def rope(
    x: Operand,
    cos: Operand,
    sin: Operand,
    /,
    head_dim: int | None = None,
    n_rot: int | None = None,
    interleaved: bool = False,
) -> Node: ...
@overload
def rope(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def axial_rope_2d(
    x: Value,
    /,
    end_x: int,
    end_y: int,
    head_dim: int,
    theta: float = 10000.0,
    repeat_factor: int = 1,
) -> Array:
    """rope by the column and the row of each place of an image: x is [..., end_y·end_x,
    heads·head_dim], row by row, `repeat_factor` times over. Of the neighbouring pairs of each
    head, the first half rotates by column · theta^(-4i/head_dim), the second by the row.
    """
@overload
def axial_rope_2d(
    x: Operand,
    /,
    end_x: int,
    end_y: int,
    head_dim: int,
    theta: float = 10000.0,
    repeat_factor: int = 1,
) -> Node: ...
@overload
def axial_rope_2d(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def conv(
    x: Value,
    w: Value,
    bias: Value | None = None,
    /,
    *,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
) -> Array:
    """Sums over windows of the zero-padded image against each kernel. Input and output channels
    are cut into `groups` that see only each other; `bias` is added per output channel. Integers
    wrap.
    """
@overload
def conv(
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    /,
    *,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
) -> Node: ...
@overload
def conv(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
conv1d = conv
conv2d = conv
conv3d = conv
@overload
def wide_conv(
    x: Value,
    w: Value,
    /,
    to: DTypeLike,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
) -> Array:
    """`conv` of both operands cast to `to`: numbers that are narrow in memory, summed wide."""
@overload
def wide_conv(
    x: Operand,
    w: Operand,
    /,
    to: DTypeLike,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
) -> Node: ...
@overload
def wide_conv(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def conv_transpose(
    x: Value,
    w: Value,
    bias: Value | None = None,
    /,
    *,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    output_padding: Sequence[int] = (),
    groups: int = 1,
) -> Array:
    """What conv's windows add up to: each element times the kernel [in, out per group, *kernel],
    laid where conv would have read it. `padding` is cut off; `output_padding` adds to the end, for
    a size that the stride alone cannot tell.
    """
@overload
def conv_transpose(
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    /,
    *,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    output_padding: Sequence[int] = (),
    groups: int = 1,
) -> Node: ...
@overload
def conv_transpose(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
conv_transpose1d = conv_transpose
conv_transpose2d = conv_transpose
conv_transpose3d = conv_transpose
@overload
def depthwise_conv1d_causal(x: Value, w: Value, state: Value | None = None, /) -> Array:
    """y[t] = Σ w[j] · x[t - (k-1) + j] for each channel, x [batch, length, channels] and w
    [channels, k]: a step sees itself and the k - 1 before it. Those before the first are `state`
    [batch, k - 1, channels], or zeros; `causal_conv_state` gives the state of the next call.
    """
@overload
def depthwise_conv1d_causal(
    x: Operand,
    w: Operand,
    state: Operand | None = None,
    /,
) -> Node: ...
@overload
def depthwise_conv1d_causal(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def im2col(
    x: Value,
    /,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
) -> Array:
    """[batch, channels · taps, windows]: what each window of the zero-padded image sees, as a
    column.
    """
@overload
def im2col(
    x: Operand,
    /,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
) -> Node: ...
@overload
def im2col(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def col2im(
    x: Value,
    /,
    image: Sequence[int | Dim],
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
) -> Array:
    """[batch, channels, *image] of columns as im2col gives them: where windows overlap, they add
    up; what lay in the padding is dropped. ONNX's Col2Im.
    """
@overload
def col2im(
    x: Operand,
    /,
    image: Sequence[int | Dim],
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
) -> Node: ...
@overload
def col2im(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def deform_conv(
    x: Value,
    w: Value,
    offset: Value,
    mask: Value | None = None,
    /,
    *,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
    offset_groups: int = 1,
) -> Array:
    """conv whose taps move by `offset` [batch, offset_groups · taps · axes, *windows] and read
    linearly between elements, zeros outside; `mask` [batch, offset_groups · taps, *windows] weighs
    them. Channels in one of `offset_groups` share their offsets. ONNX's DeformConv, whose bias is
    an add.
    """
@overload
def deform_conv(
    x: Operand,
    w: Operand,
    offset: Operand,
    mask: Operand | None = None,
    /,
    *,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
    offset_groups: int = 1,
) -> Node: ...
@overload
def deform_conv(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def max_pool(
    x: Value,
    /,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    ceil: bool = False,
) -> Array:
    """The greatest element of each window; padding never wins, a NaN does. A window without data
    gives the least value of the dtype.
    """
@overload
def max_pool(
    x: Operand,
    /,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    ceil: bool = False,
) -> Node: ...
@overload
def max_pool(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
max_pool1d = max_pool
max_pool2d = max_pool
max_pool3d = max_pool
@overload
def max_pool_with_indices(
    x: Value,
    /,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    ceil: bool = False,
    column_major: bool = False,
) -> tuple[Array, Array]:
    """max_pool, and where in the flattened x each greatest element is: the first of equals, or of
    NaNs; -1 for a window without data. With `column_major` (ONNX's storage_order 1) the first axis
    of an image counts fastest; batch and channels stay in front.
    """
@overload
def max_pool_with_indices(
    x: Operand,
    /,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    ceil: bool = False,
    column_major: bool = False,
) -> tuple[Node, Node]: ...
@overload
def max_pool_with_indices(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def max_unpool(
    x: Value,
    indices: Value,
    /,
    image: int | Dim | Sequence[int | Dim],
    *more_image: int | Dim,
) -> Array:
    """Zeros [batch, channels, *image] with the elements of x put at `indices` of the flattened
    result; where one occurs twice, the last counts. The inverse of max_pool_with_indices, but for
    the rest of each window.
    """
@overload
def max_unpool(
    x: Operand,
    indices: Operand,
    /,
    image: int | Dim | Sequence[int | Dim],
    *more_image: int | Dim,
) -> Node: ...
@overload
def max_unpool(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def avg_pool(
    x: Value,
    /,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    ceil: bool = False,
    count_include_pad: bool = False,
) -> Array:
    """The mean of each window. `count_include_pad` divides by padding too, though never by what
    `ceil` reaches past it. A window that counts nothing gives 0.
    """
@overload
def avg_pool(
    x: Operand,
    /,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    ceil: bool = False,
    count_include_pad: bool = False,
) -> Node: ...
@overload
def avg_pool(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
avg_pool1d = avg_pool
avg_pool2d = avg_pool
avg_pool3d = avg_pool
@overload
def lp_pool(
    x: Value,
    /,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    ceil: bool = False,
    p: float = 2.0,
) -> Array:
    """(Σ |x|^p)^(1/p) over each window; padding adds nothing."""
@overload
def lp_pool(
    x: Operand,
    /,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    ceil: bool = False,
    p: float = 2.0,
) -> Node: ...
@overload
def lp_pool(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def global_avg_pool(x: Value, /) -> Array:
    """The mean of each channel's image; of an empty one it is NaN."""
@overload
def global_avg_pool(x: Operand, /) -> Node: ...
@overload
def global_avg_pool(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
global_avg_pool2d = global_avg_pool
@overload
def global_max_pool(x: Value, /) -> Array:
    """The greatest element of each channel's image, or a NaN of it; of an empty one it is the
    least value of the dtype.
    """
@overload
def global_max_pool(x: Operand, /) -> Node: ...
@overload
def global_max_pool(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def global_lp_pool(x: Value, /, p: float = 2.0) -> Array:
    """(Σ |x|^p)^(1/p) over each channel's image."""
@overload
def global_lp_pool(x: Operand, /, p: float = 2.0) -> Node: ...
@overload
def global_lp_pool(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def resize(
    x: Value,
    /,
    axes: Sequence[int] | None = None,
    sizes: Sequence[int | Dim] | None = None,
    scales: Sequence[float] | None = None,
    mode: Literal['nearest', 'linear', 'cubic'] = 'nearest',
    coordinate_mode: Literal['half_pixel', 'half_pixel_symmetric', 'pytorch_half_pixel', 'align_corners', 'asymmetric', 'tf_half_pixel_for_nn', 'tf_crop_and_resize'] = 'half_pixel',
    nearest_mode: Literal['round_prefer_floor', 'round_prefer_ceil', 'floor', 'ceil'] = 'round_prefer_floor',
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
    antialias: bool = False,
    roi: Sequence[float] | None = None,
    extrapolation_value: float = 0.0,
    *,
    axis: Sequence[int] | None = None,
) -> Array:
    """x with these axes, or the last ones, brought to `sizes`, or to the whole part of their size
    times `scales`; with both given, sizes say how many elements there are and scales where they are
    sampled. `nearest` copies, from places that are computed in f32, so that ties round as they do
    in runtimes; `linear` and `cubic` take floats and weigh 2 and 4 old elements per axis, or with
    `antialias`, where an axis shrinks, as many as fall together. `exclude_outside` gives no weight
    past the edge. `roi` has where the crop of `tf_crop_and_resize` starts on each axis, and then
    where it ends, as parts of the axis; what the crop has past the image is the extrapolation
    value. Axes of named sizes are resized by `nearest` and whole scales, which repeat elements.
    """
@overload
def resize(
    x: Operand,
    /,
    axes: Sequence[int] | None = None,
    sizes: Sequence[int | Dim] | None = None,
    scales: Sequence[float] | None = None,
    mode: Literal['nearest', 'linear', 'cubic'] = 'nearest',
    coordinate_mode: Literal['half_pixel', 'half_pixel_symmetric', 'pytorch_half_pixel', 'align_corners', 'asymmetric', 'tf_half_pixel_for_nn', 'tf_crop_and_resize'] = 'half_pixel',
    nearest_mode: Literal['round_prefer_floor', 'round_prefer_ceil', 'floor', 'ceil'] = 'round_prefer_floor',
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
    antialias: bool = False,
    roi: Sequence[float] | None = None,
    extrapolation_value: float = 0.0,
    *,
    axis: Sequence[int] | None = None,
) -> Node: ...
@overload
def resize(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def depth_to_space(x: Value, /, block: int, order: Literal['DCR', 'CRD'] = 'DCR') -> Array:
    """Channels laid out as blocks of pixels, `block` by `block`. Channels count the places of a
    block first (`DCR`) or last (`CRD`).
    """
@overload
def depth_to_space(x: Operand, /, block: int, order: Literal['DCR', 'CRD'] = 'DCR') -> Node: ...
@overload
def depth_to_space(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def space_to_depth(x: Value, /, block: int, order: Literal['DCR', 'CRD'] = 'DCR') -> Array:
    """Blocks of pixels, `block` by `block`, laid out as channels: undoes depth_to_space."""
@overload
def space_to_depth(x: Operand, /, block: int, order: Literal['DCR', 'CRD'] = 'DCR') -> Node: ...
@overload
def space_to_depth(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def grid_sample(
    x: Value,
    grid: Value,
    /,
    mode: Literal['nearest', 'linear', 'cubic'] = 'linear',
    padding: Literal['zeros', 'border', 'reflection'] = 'zeros',
    align_corners: bool = False,
) -> Array:
    """x [n, c, …] read where `grid` [n, …, coordinates] says, the last axis of x first: -1 and 1
    are the edges of the image, or with `align_corners` the centres of its outermost pixels.
    Halfway, `nearest` takes the even pixel. Outside are zeros, the border, or the image mirrored
    at its edges: a position there is moved inside, but for `cubic` the pixels that it is made of
    are, each separately.
    """
@overload
def grid_sample(
    x: Operand,
    grid: Operand,
    /,
    mode: Literal['nearest', 'linear', 'cubic'] = 'linear',
    padding: Literal['zeros', 'border', 'reflection'] = 'zeros',
    align_corners: bool = False,
) -> Node: ...
@overload
def grid_sample(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def affine_grid(
    theta: Value,
    /,
    sizes: Sequence[int],
    align_corners: bool = False,
) -> Array:
    """The grid that reads an image of `sizes` through the affine map `theta` [n, r, r + 1], whose
    last column is the shift; for grid_sample.
    """
@overload
def affine_grid(
    theta: Operand,
    /,
    sizes: Sequence[int],
    align_corners: bool = False,
) -> Node: ...
@overload
def affine_grid(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def roi_align(
    x: Value,
    rois: Value,
    batch_indices: Value,
    /,
    output_size: Sequence[int] = ...,
    mode: Literal['avg', 'max'] = 'avg',
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    half_pixel: bool = True,
) -> Array:
    """Regions (x, y, x, y) of images cut into bins, and each bin the mean over points inside it,
    `sampling_ratio` squared or about one per pixel, each interpolated between four pixels. `max`
    is what ONNX says it is: the greatest of the points' pixels times their weights. Without
    `half_pixel`, pixel coordinates are those of their corners and regions are at least 1 wide.
    """
@overload
def roi_align(
    x: Operand,
    rois: Operand,
    batch_indices: Operand,
    /,
    output_size: Sequence[int] = ...,
    mode: Literal['avg', 'max'] = 'avg',
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    half_pixel: bool = True,
) -> Node: ...
@overload
def roi_align(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def max_roi_pool(
    x: Value,
    rois: Value,
    batch_indices: Value,
    /,
    output_size: Sequence[int],
    spatial_scale: float = 1.0,
) -> Array:
    """Regions (x, y, x, y) of images, their edges rounded to whole pixels and both inside, cut
    into bins that overlap where they do not come out even; each bin its greatest pixel, or 0
    where it has none. ONNX's rois carry the batch index in front.
    """
@overload
def max_roi_pool(
    x: Operand,
    rois: Operand,
    batch_indices: Operand,
    /,
    output_size: Sequence[int],
    spatial_scale: float = 1.0,
) -> Node: ...
@overload
def max_roi_pool(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def fft(
    x: Value,
    /,
    inverse: bool = False,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
) -> Array:
    """The discrete Fourier transform along the last axis. Complex dtypes hold one number per
    element; real dtypes hold n real parts and then n imaginary parts, in and out.
    """
@overload
def fft(
    x: Operand,
    /,
    inverse: bool = False,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
) -> Node: ...
@overload
def fft(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def ifft(x: Value, /, norm: Literal['backward', 'ortho', 'forward'] = 'backward') -> Array:
    """The inverse transform along the last axis, of complex or real numbers, as NumPy's."""
@overload
def ifft(x: Operand, /, norm: Literal['backward', 'ortho', 'forward'] = 'backward') -> Node: ...
@overload
def ifft(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def rfft(
    x: Value,
    /,
    n: int | None = None,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
) -> Array:
    """The first n // 2 + 1 bins of the transform of real numbers, cut or zero-padded to `n`."""
@overload
def rfft(
    x: Operand,
    /,
    n: int | None = None,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
) -> Node: ...
@overload
def rfft(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def irfft(
    x: Value,
    /,
    n: int | None = None,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
) -> Array:
    """The `n` real numbers whose `rfft` is `x`; without `n`, twice the bins less two. Bins are cut
    or zero-padded to n // 2 + 1; imaginary parts of the first and the middle bin do not count.
    """
@overload
def irfft(
    x: Operand,
    /,
    n: int | None = None,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
) -> Node: ...
@overload
def irfft(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def stft(
    x: Value,
    window: Value | None = None,
    /,
    *,
    n_fft: int,
    hop: int,
    center: bool = False,
    pad: Literal['reflect', 'zeros'] = 'reflect',
) -> Array:
    """The real transform of each frame of `n_fft` points, one every `hop`, times `window`:
    [..., frames, n_fft // 2 + 1]. With `center`, frame i is centred on point i * hop: the signal
    gets n_fft // 2 more points at both ends, mirrored or zero.
    """
@overload
def stft(
    x: Operand,
    window: Operand | None = None,
    /,
    *,
    n_fft: int,
    hop: int,
    center: bool = False,
    pad: Literal['reflect', 'zeros'] = 'reflect',
) -> Node: ...
@overload
def stft(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def log_mel(spectrum: Value, filters: Value, /) -> Array:
    """Whisper's log-mel frames of a spectrum in block layout: log10 of the filtered power, at
    least 1e-10, at most 8 below the frame's greatest, then (v + 4) / 4.
    """
@overload
def log_mel(spectrum: Operand, filters: Operand, /) -> Node: ...
@overload
def log_mel(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def welch_peaks(spectrum: Value, /, k: int, n_segments: int) -> Array:
    """The `k` strongest bins of a Welch estimate, as bin, power, bin, power, …, strongest first;
    of equals the lower bin. The estimate is the mean over each group of `n_segments` rows of the
    squared magnitude, one-sided: bins with a mirror image count twice. Slots past the last bin
    are 0.
    """
@overload
def welch_peaks(spectrum: Operand, /, k: int, n_segments: int) -> Node: ...
@overload
def welch_peaks(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def lstm(
    *operands: Value | None,
    extras: Sequence[Literal['bias', 'lengths', 'initial_h', 'initial_c', 'peepholes']] = (),
    direction: Literal['forward', 'reverse', 'bidirectional'] = 'forward',
    activations: Sequence[Literal['relu', 'tanh', 'sigmoid', 'affine', 'leaky_relu', 'thresholded_relu', 'scaled_tanh', 'hard_sigmoid', 'elu', 'softsign', 'softplus']] = (),
    alphas: Sequence[float] = (),
    betas: Sequence[float] = (),
    clip: float | None = None,
    input_forget: bool = False,
    batch_first: bool = False,
) -> tuple[Array, Array, Array]:
    """The outputs [length, directions, batch, hidden], the last state and the last cell of
    i, o, f = σ(Wx + Rh + b + p·c), C = f·c + i·tanh(Wx + Rh + b), H = o·tanh(C), where o sees the
    new C. `input_forget` has f = 1 - i.
    """
@overload
def lstm(
    *operands: Operand | None,
    extras: Sequence[Literal['bias', 'lengths', 'initial_h', 'initial_c', 'peepholes']] = (),
    direction: Literal['forward', 'reverse', 'bidirectional'] = 'forward',
    activations: Sequence[Literal['relu', 'tanh', 'sigmoid', 'affine', 'leaky_relu', 'thresholded_relu', 'scaled_tanh', 'hard_sigmoid', 'elu', 'softsign', 'softplus']] = (),
    alphas: Sequence[float] = (),
    betas: Sequence[float] = (),
    clip: float | None = None,
    input_forget: bool = False,
    batch_first: bool = False,
) -> tuple[Node, Node, Node]: ...
@overload
def lstm(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def gru(
    *operands: Value | None,
    extras: Sequence[Literal['bias', 'lengths', 'initial_h', 'initial_c', 'peepholes']] = (),
    direction: Literal['forward', 'reverse', 'bidirectional'] = 'forward',
    activations: Sequence[Literal['relu', 'tanh', 'sigmoid', 'affine', 'leaky_relu', 'thresholded_relu', 'scaled_tanh', 'hard_sigmoid', 'elu', 'softsign', 'softplus']] = (),
    alphas: Sequence[float] = (),
    betas: Sequence[float] = (),
    clip: float | None = None,
    linear_before_reset: bool = False,
    batch_first: bool = False,
) -> tuple[Array, Array]:
    """The outputs [length, directions, batch, hidden] and the last state of
    z, r = σ(Wx + Rh + b), H = (1 - z)·tanh(Wx + R(r·h) + b) + z·h. With `linear_before_reset`,
    r weighs the product and its bias instead: r·(Rh + b).
    """
@overload
def gru(
    *operands: Operand | None,
    extras: Sequence[Literal['bias', 'lengths', 'initial_h', 'initial_c', 'peepholes']] = (),
    direction: Literal['forward', 'reverse', 'bidirectional'] = 'forward',
    activations: Sequence[Literal['relu', 'tanh', 'sigmoid', 'affine', 'leaky_relu', 'thresholded_relu', 'scaled_tanh', 'hard_sigmoid', 'elu', 'softsign', 'softplus']] = (),
    alphas: Sequence[float] = (),
    betas: Sequence[float] = (),
    clip: float | None = None,
    linear_before_reset: bool = False,
    batch_first: bool = False,
) -> tuple[Node, Node]: ...
@overload
def gru(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def rnn(
    *operands: Value | None,
    extras: Sequence[Literal['bias', 'lengths', 'initial_h', 'initial_c', 'peepholes']] = (),
    direction: Literal['forward', 'reverse', 'bidirectional'] = 'forward',
    activations: Sequence[Literal['relu', 'tanh', 'sigmoid', 'affine', 'leaky_relu', 'thresholded_relu', 'scaled_tanh', 'hard_sigmoid', 'elu', 'softsign', 'softplus']] = (),
    alphas: Sequence[float] = (),
    betas: Sequence[float] = (),
    clip: float | None = None,
    batch_first: bool = False,
) -> tuple[Array, Array]:
    """The outputs [length, directions, batch, hidden] and the last state of
    H = tanh(Wx + Rh + b).
    """
@overload
def rnn(
    *operands: Operand | None,
    extras: Sequence[Literal['bias', 'lengths', 'initial_h', 'initial_c', 'peepholes']] = (),
    direction: Literal['forward', 'reverse', 'bidirectional'] = 'forward',
    activations: Sequence[Literal['relu', 'tanh', 'sigmoid', 'affine', 'leaky_relu', 'thresholded_relu', 'scaled_tanh', 'hard_sigmoid', 'elu', 'softsign', 'softplus']] = (),
    alphas: Sequence[float] = (),
    betas: Sequence[float] = (),
    clip: float | None = None,
    batch_first: bool = False,
) -> tuple[Node, Node]: ...
@overload
def rnn(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def selective_scan(
    x: Value,
    delta: Value,
    a: Value,
    b: Value,
    c: Value,
    state: Value | None = None,
    /,
) -> tuple[Array, Array]:
    """Mamba's recurrence: h ← exp(Δ·A)·h + Δ·x·B and y = h·C at each step, for x and Δ [batch,
    length, width], A [width, n], B and C [batch, length, n]. Gives y and the last h [batch, width,
    n].
    """
@overload
def selective_scan(
    x: Operand,
    delta: Operand,
    a: Operand,
    b: Operand,
    c: Operand,
    state: Operand | None = None,
    /,
) -> tuple[Node, Node]: ...
@overload
def selective_scan(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def mamba2(
    x: Value,
    dt: Value,
    a: Value,
    b: Value,
    c: Value,
    state: Value | None = None,
    /,
) -> tuple[Array, Array]:
    """Mamba-2's recurrence: S ← exp(dt·A)·S + dt·x⊗B and y = S·C at each step and head, for x
    [batch, length, heads, width], dt [batch, length, heads], one A per head, and B and C [batch,
    length, groups, n], which the heads of a group share. Gives y and the last S [batch, heads,
    width, n].
    """
@overload
def mamba2(
    x: Operand,
    dt: Operand,
    a: Operand,
    b: Operand,
    c: Operand,
    state: Operand | None = None,
    /,
) -> tuple[Node, Node]: ...
@overload
def mamba2(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def gated_delta_net(
    q: Value,
    k: Value,
    v: Value,
    g: Value,
    beta: Value,
    state: Value | None = None,
    /,
    *,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """The gated delta rule at each step and head: S ← exp(g)·S, d = (v - Sᵀk)·β, S ← S + k⊗d and
    o = Sᵀq·scale, with 1/√n if no scale is given. q and k are [batch, length, heads, n], v is
    [batch, length, heads, m]; g and β have one number per head, or g one per entry of k and β one
    per entry of v. Gives o and the last S [batch, heads, n, m].
    """
@overload
def gated_delta_net(
    q: Operand,
    k: Operand,
    v: Operand,
    g: Operand,
    beta: Operand,
    state: Operand | None = None,
    /,
    *,
    scale: float | None = None,
) -> tuple[Node, Node]: ...
@overload
def gated_delta_net(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def linear_attention(
    q: Value,
    k: Value,
    v: Value,
    /,
    *extras: Value | None,
    num_heads: int,
    kv_heads: int,
    rule: Literal['linear', 'gated', 'delta', 'gated_delta'] = 'gated_delta',
    scale: float | None = None,
) -> tuple[Array, Array]:
    """Attention without a softmax, which keeps a sum S of its past: at each step and head, S ← S +
    k⊗v and o = Sᵀq·scale, with 1/√n if no scale is given. A `gated` rule has an operand decay and
    first makes S exp(decay)·S; a `delta` rule has an operand β and adds k⊗(v - Sᵀk)·β in place of
    k⊗v. After these may come the S before the first step.

    q is [batch, length, num_heads·n], k and v are [batch, length, kv_heads·n] and [batch, length,
    kv_heads·m], and runs of query heads share theirs; decay has one number per head or per entry
    of k, β one per head or one for all. Gives o and the last S [batch, kv_heads, n, m]. ONNX's
    chunk_size changes no result, its scale 0 is none here, and a state that is wider than the
    rest means that all are computed in its dtype: cast them.
    """
@overload
def linear_attention(
    q: Operand,
    k: Operand,
    v: Operand,
    /,
    *extras: Operand | None,
    num_heads: int,
    kv_heads: int,
    rule: Literal['linear', 'gated', 'delta', 'gated_delta'] = 'gated_delta',
    scale: float | None = None,
) -> tuple[Node, Node]: ...
@overload
def linear_attention(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def causal_conv_state(x: Value, state: Value | None = None, /, *, size: int) -> Array:
    """The last `size` rows of [batch, length, channels] after those of `state`, or after zeros:
    what depthwise_conv1d_causal of `size` + 1 taps takes before the next part of a sequence.
    """
@overload
def causal_conv_state(x: Operand, state: Operand | None = None, /, *, size: int) -> Node: ...
@overload
def causal_conv_state(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
def hann_window(length: int | Dim, periodic: bool = True, dtype: DTypeLike = ...) -> Array:
    """1/2 - 1/2 cos 2πt over t from 0 to 1; the end is left out where it is periodic, as spectra
    want it. A window of one point is 1, as SciPy's (ONNX has 0).
    """
def hamming_window(
    length: int | Dim,
    periodic: bool = True,
    alpha: float = 0.54,
    dtype: DTypeLike = ...,
) -> Array:
    """alpha - (1 - alpha) cos 2πt. ONNX has alpha = 25/46."""
def blackman_window(
    length: int | Dim,
    periodic: bool = True,
    dtype: DTypeLike = ...,
) -> Array:
    """0.42 - 0.5 cos 2πt + 0.08 cos 4πt."""
def kaiser_window(
    length: int | Dim,
    periodic: bool = True,
    beta: float = 12.0,
    dtype: DTypeLike = ...,
) -> Array:
    """I₀(beta · √(1 - (2t - 1)²)) / I₀(beta)."""
def fftfreq(n: int | Dim, d: float = 1.0, dtype: DTypeLike = ...) -> Array:
    """The frequency of each bin of a transform of `n` samples spaced `d`, as NumPy has it:
    from 0 up, then the negative ones; the middle bin of an even n is negative.
    """
def rfftfreq(n: int | Dim, d: float = 1.0, dtype: DTypeLike = ...) -> Array:
    """The frequency of each bin of a transform of `n` real numbers: all are 0 or more."""
def mel_weight_matrix(
    num_mel_bins: int,
    dft_length: int,
    sample_rate: int,
    lower_edge_hertz: float,
    upper_edge_hertz: float,
    dtype: DTypeLike = ...,
) -> Array:
    """ONNX's matrix from dft_length // 2 + 1 bins to mel bands, [bins, bands]: triangles whose
    corners are equal steps of 2595 log₁₀(1 + f / 700) apart, each moved down to a whole bin.
    """
def mel_filters(
    sample_rate: float,
    n_fft: int,
    n_mels: int = 128,
    f_min: float = 0.0,
    f_max: float | None = None,
    scale: Literal['slaney', 'htk'] = 'slaney',
    norm: Literal['slaney', 'none'] = 'slaney',
    dtype: DTypeLike = ...,
) -> Array:
    """Librosa's filters from n_fft // 2 + 1 bins to mel bands, [bands, bins]: triangles over
    frequency whose corners are equal steps of the mel scale apart, up to half the sample rate.
    `slaney` norm gives each the same area; what log_mel takes.
    """
@overload
def fftn(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    *,
    axis: int | Sequence[int] | None = None,
) -> Array:
    """The discrete Fourier transform over `axes`, of complex or real numbers."""
@overload
def fftn(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    *,
    axis: int | Sequence[int] | None = None,
) -> Node: ...
@overload
def fftn(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def ifftn(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    *,
    axis: int | Sequence[int] | None = None,
) -> Array:
    """The inverse transform over `axes`, of complex or real numbers."""
@overload
def ifftn(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    *,
    axis: int | Sequence[int] | None = None,
) -> Node: ...
@overload
def ifftn(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def rfftn(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    *,
    axis: int | Sequence[int] | None = None,
) -> Array:
    """The transform of real numbers over `axes`: of the last of them the first n // 2 + 1 bins."""
@overload
def rfftn(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    *,
    axis: int | Sequence[int] | None = None,
) -> Node: ...
@overload
def rfftn(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def irfftn(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    n: int | None = None,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    *,
    axis: int | Sequence[int] | None = None,
) -> Array:
    """The real numbers whose `rfftn` is x; `n` is their length on the last of `axes`, and without
    it twice the bins less two.
    """
@overload
def irfftn(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    n: int | None = None,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
    *,
    axis: int | Sequence[int] | None = None,
) -> Node: ...
@overload
def irfftn(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def fftshift(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    *,
    axis: int | Sequence[int] | None = None,
) -> Array:
    """A spectrum with frequency 0 in the middle of `axes`."""
@overload
def fftshift(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    *,
    axis: int | Sequence[int] | None = None,
) -> Node: ...
@overload
def fftshift(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def ifftshift(
    x: Value,
    /,
    axes: int | Sequence[int] | None = None,
    *,
    axis: int | Sequence[int] | None = None,
) -> Array:
    """A spectrum with frequency 0 at the front of `axes` again: the inverse of fftshift."""
@overload
def ifftshift(
    x: Operand,
    /,
    axes: int | Sequence[int] | None = None,
    *,
    axis: int | Sequence[int] | None = None,
) -> Node: ...
@overload
def ifftshift(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def dct(
    x: Value,
    /,
    kind: Literal[1, 2, 3, 4] = 2,
    axis: int = -1,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
) -> Array:
    """The discrete cosine transform of types 1 to 4 along `axis`, scaled as SciPy's: 2 Σ xₙ cos …
    without a norm, orthogonal with `ortho`.
    """
@overload
def dct(
    x: Operand,
    /,
    kind: Literal[1, 2, 3, 4] = 2,
    axis: int = -1,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
) -> Node: ...
@overload
def dct(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def idct(
    x: Value,
    /,
    kind: Literal[1, 2, 3, 4] = 2,
    axis: int = -1,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
) -> Array:
    """The inverse of `dct`: types 2 and 3 are each other's."""
@overload
def idct(
    x: Operand,
    /,
    kind: Literal[1, 2, 3, 4] = 2,
    axis: int = -1,
    norm: Literal['backward', 'ortho', 'forward'] = 'backward',
) -> Node: ...
@overload
def idct(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def frame(x: Value, /, length: int, hop: int) -> Array:
    """Every `hop` points a frame of `length` points, as long as it fits: [..., frames, length]."""
@overload
def frame(x: Operand, /, length: int, hop: int) -> Node: ...
@overload
def frame(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def overlap_add(x: Value, /, hop: int) -> Array:
    """Frames, one every `hop` points, added up where they overlap: the counterpart of frame."""
@overload
def overlap_add(x: Operand, /, hop: int) -> Node: ...
@overload
def overlap_add(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def psd(
    x: Value,
    window: Value | None = None,
    /,
    *,
    fs: float = 1.0,
    scaling: Literal['density', 'spectrum'] = 'density',
) -> Array:
    """The one-sided power spectrum of real numbers sampled at `fs`: |rfft(x · window)|², twice
    for bins with a mirror image, over fs · Σ window² (`density`, power per hertz) or over
    (Σ window)² (`spectrum`, power). Without a window, of ones.
    """
@overload
def psd(
    x: Operand,
    window: Operand | None = None,
    /,
    *,
    fs: float = 1.0,
    scaling: Literal['density', 'spectrum'] = 'density',
) -> Node: ...
@overload
def psd(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def welch(
    x: Value,
    window: Value | None = None,
    /,
    *,
    length: int,
    hop: int,
    fs: float = 1.0,
    scaling: Literal['density', 'spectrum'] = 'density',
) -> Array:
    """Welch's estimate of the power spectrum: the mean of `psd` over frames of `length` points,
    one every `hop`.
    """
@overload
def welch(
    x: Operand,
    window: Operand | None = None,
    /,
    *,
    length: int,
    hop: int,
    fs: float = 1.0,
    scaling: Literal['density', 'spectrum'] = 'density',
) -> Node: ...
@overload
def welch(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def istft(
    x: Value,
    window: Value | None = None,
    /,
    *,
    n_fft: int,
    hop: int,
    center: bool = False,
    length: int | None = None,
) -> Array:
    """The signal whose `stft` with the same attributes is x: frames times `window` added up, over
    the sum of squared windows that cover a point; what none covers is 0. With `length`, the
    signal is cut or zero-padded to it.
    """
@overload
def istft(
    x: Operand,
    window: Operand | None = None,
    /,
    *,
    n_fft: int,
    hop: int,
    center: bool = False,
    length: int | None = None,
) -> Node: ...
@overload
def istft(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def convolve(
    x: Value,
    y: Value,
    /,
    mode: Literal['full', 'same', 'valid'] = 'full',
) -> Array:
    """Σ x[i] · y[k - i] along the last axis; leading dims broadcast. `full` has every k with a
    term, `same` the middle of it, as long as x, and `valid` those with all terms.
    """
@overload
def convolve(
    x: Operand,
    y: Operand,
    /,
    mode: Literal['full', 'same', 'valid'] = 'full',
) -> Node: ...
@overload
def convolve(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def fft_convolve(
    x: Value,
    y: Value,
    /,
    mode: Literal['full', 'same', 'valid'] = 'full',
) -> Array:
    """What `convolve` gives, through transforms: for long signals of similar lengths."""
@overload
def fft_convolve(
    x: Operand,
    y: Operand,
    /,
    mode: Literal['full', 'same', 'valid'] = 'full',
) -> Node: ...
@overload
def fft_convolve(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def power_frames(
    x: Value,
    window: Value | None = None,
    /,
    *,
    n_fft: int,
    hop: int,
    center: bool = False,
    pad: Literal['reflect', 'zeros'] = 'reflect',
) -> Array:
    """The squared magnitude of the `stft`: [..., frames, n_fft // 2 + 1]."""
@overload
def power_frames(
    x: Operand,
    window: Operand | None = None,
    /,
    *,
    n_fft: int,
    hop: int,
    center: bool = False,
    pad: Literal['reflect', 'zeros'] = 'reflect',
) -> Node: ...
@overload
def power_frames(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def mean_power(
    x: Value,
    window: Value | None = None,
    /,
    *,
    n_fft: int,
    hop: int,
    center: bool = False,
    pad: Literal['reflect', 'zeros'] = 'reflect',
    one_sided: bool = False,
) -> Array:
    """The mean of `power_frames` over all frames: [..., n_fft // 2 + 1]. Half floats are rounded
    once, behind the mean. With `one_sided`, bins that have a mirror image count twice.
    """
@overload
def mean_power(
    x: Operand,
    window: Operand | None = None,
    /,
    *,
    n_fft: int,
    hop: int,
    center: bool = False,
    pad: Literal['reflect', 'zeros'] = 'reflect',
    one_sided: bool = False,
) -> Node: ...
@overload
def mean_power(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def mel_frames(
    x: Value,
    filters: Value,
    window: Value | None = None,
    /,
    *,
    n_fft: int,
    hop: int,
    center: bool = False,
    pad: Literal['reflect', 'zeros'] = 'reflect',
) -> Array:
    """`power_frames` times `filters`: of each frame the power in every band. Half floats are
    rounded once, behind the product.
    """
@overload
def mel_frames(
    x: Operand,
    filters: Operand,
    window: Operand | None = None,
    /,
    *,
    n_fft: int,
    hop: int,
    center: bool = False,
    pad: Literal['reflect', 'zeros'] = 'reflect',
) -> Node: ...
@overload
def mel_frames(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def fir(taps: Value, x: Value, /) -> Array:
    """y[t] = Σ taps[i] · x[t - i], with zeros before the signal."""
@overload
def fir(taps: Operand, x: Operand, /) -> Node: ...
@overload
def fir(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def lfilter(
    b: Value,
    a: Value,
    x: Value,
    zi: Value | None = None,
    /,
) -> tuple[Array, Array]:
    """The recursive filter a₀ y[t] = Σ b[i] x[t - i] - Σ a[i] y[t - i], i > 0 in the second sum,
    in the transposed direct form II; and its last state. `zi` is the state to begin with, of
    max(nb, na) - 1 values per signal; without it, zeros.
    """
@overload
def lfilter(
    b: Operand,
    a: Operand,
    x: Operand,
    zi: Operand | None = None,
    /,
) -> tuple[Node, Node]: ...
@overload
def lfilter(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def sosfilt(sos: Value, x: Value, zi: Value | None = None, /) -> tuple[Array, Array]:
    """Filters of second order one after the other, each a row b₀ b₁ b₂ a₀ a₁ a₂ of `sos`; and
    their last states. `zi` are the states to begin with; without it, zeros.
    """
@overload
def sosfilt(sos: Operand, x: Operand, zi: Operand | None = None, /) -> tuple[Node, Node]: ...
@overload
def sosfilt(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def resample_poly(x: Value, taps: Value | None = None, /, *, up: int, down: int) -> Array:
    """The signal at up / down times its rate: `up - 1` zeros after every point, a filter of
    up · `taps`, centred, and then every `down`-th point. Without taps, SciPy's: a low pass of
    20 · max(up, down) + 1 of them under a Kaiser window of beta 5. At its own rate it is as it
    was, unfiltered.
    """
@overload
def resample_poly(
    x: Operand,
    taps: Operand | None = None,
    /,
    *,
    up: int,
    down: int,
) -> Node: ...
@overload
def resample_poly(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def resample(x: Value, /, num: int) -> Array:
    """The signal as `num` points of the same time, through its spectrum: bins are cut or added
    as zeros, as if the signal went on periodically.
    """
@overload
def resample(x: Operand, /, num: int) -> Node: ...
@overload
def resample(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def random_bits(
    counter: Value,
    /,
    dims: Sequence[int | Dim],
    seed: int = 0,
    stream: int = 0,
) -> Array:
    """64 random bits per element, in row-major order: what NumPy's Philox of key (seed, stream)
    gives from this counter on.
    """
@overload
def random_bits(
    counter: Operand,
    /,
    dims: Sequence[int | Dim],
    seed: int = 0,
    stream: int = 0,
) -> Node: ...
@overload
def random_bits(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def random_uniform(
    counter: Value,
    /,
    dims: Sequence[int | Dim],
    low: float = 0.0,
    high: float = 1.0,
    seed: int = 0,
    stream: int = 0,
    dtype: DTypeLike = ...,
) -> Array:
    """low + (high - low) · u, with u the upper bits of a word per element: 53 of them for f64, as
    NumPy's generators have it, 24 for f32, 11 for f16, 8 for bf16. So u is below 1; rounding may
    still give `high`.
    """
@overload
def random_uniform(
    counter: Operand,
    /,
    dims: Sequence[int | Dim],
    low: float = 0.0,
    high: float = 1.0,
    seed: int = 0,
    stream: int = 0,
    dtype: DTypeLike = ...,
) -> Node: ...
@overload
def random_uniform(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def random_normal(
    counter: Value,
    /,
    dims: Sequence[int | Dim],
    mean: float = 0.0,
    scale: float = 1.0,
    seed: int = 0,
    stream: int = 0,
    dtype: DTypeLike = ...,
) -> Array:
    """mean + scale · √(-2 log(1 - u)) · cos 2πv (Box and Muller), with u and v from two words per
    element, one after the other: of 53 bits each for f64, else of 24.
    """
@overload
def random_normal(
    counter: Operand,
    /,
    dims: Sequence[int | Dim],
    mean: float = 0.0,
    scale: float = 1.0,
    seed: int = 0,
    stream: int = 0,
    dtype: DTypeLike = ...,
) -> Node: ...
@overload
def random_normal(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def random_integers(
    counter: Value,
    /,
    dims: Sequence[int | Dim],
    low: int,
    high: int,
    seed: int = 0,
    stream: int = 0,
    dtype: DTypeLike = ...,
) -> Array:
    """Whole numbers from `low` up to, but not including, `high`: the upper half of a word times
    their count, so that none is likelier than another by more than count / 2^64.
    """
@overload
def random_integers(
    counter: Operand,
    /,
    dims: Sequence[int | Dim],
    low: int,
    high: int,
    seed: int = 0,
    stream: int = 0,
    dtype: DTypeLike = ...,
) -> Node: ...
@overload
def random_integers(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def bernoulli(
    p: Value,
    counter: Value,
    /,
    seed: int = 0,
    stream: int = 0,
    to: DTypeLike = ...,
) -> Array:
    """1 with probability p, else 0: whether a uniform number in p's dtype (f32 for half floats) is
    below p. NaN and numbers below 0 give 0, those above 1 give 1.
    """
@overload
def bernoulli(
    p: Operand,
    counter: Operand,
    /,
    seed: int = 0,
    stream: int = 0,
    to: DTypeLike = ...,
) -> Node: ...
@overload
def bernoulli(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def top_k_filter(logits: Value, /, k: int) -> Array:
    """All but the `k` greatest logits of a row left out, and none where it has no more than k."""
@overload
def top_k_filter(logits: Operand, /, k: int) -> Node: ...
@overload
def top_k_filter(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def top_p_filter(logits: Value, /, p: float) -> Array:
    """All left out but the likeliest tokens that together have a probability of `p`; the
    likeliest always stays.
    """
@overload
def top_p_filter(logits: Operand, /, p: float) -> Node: ...
@overload
def top_p_filter(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def min_p_filter(logits: Value, /, p: float) -> Array:
    """All left out that are less likely than `p` times the likeliest."""
@overload
def min_p_filter(logits: Operand, /, p: float) -> Node: ...
@overload
def min_p_filter(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def repetition_penalty(logits: Value, ids: Value, /, penalty: float) -> Array:
    """The logits of tokens among `ids` made smaller: those above 0 divided by `penalty`, those
    below multiplied by it. An id out of range, such as -1, is none.
    """
@overload
def repetition_penalty(logits: Operand, ids: Operand, /, penalty: float) -> Node: ...
@overload
def repetition_penalty(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def sample(
    logits: Value,
    counter: Value,
    /,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    stream: int = 0,
) -> Array:
    """A token per row: logits are divided by `temperature`, filtered by `top_k` (0: not),
    `top_p` and `min_p`, in this order, and one of the rest is drawn by its probability, as the
    greatest sum of logit and Gumbel noise from a word per logit. Temperature 0 takes the
    greatest logit, the first of equals.
    """
@overload
def sample(
    logits: Operand,
    counter: Operand,
    /,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    stream: int = 0,
) -> Node: ...
@overload
def sample(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def multinomial(
    logits: Value,
    counter: Value,
    /,
    count: int,
    seed: int = 0,
    stream: int = 0,
) -> Array:
    """`count` tokens per row, each drawn by its probability, whether drawn before or not; ONNX's
    Multinomial of log-probabilities, which need not add up to 1.
    """
@overload
def multinomial(
    logits: Operand,
    counter: Operand,
    /,
    count: int,
    seed: int = 0,
    stream: int = 0,
) -> Node: ...
@overload
def multinomial(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def hard_max(x: Value, /, axis: int = -1) -> Array:
    """1 at the greatest element along `axis`, the first of equals, else 0."""
@overload
def hard_max(x: Operand, /, axis: int = -1) -> Node: ...
@overload
def hard_max(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def if_(
    pred: Value,
    /,
    *captures: Value | Sequence[Value],
    then: Graph,
    else_: Graph,
    extent: str = '',
) -> tuple[Array, ...]:
    """One of two graphs applied to `captures`: `then` where `pred` is true. The other side does
    not run. Where their results differ in size, the sizes are those of the side that ran:
    `extent.0`, `extent.1` … in order.
    """
@overload
def if_(
    pred: Operand,
    /,
    *captures: Operand | Sequence[Operand],
    then: Graph,
    else_: Graph,
    extent: str = '',
) -> tuple[Node, ...]: ...
@overload
def if_(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def while_(
    *operands: Value | Sequence[Value],
    cond: Graph,
    body: Graph,
    max_iterations: int | None = None,
    num_bcasts: int = 0,
    num_rows: int = 0,
    at_most: int | Dim | None = None,
    extent: str = '',
) -> tuple[Array, ...]:
    """`body` applied to the carries for as long as `cond` of them is true, and at most
    `max_iterations` times. Carries keep dtype and rank, and their sizes but for those that the
    bodies' inputs name `extent.0`, `extent.1` …: those are what the step before made them. The last
    `num_bcasts` operands are no carries: both graphs see them as they are. The body's last
    `num_rows` results are stacked, a row for each step: `extent.rows` of them, and no more than
    `at_most`.
    """
@overload
def while_(
    *operands: Operand | Sequence[Operand],
    cond: Graph,
    body: Graph,
    max_iterations: int | None = None,
    num_bcasts: int = 0,
    num_rows: int = 0,
    at_most: int | Dim | None = None,
    extent: str = '',
) -> tuple[Node, ...]: ...
@overload
def while_(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def scan(
    *operands: Value | Sequence[Value],
    body: Graph,
    length: int | Dim,
    num_carries: int,
    num_bcasts: int = 0,
    reverse: bool = False,
) -> tuple[Array, ...]:
    """`body` applied `length` times. Operands are the first carries, then what every step sees
    whole, then what each step sees one slice of, along the first axis. The body gives the next
    carries and the step's results; the op gives the last carries and the results stacked.
    `reverse` starts at the last slice.
    """
@overload
def scan(
    *operands: Operand | Sequence[Operand],
    body: Graph,
    length: int | Dim,
    num_carries: int,
    num_bcasts: int = 0,
    reverse: bool = False,
) -> tuple[Node, ...]: ...
@overload
def scan(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def custom(
    *operands: Value | Sequence[Value],
    name: str,
    options: str = '{}',
) -> tuple[Array, ...]:
    """The op that `rlx.custom_op` registered under `name`, with options as a JSON object."""
@overload
def custom(
    *operands: Operand | Sequence[Operand],
    name: str,
    options: str = '{}',
) -> tuple[Node, ...]: ...
@overload
def custom(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def nll_loss(
    x: Value,
    labels: Value,
    weights: Value | None = None,
    /,
    *,
    axis: int = 1,
    reduction: Literal['none', 'mean', 'sum'] = 'mean',
    ignore_index: int | None = None,
) -> Array:
    """-x at the class that `labels` names, times that class's weight, for log-probabilities whose
    classes are on `axis`; labels have the dims of x without it. Where a label is `ignore_index`
    the loss is 0 and does not count; any other label that is no class is an error. `mean` divides
    by the sum of the weights that count, or by how many count, and is NaN where none does.
    """
@overload
def nll_loss(
    x: Operand,
    labels: Operand,
    weights: Operand | None = None,
    /,
    *,
    axis: int = 1,
    reduction: Literal['none', 'mean', 'sum'] = 'mean',
    ignore_index: int | None = None,
) -> Node: ...
@overload
def nll_loss(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def softmax_cross_entropy(
    logits: Value,
    labels: Value,
    weights: Value | None = None,
    /,
    *,
    axis: int = 1,
    reduction: Literal['none', 'mean', 'sum'] = 'mean',
    ignore_index: int | None = None,
) -> Array:
    """nll_loss of log_softmax(logits): the cross entropy of the classes' softmax and the labels.
    With reduction `none`, [n, classes] and [n] give the loss of each row. ONNX's second result,
    log_prob, is log_softmax of the logits on `axis`.
    """
@overload
def softmax_cross_entropy(
    logits: Operand,
    labels: Operand,
    weights: Operand | None = None,
    /,
    *,
    axis: int = 1,
    reduction: Literal['none', 'mean', 'sum'] = 'mean',
    ignore_index: int | None = None,
) -> Node: ...
@overload
def softmax_cross_entropy(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def stop_gradient(x: Value, /) -> Array:
    """x, of which a derivative is taken to be zero."""
@overload
def stop_gradient(x: Operand, /) -> Node: ...
@overload
def stop_gradient(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def fused_matmul_bias_act(
    x: Value,
    w: Value,
    bias: Value,
    /,
    activation: str | None = None,
) -> Array:
    """activation(x · w + bias). The bias is anything that broadcasts to the product: a row, or a
    whole residual.
    """
@overload
def fused_matmul_bias_act(
    x: Operand,
    w: Operand,
    bias: Operand,
    /,
    activation: str | None = None,
) -> Node: ...
@overload
def fused_matmul_bias_act(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def fused_conv_bias_act(
    x: Value,
    w: Value,
    bias: Value,
    /,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
    activation: str | None = None,
) -> Array:
    """activation(conv(x, w, bias))."""
@overload
def fused_conv_bias_act(
    x: Operand,
    w: Operand,
    bias: Operand,
    /,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
    activation: str | None = None,
) -> Node: ...
@overload
def fused_conv_bias_act(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def fused_swiglu(cat: Value, /, gate_first: bool = False) -> Array:
    """silu(gate) · up, where the last axis of `cat` holds up and then gate; with `gate_first`,
    gate and then up.
    """
@overload
def fused_swiglu(cat: Operand, /, gate_first: bool = False) -> Node: ...
@overload
def fused_swiglu(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def fused_residual_ln(
    x: Value,
    residual: Value,
    scale: Value | None = None,
    bias: Value | None = None,
    /,
    *,
    axis: int = -1,
    eps: float = 1e-05,
) -> Array:
    """layer_norm(x + residual, scale, bias)."""
@overload
def fused_residual_ln(
    x: Operand,
    residual: Operand,
    scale: Operand | None = None,
    bias: Operand | None = None,
    /,
    *,
    axis: int = -1,
    eps: float = 1e-05,
) -> Node: ...
@overload
def fused_residual_ln(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def fused_residual_rms_norm(
    x: Value,
    residual: Value,
    scale: Value | None = None,
    bias: Value | None = None,
    /,
    *,
    axis: int = -1,
    eps: float = 1e-06,
) -> Array:
    """rms_norm(x + residual, scale, bias)."""
@overload
def fused_residual_rms_norm(
    x: Operand,
    residual: Operand,
    scale: Operand | None = None,
    bias: Operand | None = None,
    /,
    *,
    axis: int = -1,
    eps: float = 1e-06,
) -> Node: ...
@overload
def fused_residual_rms_norm(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def fused_attention_block(
    hidden: Value,
    qkv_w: Value,
    out_w: Value,
    /,
    *more: Value | None,
    num_heads: int,
    head_dim: int,
    kv_heads: int | None = None,
    has_bias: bool = False,
    has_rope: bool = False,
    mask_kind: Literal['none', 'causal', 'sliding_window', 'custom', 'bias'] = 'none',
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    masked_rows: Literal['zeros', 'nan'] = 'zeros',
    n_rot: int | None = None,
    interleaved: bool = False,
) -> Array:
    """Attention of [batch, length, width] with its projections: queries, keys and values from one
    product with `qkv_w` (their columns in this order), rotary positions, attention, and the
    product with `out_w`. After the weights come qkv_b and out_b if `has_bias`, cos and sin if
    `has_rope`, and the mask if its kind takes one.
    """
@overload
def fused_attention_block(
    hidden: Operand,
    qkv_w: Operand,
    out_w: Operand,
    /,
    *more: Operand | None,
    num_heads: int,
    head_dim: int,
    kv_heads: int | None = None,
    has_bias: bool = False,
    has_rope: bool = False,
    mask_kind: Literal['none', 'causal', 'sliding_window', 'custom', 'bias'] = 'none',
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    masked_rows: Literal['zeros', 'nan'] = 'zeros',
    n_rot: int | None = None,
    interleaved: bool = False,
) -> Node: ...
@overload
def fused_attention_block(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def elementwise_region(*externals: Value | Sequence[Value], body: Graph) -> Array:
    """A graph of elementwise ops and constants that runs as one kernel: its inputs are the
    operands, by position, and broadcast as they do op by op.
    """
@overload
def elementwise_region(*externals: Operand | Sequence[Operand], body: Graph) -> Node: ...
@overload
def elementwise_region(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def region(*externals: Value | Sequence[Value], body: Graph) -> Array:
    """Any graph that runs as one kernel: its inputs are the operands, by position."""
@overload
def region(*externals: Operand | Sequence[Operand], body: Graph) -> Node: ...
@overload
def region(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def grouped_matmul(x: Value, w: Value, experts: Value, /) -> Array:
    """Row i of x times the matrix of its expert, w[experts[i]]. An expert that does not exist is
    an error.
    """
@overload
def grouped_matmul(x: Operand, w: Operand, experts: Operand, /) -> Node: ...
@overload
def grouped_matmul(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def lora_matmul(x: Value, w: Value, a: Value, b: Value, /, scale: float = 1.0) -> Array:
    """x · w + scale · (x · a) · b: a weight with a low-rank addition that is not merged into it.
    Integers take a whole scale.
    """
@overload
def lora_matmul(
    x: Operand,
    w: Operand,
    a: Operand,
    b: Operand,
    /,
    scale: float = 1.0,
) -> Node: ...
@overload
def lora_matmul(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def moe_route(
    logits: Value,
    /,
    top_k: int,
    scoring: Literal['softmax', 'sigmoid'] = 'softmax',
    normalise: bool = True,
    scale: float = 1.0,
) -> tuple[Array, Array]:
    """The `top_k` experts of each row and their weights, the greatest first, equals by index.
    Scores are the softmax over all experts, or each expert's sigmoid; `normalise` divides the
    chosen ones by their sum, and `scale` multiplies them.
    """
@overload
def moe_route(
    logits: Operand,
    /,
    top_k: int,
    scoring: Literal['softmax', 'sigmoid'] = 'softmax',
    normalise: bool = True,
    scale: float = 1.0,
) -> tuple[Node, Node]: ...
@overload
def moe_route(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def moe_ffn(
    x: Value,
    router: Value,
    gate: Value,
    up: Value,
    down: Value,
    /,
    top_k: int,
    scoring: Literal['softmax', 'sigmoid'] = 'softmax',
    normalise: bool = True,
    scale: float = 1.0,
    activation: str = 'silu',
) -> Array:
    """A feed-forward layer of experts: each row goes to the `top_k` that the router chooses, each
    gives (activation(row · gate) · (row · up)) · down, and their weighted sum is the result.
    """
@overload
def moe_ffn(
    x: Operand,
    router: Operand,
    gate: Operand,
    up: Operand,
    down: Operand,
    /,
    top_k: int,
    scoring: Literal['softmax', 'sigmoid'] = 'softmax',
    normalise: bool = True,
    scale: float = 1.0,
    activation: str = 'silu',
) -> Node: ...
@overload
def moe_ffn(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def block_dequantize(
    packed: Value,
    scale: Value,
    zero: Value | None = None,
    /,
    *,
    packing: Literal['int8', 'uint8', 'int4', 'uint4', 'fp8_e4m3', 'fp8_e5m2'],
    block: int,
) -> Array:
    """(number - zero) · scale, where `block` numbers of a row share a scale and a zero point.
    Floats of eight bits have no zero point; a NaN among them stays one.
    """
@overload
def block_dequantize(
    packed: Operand,
    scale: Operand,
    zero: Operand | None = None,
    /,
    *,
    packing: Literal['int8', 'uint8', 'int4', 'uint4', 'fp8_e4m3', 'fp8_e5m2'],
    block: int,
) -> Node: ...
@overload
def block_dequantize(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def dequant_matmul(
    x: Value,
    packed: Value,
    scale: Value,
    zero: Value | None = None,
    /,
    *,
    packing: Literal['int8', 'uint8', 'int4', 'uint4', 'fp8_e4m3', 'fp8_e5m2'],
    block: int,
) -> Array:
    """x · Wᵀ, where W is what `block_dequantize` gives. Half floats are multiplied in f32 and
    rounded once.
    """
@overload
def dequant_matmul(
    x: Operand,
    packed: Operand,
    scale: Operand,
    zero: Operand | None = None,
    /,
    *,
    packing: Literal['int8', 'uint8', 'int4', 'uint4', 'fp8_e4m3', 'fp8_e5m2'],
    block: int,
) -> Node: ...
@overload
def dequant_matmul(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def dequant_grouped_matmul(
    x: Value,
    packed: Value,
    experts: Value,
    scale: Value,
    zero: Value | None = None,
    /,
    *,
    packing: Literal['int8', 'uint8', 'int4', 'uint4', 'fp8_e4m3', 'fp8_e5m2'],
    block: int,
) -> Array:
    """Each row of x · Wᵀ of the expert it is for, as `grouped_matmul` does."""
@overload
def dequant_grouped_matmul(
    x: Operand,
    packed: Operand,
    experts: Operand,
    scale: Operand,
    zero: Operand | None = None,
    /,
    *,
    packing: Literal['int8', 'uint8', 'int4', 'uint4', 'fp8_e4m3', 'fp8_e5m2'],
    block: int,
) -> Node: ...
@overload
def dequant_grouped_matmul(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def block_quantize(
    x: Value,
    /,
    packing: Literal['int8', 'int4', 'fp8_e4m3', 'fp8_e5m2'],
    block: int,
) -> tuple[Array, Array]:
    """Bytes and scales of which `block_dequantize` makes x again, up to rounding. The scale of
    `block` consecutive elements makes the greatest of them, in size, the greatest number of the
    packing; numbers are rounded to the nearest, ties to the even one, and none past the greatest.
    A block with a NaN or infinity in it comes back as NaN.
    """
@overload
def block_quantize(
    x: Operand,
    /,
    packing: Literal['int8', 'int4', 'fp8_e4m3', 'fp8_e5m2'],
    block: int,
) -> tuple[Node, Node]: ...
@overload
def block_quantize(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def gguf_dequantize(
    packed: Value,
    /,
    scheme: Literal['f32', 'f16', 'bf16', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4'],
) -> Array:
    """The weights that rows of GGUF blocks hold; a row is the last axis, and whole blocks."""
@overload
def gguf_dequantize(
    packed: Operand,
    /,
    scheme: Literal['f32', 'f16', 'bf16', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4'],
) -> Node: ...
@overload
def gguf_dequantize(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def gguf_matmul(
    x: Value,
    packed: Value,
    /,
    scheme: Literal['f32', 'f16', 'bf16', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4'],
) -> Array:
    """x · Wᵀ, where row i of W, the weights of output i, is row i of `packed`. Half floats
    are multiplied in f32 and rounded once.
    """
@overload
def gguf_matmul(
    x: Operand,
    packed: Operand,
    /,
    scheme: Literal['f32', 'f16', 'bf16', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4'],
) -> Node: ...
@overload
def gguf_matmul(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def gguf_int8_matmul(
    x: Value,
    packed: Value,
    /,
    scheme: Literal['f32', 'f16', 'bf16', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4'],
    terms: int = 1,
) -> Array:
    """`gguf_matmul` of x rounded to bytes: each 32 elements of a row to multiples of their greatest
    size over 127, as `block_quantize` does; with more `terms`, x is the sum of so many such
    roundings, each of what those before left. Where weights are small integers with scales, sums
    of 32 products are exact then. The scales of the weights are finite.
    """
@overload
def gguf_int8_matmul(
    x: Operand,
    packed: Operand,
    /,
    scheme: Literal['f32', 'f16', 'bf16', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4'],
    terms: int = 1,
) -> Node: ...
@overload
def gguf_int8_matmul(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def gguf_grouped_matmul(
    x: Value,
    packed: Value,
    experts: Value,
    /,
    scheme: Literal['f32', 'f16', 'bf16', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4'],
) -> Array:
    """Each row of x · Wᵀ of the expert it is for, as `grouped_matmul` does."""
@overload
def gguf_grouped_matmul(
    x: Operand,
    packed: Operand,
    experts: Operand,
    /,
    scheme: Literal['f32', 'f16', 'bf16', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0', 'q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_k', 'iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq3_xxs', 'iq3_s', 'iq4_nl', 'iq4_xs', 'tq1_0', 'tq2_0', 'mxfp4'],
) -> Node: ...
@overload
def gguf_grouped_matmul(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def quantize_linear(
    x: Value,
    scale: Value,
    zero: Value | None = None,
    /,
    *,
    axis: int = 1,
    block: int = 0,
    to: DTypeLike = ...,
    bits: int | None = None,
) -> Array:
    """round(x / scale) + zero, saturated to `to`; with `bits`, to the numbers of that many bits,
    so that ONNX's int4 is i8 with bits 4.
    """
@overload
def quantize_linear(
    x: Operand,
    scale: Operand,
    zero: Operand | None = None,
    /,
    *,
    axis: int = 1,
    block: int = 0,
    to: DTypeLike = ...,
    bits: int | None = None,
) -> Node: ...
@overload
def quantize_linear(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def dequantize_linear(
    x: Value,
    scale: Value,
    zero: Value | None = None,
    /,
    *,
    axis: int = 1,
    block: int = 0,
) -> Array:
    """(x - zero) · scale."""
@overload
def dequantize_linear(
    x: Operand,
    scale: Operand,
    zero: Operand | None = None,
    /,
    *,
    axis: int = 1,
    block: int = 0,
) -> Node: ...
@overload
def dequantize_linear(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def dynamic_quantize_linear(x: Value, /) -> tuple[Array, Array, Array]:
    """x as u8, with the scale and the zero point that just cover its values and 0."""
@overload
def dynamic_quantize_linear(x: Operand, /) -> tuple[Node, Node, Node]: ...
@overload
def dynamic_quantize_linear(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def fake_quantize(
    x: Value,
    scale: Value | None = None,
    /,
    *,
    bits: int = 8,
    axis: int | None = None,
    symmetric: bool = True,
) -> Array:
    """x rounded to what `bits` can say, as floats. The scale is given, or covers the values of
    all x, or of each index of `axis`. Symmetric means steps from -q to q with q = 2^(bits-1) - 1;
    else there are 2^bits - 1 steps between the least and the greatest value, or 0.
    """
@overload
def fake_quantize(
    x: Operand,
    scale: Operand | None = None,
    /,
    *,
    bits: int = 8,
    axis: int | None = None,
    symmetric: bool = True,
) -> Node: ...
@overload
def fake_quantize(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def matmul_integer(
    x: Value,
    w: Value,
    x_zero: Value | None = None,
    w_zero: Value | None = None,
    /,
) -> Array:
    """(x - x_zero) · (w - w_zero) of bytes, in i32. A zero point is one number, one per row of x
    or column of w, or anything that broadcasts.
    """
@overload
def matmul_integer(
    x: Operand,
    w: Operand,
    x_zero: Operand | None = None,
    w_zero: Operand | None = None,
    /,
) -> Node: ...
@overload
def matmul_integer(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def qlinear_matmul(
    x: Value,
    x_scale: Value,
    x_zero: Value,
    w: Value,
    w_scale: Value,
    w_zero: Value,
    y_scale: Value,
    y_zero: Value,
    /,
) -> Array:
    """The product of what x and w stand for, quantised by y_scale and y_zero, in y_zero's dtype:
    the i32 product times x_scale · w_scale / y_scale.
    """
@overload
def qlinear_matmul(
    x: Operand,
    x_scale: Operand,
    x_zero: Operand,
    w: Operand,
    w_scale: Operand,
    w_zero: Operand,
    y_scale: Operand,
    y_zero: Operand,
    /,
) -> Node: ...
@overload
def qlinear_matmul(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def quantized_matmul(
    x: Value,
    w: Value,
    bias: Value | None = None,
    /,
    *,
    x_zero: int = 0,
    w_zero: int = 0,
    out_zero: int = 0,
    multiplier: float = 1.0,
) -> Array:
    """((x - x_zero) · (w - w_zero) + bias) · multiplier + out_zero, saturated to i8."""
@overload
def quantized_matmul(
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    /,
    *,
    x_zero: int = 0,
    w_zero: int = 0,
    out_zero: int = 0,
    multiplier: float = 1.0,
) -> Node: ...
@overload
def quantized_matmul(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def conv_integer(
    x: Value,
    w: Value,
    x_zero: Value | None = None,
    w_zero: Value | None = None,
    /,
    *,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
) -> Array:
    """`conv` of x - x_zero and w - w_zero, bytes, in i32: so padding stands for x_zero. w_zero is
    one number, or one per output channel.
    """
@overload
def conv_integer(
    x: Operand,
    w: Operand,
    x_zero: Operand | None = None,
    w_zero: Operand | None = None,
    /,
    *,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
) -> Node: ...
@overload
def conv_integer(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def qlinear_conv(
    x: Value,
    x_scale: Value,
    x_zero: Value,
    w: Value,
    w_scale: Value,
    w_zero: Value,
    y_scale: Value,
    y_zero: Value,
    bias: Value | None = None,
    /,
    *,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
) -> Array:
    """The convolution of what x and w stand for, quantised by y_scale and y_zero, in y_zero's
    dtype. The bias is added to the i32 sums.
    """
@overload
def qlinear_conv(
    x: Operand,
    x_scale: Operand,
    x_zero: Operand,
    w: Operand,
    w_scale: Operand,
    w_zero: Operand,
    y_scale: Operand,
    y_zero: Operand,
    bias: Operand | None = None,
    /,
    *,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
) -> Node: ...
@overload
def qlinear_conv(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def quantized_conv(
    x: Value,
    w: Value,
    bias: Value | None = None,
    /,
    *,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
    x_zero: int = 0,
    w_zero: int = 0,
    out_zero: int = 0,
    multiplier: float = 1.0,
) -> Array:
    """(conv(x - x_zero, w - w_zero) + bias) · multiplier + out_zero, saturated to i8."""
@overload
def quantized_conv(
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    /,
    *,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
    x_zero: int = 0,
    w_zero: int = 0,
    out_zero: int = 0,
    multiplier: float = 1.0,
) -> Node: ...
@overload
def quantized_conv(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def cholesky(a: Value, /, upper: bool = False) -> Array:
    """The lower triangle l with positive diagonal and a = l · lᴴ; of `upper`, u with a = uᴴ · u.
    Only that triangle of a is read, and of its diagonal the real part.
    """
@overload
def cholesky(a: Operand, /, upper: bool = False) -> Node: ...
@overload
def cholesky(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def qr(a: Value, /, complete: bool = False) -> tuple[Array, Array]:
    """q and r with a = q · r: the columns of q orthonormal, r upper triangular with a diagonal
    that is real and not negative. q has min(m, n) columns, or m if `complete`.
    """
@overload
def qr(a: Operand, /, complete: bool = False) -> tuple[Node, Node]: ...
@overload
def qr(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def svd(a: Value, /, full_matrices: bool = True) -> tuple[Array, Array, Array]:
    """u, s and vh with a = u · diag(s) · vh: s falling and not negative, the columns of u and the
    rows of vh orthonormal. In each column of u the greatest entry, the first of equals, is real
    and positive, and so it is in those rows of vh that have no column of u.
    """
@overload
def svd(a: Operand, /, full_matrices: bool = True) -> tuple[Node, Node, Node]: ...
@overload
def svd(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def svdvals(a: Value, /) -> Array:
    """The singular values of a, falling."""
@overload
def svdvals(a: Operand, /) -> Node: ...
@overload
def svdvals(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def eigh(a: Value, /, upper: bool = False) -> tuple[Array, Array]:
    """Eigenvalues of a Hermitian matrix, rising, and as columns its eigenvectors, orthonormal. In
    each the greatest entry, the first of equals, is real and positive. Only the lower (or upper)
    triangle of a is read, and of its diagonal the real part.
    """
@overload
def eigh(a: Operand, /, upper: bool = False) -> tuple[Node, Node]: ...
@overload
def eigh(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def solve(a: Value, b: Value, /, vectors: bool = False) -> Array:
    """The x with a · x = b. The stacks broadcast. With `vectors`, which a `b` of rank 1 implies,
    the last axis of b is one right side; else its last two are as many as it has columns.
    """
@overload
def solve(a: Operand, b: Operand, /, vectors: bool = False) -> Node: ...
@overload
def solve(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def inverse(a: Value, /) -> Array:
    """The matrix whose product with a is the identity."""
@overload
def inverse(a: Operand, /) -> Node: ...
@overload
def inverse(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
inv = inverse
@overload
def triangular_solve(
    a: Value,
    b: Value,
    /,
    left: bool = True,
    upper: bool = False,
    unit_diagonal: bool = False,
    transpose: Literal['none', 'transpose', 'adjoint'] = 'none',
) -> Array:
    """The x with t · x = b, or x · t = b where not `left`. t is the lower (or upper) triangle of
    a, with ones on its diagonal if `unit_diagonal`, and then transposed, or the adjoint. Zeros on
    the diagonal divide as floats do.
    """
@overload
def triangular_solve(
    a: Operand,
    b: Operand,
    /,
    left: bool = True,
    upper: bool = False,
    unit_diagonal: bool = False,
    transpose: Literal['none', 'transpose', 'adjoint'] = 'none',
) -> Node: ...
@overload
def triangular_solve(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def slogdet(a: Value, /) -> tuple[Array, Array]:
    """The sign, or phase, of the determinant, and the logarithm of its magnitude: 0 and -inf for a
    singular matrix.
    """
@overload
def slogdet(a: Operand, /) -> tuple[Node, Node]: ...
@overload
def slogdet(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def det(a: Value, /) -> Array:
    """The determinant; of an empty matrix 1."""
@overload
def det(a: Operand, /) -> Node: ...
@overload
def det(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def pinv(a: Value, /, rtol: float | None = None) -> Array:
    """The pseudo-inverse: of each singular value its reciprocal, or 0 where it is at most `rtol`
    times the greatest. Without `rtol`, max(m, n) times the dtype's epsilon.
    """
@overload
def pinv(a: Operand, /, rtol: float | None = None) -> Node: ...
@overload
def pinv(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def trace(a: Value, /, offset: int = 0) -> Array:
    """The sum of a diagonal: the main one, or `offset` columns to its right."""
@overload
def trace(a: Operand, /, offset: int = 0) -> Node: ...
@overload
def trace(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def outer(x: Value, y: Value, /) -> Array:
    """Every element of x times every element of y."""
@overload
def outer(x: Operand, y: Operand, /) -> Node: ...
@overload
def outer(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def cross(x: Value, y: Value, /, axis: int = -1) -> Array:
    """The cross product of vectors, the three entries along `axis`."""
@overload
def cross(x: Operand, y: Operand, /, axis: int = -1) -> Node: ...
@overload
def cross(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def lu_factor(a: Value, /) -> tuple[Array, Array]:
    """l and u in one matrix, the ones on the diagonal of l left out, and the row that each row was
    swapped with, one after the other: a pivot is the first of its column of greatest |re| + |im|.
    A singular matrix has zeros on the diagonal of u; one that is not finite swaps nothing.
    """
@overload
def lu_factor(a: Operand, /) -> tuple[Node, Node]: ...
@overload
def lu_factor(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def pivots_to_permutation(pivots: Value, /, size: int | Dim) -> Array:
    """The order that swaps give to `size` rows: row i with row pivots[i], one after the other. The
    rows of a in that order are l · u.
    """
@overload
def pivots_to_permutation(pivots: Operand, /, size: int | Dim) -> Node: ...
@overload
def pivots_to_permutation(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def lu_solve(
    lu: Value,
    pivots: Value,
    b: Value,
    /,
    transpose: Literal['none', 'transpose', 'adjoint'] = 'none',
) -> Array:
    """The x with a · x = b, or with the transpose or adjoint of a, of the factors that lu_factor
    gives. Zeros on the diagonal of u divide as floats do.
    """
@overload
def lu_solve(
    lu: Operand,
    pivots: Operand,
    b: Operand,
    /,
    transpose: Literal['none', 'transpose', 'adjoint'] = 'none',
) -> Node: ...
@overload
def lu_solve(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def cholesky_solve(factor: Value, b: Value, /, upper: bool = False) -> Array:
    """The x with a · x = b, of the factor that cholesky gives: a = l · lᴴ, or uᴴ · u."""
@overload
def cholesky_solve(factor: Operand, b: Operand, /, upper: bool = False) -> Node: ...
@overload
def cholesky_solve(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def cholesky_inverse(factor: Value, /, upper: bool = False) -> Array:
    """The inverse of the matrix whose factor cholesky gives."""
@overload
def cholesky_inverse(factor: Operand, /, upper: bool = False) -> Node: ...
@overload
def cholesky_inverse(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def ldl_factor(a: Value, /, hermitian: bool = False) -> tuple[Array, Array]:
    """l below d, in one lower triangle, and the pivots: of a = l · d · lᵀ, or lᴴ if `hermitian`.
    Only the lower triangle of a is read. A block of a singular matrix may be 0.
    """
@overload
def ldl_factor(a: Operand, /, hermitian: bool = False) -> tuple[Node, Node]: ...
@overload
def ldl_factor(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def ldl_solve(ld: Value, pivots: Value, b: Value, /, hermitian: bool = False) -> Array:
    """The x with a · x = b, of the factors that ldl_factor gives. Blocks of 0 divide as floats do.
    Pivots that name no row are taken for the nearest that does.
    """
@overload
def ldl_solve(ld: Operand, pivots: Operand, b: Operand, /, hermitian: bool = False) -> Node: ...
@overload
def ldl_solve(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def geqrf(a: Value, /) -> tuple[Array, Array]:
    """r, whose diagonal has either sign, and below it the reflections whose product is q; then
    their factors tau. LAPACK's signs: a diagonal entry of r is opposed to what it replaces, unless
    there is nothing to reflect.
    """
@overload
def geqrf(a: Operand, /) -> tuple[Node, Node]: ...
@overload
def geqrf(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def householder_product(a: Value, tau: Value, /) -> Array:
    """The first columns of the product of reflections, in the order of their factors tau; as many
    as a has, which holds them as geqrf gives them.
    """
@overload
def householder_product(a: Operand, tau: Operand, /) -> Node: ...
@overload
def householder_product(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def ormqr(
    a: Value,
    tau: Value,
    other: Value,
    /,
    left: bool = True,
    transpose: Literal['none', 'transpose', 'adjoint'] = 'none',
) -> Array:
    """q · other, or other · q where not `left`; q is the whole product of reflections, m by m, of
    real matrices transposed and of any the adjoint, where asked for.
    """
@overload
def ormqr(
    a: Operand,
    tau: Operand,
    other: Operand,
    /,
    left: bool = True,
    transpose: Literal['none', 'transpose', 'adjoint'] = 'none',
) -> Node: ...
@overload
def ormqr(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def eig(a: Value, /) -> tuple[Array, Array]:
    """Eigenvalues, by their real parts and then imaginary parts, rising, and as columns their
    eigenvectors, of length 1. In each the greatest entry, the first of equals, is real and
    positive.
    """
@overload
def eig(a: Operand, /) -> tuple[Node, Node]: ...
@overload
def eig(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def eigvals(a: Value, /) -> Array:
    """The eigenvalues of a, in the order of eig."""
@overload
def eigvals(a: Operand, /) -> Node: ...
@overload
def eigvals(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def matrix_exp(a: Value, /) -> Array:
    """e to the power of a matrix: 1 + a + a·a/2 + …. NaN where a is not finite."""
@overload
def matrix_exp(a: Operand, /) -> Node: ...
@overload
def matrix_exp(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def lstsq(a: Value, b: Value, /, rtol: float | None = None) -> Array:
    """The x of least length that minimises the length of a · x - b, column by column. Singular
    values up to `rtol` times the greatest are taken for 0, as by pinv.
    """
@overload
def lstsq(a: Operand, b: Operand, /, rtol: float | None = None) -> Node: ...
@overload
def lstsq(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def spd_exp(a: Value, /) -> Array:
    """exp of a Hermitian matrix, which is positive definite; the inverse of spd_log."""
@overload
def spd_exp(a: Operand, /) -> Node: ...
@overload
def spd_exp(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def spd_log(a: Value, /) -> Array:
    """The Hermitian logarithm of a positive definite matrix. NaN if it is not one."""
@overload
def spd_log(a: Operand, /) -> Node: ...
@overload
def spd_log(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def spd_sqrt(a: Value, /) -> Array:
    """The positive definite root r of a positive definite matrix: a = r · r. NaN if it is none."""
@overload
def spd_sqrt(a: Operand, /) -> Node: ...
@overload
def spd_sqrt(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def spd_power(a: Value, /, exponent: float) -> Array:
    """A positive definite matrix to any real power. NaN if it is not positive definite."""
@overload
def spd_power(a: Operand, /, exponent: float) -> Node: ...
@overload
def spd_power(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def tree_ensemble(
    x: Value,
    threshold: Value,
    feature: Value,
    child: Value,
    missing: Value,
    root: Value,
    weight: Value,
    target: Value | None = None,
    /,
    *,
    n_targets: int,
    span: int,
    aggregate: Literal['sum', 'average', 'min', 'max'] = 'sum',
) -> Array:
    """For each row of x the sum, average, least or greatest of what its trees give, in f64 and
    rounded once. A row at node i of the table goes on to node i + child[i] if x[feature[i]] ≤
    threshold[i], else to the one behind it; NaN goes to the first of them where missing[i], else
    to the second. Where child[i] is 0, i is leaf number feature[i] and gives its row of weights,
    one for each of `n_targets`; or its one weight to its target. Trees begin at their roots. No
    child is further than `span` from its node; tables that lead out of range are an error.
    """
@overload
def tree_ensemble(
    x: Operand,
    threshold: Operand,
    feature: Operand,
    child: Operand,
    missing: Operand,
    root: Operand,
    weight: Operand,
    target: Operand | None = None,
    /,
    *,
    n_targets: int,
    span: int,
    aggregate: Literal['sum', 'average', 'min', 'max'] = 'sum',
) -> Node: ...
@overload
def tree_ensemble(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def append(
    x: Value,
    rows: Value,
    at: Value,
    slots: Value | None = None,
    /,
    *,
    axis: int = 0,
) -> Array:
    """x with `rows` written along an axis from the position `at` on. With a position for each entry
    of the first axis, entry b is written at at[b]; with `slots`, rows[b] go to entry slots[b].
    Rows that do not fit are an error. On a state it is written in place.
    """
@overload
def append(
    x: Operand,
    rows: Operand,
    at: Operand,
    slots: Operand | None = None,
    /,
    *,
    axis: int = 0,
) -> Node: ...
@overload
def append(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def assign(x: Value, value: Value, /) -> Array:
    """`value` in the place of x. On a state, the state is overwritten at the end of the call."""
@overload
def assign(x: Operand, value: Operand, /) -> Node: ...
@overload
def assign(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...
@overload
def cached_attention(
    q: Value,
    keys: Value,
    values: Value,
    at: Value,
    slots: Value | None = None,
    key_scales: Value | None = None,
    value_scales: Value | None = None,
    /,
    *,
    num_heads: int,
    kv_heads: int | None = None,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Array:
    """Causal attention of new queries [batch, queries, heads·depth] over cached keys and values
    [slots, capacity, heads·depth]. Row b reads entry slots[b], or entry b, and its queries stand at
    the positions from at[b] on, where `append` has written their own keys. What is behind them is
    not read, nor, with a `window`, what is further before a query. Caches may have another float
    dtype than queries, or be i8 with a scale for each 32 elements of a head,
    [slots, capacity, heads·depth / 32], by which they are multiplied. The rest is as in
    `attention`.
    """
@overload
def cached_attention(
    q: Operand,
    keys: Operand,
    values: Operand,
    at: Operand,
    slots: Operand | None = None,
    key_scales: Operand | None = None,
    value_scales: Operand | None = None,
    /,
    *,
    num_heads: int,
    kv_heads: int | None = None,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Node: ...
@overload
def cached_attention(first: Symbol, /, *others: Any, **attributes: Any) -> Any: ...