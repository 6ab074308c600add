"""Numbers with their positions as words: integers that are in order as the numbers are.

A word is a key above a position. No two words of a row are equal, so any way of sorting them
gives equals in the order of their positions. Words are sorted by their keys' bytes, the lowest
first, which takes linear time; few of them by insertion.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.library.shared_functions import helper, polled_call
from rlx.backends.cpu.llvm.builder import ELEMENT, Bound, Code, Vec
from rlx.core.dim import DimLike, is_static
from rlx.core.dtype import DType

BITS = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}
INFINITY = {DType.F16: 0x7C00, DType.BF16: 0x7F80, DType.F32: 0x7F800000, DType.F64: 0x7FF << 52}
NARROW = 2**32 - 1
"""Rows up to this length have positions of 32 bits."""
FEW = 48
"""Up to this many words are sorted by insertion."""
COUNTS_BYTES = 256 * 8
POLLED = 1 << 15
"""Words between two polls: they take some nanoseconds each."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order of numbers of a dtype: NaN is greater than all, and the zeros are equal."""

    dtype: DType
    descending: bool
    is_wide: bool
    """Do keys or positions take more than 32 bits?"""

    @classmethod
    def of(cls, dtype: DType, length: DimLike, *, descending: bool) -> Order:
        is_long = is_static(length) and length > NARROW
        return cls(dtype, descending, dtype.itemsize > 4 or is_long)

    @property
    def bits(self) -> DType:
        """What an element is read as, and its key."""
        return BITS[self.dtype.itemsize]

    @property
    def word(self) -> str:
        return "i128" if self.is_wide else "i64"

    @property
    def word_bytes(self) -> int:
        return 16 if self.is_wide else 8

    @property
    def key_bits(self) -> int:
        """Where a word's key begins."""
        return 64 if self.is_wide else 32

    def key(self, raw: Vec) -> Vec:
        """The bits of numbers as unsigned integers in the same order."""
        top = 1 << (8 * self.dtype.itemsize - 1)
        if self.dtype.is_float:
            raw = self._of_float(raw, top)
        elif self.dtype.is_signed:
            raw = raw ^ top
        return ~raw if self.descending else raw

    def _of_float(self, raw: Vec, top: int) -> Vec:
        """Of negative numbers a greater size is less: all bits turn; above zero only the sign."""
        key = (~raw).where(raw > top, raw | top)
        return raw.like(2 * top - 1).where((raw & (top - 1)) > INFINITY[self.dtype], key)

    # -- words, one at a time -------------------------------------------------------------------

    def made(self, code: Code, key: str, position: Bound) -> str:
        """The word of a key, which is one integer, and a position."""
        high = self._widened(code, ELEMENT[self.bits], key)
        low = position if self.word == "i64" else code.let(f"zext i64 {position} to {self.word}")
        return code.let(f"or {self.word} {high}, {low}")

    def _widened(self, code: Code, element: str, key: str) -> str:
        whole = code.let(f"zext {element} {key} to {self.word}")
        return code.let(f"shl {self.word} {whole}, {self.key_bits}")

    def key_in(self, code: Code, words: str, number: Bound) -> str:
        """The key of a word in memory: it lies in the upper half, lowest byte first."""
        at = self.pointer(code, words, number)
        high = code.let(f"getelementptr i8, ptr {at}, i64 {self.key_bits // 8}")
        return code.let(f"load {ELEMENT[self.bits]}, ptr {high}")

    def position_in(self, code: Code, words: str, number: Bound) -> str:
        at = self.pointer(code, words, number)
        if self.is_wide:
            return code.let(f"load i64, ptr {at}")
        low = code.let(f"load i32, ptr {at}")
        return code.let(f"zext i32 {low} to i64")

    def pointer(self, code: Code, words: str, number: Bound) -> str:
        return code.let(f"getelementptr {self.word}, ptr {words}, i64 {number}")

    def load(self, code: Code, words: str, number: Bound) -> str:
        return code.let(f"load {self.word}, ptr {self.pointer(code, words, number)}")

    def store(self, code: Code, word: str, words: str, number: Bound) -> None:
        code.do(f"store {self.word} {word}, ptr {self.pointer(code, words, number)}")

    # -- sorting --------------------------------------------------------------------------------

    def insert(self, code: Code, words: str, last: Bound) -> None:
        """Move a word down to its place among those before it, which are in order."""
        name = f"words.insert.{self.word}"
        helper(code, name, "ptr %words, i64 %last", self._insert)
        code.do(f"call void @{name}(ptr {words}, i64 {last})")

    def sort(self, code: Code, words: str, room: str, counts: str, length: Bound) -> str:
        """Where the words are in order: where they were, or in the room of the same size.
        Counts are `COUNTS_BYTES`. A long row polls."""
        args = "ptr %words, ptr %room, ptr %counts, i64 %length, i64 %bytes, ptr %poll"
        name = f"words.sort.{self.word}"
        helper(code, name, args, self._sort, result="ptr")
        given = f"ptr {words}, ptr {room}, ptr {counts}, i64 {length}, i64 {self.dtype.itemsize}"
        return polled_call(code, name, given)

    def _insert(self, code: Code) -> None:
        mine = self.load(code, "%words", "%last")
        slot, head, look, move, done = code.slot("i64"), *(code.label() for _ in range(4))
        code.do(f"store i64 %last, ptr {slot}", f"br label %{head}")
        code.lines.append(f"{head}:")
        at = code.let(f"load i64, ptr {slot}")
        is_first = code.let(f"icmp eq i64 {at}, 0")
        code.do(f"br i1 {is_first}, label %{done}, label %{look}")
        code.lines.append(f"{look}:")
        before = code.i64("sub", at, 1)
        other = self.load(code, "%words", before)
        is_greater = code.let(f"icmp ugt {self.word} {other}, {mine}")
        code.do(f"br i1 {is_greater}, label %{move}, label %{done}")
        code.lines.append(f"{move}:")
        self.store(code, other, "%words", at)
        code.do(f"store i64 {before}, ptr {slot}", f"br label %{head}")
        code.lines.append(f"{done}:")
        self.store(code, mine, "%words", at)

    def _sort(self, code: Code) -> None:
        with code.when(code.let(f"icmp sle i64 %length, {FEW}")):
            with code.count(1, "%length", 1) as i:
                self.insert(code, "%words", i)
            code.do("ret ptr %words")
            code.lines.append(f"{code.label('never')}:")
        here, there = code.slot("ptr"), code.slot("ptr")
        code.do(f"store ptr %words, ptr {here}", f"store ptr %room, ptr {there}")
        with code.count(0, "%bytes", 1) as byte:
            self._pass(code, byte, here, there)
        code.do(f"ret ptr {code.let(f'load ptr, ptr {here}')}")

    def _pass(self, code: Code, byte: str, here: str, there: str) -> None:
        """The words in the order of one byte of their keys, other things staying in order."""
        given, to = (code.let(f"load ptr, ptr {slot}") for slot in (here, there))
        bytes_ = code.let(f"getelementptr i8, ptr {given}, i64 {self.key_bits // 8}")
        bytes_ = code.let(f"getelementptr i8, ptr {bytes_}, i64 {byte}")
        with code.count(0, 256, 1) as i:
            code.do(f"store i64 0, ptr {_count(code, i)}")
        with code.count(0, "%length", 1, POLLED) as i:
            at = _count(code, self._byte(code, bytes_, i))
            code.do(f"store i64 {code.i64('add', code.let(f'load i64, ptr {at}'), 1)}, ptr {at}")
        first = code.let(f"load i64, ptr {_count(code, self._byte(code, bytes_, 0))}")
        with code.when(code.let(f"icmp ne i64 {first}, %length")):
            _run_up(code)
            with code.count(0, "%length", 1, POLLED) as i:
                at = _count(code, self._byte(code, bytes_, i))
                place = code.let(f"load i64, ptr {at}")
                code.do(f"store i64 {code.i64('add', place, 1)}, ptr {at}")
                self.store(code, self.load(code, given, i), to, place)
            code.do(f"store ptr {to}, ptr {here}", f"store ptr {given}, ptr {there}")

    def _byte(self, code: Code, bytes_: str, number: Bound) -> str:
        """A byte of a word, as i64."""
        at = self.pointer(code, bytes_, number)
        return code.let(f"zext i8 {code.let(f'load i8, ptr {at}')} to i64")


def _count(code: Code, number: str) -> str:
    return code.let(f"getelementptr i64, ptr %counts, i64 {number}")


def _run_up(code: Code) -> None:
    """Counts to how many there are before."""
    total = code.slot("i64")
    code.do(f"store i64 0, ptr {total}")
    with code.count(0, 256, 1) as i:
        at = _count(code, i)
        before, more = (code.let(f"load i64, ptr {p}") for p in (total, at))
        code.do(f"store i64 {before}, ptr {at}")
        code.do(f"store i64 {code.i64('add', before, more)}, ptr {total}")


def key_lanes(isa: Isa, dtype: DType) -> int:
    """How many keys are looked at together."""
    return isa.vector_bytes // max(4, dtype.itemsize)
