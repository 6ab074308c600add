"""Indexing where ONNX's own cases do not reach: negative and fewer indices, sizes, old opsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

import rlx
from rlx.frontends.onnx.model import Model, from_proto

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def read(text: str, opset: int = 21) -> Model:
    return from_proto(parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>{text}'))


def run(text: str, *inputs: Any, opset: int = 21) -> Any:
    return rlx.compile(read(text, opset))(*inputs)


def test_fewer_indices_than_elements_mean_the_first_rows() -> None:
    text = """agraph (float[3, 4] x, int64[2, 3] i) => (float[2, 3] y) {
        y = GatherElements <axis = 1> (x, i)
    }"""
    where = np.array([[0, -1, 2], [3, 1, -4]])
    expected = np.take_along_axis(X[:2], where % 4, 1)
    np.testing.assert_array_equal(run(text, X, where), expected)


@pytest.mark.parametrize(("op", "opset"), [("Scatter", 10), ("ScatterElements", 11)])
def test_elements_are_put_where_indices_say(op: str, opset: int) -> None:
    text = f"""agraph (float[3, 4] x, int32[1, 2] i, float[1, 2] u) => (float[3, 4] y) {{
        y = {op} <axis = 1> (x, i, u)
    }}"""
    where, update = np.array([[-1, 0]], np.int32), np.array([[50, 60]], np.float32)
    expected = X.copy()
    expected[0, 3], expected[0, 0] = 50, 60
    np.testing.assert_array_equal(run(text, X, where, update, opset=opset), expected)


def test_coordinates_count_from_the_end_too() -> None:
    text = """agraph (float[3, 4] x, int64[N, 2] i, float[N] u) => (float[N] y, float[3, 4] z) {
        y = GatherND(x, i)
        z = ScatterND <reduction = "add"> (x, i, u)
    }"""
    where, update = np.array([[-1, -1], [0, 1]]), np.array([1, 2], np.float32)
    found, added = run(text, X, where, update)
    expected = X.copy()
    expected[2, 3] += 1
    expected[0, 1] += 2
    np.testing.assert_array_equal(found, [11, 1])
    np.testing.assert_array_equal(added, expected)


def test_an_index_out_of_range_is_an_error() -> None:
    text = """agraph (float[3, 4] x, int64[N, 2] i) => (float[N] y) { y = GatherND(x, i) }"""
    exe = rlx.compile(read(text))
    with pytest.raises(rlx.Error, match="index"):
        exe(X, np.array([[0, 4]]))


def test_a_range_written_as_places_of_ones_has_a_known_length() -> None:
    text = """agraph (float[N, 4] x) => (int64[N] y) {
        s = Shape <start = 0, end = 1> (x)
        ones = ConstantOfShape <value = int64[1] {1}> (s)
        found = NonZero(ones)
        zero = Constant <value_ints = [0]> ()
        y = Squeeze(found, zero)
    }"""
    model = read(text)
    assert not any(n.op == "nonzero" for n in model.graph.order())
    np.testing.assert_array_equal(rlx.compile(model)(X), [0, 1, 2])


def test_sizes_are_put_into_sizes_while_reading() -> None:
    text = """agraph (float[N, 4] x) => (float[a, b] y) {
        s = Shape(x)
        where = Constant <value = int64[1, 1] {0}> ()
        one = Constant <value_ints = [-1]> ()
        wanted = ScatterND(s, where, one)
        y = Reshape(x, wanted)
    }"""
    model = read(text)
    assert not model.is_static
    np.testing.assert_array_equal(rlx.compile(model)(X), X)


def test_what_is_found_flows_on_with_its_size() -> None:
    text = """agraph (float[N] x) => (float[M] y, float total) {
        zero = Constant <value_float = 0.0> ()
        keep = Greater(x, zero)
        found = Compress(x, keep)
        y = Mul(found, found)
        total = ReduceSum <keepdims = 0> (y)
    }"""
    exe = rlx.compile(read(text))
    for line in (X[1], -X[1], np.array([1, -1, 2], np.float32)):
        kept = line[line > 0]
        found, total = exe(line)
        np.testing.assert_array_equal(found, kept * kept)
        assert total == (kept * kept).sum()


def test_which_value_each_element_is_comes_in_a_row() -> None:
    text = """agraph (float[2, 3] x) => (float[n] y, int64[n] i, int64[6] j, int64[n] k) {
        y, i, j, k = Unique <sorted = 0> (x)
    }"""
    x = np.array([[3, 1, 3], [np.nan, 1, np.nan]], np.float32)
    values, first, which, counts = run(text, x)
    np.testing.assert_array_equal(values, [3, 1, np.nan])
    np.testing.assert_array_equal(first, [0, 1, 3])
    np.testing.assert_array_equal(which, [0, 1, 0, 2, 1, 2])
    np.testing.assert_array_equal(counts, [2, 2, 2])
