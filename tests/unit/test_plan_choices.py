"""What a plan chose is named, priced, and can be turned; turning one renames no other."""

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.errors import Error
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.passes.options import FusionOptions
from rlx.pipeline import CompilePipeline
from rlx.plan.alternatives import REVERSIBLE
from rlx.plan.planner import plan_choices
from rlx.rules.engine import Fired


def graph() -> Graph:
    """Something of everything: joined weights, strided views, a concat, and a value overwritten."""
    g = Graph("net")
    x = g.input("x", Shape([16, 32]))
    a, b = g.param("a", Shape([32, 16])), g.param("b", Shape([32, 16]))
    whole = ops.matmul(x, ops.concat([a, b], axis=1))
    left = ops.narrow(whole, axis=1, start=0, length=16)
    turned = ops.transpose(ops.narrow(whole, axis=1, start=16, length=16), perm=(1, 0))
    product = ops.matmul(left, turned)
    soft = ops.softmax(ops.exp(product) + 1.0, axis=-1)
    joined = ops.concat([ops.matmul(soft, left), ops.matmul(product, left)], axis=0)
    g.set_outputs([ops.tanh(ops.matmul(joined, ops.matmul(ops.transpose(b, perm=(1, 0)), a)))])
    return g


def compiled(**force: bool) -> rlx.Executable:
    options = FusionOptions(skip_fusion=True, force=force)
    rng = np.random.default_rng(0)
    params = {k: rng.standard_normal((32, 16), np.float32) for k in "ab"}
    return rlx.compile(graph(), "reference", options=options, params=params, cache=False)


def choices(exe: rlx.Executable) -> dict[str, rlx.Decision]:
    found = plan_choices(exe.lir, exe.result.options)
    return {c.decision.id: c.decision for c in found}


def test_a_plan_names_what_it_chose() -> None:
    made = choices(compiled())
    assert {d.what for d in made.values()} >= set(REVERSIBLE)
    assert all(d.where and d.kind in ("layout", "phase", "in_place", "schedule")
               for d in made.values())  # fmt: skip


def test_each_choice_can_be_turned_and_renames_no_other() -> None:
    x = np.random.default_rng(1).standard_normal((16, 32), np.float32)
    plain = compiled()
    before, want = choices(plain), plain(x)
    for id_, decision in before.items():
        if not decision.is_reversible:
            continue
        exe = compiled(**{id_: not decision.verdict})
        np.testing.assert_array_equal(exe(x), want)
        after = choices(exe)
        assert (after[id_].verdict, after[id_].reason) == (not decision.verdict, "forced")
        assert set(before) <= set(after)
        if decision.what != "split_work":
            assert exe.lir.fingerprint != plain.lir.fingerprint


@pytest.mark.parametrize(
    ("what", "steps"), [("hoist", 0), ("copy_view", 1), ("overwrite", 0), ("write_into_concat", 1)]
)
def test_what_turning_does_to_the_schedule(what: str, steps: int) -> None:
    plain = compiled()
    id_, made = next((k, d) for k, d in choices(plain).items() if d.what == what)
    plan = compiled(**{id_: not made.verdict}).lir.plan
    assert len(plan.schedule) == len(plain.lir.plan.schedule) + steps
    if what == "overwrite":
        assert len(plan.in_place) < len(plain.lir.plan.in_place)
    if what == "hoist":
        once = rlx.Phase.PROLOGUE
        counts = [sum(p.phases[k] is once for k in p.schedule) for p in (plan, plain.lir.plan)]
        assert counts[0] < counts[1]


def test_an_unknown_choice_is_an_error() -> None:
    options = FusionOptions(force={"copy_view:0000000000": True})
    with pytest.raises(Error, match="force names no decision that can be reversed: copy_view"):
        CompilePipeline("cpu", options=options).compile(graph())


def test_a_rule_can_be_turned_off_at_one_node() -> None:
    g = Graph("rules")
    x, y = g.input("x", Shape([4])), g.input("y", Shape([4]))
    g.set_outputs([ops.exp(ops.neg(ops.neg(x))), ops.exp(ops.neg(ops.neg(y)))])
    plain = CompilePipeline("cpu").compile(g)
    ids = [e.id for e in plain.rewrites if isinstance(e, Fired)]
    assert len(set(ids)) == 2
    one = CompilePipeline("cpu", options=FusionOptions(force={ids[0]: False})).compile(g)
    assert [e.id for e in one.rewrites if isinstance(e, Fired)] == ids[1:]
    assert one.lir.mir.graph != plain.lir.mir.graph
