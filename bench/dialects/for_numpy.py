"""The workloads' words in NumPy: the meaning that every other dialect is checked against."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rlx.core.error_function import erf

abs = np.abs
sqrt = np.sqrt
tanh = np.tanh
log10 = np.log10
where = np.where
swapped = np.swapaxes
stacked = np.stack
concat = np.concatenate


def linear(x: Any, w: Any, b: Any = None) -> Any:
    return x @ w.T if b is None else x @ w.T + b


def layer_norm(x: Any, g: Any, b: Any, eps: float) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * g + b


def rms_norm(x: Any, g: Any, eps: float) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * g


def gelu(x: Any) -> Any:
    return x / 2 * (1 + erf(x / np.sqrt(2)))


def gelu_tanh(x: Any) -> Any:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def relu(x: Any) -> Any:
    return np.maximum(x, 0)


def softmax(x: Any) -> Any:
    raised = np.exp(x - x.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def embedding(table: Any, ids: Any) -> Any:
    return table[ids]


def attention(q: Any, k: Any, v: Any, mask: Any = None, is_causal: bool = False) -> Any:
    scores = q @ np.swapaxes(k, 2, 3) / np.sqrt(q.shape[-1])
    if is_causal:
        mask = np.tri(q.shape[2], k.shape[2], dtype=bool)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    return softmax(scores) @ v


def keys_seen(mask: Any) -> Any:
    """Which keys every query of a row may see."""
    return mask[:, None, None, :] != 0


def as_float(mask: Any) -> Any:
    return mask.astype(np.float64)


def repeated_heads(x: Any, times: int) -> Any:
    return np.repeat(x, times, axis=1)


def conv(x: Any, w: Any, stride: int, padding: int) -> Any:
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = sliding_window_view(padded, w.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    return np.moveaxis(np.tensordot(windows, w, ((1, 4, 5), (1, 2, 3))), 3, 1)


def batch_norm(x: Any, g: Any, b: Any, m: Any, v: Any, eps: float) -> Any:
    g, b, m, v = (a[:, None, None] for a in (g, b, m, v))
    return (x - m) / np.sqrt(v + eps) * g + b


def max_pool(x: Any) -> Any:
    """The greatest of 3×3, every second one, one more around."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    return sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2].max((4, 5))


def image_mean(x: Any) -> Any:
    return x.mean((2, 3))


def at_least(x: Any, bound: float) -> Any:
    return np.maximum(x, bound)


def at_most(x: Any, bound: float) -> Any:
    return np.minimum(x, bound)


def frames(x: Any, length: int, hop: int) -> Any:
    return sliding_window_view(x, length, -1)[:, ::hop]


def reflected(x: Any, margin: int) -> Any:
    return np.pad(x, ((0, 0), (margin, margin)), mode="reflect")


def power(x: Any) -> Any:
    made = np.fft.rfft(x)
    return made.real**2 + made.imag**2


def top_k(x: Any, k: int) -> Any:
    order = np.argsort(-x, -1, kind="stable")[:, :k]
    return np.take_along_axis(x, order, -1), order
