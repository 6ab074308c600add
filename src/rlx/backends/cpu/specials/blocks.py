"""Reading blocks of packed weights: numbers that a block has once, and vectors of neighbours.

Blocks lie at any byte. What they have once is read and combined as whole numbers, and is in every
lane from where it is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlx.backends.cpu.halves import from_memory
from rlx.backends.cpu.ir import Bound, Code, Vec
from rlx.backends.cpu.specials.turns import constant
from rlx.dtype import DType

F16, F32, I32, U8, U16 = DType.F16, DType.F32, DType.I32, DType.U8, DType.U16


@dataclass(frozen=True, slots=True)
class Word:
    """One whole number of 32 bits."""

    code: Code
    text: Bound

    def __rshift__(self, by: int) -> Word:
        return self._made("lshr", by) if by else self

    def __lshift__(self, by: int | Word) -> Word:
        return self._made("shl", by) if by else self

    def __and__(self, mask: int) -> Word:
        return self._made("and", mask)

    def __or__(self, other: Word) -> Word:
        return self._made("or", other)

    def __sub__(self, less: int) -> Word:
        return self._made("sub", less)

    def __mul__(self, by: int) -> Word:
        return self._made("mul", by)

    def where(self, condition: str, other: Word) -> Word:
        text = f"select i1 {condition}, i32 {self.text}, i32 {other.text}"
        return Word(self.code, self.code.let(text))

    def _made(self, word: str, other: int | Word) -> Word:
        right = other.text if isinstance(other, Word) else other
        return Word(self.code, self.code.let(f"{word} i32 {self.text}, {right}"))


@dataclass(slots=True)
class Block:
    """A block being read: its address, and what was read of it already."""

    code: Code
    start: str
    _kept: dict[object, Vec] = field(default_factory=dict[object, Vec])

    @property
    def lanes(self) -> int:
        return self.code.lanes

    def kept(self, key: object, make: Callable[[], Vec]) -> Vec:
        """A vector that neighbours share, made once."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    # -- one number -----------------------------------------------------------------------------

    def word(self, at: int, size: int = 1) -> Word:
        """`size` bytes as a whole number."""
        code, kind = self.code, f"i{8 * size}"
        value = code.let(f"load {kind}, ptr {self.pointer(at)}, align 1")
        return Word(code, value if size == 4 else code.let(f"zext {kind} {value} to i32"))

    def field(self, at: int, number: int, bits: int) -> Word:
        """A field of those that fill bytes from `at` on, the lowest bits first."""
        byte, low = divmod(number * bits, 8)
        return self.word(at + byte) >> low & ((1 << bits) - 1)

    def real(self, word: Word) -> Vec:
        """The number, with its sign, in every lane."""
        one = self.code.let(f"sitofp i32 {word.text} to float")
        return self.code.splat(one, F32)

    def half(self, at: int) -> Vec:
        return self.kept(("half", at), lambda: self.half_of(self.word(at, 2)))

    def half_of(self, word: Word) -> Vec:
        """The f16 of these bits, in every lane."""
        bits = self.code.let(f"trunc i32 {word.text} to i16")
        return from_memory(self.code.splat(bits, U16), F16)

    def bits_as_f32(self, word: Word) -> Vec:
        one = self.code.let(f"bitcast i32 {word.text} to float")
        return self.code.splat(one, F32)

    # -- neighbours -----------------------------------------------------------------------------

    def bytes(self, at: int, dtype: DType = U8) -> Vec:
        """As many bytes as there are lanes, as I32."""
        return self.kept((at, dtype), lambda: self.bytes_at(self.pointer(at), dtype))

    def bytes_at(self, pointer: str, dtype: DType) -> Vec:
        text = self.code.let(f"load {self.code.vector('i8')}, ptr {pointer}, align 1")
        return Vec(self.code, text, dtype).to(I32)

    def plane(self, at: int, run: int, bits: int, weight: int) -> Vec:
        """Fields of weights that lie in planes: of a run of bytes the lowest bits of each, then
        the next, and on."""
        which, rest = divmod(weight, run * 8 // bits)
        shift, byte = divmod(rest, run)
        given = self.bytes(at + which * run + byte)
        # of I32 that are bytes no sign comes in
        moved = given >> shift * bits if shift else given
        return moved if (shift + 1) * bits == 8 else moved & ((1 << bits) - 1)

    def bits(self, word: Word, first: int = 0) -> Vec:
        """Bit by bit, from the `first` on, a lane each."""
        lanes = self.code.splat(f"{word.text}", I32)
        return lanes >> self.code.iota(I32) + first & 1

    def signs(self, word: Word, weight: int) -> Vec:
        """-1 for bits of a byte that are 1, 1 for the others, from that of the weight on."""
        return self.code.const(1.0, F32) - self.bits(word, weight % 8).to(F32) * 2.0

    def looked_up(self, table: NDArray[np.float32], name: str, indices: Vec) -> Vec:
        """Numbers of a table of f32, one for each lane."""
        code = self.code
        base = constant(code, f"table.{name}", table)
        kind = code.vector("float")
        where = code.let(f"getelementptr float, ptr {base}, {indices.type} {indices.text}")
        made = code.intrinsic(
            f"masked.gather.{code.suffix('float')}.v{code.lanes}p0", kind,
            f"{code.vector('ptr')} align 4 {where}", f"{code.vector('i1')} splat (i1 true)",
            f"{kind} zeroinitializer",
        )  # fmt: skip
        return Vec(code, made, F32)

    def pointer(self, at: Bound) -> str:
        return self.code.let(f"getelementptr i8, ptr {self.start}, i64 {at}") if at else self.start
