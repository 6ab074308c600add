"""The launches of an attention."""

from __future__ import annotations

from dataclasses import replace

from rlx.backends.gpu.lower.attention.fma import FmaKernel
from rlx.backends.gpu.lower.attention.frame import blocks
from rlx.backends.gpu.lower.attention.tiles import TileKernel
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.attention import AttentionSchedule, choose
from rlx.backends.gpu.simt.builder import Builder
from rlx.backends.gpu.simt.program import Program
from rlx.backends.gpu.task import GpuTask, Launch
from rlx.kernel.attention import Attention
from rlx.kernel.program.schedule import Schedule, buffers
from rlx.kernel.refusal import Refusal


def attention_schedule(
    form: Attention, machine: GpuMachine, name: str, constants: frozenset[int] = frozenset()
) -> Schedule[GpuTask] | Refusal:
    """How it runs, or why no kernel is written for it."""
    choice = choose(form, machine)
    if isinstance(choice, Refusal):
        return choice
    every = buffers(len(form.operands), 1)
    names = (*(f"x{i}" for i in range(len(form.operands))), "y0")
    key = replace(form, name=""), choice, machine, constants
    launch = Launch(
        name,
        lambda n: attention_program(form, choice, machine, constants, n),
        key,
        names,
        every,
        note=choice.text,
    )
    return Schedule((launch,))


def attention_program(
    form: Attention,
    schedule: AttentionSchedule,
    machine: GpuMachine,
    constants: frozenset[int],
    name: str,
) -> Program:
    """The program over tiles of keys."""
    grid = (blocks(form, schedule.rows, schedule.splits),)
    b = Builder(name, block=schedule.warps * machine.warp, grid=grid, warp=machine.warp)
    kind = TileKernel if schedule.form == "mma" else FmaKernel
    kind(form, schedule, machine, constants, b).build()
    return b.program()
