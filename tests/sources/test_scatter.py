"""Reading and writing at indices, against ONNX's reference evaluator."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.core.errors import Error, GraphError
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph
from rlx.ops.op import lookup
from tests.sources.onnx_cases import OnnxCase, on_cases
from tests.sources.onnx_reference import run_onnx

SOURCES = {
    "gather": "onnx.reference Gather",
    "embedding": "onnx.reference Gather",
    "one_hot": "onnx.reference OneHot",
    "gather_nd": "onnx.reference GatherND",
    "take_along_axis": "onnx.reference GatherElements",
    "scatter": "onnx.reference ScatterND, with the axis moved to the front",
    "scatter_add": "onnx.reference ScatterND, reduction add",
    "scatter_elements": "onnx.reference ScatterElements",
    "scatter_nd": "onnx.reference ScatterND",
    "tensor_scatter": "ONNX's test cases and reference of TensorScatter",
}
REDUCTIONS = ("none", "add", "mul", "max", "min")
RNG = np.random.default_rng(3)


def values(*dims: int) -> np.ndarray:
    """Whole numbers as floats, so that sums and products are exact in any order."""
    return RNG.integers(-4, 5, dims).astype(np.float32)


def places(size: int, *dims: int) -> np.ndarray:
    return RNG.integers(0, size, dims)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(axis: int) -> None:
    x, indices = values(4, 5, 6), places(4, 2, 3)
    (want,) = run_onnx("Gather", [x, indices], {"axis": axis})
    np.testing.assert_array_equal(ops.gather(x, indices, axis=axis), want)


def test_embedding_and_one_hot() -> None:
    table, ids = values(5, 3), places(5, 2, 4)
    (want,) = run_onnx("Gather", [table, ids], {"axis": 0})
    np.testing.assert_array_equal(ops.embedding(table, ids), want)
    (want,) = run_onnx("OneHot", [ids, np.array(5), np.float32([0, 1])], {"axis": -1})
    np.testing.assert_array_equal(ops.one_hot(ids, depth=5), want)


@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 2])
def test_gather_nd(batch: int, count: int) -> None:
    x = values(2, 3, 4, 5)
    indices = places(3 if batch + count < 4 else 4, *x.shape[:batch], 6, count)
    indices = np.minimum(indices, np.array(x.shape[batch : batch + count]) - 1)
    (want,) = run_onnx("GatherND", [x, indices], {"batch_dims": batch})
    np.testing.assert_array_equal(ops.gather_nd(x, indices, batch_dims=batch), want)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_elements(axis: int) -> None:
    x = values(3, 4, 2)
    dims = list(x.shape)
    dims[axis] = 6
    indices = places(x.shape[axis], *dims)
    (want,) = run_onnx("GatherElements", [x, indices], {"axis": axis})
    np.testing.assert_array_equal(ops.gather_elements(x, indices, axis=axis), want)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scatter_elements(axis: int, reduction: str) -> None:
    x = values(3, 5, 4)
    dims = [2, 3, 3]
    dims[axis] = 7
    indices, updates = places(x.shape[axis], *dims), values(*dims)
    attrs = {"axis": axis, "reduction": reduction}
    (want,) = run_onnx("ScatterElements", [x, indices, updates], attrs)
    np.testing.assert_array_equal(ops.scatter_elements(x, indices, updates, **attrs), want)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_scatter_nd(count: int, reduction: str) -> None:
    x = values(3, 3, 3)
    indices = places(3, 4, 5, count)
    updates = values(4, 5, *x.shape[count:])
    (want,) = run_onnx("ScatterND", [x, indices, updates], {"reduction": reduction})
    made = ops.scatter_nd(x, indices, updates, reduction=reduction)
    np.testing.assert_array_equal(made, want)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scatter(axis: int, reduction: str) -> None:
    x, indices = values(3, 4, 5), places(3, 2, 6)
    updates = values(*x.shape[:axis], 2, 6, *x.shape[axis + 1 :])
    front = np.moveaxis(updates, (axis, axis + 1), (0, 1))
    given = [np.moveaxis(x, axis, 0), indices[..., None], front]
    (want,) = run_onnx("ScatterND", given, {"reduction": reduction})
    made = ops.scatter(x, indices, updates, axis=axis, reduction=reduction)
    np.testing.assert_array_equal(made, np.moveaxis(want, 0, axis))
    if reduction == "add":
        np.testing.assert_array_equal(ops.scatter_add(x, indices, updates, axis=axis), made)


def test_the_last_of_equal_indices_wins_in_row_major_order() -> None:
    x, indices = np.zeros(2), np.array([[1, 0], [1, 1]], order="F")
    updates = np.array([[1.0, 2.0], [3.0, 4.0]], order="F")
    np.testing.assert_array_equal(ops.scatter(x, indices, updates), [2.0, 4.0])
    flat = ops.scatter_elements(x, indices.ravel(), updates.ravel())
    np.testing.assert_array_equal(flat, [2.0, 4.0])
    by_rows = ops.scatter_nd(x, indices[..., None], updates)
    np.testing.assert_array_equal(by_rows, [2.0, 4.0])


def graph_of(name: str, arrays: list[np.ndarray], lowered: bool) -> list[np.ndarray]:
    g = Graph(name)
    nodes = [g.input(f"x{i}", Shape(a.shape, a.dtype)) for i, a in enumerate(arrays)]
    node = g.node(name, nodes, {})
    g.set_outputs(lookup(name).lowered(nodes, node.attrs) if lowered else [node])
    return evaluate(g, {f"x{i}": a for i, a in enumerate(arrays)})


@pytest.mark.parametrize("lowered", [False, True])
@pytest.mark.parametrize("row", [[0, 4], [0, -1], [2, 0], [-1, 4]])
def test_an_index_out_of_range_is_an_error_also_when_lowered(row: list[int], lowered: bool) -> None:
    x, indices = values(2, 4), np.array([row])
    with pytest.raises(Error, match="out of range"):
        graph_of("gather_nd", [x, indices], lowered)
    with pytest.raises(Error, match="out of range"):
        graph_of("scatter_nd", [x, indices, np.ones(1, np.float32)], lowered)
    with pytest.raises(Error, match="out of range"):
        graph_of("scatter_elements", [x, indices, np.ones((1, 2), np.float32)], lowered)


def test_what_does_not_fit_is_refused() -> None:
    x = Shape((2, 3), "f32")
    rows = Shape((4, 3), "i64")
    with pytest.raises(GraphError, match="must be 1 to 2"):
        ops.gather_nd(x, rows)
    with pytest.raises(GraphError, match="may exceed 2"):
        ops.scatter_elements(x, rows, Shape((4, 3), "f32"), axis=1)
    one, two = Shape((1,), "c64"), Shape((2,), "c64")
    with pytest.raises(GraphError, match="complex numbers have no max"):
        ops.scatter(two, Shape((1,), "i64"), one, reduction="max")
    one, two = Shape((1,), "bool"), Shape((2,), "bool")
    with pytest.raises(GraphError, match="takes numbers"):
        ops.scatter(two, Shape((1,), "i64"), one, reduction="add")


@on_cases("tensorscatter", "TensorScatter")
def test_tensor_scatter_cases(case: OnnxCase) -> None:
    got = ops.tensor_scatter(*case.inputs, **case.attrs)
    np.testing.assert_array_equal(got, case.outputs[0])


@pytest.mark.parametrize("axis", [1, 2, -1])
@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode: str, axis: int) -> None:
    cache, update = values(3, 6, 6, 6), np.moveaxis(values(3, 4, 6, 6), 1, axis)
    starts = np.array([0, 2, 1] if mode == "linear" else [5, -1, 1_000_003])
    attrs = {"mode": mode, "axis": axis}
    (want,) = run_onnx("TensorScatter", [cache, update, starts], attrs)
    np.testing.assert_array_equal(ops.tensor_scatter(cache, update, starts, **attrs), want)
    (want,) = run_onnx("TensorScatter", [cache, update], attrs)
    np.testing.assert_array_equal(ops.tensor_scatter(cache, update, **attrs), want)


def test_tensor_scatter_that_does_not_fit() -> None:
    cache, update = values(2, 5, 3), values(2, 2, 3)
    for starts in ([0, 4], [-1, 0], [0, 2**63 - 1]):
        with pytest.raises(Error, match="out of range"):
            ops.tensor_scatter(cache, update, np.array(starts))
    with pytest.raises(GraphError, match="no greater"):
        ops.tensor_scatter(update, cache)
    with pytest.raises(GraphError, match="the batch's"):
        ops.tensor_scatter(cache, update, axis=0)
    with pytest.raises(GraphError, match="batch is 2"):
        ops.tensor_scatter(cache, update, np.array([0]))
