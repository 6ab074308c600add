"""Executables: calls, weights, outputs given by the caller, named dims, threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import Dim, Graph, GraphError, Shape
from rlx.backends.reference import program
from rlx.core.arrays import CACHE_LINE_BYTES, frozen_copy

F32 = np.float32
ONES = np.ones((2, 3), F32)


def adder() -> rlx.Executable:
    g = Graph("net")
    g.set_outputs([g.input("x", Shape([2, 3])) + g.input("y", Shape([2, 3]))])
    return rlx.compile(g)


def test_calls_that_were_begun() -> None:
    exe = adder()
    calls = [exe.submit(ONES, i * ONES) for i in range(5)]
    for i, call in reversed(list(enumerate(calls))):
        np.testing.assert_array_equal(call.result(), exe(ONES, i * ONES))
        assert call.result() is call.result()
    wrong = exe.submit(ONES, ONES[:1])
    for _ in range(2):
        with pytest.raises(rlx.Error, match="input 'y'"):
            wrong.result()
    with pytest.raises(rlx.Error, match=r"net: takes 2 inputs \(x, y\), got 1"):
        exe.submit(ONES)


# -- inputs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "no value for input 'x'"),
        ([[1, 2, 3], [4, 5, 6]], r"got i64\[2, 3\]"),
        ([[1.0], [1.0, 2.0]], "input 'x' cannot be read as an array"),
        ("abc", "input 'x' is f32"),
        (ONES.astype(np.float64), r"got f64\[2, 3\]. Cast it"),
        (ONES.astype(">f4"), r"got >f4\[2, 3\]"),
        (ONES[0], r"got f32\[3\]"),
        (ONES[:1], r"got f32\[1, 3\]"),
    ],
)
def test_a_wrong_input_is_named(given: Any, text: str) -> None:
    with pytest.raises(rlx.Error, match=text):
        adder()(given, ONES)


def test_any_memory_order_will_do_and_inputs_stay_as_they_were() -> None:
    values = np.arange(6, dtype=F32).reshape(2, 3)
    read_only = values.copy()
    read_only.flags.writeable = False
    odd = np.frombuffer(b"\0" + values.tobytes(), np.uint8)[1:].view(F32).reshape(2, 3)
    forms = [values[::-1, ::-1][::-1, ::-1], np.asfortranarray(values), read_only, odd]
    wide = np.zeros((2, 6), F32)
    wide[:, ::2] = values
    for form in [*forms, wide[:, ::2]]:
        np.testing.assert_array_equal(adder()(form, form), values * 2)
        np.testing.assert_array_equal(form, values)


def test_calls_by_name() -> None:
    exe = adder()
    assert exe.run({"y": ONES, "x": ONES})["output0"].tolist() == (ONES * 2).tolist()
    with pytest.raises(rlx.Error, match=r"net: no value for y\. Inputs: x, y"):
        exe.run({"x": ONES})
    with pytest.raises(rlx.Error, match=r"net: there is no input 1\. It has: x, y"):
        exe.run({"x": ONES, 1: ONES})  # pyright: ignore
    with pytest.raises(rlx.Error, match="given by name, as a dict, not None"):
        exe.run(None)  # pyright: ignore
    with pytest.raises(rlx.Error, match=r"net: takes 2 inputs \(x, y\), got 1"):
        exe(ONES)


# -- outputs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("like", list(rlx.FusionTarget))
def test_leaves_and_repeats_as_outputs_are_copies(like: rlx.FusionTarget) -> None:
    g = Graph("leaves")
    x, w = g.input("x", Shape([2])), g.param("w", Shape([2]))
    g.input("unused", Shape([3]))
    g.param("idle", Shape([4], "bf16"))
    c = g.constant(np.arange(2, dtype=F32))
    s = x + w
    views = [g.reshape(x, dims=(1, 2)), g.reshape(w, dims=(2, 1)), g.concat([w, c], axis=0)]
    g.set_outputs([s, s, x, w, c, c, *views])
    idle = np.zeros(4, rlx.DType.BF16.numpy)
    exe = rlx.compile(g, like=like, params={"w": np.array([5, 6], F32), "idle": idle})
    given = np.array([1, 2], F32)
    made = exe(given, np.zeros(3, F32))
    assert [m.tolist() for m in made] == [
        [6, 8], [6, 8], [1, 2], [5, 6], [0, 1], [0, 1], [[1, 2]], [[5], [6]], [5, 6, 0, 1]
    ]  # fmt: skip
    for m in made:
        m[...] = 9
    assert exe(given, np.zeros(3, F32))[3].tolist() == [5, 6]
    assert given.tolist() == [1, 2]


def test_results_go_into_the_arrays_given() -> None:
    exe, out = adder(), np.zeros((2, 3), F32)
    assert exe(ONES, ONES, out=out) is out
    assert exe(ONES, ONES, out=[out]) is out
    assert out.tolist() == (ONES * 2).tolist()
    wide = np.zeros((2, 6), F32)
    with pytest.raises(rlx.Error, match="out for 'output0' is not contiguous"):
        exe(ONES, ONES, out=wide[:, ::2])
    assert not wide.any()
    same = ONES.copy()
    with pytest.raises(rlx.Error, match="out for 'output0' shares memory with input"):
        exe(same, ONES, out=same)
    assert same.tolist() == ONES.tolist()


@pytest.mark.parametrize(
    ("out", "text"),
    [
        ([], "0 arrays for 1 outputs"),
        ([None, None], "2 arrays for 1 outputs"),
        (3, "out is 3, expected an array"),
        ("abc", "out is 'abc'"),
        ({"q": ONES}, "there is no output 'q'"),
        (ONES[:1], r"out for 'output0' is float32\[1, 3\], the result is f32\[2, 3\]"),
        (ONES.astype(int), "is int64"),
        (np.broadcast_to(F32(0), (2, 3)), "read-only"),
    ],
)
def test_wrong_arrays_for_results(out: Any, text: str) -> None:
    with pytest.raises(rlx.Error, match=text):
        adder()(ONES, ONES, out=out)


def test_a_wrong_array_leaves_the_others_untouched() -> None:
    g = Graph("two")
    x = g.input("x", Shape([2]))
    g.set_outputs([x + 1.0, x * 2.0])
    first = np.zeros(2, F32)
    with pytest.raises(rlx.Error, match="'output1'"):
        rlx.compile(g)(np.ones(2, F32), out=[first, np.zeros(3, F32)])
    assert first.tolist() == [0, 0]


@pytest.mark.parametrize("like", list(rlx.FusionTarget))
def test_rank_0_and_size_0(like: rlx.FusionTarget) -> None:
    g = Graph("small")
    x, y = g.input("x", Shape([])), g.input("y", Shape([0, 3]))
    g.set_outputs([x * 2.0, y + x, g.sum(y, axes=0)])
    made = rlx.compile(g, like=like)(F32(3), np.zeros((0, 3), F32))
    assert [m.shape for m in made] == [(), (0, 3), (3,)]
    assert made[0] == 6
    assert made[2].tolist() == [0, 0, 0]


# -- weights ---------------------------------------------------------------------------------------


def two_weights(target: str | None = None) -> rlx.Executable:
    g = Graph("net")
    x, w, b = g.input("x", Shape([4, 4])), g.param("w", Shape([4, 4])), g.param("b", Shape([4]))
    g.set_outputs([g.mm(x, g.concat([w, w * 2.0], axis=1)), x + b * 2.0])
    return rlx.compile(g, target)


def test_weights_are_checked_and_may_come_in_parts() -> None:
    exe, x = two_weights(), np.ones((4, 4), F32)
    with pytest.raises(rlx.Error, match="net: params have no value yet: w, b"):
        exe(x)
    exe.set_params({"w": np.eye(4, dtype=F32)})
    with pytest.raises(rlx.Error, match="no value yet: b"):
        exe(x)
    with pytest.raises(GraphError, match=r"param 'b' is f32\[4\], got f32\[5\]"):
        exe.set_params({"b": np.ones(5, F32)})
    with pytest.raises(rlx.Error, match=r"net: there is no param 'q'\. It has: w, b"):
        exe.set_params({"q": x})
    with pytest.raises(rlx.Error, match="params are given by name"):
        exe.set_params(None)  # pyright: ignore
    given = np.ones(4, F32)
    exe.set_params({"b": given})
    given[:] = 7
    assert exe(x)[1].tolist() == (x + 2).tolist()


def test_a_subset_runs_only_what_depends_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    exe, ran = two_weights("reference"), list[str]()
    exe.set_params({"w": np.ones((4, 4), F32), "b": np.ones(4, F32)})
    plain = program.evaluate_node

    def watched(node: Any, *rest: Any) -> Any:
        ran.append(node.op)
        return plain(node, *rest)

    monkeypatch.setattr(program, "evaluate_node", watched)
    exe.set_params({"b": np.zeros(4, F32)})
    assert ran == ["mul"]
    ran.clear()
    exe.set_params({"w": np.zeros((4, 4), F32)})
    assert "concat" in ran


def test_a_prologue_that_fails_leaves_the_old_weights() -> None:
    g = Graph("net")
    x, t, i = g.input("x", Shape([2])), g.param("t", Shape([3])), g.param("i", Shape([2], "i64"))
    g.set_outputs([x + g.gather(t, i, axis=0)])
    exe = rlx.compile(g, params={"t": np.arange(3, dtype=F32), "i": np.array([0, 2])})
    with pytest.raises(rlx.Error, match="gather"):
        exe.set_params({"i": np.array([0, 3])})
    assert exe(np.zeros(2, F32)).tolist() == [0, 2]


def test_a_custom_op_cannot_write_into_weights_or_inputs() -> None:
    def greedy(x: Any) -> Any:
        x += 1
        return x

    op = rlx.custom_op("test_runtime.greedy", greedy, lambda x: x)
    g = Graph("net")
    g.set_outputs([op(g.input("x", Shape([2]))) + op(g.param("w", Shape([2])))])
    exe, given = rlx.compile(g), np.zeros(2, F32)
    with pytest.raises(rlx.Error, match=r"greedy' failed: .*read-only"):
        exe.set_params({"w": given})
    with pytest.raises(rlx.Error, match=r"greedy' failed: .*read-only"):
        op(given)
    assert given.tolist() == [0, 0]


def test_calls_keep_their_weights_while_others_are_set() -> None:
    exe, wrong, done = two_weights(), list[Any](), threading.Event()
    exe.set_params({"w": np.zeros((4, 4), F32), "b": np.zeros(4, F32)})

    def call() -> None:
        while not done.is_set():
            both = exe(np.ones((4, 4), F32))[0]
            if not ((both[:, :4] == both[0, 0]).all() and (both[:, 4:] == 2 * both[0, 0]).all()):
                wrong.append(both)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(60):
        exe.set_params({"w": np.full((4, 4), i, F32)} if i % 2 else {"b": np.full(4, i, F32)})
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_many_names_are_not_all_listed() -> None:
    g = Graph("many")
    g.set_outputs([sum(g.param(f"p{i}", Shape([2])) for i in range(50))])
    with pytest.raises(rlx.Error, match=r"p7 and 42 more\. Call set_params"):
        rlx.compile(g)()


# -- named dims ------------------------------------------------------------------------------------


def test_sizes_at_and_past_the_ends_of_a_range() -> None:
    g = Graph("net")
    seq = Dim("seq", 1, 64)
    x, y = g.input("x", Shape([seq, 4])), g.input("y", Shape([seq]))
    g.set_outputs([x + y[:, None]])
    exe = rlx.compile(g)
    for n in (1, 64):
        assert exe(np.ones((n, 4), F32), np.ones(n, F32)).shape == (n, 4)
    for n in (0, 65):
        with pytest.raises(GraphError, match=f"dim seq={n} is outside its range 1..64"):
            exe(np.ones((n, 4), F32), np.ones(n, F32))
    with pytest.raises(GraphError, match="seq is 4 here, but 3 elsewhere"):
        exe(np.ones((3, 4), F32), np.ones(4, F32))
    with pytest.raises(GraphError, match="seq is not bound"):
        exe.memory()
    assert exe.memory(seq=2).total_bytes < exe.memory(seq=64).total_bytes


def test_sizes_follow_from_expressions() -> None:
    g = Graph("net")
    n, m = Dim("n"), Dim("m")
    x, y = g.input("x", Shape([2 * n + 1])), g.input("y", Shape([n * m + 3]))
    g.set_outputs([x * 2.0, y * 2.0])
    exe = rlx.compile(g)
    assert [o.shape for o in exe(np.ones(7, F32), np.ones(15, F32))] == [(7,), (15,)]
    with pytest.raises(GraphError, match=r"2\*n \+ 1 equal to 4"):
        exe(np.ones(4, F32), np.ones(15, F32))


def test_a_param_may_have_a_named_dim() -> None:
    g = Graph("net")
    n = Dim("n", 1, 100)
    x, w = g.input("x", Shape([3, 1])), g.param("w", Shape([n, 3]))
    c = g.param("c", Shape([5]))
    g.set_outputs([g.mm(w, x), w * 2.0, c * 2.0])
    exe = rlx.compile(g, params={"w": np.ones((40, 3), F32), "c": np.ones(5, F32)})
    for rows in (40, 2, 99):
        exe.set_params({"w": np.full((rows, 3), rows, F32)})
        made = exe(np.ones((3, 1), F32))
        assert made[0].tolist() == [[3.0 * rows]] * rows
        assert made[2].tolist() == [2] * 5
    with pytest.raises(GraphError, match="n=101 is outside"):
        exe.set_params({"w": np.ones((101, 3), F32)})
    assert exe.memory(n=1).weight_bytes < exe.memory(n=99).weight_bytes


def test_a_frozen_copy_is_the_array_on_a_cache_line_that_nobody_writes() -> None:
    for given in (np.arange(12.0).reshape(3, 4).T, np.float16(2.5), np.zeros((0, 3), np.int8)):
        array = np.asarray(given)
        copy = frozen_copy(array)
        np.testing.assert_array_equal(copy, array)
        assert copy.dtype == array.dtype
        assert copy.ctypes.data % CACHE_LINE_BYTES == 0
        assert copy.flags.c_contiguous
        assert not copy.flags.writeable
