"""Losses, and numbers drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.dim import DimLike
from rlx.dtype import DType
from rlx.ir.mir import Node
from rlx.onnx.call import Call
from rlx.onnx.handlers import handles

RANDOM = "its result is random, and rlx gives the same result for the same inputs"


@handles("NegativeLogLikelihoodLoss")
def nll_loss(call: Call) -> Node:
    return ops.nll_loss(*call.nodes(), **_how(call))


@handles("SoftmaxCrossEntropyLoss")
def cross_entropy(call: Call) -> tuple[Node, ...]:
    """And the logarithms of the probabilities, where they are asked for."""
    made = ops.softmax_cross_entropy(*call.nodes(), **_how(call))
    return (made, ops.log_softmax(call.node(0), axis=1)) if call.wants(1) else (made,)


def _how(call: Call) -> dict[str, Any]:
    reduction = call.attr("reduction", "mean")
    return {"axis": 1, "reduction": reduction, "ignore_index": call.attr("ignore_index")}


# -- random numbers -------------------------------------------------------------------------------


@handles("RandomNormal", "RandomUniform")
def random(call: Call) -> Node:
    dtype = call.importer.reader.dtype(call.attr("dtype", 1), call.label)
    return _certain(call, call.required("shape"), dtype)


@handles("RandomNormalLike", "RandomUniformLike")
def random_like(call: Call) -> Node:
    x, given = call.shape(0), call.attr("dtype")
    dtype = x.dtype if given is None else call.importer.reader.dtype(given, call.label)
    return _certain(call, x.dims, dtype)


def _certain(call: Call, dims: tuple[DimLike, ...], dtype: DType) -> Node:
    """What is drawn where all draws are the same."""
    if call.op.startswith("RandomNormal"):
        value, width = call.attr("mean", 0.0), call.attr("scale", 1.0)
    else:
        value = call.attr("low", 0.0)
        width = call.attr("high", 1.0) - value
    if width != 0:
        raise call.unsupported(RANDOM)
    return ops.expand(call.graph.constant(np.array(value, dtype.numpy)), dims=tuple(dims))


@handles("Bernoulli", "Multinomial")
def drawn(call: Call) -> Node:
    raise call.unsupported(RANDOM)
