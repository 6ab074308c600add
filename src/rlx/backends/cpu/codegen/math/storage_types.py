"""Storage types: bool as a byte, half-precision conversion (f16 and bf16 compute as f32 and are
rounded to nearest, ties to even)."""

from __future__ import annotations

from rlx.backends.cpu.llvm.values import Vec
from rlx.core.dtype import DType

F16, BF16, F32, F64, U16, U32 = (
    DType.F16, DType.BF16, DType.F32, DType.F64, DType.U16, DType.U32,
)  # fmt: skip
HALF_PRECISION = (F16, BF16)
UNSIGNED = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}
"""The unsigned dtype of a width in bytes."""
TWO_112 = 2.0**112
"""From the exponents of f16 to those of f32: the difference of their biases."""


def stored(dtype: DType) -> DType:
    """The dtype of the stored element."""
    if dtype is DType.BOOL:
        return DType.U8
    return U16 if dtype in HALF_PRECISION else dtype


def from_memory(raw: Vec, dtype: DType) -> Vec:
    """Widen loaded elements to the compute dtype."""
    if dtype is DType.BOOL:
        return raw.differs(0)
    if dtype is BF16:
        return (raw.bits(U16).to(U32) << 16).bits(F32)
    if dtype is F16:
        return _from_f16(raw.bits(U16))
    return raw.bits(dtype)


def to_memory(value: Vec, dtype: DType) -> Vec:
    """Narrow a value to the stored dtype."""
    if dtype is DType.BOOL:
        return value.to(DType.U8)
    if dtype is BF16:
        return _to_bf16(value)
    if dtype is F16:
        return _to_f16(value)
    return value


def rounded_to_half(x: Vec, dtype: DType) -> Vec:
    """Any number, rounded once to half precision, held as f32."""
    if x.dtype is F64 and dtype is F16:
        x = _to_odd(x)
    if dtype is BF16:
        return _bf16_bits(x.to(F32)).bits(F32)
    return from_memory(to_memory(x.to(F32), dtype), dtype)


def _to_odd(x: Vec) -> Vec:
    """Round to odd: an f64 truncated to the 24 bits of f32, the last of which is sticky: rounding
    that once more to f16 is the same as rounding x."""
    bits = x.bits(DType.U64)
    lost = (bits & 0x1FFFFFFF).differs(0)
    cut = bits & 0xFFFFFFFFE0000000
    return (cut | 0x20000000).where(lost, cut).bits(F64).where(x.equals(x), x)


def _to_bf16(x: Vec) -> Vec:
    return (_bf16_bits(x) >> 16).to(U16)


def _bf16_bits(x: Vec) -> Vec:
    """The nearest bf16, as the upper bits of an f32: add just under half of the last bit kept, or
    half where that bit is odd, and truncate. NaN stays NaN."""
    bits = x.bits(U32)
    up = bits + 0x7FFF + ((bits >> 16) & 1)
    return up.where(x.equals(x), bits | 0x400000) & 0xFFFF0000


def _from_f16(raw: Vec) -> Vec:
    code = raw.code
    if code.isa.has_halves:
        return raw.bits(F16).to(F32)
    wide = raw.to(U32)
    size, sign = wide & 0x7FFF, (wide & 0x8000) << 16
    finite = ((size << 13).bits(F32) * TWO_112).bits(U32)
    whole = finite.where(size < 0x7C00, (size << 13) | 0x7F800000)
    return (whole | sign).bits(F32)


def _to_f16(x: Vec) -> Vec:
    code = x.code
    if code.isa.has_halves:
        return x.to(F16).bits(U16)
    size, bits = x.abs(), x.bits(U32)
    number = size.bits(U32)
    normal = ((number + 0xFFF + ((number >> 13) & 1)) >> 13) - (112 << 10)
    # the last bit of ½ is that of f16's denormals, so adding ½ rounds to them
    small = (size + 0.5).bits(U32) - size.like(0.5).bits(U32)
    value = small.where(size < 2.0**-14, normal)
    value = value.like(0x7C00).where(size >= 65520.0, value)
    value = value.where(x.equals(x), 0x7E00)
    return (value | ((bits >> 16) & 0x8000)).to(U16)
