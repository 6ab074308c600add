"""Code objects: their structure, and LLVM's linker as the reference where it is installed."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

import rlx
from rlx.backends import elf
from rlx.backends.rocm.amdgcn.assemble import relocatable
from rlx.backends.rocm.architecture import ARCHITECTURES
from rlx.backends.rocm.code_object import code_object, gnu_hash, hash_table, sysv_hash
from rlx.backends.rocm.metadata import entry_of, facts, unpacked
from rlx.core.dtype import DType
from tests.backend.gpu.test_programs import PROGRAMS
from tests.backend.rocm.test_amdgcn import called, of_case
from tests.patience import PATIENCE_S

GFX90A, GFX942, GFX1100, GFX1201 = ARCHITECTURES.values()
LLD = shutil.which("ld.lld")


def lld_release() -> int:
    """The major number of LLVM's linker; 0 where it is not installed."""
    if LLD is None:
        return 0
    said = subprocess.run([LLD, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"LLD (\d+)", said)
    return int(found[1]) if found else 0


needs_lld = pytest.mark.skipif(
    lld_release() < 19,
    reason="ld.lld of LLVM 19 or newer, whose layout code objects have, is not installed",
)
MADE = {
    "scaled": (PROGRAMS["scaled"], GFX1201),
    "softmax": (PROGRAMS["softmax"], GFX1100),
    "a table": (called("sin", DType.F32), GFX942),
    "a tail": (of_case("chain static", GFX90A), GFX90A),
}


def lookup(binary: bytes, name: str) -> elf.Symbol:
    """A dynamic symbol by the table of hashes, as a loader finds it."""
    sections = elf.sections(binary)
    table = next(s for s in sections if s.name == ".hash").data
    count, _ = struct.unpack_from("<II", table)
    words = struct.unpack_from(f"<{2 * count}I", table, 8)
    buckets, chains = words[:count], words[count:]
    symbols = elf.symbols(sections, 11)
    number = buckets[sysv_hash(name) % count]
    while number and symbols[number].name != name:
        number = chains[number]
    assert number, f"{name} is not found"
    return symbols[number]


@pytest.mark.parametrize("name", MADE)
def test_symbols_are_found_by_their_hashes(name: str) -> None:
    program, target = MADE[name]
    binary = code_object(relocatable(program, target))
    code, descriptor = lookup(binary, program.name), lookup(binary, f"{program.name}.kd")
    assert descriptor.size == 64
    assert entry_of(binary, program.name) == code.value
    section = elf.sections(binary)[code.section]
    assert section.address <= code.value < section.address + section.size
    assert facts(binary).code_bytes == code.size


def test_hashes() -> None:
    """The values of the System V ABI's and of GNU's examples."""
    assert (sysv_hash("printf"), sysv_hash("")) == (0x077905A6, 0)
    assert (gnu_hash("printf"), gnu_hash("")) == (0x156B2BB8, 5381)
    assert struct.unpack("<6I", hash_table(["a"])) == (2, 2, 0, 1, 0, 0)


def test_tables_are_reached_by_distances() -> None:
    """The two halves of a distance from an instruction to the table behind the descriptor."""
    program, target = MADE["a table"]
    given = elf.sections(relocatable(program, target))
    kinds = [r.kind for s in given if s.kind == elf.RELA for r in elf.relocations(s)]
    assert sorted(kinds) == [5, 10, 11]
    binary = code_object(relocatable(program, target))
    sections = {s.name: s for s in elf.sections(binary)}
    (entry,) = [
        r for s in given if s.name == ".rela.text" for r in elf.relocations(s) if r.kind == 10
    ]
    (low,) = struct.unpack_from("<i", sections[".text"].data, entry.offset)
    place = sections[".text"].address + entry.offset + low - 4
    assert sections[".rodata"].address <= place < sections[".rodata"].address + 0x800


def test_facts_of_a_kernel() -> None:
    program, target = MADE["softmax"]
    found = facts(code_object(relocatable(program, target)))
    assert (found.name, found.architecture, found.wave, found.block) == (
        "softmax",
        "gfx1100",
        32,
        64,
    )
    assert [(a.name, a.offset, a.size) for a in found.arguments] == [
        ("p.x", 0, 8), ("p.y", 8, 8), ("k.n", 16, 4),
    ]  # fmt: skip
    assert found.scratch_bytes == 0
    assert 8 <= found.lds_bytes <= 64
    assert "vector and" in found.text
    assert "spilled" not in found.text


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(rlx.Error, match="made of an ELF object for AMD GPUs"):
        code_object(b"\x7fELF\x02\x01" + bytes(58))
    with pytest.raises(rlx.Error, match="is an ELF file for AMD GPUs"):
        facts(b"no code at all")


def test_message_pack() -> None:
    data = bytes.fromhex("84a161cd0102a162939301c2c0ff01a163d903616263a164cbc004000000000000")
    assert unpacked(data, 0) == (
        {"a": 258, "b": [[1, False, None], -1, 1], "c": "abc", "d": -2.5},
        33,
    )


@needs_lld
@pytest.mark.parametrize("name", MADE)
def test_loaded_bytes_are_those_of_the_linker(name: str, tmp_path: Path) -> None:
    """All segments; the ELF header, whose section table the linker makes longer, but for that."""
    given, linked = tmp_path / "kernel.o", tmp_path / "kernel.so"
    given.write_bytes(relocatable(*MADE[name]))
    command = [str(LLD), "-shared", str(given), "-o", str(linked)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert made.returncode == 0, made.stderr
    ours, theirs = code_object(given.read_bytes()), linked.read_bytes()
    assert ours[:32] == theirs[:32]
    assert ours[48:52] == theirs[48:52]
    for i in range(8):
        (a, b) = (struct.unpack_from("<IIQQQQQQ", z, 64 + 56 * i) for z in (ours, theirs))
        assert a == b
        start, end = max(64, a[2]), a[2] + a[5]
        assert ours[start:end] == theirs[start:end]
