"""Attention with its projections, as one block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlx.core.dim import exact_div
from rlx.ir.mir import Node
from rlx.passes.fusion import reasons
from rlx.passes.fusion.graph_facts import Facts
from rlx.passes.fusion.matches import Found, Match, Miss
from rlx.passes.fusion.patterns.common import at_each, concatenated, is_linear, why_escapes

WHAT = "fuse_attention_block"


@dataclass(frozen=True, slots=True)
class _Projection:
    """x · w, plus a bias where there is one."""

    node: Node
    x: Node
    w: Node
    bias: Node | None


@dataclass(frozen=True, slots=True)
class _Rotated:
    """A projection, followed by a rotary embedding or not."""

    projection: _Projection
    rope: Node | None

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (self.projection.node,) + (() if self.rope is None else (self.rope,))

    @property
    def angles(self) -> tuple[Any, ...]:
        """Angles and attributes of the rotary embedding."""
        return () if self.rope is None else (*self.rope.inputs[1:], *self.rope.attrs.values())


def _projection(node: Node) -> _Projection | None:
    """A product with a matrix, plain or with a bias along its last axis."""
    if is_linear(node):
        return _Projection(node, node.inputs[0], node.inputs[1], None)
    if node.op != "fused_matmul_bias_act" or node.attrs["activation"] is not None:
        return None
    x, w, bias = node.inputs
    is_row = w.shape.rank == 2 and bias.shape.dims == node.shape.dims[-1:]
    return _Projection(node, x, w, bias) if is_row else None


def _rotated(node: Node) -> _Rotated | None:
    rope = node if node.op == "rope" else None
    found = _projection(node.inputs[0] if rope is not None else node)
    return None if found is None else _Rotated(found, rope)


def _block(node: Node, facts: Facts) -> Found:
    """out(attention(rope(q(x)), rope(k(x)), v(x)))."""
    parts = [_rotated(i) for i in node.inputs[:3]]
    out = _out_projection(node, facts)
    if node.shape.rank != 3 or out is None or any(p is None for p in parts):
        return None
    q, k, v = (p for p in parts if p is not None)
    if not _agree(node, q, k, v, out):
        return None
    return _match(node, (q, k, v), out, facts)


def _out_projection(node: Node, facts: Facts) -> _Projection | None:
    """The product that reads the attention's result, if one does."""
    for user in facts.users[node]:
        found = _projection(user)
        if found is not None and found.x is node:
            return found
    return None


def _agree(node: Node, q: _Rotated, k: _Rotated, v: _Rotated, out: _Projection) -> bool:
    """Self-attention of one value, queries and keys rotated by the same angles, all biases or
    none."""
    projections = [p.projection for p in (q, k, v)]
    biases = {p.bias is None for p in (*projections, out)}
    same = all(p.x is projections[0].x for p in projections) and projections[0].x.shape.rank == 3
    depth = _depth(node)
    is_rotated = q.angles == k.angles and v.rope is None and _rotates_heads(q, depth)
    return same and is_rotated and len(biases) == 1 and depth is not None


def _rotates_heads(q: _Rotated, depth: int | None) -> bool:
    """Has the rotary embedding the head size of the attention?"""
    return q.rope is None or q.rope.attrs["head_dim"] == depth


def _depth(node: Node) -> int | None:
    """The size of a head, if queries, keys and values have the same."""
    heads = node.attrs["num_heads"]
    kv = heads if node.attrs["kv_heads"] is None else node.attrs["kv_heads"]
    q, k, v = (i.shape.dims[-1] for i in node.inputs[:3])
    depth = exact_div(q, heads)
    if not isinstance(depth, int) or k != depth * kv or v != depth * kv:
        return None
    return depth


def _match(node: Node, parts: Sequence[_Rotated], out: _Projection, facts: Facts) -> Found:
    inner = [n for p in parts for n in p.nodes]
    removed = (*dict.fromkeys(inner), node, out.node)
    projections = [p.projection for p in parts]
    if not all(facts.is_weight(w) for p in projections for w in (p.w, p.bias) if w is not None):
        return Miss(WHAT, node, reasons.NOT_WEIGHTS)
    if reason := why_escapes(removed[:-1], removed, facts):
        return Miss(WHAT, node, reason)
    biases = [b for b in (*(p.bias for p in projections), out.bias) if b is not None]
    rope = parts[0].rope
    angles = () if rope is None else rope.inputs[1:]
    externals = (projections[0].x, *(p.w for p in projections), out.w, *biases, *angles,
                 *node.inputs[3:])  # fmt: skip
    attrs = _attrs(node, rope, bool(biases))
    has_bias = bool(biases)

    def make(x: Node, wq: Node, wk: Node, wv: Node, wo: Node, *rest: Node) -> tuple[Node]:
        more = (concatenated(rest[:3], 0), *rest[3:]) if has_bias else rest
        operands = (x, concatenated((wq, wk, wv), 1), wo, *more)
        return (x.graph.node("fused_attention_block", operands, attrs),)

    return Match(WHAT, (out.node,), removed, externals, make)


def _attrs(node: Node, rope: Node | None, has_bias: bool) -> dict[str, Any]:
    rotation = {} if rope is None else {k: rope.attrs[k] for k in ("n_rot", "interleaved")}
    facts = {"head_dim": _depth(node), "has_bias": has_bias, "has_rope": rope is not None}
    return {**node.attrs, **facts, **rotation}


fuse_attention_block = at_each("attention", _block)
