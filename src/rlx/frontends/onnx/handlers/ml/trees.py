"""Ensembles of decision trees: random forests, and boosted trees of XGBoost and LightGBM."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.handlers.ml.scores import (
    ML,
    TRANSFORMS,
    above,
    as_floats,
    as_matrix,
    best,
    from_one,
    labelled,
    num_labels,
    regressed,
    transformed,
    two_columns,
)
from rlx.frontends.onnx.handlers.ml.tree_tables import (
    LEAF,
    MEMBER,
    MODES,
    Nodes,
    Tables,
    Weights,
    rounded_down,
    tables_of,
    without_members,
)
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.values import Weight
from rlx.ir.mir import Node

Array = np.ndarray[Any, Any]
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""By the numbers of TreeEnsemble."""
NEUTRAL = {"SUM": 0.0, "AVERAGE": 0.0, "MIN": np.inf, "MAX": -np.inf}


# -- operators ------------------------------------------------------------------------------------


@handles("TreeEnsembleRegressor", domain=ML)
def regressor(call: Call) -> Node:
    """Whatever x is, targets are f32; they are summed in f64."""
    x, aggregate = _rows(call), call.attr("aggregate_function", "SUM")
    count = call.attr("n_targets", 1)
    nodes, index = _listed(call, x)
    weights = _weights(call, "target", index, count, aggregate)
    scores = _with_base(call, _scores(call, x, tables_of(nodes, weights), count, aggregate), count)
    return ops.cast(regressed(scores, call.attr("post_transform", "NONE")), to=DType.F32)


@handles("TreeEnsembleClassifier", domain=ML)
def classifier(call: Call) -> tuple[Any, Node]:
    x, count = _rows(call), num_labels(call)
    nodes, index = _listed(call, x)
    weights = _weights(call, "class", index, max(count, 1), "SUM")
    number, scores = _classes(call, x, nodes, weights, count)
    return labelled(call, number), ops.cast(scores, to=DType.F32)


@handles("TreeEnsemble", domain=ML, since=5)
def ensemble(call: Call) -> Node:
    x = as_matrix(call.node(0))
    aggregate = AGGREGATES[call.attr("aggregate_function", 1)]
    count = call.attr("n_targets", 1)
    nodes, weights = _numbered(call, x, count, aggregate)
    made = _scores(call, x, tables_of(nodes, weights), count, aggregate)
    return regressed(made, TRANSFORMS[call.attr("post_transform", 0)])


# -- scores ---------------------------------------------------------------------------------------


def _scores(call: Call, x: Node, tables: Tables, count: int, aggregate: Any) -> Node:
    columns = x.shape.dims[1]
    inner = tables.feature[tables.child > 0]
    most = int(inner.max(initial=-1))
    if inner.min(initial=0) < 0 or (not isinstance(columns, Dim) and most >= columns):
        raise GraphError(f"{call.label}: a node tests feature {most}, and rows have {columns}")
    names = ("threshold", "feature", "child", "missing", "root", "weight", "target")
    operands: list[Any] = [_table(call, name, getattr(tables, name)) for name in names]
    made = ops.tree_ensemble(
        x, *operands, n_targets=count, span=tables.span, aggregate=aggregate.lower()
    )
    if count == 1 or aggregate in ("SUM", "AVERAGE"):
        return made
    return ops.where(ops.isinf(made), 0.0, made)


def _table(call: Call, name: str, array: Array | None) -> Node | None:
    if array is None:
        return None
    prefix = call.outputs[0] or call.name or call.op
    return call.scope.weight(Weight(f"{prefix}.{name}", array))


def _with_base(call: Call, scores: Node, count: int) -> Node:
    base = _floats(call, "base_values")
    if base is None or not base.size:
        return scores
    if base.size not in (1, count):
        raise GraphError(f"{call.label}: {base.size} base_values for {count} targets")
    return ops.add(scores, call.graph.constant(base.astype(scores.shape.dtype.numpy)))


