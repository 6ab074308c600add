"""States: versions in the graph, slots in the plan, sessions that hold them."""

from __future__ import annotations

import mmap
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.core.layout import Layout
from rlx.fuzz.states import grow_states, judge_states
from rlx.ir.interpret import evaluate_call
from rlx.ir.lir import LirModule, Space
from rlx.ir.text import read, read_module
from rlx.pipeline import CompilePipeline
from rlx.plan import planner
from rlx.plan.check.checker import check
from rlx.plan.check.claims import Fault
from rlx.plan.lir_text import lir_text
from rlx.runtime.lir_file import read_lir
from rlx.runtime.loaded_program import LoadedProgram
from rlx.runtime.state_session import StateSession

TARGETS = ("reference", "cpu")
I32, I64 = rlx.DType.I32, rlx.DType.I64


def cache_graph() -> rlx.Graph:
    """A cache of rows by slot, and a counter."""
    g = rlx.Graph("cache")
    batch, seq = rlx.Dim("batch", 1, 8), rlx.Dim("seq", 1, 16)
    slots, context = rlx.Dim("slots", 1, 8), rlx.Dim("context", 16, 4096)
    x = g.input("x", rlx.Shape([batch, seq, 4]))
    at, chosen = (g.input(n, rlx.Shape([batch], I32)) for n in ("at", "chosen"))
    k, n = g.state("k", [slots, context, 4]), g.state("n", [], I64, init=3)
    written = g.append(k, g.mul(x, 2.0), at, chosen, axis=1)
    g.assign(n, g.add(n, 1))
    g.set_outputs({"y": g.sum(written, axes=(1, 2)), "z": g.add(n, 10)})
    return g


def call(rows: int, at: list[int], chosen: list[int], seed: int = 0) -> dict[str, Any]:
    x = np.random.default_rng(seed).standard_normal((len(at), rows, 4)).astype(np.float32)
    return {"x": x, "at": np.array(at, np.int32), "chosen": np.array(chosen, np.int32)}


CALLS = [call(3, [0, 0], [1, 0], 1), call(1, [3, 3, 0], [0, 1, 3], 2), call(2, [14], [2], 3)]


def check_forks_and_rows(session: StateSession) -> StateSession:
    """A session of `cache_graph` that can undo a call, whatever memory its states are in; its fork,
    which has made two calls."""

    def states(of: StateSession) -> dict[str, bytes]:
        return {name: of.state(name).tobytes() for name in of.states}

    session.run(CALLS[0])
    fork, before = session.fork(), states(session)
    fork.run(CALLS[1])
    assert states(session) == before
    session.run(CALLS[1])
    assert states(session) == states(fork)
    session.rewind()
    assert session.state("n") == 4
    session.copy_rows(1, 3, 2)
    held = session.state("k").copy()
    assert np.array_equal(held[3, :2], held[1, :2])
    session.shift_rows(1, 1, 2, ["k"])
    assert np.array_equal(session.state("k")[1, :2], held[1, 1:3])
    return fork


# -- the graph -------------------------------------------------------------------------------------


def test_text_of_states_parses_back() -> None:
    graph = cache_graph()
    assert read(str(graph)) == graph
    assert str(read(str(graph))) == str(graph)
    assert [u.op for u in read(str(graph)).updates] == ["append", "assign"]


def test_a_module_has_states_that_lowering_keeps() -> None:
    module = rlx.HirModule("counter")
    n = module.state("n", [2], init=1)
    x = module.input("x", [1, 2])
    module.assign(n, module.add(n, module.sum(x, axes=(0,))))
    module.set_outputs([module.linear(x, module.param("w", [2, 3]))])
    assert [s.attrs["name"] for s in module.states] == ["n"]
    assert read_module(str(module)) == module
    assert [u.op for u in module.lower().graph.updates] == ["assign"]


def test_the_meaning_is_functional() -> None:
    state = {"k": np.zeros((2, 16, 4), np.float32), "n": np.array(3)}
    (y, z), after = evaluate_call(cache_graph(), {**call(2, [5], [1]), **state})
    assert not state["k"].any()
    assert after["n"] == 4
    assert z == 13
    assert np.array_equal(np.flatnonzero(after["k"].any(axis=(0, 2))), [5, 6])
    assert np.allclose(y, after["k"].sum(axis=(1, 2)))


