"""Architectures of NVIDIA's GPUs: what code is printed for, and what each can do.

PTX runs on the architecture that it names and on later ones; one whose name ends in "a" runs there
alone, and has the matrix instructions of a warpgroup. A GPU that is newer than this table is
given the code of the latest one that it can run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlx.backends.cuda.ptx.architecture import Architecture
from rlx.backends.gpu.machine import GpuMachine
from rlx.core.errors import UnsupportedError

KIB = 1 << 10
OLDEST = 80
"""Ampere: bf16, matrix instructions on it, and asynchronous copies."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What is documented of a compute capability."""

    architecture: Architecture
    shared_bytes: int
    """That a block may ask for."""
    processors: int
    """Of its usual product, for code that is printed without a device."""
    product: str


GENERATIONS: Mapping[int, Generation] = {
    80: Generation(Architecture("sm_80", "8.0"), 163 * KIB, 108, "A100"),
    86: Generation(Architecture("sm_86", "8.0"), 99 * KIB, 84, "A40, RTX 30"),
    89: Generation(Architecture("sm_89", "8.0"), 99 * KIB, 128, "L40, RTX 40"),
    90: Generation(Architecture("sm_90a", "8.3"), 227 * KIB, 132, "H100, H200"),
    100: Generation(Architecture("sm_100a", "8.6"), 227 * KIB, 148, "B200"),
    120: Generation(Architecture("sm_120a", "8.7"), 99 * KIB, 170, "RTX 50"),
}
HOPPER = 90
"""Clusters, the copy engine and dependent launches begin here; wgmma is here alone."""


def generation_of(capability: int) -> Generation:
    """The latest that a device of this capability runs."""
    if capability < OLDEST:
        raise UnsupportedError(
            f"target 'cuda' needs a GPU of compute capability {OLDEST / 10} or later, and this one "
            f"has {capability / 10}. Use target='cpu'."
        )
    known = max(c for c in GENERATIONS if c <= capability)
    found = GENERATIONS[known]
    if known == capability or not found.architecture.name.endswith("a"):
        return found
    portable = replace(found.architecture, name=f"sm_{known}")
    return replace(found, architecture=portable)


def architecture_of(name: str) -> Architecture:
    """The architecture of that name, "sm_90" or "sm_90a"."""
    known = {g.architecture.name.rstrip("a"): g.architecture for g in GENERATIONS.values()}
    found = known.get(name.rstrip("a"))
    if found is None:
        raise UnsupportedError(
            f"there is no CUDA architecture {name!r}. Use one of: {', '.join(known)}; or a "
            "device's number, as in cuda:0."
        )
    return found


def machine_of(
    capability: int, processors: int | None = None, shared_bytes: int | None = None
) -> GpuMachine:
    """The machine of a compute capability: a device's own numbers, else the documented ones."""
    found = generation_of(capability)
    is_hopper = capability == HOPPER
    has_engine = capability >= HOPPER
    return GpuMachine(
        processors=processors or found.processors,
        shared_bytes=shared_bytes or found.shared_bytes,
        tiles=frozenset({"mma", "wgmma"}) if is_hopper else frozenset({"mma"}),
        has_async_copy=True,
        has_bulk_copy=has_engine,
        has_clusters=has_engine,
        has_dependent_launch=has_engine,
    )
