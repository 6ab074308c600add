"""Attention as two products with a softmax between them in f32, and rotary embeddings.

Query heads that share a key head are rows of one product. `jax.nn.dot_product_attention` rounds
the probabilities of half floats, which stay in f32 here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.backends.tpu.calls.contraction import accumulator, exact
from rlx.backends.tpu.calls.table import TABLE
from rlx.backends.tpu.namespaces import jnp, lax


@TABLE.call("attention", halves=True)
def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    *,
    num_heads: int,
    kv_heads: int | None,
    mask_kind: str,
    window: int | None,
    scale: float | None,
    softcap: float | None,
    masked_rows: str,
) -> Any:
    shared, wide = kv_heads or num_heads, accumulator(q)
    queries, keys, values = _heads(q, num_heads), _heads(k, shared), _heads(v, shared)
    scores = (*queries.shape[:3], keys.shape[2])
    s = _product(_rows(queries, shared), keys, 3)
    s = s * wide.type(max(queries.shape[3], 1) ** -0.5 if scale is None else scale)
    s = s if softcap is None else jnp.tanh(s / wide.type(softcap)) * wide.type(softcap)
    s = _masked(s.reshape(scores), mask, mask_kind, window)
    p = _softmax(s, mask_kind != "none" and masked_rows == "zeros")
    made = _product(_rows(p, shared), values.astype(wide), 2)
    made = made.reshape(*scores[:3], made.shape[3])
    width = num_heads * made.shape[3]
    return made if q.ndim == 4 else jnp.swapaxes(made, 1, 2).reshape(*q.shape[:2], width)


def _heads(x: Any, heads: int) -> Any:
    """[batch, heads, length, depth] of either layout."""
    if x.ndim == 4:
        return x
    return jnp.swapaxes(x.reshape(*x.shape[:2], heads, x.shape[2] // heads), 1, 2)


def _rows(x: Any, shared: int) -> Any:
    """The query heads of each key head one after the other."""
    if x.shape[1] == shared:
        return x
    return x.reshape(x.shape[0], shared, x.shape[1] // shared * x.shape[2], x.shape[3])


def _product(x: Any, y: Any, axis: int) -> Any:
    """Of each head, summed over the last axis of x and an axis of y."""
    return lax.dot_general(x, y, (((3,), (axis,)), ((0, 1), (0, 1))), **exact(x))


def _masked(s: Any, mask: Any, kind: str, window: int | None) -> Any:
    """The scores with -inf where a query does not see a key."""
    if kind == "none":
        return s
    if kind == "bias":
        return s + mask.astype(s.dtype)
    return jnp.where(_visible(s, mask, window), s, s.dtype.type(-np.inf))


def _visible(s: Any, mask: Any, window: int | None) -> Any:
    """Which keys each query sees; a mask of rank 2 is [batch, keys]."""
    if mask is not None:
        shown = mask[:, None, None, :] if mask.ndim == 2 else mask
        return shown if shown.dtype == np.bool_ else ~(shown < 0.5)
    queries, keys = s.shape[2:]
    distance = jnp.arange(queries)[:, None] + (keys - queries) - jnp.arange(keys)
    return (distance >= 0) if window is None else (distance >= 0) & (distance <= window)


def _softmax(s: Any, has_zeros: bool) -> Any:
    """With `has_zeros`, a row of -inf alone has no weight at all: its greatest score counts as the
    least finite number, and its sum, which is 0, as the least one; others are at least 1."""
    info = jnp.finfo(s.dtype)
    top = jnp.max(s, axis=-1, keepdims=True, initial=info.min if has_zeros else -np.inf)
    e = jnp.exp(s - top)
    total = jnp.sum(e, axis=-1, keepdims=True)
    return e / (jnp.maximum(total, info.tiny) if has_zeros else total)


@TABLE.call("rope")
def rope(
    x: Any, cos: Any, sin: Any, *, head_dim: int | None, n_rot: int | None, interleaved: bool
) -> Any:
    depth = head_dim or x.shape[-1]
    by_head = x.reshape(*x.shape[:-1], x.shape[-1] // depth, depth)
    rotated = depth if n_rot is None else n_rot
    front, rest = by_head[..., :rotated], by_head[..., rotated:]
    c, s = cos[..., None, :], sin[..., None, :]
    turn = _interleaved if interleaved else _halves
    return jnp.concatenate([turn(front, c, s), rest], -1).reshape(x.shape)


def _halves(x: Any, c: Any, s: Any) -> Any:
    """Element i is a pair with i + n/2."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * c - b * s, b * c + a * s], -1)


def _interleaved(x: Any, c: Any, s: Any) -> Any:
    """Element 2i is a pair with 2i + 1."""
    a, b = x[..., 0::2], x[..., 1::2]
    return jnp.stack([a * c - b * s, b * c + a * s], -1).reshape(x.shape)
