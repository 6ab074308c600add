"""Linear models and support vector machines."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import DimsDiffer
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.handlers.ml.scores import (
    ML,
    above,
    as_matrix,
    best,
    column,
    from_one,
    labelled,
    num_labels,
    regressed,
    transformed,
)
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.values import Weight
from rlx.ir.mir import Node
from rlx.ops.compose import dims_of
from rlx.ops.control_flow import while_loop

Array = np.ndarray[Any, Any]
LEAST, MOST = np.float32(1e-7), np.float32(1 - 1e-7)
"""Probabilities of pairs are kept away from 0 and 1."""
ROUNDS, NEAR = 100, 0.005
"""Of coupling the probabilities of pairs, and how near to a solution ends it."""


# -- linear models --------------------------------------------------------------------------------


@handles("LinearRegressor", domain=ML)
def linear_regressor(call: Call) -> Node:
    scores = _linear(call, _rows(call), call.attr("targets", 1), call.attr("intercepts"))
    return regressed(scores, call.attr("post_transform", "NONE"))


@handles("LinearClassifier", domain=ML)
def linear_classifier(call: Call) -> tuple[Any, Node]:
    """One row of coefficients for two labels speaks for the second of them."""
    x, transform = _rows(call), call.attr("post_transform", "NONE")
    offsets = call.attr("intercepts", ())
    width = _width(call, x, len(offsets) or num_labels(call))
    scores = _linear(call, x, len(call.required("coefficients")) // width, offsets)
    if dims_of(scores)[1] != 1:
        return labelled(call, best(scores)), transformed(scores, transform)
    number = above(scores, 0.0)
    if num_labels(call) == 2:
        return labelled(call, number), from_one(scores, transform, is_share=True)[1]
    return labelled(call, number), transformed(scores, transform)


def _rows(call: Call) -> Node:
    """Linear models compute in f32, whatever x is."""
    return ops.cast(as_matrix(call.node(0)), to=DType.F32)


def _width(call: Call, x: Node, rows: int) -> int:
    """How many features rows have; where x does not say so, as many as coefficients of a score, of
    which there are probably so many."""
    width = x.shape.dims[1]
    if isinstance(width, Dim):
        likely = len(call.required("coefficients")) // max(1, rows)
        raise DimsDiffer(f"{call.label}: rows have {width} features", width, likely)
    if not width:
        raise GraphError(f"{call.label}: rows have no features")
    return int(width)


def _linear(call: Call, x: Node, count: int, offsets: Any) -> Node:
    """x · coefficientsᵀ + offsets."""
    weights = _matrix(call, "coefficients", count)
    if x.shape.dims[1] != weights.shape[1]:
        what = f"{call.label}: {weights.shape[1]} coefficients for rows of {x.shape}"
        raise DimsDiffer(what, x.shape.dims[1], weights.shape[1])
    made = ops.matmul(x, _weight(call, "coefficients", np.ascontiguousarray(weights.T)))
    if not offsets:
        return made
    if len(offsets) not in (1, count):
        raise GraphError(f"{call.label}: {len(offsets)} intercepts for {count} scores")
    return ops.add(made, np.asarray(offsets, np.float32))


def _matrix(call: Call, name: str, rows: int) -> Array:
    given = np.asarray(call.required(name), np.float32)
    if rows < 1 or not given.size or given.size % rows:
        raise GraphError(f"{call.label}: {given.size} {name} are no {rows} rows")
    return given.reshape(rows, -1)


def _weight(call: Call, name: str, array: Array) -> Node:
    prefix = call.outputs[0] or call.name or call.op
    return call.scope.weight(Weight(f"{prefix}.{name}", array))


# -- support vectors ------------------------------------------------------------------------------


@handles("SVMRegressor", domain=ML)
def svm_regressor(call: Call) -> Node:
    """The sign of the decision function as 1 or -1, where only one class was learnt."""
    x, rho = _rows(call), call.required("rho")
    supports = call.attr("n_supports", 0)
    if supports > 0:
        near = _kernel(call, x, _matrix(call, "support_vectors", supports))
        made = _linear(call, near, 1, rho[:1])
    else:
        made = _linear(call, x, 1, rho[:1])
    if call.attr("one_class", 0):
        return ops.where(ops.greater(made, 0.0), np.float32(1), np.float32(-1))
    return regressed(made, call.attr("post_transform", "NONE"))


@handles("SVMClassifier", domain=ML)
def svm_classifier(call: Call) -> tuple[Any, Node]:
    """Without support vectors it is a linear model; with them each pair of classes is judged, and
    most judgements decide."""
    x, classes = _rows(call), max(1, num_labels(call))
    transform = call.attr("post_transform", "NONE")
    counts = call.attr("vectors_per_class", ())
    if not sum(counts):
        scores = _linear(call, x, classes, call.required("rho")[:1])
        number = best(scores) if classes > 1 else above(scores, 0.0)
        return labelled(call, number), transformed(scores, transform)
    if len(counts) != classes or classes < 2:
        raise GraphError(f"{call.label}: vectors of {len(counts)} classes, of {classes} labels")
    near = _kernel(call, x, _matrix(call, "support_vectors", sum(counts)))
    pairs = _pairs(call, near, counts)
    number = best(_votes(call, pairs, classes))
    if call.attr("prob_a"):
        return labelled(call, number), transformed(_coupled(call, pairs, classes), transform)
    if classes > 2:
        return labelled(call, number), transformed(pairs, transform)
    return labelled(call, number), from_one(pairs, transform, is_share=transform != "NONE")[1]


def _kernel(call: Call, x: Node, vectors: Array) -> Node:
    """[rows, vectors]: how near each row is to each support vector."""
    gamma, offset, degree = (*call.attr("kernel_params", (0.0, 0.0, 0.0)), 0.0, 0.0, 0.0)[:3]
    if x.shape.dims[1] != vectors.shape[1]:
        what = f"{call.label}: vectors of {vectors.shape[1]} for rows of {x.shape}"
        raise DimsDiffer(what, x.shape.dims[1], vectors.shape[1])
    kind = call.attr("kernel_type", "LINEAR")
    if kind == "RBF":
        distances = _squared_distances(call, x, vectors)
        return ops.exp(ops.mul(distances, np.float32(-gamma)))
    dot = ops.matmul(x, _weight(call, "support_vectors", np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return dot
    scaled = ops.add(ops.mul(dot, np.float32(gamma)), np.float32(offset))
    match kind:
        case "POLY":
            return ops.pow(scaled, np.float32(degree))
        case "SIGMOID":
            return ops.tanh(scaled)
        case _:
            raise GraphError(f"{call.label}: there is no kernel {kind[:80]!r}")


def _squared_distances(call: Call, x: Node, vectors: Array) -> Node:
    """Σ (x - v)²: not by x² - 2xv + v², which loses all where they are near each other."""
    each = _weight(call, "support_vectors", vectors[None])
    difference = ops.sub(ops.expand_dims(x, axes=(1,)), each)
    return ops.sum(ops.mul(difference, difference), axes=(2,))


def _pairs(call: Call, near: Node, counts: tuple[int, ...]) -> Node:
    """[rows, pairs]: for each two classes what speaks for the first. A vector of class i has its
    coefficients against class j > i in row j - 1, against j < i in row j."""
    classes, total = len(counts), sum(counts)
    given = np.asarray(call.required("coefficients"), np.float32)
    if given.size < (classes - 1) * total:
        raise GraphError(f"{call.label}: {given.size} coefficients, not {(classes - 1) * total}")
    rows = given[: (classes - 1) * total].reshape(classes - 1, total)
    starts = np.concatenate([[0], np.cumsum(counts)])
    both = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    made = np.zeros((len(both), total), np.float32)
    for pair, (i, j) in enumerate(both):
        made[pair, starts[i] : starts[i + 1]] = rows[j - 1, starts[i] : starts[i + 1]]
        made[pair, starts[j] : starts[j + 1]] = rows[i, starts[j] : starts[j + 1]]
    rho = np.asarray(call.required("rho"), np.float32)
    if len(rho) < len(both):
        raise GraphError(f"{call.label}: rho has {len(rho)} numbers, not {len(both)}")
    product = ops.matmul(near, _weight(call, "pairs", np.ascontiguousarray(made.T)))
    return ops.add(product, rho[: len(both)])


def _votes(call: Call, pairs: Node, classes: int) -> Node:
    """[rows, classes]: how many pairs each class wins."""
    both = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    first, second = (np.zeros((len(both), classes), np.float32) for _ in range(2))
    for pair, (i, j) in enumerate(both):
        first[pair, i], second[pair, j] = 1, 1
    wins = ops.cast(ops.greater(pairs, 0.0), to=DType.F32)
    losses = ops.sub(np.float32(1), wins)
    return ops.add(ops.matmul(wins, first), ops.matmul(losses, second))


# -- probabilities --------------------------------------------------------------------------------


def _coupled(call: Call, pairs: Node, classes: int) -> Node:
    """[rows, classes]: probabilities from those of pairs, by the second method of Wu, Lin and Weng
    (2004), as libsvm has it."""
    slopes, offsets = (np.asarray(call.attr(f"prob_{n}"), np.float32) for n in "ab")
    count = classes * (classes - 1) // 2
    if min(len(slopes), len(offsets)) < count:
        raise GraphError(f"{call.label}: prob_a and prob_b are not {count} numbers each")
    margin = ops.add(ops.mul(pairs, slopes[:count]), offsets[:count])
    share = ops.minimum(ops.maximum(ops.sigmoid(ops.neg(margin)), LEAST), MOST)
    table = _quadratic(share, classes)
    start = ops.expand(
        call.graph.constant(np.full((1, classes), 1 / classes, np.float32)),
        dims=(pairs.shape.dims[0], classes),
    )
    rounds = call.graph.constant(np.int32(0))

    def more(p: Any, q: Any, done: Any) -> Any:
        is_open = ops.any(ops.greater_equal(_error(p, q), np.float32(NEAR / classes)))
        return ops.logical_and(is_open, ops.less(done, np.int32(max(ROUNDS, classes))))

    def step(p: Any, q: Any, done: Any) -> Any:
        is_open = ops.greater_equal(_error(p, q), np.float32(NEAR / classes))
        return ops.where(is_open, _round(p, q, classes), p), q, ops.add(done, np.int32(1))

    return while_loop(more, step, start, table, rounds)[0]


def _quadratic(share: Node, classes: int) -> Node:
    """[rows, classes, classes]: Σ r² of the others on the diagonal, else -r of one times r of the
    other."""
    at: dict[tuple[int, int], Node] = {}
    pair = 0
    for i in range(classes):
        for j in range(i + 1, classes):
            at[i, j] = column(share, pair)
            at[j, i] = ops.sub(np.float32(1), at[i, j])
            pair += 1
    cells: list[Node] = []
    for i in range(classes):
        for j in range(classes):
            if i == j:
                squares = [ops.mul(at[k, i], at[k, i]) for k in range(classes) if k != i]
                total = squares[0]
                for square in squares[1:]:
                    total = ops.add(total, square)
                cells.append(total)
            else:
                cells.append(ops.neg(ops.mul(at[j, i], at[i, j])))
    table = ops.concat(cells, axis=1)
    return ops.reshape(table, dims=(share.shape.dims[0], classes, classes))


def _products(p: Any, q: Any) -> tuple[Any, Any]:
    """Q p, and pᵀ Q p."""
    qp = ops.sum(ops.mul(q, ops.expand_dims(p, axes=(1,))), axes=(2,))
    return qp, ops.sum(ops.mul(p, qp), axes=(1,), keepdims=True)


def _error(p: Any, q: Any) -> Any:
    """[rows, 1]: how far Q p is from being the same for all classes."""
    qp, pqp = _products(p, q)
    return ops.max(ops.abs(ops.sub(qp, pqp)), axes=(1,), keepdims=True)


def _round(p: Any, q: Any, classes: int) -> Any:
    """One class after the other is set to where it is best, and all are scaled to a sum of 1."""
    qp, pqp = _products(p, q)
    for t in range(classes):
        row = ops.squeeze(ops.narrow(q, axis=1, start=t, length=1), axes=(1,))
        own = column(row, t)
        diff = ops.div(ops.sub(pqp, column(qp, t)), own)
        whole = ops.add(diff, np.float32(1))
        grown = ops.mul(diff, ops.add(ops.mul(diff, own), ops.mul(column(qp, t), np.float32(2))))
        pqp = ops.div(ops.add(pqp, grown), ops.mul(whole, whole))
        here = np.zeros((1, classes), np.float32)
        here[0, t] = 1
        p = ops.div(ops.add(p, ops.mul(diff, here)), whole)
        qp = ops.div(ops.add(qp, ops.mul(diff, row)), whole)
    return p
