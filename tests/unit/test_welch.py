"""A Welch estimate is one chain of three kernels without a spectrum in memory, in any spelling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.ops.signal.fft import sides_of

BATCH, COUNT, N, HOP, K = 6, 4, 32, 16, 5
BINS = N // 2 + 1


def complex_of(rows: Any, how: str) -> Any:
    if how == "cast":
        return ops.cast(rows, to=rlx.DType.C64)
    return ops.make_complex(rows, rows.graph.constant(np.zeros(rows.shape.dims, np.float32)))


def imaginary(rows: Any, how: str) -> Any:
    match how:
        case "zeros":
            return rows.graph.constant(np.zeros(rows.shape.dims, np.float32))
        case "sub":
            return ops.sub(rows, rows)
        case _:
            return ops.mul(rows, 0.0)


def power_of(rows: Any, how: str) -> Any:
    half = {"axis": -1, "start": 0, "length": BINS}
    z = ops.rfft(rows) if "rfft" in how else ops.narrow(ops.fft(complex_of(rows, "cast")), **half)
    if "abs" in how:
        return ops.square(ops.abs(z))
    if "parts" in how:
        return ops.add(ops.square(ops.real(z)), ops.square(ops.imag(z)))
    return ops.complex_norm_sq(z)


def by_hand(power: Any) -> Any:
    """The estimate and its peaks, in table ops."""
    mean = ops.mean(ops.reshape(power, dims=(BATCH, COUNT, BINS)), axes=(1,))
    best, where = ops.top_k(ops.mul(mean, sides_of(N, np.float32)), k=K)
    return best, where


SPELLINGS = [
    "pad", "concat zeros", "concat sub", "concat mul", "blocks cast", "blocks make",
    "power rfft", "power rfft abs", "power rfft parts", "power fft", "power fft abs",
    "power fft parts", "power blocks",
]  # fmt: skip


def estimate(spelling: str, source: str) -> rlx.Graph:
    g = rlx.Graph("welch")
    window = g.param("window", rlx.Shape([N]))
    if source == "signal":
        x = g.input("x", rlx.Shape([BATCH, (COUNT - 1) * HOP + N]))
        rows = ops.reshape(
            ops.mul(ops.frame(x, length=N, hop=HOP), window), dims=(BATCH * COUNT, N)
        )
    else:
        x = g.input("x", rlx.Shape([BATCH * COUNT, N]))
        rows = ops.mul(x, window)
    kind, _, how = spelling.partition(" ")
    if kind == "power":
        if how == "blocks":
            spectrum = ops.fft(ops.pad(rows, low=(0, 0), high=(0, N), value=0.0))
            parts = [ops.narrow(spectrum, axis=1, start=s, length=BINS) for s in (0, N)]
            power = ops.add(*(ops.mul(p, p) for p in parts))
        else:
            power = power_of(rows, how)
        g.set_outputs(list(by_hand(power)))
        return g
    if kind == "blocks":
        z = ops.fft(complex_of(rows, how))
        spectrum = ops.concat([ops.real(z), ops.imag(z)], axis=1)
    elif kind == "pad":
        spectrum = ops.fft(ops.pad(rows, low=(0, 0), high=(0, N), value=0.0))
    else:
        spectrum = ops.fft(ops.concat([rows, imaginary(rows, how)], axis=1))
    g.set_outputs([ops.welch_peaks(spectrum, k=K, n_segments=COUNT)])
    return g


def expected(x: Any, window: Any, source: str) -> tuple[Any, Any]:
    if source == "signal":
        x = np.stack([x[:, i * HOP : i * HOP + N] for i in range(COUNT)], 1).reshape(-1, N)
    power = np.abs(np.fft.rfft(x.astype(np.float64) * window)) ** 2
    mean = power.reshape(BATCH, COUNT, BINS).mean(1) * sides_of(N, np.float64)
    where = np.argsort(-mean, axis=1)[:, :K]
    return np.take_along_axis(mean, where, 1), where


@pytest.mark.parametrize("source", ["signal", "rows"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_one_chain(spelling: str, source: str) -> None:
    g = estimate(spelling, source)
    rng = np.random.default_rng(3)
    x = rng.standard_normal(g.inputs[0].shape.static_dims).astype(np.float32)
    window = np.hanning(N).astype(np.float32)
    exe = rlx.compile(g, "cpu", params={"window": window}, cache=False)
    plan = exe.lir.plan
    steps = [n for n in plan.schedule if plan.phase_of(n) > rlx.Phase.PROLOGUE]
    assert [n.op for n in steps][:2] == ["mean_power", "top_k"]
    assert len(steps) <= 3
    assert not any(n.shapes[0].dtype.is_complex for n in exe.lir.mir.graph.order())
    largest = max(s.size_bytes for n in steps for s in n.shapes)
    assert largest <= 4 * BATCH * BINS * 2, "no spectrum, and no power of single rows, in memory"
    best, where = expected(x, window, source)
    made = exe(x)
    if isinstance(made, tuple):
        powers, places = made
    else:
        places, powers = made.reshape(BATCH, K, 2).transpose(2, 0, 1)
    np.testing.assert_array_equal(places, where)
    np.testing.assert_allclose(powers, best, rtol=64 * 2**-23)  # 5 stages and sums of 4, in f32


def test_a_spectrum_that_is_an_output_is_not_transformed_twice() -> None:
    g = rlx.Graph("both")
    x = g.input("x", rlx.Shape([BATCH * COUNT, N]))
    spectrum = g.fft(g.concat([x, g.sub(x, x)], axis=1))
    g.set_outputs([spectrum, g.welch_peaks(spectrum, k=K, n_segments=COUNT)])
    exe = rlx.compile(g, "cpu", cache=False)
    found = [n.op for n in exe.lir.mir.graph.order()]
    assert found.count("fft") == 1
    assert "mean_power" not in found


@pytest.mark.parametrize("n", [1, 2, 5, 8, 9])
@pytest.mark.parametrize("frames", [1, 3, 80])
def test_one_sided_means_count_mirrored_bins_twice(n: int, frames: int) -> None:
    """80 frames are summed in chunks, by tasks of their own."""
    g = rlx.Graph("mean")
    x = g.input("x", rlx.Shape([2, frames * n]))
    g.set_outputs([ops.mean_power(x, n_fft=n, hop=n, one_sided=True)])
    values = np.random.default_rng(n).standard_normal((2, frames * n)).astype(np.float32)
    power = np.abs(np.fft.rfft(values.reshape(2, frames, n).astype(np.float64))) ** 2
    want = power.mean(1) * sides_of(n, np.float64)
    got = rlx.compile(g, "cpu", cache=False)(values)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)  # sums of f32, near zero some
