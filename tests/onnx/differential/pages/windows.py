"""Convolutions, pools, and columns of windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.core.dtype import DType
from tests.onnx.differential.drawing import Draw, Node, Operand, draws, explain, sums
from tests.onnx.differential.sliding import (
    convolved,
    global_norm,
    padding_of,
    pooled,
    quantised,
    transposed,
)

LARGEST = 30.0 * 30.0
"""Of products of plain values, which seldom are more than 30."""


def _axes(d: Draw) -> int:
    return d.choice((1, 2, 2, 2, 3))


def _geometry(d: Draw, axes: int, kernel: tuple[int, ...]) -> dict[str, Any]:
    """Strides, dilations and padding, each given or left out."""
    most = 3 if axes < 3 else 2
    attrs = d.some(
        0.6,
        strides=[d.integer(1, most) for _ in range(axes)],
        dilations=[d.integer(1, 2) if d.coin(0.4) else 1 for _ in range(axes)],
    )
    auto = d.choice(("", "", "", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"))
    if auto:
        attrs["auto_pad"] = auto
    if auto in ("", "NOTSET") and d.coin(0.7):
        attrs["pads"] = [d.integer(0, max(0, k - 1)) for k in (*kernel, *kernel)]
    return attrs


def _spans(kernel: tuple[int, ...], attrs: dict[str, Any]) -> list[int]:
    steps = attrs.get("dilations", [1] * len(kernel))
    return [s * (k - 1) + 1 for k, s in zip(kernel, steps)]


def _image(d: Draw, kernel: tuple[int, ...], attrs: dict[str, Any], slack: int = 0) -> list[int]:
    """Sizes that windows fit into; with `slack`, sometimes not quite."""
    axes = len(kernel)
    pads = attrs.get("pads", [0] * 2 * axes)
    least = [s - a - b for s, a, b in zip(_spans(kernel, attrs), pads, pads[axes:])]
    if attrs.get("auto_pad", "").startswith("SAME"):
        least = [1] * axes
    more = 4 if axes < 3 else 2
    return [max(1, n - (d.integer(0, slack) if slack and d.coin(0.3) else 0)) + d.integer(0, more)
            for n in least]  # fmt: skip


def _kernel(d: Draw, axes: int) -> tuple[int, ...]:
    return tuple(d.integer(1, 4 if axes < 3 else 2) for _ in range(axes))


def _shape_attr(d: Draw, kernel: tuple[int, ...]) -> dict[str, Any]:
    return d.some(0.5, kernel_shape=list(kernel))


# -- convolutions ---------------------------------------------------------------------------------


@draws("Conv")
def _conv(d: Draw) -> Node:
    axes, kind = _axes(d), d.kind("T")
    kernel, groups, inner = _kernel(d, axes), d.integer(1, 3), d.integer(1, 3)
    attrs = _geometry(d, axes, kernel)
    outer = groups * d.integer(1, 3)
    x = d.tensor((d.integer(0, 2), groups * inner, *_image(d, kernel, attrs)), kind, "plain")
    w = d.tensor((outer, inner, *kernel), kind, "plain")
    bias = d.tensor((outer,), kind, "plain") if d.coin() else None
    attrs |= _shape_attr(d, kernel) | ({"group": groups} if groups > 1 or d.coin() else {})
    terms = inner * int(np.prod(kernel)) + 1
    return d.node(x, w, bias, tolerance=sums(terms, LARGEST), **attrs)


@draws("ConvTranspose")
def _conv_transpose(d: Draw) -> Node:
    axes, kind = _axes(d), d.kind("T")
    kernel, groups, inner, outer = (
        _kernel(d, axes),
        d.integer(1, 2),
        d.integer(1, 3),
        d.integer(1, 2),
    )
    attrs = _geometry(d, axes, kernel)
    image = [d.integer(1, 4) for _ in range(axes)]
    spans = _spans(kernel, attrs)
    steps = attrs.get("strides", [1] * axes)
    if "pads" in attrs:
        most = [((n - 1) * s + span - 1) // 2 for n, s, span in zip(image, steps, spans)]
        attrs["pads"] = [min(p, m) for p, m in zip(attrs["pads"], (*most, *most))]
    if d.coin(0.3):
        attrs["output_padding"] = [d.integer(0, max(s - 1, 0)) for s in steps]
    if d.coin(0.2) and attrs.get("auto_pad", "") != "VALID":
        natural = [(n - 1) * s + span for n, s, span in zip(image, steps, spans)]
        attrs.pop("pads", None)
        attrs.pop("output_padding", None)
        attrs["output_shape"] = [max(1, n - d.integer(0, 2)) for n in natural]
    x = d.tensor((d.integer(1, 2), groups * inner, *image), kind, "plain")
    w = d.tensor((groups * inner, outer, *kernel), kind, "plain")
    bias = d.tensor((groups * outer,), kind, "plain") if d.coin() else None
    attrs |= _shape_attr(d, kernel) | ({"group": groups} if groups > 1 or d.coin() else {})
    terms = inner * int(np.prod(kernel)) + 1
    return d.node(x, w, bias, tolerance=sums(terms, LARGEST), **attrs)


def _zero(d: Draw, kind: DType, dims: tuple[int, ...] = ()) -> Operand:
    info = np.iinfo(kind.numpy)
    return Operand(d.rng.integers(info.min, info.max, dims, endpoint=True).astype(kind.numpy),
                   d.coin(0.7), False)  # fmt: skip


@draws("ConvInteger")
def _conv_integer(d: Draw) -> Node:
    axes = d.choice((1, 2, 2))
    kernel, groups, inner = _kernel(d, axes), d.integer(1, 2), d.integer(1, 3)
    attrs = _geometry(d, axes, kernel)
    outer = groups * d.integer(1, 3)
    x = d.tensor((d.integer(1, 2), groups * inner, *_image(d, kernel, attrs)), "T1")
    w = d.tensor((outer, inner, *kernel), "T2")
    zeros = _zero(d, d.kind("T1")) if d.coin() else None
    points = _zero(d, d.kind("T2"), d.choice(((), (outer,)))) if d.coin() else None
    attrs |= _shape_attr(d, kernel) | ({"group": groups} if groups > 1 or d.coin() else {})
    return d.node(x, w, zeros, points, **attrs)


@draws("QLinearConv")
def _qlinear_conv(d: Draw) -> Node:
    axes = d.choice((1, 2, 2))
    kernel, groups, inner = _kernel(d, axes), d.integer(1, 2), d.integer(1, 3)
    attrs = _geometry(d, axes, kernel)
    outer = groups * d.integer(1, 3)
    x = d.tensor((d.integer(1, 2), groups * inner, *_image(d, kernel, attrs)), "T1")
    w = d.tensor((outer, inner, *kernel), "T2")
    many = d.choice(((), (outer,)))

    def scale(dims: tuple[int, ...] = ()) -> Operand:
        return Operand((2.0 ** d.rng.integers(-4, 2, dims)).astype(np.float32), d.coin(0.8), False)

    bias = d.tensor((outer,), DType.I32) if d.coin() else None
    if bias is not None:
        bias = Operand(bias.array % 1000, bias.is_known)
    w_zero = Operand(np.zeros(many, d.kind("T2").numpy), d.coin(0.8), False)
    attrs |= _shape_attr(d, kernel) | ({"group": groups} if groups > 1 or d.coin() else {})
    return d.node(x, scale(), _zero(d, d.kind("T1")), w, scale(many), w_zero,
                  Operand(np.float32(2.0 ** d.integer(2, 8)), True, False), _zero(d, d.kind("T3")),
                  bias, **attrs)  # fmt: skip


@draws("DeformConv")
def _deform_conv(d: Draw) -> Node:
    kind = d.kind("T")
    kernel, groups, inner = _kernel(d, 2), d.integer(1, 2), d.integer(1, 2)
    attrs = {k: v for k, v in _geometry(d, 2, kernel).items() if k != "auto_pad"}
    image = _image(d, kernel, attrs)
    pads, steps = attrs.get("pads", [0] * 4), attrs.get("strides", [1, 1])
    spans = _spans(kernel, attrs)
    made = [(n + a + b - s) // t + 1 for n, a, b, s, t in zip(image, pads, pads[2:], spans, steps)]
    outer, shifted = groups * d.integer(1, 2), d.choice((1, groups * inner))
    x = d.tensor((d.integer(1, 2), groups * inner, *image), kind, "plain")
    n, taps = x.dims[0], int(np.prod(kernel))
    w = d.tensor((outer, inner, *kernel), kind, "plain")
    offset = d.given(d.rng.uniform(-2, 2, (n, shifted * taps * 2, *made)).astype(kind.numpy))
    bias = d.tensor((outer,), kind, "plain") if d.coin() else None
    mask = (
        d.given(d.rng.random((n, shifted * taps, *made)).astype(kind.numpy)) if d.coin() else None
    )
    attrs |= _shape_attr(d, kernel) | ({"group": groups} if groups > 1 or d.coin() else {})
    attrs |= {"offset_group": shifted} if shifted > 1 or d.coin() else {}
    return d.node(x, w, offset, bias, mask, tolerance=sums(inner * taps * 16, LARGEST), **attrs)


# -- pools ----------------------------------------------------------------------------------------


def _pool(d: Draw, domain: str = "any") -> tuple[Operand, dict[str, Any], tuple[int, ...]]:
    axes = _axes(d)
    kernel = _kernel(d, axes)
    attrs = _geometry(d, axes, kernel)
    attrs = {k: v for k, v in attrs.items() if d.has(k)}
    attrs |= d.some(0.5, ceil_mode=d.integer(0, 1))
    if attrs.get("auto_pad", "NOTSET") != "NOTSET":
        attrs.pop("ceil_mode", None)  # no version says what both mean
    image = _image(d, kernel, attrs, slack=2)
    x = d.tensor((d.integer(1, 2), d.integer(1, 3), *image), d.kind_of(0), domain)
    return x, attrs | {"kernel_shape": list(kernel)}, kernel


@draws("MaxPool")
def _max_pool(d: Draw) -> Node:
    x, attrs, _ = _pool(d)
    is_odd = attrs.get("auto_pad", "NOTSET") != "NOTSET" or attrs.get("ceil_mode")
    outputs = d.integer(1, 2) if d.opset >= 8 and not is_odd else 1
    if outputs == 2 and d.coin(0.4):
        attrs["storage_order"] = d.integer(0, 1)
    if outputs == 2:  # the first of equals, and of NaN, is a choice of each evaluator
        flat = d.rng.permutation(x.array.size) % 127
        x = Operand(flat.reshape(x.dims).astype(x.array.dtype), x.is_known)
    return d.node(x, outputs=outputs, **attrs)


@draws("AveragePool")
def _average_pool(d: Draw) -> Node:
    x, attrs, kernel = _pool(d, "plain")
    attrs |= d.some(0.5, count_include_pad=d.integer(0, 1))
    return d.node(x, tolerance=sums(int(np.prod(kernel)), 30.0), **attrs)


@draws("LpPool")
def _lp_pool(d: Draw) -> Node:
    x, attrs, kernel = _pool(d, "plain")
    attrs |= d.some(0.7, p=d.integer(1, 3))
    return d.node(x, tolerance=sums(4 * int(np.prod(kernel)), 30.0), **attrs)


@draws("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global(d: Draw) -> Node:
    domain = "any" if d.op == "GlobalMaxPool" else "plain"
    dims = (d.integer(1, 2), d.integer(0, 3), *(d.integer(1, 4) for _ in range(_axes(d))))
    x = d.tensor(dims, "T", domain)
    attrs = d.some(p=d.integer(1, 3))
    return d.node(x, tolerance=sums(4 * int(np.prod(dims[2:])), 30.0), **attrs)


@draws("MaxUnpool")
def _max_unpool(d: Draw) -> Node:
    """Of what a pool of windows side by side gives."""
    axes = d.choice((1, 2, 2))
    kernel = [d.integer(1, 3) for _ in range(axes)]
    counts = [d.integer(1, 3) for _ in range(axes)]
    image = [c * k for c, k in zip(counts, kernel)]
    dims = (d.integer(1, 2), d.integer(1, 2), *counts)
    x = d.tensor(dims, "T1")
    places = np.arange(int(np.prod((*dims[:2], *image)))).reshape(*dims[:2], *image)
    cut = tuple(slice(d.integer(0, k - 1), None, k) for k in kernel)
    where = d.given(places[(slice(None), slice(None), *cut)].astype(np.int64), known=0.3)
    wanted = d.shaping([*dims[:2], *image]) if d.coin(0.3) else None
    return d.node(x, where, wanted, kernel_shape=kernel, strides=kernel)


@draws("Col2Im")
def _col2im(d: Draw) -> Node:
    axes = d.choice((1, 2, 2))
    kernel = _kernel(d, axes)
    attrs = {k: v for k, v in _geometry(d, axes, kernel).items() if d.has(k)}
    image = _image(d, kernel, attrs)
    pads, steps = attrs.get("pads", [0] * 2 * axes), attrs.get("strides", [1] * axes)
    spans = _spans(kernel, attrs)
    counts = [(n + a + b - s) // t + 1
              for n, a, b, s, t in zip(image, pads, pads[axes:], spans, steps)]  # fmt: skip
    dims = (d.integer(1, 2), d.integer(1, 2) * int(np.prod(kernel)), int(np.prod(counts)))
    kind = d.choice([k for k in d.admitted("T") if k.numpy.kind == "f"])
    x = d.tensor(dims, kind, "plain")
    tolerance = sums(int(np.prod(kernel)), 30.0)
    return d.node(x, d.shaping(image), d.shaping(kernel), tolerance=tolerance, **attrs)


# -- differences ----------------------------------------------------------------------------------


def _is_same(node: Node) -> bool:
    return node.attrs.get("auto_pad", "").startswith("SAME")


def _fits(node: Node) -> bool:
    """Is the image with its padding as large as a window?"""
    x, kernel = node.array(0), node.attrs["kernel_shape"]
    axes = len(kernel)
    pads = [padding_of(node, i, n, 1, 1) for i, n in enumerate(x.shape[2:])]
    apart = node.attrs.get("dilations", [1] * axes)
    fits = [n + sum(p) >= d * (k - 1) + 1 for n, p, d, k in zip(x.shape[2:], pads, apart, kernel)]
    return all(fits)


def _is_narrow(node: Node) -> bool:
    """Is there a window that does not fit, or one more by ceil_mode?"""
    return not _fits(node) or bool(node.attrs.get("ceil_mode", 0))


def _has_nan(node: Node) -> bool:
    return bool(np.isnan(node.array(0).astype(np.float64)).any())


explain(
    "MaxPool", "AveragePool", "LpPool",
    right=pooled,
    why="of SAME padding, onnxruntime forgets dilations and crops where strides are wider than "
    "windows, and onnx.reference's indices and means count the padding; of VALID it forgets them",
    when=lambda n: n.attrs.get("auto_pad", "NOTSET") != "NOTSET",
)  # fmt: skip
explain(
    "AveragePool",
    right=pooled,
    why="before opset 7 padding does not count either; onnx.reference counts it",
    when=lambda n: n.opset < 7,
)
explain(
    "AveragePool",
    right=pooled,
    why="where a window is larger than the image and its padding, onnxruntime counts what is past "
    "them before opset 19, and not from there on",
    when=lambda n: n.opset < 19 and not _fits(n) and n.attrs.get("count_include_pad", 0) == 1,
)
explain(
    "MaxPool",
    right=pooled,
    why="a NaN is the greatest, as torch has it; onnxruntime passes over some",
    when=lambda n: n.outputs == 1 and _has_nan(n),
)
explain(
    "MaxPool", "AveragePool", "LpPool",
    right="onnxruntime",
    why="onnx.reference has other windows where padding is uneven or one reaches past it, and "
    "means that count what is past it",
    when=lambda n: n.outputs == 1 and ("pads" in n.attrs or _is_narrow(n)),
    otherwise=pooled,
)  # fmt: skip
explain(
    "MaxPool",
    right="onnxruntime",
    why="the same; and onnx.reference has indices that start anew with each channel",
    when=lambda n: n.outputs > 1,
)
explain(
    "GlobalMaxPool",
    right=lambda n: n.array(0).max(tuple(range(2, n.array(0).ndim)), keepdims=True),
    why="onnx.reference has other ranks; a NaN is the greatest, as torch has it",
)
explain(
    "Col2Im",
    right="reference",
    why="onnxruntime adds dilated columns of one axis into other channels",
    when=lambda n: (
        n.array(1).size == 1
        and n.attrs.get("dilations", [1]) != [1]
        and n.array(0).shape[1] > n.array(2)[0]
    ),
)
explain(
    "ConvInteger",
    right=convolved,
    why="onnxruntime and onnx.reference have no zero point for each output channel",
    when=lambda n: n.has(3) and n.array(3).ndim == 1,
)
explain(
    "GlobalLpPool",
    right="onnxruntime",
    why="onnx.reference has no such operator, and onnxruntime not every dtype of it",
    otherwise=global_norm,
)
explain(
    "DeformConv",
    right="onnxruntime",
    why="onnx.reference computes positions of doubles in single precision",
    when=lambda n: n.array(0).dtype == np.float64,
)


explain(
    "ConvTranspose",
    right=transposed,
    why="of SAME padding the result is as large as the strides make it, also where they are wider "
    "than windows, and onnxruntime's is not; onnx.reference mixes channels of groups",
    when=lambda n: _is_same(n) or n.attrs.get("group", 1) > 1,
)


explain(
    "QLinearConv",
    right=quantised,
    why="onnx.reference rounds after the zero point is added, where halves fall otherwise, and "
    "broadcasts vectors of scales along the wrong axis",
)
