"""Factors of a product written to memory before it: those that are computed, which every tile would
compute again, and weights that are not contiguous along an axis, which are packed once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from rlx.backends.gpu.lower.loop import loop_schedule
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.factors import inner_order, loader_of, outer_axes
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import exact_div, is_static
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Affine, Apply, Axis, Expr, Kernel, Load, Store, postorder
from rlx.kernel.program.schedule import Buffer, PackedWeights, Schedule, joined

MAX_APPLIED = 1
"""Ops of a factor that are as well computed with each load: a conversion, or a scale."""

Make = Callable[[Contract, frozenset[int]], Schedule[GpuTask]]
Side = Literal["left", "right"]


def with_staged_factors(
    contract: Contract,
    machine: GpuMachine,
    name: str,
    constants: frozenset[int],
    make: Make,
    sides: tuple[Side, ...] = ("left", "right"),
) -> Schedule[GpuTask]:
    """The product, after what writes its factors to memory: each once, as one that is written may
    be strided still, along an axis that only the other factor has."""
    for side in sides:
        factor: Expr = getattr(contract, side)
        loads, is_computed = _loads(factor), _is_computed(factor)
        is_constant = bool(loads) and all(n.operand in constants for n in loads)
        if not (is_computed or (is_constant and _is_strided(contract, side, machine))):
            continue
        rest: tuple[Side, ...] = tuple(s for s in sides if s != side)
        again = _Again(machine, name, make, rest)
        made, kernel = _written(contract, side)
        first = loop_schedule(kernel, machine, f"{name}.{side}", constants)
        if is_constant and len(first.tasks) == 1:
            return _packed(
                first.tasks[0], kernel, again(made, constants | {len(contract.operands)})
            )
        if is_computed:
            return _before(first, kernel, again(made, constants))
    return make(contract, constants)


@dataclass(frozen=True, slots=True)
class _Again:
    """The product, with the factors of some sides still to be written."""

    machine: GpuMachine
    name: str
    make: Make
    sides: tuple[Side, ...]

    def __call__(self, contract: Contract, constants: frozenset[int]) -> Schedule[GpuTask]:
        made = (self.machine, self.name, constants, self.make, self.sides)
        return with_staged_factors(contract, *made)


def _loads(factor: Expr) -> list[Load]:
    return [n for n in postorder([factor]) if isinstance(n, Load)]


def _is_computed(factor: Expr) -> bool:
    applied = [n for n in postorder([factor]) if isinstance(n, Apply)]
    return len(applied) > MAX_APPLIED or any(n.args for n in _loads(factor))


def _is_strided(contract: Contract, side: str, machine: GpuMachine) -> bool:
    """Is a constant factor of known size not contiguous along its rows or columns, of which there
    are whole vectors? Neighbouring threads then read apart: 1.35 times as long was measured."""
    rows, columns, _ = outer_axes(contract)
    factor, axes = (contract.left, rows) if side == "left" else (contract.right, columns)
    inner = inner_order(contract, machine)
    found = loader_of(contract, factor, axes, inner[-1], is_large=True, machine=machine)
    is_known = all(is_static(a.extent) for a in factor.free)
    is_apart = found.along == "inner" or found.width == 1
    is_whole = exact_div(axes[-1].extent, 2) is not None and axes[-1] in factor.free
    return is_apart and is_known and is_whole


def _written(contract: Contract, side: str) -> tuple[Contract, Kernel]:
    """The product that reads a factor as one more operand, with its rows or columns contiguous,
    and the kernel that writes it."""
    factor: Expr = getattr(contract, side)
    last = contract.rows if side == "left" else contract.columns
    order = [a for a in (*contract.batch, *contract.inner) if a in factor.free]
    axes: tuple[Axis, ...] = (*order, *((last,) if last in factor.free else ()))
    layout = Layout.contiguous([a.extent for a in axes])
    at = Affine(tuple((a, s) for a, s in zip(axes, layout.strides) if s != 0))
    shape = Shape(layout.dims, factor.dtype)
    # flat, as those of a bucket of sizes are: what is packed is the same for all of them
    flat = tuple(Shape([s.num_elements], s.dtype) for s in contract.operands)
    kernel = Kernel(f"{contract.name}.{side}", axes, (Store(0, at, factor),), flat, (shape,))
    read = Load(shape.dtype, (), at.axes, len(contract.operands), at)
    operands = (*contract.operands, shape)
    if side == "left":
        return replace(contract, left=read, operands=operands), kernel
    return replace(contract, right=read, operands=operands), kernel


def _packed(task: GpuTask, kernel: Kernel, rest: Schedule[GpuTask]) -> Schedule[GpuTask]:
    """The factor is made once, and is the last operand of the rest."""
    behind = Buffer("operand", len(kernel.operands))
    packed = Buffer("packed", len(rest.packed))
    weights = PackedWeights(task, kernel.results[0].size_bytes)
    schedule = rest.moved(lambda b: packed if b == behind else b)
    return replace(schedule, packed=(*rest.packed, weights))


def _before(first: Schedule[GpuTask], kernel: Kernel, rest: Schedule[GpuTask]) -> Schedule[GpuTask]:
    """The factor is made by every run, in a temporary."""
    temp, behind = Buffer("temp", 0), Buffer("operand", len(kernel.operands))
    to_temp = (first, lambda b: temp if b.kind == "result" else b)
    from_temp = (rest, lambda b: temp if b == behind else b)
    return joined((kernel.results[0].size_bytes,), (to_temp, from_temp))
