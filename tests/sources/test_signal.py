"""Transforms, tables, filters and spectra against SciPy, NumPy and ONNX's reference evaluator.

Operands are f64 and so are both sides: they may differ by the roundings of a few hundred
additions of numbers of about 1, which is `CLOSE`.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.fft
import scipy.signal

from rlx import ops
from rlx.core.errors import GraphError
from rlx.ops.op import lookup
from tests.sources.onnx_reference import run_onnx

SOURCES = {
    "fft": "numpy.fft.fft, ifft",
    "ifft": "numpy.fft.ifft",
    "rfft": "numpy.fft.rfft",
    "irfft": "numpy.fft.irfft",
    "stft": "onnx.reference STFT",
    "power_frames": "scipy.signal.ShortTimeFFT.spectrogram",
    "mean_power": "scipy.signal.welch, unscaled",
    "mel_frames": "scipy.signal.ShortTimeFFT.spectrogram, times filters by numpy.einsum",
    "log_mel": "facts, 1.4: written out for one frame",
    "welch_peaks": "scipy.signal.welch (boxcar, noverlap 0, no detrending)",
    "fftn": "scipy.fft.fftn; onnx.reference DFT",
    "ifftn": "scipy.fft.ifftn; onnx.reference DFT",
    "rfftn": "scipy.fft.rfftn",
    "irfftn": "scipy.fft.irfftn; onnx.reference DFT",
    "fftshift": "scipy.fft.fftshift",
    "ifftshift": "scipy.fft.ifftshift",
    "dct": "scipy.fft.dct",
    "idct": "scipy.fft.idct",
    "fftfreq": "scipy.fft.fftfreq",
    "rfftfreq": "scipy.fft.rfftfreq",
    "hann_window": "scipy.signal.windows.hann; onnx.reference HannWindow",
    "hamming_window": "scipy.signal.windows.general_hamming; onnx.reference HammingWindow",
    "blackman_window": "scipy.signal.windows.blackman; onnx.reference BlackmanWindow",
    "kaiser_window": "scipy.signal.windows.kaiser",
    "mel_weight_matrix": "onnx.reference MelWeightMatrix",
    "mel_filters": "librosa's documented mel_frequencies; triangles by numpy.interp",
    "frame": "numpy.lib.stride_tricks.sliding_window_view",
    "overlap_add": "onnx.reference Col2Im",
    "psd": "scipy.signal.periodogram",
    "welch": "scipy.signal.welch",
    "istft": "scipy.signal.ShortTimeFFT.istft",
    "convolve": "scipy.signal.convolve",
    "fft_convolve": "scipy.signal.fftconvolve",
    "fir": "scipy.signal.lfilter",
    "lfilter": "scipy.signal.lfilter",
    "sosfilt": "scipy.signal.sosfilt",
    "resample_poly": "scipy.signal.resample_poly",
    "resample": "scipy.signal.resample",
}
RNG = np.random.default_rng(11)
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
NORMS = ["backward", "ortho", "forward"]
F64 = "f64"


def close(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, **CLOSE)


def normal(*dims: int) -> np.ndarray:
    return RNG.normal(size=dims)


def complex_normal(*dims: int) -> np.ndarray:
    return normal(*dims) + 1j * normal(*dims)


# -- Fourier --------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", [1, 2, 7, 12])
def test_transforms_of_the_last_axis(n: int, norm: str) -> None:
    z, x = complex_normal(3, n), normal(3, n)
    close(ops.fft(z, norm=norm), np.fft.fft(z, norm=norm))
    close(ops.fft(z, norm=norm, inverse=True), np.fft.ifft(z, norm=norm))
    blocks = ops.fft(np.concatenate([z.real, z.imag], -1), norm=norm)
    close(blocks[:, :n] + 1j * blocks[:, n:], np.fft.fft(z, norm=norm))
    close(ops.ifft(z, norm=norm), np.fft.ifft(z, norm=norm))
    for length in (None, 4, 9):
        close(ops.rfft(x, n=length, norm=norm), np.fft.rfft(x, length, norm=norm))
    for length in (None, 4, 9) if n > 1 else (4, 9):
        close(ops.irfft(z, n=length, norm=norm), np.fft.irfft(z, length, norm=norm))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_transforms_over_axes(axes: tuple[int, ...], norm: str) -> None:
    z, x = complex_normal(4, 5, 6), normal(4, 5, 6)
    close(ops.fftn(z, axes=axes, norm=norm), scipy.fft.fftn(z, axes=axes, norm=norm))
    close(ops.fftn(x, axes=axes, norm=norm), scipy.fft.fftn(x, axes=axes, norm=norm))
    close(ops.ifftn(z, axes=axes, norm=norm), scipy.fft.ifftn(z, axes=axes, norm=norm))
    close(ops.rfftn(x, axes=axes, norm=norm), scipy.fft.rfftn(x, axes=axes, norm=norm))
    for n in (None, 7):
        sizes = None if n is None else [*(z.shape[a] for a in axes[:-1]), n]
        want = scipy.fft.irfftn(z, sizes, axes=axes, norm=norm)
        close(ops.irfftn(z, axes=axes, n=n, norm=norm), want)


def dft(x: np.ndarray, axis: int, inverse: bool, onesided: bool, length: int | None) -> np.ndarray:
    """ONNX's DFT, spelled in table ops: parts lie side by side on the last axis."""
    z = ops.view_as_complex(x) if x.shape[-1] == 2 else x[..., 0]
    if inverse and onesided:
        return ops.irfftn(z, axes=(axis,), n=length)[..., None]
    size = z.shape[axis] if length is None else length
    grow, rest = max(0, size - z.shape[axis]), [0] * z.ndim
    z = ops.pad(z, low=rest, high=[grow * (a == axis % z.ndim) for a in range(z.ndim)])
    z = ops.narrow(z, axis=axis, start=0, length=size)
    made = (ops.ifftn if inverse else ops.fftn)(z, axes=(axis,))
    if onesided:
        made = ops.narrow(made, axis=axis, start=0, length=size // 2 + 1)
    return ops.view_as_real(made)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("length", [None, 3, 9])
@pytest.mark.parametrize(("inverse", "onesided"), [*itertools.product([False, True], repeat=2)])
@pytest.mark.parametrize("parts", [1, 2])
def test_dft_of_onnx_can_be_spelled(
    parts: int, inverse: bool, onesided: bool, length: int | None, axis: int
) -> None:
    x = normal(5, 6, parts)
    if inverse and onesided and parts == 1:
        x = np.concatenate([x, 0 * x], -1)
    size = None if length is None else np.int64(length)
    attrs = {"inverse": int(inverse), "onesided": int(onesided)}
    (want,) = run_onnx("DFT", [x, size, np.int64(axis)], attrs)
    close(dft(x, axis, inverse, onesided, length), want)


@pytest.mark.parametrize("axes", [None, (0,), (1,)])
def test_shifts(axes: tuple[int, ...] | None) -> None:
    x = normal(5, 6)
    close(ops.fftshift(x, axes=axes), scipy.fft.fftshift(x, axes=axes))
    close(ops.ifftshift(x, axes=axes), scipy.fft.ifftshift(x, axes=axes))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies_have_numpys_sign(n: int) -> None:
    close(ops.fftfreq(n=n, d=0.5, dtype=F64), scipy.fft.fftfreq(n, 0.5))
    close(ops.rfftfreq(n=n, d=0.5, dtype=F64), scipy.fft.rfftfreq(n, 0.5))
    assert ops.fftfreq(n=4, dtype=F64)[2] == -0.5


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [2, 3, 8, 33])
def test_cosine_transforms(n: int, kind: int, norm: str) -> None:
    x = normal(3, n, 2)
    want = scipy.fft.dct(x, type=kind, axis=1, norm=norm)
    close(ops.dct(x, kind=kind, axis=1, norm=norm), want)
    want = scipy.fft.idct(x, type=kind, axis=1, norm=norm)
    close(ops.idct(x, kind=kind, axis=1, norm=norm), want)


