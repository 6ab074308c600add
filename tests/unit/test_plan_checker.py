"""The checker: finds every kind of fault, and nothing in a sound plan."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx.plan.check.checker
from rlx.core.dim import Dim, DimLike, evaluate
from rlx.core.errors import Error, GraphError
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.cost.target import Target
from rlx.ir.lir import LirModule, Phase, Slot, Space, View
from rlx.ir.mir import Graph, Node
from rlx.plan import liveness, planner
from rlx.plan.check.checker import check, require_sound
from rlx.plan.check.claims import Fault
from rlx.plan.planner import plan_module

CPU = Target.of("cpu")


def layered() -> LirModule:
    """Products, so that nothing is in place: a = x·w, b = a·w, c = a + b, y = c·w."""
    g = Graph("layered")
    x, w = g.input("x", Shape([8, 16])), g.param("w", Shape([16, 16]))
    a = g.matmul(x, w)
    b = g.matmul(a, w)
    g.set_outputs([g.matmul(g.sub(b, a), w), b])
    return plan_module(g, CPU)


def kernel(lir: LirModule, index: int) -> Node:
    return lir.plan.schedule[index]


def changed(lir: LirModule, **parts: Any) -> LirModule:
    return replace(lir, plan=replace(lir.plan, **parts))


def moved(lir: LirModule, node: Node, **parts: Any) -> LirModule:
    slots = dict(lir.plan.assignments)
    slots[node] = replace(slots[node], **parts)
    return changed(lir, assignments=slots)


def kinds(lir: LirModule) -> set[Fault]:
    return {f.kind for f in check(lir)}


def test_a_sound_plan_has_no_findings() -> None:
    assert check(layered()) == []
    require_sound(layered())


# -- the seven kinds ------------------------------------------------------------------------------


def live_overlap(lir: LirModule) -> LirModule:
    """The product is written over the operand that it reads."""
    a, b = kernel(lir, 0), kernel(lir, 1)
    return moved(lir, b, offset=lir.plan.slot(a).offset)


def read_after_overwrite(lir: LirModule) -> LirModule:
    """b is written over a, which the subtraction reads one step later."""
    return live_overlap(lir)


def output_clobbered(lir: LirModule) -> LirModule:
    """The last product is written over the other output."""
    return moved(lir, kernel(lir, 3), offset=lir.plan.slot(kernel(lir, 1)).offset)


def out_of_arena(lir: LirModule) -> LirModule:
    return changed(lir, arena_bytes=lir.arena_bytes - 64)


def order_violation(lir: LirModule) -> LirModule:
    s = lir.plan.schedule
    return changed(lir, schedule=(s[1], s[0], *s[2:]))


def duplicate_schedule(lir: LirModule) -> LirModule:
    return changed(lir, schedule=(*lir.plan.schedule, lir.plan.schedule[-1]))


def output_not_scheduled(lir: LirModule) -> LirModule:
    return changed(lir, schedule=lir.plan.schedule[:-1])


@pytest.mark.parametrize(
    "corrupt",
    [
        live_overlap, read_after_overwrite, output_clobbered, out_of_arena, order_violation,
        duplicate_schedule, output_not_scheduled,
    ],
)  # fmt: skip
def test_each_kind_of_corrupted_plan_is_rejected(corrupt: Callable[[LirModule], LirModule]) -> None:
    bad = corrupt(layered())
    assert Fault[corrupt.__name__.upper()] in kinds(bad)
    with pytest.raises(Error, match="not sound"):
        require_sound(bad)


def test_a_size_that_may_be_negative_is_the_users_to_bound() -> None:
    with pytest.raises(GraphError, match=r"n - 2 is negative.*Dim\('n', min=2\)") as caught:
        require_sound(windowed(Dim("n")))
    assert "test_plan_checker.py" in str(caught.value)
    with pytest.raises(GraphError, match="a range in which it is not"):
        require_sound(windowed(Dim("n") - Dim("m")))
    require_sound(windowed(Dim("n", 2)))


def windowed(size: DimLike) -> LirModule:
    """A convolution without a border, which takes two from each size."""
    g = Graph("windowed")
    x, w = g.input("x", Shape([1, 3, size, 8])), g.param("w", Shape([4, 3, 3, 3]))
    g.set_outputs([g.relu(g.conv2d(x, w))])
    return plan_module(g, CPU)


# -- and the others -------------------------------------------------------------------------------


def bad_slots(lir: LirModule) -> dict[str, LirModule]:
    x, w = lir.plan.io.inputs[0][1], lir.plan.io.params[0][1]
    a = kernel(lir, 0)
    slots = lir.plan.assignments
    return {
        "misaligned": moved(lir, a, offset=slots[a].offset + 4),
        "too small": moved(lir, a, size=slots[a].size - 64),
        "a weight in the arena": moved(lir, w, space=Space.ARENA),
        "a result in the weights": moved(lir, a, space=Space.WEIGHTS),
        "no slot": changed(lir, assignments={n: s for n, s in slots.items() if n is not a}),
        "negative": moved(lir, x, offset=-64),
    }


@pytest.mark.parametrize("which", bad_slots(layered()))
def test_bad_slots_are_found(which: str) -> None:
    assert kinds(bad_slots(layered())[which]) & {Fault.BAD_SLOT, Fault.OUT_OF_ARENA}


def test_an_overwritten_input_is_found() -> None:
    lir = layered()
    x = lir.plan.io.inputs[0][1]
    assert Fault.LIVE_OVERLAP in kinds(moved(lir, kernel(lir, 3), offset=lir.plan.slot(x).offset))


def test_overlapping_weights_are_found() -> None:
    g = Graph()
    x, v, w = (g.param(n, Shape([4, 4])) for n in "xvw")
    y = g.input("y", Shape([4, 4]))
    g.set_outputs([g.matmul(g.matmul(y, g.add(v, x)), w)])
    lir = plan_module(g, CPU)
    assert check(lir) == []
    assert Fault.LIVE_OVERLAP in kinds(moved(lir, lir.mir.graph.find("w"), offset=0))


def test_phases_are_monotone() -> None:
    lir = layered()
    early = {**lir.plan.phases, kernel(lir, 0): Phase.PROLOGUE}
    late = {**lir.plan.phases, kernel(lir, 0): Phase.EPILOGUE}
    assert Fault.PHASE_VIOLATION in kinds(changed(lir, phases=early))
    assert Fault.PHASE_VIOLATION in kinds(changed(lir, phases=late))


def viewing() -> tuple[LirModule, Node]:
    g = Graph("viewing")
    x = g.input("x", Shape([8, 16]))
    view = g.transpose(g.exp(x), perm=(1, 0))
    g.set_outputs([g.matmul(x, view)])
    lir = plan_module(g, CPU)
    return lir, view


@pytest.mark.parametrize(
    "layout",
    [
        Layout((16, 8), (1, 15)), Layout((16, 8), (1, 16), 1), Layout((8, 16), (16, 1)),
        Layout((16, 8), (8, 1)), Layout((16, 8), (1, 32)),
    ],
)  # fmt: skip
def test_views_must_be_what_their_op_says(layout: Layout) -> None:
    lir, view = viewing()
    assert check(lir) == []
    root = lir.plan.views[view].root
    assert Fault.BAD_VIEW in kinds(changed(lir, views={view: View(root, layout)}))


def test_a_view_of_the_wrong_buffer_is_found() -> None:
    lir, view = viewing()
    wrong = View(lir.plan.io.inputs[0][1], lir.plan.views[view].layout)
    assert Fault.BAD_VIEW in kinds(changed(lir, views={view: wrong}))


def test_a_kernel_is_no_view() -> None:
    lir = layered()
    a, b = kernel(lir, 0), kernel(lir, 1)
    slots = {n: s for n, s in lir.plan.assignments.items() if n is not b}
    views = {b: View(a, Layout.contiguous((8, 16)))}
    assert Fault.BAD_VIEW in kinds(changed(lir, views=views, assignments=slots))


def joined() -> LirModule:
    g = Graph("joined")
    x = g.input("x", Shape([8, 16]))
    g.set_outputs([g.neg(g.concat([g.exp(x), g.abs(x)], axis=0))])
    lir = plan_module(g, CPU)
    assert len(lir.plan.views) == 2
    assert check(lir) == []
    return lir


def test_slices_of_a_concat_must_be_where_the_concat_wants_them() -> None:
    lir = joined()
    (a, first), (b, second) = lir.plan.views.items()
    assert Fault.ORDER_VIOLATION in kinds(changed(lir, views={a: second, b: first}))
    one = changed(lir, views={a: first}, assignments={**lir.plan.assignments, b: Slot(0, 512)})
    assert kinds(one)


def test_a_slice_overwritten_before_the_rest_is_written_is_found() -> None:
    """The first slice dies when another value is put there before the concat is read."""
    g = Graph("late")
    x, w = g.input("x", Shape([8, 16])), g.param("w", Shape([16, 16]))
    late = g.abs(g.matmul(g.matmul(x, w), w))
    g.set_outputs([g.matmul(g.concat([g.exp(x), late], axis=0), w)])
    lir = plan_module(g, CPU)
    assert check(lir) == []
    product = next(n for n in lir.plan.schedule if n.op == "matmul")
    root = next(v.root for n, v in lir.plan.views.items() if n.op == "exp")
    bad = kinds(moved(lir, product, offset=lir.plan.slot(root).offset))
    assert {Fault.LIVE_OVERLAP, Fault.READ_AFTER_OVERWRITE} <= bad


def test_outputs_must_not_share_a_slot() -> None:
    g = Graph()
    x = g.input("x", Shape([8]))
    y = g.neg(x)
    z = g.reshape(y, dims=(2, 4))
    g.set_outputs([y, z])
    lir = plan_module(g, CPU)
    assert check(lir) == []
    shared = changed(
        lir,
        views={z: View(y, Layout.contiguous((2, 4)))},
        schedule=(y,),
        assignments={n: s for n, s in lir.plan.assignments.items() if n is not z},
    )
    assert Fault.BAD_SLOT in kinds(shared)


# -- overwriting in place -------------------------------------------------------------------------


def in_place(build: Callable[[Graph, Node], tuple[Node, Node]]) -> set[Fault]:
    """The verdict where the second node is made to overwrite the first."""
    g = Graph("in_place")
    old, new = build(g, g.input("x", Shape([8, 8])))
    if new not in g.outputs:
        g.set_outputs([*g.outputs, g.matmul(new, new)])
    lir = plan_module(g, CPU)
    assert check(lir) == []
    plan = lir.plan
    root = plan.root(old)
    slots = {**plan.assignments, new: replace(plan.slot(new), offset=plan.slot(root).offset)}
    return kinds(changed(lir, in_place={**plan.in_place, new: old}, assignments=slots))


def broadcast(g: Graph, x: Node) -> tuple[Node, Node]:
    old = g.sum(x, axes=(0,))
    return old, g.add(x, old)


def product(g: Graph, x: Node) -> tuple[Node, Node]:
    old = g.exp(x)
    return old, g.matmul(old, old)


def crossed(g: Graph, x: Node) -> tuple[Node, Node]:
    old = g.exp(x)
    return old, g.add(old, g.transpose(old, perm=(1, 0)))


def needed_later(g: Graph, x: Node) -> tuple[Node, Node]:
    old = g.exp(x)
    new = g.neg(old)
    g.set_outputs([g.matmul(old, new)])
    return old, new


def output(g: Graph, x: Node) -> tuple[Node, Node]:
    old = g.exp(x)
    g.set_outputs([old])
    return old, g.neg(old)


def an_input(g: Graph, x: Node) -> tuple[Node, Node]:
    return x, g.neg(x)


@pytest.mark.parametrize("case", [broadcast, product, crossed, needed_later, output, an_input])
def test_wrong_in_place_reuse_is_found(case: Any) -> None:
    assert Fault.BAD_IN_PLACE in in_place(case)


def test_in_place_reuse_that_is_not_declared_is_an_overlap() -> None:
    g = Graph()
    g.set_outputs([g.neg(g.exp(g.input("x", Shape([8, 8]))))])
    lir = plan_module(g, CPU)
    assert len(lir.plan.in_place) == 1
    assert Fault.LIVE_OVERLAP in kinds(changed(lir, in_place={}))


# -- against the plain definition -----------------------------------------------------------------


def lives(lir: LirModule) -> dict[Node, tuple[int, int]]:
    """First and last step of each buffer of a plan without views, items or in-place reuse."""
    steps = {k: i for i, k in enumerate(lir.plan.schedule)}
    end = len(steps)
    spans: dict[Node, tuple[int, int]] = {n: (-1, end) for _, n in lir.plan.io.inputs}
    for node, born in steps.items():
        reads = [i for k, i in steps.items() if node in k.inputs]
        is_output = node in lir.plan.io.outputs
        spans[node] = (born, end if is_output else max(reads, default=born))
    return spans


def is_sound(lir: LirModule) -> bool:
    spans = lives(lir)
    slots = {n: lir.plan.slot(n) for n in spans}
    for a, (a_born, a_dead) in spans.items():
        if slots[a].offset + slots[a].size > lir.arena_bytes:
            return False
        for b, (b_born, b_dead) in spans.items():
            together = a is not b and a_born <= b_dead and b_born <= a_dead
            s, t = slots[a], slots[b]
            if together and s.offset < t.offset + t.size and t.offset < s.offset + s.size:
                return False
    return True


def random_products(rng: np.random.Generator) -> Graph:
    g = Graph("products")
    values = [g.input("x", Shape([8, 8])), g.input("y", Shape([8, 8]))]
    for _ in range(12):
        a, b = rng.integers(0, len(values), 2)
        values.append(g.matmul(values[a], values[b]))
    g.set_outputs([values[-1], values[int(rng.integers(2, len(values)))]])
    return g


@pytest.mark.parametrize("seed", range(40))
def test_the_verdict_on_moved_buffers_is_that_of_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lir = plan_module(random_products(rng), CPU)
    assert check(lir) == []
    verdicts: set[bool] = set()
    for _ in range(12):
        node = kernel(lir, int(rng.integers(len(lir.plan.schedule))))
        other = moved(lir, node, offset=64 * int(rng.integers(0, lir.arena_bytes // 64)))
        assert (check(other) == []) == is_sound(other)
        verdicts.add(is_sound(other))
    assert False in verdicts


@pytest.mark.parametrize("seed", range(60))
def test_no_plan_is_too_broken_to_be_judged(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lir = joined() if seed % 2 else layered()
    foreign = layered()
    nodes = [*lir.mir.graph.nodes, *foreign.plan.schedule]

    def any_node() -> Node:
        return nodes[int(rng.integers(len(nodes)))]

    plan = lir.plan
    layout = Layout.contiguous((8, 16), int(rng.integers(-4, 4)))
    broken = [
        changed(lir, schedule=(any_node(), *plan.schedule)),
        changed(lir, views={**plan.views, any_node(): View(any_node(), layout)}),
        changed(lir, in_place={any_node(): any_node()}),
        changed(lir, assignments={**plan.assignments, any_node(): Slot(int(rng.integers(9)), 64)}),
        changed(lir, phases={n: p for n, p in plan.phases.items() if n is not nodes[1]}),
        changed(lir, assignments={}),
        changed(lir, views={}),
        changed(lir, schedule=()),
    ]
    for bad in broken:
        assert isinstance(check(bad), list)
    assert check(broken[0])
    assert check(broken[5])
    assert check(broken[7])


# -- a planner with a bug is caught ---------------------------------------------------------------


def residual() -> Graph:
    """Values read one step late: the planner must keep them."""
    g = Graph("residual")
    x, w = g.input("x", Shape([8, 16])), g.param("w", Shape([16, 16]))
    for _ in range(6):
        y = g.matmul(x, w)
        x = g.sub(g.matmul(g.matmul(y, w), w), y)
    g.set_outputs([x])
    return g


def test_liveness_off_by_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*args: Any) -> Mapping[Node, liveness.Lifetime]:
        return {
            n: liveness.Lifetime(life.birth, max(life.birth, life.death - 1))
            for n, life in liveness.lifetimes(*args).items()
        }

    monkeypatch.setattr(planner, "lifetimes", short)
    assert kinds(plan_module(residual(), CPU)) & {Fault.LIVE_OVERLAP, Fault.READ_AFTER_OVERWRITE}


def test_overlapping_placement_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def tight(spans: Any) -> Any:
        found = rlx.plan.arena.place(spans)
        return replace(found, offsets=tuple(max(0, o - 64) for o in found.offsets))

    monkeypatch.setattr(planner, "place", tight)
    assert Fault.LIVE_OVERLAP in kinds(plan_module(residual(), CPU))


def test_reckless_in_place_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def reckless(steps: Any, lives: Any, in_arena: Any) -> dict[Node, Node]:
        return {
            k: k.inputs[0]
            for k in steps.schedule
            if not k.inputs[0].is_leaf and k.shape == k.inputs[0].shape and in_arena[k]
        }

    monkeypatch.setattr(planner, "find_in_place", reckless)
    assert Fault.BAD_IN_PLACE in kinds(plan_module(residual(), CPU))


# -- plans of formulas ----------------------------------------------------------------------------


def dynamic() -> LirModule:
    g = Graph("dynamic")
    n = Dim("n", 1, 1000)
    x, w = g.input("x", Shape([n, 16])), g.param("w", Shape([16, 64]))
    y = g.matmul(x, w)
    g.set_outputs([g.matmul(y, g.transpose(y, perm=(1, 0)))])
    return plan_module(g, CPU)


def test_a_sound_dynamic_plan_has_no_findings() -> None:
    assert check(dynamic()) == []


def test_an_overlap_at_other_sizes_only_is_found() -> None:
    """Fixed at the representative size, the offset is too small for larger ones."""
    lir = dynamic()
    fixed = lir.plan.bind(lir.plan.representative).offsets
    last = max((n for n in lir.plan.schedule), key=fixed.__getitem__)
    bad = kinds(moved(lir, last, offset=fixed[last]))
    assert Fault.LIVE_OVERLAP in bad or Fault.OUT_OF_ARENA in bad
    assert Fault.UNPROVEN in bad


def test_an_overlap_at_an_untried_size_is_unproven() -> None:
    """Apart at each sample, together at n = 333, and no sample is 333."""
    lir = dynamic()
    n = lir.plan.dynamic_symbols[0]
    last = lir.plan.schedule[-1]
    slot = lir.plan.slot(last)
    gap = (n - 333) * (n - 333)
    bump = slot.offset + 64 * gap * slot.size - 64 * slot.size
    room = lir.plan.arena_formula + 64 * gap * slot.size
    size = evaluate(room, lir.plan.representative)
    bad = changed(moved(lir, last, offset=bump), arena_formula=room, arena_bytes=size)
    assert kinds(bad) == {Fault.UNPROVEN, Fault.OUT_OF_ARENA}, "it grows beyond all need, too"


def test_a_slot_too_small_for_some_sizes_is_found() -> None:
    lir = dynamic()
    assert kinds(moved(lir, kernel(lir, 0), size=64 * 1024)) & {Fault.BAD_SLOT, Fault.UNPROVEN}


# -- independence ---------------------------------------------------------------------------------


def test_the_checker_shares_nothing_with_the_planner() -> None:
    folder = Path(rlx.plan.check.checker.__file__).parent
    paths = [*sorted(folder.glob("*.py")), folder.parent / "size_proofs.py"]
    assert len(paths) > 4
    own = ("rlx.plan.check", "rlx.plan.size_proofs")
    for path in paths:
        used = [
            node.module
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rlx.plan")
        ]
        assert all(name.startswith(own) for name in used), path


def test_findings_name_the_node_and_are_limited_in_the_error() -> None:
    lir = live_overlap(layered())
    found = check(lir)
    assert all(f.node in str(f) and f.kind.value in str(f) for f in found)
    with pytest.raises(Error, match=r"matmul at test_plan_checker\.py"):
        require_sound(lir)
