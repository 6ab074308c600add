"""What a processor can do, as far as generated code asks: the width of its vectors, and which
instructions would otherwise be calls into a library that generated code does not have."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Literal

from rlx.backends.cpu.system.base import System
from rlx.backends.cpu.system.current import this_system
from rlx.core.dtype import DType
from rlx.core.errors import Error, UnsupportedError

LINUX_X86 = "x86_64-unknown-linux-gnu"
"""Also for macOS: the convention of System V. Objects are ELF, as `backends/cpu/runtime/linker.py`
reads them."""
WINDOWS_X86 = "x86_64-pc-windows-elf"
"""The convention of Windows, in ELF objects."""


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
    has_relaxed_fma: bool = False
    """Does one instruction multiply and add, rounded once or twice, as the machine pleases?"""
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
    maths: Literal["precise", "unfused", "fast"] = "precise"
    """How exact elementary functions are: see `codegen/math/elementary.py`, whose polynomials may
    be rounded twice a step, and `codegen/math/fast_math.py`."""

    @property
    def arch(self) -> str:
        """The architecture, as `System.machine` says it."""
        return self.triple.partition("-")[0]

    @property
    def abi(self) -> str:
        """What a blob for it is called: see `System.abi`."""
        return f"{self.arch}-windows" if "windows" in self.triple else self.arch

    @property
    def is_wasm(self) -> bool:
        """Is it for an engine of WebAssembly, with addresses of 32 bits, rather than a machine?"""
        return self.arch == "wasm32"

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
NEON = Isa(
    "neon", "aarch64-unknown-linux-gnu", "generic", 16, 32, "+reserve-x18", has_short_dots=False
)
"""macOS and Windows keep x18 for themselves; without it code of one system runs on all."""
_WASM = "+simd128,+bulk-memory,+bulk-memory-opt,+sign-ext,+nontrapping-fptoint,+mutable-globals"
WASM = Isa(
    "wasm",
    "wasm32-unknown-unknown",
    "generic",
    16,
    16,
    _WASM,
    has_fma=False,
    has_halves=False,
    maths="unfused",
)
"""Vectors of 128 bits; engines on x86-64 have 16 registers for them."""
WASM_RELAXED = replace(
    WASM, name="wasm_relaxed", features=f"{_WASM},+relaxed-simd", has_relaxed_fma=True
)
"""The same, planned as the same, with multiply-adds: what engines give whose machine has them."""
ISAS = {i.name: i for i in (AVX512_BF16, AVX512_VNNI, AVX512, AVX2, SSE2, NEON, WASM, WASM_RELAXED)}

_SECOND = "pni ssse3 sse4_1 sse4_2 popcnt cx16 lahf_lm"
_THIRD = f"{_SECOND} avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
_FOURTH = f"{_THIRD} avx512f avx512bw avx512cd avx512dq avx512vl"
_NEEDS = {
    "avx512_bf16": f"{_FOURTH} avx512_vnni avx512_bf16".split(),
    "avx512_vnni": f"{_FOURTH} avx512_vnni".split(),
    "avx512": _FOURTH.split(),
    "avx2": _THIRD.split(),
    "sse2": [],
    "neon": [],
}
"""What a processor must have for code of an instruction set, as Linux calls it: the levels that
the names for LLVM stand for, so that LLVM may use all of them and nothing else. The first level is
the architecture's own: every x86-64 has SSE2, every aarch64 of Linux, macOS and Windows has NEON,
also where the system tells nothing (a container without /proc, an emulator)."""


def isa(name: str) -> Isa:
    """The instruction set called `name`; `host` is the best this machine has."""
    if name == "host":
        return host()
    if name not in ISAS:
        raise Error(f"there is no instruction set {name!r}. Use one of: host, {', '.join(ISAS)}.")
    return on_system(ISAS[name], this_system())


def on_system(wanted: Isa, system: System) -> Isa:
    """With the calling convention of a system."""
    is_windows = system.abi == "x86_64-windows" and wanted.arch == "x86_64"
    return replace(wanted, triple=WINDOWS_X86) if is_windows else wanted


def baseline(system: System) -> Isa:
    """What every processor of the architecture has."""
    return on_system(SSE2 if system.machine == "x86_64" else NEON, system)


def host() -> Isa:
    """The widest instruction set this machine has.

    Code is for a level and not for one processor: it runs on every machine of the level, and it
    can be known without LLVM which one that is.
    """
    found = next((n for n in ISAS if why_not(ISAS[n]) is None), None)
    if found is None:
        raise UnsupportedError(f"{this_system().why_not()}. Use target='reference'.")
    return on_system(ISAS[found], this_system())


def why_not(wanted: Isa) -> str | None:
    """Why this machine cannot run code of an instruction set; None where it can."""
    if wanted.is_wasm:
        return "it is WebAssembly, which pages run: export the model to a folder for browsers"
    system = this_system()
    if why := system.why_not():
        return why
    if system.machine != wanted.arch:
        return f"it is for {wanted.arch}, and this is {system.machine}"
    missing = [f for f in _NEEDS[wanted.name] if f not in _features()]
    return f"the processor has no {', '.join(missing)}" if missing else None


@functools.cache
def _features() -> frozenset[str]:
    """Asked once: processors do not change."""
    return this_system().features()
