"""Phases that are run apart: many steps, one Epilogue."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import Phase, ops
from rlx.plan.check.checker import check
from tests.unit.fusing import LIMITED

BACKENDS = ("reference", "cpu")
RNG = np.random.default_rng(7)
WEIGHTS = {
    "w": RNG.standard_normal((8, 8), np.float32),
    "e": RNG.standard_normal((8, 40), np.float32),
}


def decoder(batch: Any = 2, *, with_logits: bool = False, temperature: float = 0.7) -> rlx.Graph:
    """h' = tanh(h · w + x), and a token drawn from the logits h' · e."""
    g = rlx.Graph("decoder")
    x, h = (g.input(name, rlx.Shape([batch, 8])) for name in "xh")
    w, e = (g.param(k, rlx.Shape(v.shape)) for k, v in WEIGHTS.items())
    counter = g.input("counter", rlx.Shape([], rlx.DType.I64))
    new = ops.tanh(ops.add(ops.matmul(h, w), x))
    logits = ops.matmul(new, e)
    outputs = {"h": new, "token": ops.sample(logits, counter, temperature=temperature, top_k=5)}
    g.set_outputs({"logits": logits, **outputs} if with_logits else outputs)
    return g


def compiled(graph: rlx.Graph, target: str, params: Any = WEIGHTS) -> rlx.Executable:
    return rlx.compile(graph, target=target, params=params, cache=False)


def phases(graph: rlx.Graph, target: str | rlx.Target) -> dict[str, set[str]]:
    """Phase → the ops of its kernels, those of regions by their bodies."""
    plan = rlx.CompilePipeline(target).compile(graph).lir.plan
    found: dict[str, set[str]] = {p.name: set() for p in Phase}
    for node in plan.schedule:
        body = node.attrs.get("body")
        inside = [n.op for n in body.order() if not n.is_leaf] if body else [node.op]
        found[plan.phase_of(node).name].update(inside)
    return found


# -- phases follow their origin -------------------------------------------------------------------


@pytest.mark.parametrize("target", [t.value for t in rlx.FusionTarget])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_sampling_is_the_epilogue_whatever_it_becomes(target: str, temperature: float) -> None:
    found = phases(decoder(temperature=temperature), target)
    assert "argmax" in found["EPILOGUE"]
    assert found["STEADY_STATE"] & {"matmul", "fused_matmul_bias_act"}
    assert not found["EPILOGUE"] & {"matmul", "fused_matmul_bias_act", "tanh"}
    assert "argmax" not in found["STEADY_STATE"]


def test_a_top_k_with_a_cast_is_the_epilogue() -> None:
    g = rlx.Graph("best")
    y = g.matmul(g.input("x", rlx.Shape([4, 8])), g.param("w", rlx.Shape([8, 16])))
    values, places = g.top_k(y, k=2)
    g.set_outputs([values, g.cast(places, to=rlx.DType.I32)])
    found = phases(g, "cpu")
    assert found == {"PROLOGUE": set(), "STEADY_STATE": {"matmul"}, "EPILOGUE": {"top_k", "cast"}}


def welch() -> rlx.Graph:
    g = rlx.Graph("welch")
    x = g.input("x", rlx.Shape([8, 64]))
    g.set_outputs([g.welch_peaks(g.fft(g.concat([x, g.sub(x, x)], axis=1)), k=3, n_segments=2)])
    return g


def test_peaks_are_the_epilogue_where_they_are_lowered() -> None:
    """CPUs and GPUs have no dedicated kernel: they become sums, a top-k and movements."""
    lir = compiled(welch(), "cpu", None).lir
    found = {p: [n.op for n in lir.plan.schedule if lir.plan.phase_of(n) is p] for p in Phase}
    assert "top_k" in found[Phase.EPILOGUE]
    assert "welch_peaks" not in found[Phase.EPILOGUE]
    assert found[Phase.STEADY_STATE]
    gpu = phases(welch(), "cuda")
    assert "top_k" in gpu["EPILOGUE"]
    assert gpu["STEADY_STATE"] == {"mean_power"}


def test_peaks_are_the_epilogue_where_they_are_a_kernel() -> None:
    found = phases(welch(), LIMITED)
    assert found["EPILOGUE"] == {"welch_peaks"}
    assert "fft" in found["STEADY_STATE"]


def test_what_another_value_needs_is_steady() -> None:
    """A router: its top-k decides what is computed next."""
    g = rlx.Graph("router")
    x = g.input("x", rlx.Shape([4, 8]))
    values, places = g.top_k(g.matmul(x, g.param("w", rlx.Shape([8, 6]))), k=2)
    g.set_outputs([g.sum(values), g.cast(places, to=rlx.DType.I32)])
    assert "top_k" in phases(g, "cpu")["STEADY_STATE"]
    assert phases(g, "cpu")["EPILOGUE"] == set()


def test_what_the_user_wrote_as_a_step_stays_one() -> None:
    """The lowering of sampling computes the same cast: the user's is an output of the step."""
    g = rlx.Graph("shared")
    x, n = (
        g.input("x", rlx.Shape([2, 8], rlx.DType.F16)),
        g.input("n", rlx.Shape([], rlx.DType.I64)),
    )
    wide = g.cast(x, to=rlx.DType.F32)
    g.set_outputs({"wide": wide, "token": g.sample(x, n, temperature=1.0)})
    for target in BACKENDS:
        exe = compiled(g, target, None)
        assert (exe.step_outputs, exe.finish_outputs) == (("wide",), ("token",))


