"""Which steps of a plan are parallelised over workers, and which run on one."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.core.dim import DimLike, evaluate
from rlx.core.extent import ceiling
from rlx.ir.mir import Node
from rlx.kernel.program.program import KernelProgram, KernelSequence


def splits(program: KernelProgram, sizes: Mapping[str, int]) -> dict[Node, bool]:
    """Step that runs on calls → is a task of it split over workers, at these sizes? A step of one
    unit cannot be, and is not listed."""
    found: dict[Node, bool] = {}
    for step in program.main.calls:
        if isinstance(step.lowering, KernelSequence):
            tasks = [
                (_at(t.units, sizes), _at(t.grain, sizes)) for t in step.lowering.schedule.tasks
            ]
            if any(units > 1 for units, _ in tasks):
                found[step.node] = any(grain < units for units, grain in tasks)
    return found


def _at(dim: DimLike, sizes: Mapping[str, int]) -> int:
    """The value of a dim; a data-dependent one counts as its upper bound."""
    return evaluate(ceiling(dim), sizes)
