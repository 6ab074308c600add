"""How much of the processor other processes used while something was timed."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
BUSY_CORES = 0.25
"""More than this disturbs what is timed: a quarter of one core."""


class OtherLoad:
    """A watch over the processor time of others, from when it is made."""

    def __init__(self) -> None:
        self._start = _seen()

    def cores(self) -> float:
        """Processors that others kept busy since, on average; 0 where the system does not say."""
        before, now = self._start, _seen()
        if before is None or now is None or now[0] - before[0] < 0.05:
            return 0.0
        elapsed, machine, own = (b - a for a, b in zip(before, now))
        return max(0.0, (machine - own) / elapsed)


def is_busy(cores: float) -> bool:
    return cores > BUSY_CORES


def warning(cores: float) -> str:
    """What is to be said of times that were taken meanwhile."""
    return (
        f"the machine is busy: other processes used {cores:.1f} of {os.cpu_count() or 1} cores "
        "meanwhile, so that times marked * are too long, and differences between them uncertain"
    )


def _seen() -> tuple[float, float, float] | None:
    """The clock, the busy time of all processors, and that of this process and its children."""
    try:
        words = STAT.read_text().split("\n", 1)[0].split()[1:]
        user, nice, system, _, _, irq, softirq, steal = map(int, words[:8])
    except (OSError, ValueError):
        return None
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return time.monotonic(), busy, own
