"""Resizing, against ONNX's reference evaluator, SciPy, and NumPy where it is a copy."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import numpy as np
import pytest
from scipy import ndimage

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.nn.resize import Coordinates, Rounding, Rule
from tests.sources.onnx_reference import run_onnx

SOURCES = {
    "resize": "onnx.reference Resize; numpy.repeat; scipy.ndimage.zoom",
    "depth_to_space": "onnx.reference DepthToSpace",
    "space_to_depth": "onnx.reference SpaceToDepth; the inverse of depth_to_space",
}
RNG = np.random.default_rng(11)
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
)
# Weights are computed in f64 on both sides; ours are rounded to f32 once, and each of two axes
# sums at most 4 (antialiased: 24) products of f32. Values are of size about 3.
CLOSE = {"rtol": 30 * 2.0**-24, "atol": 30 * 3 * 2.0**-24}


def onnx_resize(
    x: np.ndarray,
    *,
    axes: list[int],
    sizes: list[int] | None = None,
    scales: list[float] | None = None,
    coordinate_mode: str = "half_pixel",
    roi: list[float] | None = None,
    **attrs: Any,
) -> np.ndarray:
    """ONNX's Resize under its own names."""
    inputs = [
        x,
        None if roi is None else np.float32(roi),
        None if scales is None else np.float32(scales),
        None if sizes is None else np.int64(sizes),
    ]
    spelled = {k: int(v) if isinstance(v, bool) else v for k, v in attrs.items()}
    spelled |= {"axes": axes, "coordinate_transformation_mode": coordinate_mode}
    (want,) = run_onnx("Resize", inputs[: 4 if sizes is not None else 3], spelled)
    return want


def assert_resizes(x: np.ndarray, **attrs: Any) -> None:
    """The evaluator takes the length of a new axis for what the scale makes of the old one, which
    need not be whole; frameworks and runtimes take its size. With `align_corners` they are one
    where sizes are given."""
    if "scales" in attrs and attrs["coordinate_mode"] == "align_corners":
        pairs = zip(attrs.pop("scales"), attrs["axes"])
        attrs["sizes"] = [int(np.float32(s) * x.shape[a]) for s, a in pairs]
    want = onnx_resize(x, **attrs)
    if attrs.get("scales"):
        attrs["scales"] = [float(np.float32(s)) for s in attrs["scales"]]
    if attrs.get("roi"):
        attrs["roi"] = [float(np.float32(r)) for r in attrs["roi"]]
    got = ops.resize(x, **attrs)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got, want, **CLOSE)


def test_nearest_really_resizes() -> None:
    """Each pixel becomes a block. It is not the image set beside itself."""
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    got = ops.resize(x, scales=(2.0, 2.0))
    want = [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]
    np.testing.assert_array_equal(got[0, 0], want)
    image = RNG.normal(size=(2, 3, 5, 7))
    tripled = ops.resize(image, sizes=(15, 14), mode="nearest")
    np.testing.assert_array_equal(tripled, image.repeat(3, 2).repeat(2, 3))


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_nearest(coordinates: str, rounding: str) -> None:
    """With scales that put no element halfway, where ONNX's evaluator, in f64, takes the other."""
    x = RNG.normal(size=(2, 5, 6)).astype(np.float32)
    how = {"mode": "nearest", "nearest_mode": rounding, "coordinate_mode": coordinates}
    assert_resizes(x, axes=[1, 2], sizes=[8, 3], **how)
    assert_resizes(x, axes=[2, 1], scales=[0.62, 1.7], **how)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("exclude_outside", [False, True])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_interpolation(coordinates: str, mode: str, exclude_outside: bool, antialias: bool) -> None:
    x = RNG.normal(size=(2, 7, 6)).astype(np.float32)
    how = {
        "mode": mode,
        "coordinate_mode": coordinates,
        "exclude_outside": exclude_outside,
        "antialias": antialias,
    }
    assert_resizes(x, axes=[1, 2], sizes=[9, 4], **how)
    assert_resizes(x, axes=[1, 2], scales=[0.4, 1.7], **how)
    # No scale of 0.5 here: with half_pixel_symmetric it puts an element a rounding after a whole
    # number, where ONNX's evaluator takes the taps of one side with the weights of the other.
    assert_resizes(x, axes=[0, 1, 2], scales=[1.5, 0.6, 0.8], cubic_coeff_a=-0.5, **how)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_down_to_one(coordinates: str, mode: str) -> None:
    """Cubic is left out: for one element of pytorch_half_pixel, ONNX's specification says 0 and
    its evaluator -1/2, which only a cubic tells apart. We follow the specification."""
    x = RNG.normal(size=(2, 5, 6)).astype(np.float32)
    assert_resizes(x, axes=[1, 2], sizes=[1, 1], mode=mode, coordinate_mode=coordinates)