def _classes(call: Call, x: Node, nodes: Nodes, weights: Weights, count: int) -> tuple[Node, Node]:
    """The numbers and scores of classes.

    Of two classes of which leaves speak for one only, that is the second; runtimes call weights
    that are nowhere negative its share.
    """
    transform = call.attr("post_transform", "NONE")
    is_share = not (weights.weight < 0).any()
    named = np.unique(weights.target)
    if count > 2 or (count == 2 and len(named) > 1):
        made = _scores(call, x, tables_of(nodes, weights), count, "SUM")
        made = _with_base(call, made, count)
        return best(made), transformed(made, transform)
    only = int(named[0]) if len(named) else 0
    one = Weights(weights.leaf, weights.target - only, weights.weight, 1, 0.0)
    made = _scores(call, x, tables_of(nodes, one), 1, "SUM")
    made = _with_one_base(call, made, only)
    if count < 2:
        return above(made, 0.0), transformed(made, "PROBIT" if transform == "PROBIT" else "NONE")
    if only == 0:
        return from_one(made, transform, is_share=is_share)
    both = two_columns(ops.sub(made, made), made)
    return above(made, 0.5 if is_share else 0.0), transformed(both, transform)


def _with_one_base(call: Call, score: Node, number: int) -> Node:
    """The base of the one class that leaves speak for."""
    base = _floats(call, "base_values")
    if base is None or not base.size:
        return score
    own = base[min(number, base.size - 1)]
    return ops.add(score, np.asarray(own, score.shape.dtype.numpy))


# -- trees ----------------------------------------------------------------------------------------


def _rows(call: Call) -> Node:
    return as_floats(as_matrix(call.node(0)))


def _floats(call: Call, name: str) -> Array | None:
    """Numbers that are a list of f32, or a tensor."""
    tensor = call.attr(f"{name}_as_tensor")
    if tensor is not None and tensor.size:
        return tensor.reshape(-1)
    given = call.attr(name)
    return None if given is None else np.asarray(given, np.float32)


def _ints(call: Call, name: str, count: int) -> Array:
    """A list of one number for each of so many."""
    made = np.asarray(call.attr(name, ()), np.int64)
    if len(made) != count:
        raise GraphError(f"{call.label}: {name} has {len(made)} numbers, not {count}")
    return made


def _flags(call: Call, name: str, count: int) -> Array:
    return _ints(call, name, count) != 0 if call.attr(name) else np.zeros(count, bool)


def _compared(value: Array, x: Node) -> Array:
    """Thresholds in the dtype of x, such that tests give what they would."""
    kind = x.shape.dtype.compute.numpy
    if np.dtype(kind).itemsize < value.dtype.itemsize:
        value = rounded_down(value, np.dtype(kind).type)
    value = value.astype(kind)
    own = x.shape.dtype.numpy
    return value if own == kind else rounded_down(value, own.type).astype(own)


def _modes(call: Call, count: int) -> Array:
    given = call.required("nodes_modes")
    if len(given) != count:
        raise GraphError(f"{call.label}: nodes_modes has {len(given)} entries, not {count}")
    try:
        return np.fromiter(map(MODES.__getitem__, given), np.int64, count)
    except KeyError as odd:
        raise GraphError(f"{call.label}: there is no mode {str(odd)[:80]}") from None


class _Index:
    """The numbers of nodes by those that a file gives them: of a tree, and in it."""

    def __init__(self, call: Call, trees: Array, nodes: Array) -> None:
        self.call = call
        self.trees, self.first, rank = np.unique(trees, return_index=True, return_inverse=True)
        self.ids = np.unique(nodes)
        key = self._key(rank, nodes)
        self.order = np.argsort(key, kind="stable")
        self.keys = key[self.order]
        self.rank = rank

    def _key(self, rank: Array, nodes: Array) -> Array:
        at = np.minimum(np.searchsorted(self.ids, nodes), len(self.ids) - 1)
        return np.where(self.ids[at] == nodes, rank * len(self.ids) + at, -1)

    def find(self, rank: Array, nodes: Array) -> Array:
        """The numbers of nodes of trees; -1 where there is none such."""
        key = self._key(rank, nodes)
        at = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        return np.where((self.keys[at] == key) & (key >= 0), self.order[at], -1)

    def ranks(self, trees: Array) -> Array:
        at = np.minimum(np.searchsorted(self.trees, trees), len(self.trees) - 1)
        if (self.trees[at] != trees).any():
            raise GraphError(f"{self.call.label}: a weight is of a tree that is not there")
        return at


