"""Kernels are chosen and scheduled before any is written: making a kernel sequence emits no text,
and what a task writes depends on neither the order nor the number of times."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest

from rlx.backends.cpu.isa import host
from rlx.backends.cpu.kernels import DEDICATED, PRIMITIVES, Registered
from rlx.backends.cpu.llvm import builder
from rlx.backends.cpu.llvm.function import TaskCode
from rlx.backends.cpu.program.task import Step, Task
from rlx.kernel.program.schedule import Schedule
from rlx.ops import op as table
from rlx.ops.draw import Draw
from tests.backend.cpu.steps import trials

ROWS = [(row, op) for row in (*DEDICATED, *PRIMITIVES) for op in row.ops]
every_op = pytest.mark.parametrize(("row", "op"), ROWS, ids=[op for _, op in ROWS])
CASES = 3


def steps(row: Registered, op: str) -> Iterator[Step]:
    """Drawn cases, as far as the kernel takes them: contiguous, strided, and with a named dim."""
    for i in range(CASES):
        draw = Draw([zlib.crc32(f"deferred {op}".encode()), i])
        for trial in trials(draw, draw.case(table.lookup(op))):
            if row.limit is None or row.limit.why_not(trial.node) is None:
                yield trial.step(host())


def made(row: Registered, op: str) -> list[Schedule[Task]]:
    return [row.load()(step, f"k{i}") for i, step in enumerate(steps(row, op))]


@every_op
def test_making_a_kernel_sequence_writes_no_code(
    row: Registered, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, *_: object) -> None:
        raise AssertionError(f"{op}: {type(self).__name__} is written while a kernel is chosen")

    monkeypatch.setattr(builder.Code, "__init__", refuse)
    monkeypatch.setattr(TaskCode, "source", property(refuse))
    sequences = made(row, op)
    assert sequences
    assert all(sequence.tasks for sequence in sequences)


@every_op
def test_tasks_write_the_same_in_any_order(row: Registered, op: str) -> None:
    for first, second in zip(made(row, op), made(row, op), strict=True):
        forwards = {t.name: t.code.source for t in first.all_tasks}
        backwards = {t.name: t.code.source for t in reversed(second.all_tasks)}
        assert forwards == backwards
