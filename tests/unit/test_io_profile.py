"""Profiles: the documented counts exactly, and what a target really does where one is named."""

from typing import Any

import pytest

import rlx
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.shape import Shape
from rlx.cost.gate import FusionBenefit, GraphIoProfile, fusion_benefit
from rlx.cost.profile import (
    GraphIoOptions,
    benefit_of,
    compute_profile,
    graph_of,
    node_terms,
    profile_graph_io,
)
from rlx.cost.target import FusionTarget, Target
from rlx.cost.terms import Terms
from rlx.ir.mir import Graph, MirModule, Node
from rlx.plan.planner import plan_module

F32 = 4


def _welch() -> tuple[Graph, Node, Node]:
    """The documented Welch graph: batch 8192, 2 segments, n_fft 256, k 16."""
    g = Graph("welch")
    x = g.input("segs", Shape([16384, 256]))
    spectrum = g.fft(g.concat([x, g.sub(x, x)], axis=1))
    return g, spectrum, g.welch_peaks(spectrum, k=16, n_segments=2)


# -- the documented rules -------------------------------------------------------------------------


def test_the_welch_graph_gives_the_documented_totals() -> None:
    g, spectrum, peaks = _welch()
    before = profile_graph_io(g, outputs=[spectrum])
    after = profile_graph_io(g, outputs=[peaks])
    assert before == GraphIoProfile(3, 0, 33_554_432, 184_549_376)
    assert after == GraphIoProfile(4, 1, 1_048_576, 219_152_384)
    assert fusion_benefit(before, after) == FusionBenefit(-1, -1, 32_505_856, -34_603_008)
    for output, expected in ((spectrum, before), (peaks, after)):
        g.set_outputs([output])
        assert profile_graph_io(g) == expected


def test_the_terms_of_the_welch_graph() -> None:
    _, spectrum, peaks = _welch()
    joined = spectrum.inputs[0]
    nodes = (joined.inputs[1], joined, spectrum, peaks)
    traffic = [node_terms(n).device_traffic_bytes for n in nodes]
    assert traffic == [50_331_648, 67_108_864, 67_108_864, 34_603_008]


def test_an_fft_of_a_joined_signal() -> None:
    g = Graph("g")
    x = g.input("x", Shape([8, 512]))
    g.set_outputs([g.fft(g.concat([x, g.sub(x, x)], axis=1))])
    profile = profile_graph_io(g)
    assert profile.kernel_launches == 3
    assert profile.host_output_bytes == 8 * 512 * 2 * F32


def test_peaks_alone() -> None:
    g = Graph("g")
    g.set_outputs([g.welch_peaks(g.input("s", Shape([4, 512])), k=16, n_segments=2)])
    assert profile_graph_io(g) == GraphIoProfile(1, 1, 2 * 16 * 2 * F32, 8448)


def test_an_fft_may_be_counted_as_a_sync() -> None:
    g, spectrum, _ = _welch()
    asked = GraphIoOptions(fft_host_sync=True)
    assert profile_graph_io(g, asked, outputs=[spectrum]).sync_points == 1
    assert profile_graph_io(g, asked, outputs=[spectrum], target="cuda").sync_points == 1


@pytest.mark.parametrize("build", [
    lambda g, x: g.rfft(x), lambda g, x: g.ifft(x), lambda g, x: g.fftn(x, axes=(1,)),
    lambda g, x: g.power_frames(x, n_fft=4, hop=4), lambda g, x: g.psd(x),
], ids=["rfft", "ifft", "fftn", "power_frames", "psd"])  # fmt: skip
def test_every_op_that_holds_an_fft_may_be_counted_as_a_sync(build: Any) -> None:
    g = Graph("g")
    g.set_outputs([build(g, g.input("x", Shape([2, 8])))])
    asked = GraphIoOptions(fft_host_sync=True)
    for target in (None, "cuda"):
        assert profile_graph_io(g, target=target).sync_points == 0
        assert profile_graph_io(g, asked, target=target).sync_points == 1


def test_a_sync_inside_a_branch_is_one() -> None:
    g, then, other = Graph("g"), Graph("then"), Graph("else")
    then.set_outputs([then.welch_peaks(then.input("s", Shape([2, 8])), k=1, n_segments=2)])
    other.set_outputs(
        [other.narrow(other.input("s", Shape([2, 8])), axis=1, start=0, length=2)[:1]]
    )
    s, on = g.input("s", Shape([2, 8])), g.input("on", Shape([], DType.BOOL))
    node = g.node("if", (on, s), {"then": then, "else": other})
    g.set_outputs([g.node("item", (node,), {"index": 0})])
    assert profile_graph_io(g).sync_points == 1


