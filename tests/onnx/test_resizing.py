"""Resizes of every mode and opset, with sizes known and not known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx.errors import UnsupportedError
from tests.onnx.nodes import agrees, gives, one_node, ours, same, theirs

RNG = np.random.default_rng(7)
X = RNG.normal(size=(2, 2, 5, 6)).astype(np.float32)
DYNAMIC = ["n", 2, "h", "w"]
COORDINATES = [
    "half_pixel",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "half_pixel_symmetric",
]
SCALES = [2.0, 1.5, 0.6, 0.5]
"""0.6 is not a fraction that f32 holds, but it reads as one."""
FREE = ["a", "b", "c", "d"]


def floats(values: Any) -> Any:
    return np.array(values, np.float32)


@pytest.mark.parametrize("dims", [None, FREE])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_scales(dims: Any, mode: str, coordinates: str) -> None:
    how = {"mode": mode, "coordinate_transformation_mode": coordinates, "opset": 19}
    agrees("Resize", [X, None, floats(SCALES)], known=(2,), dims=dims, **how)


@pytest.mark.parametrize("dims", [None, FREE])
@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric"])
def test_nearest(dims: Any, nearest: str, coordinates: str) -> None:
    how = {"nearest_mode": nearest, "coordinate_transformation_mode": coordinates}
    agrees("Resize", [X, None, floats(SCALES)], known=(2,), dims=dims, opset=13, **how)


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


def test_antialias_of_unknown_sizes_is_refused() -> None:
    arrays = [X, None, floats([1, 1, 0.5, 0.5])]
    model = one_node(
        "Resize", arrays, known=(2,), dims=DYNAMIC, opset=18, mode="linear", antialias=1
    )
    with pytest.raises(UnsupportedError, match="antialias"):
        ours(model, arrays)
