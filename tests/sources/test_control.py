"""Branches, loops and custom ops against plain Python of the same steps, and ONNX's Scan."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import rlx
from rlx import ops
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from tests.sources.onnx_reference import run_onnx

SOURCES = {
    "if": "Python's if",
    "while": "Python's while: Euclid's algorithm by math.gcd, powers",
    "scan": "Python's for; onnx.reference Scan",
    "custom": "the function that was registered",
}
RNG = np.random.default_rng(43)


def body(shapes: Sequence[Shape], make: Callable[..., Sequence[Any]]) -> Graph:
    """A graph of these inputs and what `make` returns of them."""
    g = Graph("body")
    g.set_outputs(make(*(g.input(f"x{i}", s) for i, s in enumerate(shapes))))
    return g


VECTOR = Shape((4,), "f64")
COUNT = Shape((), "i64")


@pytest.mark.parametrize("dims", [(), (1,), (1, 1)])
@pytest.mark.parametrize("pred", [False, True])
def test_if(pred: bool, dims: tuple[int, ...]) -> None:
    x, y = RNG.normal(size=(2, 4))
    then = body([VECTOR] * 2, lambda a, b: [ops.add(a, b), ops.sum(a)])
    else_ = body([VECTOR] * 2, lambda a, b: [ops.mul(a, b), ops.sum(b)])
    total, one = ops.if_(np.full(dims, pred), x, y, then=then, else_=else_)
    if pred:
        want = [[a + b for a, b in zip(x, y)], sum(x)]
    else:
        want = [[a * b for a, b in zip(x, y)], sum(y)]
    np.testing.assert_array_equal(total, want[0])
    np.testing.assert_allclose(one, want[1], rtol=1e-15, atol=1e-15)  # sums of 4 in any order


def test_the_other_side_of_an_if_does_not_run() -> None:
    """It would fail: there is no entry 7."""
    at = np.int64(7)
    fails = body([VECTOR, COUNT], lambda x, i: [ops.gather(x, i, axis=0)])
    works = body([VECTOR, COUNT], lambda x, i: [ops.sum(x)])
    x = np.ones(4)
    (got,) = ops.if_(np.bool_(True), x, at, then=works, else_=fails)
    assert got == 4
    with pytest.raises(rlx.Error):
        ops.if_(np.bool_(False), x, at, then=works, else_=fails)


@pytest.mark.parametrize(("a", "b"), [(48, 36), (17, 5), (0, 9), (9, 0), (270, 192)])
def test_while_is_euclids_algorithm(a: int, b: int) -> None:
    cond = body([COUNT] * 2, lambda x, y: [ops.not_equal(y, 0)])
    step = body([COUNT] * 2, lambda x, y: [y, ops.mod(x, y)])
    got, rest = ops.while_(np.int64(a), np.int64(b), cond=cond, body=step)
    assert int(got) == math.gcd(a, b)
    assert int(rest) == 0


@pytest.mark.parametrize("most", [None, 0, 3, 100])
def test_while_ends_by_its_condition_or_its_bound(most: int | None) -> None:
    cond = body([COUNT, VECTOR], lambda i, x: [ops.less(ops.sum(x), 1000.0)])
    step = body([COUNT, VECTOR], lambda i, x: [ops.add(i, 1), ops.mul(x, 2.0)])
    x = np.array([1.0, 2.0, 3.0, 4.0])
    steps, want = 0, x
    while sum(want) < 1000 and (most is None or steps < most):
        steps, want = steps + 1, want * 2
    count, got = ops.while_(np.int64(0), x, cond=cond, body=step, max_iterations=most)
    assert int(count) == steps
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 6])
def test_scan(length: int, reverse: bool) -> None:
    """A decaying sum, with a factor that all steps see, that also gives what it was before."""
    first, factor, xs = RNG.normal(size=4), RNG.random(4), RNG.normal(size=(length, 4))

    def step(total: Any, factor: Any, x: Any) -> list[Any]:
        return [ops.add(ops.mul(total, factor), x), total, ops.sub(x, total)]

    carry, *got = ops.scan(
        first, factor, xs, body=body([VECTOR] * 3, step), length=length,
        num_carries=1, num_bcasts=1, reverse=reverse,
    )  # fmt: skip
    total, before, less = first, np.zeros((length, 4)), np.zeros((length, 4))
    for t in range(length)[:: -1 if reverse else 1]:
        before[t], less[t] = total, xs[t] - total
        total = total * factor + xs[t]
    np.testing.assert_array_equal(carry, total)
    np.testing.assert_array_equal(got[0], before)
    np.testing.assert_array_equal(got[1], less)


def test_scan_is_onnxs() -> None:
    """Forwards: ONNX's reference has no other direction."""
    first, xs = RNG.normal(size=4), RNG.normal(size=(5, 4))
    given = {"body": _onnx_step(), "num_scan_inputs": 1}
    made = body([VECTOR] * 2, lambda total, x: [ops.add(total, x), ops.mul(total, x)])
    got = ops.scan(first, xs, body=made, length=5, num_carries=1)
    for mine, want in zip(got, run_onnx("Scan", [first, xs], given, 2), strict=True):
        np.testing.assert_array_equal(mine, want)


def _onnx_step() -> Any:
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.DOUBLE, [4])
        for name in ("total", "x", "next", "y")
    }
    nodes = [
        helper.make_node("Add", ["total", "x"], ["next"]),
        helper.make_node("Mul", ["total", "x"], ["y"]),
    ]
    given, made = ([values[n] for n in names] for names in (("total", "x"), ("next", "y")))
    return helper.make_graph(nodes, "step", given, made)


def test_custom_is_the_function_that_was_registered() -> None:
    def divided(x: np.ndarray, *, by: int) -> tuple[np.ndarray, np.ndarray]:
        return np.divmod(x, by)

    op = rlx.custom_op("test_sources.divided", divided, lambda x, by: (x, x))
    x = RNG.integers(-9, 9, 20)
    got = [op(x, by=4), ops.custom(x, name="test_sources.divided", options='{"by": 4}')]
    for quotient, rest in got:
        assert list(zip(quotient.tolist(), rest.tolist())) == [divmod(v, 4) for v in x.tolist()]
