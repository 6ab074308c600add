"""Elementwise ops on vectors: the op table's definitions as vector code.

Nothing is undefined behaviour: dividing an integer by 0 gives 0, the least integer divided by -1
wraps, and a shift by the width or more gives 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlx.backends.cpu.codegen.math import elementary as maths
from rlx.backends.cpu.codegen.math import fast_math as fast
from rlx.backends.cpu.codegen.math.storage_types import (
    UNSIGNED,
    from_memory,
    rounded_to_half,
    to_memory,
)
from rlx.backends.cpu.llvm.values import Vec, fma
from rlx.core.dtype import DType

Args = Sequence[Vec]


def apply(name: str, args: Args, attrs: Mapping[str, Any], given: DType) -> Vec:
    """An op of the table on vectors. `given` is the dtype of the first operand in the graph."""
    if name == "cast":
        return cast(args[0], attrs["to"])
    if name == "bitcast":
        return bitcast(args[0], given, attrs["to"])
    if args[0].code.isa.maths == "fast" and args[0].dtype is DType.F32 and name in fast.FUNCTIONS:
        return fast.FUNCTIONS[name](*args)
    return NATIVE[name](*args)


def is_native(name: str) -> bool:
    return name in NATIVE or name in ("cast", "bitcast")


# -- arithmetic -----------------------------------------------------------------------------------


def _divide(x: Vec, y: Vec) -> Vec:
    if x.is_float:
        return x / y
    safe, is_zero, wraps = _safe_divisor(x, y)
    quotient = x.like(0).where(is_zero, x / safe)
    return (-x).where(wraps, quotient) if wraps else quotient


def _remainder(x: Vec, y: Vec) -> Vec:
    if x.is_float:
        return x.code.outlined("fmod", _fmod, x, y)
    safe, is_zero, wraps = _safe_divisor(x, y)
    left = x % safe
    left = x.like(0).where(is_zero, left)
    return x.like(0).where(wraps, left) if wraps else left


def _safe_divisor(x: Vec, y: Vec) -> tuple[Vec, Vec, Vec | None]:
    """The divisor, or 1 where it is 0 or, for signed x, -1."""
    is_zero = y.equals(0)
    if not x.dtype.is_signed:
        return y.like(1).where(is_zero, y), is_zero, None
    wraps = y.equals(-1)
    return y.like(1).where(is_zero | wraps, y), is_zero, wraps


CHUNK = 20
"""Bits of a quotient that one step of long division finds: few, so that the step is exact."""


def _fmod(x: Vec, y: Vec) -> Vec:
    """Long division: subtract whole multiples of the divisor times a power of two, each step
    exactly, until less than the divisor is left."""
    a, b = x.abs(), y.abs()
    is_plain = (b > 0.0) & (b < maths.INF) & (a < maths.INF)
    a, b = a.where(is_plain, 0.0), b.where(is_plain, 1.0)
    base = maths.exponent(b)

    def more(left: Vec) -> Vec:
        return left >= b

    def step(left: Vec) -> list[Vec]:
        k = maths.exponent(left) - base - CHUNK
        k = k.where(k > 0, 0)
        chunk = maths.scaled(maths.scaled(b, k >> 1), k - (k >> 1))
        rest = fma(-(left / chunk).trunc(), chunk, left)
        # a quotient that was rounded up is one too many
        rest = (rest + chunk).where(rest < 0.0, rest)
        return [rest.where(left >= b, left)]

    (left,) = x.code.repeat([a], more, step)
    value = left.copysign(x).where(is_plain, x.like(maths.NAN))
    return x.where(y.abs().equals(maths.INF) & (x.abs() < maths.INF), value)


def _power(x: Vec, y: Vec) -> Vec:
    if x.is_float:
        return maths.power(x, y)
    value = x.code.outlined("ipow", _whole_power, x, y)
    if not x.dtype.is_signed:
        return value
    odd = (y & 1).differs(0)
    inverse = x.where(odd, 1).where(x.equals(1) | x.equals(-1), 0)
    return inverse.where(y < 0, value)


def _whole_power(x: Vec, y: Vec) -> Vec:
    """Square and multiply, as long as a bit of a power is left."""

    def more(_total: Vec, _square: Vec, left: Vec) -> Vec:
        return left.differs(0)

    def step(total: Vec, square: Vec, left: Vec) -> list[Vec]:
        total = (total * square).where((left & 1).differs(0), total)
        return [total, square * square, left >> 1]

    unsigned = UNSIGNED[x.dtype.itemsize]
    left = y.bits(unsigned)
    if y.dtype.is_signed:
        left = left.where(y > 0, 0)
    return x.code.repeat([x.like(1), x, left], more, step)[0]


def maximum(x: Vec, y: Vec) -> Vec:
    """The greater; NaN if one is. Of two zeros either. One instruction beside a constant."""
    if not x.is_float or x.is_number:
        return x.where(x > y, y)
    if y.is_number:
        return y.where(y > x, x)
    return x.where(x.is_nan(), x.where(x > y, y))


def minimum(x: Vec, y: Vec) -> Vec:
    if not x.is_float or x.is_number:
        return x.where(x < y, y)
    if y.is_number:
        return y.where(y < x, x)
    return x.where(x.is_nan(), x.where(x < y, y))


def _absolute(x: Vec) -> Vec:
    if x.is_float:
        return x.abs()
    return (-x).where(x < 0, x) if x.dtype.is_signed else x


# -- logic and bits -------------------------------------------------------------------------------


def _shift_left(x: Vec, y: Vec) -> Vec:
    amount, is_inside = _amount(y)
    return (x << amount).where(is_inside, 0)


def _shift_right(x: Vec, y: Vec) -> Vec:
    amount, is_inside = _amount(y)
    gone = x >> (x.dtype.itemsize * 8 - 1) if x.dtype.is_signed else x.like(0)
    return (x >> amount).where(is_inside, gone)


def _amount(y: Vec) -> tuple[Vec, Vec]:
    """The amount, or 0 where it is the width or more; compared as unsigned, so negative is too."""
    unsigned = y.bits(UNSIGNED[y.dtype.itemsize])
    is_inside = unsigned < y.dtype.itemsize * 8
    return y.where(is_inside, 0), is_inside


def _where(cond: Vec, x: Vec, y: Vec) -> Vec:
    return x.where(cond, y)


def _ceil(x: Vec) -> Vec:
    return -((-x).floor())


# -- dtypes ---------------------------------------------------------------------------------------


def cast(x: Vec, to: DType) -> Vec:
    """Rounds to half precision, too, which is held as f32."""
    return x.to(to) if to.compute is to else rounded_to_half(x, to)


def bitcast(x: Vec, given: DType, to: DType) -> Vec:
    """Bitcast of the stored elements."""
    return from_memory(to_memory(x, given), to)


NATIVE: dict[str, Callable[..., Vec]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": _divide,
    "rem": _remainder,
    "pow": _power,
    "maximum": maximum,
    "minimum": minimum,
    "neg": lambda x: -x,
    "abs": _absolute,
    "square": lambda x: x * x,
    "sqrt": lambda x: x.sqrt(),
    "exp": maths.exp,
    "expm1": maths.expm1,
    "log": maths.log,
    "tanh": maths.tanh,
    "sin": maths.sin,
    "cos": maths.cos,
    "atan2": maths.atan2,
    "erf": maths.erf,
    "erfc": maths.erfc,
    "floor": lambda x: x.floor(),
    "ceil": _ceil,
    "trunc": lambda x: x.trunc(),
    "round": lambda x: x.round(),
    "equal": lambda x, y: x.equals(y),
    "not_equal": lambda x, y: x.differs(y),
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
    "logical_and": lambda x, y: x & y,
    "logical_or": lambda x, y: x | y,
    "logical_xor": lambda x, y: x ^ y,
    "logical_not": lambda x: ~x,
    "where": _where,
    "bit_and": lambda x, y: x & y,
    "bit_or": lambda x, y: x | y,
    "bit_xor": lambda x, y: x ^ y,
    "bit_not": lambda x: ~x,
    "shift_left": _shift_left,
    "shift_right": _shift_right,
    "is_nan": lambda x: x.is_nan(),
}
