"""The largest, the nonzero, the distinct; and losses, which pick by class."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.onnx.differential.drawing import Array, Draw, Node, Operand, draws, explain, sums


@draws("TopK")
def _top_k(d: Draw) -> Node:
    """Distinct elements where the order of equal ones is not said; then ties."""
    kind = d.kind("T")
    dims = d.dims(1, 4, smallest=1)
    x = d.rng.permutation(int(np.prod(dims))).reshape(dims) % (100 if kind.is_integer else 2000)
    if d.coin(0.4):
        x = d.rng.integers(0, 3, dims)
    x = x.astype(kind.numpy) - (0 if kind.numpy.kind == "u" else 3)
    axis = d.axis(x.ndim) if d.opset >= 11 else d.integer(0, x.ndim - 1)
    count = d.integer(0, dims[axis])
    attrs: dict[str, Any] = {"axis": axis} if axis not in (-1, x.ndim - 1) or d.coin() else {}
    if d.opset < 10:
        return d.node(d.given(x), outputs=2, k=max(count, 1), **attrs)
    attrs |= d.some(largest=d.integer(0, 1))
    return d.node(d.given(x), d.shaping([count]), outputs=2, **attrs)


@draws("NonZero")
def _non_zero(d: Draw) -> Node:
    x = d.tensor(d.dims(0 if d.coin(0.1) else 1, 4), "T")
    return d.node(Operand(np.where(d.rng.random(x.dims) < 0.5, x.array, 0).astype(x.array.dtype)))


@draws("Unique")
def _unique(d: Draw) -> Node:
    kind = d.kind("T")
    x = d.rng.integers(0, 4, d.dims(1, 3, smallest=1)).astype(kind.numpy)
    attrs: dict[str, Any] = {} if d.coin() else {"axis": d.axis(x.ndim)}
    attrs |= d.some(sorted=d.integer(0, 1))
    return d.node(d.given(x), outputs=d.integer(1, 4), **attrs)


@draws("NonMaxSuppression")
def _suppress(d: Draw) -> Node:
    batch, classes, count = d.integer(1, 2), d.integer(1, 3), d.integer(1, 8)
    corners = d.rng.uniform(0, 4, (batch, count, 4)).astype(np.float32)
    form = d.some(center_point_box=d.integer(0, 1))
    scores = d.rng.random((batch, classes, count)).astype(np.float32)
    most = (
        Operand(np.array([d.choice((0, 1, 2, 5, 100))], np.int64), d.coin())
        if d.coin(0.9)
        else None
    )
    overlap = Operand(np.array([d.choice((0.0, 0.3, 0.5, 1.0))], np.float32), d.coin())
    least = (
        Operand(np.array([d.choice((0.0, 0.4, 2.0))], np.float32), d.coin()) if d.coin() else None
    )
    return d.node(
        Operand(corners),
        Operand(scores),
        most,
        overlap if d.coin(0.8) or least else None,
        least,
        **form,
    )


def _classes(d: Draw) -> tuple[Operand, Operand, Operand | None, dict[str, Any]]:
    """Scores, labels, weights and attributes of a loss; some labels are to be ignored."""
    n, c = d.integer(1, 4), d.integer(1, 5)
    rest = tuple(d.integer(1, 3) for _ in range(d.integer(0, 2)))
    kind = d.kind("T")
    scores = d.tensor((n, c, *rest), kind, "plain")
    labels = d.rng.integers(0, c, (n, *rest))
    attrs = d.some(reduction=d.choice(("none", "sum", "mean")))
    if d.coin(0.4):
        attrs["ignore_index"] = d.choice((-1, 0, c, 255))
        labels = np.where(d.rng.random(labels.shape) < 0.3, attrs["ignore_index"], labels)
    labels = labels.astype(d.kind("Tind").numpy)
    weight = d.tensor((c,), kind, "positive") if d.coin() else None
    return scores, d.given(labels), weight, attrs


def _loss(node: Node) -> Array:
    """Without weights of classes."""
    scores, labels = node.array(0).astype(np.float64), node.array(1)
    counts = labels != node.attrs["ignore_index"]
    chosen = np.where(counts, labels, 0)[:, None]
    losses = -np.take_along_axis(scores, chosen, 1)[:, 0] * counts
    how = node.attrs.get("reduction", "mean")
    made = losses if how == "none" else losses.sum() / (counts.sum() if how == "mean" else 1)
    return np.asarray(made).astype(node.array(0).dtype)


def _in_order(node: Node) -> tuple[Array, ...]:
    """Distinct values by where they come first."""
    x, axis = node.array(0), node.attrs.get("axis")
    flat = x.reshape(-1, 1) if axis is None else np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    keys = [tuple(row.tolist()) for row in flat]
    firsts = list({key: keys.index(key) for key in keys}.values())
    ranks = {keys[at]: i for i, at in enumerate(firsts)}
    values = x.reshape(-1)[firsts] if axis is None else np.take(x, firsts, axis)
    numbers = firsts, [ranks[k] for k in keys], [keys.count(keys[at]) for at in firsts]
    return (values, *(np.array(n, np.int64) for n in numbers))[: node.outputs]


explain(
    "NegativeLogLikelihoodLoss",
    right="onnxruntime",
    why="the mean is over labels that are not ignored, as in torch; onnx.reference counts all",
    when=lambda n: "ignore_index" in n.attrs and not n.has(2),
    otherwise=_loss,
)
explain(
    "NonZero",
    right="reference",
    why="a scalar has no axes to count along, as in torch; onnxruntime gives it one",
    when=lambda n: n.array(0).ndim == 0,
)
explain(
    "Unique",
    right="onnxruntime",
    why="without sorting values come in the order of the operand; onnx.reference sorts them",
    when=lambda n: n.attrs.get("sorted", 1) == 0,
    otherwise=_in_order,
)


@draws("NegativeLogLikelihoodLoss")
def _likelihood(d: Draw) -> Node:
    scores, labels, weight, attrs = _classes(d)
    return d.node(scores, labels, weight, tolerance=sums(labels.array.size, 30.0), **attrs)


@draws("SoftmaxCrossEntropyLoss")
def _entropy(d: Draw) -> Node:
    scores, labels, weight, attrs = _classes(d)
    tolerance = sums(labels.array.size + scores.dims[1], 30.0)
    outputs = d.integer(1, 2)
    return d.node(scores, labels, weight, outputs=outputs, tolerance=tolerance, **attrs)


@draws("TfIdfVectorizer")
def _tf_idf(d: Draw) -> Node:
    """Single words and pairs; the pool is of whole numbers."""
    ones = [int(v) for v in d.rng.permutation(6)[: d.integer(1, 4)]]
    pairs = [(a, b) for a in range(4) for b in range(4)]
    twos = [pairs[int(i)] for i in d.rng.permutation(16)[: d.integer(1, 4)]]
    count = len(ones) + len(twos)
    attrs: dict[str, Any] = {
        "mode": d.choice(("TF", "IDF", "TFIDF")),
        "ngram_counts": [0, len(ones)],
        "ngram_indexes": [int(i) for i in d.rng.permutation(count)],
        "pool_int64s": [*ones, *(n for pair in twos for n in pair)],
        "min_gram_length": d.integer(1, 2),
        "max_gram_length": 2,
        "max_skip_count": d.integer(0, 3),
    }
    if d.coin():
        attrs["weights"] = [float(i + 1) / 2 for i in range(count)]
    dims = (d.integer(0, 8),) if d.coin() else (d.integer(1, 3), d.integer(1, 8))
    kind = d.choice((np.int32, np.int64))
    return d.node(d.given(d.rng.integers(0, 6, dims).astype(kind)), **attrs)


explain(
    "TfIdfVectorizer",
    right="onnxruntime",
    why="weights are those of the pool's n-grams; onnx.reference takes them by column",
    when=lambda n: "weights" in n.attrs,
)
