"""Recognition of STFT, power spectra and mel filterbanks, from the inside out: each fused step
saves an array of frames or spectra.

Only for targets with dedicated kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import provably_le
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.ops.signal.fft import log_bands
from rlx.rules.engine import Uses, no, rule

ROUNDINGS = "a windowed frame is rounded before it is transformed, or not, and sums differ in order"
SHARED = "it is needed elsewhere too"


@dataclass(frozen=True, slots=True)
class Framed:
    """Frames of a signal, times a window if there is one."""

    x: Node
    window: Node | None
    n: int
    hop: int

    def given(self, op: Any, *more: Node, **attrs: Any) -> Node:
        operands = [self.x, *more, *([] if self.window is None else [self.window])]
        return op(*operands, n_fft=self.n, hop=self.hop, **attrs)


def framed(node: Node) -> Framed | None:
    """The signal and window of frames in f32 or f64; f16 and bf16 round at every step."""
    if node.dtype not in (DType.F32, DType.F64):
        return None
    if node.op == "frame":
        return Framed(node.inputs[0], None, node.attrs["length"], node.attrs["hop"])
    for a, b in ((0, 1), (1, 0)) if node.op == "mul" else ():
        frame, window = node.inputs[a], node.inputs[b]
        if frame.op == "frame" and window.shape.dims == (frame.attrs["length"],):
            return Framed(frame.inputs[0], window, frame.attrs["length"], frame.attrs["hop"])
    return None


def real_of_split_complex(node: Node) -> Node | None:
    """The real half of a split-complex value whose imaginary half is 0, as finite numbers make
    it."""
    if node.op == "pad":
        return _padded(node)
    if node.op != "concat" or node.attrs["axis"] != node.rank - 1 or len(node.inputs) != 2:
        return None
    real, imaginary = node.inputs
    return real if real.shape == imaginary.shape and _is_zero(imaginary, real) else None


def _padded(node: Node) -> Node | None:
    if node.attrs["mode"] != "constant" or node.attrs["value"] != 0.0:
        return None
    real, rank = node.inputs[0], node.rank
    none = (0,) * (rank - 1)
    is_after = node.attrs["low"] == (*none, 0)
    is_after &= node.attrs["high"] == (*none, real.shape.dims[-1])
    return real if is_after else None


def _is_zero(node: Node, x: Node) -> bool:
    """Zeros, x - x, or x · 0."""
    while node.op in ("expand", "reshape"):
        node = node.inputs[0]
    if node.op == "constant":
        return not np.any(node.attrs["value"].array)
    if node.op == "sub":
        return node.inputs[0] is node.inputs[1] and node.inputs[0] is x
    return (
        node.op == "mul"
        and x in node.inputs
        and any(i.op == "constant" and not np.any(i.attrs["value"].array) for i in node.inputs)
    )


def is_plain(transform: Node) -> bool:
    return transform.attrs["norm"] == "backward" and not transform.attrs.get("inverse")


# -- spectra --------------------------------------------------------------------------------------


def draw_framed(draw: Draw, rank: int | None = None) -> Node:
    n, hop = draw.integer(1, 9), draw.integer(1, 4)
    dtype = draw.choice((DType.F32, DType.F64))
    outer = draw.dims(0, 2, 1) if rank is None else tuple(draw.size(1) for _ in range(rank - 1))
    g = Graph("sample")
    x = ops.frame(g.input("x", Shape((*outer, n + draw.integer(0, 8)), dtype)), length=n, hop=hop)
    if draw.coin(0.3):
        return x
    window = g.input("w", Shape((n,), dtype))
    return ops.mul(x, window) if draw.coin() else ops.mul(window, x)


@rule(
    lambda y: ops.rfft(y),
    sample=lambda draw: ops.rfft(draw_framed(draw)),
    slack=16.0,
    domain="plain",
    why=ROUNDINGS,
)
def rfft_of_frames_as_stft(y: Node, node: Node) -> Any:
    """The real transforms of a signal's frames are its short-time transform."""
    found = framed(y)
    if found is None or node.attrs["n"] is not None or not is_plain(node):
        return None
    return found.given(ops.stft)


