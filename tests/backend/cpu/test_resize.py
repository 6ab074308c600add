"""Resized images against the reference: every mode, lanes along rows and along channels, rows
longer than a unit, images that grow and shrink, and crops past the edge."""

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
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import Step
from rlx.core.dim import Dim
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops import op as table
from rlx.ops.draw import Draw
from tests.backend.cpu.kernels import assert_close
from tests.backend.cpu.sequences import kernel_sequence_of
from tests.backend.cpu.steps import Steps, Trial, side_by_side, trials


def drawn(first: int, stop: int) -> list[Trial]:
    draws = [Draw([zlib.crc32(b"resizing"), i]) for i in range(first, stop)]
    found = [t for d in draws for t in trials(d, d.case(table.lookup("resize")))]
    return [t for t in found if not t.node.shape.dtype.is_complex]


def check(given: list[Trial], isa: Isa) -> None:
    steps = Steps(given, isa)
    for i, trial in enumerate(given):
        (got,), (again,), (want,) = steps.run(i), steps.run(i, "each"), trial.wanted()
        assert got.tobytes() == again.tobytes(), f"{trial}: parts differ"
        if trial.node.attrs["mode"] == "nearest":
            assert got.tobytes() == want.tobytes(), str(trial)
        else:
            assert_close(got, want, str(trial))


def test_drawn_cases_are_as_the_reference() -> None:
    check(drawn(0, 60), host())


@pytest.mark.parametrize("isa", [AVX2, SSE2], ids=lambda i: i.name)
def test_other_instruction_sets(isa: Isa) -> None:
    check([*drawn(60, 75), *large(isa is AVX2)], isa)


def test_code_for_other_machines_assembles() -> None:
    steps = Steps(drawn(60, 64), NEON, is_run=False)
    assert "ret" in assembled(steps.text, NEON)


# -- images larger than a unit --------------------------------------------------------------------


def node(dims: tuple[Any, ...], dtype: str, **attrs: Any) -> Node:
    g = Graph("resize")
    return g.node("resize", [g.input("x", Shape(dims, dtype))], attrs)


def values(dims: tuple[int, ...], dtype: str, has_corners: bool) -> Any:
    """Numbers, some of them NaN, infinite or zero."""
    rng = np.random.default_rng(len(dims) + dims[-1])
    x = rng.normal(size=dims) * (50 if dtype[0] in "iu" else 1)
    for value in (np.nan, np.inf, -np.inf, -0.0, 1e-40) if has_corners else ():
        x[rng.random(dims) < 0.01] = value
    return x.astype(Shape((), dtype).dtype.numpy)


def turned(dims: tuple[Any, ...]) -> Layout:
    """Channels side by side."""
    n, c, *image = dims
    last = len(image) + 1
    return Layout.contiguous((n, *image, c)).permuted((0, last, *range(1, last)))


def both(
    dims: tuple[int, ...], sizes: tuple[int, ...] | None, dtype: str = "f32",
    names: tuple[int, ...] = (), **attrs: Any,
) -> list[Trial]:  # fmt: skip
    """By rows and by channels; some dims have names."""
    shape = tuple(Dim(f"d{i}", 0) if i in names else d for i, d in enumerate(dims))
    made = node(shape, dtype, sizes=sizes, **attrs)
    named = {f"d{i}": dims[i] for i in names}
    x = values(dims, dtype, has_corners=dtype[0] == "f" and attrs["mode"] != "cubic")
    layouts = (turned(shape),), (turned(made.shape.dims),)
    return [side_by_side(made, [x], named), Trial(made, *layouts, [x], named)]


