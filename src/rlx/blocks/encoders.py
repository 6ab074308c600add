"""Encoder layers of text, vision and audio models, with their embeddings and patchifiers."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.blocks.attending import MaskKind, Projections, attended
from rlx.blocks.dense import gelu_ffn, linear, residual_layer_norm
from rlx.blocks.vision import convolved
from rlx.core.dim import product
from rlx.core.errors import GraphError
from rlx.ir.block import FUSABLE, FusionPolicy, block, sharing
from rlx.ops.compose import dims_of

# -- BERT: norms after the sums -------------------------------------------------------------------


@block(
    "f[b s d], f[d e], f[e], f[d e], f[e], f[d e], f[e], f[e d], f[d], f[d], f[d], f[d h], f[h], "
    "f[h d], f[d], f[d], f[d], _[...]? -> f[b s d]",
    aliases=("bert_layer",),
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
    window: int | None = None,
    approximate: bool = False,
    policy: FusionPolicy = FUSABLE,
) -> Any:
    """A post-norm encoder layer as in BERT: attention, then a GELU network, each added to what
    went in and normalised. `approximate` is GELU's tanh form."""
    weights = Projections(wq, wk, wv, wo, bq, bk, bv, bo)
    mixed, _, _ = attended(
        x, x, weights, mask, policy=policy, num_heads=num_heads, kv_heads=num_heads,
        mask_kind=mask_kind, window=window,
    )  # fmt: skip
    x = residual_layer_norm(mixed, x, attention_scale, attention_bias, eps=eps, policy=policy)
    ffn = (up, down, up_bias, down_bias)
    mixed = gelu_ffn(x, *ffn, approximate=approximate, policy=policy)
    return residual_layer_norm(mixed, x, ffn_scale, ffn_bias, eps=eps, policy=policy)


@block("i[b s], f[v d], f[p d], f[d], f[d], _[b s]?, f[t d]?, _[...]? -> f[b s d]")
def bert_embeddings(
    ids: Any,
    tokens: Any,
    positions: Any,
    scale: Any,
    bias: Any,
    kinds: Any = None,
    kind_table: Any = None,
    places: Any = None,
    *,
    eps: float = 1e-12,
    policy: FusionPolicy = FUSABLE,
) -> Any:
    """layer_norm of the sum of each token's embedding, that of its place and that of its kind.
    Places, [batch, seq] or [seq], are 0, 1, … if not given; then no sequence may be longer than
    there are positions. Kinds are all 0 if not given, though there is a table for them."""
    made = ops.add(ops.embedding(tokens, ids), _position_embedding(positions, ids, places))
    if kind_table is None:
        if kinds is not None:
            raise GraphError("operand kinds is given, but no kind_table to look them up in")
        return ops.layer_norm(made, scale, bias, eps=eps)
    first = ops.narrow(kind_table, axis=0, start=0, length=1)
    of_kind = (
        ops.expand(ops.expand_dims(first, axes=(0,)), dims=dims_of(made)) if kinds is None
        else ops.embedding(kind_table, kinds)
    )  # fmt: skip
    return residual_layer_norm(of_kind, made, scale, bias, eps=eps, policy=policy)


def _position_embedding(positions: Any, ids: Any, places: Any) -> Any:
    if places is not None:
        return ops.embedding(positions, places)
    return ops.narrow(positions, axis=0, start=0, length=dims_of(ids)[1])


@block("f[b s d], f[d e], f[e]? -> f[b e]")
def pooler(x: Any, w: Any, bias: Any = None, *, policy: FusionPolicy = FUSABLE) -> Any:
    """tanh(row · w + bias) of each sequence's first row, which there must be."""
    first = ops.gather(x, 0, axis=1)
    return linear(first, w, bias, activation="tanh", policy=policy)


# -- images and sound: norms before the sums ------------------------------------------------------


def _attention_half(
    x: Any,
    scale: Any,
    bias: Any,
    weights: Projections,
    memory: Any,
    mask: Any,
    *,
    num_heads: int,
    kv_heads: int | None = None,
    eps: float = 1e-5,
    mask_kind: MaskKind = "none",
    window: int | None = None,
    softcap: float | None = None,
    policy: FusionPolicy = FUSABLE,
) -> Any:
    h = ops.layer_norm(x, scale, bias, eps=eps)
    mixed, _, _ = attended(
        h, h if memory is None else memory, weights, mask, policy=policy, num_heads=num_heads,
        kv_heads=kv_heads, mask_kind=mask_kind, window=window, softcap=softcap,
    )  # fmt: skip
    return ops.add(x, mixed)


