"""The layout cost model, and the NHWC layouts that the pass chooses by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cpu.backend import CpuBackend
from rlx.backends.cpu.kernels import CONVOLUTIONS
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.cost.layout_cost import (
    LayoutCost,
    inner_results,
    is_nhwc,
    layout_cost,
    nhwc_layout,
)
from rlx.cost.target import Target
from rlx.cost.terms import Terms
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, Node
from rlx.passes.layout import NHWC_LAYOUT
from rlx.passes.options import FusionOptions
from rlx.pipeline import CompilePipeline, CompileResult

LANES = 16
TARGET = CpuBackend("avx512").target()
TERMS = Terms(TARGET)


def conv(
    out: int, channels: int, size: int, taps: int = 3, dtype: DType = DType.F32, groups: int = 1
) -> Node:
    """A convolution whose result is as large as its image."""
    g = Graph("conv")
    x, w = (
        g.input("x", Shape([1, channels, size, size], dtype)),
        g.param("w", Shape([out, channels // groups, taps, taps], dtype)),
    )
    return ops.conv(x, w, padding=(taps // 2,) * 4, groups=groups)


def cost_of(node: Node, image: bool, result: bool, terms: Terms = TERMS) -> LayoutCost:
    """The cost of an NHWC or NCHW image and result."""
    plain = [Layout.contiguous(i.shape.dims) for i in node.inputs]
    seen = nhwc_layout(node.inputs[0].shape) if image else plain[0]
    made = nhwc_layout(node.shape) if result else Layout.contiguous(node.shape.dims)
    return layout_cost(node, [seen, *plain[1:]], [made], terms)


def test_idle_lanes_cost_as_much_as_full_ones() -> None:
    """7 of 16 lanes over the image's width; all of them over 512 channels."""
    node = conv(512, 512, 7)
    addresses = CONVOLUTIONS.instructions_per_window + 9 * CONVOLUTIONS.instructions_per_tap
    flops, found = TERMS.flops_of(node), 49 * addresses * 2 * LANES
    assert cost_of(node, True, True) == LayoutCost(flops=found)
    assert cost_of(node, False, False).flops >= flops * 9 // 7
    narrow = conv(17, 16, 64, 1)
    assert cost_of(narrow, True, True).flops == TERMS.flops_of(narrow) * 15 // 17


def test_an_image_in_the_other_layout_is_transposed_once() -> None:
    node = conv(64, 32, 64)
    size = TERMS.bytes_of(node.inputs[0].shape)
    assert cost_of(node, False, True) - cost_of(node, True, True) == LayoutCost(
        transposed_bytes=2 * size
    )
    bordered = 32 * 66 * 66 * 4
    assert cost_of(node, False, False).sequential_bytes == size + bordered
    assert cost_of(node, True, False).transposed_bytes == size + bordered
    one = conv(64, 32, 64, 1)
    assert cost_of(one, False, False) == LayoutCost(sequential_bytes=2 * size)
    assert cost_of(one, True, False) == LayoutCost(transposed_bytes=2 * size)


def test_nchw_images_are_reloaded_for_each_register_tile() -> None:
    """Tiles of four vectors by six accumulator rows: one number for six products."""
    node = conv(64, 32, 64)
    assert cost_of(node, False, False).reload_bytes == TERMS.flops_of(node) // 12 * 4
    assert cost_of(node, False, True).reload_bytes == 0


@pytest.mark.parametrize(
    ("isa", "lanes", "rows"), [("avx512", 16, 6), ("avx2", 8, 6), ("neon", 4, 6), ("sse2", 4, 4)]
)
def test_layouts_are_priced_by_the_registers_of_the_instruction_set(
    isa: str, lanes: int, rows: int
) -> None:
    """Rows of 4 vectors: where registers hold 6 × 4 accumulators a tile reads a vector for 6
    products, as 6 × 2 do in 16 registers; without multiply-adds 4 × 2 are left."""
    terms = Terms(CpuBackend(isa).target())
    node = conv(64, 32, 4 * lanes)
    nchw = cost_of(node, False, False, terms)
    assert nchw.reload_bytes == terms.flops_of(node) // (2 * rows) * 4
    assert nchw.flops == 0
    addresses = CONVOLUTIONS.instructions_per_window + 9 * CONVOLUTIONS.instructions_per_tap
    assert cost_of(node, True, True, terms).flops == (4 * lanes) ** 2 * addresses * 2 * lanes


