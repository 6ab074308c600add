"""Ensembles of trees by their definition: each row through each tree, node by node."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np
from onnx import numpy_helper

from tests.onnx.differential.drawing import Array, Node

TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "BRANCH_LEQ": operator.le, "BRANCH_LT": operator.lt, "BRANCH_GTE": operator.ge,
    "BRANCH_GT": operator.gt, "BRANCH_EQ": operator.eq, "BRANCH_NEQ": operator.ne,
}  # fmt: skip
WINITZKI = 0.147
"""Of the approximation of the inverse error function that PROBIT is by."""


def regressed(node: Node) -> Array:
    """Targets, f32; a target that no leaf names is 0 and its base."""
    count, how = node.attrs["n_targets"], node.attrs.get("aggregate_function", "SUM")
    scores = summed(node, "target", count, how) + node.attrs.get("base_values", 0.0)
    transform = node.attrs.get("post_transform", "NONE")
    if count == 1 and transform.startswith("SOFTMAX"):
        transform = "NONE"
    return transformed(scores, transform).astype(np.float32)


def classified(node: Node) -> tuple[Array, Array]:
    """Labels and scores. Leaves that name one of two classes give a score of the second one, which
    is its share where no weight is negative."""
    labels, named = node.attrs["classlabels_int64s"], sorted(set(node.attrs["class_ids"]))
    transform = node.attrs.get("post_transform", "NONE")
    scores = summed(node, "class", len(labels), "SUM") + node.attrs.get("base_values", 0.0)
    if len(labels) != 2 or len(named) != 1:
        number = scores.argmax(1)
    else:
        one, is_share = scores[:, named], min(node.attrs["class_weights"]) >= 0
        has_half = is_share and not (named == [0] and transform == "LOGISTIC")
        number = (one[:, 0] > (0.5 if has_half else 0)).astype(np.int64)
        scores = np.concatenate([_other(one, named[0], transform, is_share), one], 1)
    made = transformed(scores, transform if _is_transformed(len(labels), named, transform) else "")
    return np.asarray(labels)[number], made.astype(np.float32)


def _other(one: Array, number: int, transform: str, is_share: bool) -> Array:
    """The score of the first class: nothing, what is left of 1, or what speaks against it."""
    if number == 1:
        return one - one
    has_rest = transform == "PROBIT" or (is_share and transform != "LOGISTIC")
    return 1 - one if has_rest else -one


def _is_transformed(count: int, named: list[int], transform: str) -> bool:
    """The two scores that come of one are a softmax of nothing else."""
    return not (count == 2 and named == [0]) or not transform.startswith("SOFTMAX")


def summed(node: Node, prefix: str, count: int, how: str) -> Array:
    """[rows, targets] of all trees."""
    attrs, x = node.attrs, node.array(0).astype(np.float64)
    places = list(zip(attrs["nodes_treeids"], attrs["nodes_nodeids"]))
    index = {place: i for i, place in enumerate(places)}
    given: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for tree, leaf, target, weight in zip(
        *(attrs[f"{prefix}_{part}"] for part in ("treeids", "nodeids", "ids", "weights"))
    ):
        given.setdefault((tree, leaf), []).append((target, weight))
    trees = sorted(set(attrs["nodes_treeids"]))
    made = np.zeros((len(x), count))
    for row, features in enumerate(x):
        leaves = [_leaf(attrs, index, tree, features) for tree in trees]
        for target in range(count):
            weights = [w for leaf in leaves for t, w in given.get(leaf, []) if t == target]
            made[row, target] = _joined(weights, how, len(trees))
    return made


def _leaf(attrs: Any, index: dict[tuple[int, int], int], tree: int, row: Array) -> tuple[int, int]:
    """Where a row ends in a tree; what is missing passes a test that says so."""
    place = (tree, 0)
    while attrs["nodes_modes"][i := index[place]] != "LEAF":
        value = row[attrs["nodes_featureids"][i]]
        passes = TESTS[attrs["nodes_modes"][i]](value, attrs["nodes_values"][i])
        passes = passes or (np.isnan(value) and attrs["nodes_missing_value_tracks_true"][i] == 1)
        place = (tree, attrs["nodes_truenodeids" if passes else "nodes_falsenodeids"][i])
    return place


def ensembled(node: Node) -> Array:
    """Of TreeEnsemble, whose nodes and leaves are numbered apart."""
    attrs, x = node.attrs, node.array(0)
    leaf_weights = numpy_helper.to_array(attrs["leaf_weights"]).astype(np.float64)
    how = ("AVERAGE", "SUM", "MIN", "MAX")[attrs.get("aggregate_function", 1)]
    roots, made = attrs["tree_roots"], np.zeros((len(x), attrs["n_targets"]))
    tests = _numbered_tests(attrs)
    for row, features in enumerate(x.astype(np.float64)):
        leaves = [_numbered_leaf(attrs, tests, root, features) for root in roots]
        for target in range(made.shape[1]):
            weights = [leaf_weights[i] for i in leaves if attrs["leaf_targetids"][i] == target]
            made[row, target] = _joined(weights, how, len(roots))
    return made.astype(x.dtype)


def _numbered_tests(attrs: Any) -> list[Callable[[Any], bool]]:
    """Of every node; sets follow one another in the order of their nodes, each up to a NaN."""
    modes, splits = (numpy_helper.to_array(attrs[f"nodes_{k}"]) for k in ("modes", "splits"))
    members = attrs.get("membership_values")
    values = iter(() if members is None else numpy_helper.to_array(members).tolist())
    made: list[Callable[[Any], bool]] = []
    for mode, split in zip(modes, splits.astype(np.float64)):
        if mode == len(TESTS):
            made.append(set(takewhile(lambda v: v == v, values)).__contains__)
        else:
            made.append(partial(_passes, list(TESTS.values())[mode], split))
    return made


def _passes(test: Callable[[Any, Any], bool], split: Any, value: Any) -> bool:
    return test(value, split)


def _numbered_leaf(attrs: Any, tests: list[Callable[[Any], bool]], at: int, row: Array) -> int:
    is_leaf, tracks = 0, attrs.get("nodes_missing_value_tracks_true", [0] * len(tests))
    while not is_leaf:
        value = row[attrs["nodes_featureids"][at]]
        way = "true" if tests[at](value) or (np.isnan(value) and tracks[at]) else "false"
        at, is_leaf = attrs[f"nodes_{way}nodeids"][at], attrs[f"nodes_{way}leafs"][at]
    return at


def _joined(weights: list[float], how: str, trees: int) -> float:
    if how in ("MIN", "MAX"):
        return (min if how == "MIN" else max)(weights, default=0.0)
    return sum(weights) / (trees if how == "AVERAGE" else 1)


def transformed(scores: Array, how: str) -> Array:
    """[rows, targets] after post_transform."""
    if how == "LOGISTIC":
        return 1 / (1 + np.exp(-scores))
    if how == "PROBIT":
        x = 2 * scores - 1
        log = np.log((1 - x) * (1 + x))
        v = 2 / (np.pi * WINITZKI) + log / 2
        return np.where(x < 0, -1, 1) * np.sqrt(2 * (np.sqrt(v * v - log / WINITZKI) - v))
    power = np.exp(scores - scores.max(1, keepdims=True))
    if how == "SOFTMAX":
        return power / power.sum(1, keepdims=True)
    if how == "SOFTMAX_ZERO":
        power = np.where(np.abs(scores) > 1e-7, power, 0.0)
        total = power.sum(1, keepdims=True)
        return np.where(total == 0, 0.5, power / np.where(total == 0, 1, total))
    return scores
