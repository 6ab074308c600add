"""Types and literals of WGSL.

f32, i32, u32 and truth values are native. Half floats are held as the f32 of the same value, which
is what programs compute with; integers of 8 and 16 bits are held in 32, extended as their dtype
asks; those of 64 bits are two words, the low one first.
"""

from __future__ import annotations

import functools
import math
import struct

import numpy as np

from rlx.core.dtype import DType
from rlx.program.nodes import Number

BOOL, F16, BF16, F32 = DType.BOOL, DType.F16, DType.BF16, DType.F32
I32, U32, I64, U64 = DType.I32, DType.U32, DType.I64, DType.U64
HALVES = (F16, BF16)
WIDE = (I64, U64)
LEAST_NORMAL = 2.0**-126


@functools.cache
def type_of(dtype: DType) -> str:
    """The type that holds a number."""
    if dtype is BOOL:
        return "bool"
    if dtype.is_float:
        return "f32"
    if dtype in WIDE:
        return "vec2<u32>"
    return "i32" if dtype.is_signed else "u32"


def literal(value: Number, dtype: DType) -> str:
    """A number as it is held. Those that no constant of WGSL may be come out of their bits, by a
    call, which no compiler evaluates as a constant expression."""
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype.is_float:
        return _float(float(np.asarray(value, dtype.numpy).astype(np.float32)))
    bits = dtype.itemsize * 8
    wrapped = int(value) & ((1 << bits) - 1)
    if dtype in WIDE:
        return f"vec2<u32>({wrapped & 0xFFFFFFFF}u, {wrapped >> 32}u)"
    if not dtype.is_signed:
        return f"{wrapped}u"
    number = wrapped - (1 << bits if wrapped >> (bits - 1) else 0)
    if number == -(1 << 31):
        return "i32(-2147483648)"
    return f"{number}i" if number >= 0 else f"({number}i)"


def _float(value: float) -> str:
    is_plain = math.isfinite(value) and abs(value) >= LEAST_NORMAL
    if not is_plain and (value or math.copysign(1.0, value) < 0):
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        return f"f32_of({bits:#x}u)"
    # The shortest decimal of the greatest floats is beyond them, which some compilers refuse.
    text = f"{value!r}f" if abs(value) > 3.4e38 else f"{np.float32(value)!s}f"
    return text if value >= 0 else f"({text})"
