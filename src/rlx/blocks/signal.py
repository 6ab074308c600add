"""Signal-processing blocks: framing, Welch spectra, log-mel features."""

from __future__ import annotations

from typing import Any, Literal

from rlx import ops
from rlx.core.errors import GraphError
from rlx.ir.block import block
from rlx.ops.compose import dims_of


def _segments(x: Any, n_fft: int, hop: int) -> Any:
    """[..., segments, n_fft]: runs of the signal, one every `hop`."""
    if n_fft < 1 or hop < 1:
        raise GraphError(f"n_fft={n_fft} and hop={hop} must be at least 1")
    t = dims_of(x)[-1]
    if isinstance(t, int) and t < n_fft:
        raise GraphError(f"n_fft={n_fft} is longer than the signal ({t}). Pad it or lower n_fft")
    return ops.frame(x, length=n_fft, hop=hop)


def _spectrum(frames: Any) -> Any:
    """The transform of real frames in block layout: their imaginary parts are 0."""
    *outer, n = dims_of(frames)
    none = (0,) * len(outer)
    return ops.fft(ops.pad(frames, low=(*none, 0), high=(*none, n), value=0.0))


@block("f[*b t], f[n_fft], f[m bins] -> f[*b ... m]")
def log_mel_spectrogram(
    signal: Any,
    window: Any,
    filters: Any,
    *,
    n_fft: int,
    hop: int,
    center: bool = True,
    pad: Literal["reflect", "constant"] = "reflect",
) -> Any:
    """Log-mel frames of a signal: windowed runs of `n_fft` samples, one every `hop`, transformed
    and filtered. With `center`, frame i is centred on sample i · hop: the ends are padded."""
    if center:
        ends = (*(0,) * (len(dims_of(signal)) - 1), n_fft // 2)
        signal = ops.pad(signal, low=ends, high=ends, value=0.0, mode=pad)
    frames = ops.mul(_segments(signal, n_fft, hop), window)
    return ops.log_mel(_spectrum(frames), filters)


@block("f[b t], f[n_fft]? -> f[b 2*k]")
def welch(signal: Any, window: Any = None, *, k: int, n_fft: int, hop: int) -> Any:
    """The `k` strongest bins of the mean power of all segments, as (bin, power) pairs."""
    segments = _segments(signal, n_fft, hop)
    batch, count, _ = dims_of(segments)
    if not isinstance(count, int):
        raise GraphError(f"the signal has {count} segments: welch needs to know how many")
    tapered = segments if window is None else ops.mul(segments, window)
    rows = ops.reshape(tapered, dims=(batch * count, n_fft))
    return ops.welch_peaks(_spectrum(rows), k=k, n_segments=count)
