"""Fused ops against what they fuse, written in plain NumPy with SciPy's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.signal
import scipy.special

from rlx import ops
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.ops.op import lookup

SOURCES = {
    "fused_matmul_bias_act": "numpy.dot, and SciPy's or NumPy's activation",
    "fused_conv_bias_act": "scipy.signal.correlate, and SciPy's or NumPy's activation",
    "fused_swiglu": "x · scipy.special.expit(x) of one half, times the other",
    "fused_residual_ln": "numpy.mean and numpy.var of the sum",
    "fused_residual_rms_norm": "numpy.linalg.norm of the sum",
    "fused_attention_block": "its products, turns and softmax in NumPy and SciPy, head by head",
    "elementwise_region": "its steps in NumPy",
    "region": "its steps in NumPy and SciPy",
}
RNG = np.random.default_rng(47)
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
"""f64: a few sums of up to 60 products of numbers of about 1, in whichever order."""
ACTIVATIONS: dict[str | None, Callable[[np.ndarray], np.ndarray]] = {
    None: lambda x: x,
    "relu": lambda x: x.clip(0),
    "gelu": lambda x: x * scipy.special.ndtr(x),
    "gelu_tanh": lambda x: x * scipy.special.expit((8 / np.pi) ** 0.5 * (x + 0.044715 * x**3)),
    "silu": lambda x: x * scipy.special.expit(x),
    "tanh": lambda x: 2 * scipy.special.expit(2 * x) - 1,
    "sigmoid": scipy.special.expit,
}


def normal(*dims: int) -> np.ndarray:
    return RNG.normal(size=dims)


@pytest.mark.parametrize("bias", [(), (1,), (6,), (4, 6), (2, 4, 6)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_matmul_bias_act(activation: str | None, bias: tuple[int, ...]) -> None:
    x, w, b = normal(2, 4, 5), normal(5, 6), normal(*bias)
    got = ops.fused_matmul_bias_act(x, w, b, activation=activation)
    np.testing.assert_allclose(got, ACTIVATIONS[activation](np.dot(x, w) + b), **CLOSE)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_conv_bias_act(activation: str | None) -> None:
    x, w, b = normal(2, 3, 6, 7), normal(4, 3, 2, 3), normal(4)
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (0, 2)])
    want = np.empty((2, 4, 4, 7))
    for n, o in np.ndindex(2, 4):
        whole = scipy.signal.correlate(padded[n], w[o], "valid")[0]
        want[n, o] = ACTIVATIONS[activation](whole[::2] + b[o])
    got = ops.fused_conv_bias_act(
        x, w, b, stride=(2, 1), padding=(1, 0, 1, 2), activation=activation
    )
    np.testing.assert_allclose(got, want, **CLOSE)


@pytest.mark.parametrize("gate_first", [False, True])
def test_swiglu(gate_first: bool) -> None:
    x = normal(3, 4, 10)
    gate, up = (x[..., :5], x[..., 5:])[:: 1 if gate_first else -1]
    want = ACTIVATIONS["silu"](gate) * up
    np.testing.assert_allclose(ops.fused_swiglu(x, gate_first=gate_first), want, **CLOSE)


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("affine", [0, 1, 2])
def test_norms_of_a_sum(affine: int, axis: int) -> None:
    x, r = normal(2, 3, 5), normal(2, 3, 5)
    scale, bias = normal(*x.shape[axis:]), normal(*x.shape[axis:])
    over, total = tuple(range(axis % 3, 3)), x + r

    def finished(y: np.ndarray) -> np.ndarray:
        return y if affine == 0 else y * scale + (bias if affine == 2 else 0)

    given = [x, r, *[scale, bias][:affine]]
    mean, var = total.mean(over, keepdims=True), total.var(over, keepdims=True)
    want = finished((total - mean) * (var + 1e-3) ** -0.5)
    np.testing.assert_allclose(ops.fused_residual_ln(*given, axis=axis, eps=1e-3), want, **CLOSE)
    size = np.prod([total.shape[a] for a in over])
    rows = total.reshape(*total.shape[: over[0]], -1)
    norm = np.linalg.norm(rows, axis=-1).reshape(*total.shape[: over[0]], *[1] * len(over))
    want = finished(total / np.hypot(norm / size**0.5, 1e-3**0.5))
    got = ops.fused_residual_rms_norm(*given, axis=axis, eps=1e-3)
    np.testing.assert_allclose(got, want, **CLOSE)


# -- attention with its projections ---------------------------------------------------------------

DEPTH = 4


def turned(x: np.ndarray, angle: np.ndarray | None) -> np.ndarray:
    """One head [length, depth]: each number of the first half and its like of the second."""
    if angle is None:
        return x
    z = (x[:, : DEPTH // 2] + 1j * x[:, DEPTH // 2 :]) * np.exp(1j * angle)
    return np.concatenate([z.real, z.imag], axis=1)


def block(
    x: np.ndarray, w: np.ndarray, out: np.ndarray, heads: int, kv: int, biases: Any, angle: Any,
    hidden: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """For one batch row; `hidden` is added to the scores of each head [queries, keys]."""
    made = np.dot(x, w) + biases[0]
    parts = [made[:, n * DEPTH : (n + 1) * DEPTH] for n in range(heads + 2 * kv)]
    mixed = []
    for h in range(heads):
        q, k = turned(parts[h], angle), turned(parts[heads + h * kv // heads], angle)
        weights = scipy.special.softmax(np.dot(q, k.T) / DEPTH**0.5 + hidden[h], axis=1)
        mixed.append(np.dot(weights, parts[heads + kv + h * kv // heads]))
    return np.dot(np.concatenate(mixed, axis=1), out) + biases[1]


@pytest.mark.parametrize("kind", ["none", "causal", "sliding_window", "custom", "bias"])
@pytest.mark.parametrize("has_rope", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("heads", "kv"), [(2, 2), (4, 2), (3, 1)])
def test_attention_block(heads: int, kv: int, has_bias: bool, has_rope: bool, kind: str) -> None:
    batch, length, width = 2, 5, 6
    x, w = normal(batch, length, width), normal(width, (heads + 2 * kv) * DEPTH) * 0.5
    out, angle = normal(heads * DEPTH, 3), normal(length, DEPTH // 2)
    biases = [normal(w.shape[1]), normal(3)] if has_bias else []
    angles = [np.cos(angle), np.sin(angle)] if has_rope else []
    mask = {"custom": np.array([[1.0, 0, 1, 1, 0], [0.6, 0.4, 0.5, 0, 1]]),
            "bias": normal(batch, heads, length, length)}.get(kind)  # fmt: skip
    distance = np.subtract.outer(np.arange(length), np.arange(length))
    shown = {
        "causal": distance >= 0,
        "sliding_window": (distance >= 0) & (distance <= 2),
    }.get(kind, np.ones((length, length), bool))
    got = ops.fused_attention_block(
        x, w, out, *biases, *angles, *([] if mask is None else [mask]),
        num_heads=heads, kv_heads=kv, head_dim=DEPTH, has_bias=has_bias, has_rope=has_rope,
        mask_kind=kind, window=2 if kind == "sliding_window" else None,
    )  # fmt: skip
    for n in range(batch):
        scores = np.where(shown, 0.0, -np.inf)[None].repeat(heads, axis=0)
        if kind == "custom":
            scores[:, :, mask[n] < 0.5] = -np.inf
        elif kind == "bias":
            scores = scores + mask[n]
        given = (biases or [0.0, 0.0], angle if has_rope else None, scores)
        np.testing.assert_allclose(got[n], block(x[n], w, out, heads, kv, *given), **CLOSE)


# -- regions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", ["elementwise_region", "region"])
def test_regions_of_elementwise_steps(name: str, several: bool) -> None:
    """One result and several; operands broadcast."""
    x, y = normal(3, 4), normal(4)
    g = Graph("body")
    a, b = g.input("a", Shape((3, 4), "f64")), g.input("b", Shape((4,), "f64"))
    low = ops.where(ops.less(a, b), a, ops.mul(b, 2.0))
    g.set_outputs([low, b, ops.neg(ops.add(a, b))] if several else [low])
    want = [np.choose(x < y, [np.broadcast_to(y + y, x.shape), x]), y, -x - y]
    made = lookup(name)(x, y, body=g)
    for got, one in zip(made if several else [made], want):
        np.testing.assert_array_equal(got, one)


def test_a_region_of_any_ops() -> None:
    x, y = normal(3, 4), normal(4, 4)
    g = Graph("body")
    a, b = g.input("a", Shape((3, 4), "f64")), g.input("b", Shape((4, 4), "f64"))
    g.set_outputs([ops.softmax(ops.matmul(a, b)), ops.sum(ops.transpose(b), axes=(0,))])
    rows, total = ops.region(x, y, body=g)
    np.testing.assert_allclose(rows, scipy.special.softmax(np.dot(x, y), axis=1), **CLOSE)
    np.testing.assert_allclose(total, np.dot(y, np.ones(4)), **CLOSE)
