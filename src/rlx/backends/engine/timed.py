"""A program whose calls tell what each step takes: every step is a function of its own.

The engine compiles a call as one function and fuses what it likes, so that no part of it has a time
of its own. Here each step is compiled and waited for by itself: the times compare steps with each
other, and their sum is more than a call takes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rlx.backends.engine.functions import Checks
from rlx.backends.engine.program import EngineProgram, Weights
from rlx.backends.engine.steps import Segment, Step, cut
from rlx.backends.timing import Run, Span, Timed
from rlx.ir.lir import Phase
from rlx.ir.mir import Node
from rlx.ops.op import Array

HOST = 0
"""The thread of all spans: steps are waited for, one after the other."""


class TimedProgram(Timed):
    """A program, and its steps one by one."""

    def __init__(self, program: EngineProgram, schedule: Sequence[Node]) -> None:
        self.program, self.interface = program, program.interface
        phases = program.module.phases
        self._schedule = tuple(n for n in schedule if phases[n] is not Phase.PROLOGUE)
        self._single = _single(program)

    @property
    def steps(self) -> tuple[Node, ...]:
        return self._schedule

    @property
    def functions(self) -> Mapping[str, Node]:
        """Steps are no functions by name."""
        return {}

    def prepare(self, params: Mapping[str, Array], old: Weights | None) -> Weights:
        return self.program.prepare(params, old)

    def run(
        self, weights: Weights, inputs: Sequence[Array], outputs: Sequence[Array | None]
    ) -> list[Array]:
        return self.program.run(weights, inputs, outputs)

    def run_timed(self, weights: Weights, inputs: Sequence[Array]) -> Run:
        program, name = self.program, self.interface.name
        numbers = {n: i for i, n in enumerate(self._schedule)}
        values, sizes = program.given(weights, inputs)
        spans, checks, begun = list[Span](), Checks(program.engine), _clock()
        for node, steps in self._single:
            start = _clock()
            program.runner.run(steps, values, sizes, checks)
            checks.raise_first(name)
            program.engine.wait(_made(steps, values))
            if node in numbers:
                spans.append(Span(numbers[node], HOST, start, _clock()))
        outputs = program.results(values, is_own=False)
        return Run(begun, _clock(), tuple(spans), outputs=outputs)


def _single(program: EngineProgram) -> tuple[tuple[Node, tuple[Step, ...]], ...]:
    """Each node of a call as a segment, or host step, of its own."""
    graph, phases = program.graph, program.module.phases
    nodes = [n for n in graph.order() if not n.is_leaf and phases[n] is not Phase.PROLOGUE]
    items: dict[Node, list[Node]] = {}
    for node in nodes:
        if node.op == "item":
            items.setdefault(node.inputs[0], []).append(node)
    groups = [(n, [n, *items.get(n, ())]) for n in nodes if n.op != "item"]
    placement = program.steps.placement
    return tuple((n, cut(g, [v for v in g if not v.has_items], placement)) for n, g in groups)


def _made(steps: Sequence[Step], values: dict[Node, Any]) -> list[Any]:
    return [values[o] for s in steps if isinstance(s, Segment) for o in s.outputs]


def _clock() -> int:
    """The clock of traces."""
    return time.monotonic_ns()
