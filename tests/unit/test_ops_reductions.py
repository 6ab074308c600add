"""Reductions, scans and top-k along axes, by examples worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph
from tests.unit.op_examples import CLOSE, Check, f32, randoms

SEQ = Dim("seq")
NAN, INF = np.nan, np.inf
F32 = DType.F32


def test_integer_sums_and_products_wrap_in_their_own_dtype() -> None:
    x = np.array([100, 100, 2], np.int8)
    assert ops.sum(x).dtype == np.int8
    assert ops.sum(x) == 202 - 256
    assert ops.prod(x) == (20000 + 128) % 256 - 128


def test_axis_is_another_name_for_axes() -> None:
    x = f32([1, 2], [3, 4])
    assert ops.sum(x, axis=-1).tolist() == [3, 7]
    assert ops.sum(x, axes=(0,), keepdims=True).tolist() == [[4, 6]]
    assert ops.argmax(x, axis=0).tolist() == [1, 1]


def test_mean_is_for_floats_and_complex() -> None:
    assert ops.mean(f32(1, 2, 6)) == 3
    assert ops.mean(np.array([1 + 2j, 3 + 4j])) == 2 + 3j
    assert np.isnan(ops.mean(np.zeros((0,), np.float32)))
    with pytest.raises(GraphError, match="expected a float or complex dtype"):
        ops.mean(np.array([1, 2]))


def test_extremes_propagate_nan() -> None:
    x = f32([1, NAN], [3, -INF])
    np.testing.assert_array_equal(ops.max(x, axes=1), f32(NAN, 3))
    np.testing.assert_array_equal(ops.min(x, axes=1), f32(NAN, -INF))


def test_an_empty_axis_has_no_greatest_element() -> None:
    x = np.zeros((2, 0), np.float32)
    with pytest.raises(GraphError, match="axis 1 is empty"):
        ops.max(x, axes=1)
    assert ops.max(x, axes=1, empty_ok=True).tolist() == [-INF, -INF]
    assert ops.min(x.astype(np.int8), axes=1, empty_ok=True).tolist() == [127, 127]
    assert ops.max(x, axes=0).shape == (0,)


def test_any_and_all_count_nan_as_true() -> None:
    x = f32([0, NAN], [0, -0.0])
    assert ops.any(x, axes=1).tolist() == [True, False]
    assert ops.all(np.zeros((2, 0), bool), axes=1).tolist() == [True, True]


def test_arg_extremes_take_the_first_of_equals_and_the_first_nan() -> None:
    assert ops.argmax(f32(1, 3, 3)) == 1
    assert ops.argmax(f32(1, NAN, 3, NAN)) == 1
    assert ops.argmin(f32(1, NAN, -3)) == 1
    assert ops.argmax(f32([1, 2], [5, 0])) == 2
    assert ops.argmax(f32([1, 2], [5, 0]), keepdims=True).tolist() == [[2]]
    with pytest.raises(GraphError, match="empty"):
        ops.argmax(np.zeros((0,), np.float32))


def test_softmax_handles_infinities() -> None:
    assert ops.softmax(f32(0, -INF, 0)).tolist() == [0.5, 0, 0.5]
    assert np.isnan(ops.softmax(f32(-INF, -INF))).all()
    assert ops.softmax(np.zeros((3, 0), np.float32)).shape == (3, 0)
    assert ops.softmax(f32(1e30, 0)).tolist() == [1, 0]
    np.testing.assert_allclose(ops.log_softmax(f32(0, 0)), -np.log(2.0), **CLOSE)


def test_log_sum_exp_does_not_overflow() -> None:
    np.testing.assert_allclose(ops.log_sum_exp(f32(1000, 1000)), 1000 + np.log(2.0), rtol=1e-7)
    assert ops.log_sum_exp(f32(-INF, -INF)) == -INF
    assert ops.log_sum_exp(f32(INF, 0)) == INF
    assert ops.log_sum_exp(np.zeros((0,), np.float32)) == -INF


@pytest.mark.parametrize(
    ("attrs", "expected"),
    [
        ({}, [1, 3, 6]),
        ({"exclusive": True}, [0, 1, 3]),
        ({"reverse": True}, [6, 5, 3]),
        ({"exclusive": True, "reverse": True}, [5, 3, 0]),
    ],
)
def test_cumsum(attrs: dict[str, bool], expected: list[int]) -> None:
    assert ops.cumsum(np.array([1, 2, 3]), **attrs).tolist() == expected


def test_exclusive_cumsum_is_no_difference() -> None:
    assert ops.cumsum(f32(1, INF, 2), exclusive=True).tolist() == [0, 1, INF]


def test_top_k_orders_ties_by_index_and_nan_first() -> None:
    values, indices = ops.top_k(f32(1, 3, NAN, 3), k=3)
    np.testing.assert_array_equal(values, f32(NAN, 3, 3))
    assert indices.tolist() == [2, 1, 3]
    assert indices.dtype == np.int64
    _, least = ops.top_k(f32(3, 1, NAN, 1), k=4, largest=False)
    assert least.tolist() == [1, 3, 0, 2]
    rows, where = ops.top_k(np.array([[1, 9], [5, 2]]), k=1, axis=0)
    assert (rows.tolist(), where.tolist()) == ([[5, 9]], [[1, 0]])


def test_top_k_must_be_known_to_fit() -> None:
    with pytest.raises(GraphError, match="k=4 elements of axis 0 with 3"):
        ops.top_k(f32(1, 2, 3), k=4)
    graph = Graph()
    with pytest.raises(GraphError, match="not known to hold that many"):
        graph.top_k(graph.input("x", Shape([SEQ])), k=2)
    graph.top_k(graph.input("y", Shape([Dim("rows", 2)])), k=2)


def test_positions_and_extents() -> None:
    assert ops.iota(dims=(2, 3), axis=1).tolist() == [[0, 1, 2], [0, 1, 2]]
    graph = Graph()
    x = graph.input("x", Shape([SEQ]))
    graph.set_outputs([ops.add(x, graph.extent(dim=SEQ * 2 + 1, dtype=F32))])
    assert evaluate(graph, {"x": f32(0, 1)})[0].tolist() == [5, 6]


@pytest.mark.parametrize("length", [0, 1, 5])
@pytest.mark.parametrize(
    ("name", "attrs"),
    [
        ("mean", {"axes": (1,)}),
        ("softmax", {"axis": 1}),
        ("log_softmax", {"axis": 1}),
        ("log_sum_exp", {"axes": (1,)}),
        ("any", {"axes": (1,)}),
        ("argmax", {"axis": 1}),
        ("argmin", {"axis": None}),
        ("layer_norm", {"axis": 1}),
        ("rms_norm", {"axis": 0}),
    ],
)
def test_rows_of_unknown_length_lower(
    name: str, attrs: dict[str, Any], length: int, assert_lowers: Check, lowered_result: Check
) -> None:
    if length == 0 and name.startswith("arg"):
        given = lowered_result(name, [randoms(3, 0)], [(3, SEQ)], attrs)
        assert (given == 2**63 - 1).all()
        return
    assert_lowers(name, [randoms(3, length)], [(3, SEQ)], **attrs)
