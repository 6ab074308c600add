"""Syncs decide: what is read back, and whether a branch is worth waiting for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.passes.branches import WHAT as SELECT
from rlx.passes.outputs import WHAT as READ_BACK
from tests.unit.fusing import LIMITED
from tests.unit.test_gate import SCORES

# -- the flagship: a spectrum and its peaks -------------------------------------------------------


def welch(batch: int = 8192) -> rlx.Graph:
    """The graph of the documented cases, with both outputs."""
    g = rlx.Graph("welch")
    x = g.input("segments", rlx.Shape([batch * 2, 256]))
    spectrum = g.fft(g.concat([x, g.sub(x, x)], axis=1))
    peaks = g.welch_peaks(spectrum, k=16, n_segments=2)
    g.set_outputs({"spectrum": spectrum, "peaks": peaks})
    return g


@pytest.mark.parametrize("target", rlx.FusionTarget)
def test_the_documented_cases_hold_through_the_pipeline(target: rlx.FusionTarget) -> None:
    score, verdict = SCORES[target]
    result = rlx.CompilePipeline(target).compile(welch())
    (found,) = [d for d in result.decisions if d.what == READ_BACK]
    assert found.predicted_ns == pytest.approx(score, abs=0.01, rel=0)
    assert found.verdict is verdict
    assert ("keep 'peaks'" if verdict else "keep 'spectrum'") in found.reason
    assert not found.is_reversible
    assert result.lir.mir.graph.output_names == ("spectrum", "peaks")


@pytest.mark.parametrize(("target", "verdict"), [("metal", True), ("wgpu", False)])
def test_the_documented_cases_hold_through_compile(target: str, verdict: bool) -> None:
    exe = rlx.compile(welch(), "reference", like=target, cache=False)
    (found,) = [d for d in exe.decisions if d.what == READ_BACK]
    assert found.verdict is verdict
    assert found.id in {d.id for d in exe.explain().decisions}


def test_a_spectrum_alone_is_no_trade() -> None:
    g = welch(4)
    g.set_outputs(list(g.outputs[:1]))
    result = rlx.CompilePipeline("metal").compile(g)
    assert [d for d in result.decisions if d.what == READ_BACK] == []


# -- branches -------------------------------------------------------------------------------------


def branch(size: int, *, steps: int = 1, fallible: bool = False) -> rlx.Graph:
    g, then, other = rlx.Graph("branch"), rlx.Graph("then"), rlx.Graph("else")
    shape = rlx.Shape([size, size])
    for body, op in ((then, ops.exp), (other, ops.tanh)):
        value = body.input("x", shape)
        for _ in range(steps):
            value = ops.matmul(op(value), value)
        if fallible:
            value = ops.gather(value, ops.cast(ops.abs(value[0]), to=rlx.DType.I64), axis=0)
        body.set_outputs([value])
    x, on = g.input("x", shape), g.input("on", rlx.Shape([], rlx.DType.BOOL))
    node = g.node("if", (on, x), {"then": then, "else": other})
    g.set_outputs([g.node("item", (node,), {"index": 0})])
    return g


def decided(graph: rlx.Graph, target: str | rlx.Target) -> tuple[list[rlx.Decision], set[str]]:
    result = rlx.CompilePipeline(target).compile(graph)
    found = [d for d in result.decisions if d.what == SELECT]
    return found, {n.op for n in result.lir.mir.graph.order()}


def test_a_small_branch_that_would_wait_for_the_host_is_a_select() -> None:
    (found,), made = decided(branch(8), "mlx")
    assert found.verdict
    assert "if" not in made
    assert "does not wait for the host" in found.reason


def test_a_large_branch_is_worth_its_sync() -> None:
    (found,), made = decided(branch(4096, steps=4), "mlx")
    assert not found.verdict
    assert "if" in made
    assert "but it would cost" in found.reason


@pytest.mark.parametrize("size", [8, 4096])
def test_the_callers_verdict_counts(size: int) -> None:
    (found,), _ = decided(branch(size), "mlx")
    options = rlx.FusionOptions(force={found.id: not found.verdict})
    result = rlx.CompilePipeline("mlx", options=options).compile(branch(size))
    made = {n.op for n in result.lir.mir.graph.order()}
    assert ("if" in made) is found.verdict


def test_sides_that_may_fail_are_not_computed_unasked() -> None:
    (found,), made = decided(branch(8, fallible=True), "mlx")
    assert not found.verdict
    assert "may fail on values it was never meant to see" in found.reason
    assert "if" in made


@pytest.mark.parametrize("target", ["cpu", "tpu"])
def test_a_branch_without_a_sync_is_no_question(target: str) -> None:
    found, made = decided(branch(8), target)
    assert found == []
    assert "if" in made


def test_the_sync_decides() -> None:
    """The same branch on the same prices, but for what waiting for the host costs."""
    mlx = rlx.Target.of("mlx")
    free = replace(mlx, machine=replace(mlx.machine, gate=replace(mlx.gate, roundtrip_ns=0)))
    assert decided(branch(64), mlx)[0][0].verdict
    assert not decided(branch(64), free)[0][0].verdict


def test_selects_compute_what_the_branch_did() -> None:
    g = branch(8)
    lir = rlx.CompilePipeline("mlx").compile(g).lir
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    for on in (True, False):
        got = rlx.compile(lir, "reference")(x, np.array(on))
        want = rlx.compile(g, "reference")(x, np.array(on))
        np.testing.assert_array_equal(got, want)


# -- regions --------------------------------------------------------------------------------------


def test_an_op_that_waits_for_the_host_may_be_part_of_a_region() -> None:
    """Its sync is counted with the region, so that the gate weighs it."""
    g = rlx.Graph("mel")
    spectrum = g.input("s", rlx.Shape([64, 512]))
    mel = g.log_mel(spectrum, g.param("f", rlx.Shape([80, 129])))
    g.set_outputs([g.mul(g.add(mel, 1.0), 0.5)])
    waiting = replace(LIMITED, syncs=LIMITED.syncs | {"log_mel"})
    lir = rlx.CompilePipeline(waiting).compile(g).lir
    assert [n.op for n in lir.plan.schedule] == ["region"]
    assert rlx.profile_graph_io(lir, target=waiting).sync_points == 1
    assert rlx.profile_graph_io(lir, target=LIMITED).sync_points == 0
