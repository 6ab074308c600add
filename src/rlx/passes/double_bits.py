"""f64 from and to f32 by integer arithmetic on its bits, on targets that have no f64.

An f64 has a sign, 11 bits of exponent + 1023 and 52 bits of fraction; an f32 has 8 bits of
exponent + 127 and 23 of fraction. Both conversions are those of IEEE 754: to f32 by rounding to
nearest, ties to even, with subnormal numbers; to f64 exactly.
"""

from __future__ import annotations

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.ir.mir import Node

F32, F64, I32, I64 = DType.F32, DType.F64, DType.I32, DType.I64
FRACTION, WIDE_FRACTION = 23, 52
DROPPED = WIDE_FRACTION - FRACTION
REBIAS = 1023 - 127
MAGNITUDE, SIGN = 0x7FFF_FFFF, 0x8000_0000
INFINITY, NAN = 0x7F80_0000, 0x7FC0_0000
WIDE_INFINITY = 2047 << WIDE_FRACTION
SUBNORMAL_SCALE = 127 + FRACTION - 1
"""A subnormal f32 is its fraction times 2 to the minus this."""


def narrowed(x: Node) -> Node:
    """An f64 as the nearest f32."""
    bits = ops.bitcast(x, to=I64)
    sign = ops.bit_and(ops.cast(ops.shift_right(bits, 32), to=I32), -(1 << 31))
    magnitude = ops.bit_and(bits, (1 << 63) - 1)
    rounded = _rounded(magnitude)
    is_nan = ops.greater(magnitude, WIDE_INFINITY)
    found = ops.where(is_nan, NAN, rounded)
    return ops.bitcast(ops.bit_or(found, sign), to=F32)


def _rounded(magnitude: Node) -> Node:
    """The bits of a magnitude in f32.

    The significand m is shifted by s bits, more where the result is subnormal, and rounded to even:
    (m + 2ˢ⁻¹ - 1 + the last bit that stays) >> s. Its leading one counts as 1 of the exponent. From
    54 bits on nothing is left of it.
    """
    exponent = ops.cast(ops.shift_right(magnitude, WIDE_FRACTION), to=I32)
    leading = ops.where(ops.greater(exponent, 0), 1 << WIDE_FRACTION, _long(exponent, 0))
    significand = ops.bit_or(ops.bit_and(magnitude, (1 << WIDE_FRACTION) - 1), leading)
    shift = ops.clamp(REBIAS + DROPPED + 1 - exponent, min=DROPPED, max=WIDE_FRACTION + 2)
    wide = ops.cast(shift, to=I64)
    below_half = ops.sub(ops.shift_left(_long(exponent, 1), ops.sub(wide, 1)), 1)
    last = ops.bit_and(ops.shift_right(significand, wide), 1)
    fraction = ops.shift_right(ops.add(ops.add(significand, below_half), last), wide)
    before = ops.clamp(exponent - (REBIAS + 1), min=0, max=253)
    found = ops.add(ops.shift_left(before, FRACTION), ops.cast(fraction, to=I32))
    return ops.where(ops.greater(exponent, REBIAS + 254), INFINITY, found)


def widened(x: Node) -> Node:
    """An f32 as the same number in f64."""
    bits = ops.bitcast(x, to=I32)
    magnitude = ops.bit_and(bits, MAGNITUDE)
    normal = _moved(magnitude, REBIAS)
    special = _moved(magnitude, 2 * REBIAS)
    scaled = ops.bitcast(ops.cast(magnitude, to=F32), to=I32)
    subnormal = _moved(scaled, REBIAS - SUBNORMAL_SCALE)
    found = ops.where(ops.less(magnitude, INFINITY), normal, special)
    is_normal = ops.greater_equal(magnitude, 1 << FRACTION)
    small = ops.where(ops.greater(magnitude, 0), subnormal, _long(magnitude, 0))
    sign = ops.shift_left(ops.bit_and(ops.cast(bits, to=I64), SIGN), 32)
    return ops.bitcast(ops.bit_or(ops.where(is_normal, found, small), sign), to=F64)


def _moved(magnitude: Node, exponent: int) -> Node:
    """Bits of f32 as those of f64, with so much more in the exponent."""
    wide = ops.shift_left(ops.cast(magnitude, to=I64), DROPPED)
    return ops.add(wide, exponent << WIDE_FRACTION)


def _long(like: Node, value: int) -> Node:
    """A number of 64 bits."""
    return like.graph.constant(np.int64(value))