def test_a_version_has_one_successor() -> None:
    g = rlx.Graph("twice")
    n = g.state("n", [])
    g.assign(n, g.add(n, 1.0))
    g.assign(n, g.add(n, 2.0))
    with pytest.raises(rlx.GraphError, match="has one successor"):
        g.set_outputs([n])


def test_an_old_version_is_not_read_beside_the_new_one() -> None:
    g = rlx.Graph("late")
    x, k = g.input("x", [1, 4]), g.state("k", [8, 4])
    new = g.append(k, x, g.constant(np.int64(0)), axis=0)
    g.set_outputs([g.sum(g.mul(k, new))])
    with pytest.raises(rlx.GraphError, match=r"reads state 'k'.* overwrites"):
        rlx.MirModule(g)


def test_an_old_version_may_be_what_the_update_is_computed_from() -> None:
    g = rlx.Graph("early")
    k = g.state("k", [8, 4])
    row = g.mean(k, axes=(0,), keepdims=True)
    new = g.append(k, row, g.constant(np.int64(0)), axis=0)
    g.set_outputs([g.sum(new)])
    assert check(CompilePipeline("cpu").compile(g).lir) == []


def test_an_overwritten_version_is_not_returned_beside_a_read_of_the_new_one() -> None:
    g = rlx.Graph("returned")
    k = g.state("k", [4])
    new = g.append(k, g.input("x", [1]), g.constant(np.int64(0)), axis=0)
    g.set_outputs([k, g.sum(new)])
    with pytest.raises(rlx.GraphError, match="is returned, but"):
        rlx.MirModule(g)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_state_is_returned_as_it_was(target: str) -> None:
    """Also where rules leave nothing but the state of what is returned, or a view of it."""
    g = rlx.Graph("before")
    n = g.state("n", [2, 3])
    g.assign(n, g.add(n, 1.0))
    g.set_outputs([n, g.mul(n, 1.0), g.reshape(n, dims=(3, 2)), g.transpose(n, perm=(1, 0))])
    session = rlx.compile(g, target=target).session()
    for step in range(3):
        assert all((value == step).all() for value in session())
    assert (session.state("n") == 3).all()


def test_a_body_has_no_state() -> None:
    body = rlx.Graph("body")
    body.set_outputs([body.add(body.input("x", [2]), body.state("n", [2]))])
    g = rlx.Graph("holder")
    with pytest.raises(rlx.GraphError, match="no states"):
        g.node("region", (g.input("x", [2]),), {"body": body})


# -- the plan --------------------------------------------------------------------------------------


def planned() -> LirModule:
    return CompilePipeline("cpu").compile(cache_graph()).lir


def test_versions_share_a_slot_outside_the_arena() -> None:
    plan = planned().plan
    states = {n.attrs["name"]: n for _, n in plan.io.states}
    assert {s.space for n, s in plan.assignments.items() if n in states.values()} == {Space.STATE}
    (append,) = (n for n in plan.schedule if n.op == "append")
    assert plan.root(append) is states["k"]
    assert plan.slot(append) is plan.assignments[states["k"]]
    assert plan.bind({"batch": 2, "seq": 1, "slots": 4, "context": 32}).state_bytes == 4 * 512 + 64


def test_what_nothing_reads_is_written_last() -> None:
    assert planned().plan.schedule[-1].op == "assign"


def test_a_planned_module_with_states_is_read_back() -> None:
    lir = planned()
    assert read_lir(lir_text(lir)).fingerprint == lir.fingerprint


def append_of(plan: Any) -> Any:
    (found,) = (n for n in plan.written if n.op == "append")
    return found


@pytest.mark.parametrize("what", ["more rows", "other strides", "an offset", "nothing"])
def test_the_checker_rejects_an_append_outside_its_rows(what: str) -> None:
    lir = planned()
    append = append_of(lir.plan)
    rows = lir.plan.written[append]
    others = {
        "more rows": Layout((rows.dims[0], rows.dims[1] + 1, rows.dims[2]), rows.strides),
        "other strides": Layout(rows.dims, (rows.strides[1], rows.strides[1], 1)),
        "an offset": Layout(rows.dims, rows.strides, 4),
    }
    written = dict(lir.plan.written)
    del written[append]
    written |= {append: others[what]} if what in others else {}
    found = check(replace(lir, plan=replace(lir.plan, written=written)))
    assert [f.kind for f in found] == [Fault.BAD_VIEW]
    assert "than its rows" in found[0].message