@block(
    "f[b s d], f[d], f[d], f[d e], f[c g], f[c g], f[e d], f[b t c]?, _[...]?, f[e]?, f[g]?, "
    "f[g]?, f[d]? -> f[b s d]"
)
@sharing(_attention_half)
def attention_block(
    x: Any,
    scale: Any,
    bias: Any,
    wq: Any,
    wk: Any,
    wv: Any,
    wo: Any,
    memory: Any = None,
    mask: Any = None,
    bq: Any = None,
    bk: Any = None,
    bv: Any = None,
    bo: Any = None,
    **how: Any,
) -> Any:
    """x + attention(layer_norm(x)): over itself, or, as decoders of speech do, over `memory`."""
    weights = Projections(wq, wk, wv, wo, bq, bk, bv, bo)
    return _attention_half(x, scale, bias, weights, memory, mask, **how)


@block("f[b s d], f[d], f[d], f[d h], f[h d], f[h]?, f[d]? -> f[b s d]")
def mlp_block(
    x: Any,
    scale: Any,
    bias: Any,
    up: Any,
    down: Any,
    up_bias: Any = None,
    down_bias: Any = None,
    *,
    eps: float = 1e-5,
    approximate: bool = False,
    policy: FusionPolicy = FUSABLE,
) -> Any:
    """x + gelu(layer_norm(x) · up + up_bias) · down + down_bias."""
    h = ops.layer_norm(x, scale, bias, eps=eps)
    made = gelu_ffn(h, up, down, up_bias, down_bias, approximate=approximate, policy=policy)
    return ops.add(x, made)


@block(
    "f[b s d], f[d], f[d], f[d e], f[d g], f[d g], f[e d], f[d], f[d], f[d h], f[h d], "
    "_[...]?, f[e]?, f[g]?, f[g]?, f[d]?, f[h]?, f[d]? -> f[b s d]",
    aliases=("vision_encoder_block", "audio_encoder_block"),
)
@sharing(_attention_half)
def prenorm_encoder_block(
    x: Any,
    attention_scale: Any,
    attention_bias: Any,
    wq: Any,
    wk: Any,
    wv: Any,
    wo: Any,
    ffn_scale: Any,
    ffn_bias: Any,
    up: Any,
    down: Any,
    mask: Any = None,
    bq: Any = None,
    bk: Any = None,
    bv: Any = None,
    bo: Any = None,
    up_bias: Any = None,
    down_bias: Any = None,
    *,
    approximate: bool = False,
    **how: Any,
) -> Any:
    """An `attention_block` over itself, then an `mlp_block`: a layer of a vision transformer, and
    of Whisper's encoder, whose keys have no bias."""
    weights = Projections(wq, wk, wv, wo, bq, bk, bv, bo)
    x = _attention_half(x, attention_scale, attention_bias, weights, None, mask, **how)
    ffn = (ffn_scale, ffn_bias, up, down, up_bias, down_bias)
    rest = {"eps": how["eps"], "policy": how["policy"]}
    return mlp_block(x, *ffn, approximate=approximate, **rest)


# -- into rows ------------------------------------------------------------------------------------


@block("f[n c h w], f[d c p q], f[d]?, f[d]?, f[t d]? -> f[n ... d]")
def patch_embedding(
    x: Any,
    w: Any,
    bias: Any = None,
    first: Any = None,
    positions: Any = None,
    *,
    policy: FusionPolicy = FUSABLE,
) -> Any:
    """Images as rows: non-overlapping patches of p × q pixels, each times w; before them `first`,
    the row of the class; then the positions are added. Pixels past the last whole patch are left
    out."""
    d, _, *size = dims_of(w)
    made = convolved(x, w, bias, {"stride": tuple(size)}, None, policy)
    n, _, *counts = dims_of(made)
    rows = _as_rows(ops.reshape(made, dims=(n, d, product(counts))))
    if first is not None:
        one = ops.expand(ops.reshape(first, dims=(1, 1, d)), dims=(n, 1, d))
        rows = ops.concat([one, rows], axis=1)
    return _placed(rows, positions)


@block("f[b m t], f[d m k], f[d], f[e d l], f[e], f[s e]? -> f[b ... e]")
def audio_stem(
    x: Any,
    w1: Any,
    b1: Any,
    w2: Any,
    b2: Any,
    positions: Any = None,
    *,
    stride: int = 2,
    approximate: bool = False,
    policy: FusionPolicy = FUSABLE,
) -> Any:
    """Spectra [batch, bands, time] as rows, as in Whisper: two convolutions of odd width, each
    through GELU, the second with a stride; then the positions are added."""
    gelu = "gelu_tanh" if approximate else "gelu"
    for w, b, step in ((w1, b1, 1), (w2, b2, stride)):
        half = dims_of(w)[2] // 2
        x = convolved(x, w, b, {"stride": (step,), "padding": (half, half)}, gelu, policy)
    return _placed(_as_rows(x), positions)


def _as_rows(x: Any) -> Any:
    """[batch, channels, length] as [batch, length, channels]."""
    return ops.transpose(x, perm=(0, 2, 1))


def _placed(rows: Any, positions: Any) -> Any:
    if positions is None:
        return rows
    if dims_of(positions) != dims_of(rows)[1:]:
        given, wanted = dims_of(positions)[0], dims_of(rows)[1]
        raise GraphError(f"there are {given} positions for {wanted} rows")
    return ops.add(rows, positions)
