"""Norms and rotary positions against ONNX's reference and test cases, SciPy, and complex turns."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rlx import ops
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.op import lookup
from tests.sources.onnx_cases import OnnxCase, on_cases
from tests.sources.onnx_reference import run_onnx

SOURCES = {
    "layer_norm": "ONNX's test cases of LayerNormalization; scipy.stats.zscore",
    "rms_norm": "onnx.reference RMSNormalization",
    "group_norm": "ONNX's test cases of GroupNormalization",
    "batch_norm": "ONNX's test cases of BatchNormalization",
    "instance_norm": "ONNX's test cases of InstanceNormalization",
    "layer_norm_2d": "onnx.reference LayerNormalization of channels moved last",
    "ada_layer_norm": "onnx.reference LayerNormalization with scale 1 + scale and bias shift",
    "gated_residual": "hand-checked example: two operations",
    "lp_normalization": "ONNX's test cases of LpNormalization; numpy.linalg.norm",
    "local_response_norm": "plain loops of ONNX's formula; ONNX's test cases of LRN, whose "
    "reference looks at as many channels as the batch has rows",
    "mean_variance_normalization": "ONNX's test case of MeanVarianceNormalization; "
    "scipy.stats.zscore",
    "axial_rope_2d": "complex numbers turned by e^(i·angle)",
}
RNG = np.random.default_rng(17)
SUMS = {"rtol": 1e-5, "atol": 1e-5}
"""f32: a norm takes means of up to 120 numbers of about 1, in two passes, and a division."""
DOUBLE = {"rtol": 1e-12, "atol": 1e-13}
"""The same in f64, with room for a variance near 0."""


@on_cases("layernormalization", "LayerNormalization")
def test_layer_norm_on_onnx_cases(case: OnnxCase):
    x, scale, bias = case.inputs
    attrs = {"axis": case.attrs.get("axis", -1), "eps": case.attrs.get("epsilon", 1e-5)}
    np.testing.assert_allclose(ops.layer_norm(x, scale, bias, **attrs), case.outputs[0], **SUMS)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_rms_norm_is_onnxs(axis):
    x = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    scale = RNG.normal(size=x.shape[axis:]).astype(np.float32)
    (want,) = run_onnx("RMSNormalization", [x, scale], {"axis": axis, "epsilon": 1e-3})
    np.testing.assert_allclose(ops.rms_norm(x, scale, axis=axis, eps=1e-3), want, **SUMS)


@on_cases("groupnormalization", "GroupNormalization")
def test_group_norm_on_onnx_cases(case: OnnxCase):
    attrs = {"groups": case.attrs["num_groups"], "eps": case.attrs.get("epsilon", 1e-5)}
    np.testing.assert_allclose(ops.group_norm(*case.inputs, **attrs), case.outputs[0], **SUMS)


@on_cases("instance_normalization", "InstanceNormalization")
def test_instance_norm_on_onnx_cases(case: OnnxCase):
    got = ops.instance_norm(*case.inputs, eps=case.attrs.get("epsilon", 1e-5))
    np.testing.assert_allclose(got, case.outputs[0], **SUMS)


@on_cases("batch_normalization", "BatchNormalization")
def test_batch_norm_on_onnx_cases(case: OnnxCase):
    """In training ONNX takes the statistics of the batch, which are then what is given here."""
    x, scale, bias, mean, var = case.inputs
    if case.attrs.get("training_mode"):
        axes = tuple(a for a in range(x.ndim) if a != 1)
        mean, var = x.mean(axes), x.var(axes)
    got = ops.batch_norm(x, scale, bias, mean, var, eps=case.attrs.get("epsilon", 1e-5))
    np.testing.assert_allclose(got, case.outputs[0], **SUMS)


def test_layer_norm_2d_is_onnxs_of_channels_moved_last():
    x, scale, bias = (RNG.normal(size=d).astype(np.float32) for d in ((2, 5, 3, 4), 5, 5))
    (want,) = run_onnx("LayerNormalization", [np.moveaxis(x, 1, -1), scale, bias])
    got = ops.layer_norm_2d(x, scale, bias, eps=1e-5)
    np.testing.assert_allclose(np.moveaxis(got, 1, -1), want, **SUMS)


def test_norms_are_scipys_z_scores():
    x = RNG.normal(size=(2, 5, 3, 4))
    rows = stats.zscore(x, axis=-1)
    np.testing.assert_allclose(ops.layer_norm(x, eps=0.0), rows, **DOUBLE)
    places = stats.zscore(x, axis=1)
    np.testing.assert_allclose(ops.layer_norm_2d(x, eps=0.0), places, **DOUBLE)
    images = stats.zscore(x.reshape(2, 5, 12), axis=-1).reshape(x.shape)
    np.testing.assert_allclose(ops.instance_norm(x, eps=0.0), images, **DOUBLE)
    whole = stats.zscore(x, axis=None)
    np.testing.assert_allclose(ops.mean_variance_normalization(x, eps=0.0), whole, **DOUBLE)


def test_ada_layer_norm_is_onnxs_layer_norm_steered():
    x, shift, scale = (RNG.normal(size=d) for d in ((3, 4, 6), (3, 1, 6), (3, 1, 6)))
    got = ops.ada_layer_norm(x, shift, scale, eps=1e-6)
    for n in range(3):
        given = [x[n], 1 + scale[n, 0], shift[n, 0]]
        (want,) = run_onnx("LayerNormalization", given, {"epsilon": 1e-6})
        np.testing.assert_allclose(got[n], want, **SUMS)  # ONNX's computes in f32


def test_gated_residual_by_hand():
    x, gate = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([10.0, 0.0])
    got = ops.gated_residual(x, gate, np.array([[0.5], [-0.5]]))
    np.testing.assert_array_equal(got, [[10.5, 0.5], [29.5, -0.5]])


@on_cases("lpnormalization", "LpNormalization")
def test_lp_normalization_on_onnx_cases(case: OnnxCase):
    attrs = {"axis": case.attrs.get("axis", -1), "p": case.attrs.get("p", 2)}
    got = ops.lp_normalization(case.inputs[0], **attrs)
    np.testing.assert_allclose(got, case.outputs[0], **SUMS)


@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization_takes_absolute_values_and_zeros(p):
    x = RNG.normal(size=(3, 5))
    x[1] = 0
    size = np.linalg.norm(x, ord=p, axis=1, keepdims=True)
    want = np.divide(x, size, out=np.zeros_like(x), where=size != 0)
    np.testing.assert_allclose(ops.lp_normalization(x, axis=1, p=p), want, **DOUBLE)


def by_channel(x: np.ndarray, size: int, alpha: float, beta: float, bias: float) -> np.ndarray:
    """ONNX's formula: from c - floor((size-1)/2) to c + ceil((size-1)/2)."""
    made = np.zeros_like(x)
    for c in range(x.shape[1]):
        low, high = c - int(np.floor((size - 1) / 2)), c + int(np.ceil((size - 1) / 2))
        near = x[:, max(0, low) : high + 1]
        made[:, c] = x[:, c] / (bias + alpha / size * (near**2).sum(1)) ** beta
    return made


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
def test_local_response_norm_is_the_formula(size):
    x = RNG.normal(size=(2, 6, 3))
    attrs = {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 1.5}
    np.testing.assert_allclose(ops.lrn(x, **attrs), by_channel(x, **attrs), **DOUBLE)