def draw_stft(draw: Draw) -> Node:
    n, hop, dtype = draw.integer(1, 9), draw.integer(1, 4), draw.choice((DType.F32, DType.F64))
    g = Graph("sample")
    operands = [g.input("x", Shape((*draw.dims(0, 2, 1), n + draw.integer(0, 8)), dtype))]
    operands += [g.input("w", Shape((n,), dtype))] if draw.coin() else []
    pad = draw.choice(("reflect", "zeros"))
    return ops.stft(*operands, n_fft=n, hop=hop, center=draw.coin(), pad=pad)


@rule(
    lambda z: ops.complex_norm_sq(z),
    sample=lambda draw: ops.complex_norm_sq(draw_stft(draw)),
)
def power_of_frames(z: Node, uses: Uses) -> Any:
    """The squared magnitude of a short-time transform is the power of its frames."""
    if z.op != "stft" or z.inputs[0].dtype not in (DType.F32, DType.F64):
        return None
    return no(SHARED) if uses(z) > 1 else ops.power_frames(*z.inputs, **z.attrs)


def _sample_parts(draw: Draw) -> Node:
    z = draw_stft(draw)
    parts = ops.view_as_real(z)
    cut = _sample_slice(draw, parts, z.rank - 2, z.rank - 1) if draw.coin() else parts
    return ops.sum(ops.square(cut), axes=(z.rank,))


@rule(
    lambda y, a: ops.sum(ops.square(y), axes=a),
    sample=_sample_parts,
    slack=2.0,
    domain="plain",
    why="a sum of two squares may be rounded once more",
)
def sum_of_squared_parts(y: Node, a: tuple[int, ...], node: Node) -> Any:
    """The sum of the squares of both parts is the squared magnitude."""
    parts = y.inputs[0] if _is_slice(y) else y
    if parts.op != "view_as_real" or a != (parts.rank - 1,) or node.attrs["keepdims"]:
        return None
    z = parts.inputs[0]
    return ops.complex_norm_sq(z if y is parts else _same_slice(y, z))


# -- some of the frames ---------------------------------------------------------------------------


def _is_slice(node: Node) -> bool:
    """Is it a part of its operand with the last axis whole?"""
    if node.op not in ("narrow", "slice"):
        return False
    is_whole = node.shape.dims[-1] == node.inputs[0].shape.dims[-1]
    return is_whole and (node.op == "narrow" or node.attrs["steps"][-1] == 1)


def _same_slice(cut: Node, x: Node) -> Node:
    """The same part of what differs in its last axis alone, which is whole, or has it not."""
    if cut.op == "narrow":
        return ops.narrow(x, **cut.attrs)
    kept = {k: cut.attrs[k][: cut.rank - 1] for k in ("starts", "stops", "steps")}
    whole = {"starts": (0,), "stops": (x.shape.dims[-1],), "steps": (1,)}
    return ops.slice(x, **{k: (*v, *whole[k])[: x.rank] for k, v in kept.items()})


def _sample_slice(draw: Draw, x: Node, *axes: int) -> Node:
    """A slice along an axis, as narrow or slice."""
    axis = draw.choice(axes)
    size, start = int(x.shape.dims[axis]), draw.integer(0, 1)
    if draw.coin():
        return ops.narrow(x, axis=axis, start=start, length=size - start)
    bounds = [(start, size) if i == axis else (0, int(d)) for i, d in enumerate(x.shape.dims)]
    steps = [draw.integer(1, 2) if i == axis else 1 for i in range(x.rank)]
    return ops.slice(x, starts=[a for a, _ in bounds], stops=[b for _, b in bounds], steps=steps)


@rule(
    lambda y: ops.complex_norm_sq(y),
    sample=lambda draw: ops.complex_norm_sq(_sample_slice(draw, z := draw_stft(draw), z.rank - 2)),
)
def power_of_sliced_stft(y: Node, uses: Uses) -> Any:
    """The power of some of the frames is some of the power of all, where all are transformed."""
    if not _is_slice(y) or y.inputs[0].op != "stft":
        return None
    if uses(y) > 1 or uses(y.inputs[0]) > 1:
        return no(SHARED)
    return _same_slice(y, ops.complex_norm_sq(y.inputs[0]))


