"""GGUF's block formats: the weight at position i of a block, to the bit as the file format defines
it. In the notes of the layouts, `n·b` are n fields of b bits.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from rlx.core.dtype import DType
from rlx.ops.quant.block_expr import (
    POSITION,
    BlockFormat,
    Const,
    Expr,
    Table,
    bit,
    bitcast,
    cast,
    f16,
    field_of,
    plane,
    real,
    row_of,
    signed,
    u8,
    u16,
    u32,
    where,
)
from rlx.ops.quant.gguf_codebooks import codebook

Scheme = Literal[
    "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k",
    "q6_k", "q8_k", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl",
    "iq4_xs", "tq1_0", "tq2_0", "mxfp4",
]  # fmt: skip
F32, U16, U32 = DType.F32, DType.U16, DType.U32
i = POSITION

LEVELS = Table("levels.iq4", F32, 1, lambda: np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
))  # fmt: skip
DOUBLED_E2M1 = Table("levels.e2m1", F32, 1, lambda: np.array(
    [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]
))  # fmt: skip
"""Twice the numbers of one sign, two exponent and one mantissa bit."""
EVEN_SIGNS = Table("even.signs", DType.U8, 1, lambda: np.array(
    [n | (n.bit_count() % 2) << 7 for n in range(128)]
))  # fmt: skip
"""The eighth sign makes their product positive, so seven bits say all eight."""
POWERS_OF_3 = Table("powers.3", DType.U8, 1, lambda: 3 ** np.arange(5))


def _half(at: int) -> Expr:
    """The f16 at a byte, as f32."""
    return f16(u16(at))


# -- blocks of 32: one scale, and for some an offset ----------------------------------------------


def fives(at: int) -> Expr:
    """32·1 high bits, then 32·4 low ones."""
    low = plane(at + 4, 16, 4)
    return where(bit(u32(at), i), low | 16, low)


def _mxfp4() -> Expr:
    """8-bit exponent of the scale, 32·4 e2m1. The table is doubled, so the scale is halved:
    2^(e-128), which is subnormal for e below 2."""
    e = cast(u8(0), U32)
    subnormal = e.like(1 << 21) << (e & 1)
    scale = bitcast(where(e < 2, subnormal, (e - 1) << 23), F32)
    return scale * row_of(DOUBLED_E2M1, plane(1, 16, 4))


# -- super-blocks of 256: quantised scales --------------------------------------------------------


def _q2_k() -> Expr:
    """16·(4 scale, 4 offset), 256·2, f16 scale of scales, f16 scale of offsets."""
    pair = u8(i // 16)
    scale, offset = _half(80) * real(pair & 15), _half(82) * real(pair >> 4)
    return scale * real(plane(16, 32, 2)) - offset


def q3_k_scale(g: Expr) -> Expr:
    """The scale of 16 weights: 16·4 low bits and 16·2 high ones in planes, less 32."""
    low, high = u8(96 + g % 8) >> g // 8 * 4 & 15, u8(104 + g % 4) >> g // 4 * 2 & 3
    return signed(low | high << 4) - 32


def _q3_k() -> Expr:
    """256·1 high bits, 256·2 low ones, the scales, f16 scale of scales. A high bit of 0 takes off
    4."""
    scale = _half(108) * real(q3_k_scale(i // 16))
    return scale * real(signed(plane(32, 32, 2) | plane(0, 32, 1) << 2) - 4)


def six_bits(which: int, g: Expr) -> Expr:
    """The scale (0) or offset (1) of 32 weights: behind two f16, 8 scales and 8 offsets of 6 bits
    in 12 bytes: four scales, four offsets, and the low bits of the other four of each; their high
    bits are the spare ones of the first eight bytes."""
    first = u8(4 + 4 * which + g % 4)
    late = u8(8 + g) >> 4 * which & 15 | first >> 6 << 4
    return where(g < 4, first & 63, late)


def _six(which: int) -> Expr:
    """The scale or offset, by the f16 scale of scales or that of offsets."""
    return _half(2 * which) * real(six_bits(which, i // 32))


def _q6_k() -> Expr:
    """256·4 low bits, 256·2 high ones, 16·8 signed scales, f16 scale of scales; less 32."""
    scale = _half(208) * real(signed(u8(192 + i // 16)))
    return scale * real(signed(plane(0, 64, 4) | plane(128, 32, 2) << 4) - 32)


def iq4_xs_scale(g: Expr) -> Expr:
    """The scale of 32 weights: 8·2 high bits, then 8·4 low ones; less 32."""
    return signed(field_of(4, g, 4) | field_of(2, g, 2) << 4) - 32


def _iq4_xs() -> Expr:
    """f16 scale of scales, the scales, 256·4 levels of iq4_nl."""
    scale = _half(0) * real(iq4_xs_scale(i // 32))
    return scale * row_of(LEVELS, plane(8, 16, 4))


# -- super-blocks of 256: ternary -----------------------------------------------------------------


def tq1_0_digit() -> Expr:
    """A weight plus 1: five in a byte (in the last four bytes four). A byte is a fraction of 256 in
    base 3: times 3ⁿ, wrapping, its first digit is weight n."""
    byte = where(i < 160, i % 32, where(i < 240, 32 + i % 16, 48 + i % 4))
    digit = where(i < 160, i // 32, where(i < 240, (i - 160) // 16, (i - 240) // 4))
    fraction = u8(byte) * row_of(POWERS_OF_3, digit)
    return cast(cast(fraction, U16) * 3 >> 8, DType.U8)


# -- super-blocks of 256: vector codebooks --------------------------------------------------------


def _with_sign(bits: Expr, value: Expr) -> Expr:
    """Negated where the weight's bit of eight is 1."""
    return where(bit(bits, i % 8), -value, value)