@pytest.mark.parametrize("target", [t.value for t in rlx.FusionTarget])
def test_plans_of_every_target_are_sound(target: str) -> None:
    lir = rlx.CompilePipeline(target).compile(decoder(with_logits=True)).lir
    assert check(lir) == []
    assert [lir.plan.phase_of(o) for o in lir.plan.io.outputs] == [1, 1, 2]


def test_a_value_that_the_epilogue_begins_with_is_not_overwritten() -> None:
    """A plan that lets the Epilogue write over it is found out: it could not run twice."""
    g = rlx.Graph("twice")
    y = g.cumsum(g.input("x", rlx.Shape([16])), axis=0)
    top = g.top_k(y, k=16)[0]
    last = g.top_k(g.flip(top, axes=(0,)), k=16)[0]
    g.set_outputs([last])
    lir = rlx.CompilePipeline("cpu").compile(g).lir
    plan = lir.plan
    first = next(n for n in plan.schedule if n.op == "cumsum")
    items = [n for n in plan.assignments if n.op == "item" and n.shape == first.shape]
    inner = next(n for n in items if n is not plan.root(plan.io.outputs[0]))
    over = {**plan.assignments, inner: plan.assignments[first]}
    found = check(replace(lir, plan=replace(plan, assignments=over)))
    assert any("still needed" in str(f) for f in found)


# -- running them apart ---------------------------------------------------------------------------


@pytest.mark.parametrize("target", BACKENDS)
def test_twenty_steps_and_one_sample(target: str) -> None:
    exe = compiled(decoder(), target)
    xs, h = RNG.standard_normal((20, 2, 8), np.float32), np.zeros((2, 8), np.float32)
    counter = np.int64(3)
    expected = h
    for x in xs:
        expected, token = exe(x, expected, counter)
    for x in xs:
        h = exe.step(x, h, counter)
    np.testing.assert_array_equal(h, expected)
    np.testing.assert_array_equal(exe.finish(), token)


