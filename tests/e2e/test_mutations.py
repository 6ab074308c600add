"""Bugs put in on purpose: each must be caught by the checker, the verifier or the fuzzer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest

import rlx
from bench.models import transformer
from rlx import ops, pipeline
from rlx.fuzz import Grown, grow, judge
from rlx.ir.mir import Graph
from rlx.passes import simplify as simplify_module
from rlx.passes.fusion import groups as groups_module
from rlx.plan import planner
from rlx.plan.arena import Placement
from rlx.plan.liveness import Lifetime
from rlx.rules.engine import rule

SMALL = {"width": 32, "heads": 4, "kv_heads": 2, "ffn": 48}
CPU = [rlx.FusionTarget.CPU]


def compile_small() -> rlx.CompileResult:
    return rlx.CompilePipeline().compile_hir(transformer(2, 5, **SMALL))


def wrong_seeds(seeds: Iterable[int]) -> Iterator[int]:
    """Seeds whose graphs come out wrong, or not at all."""

    def is_wrong(seed: int) -> bool:
        try:
            return bool(judge(grow(seed), CPU))
        except rlx.Error:
            return True

    return (s for s in seeds if is_wrong(s))


def test_nothing_is_wrong_without_a_bug() -> None:
    compile_small()
    assert list(wrong_seeds(range(12))) == []


def test_overlapping_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    place = planner.place

    def squeezed(spans: object) -> Placement:
        good = place(spans)
        return Placement(tuple(o // 128 * 64 for o in good.offsets), good.total)

    monkeypatch.setattr(planner, "place", squeezed)
    with pytest.raises(rlx.Error, match="overlap"):
        compile_small()


def test_liveness_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lifetimes = planner.lifetimes

    def short(*args: object) -> dict[rlx.Node, Lifetime]:
        return {
            n: replace(life, death=max(life.birth, life.death - 1))
            for n, life in lifetimes(*args).items()
        }

    monkeypatch.setattr(planner, "lifetimes", short)
    with pytest.raises(rlx.Error, match=r"overlap|overwrit|clobber"):
        compile_small()


def test_wrong_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlx.plan import liveness

    monkeypatch.setattr(liveness, "_is_pointwise", lambda kernel: not kernel.has_items)
    g = rlx.Graph("square")
    x = g.input("x", rlx.Shape([8, 8]))
    y = g.exp(x)
    g.set_outputs([g.mm(y, y)])
    with pytest.raises(rlx.Error, match=r"in place|overwrit"):
        rlx.CompilePipeline(options=rlx.FusionOptions(skip_fusion=True)).compile_graph(g)


def test_a_region_that_waits_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: groups_module.Groups, first: int, second: int) -> None:
        return None

    def merge(self: groups_module.Groups, first: int, second: int) -> int:
        return self._join(first, second, self.position[second])

    monkeypatch.setattr(groups_module.Groups, "why_not", careless)
    monkeypatch.setattr(groups_module.Groups, "merge", merge)
    g = rlx.Graph("diamond")
    x = g.input("x", rlx.Shape([4, 4]))
    a = g.exp(x)
    around = g.cumsum(g.cumsum(a, axis=0), axis=1)
    g.set_outputs([g.add(a, g.tanh(around))])
    grown = Grown(g, {"x": np.zeros((4, 4), np.float32)})
    with pytest.raises((rlx.Error, KeyError, AssertionError)):
        assert judge(grown, CPU) == []


def test_a_dropped_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop(graph: Graph, context: object) -> Graph:
        new = graph.rebuild()
        new.set_outputs(new.outputs[:-1])
        return new

    monkeypatch.setattr(pipeline, "PASSES", (*pipeline.PASSES[:3], drop, *pipeline.PASSES[3:]))
    g = rlx.Graph("two")
    x = g.input("x", rlx.Shape([4]))
    g.set_outputs([g.exp(x), g.tanh(x)])
    with pytest.raises(rlx.Error, match="the pass drop changed"):
        rlx.CompilePipeline().compile_graph(g)


def test_an_unsound_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    @rule(lambda x: ops.tanh(x))
    def tanh_does_nothing(x: rlx.Node) -> rlx.Node:
        """tanh(x) = x, which is wrong."""
        return x

    rules = simplify_module.all_rules()
    monkeypatch.setattr(simplify_module, "all_rules", lambda: [*rules, tanh_does_nothing])
    assert next(wrong_seeds(range(80)), None) is not None, "no graph of eighty noticed"
