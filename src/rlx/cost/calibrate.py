"""Calibration: what the gate's prices are on this machine, measured once and kept.

The documented numbers of a target serve everywhere and are nobody's in particular. Measured ones
make another value of the target, so that what was compiled with other numbers is not met again.
They belong to a machine and a release: a file from elsewhere, an older or a torn one is none.
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
from rlx.cost.target import CacheLevel, Target

if TYPE_CHECKING:
    from rlx.core.disk_cache import Cache

FORMAT = 3
HANDOUT_NS = 5_000.0
"""Where it was not measured: waking workers takes about as long."""
Progress: TypeAlias = Callable[[int, int, str], None]
"""Told how many steps are done, of how many, and what comes next."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a number of threads reaches together. GB/s are bytes per nanosecond."""

    threads: int
    dispatch_ns: float
    """What one more kernel costs, whatever it computes."""
    roundtrip_ns: float
    """What a call costs that does next to nothing."""
    handout_ns: float
    """What sharing a kernel's work out between the threads costs; next to nothing for one."""
    caches: tuple[CacheLevel, ...]
    """Nearest first."""
    memory_gb_s: float
    readback_gb_s: float
    """At which results reach memory that a caller gets."""
    turned_gb_s: float
    """At which a matrix is copied with its axes exchanged, read and written."""
    gflops: Mapping[DType, float]

    def applied(self, target: Target) -> Target:
        """`target` at these prices. What a round trip costs the gate is a wait for the host, and a
        processor never waits for itself: that price stays."""
        gate = replace(
            target.gate,
            dispatch_ns=self.dispatch_ns,
            memory_gb_s=self.memory_gb_s,
            readback_gb_s=self.readback_gb_s,
            unified_readback_gb_s=self.readback_gb_s,
        )
        rates = {**target.peak_gflops, **self.gflops}
        return replace(
            target, gate=gate, caches=self.caches, peak_gflops=rates, turned_gb_s=self.turned_gb_s
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
            handout_ns=_rate(held["handout_ns"]),
            caches=caches,
            memory_gb_s=_rate(held["memory_gb_s"]),
            readback_gb_s=_rate(held["readback_gb_s"]),
            turned_gb_s=_rate(held["turned_gb_s"]),
            gflops=gflops,
        )


@dataclass(frozen=True, slots=True)
class Calibration:
    """The numbers of one target on one machine."""

    target: str
    machine: Mapping[str, str]
    numbers: tuple[Numbers, ...]
    """One for each number of threads that was measured."""
    version: str = __version__

    def for_threads(self, threads: int) -> Numbers | None:
        return next((n for n in self.numbers if n.threads == threads), None)

    def text(self) -> str:
        """The file: JSON, and a hash of it that a torn one does not have."""
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


def kept_calibration(target: str, detail: str, cache: Cache | None) -> Calibration | None:
    """What was measured for `target` before, if it is of this machine and release."""
    text = cache.note(note_name(target)) if cache is not None else None
    return None if text is None else Calibration.parsed(text, target, machine(detail))


def machine(detail: str = "") -> dict[str, str]:
    """What numbers belong to: the processor, how many there are, and what code is made for it."""
    return {
        "processor": _processor(), "cores": str(os.cpu_count() or 1),
        "architecture": platform.machine(), "code": detail,
    }  # fmt: skip


@functools.cache
def _processor() -> str:
    """Its name, and what tells it from others of that name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    wanted = ("model name", "cpu family", "model", "stepping", "CPU part")
    found = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    return " ".join(found[k] for k in wanted if k in found) or platform.machine()


def note_name(target: str) -> str:
    """What the numbers of a target are kept as."""
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
    caches = ", ".join(f"{c.bytes >> 10:,} KB at {c.gb_s:.0f} GB/s" for c in n.caches)
    rates = ", ".join(f"{d.value} {v:,.0f}" for d, v in n.gflops.items())
    return (
        f"  {n.threads} thread{'s' * (n.threads > 1)}: a kernel {n.dispatch_ns:.0f} ns, "
        f"sharing it out {n.handout_ns:,.0f} ns, a call {n.roundtrip_ns:,.0f} ns; {caches}, "
        f"memory {n.memory_gb_s:.0f} GB/s, results {n.readback_gb_s:.0f}, "
        f"axes exchanged {n.turned_gb_s:.0f}; GFLOP/s: {rates}"
    )
