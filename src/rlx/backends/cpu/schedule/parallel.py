"""Which steps of a plan are shared out between workers, and which one worker does alone."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.program.subprogram import SubprogramBuilder
from rlx.backends.cpu.program.task import KernelSequence, Machine
from rlx.core.dim import DimLike, evaluate
from rlx.core.extent import ceiling
from rlx.ir.lir import LirModule
from rlx.ir.mir import Node


def splits(lir: LirModule, isa: Isa, sizes: Mapping[str, int]) -> dict[Node, bool]:
    """Step that runs on calls → is the work of a task of it shared out, at these sizes? A step that
    has one unit of work cannot be, and is not told of."""
    subprograms = SubprogramBuilder(Machine(isa), lir.target, forced=lir.split)
    main = subprograms.subprogram(lir.mir.graph, lir.plan, "main")
    found: dict[Node, bool] = {}
    for work in main.calls:
        if isinstance(work.lowering, KernelSequence):
            tasks = [(_at(t.units, sizes), _at(t.grain, sizes)) for t in work.lowering.tasks]
            if any(units > 1 for units, _ in tasks):
                found[work.node] = any(grain < units for units, grain in tasks)
    return found


def _at(dim: DimLike, sizes: Mapping[str, int]) -> int:
    """The value of a dim; what is measured in a call counts as the most it can be."""
    return evaluate(ceiling(dim), sizes)
