"""GraphModule: one handle, three stages."""

from __future__ import annotations

import pytest

import rlx
from rlx import GraphModule, GraphStage

ROW = rlx.Shape([3])


def twice(m):
    x = m.input("x", ROW)
    return m.add(x, x)


def test_define_makes_hir():
    module = GraphModule.define("twice", twice)
    assert module.stage is GraphStage.HIR
    assert module.name == "twice"
    assert [o.op for o in module.as_hir().outputs] == ["add"]
    assert module.as_hir().policy is rlx.FusionPolicy.DIRECT


def test_define_takes_several_results():
    module = GraphModule.define("pair", lambda m: (twice(m), m.graph.find("x")))
    assert [o.op for o in module.graph.outputs] == ["add", "input"]


def test_define_wants_nodes_back():
    with pytest.raises(rlx.GraphError, match="define expects a node or nodes back, got None"):
        GraphModule.define("none", lambda m: None)


def test_lowering_goes_one_way():
    module = GraphModule.define("twice", twice)
    lowered = module.lower()
    assert lowered.stage is GraphStage.MIR
    assert lowered.lower() is lowered
    assert lowered.as_mir() == module.as_hir().lower()
    assert module.stage is GraphStage.HIR


def test_every_level_has_a_constructor():
    hir = GraphModule.define("twice", twice).as_hir()
    mir = hir.lower()
    assert GraphModule.from_hir(hir).stage is GraphStage.HIR
    assert GraphModule.from_mir(mir).stage is GraphStage.MIR
    assert GraphModule.from_graph(mir.graph).as_mir() == mir
    assert GraphModule.from_hir(hir) == GraphModule(hir)


def test_a_compiled_module_is_at_lir():
    compiled = rlx.CompilePipeline().compile_module(GraphModule.define("twice", twice))
    module = GraphModule.from_lir(compiled.lir)
    assert module.stage is GraphStage.LIR
    assert module.as_lir() is compiled.lir
    assert module.lower() is module
    assert module.inspect().startswith("twice: LIR, 2 nodes, 1 output\nops: add 1, input 1\n")


def test_the_wrong_stage_is_an_error_that_says_where_it_is():
    module = GraphModule.define("twice", twice)
    with pytest.raises(rlx.Error, match=r"twice is at HIR, not MIR. lower\(\) takes it to MIR"):
        module.as_mir()
    with pytest.raises(rlx.Error, match=r"twice is at MIR, not HIR. .* nothing goes back up"):
        module.lower().as_hir()
    with pytest.raises(rlx.Error, match="twice is at MIR, not LIR"):
        module.lower().as_lir()


def test_only_modules_are_held():
    with pytest.raises(rlx.Error, match=r"not Graph. For a Graph use GraphModule.from_graph"):
        GraphModule(rlx.Graph("g"))


def test_inspect_counts_and_shows():
    text = GraphModule.define("twice", twice).inspect()
    assert text.startswith('twice: HIR, 2 nodes, 1 output\nops: add 1, input 1\nhir "twice"')
    assert "= add(%0, %0) : f32[3]" in text
