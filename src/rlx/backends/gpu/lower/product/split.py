"""Contractions in parts: the inner axes cut, and a second launch that adds the parts up.

The parts are one more batch axis of the contraction, whose sums are written as they are; a loop
kernel adds them up, always in the same order, and does what follows the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rlx.backends.gpu.lower.loop import loop_schedule
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.task import GpuTask, Launch
from rlx.core.dim import exact_div
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.kernel.contract import Contract, over_axes
from rlx.kernel.expr import Accumulator, Affine, Axis, Expr, Exprs, Kernel, Store
from rlx.kernel.program.schedule import Buffer, Schedule, joined
from rlx.kernel.rewrite import Rewriter


def split_product(
    contract: Contract,
    parts: int,
    machine: GpuMachine,
    name: str,
    constants: frozenset[int],
    launch: Callable[[Contract, str], Launch],
) -> Schedule[GpuTask]:
    """The launches of both kernels; the parts lie in a temporary."""
    first, last = split_contract(contract, parts)
    made = Schedule[GpuTask]((launch(first, f"{name}.parts"),))
    added = loop_schedule(last, machine, name, constants)
    temp, behind = Buffer("temp", 0), Buffer("operand", len(contract.operands))
    to_temp = (made, lambda b: temp if b.kind == "result" else b)
    from_temp = (added, lambda b: temp if b == behind else b)
    return joined((first.results[0].size_bytes,), (to_temp, from_temp))


def split_contract(contract: Contract, parts: int) -> tuple[Contract, Kernel]:
    """The contraction of parts of the longest inner axis, which they divide, and the kernel that
    adds them up: it reads them as one more operand, behind the others."""
    axis = max(contract.inner, key=lambda a: int(a.extent))
    extent = exact_div(axis.extent, parts)
    assert extent is not None
    part, rest = Axis("part", parts), Axis(axis.name, extent)
    moved = over_axes(contract, {axis: Affine.of(part) * extent + Affine.of(rest)})
    layout = Layout.contiguous([parts, *(a.extent for a in contract.outer)])
    outer = (part, *contract.outer)
    at = Affine(tuple((a, s) for a, s in zip(outer, layout.strides) if s != 0))
    shape = Shape(layout.dims, contract.sums)
    total = Accumulator(contract.sums, free=frozenset(outer))
    first = replace(
        moved,
        batch=(part, *contract.batch),
        inner=tuple(rest if a is axis else a for a in contract.inner),
        stores=(Store(0, at, total),),
        results=(shape,),
    )
    return first, _added(contract, part, at, shape)


def _added(contract: Contract, part: Axis, at: Affine, shape: Shape) -> Kernel:
    exprs = Exprs()
    number = len(contract.operands)
    total = exprs.reduce("sum", part, exprs.load(number, at, shape.dtype))
    accumulators = [n for n in contract.epilogue if isinstance(n, Accumulator)]
    sums: dict[Expr, Expr] = {a: exprs.cast(total, a.dtype) for a in accumulators}
    stores = tuple(map(Rewriter(exprs, replaced=sums).store, contract.stores))
    operands = (*contract.operands, shape)
    return Kernel(contract.name, contract.outer, stores, operands, contract.results)
