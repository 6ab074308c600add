"""Convolutions with their epilogue: batch norm folded into the weights, a bias, an activation."""

from __future__ import annotations

from collections.abc import Callable

from rlx import ops
from rlx.core.dtype import DType
from rlx.ir.mir import Node
from rlx.passes.fusion import reasons
from rlx.passes.fusion.graph_facts import Facts
from rlx.passes.fusion.matches import Found, Match, Miss
from rlx.passes.fusion.patterns.common import at_each, flat, other_operand, why_escapes
from rlx.passes.fusion.patterns.product import activation_after

WHAT = "fuse_conv_bias_act"
_FOLDED = (DType.F32, DType.F64)
"""Dtypes whose weights are scaled ahead of time; f16 and bf16 would be rounded once more."""


def _conv(node: Node, facts: Facts) -> Found:
    """conv, then batch norm or a bias per channel, then an activation."""
    for user in facts.users[node]:
        if user.op == "batch_norm" and user.inputs[0] is node:
            return _with_norm(node, user, facts)
        if user.op == "add" and _channel_bias(user, node) is not None:
            return _with_bias(node, user, facts)
    last = activation_after(node, facts)
    if len(node.inputs) < 3 or last is None:
        return None
    return _match((node,), last, node.inputs, lambda x, w, b: (x, w, b))


def _channel_bias(add: Node, conv: Node) -> Node | None:
    """The other operand, if it is one value per channel."""
    other = other_operand(add, conv)
    if other is None or len(conv.inputs) > 2 or add.shape != conv.shape:
        return None
    per_channel = (conv.shape.dims[1], *[1] * (conv.shape.rank - 2))
    return other if other.shape.dims in (per_channel, (1, *per_channel)) else None


def _with_bias(node: Node, add: Node, facts: Facts) -> Found:
    bias = _channel_bias(add, node)
    assert bias is not None
    if reason := why_escapes((node,), (add,), facts):
        return Miss(WHAT, node, reason)
    externals = (*node.inputs, bias)
    last = activation_after(add, facts)
    return _match((node, add), last, externals, lambda x, w, b: (x, w, flat(b)))


def _with_norm(node: Node, norm: Node, facts: Facts) -> Found:
    """The norm's scale goes into the weights, its shift into the bias: once, ahead of time."""
    if node.shape.dtype not in _FOLDED:
        return None
    fixed = (*node.inputs[1:], *norm.inputs[1:])
    if not all(map(facts.is_weight, fixed)):
        return Miss(WHAT, node, reasons.NOT_WEIGHTS)
    if reason := why_escapes((node,), (norm,), facts):
        return Miss(WHAT, node, reason)
    eps, has_bias = norm.attrs["eps"], len(node.inputs) > 2

    def fold(x: Node, w: Node, *rest: Node) -> tuple[Node, Node, Node]:
        bias, (scale, shift, mean, var) = (rest[0], rest[1:]) if has_bias else (None, rest)
        factor = scale * ops.rsqrt(var + eps)
        offset = -mean if bias is None else bias - mean
        return x, w * factor.reshape(-1, *[1] * (w.shape.rank - 1)), offset * factor + shift

    last = activation_after(norm, facts)
    return _match((node, norm), last, (node.inputs[0], *fixed), fold)


def _match(
    inner: tuple[Node, ...],
    last: Node | None,
    externals: tuple[Node, ...],
    operands: Callable[..., tuple[Node, Node, Node]],
) -> Match:
    """The convolution with `operands` made of the externals, through the activation `last`."""
    removed = inner if last is None else (*inner, last)
    attrs = {**inner[0].attrs, "activation": None if last is None else last.op}

    def make(*given: Node) -> tuple[Node]:
        x, w, bias = operands(*given)
        return (x.graph.node("fused_conv_bias_act", (x, w, bias), attrs),)

    return Match(WHAT, removed[-1:], removed, externals, make)


fuse_conv_bias_act = at_each("conv", _conv)
