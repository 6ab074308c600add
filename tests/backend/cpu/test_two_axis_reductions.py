"""Folds of both axes of a result: they share no loops, so they are done in steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cpu.isa import host
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.schedule.loop import loop_schedule
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, Node
from rlx.kernel.lower.loop import loop_kernel
from rlx.kernel.refusal import NotLowered

pytest.importorskip("llvmlite")
Build = Callable[[Node], Node]


def mean(x: Node, axis: int) -> Node:
    return ops.mean(x, axes=(axis,), keepdims=True)


def beside(x: Node) -> Node:
    return ops.sub(ops.sub(x, mean(x, 1)), mean(x, 0))


def inside(x: Node) -> Node:
    rows = ops.sub(x, mean(x, 1))
    return ops.sub(rows, mean(ops.square(rows), 0))


def around(x: Node) -> Node:
    columns = ops.sub(x, mean(x, 0))
    return ops.sub(columns, mean(ops.square(columns), 1))


def region(build: Build, shape: Shape) -> Graph:
    body, whole = Graph("body"), Graph("whole")
    body.set_outputs([build(body.input("v", shape))])
    whole.set_outputs([whole.node("region", [whole.input("x", shape)], {"body": body})])
    return whole


@pytest.mark.parametrize("build", [beside, inside, around])
@pytest.mark.parametrize("dims", [(5, 67), (40, 3)])
def test_folds_of_both_axes_are_done_in_steps(build: Build, dims: tuple[int, int]) -> None:
    graph = region(build, Shape(dims))
    x = np.random.default_rng(1).normal(size=dims).astype(np.float32)
    with pytest.raises(NotLowered, match="at each point"):
        loop_schedule(loop_kernel(graph.outputs[0]), CpuMachine.of(host()), "k")
    (want,) = evaluate(graph, {"x": x})
    # sums of at most 67 numbers of size 1, in another order
    np.testing.assert_allclose(rlx.compile(graph, target="cpu")(x), want, atol=1e-5)
