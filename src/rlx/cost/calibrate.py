"""Calibration: the cost model's parameters, measured once on this machine and cached.

The documented numbers of a target are generic. Measured ones make another `Target` value, with
another cache key, so that programs compiled at other prices are not reused. They belong to a
machine and a release: a file of another machine or release, or a truncated one, is ignored.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rlx._version import __version__
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.cost.machine import CacheLevel, Machine

if TYPE_CHECKING:
    from rlx.core.disk_cache import Cache

FORMAT = 4
Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with the steps done, their total, and the next step's name."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What was measured with one number of threads. GB/s are bytes per nanosecond."""

    threads: int
    dispatch_ns: float
    """The fixed cost of one more kernel."""
    roundtrip_ns: float
    """A call of an almost empty program."""
    fork_join_ns: float
    """Fork-join cost of a kernel that is split into tasks; next to nothing for one thread."""
    caches: tuple[CacheLevel, ...]
    """Nearest first."""
    memory_gb_s: float
    readback_gb_s: float
    """Results copied to the caller's memory."""
    transpose_gb_s: float
    """A transposing copy of a matrix, read and written."""
    gflops: Mapping[DType, float]

    def applied(self, machine: Machine) -> Machine:
        """`machine` as it was measured. What a round trip costs the gate is a wait for the host,
        and a processor never waits for itself: that price stays. So does a fork-join where one
        thread has none to measure."""
        gate = replace(
            machine.gate,
            dispatch_ns=self.dispatch_ns,
            memory_gb_s=self.memory_gb_s,
            readback_gb_s=self.readback_gb_s,
            unified_readback_gb_s=self.readback_gb_s,
        )
        return replace(
            machine,
            gate=gate,
            caches=self.caches,
            peak_gflops={**machine.peak_gflops, **self.gflops},
            transpose_gb_s=self.transpose_gb_s,
            fork_join_ns=self.fork_join_ns if self.threads > 1 else machine.fork_join_ns,
        )

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "gflops": {d.value: v for d, v in self.gflops.items()}}

    @classmethod
    def of(cls, held: Mapping[str, Any]) -> Numbers:
        """What `as_dict` gave. Gates and caches of nonsense are refused where they are made."""
        caches = tuple(CacheLevel(int(c["bytes"]), _rate(c["gb_s"])) for c in held["caches"])
        gflops = {DType(d): _rate(v) for d, v in held["gflops"].items()}
        return cls(
            threads=int(held["threads"]),
            dispatch_ns=_rate(held["dispatch_ns"]),
            roundtrip_ns=_rate(held["roundtrip_ns"]),
            fork_join_ns=_rate(held["fork_join_ns"]),
            caches=caches,
            memory_gb_s=_rate(held["memory_gb_s"]),
            readback_gb_s=_rate(held["readback_gb_s"]),
            transpose_gb_s=_rate(held["transpose_gb_s"]),
            gflops=gflops,
        )


@dataclass(frozen=True, slots=True)
class Calibration:
    """The numbers of one target on one machine."""

    target: str
    machine: Mapping[str, str]
    numbers: tuple[Numbers, ...]
    """One per measured number of threads."""
    version: str = __version__

    def for_threads(self, threads: int) -> Numbers | None:
        return next((n for n in self.numbers if n.threads == threads), None)

    def text(self) -> str:
        """The file: JSON with a checksum, which a truncated one fails."""
        held = {
            "format": FORMAT, "rlx": self.version, "target": self.target,
            "machine": dict(self.machine), "numbers": [n.as_dict() for n in self.numbers],
        }  # fmt: skip
        return json.dumps({**held, "hash": _hash(held)}, indent=1) + "\n"

    @classmethod
    def parsed(cls, text: str, target: str, machine: Mapping[str, str]) -> Calibration | None:
        """The calibration in a file, if it is whole and of this machine, release and target."""
        try:
            held: dict[str, Any] = json.loads(text)
            stamp = held.pop("hash")
            made_for = held["format"], held["rlx"], held["target"], held["machine"]
            if stamp != _hash(held) or made_for != (FORMAT, __version__, target, dict(machine)):
                return None
            return cls(target, machine, tuple(map(Numbers.of, held["numbers"])))
        except (ValueError, KeyError, TypeError, AttributeError, Error):
            return None

    def __str__(self) -> str:
        head = ", ".join(f"{k} {v}" for k, v in self.machine.items())
        return "\n".join([f"{self.target}: {head}", *map(_numbers_text, self.numbers)])


def cached_calibration(target: str, detail: str, cache: Cache | None) -> Calibration | None:
    """The cached calibration of `target`, if it is of this machine and release."""
    text = cache.note(note_name(target)) if cache is not None else None
    return None if text is None else Calibration.parsed(text, target, machine(detail))


def machine(detail: str = "") -> dict[str, str]:
    """What a calibration is valid for: processor, cores, architecture and code generation
    target."""
    return {
        "processor": _processor(), "cores": str(os.cpu_count() or 1),
        "architecture": platform.machine(), "code": detail,
    }  # fmt: skip


@functools.cache
def _processor() -> str:
    """Its name, and what tells apart those that share it."""
    wanted = {"cpu family": "family", "model": "model", "stepping": "stepping", "CPU part": "part"}
    found = _cpuinfo()
    more = ", ".join(f"{name} {found[k]}" for k, name in wanted.items() if k in found)
    return f"{processor_name()} ({more})" if more else processor_name()


def processor_name() -> str:
    """As its maker calls it, where the system says so."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


@functools.cache
def _cpuinfo() -> dict[str, str]:
    """Linux's facts of the last processor; none elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    return {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}


def note_name(target: str) -> str:
    """The cache's file name of a target's calibration."""
    return f"calibration-{target}.json"


def _hash(held: Mapping[str, Any]) -> str:
    text = json.dumps(held, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _rate(value: Any) -> float:
    """A number above 0."""
    rate = float(value)
    if not 0 < rate < float("inf"):
        raise ValueError(f"{value!r} is no rate")
    return rate


def _numbers_text(n: Numbers) -> str:
    caches = "".join(f"{c.bytes >> 10:,} KB at {c.gb_s:.0f} GB/s, " for c in n.caches)
    rates = ", ".join(f"{d.value} {v:,.0f}" for d, v in n.gflops.items())
    return (
        f"  {n.threads} thread{'s' * (n.threads > 1)}: a kernel {n.dispatch_ns:.0f} ns, "
        f"fork-join {n.fork_join_ns:,.0f} ns, a call {n.roundtrip_ns:,.0f} ns; {caches}"
        f"memory {n.memory_gb_s:.3g} GB/s, readback {n.readback_gb_s:.3g}, "
        f"transposing copies {n.transpose_gb_s:.3g}; GFLOP/s: {rates}"
    )
