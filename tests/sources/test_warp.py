"""Images read through grids and in regions, against ONNX's reference evaluator and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from rlx import ops
from rlx.core.errors import Error, GraphError
from rlx.core.shape import Shape
from tests.sources.onnx_reference import run_onnx

SOURCES = {
    "grid_sample": "onnx.reference GridSample; scipy.ndimage.map_coordinates",
    "affine_grid": "onnx.reference AffineGrid",
    "roi_align": "onnx.reference RoiAlign",
    "max_roi_pool": "hand-checked example and a loop over pixels: onnx.reference lacks MaxRoiPool",
}
RNG = np.random.default_rng(13)
# Positions are computed in f32 and are up to 20: half a dozen roundings move them by up to
# 6 * 20 * 2^-24, and values differ by up to 5 per pixel, by cubics' weights twice that.
CLOSE = {"rtol": 0, "atol": 6 * 20 * 10 * 2.0**-24}


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("image", [(5, 4), (3, 4, 2)])
def test_grid_sample(image: tuple[int, ...], mode: str, padding: str, align_corners: bool) -> None:
    rank = len(image)
    x = RNG.normal(size=(2, 2, *image)).astype(np.float32)
    wanted = (4, 5, 3)[:rank]
    grid = RNG.uniform(-2.2, 2.2, size=(2, *wanted, rank)).astype(np.float32)
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": int(align_corners)}
    if (mode, padding) == ("cubic", "border"):
        want = bordered(x, grid, align_corners)
    else:
        (want,) = run_onnx("GridSample", [x, grid], attrs)
    got = ops.grid_sample(x, grid, mode=mode, padding=padding, align_corners=align_corners)
    np.testing.assert_allclose(got, want, **CLOSE)


def bordered(x: np.ndarray, grid: np.ndarray, align_corners: bool) -> np.ndarray:
    """The cubic of an image whose border goes on outside, as torch and runtimes have it; ONNX's
    evaluator moves the position to the border instead. It is that of an image with wide borders."""
    wide, sizes = 8, np.array(x.shape[:1:-1])
    up = (grid.astype(np.float64) + 1) / 2
    pixel = up * (sizes - 1) if align_corners else up * sizes - 0.5
    moved = 2 * (pixel + wide) / (sizes + 2 * wide - 1) - 1
    padded = np.pad(x.astype(np.float64), [(0, 0)] * 2 + [(wide, wide)] * (x.ndim - 2), mode="edge")
    (want,) = run_onnx("GridSample", [padded, moved], {"mode": "cubic", "align_corners": 1})
    return want.astype(x.dtype)


def test_grid_of_one_pixel() -> None:
    x = np.full((1, 1, 1, 1), 7.0)
    grid = RNG.uniform(-3, 3, size=(1, 4, 4, 2))
    for mode in ("nearest", "linear", "cubic"):
        for padding in ("border", "reflection"):
            got = ops.grid_sample(x, grid, mode=mode, padding=padding, align_corners=True)
            np.testing.assert_allclose(got, 7.0, rtol=16 * 2.0**-52)


def test_linear_grid_is_scipy_map_coordinates() -> None:
    x = RNG.normal(size=(1, 1, 6, 5))
    grid = RNG.uniform(-1.5, 1.5, size=(1, 40, 1, 2))
    rows, columns = (grid[0, :, 0, 1] + 1) * 2.5, (grid[0, :, 0, 0] + 1) * 2.0
    want = ndimage.map_coordinates(x[0, 0], [rows, columns], order=1, mode="grid-constant")
    got = ops.grid_sample(x, grid, align_corners=True)
    # A few roundings of f64 of positions up to 6, times differences up to 5.
    np.testing.assert_allclose(got[0, 0, :, 0], want, rtol=0, atol=200 * 2.0**-52)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("sizes", [(3, 4), (2, 3, 4)])
def test_affine_grid(sizes: tuple[int, ...], align_corners: bool) -> None:
    rank = len(sizes)
    theta = RNG.normal(size=(2, rank, rank + 1)).astype(np.float32)
    given = [theta, np.array([2, 1, *sizes])]
    (want,) = run_onnx("AffineGrid", given, {"align_corners": int(align_corners)})
    got = ops.affine_grid(theta, sizes=sizes, align_corners=align_corners)
    # Sums of at most 4 products of size up to 3.
    np.testing.assert_allclose(got, want, rtol=0, atol=8 * 12 * 2.0**-24)


def test_the_identity_reads_the_image() -> None:
    x = RNG.normal(size=(1, 2, 4, 5)).astype(np.float32)
    theta = np.float32([[[1, 0, 0], [0, 1, 0]]])
    for align_corners in (False, True):
        grid = ops.affine_grid(theta, sizes=(4, 5), align_corners=align_corners)
        got = ops.grid_sample(x, grid, padding="border", align_corners=align_corners)
        np.testing.assert_allclose(got, x, **CLOSE)


@pytest.mark.parametrize("half_pixel", [False, True])
@pytest.mark.parametrize("ratio", [0, 1, 2])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(mode: str, ratio: int, half_pixel: bool) -> None:
    x = RNG.normal(size=(2, 3, 9, 7)).astype(np.float32)
    corner = RNG.uniform(-3, 8, size=(6, 2))
    rois = np.concatenate([corner, corner + RNG.uniform(-1, 12, size=(6, 2))], 1)
    rois, batch = rois.astype(np.float32), np.array([0, 1, 1, 0, 1, 0])
    attrs = {
        "mode": mode,
        "output_height": 3,
        "output_width": 2,
        "sampling_ratio": ratio,
        "spatial_scale": 0.75,
        "coordinate_transformation_mode": "half_pixel" if half_pixel else "output_half_pixel",
    }
    (want,) = run_onnx("RoiAlign", [x, rois, batch], attrs)
    got = ops.roi_align(
        x, rois, batch, output_size=(3, 2), mode=mode, sampling_ratio=ratio,
        spatial_scale=0.75, half_pixel=half_pixel,
    )  # fmt: skip
    np.testing.assert_allclose(got, want, **CLOSE)


def test_max_roi_pool_by_hand() -> None:
    """Rows 1 to 4 of 6 in two bins of 2; columns 0 to 2 in two bins of 1.5, which share one."""
    x = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6)
    rois = np.float32([[0, 1, 2, 4]])
    got = ops.max_roi_pool(x, rois, np.array([0]), output_size=(2, 2))
    np.testing.assert_array_equal(got[0, 0], [[13, 14], [25, 26]])


def test_max_roi_pool_pixel_by_pixel() -> None:
    x = RNG.normal(size=(2, 1, 8, 9)).astype(np.float32)
    rois = np.float32([[1, 2, 13, 11], [-5, -4, 3, 3], [30, 30, 40, 40], [6, 6, 2, 2]])
    batch = np.array([0, 1, 1, 0])
    got = ops.max_roi_pool(x, rois, batch, output_size=(3, 4), spatial_scale=0.5)
    for r, (left, top, right, bottom) in enumerate(np.floor(rois * 0.5 + 0.5).astype(int)):
        # np.floor(v + 0.5) rounds the one negative half here, -2.5, towards 0; away is -3.
        left = -3 if rois[r, 0] == -5 else left
        height, width = max(bottom - top + 1, 1), max(right - left + 1, 1)
        for p, q in np.ndindex(3, 4):
            pixels = [
                x[batch[r], 0, top + i, left + j]
                for i in range(height)
                for j in range(width)
                if p * height // 3 <= i < -(-(p + 1) * height // 3)
                and q * width // 4 <= j < -(-(q + 1) * width // 4)
                and 0 <= top + i < 8
                and 0 <= left + j < 9
            ]
            assert got[r, 0, p, q] == max(pixels, default=0.0)


def test_what_does_not_fit_is_refused() -> None:
    x, rois = Shape((1, 2, 4, 4), "f32"), Shape((3, 4), "f32")
    with pytest.raises(GraphError, match="one coordinate for each"):
        ops.grid_sample(x, Shape((1, 4, 4, 3), "f32"))
    with pytest.raises(GraphError, match="no pixels"):
        ops.grid_sample(Shape((1, 2, 0, 4), "f32"), Shape((1, 4, 4, 2), "f32"))
    with pytest.raises(GraphError, match="two numbers from 1"):
        ops.roi_align(x, rois, Shape((3,), "i64"), output_size=(0, 2))
    image, region = np.zeros((1, 1, 2, 2)), np.zeros((1, 4))
    for op in (ops.roi_align, ops.max_roi_pool):
        with pytest.raises(Error, match="out of range"):
            op(image, region, np.array([1]), output_size=(1, 1))
