"""GGUF's block formats as small integers: what dot products of bytes need of a scheme.

    weight = scale · (level − zero) + offset

A *level* is an unsigned byte: the code of a weight, or what a table of at most 16 entries has for
it. Weights of a group share scale and offset. `gguf_formats` states the same formats as numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rlx.core.dtype import DType
from rlx.ops.quant.block_expr import (
    POSITION,
    Array,
    BlockFormat,
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
from rlx.ops.quant.gguf_formats import (
    DOUBLED_E2M1,
    EVEN_SIGNS,
    LEVELS,
    SCHEMES,
    fives,
    iq1_m_base,
    iq4_xs_scale,
    q3_k_scale,
    six_bits,
    tq1_0_digit,
    wide_index,
)

F32, U8, U16 = DType.F32, DType.U8, DType.U16
BLOCK = 32
"""Weights that one activation scale is for: all groups are parts of so many, or as many."""
i = POSITION


@dataclass(frozen=True, eq=False, slots=True)
class Factor:
    """The number of a group: base · part · unit. The base is one of the block."""

    base: Expr
    """Its bits: an f16's or bf16's, or an f32's."""
    part: Expr | None = None
    """A byte for each group; the position is the group's."""
    unit: float = 1.0
    is_bf16: bool = False

    @property
    def dtype(self) -> DType:
        """What the bits of the base are."""
        if self.base.dtype is DType.U32:
            return F32
        return DType.BF16 if self.is_bf16 else DType.F16

    @property
    def value(self) -> Expr:
        """As f32. Each product but that with the unit, a power of two, is rounded once."""
        made = self._base
        made = made if self.part is None else made * real(self.part)
        return made if self.unit == 1.0 else made * self.unit

    @property
    def _base(self) -> Expr:
        if self.dtype is F32:
            return bitcast(self.base, F32)
        if self.is_bf16:
            return bitcast(cast(self.base, DType.U32) << 16, F32)
        return f16(self.base)


@dataclass(frozen=True, eq=False, slots=True)
class Codes:
    """The integers of a format's blocks."""

    scheme: str
    bits: int
    code: Expr
    """Of the weight at a position: below 2 to the bits."""
    scale: Factor
    offset: Factor | None = None
    zero: int = 0
    group: int = BLOCK
    """Weights that share a scale and an offset."""
    levels: tuple[int, ...] = ()
    """Level of each code; none where the code is the level."""

    @property
    def weights(self) -> int:
        return SCHEMES[self.scheme].weights

    @property
    def block_bytes(self) -> int:
        return SCHEMES[self.scheme].block_bytes

    @property
    def groups(self) -> int:
        """Of a block."""
        return self.weights // self.group

    @property
    def most(self) -> int:
        """No level is greater."""
        return max(self.levels) if self.levels else (1 << self.bits) - 1

    def with_levels(self) -> Codes:
        """The same with levels for codes: bytes, for machines that have no table of 16 entries in
        registers."""
        if not self.levels:
            return self
        table = Table(f"levels.{self.scheme}", U8, 1, lambda: np.array(self.levels))
        code = row_of(table, self.code)
        return Codes(self.scheme, 8, code, self.scale, self.offset, self.zero, self.group)

    def format_of(self, value: Expr, count: int) -> BlockFormat:
        """So many numbers of a block, as a format."""
        return BlockFormat(count, self.block_bytes, value)


def _recoded(name: str) -> Expr:
    """For the weight's component of a codebook vector, which of the levels it is."""
    given = codebook(name)

    def values() -> Array:
        return np.searchsorted(np.unique(given.values), given.values)

    return row_of(_table(name, given.width, values), _INDICES[name]())


def _table(name: str, width: int, values: Callable[[], Array]) -> Table:
    return Table(f"codes.{name}", U8, width, values)


def _even_sign(word: Expr) -> Expr:
    return row_of(EVEN_SIGNS, word)


