"""The linker: relocatable WebAssembly objects to one module without imports.

Memory begins with the stack, so that one that overflows leaves memory and traps, then come the data
segments; from `__heap_base` on it belongs to the caller. Functions whose addresses are taken are in
one table, from index 1 on: 0 is null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rlx.backends.cpu.wasm.encoding import (
    END,
    FUNCREF,
    I32,
    MAGIC,
    PADDED_BYTES,
    ExternalKind,
    SectionId,
    name,
    section,
    sleb,
    uleb,
    vector,
)
from rlx.backends.cpu.wasm.object_file import (
    DATA,
    FUNCTION,
    GLOBAL,
    TABLE,
    ObjectFile,
    Relocation,
    Symbol,
    parsed,
)
from rlx.core.errors import Error

STACK_BYTES = 256 << 10
PAGE = 64 << 10
HEAP_ALIGN = 64
MAX_PAGES = 65536
_STACK_POINTER, _HEAP_BASE = 0, 1
"""Indices of globals."""
_I32_CONST = b"\x41"


def _padded_uleb(value: int) -> bytes:
    return uleb(value, PADDED_BYTES)


def _padded_sleb(value: int) -> bytes:
    return sleb(value - (1 << 32) if value >> 31 else value, PADDED_BYTES)


def _word(value: int) -> bytes:
    return (value % (1 << 32)).to_bytes(4, "little")


_KINDS = {
    0: "function", 1: "table index", 2: "table index", 3: "address", 4: "address", 5: "address",
    6: "type", 7: "global", 20: "table",
}  # fmt: skip
"""Relocations by their numbers: what of the symbol is put there."""
_ENCODINGS: dict[int, Callable[[int], bytes]] = {
    0: _padded_uleb, 1: _padded_sleb, 2: _word, 3: _padded_uleb, 4: _padded_sleb, 5: _word,
    6: _padded_uleb, 7: _padded_uleb, 20: _padded_uleb,
}  # fmt: skip


@dataclass(slots=True)
class _Placed:
    """An object, and where its parts are in the module."""

    file: ObjectFile
    types: list[int] = field(default_factory=list[int])
    first_function: int = 0
    addresses: list[int] = field(default_factory=list[int])
    """Of its data segments."""

    def function(self, index: int) -> int:
        return self.first_function + index - len(self.file.imported)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a symbol is: the index of a function, or an address."""

    kind: int
    at: int


def linked(objects: Sequence[bytes], exports: Sequence[str]) -> bytes:
    """The objects as one module that exports these functions, its memory, and where the memory
    that is free begins."""
    return _Link([parsed(o) for o in objects]).module(exports)


