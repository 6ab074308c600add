"""Scans as kernel forms: lowering to one and interpreting it gives what the op gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Apply, Kernel, Reduce
from rlx.kernel.lower.scan import lower_scan
from rlx.kernel.refusal import Refusal, required
from rlx.kernel.scan import Scan, run
from rlx.ops.draw import Draw
from rlx.ops.op import lookup

Array = np.ndarray[Any, Any]
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "complex64": 2.0**-23}
CUMULATIVE = ("cumsum", "cumprod", "cummax", "cummin", "cum_log_sum_exp")
RECURRENT = ("lstm", "gru", "rnn")
STATES = ("selective_scan", "mamba2", "gated_delta_net", "linear_attention")
CASES = 40


def node_of(op: str, shapes: list[Shape], **attrs: Any) -> Node:
    g = Graph("g")
    return g.node(lookup(op), [g.input(f"x{i}", s) for i, s in enumerate(shapes)], attrs)


def formed(node: Node, *layouts: Any) -> Scan:
    return required(lower_scan(node, *layouts))


def f32(*dims: Any) -> Shape:
    return Shape(dims, DType.F32)


def wanted(node: Node, arrays: list[Array], **sizes: int) -> tuple[Array, ...]:
    with np.errstate(all="ignore"):
        made = node.decl.evaluate(arrays, node.attrs, [s.bind(sizes) for s in node.shapes])
    return made if isinstance(made, tuple) else (made,)


def assert_close(got: Array, want: Array) -> None:
    """Equal, or within roundings: a few steps of sums of a few numbers of size 1, which the
    reference adds in another order, each step on the state of the one before."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind not in "fcV":
        np.testing.assert_array_equal(got, want)
        return
    eps = 64 * EPS.get(want.dtype.name, 2.0**-52)
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=eps, atol=eps)


def random(node: Node, seed: int = 1) -> list[Array]:
    rng = np.random.default_rng(seed)
    shapes = [i.shape for i in node.inputs]
    return [(rng.standard_normal(s.static_dims) / 2).astype(s.dtype.numpy) for s in shapes]


@pytest.mark.parametrize("op", [*CUMULATIVE, *RECURRENT, *STATES])
def test_the_form_means_what_the_op_means(op: str) -> None:
    """Its steps contract a carry in recurrent layers, and reduce one in state-space layers."""
    for seed in range(CASES):
        draw = Draw([seed, 41])
        case = draw.case(lookup(op))
        node = node_of(op, [Shape(s.dims, s.dtype) for s in case.specs], **case.attrs)
        form, arrays = formed(node), list(draw.arrays(case))
        assert (form.contracts, form.reduces) == (op in RECURRENT, op in STATES)
        for got, want in zip(run(form, arrays, {}), wanted(node, arrays), strict=True):
            assert_close(got, want)


def test_cumulative_results_are_exact() -> None:
    """A scan has one order, so even sums have the reference's bits: first elements as they are,
    NaN from where it is on, and f32 carried in f64."""
    x = np.array([-0.0, 1e8, 1.0, -1e8, np.nan, 2.0], np.float32)
    for op in ("cumsum", "cumprod", "cummax", "cummin"):
        for reverse in (False, True):
            node = node_of(op, [f32(6)], reverse=reverse)
            (got,), (want,) = run(formed(node), [x], {}), wanted(node, [x])
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(np.signbit(got[:4]), np.signbit(want[:4]))


def test_an_exclusive_sum_starts_with_nothing() -> None:
    node = node_of("cumsum", [f32(4)], exclusive=True)
    (got,) = run(formed(node), [np.array([1, 2, 3, 4], np.float32)], {})
    np.testing.assert_array_equal(got, [0, 1, 3, 6])


@pytest.mark.parametrize("op", ["lstm", "gru"])
def test_rows_end_after_their_lengths(op: str) -> None:
    gates = {"lstm": 4, "gru": 3}[op]
    shapes = [f32(5, 3, 2), f32(2, gates * 4, 2), f32(2, gates * 4, 4), Shape((3,), DType.I32)]
    node = node_of(op, shapes, extras=("lengths",), direction="bidirectional")
    arrays = random(node)
    arrays[3] = np.array([5, 2, 0], np.int32)
    got, want = run(formed(node), arrays, {}), wanted(node, arrays)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b)
    assert not got[0][2:, :, 1].any()
    assert got[0][:2, :, 1].all()
    assert not got[1][:, 2].any()


