"""How scans run on a GPU: what goes along the time axis together.

Channels of a scan are the points of its carries that no step mixes: rows of a cumulative op, or
columns of a state. A thread has a channel, its carries in registers; where a step reduces a state
over its rows, neighbouring threads share the rows and combine their parts. Where steps mix all
points, as those of recurrent layers do, a block has all that depends on each other, and the threads
meet between the kernels of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from rlx.backends.gpu.lower.scan.associative import Associative, TimeChunks
from rlx.backends.gpu.lower.scan.local import LocalIndex, local_index
from rlx.backends.gpu.lower.scan.steps import ScanKernels
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.loop import estimate, is_aligned
from rlx.core.dim import DimLike, exact_div
from rlx.kernel.expr import Affine, Axis, Load, Reduce
from rlx.kernel.refusal import Refusal, attempt

MAX_ROWS = 16
"""Of a state that a thread holds, in registers."""
MAX_THREAD_ROWS = 64
"""Of a state that one thread holds where threads do not share them."""
MAX_COPIES = 16
"""Points of axes that no carry has, done one after the other by each thread."""
FLIGHT_LOADS = 32
"""Loads that a thread has in flight: those of later steps do not depend on the carries."""
MAX_UNROLL = 8
MIN_BLOCK = 32
MIN_CHANNELS = 256
"""Channels from which on neighbouring threads are along them, where the time axis is strided."""
CHANNELS_PER_PROCESSOR = 512
BLOCKS_PER_PROCESSOR = 4
MIN_STEPS = 32
"""Of a chunk."""
MAX_CHUNKS, GRANULE, MAX_WIDTH = 1024, 64, 8
GROUP = 8
"""Threads that reduce together in a step: they read whole sectors of weights, and a shuffle serves
all groups of a warp."""
ALIGN_BYTES = 16
"""Of an array in shared memory."""


@dataclass(frozen=True, slots=True)
class ChannelSchedule:
    """A channel a thread, or a few neighbouring ones."""

    points: tuple[Axis, ...]
    """Of a channel, the last the fastest."""
    rows: Axis | None
    """Of a state, over which steps reduce."""
    lanes: int
    """Threads that share a channel's rows."""
    block: int
    unroll: int
    """Steps whose loads are made at once."""
    chunks: TimeChunks | None = None
    """Parts of the time axis, each from a carry that was made before."""
    warp: int = 32
    index_bits: int = 64
    """At most, of indices of elements."""

    @property
    def slots(self) -> int:
        """Rows that each thread holds."""
        return 1 if self.rows is None else -(-int(self.rows.extent) // self.lanes)

    @property
    def text(self) -> str:
        team = "a thread" if self.lanes == 1 else f"{self.lanes} threads"
        held = f" with {self.slots} rows of its state" if self.rows is not None else ""
        parts = f" of {self.chunks.axis.extent} chunks" if self.chunks else ""
        return f"{team} a channel{held}{parts}, {self.unroll} steps loaded at once"


@dataclass(frozen=True, slots=True)
class RowSchedule:
    """A block a row of a cumulative op."""

    points: tuple[Axis, ...]
    width: int
    """Neighbours of a thread."""
    block: int
    warp: int
    is_aligned: bool
    """Are they vectors in memory, and rows whole vectors?"""
    chunks: TimeChunks | None = None
    index_bits: int = 64
    """At most, of indices of elements."""

    @property
    def text(self) -> str:
        parts = f" of {self.chunks.axis.extent} chunks" if self.chunks else ""
        return f"a block of {self.block} threads a row{parts}, {self.width} neighbours a thread"


@dataclass(frozen=True, slots=True)
class BlockSchedule:
    """A block a point of the axes that steps do not mix."""

    points: tuple[Axis, ...]
    vector: Axis | None
    """The last of them, if a block has several neighbours of it."""
    width: int
    block: int
    warp: int
    local: Mapping[str, LocalIndex]
    """Values that the block has in shared memory; others are in global memory."""
    group: int = GROUP
    """Threads that reduce together."""
    index_bits: int = 64
    """At most, of indices of elements."""

    @property
    def text(self) -> str:
        each = f" of {self.width} rows" if self.width > 1 else ""
        return f"a block{each}, its {self.block} threads together at each step"


def by_channels(kernels: ScanKernels, machine: GpuMachine) -> ChannelSchedule | Refusal:
    """Channels of a thread or a few, where steps do not mix them."""
    scan = kernels.scan
    axes = scan.carries[0].axes if scan.carries else ()
    rows = [a for a in axes if a in kernels.reduced]
    points = tuple(a for a in axes if a not in rows)
    reason = _mixing(kernels, axes, points, rows, machine)
    if reason:
        return Refusal(f"{scan.name}: {reason}")
    lanes = _lanes(rows[0], machine) if rows else 1
    count = prod(estimate(a.extent) for a in points) * lanes
    block = machine.block
    while block > max(MIN_BLOCK, lanes) and count < 2 * machine.processors * block:
        block //= 2
    loads = _loads_of_a_step(kernels, rows, lanes)
    unroll = max(1, min(MAX_UNROLL, FLIGHT_LOADS // max(1, loads)))
    made = rows[0] if rows else None
    known = points, made, lanes, max(block, machine.warp), unroll
    warp = min(32, machine.warp)
    return ChannelSchedule(*known, warp=warp, index_bits=machine.index_bits)


def _mixing(
    kernels: ScanKernels,
    axes: tuple[Axis, ...],
    points: tuple[Axis, ...],
    rows: list[Axis],
    machine: GpuMachine,
) -> str:
    """Why channels are not independent; empty where they are."""
    scan = kernels.scan
    if scan.before or len(kernels.reversals) > 1 or not scan.carries:
        return "its steps are not those of channels"
    if len(rows) > 1 or set(kernels.reduced) - set(rows):
        return "a step reduces over more than the rows of a state"
    if rows and (not isinstance(rows[0].extent, int) or rows[0].extent > _most_rows(machine)):
        return "its state has too many rows for registers"
    if any(set(points) - set(v.axes) or set(v.axes) - set(axes) for v in kernels.memory.values):
        return "its values have other axes than its carries"
    if not _is_diagonal(kernels):
        return "a step mixes the points of its carries"
    extras = [a for k in kernels.all for a in k.axes if a not in axes]
    if (
        any(not isinstance(a.extent, int) for a in extras)
        or prod(int(a.extent) for a in dict.fromkeys(extras)) > MAX_COPIES
    ):
        return "its steps have more axes than its carries"
    return ""


def _is_diagonal(kernels: ScanKernels) -> bool:
    """Is every value read and written at the point itself?"""
    read = [(kernels.value_of(n), n.at) for n in kernels.loads]
    made = [(kernels.stored_value(s), s.at) for s in kernels.whole.stores]
    return all(v is None or at == v.at(*v.axes) for v, at in (*read, *made))


def _most_rows(machine: GpuMachine) -> int:
    """Of a state in the registers of the threads that can share a channel."""
    return MAX_ROWS * 32 if machine.warp > 1 else MAX_THREAD_ROWS


def _lanes(rows: Axis, machine: GpuMachine) -> int:
    lanes = 1
    while lanes < machine.warp and lanes * MAX_ROWS < int(rows.extent):
        lanes *= 2
    return lanes


def _loads_of_a_step(kernels: ScanKernels, rows: list[Axis], lanes: int) -> int:
    """That each thread makes of operands."""
    slots = -(-int(rows[0].extent) // lanes) if rows else 1
    nodes = [n for k in kernels.steps for n in k.nodes if isinstance(n, Load)]
    own = [n for n in nodes if kernels.value_of(n) is None]
    return sum(slots if set(rows) & n.free else 1 for n in own)


# -- cumulative ops -------------------------------------------------------------------------------


def by_prefixes(step: Associative, machine: GpuMachine) -> ChannelSchedule | RowSchedule:
    """Neighbouring threads along the row, or along the time axis where that is contiguous or rows
    are few; long time axes of few rows in chunks."""
    scan, points = step.kernels.scan, step.carry.axes
    count = prod(estimate(a.extent) for a in points)
    length = estimate(scan.time.extent)
    if _is_strided(step) and count >= MIN_CHANNELS:
        whole = by_channels(step.kernels, machine)
        if isinstance(whole, ChannelSchedule):
            wanted = machine.processors * CHANNELS_PER_PROCESSOR // count
            return replace(whole, chunks=_time_chunks(step, wanted, length // MIN_STEPS, 1))
    width, is_aligned = _row_vectors(step, machine)
    block = machine.lanes
    while block < machine.block and block * width < length:
        block *= 2
    tiles = length // (block * width)
    wanted = machine.processors * BLOCKS_PER_PROCESSOR // max(1, count)
    chunks = _time_chunks(step, wanted, tiles, GRANULE) if count < machine.processors else None
    known = points, width, block, machine.warp, is_aligned, chunks
    return RowSchedule(*known, machine.index_bits)


def _time_chunks(step: Associative, wanted: int, most: int, granule: int) -> TimeChunks | None:
    parts = min(wanted, most, MAX_CHUNKS)
    if parts < 2:
        return None
    extent = step.kernels.scan.time.extent
    length: DimLike = (extent + (parts * granule - 1)) // (parts * granule) * granule
    return TimeChunks(Axis("chunk", parts), length)


def _is_strided(step: Associative) -> bool:
    """Are neighbours of a row apart in memory, while rows are neighbours?"""
    time, last = step.kernels.scan.time, step.carry.axes[-1:]
    maps = [n.at for n in step.kernels.loads if step.kernels.value_of(n) is None]
    return all(abs_stride(at, time) != 1 and at.coefficient(a) == 1 for at in maps for a in last)


def abs_stride(at: Affine, axis: Axis) -> DimLike:
    stride = at.coefficient(axis)
    return abs(stride) if isinstance(stride, int) else stride


def _row_vectors(step: Associative, machine: GpuMachine) -> tuple[int, bool]:
    """Neighbours of a thread, and whether every access to them is one of a whole vector."""
    kernels, time = step.kernels, step.kernels.scan.time
    loads = [(n.at, n.dtype) for n in kernels.loads if kernels.value_of(n) is None]
    stores = [s for s in kernels.whole.stores if kernels.stored_value(s) is None]
    every = loads + [(s.at, kernels.scan.results[s.result].dtype.real) for s in stores]
    size = min(dtype.itemsize for _, dtype in every)
    width = max(1, min(MAX_WIDTH, machine.vector_bytes // size))
    is_forward = not kernels.reversals[0] and exact_div(time.extent, width) is not None
    return width, is_forward and all(is_aligned(at, time, width) for at, _ in every)


# -- blocks ---------------------------------------------------------------------------------------


def by_blocks(kernels: ScanKernels, machine: GpuMachine) -> BlockSchedule | Refusal:
    """A block for all that depends on each other."""
    if _has_hazard(kernels):
        return Refusal(f"{kernels.scan.name}: a kernel of a step reads what it writes elsewhere")
    shared = [a for a in kernels.whole.axes if _is_independent(kernels, a)]
    points = tuple(shared)
    width = _width(points[-1]) if points else 1
    longest = max((_points(kernels, k.axes, points, machine) for k in kernels.steps), default=1)
    block = machine.lanes
    while block < machine.max_block and block < longest:
        block *= 2
    vector = points[-1] if width > 1 else None
    widths = {a: width if a is vector else 1 for a in points}
    known = points, vector, width, block, machine.warp, _local(kernels, widths, machine)
    return BlockSchedule(*known, _group(machine), machine.index_bits)


def _group(machine: GpuMachine) -> int:
    """Threads that reduce together in a step."""
    return min(GROUP, machine.warp)


def _local(
    kernels: ScanKernels, widths: Mapping[Axis, int], machine: GpuMachine
) -> dict[str, LocalIndex]:
    """The values that are written, as long as shared memory lasts."""
    left, found = machine.shared_bytes, dict[str, LocalIndex]()
    for value in kernels.memory.values:
        index = local_index(value, widths) if value.name in kernels.written else None
        size = index.size * value.dtype.itemsize + ALIGN_BYTES if index is not None else 0
        if index is not None and size <= left and _is_local(kernels, index):
            found[value.name] = index
            left -= size
    return found


def _is_local(kernels: ScanKernels, index: LocalIndex) -> bool:
    """Does every index map go by whole strides?"""
    maps = [n.at for n in kernels.loads if kernels.value_of(n) is index.value]
    maps += [s.at for s in kernels.whole.stores if kernels.stored_value(s) is index.value]
    return not isinstance(attempt(lambda: [index.of(at) for at in maps]), Refusal)


def _points(
    kernels: ScanKernels, axes: tuple[Axis, ...], shared: tuple[Axis, ...], machine: GpuMachine
) -> int:
    """Threads that a kernel of a step has work for."""
    own = prod(estimate(a.extent) for a in axes if a not in shared)
    return own * (_group(machine) if kernels.reduced else 1)


def _width(axis: Axis) -> int:
    """Neighbours of a batch that a block does: weights are read once for all of them."""
    return next(w for w in (4, 2, 1) if exact_div(axis.extent, w) is not None)


def _is_independent(kernels: ScanKernels, axis: Axis) -> bool:
    """Do all values that vary with an axis stay at its point, and are none without it written by
    kernels that have it?"""
    for kernel in kernels.all:
        if axis not in kernel.axes:
            return False
        if any(axis not in v.axes for s in kernel.stores if (v := kernels.stored_value(s))):
            return False
    read = [(kernels.value_of(n), n.at) for n in kernels.loads]
    made = [(kernels.stored_value(s), s.at) for s in kernels.whole.stores]
    for value, at in (*read, *made):
        if value is None or axis not in value.axes:
            continue
        own = value.at(*value.axes).coefficient(axis)
        if at.coefficient(axis) != own:
            return False
    return True


def _has_hazard(kernels: ScanKernels) -> bool:
    """Does a kernel read a value at another place than where it writes it?"""
    for kernel in kernels.all:
        made = {s.result - len(kernels.scan.results): s.at for s in kernel.stores}
        for node in kernel.nodes:
            if not isinstance(node, Load):
                continue
            at = made.get(node.operand - len(kernels.scan.operands))
            is_own = kernels.value_of(node) is not None and at is not None
            if is_own and (at != node.at or _is_folded(kernel.nodes, node)):
                return True
    return False


def _is_folded(nodes: tuple[object, ...], load: Load) -> bool:
    """Is it read by a reduction over one of its axes?"""
    return any(isinstance(n, Reduce) and n.axis in load.free for n in nodes)
