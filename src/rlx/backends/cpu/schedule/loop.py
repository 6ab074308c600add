"""Loop kernels as tasks: legal ops, parts of long reductions, the schedule of each nest."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from rlx.backends.cpu.codegen.loop import emit
from rlx.backends.cpu.codegen.loop.emit import legal
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import OUT_OF_RANGE, Task, TaskKind
from rlx.backends.cpu.schedule.loop_schedule import (
    MAX_TILE,
    check,
    choose,
    scratch_bytes,
    sizes_of,
)
from rlx.backends.cpu.schedule.loop_schedule import Schedule as LoopSchedule
from rlx.backends.cpu.schedule.repeated_reductions import repeated_reduction
from rlx.backends.cpu.schedule.strip_mining import strip_mined
from rlx.core.dim import DimLike, dim_max, dim_min, product, round_up, substitute
from rlx.kernel.cost import cost_of
from rlx.kernel.expr import Apply, Axis, Expr, Kernel, Load, Reduce
from rlx.kernel.program.schedule import Buffer, Schedule, buffers
from rlx.kernel.refusal import NotLowered
from rlx.kernel.rewrite import read_only
from rlx.kernel.size_generic import generic
from rlx.kernel.split_reduction import split_reduction
from rlx.kernel.structure import structure_of

PREAMBLE_FACTOR = 8
"""How much more than what every part has to find out first a part does."""


def loop_schedule(
    kernel: Kernel, machine: CpuMachine, name: str, *, prologue_only: bool = False
) -> Schedule[Task]:
    """A loop kernel as one nest, or as several where reductions are long with few results. The
    code of what runs once is for any sizes, so that others can share it."""
    kernel = legal(kernel)
    every = buffers(len(kernel.operands), len(kernel.results))
    given, made = list(every[: len(kernel.operands)]), every[len(kernel.operands) :]
    tasks: list[Task] = []
    temps: list[DimLike] = []
    while (parts := split_reduction(kernel)) is not None:
        partial, kernel = parts
        between = [Buffer("temp", len(temps) + i) for i in range(len(partial.results))]
        nest = _Nest(partial, machine, prologue_only)
        tasks.append(nest.task(given, between, f"{name}.part{len(tasks)}"))
        temps += [r.size_bytes for r in partial.results]
        given += between
    tasks.append(_Nest(kernel, machine, prologue_only).task(given, made, name))
    return Schedule(tuple(tasks), tuple(temps))


def vector_axis(kernel: Kernel, machine: CpuMachine) -> Axis | None:
    """The axis that a loop nest is vectorised along."""
    return choose(legal(kernel), machine).vector


def loop_task(
    kernel: Kernel,
    given: Sequence[Buffer],
    made: Sequence[Buffer],
    machine: CpuMachine,
    name: str,
    *,
    has_key: bool = False,
) -> Task:
    """The one nest of a loop kernel; its operands and results are these buffers. With a key, equal
    ones are known to be."""
    nest = _Nest(legal(kernel), machine)
    return nest.task(given, made, name, nest.key if has_key else None)


class _Nest:
    """A legal kernel with its schedule. It is called with what it reads only."""

    def __init__(self, kernel: Kernel, machine: CpuMachine, is_generic: bool = False) -> None:
        self.given, self.read = read_only(kernel)
        self.machine, self.isa = machine, machine.isa
        strips = strip_mined(self.given, machine)
        self.kernel, self.sizes = generic(self.given) if is_generic else (strips, {})
        self.schedule = choose(self.kernel, machine)
        check(self.schedule, self.kernel)
        repeated = repeated_reduction(self.kernel, self.schedule)
        if repeated is not None:
            axes = self.kernel.name, repeated.axis
            raise NotLowered(f"{axes[0]}: its reduction over {axes[1]} is at each point of it")

    @property
    def key(self) -> Hashable:
        """All that its code follows from; a schedule follows from the kernel."""
        return structure_of(self.kernel), tuple(self.sizes.items()), self.isa.name

    def task(
        self,
        given: Sequence[Buffer],
        made: Sequence[Buffer],
        name: str,
        key: Hashable | None = None,
    ) -> Task:
        kernel, schedule, sizes = self.kernel, self.schedule, self.sizes
        units = substitute(product(a.extent for a in schedule.parallel), sizes)
        return Task(
            TaskCode(name, self._source, key),
            (*(given[i] for i in self.read), *made),
            units,
            self._grain(units),
            substitute(scratch_bytes(schedule), sizes),
            (OUT_OF_RANGE,) * sum(isinstance(n, Load) and bool(n.args) for n in kernel.nodes),
            _how(kernel, schedule, sizes),
            TaskKind.LOOP,
        )

    def _grain(self, units: DimLike) -> DimLike:
        """Whole cache lines, where the units are elements of a row, and whole tiles."""
        taken = _grain(self.given, units, self.machine)
        last = self.schedule.parallel[-1:]
        if self.schedule.vector in last:
            return dim_min(units, round_up(taken))
        return dim_min(units, round_up(taken, MAX_TILE)) if self.schedule.tile in last else taken

    def _source(self, name: str) -> Source:
        function = emit.emit(self.kernel, self.schedule, self.isa, name)
        return Source(function, tuple(substitute(d, self.sizes) for d in sizes_of(self.kernel)))


def _how(kernel: Kernel, schedule: LoopSchedule, sizes: Mapping[str, int]) -> str:
    """The schedule in words."""
    parts = [f"loop nest over {_extents(schedule.order, sizes)}"]
    if len(schedule.parallel) > 1:
        parts.append(f"the outermost {len(schedule.parallel)} loops collapsed")
    if kernel.reduced:
        parts.append(f"reductions over {_extents(kernel.reduced, sizes)}")
    if schedule.vector is None:
        parts.append("not vectorised")
    else:
        parts.append(f"vectorised along the axis of {_extents([schedule.vector], sizes)}")
    if schedule.tile is not None:
        parts.append("tiles transposed in registers")
    if schedule.staged:
        parts.append(f"{len(schedule.staged)} row values staged in scratch")
    if schedule.row_accumulators:
        parts.append("rows of accumulators in scratch")
    if schedule.streaming:
        parts.append("non-temporal stores")
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
    cost = cost_of(node) if isinstance(node, Apply) else int(isinstance(node, Reduce))
    total: DimLike = cost
    for axis in varies.free if cost else ():
        total = total * axis.extent
    return total
