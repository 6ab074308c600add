"""Quantised tensors and their products."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.core.dtype import DType
from tests.onnx.differential.drawing import Draw, Node, Operand, Rounding, draws, explain

INTEGERS = (DType.U8, DType.I8, DType.U16, DType.I16)


def _zero(d: Draw, kind: DType, dims: tuple[int, ...] = ()) -> Operand:
    info = np.iinfo(kind.numpy)
    low, high = max(info.min, -100), min(info.max, 200)
    return Operand(d.rng.integers(low, high, dims).astype(kind.numpy), d.coin(0.8), False)


def _scale(d: Draw, dims: tuple[int, ...] = (), kind: Any = np.float32) -> Operand:
    """Powers of two, so that halves are the same for all who round them."""
    return Operand((2.0 ** d.rng.integers(-5, 1, dims)).astype(kind), d.coin(0.8), False)


def _along(d: Draw, dims: tuple[int, ...]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The dims of scales and zero points: one, one for each index of an axis, or for each block."""
    if d.opset < 13 or d.coin(0.4):
        return (), {}
    axis = d.integer(0, len(dims) - 1)
    attrs: dict[str, Any] = {} if axis == 1 and d.coin() else {"axis": d.signed(axis, len(dims))}
    if d.opset >= 21 and d.coin(0.4):
        block = d.integer(1, max(1, dims[axis]))
        parts = list(dims)
        parts[axis] = -(-dims[axis] // block)
        return tuple(parts), attrs | {"block_size": block}
    return dims[axis : axis + 1], attrs


def _whole(d: Draw, names: tuple[str, ...]) -> DType:
    admitted = {k for n in names for k in d.admitted(n)} or set(INTEGERS)
    return d.choice([k for k in INTEGERS if k in admitted])


@draws("QuantizeLinear")
def _quantise(d: Draw) -> Node:
    dims = d.dims(2, 4, smallest=1)
    per, attrs = _along(d, dims)
    out = _whole(d, ("T2", "T3"))
    x = d.given((d.rng.normal(size=dims) * 40).astype(np.float32))
    zero = _zero(d, out, per) if d.coin(0.7) or out is not DType.U8 else None
    return d.node(x, _scale(d, per), zero, **attrs)


@draws("DequantizeLinear")
def _dequantise(d: Draw) -> Node:
    dims = d.dims(2, 4, smallest=1)
    per, attrs = _along(d, dims)
    kind = _whole(d, ("T", "T1"))
    x = d.tensor(dims, kind)
    zero = _zero(d, kind, per) if d.coin(0.6) else None
    return d.node(x, _scale(d, per), zero, **attrs)


@draws("DynamicQuantizeLinear")
def _dynamic(d: Draw) -> Node:
    x = d.given((d.rng.normal(size=d.dims(1, 4, smallest=1)) * 10).astype(np.float32))
    if d.coin(0.1):
        x = Operand(np.abs(x.array))
    return d.node(x, outputs=3, tolerance=Rounding(8.0, whole=1))


def _matrices(d: Draw) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    n, k, m = d.integer(1, 4), d.integer(1, 6), d.integer(1, 4)
    lead = d.dims(0, 2, smallest=1)
    other = lead if d.coin(0.4) else ()
    return (*lead, n, k), (*other, k, m), m


@draws("MatMulInteger")
def _integer(d: Draw) -> Node:
    a, b, m = _matrices(d)
    kinds = d.kind("T1"), d.kind("T2")
    per = (m,) if len(b) == 2 and d.coin(0.4) else ()
    zeros = [_zero(d, k, s) if d.coin() else None for k, s in zip(kinds, ((), per))]
    return d.node(d.tensor(a, kinds[0]), d.tensor(b, kinds[1]), *zeros)


@draws("QLinearMatMul")
def _product(d: Draw) -> Node:
    a, b, m = _matrices(d)
    kinds = [d.kind(n, "iu") for n in ("T1", "T2", "T3")]
    per = (m,) if len(b) == 2 and d.coin(0.4) else ()
    parts = [
        d.tensor(a, kinds[0]), _scale(d), _zero(d, kinds[0]),
        d.tensor(b, kinds[1]), _scale(d, per), _zero(d, kinds[1], per),
        Operand(np.float32(2.0 ** d.integer(1, 6)), True, False), _zero(d, kinds[2]),
    ]  # fmt: skip
    return d.node(*parts)


def _multiplied(node: Node) -> Any:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = (node.array(i) for i in range(8))
    wide = (a.astype(np.int64) - int(a_zero)) @ (b.astype(np.int64) - b_zero.astype(np.int64))
    factor = (a_scale * b_scale / scale).astype(np.float32)
    info = np.iinfo(zero.dtype)
    rounded = np.rint(wide.astype(np.float32) * factor)
    return np.clip(rounded + int(zero), info.min, info.max).astype(zero.dtype)


explain(
    "QLinearMatMul",
    right=_multiplied,
    why="onnx.reference rounds after the zero point is added, where halves fall otherwise",
)
