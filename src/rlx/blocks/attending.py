"""Multi-head attention of transformer layers: projections, rotary positions, KV cache, heads.

Heads are packed, [batch, seq, heads · head_dim], throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlx import ops
from rlx.blocks.dense import linear
from rlx.core.dim import exact_div
from rlx.core.errors import GraphError
from rlx.ir.block import FUSABLE, FusionPolicy
from rlx.ops.compose import dims_of
from rlx.ops.nn.attention import MaskKind as MaskKind

Pair = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Projections:
    """The weights of an attention; of the biases and of the norms of heads, any may be None."""

    wq: Any
    wk: Any
    wv: Any
    wo: Any
    bq: Any = None
    bk: Any = None
    bv: Any = None
    bo: Any = None
    q_norm: Any = None
    k_norm: Any = None

    def check(self, num_heads: int, kv_heads: int | None, head_dim: int) -> None:
        """They are as wide as their heads."""
        kv = kv_heads or num_heads
        for name, w, heads in (("wq", self.wq, num_heads), ("wk", self.wk, kv)):
            width = dims_of(w)[-1]
            if width != heads * head_dim:
                wanted = f"{heads} heads of {head_dim} are {heads * head_dim}"
                raise GraphError(f"{name} is {width} wide, but {wanted}")


def attended(
    x: Any,
    source: Any,
    w: Projections,
    mask: Any = None,
    rotary: Pair | None = None,
    past: Pair | None = None,
    *,
    eps: float = 1e-6,
    n_rot: int | None = None,
    interleaved: bool = False,
    head_dim: int | None = None,
    policy: FusionPolicy = FUSABLE,
    **heads: Any,
) -> tuple[Any, Any, Any]:
    """Attention of x over `source`, with its keys and values: after those of the past, if there
    is one. Norms of heads come before the rotation by cos and sin; `heads` is as `attention` has
    it."""
    q = _by_head(linear(x, w.wq, w.bq, policy=policy), w.q_norm, eps)
    k = _by_head(linear(source, w.wk, w.bk, policy=policy), w.k_norm, eps)
    v = linear(source, w.wv, w.bv, policy=policy)
    if rotary is not None:
        turn = {"head_dim": head_dim, "n_rot": n_rot, "interleaved": interleaved}
        q, k = ops.rope(q, *rotary, **turn), ops.rope(k, *rotary, **turn)
    if past is not None:
        k, v = (ops.concat([old, new], axis=1) for old, new in zip(past, (k, v)))
    mixed = ops.attention(q, k, v, mask, **heads)
    return linear(mixed, w.wo, w.bo, policy=policy), k, v


def _by_head(x: Any, scale: Any, eps: float) -> Any:
    """Each head normalised, if there is a scale for it."""
    if scale is None:
        return x
    *lead, width = dims_of(x)
    (size,) = dims_of(scale)
    heads = exact_div(width, size)
    by_head = ops.reshape(x, dims=(*lead, heads, size))
    return ops.reshape(ops.rms_norm(by_head, scale, eps=eps), dims=(*lead, width))
