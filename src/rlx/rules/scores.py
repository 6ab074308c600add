"""Attention scores taken apart: what a softmax reads as masks over a cap over scale · (q · kᵀ)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from rlx import ops
from rlx.core.dim import DimLike, product
from rlx.ir.mir import Node
from rlx.ops.nn.attention import MaskKind
from rlx.ops.op import Kind
from rlx.rules.common import runs_of, scalar
from rlx.rules.engine import No, no
from rlx.rules.match import scalar_of

Dims = tuple[DimLike, ...]
NEGLIGIBLE = -1e8
"""A score so low has no weight beside any other that a model computes: exp(-1e8) is 0."""
_CARRIES_SCORES = frozenset(("reshape", "add", "sub", "where", "mul", "div", "neg", "tanh"))
_SEARCHED = 64
"""Nodes looked at for the product behind a softmax."""


@dataclass(frozen=True, slots=True)
class Added:
    """A mask added to scores of these dims, which are then multiplied by a number."""

    operand: Node
    dims: Dims
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Hidden:
    """A select between scores of these dims, where the condition is `shown`, and a fill value."""

    condition: Node
    dims: Dims
    shown: bool
    fill: float


@dataclass(frozen=True, slots=True)
class Scores:
    """A softmax's operand, or as much of it as is taken apart."""

    inner: Node
    """What is left: in the end the product."""
    scale: float = 1.0
    softcap: float | None = None
    masks: tuple[Added | Hidden, ...] = ()
    """The outermost first."""
    factors: tuple[Node, ...] = ()
    """Multiplied in, one value for all keys of a query."""
    nodes: tuple[Node, ...] = ()
    """What no longer needs computing, if nothing else reads it."""

    def down_to(self, inner: Node, **changes: Any) -> Scores:
        return replace(self, inner=inner, nodes=(*self.nodes, self.inner), **changes)


def taken_apart(s: Node) -> Scores | No | None:
    """A softmax's operand down to the product of queries and keys; None if there is no product."""
    if not reads_product(s, _is_local):
        return None
    scores = Scores(s)
    while scores.inner.op != "matmul":
        below = _step(scores)
        if isinstance(below, No):
            return below
        scores = below
    return replace(scores, nodes=(*scores.nodes, scores.inner))


def _carries_scores(x: Node) -> bool:
    return x.op in _CARRIES_SCORES


def _is_local(x: Node) -> bool:
    return x.decl.kind in (Kind.ELEMENTWISE, Kind.MOVEMENT)


def reads_product(x: Node, passes: Callable[[Node], bool] = _carries_scores) -> bool:
    """Does a product come in through such nodes?"""
    stack, seen = [x], {x}
    while stack and len(seen) < _SEARCHED:
        node = stack.pop()
        if node.op == "matmul":
            return True
        fresh = [i for i in node.inputs if i not in seen] if passes(node) else []
        seen.update(fresh)
        stack += fresh
    return False


def _step(scores: Scores) -> Scores | No:
    x = scores.inner
    if is_regrouped(x) and not scores.factors:
        return scores.down_to(x.inputs[0])
    if x.op in ("add", "sub", "where") and scores.factors:
        return no("the scores are scaled query by query after their mask")
    if x.op in ("add", "sub"):
        return _added(scores)
    if x.op == "where":
        return _hidden(scores)
    if x.op == "tanh":
        return _capped(scores)
    if x.op in ("mul", "div", "neg"):
        return _scaled(scores)
    return no(f"{x.op} of the scores is neither mask nor scale nor cap")


def is_regrouped(x: Node) -> bool:
    """Is it a reshape of the leading axes alone?"""
    return x.op == "reshape" and x.rank >= 2 and x.shape.dims[-2:] == x.inputs[0].shape.dims[-2:]


def _is_scores(inner: Node, x: Node) -> bool:
    return inner.shape == x.shape and reads_product(inner)


