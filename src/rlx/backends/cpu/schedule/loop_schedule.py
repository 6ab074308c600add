"""The schedule of a loop kernel: the vectorised axis, the parallel one, what is staged in scratch.

A schedule never changes what is computed, only its order. The order of a reduction depends on
extents, the width of vectors and the nominal cost of what is reduced (`rlx.ops.cost`), never on
measured numbers or on the number of workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rlx.core.dim import DimLike, evaluate, is_static, product, symbols_of, upper_bound
from rlx.core.dtype import DType
from rlx.core.errors import InternalError
from rlx.core.extent import ceiling
from rlx.cost.machine import Machine
from rlx.kernel.cost import cost_of
from rlx.kernel.expr import Affine, Apply, Axis, Choose, Expr, Kernel, Load, Reduce

MAX_SHUFFLED_STRIDE = 4
"""Strides up to this are loaded contiguously and shuffled, and shuffled and stored by masks."""
ROW_WIDTH = 4096
"""Columns that are reduced at a time: their accumulators stay in the first cache. Part of the
definition of the bits, so the same on every machine; so is `ROW_STEP`."""
ROW_STEP = 4
"""Rows that are combined in registers before accumulators in scratch are read and written."""
SHORT_ROW = 8
"""Cache lines of a row whose accumulators are no row in scratch: store forwarding takes longer."""
MAX_TILE = 16
"""Rows and columns of a register transpose."""
SCRATCH_PAD = 64
"""Elements by which a staged row is longer than its axis: room for a last vector."""
MIN_UNITS = 4
"""Iterations of the parallel loop, at least, where there is such a loop: three channels of an image
would occupy two workers unevenly."""
LONG_ROW = 1024
"""Elements of a row that may be split between workers."""
MIN_STAGING_COST = 4
"""Operations of a value that is staged instead of computed again."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule of one kernel."""

    order: tuple[Axis, ...]
    """The output's loops, the outermost first."""
    vector: Axis | None
    """Its points are lanes."""
    unroll: int = 4
    """Vectors in one step of a pass that stores."""
    parallel: tuple[Axis, ...] = ()
    """The outermost loops, collapsed: all their iterations may be split between workers."""
    staged: tuple[Expr, ...] = ()
    """Row values stored in scratch between passes instead of being recomputed."""
    tile: Axis | None = None
    """Loads run along it while stores run along the vector axis, the next one: squares of both
    are turned in registers."""
    row_accumulators: tuple[Expr, ...] = ()
    """Column reductions whose accumulators are a row in scratch."""
    row_step: int = 1
    """Rows that are combined in registers before those accumulators are read and written."""
    streaming: bool = False
    """Stores go past the caches."""
    accumulators: int = 4
    """Vectors in one step of a fold across a row: each is added to by itself."""

    @property
    def splits_rows(self) -> bool:
        """May a task begin in the middle of any row?"""
        return len(self.parallel) > 1 and self.vector in self.parallel


def check(schedule: Schedule, kernel: Kernel) -> None:
    """Raise where the schedule is not one of this kernel's."""
    known = {*kernel.axes, *kernel.reduced}
    faults = {
        "its loops are not the kernel's axes": set(schedule.order) != set(kernel.axes),
        "a loop comes twice": len(set(schedule.order)) != len(schedule.order),
        "its vector axis is unknown": schedule.vector not in {None, *known},
        "it does not unroll": min(schedule.unroll, schedule.accumulators) < 1,
        "its parallel loops are not the outermost": schedule.parallel
        != schedule.order[: max(len(schedule.parallel), min(1, len(schedule.order)))],
        "its collapsed loops have work of some of them alone": len(schedule.parallel) > 1
        and not _is_whole(kernel, schedule.parallel),
        "it streams from the middle of rows": schedule.splits_rows and schedule.streaming,
        "it splits the rows of its tiles": schedule.tile is not None
        and schedule.vector in schedule.parallel,
        "it keeps what is not computed": not set(schedule.staged) <= set(kernel.nodes),
        "its tiles are not of its two innermost loops": schedule.tile is not None
        and schedule.order[-2:] != (schedule.tile, schedule.vector),
        "its tiles have folds or partial stores": schedule.tile is not None
        and not _can_tile(kernel),
        "it adds no rows": schedule.row_step < 1,
        "it folds rows that are no fold down the vector axis": not set(schedule.row_accumulators)
        <= set(_row_folds(kernel, schedule.vector)),
        "it keeps values that only some pieces have": bool(schedule.staged)
        and any(isinstance(n, Choose) for n in kernel.nodes),
        "it keeps values that are the same along the row": any(
            schedule.vector not in n.free for n in schedule.staged
        ),
        "it keeps values of several rows": any(
            n.free & (set(kernel.reduced) - {schedule.vector}) for n in schedule.staged
        ),
    }
    wrong = [what for what, is_wrong in faults.items() if is_wrong]
    if wrong:
        raise InternalError(f"kernel {kernel.name}: the schedule is not for it: {'; '.join(wrong)}")


