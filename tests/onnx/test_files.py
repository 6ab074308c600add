"""Files as writers leave them: nodes in any order, results named twice, numbers at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, parser
from onnx.reference import ReferenceEvaluator

import rlx
from rlx.core.errors import GraphError, UnsupportedError
from rlx.frontends.onnx.model import from_proto
from rlx.onnx_backend import Backend
from tests.onnx.test_control import TRUE, read, same

TARGETS = ("reference", "cpu")
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def shuffled(proto: Any) -> Any:
    """The same model with its nodes from the last to the first, also in the graphs inside."""
    graphs = [proto.graph, *proto.functions]
    for graph in graphs:
        nodes = list(graph.node)[::-1]
        copies = [type(n).FromString(n.SerializeToString()) for n in nodes]
        del graph.node[:]
        graph.node.extend(copies)
        graphs += [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
    return proto


ORDERS = {
    "a chain": """
    agraph (float[N, 3] x, bool c) => (float[N, 3] y) {
        a = Neg(x)
        b = Abs(a)
        d = Mul(b, a)
        y = Add(d, b)
    }
    """,
    "captures of a branch": """
    agraph (float[N, 3] x, bool c) => (float[N, 3] y) {
        a = Neg(x)
        b = Abs(a)
        z = If (c) <
            then_branch = yes () => (float[N, 3] p) { q = Mul(a, b) p = Add(q, x) },
            else_branch = no () => (float[N, 3] s) {
                s = If (c) <
                    then_branch = never () => (float[N, 3] t) { t = Identity(x) },
                    else_branch = deep () => (float[N, 3] u) { v = Exp(b) u = Neg(v) }
                >
            }
        >
        y = Relu(z)
    }
    """,
    "a loop's body": """
    agraph (float[N, 3] x, bool c) => (float[N, 3] y) {
        n = Constant <value = int64 {3}> ()
        TRUE
        w = Abs(x)
        y = Loop (n, go, x) <body = step (int64 i, bool on, float[N, 3] v)
            => (bool stay, float[N, 3] r) {
            stay = Identity(on)
            k = CastLike(i, w)
            m = Mul(w, k)
            r = Add(v, m)
        }>
    }
    """,
    "a function": """
    agraph (float[N, 3] x, bool c) => (float[N, 3] y) {
        a = Neg(x)
        y = own.twice(a)
    }
    <domain: "own", opset_import: ["" : 21]>
    twice (u) => (w) {
        v = Add(u, u)
        k = Abs(v)
        w = Mul(v, k)
    }
    """,
}


@pytest.mark.parametrize("what", ORDERS)
@pytest.mark.parametrize("target", TARGETS)
def test_nodes_in_any_order(what: str, target: str) -> None:
    proto, _ = read(ORDERS[what].replace("TRUE", TRUE))
    evaluator = ReferenceEvaluator(proto)
    inputs = [(X, np.array(c)) for c in (True, False)]
    expected = [evaluator.run(None, {"x": x, "c": c}) for x, c in inputs]
    run = rlx.compile(from_proto(shuffled(proto)), target)
    for given, wanted in zip(inputs, expected):
        same(run(*given), list(wanted))


def test_sorted_nodes_give_the_same_graph() -> None:
    """Whatever order they were written in: equal graphs are equal programs."""
    proto, model = read(ORDERS["captures of a branch"])
    assert from_proto(shuffled(proto)).graph.digest() == model.graph.digest()


def test_a_cycle_is_one_error_that_names_it() -> None:
    text = "agraph (float[3] x) => (float[3] y) { a = Add(x, b) b = Neg(a) y = Neg(b) }"
    with pytest.raises(GraphError, match="cycle: Add 'a' reads Neg 'b' reads Add 'a'"):
        read(text)
    through = """
    agraph (float[3] x, bool c) => (float[3] y) {
        y = If (c) <
            then_branch = yes () => (float[3] a) { a = Neg(z) },
            else_branch = no () => (float[3] b) { b = Neg(x) }
        >
        z = Abs(y)
    }
    """
    with pytest.raises(GraphError, match="cycle: If 'y' reads Abs 'z' reads If 'y'"):
        read(through)


# -- results named twice --------------------------------------------------------------------------


def twice(dims: list[Any]) -> Any:
    value = lambda n: helper.make_tensor_value_info(n, TensorProto.FLOAT, dims)
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["y.2"])]
    graph = helper.make_graph(nodes, "twice", [value("x")], [value(n) for n in ("y", "y", "y.2")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.parametrize("dims", [[2, 3], ["rows", 3]])
@pytest.mark.parametrize("target", TARGETS)
def test_a_value_returned_twice(dims: list[Any], target: str) -> None:
    model = from_proto(twice(dims))
    assert model.outputs == ("y", "y.3", "y.2")
    exe = rlx.compile(model, target)
    same(exe(X), [-X, -X, abs(X)])
    named = exe.run({"x": X})
    same(tuple(named[n] for n in model.outputs), [-X, -X, abs(X)])


def test_a_value_returned_twice_where_each_call_is_compiled() -> None:
    """A sequence makes the model one of calls; the tensor beside it is still there twice."""
    text = """
    agraph (float[N] x, int64 k) => (float[M] y, float[M] y) {
        y = Tile(x, r)
        one = Constant <value_ints = [1]> ()
        r = Reshape(k, one)
    }
    """
    _, model = read(text)
    exe = rlx.compile(model)
    for k in (1, 2):
        same(exe(X[0], np.array(k)), [np.tile(X[0], k)] * 2)


# -- random numbers -------------------------------------------------------------------------------


def drawn(body: str, *inputs: Any, target: str = "cpu") -> Any:
    _, model = read(f"agraph (float[N, M] x) => (float y) {{ {body} }}", 22)
    return rlx.compile(model, target)(*inputs)


MANY = np.full((100, 200), 0.25, np.float32)
MOMENTS = {
    "y = RandomNormalLike <mean = 3.0, scale = 2.0> (x)": (3.0, 2.0),
    "y = RandomUniformLike <low = -1.0, high = 5.0> (x)": (2.0, 6 / 12**0.5),
    "y = RandomNormal <shape = [100, 200], seed = 4.0> ()": (0.0, 1.0),
    "y = RandomUniform <shape = [100, 200], dtype = 11> ()": (0.5, 1 / 12**0.5),
    "y = Bernoulli (x)": (0.25, 0.1875**0.5),
}


@pytest.mark.parametrize("body", MOMENTS)
def test_random_numbers_have_their_distribution_and_are_the_same_in_each_call(body: str) -> None:
    made = drawn(body, MANY)
    mean, deviation = MOMENTS[body]
    # 20,000 draws: the mean of them is within 5 standard errors, their spread within 5 %
    assert abs(made.mean() - mean) < 5 * deviation / 20_000**0.5
    assert abs(made.std() / deviation - 1) < 0.05
    assert len(np.unique(made)) == 2 or len(np.unique(made)) > 15_000
    np.testing.assert_array_equal(made, drawn(body, MANY))
    # cos and log differ by a rounding between targets
    np.testing.assert_allclose(made, drawn(body, MANY, target="reference"), rtol=1e-5, atol=1e-5)


def test_nodes_without_a_seed_draw_other_numbers_and_equal_seeds_the_same() -> None:
    both = "a = RandomNormalLike <seed = %s> (x) b = RandomNormalLike <seed = %s> (x) y = Sub(a, b)"
    assert not drawn(both % ("1.5", "1.5"), MANY).any()
    assert drawn(both % ("1.5", "2.5"), MANY).all()
    free = "a = RandomNormalLike (x) b = RandomNormalLike (x) y = Sub(a, b)"
    assert drawn(free, MANY).all()


def test_certain_numbers() -> None:
    assert (drawn("y = RandomUniformLike <low = 4.0, high = 4.0> (x)", X) == 4).all()
    assert (drawn("y = RandomNormalLike <mean = 3.0, scale = 0.0> (x)", X) == 3).all()
    assert drawn("y = RandomNormalLike (x)", np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_multinomial_draws_classes_by_their_probability() -> None:
    logits = np.log(np.array([[0.1, 0.6, 0.3], [0.0, 0.0, 1.0]], np.float32) + 1e-30)
    made = drawn("y = Multinomial <sample_size = 20000, dtype = 7> (x)", logits)
    assert (made.dtype, made.shape) == (np.int64, (2, 20_000))
    shares = np.bincount(made[0], minlength=3) / 20_000
    # 5 standard errors of a share of 20,000 draws
    np.testing.assert_allclose(shares, [0.1, 0.6, 0.3], atol=5 * (0.25 / 20_000) ** 0.5)
    assert (made[1] == 2).all()


STEPS = """
    n = Constant <value = int64 {4}> ()
    TRUE
    y = Loop (n, go) <body = step (int64 i, bool on) => (bool stay, float[N, M] r) {
        stay = Identity(on)
        %s
    }>
