"""Pads, grids, regions, boxes and fillings where ONNX's own cases do not reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from tests.onnx.nodes import agrees, gives, one_node, ours, same, theirs
from tests.sources.test_warp import bordered

RNG = np.random.default_rng(8)
X = RNG.normal(size=(2, 4, 5)).astype(np.float32)
DYNAMIC = ["a", "b", "c"]


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


# -- pads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [None, DYNAMIC])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad(dims: Any, mode: str) -> None:
    pads = ints(0, 2, 3, 1, 1, 0)
    wanted = np.pad(X, [(0, 1), (2, 1), (3, 0)], mode=mode)  # pyright: ignore
    gives("Pad", [X, pads], wanted, known=(1,), dims=dims, opset=19, mode=mode)
    if mode != "wrap":
        gives("Pad", [X], wanted, dims=dims, opset=7, mode=mode, pads=pads.tolist())


@pytest.mark.parametrize("dims", [None, DYNAMIC])
def test_negative_pads_cut_first(dims: Any) -> None:
    cut = X[:, 1:, :-2]
    pads = ints(0, -1, 2, 0, 1, -2)
    wanted = np.pad(cut, [(0, 0), (0, 1), (2, 0)], constant_values=1.5)
    gives("Pad", [X, pads, np.float32(1.5)], wanted, known=(1, 2), dims=dims, opset=11)
    edged = np.pad(cut, [(0, 0), (0, 1), (2, 0)], mode="edge")
    gives("Pad", [X, pads], edged, known=(1,), dims=dims, opset=11, mode="edge")


@pytest.mark.parametrize("dims", [None, ["w"]])
@pytest.mark.parametrize(("before", "after"), [(7, -6), (-6, 7), (3, -5), (-5, 1), (1, -5)])
def test_pads_that_cut_what_they_add(before: int, after: int, dims: Any) -> None:
    """What is taken off one end may be more than there is: then it is of the other pad."""
    x = np.arange(1, 5, dtype=np.float32)
    places = np.arange(-before, 4 + after)
    wanted = np.where((places >= 0) & (places < 4), x[np.clip(places, 0, 3)], np.float32(9))
    given = [x, ints(before, after), np.array(9, np.float32)]
    gives("Pad", given, wanted, known=(1, 2), dims=dims, opset=13)
    gives("Pad", given, wanted, known=(1,), dims=dims, opset=13)


@pytest.mark.parametrize("dims", [None, ["w"]])
def test_pads_that_leave_less_than_nothing(dims: Any) -> None:
    x = np.arange(4, dtype=np.float32)
    for mode, pads in (("constant", (0, -6)), ("constant", (-2, -3)), ("edge", (7, -6))):
        model = one_node("Pad", [x, ints(*pads)], opset=13, known=(1,), dims=dims, mode=mode)
        with pytest.raises(rlx.Error, match=r"ONNX Pad .*: pads"):
            ours(model, [x])


def test_wide_wraps_and_reflections() -> None:
    x = np.arange(3, dtype=np.int32)
    for mode in ("wrap", "reflect"):
        wanted = np.pad(x, (7, 5), mode=mode)  # pyright: ignore
        gives("Pad", [x, ints(7, 5)], wanted, known=(1,), opset=19, mode=mode)
        gives("Pad", [x, ints(7, 5)], wanted, known=(1,), dims=["n"], opset=19, mode=mode)


def test_values_that_are_data_or_no_float() -> None:
    x = np.arange(4, dtype=np.int64).reshape(2, 2)
    big = np.array(2**60 + 1, np.int64)
    wanted = np.pad(x, [(1, 0), (0, 2)], constant_values=2**60 + 1)
    gives("Pad", [x, ints(1, 0, 0, 2), big], wanted, known=(1,), opset=13)
    gives("Pad", [x, ints(1, 0, 0, 2), big], wanted, known=(1, 2), opset=13)
    truth = [x > 1, ints(2, 0), np.array(True), ints(-1)]
    wanted = np.pad(x > 1, [(0, 0), (2, 0)], constant_values=True)
    gives("Pad", truth, wanted, known=(1, 2, 3), opset=18)


def test_pads_that_are_given_each_time() -> None:
    agrees("Pad", [X, ints(0, 0, 1, 0, 2, 0)], opset=13)


def test_center_crop_pad_of_unknown_sizes() -> None:
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    model = one_node("CenterCropPad", [x, ints(3, 8)], known=(1,), dims=["m", "n"], opset=18)
    wanted = np.zeros((3, 8), np.float32)
    wanted[:, 1:6] = x[:3]
    same(ours(model, [x, ints(3, 8)]), [wanted])


# -- grids and regions ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample(mode: str, padding: str) -> None:
    x = RNG.normal(size=(2, 3, 4, 5)).astype(np.float32)
    grid = RNG.uniform(-1.4, 1.4, (2, 3, 2, 2)).astype(np.float32)
    new = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    for align in (0, 1):
        how: dict[str, Any] = {"padding_mode": padding, "align_corners": align}
        how["dims"] = ["n", 3, "h", "w"]
        made = ours(one_node("GridSample", [x, grid], opset=16, mode=mode, **how), [x, grid])
        if (mode, padding) == ("bicubic", "border"):
            same(made, [bordered(x, grid, bool(align))])
            continue
        wanted = theirs(one_node("GridSample", [x, grid], opset=20, mode=new, **how), [x, grid])
        same(made, wanted)


def test_grid_sample_of_whole_numbers() -> None:
    x = np.arange(12, dtype=np.int32).reshape(1, 1, 3, 4)
    grid = np.array([[[[-1, -1], [1, 1], [0.1, 0.1]]]], np.float64)
    wanted = np.array([[[[0, 11, 6]]]], np.int32)
    gives("GridSample", [x, grid], wanted, opset=20, mode="nearest", align_corners=1)


def test_roi_align_counted_from_corners_before_opset_16() -> None:
    x = RNG.normal(size=(2, 3, 8, 8)).astype(np.float32)
    rois = np.array([[1, 1, 5, 6], [0, 2, 7, 7]], np.float32)
    how: dict[str, Any] = {"output_height": 2, "output_width": 3, "sampling_ratio": 2}
    arrays = [x, rois, ints(0, 1)]
    new = {"coordinate_transformation_mode": "output_half_pixel"}
    old = ours(one_node("RoiAlign", arrays, opset=10, **how), arrays)
    same(old, ours(one_node("RoiAlign", arrays, opset=16, **new, **how), arrays))
    agrees("RoiAlign", arrays, opset=16, **how)


def test_max_roi_pool() -> None:
    x = np.arange(32, dtype=np.float32).reshape(2, 1, 4, 4)
    rois = np.array([[1, 0, 0, 3, 3], [0, 2, 2, 3, 3]], np.float32)
    wanted = np.array([[[[21, 23], [29, 31]]], [[[10, 11], [14, 15]]]], np.float32)
    gives("MaxRoiPool", [x, rois], wanted, opset=7, pooled_shape=[2, 2])


# -- boxes ----------------------------------------------------------------------------------------


def test_boxes_of_a_number_that_is_found_out() -> None:
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], np.float32)
    scores = np.array([[[0.9, 0.75, 0.6]]], np.float32)
    limits = [ints(5), floats(0.5), floats(0.0)]
    arrays = [boxes, scores, *limits]
    model = one_node("NonMaxSuppression", arrays, opset=11, known=(2, 3, 4), dims=[1, "n", 4])
    model.graph.input[1].type.tensor_type.shape.dim[2].dim_param = "n"
    same(ours(model, arrays), [np.array([[0, 0, 0], [0, 0, 2]])])
    none = [boxes[:, :0], scores[:, :, :0], *limits]
    same(ours(model, none), [np.zeros((0, 3), np.int64)])


def test_no_boxes_without_a_limit() -> None:
    boxes = np.array([[[0, 0, 1, 1]]], np.float32)
    gives("NonMaxSuppression", [boxes, np.ones((1, 1, 1), np.float32)],
          np.zeros((0, 3), np.int64), opset=11)  # fmt: skip


# -- fillings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [-2, 0, 3])
@pytest.mark.parametrize("known", [(), (1,)])
def test_trilu(k: int, known: tuple[int, ...]) -> None:
    for upper in (0, 1):
        wanted = (np.triu if upper else np.tril)(X, k)
        how: dict[str, Any] = {"known": known, "upper": upper, "dims": DYNAMIC}
        gives("Trilu", [X, ints(k).reshape(())], wanted, opset=14, **how)


def test_eye_like_of_unknown_sizes() -> None:
    x = np.zeros((3, 5), np.int32)
    gives("EyeLike", [x], np.eye(3, 5, -1, np.float64), opset=9, dims=["m", "n"], k=-1, dtype=11)


def test_one_hot_counts_from_the_end_since_opset_11() -> None:
    indices, values = np.array([[0, -1], [7, 2]], np.float32), np.array([2, 5], np.int8)
    wanted = np.full((2, 3, 2), 2, np.int8)
    wanted[0, 0, 0] = wanted[1, 2, 1] = 5
    arrays = [indices, floats(3), values]
    gives("OneHot", arrays, wanted, opset=9, axis=1, known=(1,))
    wanted[0, 2, 1] = 5
    gives("OneHot", arrays, wanted, opset=11, axis=1, known=(1,))


def test_determinants() -> None:
    x = RNG.normal(size=(3, 2, 6, 6))
    x[0, 0, 3] = x[0, 0, 1]
    x[1, 0, 0, 0] = 0
    gives("Det", [x], np.linalg.det(x), opset=11, dims=["n", 2, 6, 6])
    gives("Det", [np.ones((2, 0, 0), np.float32)], np.ones(2, np.float32), opset=11)
