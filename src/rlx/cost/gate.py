"""The gate: what a change of the I/O profile is worth in nanoseconds, and whether to make it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GraphIoProfile:
    """What running a graph once costs in traffic: four counts, compared by value."""

    kernel_launches: int = 0
    sync_points: int = 0
    host_output_bytes: int = 0
    device_traffic_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FusionBenefit:
    """Before minus after; negative where a change costs."""

    launches_saved: int = 0
    sync_points_saved: int = 0
    host_readback_bytes_saved: int = 0
    device_traffic_bytes_saved: int = 0
