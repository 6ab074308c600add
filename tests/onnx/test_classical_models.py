"""Classical models: trees by their tables, and rules that evaluators do not agree on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import rlx
from rlx.core.errors import GraphError
from rlx.frontends.onnx.handlers.ml.tree_tables import LEAF, LEQ, Nodes, Weights, tables_of
from rlx.frontends.onnx.protobuf_wire import Bulk
from rlx.onnx_backend import Backend

ML = "ai.onnx.ml"
Array = np.ndarray[Any, Any]


def model(op: str, x: Array, outputs: int, opset: int = 3, **attrs: Any) -> Any:
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, ["x"], names, domain=ML, **attrs)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", kind, ["n", x.shape[1]])],
        [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in names],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, opset)]
    return helper.make_model(graph, opset_imports=opsets)


def stump(prefix: str, columns: list[int], weights: list[float], **more: Any) -> dict[str, Any]:
    """x ≤ 0 or not: a weight of each column for either leaf."""
    leaves = [leaf for leaf in (1, 2) for _ in columns]
    return {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.0, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
        f"{prefix}_treeids": [0] * len(leaves), f"{prefix}_nodeids": leaves,
        f"{prefix}_ids": columns * 2, f"{prefix}_weights": weights, **more,
    }  # fmt: skip


X = np.array([[-1.0], [1.0]], np.float32)


@pytest.mark.parametrize(
    ("columns", "weights", "more", "labels", "scores"),
    [
        # as onnxruntime has them: a share, and what speaks for the second class
        ([0], [0.3, 0.6], {}, [7, 9], [[0.7, 0.3], [0.4, 0.6]]),
        ([0], [-0.2, 0.1], {}, [7, 9], [[0.2, -0.2], [-0.1, 0.1]]),
        ([1], [0.4, 0.7], {}, [7, 9], [[0.0, 0.4], [0.0, 0.7]]),
        ([0], [0.3, 0.6], {"base_values": [0.05]}, [7, 9], [[0.65, 0.35], [0.35, 0.65]]),
        # what learners mean by the logistic function: a score above 0 is the second class
        ([0], [0.3, -0.6], {"post_transform": "LOGISTIC"}, [9, 7],
         [[0.425557, 0.574443], [0.645656, 0.354344]]),
        ([0], [0.3, 0.6], {"post_transform": "LOGISTIC"}, [9, 9],
         [[0.425557, 0.574443], [0.354344, 0.645656]]),
        # two columns: the greater score, each with its base
        ([0, 1], [0.3, 0.4, 0.8, 0.7], {}, [9, 7], [[0.3, 0.4], [0.8, 0.7]]),
        ([0, 1], [0.3, 0.4, 0.8, 0.7], {"base_values": [0.2, 0.0]}, [7, 7],
         [[0.5, 0.4], [1.0, 0.7]]),
    ],
)  # fmt: skip
def test_two_classes(
    columns: list[int], weights: list[float], more: Any, labels: list[int], scores: Any
) -> None:
    attrs = stump("class", columns, weights, classlabels_int64s=[7, 9], **more)
    label, score = Backend.prepare(model("TreeEnsembleClassifier", X, 2, **attrs)).run([X])
    assert label.tolist() == labels
    np.testing.assert_allclose(score, scores, rtol=1e-5)  # six digits are written above


def test_a_regressor_of_one_target_takes_the_logistic_function_it_asks_for() -> None:
    attrs = stump("target", [0], [0.5, -0.5], n_targets=1, post_transform="LOGISTIC")
    (made,) = Backend.prepare(model("TreeEnsembleRegressor", X, 1, **attrs)).run([X])
    np.testing.assert_allclose(made, 1 / (1 + np.exp([[-0.5], [0.5]])), rtol=1e-6)


def test_f64_rows_are_compared_and_summed_in_f64() -> None:
    """A threshold and a weight that f32 does not have; the result is f32, as ONNX declares."""
    edge, step = 0.1, 2.0**-40
    x = np.array([[edge], [edge + step]])
    attrs = stump("target", [0], [0.0, 0.0], n_targets=1)
    del attrs["nodes_values"], attrs["target_weights"]
    attrs["nodes_values_as_tensor"] = numpy_helper.from_array(np.array([edge, 0.0, 0.0]))
    attrs["target_weights_as_tensor"] = numpy_helper.from_array(np.array([1.0, 2.0]))
    (made,) = Backend.prepare(model("TreeEnsembleRegressor", x, 1, **attrs)).run([x])
    assert made.dtype == np.float32
    assert made.tolist() == [[1.0], [2.0]]


def test_trees_may_be_listed_in_any_order_with_any_numbers() -> None:
    order = [2, 0, 3, 1]
    lists = {
        "nodes_treeids": [5, 5, 2, 5], "nodes_nodeids": [40, 10, 7, 30],
        "nodes_modes": ["BRANCH_GT", "LEAF", "LEAF", "LEAF"],
        "nodes_truenodeids": [30, 0, 0, 0], "nodes_falsenodeids": [10, 0, 0, 0],
        "nodes_featureids": [0, 0, 0, 0], "nodes_values": [0.0, 0.0, 0.0, 0.0],
    }  # fmt: skip
    shuffled = {k: [v[i] for i in (0, *(o for o in order if o))] for k, v in lists.items()}
    leaves = {
        "target_treeids": [2, 5, 5], "target_nodeids": [7, 30, 10],
        "target_ids": [0, 0, 0], "target_weights": [10.0, 1.0, 2.0], "n_targets": 1,
    }  # fmt: skip
    for given in (lists, shuffled):
        made = Backend.prepare(model("TreeEnsembleRegressor", X, 1, **given, **leaves)).run([X])
        assert made[0].tolist() == [[12.0], [11.0]]


def test_a_number_between_the_keys_is_no_key() -> None:
    x = np.array([[0, 1, 3, 5, 7, 9]])
    attrs = {"keys_int64s": [7, 0, 3], "values_int64s": [1, 2, 3], "default_int64": -5}
    (made,) = Backend.prepare(model("LabelEncoder", x, 1, **attrs)).run([x])
    assert made.tolist() == [[2, -5, 3, -5, 1, -5]]


# -- tables ---------------------------------------------------------------------------------------


def chain(depth: int, share: bool) -> Nodes:
    """Tests that all lead on to one node when they fail, and to a leaf each when they pass; or
    both to the next."""
    count = depth + 1
    true = np.append(np.arange(1, depth + 1), 0)
    false = true.copy() if share else np.append(np.full(depth, depth), 0)
    return Nodes(
        np.append(np.full(depth, LEQ), LEAF), np.zeros(count, np.int64),
        np.zeros(count, np.float32), true, false, np.zeros(count, bool), np.zeros(1, np.int64),
    )  # fmt: skip


ONE = Weights(np.array([30]), np.array([0]), np.array([1.0], np.float32), 1, 0.0)


@pytest.mark.parametrize("share", [True, False])
def test_nodes_that_several_lead_to_do_not_multiply(share: bool) -> None:
    """Thirty tests whose two ends meet again are 2³⁰ paths, and 61 rows of the table."""
    made = tables_of(chain(30, share), ONE)
    assert len(made.child) == 61
    assert made.child.min() >= 0
    assert (np.flatnonzero(made.child) + made.child[made.child > 0] + 1 < 61).all()


def test_a_node_that_leads_back_is_an_error() -> None:
    nodes = chain(30, False)
    nodes.true[29] = 3
    with pytest.raises(GraphError, match="leads back to itself"):
        tables_of(nodes, ONE)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"nodes_truenodeids": [9, 0, 0]}, "does not exist"),
        ({"nodes_modes": ["BRANCH_ODD", "LEAF", "LEAF"]}, "there is no mode"),
        ({"nodes_featureids": [3, 0, 0]}, "feature 3"),
        ({"nodes_featureids": [0, 0]}, "nodes_featureids has 2 numbers, not 3"),
        ({"target_nodeids": [1, 9]}, "node that is not there"),
        ({"target_treeids": [0, 4]}, "tree that is not there"),
        ({"target_ids": [0, 4]}, "none of the 1 targets"),
        ({"base_values": [1.0, 2.0, 3.0]}, "3 base_values for 1 targets"),
        ({"post_transform": "ODD"}, "there is no post_transform"),
    ],
)
def test_trees_that_make_no_sense_are_refused(change: dict[str, Any], text: str) -> None:
    attrs = stump("target", [0], [1.0, 2.0], n_targets=1) | change
    with pytest.raises(rlx.Error, match=text) as found:
        Backend.prepare(model("TreeEnsembleRegressor", X, 1, **attrs)).run([X])
    assert "ONNX TreeEnsembleRegressor" in str(found.value)


# -- files ----------------------------------------------------------------------------------------


def test_long_lists_are_left_to_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of trees is lists of numbers, each a field of its own: they are not walked over."""
    leaves = 20_000
    lists = {
        "nodes_treeids": list(range(leaves)), "nodes_nodeids": [0] * leaves,
        "nodes_modes": ["LEAF"] * leaves, "nodes_truenodeids": [0] * leaves,
        "nodes_falsenodeids": [0] * leaves, "nodes_featureids": [0] * leaves,
        "nodes_values": [0.0] * leaves, "target_treeids": list(range(leaves)),
        "target_nodeids": [0] * leaves, "target_ids": [0] * leaves,
        "target_weights": [0.5] * leaves, "n_targets": 1,
    }  # fmt: skip
    made = model("TreeEnsembleRegressor", X, 1, **lists)
    calls = 0
    plain = Bulk._varint  # pyright: ignore[reportPrivateUsage]

    def counted(self: Bulk, at: int, end: int) -> tuple[int, int]:
        nonlocal calls
        calls += 1
        return plain(self, at, end)

    monkeypatch.setattr(Bulk, "_varint", counted)
    light = Bulk(memoryview(made.SerializeToString())).light()
    assert light == made.SerializeToString()
    assert calls < 200
    (got,) = Backend.prepare(made).run([X])
    assert got.tolist() == [[leaves * 0.5]] * 2
