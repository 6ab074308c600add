"""Framing, overlap-add, power spectral density and convolution along the last axis.

Scaling is SciPy's; nothing is detrended. Spectra are computed in f64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rlx import ops
from rlx.core.dim import Dim, DimLike, dim_max, dim_min, lower_bound, product, provably_le
from rlx.core.errors import GraphError
from rlx.core.shape import Shape, broadcast
from rlx.ops.compose import composed, dims_of, dtype_of, nullary, shape_of
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array, Kind, op
from rlx.ops.signal.fft import resized

Mode = Literal["full", "same", "valid"]
MODES = ("full", "same", "valid")
Scaling = Literal["density", "spectrum"]
COVERED = 1e-10
"""Where less of the squared window than this covers a point, no frame tells its value."""

# -- frames ---------------------------------------------------------------------------------------


MAX_ADDED_FRAMES = 16
"""Frames that overlap are added one by one up to this many; more are scattered."""


def _check_frames(length: int, hop: int) -> None:
    if length < 1 or hop < 1:
        raise GraphError(f"frames of length={length} every hop={hop} points: both must be > 0")


def _frame_shape(x: Shape, *, length: int, hop: int) -> Shape:
    _check_frames(length, hop)
    room = x.dims[-1] - length
    if not isinstance(room, Dim) and room < 0:
        raise GraphError(f"operand 0 is {x}: a frame of {length} points is longer. Pad it first")
    return x.with_dims([*x.dims[:-1], dim_max(room // hop + 1, 0), length])


@op("a[*b t] -> a[*b ...]", kind=Kind.MOVEMENT, shape=_frame_shape)
def frame(x: Array, *, length: int, hop: int) -> Array:
    """Every `hop` points a frame of `length` points, as long as it fits: [..., frames, length]."""
    return sliding_window_view(x, length, -1)[..., ::hop, :]


@frame.lowering
def _(x: Any, *, length: int, hop: int) -> Any:
    frames = _frame_shape(shape_of(x), length=length, hop=hop).dims[-2]
    return ops.gather(x, positions(x, frames, length, hop), axis=-1)


def positions(x: Any, frames: DimLike, length: DimLike, hop: int = 1, start: DimLike = 0) -> Any:
    """[frames, length]: the index of each sample of each frame, the first of all at `start`."""
    first, along = (nullary(x, "iota", dims=(frames, length), axis=a) for a in (0, 1))
    return ops.add(ops.mul(first, hop), ops.add(along, nullary(x, "extent", dim=start)))


def _added_shape(x: Shape, *, hop: int) -> Shape:
    frames, length = x.dims[-2:]
    _check_frames(1, hop)
    return x.with_dims([*x.dims[:-2], dim_max(frames - 1, 0) * hop + length])


@op("t[*b m n] -> t[*b ...]", kind=Kind.SPECIAL, shape=_added_shape, flops="size0", draw="plain")
def overlap_add(x: Array, *, hop: int) -> Array:
    """Frames, one every `hop` points, added up where they overlap: the counterpart of frame."""
    frames, length = x.shape[-2:]
    made = np.zeros((*x.shape[:-2], max(frames - 1, 0) * hop + length), x.dtype)
    for i in range(frames):
        made[..., i * hop : i * hop + length] += x[..., i, :]
    return made


@overlap_add.lowering
def _(x: Any, *, hop: int) -> Any:
    shape, (frames, length) = _added_shape(shape_of(x), hop=hop), dims_of(x)[-2:]
    parts = None if isinstance(length, Dim) else -(-length // hop)
    if parts is not None and 0 < parts <= MAX_ADDED_FRAMES and lower_bound(frames) > 0:
        return _added_parts(x, hop, parts, shape)
    nothing = ops.expand(nullary(x, "extent", dim=0, dtype=dtype_of(x)), dims=shape.dims)
    where = positions(x, frames, length, hop)
    return ops.scatter_add(nothing, where, x, axis=-1)


def _added_parts(x: Any, hop: int, parts: int, shape: Shape) -> Any:
    """Frames cut into parts of `hop` points: a part of the result is the first of one frame, plus
    the second of the frame before, and on; the sum begins with the frame that begins first."""
    *lead, frames, length = dims_of(x)
    rest = (0,) * len(lead)
    whole = ops.pad(x, low=(*rest, 0, 0), high=(*rest, 0, parts * hop - length))
    axis = len(lead) + 1
    total: Any = None
    for part in reversed(range(parts)):
        own = ops.narrow(whole, axis=axis, start=part * hop, length=hop)
        moved = ops.pad(own, low=(*rest, part, 0), high=(*rest, parts - 1 - part, 0))
        total = moved if total is None else ops.add(total, moved)
    line = ops.reshape(total, dims=(*lead, (frames + parts - 1) * hop))
    return ops.narrow(line, axis=len(lead), start=0, length=shape.dims[-1])


def _draw_frames(draw: Draw) -> tuple[int, int]:
    return draw.integer(1, 6), draw.integer(1, 8)


@frame.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    length, hop = _draw_frames(draw)
    dims = (*draw.dims(0, 3), length + draw.integer(0, 9))
    return [Spec(dims, draw.dtype("a"))], {"length": length, "hop": hop}


@overlap_add.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims = (*draw.dims(0, 2), draw.size(), draw.size())
    return [Spec(dims, draw.dtype("t"), "plain")], {"hop": draw.integer(1, 5)}


# -- power spectra --------------------------------------------------------------------------------


def _psd_shape(x: Shape, *_: Shape, fs: float, scaling: str) -> Shape:
    n = x.dims[-1]
    if n == 0 or fs <= 0.0:
        raise GraphError(f"operand 0 is {x} at {fs} Hz: it needs a point and a rate above 0")
    return x.with_dims([*x.dims[:-1], n // 2 + 1])


@op("f[*b n], f[n]? -> f[*b ...]", kind=Kind.SPECIAL, shape=_psd_shape, flops="40*size0",
    has_fft=True, draw="plain")  # fmt: skip
def psd(
    x: Array, window: Array | None = None, *, fs: float = 1.0, scaling: Scaling = "density"
) -> Array:
    """The one-sided power spectrum of real numbers sampled at `fs`: |rfft(x · window)|², twice
    for bins with a mirror image, over fs · Σ window² (`density`, power per hertz) or over
    (Σ window)² (`spectrum`, power). Without a window, of ones."""
    n = x.shape[-1]
    w = np.ones(n) if window is None else window.astype(np.float64)
    bins = np.arange(n // 2 + 1)
    sides = np.where((bins == 0) | (2 * bins == n), 1.0, 2.0)
    whole = fs * np.sum(w * w) if scaling == "density" else np.sum(w) ** 2
    return np.abs(np.fft.rfft(x * w)) ** 2 * (sides / whole)


@psd.lowering
def _(x: Any, window: Any = None, *, fs: float, scaling: Scaling) -> Any:
    """A row of a known length is one frame of itself."""
    *lead, n = dims_of(x)
    if isinstance(n, Dim):
        power = ops.complex_norm_sq(ops.rfft(x if window is None else ops.mul(x, window)))
    else:
        given = [x] if window is None else [x, window]
        framed = ops.power_frames(*given, n_fft=n, hop=n)
        power = ops.reshape(framed, dims=(*lead, n // 2 + 1))
    return _one_sided(power, window, n, fs, scaling)


def _one_sided(power: Any, window: Any, n: DimLike, fs: float, scaling: Scaling) -> Any:
    """The power of n points' bins, twice for those with a mirror image, over that of the window."""
    line = nullary(power, "iota", dims=(n // 2 + 1,), axis=0)
    size = nullary(power, "extent", dim=n)
    single = ops.logical_or(ops.equal(line, 0), ops.equal(ops.mul(line, 2), size))
    if window is None:
        total = square = ops.cast(size, to=dtype_of(power))
    else:
        total, square = ops.sum(window), ops.sum(ops.mul(window, window))
    whole = ops.mul(square, fs) if scaling == "density" else ops.mul(total, total)
    doubled = ops.where(single, power, ops.mul(power, 2.0))
    return ops.div(doubled, whole)


def _draw_power(draw: Draw) -> dict[str, Any]:
    return {"fs": draw.choice((1.0, 16.0)), "scaling": draw.choice(("density", "spectrum"))}


@psd.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    n, dtype = draw.size(1), draw.dtype("f")
    window = [Spec((n,), dtype, "positive")] if draw.coin() else []
    return [Spec((*draw.dims(0, 3), n), dtype, "plain"), *window], _draw_power(draw)


@composed("f[*b t], f[length]? -> f[*b ...]", kind=Kind.SPECIAL, has_fft=True, draw="plain")
def welch(
    x: Any,
    window: Any = None,
    *,
    length: int,
    hop: int,
    fs: float = 1.0,
    scaling: Scaling = "density",
) -> Any:
    """Welch's estimate of the power spectrum: the mean of `psd` over frames of `length` points,
    one every `hop`."""
    if fs <= 0.0:
        raise GraphError(f"operand 0 is sampled at {fs} Hz: it needs a rate above 0")
    _frame_shape(shape_of(x), length=length, hop=hop)
    given = [x] if window is None else [x, window]
    return _one_sided(ops.mean_power(*given, n_fft=length, hop=hop), window, length, fs, scaling)


@welch.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    (length, hop), dtype = _draw_frames(draw), draw.dtype("f")
    window = [Spec((length,), dtype, "positive")] if draw.coin() else []
    x = Spec((*draw.dims(0, 2), length + draw.integer(0, 9)), dtype, "plain")
    return [x, *window], {"length": length, "hop": hop} | _draw_power(draw)


# -- the way back from frames of spectra ----------------------------------------------------------


def _istft_length(frames: DimLike, n_fft: int, hop: int, center: bool) -> DimLike:
    return dim_max(frames - 1, 0) * hop + n_fft - (2 * (n_fft // 2) if center else 0)


def _istft_shape(
    x: Shape, *_: Shape, n_fft: int, hop: int, center: bool, length: int | None
) -> Shape:
    _check_frames(n_fft, hop)
    frames, bins = x.dims[-2:]
    if bins != n_fft // 2 + 1 or frames == 0:
        raise GraphError(f"operand 0 is {x}: n_fft={n_fft} has {n_fft // 2 + 1} bins per frame")
    whole = _istft_length(frames, n_fft, hop, center)
    if length is not None and length < 0:
        raise GraphError(f"length is {length}, which is negative. Give 0 or more")
    return Shape([*x.dims[:-2], whole if length is None else length], x.dtype.real)


@op("c[*b m bins], c.real[n_fft]? -> c.real[*b ...]", kind=Kind.SPECIAL, shape=_istft_shape,
    flops="60*size0", jumps=True, has_fft=True, draw="plain")  # fmt: skip
def istft(
    x: Array,
    window: Array | None = None,
    *,
    n_fft: int,
    hop: int,
    center: bool = False,
    length: int | None = None,
) -> Array:
    """The signal whose `stft` with the same attributes is x: frames times `window` added up, over
    the sum of squared windows that cover a point; what none covers is 0. With `length`, the
    signal is cut or zero-padded to it."""
    w = np.ones(n_fft) if window is None else window.astype(np.float64)
    frames = np.fft.irfft(x.astype(np.complex128), n_fft) * w
    total = overlap_add.reference(frames, hop=hop)
    cover = overlap_add.reference(np.broadcast_to(w * w, frames.shape[-2:]), hop=hop)
    made = np.where(cover > COVERED, total / np.where(cover > COVERED, cover, 1.0), 0.0)
    return _trimmed(made, x.shape[-2], n_fft=n_fft, hop=hop, center=center, length=length)


def _trimmed(
    x: Any, frames: DimLike, *, n_fft: int, hop: int, center: bool, length: int | None
) -> Any:
    whole = _istft_length(frames, n_fft, hop, center)
    if center:
        x = ops.narrow(x, axis=-1, start=n_fft // 2, length=whole)
    return x if length is None else resized(x, length)


@istft.lowering
def _(x: Any, window: Any = None, **attrs: Any) -> Any:
    n_fft, hop = attrs["n_fft"], attrs["hop"]
    frames = ops.irfft(x, n=n_fft)
    m = dims_of(x)[-2]
    if window is None:
        square = ops.expand(nullary(x, "extent", dim=1, dtype=dtype_of(frames)), dims=(m, n_fft))
    else:
        frames = ops.mul(frames, window)
        square = ops.expand(ops.mul(window, window), dims=(m, n_fft))
    total, cover = ops.overlap_add(frames, hop=hop), ops.overlap_add(square, hop=hop)
    is_seen = ops.greater(cover, COVERED)
    made = ops.where(is_seen, ops.div(total, ops.where(is_seen, cover, 1.0)), 0.0)
    return _trimmed(made, m, **attrs)


@istft.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    n_fft, hop = draw.integer(1, 8), draw.integer(1, 5)
    dtype = draw.dtype("c")
    x = Spec((*draw.dims(0, 2), draw.size(1), n_fft // 2 + 1), dtype, "plain")
    window = [Spec((n_fft,), dtype.real, "positive")] if draw.coin() else []
    length = draw.choice((None, None, 0, 3, 12))
    return [x, *window], {"n_fft": n_fft, "hop": hop, "center": draw.coin(), "length": length}


# -- convolution ----------------------------------------------------------------------------------


def span_of(n: DimLike, m: DimLike, mode: Mode) -> tuple[DimLike, DimLike]:
    """Where a mode begins in the whole convolution of n and m points, and how long it is."""
    whole = n + m - 1
    if mode == "full":
        return 0, whole
    if mode == "valid":
        return dim_min(n, m) - 1, dim_max(n, m) - dim_min(n, m) + 1
    return (m - 1) // 2, n


def _convolved(x: Shape, y: Shape, *, mode: Mode) -> Shape:
    n, m = x.dims[-1], y.dims[-1]
    if n == 0 or m == 0:
        raise GraphError(f"operands are {x} and {y}: both need a point on the last axis")
    outer = broadcast(x.dims[:-1], y.dims[:-1])
    return x.with_dims([*outer, span_of(n, m, mode)[1]])


def _convolution(flops: Any, **facts: Any) -> Any:
    return op("f[~b n], f[~b m] -> f[~b ...]", kind=Kind.SPECIAL, shape=_convolved, flops=flops,
              draw="plain", **facts)  # fmt: skip


@_convolution("2*out*m")
def convolve(x: Array, y: Array, *, mode: Mode = "full") -> Array:
    """Σ x[i] · y[k - i] along the last axis; leading dims broadcast. `full` has every k with a
    term, `same` the middle of it, as long as x, and `valid` those with all terms."""
    x, y = (v.astype(np.float64) for v in (x, y))
    m = y.shape[-1]
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(m - 1, m - 1)])
    taps = sliding_window_view(padded, m, -1)
    made = np.sum(taps * y[..., None, ::-1], -1)
    start, length = span_of(x.shape[-1], m, mode)
    return made[..., int(start) : int(start) + int(length)]


@convolve.lowering
def _(x: Any, y: Any, *, mode: Mode) -> Any:
    """A convolution of images of one row, where one y is for all; else every tap is a frame of x
    against y backwards: a product with a matrix of frames."""
    *shared, m = dims_of(y)
    is_known = not isinstance(m, Dim) and m > 0 and lower_bound(dims_of(x)[-1]) > 0
    if is_known and all(d == 1 for d in shared):
        return _convolved_rows(x, y, int(m), mode)
    n, m = dims_of(x)[-1], dims_of(y)[-1]
    rank = len(dims_of(x))
    ends = (*(0,) * (rank - 1), dim_max(m - 1, 0))
    start, length = span_of(n, m, mode)
    where = positions(x, length, m, start=start)
    taps = ops.gather(ops.pad(x, low=ends, high=ends, value=0.0), where, axis=-1)
    last = len(dims_of(y)) - 1
    kernel = ops.expand_dims(ops.flip(y, axes=(last,)), axes=(last + 1,))
    made = ops.matmul(taps, kernel)
    return ops.reshape(made, dims=dims_of(made)[:-1])


def _convolved_rows(x: Any, y: Any, m: int, mode: Mode) -> Any:
    *lead, n = dims_of(x)
    rows, kernel = ops.reshape(x, dims=(product(lead), 1, n)), ops.reshape(y, dims=(m,))
    flipped = ops.reshape(ops.flip(kernel, axes=(0,)), dims=(1, 1, m))
    made = ops.conv(rows, flipped, padding=(m - 1, m - 1))
    start, length = span_of(n, m, mode)
    dims = _convolved(shape_of(x), shape_of(y), mode="full").dims
    whole = ops.reshape(made, dims=dims)
    if start == 0 and length == dims[-1]:
        return whole
    return ops.narrow(whole, axis=len(dims) - 1, start=start, length=length)


@_convolution("160*out", has_fft=True)
def fft_convolve(x: Array, y: Array, *, mode: Mode = "full") -> Array:
    """What `convolve` gives, through transforms: for long signals of similar lengths."""
    n, m = x.shape[-1], y.shape[-1]
    length = n + m - 1
    spectra = [np.fft.rfft(v.astype(np.float64), length) for v in (x, y)]
    start, size = (int(v) for v in span_of(n, m, mode))
    return np.fft.irfft(spectra[0] * spectra[1], length)[..., start : start + size]


@fft_convolve.lowering
def _(x: Any, y: Any, *, mode: Mode) -> Any:
    """Over an even length, so that the bins alone say how long it is."""
    n, m = (dim_max(dims_of(v)[-1], 1) for v in (x, y))
    even = 2 * ((n + m) // 2)
    spectra = [ops.rfft(resized(v, even)) for v in (x, y)]
    made = ops.irfft(ops.mul(*spectra))
    start, _ = span_of(n, m, mode)
    _, length = span_of(dims_of(x)[-1], dims_of(y)[-1], mode)
    if not provably_le(start + length, even):  # of no points, there is one more than is known
        made = resized(made, dim_max(even, start + length))
    return ops.narrow(made, axis=-1, start=start, length=length)


def _draw_convolution(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dtype, outer = draw.dtype("f"), draw.dims(0, 2)
    specs = [Spec((*_some(draw, outer), draw.size(1)), dtype, "plain") for _ in range(2)]
    return specs, {"mode": draw.choice(MODES)}


def _some(draw: Draw, dims: Sequence[int]) -> tuple[int, ...]:
    """Dims that broadcast to `dims`."""
    kept = dims[draw.integer(0, len(dims)) :] if draw.coin() else dims
    return tuple(1 if draw.coin(0.3) else d for d in kept)


convolve.sample(_draw_convolution)
fft_convolve.sample(_draw_convolution)
