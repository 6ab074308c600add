"""What a call's sizes must be beside in their ranges: windows fit, and no result has fewer than no
elements. Which program it is says so before anything runs, on every target."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.core.errors import GraphError
from rlx.core.requirements import Requirement, noting, require_size, some_sizes
from rlx.core.shape import OutOfRange
from rlx.ir.interpret import evaluate
from rlx.ir.size_requirements import size_requirements
from rlx.ir.text import read

pytest.importorskip("llvmlite")

ops = rlx.ops
H = rlx.Dim("h", 0, 99)


def _conv(x: Any) -> Any:
    return ops.conv(x, x.graph.constant(np.ones((3, 2, 5, 5), np.float32)))


def _relus(x: Any) -> Any:
    """A region, whose result depends on its sizes no more."""
    return ops.sum(ops.relu(_conv(x) * 2.0) + 1.0, axes=(2, 3))


def _strided(x: Any) -> Any:
    w = x.graph.constant(np.ones((3, 2, 5, 5), np.float32))
    return ops.conv(x, w, stride=(5, 5))


def _transposed(x: Any) -> Any:
    w = x.graph.constant(np.ones((2, 3, 3, 3), np.float32))
    return ops.conv_transpose(x, w, padding=(3, 3, 3, 3))


def _counted(x: Any) -> Any:
    """A size that is no window's."""
    count = ops.cast(x.graph.node("iota", [], {"dims": (H - 5,), "axis": 0}), to=rlx.DType.F32)
    return ops.sum(x, axes=(1, 2, 3)) + ops.sum(ops.sort(count, axis=0))


CASES: dict[str, tuple[Callable[[Any], Any], int, str]] = {
    "conv": (_conv, 5, "conv at .*: the window spans 5, but the padded axis 2 is h"),
    "in a region": (_relus, 5, "the window spans 5, but the padded axis 2 is h"),
    "less than a stride": (_strided, 5, "the window spans 5, but the padded axis 2 is h"),
    "pool": (lambda x: ops.max_pool(x, kernel=(4, 4)), 4, "the window spans 4, but the padded"),
    "transposed": (_transposed, 5, "axis 2 of the result would have h - 4 elements"),
    "any size": (_counted, 5, "axis 0 of its result would have h - 5 elements"),
}  # fmt: skip
"""What is computed of an image, its least height, and what a smaller one is told."""


def _graph(build: Callable[[Any], Any], height: Any = H) -> rlx.Graph:
    g = rlx.Graph("net")
    made = build(g.input("x", [1, 2, height, 8]))
    g.set_outputs(list(made) if isinstance(made, tuple) else [made])
    return g


def _check_all(found: Sequence[Requirement], sizes: Mapping[str, int]) -> None:
    for each in found:
        each.check(sizes)


@pytest.mark.parametrize("name", CASES)
def test_each_size_that_may_be_negative_is_required_not_to_be(name: str) -> None:
    build, least, why = CASES[name]
    found = size_requirements(_graph(build))
    _check_all(found, {"h": least})
    with pytest.raises(OutOfRange, match=f"{why}.*, where h is {least - 2}."):
        _check_all(found, {"h": least - 2})


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("build", [_strided, _counted])
def test_what_is_too_small_is_refused_before_anything_runs(build: Any, target: str) -> None:
    exe = rlx.compile(_graph(build), target, cache=False)
    for height in (5, 8, 16):
        x = np.ones((1, 2, height, 8), np.float32)
        known = rlx.compile(_graph(build, rlx.Dim("h", height, height)), "reference")
        np.testing.assert_allclose(exe(x), known(x), rtol=1e-5)
    for height in (4, 1, 0):
        with pytest.raises(OutOfRange, match=f"where h is {height}."):
            exe(np.ones((1, 2, height, 8), np.float32))


def test_a_program_from_a_file_refuses_it_too(tmp_path: Any) -> None:
    rlx.compile(_graph(_strided), cache=False).save(tmp_path / "net.rlx")
    exe: Any = rlx.load(tmp_path / "net.rlx")
    assert exe(np.ones((1, 2, 5, 8), np.float32)).shape == (1, 3, 1, 1)
    with pytest.raises(OutOfRange, match="the window spans 5, but the padded axis 2 is h"):
        exe(np.ones((1, 2, 4, 8), np.float32))


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("find", [ops.argmax, ops.argmin])
def test_no_element_is_chosen_of_none(find: Any, target: str) -> None:
    exe = rlx.compile(_graph(lambda x: find(ops.relu(x), axis=2)), target, cache=False)
    assert exe(np.ones((1, 2, 3, 8), np.float32)).shape == (1, 2, 8)
    with pytest.raises(OutOfRange, match="its axis 2 is empty, so no element is chosen"):
        exe(np.ones((1, 2, 0, 8), np.float32))


def test_what_is_shown_at_compile_is_not_asked_again() -> None:
    g = rlx.Graph("net")
    x = g.input("x", [1, 2, rlx.Dim("h", 1, 99), 8])
    w = g.constant(np.ones((2, 2, 3, 3), np.float32))
    same = ops.conv(ops.conv(x, w, padding=(1, 1, 1, 1)), w, padding=(1, 1, 1, 1))
    g.set_outputs([same])
    assert size_requirements(g) == ()


