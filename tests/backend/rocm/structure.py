"""Checks of code objects: what a loader of AMD GPUs relies on, against the program."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from rlx.backends import elf
from rlx.backends.rocm.amdgcn.assemble import assembled
from rlx.backends.rocm.amdgcn.printer import printable
from rlx.backends.rocm.architecture import Architecture
from rlx.backends.rocm.metadata import KernelFacts, entry_of, facts
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.program import Program

PT_LOAD, PT_DYNAMIC, PT_NOTE = 1, 2, 4
PAGE = 4096
F64_SCRATCH_BYTES = 256
"""Registers that a kernel with f64 operands may spill: its numbers take two registers each, and
attention over caches of bytes has more of them than a wave of 32 lanes has. That costs time alone,
and no kernel is tuned for f64."""
HIDDEN = ("hidden_block_count_x", "hidden_block_count_y", "hidden_block_count_z")


def checked(program: Program, target: Architecture) -> tuple[bytes, list[str]]:
    """The code object, and what is wrong with it."""
    binary = assembled(program, target)
    return binary, [
        f"{program.name} for {target.name}: {f}" for f in _faults(binary, program, target)
    ]


def _faults(binary: bytes, program: Program, target: Architecture) -> Iterator[str]:
    yield from _of_file(binary)
    found = facts(binary)
    yield from _of_kernel(found, program, target)
    yield from _of_arguments(found, program)
    sections = elf.sections(binary)
    symbols = {s.name: s for s in elf.symbols(sections, 11)}
    if entry_of(binary, program.name) != symbols[program.name].value:
        yield "the descriptor does not state the distance to the code"
    if symbols[program.name].value % 256:
        yield "the code is not aligned to 256 bytes"
    if symbols[f"{program.name}.kd"].value % 64:
        yield "the descriptor is not aligned to 64 bytes"


def _of_file(binary: bytes) -> Iterator[str]:
    """Segments are in the file, on pages of their own, with permissions that exclude each other."""
    kind, machine = struct.unpack_from("<HH", binary, 16)
    start, size, count = (
        *struct.unpack_from("<Q", binary, 32),
        *struct.unpack_from("<HH", binary, 54),
    )
    segments = [struct.unpack_from("<IIQQQQQQ", binary, start + i * size) for i in range(count)]
    if (binary[:4], binary[7], binary[8], kind, machine) != (b"\x7fELF", 64, 3, 3, 224):
        yield "it is no shared object of version 5 for AMD's HSA"
    loads = [s for s in segments if s[0] == PT_LOAD]
    if [s[1] for s in loads] != [4, 5, 6]:
        yield "its segments are not to read, to execute and to write"
    for _, _, offset, address, _, in_file, in_memory, align in loads:
        if offset + in_file > len(binary) or in_memory < in_file or (address - offset) % align:
            yield "a segment is not in the file, or not where it can be mapped"
    pages = [{s[3] // PAGE, (s[3] + max(1, s[6]) - 1) // PAGE} for s in loads]
    if pages[0] & pages[1] or pages[1] & pages[2]:
        yield "two segments share a page"
    if {PT_DYNAMIC, PT_NOTE} - {s[0] for s in segments}:
        yield "it has no dynamic section, or no note"


def _of_kernel(found: KernelFacts, program: Program, target: Architecture) -> Iterator[str]:
    shared = printable(program).shared_bytes
    stated = (found.name, found.architecture, found.wave, found.block)
    if stated != (program.name, target.name, target.wave, program.block):
        yield f"it states {stated}"
    if found.lds_bytes > shared:
        yield f"{found.lds_bytes} bytes of LDS, and its arrays take {shared}"
    has_f64 = any(b.dtype is DType.F64 for b in program.buffers)
    if found.scratch_bytes > (F64_SCRATCH_BYTES if has_f64 else 0):
        yield f"{found.scratch_bytes} bytes of scratch"
    if found.vector_registers > 512 or not found.code_bytes:
        yield f"{found.vector_registers} vector registers in {found.code_bytes} bytes of code"


def _of_arguments(found: KernelFacts, program: Program) -> Iterator[str]:
    """Addresses, then scalars, each aligned to its size; then what the loader adds."""
    at, wanted = 0, list[tuple[str, str, int, int]]()
    for buffer in program.buffers:
        wanted.append((f"p.{buffer.name}", "global_buffer", at, 8))
        at += 8
    for scalar in program.scalars:
        size = scalar.value.dtype.itemsize
        at = -(-at // size) * size
        wanted.append((f"k.{scalar.name}", "by_value", at, size))
        at += size
    given = [(a.name, a.kind, a.offset, a.size) for a in found.arguments]
    if given[: len(wanted)] != wanted:
        yield f"its arguments are {given}, not {wanted}"
    hidden = [a.kind for a in found.arguments[len(wanted) :]]
    counts = any(isinstance(n, ir.Position) and n.of == "blocks" for n in program.nodes)
    if (hidden[:3] == list(HIDDEN)) != counts or (hidden and not counts):
        yield f"its hidden arguments are {hidden}"
