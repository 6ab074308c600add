"""Norms, by examples worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.errors import GraphError
from tests.unit.op_examples import CLOSE, Check, f32, randoms

SEQ = Dim("seq")


def test_norms_by_hand() -> None:
    x, two, one = f32([1, 3], [0, 0]), f32(2, 2), f32(1, 1)
    assert ops.layer_norm(x, eps=0.0)[0].tolist() == [-1, 1]
    assert ops.layer_norm(x, two, one, eps=1e-5)[1].tolist() == [1, 1]
    np.testing.assert_allclose(ops.rms_norm(x, two, eps=0.0)[0], x[0] * 2 / np.sqrt(5), **CLOSE)
    assert ops.layer_norm(x, axis=0, eps=0.0).sum() == pytest.approx(0, abs=1e-6)


def test_variances_take_two_passes() -> None:
    """E[x²] - E[x]² of values near 4096 has no digits left in f32."""
    x = f32(4095, 4097).reshape(1, 2, 1)
    assert ops.group_norm(x, groups=1, eps=0.0).ravel().tolist() == [-1, 1]
    assert ops.layer_norm(x[..., 0], eps=0.0).ravel().tolist() == [-1, 1]


def test_group_norm_groups_channels(assert_lowers: Check) -> None:
    x = f32([1, 3, 10, 30]).reshape(1, 4, 1, 1)
    made = ops.group_norm(x, f32(1, 1, 2, 2), f32(0, 0, 0, 5), groups=2, eps=0.0)
    np.testing.assert_allclose(made.ravel(), [-1, 1, -2, 7], **CLOSE)
    with pytest.raises(GraphError, match="4 channels do not divide into groups=3"):
        ops.group_norm(x, groups=3)
    weights = [randoms(6), randoms(6, seed=1)]
    arrays = [randoms(2, 6, 5), *weights]
    assert_lowers("group_norm", arrays, [(2, 6, SEQ), (6,), (6,)], groups=3)


def test_batch_norm_scales_axis_one() -> None:
    x = f32([1, 2]).reshape(1, 2, 1)
    made = ops.batch_norm(x, f32(2, 3), f32(0, 1), f32(0, 1), f32(1, 4), eps=0.0)
    assert made.ravel().tolist() == [2, 2.5]


def test_norm_weights_have_the_dims_of_the_axes() -> None:
    with pytest.raises(GraphError, match=r"operand 1 is f32\[2\], expected dims \[3\]"):
        ops.layer_norm(randoms(2, 3), randoms(2))
