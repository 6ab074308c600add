"""How a loop kernel runs on a GPU: which threads do what together.

A team of threads does one point of the outer axes: it makes the reductions there together and
goes along the row, the axes that the reductions do not vary with. One thread is a team for
elementwise kernels. A warp or a block is one for rows whose neighbours are contiguous; short ones
are staged in registers, so that what two passes need is loaded and computed once. Where columns
are contiguous, neighbouring threads do neighbouring columns, and a team is the threads of a block
that have the same column.

The order of every reduction follows from the extents and this schedule, never from the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from rlx.backends.gpu.machine import GpuMachine, lanes_of
from rlx.core.dim import DimLike, exact_div, lower_bound, product, upper_bound
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.kernel.expr import Affine, Axis, Choose, Expr, Inside, Kernel, Load, Reduce

MAX_NODES = 1024
"""Expressions of all neighbours of a thread: longer code costs more to assemble than it saves."""
EARLY_BYTES = 128
"""Of a thread's registers for constants that are loaded before the kernels before are done."""
TYPICAL_EXTENT = 1024
"""Of a named dim, where a choice has to be made before it is known."""
NARROW = 16
"""The greatest size of a narrow range is no more than so many times the least."""
FLIGHT_BYTES = 128
"""Of loads that a thread has in flight in a loop: memory answers after some hundred cycles."""
MAX_UNROLL = 8
STAGED_ELEMENTS = 32
"""Of a row that a thread keeps in registers, where vectors are short."""
BUSY_VECTORS, IDLE_VECTORS = 4, 2
"""That each thread loads of a row: where there are many rows, of all operands together, few warps
that meet at a barrier and much in flight; where there are few, many threads to be done soon."""
MIN_BLOCK = 64
MIN_VECTORS = 64
"""Of an axis that ends with a part of one."""
TEAM_LOADS = 16
"""Of global memory, that a thread of a team of many does not make as others do."""
MIN_TILE = 16
"""Extents from which on a square pays."""
Team = Literal["thread", "warp", "block", "column"]


