"""The times of one call: which step was done by which thread, from when till when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlx.ir.mir import Node
from rlx.op import Array


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a step, done by one thread. Times are of one clock, in nanoseconds."""

    step: int
    thread: int
    start_ns: int
    stop_ns: int


@dataclass(frozen=True, slots=True)
class Run:
    """One call."""

    start_ns: int
    stop_ns: int
    spans: tuple[Span, ...]
    """In the order in which they began."""
    lost: int = 0
    """Parts for which there was no room."""
    outputs: list[Array] = field(default_factory=list[Array], repr=False, compare=False)

    def step_ns(self, count: int) -> list[int]:
        """What each of `count` steps took: from its first part's begin to its last one's end."""
        first = [0] * count
        last = [0] * count
        for span in self.spans:
            begun = first[span.step]
            first[span.step] = min(begun, span.start_ns) if begun else span.start_ns
            last[span.step] = max(last[span.step], span.stop_ns)
        return [stop - start for start, stop in zip(first, last)]


class Timed(Protocol):
    """A program that keeps the times of its steps."""

    @property
    def steps(self) -> tuple[Node, ...]:
        """What `Span.step` counts."""
        ...

    def prepare(self, params: Any, old: Any | None) -> Any: ...

    def run_timed(self, weights: Any, inputs: Sequence[Array]) -> Run: ...
