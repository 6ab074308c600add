"""Resizes of every mode and opset, with sizes known and not known."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.effort import sample
from tests.onnx.nodes import agrees, gives, one_node, ours, same, theirs

RNG = np.random.default_rng(7)
X = RNG.normal(size=(2, 2, 5, 6)).astype(np.float32)
DYNAMIC = ["n", 2, "h", "w"]
COORDINATES = [
    "half_pixel",
    "pytorch_half_pixel",
    "asymmetric",
    "half_pixel_symmetric",
]
SCALES = [2.0, 1.5, 0.6, 0.5]
"""0.6 is not a fraction that f32 holds, but it reads as one."""
FREE = ["a", "b", "c", "d"]


def floats(values: Any) -> Any:
    return np.array(values, np.float32)


MODES = list(itertools.product(COORDINATES, ["nearest", "linear", "cubic"], [None, FREE]))


@pytest.mark.parametrize(("coordinates", "mode", "dims"), sample(MODES, 5))
def test_scales(dims: Any, mode: str, coordinates: str) -> None:
    how = {"mode": mode, "coordinate_transformation_mode": coordinates, "opset": 19}
    agrees("Resize", [X, None, floats(SCALES)], known=(2,), dims=dims, **how)


@pytest.mark.parametrize("dims", [None, FREE])
@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric"])
def test_nearest(dims: Any, nearest: str, coordinates: str) -> None:
    """With scales that put no element halfway, where the evaluator, in f64, takes the other."""
    how = {"nearest_mode": nearest, "coordinate_transformation_mode": coordinates}
    scales = floats([2.0, 1.5, 0.62, 0.5])
    agrees("Resize", [X, None, scales], known=(2,), dims=dims, opset=13, **how)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("dims", [None, DYNAMIC])
def test_sizes(mode: str, dims: Any) -> None:
    sizes = np.array([2, 2, 7, 3], np.int64)
    none = floats([])
    model = one_node(
        "Resize", [X, none, none, sizes], known=(1, 2, 3), dims=dims, opset=11, mode=mode
    )
    for image in (X, X[:, :, :3, :]) if dims else (X,):
        arrays = [image, none, none, sizes]
        same(ours(model, arrays), theirs(model, arrays))


def test_cubic_without_what_is_outside() -> None:
    for dims in (None, DYNAMIC):
        how: dict[str, Any] = {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5}
        agrees("Resize", [X, None, floats([1, 1, 1.5, 2])], known=(2,), dims=dims, opset=18, **how)


def test_axes_in_any_order() -> None:
    sizes, turned = np.array([3, 4], np.int64), np.array([4, 3], np.int64)
    how: dict[str, Any] = {"opset": 18, "mode": "linear"}
    made = ours(one_node("Resize", [X, None, None, sizes], axes=[3, -2], **how), [X, 0, 0, sizes])
    other = one_node("Resize", [X, None, None, turned], axes=[2, 3], **how)
    same(made, theirs(other, [X, 0, 0, turned]))


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_in_proportion(policy: str) -> None:
    sizes = np.array([8, 7], np.int64)
    agrees("Resize", [X, None, None, sizes], known=(3,), opset=18, axes=[2, 3],
           keep_aspect_ratio_policy=policy)  # fmt: skip


def test_integers_are_rounded() -> None:
    x = RNG.integers(0, 255, (1, 1, 4, 4)).astype(np.uint8)
    agrees("Resize", [x, None, floats([1, 1, 1.7, 0.6])], known=(2,), opset=13, mode="linear")


def test_tf_half_pixel_for_nn() -> None:
    x = np.arange(6, dtype=np.float32)
    wanted = x[np.floor((np.arange(10) + 0.5) / (10 / 6)).astype(int)]
    sizes = np.array([10], np.int64)
    how = {"nearest_mode": "floor", "coordinate_transformation_mode": "tf_half_pixel_for_nn"}
    gives("Resize", [x, floats([]), floats([]), sizes], wanted, known=(1, 2, 3), opset=11, **how)


@pytest.mark.parametrize("opset", [7, 9])
def test_upsample(opset: int) -> None:
    scales = floats([1, 1, 2, 3])
    wanted = X.repeat(2, 2).repeat(3, 3)
    if opset == 7:
        gives("Upsample", [X], wanted, opset=7, scales=scales.tolist())
    else:
        gives("Upsample", [X, scales], wanted, known=(1,), dims=DYNAMIC, opset=9)


def test_resize_before_there_were_modes() -> None:
    """The nearest of fewer is the next: ONNX's cases of opset 10 had it so."""
    x = floats([[[[1, 2, 3, 4], [5, 6, 7, 8]]]])
    gives("Resize", [x, floats([1, 1, 0.6, 0.6])], floats([[[[1, 3]]]]), known=(1,), opset=10)
    rows = [np.arange(2, 9) / 2 + add for add in (0, 2, 4, 4)]
    linear = floats([[[[*row, row[-1]] for row in rows]]])
    gives("Resize", [x, floats([1, 1, 2, 2])], linear, known=(1,), opset=10, mode="linear")


def test_scales_that_are_given_each_time() -> None:
    arrays = [X, None, floats([1, 1, 2, 2])]
    agrees("Resize", arrays, opset=13)


# -- as frameworks and runtimes have it, where ONNX's evaluator has it otherwise -------------------


