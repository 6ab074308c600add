"""Products in tiles: through shared memory, or where its barriers do not pay, thread by thread."""

from __future__ import annotations

from rlx.backends.gpu.lower.product.register_tile import register_tile_schedule
from rlx.backends.gpu.lower.product.thread_tile import thread_tile_schedule
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.register_tile import STAGE_LOADS
from rlx.backends.gpu.task import GpuTask
from rlx.kernel.contract import Contract
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal


def tile_schedule(
    contract: Contract, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask] | Refusal:
    """The launches of a contraction of any size and dtype."""
    form = register_tile_schedule if machine.pays_barrier(STAGE_LOADS) else thread_tile_schedule
    return form(contract, machine, name, constants)
