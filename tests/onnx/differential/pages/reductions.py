"""Reductions, running sums, and softmax over axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.onnx.differential.drawing import (
    Array,
    Draw,
    Node,
    Operand,
    Rounding,
    draws,
    explain,
    sums,
)

AXES_AS_OPERAND = {"ReduceSum": 13}
"""From which opset on; 18 for the others."""


@draws(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
def _reduce(d: Draw) -> Node:
    smallest = 1 if d.op in ("ReduceMean", "ReduceMax", "ReduceMin") and d.coin(0.9) else 0
    kind = d.kind("T")
    if d.op == "ReduceSumSquare" and kind.is_integer:  # of nothing, nobody's dtype is right
        smallest = 1
    dims = d.dims(smallest=smallest)
    domain = "positive" if d.op in ("ReduceLogSum", "ReduceProd") else "plain"
    if d.op in ("ReduceMax", "ReduceMin") and d.coin() and kind.numpy.kind != "f":
        domain = "any"
    x = d.tensor(dims, kind, domain)
    if d.op == "ReduceProd" and kind.is_integer:  # products that every dtype holds
        x = d.given(
            d.rng.integers(1, 3, dims if np.prod(dims) < 7 else dims[:1]).astype(kind.numpy)
        )
    attrs: dict[str, Any] = d.some(keepdims=d.integer(0, 1))
    axes = None if d.coin(0.25) else d.subset(x.rank)
    if d.opset < 11 and axes is not None:
        axes = [a % x.rank for a in axes]
    tolerance = sums(x.array.size, 100.0 if "L" not in d.op[6:] else 10.0)
    if d.op in ("ReduceMax", "ReduceMin"):
        tolerance = Rounding()
    if d.op in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp") and kind.is_integer:
        tolerance = Rounding(whole=1)
    if d.opset < AXES_AS_OPERAND.get(d.op, 18):
        given = {} if axes is None else {"axes": axes}
        return d.node(x, tolerance=tolerance, **attrs, **given)
    attrs |= d.some(noop_with_empty_axes=d.integer(0, 1))
    operand = None if axes is None else d.shaping(axes)
    return d.node(x, operand, tolerance=tolerance, **attrs)


@draws("ArgMax", "ArgMin")
def _arg(d: Draw) -> Node:
    dims = d.dims(1, 4, smallest=1)
    kind = d.kind("T")
    x = d.tensor(dims, kind, "plain")
    if d.coin(0.4):  # with equal elements
        x = Operand(np.round(x.array).astype(kind.numpy), x.is_known)
    axis = d.axis(x.rank) if d.opset >= 11 else d.integer(0, x.rank - 1)
    chosen = d.some(axis=axis, keepdims=d.integer(0, 1), select_last_index=d.integer(0, 1))
    return d.node(x, **chosen)


@draws("CumSum", "CumProd")
def _cumulative(d: Draw) -> Node:
    name = d.schema.inputs[0].type_str
    x = d.tensor(d.dims(1, 4), name, "plain" if d.op == "CumSum" else "positive")
    kind = d.kind(d.schema.inputs[1].type_str).numpy
    axis = Operand(np.array(d.axis(x.rank), kind), d.coin(0.7), has_names=False)
    if d.coin(0.2):
        axis = Operand(axis.array.reshape(1), axis.is_known, has_names=False)
    ways = d.some(exclusive=d.integer(0, 1), reverse=d.integer(0, 1))
    longest = max(x.dims, default=1)
    scale = 30.0 if d.op == "CumSum" else 3.0 ** min(longest, 8)
    return d.node(x, axis, tolerance=sums(longest, scale), **ways)


@draws("Softmax", "LogSoftmax", "Hardmax")
def _softmax(d: Draw) -> Node:
    x = d.tensor(d.dims(1, 4), "T", "plain")
    axis = d.axis(x.rank) if d.opset >= 11 else d.integer(0, x.rank - 1)
    has_default = d.opset >= 13 or x.rank > 1
    attrs = d.some(axis=axis) if has_default else {"axis": axis}
    return d.node(x, tolerance=Rounding(16.0, 1.0 if d.op != "LogSoftmax" else 30.0), **attrs)


def _of_matrix(node: Node) -> Array:
    x, axis = node.array(0), node.attrs.get("axis", 1) % node.array(0).ndim
    rows = x.astype(np.float64).reshape(int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:])))
    top = rows.max(1, keepdims=True, initial=-np.inf)
    if node.op == "Hardmax":
        made = np.zeros(rows.shape)
        if rows.size:
            made[np.arange(len(rows)), rows.argmax(1)] = 1
    else:
        total = np.exp(rows - top).sum(1, keepdims=True)
        made = rows - top - np.log(total)
        made = np.exp(made) if node.op == "Softmax" else made
    return made.reshape(x.shape).astype(x.dtype)


def _reduced_axes(node: Node) -> tuple[int, ...]:
    given = node.attrs.get("axes", node.array(1).tolist())
    if not given and node.attrs.get("noop_with_empty_axes", 0):
        return ()
    return tuple(int(a) for a in given) or tuple(range(node.array(0).ndim))


def _sum_of_squares(node: Node) -> Array:
    """Modulo what the dtype holds."""
    x = node.array(0)
    keep = bool(node.attrs.get("keepdims", 1))
    return np.sum(x * x, axis=_reduced_axes(node), keepdims=keep, dtype=x.dtype)


def _log_of_nothing(node: Node) -> Array:
    x, keep = node.array(0), bool(node.attrs.get("keepdims", 1))
    inner = np.exp(x.astype(np.float64)) if node.op == "ReduceLogSumExp" else x.astype(np.float64)
    return np.log(np.sum(inner, axis=_reduced_axes(node), keepdims=keep)).astype(x.dtype)


explain(
    "Softmax", "LogSoftmax", "Hardmax",
    right="onnxruntime",
    why="before opset 13 the operand is a matrix, cut at `axis`; onnx.reference takes one axis",
    when=lambda n: n.opset < 13,
    otherwise=_of_matrix,
)  # fmt: skip
explain(
    "ReduceSumSquare",
    right="onnxruntime",
    why="the result has the operand's dtype; onnx.reference gives NumPy's wider one",
    when=lambda n: n.array(0).dtype.kind in "iu" and n.array(0).size > 0,
    otherwise=_sum_of_squares,
)
explain(
    "ReduceLogSum", "ReduceLogSumExp",
    right="reference",
    why="onnxruntime leaves axes of an empty operand as they are; the logarithm of 0 is -inf",
    when=lambda n: n.array(0).size == 0 and n.array(0).dtype.kind not in "iu",
    otherwise=_log_of_nothing,
)  # fmt: skip
explain(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
    right="reference",
    why="onnxruntime leaves axes of an empty operand as they are, and has 0 for a mean of nothing",
    when=lambda n: n.array(0).size == 0,
)  # fmt: skip
