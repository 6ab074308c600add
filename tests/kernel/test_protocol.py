"""The kernel level is of no target: a second backend of the protocol, which shares no code with the
CPU's, runs every law through `schedule`, `emit`, `build` and `load`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.core.shape import Shape
from rlx.fuzz.generate import grow
from rlx.fuzz.job import refused_ops
from rlx.fuzz.judge import Expected, compare
from rlx.ir.mir import Graph
from rlx.kernel.program.program import Nested
from rlx.ops.op import Op
from rlx.pipeline import CompilePipeline
from tests.backend.cpu.laws import CLAIMED, Batch, batch, chunks
from tests.kernel.interpreted import InterpretedBackend, InterpretedProgram

BACKEND = InterpretedBackend()
GRAPHS = range(6)


def program_of(graph: Graph) -> InterpretedProgram:
    return BACKEND.compile(CompilePipeline(BACKEND.target()).compile(graph).lir)  # pyright: ignore


def outputs(graph: Graph, values: Any) -> tuple[InterpretedProgram, list[Any]]:
    program = program_of(graph)
    params = [n.attrs["name"] for n in graph.params]
    weights = program.prepare({name: values[name] for name in params}, None)
    inputs = [np.asarray(values[n.attrs["name"]]) for n in graph.inputs]
    return program, program.run(weights, inputs, [None] * len(graph.outputs))


def differences(graph: Graph, values: Any, got: Sequence[Any]) -> list[str]:
    return [m.message for m in compare("interpreted", Expected(graph, values), got)]


@pytest.mark.parametrize("some", chunks(CLAIMED, 12), ids=lambda some: some[0].name)
def test_every_law_holds(some: Sequence[Op]) -> None:
    made: Batch = batch(some, 0, 1)
    _, got = outputs(made.graph, made.values)
    assert differences(made.graph, made.values, got) == []


@pytest.mark.parametrize("seed", GRAPHS)
def test_random_graphs_are_the_references(seed: int) -> None:
    grown = grow(seed, 12, refused_ops(["cpu"]))
    _, got = outputs(grown.graph, grown.values)
    assert differences(grown.graph, grown.values, got) == []


def test_what_runs_is_what_was_emitted() -> None:
    g = Graph("g")
    x, w = g.input("x", Shape([6, 8])), g.param("w", Shape([8, 5]))
    g.set_outputs([ops.softmax(ops.relu(ops.matmul(x, w)), axis=-1)])
    rng = np.random.default_rng(0)
    dims = {"x": (6, 8), "w": (8, 5)}
    values = {name: rng.standard_normal(d, np.float32) for name, d in dims.items()}
    program, (got,) = outputs(g, values)
    sources = program.artefact.sources
    assert program.launched == {n for n, s in sources.items() if s.nest is not None}
    assert len(program.launched) >= 2
    want = np.maximum(values["x"] @ values["w"], 0)
    want = np.exp(want - want.max(-1, keepdims=True))
    # sums of 8 products and of 5 weights, each rounded: a few units in the last place
    np.testing.assert_allclose(got, want / want.sum(-1, keepdims=True), rtol=1e-5)


def test_a_refused_schedule_makes_smaller_steps() -> None:
    """A softmax folds by max and by sum, which the backend does not take in one kernel."""
    g = Graph("g")
    g.set_outputs([ops.softmax(g.input("x", Shape([4, 15])), axis=1)])
    values = {"x": np.random.default_rng(1).standard_normal((4, 15), np.float32)}
    program, got = outputs(g, values)
    assert differences(g, values, got) == []
    (step,) = program.artefact.program.main.calls
    assert isinstance(step.lowering, Nested)
    assert "folds of two kinds" in step.lowering.refused[0].reason
    assert len(step.lowering.body.calls) > 1
