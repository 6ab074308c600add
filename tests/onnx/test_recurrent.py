"""Recurrent layers: how attributes and optional operands are read. What layers mean is tested with
the ops themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.core.errors import UnsupportedError
from tests.onnx.nodes import gives, one_node, ours

RNG = np.random.default_rng(9)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
LAYERS: dict[str, Any] = {"RNN": ops.rnn, "GRU": ops.gru, "LSTM": ops.lstm}
STATES = {"RNN": 2, "GRU": 2, "LSTM": 3}


def values(*dims: int) -> Any:
    return RNG.normal(size=dims).astype(np.float32)


def weights(op: str, directions: int = 1) -> list[Any]:
    """For three inputs and a state of four; the last is the bias."""
    rows = 4 * GATES[op]
    return [values(directions, rows, 3), values(directions, rows, 4), values(directions, 2 * rows)]


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("opset", [7, 14, 22])
def test_without_anything_optional(op: str, opset: int) -> None:
    arrays = [values(5, 2, 3), *weights(op)[:2]]
    wanted = LAYERS[op](*arrays)
    dims, count = ["length", "batch", 3], STATES[op]
    gives(op, arrays, *wanted, opset=opset, dims=dims, outputs=count, hidden_size=4)


@pytest.mark.parametrize("op", GATES)
def test_both_ways_with_lengths_and_states(op: str) -> None:
    lengths, state = np.array([2, 5], np.int32), values(2, 2, 4)
    arrays = [values(5, 2, 3), *weights(op, 2), lengths, state]
    extras = ("bias", "lengths", "initial_h")
    wanted = LAYERS[op](*arrays, extras=extras, direction="bidirectional")
    gives(op, arrays, *wanted, opset=14, outputs=STATES[op], direction="bidirectional")


@pytest.mark.parametrize("op", GATES)
def test_batch_first(op: str) -> None:
    arrays = [values(2, 5, 3), *weights(op)]
    wanted = LAYERS[op](*arrays, extras=("bias",), batch_first=True)
    gives(op, arrays, *wanted, opset=14, outputs=STATES[op], layout=1)


def test_lengths_that_are_all_the_whole_do_nothing() -> None:
    arrays = [values(5, 2, 3), *weights("GRU"), np.array([5, 5], np.int32)]
    wanted = ops.gru(*arrays[:4], extras=("bias",))
    gives("GRU", arrays, *wanted, opset=14, outputs=2, known=(4,))


def test_alphas_are_for_those_that_have_one() -> None:
    """Of four activations the second and third have an alpha, and only the third has a beta."""
    arrays = [values(5, 2, 3), *weights("GRU", 2)]
    names = ["Sigmoid", "LeakyRelu", "HARDSIGMOID", "Tanh"]
    wanted = ops.gru(
        *arrays,
        extras=("bias",),
        direction="bidirectional",
        activations=("sigmoid", "leaky_relu", "hard_sigmoid", "tanh"),
        alphas=(0.0, 0.3, 0.4, 0.0),
        betas=(0.0, 0.0, 0.6, 0.0),
    )
    how: dict[str, Any] = {"direction": "bidirectional", "activations": names}
    how |= {"activation_alpha": [0.3, 0.4], "activation_beta": [0.6]}
    gives("GRU", arrays, *wanted, opset=14, outputs=2, **how)


def test_alphas_that_are_left_out_are_the_usual_ones() -> None:
    arrays = [values(5, 2, 3), *weights("RNN")]
    usual = {"activations": ("scaled_tanh",), "alphas": (1.0,), "betas": (1.0,)}
    wanted = ops.rnn(*arrays, extras=("bias",), **usual)
    gives("RNN", arrays, *wanted, opset=7, outputs=2, activations=["ScaledTanh"])


@pytest.mark.parametrize(("op", "attr"), [("GRU", "linear_before_reset"), ("LSTM", "input_forget")])
def test_flags_and_clips(op: str, attr: str) -> None:
    arrays = [values(5, 2, 3), *weights(op)]
    wanted = LAYERS[op](*arrays, extras=("bias",), clip=0.5, **{attr: True})
    gives(op, arrays, *wanted, opset=14, outputs=STATES[op], clip=0.5, **{attr: 1})


def test_peepholes_without_what_comes_before_them() -> None:
    arrays = [values(5, 2, 3), *weights("LSTM"), None, None, None, values(1, 12)]
    given = [a for a in arrays if a is not None]
    wanted = ops.lstm(*given, extras=("bias", "peepholes"))
    gives("LSTM", arrays, *wanted, opset=14, outputs=3)


@pytest.mark.parametrize("names", [["Erf"], ["Tanh", "Tanh"]])
def test_activations_that_are_none(names: list[str]) -> None:
    arrays = [values(5, 2, 3), *weights("RNN")]
    with pytest.raises(UnsupportedError, match="activation"):
        ours(one_node("RNN", arrays, opset=14, activations=names), arrays)
