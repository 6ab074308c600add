"""What a processor can do, as far as generated code asks: the width of its vectors, and which
instructions would otherwise be calls into a library that generated code does not have."""

from __future__ import annotations

import contextlib
import functools
import itertools
import platform
from dataclasses import dataclass, replace
from typing import Literal

from rlx.core.dtype import DType
from rlx.core.errors import Error

LINUX_X86 = "x86_64-unknown-linux-gnu"


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set, and how LLVM calls it."""

    name: str
    triple: str
    cpu: str
    vector_bytes: int
    registers: int
    features: str = ""
    has_masks: bool = False
    """Are masked loads and stores as cheap as plain ones?"""
    has_fma: bool = True
    has_rounding: bool = True
    """Does one instruction round to whole numbers?"""
    has_halves: bool = True
    """Does one instruction turn f16 into f32 and back?"""

    has_scaling: bool = False
    """Does one instruction multiply by a power of two, out of range or not?"""
    has_bf16_dots: bool = False
    """Does one instruction add two products of bf16 to each f32?"""
    has_byte_dots: bool = False
    """Does one instruction add four products of bytes to each i32?"""
    has_short_dots: bool = True
    """Does one instruction add two products of i16?"""
    maths: Literal["precise", "fast"] = "precise"
    """How exact elementary functions are: see the pages `maths` and `fast`."""

    @property
    def arch(self) -> str:
        """The architecture, as `platform.machine` says it."""
        return self.triple.partition("-")[0]

    def lanes(self, dtype: DType) -> int:
        """How many values of a dtype, as it is computed with, fill one register."""
        return self.vector_bytes // dtype.compute.itemsize


AVX512 = Isa("avx512", LINUX_X86, "x86-64-v4", 64, 32, has_masks=True, has_scaling=True)
AVX512_VNNI = replace(AVX512, name="avx512_vnni", features="+avx512vnni", has_byte_dots=True)
AVX512_BF16 = replace(
    AVX512_VNNI, name="avx512_bf16", features="+avx512vnni,+avx512bf16", has_bf16_dots=True
)
AVX2 = Isa("avx2", LINUX_X86, "x86-64-v3", 32, 16)
SSE2 = Isa("sse2", LINUX_X86, "x86-64", 16, 16, has_fma=False, has_rounding=False, has_halves=False)
NEON = Isa("neon", "aarch64-unknown-linux-gnu", "generic", 16, 32, has_short_dots=False)
ISAS = {i.name: i for i in (AVX512_BF16, AVX512_VNNI, AVX512, AVX2, SSE2, NEON)}

_SECOND = "pni ssse3 sse4_1 sse4_2 popcnt cx16 lahf_lm"
_THIRD = f"{_SECOND} avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
_FOURTH = f"{_THIRD} avx512f avx512bw avx512cd avx512dq avx512vl"
_NEEDS = {
    "avx512_bf16": f"{_FOURTH} avx512_vnni avx512_bf16".split(),
    "avx512_vnni": f"{_FOURTH} avx512_vnni".split(),
    "avx512": _FOURTH.split(),
    "avx2": _THIRD.split(),
    "sse2": ["sse2"],
    "neon": ["asimd"],
}
"""What a processor must have for code of an instruction set, as Linux calls it: the levels that
the names for LLVM stand for, so that LLVM may use all of them and nothing else."""


def isa(name: str) -> Isa:
    """The instruction set called `name`; `host` is the best this machine has."""
    if name == "host":
        return host()
    if name not in ISAS:
        raise Error(f"there is no instruction set {name!r}. Use one of: host, {', '.join(ISAS)}.")
    return ISAS[name]


def host() -> Isa:
    """The widest instruction set this machine has.

    Code is for a level and not for one processor: it runs on every machine of the level, and it
    can be known without LLVM which one that is.
    """
    found = next((n for n in ISAS if why_not(ISAS[n]) is None), None)
    if found is None:
        system, machine = platform.system(), platform.machine()
        raise Error(f"rlx makes code for Linux on x86-64 and aarch64; this is {system} {machine}.")
    return ISAS[found]


def why_not(wanted: Isa) -> str | None:
    """Why this machine cannot run code of an instruction set; None where it can."""
    if platform.system() != "Linux" or platform.machine() != wanted.arch:
        return f"it is for {wanted.arch} under Linux"
    missing = [f for f in _NEEDS[wanted.name] if f not in _features()]
    return f"the processor has no {', '.join(missing)}" if missing else None


@functools.cache
def _features() -> frozenset[str]:
    """What Linux says of the first processor; x86 has `flags`, aarch64 `Features`."""
    found: list[str] = []
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="latin-1") as lines:
        for line in itertools.takewhile(str.strip, lines):
            name, _, values = line.partition(":")
            found += values.split() if name.strip() in ("flags", "Features") else []
    return frozenset(found)
