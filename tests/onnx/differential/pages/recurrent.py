"""Recurrent layers, with every attribute and operand they have."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.dtype import DType
from tests.onnx.differential.drawing import Draw, Node, Operand, Rounding, draws, explain

CELLS = {"RNN": (1, 1), "GRU": (3, 2), "LSTM": (4, 3)}
"""Gates, and activations for each direction."""
NAMES = (
    "Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid", "Elu", "Softsign", "Softplus",
    "ThresholdedRelu", "ScaledTanh", "Affine",
)  # fmt: skip
ALPHAS = {"LeakyRelu": 0.02, "ThresholdedRelu": 0.5, "ScaledTanh": 1.5, "HardSigmoid": 0.25,
          "Elu": 0.7, "Affine": 0.5}  # fmt: skip
BETAS = {"ScaledTanh": 0.7, "HardSigmoid": 0.4, "Affine": 0.1}
STEPS = Rounding(256.0, 4.0)
"""Of values that some steps of sums of up to ten products have gone through."""


def _activations(d: Draw, count: int) -> dict[str, Any]:
    if d.coin(0.5):
        return {}
    chosen = [d.choice(NAMES) for _ in range(count)]
    alphas = [ALPHAS[n] for n in chosen if n in ALPHAS]
    betas = [BETAS[n] for n in chosen if n in BETAS]
    attrs: dict[str, Any] = {"activations": chosen}
    attrs |= {"activation_alpha": alphas} if alphas else {}
    return attrs | ({"activation_beta": betas} if betas else {})


def _plain(d: Draw, dims: tuple[int, ...], kind: DType, known: float = 0.5) -> Operand:
    return d.given((d.rng.normal(size=dims) * 0.5).astype(kind.numpy), known=known)


@draws("RNN", "GRU", "LSTM")
def _layer(d: Draw) -> Node:
    gates, each = CELLS[d.op]
    kind = d.choice([k for k in d.admitted("T") if k in (DType.F32, DType.F64)] + [DType.F32] * 2)
    direction = d.choice(("forward", "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1
    length, batch, width, hidden = (
        d.integer(1, 5),
        d.integer(1, 3),
        d.integer(1, 4),
        d.integer(1, 5),
    )
    layout = d.integer(0, 1) if d.has("layout") and d.coin(0.3) else 0
    attrs: dict[str, Any] = {"hidden_size": hidden}
    attrs |= {"layout": layout} if layout else {}
    if direction != "forward" or d.coin():
        attrs["direction"] = direction
    attrs |= _activations(d, each * ways) | d.some(0.2, clip=float(d.choice((0.3, 2.0))))
    if d.op == "GRU":
        attrs |= d.some(0.6, linear_before_reset=d.integer(0, 1))
    if d.op == "LSTM":
        attrs |= d.some(0.3, input_forget=d.integer(0, 1))
    x = (batch, length, width) if layout else (length, batch, width)
    state = (batch, ways, hidden) if layout else (ways, batch, hidden)
    lengths = d.given(d.rng.integers(0 if d.coin(0.1) else 1, length + 1, batch).astype(np.int32))
    operands: list[Operand | None] = [
        _plain(d, x, kind, 0.1),
        _plain(d, (ways, gates * hidden, width), kind),
        _plain(d, (ways, gates * hidden, hidden), kind),
        _plain(d, (ways, 2 * gates * hidden), kind) if d.coin() else None,
        lengths if d.coin(0.4) else None,
        _plain(d, state, kind, 0.2) if d.coin() else None,
    ]
    if d.op == "LSTM":
        operands.append(_plain(d, state, kind, 0.2) if d.coin() else None)
        operands.append(_plain(d, (ways, 3 * hidden), kind) if d.coin(0.4) else None)
    outputs = d.integer(1, 3 if d.op == "LSTM" else 2)
    return d.node(*operands, outputs=outputs, tolerance=STEPS, **attrs)


explain(
    "LSTM",
    right="rlx",
    why="ONNX clips what goes into every activation, the state on its way out among them; "
    "onnxruntime leaves that one as it is, where a state that is given may be larger",
    when=lambda n: "clip" in n.attrs and n.has(6),
)
explain(
    "RNN", "GRU", "LSTM",
    right="onnxruntime",
    why="onnx.reference ignores lengths, clips, activations, peepholes, both directions and "
    "input_forget, and has layers of one shape only",
    when=lambda n: n.array(0).dtype == np.float32 and n.attrs.get("layout", 0) == 0,
)  # fmt: skip
explain(
    "RNN", "GRU", "LSTM",
    right="rlx",
    why="onnxruntime has no such layers, and onnx.reference ignores most of what they have",
)  # fmt: skip
