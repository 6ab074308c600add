"""Panels of packed weights: the codes of 16 outputs, 32 inputs at a time, in vectors of bytes.

A panel is blocks along K, each as long as the file's: the bases of scale and offset of 16 outputs,
then for every 32 inputs a byte of scale and of offset for each group, and the codes in planes.
A code of b bits is split into fields, one in each plane: a plane of f bits has f vectors of 64
bytes; 8/f consecutive dot-product groups of four inputs share a vector, the first in the lowest
bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.values import Vec
from rlx.core.dtype import DType
from rlx.ops.quant.gguf_codes import BLOCK, CODES, Codes, Factor

PANEL = 16
"""Outputs of a panel."""
WORDS = BLOCK // 4
"""Dot-product groups of 32 inputs."""
WORD_BYTES = 4 * PANEL
"""Of one dot-product group of all outputs."""
PLANES: dict[int, tuple[int, ...]] = {
    2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,),
}  # fmt: skip
"""Bits of a code → the bits of its fields, the lowest first."""
SHUFFLES = {32: "x86.avx2.pshuf.b", 64: "x86.avx512.pshuf.b.512"}
"""A lookup in a table of 16 bytes, by the vector width in bytes."""
F32, I32, U32 = DType.F32, DType.I32, DType.U32


def codes_for(scheme: str, isa: Isa) -> Codes:
    """The codes of a scheme as they are packed for an instruction set."""
    has_table = isa.arch == "x86_64" and isa.vector_bytes in SHUFFLES
    return CODES[scheme] if has_table else CODES[scheme].with_levels()


@dataclass(frozen=True, slots=True)
class Field:
    """Where a plane has the bits of a dot-product group."""

    at: int
    shift: int
    bits: int
    place: int
    """The lowest of the code's bits that it holds."""


@dataclass(frozen=True, slots=True)
class PanelLayout:
    """Offsets in bytes of what a panel holds."""

    codes: Codes

    @property
    def steps(self) -> int:
        """Of 32 inputs, in a block."""
        return self.codes.weights // BLOCK

    @property
    def groups(self) -> int:
        """Of 32 inputs."""
        return BLOCK // self.codes.group

    @property
    def factors(self) -> tuple[Factor, ...]:
        """The scale, and the offset if there is one."""
        c = self.codes
        return (c.scale,) if c.offset is None else (c.scale, c.offset)

    def base(self, number: int) -> int:
        """Of a factor's bases, from the block's start."""
        return sum(PANEL * f.dtype.itemsize for f in self.factors[:number])

    @property
    def head_bytes(self) -> int:
        return self.base(len(self.factors))

    def part(self, number: int, group: int) -> int:
        """Of a factor's bytes for a group, from the start of a step."""
        before = sum(f.part is not None for f in self.factors[:number])
        return (before * self.groups + group) * PANEL

    @property
    def planes_at(self) -> int:
        return self.part(len(self.factors), 0)

    @property
    def step_bytes(self) -> int:
        return self.planes_at + self.codes.bits * WORD_BYTES

    @property
    def block_bytes(self) -> int:
        return self.head_bytes + self.steps * self.step_bytes

    def fields(self, word: int) -> list[Field]:
        """The fields of a dot-product group's codes, from the start of a step."""
        found: list[Field] = []
        at, place = self.planes_at, 0
        for bits in PLANES[self.codes.bits]:
            vector, number = divmod(word, 8 // bits)
            found.append(Field(at + vector * WORD_BYTES, number * bits, bits, place))
            at, place = at + bits * WORD_BYTES, place + bits
        return found


@dataclass(frozen=True, slots=True)
class PanelReader:
    """Vectors of a part of the outputs, from a panel in memory."""

    code: Code
    layout: PanelLayout
    first: int
    """The first of the outputs; there are as many as lanes."""

    def bases(self, block: str) -> list[Vec]:
        """Of scale and offset, times their units."""
        made: list[Vec] = []
        for number, factor in enumerate(self.layout.factors):
            start = self._at(block, self.layout.base(number) + self.first * factor.dtype.itemsize)
            value = load(self.code, factor.dtype, start)
            made.append(value if factor.unit == 1.0 else value * factor.unit)
        return made

    def factors(self, bases: list[Vec], step: str, group: int) -> list[Vec]:
        """Scale and offset of a group."""
        made: list[Vec] = []
        for number, (factor, base) in enumerate(zip(self.layout.factors, bases)):
            if factor.part is not None:
                start = self._at(step, self.layout.part(number, group) + self.first)
                base = base * load(self.code, factor.part.dtype, start).to(I32).to(F32)
            made.append(base)
        return made

    def levels(self, step: str, word: int) -> Vec:
        """The levels of a dot-product group: four bytes of each lane."""
        parts = [self._field(step, f) for f in self.layout.fields(word)]
        made = parts[0]
        for part in parts[1:]:
            made = made | part
        return self._looked_up(made) if self.layout.codes.levels else made

    def _field(self, step: str, field: Field) -> Vec:
        value = load(self.code, U32, self._at(step, field.at + 4 * self.first))
        if field.bits == 8:
            return value
        by = field.shift - field.place
        moved = value if by == 0 else value >> by if by > 0 else value << -by
        return moved & _repeated((1 << field.bits) - 1 << field.place)

    def _looked_up(self, index: Vec) -> Vec:
        code, lanes = self.code, 4 * self.code.lanes
        kind = f"<{lanes} x i8>"
        entries = (*self.layout.codes.levels, *(0,) * 16)[:16]
        table = ", ".join(f"i8 {entries[n % 16]}" for n in range(lanes))
        bytes_ = code.let(f"bitcast {index.type} {index.text} to {kind}")
        name = SHUFFLES[code.isa.vector_bytes]
        made = code.intrinsic(name, kind, f"{kind} <{table}>", f"{kind} {bytes_}")
        return index.made(f"bitcast {kind} {made} to {index.type}")

    def _at(self, start: str, offset: int) -> str:
        return advanced(self.code, start, offset, DType.U8)


def _repeated(byte: int) -> int:
    """A byte in each of four."""
    return byte * 0x01010101


def prefetched(code: Code, start: str, ahead: int, size: int) -> None:
    """Ask for the lines of `size` bytes, so far ahead."""
    for offset in range(0, size, 64):
        where = advanced(code, start, ahead + offset, DType.U8)
        code.intrinsic("prefetch.p0", "void", f"ptr {where}", "i32 0", "i32 3", "i32 1")
