"""Calls of native code: what is wrong is named and nothing is written; any memory order will do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import Dim, Graph, Shape

F32 = np.float32
X = np.arange(6, dtype=F32).reshape(2, 3)
Y = np.full((2, 3), 10, F32)


@functools.cache
def adder() -> rlx.Executable:
    """x + y + w, and its rows' sums."""
    g = Graph("net")
    x, y = g.input("x", Shape([2, 3])), g.input("y", Shape([2, 3]))
    total = x + y + g.param("w", Shape([3]))
    g.set_outputs([total, g.sum(total, axes=1)])
    return rlx.compile(g, "cpu", params={"w": np.ones(3, F32)})


@functools.cache
def dynamic() -> rlx.Executable:
    g = Graph("dynamic")
    n = Dim("n", 0, 9)
    g.set_outputs([g.input("x", Shape([n, 3])) * 2.0 + g.input("y", Shape([n, 1]))])
    return rlx.compile(g, "cpu")


def outs() -> list[np.ndarray]:
    return [np.full((2, 3), 7, F32), np.full(2, 7, F32)]


# -- inputs ----------------------------------------------------------------------------------------

WRONG = [
    (None, "no value for input 'x'"),
    ([[1, 2, 3], [4, 5, 6]], r"input 'x' is f32, got i64\[2, 3\] in a list"),
    ([[1.0], [1.0, 2.0]], "input 'x' cannot be read as an array"),
    ("abc", r"input 'x' is f32\[2, 3\]"),
    (X.astype(np.float64), r"input 'x' is f32\[2, 3\], got f64\[2, 3\]. Cast it"),
    (X.astype(np.int32), r"got i32\[2, 3\]"),
    (X.astype(">f4"), r"got >f4\[2, 3\]"),
    (X[0], r"input 'x' is f32\[2, 3\], got f32\[3\]"),
    (X[:, :, None], r"got f32\[2, 3, 1\]"),
    (X[:1], r"got f32\[1, 3\]"),
    (X[:0], r"got f32\[0, 3\]"),
]


@pytest.mark.parametrize(("given", "text"), WRONG)
@pytest.mark.parametrize("has_out", [False, True])
def test_a_wrong_input_is_named(given: Any, text: str, has_out: bool) -> None:
    made = outs()
    with pytest.raises(rlx.Error, match=text):
        adder()(given, Y, out=made if has_out else None)
    assert all((o == 7).all() for o in made)
    with pytest.raises(rlx.Error, match=text):
        adder().run({"x": given, "y": Y})


def test_names_and_numbers_of_inputs() -> None:
    exe = adder()
    with pytest.raises(rlx.Error, match=r"net: takes 2 inputs \(x, y\), got 1"):
        exe(X)
    with pytest.raises(rlx.Error, match=r"net: takes 2 inputs \(x, y\), got 3"):
        exe(X, Y, Y)
    with pytest.raises(rlx.Error, match=r"net: no value for y\. Inputs: x, y"):
        exe.run({"x": X})
    with pytest.raises(rlx.Error, match=r"net: there is no input 'z'\. It has: x, y"):
        exe.run({"x": X, "y": Y, "z": Y})


def test_params_that_are_not_set_are_named() -> None:
    g = Graph("net")
    g.set_outputs([g.param("v", Shape([2])) + g.param("w", Shape([2])) + g.input("x", Shape([2]))])
    exe = rlx.compile(g, "cpu")
    with pytest.raises(rlx.Error, match=r"net: params have no value yet: v, w\. Call"):
        exe(np.ones(2, F32))
    with pytest.raises(rlx.Error, match=r"param 'w' is f32\[2\], got f64\[2\]"):
        exe.set_params({"w": np.ones(2)})
    with pytest.raises(rlx.Error, match=r"net: there is no param 'q'\. It has: v, w"):
        exe.set_params({"q": np.ones(2, F32)})
    exe.set_params({"w": np.ones(2, F32)})
    with pytest.raises(rlx.Error, match=r"no value yet: v\. Call"):
        exe(np.ones(2, F32))
    exe.set_params({"v": np.ones(2, F32)})
    assert exe(np.ones(2, F32)).tolist() == [3, 3]