# -- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("length", [0, 1, 2, 7, 16])
def test_windows(length: int, periodic: bool) -> None:
    windows, given = scipy.signal.windows, {"length": length, "periodic": periodic, "dtype": F64}
    sym = not periodic
    close(ops.hann_window(**given), windows.hann(length, sym))
    close(ops.hamming_window(**given), windows.hamming(length, sym))
    want = windows.general_hamming(length, 0.7, sym)
    close(ops.hamming_window(**given, alpha=0.7), want)
    close(ops.blackman_window(**given), windows.blackman(length, sym))
    for beta in (0.0, 5.0, 14.0):
        close(ops.kaiser_window(**given, beta=beta), windows.kaiser(length, beta, sym))


@pytest.mark.parametrize("periodic", [True, False])
def test_windows_of_onnx(periodic: bool) -> None:
    given = {"length": 11, "periodic": periodic, "dtype": F64}
    attrs = {"periodic": int(periodic), "output_datatype": 11}
    ours = {
        "HannWindow": ops.hann_window(**given),
        "HammingWindow": ops.hamming_window(**given, alpha=25 / 46),
        "BlackmanWindow": ops.blackman_window(**given),
    }
    for name, got in ours.items():
        close(got, run_onnx(name, [np.int64(11)], attrs)[0])


