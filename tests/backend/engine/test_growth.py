"""What engines are given is in proportion to the nodes, however often the host takes its turn.

Lines that run are counted, those of comprehensions for each of their values: no time is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from bench.shape_engine import ShapeEngine
from rlx import Dim, Graph, Shape, ops
from rlx.backends.engine import functions
from rlx.backends.engine.module import Module
from rlx.backends.engine.program import EngineProgram
from rlx.backends.engine.steps import Segment, each_step
from rlx.backends.mlx.calls import table
from rlx.backends.mlx.claims import OWN_CONTROL
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Node
from rlx.ops.op import Op
from rlx.pipeline import CompilePipeline
from tests.backend.engine.numpy_engine import NumpyBackend

FEW, MOST = 30, 1.25
"""Pairs of steps, and a pair's share at four times as many, to that at first."""
ENGINE = "/rlx/backends/engine/"


def lines_of(work: Callable[[], object]) -> int:
    """How many lines of the engines' folder run."""
    count = 0

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def called(frame: FrameType, event: str, arg: Any) -> Any:
        return line if ENGINE in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def alternating(pairs: int, leaf: Callable[[Graph], Node]) -> EngineProgram:
    """A call of the engine, one of the host, and so on: the engine has no sine."""
    g, backend = Graph("alternating"), NumpyBackend()
    y = leaf(g)
    for _ in range(pairs):
        y = ops.sin(ops.exp(y))
    g.set_outputs([ops.add(y, g.input("x", Shape([4])))])
    return backend.compile(CompilePipeline(backend.target()).compile(g).lir)


def compiled(pairs: int) -> Callable[[], object]:
    """All segments of a call made and compiled."""
    program = alternating(pairs, lambda g: g.input("y", Shape([4])))
    return lambda: EngineProgram(program.module, program.engine).build()


def prepared(pairs: int) -> Callable[[], object]:
    """A param given anew, of which all of a Prologue follows."""
    program = alternating(pairs, lambda g: g.param("y", Shape([4])))
    first, second = ({"y": np.full(4, v, "f4")} for v in (0.5, 0.25))
    before = program.prepare(first, None)
    return lambda: program.prepare(second, before)


@pytest.mark.parametrize("work", [compiled, prepared])
def test_lines_are_in_proportion_to_steps(work: Callable[[int], Callable[[], object]]) -> None:
    few, many = (lines_of(work(pairs)) for pairs in (FEW, 4 * FEW))
    assert many <= 4 * MOST * few


def test_a_call_of_many_segments_compiles_none_of_them_again() -> None:
    n, g, backend = Dim("n", 1, 8), Graph("segments"), NumpyBackend()
    y = g.input("x", Shape([n]))
    for _ in range(functions.MOST + 1):
        y = ops.sin(ops.exp(y))
    g.set_outputs([y])
    program = backend.compile(CompilePipeline(backend.target()).compile(g).lir)
    weights = program.prepare({}, None)
    for size in (3, 2, 3, 2):
        program.run(weights, [np.zeros(size, "f4")], [None])
    assert len(backend.held.shapes) == 2 * (functions.MOST + 1)


def nested(depth: int, length: int) -> Graph:
    """Scans inside of scans, a sum in each."""
    inner: Graph | None = None
    for _ in range(depth):
        g = Graph("nested")
        y = g.add(g.input("x", Shape([])), 1.0)
        if inner is not None:
            (y,) = g.scan(y, body=inner, length=length, num_carries=1)
        g.set_outputs([y])
        inner = g
    assert inner is not None
    return inner


class CountedCalls(ShapeEngine):
    count = 0

    def function(self, op: Op) -> Callable[..., Any]:
        self.count += 1
        return super().function(op)


def test_scans_inside_of_scans_are_unrolled_as_long_as_all_their_steps_are_few() -> None:
    """mlx has no scan: ten of two steps each would be 1,023 sums in one function."""
    engine = CountedCalls(table(), OWN_CONTROL)
    program = EngineProgram(Module.of(CompilePipeline("mlx").compile(nested(10, 2)).lir), engine)
    for step in each_step(program.steps.call):
        if isinstance(step, Segment):
            program.functions.of(step, {})
    assert 10 <= engine.count <= 10 * 16


def test_scans_that_are_unrolled_in_part_agree_with_their_meaning() -> None:
    g, backend = nested(4, 3), NumpyBackend()
    program = backend.compile(CompilePipeline(backend.target()).compile(g).lir)
    x = np.zeros((), "f4")
    (got,) = program.run(program.prepare({}, None), [x], [None])
    assert got == evaluate(g, {"x": x})[0]
