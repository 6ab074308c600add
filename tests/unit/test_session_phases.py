"""Sessions whose calls are steps and an end: decode 20 tokens, sample once, over a cache."""

from __future__ import annotations

import functools
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import Phase, ops
from rlx.backends.base import Backend
from rlx.backends.registry import find_backend
from rlx.explain.report import Report
from rlx.fuzz.generate import Grown, grow
from rlx.fuzz.states import ends_of
from rlx.plan.check.checker import check
from rlx.plan.lir_text import lir_text
from rlx.runtime.loaded_program import LoadedProgram
from rlx.runtime.state_session import StateSession, open_session
from tests.backend.engine.numpy_engine import NumpyBackend
from tests.backend.gpu import laws
from tests.backend.gpu.simulated_backend import SimulatedBackend
from tests.effort import tries

BACKENDS: dict[str, Any] = {
    "reference": lambda: find_backend("reference"),
    "cpu": lambda: find_backend("cpu").configured("", 2),
    "gpu": SimulatedBackend,
    "webgpu": lambda: SimulatedBackend(laws.WEBGPU),
    "engine": NumpyBackend,
}
WIDTH, CONTEXT, WORDS = 16, 32, 24
RNG = np.random.default_rng(5)
WEIGHTS = {
    name: RNG.standard_normal((WIDTH, WORDS if name == "e" else WIDTH), np.float32)
    for name in ("wk", "wv", "wq", "wo", "e")
}
AT_END = ("logits", "best", "token")


def decoder() -> rlx.Graph:
    """A layer of attention over a cache; what follows a top-k is no sampling by its op."""
    g = rlx.Graph("decoder")
    x = g.input("x", [1, WIDTH])
    at, n = g.input("at", rlx.Shape([1], rlx.DType.I64)), g.input("n", rlx.Shape([], rlx.DType.I64))
    wk, wv, wq, wo, e = (g.param(k, rlx.Shape(v.shape)) for k, v in WEIGHTS.items())
    keys, values = (
        g.append(
            g.state(name, [1, CONTEXT, WIDTH]),
            ops.reshape(ops.matmul(x, w), dims=(1, 1, WIDTH)),
            at,
            axis=1,
        )
        for name, w in (("k", wk), ("v", wv))
    )
    q = ops.reshape(ops.matmul(x, wq), dims=(1, 1, WIDTH))
    seen = g.cached_attention(q, keys, values, at, num_heads=2, kv_heads=2)
    h = ops.tanh(ops.matmul(ops.reshape(seen, dims=(1, WIDTH)), wo))
    logits = ops.matmul(h, e)
    best = ops.softmax(ops.top_k(logits, k=4)[0], axis=-1)
    token = ops.sample(logits, n, temperature=0.7, top_k=5)
    g.set_outputs({"h": h, "logits": logits, "best": best, "token": token})
    return g


def compiled(
    graph: rlx.Graph, target: str | rlx.Target, at_end: Collection[str] | None
) -> rlx.CompileResult:
    options = rlx.FusionOptions(at_end=at_end)
    return rlx.CompilePipeline(target, options=options).compile(graph)


def loaded(name: str, graph: rlx.Graph, at_end: Collection[str] | None) -> LoadedProgram:
    backend: Backend = BACKENDS[name]()
    result = compiled(graph, backend.target(), at_end)
    assert check(result.lir) == []
    params = WEIGHTS if graph.params else {}
    return LoadedProgram(result, backend.compile(result.lir), backend, params)


def session_of(name: str, graph: rlx.Graph, at_end: Collection[str] | None) -> StateSession:
    return open_session(loaded(name, graph, at_end), {}, None)


@functools.cache
def loaded_decoder(name: str, at_end: tuple[str, ...] = AT_END) -> LoadedProgram:
    return loaded(name, decoder(), at_end)


def decoding(name: str, history: int | None = None) -> StateSession:
    """A session of the decoder, whose logits and what follows from them come at the end."""
    return open_session(loaded_decoder(name), {}, history)


def inputs(step: int) -> list[Any]:
    x = np.random.default_rng(step).standard_normal((1, WIDTH), np.float32)
    return [x, np.array([step]), np.array(step)]


