"""Equal compiles are equal; what is data is copied and pickled, all else says why it is not."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.fuzz.generate import grow
from rlx.fuzz.states import grow_states
from rlx.ops.op import lookup
from rlx.pipeline import CompilePipeline
from tests.effort import sample, tries
from tests.unit.plan_models import MODELS, Model

COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
}


def net(scale: float = 2.0) -> rlx.Graph:
    g = rlx.Graph("net")
    x, w = g.input("x", [rlx.Dim("n", 1, 64), 8]), g.param("w", [8, 8])
    row = g.constant(np.arange(8, dtype=np.float32) * scale)
    g.set_outputs({"y": g.softmax(g.add(g.matmul(x, w), row), axis=-1)})
    return g


def blocks() -> rlx.HirModule:
    m = rlx.HirModule("blocks")
    m.set_outputs([m.linear(m.input("x", [4, 8]), m.param("w", [8, 8]))])
    return m


def compiled(graph: rlx.Graph, target: str = "cpu", **options: Any) -> rlx.CompileResult:
    return CompilePipeline(target, options=rlx.FusionOptions(**options)).compile(graph)


# -- equality -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", sample([t.value for t in rlx.FusionTarget], 3))
@pytest.mark.parametrize("build", MODELS, ids=lambda b: b.__name__)
def test_equal_compiles_are_equal(build: Callable[[], Model], target: str) -> None:
    a, b = (compiled(build().graph, target) for _ in range(2))
    assert a == b
    assert a.lir == b.lir
    assert a.lir.plan == b.lir.plan
    assert rlx.GraphModule(a.lir) == rlx.GraphModule(b.lir)


def test_compiles_that_differ_are_not_equal() -> None:
    usual = compiled(net())
    others = [compiled(net(3.0)), compiled(net(), "cuda"), compiled(net(), skip_fusion=True)]
    for other in others:
        assert other.lir != usual.lir
    plan = usual.lir.plan
    moved = replace(plan, arena_bytes=plan.arena_bytes + 64)
    assert moved != plan
    assert replace(usual.lir, plan=moved) != usual.lir
    assert others[0].lir.plan != plan, "a plan of another graph"
    assert plan != 3
    assert usual.lir != None  # noqa: E711


def test_a_plan_of_other_nodes_equals_none() -> None:
    lir, other = compiled(net()).lir, compiled(net(3.0)).lir
    foreign = replace(lir, plan=other.plan)
    assert foreign != lir
    assert foreign != replace(lir, plan=replace(other.plan, schedule=()))


# -- copies ---------------------------------------------------------------------------------------


def data() -> dict[str, Any]:
    result = compiled(net())
    exe = rlx.compile(net(), "reference", cache=False)
    return {
        "Graph": net(),
        "MirModule": rlx.MirModule(net()),
        "HirModule": blocks(),
        "GraphModule": rlx.GraphModule.from_hir(blocks()),
        "GraphModule of a plan": rlx.GraphModule(result.lir),
        "LirModule": result.lir,
        "BufferPlan": result.lir.plan,
        "CompileResult": result,
        "FusionReport": result.fusion,
        "FusionOptions": rlx.FusionOptions(sizes={"n": 3}, force={}),
        "DispatchReport": CompilePipeline("cpu").dispatch(net()),
        "Target": result.lir.target,
        "Decision": result.decisions,
        "Slot": rlx.Slot(64, rlx.Dim("n") * 64),
        "Layout": rlx.Layout.contiguous((2, rlx.Dim("n"))),
        "Shape": rlx.Shape(["n", 4], "f16"),
        "Dim": rlx.Dim("n", 1, 9) * 4 + 1,
        "DimBinding": rlx.DimBinding({"n": 3}),
        "GraphIoProfile": rlx.profile_graph_io(net()),
        "Report": exe.explain(),
        "MemoryNeed": exe.memory(n=3),
    }


DATA = data()


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("what", DATA)
def test_a_copy_of_data_is_equal(what: str, how: str) -> None:
    assert COPIES[how](DATA[what]) == DATA[what]


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("seed", range(tries(2, 37)))
def test_a_copy_of_any_graph_is_equal(seed: int, how: str) -> None:
    for graph in (grow(seed, 8).graph, grow_states(seed, 3).graph):
        made = COPIES[how](graph)
        assert made == graph
        assert made is not graph
        assert [n.origins for n in made.nodes] == [n.origins for n in graph.nodes]
        assert str(made) == str(graph)


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_compiled_and_run_as_the_original(how: str) -> None:
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
    params = {"w": np.eye(8, dtype=np.float32)}
    for model in (net(), compiled(net()).lir):
        exes = [rlx.compile(m, "reference", params=params) for m in (model, COPIES[how](model))]
        first, second = (exe(x).tobytes() for exe in exes)
        assert first == second
        assert exes[0].lir.fingerprint == exes[1].lir.fingerprint


@pytest.mark.parametrize("how", COPIES)
def test_what_is_built_on_a_copy_is_not_in_the_original(how: str) -> None:
    g, m = net(), blocks()
    copied, module = COPIES[how](g), COPIES[how](m)
    copied.set_outputs([copied.exp(copied.outputs[0])])
    module.set_outputs([module.mir("exp", module.outputs[0])])
    assert g == net()
    assert m == blocks()


def test_a_node_is_copied_with_its_graph() -> None:
    g = net()
    node = g.outputs[0]
    assert copy.copy(node) is node
    both, graph = pickle.loads(pickle.dumps((node, g)))
    assert both.graph is graph
    assert both is graph.outputs[0]
    assert [n.index for n in copy.deepcopy(list(g.nodes))] == [n.index for n in g.nodes]


def test_a_deep_graph_is_pickled() -> None:
    g = rlx.Graph("deep")
    x = g.input("x", [4])
    for i in range(1500):
        x = g.sin(x) if i % 2 else g.cos(x)
    g.set_outputs([x])
    assert pickle.loads(pickle.dumps(g)) == g


def test_an_op_that_is_in_no_table_is_named() -> None:
    g = rlx.Graph("own")
    g.set_outputs([g.node(copy.copy(lookup("exp")), (g.input("x", [4]),), {})])
    with pytest.raises(rlx.Error, match="'exp' is no op of the table"):
        pickle.dumps(g)


@rlx.jit
def doubled(x: Any) -> Any:
    return x * 2.0


def test_a_jitted_function_is_pickled_by_name() -> None:
    assert doubled(np.ones(2, np.float32)).tolist() == [2, 2]
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    assert copy.deepcopy(doubled) is doubled


def kept() -> rlx.StateSession:
    g = rlx.Graph("kept")
    n = g.state("n", [])
    g.assign(n, g.add(n, g.input("x", [])))
    g.set_outputs([n])
    return rlx.compile(g, "reference").session()


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize(("build", "message"), [
    (lambda: rlx.Session("reference"), r"^Session holds programs.*rlx\.Session\(target\)"),
    (kept, r"^StateSession holds memory.*session\.fork\(\)"),
    (lambda: rlx.compile(net(), "reference").loaded.program, "is code that is loaded"),
])  # fmt: skip
def test_what_is_of_one_process_says_why_it_is_not_copied(
    build: Callable[[], Any], message: str, how: str
) -> None:
    with pytest.raises(rlx.Error, match=message) as caught:
        COPIES[how](build())
    assert "\n" not in str(caught.value)


# -- the same plan, made otherwise -----------------------------------------------------------------


@pytest.mark.parametrize("build", MODELS, ids=lambda b: b.__name__)
def test_a_plan_written_by_hand_has_the_fingerprint_of_the_planners(
    build: Callable[[], Model],
) -> None:
    """Only what follows from nothing else is written."""
    pipeline = CompilePipeline("cpu", options=rlx.FusionOptions(skip_fusion=True))
    lir = pipeline.compile(build().graph).lir
    plan = lir.plan
    slots = {n: rlx.Slot(s.offset, s.size, s.space) for n, s in plan.assignments.items()}
    by_hand = rlx.BufferPlan(
        plan.arena_bytes,
        assignments=dict(reversed(slots.items())),
        schedule=plan.schedule,
        views=plan.views,
        in_place=plan.in_place,
        written=plan.written,
        arena_formula=plan.arena_formula,
    )
    adopted = pipeline.adopt_plan(lir.mir, by_hand)
    assert adopted.fingerprint == lir.fingerprint
    assert adopted == lir


# -- part of the sizes -----------------------------------------------------------------------------


def test_a_plan_is_specialised_for_part_of_its_sizes() -> None:
    g = rlx.Graph("parts")
    x = g.input("x", [rlx.Dim("n", 1, 64), rlx.Dim("m", 1, 32)])
    g.set_outputs([g.cumsum(g.cumsum(g.exp(x), axis=0), axis=1)])
    session = rlx.Session("reference", cache=False)
    result = CompilePipeline(session.target).compile(g)
    part = result.specialize({"n": 5, "alien": 9})
    assert [d.name for d in part.dynamic_symbols] == ["m"]
    assert part.specialize({"m": 3}).lir == result.specialize({"n": 5, "m": 3}).lir
    assert result.specialize({}).lir == result.lir
    for m in (1, 3, 32):
        values = np.arange(5 * m, dtype=np.float32).reshape(5, m) / 100
        assert session.compile(part.lir)(values).tobytes() == session.compile(g)(values).tobytes()
    with pytest.raises(rlx.Error, match=r"outside its range 1\.\.64"):
        result.specialize({"n": 65})
    with pytest.raises(rlx.Error, match="n"):
        session.compile(part.lir)(np.zeros((6, 3), np.float32))


def test_well_known_shapes_take_sizes_by_name() -> None:
    assert str(rlx.Shape.batch_seq_2d("i64", seq=128)) == "i64[batch, 128]"
    assert str(rlx.Shape.batch_seq_2d(batch=2, seq="tokens")) == "f32[2, tokens]"
    assert str(rlx.Shape.batch_seq(384, batch=rlx.Dim("rows"))) == "f32[rows, seq, 384]"
    assert str(rlx.Shape.batch_seq_heads(12, 64, batch=1, seq=7)) == "f32[1, 7, 12, 64]"