def test_named_dims_agree_and_keep_to_their_range() -> None:
    exe = dynamic()
    for n in (0, 1, 9, 4):
        assert exe(np.ones((n, 3), F32), np.ones((n, 1), F32)).tolist() == [[3.0] * 3] * n
    with pytest.raises(rlx.Error, match="n is 3 here, but 4 elsewhere"):
        exe(np.ones((4, 3), F32), np.ones((3, 1), F32))
    with pytest.raises(rlx.Error, match=r"n=10 is outside its range 0\.\.9"):
        exe(np.ones((10, 3), F32), np.ones((10, 1), F32))
    with pytest.raises(rlx.Error, match=r"input 'x' is f32\[n, 3\], got f32\[4, 2\]"):
        exe(np.ones((4, 2), F32), np.ones((4, 1), F32))


# -- outputs ---------------------------------------------------------------------------------------


def read_only() -> np.ndarray:
    made = np.full((2, 3), 7, F32)
    made.flags.writeable = False
    return made


BAD_OUTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: np.full((2, 2), 7, F32), r"out for 'output0' is float32\[2, 2\].* f32\[2, 3\]"),
    (lambda: np.full((3, 3), 7, F32), r"out for 'output0' is float32\[3, 3\].* f32\[2, 3\]"),
    (lambda: np.full(6, 7, F32), r"out for 'output0' is float32\[6\]"),
    (lambda: np.full((2, 3), 7.0), r"out for 'output0' is float64\[2, 3\]"),
    (lambda: np.full((2, 3), 7, ">f4"), r"out for 'output0' is >f4\[2, 3\]"),
    (read_only, "out for 'output0' is read-only"),
    (lambda: np.full((2, 6), 7, F32)[:, ::2], "out for 'output0' is not contiguous"),
    (lambda: np.full((3, 2), 7, F32).T, "out for 'output0' is not contiguous"),
    (lambda: np.full((2, 3), 7, F32)[::-1], "out for 'output0' is not contiguous"),
]


@pytest.mark.parametrize(("make", "text"), BAD_OUTS)
def test_a_wrong_out_is_named_and_nothing_is_written(make: Callable[[], Any], text: str) -> None:
    bad, other = make(), np.full(2, 7, F32)
    with pytest.raises(rlx.Error, match=text):
        adder()(X, Y, out=[bad, other])
    assert (bad == 7).all()
    assert (other == 7).all()


@pytest.mark.parametrize(
    ("out", "text"),
    [
        ([], "out has 0 arrays for 2 outputs"),
        ([None], "out has 1 arrays for 2 outputs"),
        (3, "out is 3, expected an array"),
        ({"other": X}, "other"),
        ([[1.0], None], r"out is \[\[1.0\], None\], expected"),
    ],
)
def test_what_is_no_out(out: Any, text: str) -> None:
    with pytest.raises(rlx.Error, match=text):
        adder()(X, Y, out=out)


def test_outs_that_overlap_are_refused() -> None:
    exe = adder()
    memory = np.full(16, 7, F32)
    whole, part = memory[:6].reshape(2, 3), memory[4:6]
    with pytest.raises(rlx.Error, match="out for 'output1' shares memory with out for 'output0'"):
        exe(X, Y, out=[whole, part])
    mine = X.copy()
    with pytest.raises(rlx.Error, match="out for 'output0' shares memory with input 'x'"):
        exe(mine, Y, out=[mine, None])
    shifted = memory[1:7].reshape(2, 3)
    with pytest.raises(rlx.Error, match="out for 'output0' shares memory with input 'y'"):
        exe(X, memory[:6].reshape(2, 3), out=[shifted, None])
    assert (memory == 7).all()
    assert (mine == X).all()


def test_results_go_into_the_arrays_given() -> None:
    exe, given = adder(), outs()
    made = exe(X, Y, out=given)
    assert made[0] is given[0]
    assert made[1] is given[1]
    assert given[0].tolist() == (X + 11).tolist()
    one = np.zeros(2, F32)
    made = exe(X, Y, out=[None, one])
    assert made[1] is one
    assert one.tolist() == (X + 11).sum(1).tolist()
    odd = np.zeros(25, np.uint8)[1:].view(F32).reshape(2, 3)
    assert not odd.flags.aligned
    exe(X, Y, out=[odd, None])
    assert odd.tolist() == (X + 11).tolist()


