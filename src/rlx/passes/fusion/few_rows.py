"""Fusions around kernels of few rows: a product takes as long as its weights do to arrive, and
attention as its keys. What is made of the rows themselves is made again by every block of such a
kernel in less time than another kernel takes to begin.

    norm(x) · w                      the norm of the rows inside the product
    f(narrow(x · w), narrow(x · w))  a gate: the same columns of both parts in one thread
    attention(rope(q), concat(past, rope(k)))
                                     keys and values where they lie, turned where they are loaded
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from rlx.core.dim import DimLike, exact_div, lower_bound, product, upper_bound
from rlx.ir.mir import Node
from rlx.ops.op import Kind
from rlx.passes.fusion.graph_facts import Facts
from rlx.passes.fusion.matches import Found, Match, Miss
from rlx.passes.fusion.members import row_axes
from rlx.passes.fusion.patterns.common import Pattern, at_each, why_escapes
from rlx.passes.fusion.regions import region_match

MAX_ROWS = 4
"""Rows of a product that one pass over its weights serves, without matrix instructions."""
MAX_QUERIES = 16
"""Of attention that is bound by reading keys."""
MAX_PARTS = 4
"""Sums that a thread has of each column."""
PRODUCTS = ("matmul", "fused_matmul_bias_act", "gguf_matmul", "dequant_matmul")
"""Ops that multiply rows of their first operand with a matrix, along the last axis."""


def _is_at_most(dim: DimLike, most: int) -> bool:
    found = upper_bound(dim)
    return found is not None and found <= most


# -- products -------------------------------------------------------------------------------------


def _rows_of(node: Node) -> Node | None:
    """The operand whose few rows a product multiplies with a matrix, of as many columns at least;
    None if it is no such one."""
    inner = _product_in(node)
    if inner is None or lower_bound(node.shape.dims[-1]) < MAX_ROWS:
        return None
    if not _is_at_most(product(inner.inputs[0].shape.dims[:-1]), MAX_ROWS):
        return None
    rows = inner.inputs[0]
    if inner is node:
        return rows
    body = node.attrs["body"]
    return node.inputs[body.inputs.index(rows)] if rows in body.inputs else None


def _product_in(node: Node) -> Node | None:
    """The product that a node is, or the only one of a region."""
    if node.op == "region" and not node.has_items:
        found = [n for n in node.attrs["body"].order() if n.op in PRODUCTS]
        return _product_in(found[0]) if len(found) == 1 else None
    if node.op not in PRODUCTS or node.inputs[0].shape.rank < 2:
        return None
    return node if node.inputs[1].shape.rank == 2 else None


def _norm_product(node: Node, facts: Facts) -> Match | None:
    """norm(x) · w, and all that a region does with it."""
    rows = _rows_of(node)
    if rows is None or not _is_row_kernel(rows) or facts.sole_user(rows) is not node:
        return None
    if node.inputs.count(rows) > 1 or rows not in facts.per_call:
        return None
    return _renamed("fuse_norm_product", region_match([rows, node], [node]))


def _is_row_kernel(node: Node) -> bool:
    """Does it reduce rows of the last axis, and write rows of the same length?"""
    if node.op == "region" and not node.has_items:
        inner = [n for n in node.attrs["body"].order() if not n.is_leaf]
        same = all(n.shape.rank == node.shape.rank for n in inner)
        return same and any(map(_reduces, inner)) and all(map(_is_along_row, inner))
    return not node.has_items and node.decl.kind is Kind.ROW and _reduces(node)


def _is_along_row(node: Node) -> bool:
    return node.decl.kind is Kind.ELEMENTWISE or _reduces(node)


def _reduces(node: Node) -> bool:
    """Does it reduce the last axis alone?"""
    if node.decl.kind not in (Kind.ROW, Kind.REDUCTION):
        return False
    return row_axes(node) == frozenset({node.inputs[0].shape.rank - 1})


# -- gates ----------------------------------------------------------------------------------------


def fuse_gated_product(facts: Facts) -> Iterator[Match | Miss]:
    """A product, of whose columns equal parts meet in one elementwise kernel."""
    for node in facts.order:
        if node in facts.per_call and node.op in PRODUCTS and _rows_of(node) is not None:
            found = _gated(node, facts)
            if found is not None:
                yield found


def _gated(node: Node, facts: Facts) -> Match | None:
    parts = [] if _is_halved(node, facts) else list(facts.users[node])
    gate = _meeting(node, parts, facts) if parts else facts.sole_user(node)
    if gate is None or lower_bound(gate.shape.dims[-1]) < MAX_ROWS:
        return None
    if why_escapes((node, *parts), (*parts, gate), facts) is not None:
        return None
    return _renamed("fuse_gated_product", region_match([node, *parts, gate], [gate]))


def _meeting(node: Node, parts: list[Node], facts: Facts) -> Node | None:
    """The one elementwise kernel that reads the slices, if each is as wide as its result."""
    readers = {u for p in parts for u in facts.users[p]}
    if not _are_parts(node, parts) or len(readers) != 1:
        return None
    (gate,) = readers
    is_pointwise = gate.decl.kind is Kind.ELEMENTWISE or gate.op == "elementwise_region"
    fits = is_pointwise and not gate.has_items and gate.shape.dims == parts[0].shape.dims
    return gate if fits else None


def _is_halved(node: Node, facts: Facts) -> bool:
    """Is it read by a gate that takes both halves from one value?"""
    user = facts.sole_user(node)
    return user is not None and user.op == "fused_swiglu"


def _are_parts(node: Node, parts: list[Node]) -> bool:
    """Are they slices of equal width along the last axis?"""
    last = node.shape.rank - 1
    if not all(p.op == "narrow" and p.attrs["axis"] == last for p in parts):
        return False
    return len({p.shape.dims[last] for p in parts}) == 1 and 1 < len(parts) <= MAX_PARTS


# -- attention ------------------------------------------------------------------------------------


def _attention_operands(node: Node, facts: Facts) -> Found:
    """Attention of few queries, whose keys and values are past ones and new ones, or of which
    queries and new keys are turned by the same angles."""
    q, k, v = node.inputs[:3]
    if not _is_at_most(q.shape.dims[-2], MAX_QUERIES) or k is v:
        return None
    pairs = [x for x in (k, v) if _is_pair(x)]
    if len(pairs) == 1 or any(_past(x) != _past(pairs[0]) for x in pairs):
        return None
    new = k.inputs[1] if pairs else k
    ropes = [q, new] if _turn_alike(q, new, node) else []
    if why_escapes(ropes, (node, *pairs), facts) is not None:
        ropes = []
    if not ropes and not pairs:
        return None
    if (reason := why_escapes(pairs, (node,), facts)) is not None:
        return Miss("fuse_attention_operands", node, reason)
    return _renamed("fuse_attention_operands", region_match([*ropes, *pairs, node], [node]))


def _is_pair(node: Node) -> bool:
    """Is it a concat of past keys or values and new ones?"""
    is_concat = node.op == "concat" and len(node.inputs) == 2
    return is_concat and node.attrs["axis"] == node.shape.rank - 2


def _past(pair: Node) -> DimLike:
    """How many are past ones."""
    return pair.inputs[0].shape.dims[-2]


def _turn_alike(q: Node, k: Node, attention: Node) -> bool:
    """Are whole heads of both turned by the same angles, element d with d + half of them?"""
    if q.op != "rope" or k.op != "rope" or q is k or q.inputs[1:] != k.inputs[1:]:
        return False
    attrs, heads = q.attrs, attention.attrs["num_heads"] if q.shape.rank == 3 else 1
    depth = exact_div(q.shape.dims[-1], heads)
    is_head = attrs["head_dim"] == depth or (attrs["head_dim"] is None and heads == 1)
    is_alike = q.attr_key == k.attr_key and is_head and not attrs["interleaved"]
    return is_alike and (q.shape.rank == 3 or q.inputs[1].shape.rank == 2)


# -- rotary embeddings ----------------------------------------------------------------------------


def fuse_shared_rope(facts: Facts) -> Iterator[Match | Miss]:
    """Slices of one value next to each other, as queries and keys of one product are, turned by the
    same angles: one rotary embedding of both."""
    groups: dict[tuple[object, ...], list[Node]] = {}
    for node in facts.order:
        if node.op == "rope" and node in facts.per_call and _is_slice(node, facts):
            key = node.inputs[0].inputs[0], *node.inputs[1:], node.attr_key
            groups.setdefault(key, []).append(node)
    for ropes in groups.values():
        ordered = sorted(ropes, key=lambda n: _slice(n)[0])
        if len(ropes) > 1 and all(sum(_slice(a)) == _slice(b)[0] for a, b in pairwise(ordered)):
            yield _shared_rope(ordered)


def _is_slice(rope: Node, facts: Facts) -> bool:
    """Does it turn whole heads of a slice along the last axis?"""
    source, has_heads = rope.inputs[0], rope.attrs["head_dim"] is not None
    is_slice = source.op == "narrow" and source.attrs["axis"] == source.shape.rank - 1
    return is_slice and has_heads and not facts.is_output(rope)


def _slice(rope: Node) -> tuple[int, int]:
    """Where its slice begins, and how long it is."""
    attrs = rope.inputs[0].attrs
    return attrs["start"], attrs["length"]


def _shared_rope(ropes: list[Node]) -> Match:
    first, angles, axis = ropes[0].inputs[0], ropes[0].inputs[1:], ropes[0].shape.rank - 1
    start, attrs = _slice(ropes[0])[0], ropes[0].attrs
    lengths = [_slice(r)[1] for r in ropes]

    def sliced(x: Node, begin: int, length: int) -> Node:
        return x.graph.node("narrow", (x,), {"axis": axis, "start": begin, "length": length})

    def make(x: Node, *given: Node) -> list[Node]:
        made = x.graph.node("rope", (sliced(x, start, sum(lengths)), *given), attrs)
        return [sliced(made, sum(lengths[:i]), n) for i, n in enumerate(lengths)]

    return Match("fuse_shared_rope", tuple(ropes), tuple(ropes), (first.inputs[0], *angles), make)


def _renamed(what: str, match: Match) -> Match:
    return Match(what, match.roots, match.removed, match.externals, match.make)


def fuse_norm_product(facts: Facts) -> Iterator[Match | Miss]:
    """A norm of few rows, which one product alone reads."""
    for node in facts.order:
        if node in facts.per_call and (node.op in PRODUCTS or node.op == "region"):
            found = _norm_product(node, facts)
            if found is not None:
                yield found


fuse_attention_operands = at_each("attention", _attention_operands)
FEW_ROWS: tuple[Pattern, ...] = (
    fuse_attention_operands,
    fuse_shared_rope,
    fuse_gated_product,
    fuse_norm_product,
)