@pytest.mark.parametrize(
    ("bands", "length", "rate", "low", "high"),
    [(8, 16, 8192, 0.0, 4096.0), (40, 400, 16000, 20.0, 7600.0), (5, 64, 8000, 300.0, 900.0)],
)
def test_mel_weights_of_onnx(bands: int, length: int, rate: int, low: float, high: float) -> None:
    inputs = [np.int64(bands), np.int64(length), np.int64(rate), np.float32(low), np.float32(high)]
    (want,) = run_onnx("MelWeightMatrix", inputs, {"output_datatype": 11})
    got = ops.mel_weight_matrix(
        num_mel_bins=bands, dft_length=length, sample_rate=rate, lower_edge_hertz=low,
        upper_edge_hertz=high, dtype=F64,
    )  # fmt: skip
    close(got, want)


MEL_40 = """0 85.317 170.635 255.952 341.269 426.586 511.904 597.221 682.538 767.855 853.173 938.49
1024.856 1119.114 1222.042 1334.436 1457.167 1591.187 1737.532 1897.337 2071.84 2262.393 2470.47
2697.686 2945.799 3216.731 3512.582 3835.643 4188.417 4573.636 4994.285 5453.621 5955.205 6502.92
7101.009 7754.107 8467.272 9246.028 10096.408 11025"""
"""What librosa documents as mel_frequencies(n_mels=40): 0 to 11025 Hz, to three decimals."""


def triangles(corners: np.ndarray, bins: np.ndarray) -> np.ndarray:
    """Each filter drawn as a polygon: 0 at the outer corners, 1 at the middle one."""
    trio = np.stack([corners[:-2], corners[1:-1], corners[2:]], 1)
    return np.stack([np.interp(bins, t, [0.0, 1.0, 0.0], 0.0, 0.0) for t in trio])


@pytest.mark.parametrize("norm", ["slaney", "none"])
@pytest.mark.parametrize("scale", ["slaney", "htk"])
def test_mel_filters(scale: str, norm: str) -> None:
    if scale == "slaney":
        # Given to half a thousandth of a hertz, and no side of a triangle is below 85 Hz.
        corners, atol = np.array([float(v) for v in MEL_40.split()]), 2 * 5e-4 / 85
    else:
        mels = np.linspace(0.0, 2595 * np.log10(1 + 11025 / 700), 40)
        corners, atol = 700 * np.expm1(mels / 2595 * np.log(10)), 1e-12
    bins = np.arange(1025) * (22050 / 2048)
    want = triangles(corners, bins)
    if norm == "slaney":
        want *= 2 / (corners[2:] - corners[:-2])[:, None]
        atol *= 2 * 2 / 170
    got = ops.mel_filters(
        sample_rate=22050.0, n_fft=2048, n_mels=38, scale=scale, norm=norm, dtype=F64
    )
    np.testing.assert_allclose(got, want, rtol=0, atol=atol)


