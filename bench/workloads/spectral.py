"""F: Welch's estimate with its peaks, and log-mel frames."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import rlx
from bench.workload import Array, Maker, Workload
from bench.workloads.dense import declared, shaped
from rlx import ops


def hann(length: int) -> Array:
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)).astype(np.float32)


def transform_flops(length: int) -> float:
    """Of one transform of real numbers, as such are counted."""
    return 2.5 * length * math.log2(length)


# -- Welch ----------------------------------------------------------------------------------------


def welch_function(length: int, peaks: int) -> Any:
    def function(k: Any, p: Any, x: Any) -> Any:
        framed = k.frames(x, length, length // 2) * p["window"]
        power = k.power(framed).mean(1) * p["scale"]
        mid = power[:, 1:-1]
        is_peak = (mid > power[:, :-2]) & (mid > power[:, 2:])
        return k.top_k(k.where(is_peak, mid, mid * 0.0), peaks)

    return function


def welch_model(params: Mapping[str, Array], x: Array, length: int, peaks: int) -> rlx.HirModule:
    m = rlx.HirModule("welch")
    signal, p = m.input("x", shaped(x)), declared(m, params)
    hop = length // 2
    framed = ops.mul(ops.frame(signal, length=length, hop=hop), p["window"])
    power = ops.mul(ops.mean(ops.complex_norm_sq(ops.rfft(framed)), axes=(1,)), p["scale"])
    count = length // 2 - 1
    left, mid, right = (ops.narrow(power, axis=1, start=i, length=count) for i in range(3))
    is_peak = ops.logical_and(ops.greater(mid, left), ops.greater(mid, right))
    m.set_outputs(list(ops.top_k(ops.where(is_peak, mid, 0.0), k=peaks)))
    return m


def welch(rows: int = 64, points: int = 4096, length: int = 512, peaks: int = 16) -> Workload:
    window, bins = hann(length), length // 2 + 1
    scale = np.full(bins, 2.0 / float((window * window).sum()), np.float32)
    scale[[0, -1]] /= 2
    x = Maker(13).normal(rows, points)
    frames = rows * (2 * points // length - 1)
    return Workload(
        "F_welch", f"Welch of {rows}×{points} by {length}, top {peaks} peaks",
        welch_function(length, peaks), lambda given: welch_model(given, x, length, peaks),
        {"window": window, "scale": scale}, (x,), reads=x.nbytes, writes=12.0 * rows * peaks,
        flops=frames * (transform_flops(length) + 3.0 * bins),
    )  # fmt: skip


# -- log-mel --------------------------------------------------------------------------------------


def mel_filters(bands: int, length: int, rate: float = 16000.0) -> Array:
    """Triangles between points that lie equally far apart in mel, [bands, bins]."""
    top = 2595 * np.log10(1 + rate / 2 / 700)
    points = 700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1)
    bins = np.linspace(0, rate / 2, length // 2 + 1)
    low, mid, high = points[:-2, None], points[1:-1, None], points[2:, None]
    sides = np.minimum((bins - low) / (mid - low), (high - bins) / (high - mid))
    return np.maximum(sides, 0).astype(np.float32)


def logmel_function(length: int, hop: int) -> Any:
    def function(k: Any, p: Any, x: Any) -> Any:
        framed = k.frames(k.reflected(x, length // 2), length, hop) * p["window"]
        return k.log10(k.at_least(k.linear(k.power(framed), p["mel.w"]), 1e-10))

    return function


def logmel_model(params: Mapping[str, Array], x: Array, length: int, hop: int) -> rlx.HirModule:
    m = rlx.HirModule("logmel")
    signal, p = m.input("x", shaped(x)), declared(m, params)
    spectrum = ops.stft(signal, p["window"], n_fft=length, hop=hop, center=True)
    power = ops.matmul(ops.complex_norm_sq(spectrum), p["mel.w"])
    m.set_outputs([ops.log10(ops.clamp(power, min=1e-10))])
    return m


def logmel(
    rows: int = 8, points: int = 16000, length: int = 400, hop: int = 160, bands: int = 80
) -> Workload:
    params = {"window": hann(length), "mel.w": mel_filters(bands, length)}
    x = Maker(14).normal(rows, points, scale=0.1)
    frames, bins = rows * (points // hop + 1), length // 2 + 1
    return Workload(
        "F_logmel", f"log-mel of {rows}×{points}: {length} points, {bands} bands",
        logmel_function(length, hop), lambda given: logmel_model(given, x, length, hop),
        params, (x,), flops=frames * (transform_flops(length) + 2.0 * bins * bands),
        reads=x.nbytes, writes=4.0 * frames * bands, tolerance=1e-3,
    )  # fmt: skip
