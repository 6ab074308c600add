"""The benched workloads compute what their plain NumPy meaning says, at small sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rlx
from bench import cache
from bench.workload import Workload, errors
from bench.workloads import chosen, dense, llama, minilm, resnet, spectral

ENCODER = minilm.Size(layers=2, width=16, heads=2, hidden=24, words=60, places=12)
DECODER = llama.Size(
    layers=2, width=16, heads=4, kv_heads=2, hidden=24, words=30, places=20
)  # fmt: skip
NETWORK = resnet.Size(stages=(4, 6), classes=5, image=16)

SMALL: dict[str, Callable[[], Workload]] = {
    "mlp": lambda: dense.mlp(3, 8, 12),
    "tiny": lambda: dense.tiny(6, 2),
    "one sentence": lambda: minilm.minilm(1, 5, minilm.random_params(ENCODER), ENCODER),
    "sentences": lambda: minilm.minilm(3, 7, minilm.random_params(ENCODER), ENCODER),
    "prefill": lambda: llama.prefill(llama.llama_params(DECODER), 6, DECODER),
    "decode": lambda: llama.decode(llama.llama_params(DECODER), 9, DECODER),
    "resnet": lambda: resnet.resnet(resnet.resnet_params(NETWORK), NETWORK),
    "welch": lambda: spectral.welch(2, 96, 32, 3),
    "logmel": lambda: spectral.logmel(2, 120, 20, 10, 4),
    "softmax": lambda: dense.softmax(4, 6),
    "chain": lambda: dense.chain(4, 6),
    "layernorm": lambda: dense.layernorm(4, 6),
}


@pytest.mark.parametrize("name", SMALL)
def test_model_agrees_with_its_meaning(name: str) -> None:
    """Within a few hundred roundings of f32, of which the longest workload has that many rows."""
    workload = SMALL[name]()
    params = workload.rlx_params()
    made = rlx.compile(workload.model(params), "reference", params=params)(*workload.inputs)
    made = made if isinstance(made, tuple) else (made,)
    assert errors(made, cache.run(workload)) < 1e-5


def test_a_named_length_is_the_same_encoder() -> None:
    params = minilm.random_params(ENCODER)
    fixed = minilm.minilm(2, 6, params, ENCODER)
    given = fixed.rlx_params()
    model = minilm.minilm_model(given, 2, rlx.Dim("seq", 1, ENCODER.places), ENCODER)
    made = rlx.compile(model, "reference", params=given)(*fixed.inputs)
    assert errors((made,), cache.run(fixed)) < 1e-5


def test_errors_see_a_wrong_answer() -> None:
    right = np.ones((2, 3))
    assert errors((right,), (right,)) == 0
    assert errors((right * 1.5,), (right,)) == pytest.approx(0.5)
    assert errors((right[:1],), (right,)) == float("inf")
    assert errors((right * np.nan,), (right,)) == float("inf")


def test_names_are_chosen_by_their_beginnings() -> None:
    assert chosen("A,C1x128") == ["A_mlp", "C_1x128"]
    assert chosen("G_chain") == ["G_chain"]
    with pytest.raises(SystemExit, match="no workload"):
        chosen("Z")
