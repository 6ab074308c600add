"""Relocatable WebAssembly as LLVM writes it: functions, data segments, symbols and relocations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rlx.backends.cpu.wasm import encoding
from rlx.backends.cpu.wasm.encoding import ExternalKind, Reader, SectionId
from rlx.core.errors import Error

LINKING_VERSION = 2
_SEGMENT_INFO, _SYMBOL_TABLE = 5, 8
"""Subsections of `linking`."""
FUNCTION, DATA, GLOBAL, _SECTION, _TAG, TABLE = range(6)
"""Kinds of symbols."""
_LOCAL, _UNDEFINED, _EXPLICIT_NAME = 0x02, 0x10, 0x40
_WITH_ADDEND = frozenset((3, 4, 5, 8, 9, 11))
"""Relocations by an address or by an offset into a section."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name for a function, for bytes of a data segment, or for what the linker provides."""

    kind: int
    name: str
    is_local: bool
    is_defined: bool
    index: int = 0
    """Of the function, the global or the data segment."""
    offset: int = 0
    """Where in the data segment."""


@dataclass(frozen=True, slots=True)
class Relocation:
    """A place in a section that depends on where the linker puts a symbol."""

    kind: int
    offset: int
    index: int
    """Of the symbol, or of the type."""
    addend: int


@dataclass(frozen=True, slots=True)
class Body:
    """A function: its type, and its code from its size on."""

    type: int
    code: bytes
    start: int
    """Where in the section of code."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes that memory holds from the start."""

    name: str
    align: int
    data: bytes
    start: int
    """Where in the section of data."""


@dataclass(slots=True)
class ObjectFile:
    """What one module of LLVM was compiled to."""

    types: list[bytes] = field(default_factory=list[bytes])
    imported: list[str] = field(default_factory=list[str])
    """The functions that it asks of others: the first indices are theirs."""
    bodies: list[Body] = field(default_factory=list[Body])
    segments: list[Segment] = field(default_factory=list[Segment])
    symbols: list[Symbol] = field(default_factory=list[Symbol])
    code_relocations: list[Relocation] = field(default_factory=list[Relocation])
    data_relocations: list[Relocation] = field(default_factory=list[Relocation])

    @property
    def undefined(self) -> list[str]:
        """The functions that it asks of others."""
        return [s.name for s in self.symbols if s.kind == FUNCTION and not s.is_defined]


def parsed(data: bytes) -> ObjectFile:
    return _Parser(data).made


class _Parser:
    def __init__(self, data: bytes) -> None:
        self.made = ObjectFile()
        self._types: list[int] = []
        """Of the functions that are defined."""
        readers: dict[int, Callable[[Reader], None]] = {
            SectionId.TYPE: self._read_types,
            SectionId.IMPORT: self._read_imports,
            SectionId.FUNCTION: self._read_functions,
            SectionId.CODE: self._read_code,
            SectionId.DATA: self._read_data,
            SectionId.CUSTOM: self._read_custom,
        }
        for number, content in encoding.sections(data):
            if number == SectionId.ELEMENT or number == SectionId.DATA_COUNT:
                continue  # what the linker writes itself
            if number not in readers:
                raise Error(f"a WebAssembly object has a section {number}, which is not linked.")
            readers[number](Reader(content))

    def _read_types(self, reader: Reader) -> None:
        for _ in reader.counted():
            start = reader.at
            reader.byte()
            for _ in range(2):
                reader.take(reader.uleb())
            self.made.types.append(reader.data[start : reader.at])

    def _read_imports(self, reader: Reader) -> None:
        for _ in reader.counted():
            reader.name()
            name, kind = reader.name(), reader.byte()
            if kind == ExternalKind.FUNCTION:
                reader.uleb()
                self.made.imported.append(name)
            elif kind == ExternalKind.GLOBAL:
                reader.take(2)
            else:
                if kind == ExternalKind.TABLE:
                    reader.byte()
                for _ in range(1 + (reader.byte() & 1)):
                    reader.uleb()

    def _read_functions(self, reader: Reader) -> None:
        self._types = [reader.uleb() for _ in reader.counted()]

    def _read_code(self, reader: Reader) -> None:
        for number in reader.counted():
            size = reader.uleb()
            start = reader.at
            self.made.bodies.append(Body(self._types[number], reader.take(size), start))

    def _read_data(self, reader: Reader) -> None:
        for _ in reader.counted():
            if reader.uleb():
                raise Error("a WebAssembly object has data that is not placed when it is loaded.")
            reader.byte()  # i32.const
            reader.sleb()
            reader.byte()  # end
            size = reader.uleb()
            start = reader.at
            self.made.segments.append(Segment("", 1, reader.take(size), start))

    def _read_custom(self, reader: Reader) -> None:
        name = reader.name()
        if name == "linking":
            self._read_linking(reader)
        elif name == "reloc.CODE":
            self.made.code_relocations = _relocations(reader)
        elif name == "reloc.DATA":
            self.made.data_relocations = _relocations(reader)

    def _read_linking(self, reader: Reader) -> None:
        version = reader.uleb()
        if version != LINKING_VERSION:
            raise Error(f"WebAssembly objects are linked from version 2, not {version}.")
        while not reader.is_done:
            kind = reader.byte()
            inner = Reader(reader.take(reader.uleb()))
            if kind == _SEGMENT_INFO:
                self.made.segments = [_named(inner, self.made.segments[i]) for i in inner.counted()]
            elif kind == _SYMBOL_TABLE:
                self.made.symbols = [self._symbol(inner) for _ in inner.counted()]

    def _symbol(self, reader: Reader) -> Symbol:
        kind, flags = reader.byte(), reader.uleb()
        is_local, is_defined = bool(flags & _LOCAL), not flags & _UNDEFINED
        if kind == DATA:
            name = reader.name()
            place = (reader.uleb(), reader.uleb(), reader.uleb())[:2] if is_defined else (0, 0)
            return Symbol(kind, name, is_local, is_defined, *place)
        index = reader.uleb()
        if kind == _SECTION:
            return Symbol(kind, "", is_local, is_defined, index)
        if is_defined or flags & _EXPLICIT_NAME:
            return Symbol(kind, reader.name(), is_local, is_defined, index)
        name = self.made.imported[index] if kind == FUNCTION else ""
        return Symbol(kind, name, is_local, is_defined, index)


def _named(reader: Reader, segment: Segment) -> Segment:
    name, align = reader.name(), reader.uleb()
    reader.uleb()
    return Segment(name, 1 << align, segment.data, segment.start)


def _relocations(reader: Reader) -> list[Relocation]:
    reader.uleb()  # the section
    found: list[Relocation] = []
    for _ in reader.counted():
        kind, offset, index = reader.byte(), reader.uleb(), reader.uleb()
        found.append(Relocation(kind, offset, index, reader.sleb() if kind in _WITH_ADDEND else 0))
    return found
