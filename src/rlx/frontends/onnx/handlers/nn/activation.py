"""Activations, softmax, and what clips."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import product, provably_le
from rlx.core.dtype import DType
from rlx.frontends.onnx.handlers import handles, in_floats
from rlx.frontends.onnx.node_call import Call
from rlx.ir.mir import Node


@handles("Elu", "Celu", "ThresholdedRelu")
@in_floats
def with_alpha(call: Call) -> Node:
    op: Any = {"Elu": ops.elu, "Celu": ops.celu, "ThresholdedRelu": ops.thresholded_relu}[call.op]
    return op(call.node(0), alpha=call.attr("alpha", 1.0))


def single(value: float) -> float:
    """A default as the standard stores it: attributes are of single precision."""
    return float(np.float32(value))


@handles("LeakyRelu")
@in_floats
def leaky_relu(call: Call) -> Node:
    return ops.leaky_relu(call.node(0), alpha=call.attr("alpha", single(0.01)))


@handles("Selu")
@in_floats
def selu(call: Call) -> Node:
    """gamma · (x, or alpha · (eˣ - 1) below 0)."""
    alpha, gamma = (
        call.attr("alpha", 1.67326319217681884765625),
        call.attr("gamma", 1.05070102214813232421875),
    )
    x = call.node(0)
    return ops.mul(ops.elu(x, alpha=alpha), scalar(call, gamma, x))


@handles("HardSigmoid")
@in_floats
def hard_sigmoid(call: Call) -> Node:
    alpha, beta = call.attr("alpha", single(0.2)), call.attr("beta", 0.5)
    return ops.hard_sigmoid(call.node(0), alpha=alpha, beta=beta)


@handles("HardSwish")
@in_floats
def hard_swish(call: Call) -> Node:
    return ops.hard_swish(call.node(0))


@handles("Gelu")
@in_floats
def gelu(call: Call) -> Node:
    is_tanh = call.attr("approximate", "none") == "tanh"
    return (ops.gelu_tanh if is_tanh else ops.gelu)(call.node(0))


@handles("Swish")
@in_floats
def swish(call: Call) -> Node:
    x, alpha = call.node(0), call.attr("alpha", 1.0)
    if alpha == 1.0:
        return ops.silu(x)
    return ops.mul(x, ops.sigmoid(ops.mul(x, scalar(call, alpha, x))))


@handles("Shrink")
@in_floats
def shrink(call: Call) -> Node:
    """Beyond lambd nearer to 0 by bias, else 0."""
    return ops.shrink(call.node(0), lambd=call.attr("lambd", 0.5), bias=call.attr("bias", 0.0))


@handles("Clip", since=1)
def clip_by_attributes(call: Call) -> Node:
    """Bounds that are not given are the ends of single precision, which infinities are beyond."""
    ends = np.finfo(np.float32)
    bounds = [float(call.attr("min", ends.min)), float(call.attr("max", ends.max))]
    x = call.node(0)
    largest = float(np.finfo(np.float64).max) if x.shape.dtype is DType.F64 else float(ends.max)
    largest = 65504.0 if x.shape.dtype is DType.F16 else largest
    low, high = (None if abs(b) > largest else b for b in bounds)
    return ops.clamp(x, min=low, max=high)


@handles("Clip", since=11)
def clip(call: Call) -> Node:
    """Towards max last, so that max wins where it is below min."""
    x = call.node(0)
    if call.has(1):
        x = ops.maximum(x, call.node(1))
    if call.has(2):
        x = ops.minimum(x, call.node(2))
    return x


@handles("Softmax", "LogSoftmax", "Hardmax", since=13)
@in_floats
def soft(call: Call) -> Node:
    return _soft(call, call.node(0), call.axis(call.attr("axis", -1), call.rank(0)))


@handles("Softmax", "LogSoftmax", "Hardmax", since=1)
@in_floats
def soft_of_rows(call: Call) -> Node:
    """All axes from one on are a single row."""
    x = call.node(0)
    dims = x.shape.dims
    axis = call.attr("axis", 1)
    at = axis + len(dims) if axis < 0 else axis
    rows = ops.reshape(x, dims=(product(dims[:at]), product(dims[at:])))
    return ops.reshape(_soft(call, rows, 1), dims=dims)


def _soft(call: Call, x: Node, axis: int) -> Node:
    match call.op:
        case "Softmax":
            return ops.softmax(x, axis=axis)
        case "LogSoftmax":
            return ops.log_softmax(x, axis=axis)
        case _:
            return _hardmax(x, axis)


def _hardmax(x: Node, axis: int) -> Node:
    """1 at the first of the largest, else 0. An axis that may be empty gets one more element, which
    is not before any other."""
    is_filled = provably_le(1, x.shape.dims[axis])
    first = ops.argmax(x if is_filled else _longer(x, axis), axis=axis, keepdims=True)
    how = {"dims": x.shape.dims, "axis": axis, "dtype": first.shape.dtype}
    place = x.graph.node("iota", (), how)
    return ops.cast(ops.equal(place, first), to=x.shape.dtype)


def _longer(x: Node, axis: int) -> Node:
    high = tuple(int(i == axis) for i in range(x.shape.rank))
    return ops.pad(x, low=(0,) * x.shape.rank, high=high, value=-math.inf)


def activated(call: Call, x: Node, params: Sequence[float]) -> Node:
    """What onnxruntime's fused operators do last, by the name in their `activation`."""
    match call.attr("activation", ""):
        case "":
            return x
        case "Relu":
            return ops.relu(x)
        case "Sigmoid":
            return ops.sigmoid(x)
        case "Tanh":
            return ops.tanh(x)
        case "LeakyRelu":
            return ops.leaky_relu(x, alpha=params[0] if params else 0.01)
        case "Clip" if len(params) == 2:
            return ops.clamp(x, min=params[0], max=params[1])
        case "HardSigmoid" if len(params) == 2:
            return ops.hard_sigmoid(x, alpha=params[0], beta=params[1])
        case other:
            raise call.unsupported(f"rlx does not know the activation {other!r} of {params}")


def scalar(call: Call, value: float, like: Node) -> Node:
    """A number of the dtype of another value."""
    return call.graph.constant(np.array(value, like.shape.dtype.numpy))
