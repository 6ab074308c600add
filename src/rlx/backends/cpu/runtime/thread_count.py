"""How many threads compute best here."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")


def allowed_cpus() -> list[int]:
    """The processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def default_threads() -> int:
    """One for each core: two threads of one core share the units that do the arithmetic."""
    return _cores_here(tuple(allowed_cpus()))


def physical_cores(cpus: Iterable[int], topology: Path) -> int:
    """How many cores some processors belong to; each is its own where the system does not say."""
    return max(1, len({_siblings(topology / f"cpu{n}" / "topology", n) for n in cpus}))


@functools.lru_cache(maxsize=8)
def _cores_here(cpus: tuple[int, ...]) -> int:
    """Read once: which processors share a core does not change, and every compile asks."""
    return physical_cores(cpus, TOPOLOGY)


def _siblings(folder: Path, number: int) -> str:
    try:
        return (folder / "thread_siblings_list").read_text()
    except OSError:
        return str(number)