_INDICES: dict[str, Callable[[], Expr]] = {
    "iq2_xxs": lambda: u8(2 + i // 32 * 8 + i // 8 % 4),
    "iq2_xs": lambda: u16(2 + i // 8 * 2) & 511,
    "iq2_s": lambda: wide_index(2, 66, i // 8, 2),
    "iq3_xxs": lambda: u8(2 + i // 4),
    "iq3_s": lambda: wide_index(2, 66, i // 4, 1),
}
_SIGNS: dict[str, Callable[[], Expr]] = {
    "iq2_xxs": lambda: _even_sign(u32(6 + i // 32 * 8) >> i // 8 % 4 * 7 & 127),
    "iq2_xs": lambda: _even_sign(u16(2 + i // 8 * 2) >> 9),
    "iq2_s": lambda: u8(34 + i // 8),
    "iq3_xxs": lambda: _even_sign(u32(66 + i // 32 * 4) >> i // 8 % 4 * 7 & 127),
    "iq3_s": lambda: u8(74 + i // 8),
}


def _vectors(scheme: str, part: Expr, unit: float, group: int = BLOCK) -> Codes:
    """A codebook's vectors with signs: the sign above the bits of the level."""
    sizes = sorted({int(v) for v in np.unique(codebook(scheme).values)})
    width = (len(sizes) - 1).bit_length()
    most, rest = sizes[-1], [0] * ((1 << width) - len(sizes))
    levels = (*(most + s for s in sizes), *rest, *(most - s for s in sizes), *rest)
    sign = where(bit(_SIGNS[scheme](), i % 8), 1 << width, u8(0).like(0))
    scale = Factor(u16(0), part, unit)
    return Codes(scheme, width + 1, _recoded(scheme) | sign, scale, None, most, group, levels)


def _odd(field: Expr) -> Expr:
    """2 · field + 1, a byte."""
    return cast(field, U8) * 2 + 1


def _ternary(scheme: str, index: Expr, sign: Expr, scale: Factor, group: int) -> Codes:
    """A codebook vector of −1, 0, 1, plus or minus ⅛: eighths from −9 to 9, as six codes."""
    given = codebook("iq1")
    table = _table("iq1", given.width, lambda: given.values + 1)
    code = row_of(table, index) << 1 | where(sign, 1, u8(0).like(0))
    levels = tuple(9 + 8 * point + shift for point in (-1, 0, 1) for shift in (1, -1))
    return Codes(scheme, 3, code, scale, None, 9, group, (*levels, 0, 0))


def _iq1_s() -> Codes:
    word = u16(34 + i // 32 * 2)
    index = cast(u8(2 + i // 8), U16) | (word >> i // 8 % 4 * 3 & 7) << 8
    scale = Factor(u16(0), _odd(u16(34 + i * 2) >> 12 & 7), 0.125)
    return _ternary("iq1_s", index, bit(word, 15), scale, 32)


def _iq1_m() -> Codes:
    rest = field_of(32, i // 8, 4)
    index = cast(u8(i // 8), U16) | cast(rest & 7, U16) << 8
    scale = Factor(iq1_m_base(), _odd(u16(48 + i // 4 * 2) >> i % 4 * 3 & 7), 0.125)
    return _ternary("iq1_m", index, bit(rest, 3), scale, 16)


def _mxfp4() -> Codes:
    """2^(e-128), of which bf16 has all, subnormal ones too."""
    e = cast(u8(0), U16)
    bits = where(e < 2, e.like(1 << 5) << (e & 1), (e - 1) << 7)
    levels = tuple(int(v) + 12 for v in DOUBLED_E2M1.values[:, 0])
    scale = Factor(bits, is_bf16=True)
    return Codes("mxfp4", 4, plane(1, 16, 4), scale, zero=12, levels=levels)


def _uneven(scheme: str, at: int, scale: Factor) -> Codes:
    """Codes of 4 bits for the levels of iq4_nl."""
    levels = tuple(int(v) + 128 for v in LEVELS.values[:, 0])
    return Codes(scheme, 4, plane(at, 16, 4), scale, zero=128, levels=levels)


def _negated(bits: Expr) -> Expr:
    """An f16 with the other sign."""
    return bits ^ 0x8000


_D = Factor(u16(0))
_M = Factor(u16(2))
_SIXES = Factor(u16(0), six_bits(0, i)), Factor(_negated(u16(2)), six_bits(1, i))
_ALL = (
    Codes("q4_0", 4, plane(2, 16, 4), _D, zero=8),
    Codes("q4_1", 4, plane(4, 16, 4), _D, _M),
    Codes("q5_0", 5, fives(2), _D, zero=16),
    Codes("q5_1", 5, fives(4), _D, _M),
    Codes("q8_0", 8, u8(2 + i) ^ 128, _D, zero=128),
    Codes("q8_k", 8, u8(4 + i) ^ 128, Factor(u32(0)), zero=128),
    _uneven("iq4_nl", 2, _D),
    _uneven("iq4_xs", 8, Factor(u16(0), iq4_xs_scale(i))),
    _mxfp4(),
    Codes(
        "q2_k", 2, plane(16, 32, 2),
        Factor(u16(80), u8(i) & 15), Factor(_negated(u16(82)), u8(i) >> 4), group=16,
    ),
    Codes(
        "q3_k", 3, plane(32, 32, 2) | plane(0, 32, 1) << 2,
        Factor(u16(108), q3_k_scale(i)), zero=4, group=16,
    ),
    Codes("q4_k", 4, plane(16, 32, 4), *_SIXES),
    Codes("q5_k", 5, plane(48, 32, 4) | plane(16, 32, 1) << 4, *_SIXES),
    Codes(
        "q6_k", 6, plane(0, 64, 4) | plane(128, 32, 2) << 4,
        Factor(u16(208), signed(u8(192 + i))), zero=32, group=16,
    ),
    Codes("tq1_0", 2, tq1_0_digit(), Factor(u16(52)), zero=1),
    Codes("tq2_0", 2, plane(0, 32, 2), Factor(u16(64)), zero=1),
    _vectors("iq2_xxs", _odd(u32(6 + i * 8) >> 28), 0.125),
    _vectors("iq2_xs", _odd(field_of(66, i, 4)), 0.125, 16),
    _vectors("iq2_s", _odd(field_of(74, i, 4)), 0.125, 16),
    _vectors("iq3_xxs", _odd(u32(66 + i * 4) >> 28), 0.25),
    _vectors("iq3_s", _odd(field_of(106, i, 4)), 1.0),
    _iq1_s(),
    _iq1_m(),
)  # fmt: skip
CODES: dict[str, Codes] = {c.scheme: c for c in _ALL}
"""Every scheme whose blocks are whole groups of 32 weights: all but floats."""