def phase_of_ops(lir: Any) -> dict[str, set[Phase]]:
    """Op → its phases, those inside of regions too."""
    found: dict[str, set[Phase]] = {}
    for node in lir.plan.schedule:
        body = node.attrs.get("body")
        for each in body.order() if body else [node]:
            found.setdefault(each.op, set()).add(lir.plan.phase_of(node))
    return found


def same(made: Any, expected: Any) -> None:
    for one, other in zip(made, expected, strict=True):
        np.testing.assert_array_equal(one, other)


# -- running them apart ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", BACKENDS)
def test_twenty_steps_over_a_cache_and_one_sample(name: str) -> None:
    steps = 4 if "gpu" in name else 20  # a simulated thread is an interpreted one
    session = decoding(name)
    whole = session.fork()
    assert (session.step_outputs, session.finish_outputs) == (("h",), AT_END)
    end: Sequence[Any] = ()
    for step in range(steps):
        h, *end = whole(*inputs(step))
        np.testing.assert_array_equal(session.step(*inputs(step)), h)
    for _ in range(2):
        same(session.finish(), end)
    for state in session.states:
        np.testing.assert_array_equal(session.state(state), whole.state(state))


@pytest.mark.parametrize("name", BACKENDS)
def test_the_end_is_of_the_last_step_whatever_the_caller_writes(name: str) -> None:
    session = decoding(name)
    h, *end = session.fork()(*inputs(0))
    given = inputs(0)
    made = session.step(*given)
    np.testing.assert_array_equal(made, h)
    for array in (*given, made):
        array[...] = 0
    for array in session.finish():
        array[...] = 0
    same(session.finish(), end)


@pytest.mark.parametrize("name", BACKENDS)
def test_what_a_step_needs_is_given_at_the_end_where_that_was_asked(name: str) -> None:
    g = rlx.Graph("both")
    x, total = g.input("x", [4]), g.state("total", [4])
    new = ops.add(total, x)
    g.assign(total, new)
    g.set_outputs({"sum": new, "double": ops.mul(new, 2.0), "mean": ops.mean(new)})
    session = session_of(name, g, ["sum", "mean"])
    x0 = np.arange(4, dtype=np.float32)
    for count in (1, 2, 3):
        np.testing.assert_array_equal(session.step(x0), 2 * count * x0)
    same(session.finish(), (3 * x0, np.float32(4.5)))


@pytest.mark.parametrize("name", BACKENDS)
def test_results_of_one_kernel_are_of_one_phase(name: str) -> None:
    """One is an output of the step, the other is read at the end, twice; of what were two kernels
    before rules made them equal."""
    g = rlx.Graph("results")
    x, total = g.input("x", [8]), g.state("total", [8])
    new = g.assign(total, ops.add(total, x))
    values, places = g.top_k(ops.mul(new, 1.0), k=4)[0], g.top_k(new, k=4)[1]
    ends = {"places": ops.cast(places, to=rlx.DType.I32), "squares": ops.mul(places, places)}
    g.set_outputs({"values": values, **ends})
    session = session_of(name, g, list(ends))
    x0 = np.arange(8, dtype=np.float32)
    for count in (1, 2):
        np.testing.assert_array_equal(session.step(x0), count * x0[:3:-1])
    for _ in range(2):
        same(session.finish(), ([7, 6, 5, 4], [49, 36, 25, 16]))


@pytest.mark.parametrize("name", BACKENDS)
def test_the_end_reads_the_states_that_steps_have_written(name: str) -> None:
    """A reduction over all time: no step computes it. What it reads of before is of the step."""
    g = rlx.Graph("history")
    x, at = g.input("x", [1, 3]), g.input("at", rlx.Shape([], rlx.DType.I64))
    rows, last = g.state("rows", [8, 3]), g.state("last", [1, 3])
    new = g.append(rows, x, at, axis=0)
    changed = ops.sub(x, last)
    g.assign(last, x)
    g.set_outputs({"total": ops.sum(new, axes=(0,)), "changed": ops.exp(changed)})
    session = session_of(name, g, ["total", "changed"])
    found = phase_of_ops(session._loaded.result.lir)  # pyright: ignore[reportPrivateUsage]
    assert found["sum"] == {Phase.EPILOGUE}
    assert found["sub"] == {Phase.STEADY_STATE}
    given = RNG.standard_normal((5, 1, 3)).astype(np.float32)
    for step, row in enumerate(given):
        assert session.step(row, np.array(step)) == ()
    total, moved = session.finish()
    np.testing.assert_allclose(total, given.sum((0, 1)), rtol=1e-5, atol=1e-6)  # 5 sums in f32
    np.testing.assert_allclose(moved, np.exp(given[4] - given[3]), rtol=1e-5)


