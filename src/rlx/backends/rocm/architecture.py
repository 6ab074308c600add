"""AMD's architectures: what code is generated for, and the numbers that schedules depend on.

CDNA (gfx90a, gfx942) has waves of 64 lanes and the matrix instructions mfma; RDNA (gfx1100,
gfx1201) has waves of 32 lanes and wmma.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlx.backends.gpu.machine import GpuMachine, TileKind
from rlx.core.errors import UnsupportedError

LDS_BYTES = 64 << 10
"""Local data share, AMD's shared memory, of one workgroup."""
TRIPLE = "amdgcn-amd-amdhsa"


@dataclass(frozen=True, slots=True)
class Architecture:
    """A processor as LLVM names it."""

    name: str
    wave: int
    tiles: TileKind
    processors: int
    """Of the largest product: compute units of CDNA, pairs of them of RDNA, where a workgroup may
    have both."""
    elf_mach: int
    """EF_AMDGPU_MACH: the low byte of the ELF flags of its code."""
    features: str = ""

    @property
    def generation(self) -> Literal[9, 11, 12]:
        """The major version of the instruction set."""
        return 9 if self.name.startswith("gfx9") else 11 if self.name < "gfx12" else 12

    @property
    def has_row_permute(self) -> bool:
        """DPP's row_xmask and permlanex16, which begin with the tenth generation."""
        return self.generation > 9

    @property
    def machine(self) -> GpuMachine:
        return GpuMachine(
            warp=self.wave,
            processors=self.processors,
            shared_bytes=LDS_BYTES,
            tiles=frozenset({self.tiles}),
        )


_WAVE32 = "+wavefrontsize32"
ARCHITECTURES: dict[str, Architecture] = {
    a.name: a
    for a in (
        Architecture("gfx90a", 64, "mfma", 104, 0x3F),
        Architecture("gfx942", 64, "mfma", 304, 0x4C),
        Architecture("gfx1100", 32, "wmma", 48, 0x41, _WAVE32),
        Architecture("gfx1201", 32, "wmma", 32, 0x4E, _WAVE32),
    )
}


def architecture(name: str) -> Architecture:
    """By the name of LLVM or HIP, whose options (`gfx90a:sramecc+:xnack-`) do not matter: code
    that states none of them runs with any."""
    found = ARCHITECTURES.get(name.partition(":")[0])
    if found is None:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedError(
            f"target 'rocm' has no code for the architecture {name}. It has {known}; compile for "
            "'cpu' instead."
        )
    return found
