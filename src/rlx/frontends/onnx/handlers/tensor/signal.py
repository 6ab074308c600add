"""Fourier transforms, windows and mel filters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike
from rlx.core.dtype import DType
from rlx.frontends.dim_ranges import require
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.node_call import Call
from rlx.frontends.onnx.values import Sizes
from rlx.ir.mir import Node

WINDOWS = {
    "HannWindow": (0.5, -0.5),
    "HammingWindow": (25 / 46, -21 / 46),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}
"""Weights of 1, cos 2πt, cos 4πt."""


# -- transforms -----------------------------------------------------------------------------------


@handles("DFT", since=17)
def dft_by_attribute(call: Call) -> Node:
    return _dft(call, call.attr("axis", 1))


@handles("DFT", since=20)
def dft(call: Call) -> Node:
    return _dft(call, call.ints(2)[0] if call.has(2) else -2)


def _dft(call: Call, given: int) -> Node:
    x = call.node(0)
    axis, last = call.axis(given, x.shape.rank), x.shape.rank - 2
    perm = tuple({axis: last, last: axis}.get(i, i) for i in range(last + 1))
    parts = [_turned(p, perm) for p in _exact(_parts(call, x))]
    made = _turned(_transformed(call, parts), (*perm, last + 1))
    return ops.cast(made, to=x.shape.dtype)


def _exact(parts: list[Node]) -> list[Node]:
    """Real numbers as f64: some of their bins have no imaginary part, and what f32 leaves in its
    place is far more than its own rounding."""
    return [ops.cast(p, to=DType.F64) for p in parts] if len(parts) == 1 else parts


def _turned(x: Node, perm: tuple[int, ...]) -> Node:
    return x if list(perm) == sorted(perm) else ops.transpose(x, perm=perm)


def _parts(call: Call, x: Node) -> list[Node]:
    """Real and, if there are any, imaginary parts, along the last axis."""
    count, last = x.shape.dims[-1], x.shape.rank - 1
    if count not in (1, 2) or last < 1:
        raise call.unsupported(f"{x.shape} has neither real nor complex numbers on its last axis")
    parts = [ops.narrow(x, axis=last, start=i, length=1) for i in range(int(count))]
    return [ops.squeeze(p, axes=(last,)) for p in parts]


def _transformed(call: Call, parts: Sequence[Node]) -> Node:
    """The transform along the last axis, with parts along a new one."""
    is_one_sided, is_inverse = (bool(call.attr(n, 0)) for n in ("onesided", "inverse"))
    given = parts[0].shape.dims[-1]
    usual = 2 * (given - 1) if is_one_sided and is_inverse else given
    length = call.dims(1)[0] if call.has(1) else usual
    if is_one_sided and is_inverse:
        return _real(call, parts, None if length == usual else length)
    parts = [resized(p, length) for p in parts]
    if is_one_sided and len(parts) == 1:
        return ops.view_as_real(ops.rfft(parts[0]))
    made = ops.fft(_complex(parts), inverse=is_inverse)
    return ops.view_as_real(_half(made) if is_one_sided else made)


def _real(call: Call, parts: Sequence[Node], length: DimLike | None) -> Node:
    """The real numbers whose transform is half known."""
    if isinstance(length, Dim):
        raise call.needs_shape(f"dft_length is {length}, which is not known")
    made = ops.irfft(_complex(parts), n=length)
    return ops.expand_dims(made, axes=(made.shape.rank,))


def _complex(parts: Sequence[Node]) -> Node:
    real = parts[0]
    if len(parts) == 1:
        return ops.cast(real, to=real.shape.dtype.complex)
    return ops.make_complex(*parts)


def _half(x: Node) -> Node:
    length = x.shape.dims[-1]
    return ops.narrow(x, axis=x.shape.rank - 1, start=0, length=length // 2 + 1)


def resized(x: Node, length: DimLike) -> Node:
    """The last axis truncated, or zero-padded, to a length."""
    given, last = x.shape.dims[-1], x.shape.rank - 1
    if given == length:
        return x
    if isinstance(given, Dim) or isinstance(length, Dim) or given < length:
        x = ops.pad(x, low=(0,) * (last + 1), high=(*(0,) * last, length), value=0.0)
    return ops.narrow(x, axis=last, start=0, length=length)


@handles("STFT")
def stft(call: Call) -> Node:
    """Each frame times the window, transformed."""
    x = call.node(0)
    parts = [x] if x.shape.rank == 2 else _parts(call, x)
    hop, length, window = call.ints(1)[0], _frame_length(call, parts[0]), call.optional(2)
    is_half = bool(call.attr("onesided", 1))
    require(length, parts[0].shape.dims[-1], f"{call.label}: a frame")
    if is_half and len(parts) == 1:
        operands = parts if window is None else [*parts, window]
        made = ops.stft(*operands, n_fft=length, hop=hop)
        return ops.cast(ops.view_as_real(made), to=x.shape.dtype)
    frames = [ops.frame(p, length=length, hop=hop) for p in parts]
    frames = frames if window is None else [ops.mul(f, window) for f in frames]
    made = ops.fft(_complex(frames))
    return ops.cast(ops.view_as_real(_half(made) if is_half else made), to=x.shape.dtype)


def _frame_length(call: Call, signal: Node) -> int:
    length = signal.shape.dims[-1]
    if call.has(3):
        length = call.ints(3)[0]
    elif call.has(2):
        length = call.shape(2).dims[0]
    if isinstance(length, Dim):
        raise call.needs_shape(f"a frame has {length} points, which is not known")
    return length


# -- tables ---------------------------------------------------------------------------------------


@handles(*WINDOWS)
def window(call: Call) -> Node:
    """Cosines over the window, computed in f64; integers keep no fraction. One point that is not
    periodic is 0 / 0 of a turn, as elsewhere."""
    (size,) = call.dims(0)
    dtype = call.importer.reader.dtype(call.attr("output_datatype", 1), call.label)
    line = call.graph.node("iota", (), {"dims": (size,), "axis": 0, "dtype": DType.F64})
    steps = Sizes((size if call.attr("periodic", 1) else size - 1,), (), DType.F64)
    angles = ops.mul(ops.div(line, steps.node(call.graph)), _number(call, 2 * math.pi))
    first, *weights = WINDOWS[call.op]
    made = _number(call, first)
    for k, weight in enumerate(weights, 1):
        wave = ops.cos(angles if k == 1 else ops.mul(angles, _number(call, k)))
        made = ops.add(made, ops.mul(wave, _number(call, weight)))
    return ops.cast(made, to=dtype)


def _number(call: Call, value: float) -> Node:
    return call.graph.constant(np.array(value, np.float64))


@handles("MelWeightMatrix")
def mel_weight_matrix(call: Call) -> Node:
    bins, length, rate = (int(call.array(i).reshape(())) for i in range(3))
    low, high = (float(call.array(i).reshape(())) for i in (3, 4))
    dtype = call.importer.reader.dtype(call.attr("output_datatype", 1), call.label)
    attrs = {
        "num_mel_bins": bins,
        "dft_length": length,
        "sample_rate": rate,
        "lower_edge_hertz": low,
        "upper_edge_hertz": high,
        "dtype": dtype if dtype.is_float else DType.F64,
    }
    return ops.cast(call.graph.node("mel_weight_matrix", (), attrs), to=dtype)
