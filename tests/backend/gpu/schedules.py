"""Schedules run by the interpreter, launch by launch, against the meaning of their kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx.backends.gpu.interpret.run import launch
from rlx.backends.gpu.task import GpuTask, Launch
from rlx.backends.gpu.verify import verify
from rlx.core.dim import evaluate
from rlx.kernel.contract import Contract
from rlx.kernel.interpret import run_into
from rlx.kernel.program.schedule import Buffer, Schedule

Array = np.ndarray[Any, Any]
POISON = 0xFF
"""NaN in floats, -1 or the greatest integer: what nobody has written."""


def execute(
    schedule: Schedule[GpuTask],
    operands: Sequence[Array],
    results: Sequence[Array],
    sizes: Mapping[str, int],
) -> None:
    """All launches on flat arrays; failures are raised."""
    assert not schedule.packed
    temps = [np.full(evaluate(t, sizes), POISON, np.uint8) for t in schedule.temps]
    kinds = {"operand": operands, "result": results, "temp": temps}
    for task in schedule.tasks:
        assert isinstance(task, Launch)
        program = verify(task.program())
        dtypes = {b.name: b.dtype.numpy for b in program.buffers}

        def array(buffer: Buffer, name: str, dtypes: Any = dtypes) -> Array:
            found = kinds[buffer.kind][buffer.index]
            return found.view(dtypes[name]) if buffer.kind == "temp" else found

        given = {n: array(b, n) for n, b in zip(task.names, task.buffers, strict=True)}
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
