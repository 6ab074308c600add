"""Times by one clock: of code generation, and of a call, step by step and thread by thread."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlx.backends.base import Program
from rlx.ir.mir import Node
from rlx.ops.op import Array


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


@dataclass(frozen=True, slots=True)
class CodegenSpan:
    """A part of generating native code, done by one thread. Times are of the monotonic clock."""

    what: str
    """`write` the text of a function, `compile` a unit of them, or `link` all units."""
    functions: tuple[str, ...]
    thread: int
    """0 is the one that writes."""
    start_ns: int
    stop_ns: int
    bytes: int
    """Of what was made."""


class Timed(Program):
    """A program that records when each of its steps ran."""

    @property
    @abstractmethod
    def steps(self) -> tuple[Node, ...]:
        """What `Span.step` counts."""

    @property
    @abstractmethod
    def functions(self) -> Mapping[str, Node]:
        """Native function → the step that runs it, the first of several."""

    @abstractmethod
    def run_timed(self, weights: Any, inputs: Sequence[Array]) -> Run:
        """One call, and its times."""
