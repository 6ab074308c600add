"""Power of signals in a band of frequencies: a traced function, which also runs on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

import rlx
from rlx import ops

RATE_HZ = 256


@rlx.jit
def band_power(x: Any, *, low_hz: int, high_hz: int) -> Any:
    """The mean power between two frequencies, of a second of each signal."""
    spectrum = ops.rfft(x * np.hanning(RATE_HZ).astype(np.float32))
    return ops.mean(ops.abs(spectrum[..., low_hz:high_hz]) ** 2, axes=-1)


def main() -> None:
    seconds = np.arange(RATE_HZ, dtype=np.float32) / RATE_HZ
    signals = np.stack([np.sin(2 * np.pi * hz * seconds) for hz in (2, 10, 40)]).astype(np.float32)
    alpha = band_power(signals, low_hz=8, high_hz=13)
    print("power between 8 and 13 Hz:", alpha)
    assert alpha.argmax() == 1

    exact = np.abs(np.fft.rfft(signals * np.hanning(RATE_HZ)))[:, 8:13] ** 2
    assert np.allclose(alpha, exact.mean(-1), rtol=1e-3, atol=1e-2)  # f32 spectra of power 1e3


if __name__ == "__main__":
    main()
