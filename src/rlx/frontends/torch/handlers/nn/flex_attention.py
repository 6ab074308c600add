"""Attention whose scores and mask are functions of a query's and a key's place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.torch.decompose import traced_function
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.handlers.nn.attention import scaled_scores
from rlx.frontends.torch.namespaces import torch
from rlx.frontends.torch.node_call import Call
from rlx.ir.mir import Node


@handles("flex_attention")
def flex_attention(call: Call, *operands: Any) -> list[Any]:
    """softmax(score(q·kᵀ · scale)) · v over the places that the mask lets a query see. The kernel
    of attention takes a mask, and what is added to the scores; other scores are computed whole."""
    q, key, value, score, block_mask, scale = operands[:6]
    buffers, mask_buffers = (*operands[7:], (), ())[:2]
    k, v = (_in_batches(x, q) for x in (key, value))
    scores = scaled_scores(call, q, k, scale)
    visible = _mapped(call, block_mask[-1], None, scores, mask_buffers, call.fakes["8"])
    changed = _mapped(call, score, scores, scores, buffers, call.fakes["7"])
    logits = _masked(call, changed, visible)
    weight = ops.log_sum_exp(logits, axes=(3,))
    greatest = ops.max(logits, axes=(3,))
    in_base_2 = (ops.mul(x, 1 / math.log(2)) for x in (weight, greatest))
    return [_attended(call, (q, k, v), (scores, changed, visible), logits, scale), *in_base_2]


def _in_batches(x: Node, q: Node) -> Node:
    """Keys or values that all batches share."""
    return ops.expand(x, dims=(q.shape.dims[0], *x.shape.dims[1:]))


def _mapped(
    call: Call, module: Any, scores: Node | None, like: Node, buffers: Sequence[Node], fakes: Any
) -> Node:
    """A function of one score, its batch, head, query and key, and of buffers, at all places."""
    lead = () if scores is None else (scores,)
    mode = call.fakes["0"].fake_mode
    with mode:
        sizes = (*call.fakes["0"].shape[:3], call.fakes["1"].shape[2])
        places = [torch.arange(n) for n in sizes]
        first = [torch.empty(sizes, dtype=_torch_dtype(call))] * len(lead)
    function = _vectorised(module, len(lead), len(fakes))
    graph_module = traced_function(function, [*first, *places, *fakes])
    positions = [call.positions((n,), 0) for n in like.shape.dims]
    placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    env = dict(zip(placeholders, [*lead, *positions, *buffers], strict=True))
    attribute = lambda name: getattr(graph_module, name)
    return ops.expand(call.importer.run(graph_module.graph, env, attribute), dims=like.shape.dims)


def _torch_dtype(call: Call) -> Any:
    """Of scores: torch computes those of half floats in f32."""
    return torch.float64 if call.wide is DType.F64 else torch.float32


def _vectorised(function: Any, num_scores: int, num_buffers: int) -> Any:
    for axis in reversed(range(4)):
        places = tuple(0 if i == axis else None for i in range(4))
        in_dims = (*[0] * num_scores, *places, *[None] * num_buffers)
        function = torch.vmap(function, in_dims=in_dims)
    return function


def _masked(call: Call, scores: Node, visible: Node) -> Node:
    if _is_true(visible):
        return scores
    return ops.where(visible, scores, call.constant(float("-inf"), scores.shape.dtype))


def _is_true(mask: Node) -> bool:
    source = _unexpanded(mask)
    return source.op == "constant" and bool(np.all(source.attrs["value"]))


def _unexpanded(x: Node) -> Node:
    while x.op in ("expand", "reshape", "expand_dims"):
        x = x.inputs[0]
    return x


def _attended(
    call: Call, operands: tuple[Node, ...], stages: tuple[Node, ...], logits: Node, scale: float
) -> Node:
    scores, changed, visible = stages
    q, k, v = operands
    how: dict[str, Any] = {"num_heads": q.shape.dims[1], "kv_heads": k.shape.dims[1],
                           "scale": float(scale)}  # fmt: skip
    if changed is scores and _is_true(visible):
        return ops.attention(q, k, v, mask_kind="none", **how)
    if changed is scores:
        return ops.attention(q, k, v, visible, mask_kind="custom", **how)
    if (added := _added(changed, scores)) is not None:
        bias = call.node(_masked(call, added, visible), q.shape.dtype)
        return ops.attention(q, k, v, bias, mask_kind="bias", **how)
    return _weighted(call, logits, v)


def _added(changed: Node, scores: Node) -> Node | None:
    """What is added to the scores, if nothing else becomes of them."""
    if changed.op != "add" or scores not in changed.inputs or changed.shape != scores.shape:
        return None
    (other,) = [x for x in changed.inputs if x is not scores] or [None]
    return None if other is None or _depends(other, scores) else ops.expand(
        other, dims=scores.shape.dims
    )  # fmt: skip


def _depends(node: Node, on: Node) -> bool:
    seen, todo = set[Node](), [node]
    while todo:
        if (each := todo.pop()) is on:
            return True
        todo += [x for x in each.inputs if x not in seen]
        seen.update(each.inputs)
    return False


def _weighted(call: Call, logits: Node, v: Node) -> Node:
    """softmax(logits) · v, zeros where a query sees nothing."""
    batch, heads, queries, keys = logits.shape.dims
    shared = v.shape.dims[1]
    is_blind = ops.equal(ops.max(logits, axes=(3,), keepdims=True), float("-inf"))
    weights = ops.where(is_blind, call.constant(0, logits.shape.dtype), ops.softmax(logits, axis=3))
    each = call.whole(heads, shared, what="heads")
    rows = ops.reshape(weights, dims=(batch, shared, each[0] // each[1] * queries, keys))
    made = ops.matmul(rows, call.node(v, logits.shape.dtype))
    return ops.reshape(made, dims=(batch, heads, queries, v.shape.dims[3]))