def choose(kernel: Kernel, machine: Machine) -> Schedule:
    """The schedule that the rules give; nothing is timed."""
    vector = _vector_axis(kernel)
    tile = _tile(kernel, vector)
    order = _order(kernel, vector, tile)
    rows = _row_folds(kernel, vector) if _is_wide(vector, machine.vector_bytes) else ()
    made = Schedule(
        order=order,
        vector=vector,
        unroll=_copies(_work(kernel, vector, None)),
        accumulators=max(2, _copies(_fold_work(kernel, vector))),
        parallel=_parallel(kernel, order, vector, tile),
        staged=_staged(kernel, vector, machine.row_bytes),
        tile=tile,
        row_accumulators=rows,
        row_step=1 if vector is None or _is_short(vector) else ROW_STEP,
    )
    return replace(made, streaming=not made.splits_rows and _passes_caches(kernel, machine))


def _vector_axis(kernel: Kernel) -> Axis | None:
    """The axis along which most memory is accessed with unit stride; of an axis of few points, as
    of pairs, the one that it interleaves."""
    axes = dict.fromkeys((*reversed(kernel.axes), *kernel.reduced))
    wide = [a for a in axes if a.extent != 1]
    best = max(wide, key=lambda a: _unit_strides(kernel, a), default=None)
    return best if best is None or kernel.reduced else _interleaved(kernel, best) or best


def _interleaved(kernel: Kernel, few: Axis) -> Axis | None:
    """The axis whose points are as far from each other as `few` has points, where those fill few
    lanes: strides that shuffles take."""
    count = few.extent
    if not isinstance(count, int) or count > MAX_SHUFFLED_STRIDE:
        return None
    found = (a for a in kernel.axes if _is_long(a))
    steps = {a: {s.at.coefficient(a) for s in kernel.stores} for a in found}
    return next((a for a, own in steps.items() if own == {count}), None)


def _unit_strides(kernel: Kernel, axis: Axis) -> int:
    """Runs count for an axis, jumps against it, those of stores the most."""
    stores = sum(_worth(s.at, axis, 8) for s in kernel.stores)
    loads = (n for n in kernel.nodes if isinstance(n, Load))
    jump = 1 if _can_tile(kernel) else 4
    return stores + sum(_worth(n.at, axis, jump) - 4 * _gathers_along(n, axis) for n in loads)


def _worth(at: Affine, axis: Axis, jump: int) -> int:
    step = at.coefficient(axis)
    return 0 if step == 0 else 2 if step == 1 else -jump


def _gathers_along(load: Load, axis: Axis) -> bool:
    return any(axis in row.free for row in load.args)


def _order(kernel: Kernel, vector: Axis | None, tile: Axis | None) -> tuple[Axis, ...]:
    """Axes that reductions bind come last, so that a reduction is done once for the loop that uses
    it; then the tile's, and the vector axis, so that the innermost loop runs along memory. The
    others are in the order of the result's memory, so that a thread writes one part of it: rows of
    all channels by each of two threads took three times as long as channels do."""
    bound = set(kernel.reduced)
    steps = {a: s.at.coefficient(a) for s in kernel.stores[:1] for a in kernel.axes}
    if not all(is_static(step) for step in steps.values()):
        steps = {}
    key = lambda a: (a in bound, a is vector, a is tile, -steps.get(a, 0))
    order = sorted(kernel.axes, key=key)
    outer = [a for a in order if a not in bound and a is not vector and a is not tile]
    parallel = next((a for a in outer if not is_few(a)), None)
    return tuple(sorted(order, key=lambda a: a is not parallel))


def _parallel(
    kernel: Kernel, order: tuple[Axis, ...], vector: Axis | None, tile: Axis | None
) -> tuple[Axis, ...]:
    """The outermost loop. One over a free batch may have a single iteration: then the next ones
    are collapsed with it, until there are enough. Rows of tiles stay whole."""
    taken = order[:1]
    for axis in order[1:]:
        may = axis is not vector or (tile is None and _is_worth_cutting(kernel, axis))
        if _are_enough(taken) or not may or not _is_whole(kernel, (*taken, axis)):
            break
        taken = (*taken, axis)
    return taken


