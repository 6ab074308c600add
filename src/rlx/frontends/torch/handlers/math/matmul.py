"""Matrix products."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.handlers.math.arithmetic import scaled
from rlx.frontends.torch.node_call import Call, rank
from rlx.ir.mir import Node


def product(call: Call, x: Node, y: Node) -> Node:
    """Of bools a product counts as true where one of its terms is."""
    if call.dtype is DType.BOOL:
        call.refuse("a product of bools")
    return ops.matmul(*call.nodes(x, y))


@handles("mm", "bmm", "matmul", "mv", "dot", "inner_product")
def matmul(call: Call, x: Node, *other: Node) -> Node:
    return product(call, x, other[0])


@handles("vdot")
def vdot(call: Call, x: Node, other: Node) -> Node:
    return product(call, ops.conj(x) if x.shape.dtype.is_complex else x, other)


@handles("linear")
def linear(call: Call, x: Node, weight: Node, bias: Node | None = None) -> Node:
    made = product(call, x, ops.transpose(weight) if rank(weight) > 1 else weight)
    return made if bias is None else ops.add(made, call.node(bias, call.dtype))


def _accumulated(call: Call, x: Node, made: Node, beta: Any, alpha: Any) -> Node:
    """beta · x + alpha · product; x does not count where beta is 0, not even its NaN."""
    made = scaled(call, made, alpha)
    return made if beta == 0 else ops.add(scaled(call, call.node(x, call.dtype), beta), made)


@handles("addmm", "baddbmm", "addmv", "addbmm", "_addmm_activation")
def addmm(call: Call, x: Node, *rest: Any) -> Node:
    one, other = rest[:2]
    beta, alpha = call.args.get("beta", 1), call.args.get("alpha", 1)
    call.require(not call.op.startswith("_addmm"), "an activation inside")
    made = product(call, one, other)
    if call.op.startswith("addbmm"):
        made = ops.sum(made, axes=(0,))
    return _accumulated(call, x, made, beta, alpha)


@handles("addr")
def addr(call: Call, x: Node, vec1: Node, vec2: Node, beta: Any = 1, alpha: Any = 1) -> Node:
    one, other = call.nodes(vec1, vec2)
    if call.dtype is DType.BOOL:
        call.refuse("an outer product of bools")
    made = ops.outer(scaled(call, one, alpha), other)
    return _accumulated(call, x, made, beta, 1)


@handles("outer", "ger")
def outer(call: Call, x: Node, vec2: Node) -> Node:
    one, other = call.nodes(x, vec2)
    if call.dtype is DType.BOOL:
        return ops.logical_and(ops.expand_dims(one, axes=(1,)), other)
    return ops.outer(one, other)


@handles("einsum")
def einsum(call: Call, x: str, tensors: Any, path: Any = None) -> Node:
    equation = x.replace(" ", "")
    return ops.einsum([call.node(t, call.dtype) for t in tensors], equation=equation)


@handles("_trilinear")
def trilinear(call: Call, *given: Any) -> Node:
    """Σ of products of three tensors whose missing axes are stated."""
    *tensors, e1, e2, e3, sumdim = given[:7]
    sides = [ops.expand_dims(t, axes=tuple(e)) if e else t for t, e in zip(tensors, (e1, e2, e3))]
    made = ops.mul(ops.mul(sides[0], sides[1]), sides[2])
    return ops.sum(made, axes=tuple(sumdim)) if sumdim else made


@handles("bilinear")
def bilinear(call: Call, x: Node, input2: Node, weight: Node, bias: Node | None = None) -> Node:
    made = ops.einsum([x, weight, input2], equation="...i,kij,...j->...k")
    return made if bias is None else ops.add(made, bias)


@handles("linalg_cross", "cross")
def cross(call: Call, x: Node, other: Node, dim: int | None = -1) -> Node:
    one, two = (ops.expand(v, dims=call.dims) for v in call.nodes(x, other))
    axis = -1 if dim is None else dim
    return ops.cross(one, two, axis=axis % len(call.dims))