def _point(name: str, index: Expr) -> Expr:
    """The weight's component of a codebook vector."""
    return real(row_of(codebook(name), index))


def _lifted(field: Expr, factor: float) -> Expr:
    """scale · (½ + field) · factor."""
    return _half(0) * (real(field) + 0.5) * factor


def _odd(scale: Expr, field: Expr) -> Expr:
    """scale · (2 · field + 1)."""
    return scale * (real(field) * 2.0 + 1.0)


def _even_signs(word: Expr) -> Expr:
    """The signs of eight weights of 32: seven of the low 28 bits."""
    return row_of(EVEN_SIGNS, word >> i // 8 % 4 * 7 & 127)


def _iq2_xxs() -> Expr:
    """f16 scale; per 32 weights, four indices of the codebook, then 4·7 signs and 4 scale."""
    start = i // 32 * 8
    word, index = u32(6 + start), u8(2 + start + i // 8 % 4)
    return _lifted(word >> 28, 0.25) * _with_sign(_even_signs(word), _point("iq2_xxs", index))


def _iq2_xs() -> Expr:
    """f16 scale, 32·(9 index, 7 signs), 16·4 scales."""
    word = u16(2 + i // 8 * 2)
    point = _with_sign(row_of(EVEN_SIGNS, word >> 9), _point("iq2_xs", word & 511))
    return _lifted(field_of(66, i // 16, 4), 0.25) * point


def wide_index(low: int, high: int, number: Expr, bits: int) -> Expr:
    """An index whose 8 low bits and few high bits are packed in separate fields."""
    return cast(u8(low + number), U16) | cast(field_of(high, number, bits), U16) << 8


def _iq2_s() -> Expr:
    """f16 scale, 32·8 low bits of indices, 256·1 signs, 32·2 high bits of indices, 16·4 scales."""
    point = _with_sign(u8(34 + i // 8), _point("iq2_s", wide_index(2, 66, i // 8, 2)))
    return _lifted(field_of(74, i // 16, 4), 0.25) * point


def _iq3_xxs() -> Expr:
    """f16 scale, 64·8 indices, then per 32 weights 4·7 signs and 4 scale."""
    word = u32(66 + i // 32 * 4)
    return _lifted(word >> 28, 0.5) * _with_sign(
        _even_signs(word), _point("iq3_xxs", u8(2 + i // 4))
    )


def _iq3_s() -> Expr:
    """f16 scale, 64·8 low bits of indices, 64·1 high ones, 256·1 signs, 8·4 scales."""
    point = _with_sign(u8(74 + i // 8), _point("iq3_s", wide_index(2, 66, i // 4, 1)))
    return _odd(_half(0), field_of(106, i // 32, 4)) * point


def _shifted_point(index: Expr, sign: Expr) -> Expr:
    """A ternary codebook vector plus ⅛, or minus where the sign is set."""
    return _point("iq1", index) + where(sign, -0.125, Const(F32, value=0.125))


def _iq1_s() -> Expr:
    """f16 scale, 32·8 low bits of indices, 8·(4·3 high bits, 3 scale, 1 sign)."""
    word = u16(34 + i // 32 * 2)
    index = cast(u8(2 + i // 8), U16) | (word >> i // 8 % 4 * 3 & 7) << 8
    return _odd(_half(0), word >> 12 & 7) * _shifted_point(index, bit(word, 15))


def iq1_m_base() -> Expr:
    """The bits of the f16 scale of scales, four behind each four scales, the lowest first."""
    a, b, c, d = (u16(48 + 2 * n) >> 12 << 4 * n for n in range(4))
    return a | b | c | d


def _iq1_m() -> Expr:
    """32·8 low bits of indices, 32·(3 high bits, 1 sign), 4·(4·3 scales, and 4 bits of the f16
    scale of scales)."""
    g, rest = i // 16, field_of(32, i // 8, 4)
    index = cast(u8(i // 8), U16) | cast(rest & 7, U16) << 8
    scale = _odd(f16(iq1_m_base()), u16(48 + g // 4 * 2) >> g % 4 * 3 & 7)
    return scale * _shifted_point(index, bit(rest, 3))


SCHEMES: dict[str, BlockFormat] = {
    "f32": BlockFormat(1, 4, bitcast(u32(0), F32)),
    "f16": BlockFormat(1, 2, _half(0)),
    "bf16": BlockFormat(1, 2, bitcast(cast(u16(0), U32) << 16, F32)),
    # f16 scale, 32·4 less 8
    "q4_0": BlockFormat(32, 18, _half(0) * real(signed(plane(2, 16, 4)) - 8)),
    # f16 scale, f16 offset, 32·4
    "q4_1": BlockFormat(32, 20, _half(0) * real(plane(4, 16, 4)) + _half(2)),
    # f16 scale, 32·5 less 16
    "q5_0": BlockFormat(32, 22, _half(0) * real(signed(fives(2)) - 16)),
    # f16 scale, f16 offset, 32·5
    "q5_1": BlockFormat(32, 24, _half(0) * real(fives(4)) + _half(2)),
    # f16 scale, 32·8 signed
    "q8_0": BlockFormat(32, 34, _half(0) * real(signed(u8(2 + i)))),
    # f16 scale, 32·4 levels of uneven steps
    "iq4_nl": BlockFormat(32, 18, _half(0) * row_of(LEVELS, plane(2, 16, 4))),
    "mxfp4": BlockFormat(32, 17, _mxfp4()),
    "q2_k": BlockFormat(256, 84, _q2_k()),
    "q3_k": BlockFormat(256, 110, _q3_k()),
    # scales and offsets, 256·4
    "q4_k": BlockFormat(256, 144, _six(0) * real(plane(16, 32, 4)) - _six(1)),
    # scales and offsets, 256·1 high bits, 256·4 low ones
    "q5_k": BlockFormat(
        256, 176, _six(0) * real(plane(48, 32, 4) | plane(16, 32, 1) << 4) - _six(1)
    ),
    "q6_k": BlockFormat(256, 210, _q6_k()),
    # f32 scale, 256·8 signed, 16·16 sums of them, which decoding does not need
    "q8_k": BlockFormat(256, 292, bitcast(u32(0), F32) * real(signed(u8(4 + i)))),
    "iq4_xs": BlockFormat(256, 136, _iq4_xs()),
    # 256 digits, f16 scale
    "tq1_0": BlockFormat(256, 54, _half(52) * (real(tq1_0_digit()) - 1.0)),
    # 256·2 less 1, f16 scale
    "tq2_0": BlockFormat(256, 66, _half(64) * real(signed(plane(0, 32, 2)) - 1)),
    "iq2_xxs": BlockFormat(256, 66, _iq2_xxs()),
    "iq2_xs": BlockFormat(256, 74, _iq2_xs()),
    "iq2_s": BlockFormat(256, 82, _iq2_s()),
    "iq3_xxs": BlockFormat(256, 98, _iq3_xxs()),
    "iq3_s": BlockFormat(256, 110, _iq3_s()),
    "iq1_s": BlockFormat(256, 50, _iq1_s()),
    "iq1_m": BlockFormat(256, 56, _iq1_m()),
}
