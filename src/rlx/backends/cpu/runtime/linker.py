"""The linker: sections of object files laid out in one blob, and relocations applied.

Only what stays right wherever the code is loaded is taken: distances. An absolute address, a
symbol of a library or memory to write to is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlx.backends import elf
from rlx.backends.cpu.runtime.blob import Blob
from rlx.backends.cpu.runtime.relocations import FILLERS, filled
from rlx.backends.elf import Section, Symbol
from rlx.core.errors import Error

_ARCHES = {62: "x86_64", 183: "aarch64"}


def _is_kept(section: Section) -> bool:
    """Is it there when the code runs? Tables for unwinding are not: code never throws."""
    is_loaded = section.flags & elf.ALLOC and section.size
    return bool(is_loaded and not section.name.startswith(".eh_frame"))


@dataclass(slots=True)
class _Object:
    """What an ELF file of one module holds."""

    arch: str
    sections: list[Section]
    symbols: list[Symbol]
    places: dict[int, int] = field(default_factory=dict[int, int])
    """Where each kept section begins in the blob."""

    def place(self, symbol: Symbol) -> int | None:
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
    machine = elf.machine_of(data)
    if machine is None:
        raise Error("native code is linked from 64-bit little-endian ELF objects; this is none.")
    if machine not in _ARCHES:
        raise Error(f"native code is linked for x86-64 and aarch64, not for ELF machine {machine}.")
    sections = elf.sections(data)
    return _Object(_ARCHES[machine], sections, elf.symbols(sections))


def _laid_out(objects: list[_Object]) -> bytearray:
    """All kept sections, code before constants."""
    kept = [(o, i, s) for o in objects for i, s in enumerate(o.sections) if _is_kept(s)]
    code = bytearray()
    for one, index, section in sorted(kept, key=lambda k: not k[2].flags & elf.EXEC):
        if section.flags & elf.WRITE:
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
        if table.kind != elf.RELA or table.info not in one.places:
            continue
        base = one.places[table.info]
        for entry in elf.relocations(table):
            symbol = one.symbols[entry.symbol]
            target = one.place(symbol) if symbol.section else known[symbol.name]
            kind = entry.kind
            if target is None or kind not in FILLERS[one.arch]:
                raise Error(
                    f"native code refers to {symbol.name or 'a section'!r} in a way that depends "
                    f"on where it is loaded (relocation {kind} of {one.arch}). Make it private."
                )
            place = base + entry.offset
            filled(code, FILLERS[one.arch][kind], place, target + entry.addend)
