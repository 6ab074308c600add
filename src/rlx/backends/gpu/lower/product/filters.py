"""Convolutions whose filters are laid out anew, once: taps first, then channels, then outputs.

A filter as models have it is contiguous along its taps, of which there are few. Laid out so, its
tiles are copied as vectors, and the inner steps of a stage are channels of one tap: where that tap
is in the image is found once for a stage.
"""

from __future__ import annotations

from dataclasses import replace

from rlx.backends.gpu.lower.loop import loop_schedule
from rlx.backends.gpu.lower.product.tile import tile_schedule
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import is_static, product
from rlx.core.shape import Shape
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Affine, Axis, Exprs, Kernel, Load, Store
from rlx.kernel.program.schedule import Buffer, PackedWeights, Schedule
from rlx.kernel.refusal import Refusal


def filters_schedule(
    contract: Contract, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask] | Refusal:
    """A contraction over taps and channels, with constant filters packed."""
    filters = contract.left
    if not isinstance(filters, Load) or filters.args or filters.operand not in constants:
        return Refusal(f"{contract.name}: its left operand is no constant")
    axes = _axes(contract, filters)
    if axes is None:
        return Refusal(f"{contract.name}: it has no filters of taps and channels")
    made, packing = _packed(contract, filters, axes)
    number = len(contract.operands)
    schedule = tile_schedule(made, machine, name, constants | {number})
    (task, *more) = loop_schedule(packing, machine, f"{name}.packing").tasks
    if isinstance(schedule, Refusal) or more:
        return Refusal(f"{contract.name}: its filters are not packed by one launch")
    behind, packed = Buffer("operand", number), Buffer("packed", 0)
    moved = schedule.moved(lambda b: packed if b == behind else b)
    return replace(moved, packed=(PackedWeights(task, packing.results[0].size_bytes),))


def _axes(contract: Contract, filters: Load) -> tuple[Axis, ...] | None:
    """Those of the filters as they are packed: the longest inner axis is the channels', before
    the rows; none where something is not known, or there are no taps."""
    if len(contract.inner) < 2 or contract.rows not in filters.at.axes:
        return None
    if not all(is_static(a.extent) for a in filters.at.axes):
        return None
    channels = max(contract.inner, key=lambda a: int(a.extent))
    taps = [a for a in contract.inner if a is not channels]
    rest = [a for a in contract.batch if a in filters.at.axes]
    return (*rest, *taps, channels, contract.rows)


def _packed(contract: Contract, filters: Load, axes: tuple[Axis, ...]) -> tuple[Contract, Kernel]:
    """The contraction that reads packed filters as one more operand, and the kernel that packs."""
    at, weight = Affine(), 1
    for axis in reversed(axes):
        at, weight = at + Affine.of(axis) * weight, weight * int(axis.extent)
    shape = Shape((product(int(a.extent) for a in axes),), filters.dtype)
    exprs, number = Exprs(), len(contract.operands)
    store = Store(0, at, exprs.load(filters.operand, filters.at, filters.dtype))
    # flat, as those of a bucket of sizes are: what is packed is the same for all of them
    flat = tuple(Shape([s.num_elements], s.dtype) for s in contract.operands)
    kernel = Kernel(f"{contract.name}.packing", axes, (store,), flat, (shape,))
    inner = tuple(a for a in axes if a in contract.inner)
    left = exprs.load(number, at, filters.dtype)
    operands = (*contract.operands, shape)
    return replace(contract, left=left, inner=inner, operands=operands), kernel