# -- frames and spectra ---------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "hop"), [(1, 1), (4, 3), (6, 2), (5, 7)])
def test_frames_and_back(length: int, hop: int) -> None:
    x = normal(2, 20)
    want = np.lib.stride_tricks.sliding_window_view(x, length, 1)[:, ::hop]
    close(ops.frame(x, length=length, hop=hop), want)
    frames = want.shape[1]
    total = (frames - 1) * hop + length
    shape = [np.array([1, total]), np.array([1, length])]
    (added,) = run_onnx("Col2Im", [want.transpose(0, 2, 1), *shape], {"strides": [1, hop]})
    close(ops.overlap_add(want, hop=hop), added[:, 0, 0])


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("hop", [3, 8])
def test_stft(hop: int, windowed: bool) -> None:
    x = normal(2, 40)
    window = scipy.signal.windows.hann(8, False) if windowed else np.ones(8)
    (want,) = run_onnx("STFT", [x[..., None], np.int64(hop), window, np.int64(8)], {"onesided": 1})
    got = ops.stft(x, window, n_fft=8, hop=hop)
    close(ops.view_as_real(got), want)


@pytest.mark.parametrize("hop", [3, 8])
def test_power_of_frames(hop: int) -> None:
    """SciPy's frames are centred on points from 0 on; those that lie inside are ours."""
    x, window, filters = normal(2, 40), RNG.random(8) + 0.1, normal(5, 3)
    got = ops.power_frames(x, window, n_fft=8, hop=hop)
    theirs = scipy.signal.ShortTimeFFT(window, 1, 1.0, scale_to=None, phase_shift=None)
    every = np.swapaxes(theirs.spectrogram(x, p0=4, p1=37), -1, -2)
    close(got, every[:, ::hop])
    bands = ops.mel_frames(x, filters, window, n_fft=8, hop=hop)
    close(bands, np.einsum("bfk,km->bfm", every[:, ::hop], filters))
    _, want = scipy.signal.welch(
        x, window=window, nperseg=8, noverlap=8 - hop, detrend=False, return_onesided=True
    )
    want[:, 1:-1] /= 2
    close(ops.mean_power(x, window, n_fft=8, hop=hop), want * np.sum(window**2))


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize(("n_fft", "hop"), [(8, 2), (8, 4), (9, 3)])
def test_istft_gives_the_signal_back(n_fft: int, hop: int, center: bool) -> None:
    """Where windows cover it; each end of a Hamming window is above 0."""
    x, window = normal(2, 41), scipy.signal.windows.hamming(n_fft, False)
    spectra = ops.stft(x, window, n_fft=n_fft, hop=hop, center=center)
    got = ops.istft(spectra, window, n_fft=n_fft, hop=hop, center=center)
    close(got, x[:, : got.shape[1]])
    for length in (3, 60):
        cut = ops.istft(spectra, window, n_fft=n_fft, hop=hop, center=center, length=length)
        wide = np.pad(got, [(0, 0), (0, 60)])[:, :length]
        close(cut, wide)


def test_istft_of_any_spectra() -> None:
    """Frames that no signal has give the one nearest to them: SciPy's dual window says the same
    where all frames that cover a point are there, which is between their centres."""
    window, hop, frames = scipy.signal.windows.hann(8, False), 4, 11
    spectra = complex_normal(frames, 5)
    theirs = scipy.signal.ShortTimeFFT(window, hop, 1.0, scale_to=None, phase_shift=None)
    want = theirs.istft(spectra.T, 0, (frames - 1) * hop)
    close(ops.istft(spectra, window, n_fft=8, hop=hop, center=True), want)