def _are_enough(axes: tuple[Axis, ...]) -> bool:
    """Do the iterations occupy the workers? Of two free sizes only one is taken to be 1."""
    count = ceiling(product(a.extent for a in axes))
    symbols = symbols_of([count])
    least = {s.name: max(1, s.bounds[0] or 0) for s in symbols}
    return not symbols or len(symbols) > 1 or evaluate(count, least) >= MIN_UNITS


def _is_whole(kernel: Kernel, loops: tuple[Axis, ...]) -> bool:
    """Does all that is stored and reduced vary along each of the loops? What does not would be
    computed again by every worker."""
    if not set(loops).isdisjoint(kernel.reduced):
        return False
    places = [s.at.axes for s in kernel.stores]
    return all(
        p.issuperset(loops)
        for p in (*places, *(n.free for n in kernel.nodes if isinstance(n, Reduce)))
    )


def _is_worth_cutting(kernel: Kernel, vector: Axis) -> bool:
    """Rows of a constant length have no partial vectors that are not known; where they are long,
    or where each of their elements is a reduction, that matters little."""
    return not is_static(vector.extent) or vector.extent >= LONG_ROW or bool(kernel.reduced)


def is_few(axis: Axis) -> bool:
    """Has it too few points to be the parallel axis?"""
    return is_static(axis.extent) and axis.extent < MIN_UNITS


def _tile(kernel: Kernel, vector: Axis | None) -> Axis | None:
    """The axis that most loads run along of those that jump along the vector axis."""
    if vector is None or not _can_tile(kernel) or not _is_long(vector):
        return None
    loads = [n for n in kernel.nodes if isinstance(n, Load) and not n.args]
    across = [n for n in loads if n.at.coefficient(vector) not in (0, 1)]
    others = [a for a in kernel.axes if a is not vector and _is_long(a)]
    runs = {a: sum(n.at.coefficient(a) == 1 for n in across) for a in others}
    best = max(others, key=lambda a: runs[a], default=None)
    return best if best is not None and runs[best] else None


def _row_folds(kernel: Kernel, vector: Axis | None) -> tuple[Reduce, ...]:
    """The folds for each point of the vector axis, if none is of another in its rows, and if
    every result is wide."""
    folds = [n for n in kernel.nodes if isinstance(n, Reduce)]
    down = [r for r in folds if vector in r.free]
    inner = any(r.axis in n.free for r in down for n in folds if n is not r)
    is_everywhere = all(s.at.axes == frozenset(kernel.axes) for s in kernel.stores)
    is_bound = vector in kernel.reduced or set(kernel.axes) & set(kernel.reduced)
    is_held = all(r.dtype is not DType.BOOL and _is_worth_rows(r.axis) for r in down)
    return tuple(down) if is_everywhere and is_held and not (inner or is_bound) else ()


def _is_worth_rows(axis: Axis) -> bool:
    return not is_static(axis.extent) or axis.extent >= 8


def _is_wide(axis: Axis | None, vector_bytes: int) -> bool:
    """Is a row too long to be folded a few registers at a time, again and again down the rows?"""
    return axis is not None and (
        not is_static(axis.extent) or axis.extent > SHORT_ROW * vector_bytes
    )


def _is_short(axis: Axis) -> bool:
    """Is a row read to its end? Then rows follow each other in memory, and one at a time is read
    fastest; else the running values are read and written less often."""
    return is_static(axis.extent) and axis.extent <= ROW_WIDTH


def _can_tile(kernel: Kernel) -> bool:
    everywhere = all(s.at.axes == frozenset(kernel.axes) for s in kernel.stores)
    return everywhere and not kernel.reduced


def _is_long(axis: Axis) -> bool:
    return not is_static(axis.extent) or axis.extent >= MAX_TILE


def _copies(work: int) -> int:
    """Vectors in one step: many of little work, so that the processor has enough to do at once."""
    return next((n for n, most in ((4, 16), (2, 48)) if work <= most), 1)


def _fold_work(kernel: Kernel, vector: Axis | None) -> int:
    folds = [n for n in kernel.nodes if isinstance(n, Reduce) and n.axis is vector]
    return max((_work(kernel, vector, f) for f in folds), default=0)


def _work(kernel: Kernel, vector: Axis | None, where: Expr | None) -> int:
    """What a vector costs in one pass: that of a fold, or the one that stores."""
    passes = _passes(kernel, vector)
    made = (n for n in kernel.nodes if isinstance(n, Apply) and vector in n.free)
    return sum(cost_of(n) for n in made if where in passes[n])


