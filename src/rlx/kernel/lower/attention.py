"""Lowering to attention: operands in one layout, [batch, heads, length, depth], whatever layout
they are given in; masks by what they are."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.core.dim import DimLike
from rlx.core.layout import Layout
from rlx.ir.mir import Node
from rlx.kernel.attention import MASK, Attention, Bias, K, Mask, Positional, Q, V, Visibility
from rlx.kernel.refusal import Refusal


def lower_attention(
    node: Node,
    operands: Sequence[Layout] | None = None,
    results: Sequence[Layout] | None = None,
) -> Attention | Refusal:
    """The attention of a step, or why it is none. Layouts give the strides of operands and results
    in their buffers; without them, contiguous."""
    if node.op != "attention":
        return Refusal(f"{node.label}: it is not attention")
    attrs, shapes = node.attrs, tuple(i.shape for i in node.inputs)
    given = operands or [Layout.contiguous(s.dims) for s in shapes]
    made = results or [Layout.contiguous(s.dims) for s in node.shapes]
    heads, kv_heads = attrs["num_heads"], attrs["kv_heads"] or attrs["num_heads"]
    q, out = (_by_head(x, heads) for x in (given[Q], made[0]))
    k, v = (_by_head(given[x], kv_heads) for x in (K, V))
    scale = max(int(q.dims[3]), 1) ** -0.5 if attrs["scale"] is None else attrs["scale"]
    dtype = shapes[Q].dtype
    return Attention(
        node.op, q, k, v, out, _mask(node, given, (*q.dims[:3], k.dims[2])), scale,
        attrs["softcap"], attrs["masked_rows"], dtype, dtype.compute, shapes, node.shapes,
    )  # fmt: skip


def _mask(node: Node, given: Sequence[Layout], scores: Sequence[DimLike]) -> Mask:
    kind, queries, keys = node.attrs["mask_kind"], *scores[2:]
    if kind == "none":
        return None
    if kind in ("causal", "sliding_window"):
        return Positional(keys - queries, node.attrs["window"])
    dtype = node.inputs[MASK].shape.dtype
    if kind == "bias":
        return Bias(given[MASK].expanded(scores), dtype)
    return Visibility(_by_key(given[MASK]).expanded(scores), dtype)


def _by_head(x: Layout, heads: int) -> Layout:
    """[batch, heads, length, depth] of either layout."""
    if len(x.dims) == 4:
        return x
    (batch, length, width), (across, along, step) = x.dims, x.strides
    depth = width // heads
    dims, strides = (batch, heads, length, depth), (across, depth * step, along, step)
    return Layout(dims, strides, x.offset)


def _by_key(x: Layout) -> Layout:
    """A mask of rank 2 is [batch, keys]; any other is broadcast to the scores."""
    if len(x.dims) != 2:
        return x
    return Layout((x.dims[0], 1, 1, x.dims[1]), (x.strides[0], 0, 0, x.strides[1]), x.offset)
