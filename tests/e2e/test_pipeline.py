"""The pipeline's expected outcomes, from blocks to a running plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rlx
from bench.models import random_values, transformer, welch
from rlx.backends.tpu import backend as tpu
from rlx.ir.interpret import evaluate
from tests.unit.fusing import FEW_KERNELS

F32 = rlx.DType.F32


def linear(policy: rlx.FusionPolicy = rlx.FusionPolicy.DIRECT) -> rlx.HirModule:
    m = rlx.HirModule("linear", policy)
    x = m.input("x", rlx.Shape([2, 4], F32))
    w, b = m.param("w", rlx.Shape([4, 8], F32)), m.param("b", rlx.Shape([8], F32))
    m.set_outputs([m.linear(x, w, b, activation="relu")])
    return m


def swiglu(policy: rlx.FusionPolicy) -> rlx.HirModule:
    m = rlx.HirModule("ffn", policy)
    x = m.input("x", rlx.Shape([2, 4], F32))
    up, gate = m.param("up", rlx.Shape([4, 8], F32)), m.param("gate", rlx.Shape([4, 8], F32))
    m.set_outputs([m.swiglu_ffn(x, up, gate, m.param("down", rlx.Shape([8, 4], F32)))])
    return m


def ops_of(result: rlx.CompileResult) -> list[str]:
    return [n.op for n in result.lir.mir.graph.order()]


def test_linear_with_bias_is_at_most_five_nodes() -> None:
    result = rlx.CompilePipeline().compile_hir(linear())
    assert len(result.lir.mir) <= 5
    assert result.lir.arena_bytes > 0
    plan = result.lir.plan
    assert plan.bytes_saved <= plan.total_unshared_bytes
    assert plan.alignment == 64
    assert [name for name, _ in plan.io.inputs] == ["x"]
    assert [name for name, _ in plan.io.params] == ["w", "b"]
    assert len(plan.io.outputs) == 1
    assert plan.phase_of(plan.io.inputs[0][1]) is rlx.Phase.PROLOGUE
    assert int(result.lir.fingerprint, 16) >= 0


def test_direct_swiglu_has_the_fused_op() -> None:
    module = swiglu(rlx.FusionPolicy.DIRECT)
    assert len(module.lower()) == 8
    result = rlx.CompilePipeline().compile_hir(module)
    assert result.fusion.fused_swiglu >= 1


def test_fusable_swiglu_lowers_to_nine_nodes_and_the_passes_fuse_it() -> None:
    mir = swiglu(rlx.FusionPolicy.FUSABLE).lower()
    assert len(mir) == 9
    assert [n.op for n in mir.graph.nodes].count("matmul") == 3
    result = rlx.CompilePipeline().compile_hir(swiglu(rlx.FusionPolicy.FUSABLE))
    assert result.fusion.fused_swiglu >= 1


def test_define_then_compile() -> None:
    def build(m: rlx.HirModule) -> rlx.Node:
        x = m.input("x", rlx.Shape([2, 4], F32))
        return m.linear(x, m.param("w", rlx.Shape([4, 8], F32)))

    module = rlx.GraphModule.define("net", build)
    assert module.stage is rlx.GraphStage.HIR
    assert rlx.CompilePipeline().compile_module(module).lir.arena_bytes > 0


def test_phases_with_top_k_last() -> None:
    g = rlx.Graph("sample")
    x = g.input("x", rlx.Shape([2, 4], F32))
    w = g.param("w", rlx.Shape([4, 32], F32))
    values, indices = g.top_k(g.mm(x, w), k=3)
    g.set_outputs([values, indices])
    plan = rlx.CompilePipeline().compile_graph(g).lir.plan
    phases = {n.op: plan.phase_of(n) for n in plan.phases}
    assert phases["input"] is phases["param"] is rlx.Phase.PROLOGUE
    assert phases["matmul"] is rlx.Phase.STEADY_STATE
    assert phases["top_k"] is rlx.Phase.EPILOGUE


def test_dynamic_case() -> None:
    g = rlx.Graph("dyn")
    x = g.input("x", rlx.Shape([rlx.sym.BATCH, rlx.sym.SEQ, 4], F32))
    g.set_outputs([g.mm(x, g.param("w", rlx.Shape([4, 8], F32)))])
    result = rlx.CompilePipeline().compile_graph(g)
    assert result.has_dynamic_dims
    assert [d.name for d in result.dynamic_symbols] == ["batch", "seq"]
    static = result.specialize(rlx.DimBinding.batch_seq(2, 16))
    assert static.lir.is_static
    assert static.lir.arena_bytes > 0
    assert not static.has_dynamic_dims


def test_the_hidden_k_mismatch_is_an_error() -> None:
    g = rlx.Graph("dyn")
    x = g.input("x", rlx.Shape([rlx.sym.BATCH, rlx.sym.SEQ], F32))
    w = g.param("w", rlx.Shape([4, 8], F32))
    with pytest.raises(rlx.GraphError, match="seq"):
        g.mm(x, w)


def test_gate_scores_of_the_worked_cases() -> None:
    before = rlx.GraphIoProfile(3, 0, 33_554_432, 184_549_376)
    after = rlx.GraphIoProfile(4, 1, 1_048_576, 219_152_384)
    benefit = rlx.fusion_benefit(before, after)
    metal = rlx.IoFusionGate(500, 5_000, 200, 200, True, 2_000_000, 1_000)
    wgpu = rlx.IoFusionGate(3_000, 30_000, 100, 40, False, 25_000_000, 10_000)
    assert metal.score_ns(benefit) == pytest.approx(30_327_340.96, abs=0.01)
    assert wgpu.score_ns(benefit) == pytest.approx(-24_566_383.68, abs=0.01)
    assert metal.should_fuse(before, after)
    assert not wgpu.should_fuse(before, after)


def test_welch_graph_profiles() -> None:
    spectrum = welch(with_spectrum=True)
    assert rlx.profile_graph_io(spectrum) == rlx.GraphIoProfile(3, 0, 33_554_432, 184_549_376)
    peaks = welch(with_spectrum=False)
    assert rlx.profile_graph_io(peaks) == rlx.GraphIoProfile(4, 1, 1_048_576, 219_152_384)


def test_small_profiles() -> None:
    g = rlx.Graph("small")
    x = g.input("x", rlx.Shape([8, 512], F32))
    g.set_outputs([g.fft(g.concat([x, g.sub(x, x)], axis=1))])
    profile = rlx.profile_graph_io(g)
    assert (profile.kernel_launches, profile.host_output_bytes) == (3, 8 * 512 * 2 * 4)
    h = rlx.Graph("peaks")
    h.set_outputs([h.welch_peaks(h.input("s", rlx.Shape([4, 512], F32)), k=16, n_segments=2)])
    profile = rlx.profile_graph_io(h)
    assert (profile.host_output_bytes, profile.device_traffic_bytes) == (256, 8448)


@pytest.mark.parametrize("target", list(rlx.FusionTarget), ids=lambda t: t.value)
@pytest.mark.parametrize("policy", list(rlx.FusionPolicy), ids=lambda p: p.value)
def test_a_transformer_runs_like_every_target(
    target: rlx.FusionTarget, policy: rlx.FusionPolicy
) -> None:
    module = transformer(2, 5, width=32, heads=4, kv_heads=2, ffn=48, policy=policy)
    exe = rlx.compile(module, "reference", like=target.value)
    params = random_values(exe.params, 1)
    inputs = random_values(exe.inputs, 2)
    exe.set_params(params)
    want = evaluate(module.lower().graph, {**params, **inputs})[0]
    got = exe(*inputs.values())
    # two layers of sums of at most 48 products of numbers near 1 in f32
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert exe.run(inputs)["output0"].tobytes() == got.tobytes()


def test_dispatch_is_reported_without_compiling() -> None:
    module = transformer(1, 5, width=32, heads=4, kv_heads=2, ffn=48)
    report = rlx.CompilePipeline(FEW_KERNELS).dispatch(module)
    paths = {row.op: row.path for row in report.rows}
    assert paths["rms_norm"] == paths["attention"] == "lowered"
    assert paths["matmul"] == "native"
    assert "metal has no dedicated kernel for rms_norm" in str(report)
    policy = rlx.DispatchPolicy(force_common={"rms_norm"})
    options = rlx.FusionOptions(dispatch=policy)
    listed = rlx.CompilePipeline("cpu", options=options).dispatch(module)
    assert {r.op: r.path for r in listed.rows}["rms_norm"] == "lowered"


def test_running_a_target_that_is_not_installed_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tpu, "find_spec", lambda _: None)
    with pytest.raises(rlx.UnsupportedError, match=r"pip install 'rlx\[tpu\]'"):
        rlx.compile(linear(), "tpu")


def test_a_session_compiles_equal_requests_once() -> None:
    session = rlx.Session()
    session.compile(linear())
    session.compile(linear())
    assert session.cached == 1
    session.compile(linear(), options=rlx.FusionOptions(skip_fusion=True))
    assert session.cached == 2


FINGERPRINT = """
import json, rlx
from tests.e2e.test_pipeline import linear, swiglu
from bench.models import transformer
out = [rlx.CompilePipeline(t).compile(m).lir.fingerprint
       for t in rlx.FusionTarget
       for m in (linear(), swiglu(rlx.FusionPolicy.FUSABLE),
                 transformer(1, rlx.Dim("seq", 1, 64), width=32, heads=4, kv_heads=2, ffn=48))]
