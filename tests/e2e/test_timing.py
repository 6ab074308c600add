"""Profiles, traces and measured decisions: what they hold, whatever the times are."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.errors import Error, UnsupportedError
from rlx.cost.decision import Decision
from rlx.explain.measure_decisions import Bench, Measurement, classes, interval, summary
from rlx.explain.measured import Measured
from rlx.explain.trace import CALLS, COMPILE, Event, Trace
from rlx.ir.interface import Interface
from rlx.ir.lir import Phase
from rlx.runtime.executable import Executable

RNG = np.random.default_rng(0)


def model(layers: int = 3) -> rlx.Graph:
    """Layers alike, on a named number of rows."""
    graph = rlx.Graph("layers")
    x = graph.input("x", rlx.Shape([rlx.Dim("rows", 1, 4096), 32]))
    for i in range(layers):
        w = graph.param(f"w{i}", rlx.Shape([32, 32]))
        x = graph.relu(graph.mm(x, w) + graph.param(f"b{i}", rlx.Shape([32])))
        x = graph.softmax(x, axis=-1)
    graph.set_outputs([x])
    return graph


def compiled(threads: int = 2) -> Executable:
    exe = rlx.compile(model(), "cpu", threads=threads, cache=False)
    shapes = exe.params.items()
    exe.set_params({k: RNG.normal(size=s.dims).astype(np.float32) for k, s in shapes})
    return exe


@pytest.fixture(scope="module")
def exe() -> Executable:
    return compiled()


def data(rows: int = 2000) -> np.ndarray:
    return RNG.normal(size=(rows, 32)).astype(np.float32)


def test_a_timed_build_gives_the_same_and_tells_of_every_step(exe: Executable) -> None:
    x = data()
    program, weights = exe.loaded.timed()
    run = program.run_timed(weights, [x])
    assert np.array_equal(run.outputs[0], exe(x))
    plan = exe.lir.plan
    per_call = [n for n in plan.schedule if plan.phases[n] > Phase.PROLOGUE]
    assert list(program.steps) == per_call
    assert {s.step for s in run.spans} == set(range(len(per_call)))
    assert run.lost == 0
    for span in run.spans:
        assert run.start_ns <= span.start_ns <= span.stop_ns <= run.stop_ns
        assert span.thread in (0, 1)
    steps = [s.step for s in run.spans]
    assert steps == sorted(steps)  # one after the other, whoever does them


def test_profiling_leaves_the_program_as_it_is(exe: Executable) -> None:
    def code(made: Executable) -> bytes:
        return made.loaded.program.artefact.blob.to_bytes()  # pyright: ignore

    before = code(exe)
    exe.profile([data(7)], seconds=0)
    exe.trace([data(7)], calls=1)
    exe.explain()
    assert code(exe) == before == code(compiled())


def test_a_profile_counts_at_the_sizes_it_ran_at(exe: Executable) -> None:
    small, large = (exe.profile([data(n)], seconds=0) for n in (10, 1000))
    assert small.sizes == {"rows": 10}
    assert len(small.kernels) == len(large.kernels)
    for a, b in zip(small.kernels, large.kernels):
        assert a.bytes < b.bytes
        assert 100 * a.flops == b.flops
        assert b.gb_s == pytest.approx(b.bytes / max(b.median_ns, 1))
        assert b.gflop_s == pytest.approx(b.flops / max(b.median_ns, 1))
    assert sum(k.share for k in large.kernels) == pytest.approx(1)
    assert "GFLOP/s" in str(large)
    json.dumps(large.as_dict())


def test_the_steps_inside_a_loop_count_for_the_loop() -> None:
    def step(carry: rlx.Node, x: rlx.Node) -> tuple[rlx.Node, rlx.Node]:
        return carry * 0.5 + x, carry

    graph = rlx.Graph("scan")
    start, xs = graph.input("start", rlx.Shape([8])), graph.input("xs", rlx.Shape([5, 8]))
    last, _ = rlx.scan_loop(step, start, xs)
    graph.set_outputs([rlx.ops.exp(last)])
    exe = rlx.compile(graph, "cpu", cache=False)
    program, weights = exe.loaded.timed()
    run = program.run_timed(weights, [np.ones(8, np.float32), np.ones((5, 8), np.float32)])
    loop = next(i for i, n in enumerate(program.steps) if n.op == "scan")
    assert sum(s.step == loop for s in run.spans) >= 5


def test_a_trace_is_what_perfetto_reads(exe: Executable, tmp_path: Path) -> None:
    made = exe.trace({"x": data()}, calls=2)
    made.save(tmp_path / "trace.json")
    held = json.loads((tmp_path / "trace.json").read_text())
    events = held["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {"compiler", "code generation 1", "calls", "thread 1"} <= names
    whole = [e for e in events if e["ph"] == "X"]
    assert {"simplify", "fuse_patterns", "fuse_regions", "plan"} <= {
        e["name"] for e in whole if e["cat"] == "pass"
    }
    calls = [e for e in whole if e["cat"] == "call"]
    assert len(calls) == 2
    kernels = [e for e in whole if e["cat"] == "kernel"]
    for kernel in kernels:
        assert any(c["ts"] <= kernel["ts"] + 1e-3 and
                   kernel["ts"] + kernel["dur"] <= c["ts"] + c["dur"] + 1e-3
                   for c in calls)  # fmt: skip
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in whole)
    assert list(tmp_path.iterdir()) == [tmp_path / "trace.json"]


def test_a_call_begins_once_its_arguments_are_bound(
    exe: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, weights = exe.loaded.timed()
    bound: list[int] = []
    bind = Interface.bind

    def slow(*given: Any) -> Any:
        made = bind(*given)
        bound.append(time.monotonic_ns())
        return made

    monkeypatch.setattr(Interface, "bind", slow)
    for _ in range(2):
        run = program.run_timed(weights, [data(3)])
        assert bound[-1] <= run.start_ns <= min(s.start_ns for s in run.spans)
        assert max(s.stop_ns for s in run.spans) <= run.stop_ns <= time.monotonic_ns()


def test_a_report_shows_the_median_call() -> None:
    def call(start: int, took: int) -> list[Event]:
        kernel = Event(f"kernel {took}", "kernel", CALLS, 1, start + 1, start + took - 1)
        return [Event("call", "call", CALLS, 0, start, start + took), kernel]

    before = Event("simplify", "pass", COMPILE, 0, 0, 5)
    made = Trace("m", "cpu", (before, *call(10, 900), *call(1_000, 20), *call(2_000, 30)))
    shown = made.median_call().events
    assert [e.name for e in shown] == ["simplify", "call", "kernel 30"]
    assert replace(made, events=(before,)).median_call().events == (before,)


def test_a_trace_shows_every_function_written_and_then_compiled(exe: Executable) -> None:
    made = exe.trace({"x": data()}, calls=1)
    (plan,) = (e for e in made.events if e.name == "plan")
    code = [e for e in made.events if e.category == "codegen"]
    written = {f: e for e in code if e.name.startswith("write") for f in dict(e.args)["functions"]}
    compiled = {f: e for e in code if e.name.startswith("compile")
                for f in dict(e.args)["functions"]}  # fmt: skip
    assert compiled["f0"].start_ns >= written["f0"].stop_ns >= plan.stop_ns
    assert {f for f in written if re.fullmatch(r"f\d+", f)} <= set(compiled)
    assert code[-1].name == "link run"
    labels = {n.label for n in exe.lir.plan.schedule}
    assert all(name in labels for name in dict(written["f0"].args)["for"])


def test_of_a_program_kept_from_before_a_trace_shows_the_timed_build(tmp_path: Path) -> None:
    graph = model()
    given = {n.attrs["name"]: np.zeros(n.shape.dims, np.float32) for n in graph.params}
    for is_kept in (False, True):
        exe = rlx.compile(graph, "cpu", params=given, cache=str(tmp_path))
        assert bool(exe.loaded.program.codegen_spans) is not is_kept
        kinds = {e.category for e in exe.trace({"x": data()}, calls=1).events}
        assert {"codegen", "timed build"} <= kinds
        assert ("pass" in kinds) is not is_kept


def test_a_target_without_a_clock_says_so() -> None:
    graph = model()
    exe = rlx.compile(graph, "reference", params={k: np.zeros(s.dims, np.float32) for k, s in
                                                  {n.attrs["name"]: n.shape
                                                   for n in graph.params}.items()})  # fmt: skip
    with pytest.raises(UnsupportedError, match="reference"):
        exe.profile([data(3)])


def test_inputs_by_name_or_in_order_and_no_others(exe: Executable) -> None:
    for wrong in ({"y": data(3)}, {}, [data(3), data(3)]):
        with pytest.raises(Error):
            exe.profile(wrong, seconds=0)


# -- measured decisions ----------------------------------------------------------------------------


def test_decisions_are_turned_around_class_by_class(exe: Executable) -> None:
    said: list[tuple[int, int, str]] = []
    x = data(64)
    made = exe.measure([x], seconds=0, progress=lambda *told: said.append(told))
    assert made.measured
    assert said
    ids = [i for m in made.measured for i in m.ids]
    assert len(ids) == len(set(ids))
    for m in made.measured:
        assert m.low_ns <= m.measured_ns <= m.high_ns
        assert made.of(m.ids[0]) is m
    shares = [m.share for m in made.measured]
    assert made.sizes == {"rows": 64}
    assert len(shares) + made.left + len(made.skipped) >= len(classes(exe.decisions))
    assert "cost model:" in str(made)
    json.dumps(made.as_dict())
    assert exe.measure([x], seconds=0, most=1).left == len(shares) - 1 + made.left


def test_a_turned_build_computes_the_same(exe: Executable) -> None:
    bench = Bench(exe, [data(64)])
    found, _, _ = bench.candidates(40, lambda *_: None)
    for candidate in found[:3]:
        other = bench.reversed_build(candidate)
        assert np.allclose(other(bench.arrays[0]), exe(bench.arrays[0]), rtol=1e-5, atol=1e-6)


def test_decisions_inside_branches_and_loops_have_an_effect() -> None:
    """A loop of several steps has that of each."""

    def body(name: str) -> rlx.Graph:
        made = rlx.Graph(name)
        x = made.input("x", [64, 64])
        made.set_outputs([made.tanh(made.exp(x) * 0.5) + x])
        return made

    def effect(inside: Callable[[rlx.Graph, rlx.Node], rlx.Node]) -> float:
        g = rlx.Graph("inside")
        g.set_outputs([inside(g, g.input("x", [64, 64]))])
        bench = Bench(rlx.compile(g), [np.zeros((64, 64), np.float32)])
        found, _, _ = bench.candidates(40, lambda *_: None)
        return sum(c.effect_ns for c in found if c.members[0].what == "fuse_region")

    plain = effect(lambda g, x: g.tanh(g.exp(x) * 0.5) + x)
    loop = effect(lambda g, x: ops.scan(x, body=body("step"), length=5, num_carries=1)[0])
    branch = effect(
        lambda g, x: ops.if_(g.sum(x) > 0.0, x, then=body("then"), else_=body("else"))[0]
    )
    assert plain > 0
    assert branch == pytest.approx(plain)
    assert loop == pytest.approx(5 * plain)


def test_layers_alike_are_one_class() -> None:
    alike = [Decision(f"fuse:{i}", "fuse", (f"add at onnx /layer.{i}/Add",), True, "", 10.0, 64, 1)
             for i in range(3)]  # fmt: skip
    other = Decision("fuse:9", "fuse", ("add at onnx /last/Add",), True, "", 11.0, 64, 1)
    fixed = Decision("lower:1", "lower", ("stft",), True, "", is_reversible=False)
    assert [len(c) for c in classes([*alike, other, fixed])] == [3, 1]


def test_a_program_without_its_model_cannot_be_turned(exe: Executable, tmp_path: Path) -> None:
    exe.save(tmp_path / "layers.rlx")
    again = rlx.load(tmp_path / "layers.rlx")
    with pytest.raises(Error, match=r"rlx\.compile"):
        again.measure([data(3)], seconds=0)


def test_the_interval_holds_the_difference_and_shrinks_with_rounds() -> None:
    """Of turns that take 1 and 6 and are disturbed at random, by half of that on average."""
    rng = np.random.default_rng(1)
    few, many = (
        interval(*(least + rng.exponential(0.5, n) for least in (1.0, 6.0))) for n in (10, 1000)
    )
    for middle, low, high in (few, many):
        assert low <= middle <= high
    assert many[2] - many[1] < few[2] - few[1]
    assert many[1] < 5.0 < many[2]
    assert interval(np.full(9, 3.0), np.full(9, 5.0)) == (2.0, 2.0, 2.0)


def test_the_summary_counts_confirmed_verdicts() -> None:
    def one(verdict: bool, predicted: float, measured: float, share: float) -> Measured:
        around = measured - 1, measured + 1
        return Measured(("a",), "fuse", ("x",), verdict, predicted, measured, *around, share, 9)

    found = (
        one(True, 10.0, 5.0, 0.02),  # right, predicted twice of it
        one(False, -4.0, -8.0, 0.02),  # right to refuse
        one(True, 3.0, -6.0, 0.02),  # wrong
        one(True, 3.0, 0.5, 0.001),  # too little to tell
    )
    text = summary([Measurement("m", {}, 100.0, found)])
    assert "4 decisions reversed and measured (1 of them refusals)" in text
    assert "2 confirmed, 1 refuted, 1 within noise" in text
    taken = summary([Measurement("m", {}, 100.0, (found[0], found[2]))])
    assert "2 decisions reversed and measured: 1 confirmed" in taken
    assert "2 of 3 have the right sign" in text
    assert "median predicted/measured 1.25 where both have one sign" in text  # of 2 and 0.5


def test_a_measured_report_holds_times_and_is_else_the_same(exe: Executable) -> None:
    plain = exe.explain([data(64)])
    made = exe.explain([data(64)], measure=True, seconds=0, most=3)
    assert made.without_timings() == plain.without_timings()
    per_call = [k for k in made.kernels if k.phase != "prologue"]
    assert all(k.measured and k.measured["label"] for k in per_call)
    turned = [d for d in made.decisions if d.measured]
    for d in turned:
        assert d.measured
        assert d.measured["low_ns"] <= d.measured["measured_ns"] <= d.measured["high_ns"]
    assert "cost model:" in made.timings["gate"]
    assert type(made).from_json(made.to_json()) == made