def test_a_file_has_its_phases(tmp_path: Path) -> None:
    exe = rlx.Executable(loaded_decoder("cpu"))
    exe.save(tmp_path / "decoder.rlx")
    kept, session = exe.load(tmp_path / "decoder.rlx").session(), exe.session()
    assert kept.finish_outputs == AT_END
    for each in (kept, session):
        each.step(*inputs(0))
    same(kept.finish(), session.finish())
    (tmp_path / "decoder.lir").write_text(lir_text(exe.lir))
    planned = rlx.load(tmp_path / "decoder.lir")
    assert isinstance(planned, rlx.LirModule)
    assert planned.plan.io.at_end == tuple(sorted(AT_END))


def test_programs_without_states_have_ends_too() -> None:
    g = rlx.Graph("plain")
    x = g.input("x", [4, 8])
    y = ops.matmul(x, g.param("w", rlx.Shape([8, 8])))
    best = ops.softmax(ops.top_k(y, k=2)[0], axis=-1)
    g.set_outputs({"y": ops.sum(y), "best": best})
    w, value = np.eye(8, dtype=np.float32), RNG.standard_normal((4, 8)).astype(np.float32)
    for target in ("reference", "cpu"):
        exe = rlx.compile(g, target, params={"w": w}, cache=False, at_end=["best"])
        y, end = exe(value)
        np.testing.assert_array_equal(exe.step(value), y)
        np.testing.assert_array_equal(exe.finish(), end)


# -- which node lies where, and why ----------------------------------------------------------------


@pytest.mark.parametrize("target", [t.value for t in rlx.FusionTarget])
def test_phases_follow_from_what_is_asked_at_the_end(target: str) -> None:
    """With the hidden state at the end, too, a step computes keys and values and no more."""
    others: Any = (
        ([], {"tanh", "top_k", "cached_attention"}),
        (AT_END, {"tanh", "cached_attention"}),
    )
    for at_end, early in (*(others if target == "cpu" else ()), ((*AT_END, "h"), set[str]())):
        lir = compiled(decoder(), target, at_end).lir
        assert check(lir) == []
        held = phase_of_ops(lir)
        for op in ("tanh", "cached_attention", "top_k"):
            if op in held:
                expected = Phase.STEADY_STATE if op in early else Phase.EPILOGUE
                assert held[op] == {expected}, (op, at_end)
        assert held["append"] == {Phase.STEADY_STATE}


def test_a_state_of_what_was_sampled_is_written_by_the_step() -> None:
    """Whatever its op: an update is no part of an end that may run again."""
    g = rlx.Graph("greedy")
    x, last = g.input("x", [1, 8]), g.state("last", rlx.Shape([1], rlx.DType.I64))
    token = ops.argmax(x, axis=-1)
    g.assign(last, ops.reshape(ops.top_k(x, k=1)[1], dims=(1,)))
    g.set_outputs({"token": token})
    for at_end in (None, ["token"]):
        session = session_of("cpu", g, at_end)
        session.step(np.eye(8, dtype=np.float32)[3:4])
        np.testing.assert_array_equal(session.state("last"), [3])


def test_explain_says_why() -> None:
    report = rlx.Executable(loaded_decoder("cpu", (*AT_END, "h"))).explain()
    reasons = {
        phase: {k.phase_reason for k in report.kernels if k.phase == phase}
        for phase in report.phases
    }
    assert reasons["prologue"] == {"depends on weights alone"}
    assert reasons["steady_state"] == {"the state 'k' needs it", "the state 'v' needs it"}
    assert "no step needs it, but 'h' does, which is asked for at the end" in reasons["epilogue"]
    assert "at the end" in str(report)
    assert Report.from_json(report.to_json()).kernels == report.kernels
    g = rlx.Graph("plain")
    g.set_outputs([g.exp(g.input("x", [4]))])
    plain = rlx.Executable(loaded("cpu", g, []))
    assert "at the end" not in str(plain.explain())


