"""Recognition of scaled dot-product attention from two matmuls and a softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from rlx import ops
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.ops.nn.attention import MaskKind
from rlx.rules.activations import factors, is_near
from rlx.rules.engine import Uses, no, rule
from rlx.rules.match import at, scalar_of

Dims = tuple[DimLike, ...]


@dataclass(frozen=True, slots=True)
class Mask:
    """What is done to the scores before the softmax, as attention's attributes say it."""

    kind: MaskKind = "none"
    operand: Node | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """The product q · kᵀ behind the scores, and all that is done to it."""

    q: Node
    k: Node
    scale: float
    softcap: float | None
    mask: Mask
    nodes: tuple[Node, ...]
    """What no longer needs computing, if nothing else reads it."""


# -- the scores -----------------------------------------------------------------------------------


def _scores_of(s: Node) -> Scores | None:
    """Take a softmax's operand ungrouped: mask, cap, scale, product."""
    mask, inner, nodes = _unmasked(s)
    scale, found = factors(inner)
    if len(found) != 1:
        return None
    softcap = None
    if found[0].op == "tanh":
        softcap, inner = scale, found[0].inputs[0]
        nodes = (*nodes, found[0])
        scale, found = factors(inner)
        scale *= softcap
    if len(found) != 1 or found[0].op != "matmul":
        return None
    q, transposed = found[0].inputs
    transposed_scale, transposed = _unscaled(transposed)
    k = _untransposed(transposed)
    if k is None:
        return None
    q_scale, q = _unscaled(q)
    k_scale, k = _unscaled(k)
    scale *= q_scale * k_scale * transposed_scale
    return Scores(q, k, scale, softcap, mask, (*nodes, inner, found[0]))


def _unscaled(x: Node) -> tuple[float, Node]:
    """A number times a node."""
    scale, found = factors(x)
    return (scale, found[0]) if len(found) == 1 and found[0].shape == x.shape else (1.0, x)


def _untransposed(transposed: Node) -> Node | None:
    """k of kᵀ: the last two axes swapped back."""
    if transposed.op != "transpose" or transposed.rank < 2:
        return None
    order = (*range(transposed.rank - 2), transposed.rank - 1, transposed.rank - 2)
    if transposed.attrs["perm"] == order:
        return transposed.inputs[0]
    return ops.transpose(transposed, perm=order)


def _unmasked(s: Node) -> tuple[Mask, Node, tuple[Node, ...]]:
    """The mask, the scores without it, and the node that joins them."""
    if s.op == "add":
        for inner, mask in (s.inputs, s.inputs[::-1]):
            if inner.shape == s.shape and scalar_of(mask) is None and _leads_to_product(inner):
                return _additive_mask(mask, s), inner, (s,)
    if s.op == "where":
        condition, x, y = s.inputs
        for inner, fill, shown in ((x, y, True), (y, x, False)):
            if inner.shape == s.shape and _leads_to_product(inner):
                mask = _selected_mask(condition, fill, s, shown)
                return (mask, inner, (s,)) if mask is not None else (Mask(), s, ())
    return Mask(), s, ()


def _leads_to_product(x: Node) -> bool:
    found = factors(x)[1]
    return len(found) == 1 and found[0].op in ("matmul", "tanh")


def _additive_mask(mask: Node, s: Node) -> Mask:
    """An added mask; a constant that hides exactly the keys to come is a causal one."""
    value = mask.attrs["value"].array if mask.op == "constant" else None
    if value is not None and _is_causal(value == 0, value <= _lowest(s), s):
        return Mask("causal")
    return Mask("bias", mask)


def _selected_mask(condition: Node, fill: Node, s: Node, shown: bool) -> Mask | None:
    """A select between a score and a fill value that vanishes in the softmax.

    A finite fill is seen where a query has no key at all: only a constant mask can tell.
    """
    value = scalar_of(fill)
    if value is None or not float(value) <= _lowest(s):
        return None
    if condition.op == "constant":
        visible = condition.attrs["value"].array == shown
        if _is_causal(visible, ~visible, s):
            return Mask("causal")
        is_seen = bool(visible.any(axis=-1).all()) if visible.ndim else bool(visible)
    else:
        is_seen = False
    if not is_seen and not np.isneginf(float(value)):
        return None
    return Mask("custom", condition if shown else ops.logical_not(condition))


def _lowest(s: Node) -> float:
    """What vanishes beside any score: half the least number of the dtype."""
    return float(ml_dtypes.finfo(s.dtype.numpy).min) / 2


