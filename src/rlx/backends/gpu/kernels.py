"""The kernels of a GPU as selection asks for them: forms in order, and how each kernel runs.

Each form of kernel has a function that makes launches of it, or says why it does not. What no
program is written for is the host's, where the op has no lowering; ops that have one are lowered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rlx.backends.gpu.claims import FORMS
from rlx.backends.gpu.device import VECTOR_BYTES
from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.table import algorithm, has_algorithm
from rlx.backends.gpu.lower.attention.launch import attention_schedule
from rlx.backends.gpu.lower.loop import loop_schedule
from rlx.backends.gpu.lower.scan.launch import scan_schedule
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.buckets import MAX_ALTERNATIVES, bucketed
from rlx.backends.gpu.schedule.contraction import (
    contraction_schedule,
    few_rows_schedule,
    window_kernels,
)
from rlx.backends.gpu.task import GpuTask, HostTask, launches_in, rewritten_launches
from rlx.kernel.attention import Attention
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Kernel
from rlx.kernel.lower.attention import attention_region
from rlx.kernel.lower.loop import body_of
from rlx.kernel.lower.spelled_out import spelled_out
from rlx.kernel.program.forms import AnyKernel, Conv, Copy, Special
from rlx.kernel.program.lower_step import (
    attention_kernels,
    contract_kernels,
    copy_kernel,
    few_rows_kernels,
    loop_kernels,
)
from rlx.kernel.program.program import KernelCall, KernelForm, KernelSequence, Step
from rlx.kernel.program.schedule import Schedule, buffers
from rlx.kernel.program.select import Candidate, default_candidates
from rlx.kernel.refusal import Refusal, attempt
from rlx.kernel.scan import Scan
from rlx.ops.op import Kind, lookup
from rlx.program.expand.floats import without_f64
from rlx.program.expand.integers import narrow_integers
from rlx.program.program import Program

Lower = Callable[[Step], KernelSequence | Refusal]


def _spelled(lower: Lower) -> Lower:
    """The kernels of a step whose small arrays are arithmetic of positions."""

    def lowered(step: Step) -> KernelSequence | Refusal:
        node = spelled_out(step.node)
        return node if isinstance(node, Refusal) else lower(replace(step, node=node))

    return lowered


SPELLED_OUT = (
    Candidate(KernelForm.LOOP, _spelled(loop_kernels)),
    Candidate(KernelForm.GEMM, _spelled(contract_kernels)),
)
"""For quantised weights, which are decoded where they are loaded."""
FEW_ROWS = (
    Candidate(KernelForm.GEMM, few_rows_kernels),
    Candidate(KernelForm.GEMM, _spelled(few_rows_kernels)),
)
"""For norms and gates around products of few rows."""


@dataclass(frozen=True, slots=True)
class GpuKernels:
    """What selection asks of a GPU, for one machine."""

    machine: GpuMachine
    max_alternatives: int = MAX_ALTERNATIVES
    """Schedules of a kernel by its sizes."""

    @property
    def alignment(self) -> int:
        """Vectors are accessed at multiples of their size."""
        return VECTOR_BYTES

    def has_special(self, op: str) -> bool:
        """Is it a form by itself, an op of the library, or a primitive that is no other form?"""
        known = lookup(op)
        is_primitive = known.lower is None and known.kind is Kind.SPECIAL
        return is_primitive or has_algorithm(op) or op in FORMS

    def candidates(self, step: Step) -> tuple[Candidate, ...]:
        found = default_candidates(step, self, window_kernels)
        forms = [c.form for c in found]
        at = forms.index(KernelForm.GEMM) + 1 if KernelForm.GEMM in forms else len(found)
        if not isinstance(attention_region(body_of(step.node)), Refusal):
            return (Candidate(KernelForm.DEDICATED, attention_kernels), *found)
        return (*found[:at], *SPELLED_OUT, *FEW_ROWS, *found[at:])

    def schedule(self, call: KernelCall) -> Schedule[GpuTask] | Refusal:
        """The launches of a kernel, by its sizes. What a form cannot take is refused, here or by an
        exception that states the reason."""
        whole = self._scheduled(call, call.kernel)
        if isinstance(whole, Refusal) or call.prologue_only:
            return whole
        make = lambda kernel: self._scheduled(call, kernel)
        return bucketed(call.kernel, whole, make, self.max_alternatives)

    def _scheduled(self, call: KernelCall, kernel: AnyKernel) -> Schedule[GpuTask] | Refusal:
        """With programs of the dtypes that the machine has."""
        made = self._launches(call, kernel)
        if isinstance(made, Refusal):
            return made
        if not self.machine.has_f64:
            made = rewritten_launches(made, without_f64)
        if self.machine.index_bits == 32:
            made = rewritten_launches(made, narrow_integers)
        return made

    def _launches(self, call: KernelCall, kernel: AnyKernel) -> Schedule[GpuTask] | Refusal:
        constants = frozenset[int]() if call.prologue_only else call.constants
        given = self.machine, call.name, constants
        match kernel:
            case Kernel():
                return loop_schedule(kernel, *given)
            case Contract() if not kernel.is_plain:
                return few_rows_schedule(kernel, *given)
            case Contract() | Conv():
                return contraction_schedule(kernel, *given)
            case Attention():
                unwritten = constants | call.inputs
                return attention_schedule(kernel, self.machine, call.name, unwritten)
            case Copy(shape, source, target):
                return loop_schedule(copy_kernel(shape, source, target), *given)
            case Scan():
                return scan_schedule(kernel, *given)
            case Special():
                return self._special(call, kernel)

    def _special(self, call: KernelCall, special: Special) -> Schedule[GpuTask] | Refusal:
        """The launches of a named algorithm. What has none, or cannot be done by it, is lowered,
        and the host's where it has no lowering."""
        make = algorithm(special.name)
        made = Refusal(f"{special.node.label}: no kernel is written for it")
        if make is not None:
            launches = Launches(special, self.machine, call.name, call.constants)
            made = attempt(lambda: make(launches))
        if isinstance(made, Refusal) and special.node.decl.lower is None:
            return on_host(call, made.reason)
        return made

    def emit(self, schedule: Schedule[GpuTask]) -> tuple[Program, ...]:
        """The programs of all launches of a schedule."""
        return tuple(t.program() for t in launches_in(schedule.all_tasks))


def on_host(call: KernelCall, reason: str) -> Schedule[GpuTask]:
    """The kernel's NumPy meaning, between two transfers."""
    every = buffers(len(call.operands), len(call.results))
    return Schedule((HostTask(call.name, call.kernel, every, reason),))
