"""Regions: what one kernel holds, what it may not, and that growing them stays near-linear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.cost.target import FusionLimits
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph
from rlx.passes.context import Context
from rlx.passes.fusion import reasons
from rlx.passes.fusion.graph_facts import Facts
from rlx.passes.fusion.groups import Groups
from rlx.passes.fusion.matches import apply
from rlx.passes.fusion.reasons import WOULD_CYCLE
from rlx.passes.fusion.regions import region_match
from rlx.passes.options import FusionOptions
from tests.effort import tries
from tests.unit.fusing import (
    ELEMENTWISE_REGIONS,
    FEW_KERNELS,
    LIMITED,
    TARGETS,
    WITH_REGIONS,
    fuse,
    fused,
    inputs,
    ops_in,
    ops_within,
    params,
    refusals,
)


def graph(*outputs: Any) -> Graph:
    made: Graph = outputs[0].graph
    made.set_outputs(list(outputs))
    return made


def body_ops(g: Graph) -> list[list[str]]:
    """The ops inside each region."""
    bodies = [n.attrs["body"] for n in g.order() if "body" in n.attrs]
    return [[n.op for n in b.order() if not n.is_leaf] for b in bodies]


# -- what belongs together ------------------------------------------------------------------------


@pytest.mark.parametrize("target", WITH_REGIONS)
def test_two_chains_that_meet_are_one_region(target: str) -> None:
    g = Graph("meet")
    a, b, c, d = inputs(g, a=(8, 16), b=(8, 16), c=(8, 16), d=(8, 16))
    made, decisions = fused(graph((a + b) * (c + d)), target)
    assert ops_in(made) == ["elementwise_region"]
    assert body_ops(made) == [["add", "add", "mul"]]
    assert len(decisions) == 1


@pytest.mark.parametrize("small", [(8, 1), (1, 16), (16,), (1, 1), (), (1,)])
def test_broadcasts_are_numpys(small: tuple[int, ...]) -> None:
    """Defect 3 of the original: [8, 1] was read modulo 8 against [8, 16]."""
    g = Graph("broadcast")
    x, s = inputs(g, x=(8, 16), s=small)
    made, _ = fused(graph(ops.exp(s) * x + s))
    assert ops_in(made) == ["elementwise_region"]


def test_a_comparison_in_a_region_is_bool() -> None:
    """Defect 12 of the original: two ways to unfuse a comparison gave u8 and bool."""
    g = Graph("compare")
    a, b = inputs(g, a=(4, 6), b=(4, 6))
    made, _ = fused(graph(ops.where(ops.less(a, b), a + 1.0, b)))
    region = made.outputs[0]
    inner = [n for n in region.attrs["body"].order() if n.op == "less"]
    assert [n.shape.dtype for n in inner] == [DType.BOOL]
    spelled = region.decl.lowered(region.inputs, region.attrs)[0]
    assert spelled.inputs[0].shape.dtype is DType.BOOL
    limited, _ = fused(g, options=FusionOptions(limits=FusionLimits(2, None)))
    compare = [n for n in limited.order() if n.op == "less"]
    assert all(n.shape.dtype is DType.BOOL for n in compare)


def test_a_chain_of_movements_between() -> None:
    """A copy is read in place of; a view costs nothing and stays outside."""
    g = Graph("moved")
    (x,) = inputs(g, x=(4, 6))
    y = ops.exp(ops.transpose(x, perm=(1, 0)))
    assert ops_in(fused(graph(y), "cpu")[0]) == ["transpose", "exp"]
    assert body_ops(fused(graph(y), FEW_KERNELS)[0]) == [["transpose", "exp"]]


def test_a_movement_never_reads_what_its_kernel_computes() -> None:
    g = Graph("turned")
    (x,) = inputs(g, x=(6, 6))
    y = ops.exp(x)
    made, _ = fused(graph(y + ops.transpose(y, perm=(1, 0))), FEW_KERNELS)
    assert body_ops(made) == [["transpose", "add"]]


def test_small_constants_are_carried_and_large_ones_read() -> None:
    g = Graph("constants")
    (x,) = inputs(g, x=(4, 6))
    made, _ = fused(graph(ops.exp(x * 2.0) + np.arange(6, dtype=np.float32)))
    assert [n.op for n in made.outputs[0].inputs] == ["input", "constant"]


def test_weights_are_not_grouped_with_calls() -> None:
    g = Graph("weights")
    (x,) = inputs(g, x=(4, 6))
    (w,) = params(g, w=(6,))
    made, _ = fused(graph(ops.exp(x) * ops.exp(w)))
    assert body_ops(made) == [["exp", "mul"]]
    assert sum(n.op == "exp" for n in made.order()) == 1


def test_named_dims() -> None:
    g = Graph("dynamic")
    seq = Dim("seq", 1, 64)
    x = g.input("x", Shape((seq, 8)))
    y = g.input("y", Shape((seq, 1)))
    g.set_outputs([ops.softmax(ops.exp(x) * y)])
    made = fuse(g, Context.of("cpu"))
    assert body_ops(made) == [["exp", "mul", "softmax"]]
    given = {"x": np.ones((3, 8), np.float32), "y": np.full((3, 1), 2, np.float32)}
    np.testing.assert_array_equal(evaluate(g, given)[0], evaluate(made, given)[0])


# -- rows -----------------------------------------------------------------------------------------


def test_a_norm_spelled_out_is_one_region() -> None:
    g = Graph("norm")
    (x,) = inputs(g, x=(4, 6))
    (w,) = params(g, w=(6,))
    square = ops.mean(x * x, axes=(1,), keepdims=True)
    made, _ = fused(graph(x / ops.sqrt(square + 1.0) * w))
    assert ops_in(made) == ["region"]


def test_rows_of_different_axes_stay_apart() -> None:
    g = Graph("axes")
    (x,) = inputs(g, x=(4, 6))
    made, _ = fused(graph(ops.softmax(ops.softmax(x, axis=0), axis=1)))
    assert ops_in(made) == ["softmax", "softmax"]


def test_a_reduced_value_lies_along_another_axis() -> None:
    """On a square, the sum of rows could be taken for a row: it is by columns that it is added."""
    g = Graph("square")
    (x,) = inputs(g, x=(6, 6))
    y = ops.exp(x)
    made, _ = fused(graph(y + ops.sum(y, axes=(1,))))
    assert len(body_ops(made)) == 1
    assert sorted(body_ops(made)[0]) in (["exp", "sum"], ["add", "exp"])


def test_a_target_of_elementwise_regions_leaves_rows_alone() -> None:
    g = Graph("rows")
    (x,) = inputs(g, x=(4, 6))
    made, _ = fused(graph(ops.softmax(ops.exp(x) * 2.0)), ELEMENTWISE_REGIONS)
    assert ops_in(made) == ["elementwise_region", "softmax"]


def test_a_value_goes_with_what_alone_reads_it() -> None:
    """The square could stand behind the sum, as a second result; it belongs to the mean."""
    g = Graph("square")
    x, r = inputs(g, x=(4, 5), r=(4, 6))
    (w,) = params(g, w=(5, 6))
    total = ops.matmul(x, w) + r
    made, _ = fused(graph(total / ops.mean(ops.square(total), axes=(1,), keepdims=True)))
    assert body_ops(made) == [["matmul", "add"], ["square", "mean", "div"]]


# -- anchors --------------------------------------------------------------------------------------


def test_one_anchor_at_most() -> None:
    g = Graph("anchors")
    x, y = inputs(g, x=(4, 5), y=(4, 5))
    v, w = params(g, v=(5, 6), w=(5, 6))
    made, _ = fused(graph(ops.tanh(ops.matmul(x, v) + ops.matmul(y, w))))
    assert sorted(ops_in(made)) == ["matmul", "region"]
    assert body_ops(made) == [["matmul", "add", "tanh"]]


def test_what_feeds_the_anchor_is_not_inside() -> None:
    g = Graph("feeds")
    (x,) = inputs(g, x=(4, 4))
    (w,) = params(g, w=(4, 4))
    y = ops.exp(x)
    made, _ = fused(graph(y + ops.matmul(y, w)))
    assert body_ops(made) == [["matmul", "add"]]


def test_an_anchor_is_not_computed_once_more_for_a_wider_reader() -> None:
    g = Graph("wider")
    x, y = inputs(g, x=(4, 5), y=(4, 6))
    (w,) = params(g, w=(5, 1))
    made, _ = fused(graph(ops.matmul(x, w) + y))
    assert ops_in(made) == ["matmul", "add"]


def test_epilogue_ops_keep_their_phase() -> None:
    g = Graph("peaks")
    (x,) = inputs(g, x=(4, 16))
    made, _ = fused(graph(ops.welch_peaks(x, k=2, n_segments=2) * 2.0))
    assert ops_in(made) == ["welch_peaks", "mul"]


# -- convexity ------------------------------------------------------------------------------------


def test_a_region_does_not_wait_for_itself() -> None:
    g = Graph("diamond")
    (x,) = inputs(g, x=(4, 4))
    y = ops.exp(x)
    best, _ = ops.top_k(y, k=4)
    made, _ = fused(graph(ops.tanh(best) * y))
    assert body_ops(made) == [["tanh", "mul"]]


def test_a_group_that_is_not_convex_is_caught_when_it_is_made() -> None:
    g = Graph("cycle")
    (x,) = inputs(g, x=(4, 4))
    y = ops.exp(x)
    z = ops.cumsum(y, axis=0)
    out = z * y
    g.set_outputs([out])
    match = region_match([y, out], [y, out])
    with pytest.raises(Exception, match="forms a cycle"):
        apply(Facts.of(g), [match])


def test_merging_never_makes_a_cycle() -> None:
    """Random merges over random graphs: allowed exactly where the merged graph has no cycle."""
    rng = np.random.default_rng(7)
    for _ in range(60):
        g = Graph("random")
        nodes = inputs(g, x=(2,), y=(2,))
        for i in range(14):
            a, b = (nodes[int(j)] for j in rng.integers(0, len(nodes), 2))
            nodes.append(ops.add(a, b) if i % 2 else ops.mul(a, ops.sub(b, float(i))))
        g.set_outputs(nodes[-3:])
        _merge_randomly(Groups(Facts.of(g).order), rng)


def test_a_path_through_thousands_of_kernels_forbids_a_merge_without_a_search() -> None:
    """It is no missed fusion, as it would be where the search ends without an answer."""
    g = Graph("far")
    (x,) = inputs(g, x=(2,))
    first = node = ops.tanh(x)
    for i in range(3000):
        node = ops.sin(ops.mul(node, float(i + 2)))
    last = ops.add(node, first)
    g.set_outputs([last])
    groups = Groups(Facts.of(g).order)
    reached: list[int] = []
    after = groups.after
    groups.after = lambda group: reached.append(group) or after(group)
    assert groups.why_not(groups.group_of(first), groups.group_of(last)) == WOULD_CYCLE
    assert len(reached) < 10


def _merge_randomly(groups: Groups, rng: np.random.Generator) -> None:
    for _ in range(40):
        node = groups.nodes[int(rng.integers(len(groups.nodes)))]
        if not node.inputs:
            continue
        first, second = groups.group_of(node.inputs[0]), groups.group_of(node)
        if first == second:
            continue
        allowed = groups.why_not(first, second) is None
        assert allowed == (not _has_cycle(groups, {first: second}))
        if allowed:
            groups.merge(first, second)
            assert not _has_cycle(groups, {})
            _assert_ordered(groups)


def _edges(groups: Groups, renamed: dict[int, int]) -> set[tuple[int, int]]:
    def name(node: Any) -> int:
        found = groups.group_of(node)
        return renamed.get(found, found)

    pairs = {(name(i), name(n)) for n in groups.nodes for i in n.inputs}
    return {(a, b) for a, b in pairs if a != b}


def _has_cycle(groups: Groups, renamed: dict[int, int]) -> bool:
    edges = _edges(groups, renamed)
    left = {g for e in edges for g in e}
    while free := left - {b for a, b in edges if a in left}:
        left -= free
    return bool(left)


def _assert_ordered(groups: Groups) -> None:
    for a, b in _edges(groups, {}):
        assert groups.position[a] < groups.position[b]


# -- limits ---------------------------------------------------------------------------------------


def chain(length: int, dims: tuple[int, ...] = (4,)) -> Graph:
    g = Graph("chain")
    (x,) = inputs(g, x=dims)
    for i in range(length):
        x = ops.add(x, 1.0) if i % 2 else ops.exp(ops.neg(x)) if i % 7 == 0 else ops.tanh(x)
    return graph(x)


def test_steps_past_the_limit_start_a_new_region() -> None:
    g = chain(70)
    made, decisions = fused(g, "cuda")
    assert all(len(b) <= 32 for b in body_ops(made))
    assert refusals(decisions, "fuse_region") == [reasons.TOO_MANY_STEPS] * (
        len(body_ops(made)) - 1
    )
    assert ops_in(fused(g, "cpu")[0]) == ["elementwise_region"]


def test_inputs_past_the_limit_stay_outside() -> None:
    g = Graph("wide")
    xs = inputs(g, **{f"x{i}": (4,) for i in range(20)})
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    g.set_outputs([total])
    made, decisions = fused(g, "wgpu")
    assert all(len(n.inputs) <= 16 for n in made.order() if "body" in n.attrs)
    assert reasons.TOO_MANY_INPUTS in refusals(decisions, "fuse_region")


def test_limits_of_the_caller_come_first() -> None:
    made, _ = fused(chain(10), "cpu", FusionOptions(limits=FusionLimits(4, 2)))
    assert max(map(len, body_ops(made))) == 4


def test_a_value_that_is_an_output_becomes_a_result() -> None:
    g = Graph("inner output")
    a, b = inputs(g, a=(4, 6), b=(4, 6))
    total = a + b
    g.set_outputs([total, ops.exp(total), ops.tanh(total)])
    made, _ = fused(g, "cpu")
    assert len(made.outputs[0].inputs[0].shapes) == 3
    made, decisions = fused(g, LIMITED)
    assert ops_in(made) == ["add", "exp", "tanh"]
    assert set(refusals(decisions, "fuse_region")) == {reasons.SEVERAL_RESULTS}


def test_a_result_of_another_extent_is_not_written_by_the_kernel() -> None:
    g = Graph("extents")
    x, s = inputs(g, x=(4, 6), s=(4, 1))
    y = ops.exp(s)
    made, _ = fused(graph(y * x, y))
    assert ops_in(made) == ["exp", "mul"]


def test_one_kernel_writes_few_results() -> None:
    g = Graph("many")
    (x,) = inputs(g, x=(4,))
    y = ops.exp(x)
    g.set_outputs([ops.mul(y, float(i)) for i in range(2, 30)])
    made, decisions = fused(g)
    assert max(len(n.shapes) for n in made.order()) <= 8
    assert reasons.TOO_MANY_RESULTS in refusals(decisions, "fuse_region")


# -- size -----------------------------------------------------------------------------------------


def _long(length: int) -> Graph:
    return chain(length)


def _hub(length: int) -> Graph:
    """One value that every step of a chain reads."""
    g = Graph("hub")
    x, s = inputs(g, x=(4,), s=(4,))
    s = ops.exp(s)
    for i in range(length):
        x = ops.mul(x, s) if i % 2 else ops.tanh(x)
    return graph(x)


def _comb(length: int) -> Graph:
    """A running sum of products, each made on the side."""
    g = Graph("comb")
    x, y = inputs(g, x=(4,), y=(4,))
    total = x
    for i in range(length // 2):
        total = total + ops.mul(y, float(i + 2))
    return graph(total)


UNLIMITED = FusionOptions(limits=FusionLimits())


@pytest.mark.parametrize("options", [FusionOptions(), UNLIMITED], ids=["limited", "unlimited"])
@pytest.mark.parametrize("shape", [_long, _hub, _comb])
def test_twice_the_nodes_are_twice_the_work(
    shape: Any, options: FusionOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work is counted in lookups of a node's group, which every question about one makes."""
    count = 0
    find = Groups.find

    def counted(self: Groups, i: int) -> int:
        nonlocal count
        count += 1
        return find(self, i)

    monkeypatch.setattr(Groups, "find", counted)
    work: list[int] = []
    for length in (1500, 3000):
        count = 0
        ops = ops_in(fuse(shape(length), Context.of("cpu", options)))
        assert set(ops) == {"elementwise_region"}
        assert (len(ops) == 1) == (options is UNLIMITED)
        work.append(count)
    assert work[1] <= 2.4 * work[0]


