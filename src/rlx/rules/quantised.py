"""QDQ fusion: products and convolutions of dequantised int8 operands in integer arithmetic.

    Σ (x - a)s · (w - b)t = st · Σ (x - a)(w - b)

The integer sum is exact, and int8 operands are a quarter of the bytes of f32. It is done where a
target has kernels for it: elsewhere products of floats are faster.
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
from rlx.ops.op import lookup
from rlx.rules.engine import rule

INT8_DTYPES = (DType.U8, DType.I8)
MAX_REDUCTION_LENGTH = 2**31 // 255**2
"""Products of 8-bit values minus zero points whose sum cannot overflow i32."""
_WHY = "terms as large as 255² · 40² whose sum is rounded at each step, or exact"


@dataclass(frozen=True, slots=True)
class _Dequantized:
    """An 8-bit operand with its scale and zero point."""

    value: Node
    scale: Node
    zero: Node

    @classmethod
    def by(cls, node: Node, axis: int | None) -> _Dequantized | None:
        """The operand of a dequantize_linear with one scale, or one per index of an axis."""
        if node.op != "dequantize_linear" or node.dtype is not DType.F32 or node.attrs["block"]:
            return None
        value, scale, *zero = node.inputs
        is_along = node.attrs["axis"] == axis
        if value.dtype not in INT8_DTYPES or not all(
            _is_per_tensor(v) or is_along for v in (scale, *zero)
        ):
            return None
        none = value.graph.constant(np.zeros((), value.dtype.numpy))
        return cls(value, scale, zero[0] if zero else none)


def _is_per_tensor(node: Node) -> bool:
    return node.shape.dims in ((), (1,))


def _fits_i32(node: Node, inner: Any) -> bool:
    """Does no sum overflow i32?"""
    return node.dtype is DType.F32 and is_static(inner) and inner <= MAX_REDUCTION_LENGTH


def _rescaled(sums: Node, x: _Dequantized, w: _Dequantized, axis: int) -> Any:
    """The sums times both scales; a per-channel scale of w is along `axis` of the sums."""
    scales = [
        ops.reshape(s, dims=()) if _is_per_tensor(s) else _along(s, sums, axis)
        for s in (x.scale, w.scale)
    ]
    return ops.mul(ops.cast(sums, to=DType.F32), ops.mul(*scales))


def _along(vector: Node, like: Node, axis: int) -> Any:
    dims = (vector.shape.dims[0] if a == axis else 1 for a in range(like.shape.rank))
    return ops.reshape(vector, dims=tuple(dims))


# -- convolutions ---------------------------------------------------------------------------------


def _sample_conv(draw: Draw) -> Node:
    graph = Graph("sample")
    case = draw.case(lookup("conv_integer"))
    x, w = (graph.input(name, Shape(s.dims, s.dtype)) for name, s in zip("xw", case.specs))
    image = _sample_dequantize(draw, x, None)
    kernels = _sample_dequantize(draw, w, 0 if draw.coin() else None)
    bias = [graph.input("bias", Shape(w.shape.dims[:1]))] if draw.coin() else []
    return graph.node("conv", (image, kernels, *bias), case.attrs)


def _sample_dequantize(draw: Draw, x: Node, axis: int | None) -> Node:
    graph = x.graph
    dims = () if axis is None else x.shape.dims[axis : axis + 1]
    name = f"{x.attrs['name']}_scale"
    zero = [graph.constant(np.full(dims, 7, x.dtype.numpy))] if draw.coin() else []
    return ops.dequantize_linear(x, graph.input(name, Shape(dims)), *zero, axis=axis or 0)


@rule(lambda: ops.conv, sample=_sample_conv, domain="plain", slack=256.0, why=_WHY)
def dequantized_conv_as_conv_integer(node: Node) -> Any:
    """Σ (x - a)s · (w - b)t = st · Σ (x - a)(w - b), where a target has conv_integer."""
    image, kernels, *bias = node.inputs
    x, w = _Dequantized.by(image, None), _Dequantized.by(kernels, 0)
    if x is None or w is None or not _fits_i32(node, product(w.value.shape.dims[1:])):
        return None
    sums = ops.conv_integer(x.value, w.value, x.zero, w.zero, **node.attrs)
    made = _rescaled(sums, x, w, 1)
    return ops.add(made, _along(bias[0], sums, 1)) if bias else made


# -- products -------------------------------------------------------------------------------------


def _sample_product(draw: Draw) -> Node:
    graph, is_transposed = Graph("sample"), draw.coin()
    m, k, n = draw.size(), draw.size(), draw.size()
    dtypes = [draw.choice(INT8_DTYPES) for _ in range(2)]
    x = graph.input("x", Shape((*draw.dims(0, 1), m, k), dtypes[0]))
    w = graph.input("w", Shape((n, k) if is_transposed else (k, n), dtypes[1]))
    axis = (0 if is_transposed else 1) if draw.coin() else None
    kernels = _sample_dequantize(draw, w, axis)
    kernels = ops.transpose(kernels, perm=(1, 0)) if is_transposed else kernels
    return ops.matmul(_sample_dequantize(draw, x, None), kernels)


@rule(lambda: ops.matmul, sample=_sample_product, domain="plain", slack=256.0, why=_WHY)
def dequantized_matmul_as_matmul_integer(node: Node) -> Any:
    """Σ (x - a)s · (w - b)t = st · Σ (x - a)(w - b), where a target has matmul_integer."""
    left, right = node.inputs
    is_transposed = right.op == "transpose" and right.attrs["perm"] == (1, 0)
    x = _Dequantized.by(left, None)
    w = _Dequantized.by(right.inputs[0], 0) if is_transposed else _Dequantized.by(right, 1)
    if x is None or w is None or w.value.shape.rank != 2:
        return None
    if left.shape.rank < 2 or not _fits_i32(node, left.shape.dims[-1]):
        return None
    value = ops.transpose(w.value, perm=(1, 0)) if is_transposed else w.value
    sums = ops.matmul_integer(x.value, value, x.zero, w.zero)
    return _rescaled(sums, x, w, node.shape.rank - 1)
