"""Sizes that a graph measures while it runs: named, bounded, planned for, and found out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.dim import Dim, DimLike, dim_max, dim_min, evaluate, substitute, symbols_of
from rlx.core.dtype import DType
from rlx.core.errors import Error, GraphError, UnsupportedError
from rlx.core.extent import capacity_of, ceiling, is_measured, measure, measured, measured_in
from rlx.core.shape import Shape
from rlx.cost.target import FusionTarget, Target
from rlx.ir import interpret
from rlx.ir.lir import LirModule, View
from rlx.ir.mir import Graph, MirModule, Node
from rlx.ir.text import read, show
from rlx.ir.verify import verify
from rlx.pipeline import CompilePipeline
from rlx.plan.check.checker import check
from rlx.plan.check.claims import Fault
from rlx.plan.planner import plan_module
from rlx.rules.constants import fold_constants
from rlx.rules.engine import rewrite, ruleset

SEQ = Dim("seq", 0, 64)
RNG = np.random.default_rng(7)


def found_rows(x: Node, limit: float = 0.0) -> Node:
    """The rows of x whose first element is greater than `limit`."""
    first = ops.reshape(ops.narrow(x, axis=1, start=0, length=1), dims=(x.shape.dims[0],))
    where = ops.nonzero(ops.greater(first, limit))
    return ops.gather(x, ops.reshape(where, dims=where.shape.dims[1:]), axis=0)


def chain(rows: DimLike = SEQ) -> Graph:
    """Two sizes, one measured in what the other gave, used by every kind of op."""
    g = Graph("chain")
    x, w = g.input("x", Shape([rows, 4])), g.param("w", Shape([4, 3]))
    kept = found_rows(x)
    product = ops.relu(ops.matmul(kept, w))
    fewer = found_rows(ops.add(product, 1.0), 1.5)
    g.set_outputs(
        {
            "kept": kept,
            "turned": ops.transpose(product, perm=(1, 0)),
            "weights": ops.softmax(product, axis=0),
            "fewer": ops.sum(ops.exp(fewer), axes=(1,)),
            "total": ops.sum(fewer),
            "joined": ops.concat([kept, x, ops.neg(kept)], axis=0),
            "flat": ops.reshape(ops.mul(product, product), dims=(3 * kept.shape.dims[0],)),
        }
    )
    return g


def values(rows: int) -> dict[str, np.ndarray]:
    return {
        "x": RNG.normal(size=(rows, 4)).astype(np.float32),
        "w": RNG.normal(size=(4, 3)).astype(np.float32),
    }


def assert_runs(exe: rlx.Executable, graph: Graph, given: dict[str, np.ndarray]) -> None:
    """Sums of at most a few hundred terms of size about 1, whatever their order."""
    params = [n.attrs["name"] for n in graph.params]
    exe.set_params({k: v for k, v in given.items() if k in params})
    made = exe.run({k: v for k, v in given.items() if k not in params})
    for got, want in zip(made.values(), interpret.evaluate(graph, given), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=256 * 2.0**-24, atol=256 * 2.0**-24)


# -- dims -----------------------------------------------------------------------------------------


def test_a_measured_size_has_a_name_and_a_bound() -> None:
    k = measured("k", 4 * SEQ)
    assert k.bounds == (0, 256)
    assert is_measured(2 * k + SEQ)
    assert not is_measured(SEQ)
    assert [s.name for s in measured_in([k * SEQ, SEQ])] == ["k"]
    assert [d.name for d in symbols_of([k * SEQ])] == ["k", "seq"]
    assert substitute(k, {"seq": 3}) == measured("k", 12)
    assert substitute(2 * k, {"k": 5}) == 10
    assert k != measured("k", 3 * SEQ)
    assert k != Dim("k", 0, 256)


def test_a_bound_over_measured_sizes_is_one_over_plain_ones() -> None:
    k = measured("k", 4 * SEQ)
    assert measured("j", 2 * k + 1) == measured("j", 8 * SEQ + 1)
    assert measured("j", measured("unbounded")) == measured("j", capacity_of("unbounded"))


def _random_dim(rng: np.random.Generator, depth: int) -> DimLike:
    leaves: list[DimLike] = [measured("k", 4 * SEQ), measured("j", 3), SEQ, int(rng.integers(5))]
    if depth == 0:
        return leaves[rng.integers(len(leaves))]
    a, b = (_random_dim(rng, depth - 1) for _ in range(2))
    steps: list[Callable[[], DimLike]] = [
        lambda: a + b,
        lambda: a - b,
        lambda: a * b,
        lambda: substitute(Dim("a") // Dim("b"), {"a": a, "b": b}),
        lambda: substitute(Dim("a") % Dim("b"), {"a": a, "b": b}),
        lambda: dim_max(a, b),
        lambda: dim_min(a, b),
    ]
    return steps[rng.integers(len(steps))]()


def test_nothing_exceeds_its_ceiling() -> None:
    rng, shown = np.random.default_rng(1), 0
    for _ in range(300):
        dim = _random_dim(rng, 3)
        try:
            most = ceiling(dim)
        except UnsupportedError:
            continue
        assert not is_measured(most)
        shown += is_measured(dim)
        for seq in (0, 1, 3, 5):
            bound = evaluate(most, {"seq": seq})
            for k in range(4 * seq + 1):
                for j in range(4):
                    assert evaluate(dim, {"seq": seq, "k": k, "j": j}) <= bound, f"{dim} at {k}"
    assert shown > 100


def test_a_size_without_a_bound_has_its_capacity_as_ceiling() -> None:
    assert ceiling(2 * measured("k") + 1) == 2 * capacity_of("k") + 1


def test_measuring_more_than_the_bound_is_an_error() -> None:
    assert measure((measured("k", 3), 4), (3, 4)) == {"k": 3}
    with pytest.raises(Error, match="k is 4, more than its bound 3"):
        measure((measured("k", 3),), (4,))


# -- names ----------------------------------------------------------------------------------------


def test_equal_applications_share_a_name_and_others_get_new_ones() -> None:
    g = Graph()
    x, y = g.input("x", Shape([5])), g.input("y", Shape([5, 2]))
    first = ops.nonzero(x)
    assert first.attrs["extent"] == "nonzero_0"
    assert ops.nonzero(x) is first
    assert ops.nonzero(y).attrs["extent"] == "nonzero_1"
    assert ops.unique(x)[0].inputs[0].attrs["extent"] == "unique_0"
    assert ops.nonzero(x, extent="mine") is not first
    assert first.shape == Shape([1, measured("nonzero_0", 5)], DType.I64)


def test_names_keep_clear_of_the_inputs_dims() -> None:
    g = Graph()
    x = g.input("x", Shape([Dim("nonzero_0")]))
    assert ops.nonzero(x).attrs["extent"] == "nonzero_1"
    with pytest.raises(GraphError, match="is an input's dim"):
        ops.nonzero(x, extent="nonzero_0")
    with pytest.raises(GraphError, match="a size that a node measures"):
        g.input("y", Shape([Dim("nonzero_1")]))


@pytest.mark.parametrize("name", ["", "not a name", "1k"])
def test_a_node_needs_a_valid_name(name: str) -> None:
    g = Graph()
    with pytest.raises(GraphError, match=r"nonzero.*(extent|dim name)"):
        g.node("nonzero", [g.input("x", Shape([5]))], {"extent": name})


def test_passes_keep_names() -> None:
    graph = chain()
    copy = graph.rebuild()
    assert copy == graph
    assert [o.shape for o in copy.outputs] == [o.shape for o in graph.outputs]


# -- the verifier ---------------------------------------------------------------------------------


def test_a_size_is_measured_by_one_node() -> None:
    g = Graph()
    x, y = g.input("x", Shape([5])), g.input("y", Shape([5]))
    g.set_outputs([ops.nonzero(x, extent="k"), ops.nonzero(y, extent="k")])
    with pytest.raises(GraphError, match="measures k, too"):
        verify(g)


def test_somebody_measures_a_size_that_is_used() -> None:
    g = Graph()
    g.set_outputs([ops.expand(g.constant(1.0), dims=(measured("k", 5),))])
    with pytest.raises(GraphError, match=r"expand at .*k, which nothing before it measures"):
        verify(g)


def test_nobody_measures_what_it_needs_itself() -> None:
    g = Graph()
    ones = ops.expand(g.constant(1.0), dims=(measured("k", 5),))
    g.set_outputs([ops.nonzero(ops.reshape(ops.sum(ones), dims=(1,)), at_most=5, extent="k")])
    with pytest.raises(GraphError, match="k, which nothing before it measures"):
        verify(g)


def test_a_size_has_one_bound() -> None:
    g = Graph()
    where = ops.nonzero(g.input("x", Shape([5])))
    g.set_outputs([ops.add(ops.sum(where), ops.sum(ops.expand(
        ops.sum(where), dims=(measured("nonzero_0", 9),))))])  # fmt: skip
    with pytest.raises(GraphError, match="in another range"):
        verify(g)


def test_an_input_cannot_have_a_measured_size() -> None:
    g = Graph()
    g.set_outputs([ops.neg(g.input("x", Shape([measured("k", 5)])))])
    with pytest.raises(GraphError, match="k is one that nodes measure"):
        MirModule(g)


# -- running --------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", FusionTarget, ids=lambda t: t.value)
def test_every_pipeline_runs_all_sizes_with_one_compile(target: FusionTarget) -> None:
    graph = chain()
    exe = rlx.compile(graph, target="reference", like=target.value)
    for rows in (7, 0, 1, 64, 2, 13):
        assert_runs(exe, graph, values(rows))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_any_number_may_be_found(share: float) -> None:
    graph = chain(20)
    given = values(20)
    given["x"][:, 0] = np.where(np.arange(20) < share * 20, 1.0, -1.0)
    exe = rlx.compile(graph, target="reference")
    assert exe.lir.plan.dynamic_symbols == ()
    assert_runs(exe, graph, given)


def test_one_size_may_have_several_users() -> None:
    g = Graph()
    x = g.input("x", Shape([SEQ], DType.I32))
    found, first, which, counts = ops.unique(x)
    g.set_outputs([ops.mul(found, ops.cast(counts, to=DType.I32)), first, which])
    exe = rlx.compile(g, target="reference")
    scaled, places, inverse = exe(np.array([4, 2, 4, 4, 7], np.int32))
    np.testing.assert_array_equal(scaled, [2, 12, 7])
    np.testing.assert_array_equal(places, [1, 0, 4])
    np.testing.assert_array_equal(inverse, [1, 0, 1, 1, 2])


def test_outputs_and_memory_are_known_by_formula() -> None:
    exe = rlx.compile(chain(), target="reference")
    assert str(exe.outputs["kept"]) == "f32[nonzero_0, 4]"
    assert str(exe.outputs["joined"]) == "f32[2*nonzero_0 + seq, 4]"
    assert exe.memory(seq=64).arena_bytes > exe.memory(seq=8).arena_bytes > 0


def test_an_array_given_for_an_output_has_the_size_found() -> None:
    g = Graph()
    g.set_outputs([ops.compress(g.input("x", Shape([5])), g.input("c", Shape([5], DType.BOOL)))])
    exe = rlx.compile(g, target="reference")
    x, mask, out = np.arange(5, dtype=np.float32), np.arange(5) % 2 == 0, np.empty(3, np.float32)
    exe(x, mask, out=out)
    np.testing.assert_array_equal(out, [0, 2, 4])
    wrong = np.full(4, 9, np.float32)
    with pytest.raises(Error, match=r"\[4\], the result is f32\[3\]"):
        exe(x, mask, out=wrong)
    assert np.all(wrong == 9)


def test_specialising_leaves_what_is_measured_open() -> None:
    result = CompilePipeline().compile_mir(MirModule(chain()))
    tight = result.specialize({"seq": 6})
    assert not tight.has_dynamic_dims
    assert measured_in(tight.lir.mir.graph.outputs[0].shape.dims)[0].max == 6
    assert tight.lir.arena_bytes < result.lir.plan.bind({"seq": 64}).arena_bytes


def test_rules_do_not_drop_what_measures() -> None:
    g = Graph()
    x = g.input("x", Shape([6], DType.I32))
    where = ops.nonzero(x)
    g.set_outputs([ops.sub(where, where), ops.mul(ops.sum(where, axes=(0,)), 0)])
    exe = rlx.compile(g, target="reference")
    assert_runs(exe, g, {"x": np.array([1, 0, 3, 0, 0, 2], np.int32)})


def sized_by(x: Node) -> list[Node]:
    """Values that have a measured size and read nothing that has."""
    where = ops.nonzero(ops.greater(ops.exp(x), 1.0))
    k = where.shape.dims[1]
    line = x.graph.node("iota", [], {"dims": (k,), "axis": 0, "dtype": DType.F32})
    half = ops.mul(ops.exp(x), 0.5)
    back = ops.add(half, ops.sum(line))  # one kernel with exp(x) would form a cycle
    return [ops.mul(line, 2.0), back, ops.sum(ops.expand(ops.sum(half), dims=(k,))), half]


@pytest.mark.parametrize("target", FusionTarget, ids=lambda t: t.value)
def test_users_wait_for_what_measures_their_size(target: FusionTarget) -> None:
    g = Graph()
    g.set_outputs(sized_by(g.input("x", Shape([SEQ]))))
    exe = rlx.compile(g, target="reference", like=target.value)
    for size in (9, 0, 33):
        assert_runs(exe, g, {"x": RNG.normal(size=size).astype(np.float32)})


def test_what_is_found_in_constants_is_not_folded() -> None:
    g = Graph()
    g.set_outputs([ops.neg(ops.nonzero(g.constant(np.arange(4))))])
    assert rewrite(g, ruleset([fold_constants])) == g
    exe = rlx.compile(g, target="reference")
    np.testing.assert_array_equal(exe(), [[-1, -2, -3]])
    assert all(exe.lir.plan.phases[n].name != "PROLOGUE" for n in exe.lir.plan.schedule)


# -- bodies ---------------------------------------------------------------------------------------


def count_above(x: Node, limit: Node) -> Node:
    """A body that measures, and gives what it found as a number."""
    return ops.sum(found_rows(x), axes=(0,)) + limit


@pytest.mark.parametrize("target", FusionTarget, ids=lambda t: t.value)
def test_bodies_measure_for_themselves(target: FusionTarget) -> None:
    """A body that is written out several times measures as many sizes."""
    from rlx.ops.control_flow import scan_loop

    g = Graph()
    x = g.input("x", Shape([3, 5, 4]))
    outer = found_rows(ops.reshape(x, dims=(15, 4)))
    total, rows = scan_loop(
        lambda carry, row: (count_above(row, carry), carry), ops.sum(outer, axes=(0,)), x
    )
    g.set_outputs([total, rows])
    try:
        exe = rlx.compile(g, target="reference", like=target.value)
    except UnsupportedError as error:
        pytest.fail(str(error))
    assert_runs(exe, g, {"x": RNG.normal(size=(3, 5, 4)).astype(np.float32)})


def test_what_a_body_measures_stays_inside() -> None:
    from rlx.ops.control_flow import cond

    g = Graph()
    x, p = g.input("x", Shape([5, 4])), g.input("p", Shape([], DType.BOOL))
    with pytest.raises(GraphError, match="nonzero_0, which is measured in a body"):
        cond(p, found_rows, lambda v: found_rows(ops.neg(v)), x)


# -- text -----------------------------------------------------------------------------------------


def test_text_declares_measured_sizes_after_the_others() -> None:
    graph = chain()
    text = show(graph)
    assert "  dim seq in 0..64\n  dim nonzero_0 measured in 0..(seq)\n" in text
    assert read(text) == graph
    assert show(read(text)) == text
    assert [o.shape for o in read(text).outputs] == [o.shape for o in graph.outputs]


HEAD = 'mir "g" {\n  %0 = input(name="x", shape=f32[5]) : f32[5]\n'
FIND = '  %1 = nonzero(%0, extent="k") : i64[1, k]\n  return %1\n}\n'


def test_a_text_may_say_what_is_found() -> None:
    assert read(HEAD + "  dim k measured in 0..5\n" + FIND).outputs[0].shape.is_measured


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dim k measured in 0..4", "says otherwise"),
        ("dim k in 0..5", "says otherwise"),
        ("dim k measured in 0..", "says otherwise"),
        ("dim k measured in 1..5", "starts at 0"),
        ("dim k measured in 0..(j)", "no dim 'j'"),
        ("dim k measured in 0..(0 - 5)", "negative"),
    ],
)
def test_a_text_that_says_otherwise_is_refused(line: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        read(f"{HEAD}  {line}\n{FIND}")


# -- the checker ----------------------------------------------------------------------------------


def test_a_kernel_must_not_run_before_its_size_is_measured() -> None:
    g = Graph()
    g.set_outputs(sized_by(g.input("x", Shape([8]))))
    lir = planned(g)
    assert check(lir) == []
    early = tuple(sorted(lir.plan.schedule, key=lambda n: n.op != "iota"))
    assert early != lir.plan.schedule
    assert Fault.ORDER_VIOLATION in kinds(replace(lir, plan=replace(lir.plan, schedule=early)))


def planned(graph: Graph) -> LirModule:
    return plan_module(graph, Target.of("cpu"))


def kinds(lir: LirModule) -> set[Fault]:
    return {f.kind for f in check(lir)}


@pytest.mark.parametrize("rows", [SEQ, 20], ids=["named", "static"])
def test_slots_are_as_large_as_what_may_be_found(rows: DimLike) -> None:
    lir = planned(chain(rows))
    assert check(lir) == []
    found = [n for n in lir.plan.assignments if n.shape.is_measured]
    assert len(found) > 5
    for node in found:
        slots = dict(lir.plan.assignments)
        slots[node] = replace(slots[node], size=slots[node].size - 64)
        smaller = replace(lir, plan=replace(lir.plan, assignments=slots))
        assert Fault.UNPROVEN in kinds(smaller)


def test_a_slot_must_be_known_before_the_run() -> None:
    lir = planned(chain())
    node = next(n for n in lir.plan.assignments if n.shape.is_measured)
    slots = dict(lir.plan.assignments)
    slots[node] = replace(slots[node], size=node.shape.size_bytes)
    assert Fault.BAD_SLOT in kinds(replace(lir, plan=replace(lir.plan, assignments=slots)))


def test_no_kernel_writes_where_the_start_is_not_known_yet() -> None:
    """The second operand's slice starts where the first ends, which another kernel measures."""
    g = Graph()
    x, y = g.input("x", Shape([5, 16])), g.input("y", Shape([8, 16]))
    both = ops.concat([ops.exp(found_rows(x)), ops.exp(y)], axis=0)
    g.set_outputs([ops.matmul(both, g.param("w", Shape([16, 16])))])
    lir = planned(g)
    (joined,) = (n for n in lir.mir.graph.nodes if n.op == "concat")
    assert joined in lir.plan.schedule
    layout, start, views = lir.plan.layout(joined), 0, dict(lir.plan.views)
    slots = dict(lir.plan.assignments)
    for operand in joined.inputs:
        views[operand] = View(joined, layout.sliced(0, start, operand.shape.dims[0]))
        start = start + operand.shape.dims[0]
        del slots[operand]
    schedule = tuple(n for n in lir.plan.schedule if n is not joined)
    broken = replace(lir.plan, views=views, assignments=slots, schedule=schedule, in_place={})
    assert Fault.ORDER_VIOLATION in kinds(replace(lir, plan=broken))


def test_binding_leaves_out_what_is_not_known_yet() -> None:
    lir = planned(chain())
    bound = lir.plan.bind({"seq": 8})
    open_ = [n for n in lir.plan.phases if not n.has_items and n.shape.is_measured]
    assert open_
    assert not any(n in bound.shapes or n in bound.layouts for n in open_)
    assert all(n in bound.offsets for n in open_ if n not in lir.plan.views)
    assert bound.arena_bytes == evaluate(lir.plan.arena_formula, {"seq": 8})
