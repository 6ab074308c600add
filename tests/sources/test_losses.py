"""Losses of classes, against ONNX's test cases and its reference evaluator."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.core.errors import Error, GraphError
from tests.sources.onnx_cases import OnnxCase, on_cases
from tests.sources.onnx_reference import run_onnx

SOURCES = {
    "nll_loss": "ONNX's test cases of NegativeLogLikelihoodLoss",
    "softmax_cross_entropy": "ONNX's test cases of SoftmaxCrossEntropyLoss",
    "stop_gradient": "onnx.reference Identity",
}
RNG = np.random.default_rng(5)
# A few sums of at most a hundred f32 terms: each rounds by 2⁻²⁴ of what is summed.
F32 = {"rtol": 1e-5, "atol": 1e-6}


@on_cases("negativeloglikelihoodloss", "NegativeLogLikelihoodLoss")
def test_nll_loss(case: OnnxCase) -> None:
    np.testing.assert_allclose(ops.nll_loss(*case.inputs, **case.attrs), case.outputs[0], **F32)


@on_cases("softmax_cross_entropy_loss", "SoftmaxCrossEntropyLoss")
def test_softmax_cross_entropy(case: OnnxCase) -> None:
    got = ops.softmax_cross_entropy(*case.inputs, **case.attrs)
    np.testing.assert_allclose(got, case.outputs[0], **F32)
    if len(case.outputs) == 2:
        np.testing.assert_allclose(ops.log_softmax(case.inputs[0], axis=1), case.outputs[1], **F32)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_axis_of_the_classes(axis: int) -> None:
    logits = RNG.normal(size=(5, 5, 5)).astype(np.float32)
    labels = RNG.integers(0, 5, (5, 5))
    moved = np.moveaxis(logits, axis, 1)
    attrs = {"reduction": "none"}
    want = run_onnx("SoftmaxCrossEntropyLoss", [moved, labels], attrs)[0]
    got = ops.softmax_cross_entropy(logits, labels, axis=axis, **attrs)
    np.testing.assert_allclose(got, want, **F32)


def test_a_label_that_is_no_class() -> None:
    logits = RNG.normal(size=(3, 4)).astype(np.float32)
    labels = np.array([0, 4, 2])
    for loss in (ops.nll_loss, ops.softmax_cross_entropy):
        with pytest.raises(Error, match="out of range"):
            loss(logits, labels)
        with pytest.raises(Error, match="out of range"):
            loss(logits, -labels, ignore_index=-100)
        got = loss(logits, labels, reduction="none", ignore_index=4)
        np.testing.assert_array_equal(got == 0, [False, True, False])


def test_an_ignore_index_that_labels_cannot_hold() -> None:
    """-1 in eight bits is 255, which is a class here and counts."""
    x = RNG.normal(size=(1, 256)).astype(np.float32)
    got = ops.nll_loss(x, np.array([255], np.uint8), ignore_index=-1)
    np.testing.assert_array_equal(got, -x[0, 255])


def test_nothing_that_counts() -> None:
    x = RNG.normal(size=(2, 3)).astype(np.float32)
    labels = np.array([-1, -1])
    assert np.isnan(ops.nll_loss(x, labels, ignore_index=-1))
    assert ops.nll_loss(x, labels, ignore_index=-1, reduction="sum") == 0


def test_operands_that_do_not_fit() -> None:
    x, labels = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)
    with pytest.raises(GraphError, match="one label"):
        ops.nll_loss(x, np.zeros(3, np.int64))
    with pytest.raises(GraphError, match="one weight"):
        ops.nll_loss(x, labels, np.ones(2, np.float32))


def test_stop_gradient() -> None:
    x = RNG.normal(size=(2, 3)).astype(np.float32)
    np.testing.assert_array_equal(ops.stop_gradient(x), run_onnx("Identity", [x], {})[0])
