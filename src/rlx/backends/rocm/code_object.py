"""Code objects: LLVM's relocatable object of a kernel, laid out as HIP loads it.

A code object is an ELF shared object: segments to read, to execute, and for the dynamic section;
hash tables for the kernel's symbols; the metadata note; the kernel descriptor (64 bytes, the symbol
`name.kd`), which states the distance to the code. The layout is that of LLVM's linker, whose loaded
bytes are the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlx.backends import elf
from rlx.backends.elf import Section, Symbol
from rlx.core.errors import Error, InternalError

EM_AMDGPU = 224
PAGE = 4096
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SEGMENT = struct.Struct("<IIQQQQQQ")
SEGMENTS = 8
ET_DYN = 3
PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_PHDR = 1, 2, 4, 6
PT_GNU_STACK, PT_GNU_RELRO = 0x6474E551, 0x6474E552
R, W, X = 4, 2, 1
DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_GNU_HASH = 4, 5, 6, 10, 11, 0x6FFFFEF5
BLOOM_SHIFT = 26
SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_HASH, SHT_DYNAMIC, SHT_NOTE, SHT_DYNSYM = (
    1, 2, 3, 5, 6, 7, 11,
)  # fmt: skip
SHT_GNU_HASH = 0x6FFFFFF6
REL32, REL64, REL32_LO, REL32_HI = 4, 5, 10, 11
"""Relocations: distances from the place, of 32 and 64 bits, and the halves of one of 64."""
COPIED = (".note", ".rodata", ".text")
"""What a kernel consists of: metadata, descriptors and tables, instructions."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A section of the code object."""

    name: str
    kind: int
    data: bytes
    align: int = 1
    flags: int = elf.ALLOC
    link: str = ""
    info: int = 0
    entry: int = 0


def code_object(relocatable: bytes) -> bytes:
    """What HIP loads, of the object file of kernels."""
    if elf.machine_of(relocatable) != EM_AMDGPU:
        raise Error("a code object is made of an ELF object for AMD GPUs; this is none.")
    return _Linker(relocatable).image()