print(json.dumps(out))
"""


def test_fingerprints_do_not_depend_on_the_process() -> None:
    root = Path(__file__).parents[2]
    seen = []
    for seed in ("0", "1", "77"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", FINGERPRINT],
            cwd=root,
            env=env,
            check=True,
            capture_output=True,
            text=True,
        )
        seen.append(json.loads(done.stdout))
    assert seen[0] == seen[1] == seen[2]
    per_model = [seen[0][i::3] for i in range(3)]
    assert all(len(set(prints)) == len(rlx.FusionTarget) for prints in per_model)


def test_fingerprint_sees_constants_and_attributes() -> None:
    def fingerprint(value: float, axis: int) -> str:
        g = rlx.Graph("f")
        x = g.input("x", rlx.Shape([2, 2], F32))
        c = np.ones((2, 2), np.float32)
        c[1, 1] = value
        g.set_outputs([g.softmax(g.add(x, g.constant(c)), axis=axis)])
        return rlx.CompilePipeline().compile_graph(g).lir.fingerprint

    assert fingerprint(1.0, 0) == fingerprint(1.0, 0)
    assert len({fingerprint(1.0, 0), fingerprint(2.0, 0), fingerprint(1.0, 1)}) == 3


def test_import_pulls_in_numpy_and_ml_dtypes_alone() -> None:
    code = (
        "import sys, numpy, ml_dtypes; before = set(sys.modules); import rlx; rlx.Graph;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before"
        " if m.split('.')[0] not in sys.stdlib_module_names}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert set(eval(done.stdout)) <= {"rlx", "numpy", "ml_dtypes"}
