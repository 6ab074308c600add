"""The binary format of WebAssembly modules: LEB128 numbers, vectors, sections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from rlx.core.errors import Error

MAGIC = b"\0asm\1\0\0\0"
PADDED_BYTES = 5
"""Of an LEB128 number that a linker fills in: as many as 32 bits take."""


class SectionId(IntEnum):
    """The sections that code has; in a module they come in this order."""

    CUSTOM = 0
    TYPE = 1
    IMPORT = 2
    FUNCTION = 3
    TABLE = 4
    MEMORY = 5
    GLOBAL = 6
    EXPORT = 7
    ELEMENT = 9
    DATA_COUNT = 12
    CODE = 10
    DATA = 11


class ExternalKind(IntEnum):
    """What is imported or exported."""

    FUNCTION = 0
    TABLE = 1
    MEMORY = 2
    GLOBAL = 3


FUNCREF, I32, I64, F32, F64, V128 = 0x70, 0x7F, 0x7E, 0x7D, 0x7C, 0x7B
END = b"\x0b"


def uleb(value: int, size: int = 1) -> bytes:
    """An unsigned number in LEB128, padded to so many bytes."""
    made = bytearray()
    while value >= 0x80 or len(made) + 1 < size:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def sleb(value: int, size: int = 1) -> bytes:
    """A signed number in LEB128, padded to so many bytes."""
    made = bytearray()
    while not -0x40 <= value < 0x40 or len(made) + 1 < size:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value & 0x7F])


def name(text: str) -> bytes:
    raw = text.encode()
    return uleb(len(raw)) + raw


def vector(items: Iterable[bytes]) -> bytes:
    """How many, then each."""
    found = list(items)
    return uleb(len(found)) + b"".join(found)


def section(number: SectionId, content: bytes) -> bytes:
    return bytes([number]) + uleb(len(content)) + content


@dataclass(slots=True)
class Reader:
    """Bytes, read from the front."""

    data: bytes
    at: int = 0

    @property
    def is_done(self) -> bool:
        return self.at >= len(self.data)

    def byte(self) -> int:
        return self.take(1)[0]

    def take(self, count: int) -> bytes:
        found = self.data[self.at : self.at + count]
        if len(found) < count:
            raise Error("a WebAssembly object ends before what it says it holds.")
        self.at += count
        return found

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def sleb(self) -> int:
        start = self.at
        value = self.uleb()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) else value

    def name(self) -> str:
        return self.take(self.uleb()).decode()

    def counted(self) -> Iterator[int]:
        """The numbers of a vector's items."""
        return iter(range(self.uleb()))


def sections(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The number and the content of each section."""
    if not data.startswith(MAGIC):
        raise Error("WebAssembly is linked from objects of version 1; this is none.")
    reader = Reader(data, len(MAGIC))
    while not reader.is_done:
        number = reader.byte()
        yield number, reader.take(reader.uleb())
