"""Ensembles of trees: what the reference gives, wherever tables and rows are in memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.core.dim import Dim
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.ops.draw import Draw
from rlx.ops.op import lookup

pytest.importorskip("llvmlite")

from rlx.backends.cpu.isa import AVX2, NEON, SSE2, Isa, host
from rlx.backends.cpu.kernels import dedicated
from rlx.backends.cpu.library.trees.node_records import WIDE_COLUMNS, Ensemble
from rlx.backends.cpu.library.trees.tree_walk import (
    INTERLEAVED_WALKS,
    TREE_PARALLEL_MAX_ROWS,
    TREES_PER_CHUNK,
)
from rlx.backends.cpu.llvm.compile import assembled
from rlx.backends.cpu.llvm.function import module
from rlx.frontends.onnx.handlers.ml.tree_tables import LEAF, LEQ, Nodes, Tables, Weights, tables_of
from tests.backend.cpu.steps import Steps, Trial, side_by_side, trials

Array = np.ndarray[Any, Any]
RUNNABLE = (host(), AVX2, SSE2) if host().triple.startswith("x86") else (host(),)
OP = lookup("tree_ensemble")


def drawn(cases: int) -> Iterator[Trial]:
    for seed in range(cases):
        draw = Draw([zlib.crc32(b"trees"), seed], is_large=seed % 2 == 1)
        yield from trials(draw, draw.case(OP))


def check(given: list[Trial], isa: Isa) -> None:
    steps = Steps(given, isa)
    for i, trial in enumerate(given):
        (want,) = trial.wanted()
        for cuts in ("once", "apart"):
            (got,) = steps.run(i, cuts)
            # f64 sums of at most a few dozen plain numbers, in another order, rounded once
            eps = 2.0**-7 if want.dtype.name == "bfloat16" else float(np.finfo(want.dtype).eps)
            wide = [v.astype(np.float64) for v in (got, want)]
            np.testing.assert_allclose(*wide, rtol=eps, atol=1e-12, err_msg=str(trial))


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda i: i.name)
def test_any_tables(isa: Isa) -> None:
    check(list(drawn(4)), isa)


def test_code_for_another_processor_assembles() -> None:
    functions = [
        t.function
        for trial in drawn(2)
        for t in dedicated(OP.name)(trial.step(NEON), "f").all_tasks
    ]
    assert assembled(module(functions[:4], NEON), NEON)


# -- forests --------------------------------------------------------------------------------------


def grown(
    rng: np.random.Generator, trees: int, depth: int, columns: int, dtype: Any, targets: int = 1
) -> Tables:
    """Full trees of a depth with any tests, all trees of one target in turns."""
    inner, size = 2**depth - 1, 2 ** (depth + 1) - 1
    each = np.arange(size)
    mode = np.tile(np.where(each < inner, LEQ, LEAF), trees)
    base = np.repeat(np.arange(trees) * size, size)
    children = [np.tile(np.where(each < inner, 2 * each + n, 0), trees) + base for n in (1, 2)]
    count = trees * size
    nodes = Nodes(
        mode, rng.integers(0, columns, count), rng.normal(size=count).astype(dtype), *children,
        rng.random(count) < 0.5, np.arange(trees) * size,
    )  # fmt: skip
    leaf = np.flatnonzero(mode == LEAF)
    weight = rng.normal(size=len(leaf)).astype(dtype)
    return tables_of(nodes, Weights(leaf, leaf // size % targets, weight, targets, 0.0))


def graph_of(tables: Tables, rows: Any, columns: int, **attrs: Any) -> Graph:
    g = Graph("forest")
    x = g.input("x", Shape([rows, columns], tables.threshold.dtype))
    names = ("threshold", "feature", "child", "missing", "root", "weight", "target")
    given = [getattr(tables, n) for n in names if getattr(tables, n) is not None]
    g.set_outputs([OP(x, *(g.constant(t) for t in given), span=tables.span, **attrs)])
    return g


def rows_of(rng: np.random.Generator, count: int, columns: int, dtype: Any) -> Array:
    x = rng.normal(size=(count, columns))
    x[rng.random(x.shape) < 0.1] = np.nan
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("targets", [1, 3])
def test_a_row_has_the_same_bits_among_few_and_many_rows(dtype: Any, targets: int) -> None:
    """Trees of several runs, of depths that are looked at and not; also for two threads."""
    rng = np.random.default_rng(5)
    columns, count = 7, 3 * TREE_PARALLEL_MAX_ROWS + 3
    for depth in (3, 9):
        tables = grown(rng, TREES_PER_CHUNK + INTERLEAVED_WALKS + 3, depth, columns, dtype, targets)
        x = rows_of(rng, count, columns, dtype)
        graph = graph_of(tables, Dim("n", 0), columns, n_targets=targets)
        one, two = (rlx.compile(graph, "cpu", threads=t, cache=False) for t in (1, 2))
        many = one(x)
        np.testing.assert_array_equal(two(x), many)
        for size in (1, TREE_PARALLEL_MAX_ROWS, TREE_PARALLEL_MAX_ROWS + 1):
            np.testing.assert_array_equal(one(x[:size]), many[:size])
            np.testing.assert_array_equal(two(x[:size]), many[:size])
        want = rlx.compile(graph, "reference", cache=False)(x)
        np.testing.assert_allclose(many, want, rtol=1e-12 if dtype == np.float64 else 2e-7)


def test_rows_may_be_of_any_length() -> None:
    """Tables that are weights, of rows whose length only a call says."""
    rng = np.random.default_rng(9)
    tables, x = grown(rng, 3, 4, 5, np.float32), rows_of(rng, 20, 5, np.float32)
    names = ("threshold", "feature", "child", "missing", "root", "weight")
    arrays = {n: getattr(tables, n) for n in names}
    g = Graph("forest")
    given = [g.input("x", Shape([20, Dim("columns", 1)]))]
    given += [g.param(n, Shape(a.shape, a.dtype)) for n, a in arrays.items()]
    g.set_outputs([OP(*given, n_targets=1, span=tables.span)])
    made = rlx.compile(g, "cpu", cache=False, params=arrays)(x)
    want = rlx.compile(graph_of(tables, 20, 5, n_targets=1), "cpu", cache=False)(x)
    np.testing.assert_array_equal(made, want)


def test_wide_records_give_what_narrow_ones_do() -> None:
    """Children that are too far away for 16 bits, and rows too long for it."""
    rng = np.random.default_rng(6)
    tables = grown(rng, 3, 4, 5, np.float32)
    x = rows_of(rng, 40, 5, np.float32)
    plain = graph_of(tables, 40, 5, n_targets=1)
    node = plain.outputs[0]
    apart = graph_of(tables, 40, 5, n_targets=1).outputs[0]
    far = Graph("far")
    given = [far.input("x", node.inputs[0].shape)]
    given += [far.constant(i.attrs["value"].array) for i in apart.inputs[1:]]
    far.set_outputs([OP(*given, n_targets=1, span=1 << 20)])
    trial = side_by_side(far.outputs[0], [x])
    assert Ensemble(trial.step(host())).is_wide
    assert not Ensemble(side_by_side(node, [x]).step(host())).is_wide
    want = rlx.compile(plain, "cpu", cache=False)(x)
    np.testing.assert_array_equal(rlx.compile(far, "cpu", cache=False)(x), want)
    long = np.zeros((40, WIDE_COLUMNS + 1), np.float32)
    long[:, :5] = x
    made = rlx.compile(graph_of(tables, 40, WIDE_COLUMNS + 1, n_targets=1), "cpu", cache=False)
    np.testing.assert_array_equal(made(long), want)


@pytest.mark.parametrize(
    ("table", "value"),
    [
        ("child", 100), ("child", -1), ("feature", 9), ("feature", -1),
        ("root", 100), ("root", -1), ("target", 4), ("target", -1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_input", [False, True])
def test_tables_that_lead_out_of_range_are_an_error(table: str, value: int, is_input: bool) -> None:
    """Tables that are weights, and tables that come with a call."""
    rng = np.random.default_rng(7)
    tables = grown(rng, 2, 2, 3, np.float32, targets=2)
    getattr(tables, table)[0] = value
    names = ("threshold", "feature", "child", "missing", "root", "weight", "target")
    g = Graph("forest")
    x = g.input("x", Shape([2, 3]))
    arrays = {n: getattr(tables, n) for n in names}
    make = g.input if is_input else g.param
    given = [make(n, Shape(a.shape, a.dtype)) for n, a in arrays.items()]
    g.set_outputs([OP(x, *given, n_targets=2, span=10)])
    rows = np.zeros((2, 3), np.float32)
    exe = rlx.compile(g, "cpu", cache=False)

    def run() -> None:
        exe.set_params({} if is_input else arrays)
        exe(rows, *(arrays.values() if is_input else ()))

    with pytest.raises(rlx.Error, match="out of range"):
        run()


def test_code_does_not_grow_with_the_trees() -> None:
    rng = np.random.default_rng(8)

    def text(trees: int) -> int:
        tables = grown(rng, trees, 3, 4, np.float32)
        node = graph_of(tables, 100, 4, n_targets=1).outputs[0]
        step = side_by_side(node, []).step(host())
        return sum(len(t.function.text) for t in dedicated(OP.name)(step, "f").all_tasks)

    assert text(1000) < text(100) + 100  # numbers have more digits; few trees need no poll
