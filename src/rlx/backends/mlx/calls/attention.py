"""Attention as `mx.fast.scaled_dot_product_attention`, and rotary positions."""

from __future__ import annotations

from typing import Any

from rlx.backends.mlx import numerics
from rlx.backends.mlx.calls.table import TABLE
from rlx.backends.mlx.namespaces import mx


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
    kv = num_heads if kv_heads is None else kv_heads
    q, k, v = map(numerics.widened, (q, k, v))
    heads = _by_head(q, num_heads), _by_head(k, kv), _by_head(v, kv)
    by = max(heads[0].shape[3], 1) ** -0.5 if scale is None else scale
    seen, bias = _mask(heads, mask, mask_kind, window)
    made = _mixed(heads, by, softcap, seen, bias)
    if mask_kind != "none" and heads[1].shape[2]:
        made = _without_blind(made, seen, bias, masked_rows)
    return made if q.ndim == 4 else _joined(made)


def _by_head(x: Any, heads: int) -> Any:
    """[batch, heads, length, depth] of either layout."""
    if x.ndim == 4:
        return x
    batch, length, width = x.shape
    return mx.transpose(mx.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def _joined(x: Any) -> Any:
    batch, heads, length, depth = x.shape
    return mx.reshape(mx.transpose(x, (0, 2, 1, 3)), (batch, length, heads * depth))


def _mask(heads: tuple[Any, ...], mask: Any, kind: str, window: int | None) -> tuple[Any, Any]:
    """Which keys queries see, and what is added to their scores; None where nothing is said."""
    if kind == "bias":
        bias = mask.astype(heads[0].dtype)
        return None, mx.reshape(bias, (*[1] * (4 - bias.ndim), *bias.shape))
    if kind == "custom":
        shown = mask[:, None, None, :] if mask.ndim == 2 else mask
        shown = shown if shown.dtype == mx.bool_ else mx.logical_not(shown < 0.5)
        return mx.reshape(shown, (*[1] * (4 - shown.ndim), *shown.shape)), None
    if kind == "none":
        return None, None
    queries, keys = heads[0].shape[2], heads[1].shape[2]
    distance = mx.arange(queries)[:, None] + (keys - queries) - mx.arange(keys)
    seen = distance >= 0
    if window is not None:
        seen = mx.logical_and(seen, distance <= window)
    return seen[None, None], None


def _mixed(heads: tuple[Any, ...], by: float, softcap: float | None, seen: Any, bias: Any) -> Any:
    q, k, v = heads
    if 0 in (*q.shape, *k.shape, *v.shape):
        return mx.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    if softcap is None and q.dtype != mx.float64:
        mask = seen if bias is None else bias
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=by, mask=mask)
    return _composed(q, k, v, by, softcap, seen, bias)


def _composed(
    q: Any, k: Any, v: Any, by: float, softcap: float | None, seen: Any, bias: Any
) -> Any:
    """With a softcap, which mlx's function does not have, or doubles, whose exponentials it takes
    in f32. Query heads of one kv head are rows of one product."""
    batch, kv, keys, depth = k.shape
    rows = mx.reshape(q, (batch, kv, -1, depth))
    s = mx.reshape(mx.matmul(rows, mx.swapaxes(k, 2, 3)), (*q.shape[:3], keys)) * by
    s = s if softcap is None else mx.tanh(s / softcap) * softcap
    s = s if bias is None else s + bias
    s = s if seen is None else mx.where(seen, s, mx.array(-float("inf"), s.dtype))
    e = numerics.exp(s - mx.max(s, axis=-1, keepdims=True))
    weights = mx.reshape(e / mx.sum(e, axis=-1, keepdims=True), (batch, kv, -1, keys))
    return mx.reshape(mx.matmul(weights, v), (*q.shape[:3], v.shape[3]))


def _without_blind(made: Any, seen: Any, bias: Any, masked_rows: str) -> Any:
    """A query that sees no key, or only scores of -inf, gives zeros or NaN."""
    visible = bias > -float("inf") if seen is None else seen
    has_key = mx.any(visible, axis=-1, keepdims=True)
    other = mx.array(0.0 if masked_rows == "zeros" else float("nan"), made.dtype)
    return mx.where(has_key, made, other)


# -- rotary positions -----------------------------------------------------------------------------


@TABLE.call("rope")
def rope(
    x: Any,
    cos: Any,
    sin: Any,
    *,
    head_dim: int | None,
    n_rot: int | None,
    interleaved: bool,
) -> Any:
    """Angles are operands of rlx, and attributes of `mx.fast.rope`: the rotation is composed."""
    depth = head_dim or x.shape[-1]
    heads = mx.reshape(x, (*x.shape[:-1], x.shape[-1] // depth, depth))
    turned = depth if n_rot is None else n_rot
    half = turned // 2
    first = slice(0, turned, 2) if interleaved else slice(0, half)
    second = slice(1, turned, 2) if interleaved else slice(half, turned)
    a, b = heads[..., first], heads[..., second]
    c, s = cos[..., None, :], sin[..., None, :]
    one, other = a * c - b * s, b * c + a * s
    if interleaved:
        made = mx.reshape(mx.stack([one, other], -1), (*heads.shape[:-1], turned))
    else:
        made = mx.concatenate([one, other], -1)
    if turned != depth:
        made = mx.concatenate([made, heads[..., turned:]], -1)
    return mx.reshape(made, x.shape)
