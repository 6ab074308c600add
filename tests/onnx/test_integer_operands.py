"""Operators that the standard has for floats alone, on whole numbers as exporters write them; and
operands that are empty."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.onnx.nodes import agrees, gives, one_node, ours

I = np.array([[-3, 0, 2], [7, 5, 5]], np.int64)


@pytest.mark.parametrize("op", ["Floor", "Ceil", "Round"])
@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_whole_numbers_are_what_they_are_rounded_to(op: str, kind: Any) -> None:
    x = np.array([0, 3, 200], np.int64).astype(kind)
    gives(op, [x], x, opset=20)


def test_no_whole_number_is_nan_or_infinite() -> None:
    none = np.zeros(I.shape, bool)
    gives("IsNaN", [I], none, opset=20)
    gives("IsInf", [I], none, opset=20)
    gives("IsInf", [I], none, opset=20, detect_negative=0)


def test_a_function_of_reals_is_truncated_to_the_operands_dtype() -> None:
    """The operator's type says that the result has the operand's dtype."""
    x = np.array([1, 2, 4, 7], np.int64)
    gives("Sqrt", [x], np.array([1, 1, 2, 2]), opset=20)
    gives("Exp", [x], np.array([2, 7, 54, 1096]), opset=20)
    gives("Softmax", [np.array([0, 0, 40])], np.array([0, 0, 1]), opset=20)
    gives("Softmax", [np.array([[5]])], np.array([[1]]), opset=11)
    gives("Reciprocal", [x.astype(np.int32)], np.array([1, 0, 0, 0], np.int32), opset=20)


def test_bounds_of_shrink_are_compared_with_whole_numbers_as_they_are() -> None:
    x = np.array([0, 1, 2, 250], np.uint8)
    gives("Shrink", [x], np.array([0, 0, 0, 248], np.uint8), opset=9, lambd=1.5, bias=1.5)


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32])
def test_reductions_of_whole_numbers(op: str, kind: Any) -> None:
    """Results that are whole but for a fraction of a half, so that rounding decides nothing."""
    x = np.array([[1, 2, 2], [4, 3, 7]], kind)
    wide = x.astype(np.float64)
    wanted = {
        "ReduceMean": wide.mean(1, keepdims=True),
        "ReduceL2": np.sqrt((wide * wide).sum(1, keepdims=True)) + 1e-9,
        "ReduceLogSum": np.log(wide.sum(1, keepdims=True)),
        "ReduceLogSumExp": np.log(np.exp(wide).sum(1, keepdims=True)),
    }[op]
    gives(op, [x], wanted.astype(kind), opset=13, axes=[1])


def test_a_mean_of_large_whole_numbers_is_exact() -> None:
    x = np.array([2**61 + 1, 2**61 + 3], np.int64)
    gives("ReduceMean", [x], np.array([2**61 + 2]), opset=13)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceProd", "ReduceL2", "ReduceMean"])
def test_a_reduction_of_nothing_has_the_rank_that_is_asked_for(op: str, keepdims: int) -> None:
    for dims in (None, ["a", "b"]):
        for opset in (11, 20):
            x = np.zeros((0, 3), np.float32)
            shape = (1, 1) if keepdims else ()
            value = {"ReduceMax": -np.inf, "ReduceProd": 1, "ReduceMean": np.nan}.get(op, 0)
            wanted = np.full(shape, value, np.float32)
            gives(op, [x], wanted, opset=opset, keepdims=keepdims, dims=dims)


def test_axes_that_are_empty_squeeze_all() -> None:
    x = np.zeros((1, 3, 1), np.float32)
    gives("Squeeze", [x, np.zeros(0, np.int64)], x[0, :, 0], opset=13, known=[1])


@pytest.mark.parametrize("dims", [None, ["a", "b"]])
@pytest.mark.parametrize("opset", [11, 13])
def test_hardmax_of_an_empty_axis_is_empty(opset: int, dims: Any) -> None:
    x = np.zeros((2, 0), np.float32)
    gives("Hardmax", [x], x, opset=opset, dims=dims)


def test_hardmax_of_named_sizes_takes_the_first_of_the_largest() -> None:
    x = np.array([[1, 3, 3], [-np.inf, -np.inf, -np.inf]], np.float32)
    wanted = np.array([[0, 1, 0], [1, 0, 0]], np.float32)
    gives("Hardmax", [x], wanted, opset=13, dims=["a", "b"])


def test_an_empty_axis_is_padded_to_a_named_size() -> None:
    x = np.zeros((0, 2), np.float32)
    made = np.zeros((2, 3), np.float32)
    gives("CenterCropPad", [x, np.array([2, 3])], made, opset=18, known=[1], dims=["a", "b"])


def test_a_bound_that_is_not_given_is_the_end_of_single_precision() -> None:
    end = np.finfo(np.float32).max
    x = np.array([-np.inf, np.inf, 1], np.float32)
    gives("Clip", [x], np.array([-end, end, 1], np.float32), opset=6)
    gives("Clip", [x], np.array([0, end, 1], np.float32), opset=10, min=0.0)
    gives("Clip", [x.astype(np.float16)], x.astype(np.float16), opset=10)


def test_defaults_are_of_single_precision() -> None:
    x = np.array([-1.0, 3.0])
    (made,) = ours(one_node("LeakyRelu", [x], opset=16), [x])
    assert made[0] == -float(np.float32(0.01))
    (made,) = ours(one_node("HardSigmoid", [x], opset=13), [x])
    assert made[0] == 0.5 - float(np.float32(0.2))


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_one_symmetric_point_is_no_number(op: str) -> None:
    gives(op, [np.array(1)], np.array([np.nan], np.float32), opset=17, known=[0], periodic=0)
    gives(op, [np.array(0)], np.zeros(0, np.float32), opset=17, known=[0], periodic=0)


def test_a_last_axis_of_named_size_is_read_for_each_shape() -> None:
    """Whether numbers are real or complex is its size."""
    x = np.random.default_rng(0).normal(size=(2, 8, 2)).astype(np.float32)
    agrees("DFT", [x], opset=17, axis=1, dims=["a", "b", "c"])


@pytest.mark.parametrize("known", [[], [1]])
@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float64])
def test_an_exponent_is_not_rounded_to_the_bases_dtype(kind: Any, known: list[int]) -> None:
    """2²⁴ + 1 is odd, and no number of single precision."""
    x = np.array([-1.0, 1.0, -1.0], np.float32)
    power = np.array([2**24 + 1, 2**24 + 1, 2], kind)
    gives("Pow", [x, power], np.array([-1, 1, 1], np.float32), opset=15, known=known)
    half = np.array([-1.0, 2.0], np.float16)
    power = np.array([2049, 3], kind)
    gives("Pow", [half, power], np.array([-1, 8], np.float16), opset=15, known=known)


def test_weights_belong_to_the_n_grams_of_the_pool() -> None:
    """The first n-gram of the pool counts in column 1, with the first weight."""
    how: dict[str, Any] = {"mode": "TFIDF", "min_gram_length": 1, "max_gram_length": 1}
    how |= {"max_skip_count": 0, "ngram_counts": [0], "pool_int64s": [7, 8]}
    how |= {"ngram_indexes": [1, 0], "weights": [0.5, 2.0]}
    gives("TfIdfVectorizer", [np.array([7, 7, 8])], np.array([2, 1], np.float32), opset=9, **how)
