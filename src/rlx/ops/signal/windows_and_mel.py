"""Window functions, frequency tables and mel filterbanks.

They have no operands, so a graph names them instead of holding their values. All are computed in
f64 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.memory_limits import require_table
from rlx.core.shape import Shape
from rlx.ops.compose import nullary
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array, Kind, op

HANN = (0.5, -0.5)
BLACKMAN = (0.42, -0.5, 0.08)


def _check_inexact(dtype: DType) -> None:
    if not dtype.is_float:
        raise GraphError(f"attribute dtype: the table has fractions, which {dtype} does not hold")


# -- windows --------------------------------------------------------------------------------------


def _window_shape(*, length: DimLike, periodic: bool, dtype: DType, **_: Any) -> Shape:
    if not isinstance(length, Dim) and length < 0:
        raise GraphError(f"length is {length}, which is negative. Give 0 or more")
    _check_inexact(dtype)
    return Shape([length], dtype)


def _window(**facts: Any) -> Any:
    return op(" -> $dtype[length]", kind=Kind.SPECIAL, shape=_window_shape, **facts)


def _window_positions(length: int, periodic: bool) -> Array:
    """Normalised sample positions from 0 to 1, the end excluded where it is periodic."""
    return np.arange(length) / max(1, length - (not periodic))


def _cosines(length: int, periodic: bool, weights: Sequence[float]) -> Array:
    """Σ weights[k] · cos 2πk · place; a window of one point is 1."""
    angles = 2.0 * np.pi * _window_positions(length, periodic)
    made = sum((w * np.cos(k * angles) for k, w in enumerate(weights)), np.zeros(length))
    return np.ones(length) if length == 1 else made


@_window(flops="6*out")
def hann_window(*, length: DimLike, periodic: bool = True, dtype: DType = DType.F32) -> Array:
    """1/2 - 1/2 cos 2πt over t from 0 to 1; the end is left out where it is periodic, as spectra
    want it. A window of one point is 1, as SciPy's (ONNX has 0)."""
    return _cosines(int(length), periodic, HANN).astype(dtype.numpy)


@_window(flops="6*out")
def hamming_window(
    *, length: DimLike, periodic: bool = True, alpha: float = 0.54, dtype: DType = DType.F32
) -> Array:
    """alpha - (1 - alpha) cos 2πt. ONNX has alpha = 25/46."""
    return _cosines(int(length), periodic, (alpha, alpha - 1.0)).astype(dtype.numpy)


@_window(flops="9*out")
def blackman_window(*, length: DimLike, periodic: bool = True, dtype: DType = DType.F32) -> Array:
    """0.42 - 0.5 cos 2πt + 0.08 cos 4πt."""
    return _cosines(int(length), periodic, BLACKMAN).astype(dtype.numpy)


@_window(flops="20*out")
def kaiser_window(
    *, length: DimLike, periodic: bool = True, beta: float = 12.0, dtype: DType = DType.F32
) -> Array:
    """I₀(beta · √(1 - (2t - 1)²)) / I₀(beta)."""
    t = _window_positions(int(length), periodic)
    made = np.i0(beta * 2.0 * np.sqrt(t * (1.0 - t))) / np.i0(beta)
    return (np.ones(1) if length == 1 else made).astype(dtype.numpy)


def _window_positions_of(graph: Any, length: DimLike, periodic: bool, dtype: DType) -> Any:
    """The same in table ops, in the dtype that is computed in."""
    line = nullary(graph, "iota", dims=(length,), axis=0, dtype=dtype)
    size = nullary(graph, "extent", dim=length if periodic else length - 1, dtype=dtype)
    return ops.div(line, ops.maximum(size, 1.0))


def _finished(graph: Any, made: Any, length: DimLike, dtype: DType) -> Any:
    """A window of one point is 1."""
    single = ops.equal(nullary(graph, "extent", dim=length), 1)
    return ops.cast(ops.where(single, 1.0, made), to=dtype)


