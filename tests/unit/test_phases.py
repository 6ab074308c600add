"""Phases: what runs when weights are set, per call, and after all else."""

from __future__ import annotations

import numpy as np

from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.cost.target import Target
from rlx.ir.lir import LirModule, Phase
from rlx.ir.mir import Graph, Node
from rlx.plan.check.checker import check
from rlx.plan.planner import plan_module

PROLOGUE, STEADY, EPILOGUE = Phase.PROLOGUE, Phase.STEADY_STATE, Phase.EPILOGUE


def plan(graph: Graph) -> LirModule:
    lir = plan_module(graph, Target.of("cpu"))
    assert check(lir) == []
    return lir


def by_op(graph: Graph) -> dict[str, Phase]:
    lir = plan(graph)
    return {n.op: lir.plan.phase_of(n) for n in lir.plan.phases}


def product() -> tuple[Graph, Node]:
    g = Graph()
    x, w = g.input("x", Shape([4, 8])), g.param("w", Shape([8, 16]))
    return g, g.matmul(x, w)


def test_leaves_matmul_and_a_last_top_k() -> None:
    g, y = product()
    values, indices = g.top_k(y, k=2, axis=-1)
    g.set_outputs([values, indices])
    assert by_op(g) == {
        "input": PROLOGUE, "param": PROLOGUE, "matmul": STEADY, "top_k": EPILOGUE, "item": EPILOGUE,
    }  # fmt: skip


def test_views_behind_a_top_k_are_epilogue_even_where_they_copy() -> None:
    g, y = product()
    values, _ = g.top_k(y, k=2, axis=-1)
    g.set_outputs([g.transpose(values, perm=(1, 0))])
    phases = by_op(g)
    assert phases["transpose"] is EPILOGUE
    assert phases["top_k"] is EPILOGUE


def test_a_view_before_a_top_k_is_steady() -> None:
    g, y = product()
    g.set_outputs(list(g.top_k(g.reshape(y, dims=(64,)), k=2, axis=-1)))
    assert by_op(g)["reshape"] is STEADY


def test_a_routers_top_k_is_steady() -> None:
    g, y = product()
    values, _ = g.top_k(y, k=2, axis=-1)
    g.set_outputs([g.softmax(values, axis=-1)])
    phases = by_op(g)
    assert phases["top_k"] is STEADY
    assert phases["item"] is STEADY
    assert phases["softmax"] is STEADY


def test_only_the_last_of_two_is_epilogue_where_work_is_between() -> None:
    g, y = product()
    first = g.top_k(y, k=4, axis=-1)[0]
    second = g.top_k(g.exp(first), k=2, axis=-1)[0]
    g.set_outputs([second])
    lir = plan(g)
    found = [lir.plan.phase_of(n) for n in lir.plan.schedule if n.op == "top_k"]
    assert found == [STEADY, EPILOGUE]


def test_one_top_k_may_follow_another() -> None:
    g, y = product()
    second = g.top_k(g.top_k(y, k=4, axis=-1)[0], k=2, axis=-1)[0]
    g.set_outputs([second])
    lir = plan(g)
    assert {lir.plan.phase_of(n) for n in lir.plan.schedule if n.op == "top_k"} == {EPILOGUE}


def test_weights_alone_are_worked_on_in_the_prologue() -> None:
    g = Graph()
    x = g.input("x", Shape([4, 8]))
    a, b = g.param("a", Shape([8, 3])), g.param("b", Shape([8, 3]))
    packed = g.mul(g.concat([a, b], axis=1), g.constant(np.float32(2)))
    g.set_outputs([g.matmul(x, packed)])
    lir = plan(g)
    assert [n.op for n in lir.plan.schedule] == ["concat", "mul", "matmul"]
    assert [lir.plan.phase_of(n) for n in lir.plan.schedule] == [PROLOGUE, PROLOGUE, STEADY]
    assert [n.op for n in lir.plan.nodes_in_phase(STEADY)] == ["matmul"]
    assert [n.op for n in lir.plan.nodes_in_phase(PROLOGUE)][:3] == ["input", "param", "param"]


def test_a_top_k_of_weights_is_prologue() -> None:
    g = Graph()
    g.set_outputs([g.top_k(g.param("w", Shape([8])), k=2, axis=-1)[0], g.input("x", Shape([1]))])
    assert by_op(g)["top_k"] is PROLOGUE


def test_the_schedule_runs_phase_by_phase() -> None:
    """The first output's top-k comes early in the graph's order, and runs last all the same."""
    g, y = product()
    w = g.neg(g.param("late", Shape([16, 4])))
    g.set_outputs([g.top_k(y, k=2, axis=-1)[0], g.matmul(y, w)])
    lir = plan(g)
    assert [n.op for n in lir.plan.schedule] == ["neg", "matmul", "matmul", "top_k"]


def test_a_body_that_says_a_size_runs_on_every_call() -> None:
    """None of its operands has the size: a call alone knows it."""
    rows = Dim("rows")
    body = Graph()
    n = body.node("extent", (), {"dim": rows, "dtype": DType.F32})
    body.set_outputs([body.add(body.input("w", Shape([4])), n)])
    g = Graph()
    g.input("x", Shape([rows]))
    g.set_outputs([g.node("region", [g.param("w", Shape([4]))], {"body": body})])
    assert by_op(g)["region"] is STEADY
