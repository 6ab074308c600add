"""Fourier transforms along the last axis, and features of spectra.

`fft` on real dtypes has the split-complex layout: the last axis holds all real parts, then all
imaginary parts, so that one node is one launch. The others take and give complex numbers, as
NumPy's do. Transforms are computed in f64 and rounded once. `norm` has NumPy's names and meaning.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rlx import ops
from rlx.core.dim import Dim, DimLike, dim_max, exact_div, provably_le
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.compose import dims_of, shape_of
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array, Kind, op

Norm = Literal["backward", "ortho", "forward"]
NORMS = ("backward", "ortho", "forward")
FLOOR = 1e-10
"""Log-mel treats less power than this as this much."""


def _transform_flops(shapes: Any, results: Any, attrs: Any) -> DimLike:
    """5 n log2 n, with the length rounded up to a power of two."""
    n = results[0].dims[-1] if shapes[0].dtype.is_complex else shapes[0].dims[-1]
    steps = max(1, (n.max or 4096) if isinstance(n, Dim) else n).bit_length()
    return 5 * steps * max_elements(shapes[0], results[0])


def max_elements(a: Shape, b: Shape) -> DimLike:
    """The elements of the larger of two shapes that differ in their last dim only."""
    return dim_max(a.num_elements, b.num_elements)


def _half(dim: DimLike, what: str) -> DimLike:
    """Half of a block layout's length: real parts, then as many imaginary parts."""
    half = exact_div(dim, 2)
    if half is None:
        raise GraphError(f"{what} is {dim} long, which is not even: it holds re and then im")
    return half


def _check_length(n: DimLike, what: str) -> None:
    if not isinstance(n, Dim) and n < 1:
        raise GraphError(f"{what} is {n}: a transform needs at least one point")


# -- transforms -----------------------------------------------------------------------------------


def _fft_shape(x: Shape, *, inverse: bool, norm: Norm) -> Shape:
    if not x.dtype.is_complex:
        _half(x.dims[-1], "the last axis")
    return x


@op(
    "x[*b n] -> x[*b n]",
    kind=Kind.SPECIAL,
    shape=_fft_shape,
    flops=_transform_flops,
    has_fft=True,
    draw="plain",
    why_no_lowering="a primitive: every target has a transform of its own, or runs this one",
)
def fft(x: Array, *, inverse: bool = False, norm: Norm = "backward") -> Array:
    """The discrete Fourier transform along the last axis. Complex dtypes hold one number per
    element; real dtypes hold n real parts and then n imaginary parts, in and out."""
    if x.size == 0:
        return x
    z = x if x.dtype.kind == "c" else _from_blocks(x)
    made = _transform(z, inverse, norm)
    return made if x.dtype.kind == "c" else np.concatenate([np.real(made), np.imag(made)], -1)


def _from_blocks(x: Array) -> Array:
    n = x.shape[-1] // 2
    z = np.empty((*x.shape[:-1], n), np.complex128)
    z.real, z.imag = x[..., :n], x[..., n:]
    return z


def _transform(z: Array, inverse: bool, norm: Norm) -> Array:
    wide = z.astype(np.complex128)
    return (np.fft.ifft if inverse else np.fft.fft)(wide, norm=norm)


@fft.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dtype, n = draw.dtype("x"), draw.choice((0, 1, 2, 3, 4, 6, 8))
    last = n if dtype.is_complex else 2 * n
    return [Spec((*draw.dims(0, 4), last), dtype, "plain")], _draw_norm(draw, inverse=draw.coin())


def _draw_norm(draw: Draw, **attrs: Any) -> dict[str, Any]:
    return {**attrs, "norm": draw.choice(NORMS)}


def _ifft_shape(x: Shape, *, norm: Norm) -> Shape:
    return x.with_dtype(x.dtype.complex)


@op("x[*b n] -> x.complex[*b n]", kind=Kind.SPECIAL, shape=_ifft_shape, flops=_transform_flops,
    has_fft=True, draw="plain")  # fmt: skip
