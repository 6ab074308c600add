"""Dot products of bytes, u8 by i8, added to sums of i32: exact on every instruction set.

VNNI        four products in one instruction
AVX2        pmaddubsw adds two in 16 bits, which levels up to 127 do not overflow
pmaddwd     bytes widened to 16 bits, the even ones and the odd ones
others      bytes widened to 32 bits, one after the other
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from rlx.backends.cpu.codegen.gemm.dot_product_tile import DOT_PRODUCTS, PAIR_DOTS, WASM_PAIR_DOT
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.values import Vec
from rlx.core.dtype import DType

I32 = DType.I32
BYTE_PAIRS = {32: "x86.avx2.pmadd.ub.sw", 64: "x86.avx512.pmaddubs.w.512"}
"""Adds two products of u8 and i8, saturated to 16 bits, by the vector width in bytes."""
MOST_IN_PAIRS = 127
"""2 · 127 · 127 is below 2¹⁵."""
Operands = tuple[str, ...]
"""An operand as an instruction set takes it, with types."""


class Dots(Protocol):
    """Operands are made once, and used for several sums."""

    def levels(self, word: Vec) -> Operands:
        """Of four u8 in each lane."""
        ...

    def steps(self, word: Vec) -> Operands:
        """Of four i8 in each lane."""
        ...

    def plus(self, total: Vec, levels: Operands, steps: Operands) -> Vec:
        """The sums, and the four products of each lane."""
        ...


def dots_for(code: Code, most: int) -> Dots:
    """For levels up to `most`."""
    isa = code.isa
    if isa.has_byte_dots:
        return ByteDots(code)
    if most <= MOST_IN_PAIRS and isa.arch == "x86_64" and isa.vector_bytes in BYTE_PAIRS:
        return SaturatedPairs(code)
    return ShortPairs(code) if isa.has_short_dots else Widened(code)


@dataclass(frozen=True, slots=True)
class _OfBytes:
    """Instructions that take bytes as they are."""

    code: Code

    def levels(self, word: Vec) -> Operands:
        return (_as_bytes(word),)

    def steps(self, word: Vec) -> Operands:
        return (_as_bytes(word),)


@dataclass(frozen=True, slots=True)
class ByteDots(_OfBytes):
    """vpdpbusd."""

    def plus(self, total: Vec, levels: Operands, steps: Operands) -> Vec:
        name, _ = DOT_PRODUCTS[DType.U8]
        given = f"{total.type} {total.text}", levels[0], steps[0]
        return self.code.vector_of(self.code.intrinsic(name, total.type, *given), I32)


@dataclass(frozen=True, slots=True)
class SaturatedPairs(_OfBytes):
    """pmaddubsw, then pmaddwd with ones."""

    def plus(self, total: Vec, levels: Operands, steps: Operands) -> Vec:
        shorts, name = _shorts(self.code), BYTE_PAIRS[self.code.isa.vector_bytes]
        pairs = self.code.intrinsic(name, shorts, levels[0], steps[0])
        return total + _pair_dot(self.code, f"{shorts} {pairs}", f"{shorts} splat (i16 1)")


@dataclass(frozen=True, slots=True)
class ShortPairs:
    """pmaddwd of bytes 0 and 2, and of bytes 1 and 3."""

    code: Code

    def levels(self, word: Vec) -> Operands:
        even, odd = word & 0x00FF00FF, word >> 8 & 0x00FF00FF
        return _as_shorts(even), _as_shorts(odd)

    def steps(self, word: Vec) -> Operands:
        code, kind = self.code, _shorts(self.code)
        _, text = _as_shorts(word).rsplit(" ", 1)
        moved = code.let(f"shl {kind} {text}, splat (i16 8)")
        parts = (code.let(f"ashr {kind} {t}, splat (i16 8)") for t in (moved, text))
        return tuple(f"{kind} {p}" for p in parts)

    def plus(self, total: Vec, levels: Operands, steps: Operands) -> Vec:
        for a, b in zip(levels, steps):
            total = total + _pair_dot(self.code, a, b)
        return total


@dataclass(frozen=True, slots=True)
class Widened:
    """Products of 32 bits."""

    code: Code

    def levels(self, word: Vec) -> Operands:
        return _typed((word >> 8 * n) & 255 if n else word & 255 for n in range(4))

    def steps(self, word: Vec) -> Operands:
        signed = word.bits(I32)
        return _typed((signed << 24 - 8 * n if n < 3 else signed) >> 24 for n in range(4))

    def plus(self, total: Vec, levels: Operands, steps: Operands) -> Vec:
        for a, b in zip(levels, steps):
            product = self.code.let(f"mul {a}, {b.rsplit(' ', 1)[1]}")
            total = total + self.code.vector_of(product, I32)
        return total


def _typed(values: Iterable[Vec]) -> Operands:
    return tuple(f"{v.type} {v.text}" for v in values)


def _shorts(code: Code) -> str:
    return f"<{2 * code.lanes} x i16>"


def _as_shorts(word: Vec) -> str:
    kind = _shorts(word.code)
    return f"{kind} {word.code.let(f'bitcast {word.type} {word.text} to {kind}')}"


def _as_bytes(word: Vec) -> str:
    kind = f"<{4 * word.code.lanes} x i8>"
    return f"{kind} {word.code.let(f'bitcast {word.type} {word.text} to {kind}')}"


def _pair_dot(code: Code, left: str, right: str) -> Vec:
    isa: Isa = code.isa
    name = WASM_PAIR_DOT if isa.is_wasm else PAIR_DOTS[isa.vector_bytes]
    return code.vector_of(code.intrinsic(name, code.vector("i32"), left, right), I32)
