"""Which axes of a graph are split over a mesh, and why others are not; no jax is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

import rlx
from bench.workloads import llama, minilm
from rlx.backends.tpu.backend import backend
from rlx.backends.tpu.mesh.given import axes_of
from rlx.backends.tpu.mesh.shard import Sharding, Spec, shard
from rlx.ir.mir import Graph
from rlx.passes.fusion import reasons

TPU = backend.documented
LLAMA = llama.Size(layers=2, width=64, heads=8, kv_heads=4, hidden=96, words=128, places=32)
MINILM = minilm.Size(layers=1, width=48, heads=12, hidden=96, words=64, places=32)


def planned(model: object, mesh: Mapping[str, int]) -> tuple[Graph, Sharding]:
    target = replace(TPU, mesh=mesh)
    lir = rlx.CompilePipeline(target).compile(model).lir
    return lir.mir.graph, shard(lir.mir.graph, mesh, lir.plan.representative)


def specs(graph: Graph, found: Sharding) -> dict[str, Spec]:
    leaves = {n.attrs["name"]: found.spec(n) for n in (*graph.params, *graph.inputs)}
    made = {f"-> {k}": found.spec(o) for k, o in zip(graph.output_names, graph.outputs)}
    return leaves | made


def decoder() -> rlx.HirModule:
    work = llama.decode(llama.llama_params(LLAMA), past=8, size=LLAMA)
    return work.model(work.rlx_params())


def encoder(batch: object = 4) -> rlx.HirModule:
    params = minilm.minilm(4, 8, minilm.random_params(MINILM), MINILM).rlx_params()
    return minilm.minilm_model(params, batch, 8, MINILM)  # pyright: ignore[reportArgumentType]


def test_a_decoder_is_split_by_columns_then_rows_and_its_cache_by_heads() -> None:
    graph, found = planned(decoder(), {"model": 4})
    given = specs(graph, found)
    for name in ("q", "k", "v", "gate", "up"):
        assert given[f"l1.{name}.w"] == (None, "model"), name
    for name in ("o", "down"):
        assert given[f"l1.{name}.w"] == ("model", None), name
    assert given["head.w"] == (None, "model")
    assert given["-> logits"] == (None, "model")
    for name in ("keys", "values", "-> keys", "-> values"):
        assert given[name] == (None, None, "model", None, None), name
    for name in ("emb", "l0.n1.g", "nf.g", "cos", "ids"):
        assert set(given[name]) == {None}, name


def test_each_product_is_a_decision_with_bytes_and_collectives() -> None:
    _, found = planned(decoder(), {"model": 4})
    made = [d for _, d in found.decisions]
    assert len(made) == 2 * 7 + 1
    assert all(d.verdict and d.kind == "sharding" for d in made)
    rows = [d.reason for d in made if d.what == "split_rows"]
    assert len(rows) == 4
    each = 64 * 64 * 4
    assert f"{each // 4:,} of {each:,} bytes of weights per device" in rows[0]
    assert "an all-reduce of 256 bytes per call" in rows[0]


def test_heads_that_devices_do_not_divide_stay_whole_and_units_of_the_mlp_do_not() -> None:
    graph, found = planned(encoder(), {"model": 8})
    given = specs(graph, found)
    assert given["l0.q.w"] == (None, None)
    assert given["l0.f1.w"] == (None, "model")
    assert given["l0.f2.w"] == ("model", None)
    why = [d.reason for _, d in found.decisions if not d.verdict]
    assert any("12 of it are not divisible by model=8" in r for r in why)
    assert any("reduces over it" in r for r in why)


def test_key_heads_bound_how_far_queries_are_split() -> None:
    graph, found = planned(decoder(), {"model": 8})
    assert specs(graph, found)["l0.q.w"] == (None, None)
    assert any("4 of it are not divisible" in d.reason for _, d in found.decisions)


def test_data_and_model_split_together() -> None:
    graph, found = planned(encoder(), {"data": 2, "model": 4})
    given = specs(graph, found)
    assert given["ids"] == given["mask"] == ("data", None)
    assert given["l0.q.w"] == (None, "model")
    assert given["l0.q.b"] == ("model",)
    (output,) = graph.outputs
    assert found.spec(output) == ("data", None)
    assert found.parts(output) == 2


def test_a_named_batch_is_split_where_its_size_is_divisible() -> None:
    mesh = {"data": 4}
    target = replace(TPU, mesh=mesh)
    graph = rlx.CompilePipeline(target).compile(encoder(rlx.Dim("batch", 1))).lir.mir.graph
    assert specs(graph, shard(graph, mesh, {"batch": 8}))["ids"] == ("data", None)
    odd = shard(graph, mesh, {"batch": 6})
    assert specs(graph, odd)["ids"] == (None, None)
    assert "6 of it are not divisible by data=4" in odd.decisions[0][1].reason


def test_layers_of_an_mlp_alternate_between_columns_and_rows() -> None:
    g = Graph("mlp")
    x = g.input("x", rlx.Shape([4, 8]))
    for i, (rows, columns) in enumerate(((8, 16), (16, 16), (16, 4))):
        x = g.relu(g.matmul(x, g.param(f"w{i}", rlx.Shape([rows, columns]))))
    g.set_outputs([x])
    graph, found = planned(g, {"model": 2})
    given = specs(graph, found)
    assert [given[f"w{i}"] for i in range(3)] == [(None, "model"), ("model", None), (None, "model")]


def test_rows_that_a_reshape_joins_keep_the_other_axis() -> None:
    g = Graph("joined")
    n, m = rlx.Dim("n", 1), rlx.Dim("m", 1)
    x, w = g.input("x", rlx.Shape([n, m, 8])), g.param("w", rlx.Shape([8, 6]))
    flat = g.reshape(x, dims=(n * m, 8))
    g.set_outputs([g.reshape(g.matmul(flat, w), dims=(n, m, 6))])
    found = shard(g, {"model": 2, "data": 2}, {"n": 4, "m": 3})
    assert found.spec(g.params[0]) == (None, "model")
    assert found.spec(g.outputs[0]) == ("data", None, "model")


def test_an_op_without_a_rule_of_axes_needs_them_whole() -> None:
    g = Graph("whole")
    x = g.matmul(g.input("x", rlx.Shape([4, 8])), g.param("w", rlx.Shape([8, 8])))
    g.set_outputs([g.real(g.fft(g.make_complex(x, x)))])
    found = shard(g, {"model": 2}, {})
    assert found.spec(g.params[0]) == (None, None)
    assert "fft needs every axis whole" in found.decisions[0][1].reason


def test_products_that_share_an_operand_stay_apart_on_a_mesh() -> None:
    result = rlx.CompilePipeline(replace(TPU, mesh={"model": 4})).compile(decoder())
    merges = [d for d in result.decisions if d.what == "fuse_shared_input_matmul"]
    assert len(merges) == 2 * LLAMA.layers
    assert all(not d.verdict and d.reason == reasons.ON_MESH for d in merges)


@pytest.mark.parametrize("mesh", [{"rows": 2}, {"data": 0}, {"data": True}, {"model": "2"}, 4])
def test_a_mesh_that_is_none_is_an_error(mesh: object) -> None:
    with pytest.raises(rlx.Error, match="mesh"):
        axes_of(mesh)


def test_a_target_of_one_device_refuses_a_mesh(small: Graph) -> None:
    with pytest.raises(rlx.Error, match="target='tpu'"):
        rlx.compile(small, "cpu", mesh={"model": 2})


@pytest.fixture
def small() -> Graph:
    g = Graph("small")
    g.set_outputs([g.exp(g.input("x", rlx.Shape([2])))])
    return g


def test_a_mesh_is_a_part_of_the_target() -> None:
    one = TPU
    every = {one, *(replace(one, mesh=m) for m in ({"model": 2}, {"model": 4}, {"data": 2}))}
    assert len({t.digest() for t in every}) == 4
