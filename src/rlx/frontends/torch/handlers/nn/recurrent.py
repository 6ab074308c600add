"""Recurrent layers: torch's stacks of them, by the table's single layers.

The table's gates are ONNX's: i, o, f, c of an LSTM where torch has i, f, g, o; z, r, h of a GRU
where torch has r, z, n.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx import ops
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call
from rlx.ir.mir import Node

ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}


def _gates(kind: str, weight: Node) -> Node:
    order = ORDER.get(kind)
    if order is None:
        return weight
    size = weight.shape.dims[0] // len(order)
    parts = ops.split(weight, sizes=(size,) * len(order), axis=0)
    return ops.concat([parts[i] for i in order], axis=0)


def _layer(
    kind: str, x: Node, weights: Sequence[Sequence[Node]], starts: Sequence[Node]
) -> tuple[Node, list[Node]]:
    """One layer in one or both directions: outputs [length, batch, features] and last states."""
    directions = len(weights)
    stacked = [ops.stack([_gates(kind, w[i]) for w in weights], axis=0) for i in (0, 1)]
    extras = ()
    if len(weights[0]) == 4:
        biases = [ops.concat([_gates(kind, w[2]), _gates(kind, w[3])], axis=0) for w in weights]
        stacked.append(ops.stack(biases, axis=0))
        extras = ("bias",)
    how: dict[str, Any] = {
        "extras": (*extras, *("initial_h", "initial_c")[: len(starts)]),
        "direction": "bidirectional" if directions == 2 else "forward",
    }
    if kind == "gru":
        how["linear_before_reset"] = True
    if kind == "rnn_relu":
        how["activations"] = ("relu",) * directions
    function = {"lstm": ops.lstm, "gru": ops.gru}.get(kind, ops.rnn)
    made, *last = function(x, *stacked, *starts, **how)
    length, _, batch, hidden = made.shape.dims
    rows = ops.transpose(made, perm=(0, 2, 1, 3))
    return ops.reshape(rows, dims=(length, batch, directions * hidden)), last


@handles("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(
    call: Call, x: Node, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> list[Node]:  # fmt: skip
    call.require(not train or dropout == 0 or num_layers == 1, "dropout between layers")
    states = list(hx) if isinstance(hx, list | tuple) else [hx]
    call.require(len(states) == (2 if call.op == "lstm" else 1), "states of this kind")
    call.require(all(s.shape.dims[-1] == states[0].shape.dims[-1] for s in states), "projections")
    per, directions = (4 if has_biases else 2), (2 if bidirectional else 1)
    call.require(len(params) == per * directions * num_layers, "projected states")
    rows = ops.transpose(x, perm=(1, 0, 2)) if batch_first else x
    lasts: list[list[Node]] = [[] for _ in states]
    for layer in range(num_layers):
        at = layer * directions
        weights = [params[(at + d) * per : (at + d + 1) * per] for d in range(directions)]
        starts = [ops.narrow(s, axis=0, start=at, length=directions) for s in states]
        rows, last = _layer(call.op, rows, weights, starts)
        for found, value in zip(lasts, last, strict=True):
            found.append(value)
    ends = [ops.concat(found, axis=0) if len(found) > 1 else found[0] for found in lasts]
    return [ops.transpose(rows, perm=(1, 0, 2)) if batch_first else rows, *ends]
