"""What a code object states of its kernel: resources in the descriptor, arguments in the note."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlx.backends import elf
from rlx.backends.rocm.architecture import ARCHITECTURES
from rlx.backends.rocm.code_object import EM_AMDGPU, SHT_DYNSYM
from rlx.core.errors import Error

DESCRIPTOR_BYTES = 64
MACH_MASK = 0xFF
WAVE32 = 1 << 10
"""Of the descriptor's kernel code properties."""
METADATA_NOTE = 32


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument as HIP lays it out."""

    name: str
    kind: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """The kernel of a code object."""

    name: str
    architecture: str
    wave: int
    block: int
    lds_bytes: int
    scratch_bytes: int
    """Of a thread: registers that did not suffice."""
    vector_registers: int
    scalar_registers: int
    arguments: tuple[Argument, ...]
    argument_bytes: int
    code_bytes: int

    @property
    def text(self) -> str:
        """In a few words, for reports."""
        spilled = f", {self.scratch_bytes} bytes spilled" if self.scratch_bytes else ""
        return (
            f"{self.vector_registers} vector and {self.scalar_registers} scalar registers, "
            f"{self.lds_bytes} bytes of LDS, {self.code_bytes} bytes of code{spilled}"
        )


def facts(binary: bytes) -> KernelFacts:
    """Of the only kernel of a code object; descriptor and note are checked against each other."""
    if elf.machine_of(binary) != EM_AMDGPU:
        raise Error("a code object is an ELF file for AMD GPUs; this is none.")
    sections = elf.sections(binary)
    note = _note(next(s.data for s in sections if s.name == ".note"))
    (kernel,) = note["amdhsa.kernels"]
    (flags,) = struct.unpack_from("<I", binary, 0x30)
    name = kernel[".name"]
    symbols = {s.name: s for s in elf.symbols(sections, SHT_DYNSYM)}
    lds, scratch, given, properties = _descriptor(sections, symbols[kernel[".symbol"]])
    wave = 32 if properties & WAVE32 else 64
    stated = tuple(
        kernel[k]
        for k in (
            ".group_segment_fixed_size", ".private_segment_fixed_size", ".kernarg_segment_size",
            ".wavefront_size",
        )
    )  # fmt: skip
    if stated != (lds, scratch, given, wave) or name not in symbols:
        raise Error(f"kernel {name}: the descriptor of its code object is not that of its note.")
    by_mach = {a.elf_mach: a.name for a in ARCHITECTURES.values()}
    return KernelFacts(
        name, by_mach.get(flags & MACH_MASK, "unknown"), wave, kernel[".max_flat_workgroup_size"],
        lds, scratch, kernel[".vgpr_count"], kernel[".sgpr_count"],
        tuple(_argument(a) for a in kernel.get(".args", ())), given, symbols[name].size,
    )  # fmt: skip


def _argument(given: dict[str, Any]) -> Argument:
    kind = given[".value_kind"]
    return Argument(given.get(".name", kind), kind, given[".offset"], given[".size"])


def _descriptor(sections: list[elf.Section], symbol: elf.Symbol) -> tuple[int, int, int, int]:
    """Bytes of LDS, scratch and arguments, and the kernel code properties."""
    section = sections[symbol.section]
    start = symbol.value - section.address
    data = section.data[start : start + DESCRIPTOR_BYTES]
    lds, scratch, given = struct.unpack_from("<III", data)
    (properties,) = struct.unpack_from("<H", data, 56)
    return lds, scratch, given, properties


def entry_of(binary: bytes, name: str) -> int:
    """The address that the descriptor of a kernel states for its first instruction."""
    sections = elf.sections(binary)
    symbols = {s.name: s for s in elf.symbols(sections, SHT_DYNSYM)}
    symbol = symbols[f"{name}.kd"]
    section = sections[symbol.section]
    (distance,) = struct.unpack_from("<q", section.data, symbol.value - section.address + 16)
    return symbol.value + distance


# -- MessagePack ----------------------------------------------------------------------------------


def _note(data: bytes) -> dict[str, Any]:
    """The metadata, which is the note's only entry."""
    name_size, size, kind = struct.unpack_from("<III", data)
    if kind != METADATA_NOTE:
        raise Error(f"a code object has its metadata in note {METADATA_NOTE}; this is {kind}.")
    start = 12 + -(-name_size // 4) * 4
    value, _ = unpacked(data[start : start + size], 0)
    return value


_FIXED: dict[int, str] = {
    0xCC: "<B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i",
    0xD3: ">q", 0xCA: ">f", 0xCB: ">d",
}  # fmt: skip
_SIZED: dict[int, tuple[str, str]] = {
    0xD9: ("<B", "text"), 0xDA: (">H", "text"), 0xDB: (">I", "text"),
    0xDC: (">H", "list"), 0xDD: (">I", "list"), 0xDE: (">H", "map"), 0xDF: (">I", "map"),
}  # fmt: skip
_WORDS = {0xC0: None, 0xC2: False, 0xC3: True}


def unpacked(data: bytes, at: int) -> tuple[Any, int]:
    """A value of MessagePack, and where the next one begins."""
    first = data[at]
    at += 1
    if first < 0x80 or first >= 0xE0:
        return (first if first < 0x80 else first - 256), at
    if first in _WORDS:
        return _WORDS[first], at
    if first in _FIXED:
        (value,) = struct.unpack_from(_FIXED[first], data, at)
        return value, at + struct.calcsize(_FIXED[first])
    if first in _SIZED:
        form, kind = _SIZED[first]
        (count,) = struct.unpack_from(form, data, at)
        return _READERS[kind](data, at + struct.calcsize(form), count)
    if first < 0xC0:
        kind = "map" if first < 0x90 else "list" if first < 0xA0 else "text"
        return _READERS[kind](data, at, first & (0x1F if kind == "text" else 0x0F))
    raise Error(f"the metadata of a code object has the byte {first:#x}, which means nothing here.")


def _text(data: bytes, at: int, count: int) -> tuple[str, int]:
    return data[at : at + count].decode(), at + count


def _list(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    made: list[Any] = []
    for _ in range(count):
        value, at = unpacked(data, at)
        made.append(value)
    return made, at


def _map(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    every, at = _list(data, at, 2 * count)
    return dict(zip(every[::2], every[1::2])), at


_READERS: dict[str, Callable[[bytes, int, int], tuple[Any, int]]] = {
    "text": _text,
    "list": _list,
    "map": _map,
}
