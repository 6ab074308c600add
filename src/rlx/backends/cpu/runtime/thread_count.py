"""How many threads compute best here."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rlx.core.errors import Error

TOPOLOGY = Path("/sys/devices/system/cpu")
CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
"""The control groups of this process, one per line: number, controllers, path."""
VARIABLE, OPENMP = "RLX_THREADS", "OMP_NUM_THREADS"


def allowed_cpus() -> list[int]:
    """The processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def default_threads() -> int:
    """What is used where nobody asks for a number."""
    return usual_threads(os.environ)[0]


def usual_threads(environment: Mapping[str, str]) -> tuple[int, str]:
    """As many as the environment asks for; else one for each core, as two threads of one core share
    the units that do the arithmetic, and no more than the control group has time for. And why."""
    asked = environment.get(VARIABLE, "").strip()
    if asked:
        if not asked.isdecimal() or not int(asked):
            raise Error(f"{VARIABLE} is {asked!r}. Give a whole number from 1.")
        return int(asked), f"{VARIABLE} says so"
    openmp = environment.get(OPENMP, "").partition(",")[0].strip()
    if openmp.isdecimal() and int(openmp):
        return int(openmp), f"{OPENMP} says so"
    cores, quota = _cores_here(tuple(allowed_cpus())), cpu_quota(CGROUPS, MEMBERSHIP)
    if quota < cores:
        return max(1, math.floor(quota)), f"the control group allows the time of {quota:g} cores"
    return cores, "one for each core"


def cpu_quota(root: Path, membership: Path) -> float:
    """How many processors' time the control groups of this process have, of either version; each
    limits those below it."""
    found = [_version_2(folder) for folder in _folders(root, membership, "")]
    for name in ("cpu", "cpu,cpuacct"):
        found += [_version_1(folder) for folder in _folders(root / name, membership, "cpu")]
    return min(found, default=math.inf)


def _folders(root: Path, membership: Path, controller: str) -> Iterator[Path]:
    """The group that has the controller, and those above it; inside of a container the path may be
    one of outside, where only the root is to be seen."""
    for line in _text(membership).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controller in controllers.split(","):
            parts = [p for p in path.split("/") if p not in ("", "..")]
            yield from (root.joinpath(*parts[:n]) for n in range(len(parts), -1, -1))


def _version_2(folder: Path) -> float:
    return _ratio(*(*_text(folder / "cpu.max").split(), "", "")[:2])


def _version_1(folder: Path) -> float:
    return _ratio(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float:
    """Without a limit the quota is "max", or -1."""
    if not quota.strip().isdecimal() or not period.strip().isdecimal() or not int(period):
        return math.inf
    return int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def physical_cores(cpus: Iterable[int], topology: Path) -> int:
    """How many cores some processors belong to; each is its own where the system does not say."""
    return max(1, len({_siblings(topology / f"cpu{n}" / "topology", n) for n in cpus}))


@functools.lru_cache(maxsize=8)
def _cores_here(cpus: tuple[int, ...]) -> int:
    """Read once: which processors share a core does not change, and every compile asks."""
    return physical_cores(cpus, TOPOLOGY)


def _siblings(folder: Path, number: int) -> str:
    return _text(folder / "thread_siblings_list") or str(number)
