"""Parts of a routine: segments that the device does by itself, and what the host takes part in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.gpu.runtime.routine import (
    AnyStep,
    BranchStep,
    CallStep,
    ChoiceStep,
    CopyStep,
    Enqueued,
    HostStep,
    LaunchStep,
    ScanStep,
    SizesStep,
    WhileStep,
)


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps in a row that the device does by itself."""

    number: int
    steps: tuple[Enqueued, ...]


Part = Segment | SizesStep | HostStep | CallStep | BranchStep | WhileStep | ScanStep


def parts_of(steps: Sequence[AnyStep], first: int = 0) -> tuple[Part, ...]:
    """Steps with segments joined, which are numbered from `first` on."""
    parts: list[Part] = []
    run: list[Enqueued] = []
    for step in steps:
        if isinstance(step, LaunchStep | CopyStep | ChoiceStep):
            run.append(step)
            continue
        if run:
            parts.append(Segment(first + len(parts), tuple(run)))
            run = []
        parts.append(step)
    if run:
        parts.append(Segment(first + len(parts), tuple(run)))
    return tuple(parts)