def test_the_checker_rejects_work_of_a_step_at_the_end() -> None:
    lir = compiled(decoder(), "cpu", AT_END).lir
    plan, (h, *_) = lir.plan, lir.mir.graph.outputs
    update = lir.mir.graph.updates[0]
    for node in (h, update):
        order = sorted(plan.schedule, key=lambda k: (plan.phases[k], k is node))
        late = {n: Phase.EPILOGUE if n is node else p for n, p in plan.phases.items()}
        found = check(replace(lir, plan=replace(plan, phases=late, schedule=tuple(order))))
        assert any("a step has to compute it" in str(f) for f in found)


def test_an_output_that_is_not_there_is_named() -> None:
    with pytest.raises(rlx.Error, match=r"at_end names no output 'tokens'. It has: h, logits"):
        compiled(decoder(), "cpu", ["tokens"])
    with pytest.raises(rlx.Error, match="at_end"):
        rlx.FusionOptions(at_end=[3])  # pyright: ignore[reportArgumentType]


# -- errors ----------------------------------------------------------------------------------------


def test_there_is_nothing_to_finish_once_states_have_changed() -> None:
    session = decoding("cpu", history=2)

    def is_over() -> bool:
        with pytest.raises(rlx.Error, match="nothing to finish: no step was made since"):
            session.finish()
        return True

    assert is_over()

    def failing_step() -> None:
        with pytest.raises(rlx.Error):
            session.step(*inputs(CONTEXT))

    changes: list[Any] = [
        session.reset,
        session.rewind,
        lambda: session.set_state("k", np.zeros((1, CONTEXT, WIDTH), np.float32)),
        lambda: session.copy_rows(0, 0, 1),
        lambda: session.shift_rows(0, 1, 1),
        lambda: session(*inputs(1)),
        failing_step,
    ]
    for change in changes:
        session.step(*inputs(0))
        session.finish()
        change()
        assert is_over()


def test_a_step_is_rewound_and_a_fork_has_steps_of_its_own() -> None:
    session = decoding("cpu", history=2)
    before = session.state("k").tobytes()
    session.step(*inputs(0))
    end = session.finish()
    fork = session.fork()
    with pytest.raises(rlx.Error, match="nothing to finish"):
        fork.finish()
    fork.step(*inputs(1))
    same(session.finish(), end)
    session.rewind()
    assert session.state("k").tobytes() == before


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_sessions_of_threads_finish_their_own_steps(name: str) -> None:
    session = decoding(name)
    forks = [session.fork() for _ in range(4)]
    ends: dict[int, Any] = {}
    ready = threading.Barrier(len(forks))

    def work(number: int) -> None:
        forks[number].step(*inputs(0 if number < 2 else 1)[:1], np.array([0]), np.array(number))
        ready.wait()
        ends[number] = forks[number].finish()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(forks))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for number, end in ends.items():
        x = inputs(0 if number < 2 else 1)[0]
        same(end, session.fork()(x, np.array([0]), np.array(number))[1:])
    assert len(ends) == len(forks)


# -- random graphs without states ------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(tries(2, 40)))
@pytest.mark.parametrize("name", ["reference", "cpu", "gpu", "engine"])
def test_random_graphs_have_the_bits_of_whole_calls(name: str, seed: int) -> None:
    grown = grow(seed, 4)
    program = loaded_graph(name, grown)
    exe = rlx.Executable(program)
    given = [np.array(grown.values[n.attrs["name"]]) for n in grown.graph.inputs]
    expected = dict(zip(exe.outputs, listed(exe(*given)), strict=True))
    made = dict(zip(exe.step_outputs, listed(exe.step(*given)), strict=True))
    for array in given:
        array[...] = np.zeros((), array.dtype)
    for _ in range(2):
        made |= dict(zip(exe.finish_outputs, listed(exe.finish()), strict=True))
        assert {k: a.tobytes() for k, a in made.items()} == {
            k: a.tobytes() for k, a in expected.items()
        }


def loaded_graph(name: str, grown: Grown) -> LoadedProgram:
    backend: Backend = BACKENDS[name]()
    result = compiled(grown.graph, backend.target(), ends_of(grown.graph))
    params = {n.attrs["name"]: grown.values[n.attrs["name"]] for n in grown.graph.params}
    return LoadedProgram(result, backend.compile(result.lir), backend, params)


def listed(made: Any) -> list[Any]:
    return list(made) if isinstance(made, tuple) else [made]
