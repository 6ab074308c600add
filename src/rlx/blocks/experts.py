"""Mixture-of-experts feed-forward layers."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.blocks.dense import swiglu_ffn
from rlx.core.dim import product
from rlx.core.errors import GraphError
from rlx.ir.block import DIRECT, FUSABLE, FusionPolicy, block
from rlx.ops.compose import dims_of, nullary
from rlx.ops.fused import activated
from rlx.ops.nn.mixture_of_experts import Scoring


@block(
    "f[*b m d], f[d e], f[e d h], f[e d h], f[e h d], f[d k]?, f[d k]?, f[k d]?, f[d 1]? "
    "-> f[*b m d]"
)
def moe_layer(
    x: Any,
    router: Any,
    gate: Any,
    up: Any,
    down: Any,
    shared_gate: Any = None,
    shared_up: Any = None,
    shared_down: Any = None,
    shared_router: Any = None,
    *,
    top_k: int,
    scoring: Scoring = "softmax",
    normalise: bool = True,
    scale: float = 1.0,
    activation: str = "silu",
    policy: FusionPolicy = FUSABLE,
) -> Any:
    """The weighted sum of what the `top_k` experts that the router chooses make of each row, each
    (activation(row · gate) ⊙ (row · up)) · down, and what the shared expert, if there is one,
    makes of every row: times sigmoid(row · shared_router), where that is given.

    Direct multiplies rows by the experts they chose alone; Fusable all rows by all experts, and
    selects, so that an expert that was not chosen does not matter, whatever it makes."""
    routing = {"top_k": top_k, "scoring": scoring, "normalise": normalise, "scale": scale}
    if policy is DIRECT:
        made = ops.moe_ffn(x, router, gate, up, down, **routing, activation=activation)
    else:
        weights, chosen = ops.moe_route(ops.matmul(x, router), **routing)
        made = _of_all(x, weights, chosen, (gate, up, down), activation)
    shared = (shared_up, shared_gate, shared_down)
    if all(w is None for w in (*shared, shared_router)):
        return made
    if any(w is None for w in shared):
        raise GraphError("a shared expert has shared_gate, shared_up and shared_down")
    return ops.add(made, _shared(x, shared, shared_router, policy))


def _of_all(x: Any, weights: Any, chosen: Any, of: tuple[Any, Any, Any], activation: str) -> Any:
    """Every expert on every row, [experts, rows, width], summed where it was chosen."""
    *lead, width = dims_of(x)
    rows, count, top = product(lead), dims_of(of[0])[0], dims_of(weights)[-1]
    gate, up, down = of
    given = ops.reshape(x, dims=(1, rows, width))
    hidden = ops.mul(activated(ops.matmul(given, gate), activation), ops.matmul(given, up))
    each = nullary(x, "iota", dims=(count, 1, 1), axis=0)
    is_for = ops.equal(ops.reshape(chosen, dims=(1, rows, top)), each)
    weighed = ops.where(is_for, ops.reshape(weights, dims=(1, rows, top)), 0.0)
    weight = ops.sum(weighed, axes=(2,), keepdims=True)
    parts = ops.mul(ops.matmul(hidden, down), weight)
    kept = ops.where(ops.any(is_for, axes=(2,), keepdims=True), parts, 0.0)
    return ops.reshape(ops.sum(kept, axes=(0,)), dims=(*lead, width))


def _shared(x: Any, weights: tuple[Any, Any, Any], router: Any, policy: FusionPolicy) -> Any:
    made = swiglu_ffn(x, *weights, policy=policy)
    if router is None:
        return made
    return ops.mul(made, ops.sigmoid(ops.matmul(x, router)))
