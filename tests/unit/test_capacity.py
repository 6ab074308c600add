"""Sizes without a bound: storage that grows while a program runs, on every target alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError
from rlx.core.extent import FIRST_CAPACITY, capacity_of, grown, measured, outgrown
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.pipeline import CompilePipeline
from rlx.plan.check.checker import check

TARGETS = ("reference", "cpu")


def counted(size: Any = "n") -> Graph:
    """The squares of 0, 2, 4 … below a sum, which nothing bounds."""
    g = Graph("counted")
    x = g.input("x", Shape((Dim(size) if isinstance(size, str) else size,), DType.I64))
    numbers = (g.constant(np.int64(n)) for n in (0, 2))
    r = ops.arange(next(numbers), ops.sum(x), next(numbers))
    g.set_outputs({"squares": ops.mul(r, r), "total": ops.sum(r)})
    return g


@pytest.mark.parametrize("target", TARGETS)
def test_storage_grows_to_what_is_found(target: str) -> None:
    exe = rlx.compile(counted(), target)
    for count in (0, 1, 7, 2 * FIRST_CAPACITY, 2 * FIRST_CAPACITY + 1, 100_000, 3):
        squares, total = exe(np.ones(count, np.int64))
        expected = np.arange(0, count, 2)
        np.testing.assert_array_equal(squares, expected**2)
        assert total == expected.sum()


@pytest.mark.parametrize("target", TARGETS)
def test_static_inputs_grow_it_too(target: str) -> None:
    exe = rlx.compile(counted(3), target)
    for sizes in ([0, 0, 0], [1, 2, 3], [1000, 2000, 4000], [-5, 2, 1], [9, 0, 0]):
        squares, _ = exe(np.array(sizes))
        np.testing.assert_array_equal(squares, np.arange(0, sum(sizes), 2) ** 2)


def test_squares_of_a_size_grow_in_steps() -> None:
    """A table [n, n] of an n that is found: capacities are grown so that no size wraps around."""
    g = Graph("table")
    x = g.input("x", Shape((), DType.I64))
    zero, one = (g.constant(np.int64(n)) for n in (0, 1))
    r = ops.arange(zero, x, one)
    table = ops.mul(ops.expand_dims(r, axes=(1,)), r)
    g.set_outputs([ops.sum(table, axes=(1,))])
    exe = rlx.compile(g)
    for n in (0, 3, 700):
        np.testing.assert_array_equal(exe(np.array(n)), np.arange(n) * np.arange(n).sum())
    with pytest.raises(Error, match=r"more memory than there is.*arange_0\.capacity"):
        exe(np.array(1 << 60))
    np.testing.assert_array_equal(exe(np.array(2)), [0, 1])


def test_a_file_of_the_program_grows_as_well(tmp_path: Any) -> None:
    rlx.compile(counted(), "cpu").save(tmp_path / "counted.rlx")
    exe = rlx.load(tmp_path / "counted.rlx")
    for count in (3, 5000):
        assert exe(np.ones(count, np.int64))[0].shape == (-(-count // 2),)


def test_threads_that_call_at_once_share_what_was_grown() -> None:
    from concurrent.futures import ThreadPoolExecutor

    exe = rlx.compile(counted(), "cpu")
    counts = [int(n) for n in np.random.default_rng(0).integers(0, 20_000, 64)]

    def total(count: int) -> int:
        return int(exe(np.ones(count, np.int64))[1])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(total, counts)) == [int(np.arange(0, n, 2).sum()) for n in counts]


def test_the_plan_says_what_grows() -> None:
    exe = rlx.compile(counted(), "reference")
    plan = exe.lir.plan
    assert plan.capacities == ("arange_0.capacity",)
    assert "grown at run time: arange_0.capacity" in plan.report()
    small, large = exe.memory(n=4), exe.memory(n=4, **{"arange_0.capacity": 1 << 20})
    assert large.arena_bytes - small.arena_bytes >= 8 * ((1 << 20) - FIRST_CAPACITY)
    assert not exe.lir.is_static
    (grows,) = (d for d in exe.decisions if d.kind == "capacity")
    assert grows.what == "grow"
    assert "nothing bounds the size arange_0" in grows.reason
    assert "arange_0" in str(exe.explain())


def test_the_checker_knows_capacities() -> None:
    lir = CompilePipeline("cpu").compile(counted()).lir
    assert not check(lir)
    without = replace(lir.plan, dynamic_symbols=lir.mir.graph.dynamic_symbols)
    found = check(replace(lir, plan=without))
    assert any("the plan does not know the capacity" in f.message for f in found)


def test_no_result_may_have_the_size_of_a_capacity() -> None:
    g = counted()
    g.set_outputs([ops.expand(g.outputs[1], dims=(capacity_of("arange_0"),))])
    with pytest.raises(Error, match=r"its shape depends on the capacity arange_0.capacity"):
        rlx.compile(g, "reference")


def test_inputs_have_no_capacities() -> None:
    with pytest.raises(GraphError, match="names that end so are capacities"):
        Graph("g").input("x", Shape([Dim("n.capacity")], DType.F32))


def test_growth_is_by_powers_of_two() -> None:
    assert grown(256, 257) == 512
    assert grown(256, 5000) == 8192
    sizes = {"a": 9, "a.capacity": 8, "b": 8, "b.capacity": 8, "c": 100}
    assert outgrown(sizes) == {"a.capacity": 16}
    assert measured("k").symbol is not None


# -- bodies ---------------------------------------------------------------------------------------


def twice_measured() -> Graph:
    """Sizes measured outside and inside of a loop, of which each has a name in its own graph."""
    n = Dim("n")
    body = Graph("body")
    total, x = body.input("t", Shape((), DType.I64)), body.input("x", Shape((n,), DType.F32))
    found = ops.nonzero(ops.relu(ops.sub(x, ops.cast(total, to=DType.F32))))
    length = body.node("extent", (), {"dim": found.shape.dims[1], "dtype": DType.I64})
    body.set_outputs([ops.add(total, length), x])
    g = Graph("outer")
    x = g.input("x", Shape((n,), DType.F32))
    where = ops.nonzero(x)
    steps = ops.scan(g.constant(np.int64(0)), x, body=body, length=3, num_carries=2)
    g.set_outputs([where, steps[0], ops.add(where, 1)])
    return g


@pytest.mark.parametrize("target", TARGETS)
def test_sizes_of_a_body_are_not_those_around_it(target: str) -> None:
    exe = rlx.compile(twice_measured(), target)
    for x in (np.array([0, 1, 2, 0, 3, 4, 5], np.float32), np.zeros(3, np.float32)):
        where, total, more = exe(x)
        expected = 0
        for _ in range(3):
            expected += int((x > expected).sum())
        assert total == expected
        np.testing.assert_array_equal(where, np.array(np.nonzero(x)))
        np.testing.assert_array_equal(more, where + 1)


@pytest.mark.parametrize("target", TARGETS)
def test_a_loop_carries_what_was_measured_before_it(target: str) -> None:
    n = Dim("n")
    g = Graph("outer")
    x = g.input("x", Shape((n,), DType.F32))
    kept = ops.compress(x, ops.greater(x, 0.0), axis=0)
    cond, body = Graph("cond"), Graph("body")
    for graph in (cond, body):
        graph.input("v", kept.shape)
    cond.set_outputs([ops.less(ops.sum(cond.inputs[0]), 100.0)])
    body.set_outputs([ops.add(body.inputs[0], body.inputs[0])])
    g.set_outputs([*ops.while_(kept, cond=cond, body=body, max_iterations=20)])
    exe = rlx.compile(g, target)
    for x in (
        np.array([1, -1, 2, 0, 3], np.float32),
        np.full(5000, 0.001, np.float32),
        -np.ones(4),
    ):
        value = x[x > 0].astype(np.float32)
        steps = 0
        while value.sum() < 100 and steps < 20:
            value, steps = value * 2, steps + 1
        np.testing.assert_array_equal(exe(x.astype(np.float32)), value)
