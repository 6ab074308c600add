"""Attention and rotary embeddings, ONNX's and onnxruntime's."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.core.dtype import DType
from tests.onnx.differential.drawing import (
    MICROSOFT,
    Draw,
    Node,
    Operand,
    Rounding,
    draws,
    explain,
)

WEIGHED = Rounding(512.0, 4.0)
"""Of sums of values about 4 with weights that are exponentials of sums of products."""


def _plain(d: Draw, dims: tuple[int, ...], kind: DType = DType.F32, known: float = 0.1) -> Operand:
    return d.given(d.rng.normal(size=dims).astype(kind.numpy), known=known)


@draws("Attention")
def _attention(d: Draw) -> Node:
    """Rows that see nothing are left out: softmax of none is what each evaluator makes of it."""
    kind = d.choice((DType.F32, DType.F32, DType.F16))
    batch, queries, keys = d.integer(1, 2), d.integer(1, 4), d.integer(1, 5)
    kv, depth, value = d.integer(1, 2), d.choice((2, 4, 8)), d.choice((2, 4, 8))
    heads, past = kv * d.integer(1, 2), d.integer(0, 3) if d.coin(0.3) else 0
    attrs: dict[str, Any] = d.some(0.3, scale=0.25, softcap=float(d.choice((0.0, 2.0))))
    if d.coin(0.3):
        attrs["is_causal"] = 1
    is_flat = d.coin(0.4)
    if is_flat:
        attrs |= {"q_num_heads": heads, "kv_num_heads": kv}
        shapes = [
            (batch, queries, heads * depth),
            (batch, keys, kv * depth),
            (batch, keys, kv * value),
        ]
    else:
        shapes = [
            (batch, heads, queries, depth),
            (batch, kv, keys, depth),
            (batch, kv, keys, value),
        ]
    operands: list[Operand | None] = [_plain(d, s, kind) for s in shapes]
    total = keys + past
    mask = None
    if d.coin():
        dims = d.choice(((queries, total), (1, 1, queries, total), (batch, heads, queries, total)))
        if d.coin():
            seen = d.rng.random(dims) < 0.7
            seen[..., 0] = True
            mask = d.given(seen)
        else:
            mask = _plain(d, dims, kind)
    operands.append(mask)
    if past:
        operands += [_plain(d, (batch, kv, past, n), kind) for n in (depth, value)]
    outputs = 3 if past else 1
    return d.node(*operands, outputs=outputs, tolerance=WEIGHED, **attrs)


@draws("RotaryEmbedding")
def _rotary(d: Draw) -> Node:
    kind = d.choice((DType.F32, DType.F32, DType.F16))
    batch, length, heads, depth = (
        d.integer(1, 2),
        d.integer(1, 4),
        d.integer(1, 3),
        d.choice((4, 8)),
    )
    turned = depth if d.coin(0.6) else depth // 2
    attrs = d.some(0.5, interleaved=d.integer(0, 1))
    if turned != depth:
        attrs["rotary_embedding_dim"] = turned
    is_flat = d.coin()
    dims = (batch, length, heads * depth) if is_flat else (batch, heads, length, depth)
    if is_flat:
        attrs["num_heads"] = heads
    is_placed = d.coin()
    rows = (8, turned // 2) if is_placed else (batch, length, turned // 2)
    angles = [_plain(d, rows, kind) for _ in range(2)]
    ids = d.given(d.rng.integers(0, 8, (batch, length)).astype(np.int64)) if is_placed else None
    return d.node(_plain(d, dims, kind), *angles, ids, tolerance=WEIGHED, **attrs)


@draws("MultiHeadAttention", domain=MICROSOFT)
def _multi_head(d: Draw) -> Node:
    batch, queries, keys = d.integer(1, 2), d.integer(1, 4), d.integer(1, 5)
    heads, depth, value = d.integer(1, 3), d.choice((2, 4, 8)), d.choice((2, 4, 8))
    width = heads * depth
    operands: list[Operand | None] = [
        _plain(d, (batch, queries, width)),
        _plain(d, (batch, keys, width)),
        _plain(d, (batch, keys, heads * value)),
        _plain(d, (2 * width + heads * value,)) if d.coin(0.4) else None,
    ]
    mask = None
    if d.coin(0.4):
        seen = (d.rng.random((batch, keys)) < 0.7).astype(np.int32)
        seen[:, 0] = 1
        mask = d.given(seen)
    operands.append(mask)
    operands.append(_plain(d, (1, heads, queries, keys)) if d.coin(0.3) else None)
    attrs: dict[str, Any] = {"num_heads": heads} | d.some(0.3, scale=0.25)
    return d.node(*operands, tolerance=WEIGHED, **attrs)


@draws("Attention", domain=MICROSOFT)
def _packed(d: Draw) -> Node:
    batch, length, heads, depth = (
        d.integer(1, 2),
        d.integer(1, 4),
        d.integer(1, 3),
        d.choice((2, 4)),
    )
    width, inner = heads * depth, d.integer(1, 6)
    operands: list[Operand | None] = [
        _plain(d, (batch, length, inner)),
        _plain(d, (inner, 3 * width), known=0.8),
        _plain(d, (3 * width,), known=0.8),
    ]
    if d.coin(0.4):
        seen = (d.rng.random((batch, length)) < 0.7).astype(np.int32)
        seen[:, 0] = 1
        operands.append(d.given(seen))
    attrs: dict[str, Any] = {"num_heads": heads} | d.some(0.3, scale=0.25)
    if len(operands) == 3 and d.coin(0.3):
        attrs["unidirectional"] = 1
    return d.node(*operands, tolerance=WEIGHED, **attrs)


@draws("RotaryEmbedding", domain=MICROSOFT)
def _rotary_of_onnxruntime(d: Draw) -> Node:
    batch, length, heads, depth = (
        d.integer(1, 2),
        d.integer(1, 4),
        d.integer(1, 3),
        d.choice((4, 8)),
    )
    angles = [_plain(d, (8, depth // 2), known=0.9) for _ in range(2)]
    places = d.rng.integers(0, 8 - length, (batch, 1)) + np.arange(length)
    ids = d.given(places.astype(np.int64)) if d.coin() else d.given(np.array([d.integer(0, 3)]))
    attrs = d.some(0.5, interleaved=d.integer(0, 1))
    x = _plain(d, (batch, length, heads * depth))
    return d.node(x, ids, *angles, tolerance=WEIGHED, **attrs)


explain(
    "Attention",
    right="reference",
    why="a causal query sees the past and the keys up to its own, from the upper left on, as torch "
    "has it; onnxruntime aligns the last query with the last key",
    when=lambda n: bool(n.attrs.get("is_causal", 0)) and n.has(4),
)
