"""One case per block and way of using it: operands by size, attributes, and the meaning in NumPy.

Sizes given by name are dims of that name; SIZES says how large they are when bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SIZES = {"b": 2, "s": 5, "p": 3}
Dims = tuple[int | str, ...]


@dataclass(frozen=True)
class Case:
    """Operands of a block, what it is given beside them, and what must come out."""

    block: str
    operands: tuple[Dims, ...]
    meaning: Callable[..., Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    positive: frozenset[int] = frozenset()
    """Operands that must not be negative, such as a variance."""

    def __str__(self) -> str:
        values = ",".join(f"{k}={v}" for k, v in self.attrs.items())
        return f"{self.block}-{len(self.operands)}-{values}"


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def relu(x):
    return np.maximum(x, 0)


def rms_norm(x, scale, bias=0.0, *, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * scale + bias


def layer_norm(x, scale, bias, *, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * scale + bias


def rope(x, cos, sin, head_dim):
    """Each head's halves are the parts of complex numbers, turned by their position's angles."""
    heads = x.reshape(*x.shape[:-1], -1, head_dim)
    a, b = np.split(heads, 2, -1)
    c, s = cos[..., None, :], sin[..., None, :]
    return np.concatenate([a * c - b * s, b * c + a * s], -1).reshape(x.shape)


def attention(q, k, v, *, heads, kv_heads, is_causal=False, keep=None):
    """Softmax attention, one query head at a time."""
    size = q.shape[-1] // heads
    out = []
    for h in range(heads):
        of = h * kv_heads // heads
        qh, kh = q[..., h * size : (h + 1) * size], k[..., of * size : (of + 1) * size]
        scores = qh @ np.swapaxes(kh, -1, -2) / np.sqrt(size)
        rows, columns = scores.shape[-2:]
        if is_causal:
            past = columns - rows
            later = np.arange(columns)[None, :] > np.arange(rows)[:, None] + past
            scores = np.where(later, -np.inf, scores)
        if keep is not None:
            scores = np.where(keep[:, None, :] < 0.5, -1e9, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out.append(weights @ v[..., of * size : (of + 1) * size])
    return np.concatenate(out, -1)


def decoder_step(x, n1, wq, wk, wv, wo, cos, sin, n2, up, gate, down, past_k=None, past_v=None):
    """Four query heads and two key heads of 4, causal."""
    h = rms_norm(x, n1, eps=1e-6)
    q, k, v = rope(h @ wq, cos, sin, 4), rope(h @ wk, cos, sin, 4), h @ wv
    if past_k is not None:
        k, v = np.concatenate([past_k, k], 1), np.concatenate([past_v, v], 1)
    x = x + attention(q, k, v, heads=4, kv_heads=2, is_causal=True) @ wo
    h = rms_norm(x, n2, eps=1e-6)
    return x + (silu(h @ gate) * (h @ up)) @ down, k, v


def encoder(x, wq, bq, wk, bk, wv, bv, wo, bo, g1, b1, up, ub, down, db, g2, b2, keep=None):
    """Two heads."""
    q, k, v = x @ wq + bq, x @ wk + bk, x @ wv + bv
    mixed = attention(q, k, v, heads=2, kv_heads=2, keep=keep) @ wo + bo
    x = layer_norm(mixed + x, g1, b1, eps=1e-12)
    return layer_norm(gelu(x @ up + ub) @ down + db + x, g2, b2, eps=1e-12)


X, W = ("b", "s", 8), (8, 6)
FFN = (X, (8, 12), (8, 12), (12, 8))
HEADS = {"num_heads": 4, "kv_heads": 2, "head_dim": 4}
DECODER = (
    X, (8,), (8, 16), (8, 8), (8, 8), (16, 8), ("s", 2), ("s", 2), (8,), (8, 12), (8, 12), (12, 8),
)  # fmt: skip
ENCODER = (
    X, (8, 8), (8,), (8, 8), (8,), (8, 8), (8,), (8, 8), (8,), (8,), (8,),
    (8, 12), (12,), (12, 8), (8,), (8,), (8,),
)  # fmt: skip

CASES = [
    Case("linear", (X, W), lambda x, w: x @ w),
    Case("linear", (X, W, (6,)), lambda x, w, b: x @ w + b),
    Case("linear", (X, W), lambda x, w: silu(x @ w), {"activation": "silu"}),
    Case("linear", (X, W, (6,)), lambda x, w, b: relu(x @ w + b), {"activation": "relu"}),
    Case("linear", (("s", 8), W, (6,)), lambda x, w, b: np.tanh(x @ w + b), {"activation": "tanh"}),
    Case("linear_fused", (X, W, (6,)), lambda x, w, b: gelu(x @ w + b), {"activation": "gelu"}),
    Case("linear_fused", (X, W, (6,)), lambda x, w, b: x @ w + b),
    Case("shared_linear_pair", (X, W, (8, 3)), lambda x, v, w: x @ v, {"slot": 0}),
    Case("shared_linear_pair", (X, W, (8, 3)), lambda x, v, w: x @ w, {"slot": 1}),
    Case("swiglu_ffn", FFN, lambda x, u, g, d: (silu(x @ g) * (x @ u)) @ d),
    Case("geglu_ffn", FFN, lambda x, u, g, d: (gelu(x @ g) * (x @ u)) @ d),
    Case("gelu_ffn", (X, (8, 12), (12, 8)), lambda x, u, d: gelu(x @ u) @ d),
    Case(
        "gelu_ffn",
        (X, (8, 12), (12, 8), (12,), (8,)),
        lambda x, u, d, a, b: gelu_tanh(x @ u + a) @ d + b,
        {"approximate": True},
    ),
    Case(
        "residual_rms_norm",
        (X, X, (8,)),
        lambda x, r, g: rms_norm(x + r, g, eps=1e-3),
        {"eps": 1e-3},
    ),
    Case(
        "residual_rms_norm",
        (X, X, (8,), (8,)),
        lambda x, r, g, b: rms_norm(x + r, g, b, eps=1e-6),
    ),
    Case(
        "residual_layer_norm",
        (X, X, (8,), (8,)),
        lambda x, r, g, b: layer_norm(x + r, g, b, eps=1e-5),
    ),
    Case("llama_decoder_block", DECODER, lambda *v: decoder_step(*v)[0], HEADS),
    Case("llama_decoder_step", (*DECODER, ("b", "p", 8), ("b", "p", 8)), decoder_step, HEADS),
    Case("encoder_block", ENCODER, encoder, {"num_heads": 2}),
    Case(
        "encoder_block",
        (*ENCODER, ("b", "s")),
        encoder,
        {"num_heads": 2, "mask_kind": "custom"},
        frozenset({17}),
    ),
]
