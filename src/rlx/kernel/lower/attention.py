"""Lowering to attention: operands in one layout, [batch, heads, length, depth], whatever layout
they are given in; masks by what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.core.dim import DimLike, exact_div
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.attention import (
    MASK,
    Attention,
    Bias,
    Cached,
    K,
    Mask,
    Past,
    Positional,
    Q,
    Rotary,
    Visibility,
)
from rlx.kernel.refusal import NotLowered, Refusal, attempt
from rlx.ops.op import Kind

POSITIONS, SLOTS, SCALES = 3, 4, 5
"""Operands of attention over a cache."""


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
    node: Node,
    given: Sequence[Layout],
    made: Sequence[Layout],
    shapes: tuple[Shape, ...],
    rotary: Rotary | None = None,
) -> Attention:
    """Operands beyond the op's are past keys and values, then those of a rotary embedding."""
    attrs = node.attrs
    heads, kv_heads = attrs["num_heads"], attrs["kv_heads"] or attrs["num_heads"]
    q, out = (_by_head(x, heads) for x in (given[Q], made[0]))
    end = len(given) if rotary is None else -2
    k, v, *past = (_by_head(x, kv_heads) for x in (*given[K:MASK], *given[len(node.inputs) : end]))
    scores = (*q.dims[:3], node.inputs[K].shape.dims[_key_axis(node.inputs[K])])
    scale = max(int(q.dims[3]), 1) ** -0.5 if attrs["scale"] is None else attrs["scale"]
    dtype = shapes[Q].dtype
    return Attention(
        node.op, q, k, v, out, _mask(node, given, scores), scale, attrs["softcap"],
        attrs["masked_rows"], dtype, dtype.compute, shapes, node.shapes,
        Past(*past) if past else None, rotary,
    )  # fmt: skip


def lower_cached_attention(
    node: Node, operands: Sequence[Layout], results: Sequence[Layout]
) -> Attention:
    """The attention of a `cached_attention`."""
    attrs = node.attrs
    heads, kv_heads = attrs["num_heads"], attrs["kv_heads"] or attrs["num_heads"]
    q, out = (_by_head(x, heads) for x in (operands[Q], results[0]))
    k, v = (_by_head(x, kv_heads) for x in operands[K:MASK])
    shapes = tuple(i.shape for i in node.inputs)
    scale = max(int(q.dims[3]), 1) ** -0.5 if attrs["scale"] is None else attrs["scale"]
    slots = operands[SLOTS] if len(operands) > SLOTS else None
    cached = Cached(
        operands[POSITIONS], slots, shapes[POSITIONS].dtype, shapes[K].dtype,
        tuple(_by_head(x, kv_heads) for x in operands[SCALES:]),
        tuple(s.dtype for s in shapes[SCALES:]),
    )  # fmt: skip
    dtype = shapes[Q].dtype
    return Attention(
        node.op, q, k, v, out, Positional(0, attrs["window"]), scale, attrs["softcap"], "zeros",
        dtype, dtype.compute, shapes, node.shapes, cached=cached,
    )  # fmt: skip


def _key_axis(keys: Node) -> int:
    return keys.shape.rank - 2


# -- what precedes attention ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttentionRegion:
    """A region whose one anchor is attention: of keys and values that are concatenated from past
    ones and new ones, of queries and new keys that a rotary embedding turns, or of both."""

    node: Node
    """The attention."""
    rope: Node | None
    """Of the queries; that of keys is the same."""
    operands: tuple[int, ...]
    """Which operands of the region are those of the form."""
    perms: tuple[tuple[int, ...], ...]
    """Of the transposes of its result, the last one first."""


def has_attention(node: Node) -> bool:
    """Is it a region with attention in it?"""
    is_region = node.decl.kind is Kind.REGION
    return is_region and any(n.op == "attention" for n in node.attrs["body"].order())


def attention_region(body: Graph) -> AttentionRegion | Refusal:
    """What a body is, if it is that."""
    return attempt(lambda: _attention_region(body))


def _attention_region(body: Graph) -> AttentionRegion:
    (found, *others), perms = body.outputs, list[tuple[int, ...]]()
    while found.op == "transpose":
        perms.append(tuple(found.attrs["perm"]))
        (found,) = found.inputs
    if found.op != "attention" or others:
        raise NotLowered(f"{body.name}: it is not attention")
    q, k, v, *mask = found.inputs
    k, past_k = _parts(k)
    v, past_v = _parts(v)
    if [x.shape.dims[_key_axis(x)] for x in past_k] != [x.shape.dims[_key_axis(x)] for x in past_v]:
        raise NotLowered(f"{body.name}: it has not as many past keys as past values")
    rope = q if q.op == "rope" else None
    angles = () if rope is None else rope.inputs[1:]
    if rope is not None:
        _require_same_rotary(found, rope, k)
        q, k = q.inputs[0], k.inputs[0]
    read = (q, k, v, *mask, *past_k, *past_v, *angles)
    if any(x.op != "input" for x in read) or len(read) == len(found.inputs):
        raise NotLowered(f"{body.name}: what precedes its attention is no part of it")
    numbers = tuple(body.inputs.index(x) for x in read)
    return AttentionRegion(found, rope, numbers, tuple(perms))


def _parts(node: Node) -> tuple[Node, tuple[Node, ...]]:
    """New keys or values, and past ones, if it is a concat of these."""
    is_pair = node.op == "concat" and len(node.inputs) == 2
    if not is_pair or node.attrs["axis"] != _key_axis(node):
        return node, ()
    past, new = node.inputs
    return new, (past,)


def _require_same_rotary(attention: Node, q: Node, k: Node) -> None:
    """Both are turned alike, all heads by the same angles, element d with d + half of them."""
    attrs, heads = q.attrs, attention.attrs["num_heads"] if q.shape.rank == 3 else 1
    is_same = k.op == "rope" and k.inputs[1:] == q.inputs[1:] and k.attr_key == q.attr_key
    depth = exact_div(q.shape.dims[-1], heads)
    is_head = attrs["head_dim"] == depth or (attrs["head_dim"] is None and heads == 1)
    fits = is_same and is_head and not attrs["interleaved"]
    if not fits or (q.shape.rank == 4 and q.inputs[1].shape.rank != 2):
        raise NotLowered(f"{attention.label}: its rotary embeddings are not alike by heads")


def _positions(found: AttentionRegion) -> DimLike:
    """Of the angles: where queries and new keys are not as many, one is of all of them."""
    new, _ = _parts(found.node.inputs[K])
    queries, keys = (x.shape.dims[_key_axis(x)] for x in (found.node.inputs[Q], new))
    return keys if queries == 1 else queries


def lower_attention_region(
    found: AttentionRegion,
    operands: Sequence[Layout],
    shapes: Sequence[Shape],
    result: Layout,
) -> Attention:
    """The attention of such a region, of whose operands these are the layouts and shapes."""
    for perm in found.perms:
        result = result.permuted([perm.index(axis) for axis in range(len(perm))])
    given = [operands[i] for i in found.operands]
    own = tuple(shapes[i] for i in found.operands)
    rotary = None
    if found.rope is not None:
        full = (found.rope.shape.dims[0], _positions(found), given[-1].dims[-1])
        cos, sin = (x.expanded(full) for x in given[-2:])
        rotary = Rotary(cos, sin, own[-1].dtype)
    return _attention(found.node, given, [result], own, rotary)


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