def test_the_kinds_that_wait_for_the_host() -> None:
    assert rlx.host_sync_op_kinds() == {"log_mel", "welch_peaks", "custom"}
    assert rlx.host_sync_op_kinds("cpu") == set()
    assert rlx.host_sync_op_kinds("cuda") == {"custom", "if", "while"}


def test_metadata_costs_nothing_even_as_an_output() -> None:
    g = Graph("g")
    x = g.input("x", Shape([4, 6]))
    views = [
        g.reshape(x, dims=(24,)),
        g.transpose(x, perm=(1, 0)),
        g.narrow(x, axis=1, start=0, length=2),
    ]
    g.set_outputs([x, *views])
    assert profile_graph_io(g) == GraphIoProfile()


def test_an_operand_counts_per_use_and_an_output_once() -> None:
    g = Graph("g")
    x = g.input("x", Shape([8], DType.F64))
    y = g.mul(x, x)
    g.set_outputs([y, y])
    assert profile_graph_io(g) == GraphIoProfile(1, 0, 64, 3 * 64)


def test_every_result_of_a_node_counts_and_items_are_free() -> None:
    g = Graph("g")
    values, indices = g.top_k(g.input("x", Shape([2, 10])), k=3)
    g.set_outputs([values, indices])
    profile = profile_graph_io(g)
    assert profile.kernel_launches == 1
    assert profile.device_traffic_bytes == 2 * 10 * F32 + 2 * 3 * F32 + 2 * 3 * 8


def test_a_result_that_is_an_output_is_read_back() -> None:
    g = Graph("g")
    values, indices = g.top_k(g.input("x", Shape([2, 10])), k=3)
    g.set_outputs([values, indices])
    assert profile_graph_io(g).host_output_bytes == 2 * 3 * F32 + 2 * 3 * 8
    assert profile_graph_io(g, outputs=[indices]).host_output_bytes == 2 * 3 * 8
    assert profile_graph_io(g, outputs=[1]) == profile_graph_io(g, outputs=[indices])
    assert profile_graph_io(g, outputs=[-2]) == profile_graph_io(g, outputs=[values])


@pytest.mark.parametrize("given", [2, -3, True, 0.5, "x", None])
def test_what_is_no_output_is_an_error(given: Any) -> None:
    g = Graph("g")
    g.set_outputs(list(g.top_k(g.input("x", Shape([2, 10])), k=3)))
    with pytest.raises(Error, match="is no output of 'g', which has 2"):
        profile_graph_io(g, outputs=[given])


def test_the_results_of_a_scan_are_read_back() -> None:
    g, body = Graph("g"), Graph("body")
    carry, x = body.input("c", Shape([4])), body.input("x", Shape([4]))
    body.set_outputs([body.add(carry, x), carry])
    given = g.input("c", Shape([4])), g.input("xs", Shape([5, 4]))
    attrs = {"body": body, "length": 5, "num_carries": 1, "num_bcasts": 0}
    node = g.node("scan", given, attrs)
    g.set_outputs([g.node("item", (node,), {"index": i}) for i in range(2)])
    assert profile_graph_io(g).host_output_bytes == (1 + 5) * 4 * F32


def test_dynamic_shapes_count_nothing() -> None:
    g = Graph("g")
    x = g.input("x", Shape([Dim("n"), 4]))
    g.set_outputs([g.add(x, g.param("w", Shape([4])))])
    assert profile_graph_io(g) == GraphIoProfile(1, 0, 0, 4 * F32)


def test_a_region_is_one_launch_of_its_externals_and_results() -> None:
    body = Graph("body")
    a, b = body.input("a", Shape([8])), body.input("b", Shape([8]))
    body.set_outputs([body.exp(body.mul(body.add(a, b), b))])
    g = Graph("g")
    x, y = g.input("x", Shape([8])), g.input("y", Shape([8]))
    g.set_outputs([g.node("elementwise_region", (x, y), {"body": body})])
    assert profile_graph_io(g) == GraphIoProfile(1, 0, 32, 3 * 32)
    assert profile_graph_io(g, target="cpu") == GraphIoProfile(1, 0, 32, 3 * 32)


def test_modules_are_profiled_by_their_graph() -> None:
    g = Graph("g")
    g.set_outputs([g.neg(g.input("x", Shape([4])))])
    assert profile_graph_io(MirModule(g)) == profile_graph_io(g)
    assert graph_of(MirModule(g)) is g
    with pytest.raises(Error, match="not int"):
        profile_graph_io(3)


