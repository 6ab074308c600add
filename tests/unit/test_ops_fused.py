"""Fused ops and regions, by examples worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ir.inline import inline
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, Origin
from rlx.ops import op as table
from tests.unit.op_examples import CLOSE, Check, f32, randoms

SEQ = Dim("seq")


# -- fused ops ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_fused_is_unfused_to_the_bit(dtype: str) -> None:
    """Half floats round after the product, after the bias and after the activation."""
    x, w, b = (randoms(*d).astype(DType.of(dtype).numpy) for d in ((3, 8), (8, 8), (8,)))
    spelled = ops.gelu(ops.add(ops.matmul(x, w), b))
    fused = ops.fused_matmul_bias_act(x, w, b, activation="gelu")
    np.testing.assert_array_equal(fused, spelled)
    normed = ops.rms_norm(ops.add(x, x[::-1]), b, eps=1e-3)
    np.testing.assert_array_equal(ops.fused_residual_rms_norm(x, x[::-1], b, eps=1e-3), normed)


def test_swiglu_reads_the_half_that_it_is_told(assert_lowers: Check) -> None:
    cat = f32([1, 2, 0, 100])
    assert ops.fused_swiglu(cat).tolist() == [[0, 200]]
    np.testing.assert_array_equal(
        ops.fused_swiglu(cat, gate_first=True), [[0, ops.silu(f32(2))[0] * 100]]
    )
    for gate_first in (False, True):
        assert_lowers("fused_swiglu", [randoms(3, 8)], [(SEQ, 8)], gate_first=gate_first)
    with pytest.raises(GraphError, match="does not halve"):
        ops.fused_swiglu(randoms(2, 3))


def test_fused_rules_say_which_part_does_not_fit() -> None:
    x, w = randoms(2, 4), randoms(4, 3)
    with pytest.raises(GraphError, match="its matmul"):
        ops.fused_matmul_bias_act(x, randoms(5, 3), randoms(3))
    with pytest.raises(GraphError, match="do not broadcast to the product"):
        ops.fused_matmul_bias_act(x, w, randoms(7, 2, 3))
    with pytest.raises(GraphError, match="no elementwise op of one operand"):
        ops.fused_matmul_bias_act(x, w, randoms(3), activation="softmax")
    with pytest.raises(GraphError, match="takes 5 operands"):
        ops.fused_attention_block(randoms(1, 2, 4), randoms(4, 12), randoms(4, 4), num_heads=2,
                                  head_dim=2, has_bias=True)  # fmt: skip


def test_attention_block_is_its_parts(assert_lowers: Check) -> None:
    h, qkv, out = randoms(2, 3, 6), randoms(6, 16), randoms(8, 5)
    cos, sin = randoms(3, 1), randoms(3, 1, seed=1)
    heads = {"num_heads": 4, "kv_heads": 2, "mask_kind": "causal"}
    given = (h, qkv, out, randoms(16), randoms(5), cos, sin)
    both = {"has_bias": True, "has_rope": True, "head_dim": 2}
    made = ops.fused_attention_block(*given, **heads, **both)
    q, k, v = np.split(h @ qkv + randoms(16), [8, 12], axis=-1)
    q, k = (ops.rope(a, cos, sin, head_dim=2) for a in (q, k))
    np.testing.assert_allclose(made, ops.attention(q, k, v, **heads) @ out + randoms(5), **CLOSE)
    dims = [(2, SEQ, 6), (6, 16), (8, 5), (16,), (5,), (SEQ, 1), (SEQ, 1)]
    assert_lowers("fused_attention_block", given, dims, **heads, **both)


def test_flops_of_a_fused_op_are_those_of_its_parts() -> None:
    op = table.lookup("fused_matmul_bias_act")
    shapes = [Shape([SEQ, 4]), Shape([4, 8]), Shape([8])]
    attrs = op.canonical({"activation": "relu"}, shapes)
    assert op.flops(shapes, op.infer(shapes, attrs), attrs) == 2 * SEQ * 4 * 8 + 2 * SEQ * 8


# -- regions --------------------------------------------------------------------------------------


def column_times_matrix(rows: Any, columns: int) -> Graph:
    """A body where [rows, 1] meets [rows, columns], and a comparison chooses."""
    body = Graph("body")
    a = body.input("a", Shape([rows, 1]))
    b = body.input("b", Shape([rows, columns]))
    total = ops.add(a, b)
    with body.scope(Origin("block", "scaled")):
        body.set_outputs([ops.where(ops.less(total, 0.0), 0.0, ops.mul(total, a))])
    return body


def test_a_region_broadcasts_as_numpy_does() -> None:
    """[8, 1] against [8, 16] repeats columns; counting elements modulo 8 would not."""
    a, b = randoms(8, 1), randoms(8, 16)
    made = ops.elementwise_region(a, b, body=column_times_matrix(8, 16))
    np.testing.assert_array_equal(made, np.where(a + b < 0, 0, (a + b) * a))


def test_a_region_over_named_dims_binds_with_its_graph() -> None:
    graph = Graph()
    a, b = graph.input("a", Shape([SEQ, 1])), graph.input("b", Shape([SEQ, 4]))
    node = graph.elementwise_region(a, b, body=column_times_matrix(SEQ, 4))
    assert node.shape == Shape([SEQ, 4])
    graph.set_outputs([node])
    arrays = {"a": randoms(3, 1), "b": randoms(3, 4)}
    expected = np.where((s := arrays["a"] + arrays["b"]) < 0, 0, s * arrays["a"])
    np.testing.assert_array_equal(evaluate(graph, arrays)[0], expected)
    static = graph.bind({"seq": 3})
    assert static.outputs[0].shape == Shape([3, 4])
    np.testing.assert_array_equal(evaluate(static, arrays)[0], expected)


def test_a_region_has_as_many_results_as_its_body() -> None:
    body = Graph("body")
    x = body.input("x", Shape([2, 3]))
    body.set_outputs([ops.sum(x, axes=(1,)), ops.neg(x)])
    graph = Graph()
    y = graph.input("y", Shape([2, 3]))
    total, negative = graph.region(y, body=body)
    assert (total.op, total.shape, negative.shape) == ("item", Shape([2]), Shape([2, 3]))
    value = randoms(2, 3)
    np.testing.assert_array_equal(ops.region(value, body=body)[1], -value)
    graph.set_outputs([negative, total])
    np.testing.assert_array_equal(evaluate(graph, {"y": value})[1], value.sum(1))


def test_a_region_lowers_to_its_body_with_origins() -> None:
    graph = Graph()
    a, b = graph.input("a", Shape([SEQ, 1])), graph.input("b", Shape([SEQ, 4]))
    (made,) = inline(graph, column_times_matrix(SEQ, 4), [a, b])
    assert made.op == "where"
    assert Origin("block", "scaled") in made.origins
    less = made.inputs[0]
    assert (less.op, less.shape.dtype) == ("less", DType.BOOL)


def test_regions_check_their_body() -> None:
    body = Graph("body")
    x = body.input("x", Shape([2, 3]))
    body.set_outputs([ops.softmax(x)])
    value = randoms(2, 3)
    with pytest.raises(GraphError, match=r"softmax .* is not elementwise"):
        ops.elementwise_region(value, body=body)
    with pytest.raises(GraphError, match="takes 1 operands, got 2"):
        ops.region(value, value, body=body)
    with pytest.raises(GraphError, match=r"operand 0 is f32\[3, 2\], but the body's input is"):
        ops.region(value.T, body=body)
    empty = Graph("empty")
    empty.input("x", Shape([2, 3]))
    with pytest.raises(GraphError, match="no outputs"):
        ops.region(value, body=empty)
