"""Recurrent layers, with every attribute and operand they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.core.dtype import DType
from tests.onnx.differential.drawing import Array, Draw, Node, Operand, Rounding, draws, explain

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


# -- ONNX's formulas, step by step ----------------------------------------------------------------

FUNCTIONS: dict[str, Callable[[Array, float, float], Array]] = {
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "LeakyRelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "Elu": lambda x, a, b: np.where(x < 0, a * np.expm1(x), x),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Softplus": lambda x, a, b: np.log1p(np.exp(x)),
    "ThresholdedRelu": lambda x, a, b: np.where(x < a, 0, x),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "Affine": lambda x, a, b: a * x + b,
}
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def _functions(node: Node) -> list[Callable[[Array], Array]]:
    """The activations of all directions, each with its own alpha and beta, which attributes hold
    in f32; what goes into one is clipped."""
    names = node.attrs.get("activations", 2 * DEFAULTS[node.op])
    bound = float(np.float32(node.attrs.get("clip", np.inf)))

    def of(name: str) -> Callable[[Array], Array]:
        function = FUNCTIONS[name]
        a, b = (float(np.float32(of.get(name, 0.0))) for of in (ALPHAS, BETAS))
        return lambda x: function(np.clip(x, -bound, bound), a, b)

    return [of(name) for name in names]


def _step(node: Node, f: Any, w: Array, r: Array, b: Array, p: Array, x: Array, state: Any) -> Any:
    """The state and the cell after one element of one sequence."""
    h, c = state
    size, (wb, rb) = len(h), np.split(b, 2)
    given, own = w @ x + wb, r @ h + rb
    if node.op == "RNN":
        return f[0](given + own), c
    if node.op == "GRU":
        z, reset = np.split(f[0]((given + own)[: 2 * size]), 2)
        last = slice(2 * size, None)
        is_late = node.attrs.get("linear_before_reset", 0)
        inner = reset * own[last] if is_late else r[last] @ (reset * h) + rb[last]
        return (1 - z) * f[1](given[last] + inner) + z * h, c
    i, o, forget, new = np.split(given + own, 4)
    p_i, p_o, p_f = np.split(p, 3)
    i = f[0](i + p_i * c)
    forget = 1 - i if node.attrs.get("input_forget", 0) else f[0](forget + p_f * c)
    cell = forget * c + i * f[1](new)
    return f[0](o + p_o * cell) * f[2](cell), cell


def _unrolled(node: Node) -> tuple[Array, ...]:
    """Every sequence by itself, in f64. One of no elements leaves its state as it was."""
    batch_first = bool(node.attrs.get("layout", 0))

    def given(number: int, *dims: int) -> Array:
        if not node.has(number):
            return np.zeros(dims)
        found = node.array(number).astype(np.float64)
        return found.swapaxes(0, 1) if batch_first and number in (0, 5, 6) else found

    x, w, r = given(0), given(1), given(2)
    (length, batch, _), (ways, rows, hidden) = x.shape, r.shape
    bias, peepholes = given(3, ways, 2 * rows), given(7, ways, 3 * hidden)
    lengths = node.array(4) if node.has(4) else np.full(batch, length)
    h, c = (given(k, ways, batch, hidden).copy() for k in (5, 6))
    y = np.zeros((length, ways, batch, hidden))
    functions, each = _functions(node), CELLS[node.op][1]
    for d, b in np.ndindex(ways, batch):
        is_back = d == 1 or node.attrs.get("direction") == "reverse"
        own = functions[d * each : (d + 1) * each]
        for t in range(lengths[b])[:: -1 if is_back else 1]:
            parts = w[d], r[d], bias[d], peepholes[d], x[t, b]
            h[d, b], c[d, b] = _step(node, own, *parts, (h[d, b], c[d, b]))
            y[t, d, b] = h[d, b]
    made = [y, h, c]
    if batch_first:
        made = [y.transpose(2, 0, 1, 3), h.swapaxes(0, 1), c.swapaxes(0, 1)]
    return tuple(a.astype(node.array(0).dtype) for a in made[: node.outputs])


def _is_empty(node: Node) -> bool:
    """Does a state go into a sequence of no elements?"""
    return node.has(4) and not node.array(4).all() and (node.has(5) or node.has(6))


explain(
    "LSTM",
    right=_unrolled,
    why="ONNX clips what goes into every activation, the cell on its way out among them; "
    "onnxruntime leaves that one as it is",
    when=lambda n: "clip" in n.attrs,
)
explain(
    "RNN", "GRU", "LSTM",
    right=_unrolled,
    why="the last state of a sequence of no elements is the one given, as TensorFlow has it; "
    "onnxruntime gives 0",
    when=_is_empty,
)  # fmt: skip
explain(
    "RNN", "GRU", "LSTM",
    right="onnxruntime",
    why="onnx.reference ignores lengths, clips, activations, peepholes, both directions and "
    "input_forget, and has layers of one shape only",
    otherwise=_unrolled,
)  # fmt: skip
