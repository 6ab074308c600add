"""Scaled dot-product attention."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call, rank
from rlx.ir.mir import Node


@handles("scaled_dot_product_attention")
def attention(
    call: Call, x: Node, key: Node, value: Node, attn_mask: Node | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Node:  # fmt: skip
    return attended(call, x, key, value, attn_mask, dropout_p, is_causal, scale)


@handles("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(
    call: Call, x: Node, key: Node, value: Node, dropout_p: float = 0.0, is_causal: bool = False,
    attn_mask: Node | None = None, scale: float | None = None,
) -> list[Any]:  # fmt: skip
    made = attended(call, x, key, value, attn_mask, dropout_p, is_causal, scale)
    return [made, _log_of_sums(call, x, key, attn_mask, is_causal, scale)]


def _log_of_sums(
    call: Call, q: Node, k: Node, mask: Node | None, is_causal: bool, scale: float | None
) -> Node:
    """log Σ exp of each query's scores, by which a backward pass has the probabilities again."""
    scores = scaled_scores(call, q, k, scale)
    if is_causal:
        mask = _lower_triangle(call, q, k)
    if mask is not None and mask.shape.dtype is DType.BOOL:
        scores = ops.where(mask, scores, call.constant(float("-inf"), call.wide))
    elif mask is not None:
        scores = ops.add(scores, call.node(mask, call.wide))
    return ops.log_sum_exp(scores, axes=(3,))


def _lower_triangle(call: Call, q: Node, k: Node) -> Node:
    """Query i sees keys 0 … i, however many keys there are."""
    dims = (q.shape.dims[2], k.shape.dims[2])
    return ops.greater_equal(*(call.positions(dims, axis) for axis in (0, 1)))


def scaled_scores(call: Call, q: Node, k: Node, scale: float | None) -> Node:
    """scale · q kᵀ, as wide as torch computes it; several heads of q may have one of k."""
    batch, heads, length, depth = q.shape.dims
    shared = call.whole(heads, k.shape.dims[1], what="heads")
    rows = (batch, shared[1], shared[0] // shared[1] * length, depth)
    wide, keys = call.nodes(ops.reshape(q, dims=rows), k, dtype=call.wide)
    made = ops.matmul(wide, ops.transpose(keys, perm=(0, 1, 3, 2)))
    factor = call.whole(depth, what="depth")[0] ** -0.5 if scale is None else scale
    scaled = ops.mul(made, call.constant(factor, call.wide))
    return ops.reshape(scaled, dims=(batch, heads, length, k.shape.dims[2]))


def attended(
    call: Call, q: Node, k: Node, v: Node, mask: Node | None, dropout: float, is_causal: bool,
    scale: float | None,
) -> Node:  # fmt: skip
    call.require(dropout == 0, "attention that drops probabilities")
    call.require(rank(q) in (3, 4), "attention of this rank")
    heads = _with_heads(q, k, v) if rank(q) == 3 else (q, k, v)
    _require_aligned(call, heads)
    if mask is not None and rank(q) == 3 and rank(mask) == 3:
        mask = ops.expand_dims(mask, axes=(1,))
    if is_causal and heads[0].shape.dims[2] != heads[1].shape.dims[2]:
        call.require(mask is None, "a mask beside the causal one")
        mask, is_causal = _lower_triangle(call, *heads[:2]), False
    made = _attended(call, heads, mask, is_causal, scale)
    return ops.reshape(made, dims=call.dims) if rank(q) == 3 else made


def _has_open_heads(operands: tuple[Node, ...]) -> bool:
    """Is the number of heads, or their depth, a named dim?"""
    q, k, v = (x.shape.dims for x in operands)
    return not all(isinstance(d, int) for d in (q[1], q[3], k[1], v[3]))


def _composed(
    call: Call, operands: tuple[Node, ...], mask: Node | None, is_causal: bool, scale: float | None
) -> Node:
    """Attention of any number of heads, by products and a softmax."""
    q, k, v = call.nodes(*operands, dtype=call.wide)
    call.require(k.shape.dims[1] in (1, q.shape.dims[1]), "grouped heads of a named number")
    scores = ops.mul(
        ops.matmul(q, ops.transpose(k, perm=(0, 1, 3, 2))), _scale(call, q.shape.dims[3], scale)
    )
    seen = _lower_triangle(call, q, k) if is_causal else mask
    if seen is not None and seen.shape.dtype is not DType.BOOL:
        scores, seen = ops.add(scores, call.node(seen, call.wide)), None
    hidden = call.constant(float("-inf"), call.wide)
    logits = scores if seen is None else ops.where(seen, scores, hidden)
    is_blind = ops.equal(ops.max(logits, axes=(3,), keepdims=True), hidden)
    weights = ops.where(is_blind, call.constant(0, call.wide), ops.softmax(logits, axis=3))
    return ops.matmul(weights, v)


def _scale(call: Call, depth: DimLike, scale: float | None) -> Node:
    """1 / √depth where none is stated."""
    if scale is not None:
        return call.constant(scale, call.wide)
    return ops.rsqrt(ops.cast(call.node(depth, DType.I64), to=call.wide))


def _with_heads(*operands: Node) -> tuple[Node, ...]:
    return tuple(ops.expand_dims(o, axes=(1,)) for o in operands)


def _require_aligned(call: Call, operands: tuple[Node, ...]) -> None:
    q, k, v = operands
    batch, heads = q.shape.dims[:2]
    is_batched = k.shape.dims[0] == batch and v.shape.dims[0] == batch
    call.require(is_batched and k.shape.dims[1] == v.shape.dims[1], "operands that broadcast")
    has_gqa = bool(call.args.get("enable_gqa", call.op != "scaled_dot_product_attention"))
    call.require(k.shape.dims[1] == heads or has_gqa, "heads that broadcast")


def _attended(
    call: Call, heads: tuple[Node, ...], mask: Node | None, is_causal: bool, scale: float | None
) -> Node:
    if _has_open_heads(heads):
        return _composed(call, heads, mask, is_causal, scale)
    q, k, v = heads
    how: dict[str, Any] = {"num_heads": q.shape.dims[1], "kv_heads": k.shape.dims[1],
                           "scale": None if scale is None else float(scale)}  # fmt: skip
    if mask is None:
        return ops.attention(q, k, v, mask_kind="causal" if is_causal else "none", **how)
    call.require(not is_causal, "a mask beside the causal one")
    wide = ops.reshape(mask, dims=(*[1] * (4 - rank(mask)), *mask.shape.dims))
    is_bool = mask.shape.dtype is DType.BOOL
    kind = "custom" if is_bool else "bias"
    given = wide if is_bool else call.node(wide, q.shape.dtype)
    return ops.attention(q, k, v, given, mask_kind=kind, **how)
