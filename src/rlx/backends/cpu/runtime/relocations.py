"""How one place of the code says where another is, by the numbers of the ELF supplements for
x86-64 and aarch64. Each is a function of the place, the target and the word that is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlx.core.errors import Error, InternalError


@dataclass(frozen=True, slots=True)
class Filler:
    """`value(place, target)` must fit the signed bits, and is put into the word by `put`."""

    word_bytes: int
    bits: int
    value: Callable[[int, int], int]
    put: Callable[[int, int], int]


def filled(code: bytearray, filler: Filler, place: int, target: int) -> None:
    value = filler.value(place, target)
    half = 1 << (filler.bits - 1)
    if not -half <= value < half:
        raise Error("native code is too large: a place is out of reach. Split the model.")
    end = place + filler.word_bytes
    word = filler.put(int.from_bytes(code[place:end], "little"), value)
    code[place:end] = word.to_bytes(filler.word_bytes, "little")


def _distance(place: int, target: int) -> int:
    return target - place


def _pages(place: int, target: int) -> int:
    return (target >> 12) - (place >> 12)


def _whole(bits: int) -> Callable[[int, int], int]:
    return lambda _, value: value & ((1 << bits) - 1)


def _field(bits: int, at: int, scale: int = 0) -> Callable[[int, int], int]:
    """Into the bits of an instruction from `at` on, in units of 2^scale."""
    mask = (1 << bits) - 1

    def put(word: int, value: int) -> int:
        if value & ((1 << scale) - 1):
            raise InternalError("native code refers to a place that is not aligned")
        return (word & ~(mask << at)) | ((value >> scale & mask) << at)

    return put


def _adr(word: int, value: int) -> int:
    """The two low bits of an ADR's distance lie apart from the others."""
    word &= ~((3 << 29) | (0x7FFFF << 5))
    return word | (value & 3) << 29 | (value >> 2 & 0x7FFFF) << 5


def _within_page(scale: int) -> Filler:
    return Filler(4, 64, lambda _, target: target & 0xFFF, _field(12 - scale, 10, scale))


def _branch(bits: int, at: int) -> Filler:
    return Filler(4, bits + 2, _distance, _field(bits, at, 2))


_WORD32 = Filler(4, 32, _distance, _whole(32))
_WORD64 = Filler(8, 64, _distance, _whole(64))

X86_64 = {2: _WORD32, 4: _WORD32, 24: _WORD64}
"""PC32, PLT32, PC64."""

AARCH64 = {
    260: _WORD64, 261: _WORD32,  # PREL64, PREL32
    273: _branch(19, 5), 274: Filler(4, 21, _distance, _adr),  # LD_PREL_LO19, ADR_PREL_LO21
    275: Filler(4, 21, _pages, _adr), 277: _within_page(0),  # ADR_PREL_PG_HI21, ADD_ABS_LO12_NC
    278: _within_page(0), 284: _within_page(1), 285: _within_page(2),  # LDST8, LDST16, LDST32
    286: _within_page(3), 299: _within_page(4),  # LDST64, LDST128
    279: _branch(14, 5), 280: _branch(19, 5),  # TSTBR14, CONDBR19
    282: _branch(26, 0), 283: _branch(26, 0),  # JUMP26, CALL26
}  # fmt: skip

FILLERS = {"x86_64": X86_64, "aarch64": AARCH64}
