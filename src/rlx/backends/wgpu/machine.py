"""What schedules and the printer may count on, per adapter.

Subgroups have no fixed size in WebGPU, so that machines have no warps: groups of threads are
blocks, which exchange values through workgroup memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.wgpu.wgsl.module import Target
from rlx.core.errors import UnsupportedError

KB = 1 << 10
GPU = GpuMachine(
    warp=1, block=64, max_block=256, shared_bytes=16 * KB, processors=32, index_bits=32,
    has_f64=False,
)  # fmt: skip
"""What every adapter has by WebGPU's default limits."""
SOFTWARE = replace(
    GPU, processors=4, simd=8, barrier_cycles=500, load_cycles=0, launch_bytes=32 * KB
)
"""A few threads of the host, each of which runs the threads of a block in SIMD groups: at a barrier
it switches between them, and shared memory is memory like any other."""
WEB = "web"
_NAMED = re.compile(r"wgsl(-f16)?(-software)?-(\d+)x(\d+)-(\d+)b")


@dataclass(frozen=True, slots=True)
class Architecture:
    """What code depends on: features of the language, the limits of a workgroup and of bindings."""

    has_f16: bool = False
    is_software: bool = False
    """Threads of a workgroup are loops of the host's threads: barriers cost more than memory."""
    max_threads: int = 256
    shared_bytes: int = 16 * KB
    max_buffers: int = 8
    """Storage bindings of a kernel."""

    @property
    def name(self) -> str:
        parts = "-f16" * self.has_f16 + "-software" * self.is_software
        return f"wgsl{parts}-{self.max_threads}x{self.shared_bytes}-{self.max_buffers}b"

    @property
    def target(self) -> Target:
        """What the printer may use."""
        return Target(has_f16=self.has_f16, shared_bytes=self.shared_bytes)

    @property
    def machine(self) -> GpuMachine:
        threads = min(self.max_threads, 512)
        made = SOFTWARE if self.is_software else GPU
        return replace(made, max_block=threads, shared_bytes=self.shared_bytes)

    def runs(self, other: Architecture) -> bool:
        """Does code for another one run on this?"""
        return (
            self.has_f16 >= other.has_f16
            and self.max_threads >= other.max_threads
            and self.shared_bytes >= other.shared_bytes
        )


DEFAULT = Architecture()
"""WebGPU's default limits, which every browser has."""


def architecture_of(
    features: frozenset[str], limits: Mapping[str, int], is_software: bool
) -> Architecture:
    """That of an adapter."""
    threads = min(
        limits["max-compute-invocations-per-workgroup"], limits["max-compute-workgroup-size-x"]
    )
    return Architecture(
        "shader-f16" in features,
        is_software,
        threads,
        limits["max-compute-workgroup-storage-size"],
        limits["max-storage-buffers-per-shader-stage"],
    )


def named_architecture(name: str) -> Architecture:
    """By name: as `Architecture.name` gives it, or "web"."""
    if name == WEB:
        return DEFAULT
    found = _NAMED.fullmatch(name)
    if found is None:
        raise UnsupportedError(
            f"{name!r} is no architecture of wgpu; use the number of an adapter, such as 'wgpu:0', "
            f"or 'wgpu:{WEB}' for what every browser has."
        )
    f16, software, threads, shared, buffers = found.groups()
    return Architecture(bool(f16), bool(software), int(threads), int(shared), int(buffers))
