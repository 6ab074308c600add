"""Recognition of Welch's method: power spectra of frames, their mean over segments, one-sided
scaling, and peaks.

Spectra of real signals appear as complex FFTs, as FFTs in split-complex layout (real half, then
imaginary half), or as their first half; power as a squared magnitude or a sum of squares. All of it
is one kernel that stores no spectrum. Rows that are not finite have results that are not finite.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.ops.signal.fft import sides_of, strongest
from rlx.rules.engine import Uses, no, rule
from rlx.rules.spectra import (
    ROUNDINGS,
    SHARED,
    Framed,
    draw_framed,
    framed,
    is_plain,
    real_of_split_complex,
    transformed,
)

_SQUARES = "squares are added, and numbers transformed, in another order"

# -- spectra of real numbers ----------------------------------------------------------------------


def _real_of_complex(node: Node) -> Node | None:
    """The real numbers that complex ones are, with zeros for imaginary parts."""
    if node.op == "cast" and node.dtype.is_complex and node.inputs[0].dtype.is_float:
        return node.inputs[0]
    if node.op == "make_complex":
        real, imaginary = node.inputs
        return real if not _nonzero(imaginary) else None
    return None


def _nonzero(node: Node) -> bool:
    while node.op in ("expand", "reshape"):
        node = node.inputs[0]
    return node.op != "constant" or bool(np.any(node.attrs["value"].array))


def _real_of(z: Node, uses: Uses) -> Node | None:
    """The rows whose first n // 2 + 1 bins `z` holds, where nobody else needs the transform."""
    found = None
    if z.op == "rfft" and z.attrs["n"] is None:
        found = z.inputs[0] if is_plain(z) else None
    elif z.op == "narrow" and z.inputs[0].op == "fft" and z.attrs["axis"] == z.rank - 1:
        whole = z.inputs[0]
        n = whole.shape.dims[-1]
        is_half = z.attrs["start"] == 0 and z.shape.dims[-1] == n // 2 + 1
        if whole.dtype.is_complex and is_plain(whole) and is_half and uses(whole) == 1:
            found = _real_of_complex(whole.inputs[0])
    return found if found is not None and found.dtype in (DType.F32, DType.F64) else None


def _power_of(x: Node, node: Node) -> Node | None:
    """The power of rows of a known length: each is a frame of itself, or of the signal it is cut
    from."""
    n = x.shape.dims[-1]
    if not isinstance(n, int) or n < 1 or node.dtype is not x.dtype or not x.rank:
        return None
    base = x.inputs[0] if x.op == "reshape" and x.inputs[0].shape.dims[-1:] == (n,) else x
    found = framed(base) or _windowed(x, n)
    power = found.given(ops.power_frames)
    return ops.reshape(power, dims=node.shape.dims)


def _windowed(x: Node, n: int) -> Framed:
    """Rows as one frame each, without the window that they were multiplied with."""
    for a, b in ((0, 1), (1, 0)) if x.op == "mul" else ():
        row, window = x.inputs[a], x.inputs[b]
        if window.shape.dims == (n,) and row.shape == x.shape:
            return Framed(row, window, n, n)
    return Framed(x, None, n, n)


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


def _draw_half(draw: Draw) -> Node:
    """The one-sided spectrum of rows, as rfft or half of a complex FFT."""
    x = _draw_rows(draw)
    if draw.coin():
        return ops.rfft(x)
    if draw.coin():
        z = ops.cast(x, to=x.dtype.complex)
    else:
        z = ops.make_complex(x, x.graph.constant(np.zeros(x.shape.dims, x.dtype.numpy)))
    return ops.narrow(ops.fft(z), axis=-1, start=0, length=int(x.shape.dims[-1]) // 2 + 1)


# -- power ----------------------------------------------------------------------------------------


def _sample_power(draw: Draw) -> Node:
    z = _draw_half(draw)
    forms = (
        lambda: ops.complex_norm_sq(z),
        lambda: ops.square(ops.abs(z)),
        lambda: ops.add(ops.square(ops.real(z)), ops.square(ops.imag(z))),
    )
    return draw.choice(forms)()


@rule(
    lambda z: ops.complex_norm_sq(z),
    lambda z: ops.square(ops.abs(z)),
    lambda z: ops.add(ops.square(ops.real(z)), ops.square(ops.imag(z))),
    sample=_sample_power,
    slack=64.0,
    domain="plain",
    why=_SQUARES,
)
def power_of_spectrum(z: Node, node: Node, uses: Uses) -> Any:
    """|z|² = re² + im² of the spectrum of real rows is the power of frames."""
    x = _real_of(z, uses)
    if x is None:
        return None
    readers = 2 if node.op == "add" else 1
    return no(SHARED) if uses(z) > readers else _power_of(x, node)


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
    x = _real_of_complex(given)
    if x is None or x.dtype.complex is not given.dtype or not is_plain(z):
        return None
    return transformed(x)


# -- means and peaks ------------------------------------------------------------------------------


def _sample_mean(draw: Draw) -> Node:
    batch, count, n = draw.size(1), draw.integer(1, 4), draw.integer(1, 9)
    g, dtype = Graph("sample"), draw.choice((DType.F32, DType.F64))
    x = g.input("x", Shape((batch * count, n), dtype))
    power = ops.power_frames(x, n_fft=n, hop=n)
    return ops.mean(ops.reshape(power, dims=(batch, count, n // 2 + 1)), axes=(1,))


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
    if p.op != "power_frames" or p.shape.dims[-2:-1] != (1,) or node.attrs["keepdims"]:
        return None
    x, n = p.inputs[0], p.attrs["n_fft"]
    is_whole = x.shape.dims[-1] == n == p.attrs["hop"] and not p.attrs["center"]
    if not is_whole or rows.rank < 2 or a != (rows.rank - 2,) or rows.shape.dims[-1] != n // 2 + 1:
        return None
    if uses(p) > 1 or uses(rows) > 1:
        return no(SHARED)
    *outer, count, _ = rows.shape.dims
    signal = ops.reshape(x, dims=(*outer, count * n))
    return ops.mean_power(signal, *p.inputs[1:], **p.attrs)


def _sample_sides(draw: Draw) -> Node:
    frames = draw_framed(draw)
    found = framed(frames)
    assert found is not None
    mean = found.given(ops.mean_power)
    sides = mean.graph.constant(sides_of(found.n, mean.dtype.numpy))
    return ops.mul(mean, sides) if draw.coin() else ops.mul(sides, mean)


@rule(lambda p, s: ops.mul(p, s), lambda p, s: ops.mul(s, p), sample=_sample_sides,
      slack=2.0, domain="plain", why="doubling is exact, unless it is rounded before")  # fmt: skip
def fold_one_sided_scale(p: Node, s: Node, uses: Uses) -> Any:
    """Mean power times how often each bin occurs is one-sided."""
    if p.op != "mean_power" or p.attrs["one_sided"] or s.op != "constant":
        return None
    wanted = sides_of(p.attrs["n_fft"], p.dtype.numpy)
    given = s.attrs["value"].array
    if given.shape[-1:] != wanted.shape or not np.array_equal(given.reshape(-1), wanted):
        return None
    if uses(p) > 1:
        return no(SHARED)
    return p.graph.node(p.decl, p.inputs, {**p.attrs, "one_sided": True})


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
    plain = _windowed(rows, n)
    signal = ops.reshape(plain.x, dims=(total // count, count * n))
    return Framed(signal, plain.window, n, n)
