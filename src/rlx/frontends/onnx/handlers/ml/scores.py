"""What classifiers and regressors of ai.onnx.ml have in common: scores and labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.frontends.onnx.handlers.ml.label_tables import as_ids, is_text
from rlx.frontends.onnx.id_tensors import meaning
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.strings import TEXT
from rlx.ir.mir import Node
from rlx.ops.compose import dims_of

ML = "ai.onnx.ml"
WINITZKI = 0.147
"""The constant of his approximation of the inverse error function, which ONNX's PROBIT is by."""
NEAR_ZERO = 1e-7
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""By the numbers of TreeEnsemble."""


def as_matrix(x: Node) -> Node:
    """Rows of features: one row where there is one axis."""
    if x.shape.rank == 1:
        return ops.expand_dims(x, axes=(0,))
    if x.shape.rank != 2:
        raise GraphError(f"it takes rows of features, not {x.shape}")
    return x


def as_floats(x: Node) -> Node:
    """Integers as f32, as runtimes do; floats as they are."""
    return x if x.shape.dtype.is_float else ops.cast(x, to=DType.F32)


# -- labels ---------------------------------------------------------------------------------------


def labels_of(call: Call) -> tuple[int, ...] | tuple[str, ...]:
    """The labels of a classifier's classes, in order; 0 and 1 where fewer than two are given."""
    for name in ("classlabels_strings", "classlabels_int64s", "classlabels_ints"):
        if call.attr(name):
            found: Sequence[Any] = call.attr(name)
            is_text = isinstance(found[0], str)
            return tuple(found) if len(found) > 1 else ("0", "1") if is_text else (0, 1)
    return (0, 1)


def num_labels(call: Call) -> int:
    """How many labels a classifier gives."""
    names = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")
    return max(len(call.attr(name, ())) for name in names)


def labelled(call: Call, number: Node) -> Any:
    """The labels of classes that are given by their numbers, i64[rows].

    All classifiers end here. Labels that are strings are given by their ids.
    """
    labels = labels_of(call)
    if labels == tuple(range(len(labels))):
        return number
    found = ops.gather(call.graph.constant(as_ids(call, labels)), number, axis=0)
    return meaning(found, TEXT if is_text(labels) else None)


# -- scores ---------------------------------------------------------------------------------------


def two_columns(first: Node, second: Node) -> Node:
    return ops.concat([first, second], axis=1)


def column(scores: Node, number: int) -> Node:
    return ops.narrow(scores, axis=1, start=number, length=1)


def transformed(scores: Node, transform: str) -> Node:
    """[rows, classes] after `post_transform`."""
    if transform not in _FUNCTIONS:
        raise GraphError(f"there is no post_transform {transform[:80]!r}")
    return _FUNCTIONS[transform](scores)


def _softmax_zero(scores: Node) -> Node:
    """Softmax of the scores that are not 0, which stay 0; where all are, one half each."""
    top = ops.max(scores, axes=(1,), keepdims=True)
    is_some = ops.greater(ops.abs(scores), NEAR_ZERO)
    power = ops.exp(ops.where(is_some, ops.sub(scores, top), ops.neg(top)))
    parts = ops.where(is_some, power, ops.mul(power, scores))
    total = ops.sum(parts, axes=(1,), keepdims=True)
    return ops.where(ops.equal(total, 0.0), 0.5, ops.div(parts, total))


def _probit(scores: Node) -> Node:
    """√2 · erf⁻¹(2p - 1): erf⁻¹ squared is √(v² - l / a) - v, where l is log(1 - x²) and v is
    2 / (π a) + l / 2."""
    x = ops.sub(ops.mul(scores, 2.0), 1.0)
    log = ops.log(ops.mul(ops.sub(1.0, x), ops.add(1.0, x)))
    v = ops.add(ops.mul(log, 0.5), 2.0 / (np.pi * WINITZKI))
    square = ops.sub(ops.sqrt(ops.sub(ops.mul(v, v), ops.div(log, WINITZKI))), v)
    size = ops.mul(ops.sqrt(square), 2.0**0.5)
    return ops.where(ops.less(x, 0.0), ops.neg(size), size)


def _same(scores: Node) -> Node:
    return scores


_FUNCTIONS: dict[str, Callable[[Node], Node]] = {
    "NONE": _same,
    "SOFTMAX": lambda scores: ops.softmax(scores, axis=-1),
    "LOGISTIC": ops.sigmoid,
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}


def regressed(scores: Node, transform: str) -> Node:
    """Targets after `post_transform`. Softmax of one target alone would be 1: it is left out."""
    is_one = dims_of(scores)[1] == 1 and transform in ("SOFTMAX", "SOFTMAX_ZERO")
    return transformed(scores, "NONE" if is_one else transform)


def from_one(score: Node, transform: str, *, is_share: bool) -> tuple[Node, Node]:
    """The class and the scores of two classes, of which one score says all: the share of the second
    one, or what speaks for it and against the other."""
    if transform == "LOGISTIC":
        scores = ops.sigmoid(two_columns(ops.neg(score), score))
        return above(score, 0.0), scores
    if is_share or transform == "PROBIT":
        scores = two_columns(ops.sub(1.0, score), score)
        scores = _probit(scores) if transform == "PROBIT" else scores
    else:
        scores = two_columns(ops.neg(score), score)
    return above(score, 0.5 if is_share else 0.0), scores


def above(score: Node, limit: float) -> Node:
    """i64[rows]: 1 where the one score of a row is above the limit."""
    flat = ops.squeeze(score, axes=(1,))
    return ops.cast(ops.greater(flat, limit), to=DType.I64)


def best(scores: Node) -> Node:
    """The number of the best class, the first of equals."""
    return ops.cast(ops.argmax(scores, axis=1), to=DType.I64)
