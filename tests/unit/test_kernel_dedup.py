"""Regions that differ in numbers alone: made equal, and nothing else changed."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from rlx import ops
from rlx.backends.cpu.backend import CpuBackend
from rlx.core.gc_paused import GEN0_THRESHOLD, gc_paused
from rlx.core.shape import Shape
from rlx.cost.target import Target
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, Node
from rlx.ops.op import Kind
from rlx.passes.context import Context
from rlx.passes.dedup import dedup_kernels
from rlx.passes.options import FusionOptions
from rlx.pipeline import PASSES


def layers(*numbers: tuple[float, float]) -> Graph:
    """Products with a scale and a shift of their own behind each."""
    g = Graph("layers")
    x = g.input("x", Shape([3, 8]))
    for i, (scale, shift) in enumerate(numbers):
        w = g.param(f"w{i}", Shape([8, 8]))
        x = ops.relu((x @ w) * scale + shift) / 3.5
    g.set_outputs([x])
    return g


def after(graph: Graph, target: Target | str = "") -> tuple[Graph, Graph]:
    """The graph before the pass and behind it."""
    context = Context.of(Target.of(target or CpuBackend().target()), FusionOptions())
    before = graph
    for run in PASSES[: PASSES.index(dedup_kernels)]:
        before = run(before, context)
    return before, dedup_kernels(before, context)


def regions(graph: Graph) -> list[Node]:
    return [n for n in graph.order() if n.decl.kind is Kind.REGION]


def test_numbers_that_differ_become_operands() -> None:
    before, made = after(layers((2.5, 0.25), (1.75, 0.25), (-3.0, 0.25)))
    assert len({n.attrs["body"].digest() for n in regions(before)}) == 3
    assert len({n.attrs["body"].digest() for n in regions(made)}) == 1
    counts = [len(n.inputs) for n in regions(before)]
    assert [len(n.inputs) for n in regions(made)] == [c + 1 for c in counts]


def test_results_are_the_same() -> None:
    before, made = after(layers((2.5, 0.25), (1.75, -1.0)))
    rng = np.random.default_rng(0)
    given = {leaf.attrs["name"]: rng.normal(size=leaf.shape.dims).astype(np.float32)
             for leaf in before.leaves}  # fmt: skip
    for one, other in zip(evaluate(before, given), evaluate(made, given)):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("numbers", [((2.5, 0.25),), ((2.5, 0.25), (2.5, 0.25))])
def test_what_is_alone_or_equal_stays(numbers: tuple[tuple[float, float], ...]) -> None:
    before, made = after(layers(*numbers))
    assert made is before


def test_only_where_code_is_made() -> None:
    before, made = after(layers((2.5, 0.25), (1.75, 0.5)), "metal")
    assert made is before


def test_divisors_stay_in_the_code() -> None:
    """Some are done by a reciprocal."""
    g = Graph("divided")
    x = g.input("x", Shape([3, 8]))
    for i, number in enumerate((3.0, 4.0)):
        w = g.param(f"w{i}", Shape([8, 8]))
        x = ops.relu(x @ w) / number
    g.set_outputs([x])
    before, made = after(g)
    assert regions(before)
    assert made is before


def test_the_collector_looks_as_often_as_before() -> None:
    young = gc.get_threshold()[0]
    with gc_paused():
        assert gc.get_threshold()[0] == GEN0_THRESHOLD
        with gc_paused():
            pass
        assert gc.get_threshold()[0] == GEN0_THRESHOLD
    assert gc.get_threshold()[0] == young


def test_a_collector_that_is_off_stays_off() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with gc_paused():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
