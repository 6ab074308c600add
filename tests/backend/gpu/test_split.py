"""Loop kernels of several launches: what they compute, and when there are several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.backends.gpu.lower.loop import legal, loop_schedule
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.split import split
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.kernel.lower.loop import loop_kernel
from tests.backend.gpu import laws
from tests.backend.gpu.regions import (
    BF16,
    F32,
    Case,
    M,
    N,
    U,
    bound,
    centred,
    of,
    residual_norm,
    span,
    spread,
    strided,
    transposed,
    view,
)
from tests.backend.gpu.test_loop import assert_close

LONG = {"m": 3, "n": 499}
CASES: dict[str, tuple[Case, int]] = {
    "rows": (Case(lambda x: ops.sum(x, axes=(1,)), of(F32, (3, 2000))), 2),
    "rows of halves": (Case(lambda x: ops.sum(x, axes=(1,)), of(BF16, (2, 4096))), 2),
    "columns": (Case(lambda x: ops.sum(x, axes=(0,)), of(F32, (301, 24))), 2),
    "columns of halves": (Case(lambda x: ops.mean(x, axes=(0,)), of(BF16, (300, 64))), 2),
    "odd columns": (Case(lambda x: ops.prod(x, axes=(0,)), of(F32, (301, 23))), 2),
    "everything": (Case(lambda x: ops.sum(x, axes=(0, 1)), of(F32, (61, 67))), 2),
    "strided": (
        Case(lambda x: ops.max(x, axes=(0, 1)), of(F32, (61, 67)), operands={0: strided}), 2,
    ),
    "transposed": (
        Case(lambda x: ops.sum(x, axes=(1,)), of(F32, (24, 301)), operands={0: transposed}), 2,
    ),
    "planes": (Case(lambda x: ops.max(x, axes=(0, 2)), of(DType.I32, (30, 2, 70))), 2),
    "named": (Case(lambda x: ops.sum(x, axes=(0,)), of(F32, (U, 24)), ({"u": 300}, {"u": 1})), 2),
    "named rows": (
        Case(lambda x: ops.max(x, axes=(1,)), of(F32, (2, U)), ({"u": 1500}, {"u": 1}, {"u": 3})),
        2,
    ),
    "argmax": (Case(lambda x: ops.argmax(x, axis=1), of(F32, (2, 1500))), 4),
    "softmax of a row": (Case(ops.softmax, of(F32, (1, 3000))), 5),
    "norm of a row": (Case(residual_norm, of(F32, (1, 3001), (1, 3001), (3001,), (3001,))), 5),
    "norm of halves": (Case(residual_norm, of(BF16, (1, 4096), (1, 4096), (4096,), (4096,))), 5),
    "mean and variance": (Case(spread, of(F32, (2, 1500))), 8),
    "either axis": (Case(centred, of(F32, (40, 50))), 4),
    "either axis, named": (Case(centred, of(F32, (M, N)), (LONG, {"m": 1, "n": 1})), 2),
}  # fmt: skip


def run(case: Case, machine: GpuMachine, sizes: Mapping[str, int]) -> tuple[list[Any], int]:
    """The results as the layouts have them, and how many launches there were."""
    node = case.node()
    given, taken = case.layouts(node)
    schedule = loop_schedule(loop_kernel(node, given, taken), machine, "k")
    spans = [Shape((span(bound(x, sizes)),), s.dtype) for x, s in zip(taken, node.shapes)]
    flat = laws.run_schedule(schedule, case.data(sizes), spans, sizes)
    return [view(bound(x, sizes), f) for x, f in zip(taken, flat)], len(schedule.tasks)


@pytest.mark.parametrize("name", CASES)
def test_several_launches_compute_what_the_region_means(name: str) -> None:
    case, count = CASES[name]
    node = case.node()
    for sizes in case.sizes:
        got, launches = run(case, laws.SMALL, sizes)
        assert launches == count
        layouts = case.layouts(node)[0]
        views = [view(bound(x, sizes), o) for x, o in zip(layouts, case.data(sizes))]
        values = {f"v{i}": v for i, v in enumerate(views)}
        for made, want in zip(got, evaluate(node.attrs["body"].bind(sizes), values), strict=True):
            assert_close(made, want)


def test_a_device_that_is_busy_or_small_work_has_one_launch() -> None:
    case, _ = CASES["columns"]
    kernel = legal(loop_kernel(case.node()))
    assert split(kernel, GpuMachine()) is None
    assert split(kernel, replace(laws.SMALL, launch_bytes=1 << 20)) is None
    wide = legal(loop_kernel(Case(lambda x: ops.sum(x, axes=(0,)), of(F32, (300, 4096))).node()))
    assert split(wide, laws.SMALL) is None


def test_chunks_do_not_depend_on_the_run() -> None:
    case, _ = CASES["everything"]
    first, second = (run(case, laws.SMALL, {})[0][0] for _ in range(2))
    np.testing.assert_array_equal(first, second)