def _staged(kernel: Kernel, vector: Axis | None, row_bytes: int) -> tuple[Expr, ...]:
    """Values that two passes over a row need, and that cost more to make than to read again."""
    if vector not in kernel.reduced or any(isinstance(n, Choose) for n in kernel.nodes):
        return ()
    longest = upper_bound(vector.extent)
    if longest is None or longest * 4 > row_bytes:
        return ()
    passes = _passes(kernel, vector)
    users: dict[Expr, list[Expr]] = {n: [] for n in passes}
    for node in kernel.nodes:
        for arg in node.args:
            users[arg].append(node)
    others = set(kernel.reduced) - {vector}
    rows = [n for n in passes if vector in n.free and others.isdisjoint(n.free)]
    shared = [n for n in rows if len(passes[n]) > 1]
    frontier = [
        n
        for n in shared
        if isinstance(n, Apply)
        and n.dtype is not DType.BOOL
        and not any(passes[u] == passes[n] for u in users[n])
    ]
    return tuple(n for n in frontier if _cost(n, vector) >= MIN_STAGING_COST)


def _passes(kernel: Kernel, vector: Axis | None) -> dict[Expr, frozenset[Expr | None]]:
    """The folds over the row, and None for the stores, that each value is read in."""
    found: dict[Expr, set[Expr | None]] = {n: set() for n in kernel.nodes}
    for store in kernel.stores:
        found[store.value].add(None)
    for node in reversed(kernel.nodes):
        is_pass = isinstance(node, Reduce) and node.axis is vector
        for arg in node.args:
            found[arg] |= {node} if is_pass else found[node]
    return {n: frozenset(p) for n, p in found.items()}


def _cost(node: Expr, vector: Axis) -> int:
    """What a vector of the value costs to make, in loads."""
    total, stack, seen = 0, [node], {node}
    while stack:
        n = stack.pop()
        total += cost_of(n) if isinstance(n, Apply) else 1 + len(n.args)
        below = [a for a in n.args if vector in a.free and a not in seen]
        stack += below
        seen.update(below)
    return total


def scratch_bytes(schedule: Schedule) -> DimLike:
    """The memory that one call needs to keep its row values in; running values have an f64 beside
    them, to which long sums are added in parts."""
    if schedule.row_accumulators:
        return (ROW_WIDTH + SCRATCH_PAD) * (16 * len(schedule.row_accumulators))
    if not schedule.staged or schedule.vector is None:
        return 0
    return (schedule.vector.extent + SCRATCH_PAD) * (8 * len(schedule.staged))


def _passes_caches(kernel: Kernel, machine: Machine) -> bool:
    """Is what it reads and writes known to be too much for the caches to keep?"""
    sizes = [s.size_bytes for s in (*kernel.operands, *kernel.results)]
    return sum(s for s in sizes if is_static(s)) >= 2 * machine.cache_bytes and all(
        map(is_static, sizes)
    )


def lanes_of(kernel: Kernel, schedule: Schedule, vector_bytes: int) -> int:
    """Lanes of every vector of the kernel: the widest value along them fills one register."""
    along = [n.dtype for n in kernel.nodes if _is_along(n, schedule.vector)]
    widths = [d.compute.itemsize for d in along]
    lanes = vector_bytes // min(8, max(widths, default=4))
    if schedule.tile:
        return min(lanes, MAX_TILE)
    return min(lanes, _short_row(kernel, schedule.vector) or lanes)


def _short_row(kernel: Kernel, vector: Axis | None) -> int | None:
    """Lanes of a row of 2 to 4 elements, which leave most of a register empty; a fold across it
    is in the same order on every machine."""
    if vector is None or vector in kernel.reduced or not is_static(vector.extent):
        return None
    return {2: 2, 3: 4, 4: 4}.get(int(vector.extent))


def _is_along(node: Expr, vector: Axis | None) -> bool:
    return isinstance(node, Apply | Load | Reduce) and (vector in node.free or vector is None)


def sizes_of(kernel: Kernel) -> tuple[DimLike, ...]:
    """The dims that the kernel's code takes as arguments, each once, in the order it meets them."""
    found: list[DimLike] = [a.extent for a in (*kernel.axes, *kernel.reduced)]
    for store in kernel.stores:
        found += _dims_of(store.at)
    for node in kernel.nodes:
        found += _dims_in(node)
    return tuple(dict.fromkeys(d for d in found if not is_static(d)))


def _dims_of(at: Affine) -> Iterable[DimLike]:
    return (*(c for _, c in at.terms), at.offset)


def _dims_in(node: Expr) -> Iterable[DimLike]:
    at = getattr(node, "at", None)
    yield from _dims_of(at) if at is not None else ()
    for name in ("dim", "low", "high", "stride", "bound"):
        value = getattr(node, name, None)
        if value is not None:
            yield value
