"""Digital filters along the last axis: IIR filters, and resampling.

Semantics and argument order of filters are SciPy's: coefficients first, then the signal.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rlx import ops
from rlx.core.dim import Dim, DimLike, dim_max, product
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.compose import composed, dims_of, dtype_of, nullary, shape_of
from rlx.ops.control_flow import scan_loop
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array, Kind, op
from rlx.ops.signal.fft import resized
from rlx.ops.signal.framing import positions

# -- without feedback -----------------------------------------------------------------------------


@composed("f[m], f[*b n] -> f[*b n]", kind=Kind.SPECIAL, draw="plain")
def fir(taps: Any, x: Any) -> Any:
    """y[t] = Σ taps[i] · x[t - i], with zeros before the signal."""
    if dims_of(taps)[0] == 0 or dims_of(x)[-1] == 0:
        raise GraphError("a filter needs a tap, and a signal a point")
    whole = ops.convolve(x, taps, mode="full")
    return ops.narrow(whole, axis=-1, start=0, length=dims_of(x)[-1])


@fir.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dtype, dims = draw.dtype("f"), (*draw.dims(0, 2), draw.size(1))
    return [Spec((draw.size(1),), dtype, "plain"), Spec(dims, dtype, "plain")], {}


# -- with feedback --------------------------------------------------------------------------------


def order_of(b: Shape, a: Shape) -> int:
    """How many past values a filter keeps."""
    sizes = [s.dims[0] for s in (b, a)]
    known = [n for n in sizes if not isinstance(n, Dim)]
    if len(known) < 2 or 0 in known:
        raise GraphError(f"coefficients are {b} and {a}: both need a known number, from 1 on")
    return max(known) - 1


def _lfilter_shape(b: Shape, a: Shape, x: Shape, *zi: Shape) -> tuple[Shape, Shape]:
    state = x.with_dims([*x.dims[:-1], order_of(b, a)])
    if zi and zi[0] != state:
        raise GraphError(f"operand 3 is {zi[0]}, expected a state of {state}")
    return x, state


@op("f[nb], f[na], f[*b t], f[...]? -> f[*b t], f[...]", kind=Kind.SPECIAL,
    shape=_lfilter_shape, flops="2*size2*(nb + na)", draw="plain")  # fmt: skip
def lfilter(b: Array, a: Array, x: Array, zi: Array | None = None) -> tuple[Array, Array]:
    """The recursive filter a₀ y[t] = Σ b[i] x[t - i] - Σ a[i] y[t - i], i > 0 in the second sum,
    in the transposed direct form II; and its last state. `zi` is the state to begin with, of
    max(nb, na) - 1 values per signal; without it, zeros."""
    order = max(len(b), len(a)) - 1
    z = np.zeros((*x.shape[:-1], order), x.dtype) if zi is None else np.array(zi)
    ahead, back = (np.pad(v / a[0], (0, order + 1 - len(v))) for v in (b, a))
    y = np.empty_like(x)
    for t in range(x.shape[-1]):
        now = x[..., t, None]
        out = ahead[0] * now + (z[..., :1] if order else 0)
        later = np.concatenate([z[..., 1:], np.zeros_like(z[..., :1])], -1)
        z = later + ahead[1:] * now - back[1:] * out
        y[..., t] = out[..., 0]
    return y, z


@lfilter.lowering
def _(b: Any, a: Any, x: Any, zi: Any = None) -> tuple[Any, Any]:
    order, dims = order_of(shape_of(b), shape_of(a)), dims_of(x)
    scale = ops.narrow(a, axis=0, start=0, length=1)
    ahead, back = (_filled(ops.div(v, scale), order + 1) for v in (b, a))
    if zi is None:
        zero = nullary(x, "extent", dim=0, dtype=dtype_of(x))
        zi = ops.expand(zero, dims=(*dims[:-1], order))
    steps = ops.transpose(x, perm=(len(dims) - 1, *range(len(dims) - 1)))
    z, y = _scanned(zi, steps, ahead, back, dims[-1])
    return ops.transpose(y, perm=(*range(1, len(dims)), 0)), z


def _filled(coefficients: Any, count: int) -> Any:
    short = count - int(dims_of(coefficients)[0])
    return ops.pad(coefficients, low=(0,), high=(short,), value=0.0) if short else coefficients


def _scanned(z: Any, steps: Any, ahead: Any, back: Any, length: DimLike) -> tuple[Any, Any]:
    """The recurrence over the first axis of `steps`: the last state and what came out."""

    def body(state: Any, now: Any, b: Any, a: Any) -> tuple[Any, Any]:
        return _step(state, ops.expand_dims(now, axes=(len(dims_of(now)),)), b, a)

    return scan_loop(body, z, steps, (ahead, back), length)


def _step(z: Any, now: Any, b: Any, a: Any) -> tuple[Any, Any]:
    """The next state and the output of one point."""
    axis, order = len(dims_of(z)) - 1, int(dims_of(z)[-1])
    out = ops.mul(ops.narrow(b, axis=0, start=0, length=1), now)
    if order:
        out = ops.add(out, ops.narrow(z, axis=axis, start=0, length=1))
        later = ops.narrow(z, axis=axis, start=1, length=order - 1)
        later = ops.pad(later, low=(0,) * (axis + 1), high=(*(0,) * axis, 1), value=0.0)
        fed, kept = (ops.narrow(v, axis=0, start=1, length=order) for v in (b, a))
        z = ops.sub(ops.add(later, ops.mul(fed, now)), ops.mul(kept, out))
    return z, ops.squeeze(out, axes=(axis,))


@lfilter.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dtype, outer = draw.dtype("f"), draw.dims(0, 2)
    nb, na = draw.integer(1, 4), draw.integer(1, 4)
    specs = [Spec((n,), dtype, "positive") for n in (nb, na)]
    specs.append(Spec((*outer, draw.size()), dtype, "plain"))
    state = Spec((*outer, max(nb, na) - 1), dtype, "plain")
    return [*specs, state] if draw.coin() else specs, {}


def _sosfilt_shape(sos: Shape, x: Shape, *zi: Shape) -> tuple[Shape, Shape]:
    sections = sos.dims[0]
    if isinstance(sections, Dim) or sections < 1:
        raise GraphError(f"operand 0 is {sos}: a filter has a known number of sections, from 1 on")
    return x, x.with_dims([sections, *x.dims[:-1], 2])


@op("f[s 6], f[*b t], f[s *b 2]? -> f[*b t], f[s *b 2]", kind=Kind.SPECIAL,
    shape=_sosfilt_shape, flops="10*s*size1", draw="plain")  # fmt: skip
def sosfilt(sos: Array, x: Array, zi: Array | None = None) -> tuple[Array, Array]:
    """Filters of second order one after the other, each a row b₀ b₁ b₂ a₀ a₁ a₂ of `sos`; and
    their last states. `zi` are the states to begin with; without it, zeros."""
    states: list[Array] = []
    for i, row in enumerate(sos):
        x, z = lfilter.reference(row[:3], row[3:], x, None if zi is None else zi[i])
        states.append(z)
    return x, np.stack(states)


@sosfilt.lowering
def _(sos: Any, x: Any, zi: Any = None) -> tuple[Any, Any]:
    states: list[Any] = []
    for i in range(int(dims_of(sos)[0])):
        b, a = (ops.narrow(_row(sos, i), axis=0, start=s, length=3) for s in (0, 3))
        start = [] if zi is None else [_row(zi, i)]
        x, z = ops.lfilter(b, a, x, *start)
        states.append(z)
    return x, ops.stack(states, axis=0)


def _row(x: Any, i: int) -> Any:
    return ops.squeeze(ops.narrow(x, axis=0, start=i, length=1), axes=(0,))


@sosfilt.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dtype, outer, sections = draw.dtype("f"), draw.dims(0, 2), draw.integer(1, 2)
    specs = [Spec((sections, 6), dtype, "positive")]
    specs.append(Spec((*outer, draw.size()), dtype, "plain"))
    state = Spec((sections, *outer, 2), dtype, "plain")
    return [*specs, state] if draw.coin() else specs, {}


# -- other rates ----------------------------------------------------------------------------------


def _resampled(x: Shape, *taps: Shape, up: int, down: int) -> Shape:
    n = x.dims[-1]
    if n == 0 or (taps and taps[0].dims[0] == 0):
        raise GraphError(f"operand 0 is {x}: a signal needs a point, and a filter a tap")
    return x.with_dims([*x.dims[:-1], (n * up + down - 1) // down])


@op("f[*b n], f[m]? -> f[*b ...]", kind=Kind.SPECIAL, shape=_resampled, flops="40*out",
    draw="plain")  # fmt: skip
def resample_poly(x: Array, taps: Array | None = None, *, up: int, down: int) -> Array:
    """The signal at up / down times its rate: `up - 1` zeros after every point, a filter of
    up · `taps`, centred, and then every `down`-th point. Without taps, SciPy's: a low pass of
    20 · max(up, down) + 1 of them under a Kaiser window of beta 5. At its own rate it is as it
    was, unfiltered."""
    if up == down:
        return x
    h = up * (_low_pass(up, down) if taps is None else taps.astype(np.float64))
    m = len(h)
    stuffed = np.zeros((*x.shape[:-1], x.shape[-1] * up))
    stuffed[..., ::up] = x
    count = -(-stuffed.shape[-1] // down)
    before, after = (int(v) for v in _margins(m, stuffed.shape[-1], count, down))
    padded = np.pad(stuffed, [(0, 0)] * (x.ndim - 1) + [(before, after)])
    return sliding_window_view(padded, m, -1)[..., ::down, :][..., :count, :] @ h[::-1]


def _margins(m: DimLike, n: DimLike, count: DimLike, down: int) -> tuple[DimLike, DimLike]:
    """Zeros before and after, so that `count` windows of m taps are centred on every `down`-th."""
    return m // 2, dim_max((count - 1) * down + (m - 1) // 2 + 1 - n, 0)


def _low_pass(up: int, down: int) -> Array:
    """SciPy's default: a sinc of half the lower rate under a Kaiser window, of sum 1."""
    rate = max(up, down)
    t = np.arange(-10 * rate, 10 * rate + 1)
    h = np.sinc(t / rate) * np.kaiser(len(t), 5.0)
    return h / np.sum(h)