def test_one_element_of_pytorch_half_pixel_is_the_first() -> None:
    x = RNG.normal(size=5)
    got = ops.resize(x, sizes=(1,), mode="cubic", coordinate_mode="pytorch_half_pixel")
    np.testing.assert_array_equal(got, x[:1])


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("roi", [[0.21, 0.13, 0.95, 0.71], [-0.31, 0.43, 0.57, 1.61]])
def test_crop_and_resize(roi: list[float], mode: str) -> None:
    x = RNG.normal(size=(2, 7, 6)).astype(np.float32)
    how = {"roi": roi, "mode": mode, "coordinate_mode": "tf_crop_and_resize"}
    assert_resizes(x, axes=[1, 2], sizes=[5, 9], extrapolation_value=10.0, **how)
    assert_resizes(x, axes=[1, 2], sizes=[1, 3], extrapolation_value=10.0, **how)
    assert_resizes(x, axes=[2, 1], sizes=[4, 3], extrapolation_value=-1.0, **how)


def test_kept_aspect_ratio_is_sizes_and_scales() -> None:
    x = RNG.normal(size=(1, 7, 5)).astype(np.float32)
    for policy, pick in (("not_larger", min), ("not_smaller", max)):
        want = onnx_resize(
            x, axes=[1, 2], sizes=[9, 8], mode="linear", keep_aspect_ratio_policy=policy
        )
        scale = pick(9 / 7, 8 / 5)
        sizes = [int(scale * 7 + 0.5), int(scale * 5 + 0.5)]
        got = ops.resize(x, axes=[1, 2], sizes=sizes, scales=[scale, scale], mode="linear")
        np.testing.assert_allclose(got, want, **CLOSE)


def test_linear_with_aligned_corners_is_scipy_zoom() -> None:
    x = RNG.normal(size=(6, 5, 4))
    got = ops.resize(x, sizes=(9, 11, 7), mode="linear", coordinate_mode="align_corners")
    want = ndimage.zoom(x, (9 / 6, 11 / 5, 7 / 4), order=1)
    # SciPy computes positions in another order: a few roundings of f64 of positions up to 6.
    np.testing.assert_allclose(got, want, rtol=0, atol=100 * 2.0**-52)


REPEATED = [
    (c, n)
    for c, n in itertools.product(get_args(Coordinates), get_args(Rounding))
    if Rule("nearest", c, n, 0.0, False, False).repeats
]


@pytest.mark.parametrize(("coordinates", "rounding"), REPEATED)
@pytest.mark.parametrize("factor", [1, 2, 3, 7, 64])
def test_whole_factors_repeat_elements(coordinates: Any, rounding: Any, factor: int) -> None:
    """Which is what named sizes are resized by: by the tables of static sizes the same."""
    how = {"axes": (1,), "coordinate_mode": coordinates, "nearest_mode": rounding}
    x = RNG.normal(size=(2, 301))
    want = x.repeat(factor, 1)
    np.testing.assert_array_equal(ops.resize(x, scales=(float(factor),), **how), want)
    named = Shape((2, Dim("n")), "f64")
    by_scale = ops.resize(named, scales=(float(factor),), **how)
    by_size = ops.resize(named, sizes=(factor * Dim("n"),), **how)
    assert by_scale.dims == by_size.dims == (2, factor * Dim("n"))


def test_what_does_not_fit_is_refused() -> None:
    x = Shape((Dim("n"), 4), "i32")
    assert ops.resize(x, sizes=(8,)).dims == (Dim("n"), 8)
    for attrs, why in (
        ({"sizes": (3, 3)}, "n elements become 3: named sizes are resized by mode nearest"),
        ({"axes": (0,), "scales": (1.5,)}, "named sizes are resized by mode nearest and a whole"),
        ({"axes": (0,), "scales": (2.0,), "nearest_mode": "ceil"}, "with coordinate_mode"),
        ({"axes": (0,), "scales": (0.0,)}, "cannot have"),
        ({"sizes": (8,), "mode": "linear"}, "takes floats"),
        ({"sizes": (8,), "antialias": True}, "no antialias"),
        ({"sizes": (8,), "coordinate_mode": "tf_crop_and_resize"}, "needs a roi"),
        ({"axes": (1,)}, "needs sizes or scales"),
        ({"axes": (0, 1), "sizes": (8,)}, "1 entries for 2 axes"),
        ({"scales": (-1.0,)}, "cannot have"),
    ):
        with pytest.raises(GraphError, match=why):
            ops.resize(x, **attrs)


@pytest.mark.parametrize("order", ["DCR", "CRD"])
def test_blocks(order: str) -> None:
    x = RNG.normal(size=(2, 12, 2, 3))
    (want,) = run_onnx("DepthToSpace", [x], {"blocksize": 2, "mode": order})
    image = ops.depth_to_space(x, block=2, order=order)
    np.testing.assert_array_equal(image, want)
    np.testing.assert_array_equal(ops.space_to_depth(image, block=2, order=order), x)
    if order == "DCR":
        (want,) = run_onnx("SpaceToDepth", [image], {"blocksize": 2})
        np.testing.assert_array_equal(ops.space_to_depth(image, block=2), want)
