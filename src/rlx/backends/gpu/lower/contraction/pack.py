"""Constant operands of products laid out anew, once, so that their tiles are copied as they are.

Kernels of a convolution are stored by channel and then by tap, and its product goes along taps and
then channels: the copy is a matrix of lines along the inner positions.
"""

from __future__ import annotations

from dataclasses import replace

from rlx.backends.gpu.lower.loop import loop_schedule
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.product import Operand, copied, product_of
from rlx.backends.gpu.schedule.wgmma import UNIT, bulk_operand
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import exact_div, is_static, product
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.kernel.contract import Contract, collapsed
from rlx.kernel.expr import Affine, Axis, Expr, Kernel, Load, Store
from rlx.kernel.program.schedule import PackedWeights
from rlx.kernel.refusal import Refusal


def packed(
    contract: Contract, machine: GpuMachine, name: str, constants: frozenset[int]
) -> tuple[Contract, PackedWeights[GpuTask]] | None:
    """The contraction with its constant matrix as one more operand, and how that is made; none
    where it has none, or its tiles are copied as they are."""
    found = product_of(contract)
    if isinstance(found, Refusal):
        return None
    for side, operand in (("left", found.left), ("right", found.right)):
        is_ready = operand.unit == UNIT or not isinstance(bulk_operand(found, operand), Refusal)
        given = side if not found.is_swapped else {"left": "right", "right": "left"}[side]
        value: Expr = getattr(contract, given)
        axes = _axes(contract, given, value, operand, constants)
        if not is_ready and axes is not None:
            return _made(contract, given, axes, machine, name)
    return None


def _axes(
    contract: Contract, side: str, value: Expr, operand: Operand, constants: frozenset[int]
) -> tuple[Axis, ...] | None:
    """Of the matrix, the inner ones last, if it is a constant that is only moved, or 0."""
    source, _ = copied(value)
    is_moved = source is not None and source.operand in constants
    depth = product(a.extent for a in contract.inner)
    if not is_moved or exact_div(depth, UNIT) is None or not operand.outer:
        return None
    own = contract.rows if side == "left" else contract.columns
    inner = tuple(a for a in contract.inner if a.extent != 1)
    axes = (*(a for a in (*contract.batch, own) if a in value.free), *inner)
    is_whole = value.free == frozenset(axes) and all(is_static(a.extent) for a in axes)
    return axes if is_whole else None


def _made(
    contract: Contract, side: str, axes: tuple[Axis, ...], machine: GpuMachine, name: str
) -> tuple[Contract, PackedWeights[GpuTask]]:
    value: Expr = getattr(contract, side)
    layout = Layout.contiguous([a.extent for a in axes])
    at = Affine(tuple(zip(axes, layout.strides)))
    shape = Shape(layout.dims, value.dtype)
    # flat, as those of a bucket of sizes are: what is packed is the same for all of them
    flat = tuple(Shape([s.num_elements], s.dtype) for s in contract.operands)
    kernel = Kernel(f"{contract.name}.pack", axes, (Store(0, at, value),), flat, (shape,))
    (task,) = loop_schedule(kernel, machine, f"{name}.pack").tasks
    load = Load(value.dtype, (), at.axes, len(contract.operands), at)
    operands = (*contract.operands, shape)
    made = collapsed(replace(contract, operands=operands, **{side: load}))
    return made, PackedWeights(task, shape.size_bytes)