def _added(scores: Scores) -> Scores | No:
    x = scores.inner
    if scores.softcap is not None:
        return no("what is added to the scores before their cap is no mask of attention")
    orders = (x.inputs, x.inputs[::-1]) if x.op == "add" else (x.inputs,)
    for inner, mask in orders:
        if _is_scores(inner, x):
            value = scalar_of(mask)
            if value is not None and value == 0:
                return scores.down_to(inner)
            operand = ops.neg(mask) if x.op == "sub" else mask
            added = Added(operand, x.shape.dims, scores.scale)
            return scores.down_to(inner, masks=(*scores.masks, added))
    return no(f"the scores are an operand of {x.op} that is broadcast or subtracted")


def _hidden(scores: Scores) -> Scores | No:
    x = scores.inner
    condition, yes, otherwise = x.inputs
    for shown, inner, other in ((True, yes, otherwise), (False, otherwise, yes)):
        if not _is_scores(inner, x):
            continue
        value = scalar_of(other)
        if value is None:
            return no("a select between scores and values that are no one number is no mask")
        fill = float(value) * scores.scale
        if not fill <= max(lowest(x) / 2, NEGLIGIBLE) or scores.softcap is not None:
            return no(f"a score of {fill:g} where a key is masked still has a weight")
        hidden = Hidden(condition, x.shape.dims, shown, fill)
        return scores.down_to(inner, masks=(*scores.masks, hidden))
    return no("a select of scores is broadcast")


def _capped(scores: Scores) -> Scores | No:
    if scores.softcap is not None or scores.factors or not scores.scale > 0:
        return no("a tanh of scores times something other than a number above 0 is no cap")
    return scores.down_to(scores.inner.inputs[0], softcap=scores.scale)


def _scaled(scores: Scores) -> Scores | No:
    x = scores.inner
    if x.op == "neg":
        return scores.down_to(x.inputs[0], scale=-scores.scale)
    orders = (x.inputs, x.inputs[::-1]) if x.op == "mul" else (x.inputs,)
    for inner, factor in orders:
        if not _is_scores(inner, x):
            continue
        value = scalar_of(factor)
        if value is not None and (x.op == "mul" or value != 0):
            scale = scores.scale * (float(value) if x.op == "mul" else 1.0 / float(value))
            return scores.down_to(inner, scale=scale)
        if factor.rank and factor.shape.dims[-1] != 1:
            return no("the scores are scaled key by key")
        each = factor if x.op == "mul" else ops.reciprocal(factor)
        return scores.down_to(inner, factors=(*scores.factors, each))
    return no(f"the scores are an operand of {x.op}")


# -- masks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mask:
    """What is done to the scores before the softmax, as attention's attributes say it."""

    kind: MaskKind = "none"
    operand: Node | None = None


def lowest(x: Node) -> float:
    """The least number of a dtype."""
    return float(ml_dtypes.finfo(x.dtype.numpy).min)


def mask_of(scores: Scores, batch: DimLike, heads: DimLike) -> Mask | No:
    """All masks as one, set against [batch, heads, queries, keys]."""
    masks, like = scores.masks, scores.inner
    if len(masks) == 1:
        if _hides_later_keys(masks[0], like):
            return Mask("causal")
        masks = (_known_to_vanish(masks[0]),)
    joined = _Joined(like)
    for at, mask in reversed([*enumerate(masks)]):
        operand = mask.operand if isinstance(mask, Added) else mask.condition
        each = _by_head(operand, mask.dims, batch, heads)
        if isinstance(mask, Added):
            joined = joined.plus(each if mask.scale == 1.0 else ops.mul(each, mask.scale))
        elif lowest(like) / 2 < mask.fill and any(isinstance(m, Added) for m in masks[:at]):
            return no(f"a query whose keys are all filled with {mask.fill:g} sees the mask added")
        else:
            shown = each if mask.shown else ops.logical_not(each)
            joined = joined.hiding(shown, mask.fill)
    return joined.mask()


