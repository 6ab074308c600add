"""Contractions and convolutions on matrix instructions, run by the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.gpu.lower.contraction.launch import any_mma_schedule, mma_schedule
from rlx.backends.gpu.lower.contraction.mma import emit
from rlx.backends.gpu.lower.contraction.wgmma import emit as emit_wgmma
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule import wgmma
from rlx.backends.gpu.schedule.contraction import read_halves
from rlx.backends.gpu.schedule.mma import ELEMENTWISE, TILES, MmaSchedule, choose
from rlx.backends.gpu.schedule.product import Product, product_of
from rlx.backends.gpu.schedule.wgmma import WgmmaSchedule
from rlx.backends.gpu.schedule.windows import WindowOperand, window_operand
from rlx.backends.gpu.task import GpuTask, Launch
from rlx.core.dim import evaluate, substitute
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate as interpreted
from rlx.ir.mir import Graph, Node
from rlx.kernel.contract import Contract
from rlx.kernel.interpret import run_into
from rlx.kernel.lower.contract import contraction
from rlx.kernel.lower.conv import lower_conv
from rlx.kernel.lower.narrow_conv import lower_narrow_conv
from rlx.kernel.lower.nhwc_conv import lower_nhwc_conv
from rlx.kernel.program.schedule import Buffer, Schedule
from rlx.kernel.refusal import Refusal
from rlx.kernel.substitute import with_dims
from rlx.pipeline import CompilePipeline
from rlx.program import nodes as ir
from rlx.program.interpret.run import launch
from rlx.program.parse import parse
from rlx.program.text import text
from rlx.program.verify import verify
from tests.backend.gpu.regions import (
    BF16,
    BLOCK,
    F16,
    F32,
    Case,
    M,
    N,
    block,
    heads,
    of,
    reversed_rows,
    strided,
    transposed,
    two_results,
)
from tests.backend.gpu.simulated_backend import SimulatedBackend, differences, outputs
from tests.backend.gpu.test_loop import assert_close

Array = np.ndarray[Any, Any]
MACHINE = GpuMachine(
    tiles=frozenset({"mma"}), has_async_copy=True, shared_bytes=227 << 10, processors=4
)
DEPENDENT = replace(MACHINE, has_dependent_launch=True)
B = rlx.Dim("b", 0, 500)


def scaled(x: Node, w: Node, scale: Node) -> Node:
    """Weights of 8 bits as half floats in the loader."""
    return ops.matmul(ops.exp(x), ops.cast(ops.mul(ops.cast(w, to=F32), scale), to=BF16))


def rows_of(ids: Node, table: Node, w: Node) -> Node:
    return ops.matmul(ops.embedding(table, ids), w)


def narrow_heads(x: Node, w: Node) -> Node:
    rows = ops.reshape(ops.transpose(x, perm=(0, 2, 1, 3)), dims=(2 * M, 32))
    made = ops.reshape(ops.matmul(rows, w), dims=(2, M, 3, 8))
    return ops.transpose(made, perm=(0, 2, 1, 3))


SIZES = ({"m": 1, "n": 1}, {"m": 33, "n": 70})
CASES: dict[str, Case] = {
    **{f"block {d.value}": Case(block, of(d, *BLOCK), SIZES) for d in (F16, BF16)},
    "aligned": Case(block, of(BF16, (M, 72), (72, 48), (48,), (M, 48)), ({"m": 130},)),
    "aligned, weights by columns": Case(
        block, of(BF16, (M, 72), (72, 40), (40,), (M, 40)), ({"m": 70},), {1: transposed}
    ),
    "left by columns": Case(
        block, of(F16, (40, 72), (72, 24), (24,), (40, 24)), operands={0: transposed}
    ),
    "result by columns": Case(
        block, of(BF16, (40, 72), (72, 24), (24,), (40, 24)), results={0: transposed}
    ),
    "units of 4": Case(block, of(BF16, (33, 36), (36, 20), (20,), (33, 20))),
    "strided": Case(
        block, of(BF16, *BLOCK), ({"m": 19, "n": 41},), {0: strided, 1: reversed_rows, 3: strided}
    ),
    "batch": Case(
        block, of(BF16, (B, 1, M, 8), (2, 8, N), (2, 1, N), (M, N)),
        ({"b": 2, "m": 17, "n": 3}, {"b": 1, "m": 1, "n": 33}),
    ),
    "rows of a batch": Case(
        block, of(BF16, (B, M, 16), (16, 24), (24,), (M, 24)), ({"b": 3, "m": 19},)
    ),
    "two results": Case(two_results, of(BF16, (M, 37), (37, N), (M, 1)), SIZES),
    "computed operands": Case(
        scaled, (Shape([M, 37], BF16), Shape([37, N], DType.I8), Shape([N])), SIZES
    ),
    "computed, aligned": Case(
        scaled, (Shape([M, 40], BF16), Shape([40, 32], DType.I8), Shape([32])), ({"m": 35},)
    ),
    "heads": Case(heads, of(BF16, (2, 4, M, 5), (20, 21)), ({"m": 3}, {"m": 19})),
    "aligned heads": Case(narrow_heads, of(BF16, (2, 4, M, 8), (32, 24)), ({"m": 19},)),
    "gathered": Case(
        rows_of, (Shape([20], DType.I64), *of(BF16, (5, 16), (16, 8))),
        special=tuple(i % 5 for i in range(20)),
    ),
    "nothing to sum": Case(ops.matmul, of(BF16, (20, 0), (0, 8))),
    "one to sum": Case(ops.matmul, of(BF16, (20, 1), (1, 8))),
}  # fmt: skip


def contract_of(case: Case) -> Contract:
    node = case.node()
    return contraction(node, *case.layouts(node))


def product(contract: Contract) -> Product:
    made = product_of(contract)
    assert isinstance(made, Product), made
    return made


def run(
    contract: Contract, made: Schedule[GpuTask], given: list[Array], sizes: Mapping[str, int]
) -> list[Array]:
    """The results of the launches, on flat buffers."""
    shapes = [s.bind(sizes) for s in contract.results]
    results = [np.full(int(np.prod(s.static_dims)), 3, s.dtype.numpy) for s in shapes]
    temps = [np.zeros(evaluate(t, sizes), np.uint8) for t in made.temps]
    packed = [np.zeros(evaluate(p.size, sizes), np.uint8) for p in made.packed]
    tasks = [(p.task, packed[i : i + 1]) for i, p in enumerate(made.packed)]
    for task, made_by in (*tasks, *((t, results) for t in made.tasks)):
        assert isinstance(task, Launch)
        program = verify(task.program())
        arrays = {"operand": given, "result": made_by, "temp": temps, "packed": packed}
        buffers = {n: arrays[b.kind][b.index] for n, b in zip(task.names, task.buffers)}
        for name, array in buffers.items():
            dtype = program.buffer(name).dtype.numpy
            buffers[name] = array if array.dtype == dtype else array.view(dtype)
        if program.failures:
            buffers["failures"] = np.zeros(1, np.int32)
        launch(program, buffers, sizes)
    return results


def check(
    contract: Contract, made: Schedule[GpuTask], given: list[Array], sizes: Mapping[str, int]
) -> None:
    """Against the loop nest that the contraction means."""
    got = run(contract, made, given, sizes)
    want = [np.full(a.shape, 3, a.dtype) for a in got]
    run_into(contract.kernel(), given, want, sizes)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b)


def scheduled(contract: Contract, machine: GpuMachine = MACHINE) -> Schedule[GpuTask]:
    made = mma_schedule(contract, machine, "product", frozenset({1}))
    assert isinstance(made, Schedule), made
    return made


@pytest.mark.parametrize("name", CASES)
def test_a_product_computes_what_its_loops_mean(name: str) -> None:
    case = CASES[name]
    contract = contract_of(case)
    made = scheduled(contract, DEPENDENT)
    for sizes in case.sizes:
        check(contract, made, case.data(sizes), sizes)


ALL = [
    *(MmaSchedule(r, c, 64 if r * c < 128 * 128 else 32, 3, w) for r, c, w in TILES),
    *(MmaSchedule(r, c, 32, 2, w) for r, c, w in ELEMENTWISE),
    MmaSchedule(16, 32, 128, 4, (1, 1, 4)),
]


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: s.text)
def test_every_tile_computes_the_same(schedule: MmaSchedule) -> None:
    """Rows, columns and inner positions that no tile divides, in at least two tiles each."""
    rows, columns, depth = schedule.rows + 9, schedule.columns + 8, 2 * schedule.depth + 24
    dims = (rows, depth), (depth, columns), (columns,), (rows, columns)
    case = Case(block, of(BF16, *dims), operands={1: transposed} if rows % 2 else {})
    contract = contract_of(case)
    program = verify(emit(product(contract), schedule, "product"))
    given = case.data({})
    got = np.zeros(rows * columns, given[0].dtype)
    launch(program, {**{f"x{i}": a for i, a in enumerate(given)}, "y0": got})
    want = np.zeros_like(got)
    run_into(contract.kernel(), given, [want], {})
    assert_close(got, want)


@pytest.mark.parametrize(
    ("rows", "columns", "splits", "warps", "depths"),
    [
        (32, 32, 4, (2, 1, 2), (40, 200, 1000)),
        (16, 32, 2, (1, 2, 1), (40, 200)),
        (128, 128, 4, (2, 2, 1), (200,)),
    ],
)
def test_blocks_of_a_cluster_share_the_inner_positions(
    rows: int, columns: int, splits: int, warps: tuple[int, int, int], depths: tuple[int, ...]
) -> None:
    """Some of them have no step at all."""
    schedule = MmaSchedule(rows, columns, 64, 3, warps, splits, is_dependent=True)
    for depth in depths:
        case = Case(block, of(BF16, (40, depth), (depth, 40), (40,), (40, 40)))
        contract = contract_of(case)
        program = verify(emit(product(contract), schedule, "product"))
        given = case.data({})
        got = np.zeros(40 * 40, given[0].dtype)
        launch(program, {**{f"x{i}": a for i, a in enumerate(given)}, "y0": got})
        want = np.zeros_like(got)
        run_into(contract.kernel(), given, [want], {})
        assert_close(got, want)


# -- convolutions ---------------------------------------------------------------------------------


def convolved(**attrs: Any) -> Any:
    def build(x: Node, w: Node, bias: Node, *residual: Node) -> Node:
        made = ops.conv(x, w, bias, **attrs)
        return ops.maximum(ops.add(made, *residual) if residual else made, 0.0)

    return build


def channels_last(shape: Shape) -> Layout:
    n, c, *places = shape.dims
    last = len(places) + 1
    return Layout.contiguous((n, *places, c)).permuted((0, last, *range(1, last)))


def convolution(channels: int, made: int, size: int = 3, groups: int = 1, **attrs: Any) -> Case:
    x, w = (2, channels, 7, 9), (made, channels // groups, size, size)
    build = convolved(groups=groups, **attrs)
    nhwc = {0: channels_last, 1: channels_last}
    return Case(build, of(BF16, x, w, (made,)), operands=nhwc, results={0: channels_last})


CONVOLUTIONS = {
    "padded": convolution(16, 24, padding=(1, 1, 1, 1)),
    "strided": convolution(8, 16, stride=(2, 2), padding=(1, 1, 1, 1)),
    "dilated": convolution(8, 16, dilation=(2, 1), padding=(2, 0, 1, 0)),
    "one tap": convolution(24, 32, size=1, stride=(2, 2)),
    "few channels": convolution(3, 16, size=5, padding=(2, 2, 2, 2)),
    "groups": convolution(32, 64, groups=2, padding=(1, 1, 1, 1)),
    "one channel of each group": convolution(9, 3, groups=3, padding=(1, 0, 1, 0)),
}


@pytest.mark.parametrize("is_nhwc", [True, False], ids=["nhwc", "nchw"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_an_implicit_product(name: str, is_nhwc: bool) -> None:
    case = CONVOLUTIONS[name]
    case = case if is_nhwc else replace(case, operands={}, results={})
    node = case.node()
    lower = lower_nhwc_conv if is_nhwc else lower_conv
    made = lower(node, *case.layouts(node))
    assert not isinstance(made, Refusal), made
    image, contract = made
    given = case.data({})
    if image is not None:
        given.append(np.zeros(int(np.prod(image.results[0].static_dims)), given[0].dtype))
        run_into(image, given[:-1], given[-1:], {})
    found = any_mma_schedule(contract, DEPENDENT, "convolution", frozenset({1}))
    assert isinstance(found, Schedule), found
    check(contract, found, given, {})


@pytest.mark.parametrize(("stride", "channels"), [(2, 4), (1, 4), (4, 3)])
def test_few_channels_are_written_down_so_that_rows_of_windows_are_copied(
    stride: int, channels: int
) -> None:
    """RGB images with their borders: blocks of what a window moves by are multiples of 16 bytes."""
    build = convolved(stride=(2, stride), padding=(2, 1, 0, 3))
    case = Case(build, of(BF16, (2, 3, 9, 11), (16, 3, 3, 5), (16,)))
    node = case.node()
    made = lower_narrow_conv(node, *case.layouts(node), 8)
    assert not isinstance(made, Refusal), made
    image, contract = made
    assert image.results[0].dims[-1] == channels
    given = case.data({})
    given.append(np.zeros(int(np.prod(image.results[0].static_dims)), given[0].dtype))
    run_into(image, given[:-1], given[-1:], {})
    found = any_mma_schedule(contract, DEPENDENT, "convolution", frozenset({1}))
    assert isinstance(found, Schedule), found
    assert found.packed
    check(contract, found, given, {})
    got = np.zeros(int(np.prod(node.shape.static_dims)), given[0].dtype)
    run_into(contract.kernel(), given, [got], {})
    shaped = {f"v{i}": a.reshape(s.static_dims) for i, (a, s) in enumerate(zip(given, case.shapes))}
    (want,) = interpreted(node.attrs["body"], shaped)
    assert_close(got, want.ravel())


def test_kernels_that_are_stored_by_channel_are_packed_once() -> None:
    """Images are NHWC and kernels OIHW: their product goes along taps, then channels."""
    case = replace(CONVOLUTIONS["padded"], operands={0: channels_last})
    node = case.node()
    made = lower_nhwc_conv(node, *case.layouts(node))
    assert not isinstance(made, Refusal)
    schedule = any_mma_schedule(made[1], DEPENDENT, "convolution", frozenset({1}))
    assert isinstance(schedule, Schedule)
    assert [p.size for p in schedule.packed] == [24 * 16 * 9 * 2]
    (task,) = schedule.tasks
    assert Buffer("packed", 0) in task.buffers
    check(made[1], schedule, case.data({}), {})


def test_a_depthwise_convolution_of_nhwc_images_is_one_loop_nest() -> None:
    """Neither is the image copied, nor are filters read number by number."""
    graph = Graph("net")
    x = graph.input("x", Shape([2, 16, 6, 5], BF16))
    shapes = {"k0": (16, 16, 1, 1), "k1": (16, 1, 3, 3), "k2": (8, 16, 1, 1)}
    weights = [graph.param(n, Shape(d, BF16)) for n, d in shapes.items()]
    hidden = ops.maximum(ops.conv(x, weights[0]), 0.0)
    hidden = ops.conv(hidden, weights[1], groups=16, padding=(0, 1, 2, 1), stride=(1, 2))
    graph.set_outputs([ops.conv(hidden, weights[2])])
    rng = np.random.default_rng(5)
    values = {n: rng.normal(size=d) for n, d in {"x": (2, 16, 6, 5), **shapes}.items()}
    given = {n: v.astype(BF16.numpy) for n, v in values.items()}
    backend = SimulatedBackend(MACHINE)
    program = backend.program(CompilePipeline(backend.target()).compile(graph).lir)
    (found,) = (s for s in program.sequences if "thread" in s.schedule.tasks[0].text({})
                and len(s.schedule.packed) == 1)  # fmt: skip
    assert len(found.schedule.tasks) == 1
    assert not differences(graph, given, outputs(graph, given, backend))


def test_images_of_halves_that_are_widened_are_read_as_halves() -> None:
    """As where the options ask for bf16: nothing is written down in f32, filters are packed."""

    def build(x: Node, w: Node) -> Node:
        return ops.conv(ops.cast(x, to=F32), ops.cast(w, to=F32), padding=(1, 1, 1, 1))

    case = Case(build, of(BF16, (2, 16, 5, 6), (24, 16, 3, 3)), operands={0: channels_last})
    node = case.node()
    made = lower_nhwc_conv(node, *case.layouts(node), read_halves)
    assert not isinstance(made, Refusal)
    assert made[0] is None
    found = any_mma_schedule(made[1], DEPENDENT, "convolution", frozenset({1}))
    assert isinstance(found, Schedule), found
    assert [p.size for p in found.packed] == [24 * 16 * 9 * 2]
    check(made[1], found, case.data({}), {})


def test_one_image_of_a_named_batch_is_a_product_like_any_other() -> None:
    """Its axis of images has one step, and still is in the index maps."""
    case = Case(
        convolved(padding=(1, 1, 1, 1)), of(BF16, (M, 16, 5, 6), (24, 16, 3, 3), (24,)),
        operands={0: channels_last}, results={0: channels_last},
    )  # fmt: skip
    node = case.node()
    made = lower_nhwc_conv(node, *case.layouts(node))
    assert not isinstance(made, Refusal)
    contract = with_dims(made[1], lambda d: substitute(d, {"m": 1}))
    assert any(a.extent == 1 for s in contract.stores for a in s.at.axes)
    found = any_mma_schedule(contract, DEPENDENT, "convolution", frozenset({1}))
    assert isinstance(found, Schedule), found
    check(contract, found, case.data({"m": 1}), {})


def test_windows_of_contiguous_channels_are_copied_asynchronously() -> None:
    case = CONVOLUTIONS["padded"]
    node = case.node()
    made = lower_nhwc_conv(node, *case.layouts(node))
    assert not isinstance(made, Refusal)
    found = product(made[1])
    assert [x.unit for x in (found.left, found.right)] == [8, 8]
    assert found.left.guards
    assert len(found.rows) == 3
    program = emit(found, ALL[-1], "conv")
    copied = {n.buffer for n in program.nodes if isinstance(n, ir.AsyncCopy)}
    assert copied == {"x0", "x1"}


# -- choices --------------------------------------------------------------------------------------


def test_constant_weights_are_requested_before_the_kernels_before_are_done() -> None:
    (task,) = scheduled(contract_of(CASES["aligned"]), DEPENDENT).tasks
    assert isinstance(task, Launch)
    nodes = list(task.program().nodes)
    wait = next(i for i, n in enumerate(nodes) if isinstance(n, ir.WaitDependencies))
    early = {n.buffer for n in nodes[:wait] if isinstance(n, ir.AsyncCopy)}
    late = {n.buffer for n in nodes[wait:] if isinstance(n, ir.AsyncCopy)}
    assert (early, late) == ({"x1"}, {"x0"})
    biases = [i for i, n in enumerate(nodes) if isinstance(n, ir.Load) and n.buffer == "x2"]
    assert not biases or max(biases) > wait  # it is no constant here


def test_tiles_grow_with_the_product() -> None:
    def tile(rows: int, columns: int) -> tuple[int, int]:
        case = Case(ops.matmul, of(BF16, (rows, 1024), (1024, columns)))
        made = choose(product(contract_of(case)), replace(MACHINE, processors=132))
        assert made is not None
        return made.rows, made.columns

    assert tile(4096, 4096) == (128, 128)
    assert tile(128, 384)[0] <= 32


@pytest.mark.parametrize(
    ("case", "machine", "why"),
    [
        (Case(ops.matmul, of(F32, (32, 8), (8, 8))), MACHINE, "half-precision"),
        (Case(ops.matmul, of(BF16, (16, 8), (8, 8))), MACHINE, "at most 16 rows"),
        (Case(ops.matmul, of(BF16, (3, 1, 8), (3, 8, 1))), MACHINE, "neither rows nor columns"),
        (Case(ops.matmul, of(BF16, (32, 8), (8, 8))), GpuMachine(), "no matrix instructions"),
        (
            Case(ops.matmul, of(BF16, (32, 8), (8, 8))),
            replace(MACHINE, shared_bytes=1024),
            "do not fit shared memory",
        ),
    ],
)
def test_what_it_is_not_made_for_is_refused(case: Case, machine: GpuMachine, why: str) -> None:
    made = mma_schedule(contract_of(case), machine, "product", frozenset())
    assert isinstance(made, Refusal)
    assert why in made.reason


# -- matrix instructions of four warps ------------------------------------------------------------

HOPPER = replace(DEPENDENT, tiles=frozenset({"mma", "wgmma"}), has_bulk_copy=True, processors=2)


def by_groups(contract: Contract, columns: int = 128) -> tuple[Product, WgmmaSchedule]:
    found = product(contract)
    made = wgmma.choose(found, HOPPER, frozenset({1}))
    assert isinstance(made, WgmmaSchedule), made
    return found, replace(made, columns=columns, stages=2, groups=2, storing=0)


BULK = {
    "weights by columns": Case(
        block, of(BF16, (M, 136), (136, 136), (136,), (M, 136)), ({"m": 140},),
        {1: transposed},
    ),
    "weights by rows": Case(block, of(F16, (M, 72), (72, 136), (136,), (M, 136)), ({"m": 130},)),
    "left by columns": Case(
        block, of(BF16, (136, 72), (72, 24), (24,), (136, 24)), operands={0: transposed}
    ),
    "f32 sums": Case(
        lambda x, w: ops.cast(ops.matmul(ops.cast(x, to=F32), ops.cast(w, to=F32)), to=F32),
        of(BF16, (130, 64), (64, 72)),
    ),
    "batch": Case(ops.matmul, of(BF16, (3, 40, 64), (3, 64, 24))),
    "batch, any depth": Case(
        ops.matmul, of(BF16, (3, 40, 72), (3, 72, 24)), operands={1: transposed}
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "columns", "groups", "storing", "blocks"),
    [
        *((n, 128, 1, 0, 2) for n in BULK if n != "f32 sums"),
        ("f32 sums", 64, 2, 4, 1),
        ("weights by columns", 192, 2, 6, 1),
        ("weights by rows", 256, 2, 3, 2),
    ],
)
def test_groups_of_four_warps_compute_what_the_loops_mean(
    name: str, columns: int, groups: int, storing: int, blocks: int
) -> None:
    case = BULK[name]
    contract = contract_of(case)
    found, schedule = by_groups(contract, columns)
    schedule = replace(schedule, groups=groups, storing=storing, blocks=blocks)
    for sizes in case.sizes:
        program = verify(emit_wgmma(found, schedule, "product"))
        given = case.data(sizes)
        (shape,) = (s.bind(sizes) for s in contract.results)
        got = np.full(int(np.prod(shape.static_dims)), 3, shape.dtype.numpy)
        want = got.copy()
        launch(program, {**{f"x{i}": a for i, a in enumerate(given)}, "y0": got}, sizes)
        run_into(contract.kernel(), given, [want], sizes)
        assert_close(got, want)


def test_weights_are_requested_before_the_kernels_before_are_done() -> None:
    found, schedule = by_groups(contract_of(BULK["weights by columns"]))
    nodes = list(emit_wgmma(found, schedule, "product").nodes)
    waits = [i for i, n in enumerate(nodes) if isinstance(n, ir.WaitDependencies)]
    early = {n.map for n in nodes[: waits[0]] if isinstance(n, ir.BulkCopy)}
    assert early == {"right_map"}
    stores = [i for i, n in enumerate(nodes) if isinstance(n, ir.Store)]
    assert len(waits) == 2  # of the thread that copies, and of all that store
    assert min(stores) > waits[1]


@pytest.mark.parametrize(("rows", "stores_apart"), [(8192, True), (128, False)])
def test_other_warps_store_where_blocks_have_several_tiles(rows: int, stores_apart: bool) -> None:
    case = Case(ops.matmul, of(BF16, (rows, 384), (384, 1152)))
    made = wgmma.choose(product(contract_of(case)), replace(HOPPER, processors=132))
    assert isinstance(made, WgmmaSchedule)
    assert (made.storing > 0) == stores_apart


def test_blocks_with_unlike_numbers_of_tiles_do_not_wait_for_each_other() -> None:
    """Two blocks, three tiles: each copies, multiplies and ends by itself."""
    case = Case(ops.matmul, of(BF16, (3, 65, 72), (3, 72, 1)), results={0: transposed})
    contract = contract_of(case)
    found, schedule = by_groups(contract, 64)
    assert (schedule.left, schedule.blocks) == (None, 2)
    given = case.data({})
    got = np.zeros(3 * 65, given[0].dtype)
    program = verify(emit_wgmma(found, replace(schedule, stages=3), "product"))
    launch(program, {"x0": given[0], "x1": given[1], "y0": got})
    want = np.zeros_like(got)
    run_into(contract.kernel(), given, [want], {})
    assert_close(got, want)


def backwards(
    axis: int, order: Callable[[Shape], Layout] = lambda s: Layout.contiguous(s.dims)
) -> Callable[[Shape], Layout]:
    """An axis that is read from its end."""

    def laid(shape: Shape) -> Layout:
        found, last = order(shape), shape.static_dims[axis] - 1
        strides = tuple(-s if i == axis else s for i, s in enumerate(found.strides))
        return Layout(found.dims, strides, found.strides[axis] * last)

    return laid


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("side", [0, 1])
def test_the_copy_engine_reads_nothing_backwards(axis: int, side: int) -> None:
    shapes = of(BF16, (2, 64, 64), (2, 64, 64))
    found = product(contract_of(Case(ops.matmul, shapes, operands={side: backwards(axis)})))
    operand = (found.left, found.right)[side]
    assert isinstance(made := wgmma.bulk_operand(found, operand), Refusal)
    assert "backwards" in made.reason
    images = backwards(2 * axis, channels_last)
    case = Case(
        convolved(padding=(1, 1, 1, 1)), of(BF16, (2, 64, 8, 9), (24, 64, 3, 3), (24,)),
        operands={0: images, 1: channels_last}, results={0: channels_last},
    )  # fmt: skip
    lowered = lower_nhwc_conv(node := case.node(), *case.layouts(node))
    assert not isinstance(lowered, Refusal)
    windows = window_operand(found := product(lowered[1]), found.left)
    assert isinstance(windows, Refusal)
    assert "backwards" in windows.reason


IMAGES = {
    "padded": ((2, 64, 8, 9), (24, 64, 3, 3), {"padding": (1, 1, 1, 1)}),
    "strided": ((3, 64, 9, 8), (72, 64, 4, 3), {"stride": (3, 2), "padding": (0, 2, 3, 0)}),
    "without a border": ((1, 64, 9, 8), (16, 64, 3, 2), {"dilation": (1, 2)}),
    "one tap": ((3, 64, 8, 9), (40, 64, 1, 1), {"stride": (2, 2)}),
    "rows": ((3, 128, 20), (16, 128, 5), {"stride": (2,), "padding": (2, 2)}),
    "volumes": ((2, 64, 3, 4, 3), (16, 64, 3, 1, 2), {"padding": (1, 0, 0, 1, 0, 1)}),
}
"""Images, filters, and how windows go along them."""


@pytest.mark.parametrize("name", IMAGES)
def test_windows_of_whole_lines_of_channels_are_boxes(name: str) -> None:
    """As the copy engine reads them, also where results are NCHW: windows are columns then."""
    image, filters, attrs = IMAGES[name]
    is_nhwc = name not in ("one tap", "rows")
    nhwc = {0: channels_last, 1: channels_last}
    shapes = of(BF16, image, filters, filters[:1])
    results = {0: channels_last} if is_nhwc else {}
    case = Case(convolved(**attrs), shapes, operands=nhwc, results=results)
    node = case.node()
    made = lower_nhwc_conv(node, *case.layouts(node))
    assert not isinstance(made, Refusal), made
    found, schedule = by_groups(made[1], 64)
    assert isinstance(schedule.left if is_nhwc else schedule.right, WindowOperand)
    program = verify(emit_wgmma(found, schedule, "conv"))
    assert text(parse(text(program))) == text(program)
    given = case.data({})
    got = np.full(int(np.prod(made[1].results[0].static_dims)), 3, given[0].dtype)
    want = got.copy()
    launch(program, {**{f"x{i}": a for i, a in enumerate(given)}, "y0": got})
    run_into(made[1].kernel(), given, [want], {})
    assert_close(got, want)


def test_one_window_is_no_box_of_them() -> None:
    """A product of one row: it has no axis that windows go along."""
    case = Case(convolved(), of(BF16, (1, 64, 3, 3), (24, 64, 3, 3), (24,)))
    case = replace(case, operands={0: channels_last, 1: channels_last})
    node = case.node()
    made = lower_nhwc_conv(node, *case.layouts(node))
    assert not isinstance(made, Refusal)
    assert made[0] is None
    found = any_mma_schedule(made[1], HOPPER, "convolution", frozenset({1}))
    assert isinstance(found, Schedule), found
    check(made[1], found, case.data({}), {})


@pytest.mark.parametrize("name", ["padded", "groups"])
def test_windows_are_copied_by_threads_beside_the_copy_engine(name: str) -> None:
    case = CONVOLUTIONS[name]
    node = case.node()
    made = lower_nhwc_conv(node, *case.layouts(node))
    assert not isinstance(made, Refusal)
    image, contract = made
    assert image is None
    found, schedule = by_groups(contract, 64)
    schedule = replace(schedule, stages=3)
    assert (schedule.left is None, schedule.right is None) == (True, False)
    program = verify(emit_wgmma(found, schedule, "conv"))
    given = case.data({})
    got = np.full(int(np.prod(contract.results[0].static_dims)), 3, given[0].dtype)
    want = got.copy()
    launch(program, {**{f"x{i}": a for i, a in enumerate(given)}, "y0": got})
    run_into(contract.kernel(), given, [want], {})
    assert_close(got, want)


def test_a_model_of_convolutions_and_products() -> None:
    """NCHW as it comes: images are transposed, kernels packed once, all on matrix instructions."""
    graph = Graph("net")
    x = graph.input("x", Shape([2, 8, 9, 7], BF16))
    shapes = {"k0": (16, 8, 3, 3), "k1": (24, 16, 1, 1), "w": (24, 8)}
    weights = {n: graph.param(n, Shape(d, BF16)) for n, d in shapes.items()}
    hidden = ops.maximum(ops.conv(x, weights["k0"], padding=(1, 1, 1, 1), stride=(2, 2)), 0.0)
    hidden = ops.conv(hidden, weights["k1"])
    rows = ops.reshape(ops.transpose(hidden, perm=(0, 2, 3, 1)), dims=(40, 24))
    graph.set_outputs([ops.matmul(rows, weights["w"])])
    rng = np.random.default_rng(3)
    values = {
        "x": rng.normal(size=(2, 8, 9, 7)),
        **{n: rng.normal(size=d) for n, d in shapes.items()},
    }
    given = {n: v.astype(BF16.numpy) for n, v in values.items()}
    backend = SimulatedBackend(MACHINE)
    program = backend.program(CompilePipeline(backend.target()).compile(graph).lir)
    texts = [t.text({}) for s in program.sequences for t in s.schedule.tasks]
    assert sum("matrix instructions" in t for t in texts) == 3, texts
    assert not differences(graph, given, outputs(graph, given, backend))
