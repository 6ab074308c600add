"""Trees against ONNX's own evaluator, which walks them node by node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference.ops.aionnxml.op_tree_ensemble import AggregationFunction, Leaf, Mode, Node

from rlx import ops

SOURCES = {
    "tree_ensemble": "onnx.reference's nodes and leaves (TreeEnsemble of ai.onnx.ml), one by one",
}

Array = np.ndarray[Any, Any]
DEPTH, COLUMNS = 4, 3


def full(rng: np.random.Generator, trees: int, leaves: int) -> dict[str, Array]:
    """Full trees, breadth first; NaN and ties among the thresholds."""
    size = 2 ** (DEPTH + 1) - 1
    place = np.tile(np.arange(size), trees)
    is_inner = place < 2**DEPTH - 1
    grid = np.array([-1.0, 0.0, 0.5, 1.0, np.nan, np.inf, -np.inf], np.float32)
    return {
        "threshold": rng.choice(grid, len(place)),
        "feature": np.where(is_inner, rng.integers(0, COLUMNS, len(place)),
                            rng.integers(0, leaves, len(place))),
        "child": np.where(is_inner, place + 1, 0),
        "missing": rng.random(len(place)) < 0.5,
        "root": np.arange(trees) * size,
    }  # fmt: skip


def built(tables: dict[str, Array], weight: Array, target: Array, at: int) -> Any:
    """The node of the evaluator at a place of the tables."""
    feature, step = int(tables["feature"][at]), int(tables["child"][at])
    if not step:
        return Leaf(float(weight[feature, 0]), int(target[feature]))
    node = Node(Mode.LEQ, tables["threshold"][at], feature, bool(tables["missing"][at]))
    node.true_branch = built(tables, weight, target, at + step)
    node.false_branch = built(tables, weight, target, at + step + 1)
    return node


@pytest.mark.parametrize("aggregate", [f.name.lower() for f in AggregationFunction])
def test_trees_give_what_their_nodes_do(aggregate: Any) -> None:
    rng = np.random.default_rng(3)
    trees, leaves, targets = 5, 20, 2
    tables = full(rng, trees, leaves)
    weight = (rng.integers(-8, 9, (leaves, 1)) / 4).astype(np.float32)
    target = rng.integers(0, targets, leaves)
    x = rng.choice(np.array([-1.0, 0.0, 0.5, 2.0, np.nan, -np.inf], np.float32), (40, COLUMNS))
    got = ops.tree_ensemble(
        x, *tables.values(), weight, target, n_targets=targets, span=100, aggregate=aggregate
    )
    roots = [built(tables, weight, target, int(r)) for r in tables["root"]]
    for i, row in enumerate(x):
        found = [root.predict(row) for root in roots]
        for k in range(targets):
            own = [float(w) for w, t in found if t == k]
            want = {
                "sum": sum(own), "average": sum(own) / trees,
                "min": min(own, default=np.inf), "max": max(own, default=-np.inf),
            }[aggregate]  # fmt: skip
            assert got[i, k] == np.float32(want)
