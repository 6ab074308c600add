"""The launches of an attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rlx.backends.gpu.lower.attention.fma import FmaKernel
from rlx.backends.gpu.lower.attention.frame import blocks
from rlx.backends.gpu.lower.attention.merge import merge_program
from rlx.backends.gpu.lower.attention.results import PARTS, STATS
from rlx.backends.gpu.lower.attention.threads import ThreadKernel
from rlx.backends.gpu.lower.attention.tiles import TileKernel
from rlx.backends.gpu.lower.attention.warpgroups import WarpgroupKernel
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.attention import AttentionSchedule, choose
from rlx.backends.gpu.task import GpuTask, Launch
from rlx.core.dim import DimLike, dim_min, product
from rlx.kernel.attention import Attention
from rlx.kernel.program.schedule import Buffer, Schedule
from rlx.kernel.refusal import Refusal
from rlx.program.builder import Builder
from rlx.program.program import Program


def attention_schedule(
    form: Attention, machine: GpuMachine, name: str, constants: frozenset[int] = frozenset()
) -> Schedule[GpuTask] | Refusal:
    """How it runs, or why no kernel is written for it."""
    choice = choose(form, machine)
    if isinstance(choice, Refusal):
        return choice
    return launches(form, choice, machine, name, constants)


def launches(
    form: Attention,
    schedule: AttentionSchedule,
    machine: GpuMachine,
    name: str,
    constants: frozenset[int] = frozenset(),
) -> Schedule[GpuTask]:
    """The launch over tiles of keys, and one that combines the splits of keys, if there are any
    that no cluster combines."""
    key = replace(form, name=""), schedule, machine, constants
    operands = tuple((f"x{i}", Buffer("operand", i)) for i in range(len(form.operands)))
    result = (("y0", Buffer("result", 0)),)
    parts = ((PARTS, Buffer("temp", 0)), (STATS, Buffer("temp", 1)))
    is_split = schedule.splits > 1 and not schedule.is_cluster

    def made(
        number: int, write: Callable[[str], Program], given: tuple[tuple[str, Buffer], ...]
    ) -> Launch:
        names, buffers = (tuple(x) for x in zip(*given))
        own = name if number == 0 else f"{name}_merge"
        note = schedule.text if number == 0 else "the splits of the keys combined"
        return Launch(own, write, (*key, number), names, buffers, note=note)

    first = made(
        0,
        lambda n: attention_program(form, schedule, machine, constants, n),
        (*operands, *(parts if is_split else result)),
    )
    if not is_split:
        return Schedule((first,))
    second = made(1, lambda n: merge_program(form, schedule, machine, n), (*parts, *result))
    return Schedule((first, second), _temps(form, schedule))


def attention_program(
    form: Attention,
    schedule: AttentionSchedule,
    machine: GpuMachine,
    constants: frozenset[int],
    name: str,
) -> Program:
    """The program over tiles of keys."""
    count = blocks(form, schedule.rows, schedule.splits, schedule.members)
    grid = (dim_min(count, schedule.blocks) if schedule.blocks else count,)
    cluster = schedule.splits if schedule.is_cluster else 1
    block = schedule.warps * machine.warp
    b = Builder(name, block=block, grid=grid, warp=machine.warp, cluster=cluster)
    kinds = {"wgmma": WarpgroupKernel, "mma": TileKernel, "fma": FmaKernel, "thread": ThreadKernel}
    kinds[schedule.form](form, schedule, machine, constants, b).build()
    return b.program()


def _temps(form: Attention, schedule: AttentionSchedule) -> tuple[DimLike, DimLike]:
    """The bytes of what blocks leave for the second launch."""
    rows = product((form.batch, form.kv_heads * schedule.splits, form.queries, form.group))
    size = form.sums.itemsize
    return rows * schedule.value_depth * size, rows * (2 * size)