@resample_poly.normal
def _(x: Shape, *_: Shape, up: int, down: int) -> dict[str, Any]:
    """The ratio in its lowest terms."""
    if up < 1 or down < 1:
        raise GraphError(f"a rate of {up} / {down}: both must be at least 1")
    common = math.gcd(up, down)
    return {"up": up // common, "down": down // common}


@resample_poly.lowering
def _(x: Any, taps: Any = None, *, up: int, down: int) -> Any:
    if up == down:
        return x
    h = _low_pass(up, down).astype(dtype_of(x).numpy) if taps is None else taps
    n, m, rank = dims_of(x)[-1], dims_of(h)[0], len(dims_of(x))
    apart = ops.expand_dims(x, axes=(rank,))
    ends = (*(0,) * rank, up - 1)
    apart = ops.pad(apart, low=(0,) * (rank + 1), high=ends, value=0.0)
    stuffed = ops.reshape(apart, dims=(*dims_of(x)[:-1], n * up))
    count = (n * up + down - 1) // down
    before, after = _margins(m, n * up, count, down)
    rest = (0,) * (rank - 1)
    padded = ops.pad(stuffed, low=(*rest, before), high=(*rest, after), value=0.0)
    kernel = ops.mul(ops.flip(h, axes=(0,)), float(up))
    if not isinstance(n, Dim) and not isinstance(m, Dim):
        return _strided(padded, kernel, down, count)
    windows = ops.gather(padded, positions(x, count, m, down), axis=-1)
    made = ops.matmul(windows, ops.expand_dims(kernel, axes=(1,)))
    return ops.squeeze(made, axes=(rank,))


def _strided(x: Any, kernel: Any, stride: int, count: DimLike) -> Any:
    """Every `stride`-th window of rows times a kernel: points and taps whose numbers leave the
    same rest are a channel, so that windows of channels begin at every point. The last taps, which
    no channel has all of, are added separately: a tap of 0 would make nan of points past the
    window that are not finite."""
    (*lead, n), (m,), rows = dims_of(x), dims_of(kernel), product(dims_of(x)[:-1])
    taps, rest = divmod(int(m), stride)
    points = count + taps
    room = dim_max(points * stride - n, 0)
    whole = ops.pad(ops.reshape(x, dims=(rows, n)), low=(0, 0), high=(0, room), value=0.0)
    whole = ops.narrow(whole, axis=1, start=0, length=points * stride)
    phases = ops.transpose(ops.reshape(whole, dims=(rows, points, stride)), perm=(0, 2, 1))
    made: list[Any] = []
    for first, size, channels in ((0, taps, stride), (taps, 1, rest)):
        if size * channels:
            part = ops.narrow(kernel, axis=0, start=first * stride, length=size * channels)
            phase = ops.transpose(ops.reshape(part, dims=(1, size, channels)), perm=(0, 2, 1))
            seen = ops.narrow(phases, axis=1, start=0, length=channels)
            seen = ops.narrow(seen, axis=2, start=first, length=count + size - 1)
            made.append(ops.conv(seen, phase))
    total = made[0] if len(made) == 1 else ops.add(*made)
    return ops.reshape(total, dims=(*lead, count))


@resample_poly.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dtype, dims = draw.dtype("f"), (*draw.dims(0, 2), draw.size(1))
    taps = [Spec((draw.size(1),), dtype, "plain")] if draw.coin(0.7) else []
    rates = {"up": draw.integer(1, 4), "down": draw.integer(1, 4)}
    return [Spec(dims, dtype, "plain"), *taps], rates


def _resample_shape(x: Shape, *, num: int) -> Shape:
    if num < 1 or x.dims[-1] == 0:
        raise GraphError(f"operand 0 is {x}, to be {num} points: both need at least one")
    return x.with_dims([*x.dims[:-1], num])


@op("f[*b n] -> f[*b num]", kind=Kind.SPECIAL, shape=_resample_shape, flops="80*(out + size0)",
    has_fft=True, draw="plain")  # fmt: skip
def resample(x: Array, *, num: int) -> Array:
    """The signal as `num` points of the same time, through its spectrum: bins are cut or added
    as zeros, as if the signal went on periodically."""
    n = x.shape[-1]
    spectrum = np.fft.rfft(x.astype(np.float64))
    least = min(n, num)
    kept = spectrum[..., : least // 2 + 1].copy()
    if least % 2 == 0 and n != num:
        kept[..., -1] *= _middle(n, num)
    return np.fft.irfft(kept, num) * (num / n)


def _middle(n: int, num: int) -> float:
    """The middle bin of an even length is two bins of a longer one."""
    return 2.0 if num < n else 0.5


@resample.lowering
def _(x: Any, *, num: int) -> Any:
    n = dims_of(x)[-1]
    if isinstance(n, Dim):
        return _resampled_open(x, n, num)
    least = min(n, num)
    kept = ops.narrow(ops.rfft(x), axis=-1, start=0, length=least // 2 + 1)
    if least % 2 == 0 and n != num:
        factor = np.ones(least // 2 + 1, dtype_of(kept).numpy)
        factor[-1] = _middle(n, num)
        kept = ops.mul(kept, factor)
    return ops.mul(ops.irfft(kept, n=num), num / n)


def _resampled_open(x: Any, n: Dim, num: int) -> Any:
    """The same where only a call knows whether there is a middle bin, and which."""
    size, bins = nullary(x, "extent", dim=n), num // 2 + 1
    bin_of = nullary(x, "iota", dims=(bins,), axis=0)
    is_middle = ops.equal(ops.mul(bin_of, 2), ops.minimum(size, num))
    is_cut, is_longer = ops.less(num, size), ops.less(size, num)
    factor = ops.where(is_cut, _middle(num + 1, num), ops.where(is_longer, _middle(1, 2), 1.0))
    scale = ops.cast(ops.where(is_middle, factor, 1.0), to=dtype_of(x))
    spectrum = resized(ops.rfft(x), bins)
    kept = ops.make_complex(*(ops.mul(f(spectrum), scale) for f in (ops.real, ops.imag)))
    return ops.mul(ops.irfft(kept, n=num), ops.div(num, ops.cast(size, to=dtype_of(x))))


@resample.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dims = (*draw.dims(0, 3), draw.size(1))
    return [Spec(dims, draw.dtype("f"), "plain")], {"num": draw.integer(1, 9)}
