"""Transforms, windows and losses beyond ONNX's own cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.onnx.nodes import agrees, gives

RNG = np.random.default_rng(11)


def values(*dims: int, dtype: Any = np.float32) -> Any:
    return RNG.normal(size=dims).astype(dtype)


@pytest.mark.parametrize("length", [None, 4, 9])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
def test_lengths_of_a_transform(length: int | None, parts: int, inverse: int) -> None:
    arrays = [values(2, 6, parts), None if length is None else np.array(length)]
    agrees("DFT", arrays, opset=17, known=(1,), axis=1, inverse=inverse)
    arrays.append(np.array(-2))
    agrees("DFT", arrays, opset=20, known=(1, 2), inverse=inverse, dims=["n", 6, parts])


@pytest.mark.parametrize("axis", [0, 1])
def test_halves_of_a_transform(axis: int) -> None:
    arrays = [values(6, 5, 1), None, np.array(axis)]
    agrees("DFT", arrays, opset=20, known=(2,), onesided=1)
    agrees("DFT", arrays, opset=20, known=(2,), onesided=1, dims=["n", "l", 1])
    arrays = [values(6, 5, 2), np.array(7), np.array(axis)]
    agrees("DFT", arrays, opset=20, known=(1, 2), onesided=1, inverse=1)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_frames(onesided: int, dtype: Any) -> None:
    arrays = [values(2, 20, 1, dtype=dtype), np.array(3), values(8, dtype=dtype)]
    dims = ["batch", "time", 1]
    agrees("STFT", arrays, opset=17, known=(1,), onesided=onesided, dims=dims)


def test_frames_of_complex_numbers() -> None:
    x = values(2, 20, 2)
    starts = range(0, 13, 4)
    frames = np.stack([x[:, s : s + 8] for s in starts], 1)
    made = np.fft.fft(frames[..., 0] + 1j * frames[..., 1])
    wanted = np.stack([made.real, made.imag], -1).astype(np.float32)
    arrays = [x, np.array(4), None, np.array(8)]
    gives("STFT", arrays, wanted, opset=17, known=(1, 3), onesided=0)


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(op: str, periodic: int) -> None:
    how: dict[str, Any] = {"opset": 17, "periodic": periodic, "known": (0,)}
    agrees(op, [np.array(9)], output_datatype=TensorProto.DOUBLE, **how)


def test_a_window_of_one_point() -> None:
    """Which ONNX has at the start of its period: 0."""
    gives("HannWindow", [np.array(1)], np.zeros(1, np.float32), opset=17, known=(0,))


def test_log_probabilities_beside_a_loss() -> None:
    arrays = [values(3, 5, 2), RNG.integers(0, 5, (3, 2)), abs(values(5))]
    for opset in (12, 13):
        agrees("SoftmaxCrossEntropyLoss", arrays, opset=opset, outputs=2, reduction="sum")
