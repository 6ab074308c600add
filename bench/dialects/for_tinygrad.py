"""The workloads' words in tinygrad. It has no Fourier transform: that of a frame is a product with
the matrix of it."""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

tinygrad: Any = import_module("tinygrad")
Tensor: Any = tinygrad.Tensor

abs = Tensor.abs
sqrt = Tensor.sqrt
tanh = Tensor.tanh
silu = Tensor.silu
relu = Tensor.relu
gelu_tanh = Tensor.gelu
swapped = Tensor.transpose
at_least = Tensor.maximum
at_most = Tensor.minimum


def linear(x: Any, w: Any, b: Any = None) -> Any:
    return x.linear(w.T, b)


def layer_norm(x: Any, g: Any, b: Any, eps: float) -> Any:
    return x.layernorm(-1, eps) * g + b


def rms_norm(x: Any, g: Any, eps: float) -> Any:
    return x * ((x * x).mean(-1, keepdim=True) + eps).rsqrt() * g


def gelu(x: Any) -> Any:
    return x * 0.5 * ((x / math.sqrt(2.0)).erf() + 1.0)


def softmax(x: Any) -> Any:
    return x.softmax(-1)


def embedding(table: Any, ids: Any) -> Any:
    return table[ids]


def attention(q: Any, k: Any, v: Any, mask: Any = None, is_causal: bool = False) -> Any:
    return q.scaled_dot_product_attention(k, v, attn_mask=mask, is_causal=is_causal)


def keys_seen(mask: Any) -> Any:
    return mask[:, None, None, :] != 0


def as_float(mask: Any) -> Any:
    return mask.cast(tinygrad.dtypes.float32)


def repeated_heads(x: Any, times: int) -> Any:
    batch, heads, length, depth = x.shape
    spread = x[:, :, None].expand(batch, heads, times, length, depth)
    return spread.reshape(batch, heads * times, length, depth)


def concat(parts: Any, axis: int) -> Any:
    return parts[0].cat(*parts[1:], dim=axis)


def stacked(parts: Any) -> Any:
    return Tensor.stack(*parts)


def conv(x: Any, w: Any, stride: int, padding: int) -> Any:
    return x.conv2d(w, None, 1, stride, 1, padding)


def batch_norm(x: Any, g: Any, b: Any, m: Any, v: Any, eps: float) -> Any:
    return x.batchnorm(g, b, m, (v + eps).rsqrt())


def max_pool(x: Any) -> Any:
    return x.max_pool2d((3, 3), 2, 1, 1)


def image_mean(x: Any) -> Any:
    return x.mean((2, 3))


def frames(x: Any, length: int, hop: int) -> Any:
    return x.unfold(-1, length, hop)


def reflected(x: Any, margin: int) -> Any:
    return x[:, None].pad((margin, margin), mode="reflect")[:, 0]


def power(x: Any) -> Any:
    bins = x.shape[-1] // 2 + 1
    made = (x @ _fourier(x.shape[-1])).square()
    return made[..., :bins] + made[..., bins:]


def log10(x: Any) -> Any:
    return x.log2() * math.log10(2)


@cache
def _fourier(length: int) -> Any:
    """The real parts of all bins, then the imaginary ones."""
    angles = 2 * np.pi / length * np.outer(np.arange(length), np.arange(length // 2 + 1))
    both = np.concatenate([np.cos(angles), np.sin(angles)], 1)
    return Tensor(both.astype(np.float32)).realize()