def test_the_checker_rejects_an_append_into_another_place() -> None:
    lir = planned()
    append = append_of(lir.plan)
    view = lir.plan.views[append]
    moved = replace(view, layout=Layout(view.layout.dims, view.layout.strides, 4))
    plan = replace(lir.plan, views={**lir.plan.views, append: moved})
    assert Fault.BAD_VIEW in [f.kind for f in check(replace(lir, plan=plan))]


def test_the_checker_rejects_a_read_of_an_old_version() -> None:
    """The counter's update before the kernel that reads the counter."""
    lir = planned()
    *others, assign = lir.plan.schedule
    value = assign.inputs[1]
    at = others.index(value) + 1 if value in others else len(others)
    early = (*others[:at], assign, *others[at:])
    readers = [k for k in early[at + 1 :] if any(i.op == "state" for i in k.inputs)]
    if not readers:  # the sum may be made before: put every reader behind the update
        readers = [k for k in others if k is not value and any(i.op == "state" for i in k.inputs)]
        early = (*(k for k in others if k not in readers), assign, *readers)
    found = check(replace(lir, plan=replace(lir.plan, schedule=early)))
    assert Fault.READ_AFTER_OVERWRITE in [f.kind for f in found]


def test_the_checker_rejects_states_that_overlap() -> None:
    lir = planned()
    (_, first), (_, second) = lir.plan.io.states
    slots = dict(lir.plan.assignments)
    slots[second] = replace(slots[second], offset=slots[first].offset)
    found = check(replace(lir, plan=replace(lir.plan, assignments=slots)))
    assert Fault.BAD_SLOT in [f.kind for f in found]


def test_the_checker_rejects_an_update_that_is_never_made() -> None:
    lir = planned()
    kept = tuple(n for n in lir.plan.schedule if n.op != "assign")
    assert check(replace(lir, plan=replace(lir.plan, schedule=kept))) != []


@pytest.mark.parametrize("target", ["cuda", "rocm", "wgpu", "metal", "mlx", "tpu"])
def test_plans_of_all_targets_update_states_in_place(target: str) -> None:
    lir = CompilePipeline(target).compile(cache_graph()).lir
    assert check(lir) == []
    assert [n.op for n in lir.plan.written] == ["append", "assign"]


def test_a_target_without_updates_refuses_states_by_name() -> None:
    target = rlx.Target.of("cpu").with_supported_ops(["add", "mul", "sum"])
    with pytest.raises(rlx.UnsupportedError, match="cpu writes no state in place"):
        CompilePipeline(target).compile(cache_graph())


@pytest.mark.parametrize("target", TARGETS)
def test_states_may_become_what_others_were(target: str) -> None:
    g = rlx.Graph("swap")
    a, b, c = (g.state(n, [3, 3]) for n in "abc")
    g.assign(a, b)
    g.assign(b, g.transpose(a, perm=(1, 0)))
    g.append(c, g.narrow(c, axis=0, start=0, length=2), g.constant(np.int64(1)), axis=0)
    g.set_outputs([g.input("x", [1])])
    session = rlx.compile(g, target=target, cache=False).session()
    x, y, z = (np.arange(9, dtype=np.float32).reshape(3, 3) + 10 * i for i in range(3))
    for name, value in zip("abc", (x, y, z)):
        session.set_state(name, value)
    session(np.zeros(1, np.float32))
    assert np.array_equal(session.state("a"), y)
    assert np.array_equal(session.state("b"), x.T)
    assert np.array_equal(session.state("c"), np.stack([z[0], z[0], z[1]]))


def test_the_checker_rejects_an_update_that_reads_what_it_writes() -> None:
    g = rlx.Graph("shift")
    c = g.state("c", [3, 3])
    g.append(c, g.narrow(c, axis=0, start=0, length=2), g.constant(np.int64(1)), axis=0)
    g.set_outputs([g.input("x", [1])])
    plan = planner.plan_buffers(g, rlx.Target.of("cpu"))  # without the copy
    found = check(LirModule(rlx.MirModule(g), plan, rlx.Target.of("cpu")))
    assert [f.kind for f in found] == [Fault.READ_AFTER_OVERWRITE]


