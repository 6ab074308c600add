"""The workloads' words in mlx, by its own fused functions. Linear weights are [in, out]: by those
of mlx.nn, [out, in], its Linux build multiplies at half the speed."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

mx: Any = import_module("mlx.core")
nn: Any = import_module("mlx.nn")

abs = mx.abs
sqrt = mx.sqrt
tanh = mx.tanh
where = mx.where
swapped = mx.swapaxes
silu = nn.silu
relu = nn.relu
gelu = nn.gelu
gelu_tanh = nn.gelu_approx


def linear(x: Any, w: Any, b: Any = None) -> Any:
    return x @ w if b is None else mx.addmm(b, x, w)


def layer_norm(x: Any, g: Any, b: Any, eps: float) -> Any:
    return mx.fast.layer_norm(x, g, b, eps)


def rms_norm(x: Any, g: Any, eps: float) -> Any:
    return mx.fast.rms_norm(x, g, eps)


def softmax(x: Any) -> Any:
    return mx.softmax(x, -1)


def embedding(table: Any, ids: Any) -> Any:
    return table[ids]


def attention(q: Any, k: Any, v: Any, mask: Any = None, is_causal: bool = False) -> Any:
    by = 1 / math.sqrt(q.shape[-1])
    seen = "causal" if is_causal else mask
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=by, mask=seen)


def keys_seen(mask: Any) -> Any:
    return mask[:, None, None, :] != 0


def as_float(mask: Any) -> Any:
    return mask.astype(mx.float32)
