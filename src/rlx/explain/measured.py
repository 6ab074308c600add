"""What was measured of decisions that were reversed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a class of equivalent decisions. Gains are what taking one saves."""

    ids: tuple[str, ...]
    """All that were reversed together."""
    what: str
    where: tuple[str, ...]
    verdict: bool
    predicted_ns: float
    measured_ns: float
    low_ns: float
    high_ns: float
    """The ends of the confidence interval."""
    share: float
    """The predicted effect of all of them, of a call."""
    rounds: int
    busy_cores: float = 0.0
    """How many processors others used while it was timed."""

    @property
    def is_right(self) -> bool:
        """Does the verdict have the sign that was measured?"""
        return (self.measured_ns > 0) == self.verdict

    @property
    def is_certain(self) -> bool:
        """Is no change outside of the confidence interval?"""
        return self.low_ns > 0 or self.high_ns < 0

    @property
    def ratio(self) -> float | None:
        """Predicted / measured."""
        return self.predicted_ns / self.measured_ns if self.measured_ns else None
