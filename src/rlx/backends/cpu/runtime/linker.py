"""The linker: sections of object files laid out in one blob, and relocations applied.

Only what stays right wherever the code is loaded is taken: distances. An absolute address, a
symbol of a library or memory to write to is refused by name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rlx.backends.cpu.runtime.blob import Blob
from rlx.backends.cpu.runtime.relocations import FILLERS, filled
from rlx.core.errors import Error

_ARCHES = {62: "x86_64", 183: "aarch64"}
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SYMTAB, _RELA, _NOBITS = 2, 4, 8
_WRITE, _ALLOC, _EXEC = 1, 2, 4
_LOCAL = 0


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    link: int
    info: int
    align: int
    size: int
    data: bytes

    @property
    def is_kept(self) -> bool:
        """Is it there when the code runs? Tables for unwinding are not: code never throws."""
        return bool(self.flags & _ALLOC and self.size and not self.name.startswith(".eh_frame"))

    @property
    def order(self) -> bool:
        return not self.flags & _EXEC


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    section: int
    value: int
    is_local: bool


@dataclass(slots=True)
class _Object:
    """What an ELF file of one module holds."""

    arch: str
    sections: list[_Section]
    symbols: list[_Symbol]
    places: dict[int, int] = field(default_factory=dict[int, int])
    """Where each kept section begins in the blob."""

    def place(self, symbol: _Symbol) -> int | None:
        base = self.places.get(symbol.section)
        return None if base is None else base + symbol.value


def linked(objects: Sequence[bytes]) -> Blob:
    """The objects as one blob; the exports are the functions of the first."""
    parsed = [_parsed(o) for o in objects]
    code = _laid_out(parsed)
    public = [_public(o) for o in parsed]
    known = {name: place for part in reversed(public) for name, place in part.items()}
    _check_symbols(parsed, known)
    for one in parsed:
        _fill(code, one, known)
    return Blob(bytes(code), public[0], parsed[0].arch)


def undefined(data: bytes) -> list[str]:
    """The symbols that an object asks of others."""
    return [s.name for s in _parsed(data).symbols if s.section == 0 and s.name]


def _parsed(data: bytes) -> _Object:
    if data[:6] != b"\x7fELF\x02\x01":
        raise Error("native code is linked from 64-bit little-endian ELF objects; this is none.")
    (machine,) = struct.unpack_from("<H", data, 0x12)
    if machine not in _ARCHES:
        raise Error(f"native code is linked for x86-64 and aarch64, not for ELF machine {machine}.")
    sections = _sections(data)
    table = next((s for s in sections if s.kind == _SYMTAB), None)
    symbols = list(_symbols(table, sections)) if table else []
    return _Object(_ARCHES[machine], sections, symbols)


def _sections(data: bytes) -> list[_Section]:
    (start,) = struct.unpack_from("<Q", data, 0x28)
    count, names_at = struct.unpack_from("<HH", data, 0x3C)
    heads = [_SECTION.unpack_from(data, start + i * _SECTION.size) for i in range(count)]
    names = _content(data, heads[names_at])
    return [
        _Section(_text(names, h[0]), h[1], h[2], h[6], h[7], max(1, h[8]), h[5], _content(data, h))
        for h in heads
    ]


def _content(data: bytes, head: tuple[int, ...]) -> bytes:
    return b"" if head[1] == _NOBITS else data[head[4] : head[4] + head[5]]


def _text(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode()


def _symbols(table: _Section, sections: list[_Section]) -> Iterator[_Symbol]:
    names = sections[table.link].data
    for name, info, _, section, value, _ in _SYMBOL.iter_unpack(table.data):
        yield _Symbol(_text(names, name), section, value, info >> 4 == _LOCAL)


def _laid_out(objects: list[_Object]) -> bytearray:
    """All kept sections, code before constants."""
    kept = [(o, i, s) for o in objects for i, s in enumerate(o.sections) if s.is_kept]
    code = bytearray()
    for one, index, section in sorted(kept, key=lambda k: k[2].order):
        if section.flags & _WRITE:
            raise Error(
                f"native code has writable memory ({section.name}, {section.size} bytes); "
                "it is shared and may not be written. Pass state through the context."
            )
        code += bytes(-len(code) % section.align)
        one.places[index] = len(code)
        code += section.data.ljust(section.size, b"\0")
    return code


def _public(one: _Object) -> dict[str, int]:
    found = ((s.name, one.place(s)) for s in one.symbols if not s.is_local)
    return {name: place for name, place in found if place is not None}


def _check_symbols(objects: list[_Object], known: dict[str, int]) -> None:
    wanted = {s.name for o in objects for s in o.symbols if s.section == 0 and s.name}
    if missing := sorted(wanted - known.keys()):
        raise Error(
            f"native code calls what it does not define: {', '.join(missing)}. Generated code has "
            "no library; write the function out, or use an instruction that the target has."
        )


def _fill(code: bytearray, one: _Object, known: dict[str, int]) -> None:
    for table in one.sections:
        if table.kind != _RELA or table.info not in one.places:
            continue
        base = one.places[table.info]
        for offset, info, addend in _RELOCATION.iter_unpack(table.data):
            symbol = one.symbols[info >> 32]
            target = one.place(symbol) if symbol.section else known[symbol.name]
            kind = info & 0xFFFFFFFF
            if target is None or kind not in FILLERS[one.arch]:
                raise Error(
                    f"native code refers to {symbol.name or 'a section'!r} in a way that depends "
                    f"on where it is loaded (relocation {kind} of {one.arch}). Make it private."
                )
            filled(code, FILLERS[one.arch][kind], base + offset, target + addend)
