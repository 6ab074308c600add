"""Lowering to attention: operands in one layout, [batch, heads, length, depth], whatever layout
they are given in; masks by what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.core.dim import DimLike
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.attention import (
    MASK,
    Attention,
    Bias,
    K,
    Mask,
    Past,
    Positional,
    Q,
    Visibility,
)
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
    shapes = tuple(i.shape for i in node.inputs)
    given = operands or [Layout.contiguous(s.dims) for s in shapes]
    made = results or [Layout.contiguous(s.dims) for s in node.shapes]
    return _attention(node, given, made, shapes)


def _attention(
    node: Node, given: Sequence[Layout], made: Sequence[Layout], shapes: tuple[Shape, ...]
) -> Attention:
    """Operands beyond the op's are past keys and values."""
    attrs = node.attrs
    heads, kv_heads = attrs["num_heads"], attrs["kv_heads"] or attrs["num_heads"]
    q, out = (_by_head(x, heads) for x in (given[Q], made[0]))
    k, v, *past = (_by_head(x, kv_heads) for x in (*given[K:MASK], *given[len(node.inputs) :]))
    keys = _key_axis(node.inputs[K])
    scores = (*q.dims[:3], node.inputs[K].shape.dims[keys])
    scale = max(int(q.dims[3]), 1) ** -0.5 if attrs["scale"] is None else attrs["scale"]
    dtype = shapes[Q].dtype
    return Attention(
        node.op, q, k, v, out, _mask(node, given, scores), scale, attrs["softcap"],
        attrs["masked_rows"], dtype, dtype.compute, shapes, node.shapes,
        Past(*past) if past else None,
    )  # fmt: skip


def _key_axis(keys: Node) -> int:
    return keys.shape.rank - 2


@dataclass(frozen=True, slots=True)
class PastAttention:
    """A region whose one op is attention of keys and values that are concatenated from past ones
    and new ones."""

    node: Node
    """The attention."""
    operands: tuple[int, ...]
    """Which operands of the region are q, new keys and values, perhaps a mask, and past keys and
    values."""
    perms: tuple[tuple[int, ...], ...]
    """Of the transposes of its result, the last one first."""


def past_attention(body: Graph) -> PastAttention | Refusal:
    """What a body is, if it is that."""
    why = Refusal(f"{body.name}: it is not attention of concatenated keys and values")
    if len(body.outputs) != 1:
        return why
    (found,), perms = body.outputs, list[tuple[int, ...]]()
    while found.op == "transpose":
        perms.append(tuple(found.attrs["perm"]))
        (found,) = found.inputs
    if found.op != "attention":
        return why
    q, k, v, *mask = found.inputs
    if not (_is_pair(k) and _is_pair(v)):
        return why
    if k.inputs[0].shape.dims[_key_axis(k)] != v.inputs[0].shape.dims[_key_axis(v)]:
        return Refusal(f"{body.name}: it has not as many past keys as past values")
    read = (q, k.inputs[1], v.inputs[1], *mask, k.inputs[0], v.inputs[0])
    if any(x.op != "input" for x in read):
        return why
    return PastAttention(found, tuple(body.inputs.index(x) for x in read), tuple(perms))


def _is_pair(node: Node) -> bool:
    """Is it a concat of two values along the keys?"""
    is_concat = node.op == "concat" and len(node.inputs) == 2
    return is_concat and node.attrs["axis"] == _key_axis(node)


def lower_past_attention(
    found: PastAttention,
    operands: Sequence[Layout],
    shapes: Sequence[Shape],
    result: Layout,
) -> Attention:
    """The attention of such a region, of whose operands these are the layouts and shapes."""
    for perm in found.perms:
        result = result.permuted([perm.index(axis) for axis in range(len(perm))])
    given = [operands[i] for i in found.operands]
    return _attention(found.node, given, [result], tuple(shapes[i] for i in found.operands))


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
