"""Attention and rotary positions, by examples worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph
from rlx.ops import op as table
from tests.unit.op_examples import CLOSE, Check, f32, randoms

SEQ, PAST = Dim("seq"), Dim("past")
INF = np.inf


# -- attention ------------------------------------------------------------------------------------


def weights_seen(queries: int, keys: int, mask: Any = None, **attrs: Any) -> list[list[float]]:
    """The weights of one head whose scores are all equal: v is the identity."""
    q, k = np.zeros((1, 1, queries, 2), np.float32), np.zeros((1, 1, keys, 2), np.float32)
    v = np.eye(keys, dtype=np.float32)[None, None]
    operands = [q, k, v] if mask is None else [q, k, v, mask]
    made = ops.attention(*operands, num_heads=1, **attrs)
    other = table.lookup("attention").lowered(
        operands, table.lookup("attention").canonical({"num_heads": 1, **attrs}, [Shape(q.shape)])
    )[0]
    np.testing.assert_allclose(other, made, **CLOSE)
    return made[0, 0].round(4).tolist()


def test_causal_counts_queries_from_the_end_of_the_keys() -> None:
    assert weights_seen(2, 2, mask_kind="causal") == [[1, 0], [0.5, 0.5]]
    assert weights_seen(1, 4, mask_kind="causal") == [[0.25] * 4]
    assert weights_seen(2, 4, mask_kind="causal")[0] == pytest.approx([1 / 3] * 3 + [0], abs=1e-4)


def test_a_query_that_sees_no_key_gives_zeros() -> None:
    assert weights_seen(3, 1, mask_kind="causal") == [[0], [0], [1]]
    assert weights_seen(2, 2, f32([0, 0]), mask_kind="custom") == [[0, 0], [0, 0]]
    bias = f32([-INF, -INF], [0, -INF])
    assert weights_seen(2, 2, bias, mask_kind="bias") == [[0, 0], [1, 0]]
    q, none = randoms(1, 2, 4), np.zeros((1, 0, 4), np.float32)
    assert not ops.attention(q, none, none, num_heads=2).any()


def test_a_window_of_w_sees_w_plus_one_keys() -> None:
    assert weights_seen(3, 3, mask_kind="sliding_window", window=1) == [
        [1, 0, 0], [0.5, 0.5, 0], [0, 0.5, 0.5],
    ]  # fmt: skip
    assert weights_seen(1, 3, mask_kind="sliding_window", window=0) == [[0, 0, 1]]


def test_a_custom_mask_keeps_what_is_at_least_one_half() -> None:
    """1 is keep and 0 is ignore; an additive mask of 0 and -1e9 is `bias`, a kind of its own."""
    assert weights_seen(1, 3, f32([1, 0.5, 0.4]), mask_kind="custom") == [[0.5, 0.5, 0]]
    assert weights_seen(1, 2, np.array([[False, True]]), mask_kind="custom") == [[0, 1]]
    each = np.array([[True, False], [True, True]])[None, None]
    assert weights_seen(2, 2, each, mask_kind="custom") == [[1, 0], [0.5, 0.5]]
    assert weights_seen(1, 2, f32([0, -1e9]), mask_kind="bias") == [[1, 0]]


def test_scale_and_softcap() -> None:
    q, k, v = f32([[2.0]]), f32([[0.0], [3.0]]), f32([[0.0], [1.0]])
    made = ops.attention(q[None], k[None], v[None], num_heads=1, scale=0.5, softcap=2.0)
    expected = 1 / (1 + np.exp(-2 * np.tanh(1.5)))
    np.testing.assert_allclose(made.item(), expected, **CLOSE)


def test_layouts_agree_and_query_heads_share_kv_heads_in_runs() -> None:
    q, k, v = randoms(2, 4, 3, 8), randoms(2, 2, 5, 8), randoms(2, 2, 5, 6)
    made = ops.attention(q, k, v, num_heads=4, kv_heads=2, mask_kind="causal")
    repeated = [np.repeat(a, 2, axis=1) for a in (k, v)]
    every = ops.attention(q, *repeated, num_heads=4, mask_kind="causal")
    np.testing.assert_array_equal(made, every)
    packed = [a.swapaxes(1, 2).reshape(2, a.shape[2], -1) for a in (q, k, v)]
    flat = ops.attention(*packed, num_heads=4, kv_heads=2, mask_kind="causal")
    np.testing.assert_allclose(flat, made.swapaxes(1, 2).reshape(2, 3, 24), **CLOSE)


@pytest.mark.parametrize(("seq", "past"), [(1, 7), (4, 0), (3, 2), (0, 3), (0, 0)])
@pytest.mark.parametrize("kind", ["none", "causal", "sliding_window", "custom", "bias"])
def test_attention_lowers_over_named_lengths(kind: str, seq: int, past: int) -> None:
    arrays = [randoms(2, seq, 8), randoms(2, past + seq, 4), randoms(2, past + seq, 4, seed=1)]
    dims: list[tuple[Any, ...]] = [(2, SEQ, 8), (2, PAST + SEQ, 4), (2, PAST + SEQ, 4)]
    if kind == "custom":
        arrays.append(randoms(2, past + seq) > 0)
        dims.append((2, PAST + SEQ))
    if kind == "bias":
        arrays.append(randoms(4, seq, past + seq))
        dims.append((4, SEQ, PAST + SEQ))
    # `past` occurs only in sums: one more input says how long it is.
    attrs = {"num_heads": 4, "kv_heads": 2, "mask_kind": kind}
    attrs |= {"window": 2} if kind == "sliding_window" else {}
    op, graph = table.lookup("attention"), Graph()
    graph.input("cache", Shape([PAST]))
    inputs = [graph.input(f"x{i}", Shape(d, DType.of(a.dtype)))
              for i, (d, a) in enumerate(zip(dims, arrays))]  # fmt: skip
    graph.set_outputs(op.lowered(inputs, op.canonical(attrs, [n.shape for n in inputs])))
    values = {f"x{i}": a for i, a in enumerate(arrays)} | {"cache": randoms(past)}
    np.testing.assert_allclose(evaluate(graph, values)[0], op(*arrays, **attrs), **CLOSE)


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        ({"num_heads": 3}, r"operand 0 is f32\[1, 2, 8\], expected \[1, 2, 6\]"),
        ({"num_heads": 4, "kv_heads": 3}, "kv_heads=3 must divide num_heads=4"),
        ({"num_heads": 4, "kv_heads": 2}, "operand 1"),
        ({"num_heads": 4, "mask_kind": "custom"}, "needs a mask"),
        ({"num_heads": 4, "mask_kind": "diagonal"}, "expected one of"),
        ({"num_heads": 4, "window": 3}, "sliding_window"),
        ({"num_heads": 4, "mask_kind": "sliding_window"}, "sliding_window"),
        ({"num_heads": 4, "softcap": 0.0}, "above 0"),
    ],
)
def test_attention_names_what_is_wrong(attrs: dict[str, Any], reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        ops.attention(randoms(1, 2, 8), randoms(1, 3, 8), randoms(1, 3, 8), **attrs)


def test_attention_checks_its_mask() -> None:
    x = randoms(1, 2, 8)
    with pytest.raises(GraphError, match="does not broadcast"):
        ops.attention(x, x, x, randoms(1, 3), num_heads=2, mask_kind="custom")
    with pytest.raises(GraphError, match="takes no mask"):
        ops.attention(x, x, x, randoms(1, 2), num_heads=2, mask_kind="causal")
    with pytest.raises(GraphError, match="expected dtype f32"):
        ops.attention(x, x, x, np.ones((1, 1, 2, 2)), num_heads=2, mask_kind="bias")


# -- rotary positions -----------------------------------------------------------------------------


def test_rope_turns_by_a_quarter() -> None:
    """cos 0, sin 1: (a, b) becomes (-b, a); the last element is copied."""
    x, cos, sin = f32([1, 2, 3, 4, 9]), np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)
    assert ops.rope(x, cos, sin, n_rot=4).tolist() == [[-3, -4, 1, 2, 9]]
    assert ops.rope(x, cos, sin, n_rot=4, interleaved=True).tolist() == [[-2, 1, -4, 3, 9]]


def test_rope_of_packed_heads_is_rope_of_each() -> None:
    x, cos, sin = randoms(2, 3, 4, 6), randoms(4, 2), randoms(4, 2, seed=1)
    packed = x.swapaxes(1, 2).reshape(2, 4, 18)
    made = ops.rope(packed, cos, sin, head_dim=6, n_rot=4)
    each = ops.rope(x, cos, sin, n_rot=4).swapaxes(1, 2).reshape(2, 4, 18)
    np.testing.assert_array_equal(made, each)
    batched = ops.rope(x, np.stack([cos, cos])[:, None], np.stack([sin, sin])[:, None], n_rot=4)
    np.testing.assert_array_equal(batched, ops.rope(x, cos, sin, n_rot=4))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("length", [0, 1, 4])
def test_rope_lowers_over_named_lengths(
    interleaved: bool, length: int, assert_lowers: Check
) -> None:
    arrays = [randoms(2, length, 12), randoms(length, 2), randoms(length, 2, seed=1)]
    dims = [(2, SEQ, 12), (SEQ, 2), (SEQ, 2)]
    assert_lowers("rope", arrays, dims, head_dim=6, n_rot=4, interleaved=interleaved)


def test_rope_names_what_is_wrong() -> None:
    x, angles = randoms(2, 4, 6), randoms(4, 3)
    with pytest.raises(GraphError, match="not heads of head_dim=4"):
        ops.rope(x, angles, angles, head_dim=4)
    with pytest.raises(GraphError, match="n_rot=3 must be even"):
        ops.rope(x, angles, angles, n_rot=3)
    with pytest.raises(GraphError, match=r"operand 1 is f32\[4, 3\], expected \[..., length, 2\]"):
        ops.rope(x, angles, angles, n_rot=4)
    with pytest.raises(GraphError, match="do not broadcast"):
        ops.rope(x, randoms(5, 3), randoms(5, 3))