def test_rows_of_three_vectors_fit_tiles_of_three_only_in_32_registers() -> None:
    """16 registers hold 8 × 1 then: 8 broadcasts and a load that crosses a cache line, counted
    twice, are 2 more than its multiply-adds."""
    for isa, lanes, extra in (("avx512", 16, 0), ("avx2", 8, 2), ("neon", 4, 0), ("sse2", 4, 2)):
        terms, node = Terms(CpuBackend(isa).target()), conv(64, 32, 3 * lanes)
        assert cost_of(node, False, False, terms).flops == terms.flops_of(node) * extra // 8


def test_int8_products_of_nchw_images_are_widened_where_dot_products_would_not_be() -> None:
    g = Graph("int8")
    x, w = (
        g.input("x", Shape([1, 32, 64, 64], DType.U8)),
        g.param("w", Shape([64, 32, 3, 3], DType.I8)),
    )
    node = ops.conv_integer(x, w, padding=(1, 1, 1, 1))
    for isa, factor in (("avx512", 2), ("neon", 0)):
        terms = Terms(CpuBackend(isa).target())
        assert cost_of(node, False, False, terms).flops == factor * terms.flops_of(node)


def test_an_operand_with_another_unit_stride_axis_is_transposed() -> None:
    g = Graph("sum")
    x, y = (g.input(n, Shape([1, 32, 8, 8])) for n in "xy")
    node, size = ops.add(x, y), 4 * 32 * 64
    plain, nhwc = Layout.contiguous(x.shape.dims), nhwc_layout(x.shape)
    assert layout_cost(node, [plain, plain], [plain], TERMS) == LayoutCost()
    assert layout_cost(node, [nhwc, nhwc], [nhwc], TERMS) == LayoutCost()
    across = layout_cost(node, [plain, nhwc], [plain], TERMS)
    assert across == LayoutCost(sequential_bytes=-2 * size, transposed_bytes=2 * size)


def test_a_transposing_copy_is_priced_as_one_and_a_slice_is_not() -> None:
    g = Graph("copies")
    x = g.input("x", Shape([64, 32]))
    plain = Layout.contiguous(x.shape.dims)
    nhwc, kept = ops.transpose(x, perm=(1, 0)), ops.narrow(x, axis=0, start=0, length=8)
    for node, bytes_ in ((nhwc, 2 * 4 * 64 * 32), (kept, 0)):
        made = [Layout.contiguous(node.shape.dims)]
        assert layout_cost(node, [plain], made, TERMS).transposed_bytes == bytes_


def test_a_transpose_at_the_end_of_a_region_permutes_its_stores() -> None:
    g = Graph("region")
    body = Graph("body")
    x = body.input("v0", Shape([1, 8, 4, 4]))
    body.set_outputs([ops.transpose(ops.relu(x), perm=(0, 2, 3, 1))])
    node = g.node("region", (g.input("x", x.shape),), {"body": body})
    (inner,) = inner_results(node, [Layout.contiguous(node.shape.dims)])
    assert inner.dims == x.shape.dims
    assert is_nhwc(inner)


def test_matrix_instructions_read_windows_as_runs_of_channels() -> None:
    """An NCHW image is transposed by a kernel of its own, whatever the layout of the result."""
    terms, half = Terms(Target.of("cuda")), conv(64, 32, 64, dtype=DType.BF16)
    moved = LayoutCost(transposed_bytes=2 * terms.bytes_of(half.inputs[0].shape), launches=1)
    for result in (True, False):
        assert cost_of(half, False, result, terms) == moved
        assert cost_of(half, True, result, terms) == LayoutCost()


def test_loops_on_gpus_follow_the_layout_of_depthwise_convolutions_alone() -> None:
    terms = Terms(Target.of("rocm"))
    depthwise = conv(32, 32, 64, dtype=DType.BF16, groups=32)
    size = terms.bytes_of(depthwise.shape)
    assert cost_of(depthwise, True, True, terms) == LayoutCost()
    assert cost_of(depthwise, True, False, terms) == LayoutCost(transposed_bytes=2 * size)
    full = conv(64, 32, 64)
    assert cost_of(full, False, False, terms) == LayoutCost()
    assert cost_of(full, True, True, terms).transposed_bytes == 3 * terms.bytes_of(full.shape)