def resized(x: Any, scale: float, mode: str, is_aligned: bool) -> Any:
    """The last axis by torch's rules: lengths are whole, and the scale is the one that is given."""
    old = x.shape[-1]
    new = int(np.float32(old) * np.float32(scale))
    at = np.arange(new, dtype=np.float32)
    where = (at + np.float32(0.5)) / np.float32(scale) - np.float32(0.5)
    if is_aligned:
        where = at * np.float32(old - 1) / np.float32(new - 1) if new > 1 else 0 * at
    if mode == "nearest":
        return x[..., np.clip(np.ceil(where - np.float32(0.5)), 0, old - 1).astype(int)]
    first, reach = np.floor(where), 1 if mode == "linear" else 2
    total = np.zeros((*x.shape[:-1], new))
    for tap in range(1 - reach, reach + 1):
        d = np.abs(first + tap - where).astype(np.float64)
        near, far = 1.25 * d**3 - 2.25 * d**2 + 1, -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
        weight = np.maximum(0, 1 - d) if mode == "linear" else np.where(d <= 1, near, far)
        total += weight * x[..., np.clip(first + tap, 0, old - 1).astype(int)]
    return total.astype(np.float32)


FRACTIONAL = list(
    itertools.product([1.7, 0.6, 0.7, 2.1, 0.13], [False, True], ["nearest", "linear", "cubic"])
)


@pytest.mark.parametrize(("scale", "is_aligned", "mode"), sample(FRACTIONAL, 5))
def test_fractional_scales(scale: float, is_aligned: bool, mode: str) -> None:
    """2.1 in f32 is below 21/10 by so much that 20 of them are 42, but 30 are 62: no formula over a
    named dim says so, and the model is read for each shape."""
    coordinates = "align_corners" if is_aligned else "half_pixel"
    scales = floats([1, 1, scale])
    how: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    for dims in (None, ["n", 2, "w"]):
        for old in (30, 9, 20) if dims else sample((30, 9, 20), 3):
            x = RNG.normal(size=(2, 2, old)).astype(np.float32)
            model = one_node("Resize", [x, None, scales], known=(2,), dims=dims, opset=19, **how)
            (made,) = ours(model, [x, None, scales])
            wanted = resized(x, scale, mode, is_aligned)
            assert made.shape == wanted.shape
            # Positions up to 30 in f32 are off by 2**-19, and a cubic's slope is at most 4.
            np.testing.assert_allclose(made, wanted, rtol=0, atol=2.0**-15)


def test_scales_that_are_an_input_count_as_onnx_has_them() -> None:
    """No exporter writes such a model: ONNX's own cases do."""
    arrays = [X, None, floats([1, 1, 0.6, 0.8])]
    how = {"coordinate_transformation_mode": "align_corners", "mode": "linear"}
    agrees("Resize", arrays, opset=19, **how)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("outside", [0, 1])
def test_antialias_of_unknown_sizes(mode: str, outside: int) -> None:
    how: dict[str, Any] = {"mode": mode, "antialias": 1, "exclude_outside": outside, "opset": 18}
    agrees("Resize", [X, None, floats([1, 1, 0.5, 1.5])], known=(2,), dims=DYNAMIC, **how)
    sizes = np.array([2, 2, 2, 4])
    agrees("Resize", [X, None, None, sizes], known=(3,), dims=DYNAMIC, **how)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_crops_of_unknown_sizes(mode: str) -> None:
    roi = floats([0, 0, 0.2, -0.3, 1, 1, 0.9, 1.2])
    how: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize"}
    how |= {"extrapolation_value": 9.0, "opset": 13}
    arrays = [X, roi, floats([]), np.array([2, 2, 4, 7])]
    agrees("Resize", arrays, known=(1, 2, 3), dims=DYNAMIC, **how)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_in_proportion_of_unknown_sizes(policy: str, mode: str) -> None:
    sizes = np.array([8, 7], np.int64)
    how: dict[str, Any] = {"opset": 18, "axes": [2, 3], "keep_aspect_ratio_policy": policy}
    agrees("Resize", [X, None, None, sizes], known=(3,), dims=DYNAMIC, mode=mode, **how)


@pytest.mark.parametrize("scale", [1.7, 0.6])
@pytest.mark.parametrize(
    ("mode", "attrs"),
    [
        ("bilinear", {}),
        ("bilinear", {"align_corners": True}),
        ("bicubic", {}),
        ("bicubic", {"align_corners": True}),
        ("bilinear", {"antialias": True}),
    ],
)
def test_torch_interpolates_the_same(scale: float, mode: str, attrs: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="the framework whose numbers are compared")
    wanted = torch.nn.functional.interpolate(
        torch.from_numpy(X), scale_factor=scale, mode=mode, recompute_scale_factor=False, **attrs
    ).numpy()
    coordinates = "align_corners" if attrs.get("align_corners") else "pytorch_half_pixel"
    how: dict[str, Any] = {"mode": {"bilinear": "linear", "bicubic": "cubic"}[mode]}
    how |= {"coordinate_transformation_mode": coordinates, "opset": 19}
    how["antialias"] = how["exclude_outside"] = int(attrs.get("antialias", False))
    scales = floats([1, 1, scale, scale])
    model = one_node("Resize", [X, None, scales], known=(2,), **how)
    np.testing.assert_allclose(ours(model, [X, None, scales])[0], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_an_image_that_stays_as_large_is_copied(mode: str) -> None:
    """As torch and onnxruntime do, though by the scale its elements would lie elsewhere."""
    scales = floats([1, 1, 1.3, 1.3])
    x = RNG.normal(size=(1, 1, 3, 2)).astype(np.float32)
    for dims in (None, ["n", 1, "h", "w"]):
        gives("Resize", [x, None, scales], x, known=(2,), dims=dims, opset=19, mode=mode)
