"""Loops whose bodies hand some of their carries on as they got them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.ir.mir import Graph, Node
from rlx.passes.context import Context
from rlx.passes.simplify import simplify


def lstm_like() -> Graph:
    """A loop as TensorFlow exports it: the weights and a count are carries, too."""
    body = Graph("body")
    state, w, count = (
        body.input("s", rlx.Shape([2, 8])), body.input("w", rlx.Shape([8, 8])),
        body.input("n", rlx.Shape([], "i32")),
    )  # fmt: skip
    x = body.input("x", rlx.Shape([2, 8]))
    state = ops.tanh(ops.matmul(state, w) + x)
    body.set_outputs([state, w, ops.add(count, 1), state])
    g = Graph("loop")
    given = [
        g.input("s", rlx.Shape([2, 8])),
        g.param("w", rlx.Shape([8, 8])),
        g.constant(np.int32(0)),
    ]
    xs = g.input("xs", rlx.Shape([5, 2, 8]))
    g.set_outputs(list(ops.scan(*given, xs, body=body, length=5, num_carries=3)))
    return g


def scan_of(graph: Graph) -> Node:
    return next(n for n in graph.order() if n.op == "scan")


def test_what_is_handed_on_is_broadcast_and_comes_out_as_it_went_in() -> None:
    made = simplify(lstm_like(), Context.of("cpu"))
    scan = scan_of(made)
    assert (scan.attrs["num_carries"], scan.attrs["num_bcasts"]) == (2, 1)
    assert made.outputs[1].op == "param"
    assert [o.shape for o in made.outputs] == [o.shape for o in lstm_like().outputs]


def test_it_computes_the_same() -> None:
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(d).astype(np.float32) for d in ((2, 8), (8, 8), (5, 2, 8))]
    s, w, xs = values
    want = rlx.compile(lstm_like(), "reference", params={"w": w})(s, xs)
    got = rlx.compile(lstm_like(), "cpu", params={"w": w})(s, xs)
    for a, b in zip(got, want, strict=True):
        # tanh of sums of eight products, five times over: a few roundings of 1 each
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(got[1], w)


def test_a_loop_that_hands_all_on_is_gone() -> None:
    body = Graph("body")
    x = body.input("x", rlx.Shape([3]))
    body.set_outputs([x])
    g = Graph("loop")
    made = ops.scan(g.input("x", rlx.Shape([3])), body=body, length=4, num_carries=1)
    g.set_outputs(list(made))
    assert [n.op for n in simplify(g, Context.of("cpu")).order()] == ["input"]


def test_a_loop_that_may_never_end_is_left() -> None:
    g = Graph("endless")
    x = g.input("x", rlx.Shape([4]))
    g.set_outputs([rlx.while_loop(lambda v: ops.sum(v) > 0.0, lambda v: v * 1.0, x)])
    assert "while" in [n.op for n in simplify(g, Context.of("cpu")).order()]


@pytest.mark.parametrize("call", [
    "rlx.cond(np.array(True), lambda v: v, lambda v: -v, x)",
    "rlx.while_loop(lambda v: rlx.ops.sum(v) < 4.0, lambda v: v + v, x)",
    "rlx.scan_loop(lambda c, v: (c + v, v), x[0], x)[0]",
    "rlx.ops.gelu(x)",
])  # fmt: skip
def test_loops_of_arrays_need_no_graph_built_before(call: str) -> None:
    """The class of graphs is provided by a layer above the ops, which nothing has imported yet."""
    code = f"import numpy as np, rlx\nx = np.ones(2, np.float32)\nprint(np.sum({call}) > 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
