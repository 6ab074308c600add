"""Lowerings over named dims mean the same as the references, whatever the sizes turn out to be."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph
from rlx.ops.op import lookup

B, N, T = Dim("b"), Dim("n", 8, 64), Dim("n")
IMAGE, SEQUENCE = (8, 9, 11), (0, 1, 5)
"""Sizes of n: an image holds its window, a sequence may be empty."""
WINDOW = {"stride": (2, 3), "padding": (1, 0, 1, 0)}
POOL = {**WINDOW, "kernel": (3, 2)}
CORNERS = {"coordinate_mode": "asymmetric", "nearest_mode": "floor"}
BOTH = {"direction": "bidirectional", "extras": ("bias", "lengths", "initial_h")}
HEADS = {"num_heads": 4, "kv_heads": 2}
CASES = [
    ("conv", [(B, 2, N), (4, 2, 3)], {"stride": (2,)}),
    ("conv_transpose", [(B, 2, N, 9), (2, 4, 3, 3)], {**WINDOW, "output_padding": (1, 1)}),
    ("im2col", [(B, 2, N, 9)], POOL),
    ("deform_conv", [(B, 2, N, 9), (4, 2, 3, 3), (B, 18, (N - 1) // 2 + 1, 3)], WINDOW),
    ("max_pool", [(B, 2, N, 9)], {**POOL, "ceil": True}),
    ("avg_pool", [(B, 2, N, 9)], {**POOL, "ceil": True}),
    ("lp_pool", [(B, 2, N, 9)], POOL),
    ("max_pool_with_indices", [(B, 2, N, 9)], {**POOL, "ceil": True, "column_major": True}),
    ("resize", [(B, 2, N, 9)], {"scales": (2.0, 3.0)}),
    ("resize", [(B, N, N, 9)], {**CORNERS, "scales": (3.0, 0.5), "axes": (2, 3)}),
    ("resize", [(B, 2, N)], {**CORNERS, "sizes": (4 * N,)}),
    ("global_avg_pool", [(B, 2, N, 9)], {}),
    ("global_max_pool", [(B, 2, N, 9)], {}),
    ("instance_norm", [(B, 2, N, 9)], {}),
    ("layer_norm_2d", [(B, N, 3, 9), (N,), (N,)], {}),
    ("ada_layer_norm", [(B, 9, N), (B, 1, N), (B, 1, N)], {}),
    ("local_response_norm", [(B, N, 9)], {"size": 3}),
    ("mean_variance_normalization", [(B, N, 9)], {"axes": (0, 1)}),
    ("depthwise_conv1d_causal", [(B, T, 3), (3, 4)], {}),
    ("depthwise_conv1d_causal", [(B, T, 3), (3, 4), (B, 3, 3)], {}),
    ("causal_conv_state", [(B, T, 3)], {"size": 3}),
    ("lstm", [(T, B, 2), (2, 12, 2), (2, 12, 3), (2, 24), (B,), (2, B, 3)], BOTH),
    ("gru", [(T, B, 2), (2, 9, 2), (2, 9, 3), (2, 18), (B,), (2, B, 3)], BOTH),
    ("rnn", [(B, T, 2), (1, 3, 2), (1, 3, 3)], {"batch_first": True}),
    ("selective_scan", [(B, T, 3), (B, T, 3), (3, 4), (B, T, 4), (B, T, 4)], {}),
    ("mamba2", [(B, T, 4, 3), (B, T, 4), (4,), (B, T, 2, 5), (B, T, 2, 5)], {}),
    ("gated_delta_net", [(B, T, 3, 4), (B, T, 3, 4), (B, T, 3, 5), (B, T, 3), (B, T, 3)], {}),
    ("linear_attention", [(B, T, 8), (B, T, 4), (B, T, 6), (B, T, 2), (B, T, 1)], HEADS),
]


@pytest.mark.parametrize(("name", "dims", "attrs"), CASES, ids=[c[0] for c in CASES])
def test_a_lowering_holds_for_every_size(name, dims, attrs):
    op, g = lookup(name), Graph("open")
    shapes = [Shape(d, DType.I64 if d == (B,) else DType.F32) for d in dims]
    operands = [g.input(f"x{i}", s) for i, s in enumerate(shapes)]
    node = g.node(op, operands, attrs)
    items = range(len(node.shapes)) if node.has_items else ()
    whole = [g.node("item", (node,), {"index": i}) for i in items] or [node]
    g.set_outputs([*whole, *op.lowered(operands, node.attrs, g)])
    rng = np.random.default_rng(3)
    is_image = any(N in d for d in dims)
    for size in IMAGE if is_image else SEQUENCE:
        values = {}
        for i, shape in enumerate(shapes):
            sizes = shape.bind({"b": 2, "n": size}).static_dims
            is_lengths = shape.dtype is DType.I64
            drawn = rng.integers(0, size + 1, sizes) if is_lengths else rng.normal(size=sizes) / 2
            values[f"x{i}"] = drawn.astype(shape.dtype.numpy)
        made = evaluate(g, values)
        for got, want in zip(made[len(whole) :], made[: len(whole)], strict=True):
            # sums of at most 36 products of numbers below 3 in f32, over at most 5 steps
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=36 * 9 * 2**-23)


@pytest.mark.parametrize("num", [1, 2, 5, 8])
def test_a_signal_is_resampled_whatever_its_length(num: int) -> None:
    op, g = lookup("resample"), Graph("open")
    x = g.input("x", Shape([2, Dim("n", 1)], DType.F64))
    g.set_outputs(list(op.lowered([x], {"num": num}, g)))
    for size in (1, 2, 3, num, num + 1, 2 * num, 33):
        a = np.random.default_rng(size).normal(size=(2, size))
        # a transform of at most 33 numbers around 1, there and back
        np.testing.assert_allclose(evaluate(g, {"x": a})[0], op.reference(a, num=num), atol=1e-13)


@pytest.mark.parametrize("least", [0, 1])
def test_half_of_a_spectrum_is_there_for_every_length(least: int) -> None:
    op, g = lookup("rfft"), Graph("open")
    x = g.input("x", Shape([2, Dim("n", least)], DType.F64))
    made = list(op.lowered([x], {"n": None, "norm": "backward"}, g))
    assert any(n.op == "pad" for n in g.nodes) == (least == 0)
    g.set_outputs(made)
    for size in (1, 2, 3, 8, 9):
        a = np.random.default_rng(size).normal(size=(2, size))
        np.testing.assert_allclose(evaluate(g, {"x": a})[0], np.fft.rfft(a), atol=1e-13)
