"""What the tests of fusion share.

Values are small whole numbers, so that sums of products are exact in f32 whatever their order:
fused and unfused must then agree to the bit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.cost.decision import Decision
from rlx.cost.target import KernelLimit, Target
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph
from rlx.ir.verify import verify
from rlx.passes.bodies import nodes_within
from rlx.passes.context import Context
from rlx.passes.fuse import fuse_patterns, fuse_regions
from rlx.passes.options import FusionOptions
from rlx.passes.precision import reduce_precision

TARGETS = ("cpu", "cuda", "rocm", "metal", "mlx", "wgpu", "tpu")
WITH_REGIONS = tuple(t for t in TARGETS if Target.of(t).regions)
"""Engines fuse by themselves."""
METAL = Target.of("metal")
WELCH = KernelLimit(frozenset({DType.F32}), {"k": 64}, 2046, "512 bins are one per thread")
LIMITED = replace(
    METAL,
    native=METAL.native - {"stft", "mean_power"} | {"welch_peaks", "log_mel"},
    kernel_limits={"welch_peaks": WELCH},
    refusals={"stft": "it is broken here"},
    syncs=frozenset({"custom"}),
    regions=METAL.regions - {"multi_result", "few_rows"},
    loops=frozenset(),
    convolutions=None,
)
"""A target without control flow and without kernels of several results, but with kernels of whole
blocks of ops: none of the documented ones is so."""
FEW_KERNELS = replace(
    METAL,
    native=METAL.native
    - {"rms_norm", "fused_residual_rms_norm", "attention", "rope", "fused_swiglu"},
    views=frozenset(),
    regions=METAL.regions - {"few_rows"},
    convolutions=None,
)
"""One that lowers norms and attention, and reads nothing in place."""
ELEMENTWISE_REGIONS = replace(METAL, regions=frozenset({"elementwise", "multi_result"}))
"""One that leaves rows to kernels of their own."""


def inputs(graph: Graph, **dims: tuple[int, ...]) -> list[Any]:
    return [graph.input(name, Shape(d)) for name, d in dims.items()]


def params(graph: Graph, **dims: tuple[int, ...]) -> list[Any]:
    return [graph.param(name, Shape(d)) for name, d in dims.items()]


def values(graph: Graph, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        leaf.attrs["name"]: rng.integers(-3, 4, leaf.shape.static_dims).astype(
            leaf.shape.dtype.numpy
        )
        for leaf in graph.leaves
    }


def fuse(graph: Graph, ctx: Context) -> Graph:
    """The passes of fusion, with what lies between them."""
    for run in (fuse_patterns, reduce_precision, fuse_regions):
        graph = run(graph, ctx)
    return graph


def fused(
    graph: Graph, target: str | Target = "cpu", options: FusionOptions | None = None
) -> tuple[Graph, tuple[Decision, ...]]:
    """The fused graph, checked against the unfused one to the bit, and the decisions."""
    ctx = Context.of(target, options)
    made = fuse(graph, ctx)
    verify(made)
    assert_same(graph, made)
    return made, ctx.log.decisions


def assert_same(before: Graph, after: Graph) -> None:
    """Same leaves, same outputs, same bits."""
    names = [n.attrs["name"] for n in before.leaves]
    assert [n.attrs["name"] for n in after.leaves] == names
    assert [o.shape for o in after.outputs] == [o.shape for o in before.outputs]
    given = values(before)
    for one, other in zip(evaluate(before, given), evaluate(after, given), strict=True):
        np.testing.assert_array_equal(one, other)


def ops_in(graph: Graph) -> list[str]:
    """The ops of the kernels, top level only, in order."""
    return [n.op for n in graph.order() if not n.is_leaf and n.op != "item"]


def ops_within(graph: Graph) -> list[str]:
    """The ops at any depth."""
    return [n.op for n in nodes_within(graph) if not n.is_leaf]


def refusals(decisions: tuple[Decision, ...], what: str) -> list[str]:
    return [d.reason for d in decisions if d.what == what and not d.verdict]
