"""Families of GPUs as Metal names them: what code is printed for, and what schedules depend on.

Apple's own have simdgroups of 32 threads and multiply matrices of 8×8. Those of Macs before
(mac2: AMD's and Intel's) have simdgroups whose size a kernel knows only when it is compiled, so
that programs count on none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlx.backends.gpu.machine import GpuMachine
from rlx.core.errors import UnsupportedError

THREADGROUP_BYTES = 32 << 10
"""Threadgroup memory, Metal's shared memory, of one threadgroup: the same in all families."""
MAX_THREADS = 1024
MAX_BUFFERS = 30
"""That a kernel is given one by one: the argument table has 31 entries, and one is for sizes. A
kernel with more is given a struct of addresses."""
MAX_ADDRESSES = 512
"""Of that struct: 4 KiB may be set as bytes."""
SIMD = 32


@dataclass(frozen=True, slots=True)
class Family:
    """A family of GPUs."""

    name: str
    simd: int
    """Threads of a simdgroup; 1 where they are not known."""
    has_matrices: bool
    """Does a simdgroup multiply matrices?"""
    processors: int
    """Of the smallest product: cores of Apple's GPUs."""

    @property
    def machine(self) -> GpuMachine:
        return GpuMachine(
            warp=self.simd,
            clock_ghz=1.3,
            processors=self.processors,
            shared_bytes=THREADGROUP_BYTES,
            has_f64=False,
            tiles=frozenset({"simdgroup"} if self.has_matrices else ()),
        )


FAMILIES: dict[str, Family] = {
    f.name: f
    for f in (
        Family("apple9", SIMD, True, 10),
        Family("apple8", SIMD, True, 8),
        Family("apple7", SIMD, True, 7),
        Family("mac2", 1, False, 16),
    )
}
"""The newest first: M3 and later, M2, M1; a GPU is of the first that it supports."""
CORES = {"Pro": 16, "Max": 32, "Ultra": 64}
"""At least, by the last word of a chip's name: Metal does not say how many there are."""


def family(name: str) -> Family:
    found = FAMILIES.get(name)
    if found is None:
        raise UnsupportedError(
            f"target 'metal' has no code for {name}. It has {', '.join(FAMILIES)}; compile for "
            "'cpu' instead."
        )
    return found


def machine_of(
    found: Family, device_name: str, threadgroup_bytes: int, has_bfloat: bool
) -> GpuMachine:
    """That of a device. Without bfloat in the language, matrices of bf16 cannot be named."""
    words = device_name.split() or [""]
    return replace(
        found.machine,
        processors=CORES.get(words[-1], found.processors),
        shared_bytes=min(threadgroup_bytes, THREADGROUP_BYTES),
        tiles=found.machine.tiles if has_bfloat else frozenset(),
    )


def has_address_struct(buffers: int) -> bool:
    """Is a kernel with so many buffers given a struct of their addresses?"""
    return buffers > MAX_BUFFERS