def _listed(call: Call, x: Node) -> tuple[Nodes, _Index]:
    """Trees as lists of nodes that name each other by tree and number."""
    trees = np.asarray(call.required("nodes_treeids"), np.int64)
    count = len(trees)
    if not count:
        raise GraphError(f"{call.label}: it has no nodes")
    index = _Index(call, trees, _ints(call, "nodes_nodeids", count))
    values = _floats(call, "nodes_values")
    if values is None or len(values) != count:
        raise GraphError(f"{call.label}: nodes_values are not {count} numbers")
    nodes = Nodes(
        _modes(call, count),
        _ints(call, "nodes_featureids", count),
        _compared(values, x),
        index.find(index.rank, _ints(call, "nodes_truenodeids", count)),
        index.find(index.rank, _ints(call, "nodes_falsenodeids", count)),
        _flags(call, "nodes_missing_value_tracks_true", count),
        index.first,
    )
    if (nodes.mode == MEMBER).any():
        raise GraphError(f"{call.label}: it has no sets to test membership of")
    return nodes, index


def _weights(call: Call, kind: str, index: _Index, count: int, aggregate: str) -> Weights:
    """What leaves give, as lists that name them by tree and number."""
    weight = _floats(call, f"{kind}_weights")
    weight = np.zeros(0, np.float32) if weight is None else weight
    size = len(weight)
    trees, nodes = _ints(call, f"{kind}_treeids", size), _ints(call, f"{kind}_nodeids", size)
    leaf = index.find(index.ranks(trees), nodes) if size else trees
    if (leaf < 0).any():
        raise GraphError(f"{call.label}: a weight is of a node that is not there")
    if aggregate not in NEUTRAL:
        raise GraphError(f"{call.label}: there is no aggregate_function {aggregate[:80]!r}")
    return Weights(leaf, _ints(call, f"{kind}_ids", size), weight, count, NEUTRAL[aggregate])


def _numbered(call: Call, x: Node, targets: int, aggregate: str) -> tuple[Nodes, Weights]:
    """Trees as lists of nodes and of leaves; leaves are numbered behind the nodes."""
    splits, weight = call.required("nodes_splits"), call.required("leaf_weights")
    count, leaves = len(splits), len(weight)
    ends = [
        _ints(call, f"nodes_{side}nodeids", count)
        + np.where(_ints(call, f"nodes_{side}leafs", count) != 0, count, 0)
        for side in ("true", "false")
    ]
    none = np.zeros(leaves, np.int64)
    value = _compared(splits, x)
    nodes = Nodes(
        np.concatenate([call.required("nodes_modes").astype(np.int64), none + LEAF]),
        np.concatenate([_ints(call, "nodes_featureids", count), none]),
        np.concatenate([value, np.zeros(leaves, value.dtype)]),
        np.concatenate([ends[0], none]),
        np.concatenate([ends[1], none]),
        np.concatenate([_flags(call, "nodes_missing_value_tracks_true", count), none != 0]),
        np.asarray(call.required("tree_roots"), np.int64),
    ).checked()
    to = _ints(call, "leaf_targetids", leaves)
    every = count + np.arange(leaves)
    weights = Weights(every, to, weight, targets, NEUTRAL[aggregate])
    return without_members(nodes, _sets(call, value)), weights


def _sets(call: Call, like: Array) -> list[Array]:
    """The members of each set: NaN ends one."""
    given = call.attr("membership_values")
    if given is None:
        return []
    values = given.reshape(-1)
    ends = np.flatnonzero(np.isnan(values))
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else []
    found = [values[a:b] for a, b in zip(starts, ends)]
    return [v[v == v.astype(like.dtype)].astype(like.dtype) for v in found]
