"""During a call nothing runs in Python or NumPy but the way in: the profiler sees every function.

A custom op is the one exception; it is Python's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import Dim, Graph, Shape, ops
from tests.watching import CHECKS, READS, WAY_IN, watched

F32 = np.float32


def random(*dims: int, dtype: Any = F32) -> np.ndarray:
    return np.random.default_rng(7).normal(size=dims).astype(dtype)


def elementwise(g: Graph) -> list[np.ndarray]:
    x, y = g.input("x", Shape([40, 30])), g.input("y", Shape([30]))
    g.set_outputs([g.gelu(x * y) + 1.0, g.softmax(x, axis=1)])
    return [random(40, 30), random(30)]


def control_flow(g: Graph) -> list[np.ndarray]:
    def more(i: Any, x: Any) -> Any:
        return i < 5

    def step(i: Any, x: Any) -> Any:
        return i + 1, ops.tanh(x) * 1.5

    x = g.input("x", Shape([8]))
    _, grown = rlx.while_loop(more, step, g.constant(np.int64(0)), x)
    g.set_outputs([grown])
    return [random(8)]


def branches(g: Graph) -> list[np.ndarray]:
    p, x = g.input("p", Shape([], "bool")), g.input("x", Shape([9]))
    g.set_outputs([rlx.cond(p, lambda x: ops.exp(x), lambda x: ops.sum(x) + x, x)])
    return [np.array(True), random(9)]


def attention(g: Graph) -> list[np.ndarray]:
    q, k, v = (g.input(n, Shape([1, 9, 32])) for n in "qkv")
    g.set_outputs([g.attention(q, k, v, num_heads=4, kv_heads=4, mask_kind="causal")])
    return [random(1, 9, 32)] * 3


def spectral(g: Graph) -> list[np.ndarray]:
    x = g.input("x", Shape([3, 60]))
    g.set_outputs([g.rfft(x), g.sort(x), g.cumsum(x, axis=1), g.top_k(x, k=4, axis=1)[0]])
    return [random(3, 60)]


def dynamic(g: Graph) -> list[np.ndarray]:
    n = Dim("n", 1, 64)
    x, w = g.input("x", Shape([n, 16])), g.input("w", Shape([16, 8]))
    g.set_outputs([g.layer_norm(g.relu(g.matmul(x, w)), axis=-1)])
    return [random(11, 16), random(16, 8)]


def found(g: Graph) -> list[np.ndarray]:
    x = g.input("x", Shape([20]))
    where = g.nonzero(g.greater(x, g.constant(F32(0))))
    g.set_outputs([g.gather(x, g.reshape(where, dims=where.shape.dims[1:]), axis=0)])
    return [random(20)]


def convolution(g: Graph) -> list[np.ndarray]:
    x, w = g.input("x", Shape([1, 3, 12, 12])), g.input("w", Shape([5, 3, 3, 3]))
    g.set_outputs([g.max_pool(g.relu(g.conv(x, w)), kernel=(2, 2), stride=(2, 2))])
    return [random(1, 3, 12, 12), random(5, 3, 3, 3)]


def recurrence(g: Graph) -> list[np.ndarray]:
    x = g.input("x", Shape([7, 5]))
    start = g.constant(random(5))
    carry, ys = rlx.scan_loop(lambda c, row: (ops.tanh(c + row), c * row), start, x)
    g.set_outputs([carry, ys])
    return [random(7, 5)]


MODELS = [
    elementwise, control_flow, branches, attention, spectral, dynamic, found, convolution,
    recurrence,
]  # fmt: skip


def compiled(model: Callable[[Graph], list[np.ndarray]]) -> tuple[rlx.Executable, list[np.ndarray]]:
    graph = Graph(model.__name__)
    arrays = model(graph)
    exe = rlx.compile(graph, "cpu")
    exe(*arrays)
    return exe, arrays


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_a_call_runs_native_code_alone(model: Any) -> None:
    exe, arrays = compiled(model)
    made, seen = watched(exe, *arrays)
    assert set(seen) <= WAY_IN
    assert seen.count("rlx_model") == 1
    want = made if isinstance(made, tuple) else (made,)
    again = exe(*arrays)
    for a, b in zip(want, again if isinstance(again, tuple) else (again,)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_a_call_that_must_be_mended_computes_nothing_in_python(model: Any) -> None:
    """The inputs lie backwards: they are copied, and the rest is as before."""
    exe, arrays = compiled(model)
    turned = [np.flip(np.flip(a).copy()) for a in arrays]
    _, seen = watched(exe, *turned)
    entered = [s.rpartition(":") for s in seen if ":" in s]
    inside = {name for file, _, name in entered if file == "interpret.py"}
    assert {file for file, *_ in entered} - {"interpret.py"} <= CHECKS
    assert {n for n in inside if not n.startswith("<")} <= READS


def test_a_custom_op_is_the_exception() -> None:
    twice = rlx.custom_op("test_native_only.twice", _twice, lambda x: x)
    g = Graph("custom")
    x = g.input("x", Shape([4]))
    g.set_outputs([twice(x + 1.0) * 2.0])
    exe = rlx.compile(g, "cpu")
    exe(random(4))
    _, seen = watched(exe, random(4))
    assert seen.count("test_native_only.py:_twice") == 1


def _twice(x: Any) -> Any:
    return x * 2
