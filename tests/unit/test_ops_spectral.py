"""Fourier transforms, frames and Welch estimates against NumPy and worked numbers."""

from __future__ import annotations

import numpy as np
import pytest

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.op import lookup

F32 = DType.F32
RNG = np.random.default_rng(7)


def normal(*dims: int) -> np.ndarray:
    return RNG.normal(size=dims).astype(np.float32)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("inverse", [False, True])
def test_fft_has_numpys_meaning_in_block_layout(norm, inverse):
    x = normal(3, 14)
    z = x[:, :7].astype(np.complex128) + 1j * x[:, 7:]
    want = (np.fft.ifft if inverse else np.fft.fft)(z, norm=norm)
    got = ops.fft(x, inverse=inverse, norm=norm)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.concatenate([want.real, want.imag], -1).astype("f4"))
    plain = ops.fft(z.astype(np.complex64), inverse=inverse, norm=norm)
    assert plain.dtype == np.complex64
    # the operand was rounded to c64: one rounding of each of 7 terms, scaled by at most 1
    np.testing.assert_allclose(plain, want, rtol=0, atol=8 * 2**-23 * np.abs(z).sum(-1).max())


def test_fft_and_back_is_the_signal():
    x = normal(2, 10)
    # two transforms, each rounded once; sums of 5 terms
    np.testing.assert_allclose(ops.fft(ops.fft(x), inverse=True), x, atol=8 * 2**-23 * 10)


def test_fft_of_an_odd_length_is_an_error():
    with pytest.raises(GraphError, match="not even"):
        ops.fft(normal(3, 7))
    with pytest.raises(GraphError, match="not even"):
        lookup("fft")(Shape([Dim("n")], F32))
    n = Dim("n")
    assert lookup("fft")(Shape([2 * n], F32)).dims == (2 * n,)


@pytest.mark.parametrize("n", [None, 1, 4, 7, 12])
def test_rfft_and_irfft_are_numpys(n):
    x = normal(2, 9)
    spectrum = ops.rfft(x, n=n)
    assert spectrum.dtype == np.complex64
    wide = np.fft.rfft(x.astype(np.float64), n)
    np.testing.assert_array_equal(spectrum, wide.astype(np.complex64))
    back = ops.irfft(spectrum, n=n)
    assert back.dtype == np.float32
    want = np.fft.irfft(spectrum.astype(np.complex128), n)
    np.testing.assert_array_equal(back, want.astype(np.float32))


def test_ifft_takes_real_and_complex_numbers():
    x = normal(5)
    np.testing.assert_array_equal(ops.ifft(x), np.fft.ifft(x.astype("f8")).astype(np.complex64))


def test_a_transform_of_nothing_is_an_error():
    with pytest.raises(GraphError, match="at least one"):
        ops.rfft(normal(2, 0))
    with pytest.raises(GraphError, match="at least one"):
        ops.irfft(np.zeros((2, 1), np.complex64))


def test_stft_is_the_transform_of_each_frame():
    x, window = normal(2, 20), np.hanning(8).astype(np.float32)
    got = ops.stft(x, window, n_fft=8, hop=3)
    assert got.shape == (2, 5, 5)
    for i in range(5):
        frame = x[:, 3 * i : 3 * i + 8].astype("f8") * window
        np.testing.assert_array_equal(got[:, i], np.fft.rfft(frame).astype(np.complex64))
    centred = ops.stft(x, n_fft=8, hop=4, center=True)
    mirrored = np.pad(x, [(0, 0), (4, 4)], mode="reflect")
    np.testing.assert_array_equal(centred, ops.stft(mirrored, n_fft=8, hop=4))
    with pytest.raises(GraphError, match="longer than the signal"):
        ops.stft(x, n_fft=32, hop=4)


def test_log_mel_by_hand():
    """n_fft 4: bins 0, 1, 2; powers 1, 100, 0; two bands, of which the second is silent."""
    spectrum = np.array([1, 0, 0, 9, 0, 10, 0, 9], np.float32)
    filters = np.array([[1, 0.5, 0], [0, 0, 1]], np.float32)
    loud, silent = np.log10(51.0), np.log10(51.0) - 8
    got = ops.log_mel(spectrum, filters)
    np.testing.assert_allclose(got, [(loud + 4) / 4, (silent + 4) / 4], rtol=4 * 2**-23)
    floor = ops.log_mel(np.zeros((1, 8), np.float32), filters)
    np.testing.assert_allclose(floor, np.full((1, 2), (-10 + 4) / 4), rtol=4 * 2**-23)
    with pytest.raises(GraphError, match="bins"):
        ops.log_mel(spectrum, filters[:, :2])


def test_welch_peaks_by_hand():
    """n_fft 4, two segments: mean powers 4, 2·1, 9 over bins 0, 1, 2; only the middle doubles."""
    segment = np.array([[2, 1, 3, 7, 0, 0, 0, 7]], np.float32)
    got = ops.welch_peaks(np.vstack([segment, segment]), k=2, n_segments=2)
    np.testing.assert_array_equal(got, [[2, 9, 0, 4]])
    wide = ops.welch_peaks(np.vstack([segment, segment]), k=5, n_segments=2)
    np.testing.assert_array_equal(wide, [[2, 9, 0, 4, 1, 2, 0, 0, 0, 0]])


def test_welch_ties_go_to_the_lower_bin():
    flat = np.zeros((1, 16), np.float32)
    np.testing.assert_array_equal(
        ops.welch_peaks(flat, k=3, n_segments=1), [[0, 0, 1, 0, 2, 0]]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dims", "attrs", "reason"),
    [
        ([4, 7], {"k": 1, "n_segments": 2}, "not even"),
        ([5, 8], {"k": 1, "n_segments": 2}, "whole groups"),
        ([4, 8], {"k": 0, "n_segments": 2}, "at least 1"),
        ([4, 8], {"k": 1, "n_segments": 0}, "at least 1"),
        ([4, 8, 2], {"k": 1, "n_segments": 2}, "2 dims"),
        ([4, 0], {"k": 1, "n_segments": 2}, "at least one point"),
    ],
)
def test_welch_refuses(dims, attrs, reason):
    with pytest.raises(GraphError, match=reason):
        lookup("welch_peaks")(Shape(dims, F32), **attrs)


def test_what_syncs_and_what_ends():
    for name in ("log_mel", "welch_peaks", "custom"):
        assert lookup(name).syncs_host
    assert lookup("welch_peaks").is_epilogue
    assert not lookup("fft").syncs_host
