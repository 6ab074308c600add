"""The arena of real graphs, judged by code that shares nothing with the planner."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from bench.models import chain, random_values, transformer
from rlx.ir.interpret import evaluate

SEQ, WIDTH = 128, 768


def rounded(size: int) -> int:
    return -(-size // 64) * 64


def peak_of_live_bytes(lir: rlx.LirModule) -> int:
    """The most bytes alive at any step: 64-byte-rounded storage roots, in-place pairs once.

    Alive from the step that writes it to the last step that reads it or a view of it (outputs: to
    the end). Inputs are never overwritten, so they are alive throughout. Weights and what depends
    on them alone are not counted.
    """
    plan, graph = lir.plan, lir.mir.graph
    steps = [n for n in plan.schedule if plan.phase_of(n) is not rlx.Phase.PROLOGUE]
    root = {}
    for node in graph.nodes:
        root[node] = (
            root[node.inputs[0]]
            if plan.is_view(node) and node not in graph.outputs and node.inputs
            else node
        )
    birth = dict.fromkeys(graph.inputs, -1)
    death = dict.fromkeys(graph.inputs, -1)
    items: dict[rlx.Node, list[rlx.Node]] = {}
    for node in graph.nodes:
        if node.op == "item":
            items.setdefault(node.inputs[0], []).append(node)
    for t, node in enumerate(steps):
        for made in items.get(node, [node]):
            birth[made] = death[made] = t
        for i in node.inputs:
            r = root[i]
            if r in death:
                death[r] = t
    for kept in (*graph.inputs, *graph.outputs):
        death[root[kept]] = len(steps)
    replaced = {root[old]: new for new, old in plan.in_place.items()}
    alive = np.zeros(len(steps) + 2, np.int64)
    for node, start in birth.items():
        size = rounded(node.shape.size_bytes)
        # a buffer that its successor takes over at step t is counted up to the step before
        stop = death[node] - (node in replaced and birth[replaced[node]] == death[node])
        alive[start + 1] += size
        alive[stop + 2 if stop + 2 < len(alive) else -1] -= size
    return int(np.cumsum(alive[:-1]).max())


def test_transformer_arena_is_close_to_what_lives_at_once() -> None:
    lir = rlx.CompilePipeline().compile_hir(transformer(12, SEQ)).lir
    graph = lir.mir.graph
    external = sum(rounded(n.shape.size_bytes) for n in (*graph.inputs, *graph.outputs))
    assert lir.arena_bytes <= 12 * SEQ * WIDTH * 4 + external
    assert lir.arena_bytes <= 1.10 * peak_of_live_bytes(lir)


def test_a_long_chain_needs_few_buffers() -> None:
    options = rlx.FusionOptions(skip_fusion=True)
    lir = rlx.CompilePipeline(options=options).compile_graph(chain(24_000)).lir
    assert len(lir.plan.schedule) == 24_000
    assert lir.arena_bytes <= 4 * 1024 * 4


def test_dynamic_transformer_runs_many_lengths_from_one_compile() -> None:
    small = {"width": 32, "heads": 4, "kv_heads": 2, "ffn": 48}
    module = transformer(12, rlx.Dim("seq", 1, 4096), **small)
    exe = rlx.compile(module)
    params = random_values(exe.params, 1)
    exe.set_params(params)
    graph = module.lower().graph
    fingerprint = exe.lir.fingerprint
    for seq in [1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 32, 33, 47, 64, 65, 100, 127, 130]:
        inputs = random_values(exe.inputs, seq, seq=seq)
        want = evaluate(graph, {**params, **inputs})[0]
        # twelve layers of f32 sums, each relative error below 1e-6
        np.testing.assert_allclose(exe(*inputs.values()), want, rtol=2e-4, atol=2e-5)
    assert exe.lir.fingerprint == fingerprint


def test_a_bound_dynamic_arena_is_close_to_the_static_one() -> None:
    dynamic = rlx.CompilePipeline().compile_hir(transformer(12, rlx.Dim("seq", 1, 4096)))
    static = rlx.CompilePipeline().compile_hir(transformer(12, 16))
    bound = dynamic.lir.plan.bind({"seq": 16}).arena_bytes
    assert bound <= 1.3 * static.lir.arena_bytes
    tight = dynamic.specialize(rlx.DimBinding({"seq": 16}))
    assert tight.lir.is_static
    assert tight.lir.arena_bytes <= bound


def test_memory_is_known_before_running() -> None:
    exe = rlx.compile(transformer(1, rlx.Dim("seq", 1, 64), width=32, heads=4, kv_heads=2, ffn=48))
    small, large = exe.memory(seq=4), exe.memory(seq=64)
    assert 0 < small.arena_bytes < large.arena_bytes
    assert small.weight_bytes == large.weight_bytes > 0
    with pytest.raises(rlx.Error, match="outside its range"):
        exe.memory(seq=65)