def ifft(x: Array, *, norm: Norm = "backward") -> Array:
    """The inverse transform along the last axis, of complex or real numbers, as NumPy's."""
    return x.astype(np.complex128) if x.size == 0 else _transform(x, True, norm)


@ifft.lowering
def _(x: Any, *, norm: Norm) -> Any:
    return ops.fft(ops.cast(x, to=DType.of(x.dtype).complex), inverse=True, norm=norm)


def _rfft_shape(x: Shape, *, n: int | None, norm: Norm) -> Shape:
    length = x.dims[-1] if n is None else n
    _check_length(length, "n")
    return Shape([*x.dims[:-1], length // 2 + 1], x.dtype.complex)


@op("f[*b t] -> f.complex[*b ...]", kind=Kind.SPECIAL, shape=_rfft_shape, flops=_transform_flops,
    has_fft=True, draw="plain")  # fmt: skip
def rfft(x: Array, *, n: int | None = None, norm: Norm = "backward") -> Array:
    """The first n // 2 + 1 bins of the transform of real numbers, cut or zero-padded to `n`."""
    return np.fft.rfft(x.astype(np.float64), n, norm=norm)


@rfft.lowering
def _(x: Any, *, n: int | None, norm: Norm) -> Any:
    length = shape_of(x).dims[-1] if n is None else n
    real = resized(x, length)
    blocks = ops.fft(ops.concat([real, ops.mul(real, 0.0)], axis=-1), norm=norm)
    return ops.make_complex(*one_sided(blocks, length))


def one_sided(blocks: Any, n_fft: DimLike) -> tuple[Any, Any]:
    """The real and the imaginary parts of the first n_fft // 2 + 1 bins of a block layout: of no
    points there is one bin, which is 0."""
    bins = n_fft // 2 + 1
    if not provably_le(bins, n_fft):
        rest = (0,) * (len(shape_of(blocks).dims) - 1)
        blocks = ops.pad(blocks, low=(*rest, 0), high=(*rest, 1), value=0.0)
    re, im = (ops.narrow(blocks, axis=-1, start=s, length=bins) for s in (0, n_fft))
    return re, im


def resized(x: Any, length: DimLike) -> Any:
    """The last axis cut or zero-padded to `length`."""
    dims = shape_of(x).dims
    if dims[-1] == length:
        return x
    if isinstance(dims[-1], Dim) or isinstance(length, Dim) or dims[-1] < length:
        rest = (0,) * (len(dims) - 1)
        x = ops.pad(x, low=(*rest, 0), high=(*rest, length), value=0.0)
    return ops.narrow(x, axis=-1, start=0, length=length)


@rfft.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    n = draw.choice((None, None, 1, 2, 5, 8))
    dims = (*draw.dims(0, 4), draw.size(1))
    return [Spec(dims, draw.dtype("f"), "plain")], _draw_norm(draw, n=n)


def _irfft_length(bins: DimLike, n: int | None) -> DimLike:
    return 2 * (bins - 1) if n is None else n


def _irfft_shape(x: Shape, *, n: int | None, norm: Norm) -> Shape:
    length = _irfft_length(x.dims[-1], n)
    _check_length(length, "n")
    if x.dims[-1] == 0:
        raise GraphError("the last axis is empty: a transform needs at least one bin")
    return Shape([*x.dims[:-1], length], x.dtype.real)


@op("c[*b m] -> c.real[*b ...]", kind=Kind.SPECIAL, shape=_irfft_shape, flops=_transform_flops,
    has_fft=True, draw="plain")  # fmt: skip
def irfft(x: Array, *, n: int | None = None, norm: Norm = "backward") -> Array:
    """The `n` real numbers whose `rfft` is `x`; without `n`, twice the bins less two. Bins are cut
    or zero-padded to n // 2 + 1; imaginary parts of the first and the middle bin do not count."""
    return np.fft.irfft(x.astype(np.complex128), n, norm=norm)


@irfft.lowering
def _(x: Any, *, n: int | None, norm: Norm) -> Any:
    length = _irfft_length(shape_of(x).dims[-1], n)
    bins = resized(x, length // 2 + 1)
    mirrored = (length - 1) // 2
    inner = ops.narrow(bins, axis=-1, start=1, length=mirrored)
    rank = len(shape_of(x).dims)
    whole = ops.concat([bins, ops.conj(ops.flip(inner, axes=(rank - 1,)))], axis=-1)
    return ops.real(ops.fft(whole, inverse=True, norm=norm))


@irfft.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    n = draw.choice((None, None, 1, 2, 5, 8))
    bins = draw.size(2 if n is None else 1)
    return [Spec((*draw.dims(0, 4), bins), draw.dtype("c"), "plain")], _draw_norm(draw, n=n)


# -- short-time transform -------------------------------------------------------------------------


def num_frames(t: DimLike, *, n_fft: int, hop: int, center: bool) -> DimLike:
    """How many frames a signal of `t` points has: none where it is shorter than one, which only
    a call may tell."""
    return dim_max((t - n_fft + (2 * (n_fft // 2) if center else 0)) // hop + 1, 0)


def _stft_shape(x: Shape, *_: Shape, n_fft: int, hop: int, center: bool, pad: str) -> Shape:
    if n_fft < 1 or hop < 1:
        raise GraphError(f"n_fft={n_fft} and hop={hop} must be at least 1")
    t = x.dims[-1]
    if center and pad == "reflect" and not isinstance(t, Dim) and t <= n_fft // 2:
        raise GraphError(f"a signal of {t} is too short to reflect {n_fft // 2} at its ends")
    room = t - n_fft + (2 * (n_fft // 2) if center else 0)
    if not isinstance(room, Dim) and room < 0:
        raise GraphError(f"n_fft={n_fft} is longer than the signal ({t}). Pad it or lower n_fft")
    count = num_frames(t, n_fft=n_fft, hop=hop, center=center)
    return Shape([*x.dims[:-1], count, n_fft // 2 + 1], x.dtype.complex)


@op(
    "f[*b t], f[n_fft]? -> f.complex[*b ...]",
    kind=Kind.SPECIAL,
    shape=_stft_shape,
    flops=lambda shapes, results, attrs: 10 * attrs["n_fft"].bit_length() * results[0].num_elements,
    has_fft=True,
    draw="plain",
)
def stft(
    x: Array,
    window: Array | None = None,
    *,
    n_fft: int,
    hop: int,
    center: bool = False,
    pad: Literal["reflect", "zeros"] = "reflect",
) -> Array:
    """The real transform of each frame of `n_fft` points, one every `hop`, times `window`:
    [..., frames, n_fft // 2 + 1]. With `center`, frame i is centred on point i * hop: the signal
    gets n_fft // 2 more points at both ends, mirrored or zero."""
    if center:
        margins = [(0, 0)] * (x.ndim - 1) + [(n_fft // 2, n_fft // 2)]
        x = np.pad(x, margins, mode="reflect" if pad == "reflect" else "constant")
    if x.shape[-1] < n_fft:
        return np.zeros((*x.shape[:-1], 0, n_fft // 2 + 1), np.complex128)
    frames = sliding_window_view(x, n_fft, -1)[..., ::hop, :].astype(np.float64)
    return np.fft.rfft(frames if window is None else frames * window)


@stft.lowering
def _(x: Any, window: Any = None, *, n_fft: int, hop: int, center: bool, pad: str) -> Any:
    shape = _stft_shape(shape_of(x), n_fft=n_fft, hop=hop, center=center, pad=pad)
    frames, rest = shape.dims[-2], (0,) * (len(shape.dims) - 2)
    if center:
        ends = (*rest, n_fft // 2)
        mode = "reflect" if pad == "reflect" else "constant"
        x = ops.pad(x, low=ends, high=ends, value=0.0, mode=mode)
    cut = framed(x, frames, n_fft, hop)
    return ops.rfft(cut if window is None else ops.mul(cut, window))


def framed(x: Any, frames: DimLike, n_fft: int, hop: int) -> Any:
    """[..., frames, n_fft]: consecutive hops concatenated, each frame one hop later."""
    outer = dims_of(x)[:-1]
    pieces = -(-n_fft // hop)
    more = (*(0,) * len(outer), pieces * hop - n_fft)
    padded = ops.pad(x, low=(0,) * len(more), high=more, value=0.0) if more[-1] else x
    hops = [ops.narrow(padded, axis=-1, start=i * hop, length=frames * hop) for i in range(pieces)]
    rows = [ops.reshape(h, dims=(*outer, frames, hop)) for h in hops]
    return ops.narrow(ops.concat(rows, axis=-1), axis=-1, start=0, length=n_fft)


@stft.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    n_fft, hop, center = draw.integer(1, 8), draw.integer(1, 5), draw.coin()
    dtype, t = draw.dtype("f"), n_fft + draw.integer(0, 9)
    window = [Spec((n_fft,), dtype, "plain")] if draw.coin() else []
    pad = draw.choice(("reflect", "zeros"))
    attrs = {"n_fft": n_fft, "hop": hop, "center": center, "pad": pad}
    return [Spec((*draw.dims(0, 3), t), dtype, "plain"), *window], attrs


# -- spectra --------------------------------------------------------------------------------------


def power_blocks(spectrum: Any, n_fft: DimLike) -> Any:
    """re² + im² of the first n_fft // 2 + 1 bins of a block layout, in table ops."""
    re, im = one_sided(spectrum, n_fft)
    return ops.add(ops.mul(re, re), ops.mul(im, im))


def _log_mel_shape(spectrum: Shape, filters: Shape) -> Shape:
    n_fft = _half(spectrum.dims[-1], "the spectrum")
    n_mels, bins = filters.dims
    if bins != n_fft // 2 + 1:
        raise GraphError(
            f"filters is {filters}: a spectrum of n_fft={n_fft} has {n_fft // 2 + 1} bins"
        )
    if n_mels == 0:
        raise GraphError("filters has no rows: the loudest band of a frame needs one band")
    return Shape([*spectrum.dims[:-1], n_mels], spectrum.dtype)


@op(
    "f[*b n2], f[m bins] -> f[*b m]",
    kind=Kind.SPECIAL,
    shape=_log_mel_shape,
    flops="2*out*bins + 3*size0",
    syncs_host=True,
    draw="plain",
)
def log_mel(spectrum: Array, filters: Array) -> Array:
    """Whisper's log-mel frames of a spectrum in block layout: log10 of the filtered power, at
    least 1e-10, at most 8 below the frame's greatest, then (v + 4) / 4."""
    bins, n_fft = filters.shape[1], spectrum.shape[-1] // 2
    re, im = spectrum[..., :bins], spectrum[..., n_fft : n_fft + bins]
    mel = np.log10(np.maximum((re * re + im * im) @ filters.T, FLOOR))
    return (np.maximum(mel, mel.max(-1, keepdims=True) - 8) + 4) / 4


@log_mel.lowering
def _(spectrum: Any, filters: Any) -> Any:
    dims = shape_of(spectrum).dims
    power = power_blocks(spectrum, _half(dims[-1], "the spectrum"))
    row = ops.expand_dims(power, axes=(0,)) if len(dims) == 1 else power
    mel = ops.matmul(row, ops.transpose(filters, perm=(1, 0)))
    return log_bands(ops.squeeze(mel, axes=(0,)) if len(dims) == 1 else mel)


def log_bands(mel: Any) -> Any:
    """The logarithms of power in bands, in table ops."""
    logs = ops.mul(ops.log(ops.maximum(mel, FLOOR)), 1 / float(np.log(10.0)))
    loudest = ops.max(logs, axes=(len(dims_of(mel)) - 1,), keepdims=True)
    return ops.mul(ops.add(ops.maximum(logs, ops.sub(loudest, 8.0)), 4.0), 0.25)


@log_mel.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    n_fft, dtype = draw.integer(0, 8), draw.dtype("f")
    filters = Spec((draw.size(1), n_fft // 2 + 1), dtype, "unit")
    n_fft = max(1, n_fft)
    return [Spec((*draw.dims(0, 3), 2 * n_fft), dtype, "plain"), filters], {}


def _welch_shape(spectrum: Shape, *, k: int, n_segments: int) -> Shape:
    rows, last = spectrum.dims
    if k < 1 or n_segments < 1:
        raise GraphError(f"k={k} and n_segments={n_segments} must be at least 1")
    _check_length(_half(last, "the spectrum"), "n_fft")
    batch = exact_div(rows, n_segments)
    if batch is None:
        raise GraphError(f"{rows} rows are not whole groups of {n_segments} segments")
    return Shape([batch, 2 * k], spectrum.dtype)


@op(
    "f[rows n2] -> f[... ...]",
    kind=Kind.SPECIAL,
    shape=_welch_shape,
    flops="2*size0",
    is_epilogue=True,
    syncs_host=True,
    jumps=True,
    draw="plain",
)
def welch_peaks(spectrum: Array, *, k: int, n_segments: int) -> Array:
    """The `k` strongest bins of a Welch estimate, as bin, power, bin, power, …, strongest first;
    of equals the lower bin. The estimate is the mean over each group of `n_segments` rows of the
    squared magnitude, one-sided: bins with a mirror image count twice. Slots past the last bin
    are 0."""
    n_fft = spectrum.shape[1] // 2
    bins, batch = n_fft // 2 + 1, spectrum.shape[0] // n_segments
    re, im = spectrum[:, :bins], spectrum[:, n_fft : n_fft + bins]
    power = (re * re + im * im).reshape(batch, n_segments, bins).sum(1) / n_segments
    best, where = ops.top_k(power * sides_of(n_fft, power.dtype), k=min(k, bins), axis=-1)
    peaks = np.zeros((batch, k, 2), spectrum.dtype)
    peaks[:, : best.shape[1], 0], peaks[:, : best.shape[1], 1] = where, best
    return peaks.reshape(batch, 2 * k)


def sides_of(n_fft: int, dtype: Any) -> Array:
    """How often each bin of the one-sided spectrum occurs in the two-sided one."""
    bins = np.arange(n_fft // 2 + 1)
    return np.where((bins == 0) | (2 * bins == n_fft), 1, 2).astype(dtype)


@welch_peaks.lowering
def _(spectrum: Any, *, k: int, n_segments: int) -> Any:
    batch, _ = _welch_shape(shape_of(spectrum), k=k, n_segments=n_segments).dims
    n_fft = int(shape_of(spectrum).dims[-1]) // 2
    power = ops.reshape(power_blocks(spectrum, n_fft), dims=(batch, n_segments, n_fft // 2 + 1))
    mean = ops.mean(power, axes=(1,))
    return strongest(ops.mul(mean, sides_of(n_fft, DType.of(mean.dtype).numpy)), n_fft, k)


def strongest(power: Any, n_fft: int, k: int) -> Any:
    """The strongest bins of one-sided power, in table ops: places and powers in turn."""
    bins, dtype, batch = n_fft // 2 + 1, DType.of(power.dtype), dims_of(power)[0]
    best, where = ops.top_k(power, k=min(k, bins), axis=-1)
    places, powers = (ops.expand_dims(v, axes=(2,)) for v in (where, best))
    pairs = ops.where(np.array([True, False]), ops.cast(places, to=dtype), powers)
    flat = ops.reshape(pairs, dims=(batch, 2 * min(k, bins)))
    unused = 2 * k - 2 * min(k, bins)
    return ops.pad(flat, low=(0, 0), high=(0, unused), value=0.0) if unused else flat


@welch_peaks.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    n_segments, n_fft = draw.integer(1, 3), draw.integer(1, 9)
    spec = Spec((n_segments * draw.size(), 2 * n_fft), draw.dtype("f"), "plain")
    return [spec], {"k": draw.integer(1, 6), "n_segments": n_segments}