def _lowered_cosines(
    graph: Any, length: DimLike, periodic: bool, dtype: DType, weights: Sequence[float]
) -> Any:
    angles = ops.mul(_window_positions_of(graph, length, periodic, dtype.compute), 2.0 * math.pi)
    made = ops.mul(ops.cos(angles), weights[1])
    for k, w in enumerate(weights[2:], 2):
        made = ops.add(made, ops.mul(ops.cos(ops.mul(angles, float(k))), w))
    return _finished(graph, ops.add(made, weights[0]), length, dtype)


@hann_window.lowering
def _(graph: Any, *, length: DimLike, periodic: bool, dtype: DType) -> Any:
    return _lowered_cosines(graph, length, periodic, dtype, HANN)


@hamming_window.lowering
def _(graph: Any, *, length: DimLike, periodic: bool, alpha: float, dtype: DType) -> Any:
    return _lowered_cosines(graph, length, periodic, dtype, (alpha, alpha - 1.0))


@blackman_window.lowering
def _(graph: Any, *, length: DimLike, periodic: bool, dtype: DType) -> Any:
    return _lowered_cosines(graph, length, periodic, dtype, BLACKMAN)


@kaiser_window.lowering
def _(graph: Any, *, length: DimLike, periodic: bool, beta: float, dtype: DType) -> Any:
    t = _window_positions_of(graph, length, periodic, dtype.compute)
    root = ops.mul(ops.sqrt(ops.mul(t, ops.sub(1.0, t))), 2.0 * beta)
    made = ops.div(ops.i0(root), float(np.i0(beta)))
    return _finished(graph, made, length, dtype)


