"""Blocks are found in their primitive spellings, and only where they really are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.core.dtype import DType
from rlx.core.shape import Dim, Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, Node
from rlx.passes.context import Context
from rlx.passes.simplify import simplify
from rlx.rules.engine import Missed

Build = Callable[..., Node]


def graph_of(build: Build, **shapes: Any) -> Graph:
    """The graph of `build` over inputs of the given dims (f32) or shapes."""
    g = Graph("spelled")
    nodes = [g.input(name, s if isinstance(s, Shape) else Shape(s)) for name, s in shapes.items()]
    made = build(*nodes)
    g.set_outputs(list(made) if isinstance(made, tuple) else [made])
    return g


def simplified(graph: Graph) -> Graph:
    """Simplified, and equal to what it was on drawn values."""
    made = simplify(graph, Context.of("cpu"))
    rng = np.random.default_rng(0)
    values = {n.attrs["name"]: value_of(n, rng) for n in graph.leaves}
    for before, after in zip(evaluate(graph, values), evaluate(made, values), strict=True):
        # A few dozen f32 roundings of values of about 1; bf16 rounds to 2^-8, several times over.
        loose = before.dtype != np.float32
        np.testing.assert_allclose(
            after.astype(np.float64), before.astype(np.float64),
            rtol=0.05 if loose else 2e-5, atol=0.05 if loose else 2e-5,
        )  # fmt: skip
    return made


def value_of(leaf: Node, rng: np.random.Generator) -> Any:
    dims = [d if isinstance(d, int) else 5 for d in leaf.shape.dims]
    return (rng.normal(size=dims) * 2).astype(leaf.dtype.numpy)


def ops_of(graph: Graph) -> list[str]:
    return [n.op for n in graph.order() if not n.is_leaf]


def only(graph: Graph) -> Node:
    """The one node that is not a leaf."""
    (node,) = [n for n in simplified(graph).order() if not n.is_leaf]
    return node


# -- norms ----------------------------------------------------------------------------------------

SQUARES: dict[str, Build] = {
    "mul": lambda x: x * x,
    "pow": lambda x: x**2.0,
    "square": lambda x: ops.square(x),
}
MEANS: dict[str, Build] = {
    "mean": lambda x: ops.mean(x, axes=(-1,), keepdims=True),
    "sum": lambda x: ops.sum(x, axes=(-1,), keepdims=True) / 8.0,
    "kept later": lambda x: ops.expand_dims(ops.mean(x, axes=(-1,)), axes=(-1,)),
}
DIVISIONS: dict[str, Build] = {
    "rsqrt": lambda x, v: x * ops.rsqrt(v),
    "sqrt": lambda x, v: x / ops.sqrt(v),
    "one over": lambda x, v: (1.0 / ops.sqrt(v)) * x,
    "power": lambda x, v: x * ops.reciprocal(ops.sqrt(v)),
}


@pytest.mark.parametrize(
    ("square", "mean", "division"), list(itertools.product(SQUARES, MEANS, DIVISIONS))
)
def test_rms_norm_in_every_spelling(square: str, mean: str, division: str) -> None:
    def build(x: Node, w: Node) -> Node:
        v = MEANS[mean](SQUARES[square](x)) + 1e-6
        return w * DIVISIONS[division](x, v)

    node = only(graph_of(build, x=(2, 3, 8), w=(8,)))
    assert node.op == "rms_norm"
    assert [i.attrs["name"] for i in node.inputs] == ["x", "w"]
    assert node.attrs["axis"] == 2
    assert node.attrs["eps"] == pytest.approx(1e-6)


def _layer_norm(x: Node, mean: Build, division: Build) -> Node:
    centred = x - mean(x)
    return division(centred, mean(ops.pow(centred, 2.0)) + 1e-5)


@pytest.mark.parametrize(("mean", "division"), list(itertools.product(MEANS, DIVISIONS)))
def test_layer_norm_in_every_spelling(mean: str, division: str) -> None:
    def build(x: Node, w: Node, b: Node) -> Node:
        return _layer_norm(x, MEANS[mean], DIVISIONS[division]) * w + b

    node = only(graph_of(build, x=(2, 3, 8), w=(8,), b=(8,)))
    assert node.op == "layer_norm"
    assert [i.attrs["name"] for i in node.inputs] == ["x", "w", "b"]


def test_a_scale_inside_the_norm_is_found() -> None:
    def build(x: Node, w: Node) -> Node:
        return x * (ops.rsqrt(ops.mean(x * x, axes=(-1,), keepdims=True) + 1e-6) * w)

    assert only(graph_of(build, x=(3, 8), w=(8,))).op == "rms_norm"


def test_a_norm_over_two_axes_and_one_without_scale_are_found() -> None:
    def build(x: Node) -> Node:
        return x / ops.sqrt(ops.mean(x * x, axes=(1, 2), keepdims=True) + 1e-6)

    node = only(graph_of(build, x=(2, 3, 4)))
    assert (node.op, node.attrs["axis"], len(node.inputs)) == ("rms_norm", 1, 1)


def test_a_norm_over_a_named_length_is_found() -> None:
    def build(x: Node, w: Node) -> Node:
        return _layer_norm(x, MEANS["mean"], DIVISIONS["sqrt"]) * w

    n = Dim("n")
    node = only(graph_of(build, x=Shape([n, 8]), w=(8,)))
    assert node.op == "layer_norm"


def test_a_norm_of_halves_in_f32_is_the_norm_of_halves() -> None:
    """The scale stays a product of its own: the norm is rounded before it."""

    def build(x: Node, w: Node) -> Node:
        wide = ops.cast(x, to=DType.F32)
        normed = wide * ops.rsqrt(ops.mean(wide * wide, axes=(-1,), keepdims=True) + 1e-6)
        return w * ops.cast(normed, to=DType.BF16)

    made = simplified(graph_of(build, x=Shape((3, 8), "bf16"), w=Shape((8,), "bf16")))
    found = [(n.op, n.dtype) for n in made.order() if not n.is_leaf]
    assert found == [("rms_norm", DType.BF16), ("mul", DType.BF16)]


NOT_NORMS: dict[str, Build] = {
    "wrong axis": lambda x, y: x * ops.rsqrt(ops.mean(x * x, axes=(0,), keepdims=True) + 1e-6),
    "not the last axes": lambda x, y: (
        x * ops.rsqrt(ops.mean(x * x, axes=(0, 1), keepdims=True) + 1e-6)
    ),
    "eps per element": lambda x, y: x * ops.rsqrt(ops.mean(x * x, axes=(-1,), keepdims=True) + y),
    "another x": lambda x, y: x * ops.rsqrt(ops.mean(y * y, axes=(-1,), keepdims=True) + 1e-6),
    "a sum": lambda x, y: x * ops.rsqrt(ops.sum(x * x, axes=(-1,), keepdims=True) + 1e-6),
    "another count": lambda x, y: (
        x * ops.rsqrt(ops.sum(x * x, axes=(-1,), keepdims=True) / 7.0 + 1e-6)
    ),
    "a product of two": lambda x, y: (
        x * ops.rsqrt(ops.mean(x * y, axes=(-1,), keepdims=True) + 1e-6)
    ),
    "negative eps": lambda x, y: (
        x * ops.rsqrt(ops.mean(ops.exp(x) * 4, axes=(-1,), keepdims=True) - 1e-6)
    ),
    "centred on another axis": lambda x, y: _layer_norm(
        x, lambda v: ops.mean(v, axes=(1,), keepdims=True), DIVISIONS["sqrt"]
    ),
}


@pytest.mark.parametrize("name", NOT_NORMS)
def test_what_is_nearly_a_norm_is_left(name: str) -> None:
    made = simplified(graph_of(NOT_NORMS[name], x=(2, 8, 8), y=(2, 8, 8)))
    assert not {"rms_norm", "layer_norm"} & set(ops_of(made))


def test_centring_over_other_axes_is_not_a_layer_norm() -> None:
    def build(x: Node) -> Node:
        d = x - ops.mean(x, axes=(0,), keepdims=True)
        return d / ops.sqrt(ops.mean(d * d, axes=(-1,), keepdims=True) + 1e-5)

    assert ops_of(simplified(graph_of(build, x=(4, 4)))) == [
        "mean", "sub", "rms_norm",
    ]  # fmt: skip


def test_a_scale_of_other_dims_stays_a_product() -> None:
    def build(x: Node, w: Node) -> Node:
        return w * (x / ops.sqrt(ops.mean(x * x, axes=(-1,), keepdims=True) + 1e-5))

    assert ops_of(simplified(graph_of(build, x=(4, 4), w=(4, 1)))) == ["rms_norm", "mul"]


def test_a_root_that_is_an_output_too_is_computed_once() -> None:
    def build(x: Node) -> tuple[Node, Node]:
        r = ops.rsqrt(ops.mean(x * x, axes=(-1,), keepdims=True) + 1e-5)
        return x * r, r

    context = Context.of("cpu")
    made = simplify(graph_of(build, x=(4, 4)), context)
    assert "rms_norm" not in ops_of(made)
    reasons = [e.reason for e in context.rewrites if isinstance(e, Missed)]
    assert "the root mean square is needed elsewhere too" in reasons


# -- softmax --------------------------------------------------------------------------------------


def _softmax(x: Node, axis: int, over: int | None = None) -> Node:
    e = ops.exp(x - ops.max(x, axes=(axis,), keepdims=True))
    return e / ops.sum(e, axes=(axis if over is None else over,), keepdims=True)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_is_found(axis: int) -> None:
    node = only(graph_of(lambda x: _softmax(x, axis), x=(2, 3, 4)))
    assert (node.op, node.attrs["axis"]) == ("softmax", axis % 3)


def test_log_softmax_is_found() -> None:
    def build(x: Node) -> Node:
        below = x - ops.max(x, axes=(-1,), keepdims=True)
        return below - ops.log(ops.sum(ops.exp(below), axes=(-1,), keepdims=True))

    assert only(graph_of(build, x=(2, 4))).op == "log_softmax"


def test_sums_over_another_axis_are_no_softmax() -> None:
    assert "softmax" not in ops_of(simplified(graph_of(lambda x: _softmax(x, 0, 1), x=(3, 3))))
    both = graph_of(
        lambda x: ops.exp(x) / ops.sum(ops.exp(x), axes=(0, 1), keepdims=True), x=(3, 3)
    )
    assert "softmax" not in ops_of(simplified(both))


def test_exponentials_that_are_needed_elsewhere_are_not_computed_twice() -> None:
    def build(x: Node) -> tuple[Node, Node]:
        e = ops.exp(x - ops.max(x, axes=(-1,), keepdims=True))
        return e / ops.sum(e, axes=(-1,), keepdims=True), ops.neg(e)

    assert "softmax" not in ops_of(simplified(graph_of(build, x=(3, 3))))


# -- activations ----------------------------------------------------------------------------------

C, A = math.sqrt(2 / math.pi), 0.044715

ACTIVATIONS: dict[str, tuple[str, Build]] = {
    "gelu": ("gelu", lambda x: 0.5 * x * (1.0 + ops.erf(x / math.sqrt(2.0)))),
    "gelu, onnx": ("gelu", lambda x: x * (ops.erf(x / 1.4142135) + 1.0) * 0.5),
    "gelu, halved gate": ("gelu", lambda x: x * (0.5 * (1.0 + ops.erf(x * math.sqrt(0.5))))),
    "gelu, by two": ("gelu", lambda x: (x * (1.0 + ops.erf(x * math.sqrt(0.5)))) / 2.0),
    "gelu of a square": ("gelu", lambda x: 0.5 * (x * x) * (1.0 + ops.erf(x * x / 2**0.5))),
    "gelu_tanh": ("gelu_tanh", lambda x: 0.5 * x * (1.0 + ops.tanh(C * (x + A * x**3.0)))),
    "gelu_tanh, cube": ("gelu_tanh", lambda x: x * 0.5 * (ops.tanh((x + x * x * x * A) * C) + 1)),
    "gelu_tanh, x out": ("gelu_tanh", lambda x: 0.5 * x * (1 + ops.tanh(x * C * (1 + A * x * x)))),
    "silu": ("silu", lambda x: x * ops.sigmoid(x)),
    "silu, spelled out": ("silu", lambda x: x * (1.0 / (1.0 + ops.exp(-x)))),
    "silu, quotient": ("silu", lambda x: x / (ops.exp(-x) + 1.0)),
    "sigmoid": ("sigmoid", lambda x: 1.0 / (1.0 + ops.exp(-x))),
    "mish": ("mish", lambda x: x * ops.tanh(ops.softplus(x))),
    "hard_swish": ("hard_swish", lambda x: x * (ops.clamp(x + 3.0, min=0.0, max=6.0) / 6.0)),
    "relu": ("relu", lambda x: ops.maximum(x, 0.0)),
    "leaky_relu": ("leaky_relu", lambda x: ops.where(x > 0.0, x, x * 0.1)),
    "elu": ("elu", lambda x: ops.where(x > 0.0, x, 1.5 * ops.expm1(x))),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_found(name: str) -> None:
    op, build = ACTIVATIONS[name]
    made = simplified(graph_of(build, x=(3, 4)))
    assert [o for o in ops_of(made) if o != "square"] == [op]


NOT_ACTIVATIONS: dict[str, tuple[str, Build]] = {
    "gelu of another x": ("gelu", lambda x, y: 0.5 * y * (1.0 + ops.erf(x / math.sqrt(2.0)))),
    "gelu, wrong constant": ("gelu", lambda x, y: 0.5 * x * (1.0 + ops.erf(x / 1.5))),
    "gelu, not halved": ("gelu", lambda x, y: x * (1.0 + ops.erf(x / math.sqrt(2.0)))),
    "gelu, two plus": ("gelu", lambda x, y: 0.5 * x * (2.0 + ops.erf(x / math.sqrt(2.0)))),
    "gelu_tanh, square": ("gelu_tanh", lambda x, y: 0.5 * x * (1 + ops.tanh(C * (x + A * x * x)))),
    "gelu_tanh, a": ("gelu_tanh", lambda x, y: 0.5 * x * (1 + ops.tanh(C * (x + 0.05 * x**3.0)))),
    "silu of another x": ("silu", lambda x, y: y * ops.sigmoid(x)),
    "leaky_relu, negative": ("leaky_relu", lambda x, y: ops.where(x > 0.0, x, x * -0.1)),
    "relu by choice": ("relu", lambda x, y: ops.where(x > 0.0, x, 0.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_ACTIVATIONS)
def test_what_is_nearly_an_activation_is_left(name: str) -> None:
    op, build = NOT_ACTIVATIONS[name]
    assert op not in ops_of(simplified(graph_of(build, x=(3, 4), y=(3, 4))))


# -- attention ------------------------------------------------------------------------------------

B, H, N, M, D = 2, 4, 3, 5, 8
QKV = {"q": (B, H, N, D), "k": (B, H, M, D), "v": (B, H, M, D)}
PAST = np.tri(N, M, M - N, dtype=bool)


def turned(k: Node) -> Node:
    return ops.transpose(k, perm=(*range(k.rank - 2), k.rank - 1, k.rank - 2))


def attend(s: Node, v: Node) -> Node:
    return ops.matmul(ops.softmax(s, axis=-1), v)


SCALES: dict[str, Build] = {
    "scores": lambda q, k: ops.matmul(q, turned(k)) * D**-0.5,
    "divided": lambda q, k: ops.matmul(q, turned(k)) / math.sqrt(D),
    "queries": lambda q, k: ops.matmul(q * D**-0.5, turned(k)),
    "both": lambda q, k: ops.matmul(q * D**-0.25, turned(k * D**-0.25)),
    "einsum": lambda q, k: ops.einsum(q, k, equation="bhqd,bhkd->bhqk") * D**-0.5,
}


@pytest.mark.parametrize("name", SCALES)
def test_attention_is_found_wherever_it_is_scaled(name: str) -> None:
    node = only(graph_of(lambda q, k, v: attend(SCALES[name](q, k), v), **QKV))
    assert (node.op, node.attrs["num_heads"], node.attrs["scale"]) == ("attention", H, None)


def test_a_scale_for_each_head_goes_to_the_queries() -> None:
    each = np.arange(1, H + 1, dtype=np.float32).reshape(H, 1, 1)
    graph = graph_of(lambda q, k, v: attend(ops.matmul(q, turned(k)) * each, v), **QKV)
    assert ops_of(simplified(graph)) == ["mul", "attention"]


def test_a_scale_of_its_own_and_a_cap_are_kept() -> None:
    def build(q: Node, k: Node, v: Node) -> Node:
        return attend(ops.tanh(ops.matmul(q, turned(k)) * 0.2 / 5.0) * 5.0, v)

    node = only(graph_of(build, **QKV))
    assert node.attrs["scale"] == pytest.approx(0.2)
    assert node.attrs["softcap"] == 5.0


LOWEST = float(np.finfo(np.float32).min)


def penalty(visible: Any, hidden: float) -> Any:
    return np.where(visible, 0.0, hidden).astype(np.float32)


MASKS: dict[str, tuple[str, Build]] = {
    "causal, added": ("causal", lambda s: s + penalty(PAST, -np.inf)),
    "causal, least number": ("causal", lambda s: s + penalty(PAST, LOWEST)[None]),
    "causal, chosen": ("causal", lambda s: ops.where(PAST, s, -np.inf)),
    "causal, hidden": ("causal", lambda s: ops.where(~PAST, LOWEST, s)),
    "added constant": ("bias", lambda s: s + np.arange(M, dtype=np.float32)),
    "small penalty": ("bias", lambda s: s + penalty(PAST, -100.0)),
    "shifted": ("bias", lambda s: s + penalty(np.tri(N, M, 0), -np.inf)),
    "chosen keys": ("custom", lambda s: ops.where(np.arange(M) < M - 1, s, LOWEST)),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_told_apart(name: str) -> None:
    kind, mask = MASKS[name]
    graph = graph_of(lambda q, k, v: attend(mask(SCALES["scores"](q, k)), v), **QKV)
    found = [n for n in simplified(graph).order() if n.op == "attention"]
    assert [n.attrs["mask_kind"] for n in found] == [kind]


def test_masks_given_at_run_time_are_found() -> None:
    def biased(q: Node, k: Node, v: Node, mask: Node) -> Node:
        return attend(SCALES["scores"](q, k) + mask, v)

    def hidden(q: Node, k: Node, v: Node, mask: Node) -> Node:
        return attend(ops.where(mask, SCALES["scores"](q, k), -np.inf), v)

    node = only(graph_of(biased, **QKV, mask=(B, 1, N, M)))
    assert (node.op, node.attrs["mask_kind"], len(node.inputs)) == ("attention", "bias", 4)
    g = graph_of(hidden, **QKV, mask=Shape((B, 1, N, M), "bool"))
    assert "attention" in ops_of(simplify(g, Context.of("cpu")))


@pytest.mark.parametrize("fill", [LOWEST, -1e9])
def test_a_query_that_sees_no_key_averages_under_a_finite_fill(fill: float) -> None:
    def build(q: Node, k: Node, v: Node, mask: Node) -> Node:
        return attend(ops.where(mask, SCALES["scores"](q, k), fill), v)

    g = graph_of(build, **QKV, mask=Shape((B, 1, N, M), "bool"))
    made = simplify(g, Context.of("cpu"))
    assert "softmax" not in ops_of(made)
    rng = np.random.default_rng(0)
    values = {n.attrs["name"]: value_of(n, rng) for n in g.leaves[:3]}
    values["mask"] = np.tri(N, M, -1, dtype=bool) & np.ones((B, 1, 1, 1), bool)
    after, before = (evaluate(each, values)[0] for each in (made, g))
    np.testing.assert_allclose(after, before, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(after[:, :, 0], values["v"].mean(axis=2), rtol=2e-5, atol=2e-5)


def repeated(x: Node, each: int) -> Node:
    b, h, n, d = x.shape.dims
    wide = ops.expand(ops.expand_dims(x, axes=(2,)), dims=(b, h, each, n, d))
    return ops.reshape(wide, dims=(b, h * each, n, d))


def test_heads_that_are_repeated_are_shared() -> None:
    def build(q: Node, k: Node, v: Node) -> Node:
        return attend(SCALES["scores"](q, repeated(k, 2)), repeated(v, 2))

    node = only(graph_of(build, q=(B, H, N, D), k=(B, 2, M, D), v=(B, 2, M, D)))
    assert (node.attrs["num_heads"], node.attrs["kv_heads"]) == (4, 2)


def heads(x: Node, count: int) -> Node:
    b, n, w = x.shape.dims
    return ops.transpose(ops.reshape(x, dims=(b, n, count, w // count)), perm=(0, 2, 1, 3))


def test_attention_of_packed_heads_takes_no_transposes() -> None:
    def build(q: Node, k: Node, v: Node) -> Node:
        q, k, v = heads(q, 4), repeated(heads(k, 2), 2), repeated(heads(v, 2), 2)
        made = attend(ops.where(PAST, ops.matmul(q, turned(k)) / math.sqrt(D), -np.inf), v)
        joined = ops.transpose(made, perm=(0, 2, 1, 3))
        return ops.reshape(joined, dims=(B, N, 4 * D))

    node = only(graph_of(build, q=(B, N, 4 * D), k=(B, M, 2 * D), v=(B, M, 2 * D)))
    assert (node.op, node.attrs["mask_kind"], node.attrs["kv_heads"]) == ("attention", "causal", 2)
    assert all(i.op == "input" for i in node.inputs)


@pytest.mark.parametrize("lead", [(), (3,)])
def test_attention_without_a_head_axis_is_found(lead: tuple[int, ...]) -> None:
    shapes = {name: (*lead, *dims[2:]) for name, dims in QKV.items()}
    made = simplified(graph_of(lambda q, k, v: attend(SCALES["scores"](q, k), v), **shapes))
    assert set(ops_of(made)) == {"reshape", "attention"}


def test_attention_over_a_named_length_is_found() -> None:
    n = Dim("n", 1, 64)
    shapes = {name: Shape((B, H, n, D)) for name in "qkv"}
    node = only(graph_of(lambda q, k, v: attend(SCALES["scores"](q, k), v), **shapes))
    assert node.op == "attention"


NOT_ATTENTION: dict[str, Build] = {
    "softmax over queries": lambda q, k, v: ops.matmul(
        ops.softmax(SCALES["scores"](q, k), axis=2), v
    ),
    "scores are needed": lambda q, k, v: (
        attend(s := SCALES["scores"](q, k), v),
        ops.sum(s),
    ),
    "weights are an output": lambda q, k, v: (
        ops.matmul(p := ops.softmax(SCALES["scores"](q, k), axis=-1), v),
        p,
    ),
    "keys as they are": lambda q, k, v: attend(
        ops.matmul(q, ops.reshape(k, dims=(B, H, D, M))) * 0.5, v
    ),
}


@pytest.mark.parametrize("name", NOT_ATTENTION)
def test_what_is_nearly_attention_is_left(name: str) -> None:
    assert "attention" not in ops_of(simplified(graph_of(NOT_ATTENTION[name], **QKV)))


# -- rope -----------------------------------------------------------------------------------------


def rotated_half(x: Node) -> Node:
    half = x.shape.dims[-1] // 2
    a, b = ops.split(x, sizes=(half, half), axis=-1)
    return ops.concat([ops.neg(b), a], axis=-1)


def test_rope_with_repeated_tables_is_found() -> None:
    def build(x: Node, angle: Node) -> Node:
        both = ops.concat([angle, angle], axis=-1)
        cos, sin = (ops.expand_dims(f(both), axes=(0, 1)) for f in (ops.cos, ops.sin))
        return x * cos + rotated_half(x) * sin

    made = simplified(graph_of(build, x=(B, H, N, D), angle=(N, D // 2)))
    assert "rope" in ops_of(made)
    assert not {"concat", "narrow", "mul", "add"} & set(ops_of(made))


def test_rope_with_constant_tables_is_found() -> None:
    angle = np.linspace(0, 3, N * D // 2, dtype=np.float32).reshape(N, D // 2)
    cos, sin = (np.concatenate([f(angle)] * 2, axis=-1) for f in (np.cos, np.sin))
    node = only(graph_of(lambda x: x * cos + rotated_half(x) * sin, x=(B, H, N, D)))
    assert node.op == "rope"


def test_rope_of_halves_apart_and_of_a_front_is_found() -> None:
    def build(x: Node, cos: Node, sin: Node) -> Node:
        front, rest = ops.split(x, sizes=(D // 2, D // 2), axis=-1)
        a, b = ops.split(front, sizes=(D // 4, D // 4), axis=-1)
        turned = ops.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)
        return ops.concat([turned, rest], axis=-1)

    node = only(graph_of(build, x=(B, N, D), cos=(N, D // 4), sin=(N, D // 4)))
    assert (node.op, node.attrs["n_rot"]) == ("rope", D // 2)


def test_rope_of_a_front_with_its_halves_turned_is_found() -> None:
    def build(x: Node, c: Node) -> Node:
        front, rest = ops.split(x, sizes=(D // 2, D // 2), axis=-1)
        both = ops.concat([c, c], axis=-1)
        turned = front * ops.cos(both) + rotated_half(front) * ops.sin(both)
        return ops.concat([turned, rest], axis=-1)

    made = simplified(graph_of(build, x=(B, N, D), c=(N, D // 4)))
    assert sorted(ops_of(made)) == ["cos", "rope", "sin"]


NOT_ROPE: dict[str, Build] = {
    "tables that do not repeat": lambda x, c: x * c + rotated_half(x) * ops.neg(c),
    "halves not turned": lambda x, c: (
        x * _twice(c)
        + ops.concat(ops.split(x, sizes=(D // 2, D // 2), axis=-1)[::-1], axis=-1) * _twice(c)
    ),
    "another axis": lambda x, c: (
        x * _twice(c)
        + ops.transpose(rotated_half(ops.transpose(x, perm=(1, 0))), perm=(1, 0)) * _twice(c)
    ),
}


def _twice(c: Node) -> Node:
    half = ops.narrow(c, axis=1, start=0, length=D // 2)
    return ops.concat([half, half], axis=-1)


@pytest.mark.parametrize("name", NOT_ROPE)
def test_what_is_nearly_rope_is_left(name: str) -> None:
    assert "rope" not in ops_of(simplified(graph_of(NOT_ROPE[name], x=(D, D), c=(D, D))))


@pytest.mark.parametrize("half", [DType.F16, DType.BF16])
@pytest.mark.parametrize("part", ["real", "imag", "abs"])
def test_parts_of_halves_as_complex_numbers_are_left(part: str, half: DType) -> None:
    def build(x: Node) -> Node:
        return ops.cast(getattr(ops, part)(ops.cast(x, to=DType.C64)), to=half)

    assert part in ops_of(simplified(graph_of(build, x=Shape((3, 4), half))))


@pytest.mark.parametrize("half", [DType.F16, DType.BF16])
def test_attention_of_halves_is_found_where_nothing_else_reads_its_scores(half: DType) -> None:
    def build(q: Node, k: Node, v: Node) -> Node:
        scores = ops.matmul(q, ops.transpose(k, perm=(0, 1, 3, 2))) * 0.25
        return ops.matmul(ops.softmax(scores), v)

    shape = Shape((1, 2, 5, 4), half)
    assert only(graph_of(build, q=shape, k=shape, v=shape)).op == "attention"

    def leaking(q: Node, k: Node, v: Node) -> tuple[Node, Node]:
        scores = ops.matmul(q, ops.transpose(k, perm=(0, 1, 3, 2))) * 0.25
        probabilities = ops.softmax(scores)
        return ops.matmul(probabilities, v), probabilities

    made = simplified(graph_of(leaking, q=shape, k=shape, v=shape))  # pyright: ignore[reportArgumentType]
    assert "attention" not in ops_of(made)
