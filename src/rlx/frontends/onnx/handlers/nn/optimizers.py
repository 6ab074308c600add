"""Steps of optimisers, of ai.onnx.preview.training: a rate R, how many steps T were made, then for
all tensors at once the values, their gradients, and what the optimiser remembers of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.node_call import Call
from rlx.ir.mir import Node

TRAINING = "ai.onnx.preview.training"
Update = Callable[..., tuple[Node, ...]]


def _each(call: Call, count: int, update: Update) -> tuple[Node, ...]:
    """The `count` operands of each tensor, updated; results are in the same order, kind by kind."""
    nodes = call.nodes()[2:]
    if not nodes or len(nodes) % count:
        raise GraphError(f"{call.label}: {len(nodes)} operands are no {count} for each tensor")
    total = len(nodes) // count
    made = [update(*nodes[i::total]) for i in range(total)]
    return tuple(m[kind] for kind in range(count - 1) for m in made)


def _number(call: Call, name: str, like: Node, default: float = 0.0) -> Any:
    return np.array(call.attr(name, default), like.shape.dtype.numpy)


def _rate(call: Call, like: Node) -> Node:
    return ops.cast(ops.reshape(call.node(0), dims=()), to=like.shape.dtype)


def _steps(call: Call, like: Node) -> Node:
    return ops.cast(ops.reshape(call.node(1), dims=()), to=like.shape.dtype)


def _has_begun(call: Call) -> Node:
    return ops.greater(ops.cast(ops.reshape(call.node(1), dims=()), to=DType.I64), np.int64(0))


def _regularised(call: Call, x: Node, gradient: Node) -> Node:
    """With the gradient of half the square of x, times a coefficient."""
    return ops.add(ops.mul(x, _number(call, "norm_coefficient", x)), gradient)


@handles("Adagrad", domain=TRAINING)
def adagrad(call: Call) -> tuple[Node, ...]:
    def update(x: Node, gradient: Node, squares: Node) -> tuple[Node, ...]:
        decay = ops.mul(_steps(call, x), _number(call, "decay_factor", x))
        rate = ops.div(_rate(call, x), ops.add(decay, _number(call, "", x, 1.0)))
        g = _regularised(call, x, gradient)
        total = ops.add(squares, ops.mul(g, g))
        size = ops.add(ops.sqrt(total), _number(call, "epsilon", x))
        return ops.sub(x, ops.div(ops.mul(rate, g), size)), total

    return _each(call, 3, update)


@handles("Momentum", domain=TRAINING)
def momentum(call: Call) -> tuple[Node, ...]:
    mode = call.required("mode")
    if mode not in ("standard", "nesterov"):
        raise GraphError(f"{call.label}: mode {mode[:40]!r} is not one ONNX has")

    def update(x: Node, gradient: Node, velocity: Node) -> tuple[Node, ...]:
        one, alpha = _number(call, "", x, 1.0), _number(call, "alpha", x)
        g = _regularised(call, x, gradient)
        weight = ops.where(_has_begun(call), _number(call, "beta", x), one)
        now = ops.add(ops.mul(velocity, alpha), ops.mul(weight, g))
        ahead = now if mode == "standard" else ops.add(g, ops.mul(now, alpha))
        return ops.sub(x, ops.mul(_rate(call, x), ahead)), now

    return _each(call, 3, update)


@handles("Adam", domain=TRAINING)
def adam(call: Call) -> tuple[Node, ...]:
    def update(x: Node, gradient: Node, mean: Node, squares: Node) -> tuple[Node, ...]:
        one = _number(call, "", x, 1.0)
        alpha, beta = _number(call, "alpha", x, 0.9), _number(call, "beta", x, 0.999)
        g = _regularised(call, x, gradient)
        first = ops.add(ops.mul(mean, alpha), ops.mul(g, one - alpha))
        second = ops.add(ops.mul(squares, beta), ops.mul(ops.mul(g, g), one - beta))
        size = ops.add(ops.sqrt(second), _number(call, "epsilon", x, 1e-6))
        moved = ops.sub(x, ops.div(ops.mul(_unbiased(call, x, alpha, beta), first), size))
        return ops.mul(moved, one - _number(call, "norm_coefficient_post", x)), first, second

    return _each(call, 4, update)


def _unbiased(call: Call, x: Node, alpha: Any, beta: Any) -> Node:
    """The rate, mended for means that began at 0."""
    one, steps, rate = _number(call, "", x, 1.0), _steps(call, x), _rate(call, x)
    left = [ops.sub(one, ops.pow(call.graph.constant(b), steps)) for b in (beta, alpha)]
    mended = ops.div(ops.mul(rate, ops.sqrt(left[0])), left[1])
    return ops.where(_has_begun(call), mended, rate)
