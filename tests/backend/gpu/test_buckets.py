"""Kernels with named dims have a schedule for each bucket of sizes; a call takes the one of its."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.gpu.buckets import Buckets
from rlx.backends.gpu.description import BY_SIZE
from rlx.backends.gpu.kernels import GpuKernels
from rlx.backends.gpu.runtime.routine import ChoiceStep
from rlx.backends.gpu.schedule.buckets import EDGES, MAX_ALTERNATIVES, SLACKS, covered
from rlx.backends.gpu.schedule.size_axes import SizeAxis, coarser, size_axes
from rlx.backends.gpu.simulated import SIMULATED
from rlx.backends.gpu.task import Choice, GpuTask, Launch, taken_launches
from rlx.core.dim import Dim, DimLike, symbols_of
from rlx.core.shape import OutOfRange, Shape
from rlx.ir.mir import Graph
from rlx.kernel.contract import Contract
from rlx.kernel.program.lower_step import contract_kernels
from rlx.kernel.program.program import KernelSequence, Step
from rlx.kernel.program.select import select_step
from rlx.pipeline import CompilePipeline
from tests.backend.gpu.simulated_backend import SimulatedBackend, differences, program_of

WIDTH = 16
BACKEND = SimulatedBackend()
B, S = Dim("b", 0, 40), Dim("s", 1, 80)
KERNELS = GpuKernels(SIMULATED)


def normal(*dims: int) -> Any:
    rng = np.random.default_rng(dims)
    return rng.standard_normal(dims).astype(rlx.DType.BF16.numpy)


def encoder(batch: DimLike, length: DimLike) -> Graph:
    g = Graph("encoder")
    x = g.input("x", Shape([batch, length, WIDTH], "bf16"))
    w, gain = g.param("w", Shape([WIDTH, WIDTH], "bf16")), g.param("g", Shape([WIDTH], "bf16"))
    mixed = ops.attention(x, x, x, num_heads=1)
    g.set_outputs([ops.layer_norm(ops.add(x, ops.matmul(mixed, w)), gain, gain, eps=1e-5)])
    return g


PARAMS = {"w": normal(WIDTH, WIDTH), "g": normal(WIDTH)}
SHAPES = ((1, 1), (0, 3), (1, 16), (17, 1), (5, 13), (2, 64))
"""Sizes of 1 and 0, and the edges of buckets: 16, 64, 128, of a dim or of the product of both."""


def test_one_program_is_right_for_shapes_of_all_buckets() -> None:
    graph = encoder(B, S)
    program = program_of(graph, BACKEND)
    weights = program.prepare(PARAMS, None)
    for batch, length in SHAPES:
        x = normal(batch, length, WIDTH)
        got = program.run(weights, [x], [None])
        assert differences(graph, {**PARAMS, "x": x}, got) == []
    with pytest.raises(OutOfRange):
        program.run(weights, [normal(1, 81, WIDTH)], [None])


def linear(rows: DimLike, inner: int = 64, out: int = 48) -> Step:
    g = Graph("linear")
    x, w = g.input("x", Shape([rows, inner], "bf16")), g.param("w", Shape([inner, out], "bf16"))
    return Step.alone(ops.matmul(x, w), frozenset({1}))


def task_of(step: Step) -> GpuTask:
    made = select_step(step, KERNELS, "k")
    assert isinstance(made, KernelSequence)
    (task,) = made.schedule.tasks
    return task


def launch_of(task: GpuTask, sizes: Mapping[str, int]) -> Launch:
    """What is launched at these sizes."""
    (launch,) = taken_launches([task], sizes)
    return launch


@pytest.mark.parametrize("rows", [Dim("m", 1, 4096), Dim("b", 1, 64) * Dim("s", 1, 64)])
def test_a_bucket_has_a_schedule_for_its_greatest_sizes(rows: Dim) -> None:
    """One that a static compile would take, or that is predicted to take hardly longer."""
    task = task_of(linear(rows))
    assert isinstance(task, Choice)
    assert 2 < len(task.alternatives) <= MAX_ALTERNATIVES
    for edge in (e for e in EDGES if e <= 64):
        static = launch_of(task_of(linear(edge)), {})
        times = {v.note: v.predicted_ns for v in static.variants}
        taken = launch_of(task, {"m": edge, "b": edge, "s": 1})
        assert times[taken.note] <= (1 + SLACKS[3]) * static.predicted_ns


def axes_of(node: Any) -> dict[str, tuple[int, ...]]:
    made = contract_kernels(Step.alone(node))
    assert isinstance(made, KernelSequence)
    (call,) = made.calls
    assert isinstance(call.kernel, Contract)
    return {a.name: a.edges for a in size_axes(call.kernel, (16, 64, 256), 48)}


def test_what_is_divided_is_a_product_of_dims_where_a_kernel_has_no_other() -> None:
    g = Graph("axes")
    b, s, u = Dim("b", 1, 64), Dim("s", 1, 128), Dim("u")
    x, w = g.input("x", Shape([b, s, 8])), g.param("w", Shape([8, 8]))
    assert axes_of(ops.matmul(x, w)) == {"b*s": (16, 64, 256)}
    assert axes_of(ops.matmul(x, ops.transpose(x, perm=(0, 2, 1)))) == {"b": (16,), "s": (16, 64)}
    assert axes_of(ops.matmul(g.input("y", Shape([u, 8])), w)) == {"u": (16, 64, 256)}
    assert axes_of(ops.matmul(g.input("z", Shape([Dim("n", 20, 60), 8])), w)) == {}


def test_a_grid_becomes_coarser_from_the_second_edge_on_until_nothing_is_left() -> None:
    m, n = (Dim(name) for name in "mn")
    axes = tuple(SizeAxis(d.terms[0][0], d, e) for d, e in ((m, (1, 16, 64)), (n, (16,))))
    found: list[Any] = []
    while axes:
        axes = coarser(axes)
        found.append({a.name: a.edges for a in axes})
    assert found == [{"m": (1, 64), "n": (16,)}, {"m": (1,), "n": (16,)}, {"n": (16,)}, {}]


def test_few_schedules_serve_all_cells() -> None:
    a, b, c = (("a",), ("b",), ("c",))
    options: dict[Any, Any] = {(0,): {a: 10.0, b: 10.2}, (1,): {b: 20.0, a: 90.0}, (2,): {c: 5.0}}
    assert covered(options, 0.03) == {(0,): b, (1,): b, (2,): c}
    assert covered(options, 0.01) == {(0,): a, (1,): b, (2,): c}


def test_programs_of_buckets_have_the_names_of_the_call() -> None:
    m = Dim("m", 1, 4096)
    task = task_of(linear(m))
    assert isinstance(task, Choice)
    assert len({t.key for t in task.launches}) == len(task.alternatives)
    for program in (t.program() for t in task.launches):
        scalars = [s.dim for s in program.scalars if s.dim is not None]
        assert set(symbols_of([*program.grid, *scalars])) <= {m}


def test_what_sizes_do_not_change_is_compiled_once() -> None:
    g = Graph("one")
    node = ops.exp(g.input("x", Shape([Dim("n", 1, 200)])))
    assert isinstance(task_of(Step.alone(node)), Launch)


def test_schedules_by_size_are_a_decision_that_reports_list() -> None:
    g = Graph("linear")
    x, w = g.input("x", Shape([Dim("m", 1, 512), 64])), g.param("w", Shape([64, 48]))
    g.set_outputs([ops.matmul(x, w)])
    lir = CompilePipeline(BACKEND.target()).compile(g).lir
    (facts,) = BACKEND.description(lir).values()
    (made,) = (d for d in facts.decisions if d.what == BY_SIZE)
    assert made.reason.startswith(
        f"{len(facts.tasks)} schedules for buckets of sizes: m at 1, 4, 8, 16,"
    )
    assert facts.tasks[0].startswith("m <= 1: ")


def test_weights_are_stored_in_one_layout() -> None:
    def program(batch: DimLike) -> Any:
        g = Graph("conv")
        x = g.input("x", Shape([batch, 3, 8, 8], "bf16"))
        w = g.param("w", Shape([8, 3, 3, 3], "bf16"))
        g.set_outputs([ops.conv(x, w, padding=(1, 1, 1, 1))])
        return program_of(g, BACKEND).artefact

    named, fixed = program(Dim("b", 1, 64)), program(64)
    steps = named.routines[named.main].steps
    assert any(isinstance(s, ChoiceStep) for s in steps)
    assert named.weight_bytes == fixed.weight_bytes


def test_cells_are_found_by_sizes_and_read_as_ranges() -> None:
    m, n = Dim("m"), Dim("n")
    line = Buckets((m,), ((1, 16),), (0, 1, 0))
    assert [line.at(lambda _, v=v: v) for v in (0, 1, 2, 16, 17)] == [0, 0, 1, 1, 0]
    assert line.text(0) == "m <= 1 or 16 < m"
    grid = Buckets((m, n), ((4,), (8, 64)), (0, 0, 1, 0, 2, 2))
    sizes = [dict[DimLike, int]({m: a, n: b}) for a, b in ((4, 65), (5, 8), (5, 9))]
    assert [grid.at(found.__getitem__) for found in sizes] == [1, 0, 2]
    assert grid.text(2) == "4 < m, 8 < n (2 of 6 cells)"
