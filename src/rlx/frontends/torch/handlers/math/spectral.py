"""Fourier transforms."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call, axis_of
from rlx.ir.mir import Node

POWER = {0: 0.0, 1: -0.5, 2: -1.0}
"""Torch's normalisation → the power of the number of points that results are multiplied by."""


def _scaled(call: Call, y: Node, count: DimLike, norm: int) -> Node:
    if norm == 0:
        return y
    wide = y.shape.dtype.real
    if isinstance(count, int):
        factor = call.constant(float(count) ** POWER[norm] if count else 0.0, wide)
    else:
        factor = ops.pow(call.node(count, wide), POWER[norm])
    return ops.mul(y, ops.cast(factor, to=y.shape.dtype))


def _axes(x: Node, dim: Any) -> tuple[int, ...]:
    return tuple(axis_of(x, d) for d in dim)


def _points(x: Node, axes: tuple[int, ...]) -> DimLike:
    return product(x.shape.dims[a] for a in axes)


@handles("_fft_c2c")
def c2c(call: Call, x: Node, dim: Any, normalization: int, forward: bool) -> Node:
    axes = _axes(x, dim)
    made = ops.fftn(x, axes=axes) if forward else ops.ifftn(x, axes=axes, norm="forward")
    return _scaled(call, made, _points(x, axes), normalization)


@handles("_fft_r2c")
def r2c(call: Call, x: Node, dim: Any, normalization: int, onesided: bool) -> Node:
    axes = _axes(x, dim)
    made = ops.rfftn(x, axes=axes) if onesided else ops.fftn(x, axes=axes)
    return _scaled(call, made, _points(x, axes), normalization)


@handles("_fft_c2r")
def c2r(call: Call, x: Node, dim: Any, normalization: int, last_dim_size: Any) -> Node:
    axes = _axes(x, dim)
    made = ops.irfftn(x, axes=axes, n=last_dim_size, norm="forward")
    count = product((*(x.shape.dims[a] for a in axes[:-1]), last_dim_size))
    return _scaled(call, made, count, normalization)


@handles("fft_fftshift", "fft_ifftshift")
def shifted(call: Call, x: Node, dim: Any = None) -> Node:
    axes = tuple(range(x.shape.rank)) if dim is None else _axes(x, dim)
    return (ops.fftshift if call.op == "fft_fftshift" else ops.ifftshift)(x, axes=axes)


WINDOWS = {"hann_window": "hann_window", "hamming_window": "hamming_window",
           "blackman_window": "blackman_window"}  # fmt: skip


@handles(*WINDOWS)
def window(call: Call, x: Any, periodic: bool = True) -> Node:
    attrs = {"length": x, "periodic": periodic, "dtype": DType.F64}
    if call.op == "hamming_window":
        attrs["alpha"] = 0.54
    return call.graph.node(WINDOWS[call.op], (), attrs)