def large(is_quick: bool = False) -> list[Trial]:
    few = [
        *both((1, 70, 6, 7), (12, 14), mode="nearest", coordinate_mode="asymmetric"),
        *both((2, 35, 6, 7), (13, 33), mode="linear"),
        *both((1, 3, 9, 20), (18, 41), mode="cubic", names=(0,)),
    ]
    return few if is_quick else [
        *few,
        *both((1, 3, 40, 640), (17, 224), mode="linear", coordinate_mode="pytorch_half_pixel"),
        *both((1, 2, 3, 300), (5, 1200), mode="linear", coordinate_mode="align_corners"),
        *both((1, 65, 20, 20), (40, 40), mode="cubic", names=(1,)),
        *both((1, 40, 30, 100), (7, 41), mode="linear", antialias=True, names=(0, 1)),
        *both((1, 2, 60, 80), (5, 6), mode="cubic", antialias=True),
        *both((1, 3, 200, 640), (2, 3), mode="linear"),
        *both((1, 17, 4, 5, 6), (8, 10, 12), mode="linear", exclude_outside=True),
        *both((3, 20, 50), (1000,), mode="linear"),
        *both((1, 3, 30, 31), (64, 90), "f64", mode="cubic", nearest_mode="ceil"),
        *both((1, 16, 9, 30), (18, 60), "f16", mode="linear"),
        *both((1, 3, 7, 33), (14, 99), "bf16", mode="nearest"),
        *both((1, 3, 50, 90), (100, 45), "u8", mode="nearest", nearest_mode="ceil"),
        *both((1, 80, 5, 6), (10, 9), "i64", mode="nearest", nearest_mode="floor"),
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore:invalid value")
def test_rows_and_channels_past_a_unit() -> None:
    check(large(), host())


CORNERS = {"mode": "nearest", "coordinate_mode": "asymmetric", "nearest_mode": "floor"}
CENTRES = {"mode": "nearest", "coordinate_mode": "half_pixel"}


def named_images() -> list[Trial]:
    """Images whose height and width have names."""
    image, rest = (2, 3), (0, 1, 2, 3)
    return [
        *both((1, 24, 6, 10), None, scales=(8.0, 8.0), names=image, **CORNERS),
        *both((2, 96, 12, 20), None, scales=(2.0, 2.0), names=rest, **CORNERS),
        *both((1, 3, 5, 37), None, scales=(3.0, 5.0), names=image, **CENTRES),
        *both((1, 2, 3, 700), None, scales=(1.0, 2.0), names=(3,), **CORNERS),
        *both((1, 2, 3, 700), None, "u8", scales=(2.0, 7.0), names=image, **CENTRES),
        *both((1, 70, 9, 4), (18, 11), "f16", names=(1,), **CORNERS),
        *both((1, 17, 9, 4), None, "f64", scales=(1.5, 4.0), names=(3,), **CORNERS),
        *both((1, 17, 9, 4), None, "bf16", scales=(4.0, 0.5), names=(2,), **CORNERS),
        *both((3, 20, 50), None, "i64", scales=(64.0,), names=(2,), **CORNERS),
        *both((1, 3, 4, 5, 6), None, scales=(2.0, 3.0, 2.0), names=(2, 3, 4), **CENTRES),
        *both((1, 5, 0, 6), None, scales=(2.0, 3.0), names=image, **CENTRES),
    ]


@pytest.mark.parametrize("isa", [host(), AVX2, SSE2], ids=lambda i: i.name)
def test_axes_of_named_sizes_are_repeated(isa: Isa) -> None:
    check(named_images(), isa)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_crops_past_the_edge(mode: str) -> None:
    crop = {
        "coordinate_mode": "tf_crop_and_resize", "roi": (-0.3, 0.1, 0.8, 1.4),
        "extrapolation_value": 7.5, "mode": mode,
    }  # fmt: skip
    backwards = {**crop, "roi": (0.9, 1.2, -0.2, 0.1)}
    check(
        [
            *both((1, 20, 8, 30), (11, 50), **crop),
            *both((1, 20, 8, 30), (11, 50), "f16", **backwards),
        ],
        host(),
    )


@pytest.mark.parametrize("dtype", ["u8", "i8", "i64", "u64"])
def test_integers_past_the_edge_are_the_nearest_that_there_are(dtype: str) -> None:
    crop = {"coordinate_mode": "tf_crop_and_resize", "roi": (-0.3, 0.1, 0.8, 1.4)}
    values = (-7.5, 300.0, 1e30, float("nan"), -float("inf"))
    found = [both((1, 2, 4, 9), (5, 20), dtype, mode="nearest", extrapolation_value=value, **crop)
             for value in values]  # fmt: skip
    check([trial for pair in found for trial in pair], host())


# -- in graphs ------------------------------------------------------------------------------------


def test_a_result_turned_round_is_written_so() -> None:
    body = Graph("resize")
    x = body.input("x", Shape((1, 16, 9, 9), "f32"))
    made = ops.resize(x, scales=(2.0, 2.0), mode="linear")
    body.set_outputs([ops.transpose(made, perm=(0, 2, 3, 1))])
    g = Graph("turned")
    region = g.node("region", [g.input("x", x.shape)], {"body": body})
    schedule = kernel_sequence_of(Step.alone(region, CpuMachine.of(host())), "k")
    assert ["horizontal taps" in t.summary for t in schedule.tasks] == [True]
    g.set_outputs([region])
    given = values((1, 16, 9, 9), "f32", has_corners=False)
    want: Any = made.decl.evaluate([given], made.attrs, [made.shape])
    found = [np.asarray(rlx.compile(g, "cpu", threads=n, cache=False)(given)) for n in (1, 2)]
    assert found[0].tobytes() == found[1].tobytes()
    assert_close(found[0], want.transpose(0, 2, 3, 1))


def test_what_follows_is_a_loop_of_the_same_step() -> None:
    g = Graph("followed")
    x = g.input("x", Shape((2, 16, 5, 6), "f32"))
    other = g.input("y", Shape((2, 16, 10, 12), "f32"))
    up = ops.resize(x, scales=(2.0, 2.0), mode="linear")
    g.set_outputs([ops.relu(ops.add(up, other))])
    exe: Any = rlx.compile(g, "cpu", cache=False)
    (told,) = (facts.tasks for facts in CpuBackend().description(exe.lir).values())
    assert ["horizontal taps" in t for t in told] == [True, False]
    given = [values((2, 16, *n), "f32", has_corners=False) for n in ((5, 6), (10, 12))]
    want: Any = rlx.compile(g, "reference")(*given)
    assert_close(np.asarray(exe(*given)), want)


def test_named_sizes_are_fused_as_static_ones_are() -> None:
    """One program for all sizes: the resize is read within the loop behind it."""
    h, w = Dim("h", 1), Dim("w", 1)
    g = Graph("named")
    x, other = (g.input(n, Shape((1, 16, h * f, w * f), "f32")) for n, f in (("x", 1), ("y", 2)))
    g.set_outputs([ops.relu(ops.add(ops.resize(x, scales=(2.0, 2.0), **CORNERS), other))])
    exe: Any = rlx.compile(g, "cpu", cache=False)
    (told,) = (facts.tasks for facts in CpuBackend().description(exe.lir).values())
    assert ["loop nest" in t for t in told] == [True]
    for size in ((5, 6), (1, 40), (33, 2)):
        given = [values((1, 16, *(f * n for n in size)), "f32", False) for f in (1, 2)]
        want = np.maximum(given[0].repeat(2, 2).repeat(2, 3) + given[1], 0)
        np.testing.assert_array_equal(np.asarray(exe(*given)), want)


def test_factors_that_no_kernel_unrolls_are_copies() -> None:
    g, n = Graph("wide"), Dim("n", 0)
    g.set_outputs([ops.resize(g.input("x", Shape((2, n), "f32")), scales=(100.0,), **CORNERS)])
    x = values((2, 7), "f32", has_corners=True)
    made = np.asarray(rlx.compile(g, "cpu", cache=False)(x))
    np.testing.assert_array_equal(made, x.repeat(100, 1))


def test_complex_images_are_resized_as_well() -> None:
    g = Graph("complex")
    g.set_outputs([ops.resize(g.input("x", Shape((2, 3), "c64")), sizes=(4, 5))])
    x = np.arange(6).reshape(2, 3).astype("c8") * 1j
    made: Any = rlx.compile(g, "cpu", cache=False)(x)
    want: Any = rlx.compile(g, "reference")(x)
    np.testing.assert_array_equal(made, want)


def test_how_it_runs() -> None:
    made = kernel_sequence_of(Step.alone(node((1, 3, 8, 8), "f32", sizes=(16, 16), mode="cubic"),
                                CpuMachine.of(host())), "k")  # fmt: skip
    assert [t.summary for t in made.tasks] == [
        "4 vertical and 4 horizontal taps, vertical, then horizontal pass; vectorised over the row"
    ]