def test_explain_says_what_is_written_in_place() -> None:
    report = rlx.compile(cache_graph(), target="cpu", cache=False).explain()
    found = [d for d in report.decisions if d.what == "update_state"]
    assert [d.kind for d in found] == ["in_place"] * 2
    assert all(d.verdict and "written in place" in d.reason for d in found)
    (append,) = (d for d in found if "append" in d.where[0])
    assert append.bytes_saved > 0


def test_memory_of_an_executable_has_that_of_a_session() -> None:
    exe = rlx.compile(cache_graph(), target="cpu", cache=False)
    need = exe.memory(batch=2, seq=1, slots=4, context=32)
    assert need.state_bytes == 4 * 32 * 16 + 64
    assert need.total_bytes > need.state_bytes


# -- sessions --------------------------------------------------------------------------------------


def opened(target: str, **how: Any) -> Any:
    return rlx.compile(cache_graph(), target=target, cache=False).session(
        slots=4, context=16, **how
    )


def bits(session: Any) -> list[bytes]:
    return [session.state(name).tobytes() for name in session.states]


@pytest.mark.parametrize("target", TARGETS)
def test_a_session_keeps_what_the_evaluator_says(target: str) -> None:
    session, graph = opened(target), cache_graph()
    held = {n: np.array(session.state(n)) for n in session.states}
    places = [session.state(n).ctypes.data for n in session.states]
    for given in CALLS:
        outputs, held = evaluate_call(graph, {**given, **held})
        made = session.run(given)
        assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(made.values(), outputs))
        assert all(np.array_equal(session.state(n), held[n]) for n in held)
    assert [session.state(n).ctypes.data for n in session.states] == places  # nothing was copied


@pytest.mark.parametrize("target", TARGETS)
def test_a_call_needs_a_session(target: str) -> None:
    exe = rlx.compile(cache_graph(), target=target, cache=False)
    for wrong in (exe, exe.submit, exe.bind, exe.step, lambda *a: exe.profile(list(a))):
        with pytest.raises(rlx.Error, match=r"exe\.session\(context=…, slots=…\)"):
            wrong(*CALLS[0].values())


def test_sizes_of_a_session_are_checked() -> None:
    exe = rlx.compile(cache_graph(), target="reference", cache=False)
    for sizes, said in (
        ({"slots": 4}, "no size for context"),
        ({"slots": 4, "context": 16, "seq": 1}, "no dim seq"),
        ({"slots": 4, "context": 8}, "context"),
    ):
        with pytest.raises(rlx.Error, match=said):
            exe.session(**sizes)
    g = rlx.Graph("plain")
    g.set_outputs([g.exp(g.input("x", [2]))])
    with pytest.raises(rlx.Error, match="no states"):
        rlx.compile(g, target="reference", cache=False).session()


@pytest.mark.parametrize("target", TARGETS)
def test_rows_that_do_not_fit_are_an_error_and_leave_the_rest(target: str) -> None:
    session = opened(target)
    session.run(CALLS[0])
    before = bits(session)
    for wrong in (call(3, [14], [0]), call(1, [-1], [0]), call(1, [0], [4])):
        with pytest.raises(rlx.Error, match="append"):
            session.run(wrong)
    assert bits(session) == before


@pytest.mark.parametrize("target", TARGETS)
def test_fork_rewind_save_and_load_are_bit_equal(target: str, tmp_path: Path) -> None:
    session = opened(target, history=2)
    session.run(CALLS[0])
    after_first, fork = bits(session), session.fork()
    assert fork.memory.is_shared
    session.run(CALLS[1])
    made = session.run(CALLS[2])
    assert bits(fork) == after_first
    assert not fork.memory.is_shared
    fork.run(CALLS[1])
    again = fork.run(CALLS[2])
    assert bits(fork) == bits(session)
    assert all(np.array_equal(made[n], again[n]) for n in made)
    session.save(tmp_path / "states.rlx")
    saved = bits(session)
    session.rewind(2)
    assert session.state("n") == 4
    session.run(CALLS[1])
    again = session.run(CALLS[2])
    assert bits(session) == saved
    assert all(np.array_equal(made[n], again[n]) for n in made)
    session.reset()
    assert not session.state("k").any()
    assert session.state("n") == 3
    session.load(tmp_path / "states.rlx")
    assert bits(session) == saved