def test_layout_cost_is_priced_at_the_targets_rates() -> None:
    work = LayoutCost(1000, 2000, 3000, 4000, launches=5)
    far, machine = 1 << 40, TARGET.machine
    want = (
        1000 / machine.gflops(DType.F32)
        + 2000 / machine.gate.memory_gb_s
        + 3000 / min(machine.transpose_gb_s, machine.gate.memory_gb_s)
        + 4000 / machine.memory_gb_s(1 << 17)
        + 5 * machine.gate.dispatch_ns
    )
    assert work.ns(machine, far, DType.F32) == pytest.approx(want, rel=1e-12)


# -- the pass --------------------------------------------------------------------------------------


def network(out: int, size: int) -> Graph:
    g = Graph("net")
    x = g.input("x", Shape([1, 64, size, size]))
    w, v = g.param("w", Shape([out, 64, 1, 1])), g.param("v", Shape([out, out, 1, 1]))
    g.set_outputs([ops.mean(ops.conv(ops.relu(ops.conv(x, w)), v), axes=(2, 3))])
    return g


def transposing_at(gb_s: float) -> Target:
    return replace(TARGET, machine=replace(TARGET.machine, transpose_gb_s=gb_s))


def compiled(graph: Graph, target: Target = TARGET, **options: object) -> CompileResult:
    given = FusionOptions(**options)  # pyright: ignore[reportArgumentType]
    return CompilePipeline(target, options=given).compile_graph(graph)


def test_wide_convolutions_become_nhwc_and_narrow_ones_stay_nchw() -> None:
    wide, narrow = (
        [d for d in compiled(network(*n)).decisions if d.what == NHWC_LAYOUT]
        for n in ((256, 7), (17, 96))
    )
    assert wide
    assert all(d.verdict and d.predicted_ns > 0 and d.kind == "layout" for d in wide)
    assert narrow
    assert not any(d.verdict for d in narrow)
    assert all(d.predicted_ns < 0 and d.is_reversible for d in narrow)
    assert all("vectorises" in d.reason and "would cost" in d.reason for d in narrow)


def test_a_refused_layout_can_be_forced_and_computes_the_same() -> None:
    """Sums of some hundred products of about ⅛, twice, in another order: each rounding is at most
    2⁻²⁴ of a sum of about 10, and hundreds of them stay below 1e-4."""
    graph = network(17, 12)
    target = transposing_at(1e-3)
    ids = [
        d.id for d in compiled(graph, target).decisions if d.what == NHWC_LAYOUT and not d.verdict
    ]
    assert ids
    made = compiled(graph, target, force={ids[0]: True})
    assert any(n.op == "transpose" for n in made.lir.mir.graph.order())
    rng = np.random.default_rng(0)
    params = {
        p.attrs["name"]: rng.normal(size=p.shape.static_dims).astype(np.float32) / 8
        for p in graph.params
    }
    x = rng.normal(size=(1, 64, 12, 12)).astype(np.float32)
    (want,) = evaluate(graph, {"x": x, **params})
    (got,) = evaluate(made.lir.mir.graph, {"x": x, **params})
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_prices_decide() -> None:
    """The same network, where a transposing copy costs next to nothing, and where it costs a
    lot."""
    g = Graph("net")
    x, w = g.input("x", Shape([1, 64, 24, 24])), g.param("w", Shape([64, 64, 3, 3]))
    g.set_outputs([ops.mean(ops.relu(ops.conv(x, w)), axes=(2, 3))])
    for rate, verdict in ((1e3, True), (1e-3, False)):
        report = compiled(g, transposing_at(rate)).decisions
        assert [d.verdict for d in report if d.what == NHWC_LAYOUT] == [verdict]


def test_layouts_taken_and_refused_are_replayed() -> None:
    for size in ((256, 7), (17, 96)):
        report = rlx.explain(network(*size), "cpu")
        assert any(d.what == NHWC_LAYOUT for d in report.decisions)
        assert rlx.explain.replay(network(*size), report.to_json()).digest() == report.graph
