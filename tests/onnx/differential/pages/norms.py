"""Normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.core.dtype import DType
from tests.onnx.differential.drawing import (
    MICROSOFT,
    Draw,
    Node,
    Operand,
    Rounding,
    draws,
    explain,
)

CENTRED = Rounding(64.0, 8.0)
"""Of values about 30 less their mean, over their deviation."""


def _image(d: Draw, least: int = 1, channels: int | None = None) -> tuple[int, ...]:
    axes = d.integer(0 if least == 0 else 1, 3)
    count = d.integer(1, 5) if channels is None else channels
    return (d.integer(1, 3), count, *(d.integer(1, 4) for _ in range(axes)))


def _near(d: Draw, dims: tuple[int, ...], kind: DType) -> Operand:
    return d.given(d.rng.normal(size=dims).astype(kind.numpy))


def _scale(d: Draw, dims: tuple[int, ...], kind: DType, known: float = 0.5) -> Operand:
    return d.given(d.rng.uniform(0.5, 1.5, dims).astype(kind.numpy), known=known)


def _epsilon(d: Draw) -> dict[str, Any]:
    """In f32 what they are in f64."""
    return {"epsilon": float(d.choice((2.0**-17, 2.0**-10, 0.125)))}


@draws("BatchNormalization")
def _batch(d: Draw) -> Node:
    dims = _image(d, 0 if d.opset >= 9 else 1)
    kind = d.kind_of(0)
    x = _near(d, dims, kind)
    later = [d.kind(s.type_str) if s.type_str in ("T1", "T2", "U") else kind
             for s in d.schema.inputs[1:5]]  # fmt: skip
    each = [_scale(d, dims[1:2], k) for k in later]
    attrs = _epsilon(d) | d.some(0.3, momentum=0.8)
    if d.opset < 7:
        attrs["is_test"] = 1
    if d.opset >= 14 and d.coin(0.2):
        attrs["training_mode"] = 0
    return d.node(x, *each, tolerance=CENTRED, **attrs)


@draws("InstanceNormalization")
def _instance(d: Draw) -> Node:
    dims = _image(d)
    kind = d.kind("T")
    operands = _near(d, dims, kind), _scale(d, dims[1:2], kind), _scale(d, dims[1:2], kind)
    return d.node(*operands, tolerance=CENTRED, **_epsilon(d))


@draws("LayerNormalization", "RMSNormalization")
def _layer(d: Draw) -> Node:
    dims = tuple(d.integer(1, 5) for _ in range(d.integer(1, 4)))
    kind = d.kind("T")
    other = d.kind("V") if d.op == "RMSNormalization" else kind
    axis = d.integer(0, len(dims) - 1)
    attrs = _epsilon(d)
    if axis != len(dims) - 1 or d.coin():
        attrs["axis"] = d.signed(axis, len(dims))
    scale = _scale(d, dims[axis:], other)
    if d.op == "RMSNormalization":
        return d.node(_near(d, dims, kind), scale, tolerance=CENTRED, **attrs)
    bias = _scale(d, dims[axis:], kind) if d.coin() else None
    outputs = d.choice((1, 1, 3)) if kind is DType.F32 else 1
    return d.node(_near(d, dims, kind), scale, bias, outputs=outputs, tolerance=CENTRED, **attrs)


@draws("GroupNormalization")
def _group(d: Draw) -> Node:
    groups = d.integer(1, 3)
    dims = _image(d, channels=groups * d.integer(1, 3))
    kind = d.kind("T")
    count = (groups,) if d.opset < 21 else dims[1:2]
    operands = _near(d, dims, kind), _scale(d, count, kind), _scale(d, count, kind)
    return d.node(*operands, num_groups=groups, tolerance=CENTRED, **_epsilon(d))


@draws("LRN")
def _lrn(d: Draw) -> Node:
    dims = (d.integer(1, 2), d.integer(1, 7), d.integer(1, 3), d.integer(1, 3))
    attrs = {"alpha": 2.0**-7} | d.some(
        0.6, beta=float(d.choice((0.75, 0.5))), bias=float(d.choice((1, 2)))
    )
    size = d.choice((1, 3, 5))
    return d.node(_near(d, dims, d.kind("T")), size=size, tolerance=CENTRED, **attrs)


@draws("LpNormalization")
def _lp(d: Draw) -> Node:
    dims = d.dims(1, 4, smallest=1)
    x = _near(d, dims, d.kind("T"))
    return d.node(x, tolerance=CENTRED, **d.some(0.7, p=d.integer(1, 2), axis=d.axis(len(dims))))


@draws("MeanVarianceNormalization")
def _mvn(d: Draw) -> Node:
    dims = (d.integer(2, 3), d.integer(1, 3), d.integer(2, 4), d.integer(2, 4))
    chosen = sorted(int(a) for a in d.rng.permutation(4)[: d.integer(1, 4)])
    attrs = d.some(0.6, axes=[d.signed(a, 4) for a in chosen])
    return d.node(_near(d, dims, d.kind("T")), tolerance=CENTRED, **attrs)


@draws("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip(d: Draw) -> Node:
    dims = (d.integer(1, 3), d.integer(1, 4), d.integer(1, 8))
    x, skip = (_near(d, dims, DType.F32) for _ in range(2))
    width = dims[-1:]
    is_plain = d.op == "SkipLayerNormalization"
    beta = [_scale(d, width, DType.F32) if d.coin() else None] if is_plain else []
    bias = _scale(d, width, DType.F32) if d.coin() else None
    gamma = _scale(d, width, DType.F32)
    return d.node(x, skip, gamma, *beta, bias, tolerance=CENTRED, **_epsilon(d))


def _variance(node: Node) -> Any:
    x = node.array(0).astype(np.float64)
    axes = tuple(node.attrs.get("axes", (0, 2, 3)))
    less = x - x.mean(axes, keepdims=True)
    made = less / (np.sqrt((less**2).mean(axes, keepdims=True)) + 1e-9)
    return made.astype(node.array(0).dtype)


explain(
    "MeanVarianceNormalization",
    right=_variance,
    why="onnxruntime divides by the root of variance and 1e-9 together, and takes axes in order",
)
explain(
    "LpNormalization",
    right="reference",
    why="onnxruntime gives NaN for a row of zeros",
    when=lambda n: not n.array(0).any(),
)
explain(
    "LpNormalization",
    right=lambda n: _normed(n),
    why="onnx.reference adds numbers with their signs for p = 1",
    when=lambda n: n.attrs.get("p", 2) == 1,
)
explain(
    "RMSNormalization",
    right=lambda n: _rooted(n),
    why="the result has the dtype of the scale; onnx.reference has what NumPy makes of both",
)
explain(
    "BatchNormalization",
    right="onnxruntime",
    why="onnx.reference takes the mean and the variance of the batch for those that are given",
    when=lambda n: 7 <= n.opset < 14,
)
explain(
    "GroupNormalization",
    right=lambda n: _grouped(n),
    why="doubles are computed in double precision, whatever is stashed in single, as torch does; "
    "onnxruntime and onnx.reference compute them in single",
    when=lambda n: n.array(0).dtype == np.float64,
)
explain(
    "BatchNormalization",
    right=lambda n: _batched(n),
    why="onnx.reference computes doubles in single precision where the statistics are single",
    when=lambda n: n.array(0).dtype == np.float64 and n.array(3).dtype != np.float64,
)


def _by_channel(values: Any, rank: int) -> Any:
    return values.astype(np.float64).reshape(-1, *[1] * (rank - 2))


def _batched(node: Node) -> Any:
    x = node.array(0).astype(np.float64)
    scale, bias, mean, variance = (_by_channel(node.array(i), x.ndim) for i in range(1, 5))
    return (x - mean) / np.sqrt(variance + node.attrs["epsilon"]) * scale + bias


def _grouped(node: Node) -> Any:
    x, groups = node.array(0), node.attrs["num_groups"]
    cut = x.reshape(x.shape[0], groups, -1)
    less = cut - cut.mean(-1, keepdims=True)
    made = less / np.sqrt((less**2).mean(-1, keepdims=True) + node.attrs["epsilon"])
    each = x.shape[1] // node.array(1).size
    scale, bias = (_by_channel(np.repeat(node.array(i), each), x.ndim) for i in (1, 2))
    return made.reshape(x.shape) * scale + bias


def _normed(node: Node) -> Any:
    x = node.array(0).astype(np.float64)
    total = np.abs(x).sum(node.attrs.get("axis", -1), keepdims=True)
    return (x / np.where(total == 0, 1, total)).astype(node.array(0).dtype)


def _rooted(node: Node) -> Any:
    x, scale = node.array(0).astype(np.float64), node.array(1)
    axes = tuple(range(node.attrs.get("axis", -1) % x.ndim, x.ndim))
    root = np.sqrt((x**2).mean(axes, keepdims=True) + node.attrs["epsilon"])
    return (x / root * scale.astype(np.float64)).astype(scale.dtype)


def _local(node: Node) -> Any:
    x, size = node.array(0).astype(np.float64), node.attrs["size"]
    alpha, beta, bias = (
        node.attrs.get(k, v) for k, v in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1))
    )
    total = np.zeros_like(x)
    for c in range(x.shape[1]):
        near = x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1]
        total[:, c] = (near**2).sum(1)
    return (x / (bias + alpha / size * total) ** beta).astype(node.array(0).dtype)


explain("LRN", right=_local, why="onnx.reference leaves out channels at the end")
