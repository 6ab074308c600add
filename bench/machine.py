"""What this machine is, and whether anyone else is using it."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

QUIET = 0.9
"""The share of idle time from which on a machine counts as quiet."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """Time of all processors so far: idle, and in all."""

    idle: int
    total: int

    def idle_share(self, later: Ticks) -> float:
        """How much of the time since then was idle."""
        passed = later.total - self.total
        return (later.idle - self.idle) / passed if passed else 1.0


def ticks() -> Ticks:
    fields = [int(f) for f in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return Ticks(fields[3] + fields[4], sum(fields))


def idle_share(seconds: float = 0.1) -> float:
    """How idle all processors were while this waited."""
    before = ticks()
    time.sleep(seconds)
    return before.idle_share(ticks())


def await_quiet(patience: float) -> float:
    """Wait for a quiet machine, at most so many seconds; how idle it was in the end."""
    until = time.perf_counter() + patience
    while True:
        share = idle_share()
        if share >= QUIET or time.perf_counter() > until:
            return share


def processor() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def cache_bytes() -> int:
    """The size of the last level of cache, or 0 where it is not told."""
    found = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return int(found[-1].read_text().strip().rstrip("K")) * 1024 if found else 0


def description() -> dict[str, str | int]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "memory_gb": round(memory / 2**30),
        "last_cache_mb": round(cache_bytes() / 2**20),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
