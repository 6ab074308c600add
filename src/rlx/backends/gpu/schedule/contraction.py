"""The forms of contractions and convolutions on a GPU, in the order they are tried.

A form states for which products it is made, and refuses the others with a reason; what none takes
runs as the loop nest that it means.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.gpu.lower.contraction.launch import any_mma_schedule, mma_schedule
from rlx.backends.gpu.lower.loop import loop_schedule
from rlx.backends.gpu.lower.product.aligned import aligned_schedule
from rlx.backends.gpu.lower.product.depthwise import depthwise_schedule
from rlx.backends.gpu.lower.product.filters import filters_schedule
from rlx.backends.gpu.lower.product.gemv import gemv_schedule
from rlx.backends.gpu.lower.product.tile import tile_schedule
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.product import HALVES, narrowed, product_of
from rlx.backends.gpu.schedule.wgmma import UNIT
from rlx.backends.gpu.task import GpuTask
from rlx.core.dtype import DType
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Expr, Exprs, Kernel, Load, postorder
from rlx.kernel.lower.narrow_conv import lower_narrow_conv
from rlx.kernel.lower.nhwc_conv import is_depthwise, is_plain_gemm, lower_nhwc_conv
from rlx.kernel.program.forms import Conv
from rlx.kernel.program.lower_step import LoweredConv, conv_kernels, plain_conv_kernels
from rlx.kernel.program.program import KernelSequence, Step
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal

ContractionForm = Callable[[Contract, GpuMachine, str, frozenset[int]], Schedule[GpuTask] | Refusal]
"""Of a contraction, the machine, the name of what is made, and the operands that no kernel of a
run writes."""
FORMS: tuple[ContractionForm, ...] = (
    aligned_schedule,
    gemv_schedule,
    mma_schedule,
    any_mma_schedule,
    filters_schedule,
    tile_schedule,
)
CONVOLUTIONS: tuple[ContractionForm, ...] = (
    depthwise_schedule,
    any_mma_schedule,
    filters_schedule,
    tile_schedule,
)
"""Of those whose left operand is read through a window."""


def window_kernels(step: Step) -> KernelSequence | Refusal:
    """The step as a convolution whose rows are windows and whose inner positions end with channels:
    an NCHW image is transposed first, so that channels are copied as vectors, and one of few
    channels is written down for that. That is for products on matrix instructions, and for NHWC
    images of depthwise convolutions; others go along the last spatial axis."""
    made = _narrow(step)
    if isinstance(made, Refusal):
        made = lower_nhwc_conv(step.node, step.operands, step.results, read_halves)
    if isinstance(made, Refusal) or not (_is_in_place(*made) or _is_product(made[1])):
        return plain_conv_kernels(step)
    lowered = LoweredConv(*made, has_windows=not is_plain_gemm(made[1]))
    return conv_kernels(step, lowered)


def read_halves(
    image: Expr, kernels: Expr, sums: DType, is_over_channels: bool
) -> tuple[Expr, int]:
    """An image of f32 that holds half floats lies in memory as those."""
    del kernels, sums, is_over_channels
    found = (narrowed(Exprs(), image, half) for half in HALVES)
    return next((x for x in found if x is not None), image), 1


def _is_in_place(image: Kernel | None, contract: Contract) -> bool:
    """Is it depthwise, and its image read as it is?"""
    return image is None and is_depthwise(contract)


def _is_product(contract: Contract) -> bool:
    return not isinstance(product_of(contract), Refusal)


def _narrow(step: Step) -> tuple[Kernel, Contract] | Refusal:
    """The step as a convolution of few channels, whose filters are packed."""
    made = lower_narrow_conv(step.node, step.operands, step.results, UNIT)
    if isinstance(made, Refusal):
        return made
    filters = [n for n in postorder([made[1].right]) if isinstance(n, Load)]
    if not all(n.operand in step.constants for n in filters):
        return Refusal(f"{made[1].name}: its filters are no constants")
    found = product_of(made[1])
    return found if isinstance(found, Refusal) else made


def few_rows_schedule(
    contract: Contract, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask] | Refusal:
    """The launches of a contraction that reduces its rows, or has several sums of a column."""
    made = aligned_schedule(contract, machine, name, constants)
    if isinstance(made, Refusal):
        return gemv_schedule(contract, machine, name, constants)
    return made


def contraction_schedule(
    kernel: Contract | Conv, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask]:
    """The launches of the first form that takes it."""
    contract = kernel.contract if isinstance(kernel, Conv) else kernel
    for form in CONVOLUTIONS if isinstance(kernel, Conv) else FORMS:
        made = form(contract, machine, name, constants)
        if not isinstance(made, Refusal):
            return made
    return loop_schedule(contract.kernel(), machine, name, constants)