def test_what_is_not_kept_cannot_be_undone() -> None:
    session = opened("reference", history=1)
    session.run(CALLS[0])
    session.run(CALLS[1])
    with pytest.raises(rlx.Error, match=r"exe\.session\(history=2\)"):
        session.rewind(2)
    session.set_state("n", np.array(7))
    with pytest.raises(rlx.Error, match="1 calls are to be undone, and what 0 have"):
        session.rewind()
    with pytest.raises(rlx.Error, match=r"exe\.session\(history=1\)"):
        opened("reference").rewind()


@pytest.mark.parametrize("target", TARGETS)
def test_rows_that_were_written_over_are_there_again(target: str) -> None:
    """Call by call, also where entries are given twice in a batch, and where positions are
    computed."""
    session = opened(target, history=8)
    calls = [*CALLS, call(2, [1, 2], [1, 1], 4), call(1, [0] * 4, [0, 1, 2, 3], 5)]
    held = list[Any]()
    for given in calls:
        held.append(bits(session))
        session.run(given)
    fork = session.fork()
    for before in reversed(held):
        session.rewind()
        assert bits(session) == before
    fork.rewind(3)
    assert bits(fork) == held[2]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("position", ["input", "state", "float"])
def test_a_sum_over_all_rows_is_that_of_calls_that_were_not_undone(
    target: str, position: str
) -> None:
    """As in docs/models.md; positions that only the call itself can tell copy the state."""
    g = rlx.Graph("sum")
    x, count = g.input("x", [1, 4]), g.state("count", [], I64)
    at: Any = {
        "input": lambda: g.input("at", [], I64),
        "state": lambda: g.mod(g.mul(count, 3), 16),
        "float": lambda: g.cast(g.floor(g.sum(x)), to=I64),
    }[position]()
    rows = g.state("rows", [rlx.Dim("capacity", 1, 1024), 4])
    total = g.sum(g.append(rows, x, at, axis=0), axes=(0,))
    g.assign(count, g.add(count, 1))
    g.set_outputs([total])
    session = rlx.compile(g, target=target, cache=False).session(capacity=16, history=8)

    def called(value: int) -> Any:
        given = [np.array(value)] if position == "input" else []
        return session(np.full((1, 4), value / 4, np.float32), *given)[0]

    made = [called(value) for value in (4, 8, 12)]
    states = bits(session)
    session.rewind(2)
    assert called(8) == made[1]
    assert called(12) == made[2]
    assert bits(session) == states
    with pytest.raises(rlx.Error, match="99 calls"):
        session.rewind(99)


