"""Recognition of scaled dot-product attention from two matmuls and a softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.rules.activations import factors, is_near
from rlx.rules.common import runs_of
from rlx.rules.engine import No, Uses, no, rule
from rlx.rules.match import is_literal
from rlx.rules.sample_attention import sample_attention
from rlx.rules.scores import Mask, Scores, is_regrouped, mask_of, taken_apart

Dims = tuple[DimLike, ...]

# -- the weights ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Weights:
    """The softmax behind the left operand of a product."""

    softmax: Node
    gives_zeros: bool
    """A query that sees no key gives 0 and no NaN."""
    nodes: tuple[Node, ...]
    """What no longer needs computing, if nothing else reads it."""


def _weights(p: Node) -> Weights | None:
    nodes, zeros = list[Node](), False
    while p.op != "softmax":
        nodes.append(p)
        if is_regrouped(p):
            p = p.inputs[0]
            continue
        guard = _without_nan(p)
        if guard is None:
            return None
        zeros, (p, *tests) = True, guard
        nodes += tests
    return Weights(p, zeros, (*nodes, p))


def _without_nan(p: Node) -> tuple[Node, ...] | None:
    """The weights in a select that puts 0 where a query sees no key, and the nodes that test it."""
    if p.op != "where":
        return None
    condition, x, y = p.inputs
    for test, fill, shown in ((_test(condition), x, y), (_negated(condition), y, x)):
        if test is not None and is_literal(fill, 0) and shown.shape == p.shape:
            is_row = shown.op == "softmax" and shown.inputs[0] is test.subject
            if is_row if test.is_of_scores else test.subject is shown:
                return shown, *test.nodes
    return None


@dataclass(frozen=True, slots=True)
class NanTest:
    """A condition that holds where weights are no numbers."""

    subject: Node
    is_of_scores: bool
    """It asks whether scores are -inf, and not whether weights are NaN."""
    nodes: tuple[Node, ...]


def _test(c: Node) -> NanTest | None:
    """x is NaN, x ≠ x, s = -inf, or all of s = -inf along the keys."""
    if c.op == "is_nan" or (c.op == "not_equal" and c.inputs[0] is c.inputs[1]):
        return NanTest(c.inputs[0], False, (c,))
    if c.op == "equal" and is_literal(c.inputs[1], -np.inf):
        return NanTest(c.inputs[0], True, (c,))
    if c.op == "all" and c.attrs["axes"] == (c.inputs[0].rank - 1,) and c.attrs["keepdims"]:
        inner = _test(c.inputs[0])
        return NanTest(inner.subject, inner.is_of_scores, (c, *inner.nodes)) if inner else None
    return None


def _negated(c: Node) -> NanTest | None:
    """A condition that holds where weights are numbers."""
    if c.op == "equal" and c.inputs[0] is c.inputs[1]:
        return NanTest(c.inputs[0], False, (c,))
    inner = _test(c.inputs[0]) if c.op == "logical_not" else None
    return None if inner is None else NanTest(inner.subject, inner.is_of_scores, (c, *inner.nodes))


# -- heads ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heads:
    """How the leading axes of a product are batch and heads."""

    lead: Dims
    batch: DimLike
    count: int

    def of(self, x: Node, what: str) -> Node | No:
        """[batch, heads, length, depth] of an operand, with fewer heads where some share one."""
        own = (*[1] * (len(self.lead) - (x.rank - 2)), *x.shape.dims[:-2])
        last = x.shape.dims[-2:]
        if product(own) == product(self.lead):
            return _reshaped(x, (self.batch, self.count, *last))
        runs = runs_of(self.lead, (self.batch, self.count))
        if runs is None or own[: len(runs[0])] != runs[0]:
            return no(f"{what} are broadcast over the batch")
        rest = [*own[len(runs[0]) :]]
        while rest and rest[-1] == 1:
            rest.pop()
        if (*rest,) != runs[1][: len(rest)]:
            return no(f"{what} are shared by heads that are not next to each other")
        return _reshaped(x, (self.batch, product(rest), *last))


def _heads(scores: Scores, s: Node, q: Node, k: Node) -> Heads:
    """Batch and heads of the leading axes, as any node up to the softmax has them, unmerged."""
    lead = scores.inner.shape.dims[:-2]
    for each in (lead, s.shape.dims[:-2], q.shape.dims[:-2], k.shape.dims[:-2]):
        if len(each) == 2 and isinstance(each[1], int) and product(each) == product(lead):
            return Heads(lead, each[0], each[1])
    if len(lead) > 2:
        is_grouped = k.rank - 2 == len(lead) and k.shape.dims[-3] == 1 != lead[-1]
        at = 1 if is_grouped else len(lead) - 1
        count = product(lead[at:])
        if isinstance(count, int):
            return Heads(lead, product(lead[:at]), count)
    return Heads(lead, product(lead), 1)


def _reshaped(x: Node, dims: Dims) -> Node:
    return x if x.shape.dims == dims else ops.reshape(x, dims=dims)


def _without_repeat_kv(x: Node) -> Node | None:
    """The kv heads before repeat_kv: [b, h, 1, …] expanded to [b, h, g, …] and reshaped."""
    wide = x.inputs[0] if x.op == "reshape" else x
    if wide.op != "expand" or wide.rank != 5 or x.rank != 4:
        return None
    b, h, g, n, d = wide.shape.dims
    single = wide.inputs[0]
    if single.shape.dims != (b, h, 1, n, d) or x.shape.dims != (b, product((h, g)), n, d):
        return None
    is_reshaped = single.op == "reshape" and single.inputs[0].shape.dims == (b, h, n, d)
    return single.inputs[0] if is_reshaped else ops.reshape(single, dims=(b, h, n, d))


def _shared_heads(k: Node, v: Node) -> tuple[Node, Node]:
    """k and v before their heads were repeated, if both were."""
    before = _without_repeat_kv(k), _without_repeat_kv(v)
    if before[0] is None or before[1] is None:
        return k, v
    return (before[0], before[1]) if before[0].shape.dims[1] == before[1].shape.dims[1] else (k, v)


# -- the product ----------------------------------------------------------------------------------


def _scaled(x: Node, lead: DimLike) -> tuple[float, Node]:
    """A number times an operand of the product, before its leading axes were merged."""
    scale = 1.0
    while True:
        own, parts = factors(x)
        if len(parts) == 1 and parts[0] is not x and parts[0].shape == x.shape:
            scale, x = scale * own, parts[0]
        elif is_regrouped(x) and product(x.shape.dims[:-2]) == lead:
            x = x.inputs[0]
        else:
            return scale, x


def _keys(transposed: Node) -> Node | No:
    """k of kᵀ: the last two axes swapped back, in whatever way the others are grouped."""
    if is_regrouped(transposed):
        inner, dims = _keys(transposed.inputs[0]), transposed.shape.dims
        return inner if isinstance(inner, No) else ops.reshape(inner, dims=_swapped(dims))
    if transposed.op != "transpose":
        return no("the keys are stored by depth, and attention would have to copy them")
    rank = transposed.rank
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    perm = tuple(transposed.attrs["perm"][i] for i in swapped)
    x = transposed.inputs[0]
    return x if perm == (*range(rank),) else ops.transpose(x, perm=perm)


def _swapped(dims: Dims) -> Dims:
    return (*dims[:-2], dims[-1], dims[-2])


@dataclass(frozen=True, slots=True)
class Operands:
    """q, k and v as [batch, heads, length, depth], and what the scores are multiplied by."""

    q: Node
    k: Node
    v: Node
    scale: float


def _operands(scores: Scores, s: Node, v: Node) -> tuple[Operands, Heads] | No:
    q, transposed = scores.inner.inputs
    if min(q.rank, transposed.rank, v.rank) < 2:
        return no("an operand of a product is a vector")
    lead = product(scores.inner.shape.dims[:-2])
    q_scale, q = _scaled(q, lead)
    t_scale, transposed = _scaled(transposed, lead)
    k = _keys(transposed)
    if isinstance(k, No):
        return k
    k_scale, k = _scaled(k, lead)
    heads = _heads(scores, s, q, k)
    if product(q.shape.dims[:-2]) != lead:
        q = ops.expand(q, dims=(*heads.lead, *q.shape.dims[-2:]))
    for factor in scores.factors:
        q = ops.mul(_reshaped(q, (*heads.lead, *q.shape.dims[-2:])), factor)
    sides = heads.of(q, "queries"), heads.of(k, "keys"), heads.of(v, "values")
    for side in sides:
        if isinstance(side, No):
            return side
    q, k, v = (side for side in sides if isinstance(side, Node))
    k, v = _shared_heads(k, v)
    if k.shape.dims[1] != v.shape.dims[1]:
        return no("keys and values have other numbers of heads")
    return Operands(q, k, v, scores.scale * q_scale * k_scale * t_scale), heads


# -- the rule -------------------------------------------------------------------------------------


@rule(
    lambda p, v: ops.matmul(p, v),
    sample=sample_attention,
    domain="plain",
    slack=2048.0,
    refines=True,
    valid_in_half_precision=True,
    why="scores as large as 3 · 40² are rounded in another order, and a softmax makes a factor of "
    "the difference: 5000 roundings of 1 are 0.0006 in f32, and nothing in f64",
)
def attention_formula(p: Node, v: Node, node: Node, uses: Uses) -> Any:
    """softmax(q·kᵀ · scale + mask) · v is attention, in which a query that sees no key gives the
    NaN that the softmax makes of it, or 0 where the weights are tested for that."""
    weights = _weights(p)
    scores = None if weights is None else taken_apart(weights.softmax.inputs[0])
    if weights is None or not isinstance(scores, Scores):
        return scores
    s = weights.softmax.inputs[0]
    if weights.softmax.attrs["axis"] != s.rank - 1:
        return no(f"the softmax is over axis {weights.softmax.attrs['axis']}, not over the keys")
    if not _is_private((*weights.nodes, *scores.nodes), node, uses):
        return no("the scores or their softmax are needed elsewhere too")
    found = _operands(scores, s, v)
    if isinstance(found, No):
        return found
    operands, heads = found
    mask = mask_of(scores, heads.batch, heads.count)
    if isinstance(mask, No):
        return mask
    try:
        made = _attention(operands, mask, scores.softcap, weights.gives_zeros)
    except GraphError as error:
        return no(str(error))
    return _reshaped(made, node.shape.dims)


def _is_private(nodes: Sequence[Node], root: Node, uses: Uses) -> bool:
    """Are these read by each other and by `root` alone?"""
    readers = (root, *nodes)
    return all(uses(n) <= sum(n in r.inputs for r in dict.fromkeys(readers)) for n in nodes)


def _attention(of: Operands, mask: Mask, softcap: float | None, gives_zeros: bool) -> Node:
    heads, kv_heads = of.q.shape.dims[1], of.k.shape.dims[1]
    depth = of.q.shape.dims[3]
    default = max(depth, 1) ** -0.5 if isinstance(depth, int) else 0.0
    return ops.attention(
        of.q, of.k, of.v, *([] if mask.operand is None else [mask.operand]),
        num_heads=heads, kv_heads=None if kv_heads == heads else kv_heads, mask_kind=mask.kind,
        scale=None if is_near(of.scale, default, of.q) else of.scale, softcap=softcap,
        masked_rows="zeros" if mask.kind == "none" or gives_zeros else "nan",
    )  # fmt: skip


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
