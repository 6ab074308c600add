"""Loop kernels as several launches, where one would leave most of the device idle.

Few results of long reductions are a few blocks' work: the reduction is split into chunks, and a
second launch folds the chunks in order. Where such a reduction, or one over other axes than the
rest, is part of a kernel that goes on with its result, it is a kernel of its own first, and the
rest reads what it made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.loop import (
    TEAM_LOADS,
    GpuSchedule,
    chain_of,
    choose,
    contiguous_axis,
    estimate,
    heads_of,
    is_padded,
    traffic_bytes,
)
from rlx.core.dim import DimLike
from rlx.kernel.expr import Axis, Choose, Kernel, Load, Reduce, postorder
from rlx.kernel.split_reduction import Chunks, is_held, separated, split_reduction

CHUNKS_PER_LAUNCH = 4
"""A chunk is read in no less than that part of what a launch costs."""
BLOCKS_PER_PROCESSOR = 4
"""That make the device busy."""
GRANULE = 64
"""Elements of which a chunk of contiguous ones has a multiple, so that vectors are aligned."""


@dataclass(frozen=True, slots=True)
class Split:
    """What is launched before the rest of a kernel; its results are further operands of that."""

    first: Kernel
    rest: Kernel
    is_done: bool
    """Is each of them one launch?"""


def split(kernel: Kernel, machine: GpuMachine) -> Split | None:
    """A legal kernel as two; None where it is one launch."""
    if not heads_of(kernel) or _has_guarded_reduction(kernel):
        return None
    schedule = choose(kernel, machine)
    own = _separate(kernel, schedule, machine)
    if own:
        return Split(*separated(kernel, own), is_done=False)
    if _has_rest(kernel):
        return None
    parts = _parts(kernel, schedule, machine)
    found = split_reduction(kernel, lambda r: _chunks(kernel, r, parts)) if parts > 1 else None
    return None if found is None else Split(*found, is_done=True)


def _has_guarded_reduction(kernel: Kernel) -> bool:
    """May a reduction be of what is not there to read, but where a guard allows it?"""
    guarded = postorder(n for n in kernel.nodes if isinstance(n, Choose))
    pads = any(is_padded(kernel, a) for a in kernel.axes)
    return pads or any(isinstance(n, Reduce) for n in guarded)


# -- reductions as kernels of their own -----------------------------------------------------------


def _separate(kernel: Kernel, schedule: GpuSchedule, machine: GpuMachine) -> list[Reduce]:
    """The first reductions that are better off in a kernel of their own."""
    if not _has_rest(kernel):
        return []
    first = _groups(kernel)[0]
    length = max(prod(estimate(a.extent) for a in chain_of(r)[0]) for r in first)
    is_alone = schedule.team == "thread" and not schedule.row
    if is_alone and length > machine.thread_column:
        return first
    blocks = blocks_of(kernel, schedule)
    is_idle = blocks < machine.processors
    return first if is_idle and _load_bytes(kernel) >= 2 * machine.launch_bytes * blocks else []


def _groups(kernel: Kernel) -> list[list[Reduce]]:
    """Reductions over the same axes at the same points; first those of bodies without others."""
    heads = heads_of(kernel)
    inner = {r: {n for n in postorder(r.args) if n in heads} for r in heads}
    found: dict[object, list[Reduce]] = {}
    for r in sorted(heads, key=lambda r: len(inner[r])):
        found.setdefault((bool(inner[r]), r.free, chain_of(r)[0]), []).append(r)
    return list(found.values())


def _has_rest(kernel: Kernel) -> bool:
    """Is there more than reductions over the same axes, and what each result makes of them?"""
    groups = _groups(kernel)
    return len(groups) > 1 or any(s.at.axes != groups[0][0].free for s in kernel.stores)


# -- chunks ---------------------------------------------------------------------------------------


def _parts(kernel: Kernel, schedule: GpuSchedule, machine: GpuMachine) -> int:
    """Into how many parts reductions are split; 1 where they are not."""
    if not machine.pays_barrier(TEAM_LOADS):
        return _row_parts(kernel, schedule, machine)
    blocks = blocks_of(kernel, schedule)
    each = _load_bytes(kernel) // blocks
    if blocks >= 2 * machine.processors or each < machine.launch_bytes:
        return 1
    wanted = BLOCKS_PER_PROCESSOR * machine.processors // blocks
    return min(wanted, each * CHUNKS_PER_LAUNCH // machine.launch_bytes)


def _row_parts(kernel: Kernel, schedule: GpuSchedule, machine: GpuMachine) -> int:
    """The same where a thread does a row: as many as keep all SIMD groups busy."""
    rows = prod(estimate(a.extent) for a in schedule.outer)
    each = _load_bytes(kernel) // max(1, rows)
    wanted = machine.processors * machine.simd // max(1, rows)
    return max(1, min(wanted, each * CHUNKS_PER_LAUNCH // machine.launch_bytes))


def _chunks(kernel: Kernel, r: Reduce, parts: int) -> Chunks | None:
    """Of one axis of each chain."""
    head = next((h for h in heads_of(kernel) if r.axis in chain_of(h)[0]), None)
    if head is None or not is_held(r) or r.axis is not _split_axis(chain_of(head)[0], parts):
        return None
    extent = r.axis.extent
    step = GRANULE if contiguous_axis(kernel) is r.axis else 1
    length: DimLike = (extent + (parts * step - 1)) // (parts * step) * step
    count = parts if not isinstance(extent, int) else -(-extent // int(length))
    return Chunks(count, length, is_outermost=True, is_guarded=length * count != extent)


def _split_axis(axes: Sequence[Axis], parts: int) -> Axis:
    """The outermost that is long enough, else the longest."""
    long = [a for a in axes if estimate(a.extent) >= 2 * parts]
    return long[0] if long else max(axes, key=lambda a: estimate(a.extent))


def blocks_of(kernel: Kernel, schedule: GpuSchedule) -> int:
    """About how many there are."""
    points = prod(estimate(a.extent) for a in schedule.outer)
    if schedule.tile is not None:
        return max(1, points // schedule.tile_size**2)
    width = schedule.width if schedule.vector in schedule.outer else 1
    return max(1, points * schedule.threads // (schedule.block * width))


def _load_bytes(kernel: Kernel) -> int:
    return sum(traffic_bytes(n.free, n.dtype) for n in kernel.nodes if isinstance(n, Load))
