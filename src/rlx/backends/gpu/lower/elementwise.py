"""Elementwise ops of the table as nodes of SIMT programs.

A value is held in its dtype's compute dtype: half floats as f32, rounded where the kernel casts to
them. Nothing is left open: dividing an integer by 0 gives 0, the least integer divided by -1 wraps,
shifts by the width or more have the table's meaning, floats saturate when they become integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rlx.backends.gpu.lower.fast import Fast, approximate
from rlx.core.dtype import DType
from rlx.kernel.expr import Apply, Const
from rlx.program.builder import Builder
from rlx.program.values import Var

BOOL, F16, BF16, F32, F64 = DType.BOOL, DType.F16, DType.BF16, DType.F32, DType.F64
UNSIGNED = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}


def is_native(node: Apply) -> bool:
    """Is it an op of this page, for these operands? Others are decomposed by their lowerings."""
    name = node.op.name
    if name in ("cast", "bitcast"):
        return True
    if name in FUNCTIONS or name == "sigmoid":
        return node.args[0].dtype.is_float
    return name in NATIVE


def apply(b: Builder, node: Apply, args: Sequence[Var], fast: Fast | None = None) -> Var:
    """A native op on values as they are held; approximated where that is allowed."""
    name = node.op.name
    made = None if fast is None else approximate(b, name, args[0], fast)
    if made is not None:
        return made
    if name == "cast":
        return cast(b, args[0], node.attrs["to"])
    if name == "bitcast":
        return bitcast(b, args[0], node.args[0].dtype, node.attrs["to"])
    if name in FUNCTIONS:
        return b.call(FUNCTIONS[name], *args)
    return NATIVE[name](b, *args)


def scaled_reciprocal(b: Builder, y: Var) -> tuple[Var, Var]:
    """s and 1 / (y · s): x / y is x · s times that. The power of two s is 1, unless 1 / y by itself
    is out of range."""
    info = np.finfo(y.dtype.numpy)
    tiny, bits = float(info.tiny), 2.0 ** (info.nmant + 2)
    size = abs(y)
    scale = b.const(1.0 / bits, y.dtype).where(size > 1.0 / tiny, 1.0)
    scale = b.const(bits, y.dtype).where(size < tiny, scale)
    return scale, 1.0 / (y * scale)


def constant(b: Builder, node: Const) -> Var:
    """A number as it is held."""
    dtype = node.dtype
    wide = node.value.astype(np.float64) if dtype.is_float else node.value
    return b.const(wide.item(), dtype.compute)


FUNCTIONS: Mapping[str, str] = {
    "exp": "exp",
    "expm1": "expm1",
    "log": "log",
    "tanh": "tanh",
    "sin": "sin",
    "cos": "cos",
    "atan2": "atan2",
    "erf": "erf",
    "erfc": "erfc",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "log1p": "log1p",
    "exp2": "exp2",
}
"""Ops of floats that are functions of a program."""


def _sigmoid(b: Builder, x: Var) -> Var:
    """Through e^-|x|, which does not overflow."""
    e = b.call("exp", -abs(x))
    return e.where(x < 0.0, 1.0) / (e + 1.0)


# -- integers -------------------------------------------------------------------------------------


def _divided(b: Builder, x: Var, y: Var) -> Var:
    if x.dtype.is_float:
        return x / y
    safe, is_zero, wraps = _divisor(x, y)
    quotient = b.const(0, x.dtype).where(is_zero, x // safe)
    return (-x).where(wraps, quotient) if wraps is not None else quotient


def _remainder(b: Builder, x: Var, y: Var) -> Var:
    if x.dtype.is_float:
        return b.call("fmod", x, y)
    safe, is_zero, wraps = _divisor(x, y)
    none = is_zero if wraps is None else is_zero | wraps
    return b.const(0, x.dtype).where(none, x % safe)


def _divisor(x: Var, y: Var) -> tuple[Var, Var, Var | None]:
    """The divisor, or 1 where it is 0 or, for signed x, -1."""
    is_zero, one = y.eq(0), x.builder.const(1, x.dtype)
    if not x.dtype.is_signed:
        return one.where(is_zero, y), is_zero, None
    wraps = y.eq(-1)
    return one.where(is_zero | wraps, y), is_zero, wraps


def _power(b: Builder, x: Var, y: Var) -> Var:
    if x.dtype.is_float:
        return b.call("pow", x, y)
    value = _whole_power(b, x, y)
    if not x.dtype.is_signed:
        return value
    one, zero = b.const(1, x.dtype), b.const(0, x.dtype)
    odd = (y & 1).ne(0)
    inverse = x.where(odd, one).where(x.eq(1) | x.eq(-1), zero)
    return inverse.where(y < 0, value)


def _whole_power(b: Builder, x: Var, y: Var) -> Var:
    """Square and multiply, as long as a bit of the exponent is left."""
    start = y.max(0) if y.dtype.is_signed else y
    left = b.variable(start.bits(UNSIGNED[y.dtype.itemsize]))
    total, square = b.variable(1, x.dtype), b.variable(x)
    with b.repeat([total, square, left]) as again:
        again.when(left.ne(0))
        total.set((total * square).where((left & 1).ne(0), total))
        square.set(square * square)
        left.set(left >> 1)
    return total


def _absolute(b: Builder, x: Var) -> Var:
    return x if x.dtype in UNSIGNED.values() else abs(x)


def _shifted_left(b: Builder, x: Var, y: Var) -> Var:
    amount, is_inside = _amount(b, y)
    return (x << amount).where(is_inside, 0)


def _shifted_right(b: Builder, x: Var, y: Var) -> Var:
    amount, is_inside = _amount(b, y)
    gone = x >> (x.dtype.itemsize * 8 - 1) if x.dtype.is_signed else b.const(0, x.dtype)
    return (x >> amount).where(is_inside, gone)


def _amount(b: Builder, y: Var) -> tuple[Var, Var]:
    """The amount, or 0 where it is the width or more; compared as unsigned, so negative is too."""
    is_inside = y.bits(UNSIGNED[y.dtype.itemsize]) < y.dtype.itemsize * 8
    return y.where(is_inside, 0), is_inside


def _negated(b: Builder, x: Var) -> Var:
    return b.const(0, x.dtype) - x if x.dtype in UNSIGNED.values() else -x


# -- dtypes ---------------------------------------------------------------------------------------


def cast(b: Builder, x: Var, to: DType) -> Var:
    """As `to` is held, rounded to it."""
    if to is BOOL:
        return x if x.dtype is BOOL else x.ne(0)
    if x.dtype.is_float and to.is_integer:
        return _saturated(b, x, to)
    if to.compute is to:
        return x.to(to)
    wide = x.to(F32) if to is BF16 or not x.dtype.is_float else x
    return wide.to(to).to(F32)


def _saturated(b: Builder, x: Var, to: DType) -> Var:
    """Towards 0; past the range the nearest end, and 0 of NaN."""
    bits = to.itemsize * 8 - to.is_signed
    low, high = (-(2**bits) if to.is_signed else 0), 2**bits
    whole = x.trunc()
    fits = (whole >= float(low)) & (whole < float(high))
    made = whole.where(fits, 0.0).to(to)
    end = b.const(high - 1, to).where(whole > 0.0, low)
    return b.const(0, to).where(x.ne(x), made.where(fits, end))


def bitcast(b: Builder, x: Var, given: DType, to: DType) -> Var:
    """Of the stored element."""
    stored = x.to(given)
    return stored.bits(to).to(to.compute)


NATIVE: dict[str, Callable[..., Var]] = {
    "add": lambda b, x, y: x + y,
    "sub": lambda b, x, y: x - y,
    "mul": lambda b, x, y: x * y,
    "div": _divided,
    "rem": _remainder,
    "pow": _power,
    "maximum": lambda b, x, y: x.max(y),
    "minimum": lambda b, x, y: x.min(y),
    "neg": _negated,
    "abs": _absolute,
    "square": lambda b, x: x * x,
    "floor": lambda b, x: x.floor(),
    "ceil": lambda b, x: x.ceil(),
    "trunc": lambda b, x: x.trunc(),
    "round": lambda b, x: x.round(),
    "equal": lambda b, x, y: x.eq(y),
    "not_equal": lambda b, x, y: x.ne(y),
    "less": lambda b, x, y: x < y,
    "less_equal": lambda b, x, y: x <= y,
    "greater": lambda b, x, y: x > y,
    "greater_equal": lambda b, x, y: x >= y,
    "logical_and": lambda b, x, y: x & y,
    "logical_or": lambda b, x, y: x | y,
    "logical_xor": lambda b, x, y: x ^ y,
    "logical_not": lambda b, x: ~x,
    "where": lambda b, c, x, y: x.where(c, y),
    "bit_and": lambda b, x, y: x & y,
    "bit_or": lambda b, x, y: x | y,
    "bit_xor": lambda b, x, y: x ^ y,
    "bit_not": lambda b, x: ~x,
    "shift_left": _shifted_left,
    "shift_right": _shifted_right,
    "is_nan": lambda b, x: x.ne(x),
    "sigmoid": _sigmoid,
}
"""Ops that are a few nodes each."""
