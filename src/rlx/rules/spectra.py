"""Recognition of STFT, power spectra and mel filterbanks, from the inside out: each fused step
saves an array of frames or spectra.

Only for targets with dedicated kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike, provably_le
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.ops.signal.fft import log_bands
from rlx.rules.engine import Uses, no, rule
from rlx.rules.match import scalar_of
from rlx.rules.one_sided import is_power

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
    if node.dtype not in (DType.F32, DType.F64) or not node.rank:
        return None
    x, window = unwindowed(node)
    if x.op != "frame":
        return None
    return Framed(x.inputs[0], window, x.attrs["length"], x.attrs["hop"])


def rows_of(node: Node, n: int) -> Framed:
    """Rows of n points as frames: of the signal they are cut from, or each of itself."""
    row, window = unwindowed(node)
    x, of_frames = row, window
    while _is_regrouped(x):
        x, more = unwindowed(x.inputs[0])
        of_frames = _product(of_frames, more)
    if x.op == "frame":
        return Framed(x.inputs[0], of_frames, n, x.attrs["hop"])
    return Framed(row, window, n, n)


def _is_regrouped(x: Node) -> bool:
    return x.op == "reshape" and x.inputs[0].shape.dims[-1:] == x.shape.dims[-1:]


def unwindowed(x: Node) -> tuple[Node, Node | None]:
    """Rows without the windows and numbers that they are multiplied with, and those as one."""
    window: Node | None = None
    while x.op in ("mul", "div"):
        found = _last_window(x)
        if found is None:
            break
        x, window = found[0], _product(window, found[1])
    return x, window


def _product(a: Node | None, b: Node | None) -> Node | None:
    if a is None or b is None:
        return b if a is None else a
    return ops.mul(a, b)


def _last_window(x: Node) -> tuple[Node, Node] | None:
    is_second = x.inputs[1].op in ("frame", "mul", "div", "reshape")
    orders = ((1, 0), (0, 1)) if is_second else ((0, 1), (1, 0))
    for i, other in orders if x.op == "mul" else ((0, 1),):
        row, window = x.inputs[i], _window(x.inputs[other], x.shape.dims[-1])
        if window is not None and row.shape == x.shape and scalar_of(row) is None:
            return row, ops.reciprocal(window) if x.op == "div" else window
    return None


def _window(x: Node, n: DimLike) -> Node | None:
    """A window of n points for every row, or one number for every point."""
    dims = x.shape.dims
    if any(d != 1 for d in dims[:-1]) or (dims and dims[-1] not in (n, 1)):
        return None
    row = x if x.rank == 1 else ops.reshape(x, dims=dims[-1:] or (1,))
    return row if row.shape.dims == (n,) else ops.expand(row, dims=(n,))


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
    window = g.input("w", Shape(draw.choice(((n,), (1, n))) if x.rank > 1 else (n,), dtype))
    x = ops.mul(x, window) if draw.coin() else ops.mul(window, x)
    return ops.div(x, 2.0) if draw.coin(0.2) else x


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
    is_shared = f.rank >= 2 and all(d == 1 for d in f.shape.dims[:-2]) and f.rank <= p.rank
    if p.op != "power_frames" or not is_shared:
        return None
    if uses(p) > 1:
        return no(SHARED)
    filters = f if f.rank == 2 else ops.reshape(f, dims=f.shape.dims[-2:])
    return ops.mel_frames(p.inputs[0], filters, *p.inputs[1:], **p.attrs)


def _sample_moved_bands(draw: Draw) -> Node:
    p = _power(draw)
    swapped = (*range(p.rank - 2), p.rank - 1, p.rank - 2)
    bins, bands = int(p.shape.dims[-1]), draw.size(1)
    f = p.graph.input("f", Shape((bins, bands), p.dtype))
    flat = ops.reshape(p, dims=(int(np.prod(p.shape.static_dims[:-1])), bins))
    forms = (
        lambda: ops.matmul(flat, f),
        lambda: ops.matmul(ops.mul(p, 0.5), f),
        lambda: ops.matmul(
            ops.reshape(p, dims=(1, *p.shape.dims)), ops.reshape(f, dims=(1, *f.shape.dims))
        ),
        lambda: ops.matmul(ops.transpose(f, perm=(1, 0)), ops.transpose(p, perm=swapped)),
    )
    return draw.choice(forms)()


@rule(
    lambda y, f: ops.matmul(y, f),
    sample=_sample_moved_bands,
    domain="plain",
    slack=8.0,
    why="products of other sizes may be summed in another order",
)
def bands_of_moved_power(y: Node, f: Node, node: Node, uses: Uses) -> Any:
    """Bands of regrouped or scaled power are those of the power; (F·Pᵀ) = (P·Fᵀ)ᵀ."""
    moved, filters = (y, f) if is_power(y) else (f, y)
    if not moved.inputs or not is_power(moved) or uses(moved) > 1:
        return None
    if moved is y and 2 < f.rank <= y.rank and all(d == 1 for d in f.shape.dims[:-2]):
        return ops.matmul(y, ops.reshape(f, dims=f.shape.dims[-2:]))
    if filters.rank != 2:
        return None
    power = moved.inputs[0]
    if moved is f:
        swapped = (*range(f.rank - 2), f.rank - 1, f.rank - 2)
        if f.op != "transpose" or f.attrs["perm"] != swapped:
            return None
        return ops.transpose(ops.matmul(power, ops.transpose(y, perm=(1, 0))), perm=swapped)
    if y.op == "mul" and scalar_of(y.inputs[1]) is not None and power.shape == y.shape:
        return ops.mul(ops.matmul(power, f), y.inputs[1])
    if not _is_regrouped(y) or power.rank < 2:
        return None
    return ops.reshape(ops.matmul(power, f), dims=node.shape.dims)


# -- split-complex spectra ------------------------------------------------------------------------


def transformed(frames: Node) -> Node:
    """The FFT of real frames in split-complex layout: real half, then imaginary half."""
    none = (0,) * (frames.rank - 1)
    n = frames.shape.dims[-1]
    return ops.fft(ops.pad(frames, low=(*none, 0), high=(*none, n), value=0.0))


def _sample_log_mel(draw: Draw) -> Node:
    frames = draw_framed(draw)
    if draw.coin(0.3):  # rows that are no frames of a signal
        frames = Graph("sample").input("x", frames.shape)
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
def log_mel_of_frames(y: Node, f: Node, node: Node, uses: Uses) -> Any:
    """Log-mel frames are logarithms of the power of a signal's frames in bands."""
    rows = real_of_split_complex(y)
    if rows is None or rows.dtype not in (DType.F32, DType.F64) or not is_plain(node.inputs[0]):
        return None
    n = rows.shape.dims[-1]
    if not isinstance(n, int) or uses(node.inputs[0]) > 1:
        return None
    mel = rows_of(rows, n).given(ops.mel_frames, ops.transpose(f, perm=(1, 0)))
    return log_bands(ops.reshape(mel, dims=node.shape.dims))
