"""Legalisation: what the target lacks is spelled out, and what cannot be is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.errors import Error, UnsupportedError
from rlx.core.shape import Shape
from rlx.cost.target import Target
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph
from rlx.ir.verify import verify
from rlx.passes import legalise as module
from rlx.passes.context import Context
from rlx.passes.legalise import DispatchReport, dispatch, legalise, require_legal
from rlx.passes.options import DispatchPolicy, FusionOptions
from tests.unit.fusing import (
    FEW_KERNELS,
    LIMITED,
    TARGETS,
    inputs,
    ops_in,
    ops_within,
    params,
    values,
)


def graph(*outputs: Any) -> Graph:
    made: Graph = outputs[0].graph
    made.set_outputs(list(outputs))
    return made


def context(target: str | Target = "cpu", **policy: Any) -> Context:
    return Context.of(target, FusionOptions(dispatch=DispatchPolicy(**policy)))


def legal(g: Graph, ctx: Context) -> Graph:
    """The legal graph, checked against the given one.

    A lowering rounds after each step where the reference may round once: ten steps of f32 on
    values below 10 are within 10 · 10 · 2^-24 of it.
    """
    made = require_legal(legalise(g, ctx), ctx)
    verify(made)
    given = values(g)
    for one, other in zip(evaluate(g, given), evaluate(made, given), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=100 * 2**-24)
    return made


def norm() -> Graph:
    g = Graph("norm")
    (x,) = inputs(g, x=(4, 6))
    (scale,) = params(g, scale=(6,))
    return graph(ops.rms_norm(x, scale, eps=1.0))


def test_what_the_target_has_stays() -> None:
    g = norm()
    assert legalise(g, context("cpu")) is g


def test_an_op_without_a_kernel_is_lowered_and_logged() -> None:
    ctx = context(FEW_KERNELS)
    made = legal(norm(), ctx)
    assert "rms_norm" not in ops_in(made)
    assert [d.what for d in ctx.log.decisions] == ["lower"]
    assert "no dedicated kernel" in ctx.log.decisions[0].reason


def test_lowerings_nest() -> None:
    """A fused op becomes a norm, which becomes its primitives."""
    g = Graph("nested")
    x, r = inputs(g, x=(4, 6), r=(4, 6))
    made = legal(graph(ops.fused_residual_rms_norm(x, r, eps=1.0)), context(FEW_KERNELS))
    assert not {"rms_norm", "fused_residual_rms_norm"} & set(ops_in(made))


def test_a_lowering_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROUNDS", 1)
    g = Graph("nested")
    x, r = inputs(g, x=(4, 6), r=(4, 6))
    with pytest.raises(Error, match="does not end after 1 rounds"):
        legalise(graph(ops.fused_residual_rms_norm(x, r)), context(FEW_KERNELS))


def test_several_results_are_lowered_item_by_item() -> None:
    g = Graph("split")
    (x,) = inputs(g, x=(4, 6))
    a, b = ops.split(x, sizes=(2, 4), axis=1)
    made = legal(graph(b, a), context("cpu", force_common={"split"}))
    assert "split" not in ops_in(made)


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_runs_what_it_is_given(target: str) -> None:
    g = Graph("mixed")
    (x,) = inputs(g, x=(2, 3, 8))
    y = ops.attention(x, x, x, num_heads=2, mask_kind="causal")
    y = ops.fused_residual_ln(y, x)
    legal(graph(ops.gelu(ops.einsum(y, y, equation="bsd,btd->bst"))), context(target))


def test_a_dtype_that_does_not_exist_is_named() -> None:
    g = Graph("double")
    x = g.input("signal", Shape((4,), DType.F64))
    with pytest.raises(UnsupportedError) as caught:
        legalise(graph(ops.exp(x)), context("wgpu"))
    text = str(caught.value)
    assert text.startswith("exp at test_legalise.py")
    assert "wgpu" in text
    assert "64-bit floats" in text
    assert "another target" in text


def test_nodes_that_are_refused_alike_share_a_line() -> None:
    g = Graph("double")
    x = ops.exp(g.input("signal", Shape((4,), DType.F64)))
    for _ in range(3):
        x = ops.exp(x)
    with pytest.raises(UnsupportedError) as caught:
        legalise(graph(x), context("wgpu"))
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("4 nodes: target wgpu cannot run them")
    assert len(lines) == 2
    assert "(×3)" in lines[1], "nodes of one line of the model"
    assert lines[1].count("64-bit floats") == 1


def test_require_legal_catches_what_a_pass_left() -> None:
    with pytest.raises(UnsupportedError, match="rms_norm"):
        require_legal(norm(), context(FEW_KERNELS))


# -- policy ---------------------------------------------------------------------------------------


def test_force_common_lowers_all_that_has_a_lowering() -> None:
    made = legal(norm(), context("cpu", mode="force_common"))
    assert all(n.decl.lower is None for n in made.order())


def test_force_common_by_name() -> None:
    g = Graph("two")
    (x,) = inputs(g, x=(4, 6))
    made = legal(graph(ops.silu(ops.gelu(x))), context("cpu", force_common={"silu"}))
    assert "gelu" in ops_in(made)
    assert "silu" not in ops_in(made)


def test_force_native_is_an_error_where_a_node_would_be_lowered() -> None:
    assert legal(norm(), context("cpu", mode="force_native"))
    with pytest.raises(UnsupportedError, match="force_native"):
        legalise(norm(), context(FEW_KERNELS, mode="force_native"))
    with pytest.raises(UnsupportedError, match="listed in force_native"):
        legalise(norm(), context(FEW_KERNELS, force_native={"rms_norm"}))


def test_the_native_list_wins_over_all() -> None:
    policy = {"mode": "force_common", "force_common": {"rms_norm"}, "force_native": {"rms_norm"}}
    assert "rms_norm" in ops_in(legal(norm(), context("cpu", **policy)))


def test_the_report_says_what_runs_how() -> None:
    report = DispatchReport.of(norm(), context(FEW_KERNELS))
    assert [(r.op, r.path, r.count) for r in report.rows] == [("rms_norm", "lowered", 1)]
    assert report.count("native") == 0
    assert "rms_norm" in str(report)
    assert "lowered" in str(report)
    node = norm().outputs[0]
    assert dispatch(node, context("cpu")).path == "native"
    assert dispatch(node, context(FEW_KERNELS, mode="force_native")).path == "unsupported"


# -- control flow ---------------------------------------------------------------------------------


def branch() -> Graph:
    then, other = Graph("then"), Graph("else")
    for body in (then, other):
        (a,) = inputs(body, a=(4, 6))
        body.set_outputs([ops.rms_norm(a, eps=1.0) if body is then else a])
    g = Graph("branch")
    (a,) = inputs(g, a=(4, 6))
    pred = g.input("pred", Shape((), DType.BOOL))
    return graph(*ops.if_(pred, a, then=then, else_=other))


@pytest.mark.parametrize("target", [*TARGETS, LIMITED, FEW_KERNELS])
def test_bodies_are_legal_too(target: str | Target) -> None:
    made = legal(branch(), context(target))
    assert ("if" in ops_in(made)) == (target is not LIMITED)
    assert ("rms_norm" in ops_within(made)) == (target is not FEW_KERNELS)


def test_a_loop_the_target_runs_is_lowered_by_name_only() -> None:
    assert "if" in ops_in(legal(branch(), context("cpu", mode="force_common")))
    assert "if" not in ops_in(legal(branch(), context("cpu", force_common={"if"})))
