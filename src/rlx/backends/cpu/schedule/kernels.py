"""The kernels of the CPU as selection asks for them: forms in order, and how each kernel runs.

The code of forms that few models have is imported when a step first needs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.codegen.lowp.streamed import packed_in
from rlx.backends.cpu.kernels import dedicated, has_dedicated
from rlx.backends.cpu.llvm.function import Source
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import Step as CpuStep
from rlx.backends.cpu.program.task import Task
from rlx.backends.cpu.schedule.contraction import contraction_schedule, lower_conv_for
from rlx.backends.cpu.schedule.loop import loop_schedule, vector_axis
from rlx.core.dim import is_static
from rlx.core.dtype import DType
from rlx.kernel.attention import Attention
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Kernel
from rlx.kernel.program.forms import Conv, Copy, Special
from rlx.kernel.program.lower_step import (
    conv_kernels,
    loop_kernels,
    special_and_loop_kernels,
    special_in,
)
from rlx.kernel.program.program import KernelCall, KernelForm, Step
from rlx.kernel.program.program import KernelSequence as Kernels
from rlx.kernel.program.schedule import Buffer, Schedule
from rlx.kernel.program.select import Candidate, default_candidates
from rlx.kernel.refusal import Refusal
from rlx.kernel.scan import Scan


@dataclass(frozen=True, slots=True)
class CpuKernels:
    """What selection asks of the CPU, for one machine."""

    machine: CpuMachine

    @property
    def alignment(self) -> int:
        """Loads and stores take any address."""
        return 1

    def has_special(self, op: str) -> bool:
        """Is a kernel written for this op, by hand?"""
        return has_dedicated(op)

    def candidates(self, step: Step) -> tuple[Candidate, ...]:
        """A product with weights of few bits streams them, whatever follows it; a dedicated kernel
        goes before a loop nest of short vectors; else the usual order."""
        if self.has_special(step.node.op):
            return default_candidates(step, self, self._conv)
        packed = packed_in(step.node)
        anchor = special_in(step.node, self.has_special) if packed is None else packed
        if anchor is None:
            return default_candidates(step, self, self._conv)
        own = Candidate(
            KernelForm.DEDICATED_AND_LOOP, lambda s: special_and_loop_kernels(s, anchor)
        )
        if packed is not None:
            return own, Candidate(KernelForm.LOOP, loop_kernels)
        wide = Candidate(KernelForm.LOOP, self._wide_loop)
        return wide, own, *default_candidates(step, self, self._conv)

    def _wide_loop(self, step: Step) -> Kernels | Refusal:
        """The step as one loop nest, if it fills vectors."""
        made = loop_kernels(step)
        if isinstance(made, Refusal):
            return made
        for kernel in (c.kernel for c in made.calls):
            axis = vector_axis(kernel, self.machine) if isinstance(kernel, Kernel) else None
            if (
                axis is not None
                and is_static(axis.extent)
                and axis.extent < self.machine.isa.lanes(DType.F32)
            ):
                return Refusal(f"{step.node.label}: its vectors are along an axis of {axis.extent}")
        return made

    def _conv(self, step: Step) -> Kernels | Refusal:
        return conv_kernels(step, lower_conv_for(step, self.machine.isa))

    def schedule(self, call: KernelCall) -> Schedule[Task] | Refusal:
        """The tasks of a kernel. What a form cannot take is refused, here or by an exception that
        states the reason."""
        match call.kernel:
            case Kernel():
                once = call.prologue_only
                return loop_schedule(call.kernel, self.machine, call.name, prologue_only=once)
            case Contract() | Conv():
                return contraction_schedule(call, self.machine)
            case Attention():
                return self._attention(call.kernel, call.name)
            case Scan():
                return self._scan(call.kernel, call)
            case Copy():
                return self._copy(call.kernel, call.name)
            case Special():
                return self._dedicated(call.kernel, call)

    def _attention(self, attention: Attention, name: str) -> Schedule[Task]:
        from rlx.backends.cpu.codegen.attention.online_softmax import attention_schedule

        return attention_schedule(attention, self.machine, name)

    def _scan(self, scan: Scan, call: KernelCall) -> Schedule[Task]:
        from rlx.backends.cpu.codegen.scan.cumulative import cumulative_schedule
        from rlx.backends.cpu.codegen.scan.recurrent import recurrent_schedule
        from rlx.backends.cpu.codegen.scan.state_space import state_space_schedule

        if scan.contracts:
            return recurrent_schedule(scan, call.constants, self.machine, call.name)
        make = state_space_schedule if scan.reduces else cumulative_schedule
        return make(scan, self.machine, call.name)

    def _copy(self, copy: Copy, name: str) -> Schedule[Task]:
        from rlx.backends.cpu.library.strided_copy import BufferView, copy_task

        dtype = copy.shape.dtype
        source = BufferView(Buffer("operand", 0), copy.source, dtype)
        target = BufferView(Buffer("result", 0), copy.target, dtype)
        return Schedule((copy_task(source, target, self.machine, name),))

    def _dedicated(self, special: Special, call: KernelCall) -> Schedule[Task] | Refusal:
        make = dedicated(special.name)
        if make is None:
            return Refusal(f"{special.node.label}: no kernel is written for it")
        once = call.prologue_only
        node, sources, targets = special.node, special.sources, special.targets
        made = special.written
        step = CpuStep(node, sources, targets, self.machine, call.constants, once, made)
        return make(step, call.name)

    def emit(self, schedule: Schedule[Task]) -> tuple[Source, ...]:
        """The code of every task of a schedule."""
        return tuple(t.code.source for t in schedule.all_tasks)