@pytest.mark.parametrize("target", TARGETS)
def test_a_call_that_fails_is_undone(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted behind its updates, or where one row of several does not fit."""
    session = opened(target, history=2)
    session.run(CALLS[0])
    before, run = bits(session), LoadedProgram.call

    def interrupted(*given: Any) -> Any:
        run(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LoadedProgram, "call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.run(CALLS[1])
    assert bits(session) == before
    with pytest.raises(rlx.Error, match="append"):
        session.run(call(1, [0, 99], [0, 1]))
    assert bits(session) == before
    session.rewind()
    assert bits(session) == bits(opened(target))


def test_a_history_keeps_rows_and_no_caches() -> None:
    """Of three calls of two rows: four bytes of an element, and what Python takes for itself."""
    g = rlx.Graph("large")
    x, at = g.input("x", [1, 64]), g.input("at", [], I64)
    g.append(g.state("k", [1 << 16, 64]), x, at, axis=0)
    g.set_outputs([g.sum(x)])
    session = rlx.compile(g, target="cpu", cache=False).session(history=3)
    for place in (5, 5, 1 << 15):
        session(np.ones((1, 64), np.float32), np.int64(place))
    kept = [p.value.nbytes for past in session._past for p in past]  # pyright: ignore[reportPrivateUsage]
    assert kept == [256] * 3


def test_states_of_another_session_are_refused(tmp_path: Path) -> None:
    session = opened("reference")
    session.save(tmp_path / "states.rlx")
    other = rlx.compile(cache_graph(), target="reference", cache=False)
    with pytest.raises(rlx.Error, match="holds other states"):
        other.session(slots=4, context=17).load(tmp_path / "states.rlx")
    raw = (tmp_path / "states.rlx").read_bytes()
    (tmp_path / "torn.rlx").write_bytes(raw[:-8])
    with pytest.raises(rlx.Error):
        session.load(tmp_path / "torn.rlx")


def test_one_call_at_a_time() -> None:
    session = opened("reference")
    inside, leave, failed = threading.Event(), threading.Event(), list[str]()

    class Slow:
        """An input whose conversion waits."""

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            inside.set()
            leave.wait(60)
            return CALLS[0]["x"]

    thread = threading.Thread(target=lambda: session(Slow(), *list(CALLS[0].values())[1:]))
    thread.start()
    assert inside.wait(60)
    try:
        session.run(CALLS[0])
    except rlx.Error as error:
        failed.append(str(error))
    leave.set()
    thread.join()
    assert len(failed) == 1
    assert "session.fork()" in failed[0]
    session.run(CALLS[1])


def test_bytes_are_the_same_for_any_number_of_threads() -> None:
    def states(threads: int) -> list[bytes]:
        exe = rlx.compile(cache_graph(), target="cpu", threads=threads, cache=False)
        session = exe.session(slots=4, context=16)
        for given in CALLS:
            session.run(given)
        return bits(session)

    assert states(1) == states(2) == states(5)


def test_a_saved_program_opens_sessions(tmp_path: Path) -> None:
    exe = rlx.compile(cache_graph(), target="cpu", cache=False)
    exe.save(tmp_path / "cache.rlx")
    one = exe.session(slots=4, context=16)
    other = rlx.Executable.load(tmp_path / "cache.rlx").session(slots=4, context=16)
    for given in CALLS:
        one.run(given)
        other.run(given)
    assert bits(one) == bits(other)
    assert "StateSession 'cache'" in repr(other)
    assert "i64[]" in repr(other)


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="resident memory is read from Linux's /proc"
)
def test_rows_are_resident_once_they_are_written() -> None:
    """A session's memory follows what is used of it, however large its states are."""
    g = rlx.Graph("large")
    x, at = g.input("x", [1, 64]), g.input("at", [], I64)
    g.append(g.state("k", [rlx.Dim("context", 1), 64]), x, at, axis=0)
    g.set_outputs([g.sum(x)])
    exe = rlx.compile(g, target="cpu", cache=False)
    exe.session(context=4)(np.ones((1, 64), np.float32), np.int64(0))
    before = resident_bytes()
    session = exe.session(context=1 << 20)
    for place in (0, 1 << 19):
        session(np.ones((1, 64), np.float32), np.int64(place))
    assert session.memory.state_bytes == 1 << 28
    assert resident_bytes() - before < 1 << 26  # a page for each row; a quarter is far above noise


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


# -- attention over a cache ------------------------------------------------------------------------


def cached_case(queries: int, positions: list[int], window: int | None = None) -> tuple[Any, Any]:
    """A program with named dims, and operands whose cache is NaN behind each row's queries."""
    g, heads, depth = rlx.Graph("cached"), 6, 16
    batch, seq = rlx.Dim("batch", 1, 8), rlx.Dim("seq", 1, 64)
    slots, capacity = rlx.Dim("slots", 1, 8), rlx.Dim("capacity", 64, 2048)
    q = g.input("q", rlx.Shape([batch, seq, heads * depth]))
    k, v = (g.input(n, rlx.Shape([slots, capacity, 2 * depth], rlx.DType.F16)) for n in "kv")
    at, chosen = (g.input(n, rlx.Shape([batch], I32)) for n in ("at", "chosen"))
    how: dict[str, Any] = {"num_heads": heads, "kv_heads": 2, "window": window}
    g.set_outputs([g.cached_attention(q, k, v, at, chosen, **how)])
    rng, count = np.random.default_rng(0), len(positions)
    arrays = [rng.standard_normal((count, queries, heads * depth)).astype(np.float32)]
    arrays += [rng.standard_normal((count + 1, 1000, 32)).astype(np.float16) for _ in "kv"]
    entries = np.arange(count, 0, -1).astype(np.int32)
    for entry, start in zip(entries, positions):
        for cache in arrays[1:]:
            cache[entry, start + queries :] = np.nan
    return g, [*arrays, np.array(positions, np.int32), entries]


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("queries", [1, 3, 33])
def test_attention_reads_a_cache_up_to_its_queries(queries: int, window: int | None) -> None:
    graph, arrays = cached_case(queries, [0, 500, 967], window)
    exe = rlx.compile(graph, target="cpu", cache=False)
    (wanted,) = graph.evaluate(dict(zip((n.attrs["name"] for n in graph.inputs), arrays)))
    # sums of up to 1,000 weights in f32, in another order
    assert np.allclose(exe(*arrays), wanted, rtol=0, atol=5e-6)


@pytest.mark.parametrize("queries", [1, 3, 33])
def test_quantised_caches_are_dequantised_in_registers(queries: int) -> None:
    g, heads, depth, capacity = rlx.Graph("quantised"), 6, 64, 200
    batch, seq = rlx.Dim("batch", 1, 8), rlx.Dim("seq", 1, 64)
    q = g.input("q", rlx.Shape([batch, seq, heads * depth]))
    k, v = (g.input(n, rlx.Shape([3, capacity, 2 * depth], rlx.DType.I8)) for n in "kv")
    at, chosen = (g.input(n, rlx.Shape([batch], I32)) for n in ("at", "chosen"))
    scales = [g.input(n, rlx.Shape([3, capacity, 4], rlx.DType.F16)) for n in ("ks", "vs")]
    g.set_outputs([g.cached_attention(q, k, v, at, chosen, *scales, num_heads=heads, kv_heads=2)])
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, queries, heads * depth)).astype(np.float32)]
    arrays += [rng.integers(-127, 128, (3, capacity, 2 * depth)).astype(np.int8) for _ in "kv"]
    arrays += [np.array([0, 150], np.int32), np.array([2, 1], np.int32)]
    arrays += [(rng.random((3, capacity, 4)) / 50).astype(np.float16) for _ in "kv"]
    exe = rlx.compile(g, target="cpu", cache=False)
    (wanted,) = g.evaluate(dict(zip((n.attrs["name"] for n in g.inputs), arrays)))
    # sums of up to 200 weights in f32, in another order
    assert np.allclose(exe(*arrays), wanted, rtol=0, atol=5e-6)


