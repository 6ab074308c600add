"""ELF files of 64 bits as LLVM writes them: sections, symbols and relocations."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQq")
MAGIC = b"\x7fELF\x02\x01"
"""64 bits, little-endian."""
SYMTAB, RELA, NOBITS = 2, 4, 8
WRITE, ALLOC, EXEC = 1, 2, 4
LOCAL = 0


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the file."""

    name: str
    kind: int
    flags: int
    link: int
    info: int
    align: int
    size: int
    address: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name for a place in a section."""

    name: str
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def is_local(self) -> bool:
        return self.info >> 4 == LOCAL


@dataclass(frozen=True, slots=True)
class Relocation:
    """A place in a section that depends on where a symbol is."""

    offset: int
    kind: int
    symbol: int
    addend: int


def machine_of(data: bytes) -> int | None:
    """The number of the architecture; None where it is no such file."""
    return struct.unpack_from("<H", data, 0x12)[0] if data[:6] == MAGIC else None


def sections(data: bytes) -> list[Section]:
    (start,) = struct.unpack_from("<Q", data, 0x28)
    count, names_at = struct.unpack_from("<HH", data, 0x3C)
    heads = [SECTION.unpack_from(data, start + i * SECTION.size) for i in range(count)]
    names = _content(data, heads[names_at])
    return [
        Section(
            text(names, h[0]), h[1], h[2], h[6], h[7], max(1, h[8]), h[5], h[3], _content(data, h)
        )
        for h in heads
    ]


def _content(data: bytes, head: tuple[int, ...]) -> bytes:
    return b"" if head[1] == NOBITS else data[head[4] : head[4] + head[5]]


def text(names: bytes, at: int) -> str:
    """A name of a table of strings."""
    return names[at : names.index(b"\0", at)].decode()


def symbols(found: list[Section], kind: int = SYMTAB) -> list[Symbol]:
    """Of the first table of this kind."""
    table = next((s for s in found if s.kind == kind), None)
    return list(_symbols(table, found)) if table else []


def _symbols(table: Section, found: list[Section]) -> Iterator[Symbol]:
    names = found[table.link].data
    for name, info, other, section, value, size in SYMBOL.iter_unpack(table.data):
        yield Symbol(text(names, name), info, other, section, value, size)


def relocations(table: Section) -> Iterator[Relocation]:
    for offset, info, addend in RELOCATION.iter_unpack(table.data):
        yield Relocation(offset, info & 0xFFFFFFFF, info >> 32, addend)
