"""Attention as a kernel form: lowering to it and interpreting it gives what the op gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.attention import Attention, Bias, Positional, Visibility, run
from rlx.kernel.lower.attention import lower_attention
from rlx.kernel.refusal import Refusal, required
from rlx.ops.draw import Draw
from rlx.ops.op import lookup

Array = np.ndarray[Any, Any]
EPS = {DType.F16: 2.0**-10, DType.BF16: 2.0**-7, DType.F32: 2.0**-23, DType.F64: 2.0**-52}
CASES = 120


def attention(*shapes: Shape, **attrs: Any) -> Node:
    g = Graph("a")
    inputs = [g.input(f"x{i}", s) for i, s in enumerate(shapes)]
    return g.node(lookup("attention"), inputs, {"num_heads": 1, **attrs})


def formed(node: Node, *layouts: Any) -> Attention:
    return required(lower_attention(node, *layouts))


def f32(*dims: Any) -> Shape:
    return Shape(dims, DType.F32)


def wanted(node: Node, arrays: list[Array], **sizes: int) -> Array:
    with np.errstate(all="ignore"):
        made = node.decl.evaluate(arrays, node.attrs, [s.bind(sizes) for s in node.shapes])
    return made if isinstance(made, np.ndarray) else made[0]


def assert_close(got: Array, want: Array, form: Attention, arrays: list[Array]) -> None:
    """A score is a sum of `depth` products; its absolute error is the relative error of a weight.
    Sums over keys round once for each, and the result once to its dtype."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    q, k, v = (abs(a.astype(np.float64)).max(initial=0.0) for a in arrays[:3])
    depth, keys = arrays[0].shape[-1], arrays[1].size
    score = 1 + q * k * depth * abs(form.scale)
    allowed = 4 * (depth + keys + 8) * score * EPS[form.sums] * v
    wide = want.astype(np.float64)
    np.testing.assert_allclose(got.astype(np.float64), wide, rtol=EPS[form.dtype], atol=allowed)


def test_the_form_means_what_the_op_means() -> None:
    kinds = set[type]()
    for seed in range(CASES):
        draw = Draw([seed, 31])
        case = draw.case(lookup("attention"))
        node = attention(*(Shape(s.dims, s.dtype) for s in case.specs), **case.attrs)
        form, arrays = formed(node), list(draw.arrays(case))
        kinds.add(type(form.mask))
        (got,) = run(form, arrays, {})
        assert_close(got, wanted(node, arrays), form, arrays)
    assert kinds == {Positional, Visibility, Bias, type(None)}


@pytest.mark.parametrize("attrs", [{"mask_kind": "causal"}, {"mask_kind": "sliding_window",
                                                             "window": 2}, {}])  # fmt: skip
def test_sizes_may_be_named(attrs: dict[str, Any]) -> None:
    b, s, k = Dim("b"), Dim("s"), Dim("k")
    node = attention(f32(b, s, 4), f32(b, k, 2), f32(b, k, 6), num_heads=2, kv_heads=1, **attrs)
    form, rng = formed(node), np.random.default_rng(3)
    for sizes in ({"b": 2, "s": 3, "k": 5}, {"b": 1, "s": 4, "k": 1}, {"b": 1, "s": 2, "k": 0}):
        n, i, j = sizes.values()
        dims = (n, i, 4), (n, j, 2), (n, j, 6)
        arrays = [rng.standard_normal(d).astype(np.float32) for d in dims]
        (got,) = run(form, arrays, sizes)
        assert_close(got, wanted(node, arrays, **sizes), form, arrays)


def test_operands_and_the_result_may_have_any_layout() -> None:
    node = attention(f32(2, 3, 4, 5), f32(2, 3, 6, 5), f32(2, 3, 6, 7), num_heads=3)
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(i.shape.static_dims).astype(np.float32) for i in node.inputs]
    perm = (0, 2, 1, 3)  # [batch, length, heads, depth] in memory
    layouts = [
        Layout.contiguous([s.dims[p] for p in perm]).permuted(perm)
        for s in (*(i.shape for i in node.inputs), *node.shapes)
    ]
    form = formed(node, layouts[:3], layouts[3:])
    (got,) = run(form, [np.ascontiguousarray(a.transpose(perm)) for a in arrays], {})
    made = got.reshape(2, 4, 3, 7).transpose(perm)
    assert_close(np.ascontiguousarray(made), wanted(node, arrays), form, arrays)


@pytest.mark.parametrize(("rows", "value"), [("zeros", 0.0), ("nan", np.nan)])
def test_rows_that_see_no_key(rows: str, value: float) -> None:
    """Two of three queries are before the only key."""
    node = attention(f32(1, 3, 2), f32(1, 1, 2), f32(1, 1, 2), mask_kind="causal", masked_rows=rows)
    ones = [np.ones(i.shape.static_dims, np.float32) for i in node.inputs]
    (got,) = run(formed(node), ones, {})
    np.testing.assert_array_equal(got[0, :, 0], [value, value, 1.0])
    np.testing.assert_array_equal(got, wanted(node, ones))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite(value: float) -> None:
    node = attention(f32(1, 2, 2), f32(1, 3, 2), f32(1, 3, 2))
    arrays = [np.ones(i.shape.static_dims, np.float32) for i in node.inputs]
    arrays[0][0, 0, 0] = value
    with np.errstate(all="ignore"):
        (got,) = run(formed(node), arrays, {})
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted(node, arrays)))


def test_a_mask_hides_what_is_below_one_half_and_nan_shows() -> None:
    node = attention(f32(1, 1, 1), f32(1, 4, 1), f32(1, 4, 1), f32(1, 4), mask_kind="custom")
    arrays = [np.ones(i.shape.static_dims, np.float32) for i in node.inputs]
    arrays[2][0, :, 0] = [1, 10, 100, 1000]
    arrays[3][0] = [0.25, 0.5, np.nan, 0.75]
    (got,) = run(formed(node), arrays, {})
    assert got.item() == pytest.approx((10 + 100 + 1000) / 3, rel=1e-6)  # a few f32 roundings


def test_what_the_form_says() -> None:
    s, k = Dim("s"), Dim("k")
    node = attention(f32(2, s, 24), f32(2, k, 8), f32(2, k, 10), num_heads=6, kv_heads=2,
                     mask_kind="sliding_window", window=9, softcap=30.0)  # fmt: skip
    form = formed(node)
    assert (form.heads, form.kv_heads, form.group, form.depth) == (6, 2, 3, 4)
    assert (form.queries, form.keys, form.value_depth) == (s, k, 5)
    assert form.mask == Positional(k - s, 9)
    assert (form.scale, form.sums, form.name) == (0.5, DType.F32, "attention")
    assert (form.operands, form.results) == (tuple(i.shape for i in node.inputs), node.shapes)
    text = str(form)
    assert "attention of queries i<s, keys j<k, depth d<4, value depth e<5, sums in f32" in text
    assert "query heads 3 per kv head" in text
    assert f"keys j of query i with 0 <= i + {k - s} - j <= 9, masked rows give zeros" in text
    assert " = tanh(" in text
    assert " = load x1[" in text


def test_other_ops_are_refused() -> None:
    g = Graph("g")
    x = g.input("x", f32(2, 2))
    made = lower_attention(g.matmul(x, x))
    assert isinstance(made, Refusal)
    assert "not attention" in made.reason