def test_bodies_that_may_not_run_require_nothing() -> None:
    def small(x: Any) -> Any:
        return ops.narrow(ops.sum(x, axes=(1, 2)), axis=1, start=0, length=3)

    def large(x: Any) -> Any:
        return rlx.cond(ops.greater(ops.sum(x), 1e9), _relus, small, x)

    g = _graph(large)
    assert size_requirements(_graph(_relus))
    assert size_requirements(g) == ()


def test_requirements_are_noted_where_somebody_listens() -> None:
    require_size(H - 1, "unheard")
    with noting() as found:
        require_size(H - 1, "it is too small")
        require_size(H, "never")
        with noting() as inner:
            require_size(H - 2, "inner")
    assert [(r.size, r.why) for r in found] == [(H - 1, "it is too small")]
    assert [r.why for r in inner] == ["inner"]
    found[0].check({"h": 1})
    with pytest.raises(OutOfRange, match="it is too small, where h is 0"):
        found[0].check({"h": 0})
    with pytest.raises(GraphError, match="at once"):
        require_size(-1, "at once")


@pytest.mark.parametrize("most", [None, 700])
@pytest.mark.parametrize("step", [3, 160])
def test_weights_are_prepared_at_sizes_that_calls_may_have(step: int, most: int | None) -> None:
    """What follows from weights alone is computed before any call. Formulas mean nothing at sizes
    outside of ranges or of what is required: (n + m - 401) // step + 1 frames of 0 samples."""
    n, m = rlx.Dim("n", 390, most), rlx.Dim("m")
    g = rlx.Graph("frames")
    x, y = g.input("x", rlx.Shape([2, n])), g.input("y", rlx.Shape([2, m]))
    w = g.param("w", rlx.Shape([8, 5]))
    frames = ops.frame(g.concat([x, y], axis=1), length=401, hop=step)
    packed = ops.sum(ops.matmul(ops.exp(w), ops.transpose(w, perm=(1, 0))), axis=(0, 1))
    g.set_outputs([ops.softmax(ops.mul(frames, packed))])
    weights = np.ones((8, 5), np.float32)
    exe = rlx.compile(g, params={"w": weights})
    a, b = np.ones((2, 400), np.float32), np.zeros((2, 7), np.float32)
    np.testing.assert_allclose(exe(a, b)[:, 0, 399:], [[1 / 400, 0]] * 2, rtol=1e-5, atol=1e-9)


def test_some_sizes_are_in_range_and_as_required() -> None:
    n, m = rlx.Dim("n", 3, 90), rlx.Dim("m")
    symbols = [d.symbol for d in (n, m) if d.symbol]
    assert some_sizes(symbols, ()) == {"n": 3, "m": 0}
    required = [Requirement(n + m - 100, "")]  # pyright: ignore[reportArgumentType]
    sizes = some_sizes(symbols, required)
    assert 3 <= sizes["n"] <= 90
    assert sizes["n"] + sizes["m"] >= 100


# -- what a graph states itself --------------------------------------------------------------------


N, M = rlx.Dim("n"), rlx.Dim("m")


def _stating() -> rlx.Graph:
    g = rlx.Graph("net")
    x, y = g.input("x", [N]), g.input("y", [M])
    g.set_outputs([ops.relu(x) * 2.0, ops.relu(y) + 1.0])
    g.require(N - M, "x is as long as y at least")
    g.require(-(N % 2), "x is of even length")
    g.require(N + M, "of no effect: sizes are not negative")
    return g


def test_what_a_graph_states_outlives_all_that_is_made_of_it() -> None:
    g = _stating()
    expected = [(N - M, "x is as long as y at least"), (-(N % 2), "x is of even length")]
    same = (g, g.rebuild(), copy.copy(g), pickle.loads(pickle.dumps(g)), read(str(g)))
    for each in same:
        assert [(r.size, r.why) for r in each.required] == expected
        assert each.digest() == g.digest()
    assert str(read(str(g))) == str(g)
    other = _stating()
    other.require(N - 2 * M, "longer still")
    assert other.digest() != g.digest()
    (left,) = g.bind({"n": 4}).required
    assert left.size == 4 - M
    with pytest.raises(OutOfRange, match="even length"):
        g.bind({"n": 5})


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_calls_are_refused_for_what_a_graph_states(target: str) -> None:
    exe = rlx.compile(_stating(), target, cache=False)
    for n, m in ((4, 4), (6, 1), (0, 0)):
        assert exe(np.ones(n, np.float32), np.ones(m, np.float32))[0].shape == (n,)
    for n, m, why in ((4, 5, "as long as y"), (5, 4, "even length")):
        with pytest.raises(OutOfRange, match=f"{why}.*, where .*n is {n}."):
            exe(np.ones(n, np.float32), np.ones(m, np.float32))
    with pytest.raises(OutOfRange, match="even length"):
        evaluate(_stating(), {"x": np.ones(3, np.float32), "y": np.ones(1, np.float32)})


def test_sizes_that_differ_may_be_all_that_is_allowed() -> None:
    """No size of all dims at once meets these."""
    required = [Requirement(s, "") for s in (N - M - 3, M - 2, 20 - N, -((N + M) % 5))]  # pyright: ignore[reportArgumentType]
    symbols = [d.symbol for d in (N, M) if d.symbol]
    found = some_sizes(symbols, required)
    _check_all(required, found)
    assert max(some_sizes(symbols, [Requirement(-1 - N * M, "never")]).values()) < 100  # pyright: ignore[reportArgumentType]
