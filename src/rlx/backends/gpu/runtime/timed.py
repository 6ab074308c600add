"""A program whose calls tell when each step of the plan ran, by the device's time stamps.

What the device does by itself is recorded with a time stamp between any two steps, so that none
begins before the one before it has ended: a call takes longer than one that is not timed. Steps
that the host runs, such as loops, are timed by its clock, waiting for the device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from itertools import groupby

from rlx.backends.gpu.device import Array, Device
from rlx.backends.gpu.runtime.call import Call, Frame, Loaded, Part, Segment
from rlx.backends.gpu.runtime.memory import Context
from rlx.backends.gpu.runtime.program import GpuProgram, Weights
from rlx.backends.gpu.runtime.routine import Artefact, Enqueued, launches_in
from rlx.backends.timing import Run, Span, Timed
from rlx.ir.mir import Node

DEVICE = 0
"""The thread of spans of the device: it does one thing after the other."""


class TimedProgram(GpuProgram, Timed):
    """A program that records when each of its steps ran."""

    def __init__(
        self, artefact: Artefact, device: Device, nodes: Sequence[Node], owners: Sequence[int]
    ) -> None:
        super().__init__(artefact, device)
        self._nodes, self._owners = tuple(nodes), tuple(owners)
        self._recording = threading.local()

    @property
    def steps(self) -> tuple[Node, ...]:
        return self._nodes

    @property
    def functions(self) -> Mapping[str, Node]:
        """Kernel → the step that launches it, the first of several."""
        main = self.artefact.routines[self.artefact.main]
        found: dict[str, Node] = {}
        for step, owner in zip(main.steps, self._owners):
            for launch in launches_in(step):
                found.setdefault(self.artefact.codes[launch.code].name, self._nodes[owner])
        return found

    def run_timed(self, weights: Weights, inputs: Sequence[Array]) -> Run:
        spans: list[Span] = []
        self._recording.spans = spans
        start = _clock()
        try:
            outputs = self.run(weights, inputs, [None] * len(self.interface.outputs))
        finally:
            self._recording.spans = None
        return Run(start, _clock(), tuple(spans), outputs=outputs)

    def _call(self, context: Context, weights: Weights, sizes: Mapping[str, int]) -> Call:
        spans = getattr(self._recording, "spans", None)
        if spans is None:
            return super()._call(context, weights, sizes)
        spans.clear()  # of an attempt before, at smaller capacities
        at = weights.block.address
        return _TimedCall(self._loaded, context, at, sizes, self._owners, spans)


class _TimedCall(Call):
    """A call whose main routine notes when each step ran."""

    def __init__(
        self,
        loaded: Loaded,
        context: Context,
        weights: int,
        sizes: Mapping[str, int],
        owners: Sequence[int],
        spans: list[Span],
    ) -> None:
        super().__init__(loaded, context, weights, sizes)
        self._owners, self._spans, self._next = owners, spans, 0

    def _part(self, part: Part, frame: Frame) -> None:
        if frame.routine.name != self.loaded.artefact.main:
            super()._part(part, frame)
        elif isinstance(part, Segment):
            self._stamped(part, frame)
        else:
            start = _clock()
            super()._part(part, frame)
            self.queue.wait()
            self._spans.append(Span(self._owner(), DEVICE, start, _clock()))

    def _owner(self) -> int:
        """Of the next step of the routine; outputs that are copied are the last one's."""
        last = max(0, len(self._owners) - 1)
        number = min(self._next, last)
        self._next += 1
        return self._owners[number] if self._owners else 0

    def _stamped(self, segment: Segment, frame: Frame) -> None:
        owned = [(self._owner(), step) for step in segment.steps]
        parts = [(k, [s for _, s in g]) for k, g in groupby(owned, key=lambda pair: pair[0])]
        works = [lambda s=steps: self._enqueue(_segment(s), frame) for _, steps in parts]
        self.queue.wait()
        graph = self.queue.record_stamped(works)
        try:
            graph.replay()
            stamps = graph.stamps_ns()
            end = _clock()
        finally:
            graph.close()
        times = [end - int(stamps[-1] - s) for s in stamps]
        if self._owners:
            owners = [owner for owner, _ in parts]
            self._spans += map(Span, owners, [DEVICE] * len(owners), times, times[1:])


def _segment(steps: Sequence[Enqueued]) -> Segment:
    return Segment(0, tuple(steps))


def _clock() -> int:
    """The clock of traces."""
    return time.monotonic_ns()