def test_measured_outs_must_have_the_size_that_is_found() -> None:
    g = Graph("found")
    x = g.input("x", Shape([6]))
    g.set_outputs([g.nonzero(x), x + 1.0])
    exe = rlx.compile(g, "cpu")
    given = np.array([0, 1, 0, 2, 3, 0], F32)
    right, wrong = np.zeros((1, 3), np.int64), np.full((1, 4), 7)
    assert exe(given, out=[right, None])[0] is right
    assert right.tolist() == [[1, 3, 4]]
    with pytest.raises(rlx.Error, match=r"out for 'output0' is int64\[1, 4\]"):
        exe(given, out=[wrong, None])
    assert (wrong == 7).all()


# -- inputs of any form ----------------------------------------------------------------------------


class Mine(np.ndarray[Any, Any]):
    """An array all the same."""


def forms(values: np.ndarray) -> dict[str, Any]:
    """The same numbers, lying in memory in every way."""
    wide = np.zeros((values.shape[0], 2 * values.shape[1]), F32)
    wide[:, ::2] = values
    locked = values.copy()
    locked.flags.writeable = False
    odd = np.frombuffer(b"\0" + values.tobytes(), np.uint8)[1:].view(F32).reshape(values.shape)
    return {
        "plain": values,
        "negative": values[::-1, ::-1].copy()[::-1, ::-1],
        "fortran": np.asfortranarray(values),
        "strided": wide[:, ::2],
        "read-only": locked,
        "misaligned": odd,
        "subclass": values.view(Mine),
    }


@pytest.mark.parametrize("form", list(forms(X)))
def test_any_memory_order_will_do(form: str) -> None:
    given = forms(X)[form]
    made = adder()(given, forms(Y)[form])
    np.testing.assert_array_equal(made[0], X + 11)
    np.testing.assert_array_equal(given, X)


def test_lists_are_read_as_numpy_reads_them() -> None:
    g = Graph("wide")
    g.set_outputs([g.input("x", Shape([2, 3], "f64")) * 2.0])
    assert rlx.compile(g, "cpu")(X.tolist()).tolist() == (X * 2).tolist()


def test_rank_0_and_size_0() -> None:
    g = Graph("small")
    x, y = g.input("x", Shape([])), g.input("y", Shape([0, 3]))
    g.set_outputs([x * 2.0, y + x, g.sum(y, axes=0), g.softmax(y, axis=1)])
    exe = rlx.compile(g, "cpu")
    for zero in (F32(3), np.array(3, F32), np.full(4, 3, F32)[1:2].reshape(())):
        made = exe(zero, np.zeros((0, 3), F32))
        assert [m.shape for m in made] == [(), (0, 3), (3,), (0, 3)]
        assert made[0] == 6
        assert made[2].tolist() == [0, 0, 0]
    out = np.zeros((), F32)
    exe(F32(4), np.zeros((3, 0), F32).T, out=[out, None, None, None])
    assert out == 8


def test_results_are_the_callers_own() -> None:
    """Blocks are used again only when nobody holds the result or a view of it."""
    exe = adder()
    kept = [exe(X + i, Y)[0] for i in range(12)]
    views = [exe(X + i, Y)[0][1, 1:] for i in range(12)]
    for i in range(12):
        np.testing.assert_array_equal(kept[i], X + 11 + i)
        np.testing.assert_array_equal(views[i], (X + 11 + i)[1, 1:])
        kept[i][...] = 0


def test_a_step_that_fails_says_where() -> None:
    g = Graph("net")
    x, i = g.input("x", Shape([3])), g.input("i", Shape([2], "i64"))
    g.set_outputs([g.gather(x, i, axis=0)])
    exe = rlx.compile(g, "cpu")
    for bad in (3, -1):
        with pytest.raises(rlx.Error, match=r"gather at .*: an index is out of range"):
            exe(np.ones(3, F32), np.array([0, bad]))
    assert exe(np.arange(3, dtype=F32), np.array([0, 2])).tolist() == [0, 2]
