"""trace and jit: what a Python function becomes."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.ir.interpret import evaluate
from rlx.ops import op as table
from rlx.ops.draw import Draw

F32 = rlx.DType.F32
ROW = rlx.Shape([3], F32)


def scaled(x, y, *, times=2):
    return x + y * times


def test_inputs_are_named_after_parameters():
    graph = rlx.trace(scaled, ROW, np.zeros(3, np.float32))
    assert graph.name == "scaled"
    assert [n.attrs["name"] for n in graph.inputs] == ["x", "y"]
    assert [n.shape for n in graph.inputs] == [ROW, ROW]
    assert [n.op for n in graph.order()] == ["input", "input", "constant", "mul", "add"]


def test_keyword_values_are_seen_while_tracing():
    x, y = np.float32([1, 2, 3]), np.float32([10, 20, 30])
    graph = rlx.trace(scaled, x, y, times=-1)
    assert evaluate(graph, {"x": x, "y": y})[0].tolist() == [-9, -18, -27]


def test_variadic_parameters_are_numbered():
    graph = rlx.trace(lambda first, *rest: first + rest[0] * rest[1], ROW, ROW, ROW)
    assert [n.attrs["name"] for n in graph.inputs] == ["first", "rest0", "rest1"]
    assert graph.name == "lambda"


def test_defaults_may_stay_away():
    graph = rlx.trace(lambda x, y=2.0: x * y, ROW, name="twice")
    assert graph.name == "twice"
    assert len(graph.inputs) == 1


def test_named_dims_stay_named():
    graph = rlx.trace(scaled, rlx.Shape([rlx.sym.SEQ, 3]), ROW)
    assert graph.outputs[0].shape == rlx.Shape([rlx.sym.SEQ, 3])


@pytest.mark.parametrize("swapped", [False, True])
def test_closed_over_arrays_are_constants(swapped):
    window = np.float32([1, 2, 3])
    graph = rlx.trace((lambda x: window * x) if swapped else (lambda x: x * window), ROW)
    (constant,) = [n for n in graph.nodes if n.op == "constant"]
    assert constant.attrs["value"].array.tolist() == [1, 2, 3]
    assert evaluate(graph, {"x": np.float32([1, 1, 2])})[0].tolist() == [1, 2, 6]


def test_known_results_are_constants():
    graph = rlx.trace(lambda x: (x, np.int64([7]), 2.5), ROW)
    outputs = evaluate(graph, {"x": np.zeros(3, np.float32)})
    assert [n.op for n in graph.outputs] == ["input", "constant", "constant"]
    assert outputs[1].tolist() == [7]
    assert outputs[2] == 2.5


def test_nodes_know_the_line():
    graph = rlx.trace(scaled, ROW, ROW)
    assert graph.outputs[0].label.startswith("add at test_tracing.py:")


@pytest.mark.parametrize(
    ("function", "shapes", "message"),
    [
        (scaled, [ROW], "missing a required argument: 'y'"),
        (scaled, [ROW, ROW, ROW], "too many positional arguments"),
        (scaled, [ROW, 2.0], "y: got 2.0 by position, expected an array or a rlx.Shape"),
        (lambda x: None, [ROW], "returned None"),
        (lambda x: (), [ROW], "returned nothing"),
        (lambda x: {"a": "b"}, [ROW], "returned 'b'"),
        (lambda x: x if x else -x, [ROW], "no truth value while a graph is built"),
        (lambda x: x + np.zeros(2, np.float32), [ROW], "do not broadcast"),
    ],
)
def test_wrong_functions(function, shapes, message):
    with pytest.raises(rlx.GraphError, match=message):
        rlx.trace(function, *shapes)


def test_a_node_of_another_trace_is_refused():
    kept = []
    rlx.trace(lambda x: kept.append(x) or x, ROW)
    with pytest.raises(rlx.GraphError, match="belongs to another graph"):
        rlx.trace(lambda x: kept[0], ROW)


def test_a_function_of_spectra():
    """Indexing, reductions and complex numbers, as a user writes them."""
    hann, x = np.hanning(16), np.random.default_rng(3).normal(size=(2, 16))

    def band_power(x, *, lo, hi):
        spectrum = ops.rfft(x * hann)
        return ops.mean(ops.abs(spectrum[..., lo:hi]) ** 2, axis=-1)

    graph = rlx.trace(band_power, x, lo=2, hi=5)
    expected = (np.abs(np.fft.rfft(x * hann)[:, 2:5]) ** 2).mean(-1)
    # A few roundings of f64 apart: the squares are summed in another order.
    np.testing.assert_allclose(evaluate(graph, {"x": x})[0], expected, rtol=1e-14)


def test_jit_shows_its_graph():
    jitted = rlx.jit(scaled)
    assert jitted.graph(ROW, ROW, times=3) == rlx.trace(scaled, ROW, ROW, times=3)
    assert jitted.lower(ROW, ROW).graph == rlx.trace(scaled, ROW, ROW)
    assert jitted.__name__ == "scaled"


def test_jit_inlines_into_a_trace():
    jitted = rlx.jit(scaled)
    graph = rlx.trace(lambda a, b: jitted(a, b, times=4), ROW, ROW, name="scaled")
    x = {"a": np.ones(3, np.float32), "b": np.ones(3, np.float32)}
    assert evaluate(graph, x)[0].tolist() == [5, 5, 5]
    assert jitted.compiled == 0


def test_jit_computes_and_compiles_once_per_variant():
    jitted = rlx.jit(scaled)
    x = np.float32([1, 2, 3])
    assert jitted(x, x).tolist() == [3, 6, 9]
    assert jitted(x + 1, x).tolist() == [4, 7, 10]
    assert jitted.compiled == 1
    assert jitted(x, x, times=3).tolist() == [4, 8, 12]
    assert jitted(x[:2], x[:2]).tolist() == [3, 6]
    assert jitted(x.astype(np.float64), x).dtype == np.float64
    assert jitted.compiled == 4


def test_jit_keeps_equal_values_of_other_types_apart():
    jitted = rlx.jit(lambda x, *, by: ops.add(x, by))
    x = np.int32([1, 2])
    assert jitted(x, by=1).dtype == np.int32
    assert jitted(x, by=1.0).dtype == np.float32
    assert np.signbit(jitted(np.float32([-0.0]), by=-0.0)).all()
    assert not np.signbit(jitted(np.float32([-0.0]), by=0.0)).any()


def test_jit_returns_what_the_function_returns():
    x = np.float32([1, 2])
    assert rlx.jit(lambda x: (x + 1,))(x)[0].tolist() == [2, 3]
    named = rlx.jit(lambda x: {"more": x + 1, "less": x - 1})(x)
    assert {k: v.tolist() for k, v in named.items()} == {"more": [2, 3], "less": [0, 1]}


def test_jit_takes_the_options_of_compile():
    @rlx.jit(target="reference", like="cuda")
    def doubled(x):
        return x + x

    assert doubled(np.float32([4])).tolist() == [8]


def test_jit_refuses_what_it_cannot_key():
    jitted = rlx.jit(scaled)
    x = np.zeros(3, np.float32)
    with pytest.raises(rlx.GraphError, match=r"keyword 'times' is .* Give an array"):
        jitted(x, x, times={1, 2})
    with pytest.raises(rlx.GraphError, match=r"got 2.0 by position"):
        jitted(x, 2.0)


# -- comparing ---------------------------------------------------------------------------------


def test_equality_in_a_trace_is_elementwise() -> None:
    a, b = np.float32([0, 1, np.nan]), np.float32([0, 3, 2])

    @rlx.jit(target="reference")
    def compared(x: rlx.Node, y: rlx.Node) -> tuple[rlx.Node, ...]:
        return (
            rlx.ops.where(x == 0, 10.0, x), x != 0, x == y, x != y, x == 0, x == b, b == x, x == x,
            x != x,
        )  # fmt: skip

    results = compared(a, b)
    wanted = (
        np.where(a == 0, 10, a), a != 0, a == b, a != b, a == 0, a == b, a == b, ~np.isnan(a),
        np.isnan(a),
    )  # fmt: skip
    for got, want in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(got, want)
        assert (got.dtype == bool) == (want.dtype == bool)


def test_equality_is_elementwise_in_branches_loops_and_inlined_functions() -> None:
    @rlx.jit(target="reference")
    def branched(x: rlx.Node) -> rlx.Node:
        zeros = rlx.cond(rlx.ops.any(x == 1), lambda v: v == 0, lambda v: v != 0, x)
        return rlx.ops.cast(zeros, to="i32") + 1

    assert branched(np.float32([0, 1])).tolist() == [2, 1]
    assert branched(np.float32([0, 2])).tolist() == [1, 2]
    inlined = rlx.jit(lambda x: x == 0)
    g = rlx.Graph("g")
    x = g.input("x", ROW)
    made = inlined(x)
    assert made.op == "equal"
    assert (x == made, x != made, x == x) == (False, True, True)


def test_a_comparison_has_no_truth_while_tracing() -> None:
    def branching(x: rlx.Node) -> rlx.Node:
        return x if x == 0 else x + 1

    with pytest.raises(rlx.GraphError, match="no truth value"):
        rlx.trace(branching, ROW)
    with pytest.raises(rlx.GraphError, match="no truth value"):
        rlx.trace(lambda x, y: x if x in [y] else y, ROW, ROW)


def test_outside_of_traces_nodes_are_compared_by_identity_and_values_are_refused() -> None:
    graph = rlx.trace(lambda x, y: x + y, ROW, ROW)
    x, y = graph.inputs
    assert x == x
    assert x != y
    assert x in (y, x)
    assert {x: 1}[x] == 1
    assert x != None  # noqa: E711
    assert x != "x"
    for value in (0, 0.5, True, 1j, np.float32(0), np.zeros(3)):
        for compare in (lambda v: x == v, lambda v: x != v, lambda v: v == x):
            with pytest.raises(rlx.GraphError, match=r"rlx\.ops\.equal"):
                compare(value)


@pytest.mark.parametrize("op", [o for o in table.table().values() if not o.why_no_cases])
def test_no_op_compares_nodes_where_it_is_built(op: table.Op) -> None:
    """A trace gives the graph that the builder gives: nothing inside asks nodes for identity."""
    draw = Draw([zlib.crc32(op.name.encode()), 0])
    case = draw.case(op)
    shapes = [rlx.Shape(s.dims, s.dtype) for s in case.specs]
    traced = rlx.trace(lambda *xs: op(*xs, **case.attrs), *shapes, name="g") if shapes else None
    g = rlx.Graph("g")
    made = op(*(g.input(f"xs{i}", s) for i, s in enumerate(shapes)), **case.attrs) if shapes else ()
    g.set_outputs(made if isinstance(made, tuple) else [made])
    assert traced is None or traced == g


def test_bodies_keep_source_lines_where_the_graph_around_them_does():
    def lines(graph):
        c, xs = graph.input("c", ROW), graph.input("xs", rlx.Shape([5, 3]))
        rlx.scan_loop(lambda c, x: (c + x, x), c, xs)
        (loop,) = (n for n in graph.nodes if n.op == "scan")
        return [o for n in loop.attrs["body"].order() for o in n.origins if o.kind == "line"]

    assert all("test_tracing.py" in o.text for o in lines(rlx.Graph("written")))
    assert lines(rlx.Graph("written"))
    assert lines(rlx.Graph("imported").successor()) == []


def test_arrays_may_be_keywords_and_parts_of_structures(caplog):
    def net(params, x, *, scale=1.0, bias=None):
        y = x
        for layer in params["layers"]:
            y = ops.relu(y @ layer["w"])
        y = y if bias is None else y + bias
        return {"y": y * scale, "rest": [y, (x, {params["name"]: x + 1})]}

    eye, two = np.eye(2, dtype=np.float32), np.full((2, 3), 2, np.float32)
    given = {"layers": [{"w": eye}, {"w": two}], "name": "more"}
    x, bias = np.float32([[1, 2]]), np.float32([1, 2, 3])
    jitted = rlx.jit(net)
    made = jitted(given, x)
    assert made["y"].tolist() == [[6, 6, 6]]
    assert isinstance(made["rest"], list)
    assert made["rest"][1][1]["more"].tolist() == [[2, 3]]
    with caplog.at_level("INFO", "rlx"):
        assert jitted(given, x=x, bias=bias, scale=2.0)["y"].tolist() == [[14, 16, 18]]
    assert "net: compiled again: shapes or dtypes" in caplog.text
    assert jitted(given, x)["y"].tolist() == [[6, 6, 6]]
    assert jitted.compiled == 2
    names = [n.attrs["name"] for n in jitted.graph(given, x).inputs]
    assert names == ["params.layers.0.w", "params.layers.1.w", "x"]
    assert list(jitted.graph(given, x).output_names) == ["y", "rest.0", "rest.1.0", "rest.1.1.more"]
