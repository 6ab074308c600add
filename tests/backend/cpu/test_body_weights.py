"""Weights inside branches and loops: prepared once, anew when they change, and never mixed up."""

from __future__ import annotations

from typing import Any

import numpy as np

import rlx
from rlx import ops
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node

RNG = np.random.default_rng(7)
W = {n: RNG.standard_normal((48, 48)).astype(np.float32) / 16 for n in "abc"}
"""Small enough that a loop does not magnify roundings."""


def _graph() -> tuple[Graph, Node, Node, dict[str, Node]]:
    g = Graph("bodies")
    p, x = g.input("p", Shape((2,), "bool")), g.input("x", Shape((30, 48), "f32"))
    return g, p, x, {n: g.param(n, Shape((48, 48), "f32")) for n in "abc"}


def _check(g: Graph, x: np.ndarray[Any, Any], weights: Any) -> None:
    """All branches, before and after some weights are others."""
    exe = rlx.compile(g, "cpu", params=weights, threads=2)
    wanted = rlx.compile(g, "reference", params=weights)
    changed = {**weights, "b": weights["b"] * 2}
    for given in (weights, {"b": changed["b"]}, {"b": weights["b"], "c": weights["a"]}):
        exe.set_params(given)
        wanted.set_params(given)
        for flags in ((0, 0), (0, 1), (1, 0), (1, 1)):
            pred = np.array(flags, bool)
            got, want = exe(pred, x), wanted(pred, x)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def test_branches_with_weights_of_their_own() -> None:
    """Two branches, and equal branches with other weights, share code but no panels."""
    g, p, x, w = _graph()
    first, second = p[0], p[1]

    def product(v: Node, m: Node, _: Node) -> Node:
        return ops.relu(ops.matmul(v, ops.transpose(m, perm=(1, 0))))

    y = rlx.cond(first, product, lambda v, m, n: ops.matmul(v, n + m), x, w["a"], w["b"])
    z = rlx.cond(second, product, lambda v, m, n: ops.matmul(v, n), y, w["b"], w["c"])
    g.set_outputs([z])
    _check(g, RNG.standard_normal((30, 48)).astype(np.float32), W)


def test_a_branch_inside_a_branch() -> None:
    g, p, x, w = _graph()

    def outer(v: Node, q: Node, m: Node, n: Node) -> Any:
        return rlx.cond(
            q, lambda v, m, n: ops.matmul(v, m), lambda v, m, n: ops.matmul(v, n * 2.0), v, m + n, n
        )

    y = rlx.cond(p[0], outer, lambda v, q, m, n: ops.matmul(v, n), x, p[1], w["a"], w["b"])
    g.set_outputs([ops.matmul(y, w["c"])])
    _check(g, RNG.standard_normal((30, 48)).astype(np.float32), W)


def test_a_loop_that_multiplies_by_a_weight() -> None:
    g, p, x, w = _graph()
    start = ops.where(p[0], x[:4], ops.matmul(x[:4], w["c"]))

    def body(carry: Node, row: Node, m: Node) -> tuple[Node, Node]:
        new = ops.tanh(ops.matmul(carry, m) + row)
        return new, ops.sum(new, axes=(0,))

    last, rows = rlx.scan_loop(body, start, x, (w["b"],))
    other = ops.matmul(rows, w["a"])
    g.set_outputs([ops.concat([last, other], axis=0)])
    _check(g, RNG.standard_normal((30, 48)).astype(np.float32), W)
