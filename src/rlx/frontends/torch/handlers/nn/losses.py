"""Losses."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call, Declined, rank
from rlx.ir.mir import Node

REDUCTIONS = ("none", "mean", "sum")


@handles("nll_loss_forward", "nll_loss2d_forward")
def nll_loss_forward(
    call: Call, x: Node, target: Node, weight: Node | None, reduction: int, ignore_index: Any
) -> list[Node]:
    """The loss, and the weight of the labels that count."""
    axis = 1 if rank(x) > 1 else 0
    operands = [v for v in (x, target, weight) if v is not None]
    made = ops.nll_loss(
        *operands, axis=axis, reduction=REDUCTIONS[reduction], ignore_index=ignore_index
    )
    counts = ops.not_equal(target, call.constant(ignore_index, DType.I64))
    if weight is None:
        return [made, ops.sum(ops.cast(counts, to=x.shape.dtype))]
    safe = ops.where(counts, target, call.constant(0, DType.I64))
    zero = call.constant(0, x.shape.dtype)
    return [made, ops.sum(ops.where(counts, ops.gather(weight, safe, axis=0), zero))]


@handles("nll_loss", "nll_loss_nd", "nll_loss2d")
def nll_loss(call: Call, x: Node, target: Node, weight: Node | None = None, reduction: int = 1,
             ignore_index: Any = -100) -> Node:  # fmt: skip
    return nll_loss_forward(call, x, target, weight, reduction, ignore_index)[0]


@handles("soft_margin_loss")
def soft_margin_loss(call: Call, x: Node, target: Node, reduction: int = 1) -> Node:
    """log(1 + e^(-y·x)), rounded after each step, as torch does."""
    x, y = call.nodes(x, target)
    return _reduced(ops.log1p(ops.exp(ops.mul(ops.neg(x), y))), reduction)


def _reduced(losses: Node, reduction: int) -> Node:
    match REDUCTIONS[reduction]:
        case "mean":
            return ops.mean(losses)
        case "sum":
            return ops.sum(losses)
        case _:
            return losses


@handles("multi_margin_loss")
def multi_margin_loss(call: Call, x: Node, target: Node, p: Any = 1, margin: Any = 1,
                      weight: Node | None = None, reduction: int = 1) -> Node:  # fmt: skip
    """The mean over classes, but for the label's, of max(0, margin - x[label] + x)^p."""
    if rank(x) < 2 and REDUCTIONS[reduction] == "none":
        raise Declined("the loss of one row, of which torch states another shape than it gives")
    rows, labels = _rows(x), ops.reshape(target, dims=(target.shape.num_elements, 1))
    classes = call.positions(rows.shape.dims, 1)
    own = ops.gather_elements(rows, labels, axis=1)
    excess = ops.maximum(ops.add(ops.sub(call.node(margin, x.shape.dtype), own), rows), 0.0)
    losses = ops.mul(excess, excess) if p == 2 else excess
    if weight is not None:
        losses = ops.mul(losses, ops.gather(ops.reshape(weight, dims=(-1,)), labels, axis=0))
    losses = ops.where(ops.equal(classes, labels), 0.0, losses)
    return _reduced(ops.mean(losses, axes=(1,)), reduction)


@handles("multilabel_margin_loss_forward")
def multilabel_margin_loss(call: Call, x: Node, target: Node, reduction: int) -> list[Node]:
    """For each label k before the first -1 and each class j that is no label,
    max(0, 1 - x[k] + x[j]), summed and over the classes; and which classes are labels."""
    rows, labels = _rows(x), _rows(target)
    count, size = rows.shape.dims
    place = call.positions((count, size), 1)
    is_end = ops.equal(labels, -1)
    end = ops.min(ops.where(is_end, place, call.node(size, DType.I64)), axes=(1,), keepdims=True)
    counts = ops.expand_dims(ops.less(place, end), axes=(2,))
    safe = ops.where(is_end, call.constant(0, DType.I64), labels)
    own = ops.expand_dims(ops.gather_elements(rows, safe, axis=1), axes=(2,))
    classes = ops.expand_dims(place, axes=(1,))
    hits = ops.logical_and(counts, ops.equal(ops.expand_dims(labels, axes=(2,)), classes))
    is_label = ops.any(hits, axes=(1,), keepdims=True)
    excess = ops.maximum(ops.add(ops.sub(1.0, own), ops.expand_dims(rows, axes=(1,))), 0.0)
    taken = ops.logical_and(counts, ops.logical_not(is_label))
    losses = ops.sum(ops.where(taken, excess, 0.0), axes=(1, 2))
    losses = ops.div(losses, call.node(size, x.shape.dtype))
    made = _reduced(losses, reduction)
    shown = ops.cast(ops.reshape(is_label, dims=target.shape.dims), to=x.shape.dtype)
    return [ops.reshape(made, dims=call.dims), shown]


def _rows(x: Node) -> Node:
    """x as rows; a vector, or a number, is one."""
    return x if rank(x) == 2 else ops.reshape(x, dims=(1, x.shape.num_elements))
