"""Short-time spectra: stft, power_frames, mean_power (Welch's mean), mel_frames.

A block transforms several frames at once. Of a mean only the sum of powers counts: two frames are
one complex transform, |F₁|² + |F₂|² = (|Z_k|² + |Z_-k|²)/2, so spectra need not be separated.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.gpu.library.fft.butterflies import Complex
from rlx.backends.gpu.library.fft.fft import static_length
from rlx.backends.gpu.library.fft.frames import Frames
from rlx.backends.gpu.library.fft.mean import MeanPower
from rlx.backends.gpu.library.fft.mel import MelProduct
from rlx.backends.gpu.library.fft.rows import Spectra
from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.sort.keys import Rows
from rlx.backends.gpu.library.writer import Writer
from rlx.backends.gpu.task import GpuTask
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal
from rlx.ops.signal.fft import num_frames
from rlx.program.values import Var


def _framed(
    made: Launches, store: Callable[[Writer, Rows, Var, Var, Complex, Var | None], None]
) -> Schedule[GpuTask]:
    """Every bin of every frame to its place in the result."""
    y = made.result()
    frames, to = Frames.of(made, y.layout.dims[-2]), Rows(y, len(y.layout.dims) - 1)

    def emit(w: Writer, row: Var, k: Var, value: Complex, mask: Var | None) -> None:
        store(w, to, row, k, value, mask)

    given = Spectra(made, frames.n, frames.dtype, frames.total, frames.reads, (y,), emit)
    given.real_rows(frames.point, frames.pairs)
    return made.schedule()


def make_stft(made: Launches) -> Schedule[GpuTask] | Refusal:
    """The spectrum of every frame."""

    def store(w: Writer, to: Rows, row: Var, k: Var, value: Complex, mask: Var | None) -> None:
        parts = [v.to(to.view.dtype.real) for v in value]
        w.store(to.view, to.at(w, row, k), parts, mask)

    return _framed(made, store)


def make_power_frames(made: Launches) -> Schedule[GpuTask] | Refusal:
    """The squared magnitude of every bin of every frame."""

    def store(w: Writer, to: Rows, row: Var, k: Var, value: Complex, mask: Var | None) -> None:
        w.store(to.view, to.at(w, row, k), [power(value).to(to.view.dtype)], mask)

    return _framed(made, store)


def power(value: Complex) -> Var:
    re, im = value
    return re.builder.fma(re, re, im * im)


def _count(made: Launches) -> Frames:
    attrs = made.node.attrs
    t = made.special.operands[0].dims[-1]
    count = num_frames(t, n_fft=attrs["n_fft"], hop=attrs["hop"], center=attrs["center"])
    return Frames.of(made, count)


def make_mean_power(made: Launches) -> Schedule[GpuTask] | Refusal:
    """The mean power of every bin over all frames of a signal."""
    return MeanPower(made, _count(made), made.node.attrs["one_sided"]).schedule()


def make_mel_frames(made: Launches) -> Schedule[GpuTask] | Refusal:
    """The power of every frame in every band."""
    y, filters = made.result(), made.operand(1)
    frames = Frames.of(made, y.layout.dims[-2], window=2)
    bands = static_length(made, filters.layout.dims[1])
    return MelProduct(made, frames, filters, bands).schedule()
