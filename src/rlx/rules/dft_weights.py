"""Recognition of power spectra whose sines and cosines are weights, with the window folded into
them: products of frames with a matrix, or convolutions of a signal, whose squares are added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.ops.op import Array
from rlx.rules.engine import Uses, no, rule
from rlx.rules.spectra import rows_of

_ROUNDINGS = 16
"""Of the largest weight: what a table of rounded products may be off."""


def window_of(cosines: Array, sines: Array) -> Array | None:
    """The window w of [n, n // 2 + 1] weights w · cos(2πkt/n) and ±w · sin(2πkt/n)."""
    n, bins = cosines.shape
    if sines.shape != cosines.shape or bins != n // 2 + 1:
        return None
    angles = 2 * np.pi * np.outer(np.arange(n), np.arange(bins)) / n
    window = cosines[:, :1].astype(np.float64)
    most = _ROUNDINGS * float(ml_dtypes.finfo(cosines.dtype).eps) * float(np.abs(window).max())
    turned = [sines - window * sign * np.sin(angles) for sign in (1.0, -1.0)]
    is_real = np.abs(cosines - window * np.cos(angles)).max() <= most
    is_imaginary = min(np.abs(t).max() for t in turned) <= most
    return window[:, 0].astype(cosines.dtype) if most > 0 and is_real and is_imaginary else None


@dataclass(frozen=True, slots=True)
class _Weighted:
    """Frames of a signal, and the weights [n, outputs] that they are multiplied with."""

    frames: Node
    weights: Array
    axis: int
    """Of the outputs, in the product."""


def _weighted(x: Node) -> _Weighted | None:
    if x.op == "matmul" and x.rank >= 2 and x.inputs[1].op == "constant":
        table = x.inputs[1].attrs["value"].array
        return _Weighted(x.inputs[0], table, x.rank - 1) if table.ndim == 2 else None
    if x.op != "conv" or x.rank != 3:
        return None
    signal, kernel, *bias = x.inputs
    attrs = x.attrs
    is_plain = not np.any(attrs["padding"]) and all(d == 1 for d in attrs["dilation"])
    if bias or kernel.op != "constant" or not is_plain or signal.shape.dims[1] != 1:
        return None
    table = kernel.attrs["value"].array
    row = ops.reshape(signal, dims=(signal.shape.dims[0], signal.shape.dims[2]))
    frames = ops.frame(row, length=table.shape[2], hop=int(attrs["stride"][0]))
    return _Weighted(frames, table[:, 0].T, 1)


def _parts(a: Node, b: Node) -> tuple[_Weighted, Array, Array] | None:
    """The frames, and the weights of real and imaginary parts: of two products, or of one."""
    if a.op == b.op == "narrow" and a.inputs[0] is b.inputs[0]:
        both = _weighted(a.inputs[0])
        cuts = [(p.attrs["axis"], p.attrs["start"], p.attrs["length"]) for p in (a, b)]
        if both is None or not all(axis == both.axis for axis, _, _ in cuts):
            return None
        tables = [both.weights[:, int(s) : int(s) + int(n)] for _, s, n in cuts]
        return both, tables[0], tables[1]
    one, other = _weighted(a), _weighted(b)
    if one is None or other is None or one.frames is not other.frames:
        return None
    return one, one.weights, other.weights


def _sample_tables(draw: Draw) -> Node:
    n, hop, dtype = draw.integer(2, 9), draw.integer(1, 4), draw.choice((DType.F32, DType.F64))
    angles = 2 * np.pi * np.outer(np.arange(n), np.arange(n // 2 + 1)) / n
    window = np.hanning(n + 2)[1:-1, None] if draw.coin() else np.ones((n, 1))
    sign = draw.choice((1.0, -1.0))
    tables = [(window * f).astype(dtype.numpy) for f in (np.cos(angles), sign * np.sin(angles))]
    g, bins = Graph("sample"), n // 2 + 1
    if draw.coin():
        x = g.input("x", Shape((2, 1, n + draw.integer(0, 9)), dtype))
        weights = np.ascontiguousarray(np.concatenate(tables, axis=1).T[:, None])
        z, axis = ops.conv(x, weights, stride=(hop,)), 1
    else:
        x = g.input("x", Shape((*draw.dims(1, 2, 1), n), dtype))
        if draw.coin():
            return ops.add(*(ops.square(ops.matmul(x, t)) for t in tables))
        z, axis = ops.matmul(x, np.concatenate(tables, axis=1)), x.rank - 1
    parts = [ops.narrow(z, axis=axis, start=s, length=bins) for s in (0, bins)]
    return ops.add(*(ops.square(p) for p in parts))


@rule(
    lambda a, b: ops.add(ops.square(a), ops.square(b)),
    sample=_sample_tables,
    slack=256.0,
    domain="plain",
    why="sums of up to nine products as large as 40, squared, in another order",
)
def power_by_weights(a: Node, b: Node, node: Node, uses: Uses) -> Any:
    """The squares of products with w · cos and w · sin, added, are the power of the transform."""
    found = _parts(a, b)
    if found is None:
        return None
    of, real, imaginary = found
    window = window_of(real, imaginary)
    if window is None:
        window = window_of(imaginary, real)
    if window is None:
        return None
    if any(uses(p) > 1 for p in (a, b)) or (a.op == "narrow" and uses(a.inputs[0]) > 2):
        return no("the transform is needed elsewhere too")
    n, dims = len(window), node.shape.dims
    power = rows_of(ops.mul(of.frames, window), n).given(ops.power_frames)
    if power.shape.num_elements != node.shape.num_elements:
        return None  # named lengths, of which frames may be none
    if of.axis == node.rank - 1:
        return ops.reshape(power, dims=dims)
    return ops.transpose(ops.reshape(power, dims=(dims[0], dims[2], dims[1])), perm=(0, 2, 1))