def _is_causal(visible: Any, hidden: Any, s: Node) -> bool:
    """Does query i see exactly the keys up to i + keys - queries, at least one of them?"""
    if not s.shape.is_static or visible.shape[-2:] != s.shape.dims[-2:]:
        return False
    queries, keys = visible.shape[-2:]
    past = np.tri(queries, keys, keys - queries, dtype=bool)
    return keys >= queries > 0 and bool((visible == past).all() and (hidden == ~past).all())


# -- heads ----------------------------------------------------------------------------------------


def _as_rank_4(x: Node, rank: int) -> Node:
    """[batch, heads, length, depth], with axes of 1 for those absent."""
    dims = x.shape.dims
    if rank == 4:
        return x
    return ops.reshape(x, dims=(1, 1, *dims) if rank == 2 else (dims[0], 1, *dims[1:]))


def _mask_as_rank_4(mask: Node, rank: int) -> Node:
    """A mask that broadcasts against scores of `rank`, set against four axes."""
    dims = (*[1] * (rank - mask.rank), *mask.shape.dims)
    wide = {4: dims, 3: (dims[0], 1, *dims[1:]), 2: (1, 1, *dims)}[rank]
    return mask if wide == mask.shape.dims else ops.reshape(mask, dims=wide)


def _without_repeat_kv(x: Node) -> Node | None:
    """The kv heads before repeat_kv: [b, h, 1, …] expanded to [b, h, g, …] and reshaped."""
    wide = x.inputs[0] if x.op == "reshape" else x
    if wide.op != "expand" or wide.rank != 5 or wide.inputs[0].op != "reshape":
        return None
    ungrouped, heads = wide.inputs[0], wide.inputs[0].inputs[0]
    b, h, n, d = heads.shape.dims if heads.rank == 4 else (0, 0, 0, 0)
    is_run = ungrouped.shape.dims == (b, h, 1, n, d) and wide.shape.dims[:2] == (b, h)
    is_same = wide.shape.dims[3:] == (n, d)
    joined = (b, product(wide.shape.dims[1:3]), n, d)
    return heads if is_run and is_same and x.shape.dims == joined else None


def _shared_heads(k: Node, v: Node) -> tuple[Node, Node]:
    """k and v before their heads were repeated, if both were."""
    before = _without_repeat_kv(k), _without_repeat_kv(v)
    if before[0] is None or before[1] is None:
        return k, v
    return (before[0], before[1]) if before[0].shape.dims[1] == before[1].shape.dims[1] else (k, v)


# -- the rule -------------------------------------------------------------------------------------


def _sample_attention(draw: Draw) -> Node:
    """Attention as front ends decompose it. f16 and bf16 would drown the comparison in rounding."""
    graph, dtype = Graph("sample"), draw.choice((DType.F32, DType.F64))
    b, kv, each, n, m, d, e = (draw.integer(1, 3) for _ in range(7))
    m, heads = n + m, kv * each
    q, k, v = (
        graph.input(name, Shape(dims, dtype))
        for name, dims in (("q", (b, heads, n, d)), ("k", (b, kv, m, d)), ("v", (b, kv, m, e)))
    )
    k, v = (_repeated(x, each) for x in (k, v))
    scale = draw.choice((0.5, d**-0.5))
    transposed = ops.mul(_transposed(k), scale) if draw.coin() else _transposed(k)
    s = ops.matmul(ops.mul(q, scale) if draw.coin() else q, transposed)
    s = ops.mul(s, 0.5) if draw.coin() else ops.div(s, 1.5)
    s = ops.mul(ops.tanh(ops.div(s, 5.0)), 5.0) if draw.coin(0.3) else s
    return ops.matmul(ops.softmax(_sample_mask(draw, s), axis=3), v)


def _transposed(k: Node) -> Node:
    return ops.transpose(k, perm=(0, 1, 3, 2))


def _repeated(x: Node, each: int) -> Node:
    if each == 1:
        return x
    b, h, n, d = x.shape.dims
    wide = ops.expand(ops.reshape(x, dims=(b, h, 1, n, d)), dims=(b, h, each, n, d))
    return ops.reshape(wide, dims=(b, h * each, n, d))


