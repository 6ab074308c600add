"""Cases of the blocks that models are made of, in NumPy: one head, row, step or tap at a time."""

from __future__ import annotations

from functools import partial

import numpy as np

from tests.unit.block_cases import (
    Case,
    gelu,
    gelu_tanh,
    layer_norm,
    relu,
    rms_norm,
    sigmoid,
    silu,
)

# -- attention ------------------------------------------------------------------------------------


def rope(x, cos, sin, head_dim, n_rot=None, interleaved=False):
    """In each head, pairs are the parts of complex numbers, turned by their position's angles."""
    heads = x.reshape(*x.shape[:-1], x.shape[-1] // head_dim, head_dim)
    turned, rest = np.split(heads, [head_dim if n_rot is None else n_rot], -1)
    halves = (turned[..., ::2], turned[..., 1::2]) if interleaved else np.split(turned, 2, -1)
    z = (halves[0] + 1j * halves[1]) * (cos + 1j * sin)[..., None, :]
    parts = [z.real, z.imag]
    made = np.stack(parts, -1).reshape(turned.shape) if interleaved else np.concatenate(parts, -1)
    return np.concatenate([made, rest], -1).reshape(x.shape)


def seen(rows, columns, mask_kind, window):
    """Which keys each query sees, by their places."""
    behind = (np.arange(rows) + columns - rows)[:, None] - np.arange(columns)[None, :]
    if mask_kind == "causal":
        return behind >= 0
    if mask_kind == "sliding_window":
        return (behind >= 0) & (behind <= window)
    return np.ones((rows, columns), bool)


def attention(
    q, k, v, mask=None, *, num_heads, kv_heads=None, mask_kind="none", window=None, scale=None,
    softcap=None,
):  # fmt: skip
    """One batch, head and query at a time. A query that sees nothing gives zeros."""
    kv_heads = kv_heads or num_heads
    size, wide = q.shape[-1] // num_heads, v.shape[-1] // kv_heads
    out = np.zeros((*q.shape[:2], num_heads * wide))
    places = seen(q.shape[1], k.shape[1], mask_kind, window)
    for b, h, i in np.ndindex(q.shape[0], num_heads, q.shape[1]):
        of = h * kv_heads // num_heads
        keys, values = (a[b, :, of * n : (of + 1) * n] for a, n in ((k, size), (v, wide)))
        scores = (
            keys @ q[b, i, h * size : (h + 1) * size] * (size**-0.5 if scale is None else scale)
        )
        scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
        shown = places[i]
        if mask_kind == "bias":
            scores = scores + mask[b, h, i]
        if mask_kind == "custom":
            shown = mask[b].astype(float) >= 0.5
        if shown.any():
            weights = np.exp(scores[shown] - scores[shown].max())
            out[b, i, h * wide : (h + 1) * wide] = weights / weights.sum() @ values[shown]
    return out


def plus(x, bias):
    return x if bias is None else x + bias


def per_head(x, scale, eps):
    if scale is None:
        return x
    heads = x.reshape(*x.shape[:-1], x.shape[-1] // len(scale), len(scale))
    return rms_norm(heads, scale, eps=eps).reshape(x.shape)


def decoder(
    x, n1, wq, wk, wv, wo, cos, sin, n2, up, gate, down, mask=None, bq=None, bk=None, bv=None,
    bo=None, q_norm=None, k_norm=None, *, head_dim, eps=1e-6, n_rot=None, interleaved=False,
    past=None, mask_kind="causal", **how,
):  # fmt: skip
    h = rms_norm(x, n1, eps=eps)
    q, k, v = plus(h @ wq, bq), plus(h @ wk, bk), plus(h @ wv, bv)
    turn = partial(rope, cos=cos, sin=sin, head_dim=head_dim, n_rot=n_rot, interleaved=interleaved)
    q, k = turn(per_head(q, q_norm, eps)), turn(per_head(k, k_norm, eps))
    if past is not None:
        k, v = np.concatenate([past[0], k], 1), np.concatenate([past[1], v], 1)
    x = x + plus(attention(q, k, v, mask, mask_kind=mask_kind, **how) @ wo, bo)
    h = rms_norm(x, n2, eps=eps)
    made = x + (silu(h @ gate) * (h @ up)) @ down
    return made if past is None else (made, k, v)


def decoder_step(*values, **how):
    return decoder(*values[:12], *values[14:], past=values[12:14], **how)


X = ("b", "s", 8)
HEADS = {"num_heads": 4, "kv_heads": 2, "head_dim": 4}
LAYER = (
    X, (8,), (8, 16), (8, 8), (8, 8), (16, 8), ("s", 2), ("s", 2), (8,), (8, 12), (8, 12), (12, 8),
)  # fmt: skip
PAST = (("b", "p", 8), ("b", "p", 8))
NO_BIAS = (None,) * 4
QKV_BIAS = ((16,), (8,), (8,), None)
HEAD_NORMS = ((4,), (4,))
QUARTER = (*LAYER[:6], ("s", 1), ("s", 1), *LAYER[8:])
MASKS = {
    "none": (None, {}),
    "causal": (None, {}),
    "sliding_window": (None, {"window": 2}),
    "custom": (("b", "p+s"), {}),
    "bias": (("b", 4, "s", "p+s"), {}),
}


def decoding(extras=(), operands=LAYER, **more):
    """A layer without a cache."""
    attrs = HEADS | more
    return Case("llama_decoder_block", (*operands, *extras), partial(decoder, **attrs), attrs)


def stepping(extras=(), operands=LAYER, whole=(), **more):
    """A layer with a cache."""
    attrs = HEADS | more
    given = (*operands, *PAST, *extras)
    return Case(
        "llama_decoder_step", given, partial(decoder_step, **attrs), attrs, whole=dict(whole)
    )


DECODERS = [
    decoding(),
    decoding((None, *QKV_BIAS)),
    decoding((None, *NO_BIAS, *HEAD_NORMS), eps=1e-5),
    decoding((("b", "s"), *QKV_BIAS[:3], (8,), *HEAD_NORMS), mask_kind="custom", softcap=3.0),
    decoding((), QUARTER, n_rot=2, interleaved=True, mask_kind="sliding_window", window=1),
    decoding((), num_heads=4, kv_heads=1, head_dim=4, operands=(
        *LAYER[:3], (8, 4), (8, 4), *LAYER[5:])),
    decoding((), kv_heads=None, scale=0.3, mask_kind="none", operands=(
        *LAYER[:3], (8, 16), (8, 16), *LAYER[5:])),
    stepping(),
    stepping((None, *QKV_BIAS, *HEAD_NORMS)),
    stepping((), QUARTER, n_rot=2, mask_kind="sliding_window", window=2, softcap=4.0),
    stepping((("b", "p+s"),), mask_kind="custom", whole={14: ("bool", 2)}.items()),
    stepping((("b", 4, "s", "p+s"), None, None, None, (8,)), mask_kind="bias", scale=0.2),
]  # fmt: skip


def encoder(x, wq, bq, wk, bk, wv, bv, wo, bo, g1, b1, up, ub, down, db, g2, b2, mask=None, **how):
    mixed = attention(x @ wq + bq, x @ wk + bk, x @ wv + bv, mask, **how) @ wo + bo
    x = layer_norm(mixed + x, g1, b1, eps=1e-12)
    return layer_norm(gelu(x @ up + ub) @ down + db + x, g2, b2, eps=1e-12)


def attending(
    x, g, b, wq, wk, wv, wo, memory=None, mask=None, bq=None, bk=None, bv=None, bo=None, *,
    eps=1e-5, **how,
):  # fmt: skip
    h = layer_norm(x, g, b, eps=eps)
    source = h if memory is None else memory
    q, k, v = plus(h @ wq, bq), plus(source @ wk, bk), plus(source @ wv, bv)
    return x + plus(attention(q, k, v, mask, **how) @ wo, bo)


def mlp(x, g, b, up, down, up_bias=None, down_bias=None, *, eps=1e-5, act=gelu):
    h = layer_norm(x, g, b, eps=eps)
    return x + plus(act(plus(h @ up, up_bias)) @ down, down_bias)


def prenorm(
    x, g1, b1, wq, wk, wv, wo, g2, b2, up, down, mask=None, bq=None, bk=None, bv=None, bo=None,
    up_bias=None, down_bias=None, *, act=gelu, **how,
):  # fmt: skip
    x = attending(x, g1, b1, wq, wk, wv, wo, None, mask, bq, bk, bv, bo, **how)
    return mlp(x, g2, b2, up, down, up_bias, down_bias, act=act)


TWO, V8 = {"num_heads": 2}, (8,)
BERT = (X, *((8, 8), V8) * 4, V8, V8, (8, 12), (12,), (12, 8), V8, V8, V8)
SELF = (X, V8, V8, (8, 8), (8, 8), (8, 8), (8, 8))
CROSS = (X, V8, V8, (8, 8), (6, 8), (6, 8), (8, 8), ("b", "t", 6))
PRENORM = (*SELF, V8, V8, (8, 12), (12, 8))


def encoding(block, operands, meaning, more=None, **attrs):
    given = TWO | attrs
    return Case(block, operands, partial(meaning, **given, **(more or {})), given)


ENCODERS = [
    encoding("encoder_block", BERT, encoder),
    encoding("encoder_block", (*BERT, ("b", "s")), encoder, mask_kind="custom"),
    encoding("encoder_block", (*BERT, ("b", 2, "s", "s")), encoder, mask_kind="bias"),
    encoding("encoder_block", BERT, encoder, mask_kind="sliding_window", window=1),
    encoding("attention_block", (*SELF, None, None, V8, None, V8, V8), attending),
    encoding("attention_block", CROSS, attending),
    encoding(
        "attention_block", (*CROSS, ("b", "t"), V8), attending, mask_kind="custom", softcap=2.0
    ),
    encoding(
        "attention_block",
        (*SELF[:4], (8, 4), (8, 4), (8, 8)),
        attending,
        kv_heads=1,
        mask_kind="causal",
    ),
    encoding("prenorm_encoder_block", PRENORM, prenorm),
    encoding("prenorm_encoder_block", (*PRENORM, None, V8, V8, V8, V8, (12,), V8), prenorm),
    encoding("prenorm_encoder_block", (*PRENORM, None, V8, None, V8, V8, (12,), V8), prenorm),
    encoding(
        "prenorm_encoder_block", (*PRENORM, ("b", "s")), prenorm, eps=1e-5, mask_kind="custom"
    ),
    Case("mlp_block", (X, V8, V8, (8, 12), (12, 8)), mlp),
    Case(
        "mlp_block",
        (X, V8, V8, (8, 12), (12, 8), None, V8),
        partial(mlp, eps=1e-3, act=gelu_tanh),
        {"eps": 1e-3, "approximate": True},
    ),
]

# -- into rows, and out of them -------------------------------------------------------------------


def bert_embeddings(ids, tokens, positions, scale, bias, kinds=None, kind_table=None, places=None):
    made = np.zeros((*ids.shape, tokens.shape[1]))
    for b, s in np.ndindex(*ids.shape):
        made[b, s] = tokens[ids[b, s]] + positions[s if places is None else places[b, s]]
        if kind_table is not None:
            made[b, s] += kind_table[0 if kinds is None else kinds[b, s]]
    return layer_norm(made, scale, bias, eps=1e-12)


def patches(x, w, bias=None, first=None, positions=None):
    n, (d, _, p, q) = len(x), w.shape
    grid = np.ndindex(x.shape[2] // p, x.shape[3] // q)
    cut = [x[:, :, i * p : (i + 1) * p, j * q : (j + 1) * q].reshape(n, -1) for i, j in grid]
    rows = plus(np.stack(cut, 1).reshape(n, len(cut), -1) @ w.reshape(d, -1).T, bias)
    if first is not None:
        rows = np.concatenate([np.tile(first, (n, 1, 1)), rows], 1)
    return plus(rows, positions)


def conv1d(x, w, bias, stride):
    """One place at a time, over zeros at both ends."""
    half = w.shape[2] // 2
    padded = np.pad(x, ((0, 0), (0, 0), (half, half)))
    count = (padded.shape[2] - w.shape[2]) // stride + 1
    made = np.zeros((len(x), len(w), count))
    for i in range(count):
        window = padded[:, :, i * stride : i * stride + w.shape[2]]
        made[:, :, i] = np.einsum("bck,ock->bo", window, w) + bias
    return made


def stem(x, w1, b1, w2, b2, positions=None, *, stride=2):
    x = gelu(conv1d(gelu(conv1d(x, w1, b1, 1)), w2, b2, stride))
    return plus(x.swapaxes(1, 2), positions)


def lm_head(x, norm, w, *, softcap=None):
    logits = rms_norm(x, norm, eps=1e-6) @ w
    return logits if softcap is None else softcap * np.tanh(logits / softcap)


IDS = {0: ("i64", 9), 5: ("i64", 2), 7: ("i32", 11)}
TABLES = (("b", "s"), (9, 8), ("s", 8), V8, V8)
STEM = (("b", 3, 9), (4, 3, 3), (4,), (6, 4, 3), (6,))
EDGES = [
    Case("bert_embeddings", TABLES, bert_embeddings, whole=IDS),
    Case("bert_embeddings", (*TABLES, ("b", "s"), (2, 8)), bert_embeddings, whole=IDS),
    Case("bert_embeddings", (*TABLES, None, (2, 8)), bert_embeddings, whole=IDS),
    Case(
        "bert_embeddings",
        (("b", "s"), (9, 8), (11, 8), V8, V8, None, None, ("b", "s")),
        bert_embeddings,
        whole=IDS,
    ),
    Case("pooler", (X, (8, 6)), lambda x, w: np.tanh(x[:, 0] @ w)),
    Case("pooler", (X, (8, 6), (6,)), lambda x, w, b: np.tanh(x[:, 0] @ w + b)),
    Case("patch_embedding", (("b", 3, 4, 6), (8, 3, 2, 3)), patches),
    Case("patch_embedding", (("b", 3, 5, 6), (8, 3, 2, 3), V8, V8, (5, 8)), patches),
    Case("patch_embedding", (("b", 3, 4, 6), (8, 3, 2, 2), None, V8), patches),
    Case("audio_stem", STEM, stem),
    Case("audio_stem", (*STEM, (5, 6)), stem),
    Case("audio_stem", (("b", 3, "s"), *STEM[1:]), partial(stem, stride=1), {"stride": 1}),
    Case("lm_head", (X, V8, (8, 9)), lm_head),
    Case("lm_head", (X, V8, (8, 9)), partial(lm_head, softcap=2.0), {"softcap": 2.0}),
    Case("tied_lm_head", (X, V8, (9, 8)), lambda x, n, t: lm_head(x, n, t.T)),
]

# -- experts and packed weights -------------------------------------------------------------------


def experts(
    x, router, gate, up, down, s_gate=None, s_up=None, s_down=None, s_router=None, *, top_k,
    scoring="softmax", normalise=True, scale=1.0, act=silu,
):  # fmt: skip
    """One row after the other, and of each only the experts that it chose."""
    made = np.zeros_like(x)
    for at in np.ndindex(*x.shape[:-1]):
        row, logits = x[at], x[at] @ router
        e = np.exp(logits - logits.max())
        scores = e / e.sum() if scoring == "softmax" else sigmoid(logits)
        chosen = np.argsort(-scores, kind="stable")[:top_k]
        weights = scores[chosen] / (scores[chosen].sum() if normalise else 1.0) * scale
        for i, weight in zip(chosen, weights):
            made[at] += weight * ((act(row @ gate[i]) * (row @ up[i])) @ down[i])
        if s_up is not None:
            share = 1.0 if s_router is None else sigmoid(row @ s_router)
            made[at] += share * ((silu(row @ s_gate) * (row @ s_up)) @ s_down)
    return made


EXPERTS = (X, (8, 5), (5, 8, 6), (5, 8, 6), (5, 6, 8))
SHARED = ((8, 7), (8, 7), (7, 8))


def mixing(extras=(), act=silu, **attrs):
    given = attrs | ({} if act is silu else {"activation": act.__name__})
    return Case("moe_layer", (*EXPERTS, *extras), partial(experts, **attrs, act=act), given)


MIXTURES = [
    mixing(top_k=2),
    mixing(top_k=1, normalise=False),
    mixing(top_k=5),
    mixing(SHARED, top_k=3, scoring="sigmoid", scale=2.5),
    mixing((*SHARED, (8, 1)), top_k=2, normalise=False),
    mixing(top_k=2, scoring="sigmoid", normalise=False, act=relu),
]


def q8_0(x, packed):
    """Runs of 34 bytes: an f16 scale and 32 bytes with a sign."""
    runs = packed.reshape(len(packed), -1, 34)
    scale = np.ascontiguousarray(runs[..., :2]).view(np.float16).astype(float)
    weights = (runs[..., 2:].view(np.int8) * scale).reshape(len(packed), -1)
    return x @ weights.T


def int4(x, packed, scale, zero=None, bias=None):
    """Two numbers in a byte, the lower half first, four to a scale."""
    numbers = np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1).astype(float)
    numbers = np.where(numbers > 7, numbers - 16, numbers).reshape(*scale.shape, 4)
    shifted = numbers if zero is None else numbers - zero[..., None]
    return plus(x @ (shifted * scale[..., None]).reshape(len(packed), -1).T, bias)


BYTES = {1: ("u8", 64)}
"""Bytes below 64 make no scale that is negative, infinite or no number."""
FOURS = {1: ("u8", 256), 3: ("i8", 5)}
PACKED = [
    Case("dequant_linear", (("b", "s", 32), (5, 34)), q8_0, {"scheme": "q8_0"}, whole=BYTES),
    Case(
        "dequant_linear",
        (("s", 64), (5, 68), None, None, (5,)),
        lambda x, w, s, z, b: relu(q8_0(x, w) + b),
        {"scheme": "q8_0", "activation": "relu"},
        whole=BYTES,
    ),
    Case(
        "dequant_linear",
        (X, (5, 4), (5, 2), (5, 2), (5,)),
        int4,
        {"scheme": "int4", "run": 4},
        whole=FOURS,
    ),
    Case(
        "dequant_linear",
        (X, (5, 4), (5, 2), None, (5,)),
        int4,
        {"scheme": "int4", "run": 4},
        whole=FOURS,
    ),
]

# -- states ---------------------------------------------------------------------------------------


def causal(x, w, bias=None, state=None, act=lambda v: v):
    """One step and tap at a time, and the last k - 1 steps."""
    k = w.shape[1]
    state = np.zeros((len(x), k - 1, x.shape[2])) if state is None else state
    whole, made = np.concatenate([state, x], 1), np.zeros_like(x)
    for t in range(x.shape[1]):
        for j in range(k):
            made[:, t] += whole[:, t + j] * w[:, j]
    return act(plus(made, bias)), whole[:, x.shape[1] :]


def delta_layer(
    x, norm, w_qkv, w_gate, w_strength, w_decay, conv, a_log, dt_bias, out_norm, wo,
    conv_bias=None, conv_state=None, state=None, *, num_heads, key_dim, key_heads=None, eps=1e-6,
):  # fmt: skip
    """The gated delta rule, one batch, step and head at a time."""
    keys, m = key_heads or num_heads, len(out_norm)
    h = rms_norm(x, norm, eps=eps)
    mixed, after = causal(h @ w_qkv, conv, conv_bias, conv_state, silu)
    strength = sigmoid(h @ w_strength)
    decay = np.exp(-np.exp(a_log) * np.log1p(np.exp(h @ w_decay + dt_bias)))
    start = np.zeros((len(x), num_heads, key_dim, m)) if state is None else state
    s, made = start.copy(), np.zeros((*x.shape[:2], num_heads, m))
    for b, t, i in np.ndindex(*x.shape[:2], num_heads):
        of, row = i * keys // num_heads, mixed[b, t]
        q, k = (row[c * key_dim : (c + 1) * key_dim] for c in (of, keys + of))
        q, k = (a / np.sqrt(a @ a + 1e-6) for a in (q, k))
        v = row[2 * keys * key_dim :][i * m : (i + 1) * m]
        s[b, i] *= decay[b, t, i]
        s[b, i] += np.outer(k, (v - k @ s[b, i]) * strength[b, t, i])
        made[b, t, i] = q @ s[b, i] / np.sqrt(key_dim)
    normed = rms_norm(made, out_norm, eps=eps).reshape(*x.shape[:2], num_heads * m)
    return x + normed * silu(h @ w_gate) @ wo, after, s


DELTA = (
    X, V8, (8, 24), (8, 12), (8, 4), (8, 4), (24, 3), (4,), (4,), (3,), (12, 8)
)  # fmt: skip
RULE = {"num_heads": 4, "key_heads": 2, "key_dim": 3}
STATES = (("b", 2, 24), ("b", 4, 3, 3))


def recalling(extras=(), operands=DELTA, **more):
    attrs = RULE | more
    given = (*operands, *extras)
    return Case("gated_delta_net_layer", given, partial(delta_layer, **attrs), attrs)


RECURRENCES = [
    Case("causal_conv", (X, (8, 3)), lambda x, w: causal(x, w)[0]),
    Case(
        "causal_conv",
        (X, (8, 4), V8),
        lambda x, w, b: causal(x, w, b, None, silu)[0],
        {"activation": "silu"},
    ),
    Case("causal_conv", (X, (8, 1)), lambda x, w: causal(x, w)[0]),
    Case("causal_conv_step", (X, (8, 3), ("b", 2, 8)), lambda x, w, s: causal(x, w, None, s)),
    Case(
        "causal_conv_step",
        (X, (8, 4), ("b", 3, 8), V8),
        lambda x, w, s, b: causal(x, w, b, s, silu),
        {"activation": "silu"},
    ),
    recalling(),
    recalling((None, *STATES)),
    recalling(((24,), None, STATES[1])),
    recalling(
        (), (*DELTA[:2], (8, 36), *DELTA[3:6], (36, 1), *DELTA[7:]), key_heads=None, eps=1e-3
    ),
]

CASES = [*DECODERS, *ENCODERS, *EDGES, *MIXTURES, *PACKED, *RECURRENCES]
