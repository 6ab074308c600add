"""Floats by their bits: neighbours, mantissa and exponent."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.ops.compose import dtype_of
from rlx.ops.math.elementwise import elementwise
from rlx.ops.math.special_functions import PAIR
from rlx.ops.op import Array, Kind, op

_INTEGER = {2: DType.I16, 4: DType.I32, 8: DType.I64}


@elementwise(PAIR, flops="10*out", is_exact=True, jumps=True)
def nextafter(x: Array, y: Array) -> Array:
    """The float next to x in the direction of y; y where they are equal."""
    return np.nextafter(x, y)


@nextafter.lowering
def _(x: Any, y: Any) -> Any:
    """Bits of floats of one sign are in the order of their sizes."""
    kind = dtype_of(x)
    integer = _INTEGER[kind.itemsize]
    bits = ops.bitcast(x, to=integer)
    outward = ops.equal(ops.greater(y, x), ops.greater(x, 0.0))
    step = ops.cast(ops.where(outward, 1, -1), to=integer)
    moved = ops.bitcast(ops.add(bits, step), to=kind)
    least = np.array(1, integer.numpy).view(kind.numpy)
    tiny = ops.where(ops.greater(y, x), least, -least)
    made = ops.where(ops.equal(x, 0.0), tiny, moved)
    made = ops.where(ops.equal(x, y), y, made)
    return ops.where(ops.is_nan(x), x, ops.where(ops.is_nan(y), y, made))


@op("f[*s] -> f[*s], i32[*s]", kind=Kind.SPECIAL, flops="10*out", is_exact=True)
def frexp(x: Array) -> tuple[Array, Array]:
    """m and n with x = m · 2ⁿ and 1/2 ≤ |m| < 1; x and 0 for 0, infinities and NaN."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    is_plain = np.isfinite(x)
    found = np.where(is_plain, mantissa, x.astype(np.float64)).astype(x.dtype)
    return found, np.where(is_plain, exponent, 0).astype(np.int32)


_BITS = {DType.F16: (10, 15), DType.BF16: (7, 127), DType.F32: (23, 127), DType.F64: (52, 1023)}
"""Bits of the stored mantissa, and the bias of exponents."""


@frexp.lowering
def _(x: Any) -> tuple[Any, Any]:
    """A subnormal number is its mantissa, a whole number, times a power of two."""
    kind = dtype_of(x)
    integer, (width, bias) = _INTEGER[kind.itemsize], _BITS[kind]
    mask = (1 << width) - 1
    size = ops.bit_and(ops.bitcast(x, to=integer), int(np.iinfo(integer.numpy).max))
    is_tiny = ops.less(size, mask + 1)
    whole = ops.cast(ops.cast(size, to=DType.I32 if width < 32 else DType.I64), to=kind)
    bits = ops.where(is_tiny, ops.bitcast(whole, to=integer), size)
    lost = ops.cast(ops.where(is_tiny, bias - 1 + width, 0), to=integer)
    exponent = ops.sub(ops.sub(ops.shift_right(bits, width), lost), bias - 1)
    found = ops.bitcast(ops.bit_or(ops.bit_and(bits, mask), (bias - 1) << width), to=kind)
    is_plain = ops.logical_and(ops.is_finite(x), ops.not_equal(size, 0))
    signed = ops.where(ops.less(ops.bitcast(x, to=integer), 0), ops.neg(found), found)
    made = ops.where(is_plain, signed, x)
    return made, ops.cast(ops.where(is_plain, exponent, 0), to=DType.I32)
