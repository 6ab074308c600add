"""Complex numbers: their parts, angles and conjugates."""

from __future__ import annotations

import math

from rlx import ops
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call
from rlx.ir.mir import Node


@handles("real")
def real(call: Call, x: Node) -> Node:
    return ops.real(x) if x.shape.dtype.is_complex else x


@handles("imag")
def imag(call: Call, x: Node) -> Node:
    return ops.imag(x)


@handles("conj", "_conj", "conj_physical", "_conj_physical")
def conj(call: Call, x: Node) -> Node:
    return ops.conj(x) if x.shape.dtype.is_complex else x


@handles("resolve_conj", "resolve_neg")
def resolved(call: Call, x: Node) -> Node:
    return x


@handles("complex")
def complex_(call: Call, x: Node, imag: Node) -> Node:
    return ops.make_complex(x, imag)


@handles("polar")
def polar(call: Call, x: Node, angle: Node) -> Node:
    return ops.polar(x, angle)


@handles("angle")
def angle(call: Call, x: Node) -> Node:
    if x.shape.dtype.is_complex:
        return ops.angle(x)
    wide = call.node(x, call.dtype)
    return ops.where(ops.is_nan(wide), wide, ops.where(ops.less(wide, 0.0), math.pi, 0.0))


@handles("view_as_real")
def view_as_real(call: Call, x: Node) -> Node:
    return ops.view_as_real(x)


@handles("view_as_complex")
def view_as_complex(call: Call, x: Node) -> Node:
    return ops.view_as_complex(x)
