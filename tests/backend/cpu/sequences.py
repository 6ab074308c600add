"""Running kernel sequences: temporaries, packed weights and tasks by hand, as a program does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.backends.cpu.llvm.compile import Native
from rlx.backends.cpu.llvm.function import Function
from rlx.backends.cpu.program.task import Step, Task
from rlx.backends.cpu.schedule.kernels import CpuKernels
from rlx.core.dim import evaluate
from rlx.kernel.program import program
from rlx.kernel.program.lower_step import contract_kernels
from rlx.kernel.program.program import KernelForm
from rlx.kernel.program.schedule import Buffer, Schedule
from rlx.kernel.program.select import scheduled, select_step
from rlx.kernel.refusal import required
from tests.backend.cpu.guarded import guarded

Array = np.ndarray[Any, Any]


def kernel_sequence_of(step: Step, name: str) -> Schedule[Task]:
    """The tasks of a step that a form takes."""
    made = select_step(plan_step(step), CpuKernels(step.machine), name)
    assert isinstance(made, program.KernelSequence), made
    return made.schedule


def conv_of(step: Step, name: str) -> Schedule[Task]:
    """The tasks of a step as a convolution."""
    library = CpuKernels(step.machine)
    (found,) = (c for c in library.candidates(plan_step(step)) if c.form is KernelForm.CONVOLUTION)
    return required(scheduled(found.lower(plan_step(step)), library, name)).schedule


def contraction_of(step: Step, name: str) -> Schedule[Task]:
    """The tasks of a step as a contraction."""
    made = contract_kernels(plan_step(step))
    return required(scheduled(made, CpuKernels(step.machine), name)).schedule


def plan_step(step: Step) -> program.Step:
    """A step as selection has it."""
    return program.Step(step.node, step.operands, step.results, step.constants, step.prologue_only)


def functions(schedule: Schedule[Task]) -> list[Function]:
    return [t.function for t in (*(p.task for p in schedule.packed), *schedule.tasks)]


class Runner:
    """A schedule at some sizes; its panels, temporaries and scratch end at a fence."""

    def __init__(self, native: Native, schedule: Schedule[Task], sizes: Mapping[str, int]) -> None:
        self.native, self.schedule, self.sizes = native, schedule, sizes
        self.temps = [self._memory(t) for t in schedule.temps]
        self.packed = [self._memory(p.size) for p in schedule.packed]

    def _memory(self, size: Any) -> Array:
        return guarded(np.full(evaluate(size, self.sizes), 0xA5, np.uint8))

    def run(self, operands: Sequence[Array], results: Sequence[Array], cuts: str = "once") -> None:
        for panels, memory in zip(self.schedule.packed, self.packed):
            self._do(panels.task, operands, [memory], cuts)
        for task in self.schedule.tasks:
            self._do(task, operands, results, cuts)

    def _do(
        self, task: Task, operands: Sequence[Array], results: Sequence[Array], cuts: str
    ) -> None:
        kinds = {
            "operand": operands, "result": results, "temp": self.temps, "packed": self.packed,
        }  # fmt: skip

        def address(buffer: Buffer) -> int:
            return kinds[buffer.kind][buffer.index].ctypes.data

        given = [evaluate(s, self.sizes) for s in task.sizes]
        pointers = [address(b) for b in task.buffers]
        for start, stop in runs(evaluate(task.units, self.sizes), cuts):
            scratch = self._memory(task.scratch)
            code = self.native.call_part(
                task.function.name, pointers, given, start, stop, scratch.ctypes.data
            )
            assert code == 0, task.failures[code - 1]


def runs(units: int, cuts: str) -> Iterator[tuple[int, int]]:
    """All units at once, and one where there is none; or one by one from the last to the first."""
    if cuts == "once":
        yield 0, max(units, 1)
    else:
        yield from ((u, u + 1) for u in reversed(range(max(units, 1))))
