"""Activations with attributes; those without follow from the op table."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call, rank
from rlx.ir.mir import Node


@handles("relu")
def relu(call: Call, x: Node) -> Node:
    return ops.relu(x)


@handles("gelu")
def gelu(call: Call, x: Node, approximate: str = "none") -> Node:
    return ops.gelu(x) if approximate == "none" else ops.gelu_tanh(x)


@handles("leaky_relu")
def leaky_relu(call: Call, x: Node, negative_slope: float = 0.01) -> Node:
    return ops.leaky_relu(x, alpha=float(negative_slope))


@handles("elu")
def elu(call: Call, x: Node, alpha: float = 1.0, scale: float = 1.0,
        input_scale: float = 1.0) -> Node:  # fmt: skip
    if scale == 1 and input_scale == 1:
        return ops.elu(x, alpha=float(alpha))
    wide = call.node(x, x.shape.dtype.compute)
    below = ops.mul(ops.expm1(ops.mul(wide, float(input_scale))), float(alpha * scale))
    return ops.where(ops.greater(wide, 0.0), ops.mul(wide, float(scale)), below)


@handles("celu")
def celu(call: Call, x: Node, alpha: float = 1.0) -> Node:
    return ops.celu(x, alpha=float(alpha))


@handles("softplus")
def softplus(call: Call, x: Node, beta: float = 1.0, threshold: float = 20.0) -> Node:
    wide = call.node(x, x.shape.dtype.compute)
    steep = ops.mul(wide, float(beta)) if beta != 1 else wide
    soft = ops.softplus(steep)
    soft = ops.div(soft, float(beta)) if beta != 1 else soft
    return ops.where(ops.greater(steep, float(threshold)), wide, soft)


@handles("hardtanh")
def hardtanh(call: Call, x: Node, min_val: Any = -1, max_val: Any = 1) -> Node:
    return ops.clamp(x, min=min_val, max=max_val)


@handles("relu6")
def relu6(call: Call, x: Node) -> Node:
    return ops.clamp(x, min=0, max=6)


@handles("hardsigmoid")
def hardsigmoid(call: Call, x: Node) -> Node:
    return ops.hard_sigmoid(x, alpha=1 / 6, beta=0.5)


@handles("prelu", "_prelu_kernel")
def prelu(call: Call, x: Node, weight: Node) -> Node:
    if rank(weight) == 1 and rank(x) > 1 and call.op == "prelu":
        weight = ops.reshape(weight, dims=(weight.shape.dims[0], *[1] * (rank(x) - 2)))
    if rank(weight) == 1 and rank(x) == 0:
        weight = ops.reshape(weight, dims=())
    return ops.prelu(x, weight)


@handles("logit", "special_logit")
def logit(call: Call, x: Node, eps: float | None = None) -> Node:
    wide = call.node(x, call.dtype)
    return ops.logit(wide) if eps is None else ops.logit(wide, eps=float(eps))


@handles("threshold")
def threshold(call: Call, x: Node, threshold: Any, value: Any) -> Node:
    limit, other = call.nodes(threshold, value)
    return ops.where(ops.less_equal(x, limit), other, x)


@handles("glu")
def glu(call: Call, x: Node, dim: int = -1) -> Node:
    axis = dim % rank(x)
    half = x.shape.dims[axis] // 2
    a = ops.narrow(x, axis=axis, start=0, length=half)
    b = ops.narrow(x, axis=axis, start=half, length=half)
    return ops.mul(a, ops.sigmoid(b))


@handles("hardshrink")
def hardshrink(call: Call, x: Node, lambd: float = 0.5) -> Node:
    is_near = ops.less_equal(ops.abs(x), float(lambd))
    return ops.where(is_near, call.constant(0, x.shape.dtype), x)


@handles("softshrink")
def softshrink(call: Call, x: Node, lambd: float = 0.5) -> Node:
    made = ops.shrink(x, lambd=float(lambd), bias=float(lambd))
    return ops.where(ops.is_nan(x), x, made)
