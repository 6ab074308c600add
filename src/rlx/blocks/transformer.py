"""Transformer decoder layers, with or without a KV cache, and the language-model head."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.blocks.attending import MaskKind, Pair, Projections, attended
from rlx.blocks.dense import swiglu_ffn
from rlx.ir.block import FUSABLE, FusionPolicy, block, sharing

_LAYER = (
    "f[b s d], f[d], f[d e], f[d g], f[d g], f[e d], f[...], f[...], f[d], f[d h], f[d h], f[h d]"
)
_EXTRAS = "_[...]?, f[e]?, f[g]?, f[g]?, f[d]?, f[head_dim]?, f[head_dim]?"


def _layer(
    x: Any,
    norms: Pair,
    weights: Projections,
    rotary: Pair,
    past: Pair | None,
    ffn: tuple[Any, Any, Any],
    mask: Any,
    *,
    num_heads: int,
    kv_heads: int | None = None,
    head_dim: int,
    eps: float = 1e-6,
    mask_kind: MaskKind = "causal",
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    n_rot: int | None = None,
    interleaved: bool = False,
    policy: FusionPolicy = FUSABLE,
) -> tuple[Any, Any, Any]:
    """A decoder layer, and its keys and values."""
    weights.check(num_heads, kv_heads, head_dim)
    h = ops.rms_norm(x, norms[0], eps=eps)
    mixed, k, v = attended(
        h, h, weights, mask, rotary, past, eps=eps, n_rot=n_rot, interleaved=interleaved,
        head_dim=head_dim, policy=policy, num_heads=num_heads, kv_heads=kv_heads,
        mask_kind=mask_kind, window=window, scale=scale, softcap=softcap,
    )  # fmt: skip
    x = ops.add(x, mixed)
    h = ops.rms_norm(x, norms[1], eps=eps)
    return ops.add(x, swiglu_ffn(h, *ffn, policy=policy)), k, v


@block(f"{_LAYER}, {_EXTRAS} -> f[b s d]", aliases=("transformer_block", "qwen_decoder_block"))
@sharing(_layer)
def llama_decoder_block(
    x: Any,
    attention_norm: Any,
    wq: Any,
    wk: Any,
    wv: Any,
    wo: Any,
    cos: Any,
    sin: Any,
    ffn_norm: Any,
    up: Any,
    gate: Any,
    down: Any,
    mask: Any = None,
    bq: Any = None,
    bk: Any = None,
    bv: Any = None,
    bo: Any = None,
    q_norm: Any = None,
    k_norm: Any = None,
    **how: Any,
) -> Any:
    """A pre-norm decoder layer: attention over rotated heads, then a SwiGLU network, each added to
    what went in. Several query heads share a key head; nothing is repeated.

    Llama has no biases and no norms of heads, Qwen 2 has bq, bk and bv, Qwen 3 q_norm and k_norm.
    """
    weights = Projections(wq, wk, wv, wo, bq, bk, bv, bo, q_norm, k_norm)
    norms, ffn = (attention_norm, ffn_norm), (up, gate, down)
    return _layer(x, norms, weights, (cos, sin), None, ffn, mask, **how)[0]


@block(
    f"{_LAYER}, f[b p g], f[b p g], {_EXTRAS} -> f[b s d], f[b p+s g], f[b p+s g]",
    aliases=("qwen_decoder_step",),
)
@sharing(_layer)
def llama_decoder_step(
    x: Any,
    attention_norm: Any,
    wq: Any,
    wk: Any,
    wv: Any,
    wo: Any,
    cos: Any,
    sin: Any,
    ffn_norm: Any,
    up: Any,
    gate: Any,
    down: Any,
    past_k: Any,
    past_v: Any,
    mask: Any = None,
    bq: Any = None,
    bk: Any = None,
    bv: Any = None,
    bo: Any = None,
    q_norm: Any = None,
    k_norm: Any = None,
    **how: Any,
) -> Any:
    """A decoder layer that goes on from cached keys and values, and returns the longer cache.

    `cos` and `sin` are those of the new positions; cached keys have been rotated by theirs."""
    weights = Projections(wq, wk, wv, wo, bq, bk, bv, bo, q_norm, k_norm)
    norms, ffn = (attention_norm, ffn_norm), (up, gate, down)
    return _layer(x, norms, weights, (cos, sin), (past_k, past_v), ffn, mask, **how)


@block("f[*b d], f[d], f[d v] -> f[*b v]")
def lm_head(x: Any, norm: Any, w: Any, *, eps: float = 1e-6, softcap: float | None = None) -> Any:
    """The logits of every token: the norm of x, times w. `softcap` c makes one c·tanh(logit/c)."""
    return _capped(ops.matmul(ops.rms_norm(x, norm, eps=eps), w), softcap)


@block("f[*b d], f[d], f[v d] -> f[*b v]")
def tied_lm_head(
    x: Any, norm: Any, table: Any, *, eps: float = 1e-6, softcap: float | None = None
) -> Any:
    """`lm_head` whose weight is the table that tokens were embedded with."""
    return lm_head(x, norm, ops.transpose(table, perm=(1, 0)), eps=eps, softcap=softcap)


def _capped(logits: Any, softcap: float | None) -> Any:
    if softcap is None:
        return logits
    return ops.mul(ops.tanh(ops.div(logits, softcap)), softcap)
