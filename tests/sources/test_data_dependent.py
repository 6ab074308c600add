"""What is found in data, against ONNX's reference evaluator and NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.errors import Error
from rlx.core.extent import ceiling
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph
from rlx.pipeline import CompilePipeline
from tests.sources.onnx_reference import run_onnx

SOURCES = {
    "nonzero": "onnx.reference NonZero",
    "compress": "onnx.reference Compress",
    "unique": "onnx.reference Unique; numpy.unique_all",
    "arange": "onnx.reference Range",
    "as_size": "numpy.zeros of that many rows",
    "same_size": "Python's == of integers",
    "non_max_suppression": "onnx.reference NonMaxSuppression",
}
RNG = np.random.default_rng(7)


@pytest.mark.parametrize("size", [0, 1, 7, 1 << 40])
def test_as_size(size: int) -> None:
    made = ops.as_size(np.array(size))
    assert made.shape == np.zeros((size, 0)).shape
    with pytest.raises(Error, match="negative"):
        ops.as_size(np.array(-1 - size))
    with pytest.raises(Error, match="at_most"):
        ops.as_size(np.array(size + 1), at_most=size)


def test_same_size() -> None:
    for found in range(-2, 3):
        for wanted in range(-2, 3):
            pair = np.array(found), np.array(wanted)
            if found == wanted:
                assert ops.same_size(*pair) == 0
            else:
                with pytest.raises(Error, match="differ"):
                    ops.same_size(*pair)


@pytest.mark.parametrize("dims", [(), (5,), (3, 4, 2), (3, 0)])
def test_nonzero(dims: tuple[int, ...]) -> None:
    x = RNG.integers(0, 2, dims)
    (want,) = run_onnx("NonZero", [x])
    np.testing.assert_array_equal(ops.nonzero(x), want)
    count = np.count_nonzero(x)
    np.testing.assert_array_equal(ops.nonzero(x, at_most=count), want)
    if count:
        with pytest.raises(Error, match=f"is {count}, more than its bound"):
            ops.nonzero(x, at_most=count - 1)


@pytest.mark.parametrize(("axis", "count"), [(None, 24), (None, 7), (0, 3), (1, 2), (-1, 2)])
def test_compress(axis: int | None, count: int) -> None:
    x, condition = RNG.normal(size=(3, 4, 2)), RNG.random(count) < 0.6
    (want,) = run_onnx("Compress", [x, condition], {} if axis is None else {"axis": axis})
    np.testing.assert_array_equal(ops.compress(x, condition, axis=axis), want)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_sorted_unique(axis: int | None) -> None:
    x = RNG.integers(0, 2, (6, 3)).astype(np.float32)
    attrs = {"sorted": 1} | ({} if axis is None else {"axis": axis})
    values, *rest = run_onnx("Unique", [x], attrs, 4)
    made = ops.unique(x, axis=axis, equal_nan=True)
    np.testing.assert_array_equal(made[0], values)
    for got, want in zip(made[1:], rest, strict=True):
        np.testing.assert_array_equal(got.reshape(-1), want)


def test_unique_in_order_of_appearance() -> None:
    x = RNG.integers(0, 5, 20).astype(np.float32)
    want = run_onnx("Unique", [x], {"sorted": 0}, 4)
    for got, wanted in zip(ops.unique(x, is_sorted=False), want, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_unique_of_nan_and_zeros() -> None:
    x = np.array([[np.nan, 0.0], [-0.0, np.nan]])
    for got, want in zip(ops.unique(x), np.unique_all(x), strict=True):
        np.testing.assert_array_equal(got, want)
    values, first, inverse, counts = ops.unique(x, equal_nan=True)
    np.testing.assert_array_equal(values, [0.0, np.nan])
    np.testing.assert_array_equal(first, [1, 0])
    np.testing.assert_array_equal(inverse, [[1, 0], [0, 1]])
    np.testing.assert_array_equal(counts, [2, 2])


@pytest.mark.parametrize(
    ("start", "limit", "delta"),
    [(1, 10, 2), (10, 1, -3), (5, 5, 1), (0, 7, -1), (0.0, 1.0, 0.25), (1.5, -2.0, -0.5)],
)
def test_arange(start: float, limit: float, delta: float) -> None:
    dtype = np.int64 if isinstance(start, int) else np.float32
    given = [np.array(v, dtype) for v in (start, limit, delta)]
    (want,) = run_onnx("Range", given)
    np.testing.assert_array_equal(ops.arange(*given), want)


def test_arange_refuses_what_is_no_range() -> None:
    one, nan = np.array(1.0), np.array(np.nan)
    with pytest.raises(Error, match="a step not 0"):
        ops.arange(one, one, np.array(0.0))
    with pytest.raises(Error, match="finite numbers"):
        ops.arange(one, nan, one)
    with pytest.raises(Error, match="9 numbers, but at_most is 8"):
        ops.arange(one, np.array(10.0), one, at_most=8)


def suppressed(
    boxes: np.ndarray, scores: np.ndarray, most: int, iou: float, score: float | None, center: bool
) -> np.ndarray:
    thresholds = [np.array([iou], np.float32), None if score is None else np.float32([score])]
    (want,) = run_onnx(
        "NonMaxSuppression",
        [boxes, scores, np.array([most]), *thresholds],
        {"center_point_box": int(center)},
    )
    return want


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("score", [None, 0.4])
@pytest.mark.parametrize("iou", [0.0, 0.25, 0.6])
def test_non_max_suppression(iou: float, score: float | None, center: bool) -> None:
    boxes = RNG.random((2, 30, 4)).astype(np.float32)
    scores = RNG.integers(0, 20, (2, 3, 30)).astype(np.float32) / 20
    for most in (0, 4, 100):
        got = ops.non_max_suppression(
            boxes,
            scores,
            max_output_boxes_per_class=most,
            iou_threshold=iou,
            score_threshold=score,
            center_point_box=center,
        )
        np.testing.assert_array_equal(got, suppressed(boxes, scores, most, iou, score, center))


@pytest.mark.parametrize("target", ["cpu", "cuda", "mlx", "tpu"])
def test_suppression_is_bounded_alike_where_it_is_lowered(target: str) -> None:
    g = Graph()
    boxes, scores = g.input("boxes", Shape((2, 90, 4))), g.input("scores", Shape((2, 3, 90)))
    kept = ops.non_max_suppression(boxes, scores, max_output_boxes_per_class=5, iou_threshold=0.3)
    g.set_outputs([kept])
    given = {
        "boxes": RNG.random((2, 90, 4)).astype(np.float32),
        "scores": RNG.random((2, 3, 90)).astype(np.float32),
    }
    (want,) = evaluate(g, given)
    lowered = CompilePipeline(target).compile_graph(g).lir.mir.graph
    (got,) = evaluate(lowered, given)
    np.testing.assert_array_equal(got, want)
    assert ceiling(lowered.outputs[0].shape.dims[0]) == 2 * 3 * 5


def test_sizes_that_are_found_go_on_through_a_graph() -> None:
    """A size is named where it is found, bounded by what it is found in, and used by others."""
    g = Graph()
    x = g.input("x", Shape((Dim("n"), 3), "f32"))
    where = ops.nonzero(x)
    picked = ops.gather_nd(x, ops.transpose(where, perm=(1, 0)))
    g.set_outputs([ops.add(picked, picked)])
    for count in (0, 1, 6):
        given = RNG.integers(-1, 2, (count, 3)).astype(np.float32)
        (got,) = evaluate(g, {"x": given})
        np.testing.assert_array_equal(got, 2 * given[given != 0])