def test_rows_of_a_batch_have_the_bits_that_they_have_alone() -> None:
    graph, arrays = cached_case(1, [0, 500, 967])
    exe = rlx.compile(graph, target="cpu", cache=False)
    together = exe(*arrays)
    for row in range(3):
        q, k, v, at, chosen = arrays
        one = slice(row, row + 1)
        assert np.array_equal(exe(q[one], k, v, at[one], chosen[one])[0], together[row])
        few = k[:, : int(at[row]) + 64], v[:, : int(at[row]) + 64]  # a smaller capacity
        few = tuple(np.ascontiguousarray(x) for x in few)
        assert np.array_equal(exe(q[one], *few, at[one], chosen[one])[0], together[row])


@pytest.mark.parametrize("window", [None, 40])
def test_queries_have_the_bits_that_they_have_alone(window: int | None) -> None:
    """Over the ends of chunks of keys and of blocks of queries."""
    graph, arrays = cached_case(33, [0, 240, 500], window)
    exe = rlx.compile(graph, target="cpu", cache=False)
    q, k, v, at, chosen = arrays
    together = exe(*arrays)
    for each in (1, 2, 7):
        starts = range(0, 33, each)
        parts = [exe(q[:, n : n + each], k, v, at + np.int32(n), chosen) for n in starts]
        assert np.array_equal(np.concatenate(parts, axis=1), together)


def test_positions_and_slots_outside_a_cache_are_errors() -> None:
    graph, (q, k, v, at, chosen) = cached_case(3, [0])
    exe = rlx.compile(graph, target="cpu", cache=False)
    for wrong in ((at + 998, chosen), (at - 1, chosen), (at, chosen + 1)):
        with pytest.raises(rlx.Error, match="out of range"):
            exe(q, k, v, *wrong)


# -- random graphs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_random_graphs_with_states_agree_with_the_evaluator(seed: int) -> None:
    grown = grow_states(seed, steps=4)
    assert grown.graph.updates
    assert judge_states(grown) == []


def test_an_order_that_reads_old_versions_too_late_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Updates that are not deferred: the checker rejects plans of random graphs."""
    monkeypatch.setattr(planner, "deferred_updates", lambda *_: [])
    rejected = 0
    for seed in range(40):
        try:
            CompilePipeline("cpu").compile(grow_states(seed).graph)
        except rlx.Error as error:
            rejected += "read-after-overwrite" in str(error)
    assert rejected >= 5
