"""What a processor can do, as far as generated code asks: the width of its vectors, and which
instructions would otherwise be calls into a library that generated code does not have."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from rlx.dtype import DType
from rlx.errors import Error

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

    def lanes(self, dtype: DType) -> int:
        """How many values of a dtype, as it is computed with, fill one register."""
        return self.vector_bytes // dtype.compute.itemsize


AVX512 = Isa("avx512", LINUX_X86, "x86-64-v4", 64, 32, has_masks=True, has_scaling=True)
AVX2 = Isa("avx2", LINUX_X86, "x86-64-v3", 32, 16)
SSE2 = Isa("sse2", LINUX_X86, "x86-64", 16, 16, has_fma=False, has_rounding=False, has_halves=False)
NEON = Isa("neon", "aarch64-unknown-linux-gnu", "generic", 16, 32)
ISAS = {i.name: i for i in (AVX512, AVX2, SSE2, NEON)}

# what an instruction set must have to be the one its name says: the levels of x86-64
_NEEDS = {
    "avx512": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "avx2": ("avx2", "fma", "f16c", "bmi2"),
    "sse2": ("sse2",),
}


def isa(name: str) -> Isa:
    """The instruction set called `name`; `host` is the best this machine has."""
    if name == "host":
        return host()
    if name not in ISAS:
        raise Error(f"there is no instruction set {name!r}. Use one of: host, {', '.join(ISAS)}.")
    return ISAS[name]


@functools.cache
def host() -> Isa:
    """The widest instruction set this machine has, tuned for its processor."""
    import llvmlite.binding as llvm

    triple = llvm.get_process_triple()
    if triple.startswith(("aarch64", "arm64")):
        return replace(NEON, triple=triple, cpu=llvm.get_host_cpu_name())
    if not triple.startswith("x86_64"):
        raise Error(f"rlx makes code for x86-64 and aarch64; this machine is {triple}.")
    features = llvm.get_host_cpu_features()
    name = next(n for n, needs in _NEEDS.items() if all(features.get(f) for f in needs))
    return replace(ISAS[name], triple=triple, cpu=llvm.get_host_cpu_name())