class _Linker:
    """One object file, and where its parts are loaded."""

    def __init__(self, data: bytes) -> None:
        self.header = HEADER.unpack_from(data)
        self.sections = elf.sections(data)
        self.symbols = elf.symbols(self.sections)
        self.exported = [s for s in self.symbols[1:] if not s.is_local]
        self.given = {s.name: s for s in self.sections if s.name in COPIED}
        self._check()
        self.parts = self._parts()
        self.offsets, self.addresses = self._places()

    def _check(self) -> None:
        loaded = [s.name for s in self.sections if s.flags & elf.ALLOC and s.size]
        more = sorted(set(loaded) - set(COPIED))
        undefined = [s.name for s in self.symbols[1:] if s.section == 0]
        if more or undefined:
            what = ", ".join([*more, *undefined])
            raise InternalError(
                f"the code of a kernel has what a code object has no place for: {what}. Generated "
                "code calls no library and has no memory of its own"
            )

    # -- contents --------------------------------------------------------------------------------

    def _parts(self) -> dict[str, _Part]:
        """In the order of the file; what is filled in later has its size."""
        names = [s.name for s in self.exported]
        entries = elf.SYMBOL.size * (len(names) + 1)
        note, rodata, code = (self.given[n] for n in COPIED)
        exec_flags = elf.ALLOC | elf.EXEC
        found = (
            _Part(".note", SHT_NOTE, note.data, 4),
            _Part(".dynsym", SHT_DYNSYM, bytes(entries), 8, link=".dynstr", info=1, entry=24),
            _Part(".gnu.hash", SHT_GNU_HASH, gnu_hash_table(names), 8, link=".dynsym"),
            _Part(".hash", SHT_HASH, hash_table(names), 4, link=".dynsym", entry=4),
            _Part(".dynstr", SHT_STRTAB, _strings(names)[0]),
            _Part(".rodata", SHT_PROGBITS, rodata.data, rodata.align),
            _Part(".text", SHT_PROGBITS, code.data, code.align, exec_flags),
            _Part(
                ".dynamic", SHT_DYNAMIC, bytes(16 * 7), 8, elf.ALLOC | elf.WRITE, ".dynstr", 0, 16
            ),
        )
        return {p.name: p for p in found}

    def _places(self) -> tuple[dict[str, int], dict[str, int]]:
        """Offsets in the file and addresses: a page further on where permissions change."""
        offsets, addresses = dict[str, int](), dict[str, int]()
        at, moved = HEADER.size + SEGMENTS * SEGMENT.size, 0
        for part in self.parts.values():
            if part.name in (".text", ".dynamic"):
                end = at + moved
                at = _up(at, part.align)
                moved = _up(end, PAGE) + at % PAGE - at
            at = _up(at, part.align)
            offsets[part.name], addresses[part.name] = at, at + moved
            at += len(part.data)
        return offsets, addresses

    def _moved(self, symbol: Symbol) -> Symbol:
        """The symbol as the code object has it: sections by their new numbers."""
        name = self.sections[symbol.section].name if symbol.section < len(self.sections) else ""
        if name not in self.addresses:
            return symbol
        number = list(self.parts).index(name) + 1
        return replace(symbol, section=number, value=symbol.value + self.addresses[name])

    def _relocated(self, name: str) -> bytes:
        """The bytes of a section with distances filled in."""
        made = bytearray(self.given[name].data)
        for table in self.sections:
            if table.kind == elf.RELA and self.sections[table.info].name == name:
                self._fill(made, self.addresses[name], table)
        return bytes(made)

    def _fill(self, made: bytearray, start: int, table: Section) -> None:
        for entry in elf.relocations(table):
            target = self._moved(self.symbols[entry.symbol]).value
            distance = target + entry.addend - (start + entry.offset)
            match entry.kind:
                case 5:
                    struct.pack_into("<q", made, entry.offset, distance)
                case 4 | 10:
                    struct.pack_into("<I", made, entry.offset, distance & 0xFFFFFFFF)
                case 11:
                    struct.pack_into("<I", made, entry.offset, distance >> 32 & 0xFFFFFFFF)
                case kind:
                    raise InternalError(f"the code of a kernel has a relocation {kind}")

    def _dynamic(self) -> bytes:
        where = self.addresses
        entries = (
            (DT_SYMTAB, where[".dynsym"]),
            (DT_SYMENT, elf.SYMBOL.size),
            (DT_STRTAB, where[".dynstr"]),
            (DT_STRSZ, len(self.parts[".dynstr"].data)),
            (DT_GNU_HASH, where[".gnu.hash"]),
            (DT_HASH, where[".hash"]),
            (0, 0),
        )
        return b"".join(struct.pack("<QQ", *e) for e in entries)

    # -- the file --------------------------------------------------------------------------------

    def _filled(self) -> dict[str, _Part]:
        data = {
            ".dynsym": _symbol_table([self._moved(s) for s in self.exported]),
            ".rodata": self._relocated(".rodata"),
            ".text": self._relocated(".text"),
            ".dynamic": self._dynamic(),
        }
        return {n: replace(p, data=data.get(n, p.data)) for n, p in self.parts.items()}

    def _described(self) -> list[_Part]:
        """What is not loaded: the symbols for tools, and names."""
        every = [s for s in self.symbols[1:] if s.is_local] + self.exported
        count = len(every) - len(self.exported) + 1
        table = _symbol_table([self._moved(s) for s in every])
        names = _strings([s.name for s in every])[0]
        return [
            _Part(".symtab", SHT_SYMTAB, table, 8, 0, ".strtab", count, elf.SYMBOL.size),
            _Part(".strtab", SHT_STRTAB, names, 1, 0),
        ]

    def image(self) -> bytes:
        parts = [*self._filled().values(), *self._described()]
        names, starts = _strings([*(p.name for p in parts), ".shstrtab"])
        parts.append(_Part(".shstrtab", SHT_STRTAB, names, 1, 0))
        made, offsets = bytearray(HEADER.size + SEGMENTS * SEGMENT.size), list[int]()
        for part in parts:
            made += bytes(_up(len(made), part.align) - len(made))
            offsets.append(len(made))
            made += part.data
        made += bytes(-len(made) % 8)
        start = len(made)
        made += self._heads(parts, starts, offsets)
        made[: HEADER.size] = self._header(start, len(parts) + 1)
        segments = b"".join(SEGMENT.pack(*s) for s in self._segments())
        made[HEADER.size : HEADER.size + len(segments)] = segments
        return bytes(made)

    def _header(self, sections_at: int, count: int) -> bytes:
        ident, _, machine, version, *_ = self.header
        flags = self.header[7]
        sizes = (HEADER.size, SEGMENT.size, SEGMENTS, elf.SECTION.size, count, count - 1)
        return HEADER.pack(
            ident, ET_DYN, machine, version, 0, HEADER.size, sections_at, flags, *sizes
        )

    def _heads(self, parts: Sequence[_Part], names: Sequence[int], offsets: Sequence[int]) -> bytes:
        numbers = {p.name: i for i, p in enumerate(parts, 1)}
        made = bytes(elf.SECTION.size)
        for part, name, offset in zip(parts, names, offsets):
            link = numbers[part.link] if part.link else 0
            address = self.addresses.get(part.name, 0)
            made += elf.SECTION.pack(
                name, part.kind, part.flags, address, offset, len(part.data), link, part.info,
                part.align, part.entry,
            )  # fmt: skip
        return made

    def _segments(self) -> list[tuple[int, ...]]:
        """Type, permissions, offset, address twice, size in the file and in memory, alignment."""
        head, heads = HEADER.size, SEGMENTS * SEGMENT.size
        read = self.offsets[".rodata"] + len(self.parts[".rodata"].data)
        whole = self._span(".dynamic")
        after = _up(whole[1] + whole[3], PAGE) - whole[1]
        padded = (*whole[:4], after)
        return [
            (PT_PHDR, R, head, head, head, heads, heads, 8),
            (PT_LOAD, R, 0, 0, 0, read, read, PAGE),
            (PT_LOAD, R | X, *self._span(".text"), PAGE),
            (PT_LOAD, R | W, *padded, PAGE),
            (PT_DYNAMIC, R | W, *whole, 8),
            (PT_GNU_RELRO, R, *padded, 1),
            (PT_GNU_STACK, R | W, 0, 0, 0, 0, 0, 0),
            (PT_NOTE, R, *self._span(".note"), 4),
        ]

    def _span(self, name: str) -> tuple[int, int, int, int, int]:
        address, size = self.addresses[name], len(self.parts[name].data)
        return self.offsets[name], address, address, size, size