@dataclass(frozen=True, slots=True)
class _Joined:
    """Masks from the innermost on: where `visible`, `bias` is added, else the score is -inf."""

    like: Node
    bias: Node | None = None
    visible: Node | None = None

    def plus(self, mask: Node) -> _Joined:
        return replace(self, bias=mask if self.bias is None else ops.add(self.bias, mask))

    def hiding(self, shown: Node, fill: float) -> _Joined:
        """A finite fill is seen where a query has no key at all: added to any score it is the same
        number again, half the least number being so large."""
        if np.isneginf(fill):
            both = shown if self.visible is None else ops.logical_and(self.visible, shown)
            return replace(self, visible=both)
        bias = scalar(0, self.like) if self.bias is None else self.bias
        bias = ops.where(shown, bias, scalar(min(fill, lowest(self.like) / 2), self.like))
        if self.visible is None:
            return replace(self, bias=bias)
        visible = ops.logical_or(self.visible, ops.logical_not(shown))
        return replace(self, bias=bias, visible=visible)

    def mask(self) -> Mask:
        if self.bias is None:
            return Mask() if self.visible is None else Mask("custom", _of_rank_4(self.visible))
        if self.visible is None:
            return Mask("bias", _of_rank_4(self.bias))
        bias = ops.where(self.visible, self.bias, scalar(-np.inf, self.like))
        return Mask("bias", _of_rank_4(bias))


def _constant(mask: Added | Hidden) -> Any:
    operand = mask.operand if isinstance(mask, Added) else mask.condition
    return operand.attrs["value"].array if operand.op == "constant" else None


def _hides_later_keys(mask: Added | Hidden, like: Node) -> bool:
    value = _constant(mask)
    if value is None:
        return False
    if isinstance(mask, Hidden):
        return _is_causal(value == mask.shown, value != mask.shown, like)
    hidden = value * mask.scale <= max(lowest(like) / 2, NEGLIGIBLE)
    return _is_causal(value == 0, hidden, like)


def _known_to_vanish(mask: Added | Hidden) -> Added | Hidden:
    """A finite fill under a constant mask that leaves every query a key is never seen."""
    value = _constant(mask)
    if value is None or isinstance(mask, Added) or not (value == mask.shown).any(axis=-1).all():
        return mask
    return replace(mask, fill=-np.inf)


def _is_causal(visible: Any, hidden: Any, like: Node) -> bool:
    """Does query i see exactly the keys up to i + keys - queries, at least one of them?"""
    if visible.shape[-2:] != like.shape.dims[-2:]:
        return False
    queries, keys = visible.shape[-2:]
    past = np.tri(queries, keys, keys - queries, dtype=bool)
    return keys >= queries > 0 and bool((visible == past).all() and (hidden == ~past).all())


def _by_head(mask: Node, dims: Dims, batch: DimLike, heads: DimLike) -> Node:
    """A mask that broadcasts against scores of `dims`, against [batch, heads, queries, keys]."""
    lead = dims[:-2]
    padded = (*[1] * (len(dims) - mask.rank), *mask.shape.dims)
    own, last = padded[:-2], padded[-2:]
    if all(d == 1 for d in own):
        return _reshaped(mask, (1, 1, *last))
    runs = runs_of(lead, (batch, heads))
    if runs is None:
        return _reshaped(_expanded(mask, (*lead, *last)), (batch, heads, *last))
    wide, outer = list[DimLike](), list[DimLike]()
    for run in runs:
        start = len(wide)
        part = own[start : start + len(run)]
        wide += part if all(d == 1 for d in part) else run
        outer.append(product(wide[start:]))
    return _reshaped(_expanded(mask, (*wide, *last)), (*outer, *last))


def _expanded(x: Node, dims: Dims) -> Node:
    return x if product(x.shape.dims) == product(dims) else ops.expand(x, dims=dims)


def _reshaped(x: Node, dims: Dims) -> Node:
    return x if x.shape.dims == dims else ops.reshape(x, dims=dims)


def _of_rank_4(mask: Node) -> Node:
    return _reshaped(mask, (*[1] * (4 - mask.rank), *mask.shape.dims))
