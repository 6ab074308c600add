"""Fourier transforms of signals and of frames."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.onnx.differential.drawing import Draw, Node, Operand, draws, explain, sums


@draws("DFT")
def _dft(d: Draw) -> Node:
    kind = d.kind("T1")
    lead = d.dims(1, 3, smallest=1)
    parts = d.choice((1, 2))
    inverse = d.integer(0, 1) if d.coin() else None
    one_sided = d.integer(0, 1) if d.coin() and parts == 1 and not inverse else None
    dims = (*lead, parts) if len(lead) > 1 or d.opset < 20 else (1, *lead, parts)
    x = d.tensor(dims, kind, "plain")
    axis = d.integer(0 if d.opset < 20 else -x.rank, x.rank - 2)
    axis = axis if axis != -1 else -2
    size = x.dims[axis]
    length = d.choice((None, size, max(1, size - 1), size + 2))
    operand = None
    if length is not None:
        operand = Operand(np.array(length, d.kind("T2").numpy), d.coin(0.7), has_names=False)
    attrs: dict[str, Any] = {} if inverse is None else {"inverse": inverse}
    attrs |= {} if one_sided is None else {"onesided": one_sided}
    tolerance = sums(8 * max(size, 4), 30.0)
    if d.opset < 20:
        default = axis == 1 and d.coin()
        return d.node(
            x, operand, tolerance=tolerance, **attrs, **({} if default else {"axis": axis})
        )
    at = None if axis == -2 and d.coin() else Operand(np.array(axis, np.int64), d.coin(0.7), False)
    return d.node(x, operand, at, tolerance=tolerance, **attrs)


@draws("STFT")
def _stft(d: Draw) -> Node:
    kind, number = d.kind("T1"), d.kind("T2").numpy
    frame = d.choice((4, 8, 7))
    samples = frame + d.integer(0, 20)
    step = d.integer(1, 5)
    signal = d.tensor((d.integer(1, 2), samples, 1), kind, "plain")
    window = d.tensor((frame,), kind, "positive") if d.coin(0.7) else None
    length = None
    if window is None or d.coin():
        length = Operand(np.array(frame, number), d.coin(0.8), has_names=False)
    at = Operand(np.array(step, number), d.coin(0.8), has_names=False)
    tolerance = sums(8 * frame, 90.0)
    return d.node(
        signal, at, window, length, tolerance=tolerance, **d.some(onesided=d.integer(0, 1))
    )


explain(
    "DFT",
    right="reference",
    why="onnxruntime's twiddle factors are of single precision",
    when=lambda n: n.array(0).dtype == np.float64,
)
