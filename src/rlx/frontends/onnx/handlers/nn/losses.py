"""Losses."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.node_call import Call
from rlx.ir.mir import Node


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
