"""Products of what bytes stand for, as products of the bytes.

    Σ (x - a)s · (w - b)t = st · Σ (x - a)(w - b)

The sum is exact, and bytes are a quarter of what floats are. It is done where a target has kernels
for it: elsewhere products of floats are the faster ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import is_static, product
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.rules.engine import rule

BYTES = (DType.U8, DType.I8)
MOST_INNER = 2**31 // 255**2
"""Products of bytes less their zero points whose sum cannot leave i32."""
_WHY = "terms as large as 255² · 40² whose sum is rounded at each step, or exact"


@dataclass(frozen=True, slots=True)
class _Meant:
    """Bytes, what one of them is worth, and which stands for 0."""

    value: Node
    scale: Node
    zero: Node

    @classmethod
    def by(cls, node: Node, axis: int | None) -> _Meant | None:
        """What a node dequantises, by one scale, or by one for each index of an axis."""
        if node.op != "dequantize_linear" or node.dtype is not DType.F32 or node.attrs["block"]:
            return None
        value, scale, *zero = node.inputs
        is_along = node.attrs["axis"] == axis
        if value.dtype not in BYTES or not all(_is_one(v) or is_along for v in (scale, *zero)):
            return None
        none = value.graph.constant(np.zeros((), value.dtype.numpy))
        return cls(value, scale, zero[0] if zero else none)


def _is_one(node: Node) -> bool:
    return node.shape.dims in ((), (1,))


def _is_short(node: Node, inner: Any) -> bool:
    """Can no sum wrap?"""
    return node.dtype is DType.F32 and is_static(inner) and inner <= MOST_INNER


def _worth(sums: Node, x: _Meant, w: _Meant, axis: int) -> Any:
    """What the sums stand for; scales of w lie along an axis of theirs."""
    scales = [ops.reshape(v.scale, dims=()) if _is_one(v.scale) else _along(v.scale, sums, axis)
              for v in (x, w)]  # fmt: skip
    return ops.mul(ops.cast(sums, to=DType.F32), ops.mul(*scales))


def _along(vector: Node, like: Node, axis: int) -> Any:
    dims = (vector.shape.dims[0] if a == axis else 1 for a in range(like.shape.rank))
    return ops.reshape(vector, dims=tuple(dims))


# -- convolutions ---------------------------------------------------------------------------------


def _spell_conv(draw: Draw) -> Node:
    graph = Graph("spelled")
    case = draw.case(ops.conv_integer)
    x, w = (graph.input(name, Shape(s.dims, s.dtype)) for name, s in zip("xw", case.specs))
    image = _spell_meant(draw, x, None)
    kernels = _spell_meant(draw, w, 0 if draw.coin() else None)
    bias = [graph.input("bias", Shape(w.shape.dims[:1]))] if draw.coin() else []
    return graph.node("conv", (image, kernels, *bias), case.attrs)


def _spell_meant(draw: Draw, x: Node, axis: int | None) -> Node:
    graph = x.graph
    dims = () if axis is None else x.shape.dims[axis : axis + 1]
    name = f"{x.attrs['name']}_scale"
    zero = [graph.constant(np.full(dims, 7, x.dtype.numpy))] if draw.coin() else []
    return ops.dequantize_linear(x, graph.input(name, Shape(dims)), *zero, axis=axis or 0)


@rule(lambda: ops.conv, sample=_spell_conv, domain="plain", slack=256.0, why=_WHY)
def convolution_of_bytes(node: Node) -> Any:
    """Σ (x - a)s · (w - b)t = st · Σ (x - a)(w - b), where a target convolves bytes."""
    image, kernels, *bias = node.inputs
    x, w = _Meant.by(image, None), _Meant.by(kernels, 0)
    if x is None or w is None or not _is_short(node, product(w.value.shape.dims[1:])):
        return None
    sums = ops.conv_integer(x.value, w.value, x.zero, w.zero, **node.attrs)
    made = _worth(sums, x, w, 1)
    return ops.add(made, _along(bias[0], sums, 1)) if bias else made


# -- products -------------------------------------------------------------------------------------


def _spell_product(draw: Draw) -> Node:
    graph, is_turned = Graph("spelled"), draw.coin()
    m, k, n = draw.size(), draw.size(), draw.size()
    dtypes = [draw.choice(BYTES) for _ in range(2)]
    x = graph.input("x", Shape((*draw.dims(0, 1), m, k), dtypes[0]))
    w = graph.input("w", Shape((n, k) if is_turned else (k, n), dtypes[1]))
    axis = (0 if is_turned else 1) if draw.coin() else None
    kernels = _spell_meant(draw, w, axis)
    kernels = ops.transpose(kernels, perm=(1, 0)) if is_turned else kernels
    return ops.matmul(_spell_meant(draw, x, None), kernels)


@rule(lambda: ops.matmul, sample=_spell_product, domain="plain", slack=256.0, why=_WHY)
def product_of_bytes(node: Node) -> Any:
    """Σ (x - a)s · (w - b)t = st · Σ (x - a)(w - b), where a target multiplies bytes."""
    left, right = node.inputs
    is_turned = right.op == "transpose" and right.attrs["perm"] == (1, 0)
    x = _Meant.by(left, None)
    w = _Meant.by(right.inputs[0], 0) if is_turned else _Meant.by(right, 1)
    if x is None or w is None or w.value.shape.rank != 2:
        return None
    if left.shape.rank < 2 or not _is_short(node, left.shape.dims[-1]):
        return None
    value = ops.transpose(w.value, perm=(1, 0)) if is_turned else w.value
    sums = ops.matmul_integer(x.value, value, x.zero, w.zero)
    return _worth(sums, x, w, node.shape.rank - 1)
