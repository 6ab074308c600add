"""The pipeline's stages one by one, a backend's own claim, and plans made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.ir.interpret import evaluate
from tests.unit.fusing import LIMITED, ops_in

ROW = rlx.Shape([4, 8])


def mlp() -> rlx.Graph:
    g = rlx.Graph("mlp")
    x, w = g.input("x", ROW), g.param("w", rlx.Shape([8, 16]))
    g.set_outputs([g.relu(g.add(g.matmul(x, w), g.param("b", rlx.Shape([16]))))])
    return g


def branch() -> rlx.Graph:
    """A branch, and a node that no output needs."""
    g, then, other = rlx.Graph("branch"), rlx.Graph("then"), rlx.Graph("else")
    then.set_outputs([then.exp(then.input("x", ROW))])
    other.set_outputs([other.rms_norm(other.input("x", ROW), np.ones(8, np.float32), eps=1.0)])
    x, on = g.input("x", ROW), g.input("on", rlx.Shape([], rlx.DType.BOOL))
    node = g.node("if", (on, x), {"then": then, "else": other})
    g.tanh(x)
    g.set_outputs([g.node("item", (node,), {"index": 0})])
    return g


# -- stages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [t.value for t in rlx.FusionTarget])
def test_the_stages_one_by_one_are_the_compile(target: str) -> None:
    pipeline = rlx.CompilePipeline(target)
    whole = pipeline.compile(mlp())
    module, report = pipeline.optimize_with_report(mlp())
    assert report == whole.fusion
    assert pipeline.optimize(rlx.MirModule(mlp())) == module
    assert pipeline.plan_lir(module).fingerprint == whole.lir.fingerprint


def test_a_plan_takes_options_of_its_own() -> None:
    pipeline = rlx.CompilePipeline("cpu")
    g = rlx.Graph("g")
    x = g.input("x", rlx.Shape([16]))
    g.set_outputs([g.concat([g.cumsum(x, axis=0), g.flip(g.cumsum(x, axis=0), axes=(0,))], axis=0)])
    module = pipeline.optimize(g)
    usual = pipeline.plan_lir(module)
    from rlx.plan.planner import plan_choices

    chosen = next(c.decision for c in plan_choices(usual) if c.decision.is_reversible)
    turned = rlx.FusionOptions(force={chosen.id: not chosen.verdict})
    assert pipeline.plan_lir(module, turned).fingerprint != usual.fingerprint


def test_a_module_that_is_not_legal_is_not_planned() -> None:
    g = rlx.Graph("g")
    g.set_outputs([g.stft(g.input("x", rlx.Shape([64])), n_fft=8, hop=4)])
    with pytest.raises(rlx.UnsupportedError, match="metal cannot run it"):
        rlx.CompilePipeline(LIMITED).plan_lir(g)


def test_preprocessing_lowers_control_flow_alone() -> None:
    made = rlx.CompilePipeline(LIMITED).preprocess_mir(branch())
    assert "if" not in ops_in(made.graph)
    assert {"rms_norm", "where"} <= set(ops_in(made.graph)), "other ops stay as they are"
    assert "tanh" not in [n.op for n in made.graph.nodes], "what nothing needs is gone"
    given = {"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)}
    for on in (True, False):
        values = {**given, "on": np.array(on)}
        for one, other in zip(evaluate(branch(), values), evaluate(made.graph, values)):
            np.testing.assert_array_equal(one, other)


def test_preprocessing_leaves_a_branch_to_a_target_that_has_one() -> None:
    made = rlx.CompilePipeline("cpu").preprocess_mir(rlx.MirModule(branch()))
    assert "if" in ops_in(made.graph)
    assert "tanh" not in [n.op for n in made.graph.nodes]


@pytest.mark.parametrize(
    "stage", ["optimize", "optimize_with_report", "plan_lir", "preprocess_mir"]
)
def test_a_stage_wants_a_module_of_ops(stage: str) -> None:
    with pytest.raises(rlx.Error, match="expected a MirModule, got int"):
        getattr(rlx.CompilePipeline("cpu"), stage)(3)


# -- what a backend claims ------------------------------------------------------------------------


def test_a_claim_says_what_is_lowered_and_what_is_fused() -> None:
    g = rlx.Graph("g")
    x = g.input("x", ROW)
    g.set_outputs([g.rms_norm(g.silu(x), g.param("s", rlx.Shape([8])), eps=1e-6)])
    plain = ["mul", "add", "rsqrt", "mean", "sigmoid", "div", "sqrt", "square", "neg", "exp", "sum"]
    pipeline = rlx.CompilePipeline("cuda").with_supported_ops(plain)
    made = pipeline.compile(g).lir.mir.graph
    found = {n.op for n in made.order() if not n.is_leaf}
    assert found <= {*plain, "reshape", "expand_dims", "squeeze"}, "nothing else was claimed"
    wider = rlx.CompilePipeline("cuda").with_supported_ops([*plain, "rms_norm", "silu"])
    assert {"rms_norm", "silu"} <= set(ops_in(wider.compile(g).lir.mir.graph))


def test_an_empty_claim_is_the_targets_own() -> None:
    pipeline = rlx.CompilePipeline("cuda")
    assert pipeline.with_supported_ops(()).target == pipeline.target
    assert pipeline.with_supported_ops(["add"]).target != pipeline.target


def test_every_node_that_cannot_run_is_named_at_once() -> None:
    g = rlx.Graph("g")
    x = g.input("x", rlx.Shape([8, 8]))
    y = g.matmul(g.silu(x), x)
    g.set_outputs([g.add(y, g.cumsum(x, axis=0))])
    with pytest.raises(rlx.UnsupportedError) as error:
        rlx.CompilePipeline("cuda").with_supported_ops(["add"]).compile(g)
    text = str(error.value)
    assert "nodes: target cuda cannot run them" in text
    assert all(f"{op} at test_stages.py" in text for op in ("matmul", "cumsum"))
    assert "less at test_stages.py" in text, "what a lowering is made of, too"


@pytest.mark.parametrize(("given", "message"), [
    (["ad"], "there is no op 'ad'"), ("add", "takes a list of op names"),
])  # fmt: skip
def test_a_claim_names_ops(given: Any, message: str) -> None:
    with pytest.raises(rlx.Error, match=message):
        rlx.CompilePipeline("cuda").with_supported_ops(given)


# -- plans by hand --------------------------------------------------------------------------------


def by_hand() -> tuple[rlx.Graph, rlx.BufferPlan]:
    """Two steps over a row of 16 floats, the second in the bytes behind the first."""
    g = rlx.Graph("hand")
    x = g.input("x", rlx.Shape([16]))
    y = g.exp(x)
    z = g.flip(y, axes=(0,))
    g.set_outputs([z])
    slots = {
        x: rlx.Slot(0, 64, is_external=True),
        y: rlx.Slot(64, 64),
        z: rlx.Slot(128, 64, is_external=True),
    }
    return g, rlx.BufferPlan(192, assignments=slots, schedule=(y, z))


def test_a_plan_by_hand_runs() -> None:
    g, plan = by_hand()
    lir = rlx.CompilePipeline().adopt_plan(g, plan)
    assert lir.plan.io == rlx.IoManifest.collect(g)
    assert lir.plan.phase_of(g.outputs[0]) is rlx.Phase.STEADY_STATE
    x = np.arange(16, dtype=np.float32)
    np.testing.assert_array_equal(rlx.compile(lir, target="reference")(x), np.exp(x)[::-1])


def test_a_plan_by_hand_is_checked() -> None:
    g, plan = by_hand()
    x, y, z = g.nodes
    over = {**plan.assignments, y: rlx.Slot(128, 64)}
    with pytest.raises(rlx.Error, match="still needed"):
        rlx.CompilePipeline().adopt_plan(g, replace(plan, assignments=over))
    with pytest.raises(rlx.Error, match="not inside the 128 of arena"):
        rlx.CompilePipeline().adopt_plan(g, replace(plan, arena_bytes=128, arena_formula=128))
    with pytest.raises(rlx.Error, match="is made at step 1"):
        rlx.CompilePipeline().adopt_plan(g, replace(plan, schedule=(z, y)))
    with pytest.raises(rlx.Error, match="must have a slot or be a view"):
        rlx.CompilePipeline().adopt_plan(g, replace(plan, assignments={x: plan.assignments[x]}))


def test_a_manifest_is_collected_from_a_graph() -> None:
    g = mlp()
    manifest = rlx.IoManifest.collect(g)
    assert manifest == rlx.IoManifest.collect(rlx.MirModule(g))
    assert [name for name, _ in manifest.inputs] == ["x"]
    assert [name for name, _ in manifest.params] == ["w", "b"]
    assert manifest.outputs == g.outputs
    with pytest.raises(rlx.Error, match=r"takes a rlx\.Graph, got int"):
        rlx.IoManifest.collect(3)  # pyright: ignore[reportArgumentType]


# -- what is not there ----------------------------------------------------------------------------


@pytest.mark.parametrize("ask", ["phase_of", "slot", "is_view"])
def test_a_plan_is_asked_about_its_own_nodes(ask: str) -> None:
    plan = rlx.CompilePipeline("cpu").compile(mlp()).lir.plan
    with pytest.raises(rlx.Error, match="is no node of this plan"):
        getattr(plan, ask)(mlp().outputs[0])
    with pytest.raises(rlx.Error, match="asked about its nodes, not about 3"):
        getattr(plan, ask)(3)


def test_a_node_of_several_results_has_no_slot_of_its_own() -> None:
    g = rlx.Graph("g")
    g.set_outputs(list(g.top_k(g.input("x", ROW), k=2)))
    lir = rlx.CompilePipeline("cpu").compile(g).lir
    with pytest.raises(rlx.Error, match="has several results: ask the plan about its items"):
        lir.plan.slot(next(n for n in lir.mir.graph.nodes if n.op == "top_k"))


def test_an_unknown_op_is_an_error_of_rlx() -> None:
    g = rlx.Graph("g")
    with pytest.raises(rlx.Error, match="no method or op 'matmull'"):
        g.matmull(1)
    with pytest.raises(rlx.Error, match="there is no op 'matmull'"):
        g.node("matmull", ())
    assert not hasattr(g, "matmull")


def test_the_well_known_shapes() -> None:
    assert str(rlx.Shape.batch_seq_2d("i64")) == "i64[batch, seq]"
    assert str(rlx.Shape.batch_seq(384)) == "f32[batch, seq, 384]"
    assert str(rlx.Shape.batch_seq_heads(12, 64, "f16")) == "f16[batch, seq, 12, 64]"
    assert rlx.Shape.batch_seq_2d().bind(rlx.DimBinding.batch_seq(2, 3)) == rlx.Shape([2, 3])
