"""Folds of axes against ONNX's reference, SciPy, and Python's own sums, products and choices."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph
from rlx.ops.op import lookup
from tests.sources.onnx_reference import run_onnx
from tests.sources.scalars import same, wrapped

FOLDS: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "sum": ("ReduceSum", math.fsum),
    "prod": ("ReduceProd", math.prod),
    "mean": ("ReduceMean", lambda row: math.fsum(row) / len(row)),
    "max": ("ReduceMax", max),
    "min": ("ReduceMin", min),
    "log_sum_exp": ("ReduceLogSumExp", lambda row: math.log(math.fsum(map(math.exp, row)))),
}
"""What ONNX calls each fold, and a fold of one row in Python."""

SOURCES = {
    **{name: f"onnx.reference {theirs}; math" for name, (theirs, _) in FOLDS.items()},
    "any": "Python's any",
    "all": "Python's all",
    "log_sum_exp": "onnx.reference ReduceLogSumExp; scipy.special.logsumexp; math",
    "softmax": "scipy.special.softmax; onnx.reference Softmax",
    "log_softmax": "scipy.special.log_softmax; onnx.reference LogSoftmax",
    "argmax": "onnx.reference ArgMax; Python's max and list.index",
    "argmin": "onnx.reference ArgMin; Python's min and list.index",
    "iota": "numpy.indices",
    "extent": "Python's arithmetic of the sizes that are given",
}
RNG = np.random.default_rng(31)
EPS = np.finfo(np.float64).eps
AXES = [(0,), (1,), (-1,), (0, 2), (0, 1, 2), None]
SUMS = {"rtol": 64 * EPS, "atol": 64 * EPS}
"""f64: 24 numbers of about 1, and up to as many roundings, in whichever order."""


def rows(x: np.ndarray, axis: int) -> list[list[Any]]:
    """The lines along an axis as lists, in row-major order of the rest."""
    return np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis]).tolist()


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("name", FOLDS)
def test_folds_are_onnxs(name: str, axes: tuple[int, ...] | None, keepdims: bool) -> None:
    x = RNG.normal(size=(2, 3, 4))
    given = [x] if axes is None else [x, np.array(axes)]
    (want,) = run_onnx(FOLDS[name][0], given, {"keepdims": int(keepdims)})
    got = lookup(name)(x, axes=axes, keepdims=keepdims)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, **SUMS)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", FOLDS)
def test_folds_are_pythons(name: str, axis: int) -> None:
    """fsum is exact but for one rounding."""
    x = RNG.normal(size=(5, 6, 7))
    want = [FOLDS[name][1](row) for row in rows(x, axis)]
    np.testing.assert_allclose(lookup(name)(x, axes=(axis,)).reshape(-1), want, **SUMS)


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_integer], ids=str)
def test_folds_of_integers_wrap(dtype: DType) -> None:
    info = np.iinfo(dtype.numpy)
    x = RNG.integers(info.min, info.max, (6, 9), info.dtype, endpoint=True)
    for name, fold in (
        ("sum", sum),
        ("prod", functools.partial(functools.reduce, operator.mul)),
        ("max", max),
        ("min", min),
    ):
        got = lookup(name)(x, axes=(1,))
        assert got.dtype == x.dtype
        same(got, [wrapped(fold(row), x.dtype) for row in x.tolist()])


def test_folds_of_nothing_and_of_nan() -> None:
    nothing, mixed = np.zeros((2, 0)), np.array([[1.0, math.nan, 3.0], [math.inf, 1.0, -math.inf]])
    for name, want in (("sum", 0.0), ("prod", 1.0), ("mean", math.nan), ("log_sum_exp", -math.inf)):
        same(lookup(name)(nothing, axes=(1,)), [want, want])
    same(ops.max(nothing, axes=(1,), empty_ok=True), [-math.inf] * 2)
    same(ops.min(nothing, axes=(1,), empty_ok=True), [math.inf] * 2)
    same(ops.max(mixed, axes=(1,)), [math.nan, math.inf])
    same(ops.min(mixed, axes=(1,)), [math.nan, -math.inf])
    same(ops.argmax(mixed, axis=1), [1, 0])
    same(ops.argmin(mixed, axis=1), [1, 2])


@pytest.mark.parametrize("dtype", list(DType), ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_any_and_all(axis: int, dtype: DType) -> None:
    x = RNG.integers(0, 2, (3, 20)).astype(dtype.numpy)
    x[0], x[1] = 0, 1
    same(ops.any(x, axes=(axis,)), [any(row) for row in rows(x, axis)])
    same(ops.all(x, axes=(axis,)), [all(row) for row in rows(x, axis)])
    assert not ops.any(x[:, :0])
    assert ops.all(x[:, :0])


@pytest.mark.parametrize("axes", AXES)
def test_log_sum_exp_is_scipys(axes: tuple[int, ...] | None) -> None:
    x = RNG.normal(size=(2, 3, 4)) * 500  # exp would overflow
    x[0, 0], x[1, 1, 2] = -math.inf, math.inf
    np.testing.assert_allclose(
        ops.log_sum_exp(x, axes=axes), scipy.special.logsumexp(x, axis=axes), **SUMS
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_rows_of_probabilities(name: str, axis: int) -> None:
    x = RNG.normal(size=(4, 5, 6)) * 3
    theirs = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}[name]
    got = lookup(name)(x, axis=axis)
    np.testing.assert_allclose(got, getattr(scipy.special, name)(x, axis=axis), **SUMS)
    np.testing.assert_allclose(got, run_onnx(theirs, [x], {"axis": axis})[0], **SUMS)
    large = np.array([1000.0, 0.0, -1000.0])
    np.testing.assert_array_equal(lookup(name)(large), getattr(scipy.special, name)(large))


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(
    ("name", "theirs", "choose"), [("argmax", "ArgMax", max), ("argmin", "ArgMin", min)]
)
def test_where_the_extreme_is(
    name: str, theirs: str, choose: Callable[[list[int]], int], axis: int, keepdims: bool
) -> None:
    x = RNG.integers(-2, 3, (4, 5, 6)).astype(np.float32)  # with equals: the first counts
    (want,) = run_onnx(theirs, [x], {"axis": axis, "keepdims": int(keepdims)})
    got = lookup(name)(x, axis=axis, keepdims=keepdims)
    assert got.dtype == np.int64
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)
    same(got, [row.index(choose(row)) for row in rows(x, axis)])
    flat = x.reshape(-1).tolist()
    assert int(lookup(name)(x)) == flat.index(choose(flat))


@pytest.mark.parametrize("dtype", ["i64", "u8", "f32"])
def test_iota(dtype: str) -> None:
    for axis, want in enumerate(np.indices((3, 4, 2))):
        got = ops.iota(dims=(3, 4, 2), axis=axis, dtype=dtype)
        assert got.dtype == DType.of(dtype).numpy
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_extent(count: int) -> None:
    g, n = Graph(), Dim("n")
    x = g.input("x", Shape((n,), "f32"))
    sizes = [g.node("extent", (), {"dim": d, "dtype": DType.I64}) for d in (n * 3 + 2, n * n)]
    g.set_outputs([*sizes, ops.add(x, x)])
    got = evaluate(g, {"x": np.zeros(count, np.float32)})
    assert [int(v) for v in got[:2]] == [count * 3 + 2, count * count]
    assert int(ops.extent(dim=count)) == count
