"""The fusion gate: an I/O cost model that prices a rewrite in nanoseconds and accepts or rejects
it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from rlx.core.arguments import instance
from rlx.core.errors import Error
from rlx.core.intervals import whole
from rlx.core.public_calls import public, public_class

if TYPE_CHECKING:
    from rlx.cost.target import FusionTarget, Target


@public_class
@dataclass(frozen=True, slots=True)
class GraphIoProfile:
    """The I/O of one execution of a graph: four counts, compared by value."""

    kernel_launches: int = 0
    sync_points: int = 0
    host_output_bytes: int = 0
    device_traffic_bytes: int = 0

    def __post_init__(self) -> None:
        counts = (
            self.kernel_launches, self.sync_points, self.host_output_bytes,
            self.device_traffic_bytes,
        )  # fmt: skip
        if not all(type(n) is int and n >= 0 for n in counts):
            _check_counts(self, least=0)

    def host_readback_bytes(self, unified: bool) -> int:
        """What a call moves to the host. Where memory is not shared, a quarter of the device's
        traffic is taken to cross over beside the outputs, which is the documented rule."""
        return self.host_output_bytes + (0 if unified else self.device_traffic_bytes // 4)

    def __add__(self, other: GraphIoProfile) -> GraphIoProfile:
        return GraphIoProfile(
            self.kernel_launches + other.kernel_launches,
            self.sync_points + other.sync_points,
            self.host_output_bytes + other.host_output_bytes,
            self.device_traffic_bytes + other.device_traffic_bytes,
        )


@public_class
@dataclass(frozen=True, slots=True)
class FusionBenefit:
    """Before minus after; negative where a change costs."""

    launches_saved: int = 0
    sync_points_saved: int = 0
    host_readback_bytes_saved: int = 0
    device_traffic_bytes_saved: int = 0

    def __post_init__(self) -> None:
        _check_counts(self, least=None)

    def score_ns(
        self,
        dispatch_ns: float,
        roundtrip_ns: float,
        memory_gb_s: float,
        readback_gb_s: float,
        unified_memory: bool,
        *,
        unified_readback_gb_s: float = 1.0,
    ) -> float:
        """What it is worth at these prices, without the penalty that a gate has for added syncs."""
        gate = IoFusionGate(
            dispatch_ns, roundtrip_ns, memory_gb_s, readback_gb_s, unified_memory,
            host_thunk_penalty_ns=0, min_gain_ns=0, unified_readback_gb_s=unified_readback_gb_s,
        )  # fmt: skip
        return gate.score_ns(self)

    def should_fuse(
        self,
        dispatch_ns: float,
        roundtrip_ns: float,
        memory_gb_s: float,
        readback_gb_s: float,
        unified_memory: bool,
        min_gain_ns: float,
        *,
        unified_readback_gb_s: float = 1.0,
    ) -> bool:
        """Is it worth at least `min_gain_ns` at these prices?"""
        _check_number("min_gain_ns", min_gain_ns, "not negative", lambda v: v >= 0)
        gain_ns = self.score_ns(
            dispatch_ns, roundtrip_ns, memory_gb_s, readback_gb_s, unified_memory,
            unified_readback_gb_s=unified_readback_gb_s,
        )  # fmt: skip
        return gain_ns >= min_gain_ns


@public
def fusion_benefit(before: GraphIoProfile, after: GraphIoProfile) -> FusionBenefit:
    """What going from `before` to `after` saves."""
    for name, profile in (("before", before), ("after", after)):
        instance(GraphIoProfile).check(name, profile)
    return FusionBenefit(
        before.kernel_launches - after.kernel_launches,
        before.sync_points - after.sync_points,
        before.host_output_bytes - after.host_output_bytes,
        before.device_traffic_bytes - after.device_traffic_bytes,
    )


def is_dominating(benefit: FusionBenefit, *more: int) -> bool:
    """Pareto dominance: no term is worse and one is better, so no prices are needed. `more` are
    further savings, such as flops."""
    savings = [*(getattr(benefit, f.name) for f in fields(benefit)), *more]
    return min(savings) >= 0 and max(savings) > 0


@public_class
@dataclass(frozen=True, slots=True)
class IoFusionGate:
    """A target's prices. Bandwidths are in GB/s, which is bytes per nanosecond."""

    dispatch_ns: float
    roundtrip_ns: float
    memory_gb_s: float
    readback_gb_s: float
    unified_memory: bool
    host_thunk_penalty_ns: float
    """Charged per sync point added, on top of its round trip: the device idles meanwhile."""
    min_gain_ns: float
    unified_readback_gb_s: float = 1.0
    """What copying a result out achieves where host and device share memory: first-touch pages
    make it far less than `memory_gb_s`."""

    def __post_init__(self) -> None:
        for name in ("memory_gb_s", "readback_gb_s", "unified_readback_gb_s"):
            _check_number(name, getattr(self, name), "positive", lambda v: v > 0)
        for name in ("dispatch_ns", "roundtrip_ns", "host_thunk_penalty_ns", "min_gain_ns"):
            _check_number(name, getattr(self, name), "not negative", lambda v: v >= 0)
        if not isinstance(self.unified_memory, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Error(
                f"IoFusionGate: unified_memory is {self.unified_memory!r}. Use True or False."
            )

    @classmethod
    def for_target(cls, target: FusionTarget | Target | str) -> IoFusionGate:
        """The documented prices of a target."""
        from rlx.cost.target import Target

        return Target.of(target).gate

    @property
    def effective_readback_gb_s(self) -> float:
        """The bandwidth at which results reach the caller's memory."""
        return self.unified_readback_gb_s if self.unified_memory else self.readback_gb_s

    def score_ns(self, benefit: FusionBenefit) -> float:
        """What `benefit` is worth; the host-thunk penalty of added syncs is taken off."""
        added_syncs = max(0, -benefit.sync_points_saved)
        return (
            benefit.launches_saved * self.dispatch_ns
            + benefit.sync_points_saved * self.roundtrip_ns
            + benefit.device_traffic_bytes_saved / self.memory_gb_s
            + benefit.host_readback_bytes_saved / self.effective_readback_gb_s
            - added_syncs * self.host_thunk_penalty_ns
        )

    def should_fuse(self, before: GraphIoProfile, after: GraphIoProfile) -> bool:
        """Does going from `before` to `after` gain at least `min_gain_ns`?"""
        return self.score_ns(fusion_benefit(before, after)) >= self.min_gain_ns


def _check_counts(counts: GraphIoProfile | FusionBenefit, least: int | None) -> None:
    """Are all fields whole numbers, and not below `least`?"""
    for field in fields(counts):
        value = getattr(counts, field.name)
        number = whole(value)
        if number is None or (least is not None and number < least):
            expected = "a whole number" if least is None else f"a whole number from {least}"
            name = type(counts).__name__
            raise Error(f"{name}: {field.name} is {value!r}. Give {expected}.")
        object.__setattr__(counts, field.name, number)


def _check_number(name: str, value: object, what: str, holds: Callable[[float], bool]) -> None:
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = value
    if not (math.isfinite(number) and holds(number)):
        raise Error(f"IoFusionGate: {name} is {value!r}, expected a finite number, {what}.")