def _up(value: int, align: int) -> int:
    return -(-value // align) * align


def _strings(names: Sequence[str]) -> tuple[bytes, list[int]]:
    """Names with zeros behind them, after an empty one; where each begins."""
    made, starts = b"\0", list[int]()
    for name in names:
        starts.append(len(made))
        made += name.encode() + b"\0"
    return made, starts


def _symbol_table(symbols: Sequence[Symbol]) -> bytes:
    made = bytes(elf.SYMBOL.size)
    for symbol, name in zip(symbols, _strings([s.name for s in symbols])[1]):
        made += elf.SYMBOL.pack(
            name, symbol.info, symbol.other, symbol.section, symbol.value, symbol.size
        )
    return made


# -- hash tables of symbols -----------------------------------------------------------------------


def sysv_hash(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value


def gnu_hash(name: str) -> int:
    value = 5381
    for byte in name.encode():
        value = value * 33 + byte & 0xFFFFFFFF
    return value


def hash_table(names: Sequence[str]) -> bytes:
    """As many buckets as symbols; each has a list of symbols, the last one first."""
    count = len(names) + 1
    buckets, chains = [0] * count, [0] * count
    for number, name in enumerate(names, 1):
        bucket = sysv_hash(name) % count
        chains[number], buckets[bucket] = buckets[bucket], number
    return struct.pack(f"<{2 + 2 * count}I", count, count, *buckets, *chains)


def gnu_hash_table(names: Sequence[str]) -> bytes:
    """One bucket with all symbols, and a filter of one word; a list's last hash is odd."""
    hashes = [gnu_hash(name) for name in names]
    bloom = 0
    for value in hashes:
        bloom |= 1 << value % 64 | 1 << (value >> BLOOM_SHIFT) % 64
    last = len(hashes) - 1
    words = [value & ~1 | (i == last) for i, value in enumerate(hashes)]
    return struct.pack(f"<4IQI{len(words)}I", 1, 1, 1, BLOOM_SHIFT, bloom, 1, *words)