@dataclass(frozen=True, slots=True)
class GpuSchedule:
    """A schedule of one kernel."""

    outer: tuple[Axis, ...]
    """A team for each point; the last is the fastest."""
    row: tuple[Axis, ...]
    """What a team goes along together, the last the fastest; empty where there is no row."""
    team: Team
    block: int
    """Threads."""
    vector: Axis | None = None
    """The last of the row, or of the outer axes, if a thread does several neighbours of it."""
    width: int = 1
    chunks: int = 0
    """Vectors of the row that each thread holds; 0 where it is gone along anew in each pass."""
    warp: int = 32
    unroll: int = 1
    """Vectors that a thread loads at once in a loop along the row."""
    tile: Axis | None = None
    """Some loads are contiguous along this axis, the last but one, while stores are along the last
    outer one: squares of both are transposed in shared memory."""

    constants: frozenset[int] = frozenset()
    """Operands that no kernel of the run writes."""
    index_bits: int = 64
    """At most, of indices of elements."""
    is_dependent: bool = False
    """The next kernel is released at once, and those before are waited for: with dependent launch,
    blocks are there when their input is."""

    @property
    def text(self) -> str:
        """In a few words, for reports."""
        if self.tile is not None:
            return f"squares of {self.tile_size}x{self.tile_size} through shared memory"
        team = "a thread" if self.threads == 1 else f"a {self.team} of {self.threads} threads"
        what = "a row" if self.row else "a point"
        wide = f", {self.width} neighbours at a time" if self.width > 1 else ""
        wide += f", {self.unroll} loads in flight" if self.unroll > 1 else ""
        held = f", {self.chunks} vectors of the row in registers" if self.chunks else ""
        many = f", blocks of {self.block} threads" if self.team in ("thread", "warp") else ""
        return f"{team} {what}{wide}{held}{many}"

    @property
    def is_ragged(self) -> bool:
        """May the last vector of the axis be a part of one? Its points are done one by one."""
        return self.vector is not None and exact_div(self.vector.extent, self.width) is None

    @property
    def tile_size(self) -> int:
        """Of a square's sides."""
        return self.lanes * self.width

    @property
    def lanes(self) -> int:
        """Neighbouring threads that access memory together."""
        return lanes_of(self.warp)

    @property
    def threads(self) -> int:
        """Of a team."""
        sizes = {"thread": 1, "warp": self.warp, "block": self.block}
        return sizes.get(self.team, self.block // self.lanes)


def check(given: GpuSchedule, kernel: Kernel) -> None:
    """Raise where the schedule is not one of this kernel's."""
    known, last = {*kernel.axes, *kernel.reduced}, (*given.row[-1:], *given.outer[-1:])
    folds = [n for n in kernel.nodes if isinstance(n, Reduce)]
    faults = {
        "its outer axes and row are not the kernel's axes": not (
            {*given.outer, *given.row} >= set(kernel.axes)
            and {*given.outer, *given.row} <= known
            and set(given.outer) <= set(kernel.axes)
        ),
        "an axis comes twice": len({*given.outer, *given.row}) != len(given.outer) + len(given.row),
        "a team of several threads has no row": given.team != "thread" and not given.row,
        "its vector axis is not the last one": given.vector is not None
        and given.vector not in last,
        "its vectors do not divide the axis": given.is_ragged
        and (given.team != "thread" or bool(given.row)),
        "its row is too long for its registers": given.chunks > 0
        and not _fits(given, given.chunks),
        "an axis of a reduction is a team's point": given.team != "thread"
        and any(f.axis in given.outer for f in folds),
        "its block is no number of warps": given.block % given.warp != 0,
        "its tiles are not of its two last axes": given.tile is not None
        and (given.tile is not given.outer[-2] or not can_tile(kernel) or given.vector is not None),
    }
    wrong = [what for what, is_wrong in faults.items() if is_wrong]
    if wrong:
        raise Error(f"kernel {kernel.name}: the schedule is not for it: {'; '.join(wrong)}.")


def _fits(given: GpuSchedule, chunks: int) -> bool:
    longest = upper_bound(product(a.extent for a in given.row))
    return longest is not None and longest <= given.threads * given.width * chunks


def choose(kernel: Kernel, machine: GpuMachine | None = None) -> GpuSchedule:
    """The schedule that the rules give; nothing is timed."""
    gpu = machine or GpuMachine()
    form = _form(kernel, gpu)
    known = replace(form, is_dependent=gpu.has_dependent_launch, index_bits=gpu.index_bits)
    return replace(known, unroll=_unroll(kernel, form))


def _unroll(kernel: Kernel, form: GpuSchedule) -> int:
    """So many vectors that `FLIGHT_BYTES` are loaded at once, if the row has as many."""
    folds = [n for n in kernel.nodes if isinstance(n, Reduce)]
    if form.chunks or not (form.row or folds):
        return 1
    axes = form.row or tuple(dict.fromkeys(f.axis for f in folds))
    loads = [n for n in kernel.nodes if isinstance(n, Load) and n.free & set(axes)]
    each = sum(n.dtype.itemsize * (form.width if form.vector in n.free else 1) for n in loads)
    along = form.width if form.vector in axes else 1
    steps = max(estimate(a.extent) for a in axes) // (form.threads * along)
    unroll, nodes = 1, len(kernel.nodes) * form.width
    while (
        unroll < MAX_UNROLL
        and unroll * each < FLIGHT_BYTES
        and 2 * unroll <= steps
        and 2 * unroll * nodes <= MAX_NODES
    ):
        unroll *= 2
    return unroll


def _form(kernel: Kernel, gpu: GpuMachine) -> GpuSchedule:
    outer, row = _split(kernel)
    fastest = contiguous_axis(kernel)
    ordered = tuple(sorted(outer, key=lambda a: a is fastest))
    meets = gpu.pays_barrier(TEAM_LOADS)
    if not row:
        tile = _tile(kernel, fastest) if meets else None
        if tile is not None:
            return _by_tiles(kernel, gpu, ordered, tile)
        return _by_threads(kernel, gpu, ordered, row, "thread")
    if not outer or fastest is None or fastest in row:
        return _by_teams(kernel, gpu, ordered, row)
    longest = upper_bound(product(a.extent for a in row))
    is_short = not meets or (longest is not None and longest <= gpu.thread_column)
    return _by_threads(kernel, gpu, ordered, row, "thread" if is_short else "column")


def _split(kernel: Kernel) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """Outer axes and row. Reductions vary with the outer axes and not along the row, so they are
    made once for a row; where one varies along it, there is no row to share."""
    heads = [r for r in heads_of(kernel) if r.free <= set(kernel.axes)]
    bound = set(kernel.reduced)
    varied = frozenset[Axis]().union(*(r.free for r in heads)) - bound
    row = tuple(a for a in kernel.axes if a not in varied)
    if not heads or any(r.free & set(row) for r in heads):
        return kernel.axes, ()
    return tuple(a for a in kernel.axes if a in varied), row or _common_row(kernel)


def _common_row(kernel: Kernel) -> tuple[Axis, ...]:
    """The axes of reductions over which no result varies, if all go over the same ones."""
    chains = {chain_of(r)[0] for r in heads_of(kernel) if r.free <= set(kernel.axes)}
    return next(iter(chains)) if len(chains) == 1 else ()


def heads_of(kernel: Kernel) -> list[Reduce]:
    """Reductions that are not part of one over more axes."""
    folds = [n for n in kernel.nodes if isinstance(n, Reduce)]
    inside = {f.args[0] for f in folds if isinstance(f.args[0], Reduce)}
    return [f for f in folds if f not in inside]


def chain_of(fold: Reduce) -> tuple[tuple[Axis, ...], Expr]:
    """The axes of a reduction over reductions of the same kind, the outermost first, and what is
    reduced."""
    axes, body = [fold.axis], fold.args[0]
    while isinstance(body, Reduce) and body.fold == fold.fold:
        axes.append(body.axis)
        body = body.args[0]
    return tuple(axes), body


def _maps(kernel: Kernel) -> list[tuple[Affine, int]]:
    """Index maps with the bytes they go over: stores count twice, as they cannot be cached."""
    loads = [(n.at, traffic_bytes(n.free, n.dtype)) for n in kernel.nodes if isinstance(n, Load)]
    stores = [
        (s.at, 2 * traffic_bytes(s.at.axes, kernel.results[s.result].dtype)) for s in kernel.stores
    ]
    return [*stores, *loads]


def traffic_bytes(axes: Iterable[Axis], dtype: DType) -> int:
    """Of an access that goes over axes."""
    return int(prod(estimate(a.extent) for a in axes)) * dtype.itemsize


def estimate(dim: DimLike) -> int:
    """A size to choose by: the greatest of a narrow range, as that of a bucket; else
    `TYPICAL_EXTENT` of a named dim, as far as its bounds allow."""
    if isinstance(dim, int):
        return dim
    most, least = upper_bound(dim), lower_bound(dim)
    if most is not None and most <= NARROW * max(1, least):
        return most
    return max(least, TYPICAL_EXTENT if most is None else min(most, TYPICAL_EXTENT))


def contiguous_axis(kernel: Kernel) -> Axis | None:
    """The axis along which most bytes are accessed with unit stride."""
    axes = dict.fromkeys((*reversed(kernel.axes), *kernel.reduced))
    worth = {a: sum(_worth(at, a) * size for at, size in _maps(kernel)) for a in axes}
    best = max(worth, key=lambda a: worth[a], default=None)
    return best if best is not None and worth[best] > 0 else next(iter(axes), None)


def _worth(at: Affine, axis: Axis) -> int:
    step = at.coefficient(axis)
    return 0 if step == 0 else 2 if step == 1 else -1


def _by_threads(
    kernel: Kernel, gpu: GpuMachine, outer: tuple[Axis, ...], row: tuple[Axis, ...], team: Team
) -> GpuSchedule:
    """Neighbouring threads do neighbours of the last outer axis."""
    width = _width(kernel, gpu, outer[-1:], can_be_ragged=team == "thread" and not row)
    block, points = gpu.block, prod(estimate(a.extent) for a in outer)
    while team == "thread" and block > MIN_BLOCK and points < gpu.processors * block * width:
        block //= 2
    vector = outer[-1] if width > 1 else None
    return GpuSchedule(outer, row, team, block, vector, width, warp=gpu.warp)


def _by_tiles(kernel: Kernel, gpu: GpuMachine, outer: tuple[Axis, ...], tile: Axis) -> GpuSchedule:
    """A block a square of the last axis and the one that loads are contiguous along: of pairs of
    half floats, where both axes have whole pairs."""
    last = outer[-1]
    rest = tuple(a for a in outer if a not in (tile, last))
    sizes = {n.dtype.itemsize for n in transposed_loads(kernel, tile, last)}
    pairs = all(exact_div(a.extent, 2) is not None for a in (tile, last))
    width = 2 if pairs and sizes == {2} else 1
    axes = (*rest, tile, last)
    return GpuSchedule(axes, (), "thread", gpu.block, None, width, warp=gpu.warp, tile=tile)


def can_tile(kernel: Kernel) -> bool:
    """Is every result stored at every point, and nothing chosen, gathered or reduced?"""
    plain = all(not isinstance(n, Reduce | Choose) for n in kernel.nodes)
    gathers = any(isinstance(n, Load) and n.args for n in kernel.nodes)
    everywhere = all(s.at.axes == frozenset(kernel.axes) for s in kernel.stores)
    return plain and everywhere and not gathers


def transposed_loads(kernel: Kernel, tile: Axis, last: Axis) -> list[Load]:
    """Loads that are contiguous along the tile's axis and not along the last one."""
    loads = [n for n in kernel.nodes if isinstance(n, Load)]
    jumps = [n for n in loads if n.at.coefficient(last) not in (0, 1)]
    return [n for n in jumps if n.at.coefficient(tile) == 1]


def _tile(kernel: Kernel, last: Axis | None) -> Axis | None:
    """The axis that most loads are contiguous along which are not so along the last one."""
    if last is None or not can_tile(kernel) or not _is_long(last):
        return None
    others = [a for a in kernel.axes if a is not last and _is_long(a)]
    counts = {a: len(transposed_loads(kernel, a, last)) for a in others}
    best = max(others, key=lambda a: counts[a], default=None)
    return best if best is not None and counts[best] else None


def _is_long(axis: Axis) -> bool:
    longest = upper_bound(axis.extent)
    return longest is None or longest >= MIN_TILE


def _by_teams(
    kernel: Kernel, gpu: GpuMachine, outer: tuple[Axis, ...], row: tuple[Axis, ...]
) -> GpuSchedule:
    """A warp, a block or a thread a row."""
    width = _width(kernel, gpu, row[-1:])
    vector = row[-1] if width > 1 else None
    if not gpu.pays_barrier(TEAM_LOADS):
        return _by_rows(gpu, outer, row, vector, width)
    longest = upper_bound(product(a.extent for a in row))
    if longest is None:
        return GpuSchedule(outer, row, "block", gpu.block, vector, width, 0, gpu.warp)
    rows = prod(estimate(a.extent) for a in outer)
    is_busy = rows >= BUSY_VECTORS * gpu.processors
    each = max(IDLE_VECTORS, BUSY_VECTORS // _streams(kernel, row)) if is_busy else IDLE_VECTORS
    block = gpu.warp if longest <= gpu.warp_row else _block(longest, each * width, gpu)
    chunks = _ceil(longest, block * width)
    fits = chunks <= gpu.staged_vectors or chunks * width <= STAGED_ELEMENTS
    if not fits:
        return GpuSchedule(outer, row, "block", gpu.block, vector, width, 0, gpu.warp)
    if block > gpu.warp and longest > gpu.warp_row:
        return GpuSchedule(outer, row, "block", block, vector, width, chunks, gpu.warp)
    while block < gpu.block and 2 * block * gpu.processors <= rows * gpu.warp:
        block *= 2
    return GpuSchedule(outer, row, "warp", block, vector, width, chunks, gpu.warp)


def _streams(kernel: Kernel, row: tuple[Axis, ...]) -> int:
    """Operands of which each row has elements of its own."""
    loads = [n for n in kernel.nodes if isinstance(n, Load) and n.free & set(row)]
    return max(1, len({n.operand for n in loads if n.free - set(row)}))


def _by_rows(
    gpu: GpuMachine,
    outer: tuple[Axis, ...],
    row: tuple[Axis, ...],
    vector: Axis | None,
    width: int,
) -> GpuSchedule:
    """A thread a row, where threads that meet at a barrier would take longer than the row."""
    longest = upper_bound(product(a.extent for a in row))
    rows, block = prod(estimate(a.extent) for a in outer), 1
    while block < gpu.block and 2 * block * gpu.processors <= rows:
        block *= 2
    fits = longest is not None and 0 < longest <= gpu.staged_vectors * width
    chunks = _ceil(longest, width) if longest is not None and fits else 0
    return GpuSchedule(outer, row, "warp", block * gpu.warp, vector, width, chunks, gpu.warp)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _block(longest: int, each: int, gpu: GpuMachine) -> int:
    """Threads for a row, of so many elements each."""
    wanted = _ceil(longest, each)
    block = gpu.lanes
    while block < wanted and block < gpu.max_block:
        block *= 2
    return block


def _width(
    kernel: Kernel, gpu: GpuMachine, last: tuple[Axis, ...], *, can_be_ragged: bool = False
) -> int:
    """Neighbours that a thread does: as many as the widest access of its buffers has."""
    if not last:
        return 1
    (axis,) = last
    sizes = [size for at, size in _accesses(kernel) if at.coefficient(axis) == 1]
    width = min(8, gpu.vector_bytes // min(sizes, default=gpu.vector_bytes))
    nodes, most = len(kernel.nodes), width
    while width > 1 and (width * nodes > MAX_NODES or not _is_vectorised(kernel, axis, width)):
        width //= 2
    if width > 1 or not can_be_ragged:
        return width
    fits = (w for w in (8, 4, 2) if w <= most and w * nodes <= MAX_NODES // 2)
    return next((w for w in fits if _is_mostly_vectors(kernel, axis, w)), 1)


def _is_mostly_vectors(kernel: Kernel, axis: Axis, width: int) -> bool:
    """Are all neighbours along a long axis aligned vectors, but for its end? Rows that are no whole
    vectors begin anywhere."""
    maps = [at for at, _ in _accesses(kernel) if at.coefficient(axis) != 0]
    is_plain = all(not isinstance(n, Reduce | Choose | Inside) for n in kernel.nodes)
    is_long = estimate(axis.extent) >= MIN_VECTORS * width
    is_whole = is_plain and is_long and not is_padded(kernel, axis)
    return is_whole and all(is_aligned(at, axis, width) for at in maps)


def _accesses(kernel: Kernel) -> Iterable[tuple[Affine, int]]:
    yield from ((s.at, kernel.results[s.result].dtype.itemsize) for s in kernel.stores)
    yield from ((n.at, n.dtype.itemsize) for n in kernel.nodes if isinstance(n, Load))


def _is_vectorised(kernel: Kernel, axis: Axis, width: int) -> bool:
    """Does the width divide the axis, and is at least one access along it aligned?"""
    if exact_div(axis.extent, width) is None or is_padded(kernel, axis):
        return False
    return any(is_aligned(at, axis, width) for at, _ in _accesses(kernel))


def is_aligned(at: Affine, axis: Axis, width: int, stride: DimLike = 0) -> bool:
    """Are `width` neighbours along the axis contiguous, from a multiple of the width on?

    Buffers themselves are aligned to whole vectors."""
    if at.coefficient(axis) != 1:
        return False
    rest = (*(c for a, c in at.terms if a is not axis), at.offset, stride)
    return all(d == 0 or exact_div(d, width) is not None for d in rest)


def early_loads(kernel: Kernel, given: GpuSchedule) -> list[Load]:
    """Loads of constants that a thread makes before it waits: such as gains and biases, which a
    thread has once. As many as `EARLY_BYTES` of registers hold."""
    held, found = EARLY_BYTES, list[Load]()
    for node in kernel.nodes:
        if not isinstance(node, Load) or node.args or node.operand not in given.constants:
            continue
        size = _held_bytes(node, given)
        if size is not None and size <= held and _is_unguarded(kernel, node):
            found.append(node)
            held -= size
    return found


def _held_bytes(node: Load, given: GpuSchedule) -> int | None:
    """Registers of a thread for a load outside of all loops, in bytes; None where it is in one."""
    width = given.width if given.vector in node.free else 1
    if node.free <= set(given.outer):
        return 4 * width
    is_row = given.chunks > 0 and node.free <= set(given.row)
    return 4 * width * given.chunks if is_row else None


def _is_unguarded(kernel: Kernel, node: Load) -> bool:
    """Is it read wherever the kernel runs?"""
    is_chosen = any(isinstance(n, Choose) for n in kernel.nodes)
    return not is_chosen and not any(is_padded(kernel, a) for a in kernel.axes)


def is_padded(kernel: Kernel, axis: Axis) -> bool:
    """May the axis be empty while a result that does not vary along it is not?

    Outer axes of that kind count as one point, so that some team stores that result."""
    is_shared = all(axis in s.at.axes for s in kernel.stores)
    return not is_shared and lower_bound(axis.extent) == 0 and upper_bound(axis.extent) != 0