def test_sizes_may_be_named() -> None:
    s, b = Dim("s"), Dim("b")
    node = node_of("gru", [f32(s, b, 2), f32(1, 9, 2), f32(1, 9, 3)], direction="reverse")
    form, rng = formed(node), np.random.default_rng(2)
    for sizes in ({"s": 4, "b": 2}, {"s": 1, "b": 1}, {"s": 0, "b": 2}):
        dims = (*sizes.values(), 2), (1, 9, 2), (1, 9, 3)
        arrays = [rng.standard_normal(d).astype(np.float32) for d in dims]
        for got, want in zip(run(form, arrays, sizes), wanted(node, arrays, **sizes), strict=True):
            assert_close(got, want)


def test_operands_and_results_may_have_any_layout() -> None:
    node = node_of("mamba2", [f32(2, 3, 4, 5), f32(2, 3, 4), f32(4), *[f32(2, 3, 2, 6)] * 2])
    arrays = random(node)
    given = [Layout.contiguous(a.shape[::-1]).permuted(range(a.ndim)[::-1]) for a in arrays]
    made = [Layout.contiguous(s.dims[::-1]).permuted(range(s.rank)[::-1]) for s in node.shapes]
    got = run(formed(node, given, made), [np.ascontiguousarray(a.T) for a in arrays], {})
    for a, want in zip(got, wanted(node, arrays), strict=True):
        assert_close(np.ascontiguousarray(a.reshape(want.shape[::-1]).T), want)


def test_a_recurrent_step_is_a_contraction_and_a_cell() -> None:
    node = node_of("lstm", [f32(5, 2, 3), f32(1, 16, 3), f32(1, 16, 4)])
    form = formed(node)
    (one,) = form.directions
    sums, cell, output = one.steps
    assert isinstance(sums, Contract)
    assert isinstance(cell, Kernel)
    assert isinstance(output, Kernel)
    assert [v.name for v in form.carries] == ["h", "c"]
    assert (sums.batch[0].extent, sums.rows.extent, sums.columns.extent) == (4, 2, 4)
    ops = {n.op.name for n in cell.nodes if isinstance(n, Apply)}
    assert ops == {"add", "mul", "sigmoid", "tanh"}
    (before,) = form.before
    assert (before.value, before.contract.columns.extent) == ("projected", 16)


def test_directions_share_their_steps_unless_activations_differ() -> None:
    shapes = [f32(5, 2, 3), f32(2, 4, 3), f32(2, 4, 4)]
    for names, count in ((("tanh", "tanh"), 1), (("tanh", "relu"), 2)):
        form = formed(node_of("rnn", shapes, direction="bidirectional", activations=names))
        assert [d.is_reversed for d in form.directions] == [False, True]
        assert len({d.steps for d in form.directions}) == count


def test_a_state_is_reduced_over_its_rows() -> None:
    node = node_of("linear_attention", [f32(2, 5, 24), f32(2, 5, 8), f32(2, 5, 10), f32(2, 5, 1)],
                   num_heads=6, kv_heads=2, rule="delta")  # fmt: skip
    form = formed(node)
    correct, update = form.directions[0].steps
    assert isinstance(update, Kernel)
    assert isinstance(correct, Kernel)
    (state,) = form.carries
    assert [a.extent for a in state.axes] == [2, 2, 4, 5]
    assert {n.axis for n in update.nodes if isinstance(n, Reduce)} == {state.axes[2]}
    assert [a.extent for a in update.axes][-1] == 3


def test_the_text_names_carries_and_values() -> None:
    shapes = [f32(5, 2, 3), f32(1, 9, 3), f32(1, 9, 3), Shape((2,), DType.I64)]
    text = str(formed(node_of("gru", shapes, extras=("lengths",), direction="reverse")))
    assert text.startswith("scan gru along t<5, reversed\n  carry h[b<2, j<3]: f32\n")
    for line in (
        "  value past0[g<2, b<2, j<3]: f32",
        "  before, projected is r0 of",
        "load h[3*b + k]",
        "load seen[3*b + k]",
        "store inside[b] =",
        "store h[3*b + j] =",
        "store r0[6*t + 6*d + 3*b + j] =",
    ):
        assert line in text
    assert "scan cumsum along d1<3, forward" in str(formed(node_of("cumsum", [f32(2, 3)])))


def test_other_ops_are_refused() -> None:
    made = lower_scan(node_of("softmax", [f32(2, 2)]))
    assert isinstance(made, Refusal)
    assert "softmax is no scan" in made.reason
