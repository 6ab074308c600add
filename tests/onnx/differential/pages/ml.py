"""Classical models: trees, linear models, support vectors, and what is done to features."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from onnx import numpy_helper

from tests.onnx.differential.drawing import ML, Array, Draw, Node, Operand, draws, explain, sums
from tests.onnx.differential.trees import classified, ensembled, regressed, transformed

LABELS = ([7], [7, 9], [0, 1], [3, 1, 2], [5, 6, 7, 8])
TRANSFORMS = ("NONE", "NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
GRID = np.array([-2, -1, -0.5, 0, 0.5, 1, 2, 3])
"""Values that rows and thresholds share, so that ties come up."""

MEMBERS = GRID[GRID != 0]
"""onnx.reference ends a set at the number 0."""


def rows(d: Draw, columns: int, kind: str, nan: float = 0.1) -> Operand:
    """Rows of features; NaN among them where they are floats."""
    dtype = d.kind(kind)
    x = d.rng.choice(GRID, (d.size(), columns))
    if dtype.is_float and d.coin():
        x = np.where(d.rng.random(x.shape) < nan, np.nan, x)
        x = np.where(d.rng.random(x.shape) < 0.05, d.choice((np.inf, -np.inf)), x)
    return d.given(x.astype(dtype.numpy), known=0.0)


def floats(d: Draw, *dims: int) -> Array:
    """Halves, quarters and eighths: their sums are exact."""
    return d.rng.integers(-16, 17, dims) / 8


# -- trees ----------------------------------------------------------------------------------------


def tree(d: Draw, depth: int) -> list[tuple[str, int, int]]:
    """Nodes of a random tree, those that follow a node behind it: mode, and the two that follow."""
    nodes: list[tuple[str, int, int]] = []
    modes = (d.choice(MODES),) if d.coin(0.6) else MODES

    def grow(left: int) -> int:
        at = len(nodes)
        nodes.append(("LEAF", 0, 0))
        if left and d.coin(0.8):
            true = grow(left - 1)
            nodes[at] = (d.choice(modes), true, grow(left - 1))
        return at

    grow(depth)
    return nodes


def forest(d: Draw, columns: int, prefix: str, targets: int) -> dict[str, Any]:
    """The attributes of both ensembles of the first opsets."""
    trees = [tree(d, d.integer(0, 4)) for _ in range(d.choice((1, 2, 5, 13)))]
    flat = [(t, n, *node) for t, each in enumerate(trees) for n, node in enumerate(each)]
    leaves = [(t, n) for t, n, mode, *_ in flat if mode == "LEAF"]
    each = range(targets) if d.coin() else [d.integer(0, targets - 1)]
    named = [(t, n, k) for t, n in leaves for k in each]
    weights = floats(d, len(named))
    weights = np.abs(weights) if d.coin(0.4) else weights
    attrs: dict[str, Any] = {
        "nodes_treeids": [t for t, *_ in flat],
        "nodes_nodeids": [n for _, n, *_ in flat],
        "nodes_modes": [mode for _, _, mode, *_ in flat],
        "nodes_truenodeids": [f[3] for f in flat],
        "nodes_falsenodeids": [f[4] for f in flat],
        "nodes_featureids": [int(v) for v in d.rng.integers(0, columns, len(flat))],
        "nodes_values": [float(v) for v in d.rng.choice(GRID, len(flat))],
        f"{prefix}_treeids": [t for t, _, _ in named],
        f"{prefix}_nodeids": [n for _, n, _ in named],
        f"{prefix}_ids": [k for _, _, k in named],
        f"{prefix}_weights": [float(w) for w in weights],
    }
    tracks = [int(v) for v in d.rng.integers(0, 2, len(flat))]
    attrs["nodes_missing_value_tracks_true"] = tracks if d.coin() else [0] * len(flat)
    return attrs


def based(d: Draw, count: int) -> dict[str, Any]:
    return {"base_values": [float(v) for v in floats(d, count)]} if d.coin(0.4) else {}


@draws("TreeEnsembleRegressor", domain=ML)
def _(d: Draw) -> Node:
    columns, targets = d.integer(1, 4), d.choice((1, 1, 2, 3))
    attrs = forest(d, columns, "target", targets) | based(d, targets)
    how = d.some(aggregate_function=d.choice(("SUM", "AVERAGE", "MIN", "MAX")))
    transform = {"post_transform": d.choice(TRANSFORMS)} if d.coin(0.3) else {}
    x = rows(d, columns, "T")
    return d.node(x, tolerance=sums(16, 4.0), n_targets=targets, **attrs, **how, **transform)


@draws("TreeEnsembleClassifier", domain=ML)
def _(d: Draw) -> Node:
    columns, labels = d.integer(1, 4), d.choice(LABELS)
    attrs = forest(d, columns, "class", len(labels)) | based(d, len(labels))
    transform = d.some(post_transform=d.choice(TRANSFORMS))
    return d.node(
        rows(d, columns, "T1"), outputs=2, tolerance=sums(16, 4.0),
        classlabels_int64s=labels, **attrs, **transform,
    )  # fmt: skip


@draws("TreeEnsemble", domain=ML)
def _(d: Draw) -> Node:
    """Nodes and leaves apart; sets in the order of their nodes."""
    columns, targets = d.integer(1, 4), d.choice((1, 2, 3))
    x = rows(d, columns, "T")
    dtype = x.array.dtype
    nodes, roots, leaves, sets = numbered(d, columns)
    weights = floats(d, leaves).astype(dtype)
    tensors = {
        "nodes_splits": np.array([n[1] for n in nodes], dtype),
        "nodes_modes": np.array([n[0] for n in nodes], np.uint8),
        "leaf_weights": weights,
        **({"membership_values": np.array(sets, dtype)} if sets else {}),
    }
    lists = {
        "nodes_featureids": [n[2] for n in nodes],
        "nodes_truenodeids": [n[3][0] for n in nodes],
        "nodes_trueleafs": [n[3][1] for n in nodes],
        "nodes_falsenodeids": [n[4][0] for n in nodes],
        "nodes_falseleafs": [n[4][1] for n in nodes],
        "leaf_targetids": [int(v) for v in d.rng.integers(0, targets, leaves)],
        "tree_roots": roots,
    }
    if d.coin():
        tracks = [int(v) for v in d.rng.integers(0, 2, len(nodes))]
        lists["nodes_missing_value_tracks_true"] = tracks
    attrs = {k: numpy_helper.from_array(v, k) for k, v in tensors.items()}
    how = d.some(aggregate_function=d.integer(0, 3))
    return d.node(x, tolerance=sums(16, 4.0), n_targets=targets, **attrs, **lists, **how)


def numbered(d: Draw, columns: int) -> tuple[list[Any], list[int], int, list[float]]:
    """Nodes (mode, split, feature, true, false), roots, the number of leaves, and sets."""
    nodes: list[Any] = []
    roots: list[int] = []
    sets: list[float] = []
    leaves = 0
    for _ in range(d.choice((1, 2, 6))):
        shape = list(tree(d, d.integer(1, 4)))
        if shape[0][0] == "LEAF":
            continue
        inner = [n for n, (kind, *_) in enumerate(shape) if kind != "LEAF"]
        place = {n: len(nodes) + i for i, n in enumerate(inner)}
        roots.append(place[0])
        for n in place:
            mode = d.choice((*range(6), 6))
            ends: list[tuple[int, int]] = []
            for child in shape[n][1:]:
                if child in place:
                    ends.append((place[child], 0))
                else:
                    ends.append((leaves, 1))
                    leaves += 1
            if mode == 6:
                sets += [float(v) for v in d.rng.choice(MEMBERS, d.integer(1, 4))] + [np.nan]
            feature = d.integer(0, columns - 1)
            nodes.append((mode, float(d.choice(GRID)), feature, *ends))
    if not nodes:
        return [(0, 0.5, 0, (0, 1), (1, 1))], [0], 2, []
    return nodes, roots, leaves, sets


def _posted(node: Node) -> str:
    return node.attrs.get("post_transform", "NONE")


def _labels(node: Node) -> int:
    return len(node.attrs["classlabels_int64s"])


def _named(node: Node) -> int:
    return len(set(node.attrs["class_ids"]))


def _is_share(node: Node) -> bool:
    return min(node.attrs["class_weights"], default=0.0) >= 0


def _tests_nan(node: Node) -> bool:
    """Does a test for inequality meet NaN?"""
    return "BRANCH_NEQ" in node.attrs["nodes_modes"] and bool(np.isnan(node.array(0)).any())


PLAIN = ("NONE", "LOGISTIC", "SOFTMAX")
explain(
    "TreeEnsembleClassifier", right="onnxruntime",
    why="onnx.reference makes two columns of one label, and knows no label but 1",
    when=lambda n: _labels(n) == 1,
)  # fmt: skip
explain(
    "TreeEnsembleClassifier", right="onnxruntime",
    why="onnx.reference counts NaN as equal to a number where missing values fail tests",
    when=lambda n: _tests_nan(n) and _named(n) == _labels(n) > 2,
)  # fmt: skip
explain(
    "TreeEnsembleClassifier", right="reference",
    why="of two classes that both have weights onnxruntime gives 1 or 0 by the second score alone, "
    "whatever the labels, and loses a base value",
    when=lambda n: _named(n) == _labels(n) == 2 and _posted(n) in PLAIN and not _tests_nan(n),
)  # fmt: skip
explain(
    "TreeEnsembleClassifier", right="onnxruntime",
    why="where one column speaks for two classes onnx.reference makes their scores by other rules",
    when=lambda n: _labels(n) == 2 and _named(n) == 1 and "base_values" not in n.attrs
    and (_posted(n) != "LOGISTIC" or not _is_share(n))
    and (_posted(n) != "PROBIT" or n.attrs["class_ids"][0] == 1),
)  # fmt: skip
explain(
    "TreeEnsembleClassifier", right="onnxruntime",
    why="onnx.reference takes labels after post_transform, where scores of 0 count for nothing, "
    "and has 0 for the probit of 0 and of 1",
    when=lambda n: _named(n) == _labels(n) > 2 and _posted(n) not in PLAIN,
)  # fmt: skip
explain(
    "TreeEnsembleClassifier", right="reference",
    why="onnxruntime gives no class the label that no leaf reached has a weight for",
    when=lambda n: (
        1 < _named(n) < _labels(n) > 2 and _posted(n) in PLAIN and not _tests_nan(n)
    ),
)  # fmt: skip
explain(
    "TreeEnsembleClassifier", right=classified,
    why="of several of the differences above at once; or a column with a base for each class, or "
    "the probit or logistic of a share: evaluators leave scores unset, or give a label that the "
    "scores deny",
    when=lambda n: _labels(n) == 2 or _named(n) < _labels(n),
)  # fmt: skip
explain(
    "TreeEnsembleRegressor", right=regressed,
    why="onnxruntime leaves out the logistic function of one target, and does not add base values "
    "to targets that no leaf names",
    when=lambda n: (n.attrs["n_targets"] == 1 and _posted(n) == "LOGISTIC")
    or ("base_values" in n.attrs and len(set(n.attrs["target_ids"])) < n.attrs["n_targets"]),
)  # fmt: skip
explain(
    "TreeEnsembleRegressor", right="onnxruntime",
    why="onnx.reference gives the dtype of x, no post_transform, NaN as equal to a number where "
    "missing values fail tests, and the greatest number to a target that no leaf names",
    when=lambda n: n.array(0).dtype != np.float32 or _posted(n) != "NONE" or _tests_nan(n)
    or n.attrs.get("aggregate_function", "SUM") in ("MIN", "MAX"),
    otherwise=regressed,
)  # fmt: skip
explain(
    "TreeEnsemble", right=ensembled,
    why="onnx.reference gives the greatest number to a target that no leaf names; both refuse "
    "some of the trees",
)  # fmt: skip


def _linear(node: Node) -> Array:
    """x · coefficientsᵀ + intercepts."""
    x = node.array(0).astype(np.float64)
    weights = np.reshape(node.attrs["coefficients"], (-1, x.shape[1]))
    return x @ weights.T + node.attrs.get("intercepts", 0.0)


def _two_classes(node: Node) -> tuple[Array, Array]:
    """Of one row of coefficients, which gives the share of the second class."""
    share = _linear(node)
    labels = np.asarray(node.attrs["classlabels_ints"])[(share[:, 0] > 0).astype(int)]
    scores = transformed(np.concatenate([1 - share, share], 1), _posted(node))
    return labels, scores.astype(np.float32)


explain(
    "LinearClassifier", right=_two_classes,
    why="onnxruntime leaves a score of two classes unset: the probit of one row of coefficients",
    when=lambda n: len(n.attrs["intercepts"]) == 1 and _posted(n) == "PROBIT",
)  # fmt: skip
explain(
    "LinearClassifier", right="onnxruntime",
    why="onnx.reference takes labels after post_transform, gives f64 for f64, and other scores of "
    "two classes that share one row of coefficients",
)  # fmt: skip
explain(
    "LinearRegressor", right=lambda n: transformed(_linear(n), "LOGISTIC").astype(np.float32),
    why="onnxruntime leaves out the logistic function of one target",
    when=lambda n: _posted(n) == "LOGISTIC" and n.attrs["targets"] == 1,
)  # fmt: skip
explain(
    "LinearRegressor", right="onnxruntime",
    why="onnx.reference has no post_transform, and NaN without intercepts",
    when=lambda n: (
        "intercepts" not in n.attrs or _posted(n) != "NONE"
    ),
)  # fmt: skip
explain(
    "SVMClassifier", right="onnxruntime",
    why="onnx.reference couples probabilities of more than two classes by a wrong matrix",
    when=lambda n: "prob_a" in n.attrs and len(n.attrs["classlabels_ints"]) > 2,
)  # fmt: skip
explain(
    "SVMClassifier", right="onnxruntime",
    why="onnx.reference makes the scores of two classes by other rules",
    when=lambda n: len(n.attrs["classlabels_ints"]) == 2 and _posted(n) != "NONE",
)  # fmt: skip
explain(
    "SVMClassifier", right="onnxruntime",
    why="onnx.reference gives the second of two classes where no coefficient is negative, whatever "
    "the vote; libsvm, which scikit-learn calls, gives the class that has the vote",
    when=lambda n: len(n.attrs["classlabels_ints"]) == 2 and "vectors_per_class" in n.attrs
    and "prob_a" not in n.attrs and min(n.attrs["coefficients"]) >= 0,
)  # fmt: skip
explain(
    "Normalizer", right="reference",
    why="onnxruntime takes the greatest number for the greatest size",
    when=lambda n: n.attrs["norm"] == "MAX",
)  # fmt: skip
explain(
    "Scaler", right="onnxruntime",
    why="onnx.reference gives the dtype of x",
    when=lambda n: n.array(0).dtype != np.float32,
)  # fmt: skip


# -- linear models and support vectors -------------------------------------------------------------


def numbers(d: Draw, *dims: int) -> list[float]:
    return [float(v) for v in floats(d, *dims).reshape(-1)]


@draws("LinearRegressor", domain=ML)
def _(d: Draw) -> Node:
    columns, targets = d.integer(1, 5), d.integer(1, 3)
    attrs = {"coefficients": numbers(d, targets, columns), "targets": targets}
    if d.coin(0.8):
        attrs["intercepts"] = numbers(d, targets)
    transform = d.some(0.3, post_transform=d.choice(TRANSFORMS))
    x = d.given(floats(d, d.size(1), columns).astype(np.float32), known=0.0)
    return d.node(x, tolerance=sums(16, 4.0), **attrs, **transform)


@draws("LinearClassifier", domain=ML)
def _(d: Draw) -> Node:
    columns, labels = d.integer(1, 5), d.choice(LABELS[1:])
    count = 1 if len(labels) == 2 and d.coin(0.3) else len(labels)
    x = d.given(floats(d, d.size(1), columns).astype(d.kind("T1").numpy), known=0.0)
    return d.node(
        x, outputs=2, tolerance=sums(16, 4.0), coefficients=numbers(d, count, columns),
        intercepts=numbers(d, count), classlabels_ints=labels,
        **d.some(post_transform=d.choice(TRANSFORMS)),
    )  # fmt: skip


def kernel(d: Draw) -> dict[str, Any]:
    return {
        "kernel_type": d.choice(("LINEAR", "POLY", "RBF", "SIGMOID")),
        "kernel_params": [0.25, 0.5, float(d.integer(1, 3))],
    }


@draws("SVMRegressor", domain=ML)
def _(d: Draw) -> Node:
    columns, supports = d.integer(1, 5), d.integer(0, 4)
    x = d.given(floats(d, d.size(1), columns).astype(np.float32), known=0.0)
    attrs = {"coefficients": numbers(d, supports or columns), "rho": numbers(d, 1)}
    if supports:
        attrs["support_vectors"] = numbers(d, supports, columns)
    how = kernel(d) if supports else kernel(d) | {"kernel_type": "LINEAR"}
    return d.node(
        x, tolerance=sums(64, 16.0), n_supports=supports, **attrs, **how,
        **d.some(0.3, one_class=1),
    )  # fmt: skip


@draws("SVMClassifier", domain=ML)
def _(d: Draw) -> Node:
    columns, labels = d.integer(1, 5), d.choice(LABELS[1:])
    classes = len(labels)
    pairs, counts = classes * (classes - 1) // 2, [d.integer(1, 3) for _ in labels]
    x = d.given(floats(d, d.size(1), columns).astype(np.float32), known=0.0)
    rho = [v + 0.0137 for v in numbers(d, pairs)]  # no pair is a tie, which rounding would decide
    attrs: dict[str, Any] = {"rho": rho, "classlabels_ints": labels, **kernel(d)}
    if d.coin(0.2) and classes > 2:
        attrs |= {"coefficients": numbers(d, classes, columns), "kernel_type": "LINEAR"}
    else:
        attrs |= {
            "coefficients": numbers(d, classes - 1, sum(counts)), "vectors_per_class": counts,
            "support_vectors": numbers(d, sum(counts), columns),
        }  # fmt: skip
        if d.coin():
            attrs |= {"prob_a": [-abs(v) for v in numbers(d, pairs)], "prob_b": numbers(d, pairs)}
    return d.node(
        x, outputs=2, tolerance=sums(256, 16.0), **attrs,
        **d.some(0.5, post_transform=d.choice(("NONE", "LOGISTIC", "SOFTMAX"))),
    )  # fmt: skip


# -- features -------------------------------------------------------------------------------------


@draws("Scaler", domain=ML)
def _(d: Draw) -> Node:
    columns = d.integer(1, 5)
    x = rows(d, columns, "T")
    widths = [1 if d.coin(0.3) else columns] * 2
    return d.node(x, offset=numbers(d, widths[0]), scale=numbers(d, widths[1]))


@draws("Binarizer", domain=ML)
def _(d: Draw) -> Node:
    x = d.given(floats(d, *d.dims(1, 3)).astype(np.float32), known=0.0)
    return d.node(x, **d.some(threshold=d.choice((0.0, 0.5, -1.0))))


@draws("Normalizer", domain=ML)
def _(d: Draw) -> Node:
    x = d.given(floats(d, d.size(1), d.integer(1, 6)).astype(np.float32), known=0.0)
    return d.node(x, tolerance=sums(8), norm=d.choice(("MAX", "L1", "L2")))


@draws("Imputer", domain=ML)
def _(d: Draw) -> Node:
    columns = d.integer(1, 5)
    x = rows(d, columns, "T")
    count = 1 if d.coin(0.3) else columns
    if x.array.dtype.kind == "i":
        filler = [int(v) for v in d.rng.integers(-5, 5, count)]
        return d.node(x, imputed_value_int64s=filler, replaced_value_int64=d.integer(-1, 1))
    old = d.choice((float("nan"), 0.5, 1.0))
    return d.node(x, imputed_value_floats=numbers(d, count), replaced_value_float=old)


@draws("OneHotEncoder", domain=ML)
def _(d: Draw) -> Node:
    dtype = d.kind("T")
    x = d.given(d.rng.integers(0, 4, d.dims(1, 2, 1)).astype(dtype.numpy), known=0.0)
    zeros = d.choice((0, 1))
    categories = [3, 1, 0, 2] if not zeros else [3, 0]
    return d.node(x, cats_int64s=categories, zeros=zeros)


@draws("LabelEncoder", domain=ML)
def _(d: Draw) -> Node:
    """Of numbers, which the second opset brought."""
    count, (kind, whole) = d.integer(1, 5), d.choice((("floats", False), ("int64s", True)))
    to = d.choice(("floats", "int64s"))
    keys = d.rng.permutation(np.arange(8))[:count]
    x = d.rng.integers(0, 8, d.dims(1, 3)).astype(np.int64 if whole else np.float32)
    values = [int(v) for v in d.rng.integers(-9, 9, count)] if to == "int64s" else numbers(d, count)
    default = {"default_int64": 5} if to == "int64s" else {"default_float": 0.5}
    listed = [int(k) if whole else float(k) for k in keys]
    node = d.node(
        d.given(x, known=0.0), **{f"keys_{kind}": listed, f"values_{to}": values}, **default
    )
    return replace(node, opset=max(2, d.opset))


@draws("ArrayFeatureExtractor", domain=ML)
def _(d: Draw) -> Node:
    dims = d.dims(1, 3, 1)
    x = d.given(floats(d, *dims).astype(np.float32), known=0.0)
    which = d.rng.integers(0, dims[-1], d.integer(1, 4))
    return d.node(x, d.given(which[None] if d.coin() else which, known=0.5))


@draws("FeatureVectorizer", domain=ML)
def _(d: Draw) -> Node:
    count, widths = d.size(1), [d.integer(1, 4) for _ in range(d.integer(1, 3))]
    given = [d.given(floats(d, count, w).astype(np.float32), known=0.0) for w in widths]
    return d.node(*given, inputdimensions=[max(1, w + d.choice((0, 0, 1, -1))) for w in widths])
