"""Schedules run by the interpreter, launch by launch, against the meaning of their kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx.backends.gpu.task import GpuTask, Launch
from rlx.core.dim import evaluate
from rlx.kernel.contract import Contract
from rlx.kernel.interpret import run_into
from rlx.kernel.program.schedule import Schedule
from rlx.program.interpret.run import launch
from rlx.program.verify import verify

Array = np.ndarray[Any, Any]
POISON = 0xFF
"""NaN in floats, -1 or the greatest integer: what nobody has written."""


def execute(
    schedule: Schedule[GpuTask],
    operands: Sequence[Array],
    results: Sequence[Array],
    sizes: Mapping[str, int],
) -> None:
    """All launches on flat arrays, those that pack weights first; failures are raised."""
    temps = [poisoned(evaluate(t, sizes)) for t in schedule.temps]
    packed = [poisoned(evaluate(p.size, sizes)) for p in schedule.packed]
    for made, weights in zip(schedule.packed, packed):
        _launch(made.task, {"operand": operands, "result": [weights]}, sizes)
    kinds = {"operand": operands, "result": results, "temp": temps, "packed": packed}
    for task in schedule.tasks:
        _launch(task, kinds, sizes)


def poisoned(size: int) -> Array:
    return np.full(size, POISON, np.uint8)


def _launch(task: GpuTask, kinds: Mapping[str, Sequence[Array]], sizes: Mapping[str, int]) -> None:
    assert isinstance(task, Launch)
    program = verify(task.program())
    dtypes = {b.name: b.dtype.numpy for b in program.buffers}
    given: dict[str, Array] = {}
    for name, buffer in zip(task.names, task.buffers, strict=True):
        array = kinds[buffer.kind][buffer.index]
        given[name] = array.view(dtypes[name]) if array.dtype == np.uint8 else array
    given |= {"failures": np.zeros(1, np.int32)} if program.failures else {}
    assert program.failures == task.failures
    launch(program, given, sizes)
    if program.failures and given["failures"][0]:
        raise IndexError(program.failures[int(given["failures"][0]) - 1])


def meaning(
    contract: Contract,
    operands: Sequence[Array],
    results: Sequence[Array],
    sizes: Mapping[str, int],
) -> None:
    """What a contraction means, on flat arrays."""
    run_into(contract.kernel(), operands, results, sizes)
