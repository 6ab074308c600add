"""The fusion pass as a whole: layers, branches, outputs, reversals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.cost.target import Target
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph
from rlx.passes.context import Context
from rlx.passes.fusion.graph_facts import Facts
from rlx.passes.fusion.report import FusionReport
from rlx.passes.options import DispatchPolicy, FusionOptions
from tests.unit.fusing import (
    FEW_KERNELS,
    TARGETS,
    WITH_REGIONS,
    fuse,
    fused,
    inputs,
    ops_in,
    params,
    values,
)


def graph(*outputs: Any) -> Graph:
    made: Graph = outputs[0].graph
    made.set_outputs(list(outputs))
    return made


def linear() -> tuple[Any, Any, Any]:
    g = Graph("linear")
    (x,) = inputs(g, x=(4, 5))
    w, b = params(g, w=(5, 6), b=(6,))
    return x, w, b


def layer() -> Graph:
    """A decoder layer: norms before attention and a gated unit, each with its residual."""
    g = Graph("layer")
    (x,) = inputs(g, x=(2, 3, 8))
    wq, wk, wv, wo = params(g, wq=(8, 8), wk=(8, 4), wv=(8, 4), wo=(8, 8))
    up, gate, down = params(g, up=(8, 12), gate=(8, 12), down=(12, 8))
    one, two, cos, sin = params(g, one=(8,), two=(8,), cos=(3, 2), sin=(3, 2))
    h = ops.rms_norm(x, one)
    q, k = (ops.rope(ops.matmul(h, w), cos, sin, head_dim=4) for w in (wq, wk))
    mixed = ops.attention(q, k, ops.matmul(h, wv), num_heads=2, kv_heads=1, mask_kind="causal")
    x = x + ops.matmul(mixed, wo)
    h = ops.rms_norm(x, two)
    return graph(x + ops.matmul(ops.silu(ops.matmul(h, gate)) * ops.matmul(h, up), down))


def close(before: Graph, after: Graph) -> None:
    """A norm leaves fractions, so joined products may sum in another order: 8 eps of the terms,
    none of which is above 100 here."""
    given = values(before)
    for one, other in zip(evaluate(before, given), evaluate(after, given), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=8 * 2**-23 * 100)


@pytest.mark.parametrize("target", WITH_REGIONS)
def test_a_transformer_layer(target: str) -> None:
    g = layer()
    ctx = Context.of(target)
    made = fuse(g, ctx)
    close(g, made)
    kernels = [n for n in made.order() if n in Facts.of(made).per_call and not n.is_leaf]
    assert len(kernels) < len([n for n in g.order() if not n.is_leaf])
    assert len(made.outputs) == 1


def test_a_transformer_layer_on_cpu_in_full() -> None:
    made = fuse(layer(), Context.of("cpu"))
    per_call = Facts.of(made).per_call
    assert [n.op for n in made.order() if n in per_call] == [
        "input", "rms_norm", "matmul", "narrow", "rope", "narrow", "rope", "narrow", "attention",
        "region", "rms_norm", "matmul", "fused_swiglu", "region",
    ]  # fmt: skip


def test_a_transformer_layer_has_no_misses_on_cpu() -> None:
    g, ctx = layer(), Context.of("cpu")
    assert FusionReport.analyze(g, fuse(g, ctx), ctx.log.decisions).is_clean


def test_nothing_is_fused_when_fusion_is_off() -> None:
    g = layer()
    assert fuse(g, Context.of("cpu", FusionOptions(skip_fusion=True))) is g


def test_every_decision_can_be_reversed() -> None:
    g = layer()
    first = Context.of("cpu")
    fuse(g, first)
    taken = [d for d in first.log.decisions if d.verdict]
    assert taken
    for decision in taken:
        ctx = Context.of("cpu", FusionOptions(force={decision.id: False}))
        close(g, fuse(g, ctx))
        again = next(d for d in ctx.log.decisions if d.id == decision.id)
        assert (again.verdict, again.reason) == (False, "forced")


def test_forcing_a_region_off_gives_the_unfused_form() -> None:
    g = Graph("region")
    a, b = inputs(g, a=(4, 6), b=(4, 6))
    g.set_outputs([ops.exp(a + b)])
    made, decisions = fused(g)
    assert ops_in(made) == ["elementwise_region"]
    off = FusionOptions(force={decisions[0].id: False})
    assert fused(g, options=off)[0] == g


def test_a_policy_of_common_kernels_makes_no_fused_ops() -> None:
    x, w, b = linear()
    g = graph(ops.relu(ops.matmul(x, w) + b))
    policy = DispatchPolicy(force_common={"fused_matmul_bias_act"})
    made, _ = fused(g, options=FusionOptions(dispatch=policy))
    assert ops_in(made) == ["region"]


def test_outputs_are_the_users() -> None:
    """Defect 14 of the original: a spectrum was dropped where its peaks were an output, too."""
    g = Graph("welch")
    (x,) = inputs(g, x=(4, 16))
    spectrum = ops.fft(ops.concat([x, x - x], axis=1))
    g.set_outputs([spectrum, ops.welch_peaks(spectrum, k=2, n_segments=2), spectrum])
    for target in TARGETS:
        made, _ = fused(g, target)
        assert made.outputs[0] is made.outputs[2]


def test_branches_are_fused_inside() -> None:
    then, other = Graph("then"), Graph("else")
    for body in (then, other):
        a, b = inputs(body, a=(4,), b=(4,))
        body.set_outputs([ops.exp(a + b) if body is then else a - b])
    g = Graph("branch")
    a, b = inputs(g, a=(4,), b=(4,))
    pred = g.input("pred", Shape((), DType.BOOL))
    g.set_outputs(list(ops.if_(pred, a, b, then=then, else_=other)))
    made, _ = fused(g)
    node = next(n for n in made.order() if n.op == "if")
    assert ops_in(node.attrs["then"]) == ["elementwise_region"]
    assert ops_in(node.attrs["else"]) == ["sub"]


def test_origins_pass_to_what_is_made() -> None:
    x, w, b = linear()
    made, _ = fused(graph(ops.relu(ops.matmul(x, w) + b)))
    kinds = [o.kind for o in made.outputs[0].origins]
    assert kinds[0] == "line"
    assert kinds[-1] == "pass"


def test_fusing_twice_is_fusing_once() -> None:
    made = fuse(layer(), Context.of("cpu"))
    assert fuse(made, Context.of("cpu")) == made


# -- products of one value, concatenated ----------------------------------------------------------


def concatenated(order: tuple[int, ...], bias: bool, act: str | None) -> Graph:
    """Three linear layers of one value, concatenated in some order."""
    g = Graph("heads")
    (x,) = inputs(g, x=(5, 8))
    made = []
    for i, width in enumerate((16, 4, 12)):
        y = ops.matmul(x, g.param(f"w{i}", Shape([8, width])))
        y = ops.add(y, g.param(f"b{i}", Shape([width]))) if bias else y
        made.append(getattr(ops, act)(y) if act else y)
    g.set_outputs([ops.concat([made[i] for i in order], axis=-1)])
    return g


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("act", [None, "relu"])
@pytest.mark.parametrize("target", ["cpu", "cuda", "metal", FEW_KERNELS])
def test_products_of_one_value_concatenated_are_one_product(
    order: tuple[int, ...], bias: bool, act: str | None, target: str | Target
) -> None:
    g = concatenated(order, bias, act)
    lir = rlx.CompilePipeline(target).compile(g).lir
    plan = lir.plan
    per_call = [n for n in plan.schedule if plan.phase_of(n) > rlx.Phase.PROLOGUE]
    assert len(per_call) == 1, [n.op for n in per_call]
    given = values(g)
    for one, other in zip(evaluate(g, given), evaluate(lir.mir.graph, given), strict=True):
        np.testing.assert_allclose(one, other, rtol=8 * 2**-23, atol=1e-5)  # sums of 8 products


def test_a_product_read_by_another_too_stays_one_product() -> None:
    g = concatenated((2, 0, 1), bias=False, act=None)
    first = next(n for n in g.nodes if n.op == "matmul")
    g.set_outputs([*g.outputs, ops.exp(first)])
    lir = rlx.CompilePipeline("cpu").compile(g).lir
    ops_of = [n.op for n in lir.mir.graph.order() if not n.is_leaf]
    assert ops_of.count("matmul") == 1
    per_call = [n.op for n in lir.plan.schedule if lir.plan.phase_of(n) > rlx.Phase.PROLOGUE]
    assert "concat" not in per_call
