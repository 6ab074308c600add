"""Compiled functions of a program: one per segment and sizes of the named dims in it."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from rlx.backends.engine.calls import Failure
from rlx.backends.engine.engine import Compiled, Engine
from rlx.backends.engine.steps import Segment
from rlx.backends.engine.trace import Traced
from rlx.core.errors import Error

LOG = logging.getLogger("rlx")
MOST = 64
"""Functions of named dims that a program keeps; the one that was not called for longest goes."""
MOST_EACH = 4
"""Of each segment, in a program of so many that a call needs more than those."""
Sizes: TypeAlias = tuple[tuple[str, int], ...]
"""Of named dims, by name."""


@dataclass(frozen=True, slots=True)
class Function:
    """A segment, compiled."""

    call: Compiled
    traced: Traced
    num_outputs: int

    @property
    def failures(self) -> Sequence[tuple[Failure, ...]]:
        """What its codes say, once it was called."""
        return self.traced.failures


class Functions:
    """What was compiled, by segment and sizes. Calls may ask for it concurrently."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self.name = engine, name
        self._fixed: dict[Segment, Function] = {}
        self._sized: OrderedDict[tuple[Segment, Sizes], Function] = OrderedDict()
        """Those that depend on named dims, the one that was called last at the end."""
        self._segments: set[Segment] = set()
        """Those that depend on named dims."""
        self._lock = threading.RLock()

    def of(self, segment: Segment, sizes: Mapping[str, int]) -> Function:
        """The function for these sizes, compiled where it is not there yet."""
        bound = {k: sizes[k] for k in sorted(segment.symbols) if k in sizes}
        with self._lock:
            found = self._known(segment, bound)
            if found is None:
                found = self._compiled(segment, bound)
                self._put(segment, bound, found)
            return found

    def _known(self, segment: Segment, bound: Mapping[str, int]) -> Function | None:
        if not bound:
            return self._fixed.get(segment)
        key = segment, tuple(bound.items())
        if key in self._sized:
            self._sized.move_to_end(key)
        return self._sized.get(key)

    def _put(self, segment: Segment, bound: Mapping[str, int], function: Function) -> None:
        """Functions of fixed sizes are as many as there are segments, and stay."""
        if not bound:
            self._fixed[segment] = function
            return
        self._sized[segment, tuple(bound.items())] = function
        self._segments.add(segment)
        if len(self._sized) > max(MOST, MOST_EACH * len(self._segments)):
            self._sized.popitem(last=False)

    def keep(self, segment: Segment, sizes: Mapping[str, int], function: Function) -> None:
        """A function that was compiled elsewhere, or before."""
        with self._lock:
            self._put(segment, dict(sorted(sizes.items())), function)

    def made(self, segment: Segment) -> list[Function]:
        """Those of a segment that were compiled, one for each of their sizes."""
        with self._lock:
            fixed = [self._fixed[segment]] if segment in self._fixed else []
            return [*fixed, *(f for (s, _), f in self._sized.items() if s is segment)]

    def _compiled(self, segment: Segment, sizes: Mapping[str, int]) -> Function:
        begin = time.monotonic()
        traced = Traced(segment, self.engine, sizes)
        shapes = [n.shape.bind(sizes) for n in segment.inputs]
        with self.engine.scope():
            call = guarded(self.engine, self.name, self.engine.compiled, traced, shapes)
        self._note(sizes, time.monotonic() - begin)
        return Function(call, traced, len(segment.outputs))

    def _note(self, sizes: Mapping[str, int], seconds: float) -> None:
        if sizes:
            given = ", ".join(f"{k}={v}" for k, v in sizes.items())
            when = (
                "in its first call" if self.engine.compiles_at_first_call else f"in {seconds:.2f} s"
            )
            LOG.info(
                "%s: a function for %s is compiled %s, as %s compiles for fixed sizes; calls of "
                "these sizes take it from now on",
                *(self.name, given, when, self.engine.name),
            )


@dataclass(slots=True)
class Checks:
    """Codes of failures that functions of a call computed, to be looked at before the host relies
    on what they gave."""

    engine: Engine
    waiting: list[tuple[Function, Any]] = field(default_factory=list[tuple[Function, Any]])

    def called(self, function: Function, arrays: Sequence[Any], where: str) -> Sequence[Any]:
        """The outputs of a function; its codes are looked at later."""
        made = guarded(self.engine, where, function.call, *arrays)
        if len(made) > function.num_outputs:
            self.waiting.append((function, made[-1]))
            return made[: function.num_outputs]
        return made

    def raise_first(self, where: str) -> None:
        """Wait for the codes, and raise the first failure, which names its node."""
        waiting, self.waiting = self.waiting, []
        for function, codes in waiting:
            found = guarded(self.engine, where, self.engine.numpy, codes).tolist()
            for failures, code in zip(function.failures, found):
                if code:
                    failure = failures[code - 1]
                    raise Error(f"{failure.label}: {failure.text}")


T = TypeVar("T")


def guarded(engine: Engine, where: str, function: Callable[..., T], *arguments: Any) -> T:
    """What an engine raises becomes an error of rlx."""
    try:
        return function(*arguments)
    except Error:
        raise
    except Exception as error:  # whatever an engine raises
        raise engine.error(where, error) from error