class _Link:
    def __init__(self, files: Sequence[ObjectFile]) -> None:
        self.objects = [_Placed(f) for f in files]
        self.types: dict[bytes, int] = {}
        self.table: dict[int, int] = {}
        """Function → its index in the table."""
        self.data: list[tuple[int, bytes]] = []
        self.heap_base = 0
        self._place_functions()
        self._place_data()
        self.known = self._defined()
        self._check_defined()
        self.code = [body for o in self.objects for body in self._bodies(o)]
        self._fill_data()

    def _place_functions(self) -> None:
        count = 0
        for one in self.objects:
            one.types = [self.types.setdefault(t, len(self.types)) for t in one.file.types]
            one.first_function = count
            count += len(one.file.bodies)

    def _place_data(self) -> None:
        at = STACK_BYTES
        for one in self.objects:
            for segment in one.file.segments:
                at += -at % segment.align
                one.addresses.append(at)
                at += len(segment.data)
        self.heap_base = at + -at % HEAP_ALIGN

    def _defined(self) -> dict[str, _Place]:
        """What objects define for others."""
        found: dict[str, _Place] = {}
        for one in self.objects:
            for symbol in one.file.symbols:
                if symbol.is_defined and not symbol.is_local and symbol.kind in (FUNCTION, DATA):
                    found.setdefault(symbol.name, _own(one, symbol))
        return found

    def _check_defined(self) -> None:
        wanted = {n for o in self.objects for n in o.file.undefined}
        if missing := sorted(wanted - self.known.keys()):
            raise Error(
                f"WebAssembly code calls what it does not define: {', '.join(missing)}. Generated "
                "code has no library; write the function out, or use an instruction there is."
            )

    # -- relocations ----------------------------------------------------------------------------

    def _value(self, one: _Placed, entry: Relocation) -> int:
        what = _KINDS.get(entry.kind)
        if what == "type":
            return one.types[entry.index]
        symbol = one.file.symbols[entry.index]
        if what == "global" and symbol.kind == GLOBAL and symbol.name in ("", "__stack_pointer"):
            return _STACK_POINTER
        if what == "table" and symbol.kind == TABLE:
            return 0
        place = _own(one, symbol) if symbol.is_defined else self.known.get(symbol.name)
        if what == "address" and place is not None and place.kind == DATA:
            return place.at + entry.addend
        if place is not None and place.kind == FUNCTION and what in ("function", "table index"):
            return place.at if what == "function" else self._index(place.at)
        raise Error(
            f"WebAssembly code refers to {symbol.name or 'a section'!r} by relocation "
            f"{entry.kind}, which is not linked. Make it private."
        )

    def _index(self, function: int) -> int:
        return self.table.setdefault(function, len(self.table) + 1)

    def _filled(
        self, one: _Placed, data: bytes, start: int, entries: Sequence[Relocation]
    ) -> bytes:
        made = bytearray(data)
        for entry in entries:
            raw = _ENCODINGS[entry.kind](self._value(one, entry))
            at = entry.offset - start
            made[at : at + len(raw)] = raw
        return bytes(made)

    def _bodies(self, one: _Placed) -> list[bytes]:
        """The functions with their places filled in; relocations come in order."""
        found: list[bytes] = []
        entries, at = one.file.code_relocations, 0
        for body in one.file.bodies:
            first, end = at, body.start + len(body.code)
            while at < len(entries) and entries[at].offset < end:
                at += 1
            found.append(self._filled(one, body.code, body.start, entries[first:at]))
        return found

    def _fill_data(self) -> None:
        for one in self.objects:
            for address, segment in zip(one.addresses, one.file.segments):
                end = segment.start + len(segment.data)
                inside = [r for r in one.file.data_relocations if segment.start <= r.offset < end]
                data = self._filled(one, segment.data, segment.start, inside)
                if data.strip(b"\0"):  # memory is zero from the start
                    self.data.append((address, data))

    # -- the module -----------------------------------------------------------------------------

    def module(self, exports: Sequence[str]) -> bytes:
        pages = -(-self.heap_base // PAGE)
        functions = [o.types[b.type] for o in self.objects for b in o.file.bodies]
        size = len(self.table) + 1
        parts = {
            SectionId.TYPE: vector(self.types),
            SectionId.FUNCTION: vector(map(uleb, functions)),
            SectionId.TABLE: vector([bytes([FUNCREF, 1]) + uleb(size) + uleb(size)]),
            SectionId.MEMORY: vector([b"\1" + uleb(pages) + uleb(MAX_PAGES)]),
            SectionId.GLOBAL: vector(self._globals()),
            SectionId.EXPORT: vector(self._exports(exports)),
            SectionId.ELEMENT: vector(self._elements()),
            SectionId.CODE: vector(uleb(len(c)) + c for c in self.code),
            SectionId.DATA: vector(
                b"\0" + _constant(at) + uleb(len(data)) + data for at, data in self.data
            ),
        }
        return MAGIC + b"".join(section(number, content) for number, content in parts.items())

    def _globals(self) -> list[bytes]:
        mutable, constant = bytes([I32, 1]), bytes([I32, 0])
        return [mutable + _constant(STACK_BYTES), constant + _constant(self.heap_base)]

    def _exports(self, functions: Sequence[str]) -> list[bytes]:
        found = [(f, ExternalKind.FUNCTION, self.known[f].at) for f in functions]
        found += [
            ("memory", ExternalKind.MEMORY, 0),
            ("__heap_base", ExternalKind.GLOBAL, _HEAP_BASE),
        ]
        return [name(text) + bytes([kind]) + uleb(at) for text, kind, at in found]

    def _elements(self) -> list[bytes]:
        if not self.table:
            return []
        return [b"\0" + _constant(1) + vector(map(uleb, self.table))]


def _own(one: _Placed, symbol: Symbol) -> _Place:
    if symbol.kind == FUNCTION:
        return _Place(FUNCTION, one.function(symbol.index))
    if symbol.kind == DATA:
        return _Place(DATA, one.addresses[symbol.index] + symbol.offset)
    return _Place(symbol.kind, symbol.index)


def _constant(value: int) -> bytes:
    return _I32_CONST + sleb(value) + END
