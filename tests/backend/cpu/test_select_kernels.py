"""Kernel selection: candidates in order, refusals as values, and what a description reports."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import rlx
from rlx import ops
from rlx.backends.cpu.backend import CpuBackend
from rlx.backends.cpu.description import describe
from rlx.backends.cpu.isa import host
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import TaskKind
from rlx.backends.cpu.schedule.kernels import CpuKernels
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.lower.loop import lower_loop
from rlx.kernel.program.program import KernelForm, KernelSequence, Step
from rlx.kernel.program.select import NoKernel, select_step
from rlx.kernel.refusal import NotLowered, Refusal, attempt, required

LIBRARY = CpuKernels(CpuMachine.of(host()))
LOOP, GEMM, GEMM_AND_LOOP = KernelForm.LOOP, KernelForm.GEMM, KernelForm.GEMM_AND_LOOP


def step_of(build: Callable[..., Node], *dims: tuple[int, ...]) -> Step:
    body = Graph("body")
    body.set_outputs([build(*(body.input(f"v{i}", Shape(d)) for i, d in enumerate(dims)))])
    g = Graph("g")
    inputs = [g.input(f"v{i}", Shape(d)) for i, d in enumerate(dims)]
    return Step.alone(g.node("region", inputs, {"body": body}))


@pytest.mark.parametrize(
    ("build", "taken", "refused"),
    [
        (ops.add, LOOP, []),
        (lambda x, y: ops.relu(ops.matmul(x, y)), GEMM, [LOOP]),
        (lambda x, y: ops.softmax(ops.matmul(x, y), axis=-1), GEMM_AND_LOOP, [LOOP, GEMM]),
    ],
)
def test_the_first_form_that_fits_is_taken(
    build: Callable[..., Node], taken: KernelForm, refused: list[KernelForm]
) -> None:
    step = step_of(build, (64, 64), (64, 64))
    made = select_step(step, LIBRARY, "k")
    assert isinstance(made, KernelSequence)
    assert made.form is taken
    assert [r.form for r in made.refused] == refused
    assert all(r.reason for r in made.refused)
    order = [c.form for c in LIBRARY.candidates(step)]
    assert order[: len(refused) + 1] == [*refused, taken]
    assert (TaskKind.GEMM in {t.kind for t in made.schedule.tasks}) == (taken is not LOOP)


def test_a_step_that_no_form_takes_has_every_refusal() -> None:
    step = step_of(lambda x, y: ops.matmul(ops.matmul(x, y), x), (64, 64), (64, 64))
    made = select_step(step, LIBRARY, "k")
    assert isinstance(made, NoKernel)
    assert [r.form for r in made.refused] == [c.form for c in LIBRARY.candidates(step)]
    assert "2 products" in made.refused[1].reason
    assert made.reason == made.refused[0].reason


def test_a_lowering_refuses_with_a_value() -> None:
    g = Graph("g")
    made = lower_loop(g.matmul(g.input("x", Shape([4, 4])), g.input("y", Shape([4, 4]))))
    assert isinstance(made, Refusal)
    assert "no loop nest" in made.reason
    with pytest.raises(NotLowered, match="no loop nest"):
        required(made)


def test_other_errors_are_no_refusals() -> None:
    def broken() -> int:
        raise ZeroDivisionError

    assert attempt(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        attempt(broken)


def test_a_description_reports_the_refused_forms() -> None:
    g = Graph("g")
    x, w = g.input("x", Shape([64, 64])), g.param("w", Shape([64, 64]))
    g.set_outputs([ops.matmul(x, w)])
    lir = rlx.compile(g, "cpu").lir
    (facts,) = describe(CpuBackend().program(lir), 2).values()
    found = [(d.what, d.verdict) for d in facts.decisions if d.kind == "kernel"]
    assert found == [("run_as_loop_nest", False), ("run_as_gemm", True)]
    assert facts.strategy == "GEMM"