def _draw_window(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    size, periodic = draw.choice((0, 1, 2, 3, 8, 15)), draw.coin()
    return [], {"length": size, "periodic": periodic, "dtype": draw.dtype("f")}


def _draw_with(name: str, low: float, high: float) -> Any:
    def drawn(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
        specs, attrs = _draw_window(draw)
        return specs, {**attrs, name: float(draw.rng.uniform(low, high))}

    return drawn


hann_window.sample(_draw_window)
blackman_window.sample(_draw_window)
hamming_window.sample(_draw_with("alpha", 0.4, 1.0))
kaiser_window.sample(_draw_with("beta", 0.0, 14.0))

# -- frequencies ----------------------------------------------------------------------------------


def _bins_shape(*, n: DimLike, d: float, dtype: DType) -> Shape:
    if (not isinstance(n, Dim) and n < 1) or d == 0.0:
        raise GraphError(f"n={n} samples spaced d={d} have no frequencies")
    _check_inexact(dtype)
    return Shape([n], dtype)


def _half_bins_shape(*, n: DimLike, d: float, dtype: DType) -> Shape:
    return _bins_shape(n=n, d=d, dtype=dtype).with_dims([n // 2 + 1])


@op(" -> $dtype[n]", kind=Kind.SPECIAL, shape=_bins_shape, flops="3*out")
def fftfreq(*, n: DimLike, d: float = 1.0, dtype: DType = DType.F32) -> Array:
    """The frequency of each bin of a transform of `n` samples spaced `d`, as NumPy has it:
    from 0 up, then the negative ones; the middle bin of an even n is negative."""
    return np.fft.fftfreq(int(n), d).astype(dtype.numpy)


@op(" -> $dtype[...]", kind=Kind.SPECIAL, shape=_half_bins_shape, flops="out")
def rfftfreq(*, n: DimLike, d: float = 1.0, dtype: DType = DType.F32) -> Array:
    """The frequency of each bin of a transform of `n` real numbers: all are 0 or more."""
    return np.fft.rfftfreq(int(n), d).astype(dtype.numpy)


@fftfreq.lowering
def _(graph: Any, *, n: DimLike, d: float, dtype: DType) -> Any:
    line = nullary(graph, "iota", dims=(n,), axis=0)
    size = nullary(graph, "extent", dim=n)
    is_low = ops.less(line, nullary(graph, "extent", dim=(n + 1) // 2))
    return _scaled(ops.where(is_low, line, ops.sub(line, size)), size, d, dtype)


@rfftfreq.lowering
def _(graph: Any, *, n: DimLike, d: float, dtype: DType) -> Any:
    line = nullary(graph, "iota", dims=(n // 2 + 1,), axis=0)
    return _scaled(line, nullary(graph, "extent", dim=n), d, dtype)


def _scaled(line: Any, size: Any, d: float, dtype: DType) -> Any:
    """Bin numbers over n · d."""
    bins, n = (ops.cast(v, to=dtype.compute) for v in (line, size))
    return ops.cast(ops.div(bins, ops.mul(n, d)), to=dtype)


def _draw_bins(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    d = draw.choice((1.0, 0.25, -2.0, 1 / 16000))
    return [], {"n": draw.size(1), "d": d, "dtype": draw.dtype("f")}


fftfreq.sample(_draw_bins)
rfftfreq.sample(_draw_bins)

# -- mel ------------------------------------------------------------------------------------------


def _check_band(bins: int, length: int, sample_rate: float, low: float, high: float) -> None:
    if bins < 1 or length < 1 or sample_rate <= 0.0:
        raise GraphError(f"{bins} bands of {length} points at {sample_rate} Hz: all must be > 0")
    if not 0.0 <= low < high:
        raise GraphError(f"the bands from {low} to {high} Hz do not go up from 0 or more")


def _onnx_shape(
    *, num_mel_bins: int, dft_length: int, sample_rate: int,
    lower_edge_hertz: float, upper_edge_hertz: float, dtype: DType,
) -> Shape:  # fmt: skip
    _check_band(num_mel_bins, dft_length, sample_rate, lower_edge_hertz, upper_edge_hertz)
    _check_inexact(dtype)
    return Shape([dft_length // 2 + 1, num_mel_bins], dtype)


@op(" -> $dtype[...]", kind=Kind.SPECIAL, shape=_onnx_shape, flops="4*out")
def mel_weight_matrix(
    *,
    num_mel_bins: int,
    dft_length: int,
    sample_rate: int,
    lower_edge_hertz: float,
    upper_edge_hertz: float,
    dtype: DType = DType.F32,
) -> Array:
    """ONNX's matrix from dft_length // 2 + 1 bins to mel bands, [bins, bands]: triangles whose
    corners are equal steps of 2595 log₁₀(1 + f / 700) apart, each moved down to a whole bin."""
    edges = np.array([lower_edge_hertz, upper_edge_hertz])
    low, high = 2595.0 * np.log10(1.0 + edges / 700.0)
    mel = np.arange(num_mel_bins + 2) * ((high - low) / (num_mel_bins + 2)) + low
    hertz = 700.0 * (10.0 ** (mel / 2595.0) - 1.0)
    corners = (((dft_length + 1) * hertz) // sample_rate).astype(np.int64)
    bins = np.arange(dft_length // 2 + 1)[:, None]
    start, top, end = corners[:-2], corners[1:-1], corners[2:]
    rise = np.where(top > start, (bins - start) / np.maximum(top - start, 1), 1.0)
    fall = np.where(end > top, (end - bins) / np.maximum(end - top, 1), 0.0)
    weights = np.where(bins <= top, rise, fall)
    inside = (bins >= start) & ((bins < end) | (bins == top))
    return np.where(inside, weights, 0.0).astype(dtype.numpy)


def _mel_shape(
    *, sample_rate: float, n_fft: int, n_mels: int, f_min: float, f_max: float | None,
    scale: str, norm: str, dtype: DType,
) -> Shape:  # fmt: skip
    _check_band(n_mels, n_fft, sample_rate, f_min, sample_rate / 2 if f_max is None else f_max)
    _check_inexact(dtype)
    return Shape([n_mels, n_fft // 2 + 1], dtype)


@op(" -> $dtype[...]", kind=Kind.SPECIAL, shape=_mel_shape, flops="4*out")
def mel_filters(
    *,
    sample_rate: float,
    n_fft: int,
    n_mels: int = 128,
    f_min: float = 0.0,
    f_max: float | None = None,
    scale: Literal["slaney", "htk"] = "slaney",
    norm: Literal["slaney", "none"] = "slaney",
    dtype: DType = DType.F32,
) -> Array:
    """Librosa's filters from n_fft // 2 + 1 bins to mel bands, [bands, bins]: triangles over
    frequency whose corners are equal steps of the mel scale apart, up to half the sample rate.
    `slaney` norm gives each the same area; what log_mel takes."""
    top = sample_rate / 2 if f_max is None else f_max
    ends = [float(_to_mel(np.float64(f), scale)) for f in (f_min, top)]
    corners = _to_hertz(np.linspace(ends[0], ends[1], n_mels + 2), scale)
    bins = np.fft.rfftfreq(n_fft, 1.0 / sample_rate)
    steps = np.diff(corners)[:, None]
    rise = (bins - corners[:-2, None]) / steps[:-1]
    fall = (corners[2:, None] - bins) / steps[1:]
    weights = np.maximum(0.0, np.minimum(rise, fall))
    if norm == "slaney":
        weights *= 2.0 / (corners[2:, None] - corners[:-2, None])
    return weights.astype(dtype.numpy)


KNEE_HERTZ = 1000.0  # Slaney's scale is linear up to here: 15 mel, 200/3 Hz each
KNEE_MEL = 15.0
LOG_STEP = math.log(6.4) / 27.0  # and 27 mel are a factor of 6.4 from there on


def _to_mel(hertz: Any, scale: str) -> Any:
    if scale == "htk":
        return 2595.0 * np.log10(1.0 + hertz / 700.0)
    above = KNEE_MEL + np.log(np.maximum(hertz, KNEE_HERTZ) / KNEE_HERTZ) / LOG_STEP
    return np.where(hertz < KNEE_HERTZ, hertz * KNEE_MEL / KNEE_HERTZ, above)


def _to_hertz(mel: Array, scale: str) -> Array:
    if scale == "htk":
        return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)
    above = KNEE_HERTZ * np.exp(LOG_STEP * (mel - KNEE_MEL))
    return np.where(mel < KNEE_MEL, mel * KNEE_HERTZ / KNEE_MEL, above)


@mel_weight_matrix.lowering
def _(graph: Any, **attrs: Any) -> Any:
    """All that it depends on is known when the graph is built."""
    return graph.constant(_known(mel_weight_matrix, attrs))


@mel_filters.lowering
def _(graph: Any, **attrs: Any) -> Any:
    """All that it depends on is known when the graph is built."""
    return graph.constant(_known(mel_filters, attrs))


def _known(op: Any, attrs: Mapping[str, Any]) -> Array:
    """A table that follows from attributes, computed in f64 with about as much beside it."""
    shape: Shape = op.shaped((), attrs)
    require_table(4 * 8 * math.prod(shape.static_dims), op.name)
    return op.reference(**attrs)


@mel_weight_matrix.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    low = draw.choice((0.0, 20.0, 300.0))
    return [], {
        "num_mel_bins": draw.integer(1, 8),
        "dft_length": draw.integer(1, 32),
        "sample_rate": draw.choice((8192, 16000)),
        "lower_edge_hertz": low,
        "upper_edge_hertz": low + float(draw.integer(50, 3700)),
        "dtype": draw.dtype("f"),
    }


@mel_filters.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    return [], {
        "sample_rate": draw.choice((8000.0, 16000.0, 22050.0)),
        "n_fft": draw.integer(1, 64),
        "n_mels": draw.integer(1, 12),
        "f_min": draw.choice((0.0, 50.0)),
        "f_max": draw.choice((None, 3000.0)),
        "scale": draw.choice(("slaney", "htk")),
        "norm": draw.choice(("slaney", "none")),
        "dtype": draw.dtype("f"),
    }
