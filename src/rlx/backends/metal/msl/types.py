"""Types and literals of MSL.

bf16 is held as the f32 of the same value, and rounded after each operation by integer arithmetic,
so that every version of MSL gives the same bits; in memory it is its 16 bits. Truth values are
bytes in memory.
"""

from __future__ import annotations

import math

import numpy as np

from rlx.core.dtype import DType
from rlx.program.nodes import Number

BOOL, F16, BF16, F32, F64 = DType.BOOL, DType.F16, DType.BF16, DType.F32, DType.F64
HALVES = (F16, BF16)
NAMES = {
    BOOL: "bool", DType.I8: "char", DType.U8: "uchar", DType.I16: "short", DType.U16: "ushort",
    DType.I32: "int", DType.U32: "uint", DType.I64: "long", DType.U64: "ulong",
    F16: "half", BF16: "float", F32: "float",
}  # fmt: skip
"""Of numbers in registers."""
STORED = {**NAMES, BOOL: "uchar", BF16: "ushort"}
"""Of numbers in memory."""
UNSIGNED = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}
"""By bytes."""
LITERALS = {DType.I32: "{}", DType.U32: "{}u", DType.I64: "{}L", DType.U64: "{}ul"}


def literal(value: Number, dtype: DType) -> str:
    """A number as an expression that stands anywhere."""
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype.is_float:
        return _float(float(value), dtype)
    number = int(value)
    text = LITERALS.get(dtype, f"{NAMES[dtype]}({{}})")
    least = -(1 << (dtype.itemsize * 8 - 1))
    if number == least and dtype.itemsize >= 4:
        bits = f"0x{-least:x}{'u' if dtype.itemsize == 4 else 'ul'}"
        return f"as_type<{NAMES[dtype]}>({bits})"
    return text.format(number) if number >= 0 else f"({text.format(number)})"


def _float(value: float, dtype: DType) -> str:
    """Decimal digits that round to the number itself; what has none by its bits."""
    with np.errstate(over="ignore"):
        rounded = np.asarray(value).astype(dtype.numpy)
    if dtype is F16:
        if not np.isfinite(rounded):
            return f"as_type<half>(ushort(0x{int(rounded.view(np.uint16)):04x}))"
        return f"half({_decimal(float(rounded))})"
    return _decimal(float(rounded.astype(np.float32)))


def _decimal(value: float) -> str:
    """Of an f32."""
    if not math.isfinite(value):
        return f"as_type<float>(0x{int(np.float32(value).view(np.uint32)):08x}u)"
    text = (
        repr(np.float32(value).item())
        if value == int(value) and abs(value) < 1e6
        else (np.format_float_scientific(np.float32(value), unique=True, trim="0"))
    )
    return f"({text}f)" if math.copysign(1.0, value) < 0 else f"{text}f"


def vector(stored: str, count: int) -> str:
    """The type of some neighbours in memory; MSL's vectors have up to four elements."""
    return stored if count == 1 else f"{stored}{count}"
