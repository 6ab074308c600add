"""Images with their channels side by side: the pass that lays them out, and that nothing else
changes."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cpu.backend import CpuBackend
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.cost.target import Target
from rlx.ir.interpret import evaluate
from rlx.ir.lir import LirModule
from rlx.ir.mir import Graph, Node
from rlx.pipeline import CompilePipeline
from rlx.plan.check.checker import require_sound

N = Dim("n", 1, 4)


def network(image: Node, *weights: Node) -> list[Node]:
    """Convolutions, a residual, a pool, each channel by itself, a concat, and two readers: one that
    takes the channels in order, one that takes the image row by row."""
    first, second, own, point = weights
    x = ops.relu(ops.conv(image, first, stride=(2, 2), padding=(1, 1, 1, 1)))
    y = ops.conv(x, second, padding=(1, 1, 1, 1)) + x
    y = ops.max_pool(y, kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1))
    z = ops.conv(y, own, padding=(1, 1, 1, 1), groups=16)
    both = ops.conv(ops.concat([y, z], axis=1), point)
    n = image.shape.dims[0]
    return [ops.mean(both, axes=(2, 3)), ops.reshape(both, dims=(n, 24 * 25)) * 2.0, z + 1.0]


def built(dtype: DType = DType.F32) -> Graph:
    g = Graph("net")
    image = g.input("image", Shape([N, 3, 18, 17], dtype))
    dims = ((16, 3, 3, 3), (16, 16, 3, 3), (16, 1, 3, 3), (24, 32, 1, 1))
    weights = [g.param(f"w{i}", Shape(d, dtype)) for i, d in enumerate(dims)]
    g.set_outputs(network(image, *weights))
    return g


def planned(target: Target | str, dtype: DType = DType.F32) -> LirModule:
    lir = CompilePipeline(target).compile_graph(built(dtype)).lir
    require_sound(lir)
    return lir


def test_nothing_is_turned_round_between_convolutions() -> None:
    """As many kernels as without: what changes the order is a view, but for the one reshape."""
    ours, plain = planned(CpuBackend().target()), planned("cpu")
    assert not any(k.op == "transpose" for k in ours.plan.schedule)
    assert len(ours.plan.schedule) <= len(plain.plan.schedule) + 1
    turned = [n for n in ours.mir.graph.order() if n.op == "transpose"]
    assert len(turned) >= 5
    assert all(ours.plan.is_view(n) for n in turned)


def test_targets_that_do_not_ask_for_it_are_left_alone() -> None:
    assert not any(n.op == "transpose" for n in planned("metal").mir.graph.order())


@pytest.mark.parametrize("target", ["cuda", "rocm"])
def test_matrix_instructions_ask_for_it_where_they_multiply(target: str) -> None:
    """The images of half floats, and none of f32."""
    half = planned(target, DType.BF16)
    turned = [n for n in half.mir.graph.order() if n.op == "transpose"]
    assert len(turned) >= 4
    assert all(half.plan.is_view(n) for n in turned)
    assert not any(n.op == "transpose" for n in planned(target).mir.graph.order())


@pytest.mark.parametrize("batch", [1, 3])
def test_values_are_what_they_were(batch: int) -> None:
    """Within roundings of sums of at most 144 products of size 1."""
    graph, rng = built(), np.random.default_rng(0)
    params = {
        p.attrs["name"]: rng.normal(size=p.shape.static_dims).astype(np.float32) / 8
        for p in graph.params
    }
    x = rng.normal(size=(batch, 3, 18, 17)).astype(np.float32)
    want = evaluate(graph.bind({"n": batch}), {"image": x, **params})
    exe = rlx.compile(graph, "cpu", params=params, cache=False)
    for got, expected in zip(exe(x), want):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_what_is_laid_out_keeps_the_users_names() -> None:
    lir = planned(CpuBackend().target())
    kernels = [n for n in lir.plan.schedule if n.op == "region"]
    assert kernels
    assert all(n.origins for n in kernels)


@pytest.mark.parametrize("kind", ["nearest", "conv_transpose"])
def test_upsampled_images_keep_their_layout(kind: str) -> None:
    """Both merge axes of a copy or of phases into those of the image: channels keep unit stride."""
    g = Graph("up")
    x, w = g.input("x", (1, 16, 9, 8)), g.param("w", (16, 16, 3, 3))
    first = ops.relu(ops.conv(x, w, padding=(1, 1, 1, 1)))
    if kind == "nearest":
        cut = ops.reshape(first, dims=(1, 16, 9, 1, 8, 1))
        wide = ops.reshape(ops.expand(cut, dims=(1, 16, 9, 2, 8, 2)), dims=(1, 16, 18, 16))
    else:
        wide = ops.conv_transpose(first, g.param("u", (16, 16, 2, 2)), stride=(2, 2))
    g.set_outputs([ops.mean(ops.conv(wide, w, padding=(1, 1, 1, 1)), axes=(2, 3))])
    lir = CompilePipeline(CpuBackend().target()).compile_graph(g).lir
    require_sound(lir)
    assert not [k.label for k in lir.plan.schedule if k.op == "reshape" and k.shape.rank == 4
                and k.shape.dims[1] == 16 and k.shape.dims[2:] == (18, 16)]  # fmt: skip
    given = {n.attrs["name"]: np.random.default_rng(0).normal(size=n.shape.static_dims) for n in
             (*g.inputs, *g.params)}  # fmt: skip
    arrays = {k: v.astype(np.float32) for k, v in given.items()}
    params = {k: arrays[k] for k in arrays if k != "x"}
    got = rlx.compile(g, target="cpu", params=params)(arrays["x"])
    want = rlx.compile(g, target="reference", params=params)(arrays["x"])
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()  # sums of 144 in another order