@pytest.mark.parametrize("scaling", ["density", "spectrum"])
@pytest.mark.parametrize("n", [1, 8, 9])
def test_psd(n: int, scaling: str) -> None:
    x, window = normal(3, n), RNG.random(n) + 0.1
    given = {"fs": 16.0, "scaling": scaling}
    for w in (None, window):
        _, want = scipy.signal.periodogram(
            x, window=np.ones(n) if w is None else w, detrend=False, **given
        )
        close(ops.psd(x, *([] if w is None else [w]), **given), want)


@pytest.mark.parametrize("scaling", ["density", "spectrum"])
@pytest.mark.parametrize(("length", "hop"), [(8, 8), (8, 4), (9, 2)])
def test_welch(length: int, hop: int, scaling: str) -> None:
    x, window = normal(2, 50), scipy.signal.windows.hann(length, False)
    given = {"fs": 4.0, "scaling": scaling}
    _, want = scipy.signal.welch(
        x, window=window, nperseg=length, noverlap=length - hop, detrend=False, **given
    )
    close(ops.welch(x, window, length=length, hop=hop, **given), want)


def spectrum_blocks(x: np.ndarray) -> np.ndarray:
    z = np.fft.fft(x)
    return np.concatenate([z.real, z.imag], -1)


@pytest.mark.parametrize("n_fft", [8, 9, 64])
def test_welch_peaks(n_fft: int) -> None:
    """SciPy's density is the mean of |X|² over n_fft, at a rate of 1."""
    x, segments, k = normal(3, 5 * n_fft), 5, 4
    _, density = scipy.signal.welch(
        x, window="boxcar", nperseg=n_fft, noverlap=0, detrend=False, scaling="density"
    )
    order = np.argsort(-density, -1, kind="stable")[:, :k]
    blocks = spectrum_blocks(x.reshape(3 * segments, n_fft))
    peaks = ops.welch_peaks(blocks, k=k, n_segments=segments).reshape(3, k, 2)
    np.testing.assert_array_equal(peaks[..., 0], order)
    close(peaks[..., 1], np.take_along_axis(density, order, -1) * n_fft)


def test_welch_peaks_take_the_lower_bin_of_equals() -> None:
    blocks = np.zeros((1, 16))
    blocks[0, [1, 2, 3]] = 1.0  # three inner bins of power 1, twice
    peaks = ops.welch_peaks(blocks, k=6, n_segments=1)[0].reshape(6, 2)
    np.testing.assert_array_equal(peaks[:, 0], [1, 2, 3, 0, 4, 0])
    np.testing.assert_array_equal(peaks[:, 1], [2, 2, 2, 0, 0, 0])


@pytest.mark.parametrize(
    ("dims", "k", "n_segments"),
    [((2, 6, 3), 1, 1), ((2, 5), 1, 1), ((3, 8), 1, 2), ((2, 8), 0, 1), ((2, 8), 1, 0)],
    ids=["rank", "odd length", "half a group", "no peak", "no segment"],
)
def test_welch_peaks_refuses(dims: tuple[int, ...], k: int, n_segments: int) -> None:
    with pytest.raises(GraphError):
        ops.welch_peaks(np.zeros(dims), k=k, n_segments=n_segments)


def test_log_mel() -> None:
    """Per frame: power of each bin, log10 of the filtered sum from 1e-10 on, at most 8 below the
    frame's greatest, then (v + 4) / 4."""
    x, filters = normal(3, 12) * np.array([[1.0], [1e-9], [0.0]]), RNG.random((4, 7))
    filters[1] *= 1e-12
    z = np.fft.rfft(x)
    want = np.empty((3, 4))
    for frame, band in np.ndindex(3, 4):
        power = sum(f * (v.real**2 + v.imag**2) for f, v in zip(filters[band], z[frame]))
        want[frame, band] = np.log10(max(power, 1e-10))
    for frame in range(3):
        want[frame] = (np.maximum(want[frame], want[frame].max() - 8) + 4) / 4
    close(ops.log_mel(spectrum_blocks(x), filters), want)
    assert (want[2] == -1.5).all()


