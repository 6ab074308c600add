"""Branches, loops and scans against plain Python of the same steps."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError, UnsupportedError
from rlx.core.shape import Shape
from rlx.ir import interpret
from rlx.ir.mir import Graph
from rlx.ir.text import read, show
from rlx.ops.op import lookup

F32 = DType.F32
RNG = np.random.default_rng(7)


def normal(*dims: int) -> np.ndarray:
    return RNG.normal(size=dims).astype(np.float32)


def once(g: Graph, **values: np.ndarray) -> list[np.ndarray]:
    """The outputs, after a trip through text."""
    assert read(show(g)) == g
    return interpret.evaluate(read(show(g)), values)


def test_only_the_taken_side_runs():
    g = Graph("branch")
    p, x = g.input("p", Shape([], DType.BOOL)), g.input("x", Shape([3], DType.I64))
    table = np.arange(4, dtype=np.int64)
    y = rlx.cond(p, lambda i: ops.gather(table, i, axis=0), lambda i: i + 1, x)
    g.set_outputs([y])
    far = np.array([5, 6, 7])
    np.testing.assert_array_equal(once(g, p=np.array(False), x=far)[0], far + 1)
    with pytest.raises(Error, match="gather"):
        once(g, p=np.array(True), x=far)


def test_a_branch_that_could_fail_is_not_made_a_select():
    g = Graph("branch")
    p, x = g.input("p", Shape([], DType.BOOL)), g.input("x", Shape([3], DType.I64))
    table = np.arange(4, dtype=np.int64)
    node = rlx.cond(p, lambda i: ops.gather(table, i, axis=0), lambda i: i + 1, x).inputs[0]
    with pytest.raises(UnsupportedError, match="gather"):
        node.decl.lowered(node.inputs, node.attrs)


def test_sides_must_agree_and_the_error_names_both():
    g = Graph("branch")
    p, x = g.input("p", Shape([], DType.BOOL)), g.input("x", Shape([3], F32))
    with pytest.raises(GraphError, match=r"then gives \(f32\[3\]\), but else gives \(f32\[1\]\)"):
        rlx.cond(p, lambda x: x, lambda x: x[:1], x)
    with pytest.raises(GraphError, match="expected one bool"):
        rlx.cond(x, lambda x: x, lambda x: x, x)


def test_closing_over_an_outer_node_says_to_pass_it():
    g = Graph("outer")
    p, x = g.input("p", Shape([], DType.BOOL)), g.input("x", Shape([3], F32))
    y = g.input("y", Shape([3], F32))
    for closure in (lambda v: v + y, lambda v: y, lambda v: y * 2.0):
        with pytest.raises(GraphError, match=r"(?i)pass it as an argument"):
            rlx.cond(p, closure, lambda v: v, x)


def test_while_counts_and_stops():
    g = Graph("loop")
    n, x = g.input("n", Shape([], DType.I64)), g.input("x", Shape([2], F32))
    i, y, _ = rlx.while_loop(
        lambda i, y, n: i < n, lambda i, y, n: (i + 1, y * 2.0, n), g.constant(np.int64(0)), x, n
    )
    g.set_outputs([i, y])
    count, doubled = once(g, n=np.array(5), x=np.array([1, 3], np.float32))
    assert count == 5
    np.testing.assert_array_equal(doubled, [32, 96])
    assert once(g, n=np.array(-1), x=np.zeros(2, np.float32))[0] == 0


def test_while_is_bounded_by_max_iterations_and_only_then_written_out():
    def loop(most):
        g = Graph("loop")
        x = g.input("x", Shape([], DType.I32))
        made = rlx.while_loop(lambda v: v > 0, lambda v: v - 3, x, max_iterations=most)
        g.set_outputs([made])
        return g, made.inputs[0]

    g, _ = loop(2)
    assert once(g, x=np.array(100, np.int32))[0] == 94
    for most, reason in ((None, "max_iterations"), (65, "limit")):
        node = loop(most)[1]
        with pytest.raises(UnsupportedError, match=reason):
            node.decl.lowered(node.inputs, node.attrs)


def test_carries_keep_their_shape_and_dtype():
    g = Graph("loop")
    x = g.input("x", Shape([3], F32))
    with pytest.raises(GraphError, match=r"carry 0 is f32\[3\], but body returns f32\[2\]"):
        rlx.while_loop(lambda v: ops.any(v > 0), lambda v: v[:2], x)
    with pytest.raises(GraphError, match="expected one bool"):
        rlx.while_loop(lambda v: v > 0, lambda v: v, x)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_scan_is_a_loop_over_slices(length, reverse):
    x, w = normal(length, 3), normal(3)
    g = Graph("scan")
    a = g.input("x", Shape([length, 3], F32))
    b, c = g.input("w", Shape([3], F32)), g.input("c", Shape([3], F32))
    last, (ys, doubles) = rlx.scan_loop(
        lambda carry, v, factor: (carry * factor + v, (carry, v + v)), c, a, (b,), reverse=reverse
    )
    g.set_outputs([last, ys, doubles])
    got = once(g, x=x, w=w, c=np.ones(3, np.float32))
    carry, rows = np.ones(3, np.float32), np.zeros((length, 3), np.float32)
    for t in reversed(range(length)) if reverse else range(length):
        rows[t], carry = carry, carry * w + x[t]
    np.testing.assert_array_equal(got[0], carry)
    np.testing.assert_array_equal(got[1], rows)
    np.testing.assert_array_equal(got[2], x + x)


def test_scan_over_a_named_length():
    t = Dim("t", 0, 100)
    g = Graph("scan")
    x = g.input("x", Shape([t, 2], F32))
    total, sums = rlx.scan_loop(lambda c, v: (c + v, c + v), np.zeros(2, np.float32), x)
    g.set_outputs([total, sums])
    assert sums.shape == Shape([t, 2], F32)
    for length in (0, 1, 7):
        rows = np.ones((length, 2), np.float32)
        total, sums = once(g, x=rows)
        np.testing.assert_array_equal(total, [length, length])
        np.testing.assert_array_equal(sums, np.cumsum(rows, 0))


def test_scan_without_xs_needs_a_length():
    with pytest.raises(GraphError, match="length"):
        rlx.scan_loop(lambda c, x: (c, None), np.float32(1), None)
    last, ys = rlx.scan_loop(lambda c, x: (c + c, None), np.float32(1), None, length=10)
    assert last == 1024
    assert ys is None


def test_scan_checks_operands():
    body = Graph("body")
    body.set_outputs([body.input("c", Shape([2], F32))])
    c, xs = Shape([2], F32), Shape([4, 2], F32)
    with pytest.raises(GraphError, match="leading dim"):
        lookup("scan")(c, xs, body=body, length=3, num_carries=1)
    with pytest.raises(GraphError, match="takes"):
        lookup("scan")(c, xs, body=body, length=4, num_carries=1)
    with pytest.raises(GraphError, match="not among"):
        lookup("scan")(c, body=body, length=4, num_carries=2)


def test_a_body_has_no_params():
    body = Graph("body")
    x, w = body.input("x", Shape([2], F32)), body.param("w", Shape([2], F32))
    body.set_outputs([x + w])
    with pytest.raises(GraphError, match="param 'w'"):
        lookup("if")(Shape([], DType.BOOL), Shape([2], F32), then=body, else_=body)


def test_loops_run_on_arrays_too():
    assert rlx.while_loop(lambda v: v < 100, lambda v: v * 3, np.int64(1)) == 243
    assert rlx.cond(np.array(True), lambda v: v + 1, lambda v: v - 1, np.int64(1)) == 2
