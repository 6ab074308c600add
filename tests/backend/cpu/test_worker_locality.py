"""Workers on parts of memory of their own: strips of rows, rows of products, panels of kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import rlx
from rlx.backends.cpu.machine import CpuMachine
from rlx.core.layout import Layout
from rlx.cost.layout_cost import nhwc_layout
from rlx.kernel.collapse import collapsed
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Axis
from rlx.kernel.interpret import run
from rlx.kernel.lower.contract import contraction
from rlx.kernel.lower.nhwc_conv import lower_nhwc_conv

pytest.importorskip("llvmlite")

from rlx.backends.cpu.codegen.conv.implicit_gemm import is_panel_major
from rlx.backends.cpu.isa import AVX512, NEON, Isa, host
from rlx.backends.cpu.schedule.gemm_tiling import ROW_GROUPS, group_of, tiling_of
from rlx.backends.cpu.schedule.loop_schedule import choose
from rlx.backends.cpu.schedule.strip_mining import strip_mined
from tests.backend.cpu.kernels import Batch, Work
from tests.backend.cpu.test_loop_nests import Build, data, kernel_of

ops = rlx.ops
MACHINE = CpuMachine.of(host())
IMAGE = rlx.Shape((3, 64, 96), "f32")


def transposed(x: rlx.Node) -> rlx.Node:
    return ops.transpose(x, perm=(1, 2, 0))


def to_planes(x: rlx.Node) -> rlx.Node:
    return ops.relu(ops.transpose(x, perm=(2, 0, 1)))


STRIPS: list[tuple[Build, rlx.Shape]] = [
    (transposed, IMAGE),
    (transposed, rlx.Shape((2, 80, 80), "f32")),
    (transposed, rlx.Shape((3, 16, 100), "f16")),
    (to_planes, rlx.Shape((64, 64, 32), "f32")),
]


@pytest.mark.parametrize("number", range(len(STRIPS)))
def test_strips_are_the_parallel_loop_and_change_no_bits(number: int) -> None:
    build, shape = STRIPS[number]
    kernel = collapsed(kernel_of(build, shape))
    made = strip_mined(kernel, MACHINE)
    (outer,) = choose(made, MACHINE).parallel
    assert outer.name.endswith("_strip")
    arrays = data(shape)
    batch = Batch([Work(made, arrays, {})], host())
    for parts in (1, 3):
        code, (got,) = batch.run(0, parts)
        assert code == 0
        np.testing.assert_array_equal(got, run(kernel, arrays, {})[0])


def test_axes_of_reductions_stay_whole() -> None:
    kernel = collapsed(kernel_of(lambda x: ops.sum(x, axes=(0,)), rlx.Shape((3, 4096), "f32")))
    assert strip_mined(kernel, MACHINE) is kernel


def test_a_loop_of_few_iterations_is_not_the_parallel_one() -> None:
    kernel = kernel_of(lambda x: ops.pad(x, low=(0, 1, 1), high=(0, 1, 1)), IMAGE)
    order = choose(kernel, MACHINE).order
    assert [a.extent for a in order] == [66, 3, 98]


def product(rows: int, inner: int, columns: int) -> Contract:
    g = rlx.Graph("product")
    x = g.input("x", (rows, inner), "f32")
    return contraction(ops.matmul(x, g.param("w", (inner, columns), "f32")))


@pytest.mark.parametrize(("inner", "columns", "is_by_rows"), [(64, 256, True), (1024, 1024, False)])
def test_rows_are_split_over_workers_while_the_right_operand_stays_in_cache(
    inner: int, columns: int, is_by_rows: bool
) -> None:
    contract = product(3136, inner, columns)
    tiling = tiling_of(contract, AVX512, has_panels=True)
    blocks = -(-3136 // tiling.row_block)
    group = group_of(contract, tiling)
    assert isinstance(group, int)
    assert (group * ROW_GROUPS <= blocks) == is_by_rows


@pytest.mark.parametrize("isa", [AVX512, NEON], ids=lambda i: i.name)
def test_few_rows_are_one_tile(isa: Isa) -> None:
    contract = product(3, 32, 4096)
    assert tiling_of(contract, isa, has_panels=True).rows == (3,)
    assert tiling_of(replace(contract, rows=Axis("m", 49)), AVX512, has_panels=True).rows == (6, 1)


def graph_of(channels: int, made: int, side: int) -> rlx.Graph:
    g = rlx.Graph("conv")
    x = g.input("x", (1, channels, side, side), "f32")
    w = g.param("w", (made, channels, 3, 3), "f32")
    g.set_outputs([ops.relu(ops.conv(ops.relu(x), w, padding=(1, 1, 1, 1)))])
    return g


@pytest.mark.parametrize(("channels", "made"), [(64, 512), (48, 96)])
def test_convolutions_of_large_kernels_have_the_bits_of_any_number_of_threads(
    channels: int, made: int
) -> None:
    """The first one's kernels are 1.1 MB: its units are those of a panel, one after the other."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, channels, 7, 7)).astype(np.float32)
    w = rng.normal(size=(made, channels, 3, 3)).astype(np.float32)
    g = graph_of(channels, made, 7)
    each = [
        np.asarray(rlx.compile(g, params={"w": w}, target="cpu", threads=t)(x)) for t in (1, 2, 3)
    ]
    assert len({a.tobytes() for a in each}) == 1
    wide = {"w": w.astype(np.float64)}
    padded = np.pad(np.maximum(x, 0).astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    want = np.maximum(np.einsum("bcyxuv,ocuv->boyx", windows, wide["w"]), 0)
    size = np.einsum("bcyxuv,ocuv->boyx", windows, abs(wide["w"]))
    # chains of at most 128 additions, then their sums
    assert (abs(each[0] - want) <= 160 * 2.0**-24 * size).all()


def test_kernels_beyond_the_cache_are_read_panel_by_panel() -> None:
    def lowered(channels: int, made: int) -> Contract:
        found = lower_nhwc_conv(*conv_step(channels, made))
        assert isinstance(found, tuple)
        return found[1]

    assert is_panel_major(lowered(64, 512))
    assert not is_panel_major(lowered(64, 64))


def conv_step(channels: int, made: int) -> tuple[rlx.Node, list[Layout], list[Layout]]:
    g = rlx.Graph("conv")
    x = g.input("x", (1, channels, 7, 7), "f32")
    w = g.param("w", (made, channels, 3, 3), "f32")
    node = ops.conv(x, w, padding=(1, 1, 1, 1))
    layouts = [nhwc_layout(x.shape), Layout.contiguous(w.shape.dims)]
    return node, layouts, [nhwc_layout(node.shape)]
