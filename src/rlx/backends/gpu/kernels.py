"""The kernels of a GPU as selection asks for them: forms in order, and how each kernel runs.

Each form of kernel has a function that makes launches of it, or says why it does not. What no
program is written for is the host's, where the op has no lowering; ops that have one are lowered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.table import algorithm, has_algorithm
from rlx.backends.gpu.lower.attention.launch import attention_schedule
from rlx.backends.gpu.lower.loop import loop_schedule
from rlx.backends.gpu.lower.scan.launch import scan_schedule
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.contraction import contraction_schedule, window_kernels
from rlx.backends.gpu.simt.program import Program
from rlx.backends.gpu.task import GpuTask, HostTask, Launch
from rlx.core.dtype import DType
from rlx.cost.target import KernelLimit
from rlx.kernel.attention import Attention
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Kernel
from rlx.kernel.lower.spelled_out import spelled_out
from rlx.kernel.program.forms import Conv, Copy, Special
from rlx.kernel.program.lower_step import contract_kernels, copy_kernel, loop_kernels
from rlx.kernel.program.program import KernelCall, KernelForm, KernelSequence, Step
from rlx.kernel.program.schedule import Schedule, buffers
from rlx.kernel.program.select import Candidate, default_candidates
from rlx.kernel.refusal import Refusal, attempt
from rlx.kernel.scan import Scan
from rlx.ops.op import Kind, lookup

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


@dataclass(frozen=True, slots=True)
class GpuKernels:
    """What selection asks of a GPU, for one machine."""

    machine: GpuMachine

    def has_special(self, op: str) -> bool:
        """Is it attention, an op of the library, or a primitive that is none of the forms?"""
        known = lookup(op)
        is_primitive = known.lower is None and known.kind is Kind.SPECIAL
        return is_primitive or has_algorithm(op) or op == "attention"

    def candidates(self, step: Step) -> tuple[Candidate, ...]:
        found = default_candidates(step, self, window_kernels)
        forms = [c.form for c in found]
        at = forms.index(KernelForm.GEMM) + 1 if KernelForm.GEMM in forms else len(found)
        return (*found[:at], *SPELLED_OUT, *found[at:])

    def schedule(self, call: KernelCall) -> Schedule[GpuTask] | Refusal:
        """The launches of a kernel. What a form cannot take is refused, here or by an exception
        that states the reason."""
        constants = frozenset[int]() if call.prologue_only else call.constants
        given = self.machine, call.name, constants
        match call.kernel:
            case Kernel():
                return loop_schedule(call.kernel, *given)
            case Contract() | Conv():
                return contraction_schedule(call.kernel, *given)
            case Attention():
                return attention_schedule(call.kernel, *given)
            case Copy(shape, source, target):
                return loop_schedule(copy_kernel(shape, source, target), *given)
            case Scan():
                made = scan_schedule(call.kernel, *given)
                return on_host(call, made.reason) if isinstance(made, Refusal) else made
            case Special():
                return self._special(call, call.kernel)

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
        return tuple(t.program() for t in schedule.all_tasks if isinstance(t, Launch))


def on_host(call: KernelCall, reason: str) -> Schedule[GpuTask]:
    """The kernel's NumPy meaning, between two transfers."""
    every = buffers(len(call.operands), len(call.results))
    return Schedule((HostTask(call.name, call.kernel, every, reason),))


# -- claims ---------------------------------------------------------------------------------------

LOOP_FORMS = frozenset(
    {
        *("squeeze", "expand_dims", "narrow", "pad", "tile", "flip", "embedding", "softmax"),
        *("log_softmax", "layer_norm", "rms_norm", "group_norm", "batch_norm", "rope"),
        *("fused_residual_ln", "fused_residual_rms_norm", "elementwise_region", "region"),
        *("block_quantize", "block_dequantize", "gguf_dequantize"),
    }
)
PRODUCT_FORMS = frozenset(
    {
        *("dot_general", "einsum", "fused_matmul_bias_act", "fused_swiglu", "wide_matmul"),
        *("matmul_integer", "qlinear_matmul", "quantized_matmul", "gguf_matmul", "dequant_matmul"),
        *("conv", "fused_conv_bias_act", "conv_integer", "wide_conv"),
    }
)
"""Ops that become one kernel of a form as a whole, although they have a lowering."""


def claims() -> frozenset[str]:
    """The ops that have a kernel although they have a lowering, beside generated kinds."""
    return LOOP_FORMS | PRODUCT_FORMS | {"attention"}


def limits() -> dict[str, KernelLimit]:
    """Op → what its kernel can take, where that is not everything: a product of complex numbers is
    not the product of their parts."""
    return {"prod": KernelLimit(frozenset(d for d in DType if not d.is_complex))}
