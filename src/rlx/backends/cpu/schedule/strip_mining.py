"""Strip-mining: strips of the vectorised axis as the parallel loop.

    for c in 3: for x in 50176: y[3 x + c] = …   →   for s in 64: for c in 3: for x in 784: …

Where the iterations of the outermost loop interleave in memory, two workers would write the same
cache lines, or read the same where their tiles are transposed; where there are two or three, they
would not occupy the workers.
"""

from __future__ import annotations

from dataclasses import replace

from rlx.backends.cpu.schedule.loop_schedule import Schedule, choose, is_few
from rlx.core.dim import DimLike, exact_div, is_static
from rlx.cost.machine import Machine
from rlx.kernel.expr import Affine, Axis, Inside, Kernel
from rlx.kernel.rewrite import rewritten, substitution

MAX_STRIPS = 64
MIN_STRIP = 256
"""Elements of a strip: some cache lines for each worker, and many vectors for each loop."""
MAX_FREE_STRIP = 1024
"""Elements of a strip of a free extent, at most: a short row would have too few longer ones."""
LANES = 16
"""Strips in multiples of these leave no partial vectors."""


def strip_mined(kernel: Kernel, machine: Machine) -> Kernel:
    """The same kernel, its vectorised axis in strips where the outermost loop parallelises
    badly."""
    schedule = choose(kernel, machine)
    vector = schedule.vector
    if vector is None or not _is_worth(kernel, schedule, vector):
        return kernel
    count, length = _strips(vector.extent)
    if count == 1:
        return kernel
    strip, within = Axis(f"{vector.name}_strip", count), Axis(vector.name, length)
    axes = tuple(b for a in kernel.axes for b in ((strip, within) if a is vector else (a,)))
    at = substitution({vector: Affine.of(strip) * within.extent + Affine.of(within)})
    return rewritten(replace(kernel, axes=axes), move=at)


def _is_worth(kernel: Kernel, schedule: Schedule, vector: Axis) -> bool:
    """Are there no reductions, whose order is part of the result, no conditions on the axis, and is
    the outermost loop one of few iterations, or of neighbours?"""
    if kernel.reduced or vector in schedule.parallel or not schedule.parallel:
        return False
    outer = schedule.parallel[-1]
    if any(isinstance(n, Inside) and vector in n.at.axes for n in kernel.nodes):
        return False
    is_uneven = is_few(outer) or outer is schedule.tile
    return is_uneven or any(_interleave(s.at, outer, vector) for s in kernel.stores)


def _interleave(at: Affine, outer: Axis, vector: Axis) -> bool:
    """Do iterations of the outermost loop write between those of the vectorised one?"""
    step, across = at.coefficient(outer), at.coefficient(vector)
    return is_static(step) and is_static(across) and 0 < step < across


def _strips(extent: DimLike) -> tuple[DimLike, DimLike]:
    """How many, and their length: the most that divide the extent, whole vectors if any do. Of a
    free extent, those of the least length that divides it whatever the sizes."""
    if not is_static(extent):
        lengths = range(MIN_STRIP, MAX_FREE_STRIP + 1, LANES)
        found = ((exact_div(extent, n), n) for n in lengths)
        return next(((count, n) for count, n in found if count is not None), (1, extent))
    counts = [n for n in range(1, MAX_STRIPS + 1) if extent % n == 0 and extent // n >= MIN_STRIP]
    count = max(counts, key=lambda n: (extent // n % LANES == 0, n), default=1)
    return count, extent // count
