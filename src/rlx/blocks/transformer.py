"""Transformer blocks. Heads lie side by side, [batch, seq, heads · head_dim], throughout."""

from __future__ import annotations

from typing import Any, Literal

from rlx import ops
from rlx.block import FUSABLE, FusionPolicy, block
from rlx.blocks.dense import gelu_ffn, linear, residual_layer_norm, swiglu_ffn
from rlx.compose import dims_of
from rlx.errors import GraphError

MaskKind = Literal["none", "causal", "sliding_window", "custom", "bias"]


def _check_heads(wq: Any, wk: Any, num_heads: int, kv_heads: int | None, head_dim: int) -> None:
    """The projections are as wide as their heads."""
    for name, w, heads in (("wq", wq, num_heads), ("wk", wk, kv_heads or num_heads)):
        width = dims_of(w)[-1]
        if width != heads * head_dim:
            wanted = f"{heads} heads of {head_dim} are {heads * head_dim}"
            raise GraphError(f"{name} is {width} wide, but {wanted}")


@block(
    "f[b s d], f[d], f[d e], f[d g], f[d g], f[e d], f[...], f[...], f[d], f[d h], f[d h], "
    "f[h d], _[...]? -> f[b s d]",
    aliases=("transformer_block",),
)
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
    *,
    num_heads: int,
    kv_heads: int | None = None,
    head_dim: int,
    eps: float = 1e-6,
    mask_kind: MaskKind = "causal",
    window: int | None = None,
    policy: FusionPolicy = FUSABLE,
) -> Any:
    """A pre-norm decoder layer: attention over rotated heads, then a SwiGLU network, each added to
    what went in. Several query heads share a key head; nothing is repeated."""
    _check_heads(wq, wk, num_heads, kv_heads, head_dim)
    q, k, v = _projected(ops.rms_norm(x, attention_norm, eps=eps), wq, wk, wv, cos, sin, head_dim)
    heads = {"num_heads": num_heads, "kv_heads": kv_heads}
    mixed = ops.attention(q, k, v, mask, **heads, mask_kind=mask_kind, window=window)
    return _with_ffn(x, mixed, wo, ffn_norm, up, gate, down, eps, policy)


def _projected(
    h: Any, wq: Any, wk: Any, wv: Any, cos: Any, sin: Any, head_dim: int
) -> tuple[Any, Any, Any]:
    """Queries and keys, rotated by their positions, and values."""
    q = ops.rope(ops.matmul(h, wq), cos, sin, head_dim=head_dim)
    k = ops.rope(ops.matmul(h, wk), cos, sin, head_dim=head_dim)
    return q, k, ops.matmul(h, wv)


def _with_ffn(
    x: Any,
    mixed: Any,
    wo: Any,
    ffn_norm: Any,
    up: Any,
    gate: Any,
    down: Any,
    eps: float,
    policy: FusionPolicy,
) -> Any:
    """The second half of a decoder layer."""
    x = ops.add(x, ops.matmul(mixed, wo))
    h = ops.rms_norm(x, ffn_norm, eps=eps)
    return ops.add(x, swiglu_ffn(h, up, gate, down, policy=policy))


@block(
    "f[b s d], f[d], f[d e], f[d g], f[d g], f[e d], f[...], f[...], f[d], f[d h], f[d h], "
    "f[h d], f[b p g], f[b p g], _[...]? -> f[b s d], f[b p+s g], f[b p+s g]"
)
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
    *,
    num_heads: int,
    kv_heads: int | None = None,
    head_dim: int,
    eps: float = 1e-6,
    mask_kind: MaskKind = "causal",
    window: int | None = None,
    policy: FusionPolicy = FUSABLE,
) -> Any:
    """A decoder layer that goes on from cached keys and values, and returns the longer cache.

    `cos` and `sin` are those of the new positions."""
    _check_heads(wq, wk, num_heads, kv_heads, head_dim)
    q, k, v = _projected(ops.rms_norm(x, attention_norm, eps=eps), wq, wk, wv, cos, sin, head_dim)
    k, v = ops.concat([past_k, k], axis=1), ops.concat([past_v, v], axis=1)
    heads = {"num_heads": num_heads, "kv_heads": kv_heads}
    mixed = ops.attention(q, k, v, mask, **heads, mask_kind=mask_kind, window=window)
    return _with_ffn(x, mixed, wo, ffn_norm, up, gate, down, eps, policy), k, v


@block(
    "f[b s d], f[d e], f[e], f[d e], f[e], f[d e], f[e], f[e d], f[d], f[d], f[d], f[d h], f[h], "
    "f[h d], f[d], f[d], f[d], _[...]? -> f[b s d]"
)
def encoder_block(
    x: Any,
    wq: Any,
    bq: Any,
    wk: Any,
    bk: Any,
    wv: Any,
    bv: Any,
    wo: Any,
    bo: Any,
    attention_scale: Any,
    attention_bias: Any,
    up: Any,
    up_bias: Any,
    down: Any,
    down_bias: Any,
    ffn_scale: Any,
    ffn_bias: Any,
    mask: Any = None,
    *,
    num_heads: int,
    eps: float = 1e-12,
    mask_kind: MaskKind = "none",
    approximate: bool = False,
    policy: FusionPolicy = FUSABLE,
) -> Any:
    """A post-norm encoder layer as in BERT: attention, then a GELU network, each added to what
    went in and normalised. `approximate` is GELU's tanh form."""
    q, k, v = (linear(x, w, b, policy=policy) for w, b in ((wq, bq), (wk, bk), (wv, bv)))
    heads = {"num_heads": num_heads, "kv_heads": num_heads}
    mixed = ops.attention(q, k, v, mask, **heads, mask_kind=mask_kind)
    mixed = linear(mixed, wo, bo, policy=policy)
    x = residual_layer_norm(mixed, x, attention_scale, attention_bias, eps=eps, policy=policy)
    weights = (up, down, up_bias, down_bias)
    mixed = gelu_ffn(x, *weights, approximate=approximate, policy=policy)
    return residual_layer_norm(mixed, x, ffn_scale, ffn_bias, eps=eps, policy=policy)
