"""Recurrent layers: RNN, LSTM, GRU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx import ops
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.node_call import Call
from rlx.ir.mir import Node

ACTIVATIONS = {
    "relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid", "affine": "affine",
    "leakyrelu": "leaky_relu", "thresholdedrelu": "thresholded_relu",
    "scaledtanh": "scaled_tanh", "hardsigmoid": "hard_sigmoid", "elu": "elu",
    "softsign": "softsign", "softplus": "softplus",
}  # fmt: skip
"""ONNX's names, whose case does not matter."""
NUMBERS: dict[str, tuple[float | None, float | None]] = {
    "affine": (1.0, 0.0), "leaky_relu": (0.01, None), "thresholded_relu": (1.0, None),
    "scaled_tanh": (1.0, 1.0), "hard_sigmoid": (0.2, 0.5), "elu": (1.0, None),
}  # fmt: skip
"""The alpha and beta that an activation has, if it has one, and what they are unless given."""


@handles("RNN")
def rnn(call: Call) -> tuple[Node, ...]:
    return _layer(call, ops.rnn, 1)


@handles("GRU")
def gru(call: Call) -> tuple[Node, ...]:
    return _layer(call, ops.gru, 2, linear_before_reset=bool(call.attr("linear_before_reset", 0)))


@handles("LSTM")
def lstm(call: Call) -> tuple[Node, ...]:
    return _layer(call, ops.lstm, 3, input_forget=bool(call.attr("input_forget", 0)))


def _layer(call: Call, op: Callable[..., Any], each: int, **own: Any) -> tuple[Node, ...]:
    """All the operands that are there, and `each` activations per direction."""
    batch_first = bool(call.attr("layout", 0))
    direction = call.attr("direction", "forward")
    extras = list(_extras(call, batch_first))
    given = {"direction": direction, "batch_first": batch_first, "clip": call.attr("clip"), **own}
    made = op(
        *(call.node(i) for i in range(3)),
        *(node for _, node in extras),
        extras=tuple(name for name, _ in extras),
        **given,
        **activations(call, each * (2 if direction == "bidirectional" else 1)),
    )
    return tuple(made)


def _extras(call: Call, batch_first: bool) -> Iterator[tuple[str, Node]]:
    for number, name in enumerate(("bias", "lengths", "initial_h", "initial_c", "peepholes"), 3):
        if call.has(number) and not (name == "lengths" and _is_whole(call, batch_first)):
            yield name, call.node(number)


def _is_whole(call: Call, batch_first: bool) -> bool:
    """Are all the lengths known to be that of the whole sequence?"""
    length = call.shape(0).dims[1 if batch_first else 0]
    return call.is_known(4) and isinstance(length, int) and bool(np.all(call.array(4) == length))


def activations(call: Call, count: int) -> dict[str, Any]:
    """Activations with their alphas and betas, which are given only for those that have them."""
    names = call.attr("activations", ())
    if not names:
        return {}
    if len(names) != count:
        raise call.unsupported(f"{len(names)} activations where there must be {count}")
    for name in names:
        if name.lower() not in ACTIVATIONS:
            raise call.unsupported(f"rlx does not know the activation {name!r}")
    known = tuple(ACTIVATIONS[n.lower()] for n in names)
    return {
        "activations": known,
        "alphas": _numbers(call.attr("activation_alpha", ()), known, 0),
        "betas": _numbers(call.attr("activation_beta", ()), known, 1),
    }


def _numbers(given: tuple[float, ...], names: tuple[str, ...], which: int) -> tuple[float, ...]:
    rest, found = iter(given), list[float]()
    for name in names:
        usual = NUMBERS.get(name, (None, None))[which]
        found.append(0.0 if usual is None else next(rest, usual))
    return tuple(found)
