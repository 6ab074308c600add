"""Named fusions: what is fused, what is left alone, and that nothing changes its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.shape import Shape
from rlx.cost.target import FusionTarget, Target
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, Node
from rlx.passes.context import Context
from rlx.passes.fuse import fuse_named
from rlx.passes.fusion import reasons
from rlx.passes.fusion.graph_facts import Facts
from rlx.passes.fusion.report import FusionReport
from tests.unit.fusing import (
    LIMITED,
    TARGETS,
    assert_same,
    fused,
    inputs,
    ops_in,
    ops_within,
    params,
    refusals,
    values,
)


def graph(*outputs: Any) -> Graph:
    made: Graph = outputs[0].graph
    made.set_outputs(list(outputs))
    return made


def named(g: Graph, target: str | Target = "cpu") -> Graph:
    """Named fusions alone, checked."""
    made = fuse_named(g, Context.of(target))
    assert_same(g, made)
    return made


# -- products with bias and activation ------------------------------------------------------------


def linear(bias: tuple[int, ...] = (6,)) -> tuple[Any, Any, Any]:
    g = Graph("linear")
    (x,) = inputs(g, x=(4, 5))
    w, b = params(g, w=(5, 6), b=bias)
    return x, w, b


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"])
def test_bias_and_activation_join_the_product(activation: str) -> None:
    x, w, b = linear()
    g = graph(getattr(ops, activation)(ops.matmul(x, w) + b))
    made = named(g)
    assert ops_in(made) == ["fused_matmul_bias_act"]
    assert made.outputs[0].attrs["activation"] == activation


@pytest.mark.parametrize("bias", [(6,), (1, 6)])
@pytest.mark.parametrize("bias_first", [False, True])
def test_bias_of_either_order_and_spelling(bias: tuple[int, ...], bias_first: bool) -> None:
    x, w, b = linear(bias)
    product = ops.matmul(x, w)
    made = named(graph(b + product if bias_first else product + b))
    assert "fused_matmul_bias_act" in ops_in(made)
    assert "add" not in ops_in(made)


def test_a_product_that_is_an_output_keeps_its_value() -> None:
    """Defect 1 of the original: the biased value came out in place of the product."""
    x, w, b = linear()
    product = ops.matmul(x, w)
    for target in TARGETS:
        g = graph(product, product + b)
        made, decisions = fused(g, target)
        assert "fused_matmul_bias_act" not in ops_within(made)
        assert refusals(decisions, "fuse_matmul_bias_act") == [reasons.IS_OUTPUT]


def test_a_product_with_another_reader_is_not_hidden() -> None:
    x, w, b = linear()
    product = ops.matmul(x, w)
    made, decisions = fused(graph(product + b, ops.exp(product)))
    assert "fused_matmul_bias_act" not in ops_within(made)
    assert refusals(decisions, "fuse_matmul_bias_act") == [reasons.HAS_OTHER_READERS]


def test_a_sum_that_is_an_output_ends_the_pattern() -> None:
    x, w, b = linear()
    total = ops.matmul(x, w) + b
    made = named(graph(total, ops.relu(total)))
    assert sorted(ops_in(made)) == ["fused_matmul_bias_act", "relu"]


def test_a_wide_bias_is_missed_and_a_residual_is_not() -> None:
    x, w, b = linear((4, 6))
    _, decisions = fused(graph(ops.matmul(x, w) + b))
    assert refusals(decisions, "fuse_matmul_bias_act") == [reasons.BIAS_SHAPE]
    g = Graph("residual")
    x, r = inputs(g, x=(4, 5), r=(4, 6))
    (w,) = params(g, w=(5, 6))
    made, decisions = fused(graph(ops.matmul(x, w) + r))
    assert not refusals(decisions, "fuse_matmul_bias_act")
    assert ops_in(made) == ["region"]


def test_a_scalar_bias_is_no_vector() -> None:
    x, w, b = linear((1,))
    assert "fused_matmul_bias_act" not in ops_in(named(graph(ops.matmul(x, w) + b)))


def test_an_activation_with_its_own_slope_stays_outside() -> None:
    x, w, b = linear()
    made = named(graph(ops.leaky_relu(ops.matmul(x, w) + b, alpha=0.5)))
    assert ops_in(made) == ["fused_matmul_bias_act", "leaky_relu"]
    made = named(graph(ops.leaky_relu(ops.matmul(x, w) + b)))
    assert ops_in(made) == ["fused_matmul_bias_act"]


def test_batched_right_operands_are_left_alone() -> None:
    g = Graph("batched")
    x, y = inputs(g, x=(2, 4, 5), y=(2, 5, 6))
    (b,) = params(g, b=(6,))
    assert "fused_matmul_bias_act" not in ops_in(named(graph(ops.matmul(x, y) + b)))


# -- the gated unit -------------------------------------------------------------------------------


def gated(gate_left: bool = True) -> tuple[Any, Any, Any]:
    g = Graph("gated")
    (x,) = inputs(g, x=(4, 5))
    up, gate = params(g, up=(5, 6), gate=(5, 6))
    silu, other = ops.silu(ops.matmul(x, gate)), ops.matmul(x, up)
    return x, ops.mul(silu, other) if gate_left else ops.mul(other, silu), (silu, other)


@pytest.mark.parametrize("gate_left", [False, True])
def test_two_products_become_one_and_a_gated_unit(gate_left: bool) -> None:
    _, h, _ = gated(gate_left)
    made = named(graph(h))
    assert ops_in(made) == ["concat", "matmul", "fused_swiglu"]
    concat = next(n for n in made.order() if n.op == "concat")
    assert Facts.of(made).is_weight(concat)


def test_fusable_swiglu_ffn() -> None:
    g = Graph("ffn")
    (x,) = inputs(g, x=(4, 5))
    up, gate, down = params(g, up=(5, 6), gate=(5, 6), down=(6, 5))
    h = ops.matmul(x, up) * ops.silu(ops.matmul(x, gate))
    g.set_outputs([ops.matmul(h, down)])
    assert len(g.order()) == 9
    for target in ("cpu", "metal", "wgpu"):
        made, decisions = fused(g, target)
        assert ops_within(made).count("fused_swiglu") == 1
        assert all(d.verdict for d in decisions)


@pytest.mark.parametrize("shared", ["gate", "up", "silu"])
@pytest.mark.parametrize("as_output", [False, True])
def test_a_shared_gate_or_up_stays(shared: str, as_output: bool) -> None:
    """Defect 2 of the original: it panicked where gate or up had another reader."""
    _, h, (silu, up) = gated()
    kept = {"gate": silu.inputs[0], "up": up, "silu": silu}[shared]
    for target in TARGETS:
        _, decisions = fused(graph(h, kept if as_output else ops.exp(kept)), target)
        assert "fuse_swiglu_dual_matmul" not in {d.what for d in decisions if d.verdict}
        wanted = reasons.IS_OUTPUT if as_output else reasons.HAS_OTHER_READERS
        assert wanted in refusals(decisions, "fuse_swiglu_dual_matmul")


def test_weights_given_per_call_are_not_joined() -> None:
    g = Graph("per call")
    x, up, gate = inputs(g, x=(4, 5), up=(5, 6), gate=(5, 6))
    made, decisions = fused(graph(ops.silu(ops.matmul(x, gate)) * ops.matmul(x, up)))
    assert "concat" not in ops_within(made)
    assert refusals(decisions, "fuse_swiglu_dual_matmul") == [reasons.NOT_WEIGHTS]


def test_gate_and_up_of_different_values() -> None:
    g = Graph("two values")
    x, y = inputs(g, x=(4, 5), y=(4, 5))
    up, gate = params(g, up=(5, 6), gate=(5, 6))
    _, decisions = fused(graph(ops.silu(ops.matmul(x, gate)) * ops.matmul(y, up)))
    assert refusals(decisions, "fuse_swiglu_dual_matmul") == [reasons.OTHER_INPUT]


def halves(first: int, second: int, length: int, width: int, gate_first: bool) -> Graph:
    g = Graph("halves")
    (cat,) = inputs(g, cat=(4, width))
    low = ops.narrow(cat, axis=1, start=first, length=length)
    high = ops.narrow(cat, axis=1, start=second, length=length)
    gate, up = (low, high) if gate_first else (high, low)
    return graph(ops.silu(gate) * up)


@pytest.mark.parametrize("gate_first", [False, True])
def test_halves_of_one_value(gate_first: bool) -> None:
    """Defect 5 of the original: unfusing forgot which half is the gate."""
    g = halves(0, 3, 3, 6, gate_first)
    made = named(g)
    assert ops_in(made) == ["fused_swiglu"]
    node = made.outputs[0]
    assert node.attrs["gate_first"] is gate_first
    given = values(g)
    unfused = node.decl.lowered([given["cat"]], node.attrs)
    np.testing.assert_array_equal(unfused[0], evaluate(g, given)[0])


@pytest.mark.parametrize(("first", "second", "length", "width"), [(0, 3, 3, 8), (1, 4, 3, 7),
                                                                 (0, 2, 3, 6)])  # fmt: skip
def test_halves_that_do_not_cover_the_axis(
    first: int, second: int, length: int, width: int
) -> None:
    made, decisions = fused(halves(first, second, length, width, False))
    assert "fused_swiglu" not in ops_within(made)
    assert refusals(decisions, "fuse_swiglu") == [reasons.UNEQUAL_HALVES]


def test_halves_by_split() -> None:
    g = Graph("split")
    (cat,) = inputs(g, cat=(4, 6))
    up, gate = ops.split(cat, sizes=(3, 3), axis=1)
    assert ops_in(named(graph(up * ops.silu(gate)))) == ["fused_swiglu"]
    assert "fused_swiglu" not in ops_in(named(graph(up * ops.silu(gate), up)))


# -- products of one value ------------------------------------------------------------------------


def projections(per_call: bool = False, biased: bool = False) -> Graph:
    g = Graph("projections")
    (x,) = inputs(g, x=(4, 5))
    ws = (inputs if per_call else params)(g, wq=(5, 6), wk=(5, 3), wv=(5, 3))
    made = [ops.matmul(x, w) for w in ws]
    if biased:
        made = [m + b for m, b in zip(made, params(g, bq=(6,), bk=(3,), bv=(3,)))]
    return graph(*(ops.softmax(m) if i else m for i, m in enumerate(made)))


@pytest.mark.parametrize("biased", [False, True])
def test_products_of_one_value_are_joined(biased: bool) -> None:
    made = named(projections(biased=biased))
    kernel = "fused_matmul_bias_act" if biased else "matmul"
    assert ops_in(made).count(kernel) == 1
    assert all(Facts.of(made).is_weight(n) for n in made.order() if n.op == "concat")


def test_joined_products_as_outputs_are_copies_and_priced_so() -> None:
    """The cut-out parts are outputs, so each would be copied: the gate sees that."""
    g = Graph("outputs")
    (x,) = inputs(g, x=(4, 5))
    ws = params(g, a=(5, 3), b=(5, 3))
    made, decisions = fused(graph(*(ops.matmul(x, w) for w in ws)), "cuda")
    assert ops_in(made) == ["matmul", "matmul"]
    assert len(refusals(decisions, "fuse_shared_input_matmul")) == 1


def test_a_target_without_strides_refuses_to_join() -> None:
    _, decisions = fused(projections(), "tpu")
    (reason,) = refusals(decisions, "fuse_shared_input_matmul")
    assert "would cost" in reason


def test_per_call_weights_are_no_candidates() -> None:
    made, decisions = fused(projections(per_call=True))
    assert "concat" not in ops_within(made)
    assert not [d for d in decisions if d.what == "fuse_shared_input_matmul"]


# -- norms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("norm", "name"), [(ops.layer_norm, "fused_residual_ln"),
                                            (ops.rms_norm, "fused_residual_rms_norm")])  # fmt: skip
@pytest.mark.parametrize("affine", [0, 1, 2])
def test_the_norm_of_a_sum(norm: Any, name: str, affine: int) -> None:
    g = Graph("norm")
    x, r = inputs(g, x=(2, 4, 6), r=(2, 4, 6))
    weights = params(g, scale=(6,), bias=(6,))[:affine]
    made = named(graph(norm(x + r, *weights, eps=0.5)))
    assert ops_in(made) == [name]
    assert made.outputs[0].attrs["eps"] == 0.5


@pytest.mark.parametrize("as_output", [False, True])
def test_a_sum_that_is_read_again_makes_a_region_of_two_results(as_output: bool) -> None:
    g = Graph("prenorm")
    x, r = inputs(g, x=(4, 6), r=(4, 6))
    (scale,) = params(g, scale=(6,))
    total = x + r
    g.set_outputs([ops.rms_norm(total, scale), total if as_output else ops.argmax(total, axis=0)])
    made, _ = fused(g)
    region = next(n for n in made.order() if n.op == "region")
    assert [n.op for n in region.attrs["body"].order()][-2:] == ["add", "rms_norm"]
    assert len(region.shapes) == 2
    made, decisions = fused(g, LIMITED)
    assert "region" not in ops_in(made)
    assert reasons.SEVERAL_RESULTS in refusals(decisions, "fuse_region")


def test_a_sum_of_different_shapes_is_no_residual() -> None:
    g = Graph("broadcast")
    x, r = inputs(g, x=(4, 6), r=(1, 6))
    made, decisions = fused(graph(ops.rms_norm(x + r)))
    assert "fused_residual_rms_norm" not in ops_within(made)
    assert refusals(decisions, "fuse_residual_rms_norm") == [reasons.RESIDUAL_SHAPE]


def test_a_norm_under_a_flattening_reshape() -> None:
    g = Graph("rows")
    (x,) = inputs(g, x=(2, 4, 6))
    w, scale = params(g, w=(6, 3), scale=(6,))
    rows = ops.reshape(ops.rms_norm(x, scale), dims=(8, 6))
    made = named(graph(ops.matmul(rows, w)))
    assert ops_in(made) == ["reshape", "rms_norm", "matmul"]
    other = ops.reshape(ops.rms_norm(x, scale), dims=(4, 12))
    assert ops_in(named(graph(ops.exp(other)))) == ["rms_norm", "reshape", "exp"]


# -- blocks steered by a condition ----------------------------------------------------------------


def steered(order: int, eps: float = 1e-6) -> tuple[Any, Any, Any]:
    """layer_norm(x) · (1 + scale) + shift, with operands in an order, its norm and its input."""
    g = Graph("steered")
    x, shift, scale = inputs(g, x=(2, 3, 8), shift=(2, 1, 8), scale=(2, 1, 8))
    norm, factor = ops.layer_norm(x, eps=eps), ops.add(*[scale, 1.0][:: 1 - 2 * (order & 1)])
    scaled = ops.mul(*[norm, factor][:: 1 - (order & 2)])
    return ops.add(*[scaled, shift][:: 1 - (order & 4) // 2]), norm, x


@pytest.mark.parametrize("order", range(8))
def test_an_adaptive_layer_norm(order: int) -> None:
    made = named(graph(steered(order)[0]))
    assert ops_in(made) == ["ada_layer_norm"]
    assert FusionReport.scan(made).ada_layer_norm == 1


def test_an_adaptive_layer_norm_is_a_kernel_where_norms_are() -> None:
    for target in FusionTarget:
        counts = FusionReport.scan(fused(graph(steered(0)[0]), target.value)[0])
        assert counts.ada_layer_norm == int(Target.of(target).has_kernel("ada_layer_norm"))


def test_a_norm_that_is_read_again_or_not_steered_is_none() -> None:
    y, norm, _ = steered(0)
    assert "ada_layer_norm" not in ops_within(named(graph(y, norm)))
    g = Graph("plain")
    x, shift, scale = inputs(g, x=(2, 3, 8), shift=(2, 1, 8), scale=(2, 1, 8))
    plain = named(graph(ops.layer_norm(x) * scale + shift))
    assert "ada_layer_norm" not in ops_within(plain)


GATES = {(2, 1, 8): 1, (8,): 1, (1, 3, 1): 1, (2, 3, 8): 0, (): 0}


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("order", range(4))
def test_a_gated_residual(gate: tuple[int, ...], order: int) -> None:
    g = Graph("gated")
    x, z, r = inputs(g, x=(2, 3, 8), z=gate, r=(2, 3, 8))
    product = ops.mul(*[x, z][:: 1 - 2 * (order & 1)])
    made = named(graph(ops.add(*[product, r][:: 1 - (order & 2)])))
    assert FusionReport.scan(made).gated_residual == GATES[gate]


def test_what_is_no_gated_residual() -> None:
    g = Graph("others")
    x, z, r = inputs(g, x=(2, 3, 8), z=(2, 1, 8), r=(2, 1, 8))
    (b,) = params(g, b=(2, 3, 8))
    h = g.input("h", Shape((2, 3, 8), "f16"))
    half = ops.narrow(h, axis=1, start=0, length=1)
    made = named(graph(x * z + r, x * 2.0 + x, x * z + b, h * half + h))
    assert "gated_residual" not in ops_within(made)


OF_ONE_VALUE: dict[str, Callable[[Node, Node], Node]] = {
    "a gated product and itself": lambda x, v: ops.add(x * v, x * v),
    "a sum of one value, normalised": lambda x, v: ops.layer_norm(ops.add(x, x), v, v),
    "a norm and itself": lambda x, v: ops.add(ops.layer_norm(x), ops.layer_norm(x)),
    "a product of a gate and itself": lambda x, v: ops.silu(x) * ops.silu(x),
    "rms of a sum of one value": lambda x, v: ops.rms_norm(ops.add(x * v, x * v), v),
}


@pytest.mark.parametrize("name", OF_ONE_VALUE)
def test_both_operands_may_be_one_value(name: str) -> None:
    """A fusion that would read what it removes is none."""
    g = Graph("one")
    x, v = inputs(g, x=(2, 3, 8), v=(8,))
    built = graph(OF_ONE_VALUE[name](x, v))
    rng = np.random.default_rng(0)
    values = {"x": rng.normal(size=(2, 3, 8)), "v": rng.normal(size=8)}
    values = {k: a.astype(np.float32) for k, a in values.items()}
    (want,) = evaluate(built, values)
    # two orders of sums of 8 terms
    got = rlx.compile(built, "cpu")(values["x"], values["v"])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_block_of_a_diffusion_transformer() -> None:
    """Both of each are found, and regions take the gated residuals behind products."""
    y, _, x = steered(0)
    g = x.graph
    w1, w2 = params(g, w1=(8, 8), w2=(8, 8))
    z1, z2 = inputs(g, z1=(2, 1, 8), z2=(2, 1, 8))
    x = x + z1 * ops.matmul(y, w1)
    again = ops.layer_norm(x) * (1.0 + g.inputs[2]) + g.inputs[1]
    made, _ = fused(graph(x + z2 * ops.matmul(again, w2)), "cpu")
    counts = FusionReport.scan(made)
    assert (counts.ada_layer_norm, counts.gated_residual) == (2, 2)
    kernels = [n.op for n in made.order() if not n.is_leaf]
    assert kernels == ["ada_layer_norm", "region", "ada_layer_norm", "region"]


# -- convolution ----------------------------------------------------------------------------------


def conv(bias: bool) -> tuple[Graph, Any]:
    g = Graph("conv")
    (x,) = inputs(g, x=(1, 2, 5, 5))
    w, b = params(g, w=(3, 2, 3, 3), b=(3,))
    return g, ops.conv2d(x, w, b) if bias else ops.conv2d(x, w)


@pytest.mark.parametrize("dims", [(3, 1, 1), (1, 3, 1, 1)])
def test_convolution_with_bias_and_activation(dims: tuple[int, ...]) -> None:
    g, made = conv(bias=False)
    (c,) = params(g, c=dims)
    assert ops_in(named(graph(ops.relu(made + c))))[-1] == "fused_conv_bias_act"
    assert ops_in(named(graph(ops.relu(conv(bias=True)[1])))) == ["fused_conv_bias_act"]


@pytest.mark.parametrize("bias", [False, True])
def test_a_batch_norm_goes_into_the_weights(bias: bool) -> None:
    """var + eps is 4 and its root 2, so that scaling ahead of time is exact."""
    g, made = conv(bias)
    scale, shift, mean = params(g, scale=(3,), shift=(3,), mean=(3,))
    var = g.constant(np.full(3, 3.0, np.float32))
    fixed = named(graph(ops.relu(ops.batch_norm(made, scale, shift, mean, var, eps=1.0))))
    facts = Facts.of(fixed)
    assert [n.op for n in fixed.order() if n in facts.per_call] == ["input", "fused_conv_bias_act"]


def test_a_batch_norm_of_given_statistics_is_left() -> None:
    g, made = conv(bias=False)
    vectors = inputs(g, scale=(3,), shift=(3,), mean=(3,))
    var = g.constant(np.full(3, 3.0, np.float32))
    _, decisions = fused(graph(ops.batch_norm(made, *vectors, var, eps=1.0)))
    assert refusals(decisions, "fuse_conv_bias_act") == [reasons.NOT_WEIGHTS]


def test_a_sum_times_itself_is_no_mean() -> None:
    g = Graph("square")
    (x,) = inputs(g, x=(2, 3))
    total = ops.sum(x, axes=(1,))
    g.set_outputs([ops.mul(total, total), ops.div(total, total)])
    square, one = rlx.compile(g, "reference")(np.ones((2, 3), np.float32))
    assert (square.tolist(), one.tolist()) == ([9.0, 9.0], [1.0, 1.0])
