"""Lines of a PTX function: registers, and the values that they hold.

A value is one register: a predicate for a truth value, 16 bits for a half float, 32 or 64 bits for
numbers. Integers of 8 and 16 bits are held in 32, extended as their dtype asks, so that every
instruction that takes them takes the number they mean. A tile is several registers.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence

from rlx.core.dtype import DType
from rlx.core.errors import UnsupportedError
from rlx.program.nodes import Number, Value
from rlx.program.program import Program
from rlx.program.types import TileType

BOOL, F16, BF16, F32, F64 = DType.BOOL, DType.F16, DType.BF16, DType.F32, DType.F64
CLASSES: Mapping[DType | None, tuple[str, str]] = {
    BOOL: ("p", "pred"), F16: ("h", "b16"), BF16: ("h", "b16"), F32: ("f", "f32"),
    F64: ("fd", "f64"), DType.I64: ("rd", "b64"), DType.U64: ("rd", "b64"),
}  # fmt: skip
"""The prefix and the type of the registers of a dtype; other integers have 32 bits."""
WORD = ("r", "b32")
LETTERS = {F32: "f32", F64: "f64"}


@functools.cache
def bits_of(dtype: DType) -> int:
    """Of the register that holds a number."""
    return max(32, dtype.itemsize * 8) if dtype not in (F16, BF16) else 16


@functools.cache
def kind_of(dtype: DType) -> str:
    """The type of an instruction on numbers as they are held: f32, s32, u64 …"""
    if dtype in LETTERS:
        return LETTERS[dtype]
    return f"{'s' if dtype.is_signed else 'u'}{bits_of(dtype)}"


def literal(value: Number, dtype: DType) -> str:
    """A number as an operand."""
    if dtype is F32:
        return "0f" + struct.pack(">f", value).hex().upper()
    if dtype is F64:
        return "0d" + struct.pack(">d", value).hex().upper()
    return str(int(value))


class Text:
    """The lines of one function."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.lines: list[str] = []
        self.counts: dict[tuple[str, str], int] = {}
        self.held: dict[Value, list[str]] = {}
        self.labels = 0
        self.uniform_warp = ""
        """A register that holds the number of the warp, if the assembler must know that all of its
        threads have the same."""

    def register(self, dtype: DType | None) -> str:
        """A new register for a number of the dtype; a 32-bit word for none."""
        kind = CLASSES.get(dtype, WORD)
        counts = self.counts
        counts[kind] = number = counts.get(kind, 0) + 1
        return f"%{kind[0]}{number}"

    def do(self, instruction: str, *operands: str, when: str = "") -> None:
        guard = f"@{when} " if when else ""
        given = f" {', '.join(operands)}" if operands else ""
        self.lines.append(f"\t{guard}{instruction}{given};")

    def let(self, dtype: DType | None, instruction: str, *operands: str) -> str:
        """The register of an instruction's result."""
        made = self.register(dtype)
        self.lines.append(f"\t{instruction} {made}, {', '.join(operands)};")
        return made

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def mark(self, label: str) -> None:
        self.lines.append(f"{label}:")

    # -- values ----------------------------------------------------------------------------------

    def one(self, value: Value) -> str:
        (register,) = self.held[value]
        return register

    def all(self, values: Sequence[Value]) -> list[str]:
        return [self.one(v) for v in values]

    def give(self, value: Value, *registers: str) -> None:
        self.held[value] = list(registers)

    def fresh(self, value: Value) -> list[str]:
        """New registers for a value of this type."""
        kind = value.type
        if isinstance(kind, TileType):
            return [self.register(F32 if kind.dtype is F32 else None) for _ in range(_words(kind))]
        return [self.register(value.dtype)]

    def move(self, value: Value, to: Sequence[str], given: Sequence[str]) -> None:
        """Registers of one value copied to those of another of the same type."""
        dtype = value.dtype
        for target, source in zip(to, given, strict=True):
            if target == source:
                continue
            is_word = isinstance(value.type, TileType) and dtype is not F32
            suffix = "b32" if is_word else CLASSES.get(dtype, WORD)[1]
            self.do(f"mov.{suffix}", target, source)

    def unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"program {self.program.name}: PTX has no {what}.")


def _words(tile: TileType) -> int:
    """Registers of a thread: two half floats share one."""
    return tile.rows * tile.columns // 32 // (1 if tile.dtype is F32 else 2)
