"""Loop kernels as tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlx.backends.cpu.codegen.loop import emit
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import (
    OUT_OF_RANGE,
    Buffer,
    Task,
    TaskKind,
)
from rlx.core.dim import DimLike, dim_max, dim_min, substitute
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.kernel.decompose import copied
from rlx.kernel.expr import Affine, Axis, Expr, Exprs, Kernel, Load, Reduce, Store
from rlx.kernel.schedule import COSTS, Schedule, choose, scratch_bytes, sizes_of
from rlx.kernel.size_generic import generic

PREAMBLE_FACTOR = 8
"""How much more than what every part has to find out first a part does."""


def loop_task(
    kernel: Kernel, given: Sequence[Buffer], made: Sequence[Buffer], machine: CpuMachine, name: str
) -> Task:
    """The task of a loop kernel; its operands and results are these buffers."""
    return legal_loop_task(emit.legal(kernel), given, made, machine, name)


def copy_kernel(shape: Shape, given: Layout, to: Layout) -> Kernel:
    """Values from where they lie to where they shall."""
    exprs = Exprs()
    axes = tuple(Axis(f"d{i}", d) for i, d in enumerate(shape.dims))
    value = exprs.load(0, _affine(given, axes), shape.dtype)
    return Kernel("copy", axes, (Store(0, _affine(to, axes), value),), (shape,), (shape,))


def _affine(layout: Layout, axes: tuple[Axis, ...]) -> Affine:
    terms = tuple((a, s) for a, s in zip(axes, layout.strides) if s != 0)
    return Affine(terms, layout.offset)


def legal_loop_task(
    kernel: Kernel,
    given: Sequence[Buffer],
    made: Sequence[Buffer],
    machine: CpuMachine,
    name: str,
    *,
    prologue_only: bool = False,
) -> Task:
    """The same of a kernel that is legal. It is called with what it reads only. The code of one
    that runs once is for any sizes, so that others can share it."""
    kernel, read = _read_only(kernel)
    given_kernel, sizes = kernel, dict[str, int]()
    if prologue_only:
        kernel, sizes = generic(kernel)
    schedule = choose(kernel, machine)
    function = emit.emit(kernel, schedule, machine.isa, name)
    units = substitute(schedule.parallel.extent if schedule.parallel else 1, sizes)
    return Task.written(
        function,
        (*(given[i] for i in read), *made),
        tuple(substitute(d, sizes) for d in sizes_of(kernel)),
        units,
        _grain(given_kernel, units, machine),
        substitute(scratch_bytes(schedule), sizes),
        (OUT_OF_RANGE,) * sum(isinstance(n, Load) and bool(n.args) for n in kernel.nodes),
        _how(kernel, schedule, sizes),
        TaskKind.LOOP,
    )


def _how(kernel: Kernel, schedule: Schedule, sizes: Mapping[str, int]) -> str:
    """The schedule in words."""
    parts = [f"a loop nest over {_extents(schedule.order, sizes)}"]
    if kernel.reduced:
        parts.append(f"folds over {_extents(kernel.reduced, sizes)}")
    if schedule.vector is None:
        parts.append("no lanes")
    else:
        parts.append(f"lanes along the axis of {_extents([schedule.vector], sizes)}")
    if schedule.tile is not None:
        parts.append("squares turned in registers")
    if schedule.staged:
        parts.append(f"{len(schedule.staged)} row values kept between passes")
    if schedule.row_accumulators:
        parts.append("running values of folds kept as rows")
    if schedule.streaming:
        parts.append("stores go past the caches")
    return ", ".join(parts)


def _extents(axes: Sequence[Axis], sizes: Mapping[str, int]) -> str:
    return "×".join(str(substitute(a.extent, sizes)) for a in axes) or "one point"


def _grain(kernel: Kernel, units: DimLike, machine: CpuMachine) -> DimLike:
    """How many units a worker takes at a time: what each part has to find out first, because it
    is the same for all units, shall be little of its work."""
    ns, first = _nanoseconds(kernel, machine)
    more = dim_max(1, PREAMBLE_FACTOR * first // machine.task_ns)
    return dim_min(units, machine.units_per_task(units, ns) * more)


def _nanoseconds(kernel: Kernel, machine: CpuMachine) -> tuple[DimLike, DimLike]:
    """By the memory it touches, and by what is done at each point of the axes that it varies with;
    and of that what varies with none of the results' axes."""
    traffic: DimLike = 0
    for shape in (*kernel.operands, *kernel.results):
        traffic = traffic + shape.size_bytes
    flops: DimLike = 0
    first: DimLike = 0
    for node in kernel.nodes:
        own = _operations(node)
        flops = flops + own
        if not any(node.free & {a} for a in kernel.axes):
            first = first + own
    return machine.worker_ns(flops, traffic), machine.worker_ns(first, 0)


def _operations(node: Expr) -> DimLike:
    """A fold is an operation at each point of what is folded."""
    varies = node.args[0] if isinstance(node, Reduce) else node
    op = getattr(node, "op", None)
    cost = COSTS.get(op.name, 1) if op is not None else int(isinstance(node, Reduce))
    total: DimLike = cost
    for axis in varies.free if cost else ():
        total = total * axis.extent
    return total


def _read_only(kernel: Kernel) -> tuple[Kernel, tuple[int, ...]]:
    """The kernel with the operands that it reads, and their numbers before."""
    loads = [n for n in kernel.nodes if isinstance(n, Load)]
    read = tuple(sorted({n.operand for n in loads}))
    if read == tuple(range(len(kernel.operands))):
        return kernel, read
    exprs = Exprs()
    made: dict[Expr, Expr] = {}
    for node in kernel.nodes:
        args = [made[a] for a in node.args]
        moved = replace(node, operand=read.index(node.operand)) if isinstance(node, Load) else node
        made[node] = copied(moved, args, exprs)
    stores = tuple(Store(s.result, s.at, made[s.value]) for s in kernel.stores)
    operands = tuple(kernel.operands[i] for i in read)
    return replace(kernel, stores=stores, operands=operands), read