def _sample_mask(draw: Draw, s: Node) -> Node:
    b, _, n, m = s.shape.static_dims
    past = np.tri(n, m, m - n, dtype=bool)
    lowest = -np.inf if draw.coin() else float(2 * _lowest(s))
    forms = (
        lambda: s,
        lambda: ops.add(s, s.graph.input("mask", Shape((b, 1, n, m), s.dtype))),
        lambda: ops.add(s, np.where(past, 0.0, lowest).astype(s.dtype.numpy)),
        lambda: ops.where(past, s, lowest),
        lambda: ops.where(~past, lowest, s),
        lambda: ops.where(np.arange(m) < max(1, m - 1), s, lowest),
        lambda: ops.where(s.graph.input("see", Shape((b, 1, n, m), DType.BOOL)), s, -np.inf),
    )
    return draw.choice(forms)()


@rule(
    lambda s, v, a: ops.matmul(at("p", ops.softmax(s, axis=a)), v),
    sample=_sample_attention,
    domain="plain",
    slack=2048.0,
    refines=True,
    valid_in_half_precision=True,
    why="scores as large as 3 · 40² are rounded in another order, and a softmax makes a factor of "
    "the difference: 5000 roundings of 1 are 0.0006 in f32, and nothing in f64",
)
def attention_formula(p: Node, s: Node, v: Node, a: int, node: Node, uses: Uses) -> Any:
    """softmax(q·kᵀ · scale + mask) · v is attention, in which a query that sees no key gives the
    NaN that the softmax makes of it."""
    scores = _scores_of(s) if a == s.rank - 1 and s.rank in (2, 3, 4) else None
    if scores is None or v.rank != s.rank:
        return None
    if any(uses(n) > 1 for n in (p, s, *scores.nodes)):
        return no("the scores or their softmax are needed elsewhere too")
    try:
        return _built(scores, v, node)
    except GraphError as error:
        return no(str(error))


def _built(scores: Scores, v: Node, node: Node) -> Any:
    rank = node.rank
    q, k, values = (_as_rank_4(x, rank) for x in (scores.q, scores.k, v))
    k, values = _shared_heads(k, values)
    heads, kv_heads = q.shape.dims[1], k.shape.dims[1]
    default = max(int(q.shape.dims[3]), 1) ** -0.5 if q.shape.is_static else None
    is_default = default is not None and is_near(scores.scale, default, q)
    mask = [] if scores.mask.operand is None else [_mask_as_rank_4(scores.mask.operand, rank)]
    made = ops.attention(
        q, k, values, *mask,
        num_heads=heads, kv_heads=None if kv_heads == heads else kv_heads,
        mask_kind=scores.mask.kind, scale=None if is_default else scores.scale,
        softcap=scores.softcap, masked_rows="zeros" if scores.mask.kind == "none" else "nan",
    )  # fmt: skip
    return made if rank == 4 else ops.reshape(made, dims=node.shape.dims)


# -- layouts --------------------------------------------------------------------------------------

_SWAPPED = (0, 2, 1, 3)


def _sample_packed(draw: Draw) -> Node:
    graph, dtype = Graph("sample"), draw.choice((DType.F32, DType.F64))
    b, kv, each, n, m, d, e = (draw.integer(1, 3) for _ in range(7))
    heads = kv * each
    q, k, v = (
        ops.transpose(
            ops.reshape(graph.input(name, Shape((b, n, h * w), dtype)), dims=(b, n, h, w)),
            perm=_SWAPPED,
        )
        for name, n, h, w in (("q", n, heads, d), ("k", n + m, kv, d), ("v", n + m, kv, e))
    )
    kind = draw.choice(("none", "causal"))
    made = ops.attention(q, k, v, num_heads=heads, kv_heads=kv, mask_kind=kind)
    return ops.reshape(ops.transpose(made, perm=_SWAPPED), dims=(b, n, heads * e))


@rule(lambda x, d: ops.reshape(ops.transpose(x, perm=_SWAPPED), dims=d), sample=_sample_packed)
def drop_head_transposes(x: Node, d: Dims, uses: Uses) -> Any:
    """Attention reads and writes [batch, length, heads·depth] by itself, without transposes."""
    if x.op != "attention" or x.rank != 4:
        return None
    packed = [_packed(i) for i in x.inputs[:3]]
    b, h, n, e = x.shape.dims
    if any(p is None for p in packed) or d != (b, n, h * e) or uses(x) > 1:
        return None
    return x.graph.node(x.decl, [p for p in packed if p is not None] + [*x.inputs[3:]], x.attrs)


def _packed(x: Node) -> Node | None:
    """[batch, length, heads·depth] of heads that were split off it and moved ahead."""
    if x.op != "transpose" or x.attrs["perm"] != _SWAPPED or x.inputs[0].op != "reshape":
        return None
    b, h, n, d = x.shape.dims
    before = x.inputs[0].inputs[0]
    return before if before.shape.dims == (b, n, h * d) else None