"""
INNER = """
        q = Constant <value = int64 {3}> ()
        r = Loop (q, on) <body = inner (int64 j, bool w) => (bool v, float[N, M] s) {
            v = Identity(w)
            s = RandomUniformLike(x)
        }>
"""


@pytest.mark.parametrize("inner", ["r = RandomUniformLike(x)", INNER])
@pytest.mark.parametrize("target", TARGETS)
def test_every_step_of_a_loop_draws_other_numbers(inner: str, target: str) -> None:
    made = drawn(STEPS.replace("TRUE", TRUE) % inner, X, target=target)
    assert len(np.unique(made)) == made.size


@pytest.mark.parametrize("target", TARGETS)
def test_every_step_of_a_scan_draws_other_numbers(target: str) -> None:
    text = """
    y = Scan <num_scan_inputs = 1, body = step (float[M] v) => (float[M] r) {
        u = RandomUniformLike(v)
        r = Add(u, v)
    }> (x)
    """
    made = drawn(text, np.zeros((5, 3), np.float32), target=target)
    assert len(np.unique(made)) == made.size


DROPOUT = """
agraph (float[N, M] x, float ratio, bool trains) => (float[N, M] y, bool[N, M] mask) {
    y, mask = Dropout <seed = 3> (x, ratio, trains)
}
"""


@pytest.mark.parametrize("target", TARGETS)
def test_dropout_in_training_mode(target: str) -> None:
    _, model = read(DROPOUT)
    run = rlx.compile(model, target)
    ratio = np.float32(0.25)
    y, mask = run(MANY, np.array(ratio), np.array(True))
    # 5 standard errors of a share of 20,000 draws
    assert abs(mask.mean() - 0.75) < 5 * (0.1875 / 20_000) ** 0.5
    np.testing.assert_allclose(y, np.where(mask, MANY / (1 - ratio), 0), rtol=1e-6)
    for off in ((ratio, False), (0.0, True)):
        y, mask = run(MANY, np.array(off[0], np.float32), np.array(off[1]))
        np.testing.assert_array_equal(y, MANY)
        assert mask.all()


@pytest.mark.parametrize(("opset", "dtype"), [(7, np.float32), (10, np.bool_)])
def test_the_mask_of_dropout_has_the_dtype_of_its_version(opset: int, dtype: Any) -> None:
    text = """<ir_version: 3, opset_import: ["" : %d]>
    g (float[2] x) => (y, mask) { y, mask = Dropout <ratio = 0.5> (x) }"""
    y, mask = rlx.compile(from_proto(parser.parse_model(text % opset)))(np.ones(2, np.float32))
    assert y.tolist() == [1.0, 1.0]
    assert mask.dtype == dtype
    assert mask.all()


def test_a_seed_of_dropout_is_that_of_a_mersenne_twister() -> None:
    _, model = read(DROPOUT)
    _, mask = rlx.compile(model)(MANY, np.array(0.25, np.float32), np.array(True))
    drawn = np.random.RandomState(3).uniform(0, 1, MANY.shape)
    np.testing.assert_array_equal(mask, drawn >= 0.25)


def test_models_of_the_first_opsets() -> None:
    """Operators that have meant the same since are read; others are refused by name."""
    text = '<ir_version: 3, opset_import: ["" : %d]>\ng (%s[2] x) => (%s[2] y) { y = %s (x) }'
    made = rlx.compile(from_proto(parser.parse_model(text % (1, "bool", "bool", "Not"))))
    assert made(np.array([True, False])).tolist() == [False, True]
    with pytest.raises(UnsupportedError, match="ONNX Relu 'y': opset 5 has another operator"):
        from_proto(parser.parse_model(text % (5, "float", "float", "Relu")))


def test_numbers_at_random_are_nothing_to_compare_backends_by() -> None:
    """A Dropout with a seed drops what ONNX's own cases say."""
    assert not Backend.is_compatible(read(DROPOUT.replace(" <seed = 3>", ""))[0])
    assert Backend.is_compatible(read(DROPOUT)[0])
    assert Backend.is_compatible(read(ORDERS["a chain"])[0])
