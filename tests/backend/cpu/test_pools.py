"""Pools against the reference: windows over borders, rows longer than a unit, channels side by
side, and results that are turned round."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
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

POOLS = ("max_pool", "avg_pool", "lp_pool", "max_pool_with_indices")


def drawn(op: str, cases: int) -> list[Trial]:
    draws = [Draw([zlib.crc32(f"pools {op}".encode()), i]) for i in range(cases)]
    return [t for d in draws for t in trials(d, d.case(table.lookup(op)))]


def check(given: list[Trial], isa: Isa) -> None:
    steps = Steps(given, isa)
    for i, trial in enumerate(given):
        results = steps.run(i), steps.run(i, "each"), trial.wanted()
        for got, again, want in zip(*results, strict=True):
            assert got.tobytes() == again.tobytes(), f"{trial}: parts differ"
            if trial.node.op.startswith("max_pool"):
                np.testing.assert_array_equal(got.astype("f8"), want.astype("f8"), str(trial))
            else:
                assert_close(got, want, str(trial))


@pytest.mark.parametrize("op", POOLS)
def test_drawn_cases_are_as_the_reference(op: str) -> None:
    check(drawn(op, 10), host())


@pytest.mark.parametrize("isa", [AVX2, SSE2], ids=lambda i: i.name)
def test_other_instruction_sets(isa: Isa) -> None:
    check([t for op in POOLS for t in drawn(op, 3)], isa)


def test_code_for_other_machines_assembles() -> None:
    steps = Steps([drawn(op, 1)[0] for op in POOLS], NEON, is_run=False)
    assert "ret" in assembled(steps.text, NEON)


# -- images larger than a unit --------------------------------------------------------------------

GEOMETRIES: tuple[dict[str, Any], ...] = (
    {"kernel": (5, 5), "padding": (2, 2, 2, 2)},
    {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1)},
    {"kernel": (2, 3), "stride": (2, 3), "ceil": True, "padding": (0, 1, 1, 2)},
    {"kernel": (1, 11), "stride": (1, 5), "dilation": (1, 3), "padding": (0, 7, 0, 30)},
)


def node(op: str, dims: tuple[Any, ...], dtype: str, **attrs: Any) -> Node:
    g = Graph(op)
    return g.node(op, [g.input("x", Shape(dims, dtype))], attrs)


def values(dims: tuple[int, ...], dtype: str, seed: int) -> Any:
    """Numbers, some of them NaN, infinite or zero."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=dims)
    for value in (np.nan, np.inf, -np.inf, -0.0):
        x[rng.random(dims) < 0.002] = value
    return x.astype(Shape((), dtype).dtype.numpy)


def turned(dims: tuple[Any, ...]) -> Layout:
    """Channels side by side."""
    n, c, h, w = dims
    return Layout.contiguous((n, h, w, c)).permuted((0, 3, 1, 2))


def large(op: str, dims: tuple[int, ...], dtype: str, names: tuple[int, ...] = ()) -> list[Trial]:
    """All geometries, by rows and by channels; some dims have names."""
    found: list[Trial] = []
    shape = tuple(Dim(f"d{i}", 1) if i in names else d for i, d in enumerate(dims))
    sizes = {f"d{i}": dims[i] for i in names}
    for seed, geometry in enumerate(GEOMETRIES):
        flags = {"avg_pool": "count_include_pad", "max_pool_with_indices": "column_major"}
        more = {flags[op]: seed % 2 == 0} if op in flags else {}
        made, x = node(op, shape, dtype, **geometry, **more), values(dims, dtype, seed)
        found.append(side_by_side(made, [x], sizes))
        layouts = (turned(shape),), tuple(turned(s.dims) for s in made.shapes)
        found.append(Trial(made, *layouts, [x], sizes))
    return found


@pytest.mark.filterwarnings("ignore:invalid value")
def test_rows_and_channels_past_a_unit() -> None:
    given = large("max_pool", (1, 3, 4, 1100), "f32")
    given += large("max_pool", (1, 150, 5, 70), "f32", names=(2, 3))
    given += large("avg_pool", (2, 75, 7, 40), "f32")
    given += large("avg_pool", (1, 40, 3, 600), "f64", names=(1, 3))
    given += large("max_pool", (1, 64, 6, 41), "f16")
    check(given, host())


@pytest.mark.filterwarnings("ignore:invalid value")
def test_the_first_of_equals_is_found() -> None:
    given = large("max_pool_with_indices", (1, 3, 4, 600), "f32")
    given += large("max_pool_with_indices", (2, 37, 5, 20), "f16", names=(1, 2))
    for trial in large("max_pool_with_indices", (2, 20, 9, 33), "f32"):
        trial.arrays[0][...] = np.round(trial.arrays[0])
        trial.arrays[0][:, :, 2:6] = -np.inf
        given.append(trial)
    check(given, host())


def test_taps_of_every_number() -> None:
    """More than a lowering writes out."""
    made = node("max_pool", (1, 2, 40, 60), "i8", kernel=(20, 21), padding=(3, 20, 4, 0))
    x = np.random.default_rng(1).integers(-128, 128, (1, 2, 40, 60)).astype(np.int8)
    check([side_by_side(made, [x])], host())


# -- in graphs ------------------------------------------------------------------------------------


def test_a_result_turned_round_is_written_so() -> None:
    body = Graph("pool")
    x = body.input("x", Shape((1, 16, 9, 9), "f32"))
    pooled = body.node("max_pool", [x], {"kernel": (3, 3), "padding": (1, 1, 1, 1)})
    body.set_outputs([ops.transpose(pooled, perm=(0, 2, 3, 1))])
    g = Graph("turned")
    region = g.node("region", [g.input("x", x.shape)], {"body": body})
    schedule = kernel_sequence_of(Step.alone(region, CpuMachine.of(host())), "k")
    assert [t.summary.startswith("windows of 9 taps") for t in schedule.tasks] == [True]
    g.set_outputs([region])
    given = values((1, 16, 9, 9), "f32", 3)
    for threads in (1, 2):
        made: Any = rlx.compile(g, "cpu", threads=threads, cache=False)(given)
        want: Any = rlx.compile(g, "reference")(given)
        np.testing.assert_array_equal(made, want)


@pytest.mark.parametrize("op", POOLS)
def test_every_dim_may_have_a_name(op: str) -> None:
    """Prices of work are long formulas then; that is no reason to refuse a graph."""
    g = Graph("named")
    x = g.input("x", Shape([Dim(name, 1) for name in "nchw"], "f32"))
    geometry = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1)}
    made = g.node(op, [x], geometry)
    g.set_outputs([g.node("item", (made,), {"index": i}) for i in (0, 1)]
                  if made.has_items else [made])  # fmt: skip
    given = values((2, 5, 6, 7), "f32", 1)
    got: Any = rlx.compile(g, "cpu", cache=False)(given)
    want: Any = rlx.compile(g, "reference")(given)
    for one, other in zip(got, want):
        assert_close(np.asarray(one), np.asarray(other))