@pytest.mark.parametrize("target", BACKENDS)
@pytest.mark.parametrize("with_logits", [False, True])
def test_the_epilogue_is_of_the_state_as_the_step_left_it(target: str, with_logits: bool) -> None:
    """Whatever the caller then writes, sets, or runs; and it may run again."""
    exe = compiled(decoder(with_logits=with_logits), target)
    x, h = RNG.standard_normal((2, 2, 8), np.float32)
    counter = np.array(5)
    *early, token = exe(x, h, counter)
    given = x.copy(), h.copy(), counter.copy()
    made = exe.step({"x": given[0], "h": given[1], "counter": given[2]})
    for one, other in zip(made if with_logits else (made,), early, strict=True):
        np.testing.assert_array_equal(one, other)
        one[...] = np.nan
    for array in given:
        array[...] = -1
    exe(np.zeros_like(x), np.zeros_like(h), counter)
    exe.set_params({"e": np.zeros_like(WEIGHTS["e"])})
    for _ in range(3):
        got = exe.finish()
        np.testing.assert_array_equal(got, token)
        got[...] = -1


@pytest.mark.parametrize("target", BACKENDS)
def test_named_dims_and_threads_have_states_of_their_own(target: str) -> None:
    exe = compiled(decoder(rlx.Dim("batch", 1, 16)), target)
    found: dict[int, Any] = {}
    ready = threading.Barrier(3)

    def work(batch: int) -> None:
        x = np.full((batch, 8), batch, np.float32)
        exe.step(x, x, np.int64(batch))
        ready.wait()
        found[batch] = exe.finish()

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 5, 16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for batch, token in found.items():
        x = np.full((batch, 8), batch, np.float32)
        np.testing.assert_array_equal(token, exe(x, x, np.int64(batch))[1])
    assert len(found) == 3


@pytest.mark.parametrize("target", BACKENDS)
def test_a_graph_of_one_phase_has_the_other_empty(target: str) -> None:
    g = rlx.Graph("plain")
    g.set_outputs([g.exp(g.input("x", rlx.Shape([4])))])
    exe, x = compiled(g, target, None), np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(exe.step(x), exe(x))
    assert exe.finish() == ()
    late = rlx.Graph("late")
    late.set_outputs([late.top_k(late.input("x", rlx.Shape([4])), k=2)[1]])
    exe = compiled(late, target, None)
    assert exe.step(x) == ()
    np.testing.assert_array_equal(exe.finish(), [3, 2])


def test_an_epilogue_needs_a_step() -> None:
    exe = compiled(decoder(), "reference")
    with pytest.raises(rlx.Error, match="decoder: there is nothing to finish in this thread yet"):
        exe.finish()
    with pytest.raises(rlx.Error, match=r"takes 3 inputs \(x, h, counter\), got 1"):
        exe.step(np.zeros((2, 8), np.float32))


def test_a_program_in_a_file_has_its_phases(tmp_path: Path) -> None:
    exe = compiled(decoder(with_logits=True), "cpu")
    exe.save(tmp_path / "decoder.rlx")
    kept = rlx.load(tmp_path / "decoder.rlx")
    assert kept.step_outputs == ("logits", "h")
    assert kept.finish_outputs == ("token",)
    x = np.ones((2, 8), np.float32)
    kept.step(x, x, np.int64(1))
    np.testing.assert_array_equal(kept.finish(), exe(x, x, np.int64(1))[2])


def test_the_prologue_runs_again_for_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    g = rlx.Graph("weights")
    a, b = g.param("a", rlx.Shape([4])), g.param("b", rlx.Shape([4]))
    g.set_outputs([g.add(g.input("x", rlx.Shape([4])), g.mul(g.exp(a), 2.0)), g.neg(g.sin(b))])
    exe = compiled(g, "reference", {"a": np.ones(4, np.float32), "b": np.ones(4, np.float32)})
    from rlx.backends.reference.program import ReferenceProgram

    ran: list[str] = []
    step = ReferenceProgram._step

    def watched(self: Any, place: Any, node: Any) -> None:
        ran.extend(n.op for n in (node.attrs["body"].order() if "body" in node.attrs else [node]))
        step(self, place, node)

    monkeypatch.setattr(ReferenceProgram, "_step", watched)
    exe.prologue({"b": np.zeros(4, np.float32)})
    assert "sin" in ran
    assert "exp" not in ran
    ran.clear()
    exe.prologue({"b": np.zeros(4, np.float32)})
    assert ran == []
