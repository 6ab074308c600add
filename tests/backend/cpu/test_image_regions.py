"""Regions of images against the reference: bins past a vector, regions past the edge, bins without
points, values anywhere in memory."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cpu.backend import CpuBackend
from rlx.backends.cpu.isa import AVX2, NEON, SSE2, Isa, host
from rlx.backends.cpu.llvm.compile import assembled
from rlx.core.errors import Error
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.ops import op as table
from rlx.ops.draw import Draw
from tests.backend.cpu.kernels import assert_close
from tests.backend.cpu.steps import Steps, Trial, trials
from tests.backend.cpu.test_packed_weights import trial
from tests.effort import tries

OPS = ("roi_align", "max_roi_pool")


def drawn(op: str, first: int, stop: int) -> list[Trial]:
    draws = [Draw([zlib.crc32(f"regions {op}".encode()), i]) for i in range(first, stop)]
    return [t for d in draws for t in trials(d, d.case(table.lookup(op)))]


def check(given: list[Trial], isa: Isa) -> None:
    steps = Steps(given, isa)
    for i, one in enumerate(given):
        (got,), (again,), (want,) = steps.run(i), steps.run(i, "each"), one.wanted()
        assert got.tobytes() == again.tobytes(), f"{one}: parts differ"
        if one.node.op == "max_roi_pool":
            np.testing.assert_array_equal(got.astype("f8"), want.astype("f8"), str(one))
        else:
            assert_close(got, want, str(one))


def large(op: str, dtype: str = "f4", **attrs: Any) -> list[Trial]:
    """Regions inside, past the edges, empty and backwards, of images with NaN; by rows, and with
    channels side by side."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(2, 19, 37, 41)).astype(dtype)
    x[rng.random(x.shape) < 0.002] = np.nan
    rois = rng.uniform(-8, 50, (12, 4)).astype(dtype)
    rois[:6, 2:] = rois[:6, :2] + rng.uniform(0, 30, (6, 2))
    rois[6], rois[7] = (3, 4, 3, 4), (10, 10, 9, 9)
    images = rng.integers(0, 2, 12)
    made = trial(op, x, rois, images, **attrs)
    dims = x.shape[:1] + x.shape[2:] + x.shape[1:2]
    last = Layout.contiguous(dims).permuted((0, 3, 1, 2))
    k, c, *bins = made.node.shape.static_dims
    turned = Layout.contiguous((k, *bins, c)).permuted((0, 3, 1, 2))
    operands = (last, *made.operands[1:])
    return [made, Trial(made.node, operands, (turned,), made.arrays)]


@pytest.mark.parametrize("op", OPS)
def test_drawn_cases_are_as_the_reference(op: str) -> None:
    check(drawn(op, 0, tries(5, 12)), host())


@pytest.mark.filterwarnings("ignore:invalid value")
def test_regions_of_all_kinds() -> None:
    given: list[Trial] = []
    for mode in ("avg", "max"):
        for ratio, half in ((0, True), (2, False), (3, True)):
            given += large("roi_align", output_size=(7, 7), mode=mode, sampling_ratio=ratio,
                           half_pixel=half, spatial_scale=0.75)  # fmt: skip
    given += large("roi_align", "f8", output_size=(2, 3))
    given += large("roi_align", "f2", output_size=(1, 5), sampling_ratio=1)
    given += large("max_roi_pool", output_size=(7, 7))
    given += large("max_roi_pool", "f8", output_size=(1, 4), spatial_scale=0.5)
    given += large("max_roi_pool", "f2", output_size=(5, 2))
    check(given, host())


@pytest.mark.parametrize("isa", [AVX2, SSE2], ids=lambda i: i.name)
def test_other_instruction_sets(isa: Isa) -> None:
    given = [t for op in OPS for t in drawn(op, 12, 14)]
    check([*given, large("roi_align", output_size=(3, 7))[0]], isa)


def test_code_for_other_machines_assembles() -> None:
    steps = Steps([drawn(op, 12, 13)[0] for op in OPS], NEON, is_run=False)
    assert "ret" in assembled(steps.text, NEON)


@pytest.mark.parametrize("op", OPS)
def test_an_image_that_does_not_exist_is_an_error(op: str) -> None:
    x, rois = np.ones((1, 2, 4, 4), "f"), np.ones((2, 4), "f")
    one = trial(op, x, rois, np.array([0, 1]), output_size=(2, 2))
    with pytest.raises(Error, match="out of range"):
        Steps([one], host()).run(0)


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("dims", [(1, 2, 0, 4), (1, 2, 4, 0)])
def test_a_point_of_an_image_without_pixels_is_an_error(dims: tuple[int, ...], ratio: int) -> None:
    """As in the reference; a region without points reads nothing."""
    x, images = np.ones(dims, "f"), np.zeros(1, "i8")
    for roi, is_wrong in (((0, 0, 3, 3), True), ((3, 3, 3, 3), ratio > 0)):
        rois = np.array([roi], "f")
        one = trial("roi_align", x, rois, images, output_size=(2, 2), sampling_ratio=ratio,
                    sizes={"n": 0})  # fmt: skip
        if is_wrong:
            for run in (one.wanted, lambda one=one: Steps([one], host()).run(0)):
                with pytest.raises(Error, match="out of range"):
                    run()
        else:
            check([one], host())


@pytest.mark.parametrize("ratio", [0, 2])
def test_what_follows_is_a_loop_of_the_same_step(ratio: int) -> None:
    g = Graph("followed")
    shapes = (Shape((1, 8, 9, 9)), Shape((2, 4)), Shape((2,), "i64"), Shape((8, 1, 1)))
    x, rois, images, bias = (g.input(f"x{i}", s) for i, s in enumerate(shapes))
    aligned = ops.roi_align(x, rois, images, output_size=(3, 4), sampling_ratio=ratio)
    g.set_outputs([ops.relu(ops.sub(aligned, bias))])
    exe: Any = rlx.compile(g, "cpu", cache=False)
    (told,) = (facts.tasks for facts in CpuBackend().description(exe.lir).values())
    assert sum("bilinear sampling" in t for t in told) == 1
    rng = np.random.default_rng(5)
    given = [rng.normal(size=(1, 8, 9, 9)).astype("f"), np.array([[0, 0, 5, 5], [1, 2, 8, 9]], "f"),
             np.zeros(2, "i8"), rng.normal(size=(8, 1, 1)).astype("f")]  # fmt: skip
    want: Any = rlx.compile(g, "reference")(*given)
    assert_close(np.asarray(exe(*given)), want)
