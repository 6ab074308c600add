"""The workloads' words in JAX. Linear weights are [in, out], images and their kernels end with
channels, as JAX's own libraries have them."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import numpy as np

jax: Any = import_module("jax")
jnp: Any = import_module("jax.numpy")

abs = jnp.abs
sqrt = jnp.sqrt
tanh = jnp.tanh
log10 = jnp.log10
where = jnp.where
swapped = jnp.swapaxes
stacked = jnp.stack
concat = jnp.concatenate
silu = jax.nn.silu
relu = jax.nn.relu
at_least = jnp.maximum
at_most = jnp.minimum


def linear(x: Any, w: Any, b: Any = None) -> Any:
    return x @ w if b is None else x @ w + b


def layer_norm(x: Any, g: Any, b: Any, eps: float) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + eps) * g + b


def rms_norm(x: Any, g: Any, eps: float) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps) * g


def gelu(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=False)


def gelu_tanh(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=True)


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x, -1)


def embedding(table: Any, ids: Any) -> Any:
    return table[ids]


def attention(q: Any, k: Any, v: Any, mask: Any = None, is_causal: bool = False) -> Any:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * (1 / math.sqrt(q.shape[-1]))
    if is_causal:
        mask = jnp.tril(jnp.ones((q.shape[2], k.shape[2]), bool))
    if mask is not None:
        scores = jnp.where(mask, scores, -1e30)
    return jnp.einsum("bhqk,bhkd->bhqd", softmax(scores), v)


def keys_seen(mask: Any) -> Any:
    return mask[:, None, None, :] != 0


def as_float(mask: Any) -> Any:
    return mask.astype(jnp.float32)


def repeated_heads(x: Any, times: int) -> Any:
    return jnp.repeat(x, times, axis=1)


def conv(x: Any, w: Any, stride: int, padding: int) -> Any:
    around = [(padding, padding)] * 2
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (stride, stride), around, dimension_numbers=layout)


def batch_norm(x: Any, g: Any, b: Any, m: Any, v: Any, eps: float) -> Any:
    return (x - m) * (g * jax.lax.rsqrt(v + eps)) + b


def max_pool(x: Any) -> Any:
    around = [(0, 0), (1, 1), (1, 1), (0, 0)]
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), around)


def image_mean(x: Any) -> Any:
    return x.mean((1, 2))


def frames(x: Any, length: int, hop: int) -> Any:
    count = (x.shape[-1] - length) // hop + 1
    return x[:, np.arange(count)[:, None] * hop + np.arange(length)]


def reflected(x: Any, margin: int) -> Any:
    return jnp.pad(x, ((0, 0), (margin, margin)), mode="reflect")


def power(x: Any) -> Any:
    made = jnp.fft.rfft(x)
    return made.real * made.real + made.imag * made.imag


def top_k(x: Any, k: int) -> Any:
    return tuple(jax.lax.top_k(x, k))
