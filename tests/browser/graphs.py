"""Small graphs that together take every kind of step that a page runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rlx
from rlx import Dim, Graph, Shape, ops

Array = np.ndarray[Any, Any]
Case = tuple[Graph, dict[str, Array], list[dict[str, Array]]]
"""A graph, its params, and the inputs of several calls."""


def normal(seed: int, *dims: int) -> Array:
    return np.random.default_rng(seed).normal(size=dims).astype(np.float32)


def layers() -> Case:
    """Packed weights, a norm, a softmax; rows are a named dim."""
    g = Graph("layers")
    x, w, b = g.input("x", Shape([Dim("n", 1, 512), 64])), *_linear(g)
    y = ops.softmax(ops.gelu(ops.matmul(x, w) + b), axis=-1)
    g.set_outputs({"y": ops.layer_norm(y, axis=-1), "sums": ops.sum(y, axes=(1,))})
    params = {"w": normal(1, 64, 48), "b": normal(2, 48)}
    return g, params, [{"x": normal(n, n, 64)} for n in (3, 200, 3, 1)]


def _linear(g: Graph) -> tuple[Any, Any]:
    return g.param("w", Shape([64, 48])), g.param("b", Shape([48]))


def overwritten() -> Case:
    """A result in the memory of a dying operand: their bindings overlap."""
    g = Graph("overwritten")
    x = g.input("x", Shape([300, 7]))
    y = ops.cumsum(ops.exp(x), axis=0)
    g.set_outputs({"y": ops.cumsum(y * 0.5 + ops.sum(y), axis=1)})
    return g, {}, [{"x": normal(3, 300, 7)}]


def integers() -> Case:
    """64 bits, bytes, truth values and an odd number of each."""
    g = Graph("integers")
    i, u = g.input("i", Shape([7], "i64")), g.input("u", Shape([7], "u8"))
    g.set_outputs({
        "product": i * i - 3, "is_large": ops.greater(i, g.constant(np.int64(1 << 40))),
        "bytes": u + u, "same": ops.reshape(u, dims=(7, 1)),
    })  # fmt: skip
    values = np.array([0, -1, 5, 1 << 41, -(1 << 33), 3_000_000_019, 7], np.int64)
    return g, {}, [{"i": values, "u": np.arange(200, 207, dtype=np.uint8)}]


def branching() -> Case:
    g = Graph("branching")
    x, flag = g.input("x", Shape([5, 6])), g.input("flag", Shape([], "bool"))
    turned = ops.transpose(x, perm=(1, 0))
    g.set_outputs({"y": rlx.cond(flag, ops.exp, lambda v: ops.softmax(v, axis=1), turned)})
    return g, {}, [{"x": normal(4, 5, 6), "flag": np.array(v)} for v in (True, False)]


def looping() -> Case:
    """Turns that the data decides."""
    g = Graph("looping")
    x = g.input("x", Shape([5, 6]))
    y = rlx.while_loop(lambda v: ops.sum(v) > 0.5, lambda v: v * 0.5, ops.abs(x))
    g.set_outputs({"y": y})
    return g, {}, [{"x": normal(5, 5, 6)}, {"x": 40 * normal(6, 5, 6)}]


def scanning() -> Case:
    """A carry, weights that every step sees, and unaligned rows, backwards."""
    g = Graph("scanning")
    x, w = g.input("x", Shape([9, 6])), g.param("w", Shape([6, 6]))

    def step(carry: Any, row: Any, w: Any) -> tuple[Any, Any]:
        made = ops.tanh(ops.matmul(ops.reshape(carry + row, dims=(1, 6)), w))
        return ops.reshape(made, dims=(6,)), row * carry

    last, rows = rlx.scan_loop(step, g.constant(np.zeros(6, "f")), x, (w,), reverse=True)
    g.set_outputs({"last": last, "rows": rows})
    return g, {"w": normal(7, 6, 6)}, [{"x": normal(8, 9, 6)}]


def measuring() -> Case:
    """Sizes that are found in data, and a capacity that is outgrown."""
    g = Graph("measuring")
    x, count = g.input("x", Shape([40])), g.input("n", Shape([], "i64"))
    zero, one = (g.constant(np.int64(v)) for v in (0, 1))
    found = ops.cast(ops.nonzero(x > 0.0), to=rlx.DType.F32)
    g.set_outputs({"found": found * 2.0, "range": ops.arange(zero, count, one) * 3})
    return g, {}, [{"x": normal(9, 40), "n": np.array(n)} for n in (10, 1000, 0)]


CASES: dict[str, Callable[[], Case]] = {
    f.__name__: f for f in (layers, overwritten, integers, branching, looping, scanning, measuring)
}


def gathering() -> Case:
    """An index that may be out of range: a kernel notes it."""
    g = Graph("gathering")
    x, i = g.input("x", Shape([4, 3])), g.input("i", Shape([2], "i64"))
    g.set_outputs({"y": ops.gather(x, i, axis=0)})
    good, bad = (np.array(v, np.int64) for v in ([3, 0], [1, 9]))
    return g, {}, [{"x": normal(10, 4, 3), "i": v} for v in (good, bad, good)]