# -- filters --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (9, 4), (5, 5), (20, 7)])
def test_convolutions(n: int, m: int, mode: str) -> None:
    x, y = normal(3, n), normal(1, m)
    want = scipy.signal.convolve(x, y, mode, method="direct")
    close(ops.convolve(x, y, mode=mode), want)
    close(ops.fft_convolve(x, y, mode=mode), scipy.signal.fftconvolve(x, y, mode, axes=-1))
    close(ops.convolve(x, y[0], mode=mode), want)


@pytest.mark.parametrize(("nb", "na"), [(1, 1), (3, 1), (1, 4), (4, 3), (2, 5)])
def test_recursive_filters(nb: int, na: int) -> None:
    b, a, x = normal(nb), np.concatenate([[2.0], normal(na - 1) * 0.3]), normal(2, 3, 30)
    if na == 1:
        close(ops.fir(b / a[0], x), scipy.signal.lfilter(b, a, x))
    state = normal(2, 3, max(nb, na) - 1)
    zeros = np.zeros_like(state)
    for zi in (zeros, state):
        want_y, want_z = scipy.signal.lfilter(b, a, x, zi=zi)
        y, z = ops.lfilter(b, a, x, *([] if zi is zeros else [zi]))
        close(y, want_y)
        close(z, want_z)


def test_second_order_sections() -> None:
    sos = scipy.signal.butter(5, 0.3, output="sos")
    x, state = normal(2, 40), normal(len(sos), 2, 2)
    y, z = ops.sosfilt(sos, x, state)
    want_y, want_z = scipy.signal.sosfilt(sos, x, zi=state)
    close(y, want_y)
    close(z, want_z)
    close(ops.sosfilt(sos, x)[0], scipy.signal.sosfilt(sos, x))


def test_a_filter_goes_on_where_it_stopped() -> None:
    sos, x = scipy.signal.butter(4, 0.2, output="sos"), normal(50)
    whole, _ = ops.sosfilt(sos, x)
    first, state = ops.sosfilt(sos, x[:21])
    rest, _ = ops.sosfilt(sos, x[21:], state)
    close(np.concatenate([first, rest]), whole)


@pytest.mark.parametrize(("up", "down"), [(1, 1), (2, 1), (1, 2), (3, 2), (2, 3), (4, 6), (5, 5)])
@pytest.mark.parametrize("n", [1, 7, 40])
def test_resampling_by_a_ratio(n: int, up: int, down: int) -> None:
    x = normal(2, n)
    close(ops.resample_poly(x, up=up, down=down), scipy.signal.resample_poly(x, up, down, axis=-1))
    for m in (1, 4, 9):
        taps = normal(m)
        want = scipy.signal.resample_poly(x, up, down, axis=-1, window=taps)
        close(ops.resample_poly(x, taps, up=up, down=down), want)


@pytest.mark.parametrize(("up", "down"), [(1, 2), (3, 2), (2, 3), (1, 5)])
def test_what_is_not_finite_reaches_no_further_than_the_taps(up: int, down: int) -> None:
    """Where a ratio is spelled out in other ops, too."""
    x = normal(2, 40)
    x[0, 11], x[1, 20] = np.inf, np.nan
    lowered = lookup("resample_poly").lower
    assert lowered is not None
    for m in (1, 2, 3, 5, 7):
        taps = normal(m)
        want = ops.resample_poly(x, taps, up=up, down=down)
        got = lowered(x, taps, up=up, down=down)
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))


@pytest.mark.parametrize("num", [1, 4, 7, 8, 9, 16])
@pytest.mark.parametrize("n", [1, 7, 8])
def test_resampling_through_the_spectrum(n: int, num: int) -> None:
    x = normal(2, n)
    close(ops.resample(x, num=num), scipy.signal.resample(x, num, axis=-1))
