"""Recognition of Welch's method: power spectra of frames, their mean over segments, one-sided
scaling, and peaks.

Spectra of real signals appear as real FFTs, or as FFTs in split-complex layout (real half, then
imaginary half) of which sums of squares are the power. All of it is one kernel that stores no
spectrum. Rows that are not finite have results that are not finite.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.ops.signal.fft import NORMS, sides_of, strongest
from rlx.rules.engine import Uses, no, rule
from rlx.rules.power import real_behind
from rlx.rules.spectra import (
    ROUNDINGS,
    SHARED,
    Framed,
    draw_framed,
    framed,
    is_plain,
    real_of_split_complex,
    rows_of,
    transformed,
    unwindowed,
)

_SQUARES = "squares are added, and numbers transformed, in another order"

# -- spectra of real numbers ----------------------------------------------------------------------


def _real_of(z: Node) -> Node | None:
    """The rows of a known length whose spectra `z` holds."""
    x = z.inputs[0] if z.op == "rfft" and z.attrs["n"] is None else None
    return x if x is not None and x.dtype in (DType.F32, DType.F64) else None


def _power_of(x: Node, node: Node) -> Node | None:
    """The power of rows of a known length: each is a frame of itself, or of the signal it is cut
    from."""
    n = x.shape.dims[-1]
    if not isinstance(n, int) or n < 1 or node.dtype is not x.dtype or not x.rank:
        return None
    power = rows_of(x, n).given(ops.power_frames)
    return ops.reshape(power, dims=node.shape.dims)


def _draw_rows(draw: Draw) -> Node:
    """Plain rows, windowed rows, or frames of a signal."""
    if draw.coin(0.4):
        frames = draw_framed(draw)
        dims = frames.shape.dims
        flat = (int(np.prod(dims[:-1], dtype=int)), dims[-1])
        return ops.reshape(frames, dims=flat) if draw.coin() else frames
    g, dtype = Graph("sample"), draw.choice((DType.F32, DType.F64))
    n = draw.integer(1, 9)
    x = g.input("x", Shape((*draw.dims(0, 2, 1), n), dtype))
    return ops.mul(x, g.input("w", Shape((n,), dtype))) if draw.coin() else x


# -- power ----------------------------------------------------------------------------------------


def _sample_power(draw: Draw) -> Node:
    return ops.complex_norm_sq(ops.rfft(_draw_rows(draw), norm=draw.choice(NORMS)))


@rule(
    lambda z: ops.complex_norm_sq(z),
    sample=_sample_power,
    slack=64.0,
    domain="plain",
    why=_SQUARES,
)
def power_of_spectrum(z: Node, node: Node, uses: Uses) -> Any:
    """The squared magnitude of the spectrum of real rows is the power of frames."""
    x = _real_of(z)
    if x is None:
        return None
    if uses(z) > 1:
        return no(SHARED)
    power = _power_of(x, node)
    norm = z.attrs["norm"]
    if power is None or norm == "backward":
        return power
    n = int(x.shape.dims[-1])
    return ops.mul(power, 1.0 / n if norm == "ortho" else 1.0 / (n * n))


def _sample_blocks(draw: Draw) -> Node:
    x = _draw_rows(draw)
    n = int(x.shape.dims[-1])
    spectrum = _draw_transformed(draw, x)
    parts = [ops.narrow(spectrum, axis=-1, start=s, length=n // 2 + 1) for s in (0, n)]
    return ops.add(*(ops.square(p) for p in parts))


def _draw_transformed(draw: Draw, x: Node) -> Node:
    """The FFT of rows in split-complex layout, with zeros in any form."""
    kind = draw.integer(0, 3)
    if kind == 0:
        return transformed(x)
    zeros = (
        x.graph.constant(np.zeros(x.shape.dims, x.dtype.numpy)) if kind == 1
        else ops.sub(x, x) if kind == 2
        else ops.mul(x, 0.0)
    )  # fmt: skip
    return ops.fft(ops.concat([x, zeros], axis=-1))


@rule(
    lambda a, b: ops.add(ops.square(a), ops.square(b)),
    sample=_sample_blocks,
    slack=64.0,
    domain="plain",
    why=_SQUARES,
)
def power_of_split_complex(a: Node, b: Node, node: Node, uses: Uses) -> Any:
    """re² + im² of a split-complex spectrum of real rows is the power of frames."""
    if a.op != "narrow" or b.op != "narrow" or a.inputs[0] is not b.inputs[0]:
        return None
    spectrum = a.inputs[0]
    if spectrum.op != "fft" or spectrum.dtype.is_complex or not is_plain(spectrum):
        return None
    x = real_of_split_complex(spectrum.inputs[0])
    if x is None or x.dtype not in (DType.F32, DType.F64):
        return None
    n = x.shape.dims[-1]
    last = spectrum.rank - 1
    cuts = [(c.attrs["axis"], c.attrs["start"], c.attrs["length"]) for c in (a, b)]
    if cuts != [(last, 0, n // 2 + 1), (last, n, n // 2 + 1)]:
        return None
    return no(SHARED) if uses(spectrum) > 2 else _power_of(x, node)


# -- split complex ---------------------------------------------------------------------------------


def _sample_joined(draw: Draw) -> Node:
    x = _draw_rows(draw)
    y = ops.neg(x) if draw.coin() else x.graph.constant(np.zeros(x.shape.dims, x.dtype.numpy))
    z = ops.fft(ops.make_complex(x, y) if draw.coin() else ops.cast(x, to=x.dtype.complex))
    return ops.concat([ops.real(z), ops.imag(z)], axis=-1)


@rule(
    lambda: ops.concat,
    sample=_sample_joined,
    slack=16.0,
    domain="plain",
    why="transforms of blocks may be summed in another order",
)
def fft_in_split_complex(node: Node, uses: Uses) -> Any:
    """Real and imaginary parts of an FFT, concatenated, are the FFT in split-complex layout."""
    if len(node.inputs) != 2 or node.attrs["axis"] != node.rank - 1:
        return None
    real, imaginary = node.inputs
    if (real.op, imaginary.op) != ("real", "imag") or real.inputs != imaginary.inputs:
        return None
    z = real.inputs[0]
    if z.op != "fft" or uses(z) > 2:
        return None
    given = z.inputs[0]
    if given.op == "make_complex":
        return ops.fft(ops.concat(given.inputs, axis=-1), **z.attrs)
    x = real_behind(given)
    if x is None or x.dtype.complex is not given.dtype or not is_plain(z):
        return None
    return transformed(x)


# -- means and peaks ------------------------------------------------------------------------------


def _sample_mean(draw: Draw) -> Node:
    batch, count, n = draw.size(1), draw.integer(1, 4), draw.integer(1, 9)
    g, dtype = Graph("sample"), draw.choice((DType.F32, DType.F64))
    x = g.input("x", Shape((batch * count, n), dtype))
    power = ops.power_frames(x, n_fft=n, hop=n)
    segments = ops.reshape(power, dims=(batch, count, n // 2 + 1))
    return ops.mean(segments, axes=(1,), keepdims=draw.coin())


@rule(
    lambda p, a: ops.mean(ops.reshape(p), axes=a),
    sample=_sample_mean,
    slack=16.0,
    domain="plain",
    why="sums differ in order",
)
def mean_power_of_segments(p: Node, a: tuple[int, ...], node: Node, uses: Uses) -> Any:
    """The mean power of groups of rows is the mean power of the signal of those segments."""
    rows = node.inputs[0]
    if p.op != "power_frames" or p.shape.dims[-2:-1] != (1,):
        return None
    x, n = p.inputs[0], p.attrs["n_fft"]
    is_whole = x.shape.dims[-1] == n == p.attrs["hop"] and not p.attrs["center"]
    if not is_whole or rows.rank < 2 or a != (rows.rank - 2,) or rows.shape.dims[-1] != n // 2 + 1:
        return None
    if uses(p) > 1 or uses(rows) > 1:
        return no(SHARED)
    *outer, count, _ = rows.shape.dims
    signal = ops.reshape(x, dims=(*outer, count * n))
    mean = ops.mean_power(signal, *p.inputs[1:], **p.attrs)
    return mean if mean.shape == node.shape else ops.reshape(mean, dims=node.shape.dims)


def _sample_sides(draw: Draw) -> Node:
    frames = draw_framed(draw)
    found = framed(frames)
    assert found is not None
    mean = found.given(ops.mean_power)
    sides = sides_of(found.n, mean.dtype.numpy) * mean.dtype.numpy.type(draw.choice((0.3, 1.0)))
    sides = mean.graph.constant(sides)
    return ops.mul(mean, sides) if draw.coin() else ops.mul(sides, mean)


@rule(lambda p, s: ops.mul(p, s), lambda p, s: ops.mul(s, p), sample=_sample_sides,
      slack=2.0, domain="plain", why="doubling is exact, unless it is rounded before")  # fmt: skip
def fold_one_sided_scale(p: Node, s: Node, uses: Uses) -> Any:
    """Mean power times how often each bin occurs is one-sided."""
    if p.op != "mean_power" or p.attrs["one_sided"] or s.op != "constant":
        return None
    sides = sides_of(p.attrs["n_fft"], p.dtype.numpy)
    factors = s.attrs["value"].array
    is_vector = factors.shape[-1:] == (factors.size,) == sides.shape
    each = factors.reshape(-1) / sides if is_vector else None
    if each is None or not each[0] or not (each == each[0]).all():
        return None
    if uses(p) > 1:
        return no(SHARED)
    mean = p.graph.node(p.decl, p.inputs, {**p.attrs, "one_sided": True})
    return mean if each[0] == 1 else ops.mul(mean, each[0])


def _sample_peaks(draw: Draw) -> Node:
    if draw.coin():
        frames = draw_framed(draw, 2)
        batch, count, n = frames.shape.dims
        rows = ops.reshape(frames, dims=(batch * count, n))
    else:
        count, n = draw.integer(1, 3), draw.integer(1, 9)
        dtype = draw.choice((DType.F32, DType.F64))
        rows = Graph("sample").input("x", Shape((count * draw.size(1), n), dtype))
        rows = ops.mul(rows, rows.graph.input("w", Shape((n,), dtype))) if draw.coin() else rows
    spectrum = _draw_transformed(draw, rows)
    return ops.welch_peaks(spectrum, k=draw.integer(1, 4), n_segments=int(count))


@rule(
    lambda y: ops.welch_peaks(ops.fft(y)),
    sample=_sample_peaks,
    slack=16.0,
    domain="plain",
    why=ROUNDINGS,
)
def welch_peaks_from_frames(y: Node, node: Node, uses: Uses) -> Any:
    """The peaks of a Welch estimate are the strongest bins of one-sided mean power."""
    spectrum, rows = node.inputs[0], real_of_split_complex(y)
    if rows is None or not is_plain(spectrum) or rows.dtype not in (DType.F32, DType.F64):
        return None
    found = _segments(rows, node.attrs["n_segments"])
    if found is None:
        return None
    if uses(spectrum) > 1:
        return no(SHARED)
    return strongest(found.given(ops.mean_power, one_sided=True), found.n, node.attrs["k"])


def _segments(rows: Node, count: int) -> Framed | None:
    """The signals whose segments are `count` rows each: the framed signal, or rows concatenated."""
    total, n = rows.shape.dims
    frames = rows.inputs[0] if rows.op == "reshape" else rows
    found = framed(frames)
    if found is not None and frames.rank == 3 and frames.shape.dims[1] == count:
        return found if found.n == n else None
    if not isinstance(n, int):
        return None
    row, window = unwindowed(rows)
    signal = ops.reshape(row, dims=(total // count, count * n))
    return Framed(signal, window, n, n)