def _sample_some_bands(draw: Draw) -> Node:
    power = _power(draw)
    p = _sample_slice(draw, power, power.rank - 2)
    dims = (p.shape.dims[-1], draw.size(1))
    return ops.matmul(p, p.graph.input("f", Shape(dims, p.dtype)))


@rule(
    lambda y, f: ops.matmul(y, f),
    sample=_sample_some_bands,
    slack=4.0,
    domain="plain",
    why="products of other sizes may be summed in another order",
)
def mel_of_sliced_frames(y: Node, f: Node, uses: Uses) -> Any:
    """Bands of nearly all frames are nearly all bands: what is left out is less than what writing
    the power of all frames would take."""
    if not _is_slice(y) or y.inputs[0].op != "power_frames" or f.rank != 2:
        return None
    kept, whole = y.shape.num_elements, y.inputs[0].shape.num_elements
    if not provably_le(whole * 7, kept * 8):
        return no("it would multiply frames that are left out")
    if uses(y) > 1 or uses(y.inputs[0]) > 1:
        return no(SHARED)
    return _same_slice(y, ops.matmul(y.inputs[0], f))


# -- sums of power --------------------------------------------------------------------------------


def _power(draw: Draw) -> Node:
    z = draw_stft(draw)
    return ops.power_frames(*z.inputs, **z.attrs)


@rule(
    lambda p, a: ops.mean(p, axes=a),
    sample=lambda draw: ops.mean(p := _power(draw), axes=(p.rank - 2,), keepdims=draw.coin()),
)
def mean_over_frames(p: Node, a: tuple[int, ...], node: Node, uses: Uses) -> Any:
    """The mean over frames of their power is the signal's mean power."""
    if p.op != "power_frames" or a != (p.rank - 2,):
        return None
    if uses(p) > 1:
        return no(SHARED)
    made = ops.mean_power(*p.inputs, **p.attrs)
    return made if made.shape == node.shape else ops.expand_dims(made, axes=a)


def _sample_bands(draw: Draw) -> Node:
    p = _power(draw)
    dims = (p.shape.dims[-1], draw.size(1))
    return ops.matmul(p, p.graph.input("f", Shape(dims, p.dtype)))


@rule(lambda p, f: ops.matmul(p, f), sample=_sample_bands)
def mel_of_power_frames(p: Node, f: Node, uses: Uses) -> Any:
    """The product of the power of frames with filters is their power in bands."""
    if p.op != "power_frames" or f.rank != 2:
        return None
    if uses(p) > 1:
        return no(SHARED)
    return ops.mel_frames(p.inputs[0], f, *p.inputs[1:], **p.attrs)


# -- split-complex spectra ------------------------------------------------------------------------


def transformed(frames: Node) -> Node:
    """The FFT of real frames in split-complex layout: real half, then imaginary half."""
    none = (0,) * (frames.rank - 1)
    n = frames.shape.dims[-1]
    return ops.fft(ops.pad(frames, low=(*none, 0), high=(*none, n), value=0.0))


def _sample_log_mel(draw: Draw) -> Node:
    frames = draw_framed(draw)
    dims = (draw.size(1), int(frames.shape.dims[-1]) // 2 + 1)
    filters = ops.abs(frames.graph.input("f", Shape(dims, frames.dtype)))
    return ops.log_mel(transformed(frames), filters)


@rule(
    lambda y, f: ops.log_mel(ops.fft(y), f),
    sample=_sample_log_mel,
    slack=16.0,
    domain="plain",
    why=ROUNDINGS,
)
def log_mel_of_frames(y: Node, f: Node, node: Node) -> Any:
    """Log-mel frames are logarithms of the power of a signal's frames in bands."""
    real = real_of_split_complex(y)
    found = None if real is None else framed(real)
    if found is None or not is_plain(node.inputs[0]):
        return None
    return log_bands(found.given(ops.mel_frames, ops.transpose(f, perm=(1, 0))))
