"""Depthwise convolutions of NHWC images, as loop nests: a thread does neighbouring channels of a
pixel, and all taps of them.

Filters as models have them are contiguous along their taps. They are laid out anew, once, with
channels last, so that a tap of neighbouring channels is one vector, as the pixels are.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

from rlx.backends.gpu.lower.loop import loop_schedule
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import is_static
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Accumulator, Affine, Axis, Expr, Exprs, Kernel, Load, Store
from rlx.kernel.lower.nhwc_conv import is_depthwise
from rlx.kernel.program.schedule import Buffer, PackedWeights, Schedule
from rlx.kernel.refusal import Refusal
from rlx.kernel.rewrite import Rewriter, substitution
from rlx.ops.op import lookup

MAX_UNROLLED = 64
"""Taps of an expression."""


def depthwise_schedule(
    contract: Contract, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask] | Refusal:
    """The loop nest of a contraction of independent columns, with constant filters packed."""
    if not is_depthwise(contract):
        return Refusal(f"{contract.name}: its columns are sums over the same channels")
    axes = _axes(contract, constants)
    if axes is None:
        return loop_schedule(_unrolled(contract), machine, name, constants)
    made, packing = _packed(contract, axes)
    number = len(contract.operands)
    schedule = loop_schedule(_unrolled(made), machine, name, constants | {number})
    (task,) = loop_schedule(packing, machine, f"{name}.packing").tasks
    behind, packed = Buffer("operand", number), Buffer("packed", 0)
    moved = schedule.moved(lambda b: packed if b == behind else b)
    return replace(moved, packed=(PackedWeights(task, packing.results[0].size_bytes),))


def _axes(contract: Contract, constants: frozenset[int]) -> tuple[Axis, ...] | None:
    """Those of constant filters as they are packed: channels last."""
    filters = contract.right
    if not isinstance(filters, Load) or filters.args or filters.operand not in constants:
        return None
    rest = [a for a in (*contract.batch, *contract.inner) if a in filters.free]
    axes = (*rest, contract.columns)
    is_whole = filters.free == frozenset(axes) and all(is_static(a.extent) for a in axes)
    return axes if is_whole and len(rest) > 0 else None


def _packed(contract: Contract, axes: tuple[Axis, ...]) -> tuple[Contract, Kernel]:
    """The contraction that reads packed filters as one more operand, and the kernel that packs."""
    layout = Layout.contiguous([a.extent for a in axes])
    at = Affine(tuple(zip(axes, layout.strides)))
    shape = Shape(layout.dims, contract.right.dtype)
    # flat, as those of a bucket of sizes are: what is packed is the same for all of them
    flat = tuple(Shape([s.num_elements], s.dtype) for s in contract.operands)
    store = Store(0, at, contract.right)
    kernel = Kernel(f"{contract.name}.packing", axes, (store,), flat, (shape,))
    right = Load(shape.dtype, (), at.axes, len(contract.operands), at)
    return replace(contract, right=right, operands=(*contract.operands, shape)), kernel


def _unrolled(contract: Contract) -> Kernel:
    """The loop nest with an expression for each tap, in order, where these are few: their pixels
    are requested all at once."""
    extents = [a.extent for a in contract.inner]
    counts = [e for e in extents if is_static(e)]
    if len(counts) < len(extents) or not 0 < prod(counts) <= MAX_UNROLLED:
        return contract.kernel()
    exprs, total = Exprs(), None
    for places in product(*map(range, counts)):
        moves = {a: Affine((), place) for a, place in zip(contract.inner, places)}
        at = Rewriter(exprs, substitution(moves))
        factors = [exprs.cast(at(x), contract.sums) for x in (contract.left, contract.right)]
        term = exprs.apply(lookup("mul"), factors, {}, contract.sums)
        both = [term] if total is None else [total, term]
        total = term if total is None else exprs.apply(lookup("add"), both, {}, contract.sums)
    assert total is not None
    found = [n for n in contract.epilogue if isinstance(n, Accumulator)]
    sums: dict[Expr, Expr] = {a: exprs.cast(total, a.dtype) for a in found}
    stores = tuple(map(Rewriter(exprs, replaced=sums).store, contract.stores))
    return Kernel(contract.name, contract.outer, stores, contract.operands, contract.results)
