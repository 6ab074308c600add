"""Attention of sizes that are not known, and what ONNX's own cases leave out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from rlx.frontends.onnx.model import from_proto
from tests.onnx.nodes import agrees, ours, same, theirs

RNG = np.random.default_rng(10)
PACKED: dict[str, Sequence[Any]] = {
    "q": ["b", "s", 16], "k": ["b", "t", 8], "v": ["b", "t", 8], "mask": ["b", 1, "s", "t"],
    "past_k": ["b", 2, "p", 4], "past_v": ["b", 2, "p", 4], "ends": ["b"],
}  # fmt: skip


def values(*dims: int) -> Any:
    return RNG.normal(size=dims).astype(np.float32)


def model_of(names: Sequence[str], outputs: int = 1, opset: int = 25, **attrs: Any) -> ModelProto:
    """Four query heads, two of keys and values, of sizes that have names only."""
    used = [n for n in names if n]
    kinds = {"ends": TensorProto.INT64, "mask": attrs.pop("mask", TensorProto.FLOAT)}
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node("Attention", names, results, q_num_heads=4, kv_num_heads=2, **attrs)
    infos = [
        helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), PACKED[n]) for n in used
    ]
    made = [helper.make_tensor_value_info(r, TensorProto.FLOAT, None) for r in results]
    graph = helper.make_graph([node], "attention", infos, made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def check(model: ModelProto, *arrays: Any) -> None:
    """One reading for all sizes, and as the evaluator has it."""
    assert from_proto(model).why_static == ""
    for i, info in enumerate(model.graph.input):
        info.name = f"x{i}"
    node, names = model.graph.node[0], iter(range(len(arrays)))
    for i, name in enumerate(node.input):
        if name:
            node.input[i] = f"x{next(names)}"
    same(ours(model, arrays), theirs(model, arrays))


def operands(b: int, s: int, t: int) -> list[Any]:
    return [values(b, s, 16), values(b, t, 8), values(b, t, 8)]


@pytest.mark.parametrize("attrs", [{}, {"is_causal": 1}, {"left_window_size": 1}])
def test_sizes_with_names(attrs: dict[str, int]) -> None:
    check(model_of(["q", "k", "v"], **attrs), *operands(2, 3, 5))


def test_a_window_after_a_past() -> None:
    names = ["q", "k", "v", "", "past_k", "past_v"]
    attrs = {"left_window_size": 2, "right_window_size": 1}
    past = [values(2, 2, 3, 4) for _ in range(2)]
    check(model_of(names, 3, **attrs), *operands(2, 3, 5), *past)


def test_a_mask_that_is_added_and_ends() -> None:
    names = ["q", "k", "v", "mask", "", "", "ends"]
    arrays = [*operands(2, 3, 5), values(2, 1, 3, 5), np.array([4, 5])]
    check(model_of(names, is_causal=1), *arrays)


def test_a_mask_of_bools() -> None:
    mask = RNG.integers(0, 2, (2, 1, 3, 5)).astype(bool)
    model = model_of(["q", "k", "v", "mask"], mask=TensorProto.BOOL)
    check(model, *operands(2, 3, 5), mask)


@pytest.mark.parametrize("mode", [0, 2, 3])
def test_scores_as_a_result(mode: int) -> None:
    names = ["q", "k", "v", "mask"]
    model = model_of(names, 4, is_causal=1, qk_matmul_output_mode=mode, scale=0.3)
    check(model, *operands(2, 3, 3), values(2, 1, 3, 3))


def test_scores_before_they_are_bounded() -> None:
    """Mode 0 is the plain product, as the text has it; ONNX's evaluator bounds it."""
    model = model_of(["q", "k", "v"], 4, softcap=0.5, qk_matmul_output_mode=0)
    for i, info in enumerate(model.graph.input):
        info.name = model.graph.node[0].input[i] = f"x{i}"
    arrays = operands(1, 3, 3)
    q, k = (a.reshape(1, 3, h, 4).swapaxes(1, 2) for a, h in zip(arrays, (4, 2)))
    wanted = q @ np.repeat(k, 2, axis=1).swapaxes(2, 3) / 2
    np.testing.assert_allclose(ours(model, arrays)[3], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("flag", [0, 1])
def test_rotary_positions_of_a_part(flag: int) -> None:
    arrays = [values(2, 3, 24), values(9, 2), values(9, 2), RNG.integers(0, 9, (2, 3))]
    how: dict[str, Any] = {"num_heads": 3, "rotary_embedding_dim": 4, "interleaved": flag}
    agrees("RotaryEmbedding", arrays, opset=23, dims=["b", "s", 24], **how)


def test_a_state_wider_than_the_rest() -> None:
    arrays = [values(2, 3, 8), values(2, 3, 8), values(2, 3, 6)]
    halves = [a.astype(np.float16) for a in arrays]
    how: dict[str, Any] = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}
    agrees("LinearAttention", [*halves, values(2, 2, 4, 3)], opset=27, outputs=2, **how)
