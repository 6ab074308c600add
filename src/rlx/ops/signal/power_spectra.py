"""Power spectra of frames, mean power and mel features, each as one fused kernel.

Each is defined by its decomposition, as fused ops are. A dedicated kernel holds a frame, its
spectrum and its power in cache: only the result is written to memory.
"""

from __future__ import annotations

from typing import Any, Literal

from rlx import ops
from rlx.ops.compose import composed, dims_of, dtype_of
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Kind
from rlx.ops.signal.fft import sides_of

Pad = Literal["reflect", "zeros"]


@composed("f[*b t], f[n_fft]? -> f[*b ...]", kind=Kind.SPECIAL, has_fft=True, draw="plain")
def power_frames(
    x: Any, window: Any = None, *, n_fft: int, hop: int, center: bool = False, pad: Pad = "reflect"
) -> Any:
    """The squared magnitude of the `stft`: [..., frames, n_fft // 2 + 1]."""
    given = [x] if window is None else [x, window]
    power = ops.complex_norm_sq(ops.stft(*given, n_fft=n_fft, hop=hop, center=center, pad=pad))
    return _as(power, x)


@composed("f[*b t], f[n_fft]? -> f[*b ...]", kind=Kind.SPECIAL, has_fft=True, draw="plain")
def mean_power(
    x: Any,
    window: Any = None,
    *,
    n_fft: int,
    hop: int,
    center: bool = False,
    pad: Pad = "reflect",
    one_sided: bool = False,
) -> Any:
    """The mean of `power_frames` over all frames: [..., n_fft // 2 + 1]. Half floats are rounded
    once, behind the mean. With `one_sided`, bins that have a mirror image count twice."""
    given = _widened(x, window)
    power = ops.power_frames(*given, n_fft=n_fft, hop=hop, center=center, pad=pad)
    mean = ops.mean(power, axes=(len(dims_of(power)) - 2,))
    return _as(ops.mul(mean, sides_of(n_fft, dtype_of(mean).numpy)) if one_sided else mean, x)


def _widened(*values: Any) -> list[Any]:
    """What is given of the values, half floats as f32."""
    return [
        v if dtype_of(v).compute is dtype_of(v) else ops.cast(v, to=dtype_of(v).compute)
        for v in values
        if v is not None
    ]


def _as(made: Any, x: Any) -> Any:
    return made if dtype_of(made) is dtype_of(x) else ops.cast(made, to=dtype_of(x))


@composed(
    "f[*b t], f[bins m], f[n_fft]? -> f[*b ... m]", kind=Kind.SPECIAL, has_fft=True, draw="plain"
)
def mel_frames(
    x: Any,
    filters: Any,
    window: Any = None,
    *,
    n_fft: int,
    hop: int,
    center: bool = False,
    pad: Pad = "reflect",
) -> Any:
    """`power_frames` times `filters`: of each frame the power in every band. Half floats are
    rounded once, behind the product."""
    bands, *given = _widened(filters, x, window)
    power = ops.power_frames(*given, n_fft=n_fft, hop=hop, center=center, pad=pad)
    return _as(ops.matmul(power, bands), x)


def _drawn(draw: Draw) -> tuple[list[Spec], list[Spec], dict[str, Any]]:
    """A signal, a window if any, and attributes."""
    n_fft, hop, dtype = draw.integer(1, 12), draw.integer(1, 5), draw.dtype("f")
    x = Spec((*draw.dims(0, 2), n_fft + draw.integer(0, 9)), dtype, "plain")
    window = [Spec((n_fft,), dtype, "plain")] if draw.coin() else []
    attrs = {"center": draw.coin(), "pad": draw.choice(("reflect", "zeros"))}
    return [x], window, {"n_fft": n_fft, "hop": hop, **attrs}


@power_frames.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    x, window, attrs = _drawn(draw)
    return [*x, *window], attrs


@mean_power.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    x, window, attrs = _drawn(draw)
    return [*x, *window], {**attrs, "one_sided": draw.coin()}


@mel_frames.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    x, window, attrs = _drawn(draw)
    filters = Spec((attrs["n_fft"] // 2 + 1, draw.size()), x[0].dtype, "unit")
    return [*x, filters, *window], attrs
