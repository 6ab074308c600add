"""Which steps of a plan are parallelised over workers, and which run on one."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.subprogram import SubprogramBuilder
from rlx.backends.cpu.program.task import KernelSequence
from rlx.core.dim import DimLike, evaluate
from rlx.core.extent import ceiling
from rlx.ir.lir import LirModule
from rlx.ir.mir import Node


def splits(lir: LirModule, isa: Isa, sizes: Mapping[str, int]) -> dict[Node, bool]:
    """Step that runs on calls → is a task of it split over workers, at these sizes? A step of one
    unit cannot be, and is not listed."""
    subprograms = SubprogramBuilder(
        CpuMachine.of(isa, lir.target.machine), lir.target, forced=lir.split
    )
    main = subprograms.subprogram(lir.mir.graph, lir.plan, "main")
    found: dict[Node, bool] = {}
    for work in main.calls:
        if isinstance(work.lowering, KernelSequence):
            tasks = [(_at(t.units, sizes), _at(t.grain, sizes)) for t in work.lowering.tasks]
            if any(units > 1 for units, _ in tasks):
                found[work.node] = any(grain < units for units, grain in tasks)
    return found


def _at(dim: DimLike, sizes: Mapping[str, int]) -> int:
    """The value of a dim; a data-dependent one counts as its upper bound."""
    return evaluate(ceiling(dim), sizes)