def test_outputs_of_another_graph_are_an_error() -> None:
    g, other = Graph("g"), Graph("other")
    with pytest.raises(Error, match="another graph"):
        profile_graph_io(g, outputs=[other.input("x", Shape([1]))])


# -- on a target ----------------------------------------------------------------------------------


def _one(target: str, build: str, dims: tuple[int, ...] = (4, 6)) -> GraphIoProfile:
    g = Graph("g")
    x = g.neg(g.input("x", Shape(dims)))
    g.set_outputs([g.exp(_VIEWS[build](g, x))])
    return profile_graph_io(g, target=target)


_VIEWS = {
    "none": lambda g, x: x,
    "reshape": lambda g, x: g.reshape(x, dims=(24,)),
    "cast": lambda g, x: g.node("cast", (x,), {"to": DType.F32}),
    "lead": lambda g, x: g.narrow(x, axis=0, start=1, length=2),
    "transpose": lambda g, x: g.transpose(x, perm=(1, 0)),
    "expand": lambda g, x: g.expand(x, dims=(5, 4, 6)),
}


@pytest.mark.parametrize("target", [t.value for t in FusionTarget])
def test_what_keeps_its_order_is_free_everywhere(target: str) -> None:
    for view in ("reshape", "cast"):
        assert _one(target, view) == _one(target, "none") == GraphIoProfile(2, 0, 96, 4 * 96)
    assert _one(target, "lead") == GraphIoProfile(2, 0, 48, 2 * 96 + 2 * 48)


def test_a_transpose_is_a_copy_where_kernels_read_no_strides() -> None:
    assert _one("cpu", "transpose") == _one("cpu", "none")
    assert _one("tpu", "transpose") == GraphIoProfile(3, 0, 96, 6 * 96)


def test_a_broadcast_is_read_once_per_element_it_repeats() -> None:
    assert _one("cpu", "expand").device_traffic_bytes == 2 * 96 + 96 + 5 * 96
    assert _one("tpu", "expand").device_traffic_bytes == 2 * 96 + 6 * 96 + 10 * 96


def test_an_operand_used_twice_is_read_once() -> None:
    g = Graph("g")
    x = g.input("x", Shape([8]))
    g.set_outputs([g.mul(x, x)])
    assert profile_graph_io(g, target="cuda").device_traffic_bytes == 2 * 32


def test_a_target_has_its_own_syncs() -> None:
    g, _, peaks = _welch()
    for name in ("cpu", "cuda", "wgpu"):
        assert profile_graph_io(g, outputs=[peaks], target=name).sync_points == 0


def test_weights_alone_cost_nothing_per_call() -> None:
    g = Graph("g")
    w = g.param("w", Shape([8]))
    y = g.mul(g.input("x", Shape([8])), g.exp(w))
    g.set_outputs([y])
    assert profile_graph_io(g).kernel_launches == 2
    assert profile_graph_io(g, target="cpu") == GraphIoProfile(1, 0, 32, 3 * 32)


def test_outputs_that_are_no_buffers_of_their_own_are_copied_out() -> None:
    g = Graph("g")
    x, w = g.input("x", Shape([4, 6])), g.param("w", Shape([6]))
    y = g.neg(x)
    kernel = GraphIoProfile(1, 0, 96, 2 * 96)

    def given(*outputs: Node) -> GraphIoProfile:
        return profile_graph_io(g, outputs=outputs, target="cpu")

    assert given(y) == given(g.reshape(y, dims=(24,))) == given(y, y) == kernel
    assert given(x) == GraphIoProfile(1, 0, 96, 2 * 96)
    assert given(w) == GraphIoProfile(1, 0, 24, 2 * 24)
    assert given(g.transpose(y, perm=(1, 0))) == GraphIoProfile(2, 0, 96, 4 * 96)
    assert given(y, g.reshape(y, dims=(24,))) == GraphIoProfile(2, 0, 192, 4 * 96)
    part = g.narrow(y, axis=0, start=0, length=2)
    assert given(part) == GraphIoProfile(2, 0, 48, 2 * 96 + 2 * 48)


def test_results_are_lent_to_outputs_one_by_one() -> None:
    g = Graph("g")
    values, indices = g.top_k(g.input("x", Shape([2, 10])), k=3)
    expected = GraphIoProfile(1, 0, 72, 80 + 72)
    assert profile_graph_io(g, outputs=[values, indices], target="cpu") == expected


