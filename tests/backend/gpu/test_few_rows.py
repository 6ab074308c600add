"""Kernels of few rows: norms before products, gates behind them, and keys that lie in two places.

Each graph must become as many launches as it says, and give what the reference gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.dim import Dim, DimLike
from rlx.ir.mir import Graph, Node
from rlx.kernel.program.program import KernelSequence
from rlx.pipeline import CompilePipeline
from tests.backend.gpu.simulated_backend import SimulatedBackend, differences, outputs

Params = Mapping[str, Node]
Build = Callable[[Params, Sequence[Node]], Node]


@dataclass(frozen=True)
class Case:
    """A function of inputs and params, in one dtype."""

    build: Build
    inputs: tuple[tuple[DimLike, ...], ...]
    params: dict[str, tuple[int, ...]]
    dtype: str
    launches: int
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    packed: str = ""
    """The param that is of bytes, if one is."""

    def graph(self) -> Graph:
        g = rlx.Graph("few rows")
        kinds = {k: "u8" if k == self.packed else self.dtype for k in self.params}
        params = {k: g.param(k, rlx.Shape(d, kinds[k])) for k, d in self.params.items()}
        given = [g.input(f"x{i}", rlx.Shape(d, self.dtype)) for i, d in enumerate(self.inputs)]
        g.set_outputs([self.build(params, given)])
        return g

    def values(self, graph: Graph) -> dict[str, Any]:
        rng, found = np.random.default_rng(0), dict[str, Any]()
        for node in (*graph.params, *graph.inputs):
            shape = node.shape.bind(self.sizes)
            drawn = rng.normal(size=shape.static_dims) / max(1, shape.static_dims[-1]) ** 0.25
            if node.attrs["name"] == self.packed:
                drawn = rng.integers(0, 256, shape.static_dims)
            found[node.attrs["name"]] = drawn.astype(shape.dtype.numpy)
        return found


def _linear(x: Any, w: Any) -> Any:
    return ops.matmul(x, ops.transpose(w, perm=(1, 0)))


def _decoder(p: Any, x: Any) -> Any:
    """Rotary embeddings of queries and keys, attention behind a cache, a gated layer."""
    rows, cos, sin, past_k, past_v = x
    y = ops.rms_norm(rows, p["n1"], eps=1e-5)
    q, k, v = (_linear(y, p[n]) for n in "qkv")
    q, k = (ops.rope(a, cos, sin, head_dim=16) for a in (q, k))
    k, v = (ops.concat([a, b], axis=1) for a, b in ((past_k, k), (past_v, v)))
    mixed = ops.attention(q, k, v, mask_kind="causal", num_heads=4, kv_heads=2)
    rows = ops.add(rows, _linear(mixed, p["o"]))
    y = ops.rms_norm(rows, p["n2"], eps=1e-5)
    raised = ops.mul(ops.silu(_linear(y, p["g"])), _linear(y, p["u"]))
    return ops.add(rows, _linear(raised, p["d"]))


def _partly_turned(p: Any, x: Any) -> Any:
    """Heads apart, of which a part is turned; three queries behind a cache."""
    q, k, v, cos, sin, past_k, past_v = x
    q, k = (ops.rope(a, cos, sin, n_rot=12) for a in (q, k))
    k, v = (ops.concat([a, b], axis=2) for a, b in ((past_k, k), (past_v, v)))
    return ops.attention(q, k, v, mask_kind="causal", num_heads=6, kv_heads=2)


def _one_angle(p: Any, x: Any) -> Any:
    """A query and more new keys, all turned by the same angles."""
    q, k, v, cos, sin, past_k, past_v = x
    q, k = (ops.rope(a, cos, sin) for a in (q, k))
    k, v = (ops.concat([a, b], axis=2) for a, b in ((past_k, k), (past_v, v)))
    return ops.attention(q, k, v, num_heads=2)


def _gelu_gate(p: Any, x: Any) -> Any:
    """A layer norm, and a gate whose weights have their inner axis first."""
    y = ops.layer_norm(x[0], p["w"], p["b"], eps=1e-5)
    made = ops.mul(ops.gelu(ops.matmul(y, p["g"])), ops.matmul(y, p["u"]))
    return ops.add(made, x[1])


def _bytes(p: Any, x: Any) -> Any:
    """A norm before weights of four bits, which are decoded where they are loaded: blocks of 32
    with a scale each."""
    made = ops.dequant_matmul(
        ops.rms_norm(x[0], p["n"], eps=1e-5), p["w"], p["s"], packing="int4", block=32
    )
    return ops.relu(made)


def _long(p: Any, x: Any) -> Any:
    """A row of several turns: its numbers are folded in a loop."""
    return _linear(ops.layer_norm(x[0], eps=1e-5), p["w"])


WIDTHS = {"q": 64, "k": 32, "v": 32, "o": 64, "g": 40, "u": 40}
DECODER = {n: (w, 64) for n, w in WIDTHS.items()} | {"d": (64, 40), "n1": (64,), "n2": (64,)}
PAST = Dim("past")
CASES = {
    "decoder": Case(
        _decoder, ((1, 1, 64), (1, 8), (1, 8), (1, 37, 32), (1, 37, 32)), DECODER, "bf16", 5
    ),
    "partly turned": Case(
        _partly_turned,
        ((2, 6, 3, 80), *[(2, 2, 3, 80)] * 2, *[(3, 6)] * 2, *[(2, 2, PAST, 80)] * 2),
        {}, "f16", 1, {"past": 50},
    ),
    "one angle": Case(
        _one_angle,
        ((1, 2, 1, 16), *[(1, 2, 5, 16)] * 2, *[(1, 8)] * 2, *[(1, 2, 7, 16)] * 2), {}, "f16", 1,
    ),
    "gate of gelu": Case(
        _gelu_gate, ((3, 30), (3, 26)), {"w": (30,), "b": (30,), "g": (30, 26), "u": (30, 26)},
        "f16", 1,
    ),
    "packed": Case(
        _bytes, ((2, 128),), {"n": (128,), "w": (6, 64), "s": (6, 4)}, "f32", 1, packed="w"
    ),
    "long rows": Case(_long, ((2, 9000),), {"w": (5, 9000)}, "f32", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_surrounds_few_rows_is_in_one_kernel(name: str) -> None:
    case, backend = CASES[name], SimulatedBackend()
    graph = case.graph()
    steps = backend.program(CompilePipeline(backend.target()).compile(graph).lir).main.calls
    made = [s.lowering for s in steps]
    tasks = [t for m in made if isinstance(m, KernelSequence) for t in m.schedule.tasks]
    assert all(isinstance(m, KernelSequence) for m in made)
    assert len(tasks) == case.launches, [t.text({}) for t in tasks]
    values = case.values(graph)
    assert not differences(graph, values, outputs(graph, values, backend))