def test_a_long_chain_becomes_one_region() -> None:
    made = fuse(_long(tries(6_000, 24_000)), Context.of("cpu", UNLIMITED))
    assert ops_in(made) == ["elementwise_region"]


def test_a_kernel_of_the_cpu_has_a_bounded_number_of_operations() -> None:
    """However long the chain is: LLVM takes longer than in proportion to a kernel's code."""
    made, decisions = fused(chain(2000), "cpu")
    sizes = [len(body) for body in body_ops(made)]
    assert max(sizes) < 200
    assert len(sizes) < 60
    assert set(refusals(decisions, "fuse_region")) == {reasons.TOO_MANY_OPERATIONS}


def test_a_kernel_of_the_cpu_passes_over_its_rows_a_bounded_number_of_times() -> None:
    g = Graph("norms")
    (x,) = inputs(g, x=(4, 8))
    for _ in range(20):
        x = x + ops.layer_norm(x)
    made, decisions = fused(graph(x), "cpu")
    assert [body.count("layer_norm") for body in body_ops(made)] == [8, 8, 4]
    assert set(refusals(decisions, "fuse_region")) == {reasons.TOO_MANY_ROW_STEPS}


# -- anything -------------------------------------------------------------------------------------


def _random(rng: np.random.Generator) -> Graph:
    """Elementwise ops, rows, products and movements over values of a few shapes."""
    g = Graph("random")
    x, y, s, r = inputs(g, x=(6, 6), y=(6, 6), s=(6, 1), r=(6,))
    (w,) = params(g, w=(6, 6))
    nodes = [x, y, s, r, w]
    for _ in range(int(rng.integers(5, 25))):
        a, b = (nodes[int(i)] for i in rng.integers(0, len(nodes), 2))
        made = (
            [
                lambda a, b: a + b,
                lambda a, b: ops.maximum(a, b),
                lambda a, b: ops.where(ops.less(a, b), a, b),
                lambda a, b: ops.abs(a),
                lambda a, b: ops.sum(a, axes=(a.rank - 1,), keepdims=bool(rng.integers(2))),
                lambda a, b: ops.max(a, axes=(0,), keepdims=True),
                lambda a, b: ops.transpose(a, perm=tuple(reversed(range(a.rank)))),
                lambda a, b: ops.matmul(x, b) if b.shape.dims == (6, 6) else a - b,
                lambda a, b: ops.flip(a, axes=(0,)),
                lambda a, b: ops.clamp(a, min=-3.0, max=3.0),
            ][int(rng.integers(10))](a, b)
            if a.rank
            else ops.add(a, b)
        )
        nodes.append(ops.clamp(made, min=-99.0, max=99.0))
    count = int(rng.integers(1, 4))
    g.set_outputs([nodes[-1], *(nodes[int(i)] for i in rng.integers(0, len(nodes), count))])
    return g


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_keep_their_bits(seed: int) -> None:
    """Whole numbers up to 6 · 99 · 99 and sums of them are exact in f32."""
    g = _random(np.random.default_rng(seed))
    for target in TARGETS:
        made, _ = fused(g, target)
        assert len(ops_within(made)) >= len(ops_in(made))