def test_dynamic_dims_are_priced_at_representative_sizes() -> None:
    def graph(rows: object) -> Graph:
        g = Graph("g")
        g.set_outputs([g.neg(g.input("x", Shape([rows, 4])))])  # pyright: ignore[reportArgumentType]
        return g

    dynamic, static = graph(Dim("seq", 1, 4096)), graph(128)
    assert profile_graph_io(dynamic, target="cuda") == profile_graph_io(static, target="cuda")


def test_a_lookup_reads_the_rows_it_takes() -> None:
    g = Graph("g")
    table, ids = g.param("table", Shape([50_000, 8])), g.input("ids", Shape([3], DType.I64))
    rows = g.embedding(table, ids)
    assert Terms(Target.of("cpu")).of(rows) == GraphIoProfile(1, 0, 0, 3 * 8 + 2 * (3 * 8 * F32))


def test_a_plan_says_itself_what_runs_per_call() -> None:
    g = Graph("g")
    x, w = g.input("x", Shape([4, 6])), g.param("w", Shape([6]))
    y = g.transpose(g.mul(x, g.exp(w)), perm=(1, 0))
    g.set_outputs([g.neg(y), y])
    for name in ("cpu", "tpu"):
        target = Target.of(name)
        lir = plan_module(g, target)
        assert profile_graph_io(lir, target=target) == profile_graph_io(g, target=target)
        assert profile_graph_io(lir) == profile_graph_io(lir.mir) == profile_graph_io(g)


def test_a_producer_that_writes_into_a_concat_leaves_it_nothing_to_do() -> None:
    g = Graph("g")
    x = g.input("x", Shape([16]))
    g.set_outputs([g.concat([g.neg(x), g.exp(x)], axis=0)])
    planned = profile_graph_io(plan_module(g, Target.of("cpu")), target="cpu")
    assert planned == GraphIoProfile(2, 0, 128, 4 * 64)


# -- terms and benefits ---------------------------------------------------------------------------


@pytest.mark.parametrize("target", [t.value for t in FusionTarget])
def test_the_profile_is_the_sum_of_its_terms(target: str) -> None:
    g, spectrum, peaks = _welch()
    terms = Terms(Target.of(target))
    total = terms.readback([spectrum, peaks])
    g.set_outputs([spectrum, peaks])
    for node in g.order():
        total = total + terms.of(node)
    assert profile_graph_io(g, target=target) == total


def _lookup() -> tuple[Node, ...]:
    """A lookup, exp of it, and the region (with its item) that does both."""
    g, body = Graph("g"), Graph("body")
    table, ids = Shape([1000, 8]), Shape([3], DType.I64)
    inner = body.embedding(body.input("t", table), body.input("i", ids))
    body.set_outputs([body.exp(inner)])
    outer = g.embedding(g.param("t", table), g.input("i", ids))
    region = g.node("region", outer.inputs, {"body": body})
    item = region if not region.has_items else g.node("item", (region,), {"index": 0})
    return outer, g.exp(outer), region, item


def test_a_region_around_a_lookup_does_not_read_the_whole_table() -> None:
    rows, out, region, item = _lookup()
    benefit = benefit_of((rows, out), {region, item}, Terms(Target.of("cpu")))
    assert benefit == FusionBenefit(1, 0, 0, 2 * 3 * 8 * F32)


def test_a_region_around_a_slice_reads_the_slice() -> None:
    g, body = Graph("g"), Graph("body")
    whole = body.input("x", Shape([4, 100]))
    part = body.reshape(body.narrow(whole, axis=1, start=2, length=10), dims=(40,))
    body.set_outputs([body.exp(part)])
    region = g.node("region", (g.input("x", Shape([4, 100])),), {"body": body})
    assert Terms(Target.of("cpu")).of(region).device_traffic_bytes == 2 * 40 * F32


def test_a_benefit_is_terms_removed_minus_terms_added() -> None:
    g = Graph("g")
    x = g.input("x", Shape([8]))
    squared = g.square(g.neg(x))
    benefit = benefit_of((squared.inputs[0], squared), (g.square(x),), Terms(Target.of("cuda")))
    assert benefit == FusionBenefit(1, 0, 0, 2 * 32)


def test_the_compute_profile_counts_work_and_touched_values_once() -> None:
    """An addition is an instruction, which takes as long as the two flops of a multiply-add."""
    g = Graph("g")
    x, w = g.input("x", Shape([4, 8])), g.param("w", Shape([8, 16]))
    y = g.matmul(x, w)
    z = g.add(y, y)
    found = compute_profile((y, z), Terms(Target.of("cpu")))
    assert found.peak_flops == 2 * 4 * 8 * 16 + 2 * 4 * 16
    assert found.working_set_bytes == F32 * (4 * 8 + 8 * 16 + 2 * 4 * 16)