@on_cases("lrn", "LRN")
def test_local_response_norm_on_onnx_cases(case: OnnxCase):
    (x,), attrs = case.inputs, case.attrs
    given = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0} | attrs
    assert len(x) >= x.shape[1]  # else ONNX's expected numbers are those of some channels only
    got = ops.local_response_norm(x, **given)
    np.testing.assert_allclose(got, case.outputs[0], **SUMS)


@on_cases("meanvariancenormalization", "MeanVarianceNormalization")
def test_mean_variance_normalization_on_onnx_cases(case: OnnxCase):
    got = ops.mean_variance_normalization(case.inputs[0], axes=(0, 2, 3))
    np.testing.assert_allclose(got, case.outputs[0], rtol=1e-4, atol=1e-5)  # E[x²] - E[x]² in f32


@pytest.mark.parametrize("repeat", [1, 3])
def test_axial_rope_turns_pairs_by_column_and_row(repeat):
    width, height, depth, heads, theta = 3, 2, 8, 2, 100.0
    places = width * height * repeat
    x = RNG.normal(size=(2, places, heads * depth))
    got = ops.axial_rope_2d(
        x, end_x=width, end_y=height, head_dim=depth, theta=theta, repeat_factor=repeat
    )
    pairs = x.reshape(2, places, heads, depth // 2, 2)
    numbers = pairs[..., 0] + 1j * pairs[..., 1]
    for p in range(places):
        row, column = divmod(p % (width * height), width)
        speeds = [theta ** (-4 * i / depth) for i in range(depth // 4)]
        angles = np.array([column * s for s in speeds] + [row * s for s in speeds])
        numbers[:, p] *= np.exp(1j * angles)
    want = np.stack([numbers.real, numbers.imag], axis=-1).reshape(x.shape)
    np.testing.assert_allclose(got, want, **DOUBLE)


def test_what_does_not_fit_is_refused():
    x = Shape([2, 6, 8])
    with pytest.raises(GraphError, match="multiple of 4"):
        lookup("axial_rope_2d")(x, end_x=2, end_y=3, head_dim=6)
    with pytest.raises(GraphError, match="3 rows of 3"):
        lookup("axial_rope_2d")(x, end_x=3, end_y=3, head_dim=4)
    with pytest.raises(GraphError, match="operand 2"):
        lookup("ada_layer_norm")(x, Shape([8]), Shape([7]))
    with pytest.raises(GraphError, match="expected 1 or 2"):
        lookup("lp_normalization")(x, p=3)
    with pytest.raises(GraphError, match="after batch"):
        lookup("instance_norm")(Shape([2, 3]))
