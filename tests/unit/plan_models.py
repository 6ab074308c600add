"""Small graphs whose plans have everything that a plan can have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rlx
from rlx.ir.mir import Graph
from tests.unit.plan_mutations import Model

I64 = rlx.DType.I64


def _values(graph: Graph, sizes: dict[str, int], seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for node in (*graph.inputs, *graph.params):
        shape = node.shape.bind(sizes)
        dims, dtype = shape.static_dims, shape.dtype.numpy
        drawn = rng.standard_normal(dims) if dtype.kind == "f" else rng.integers(0, 2, dims)
        found[node.attrs["name"]] = np.asarray(drawn).astype(dtype)
    return found


def _model(graph: Graph, *sizes: dict[str, int]) -> Model:
    return Model(graph, [_values(graph, s, i) for i, s in enumerate(sizes or ({},))])


def layers() -> Model:
    """Products, a residual, packed and computed weights, two outputs."""
    g = Graph("layers")
    x, w, b = g.input("x", [8, 16]), g.param("w", [16, 16]), g.param("b", [16])
    h = x
    for _ in range(3):
        h = g.relu(h @ w + b) + h
    g.set_outputs({"y": h @ g.transpose(g.exp(w), perm=(1, 0)), "h": g.sum(h, axes=(1,))})
    return _model(g)


def moves() -> Model:
    """Views, copies, slices of a concat, items, and an output that is an input."""
    g = Graph("moves")
    x, y = g.input("x", [16, 16]), g.input("y", [16, 16], rlx.DType.F32)
    t = g.transpose(g.cumsum(x, axis=0), perm=(1, 0))
    c = g.concat([g.cumsum(t, axis=1), g.flip(y, axes=(0,))], axis=0)
    k = g.top_k(g.reshape(c, dims=(8, 64)), k=4, axis=-1)
    s = g.slice(c, starts=(4, 0), stops=(20, 16))
    g.set_outputs([g.cumsum(s, axis=0), k[0], k[1], x, g.flip(t, axes=(1,))])
    return _model(g)


def named() -> Model:
    """Two named dims, shared memory by formula, a weight of a named size."""
    g = Graph("named")
    n, m = rlx.Dim("n", 1, 64), rlx.Dim("m", 1)
    x, w = g.input("x", [n, 8]), g.param("w", [8, m])
    h = g.cumsum(g.exp(x), axis=0)
    p = g.cumsum(g.cumsum(h @ w, axis=0), axis=1)
    g.set_outputs([g.flip(p, axes=(0,)), g.sum(g.flip(h, axes=(1,)), axes=(0,)), g.exp(w)])
    return _model(g, {"n": 7, "m": 5}, {"n": 64, "m": 40}, {"n": 1, "m": 3})


def measured() -> Model:
    """A size that is found in data, and a capacity."""
    g = Graph("measured")
    x = g.input("x", [24], I64)
    found = g.cumsum(g.squeeze(g.nonzero(x), axes=(0,)), axis=0)
    g.set_outputs([g.flip(found, axes=(0,)), g.sum(g.exp(x * 1.0), axes=(0,))])
    return _model(g, {}, {})


def flow() -> Model:
    """A branch and a loop, and a tail of the Epilogue."""
    g, then, other = Graph("flow"), Graph("then"), Graph("else")
    then.set_outputs([then.cumsum(then.exp(then.input("x", [4, 8])), axis=0)])
    other.set_outputs([other.flip(other.input("x", [4, 8]), axes=(0,))])
    x, on = g.input("x", [4, 8]), g.input("on", [], rlx.DType.BOOL)
    node = g.node("if", (on, x), {"then": then, "else": other})
    y = g.node("item", (node,), {"index": 0})
    k = g.top_k(g.cumsum(y @ g.param("w", [8, 32]), axis=0), k=3, axis=-1)
    g.set_outputs([k[0], k[1], g.cumsum(y, axis=1)])
    return _model(g, {}, {})


def states() -> Model:
    """A cache of rows and a counter, read before and after they change."""
    g = Graph("states")
    n = rlx.Dim("n", 1, 4)
    x, at = g.input("x", [n, 4]), g.input("at", [], rlx.DType.I32)
    k, c, d = g.state("k", [16, 4]), g.state("c", [], I64, init=3), g.state("d", [4, 4])
    before = g.sum(k, axes=(0,))
    new = g.append(k, g.cumsum(g.add(x, before), axis=0), at, axis=0)
    g.assign(c, g.add(c, 1))
    g.assign(d, g.cumsum(g.add(d, 2.0), axis=0))
    g.set_outputs([g.cumsum(new, axis=0), before, g.add(c, 10), g.exp(x)])
    return _model(g, {"n": 3}, {"n": 1}, {"n": 4})


MODELS: tuple[Callable[[], Model], ...] = (layers, moves, named, measured, flow, states)
