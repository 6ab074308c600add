"""Loop kernels as SIMT programs: any index space, reductions of any shape, gathers and guards.

Each team of threads does one point of the outer axes: reductions there, together, then the stores
along the row.

    name(x0, x1, …, y0, …, failures, n0, …)

`x` are the operands and `y` the results, aligned to whole vectors; `failures` is there where rows
are gathered, and holds the greatest code of what went wrong; `n` are the dims that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlx.backends.gpu.lower.elementwise import is_native
from rlx.backends.gpu.lower.expressions import combined, failure_text, gathers, zipped
from rlx.backends.gpu.lower.fast import half_precision
from rlx.backends.gpu.lower.reductions import Reductions
from rlx.backends.gpu.lower.scopes import Guards, Scope, Values
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.loop import (
    GpuSchedule,
    check,
    choose,
    early_loads,
    is_padded,
    transposed_loads,
)
from rlx.backends.gpu.schedule.split import split as split_launches
from rlx.backends.gpu.task import GpuTask, Launch
from rlx.core.dim import DimLike, dim_max, exact_div, product
from rlx.core.dtype import DType
from rlx.kernel.collapse import collapsed
from rlx.kernel.decompose import decomposed
from rlx.kernel.expr import Affine, Apply, Axis, Exprs, Index, Inside, Kernel, Load, Size, Store
from rlx.kernel.program.schedule import Buffer, Schedule, buffers
from rlx.kernel.rewrite import read_only
from rlx.kernel.split_complex import SPLIT, has_complex, split, touches_complex
from rlx.kernel.structure import structure_of
from rlx.program.builder import Builder
from rlx.program.program import Program
from rlx.program.values import Var

MAX_I32 = 2**31 - 2**22
"""Of indices in 32 bits: loops and the last team count a little beyond the last point."""


def legal(kernel: Kernel) -> Kernel:
    """The kernel in ops and dtypes that GPUs have; schedules are chosen for this one."""
    kernel = collapsed(kernel)
    if has_complex(kernel):
        kernel = split(decomposed(kernel, _is_native_or_split))
    return decomposed(kernel, is_native)


def _is_native_or_split(node: Apply) -> bool:
    return not touches_complex(node) or node.op.name in SPLIT


def loop_schedule(
    kernel: Kernel, machine: GpuMachine, name: str, constants: frozenset[int] = frozenset()
) -> Schedule[GpuTask]:
    """The launches of a loop kernel: one, or several where reductions are long with few results.
    What no kernel of a run writes is constant."""
    made = legal(kernel)
    every = buffers(len(made.operands), len(made.results))
    launches = _Launches(machine, name, constants)
    launches.add(made, every[: len(made.operands)], every[len(made.operands) :])
    return Schedule(tuple(launches.tasks), tuple(launches.temps))


class _Launches:
    """The launches of one kernel, in order, and the temporaries between them."""

    def __init__(self, machine: GpuMachine, name: str, constants: frozenset[int]) -> None:
        self.machine, self.name, self.constants = machine, name, constants
        self.tasks: list[GpuTask] = []
        self.temps: list[DimLike] = []

    def add(self, kernel: Kernel, given: Sequence[Buffer], made: Sequence[Buffer]) -> None:
        """A legal kernel, whose operands and results are these buffers."""
        parts = split_launches(kernel, self.machine)
        if parts is None:
            self._launch(kernel, given, made)
            return
        first = parts.first
        between = [Buffer("temp", len(self.temps) + i) for i in range(len(first.results))]
        self.temps += [r.size_bytes for r in first.results]
        add = self._launch if parts.is_done else self.add
        add(first, given, between)
        add(parts.rest, [*given, *between], made)

    def _launch(self, kernel: Kernel, given: Sequence[Buffer], made: Sequence[Buffer]) -> None:
        meanings = tuple(failure_text(n) for n in gathers(kernel))
        kernel, read = read_only(kernel)
        used = [given[i] for i in read]
        held = [i for i, b in enumerate(used) if b.kind == "operand" and b.index in self.constants]
        choice = replace(choose(kernel, self.machine), constants=frozenset(held))
        names = [f"x{i}" for i in range(len(used))] + [f"y{i}" for i in range(len(made))]
        self.tasks.append(
            Launch(
                f"{self.name}_part{len(self.tasks)}" if self.temps else self.name,
                lambda n: emit(kernel, choice, n),
                (structure_of(kernel), self.machine, choice.constants),
                tuple(names),
                (*used, *made),
                meanings,
                choice.text,
                approximations=lambda: half_precision(kernel).text,
            )
        )


def emit(kernel: Kernel, schedule: GpuSchedule, name: str = "") -> Program:
    """The program of a legal kernel."""
    check(schedule, kernel)
    return _Loop(kernel, schedule, name or kernel.name).program()


def index_dtype(kernel: Kernel, bits: int = 64) -> DType:
    """64 bits where an index, or the number of points, may not fit in 32."""
    points = product(a.extent for a in dict.fromkeys((*kernel.axes, *kernel.reduced)))
    return index_dtype_of(kernel, [points], bits)


def index_dtype_of(kernel: Kernel, counts: Sequence[DimLike], bits: int = 64) -> DType:
    """64 bits where an index, or a count of what a program goes over, may not fit in 32, and a
    machine has buffers of as many elements."""
    if bits == 32:
        return DType.I32
    maps = [s.at for s in kernel.stores]
    maps += [n.at for n in kernel.nodes if isinstance(n, Load | Index | Inside)]
    gathers = [n for n in kernel.nodes if isinstance(n, Load) and n.args]
    reach = [*map(reach_of, maps), *map(size_of, counts)]
    reach += [size_of(n.stride * n.bound) for n in gathers]
    reach += [size_of(n.dim) for n in kernel.nodes if isinstance(n, Size)]
    known = [r for r in reach if r is not None]
    is_small = len(known) == len(reach) and sum(known) <= MAX_I32
    return DType.I32 if is_small else DType.I64


def reach_of(at: Affine) -> int | None:
    """The greatest size of an index."""
    parts = [size_of(c * a.extent) for a, c in at.terms] + [size_of(at.offset)]
    known = [p for p in parts if p is not None]
    return sum(known) if len(known) == len(parts) else None


def size_of(dim: DimLike) -> int | None:
    """The greatest absolute value."""
    if isinstance(dim, int):
        return abs(dim)
    ends = dim.interval
    return None if None in ends else max(abs(e) for e in ends if e is not None)


class _Loop(Reductions):
    """One program."""

    def __init__(self, kernel: Kernel, schedule: GpuSchedule, name: str) -> None:
        self.counts = {a: _count(kernel, schedule, a) for a in schedule.outer}
        self.points = product(self.counts.values())
        self.teams = 1 if schedule.tile else schedule.block // schedule.threads
        blocks = (self.points + (self.teams - 1)) // self.teams if kernel.stores else 0
        builder = Builder(name, block=schedule.block, grid=(blocks,), warp=schedule.warp)
        super().__init__(builder, kernel, index_dtype(kernel, schedule.index_bits), schedule)

    def program(self) -> Program:
        if self.schedule.is_dependent and self.kernel.stores:
            self.b.release_dependents()
        if self.kernel.stores:
            self._grid()
        return self.b.program()

    def _wait(self) -> None:
        if self.schedule.is_dependent:
            self.b.wait_dependencies()

    def _grid(self) -> None:
        """The point of each team, and nothing for those behind the last one."""
        schedule = self.schedule
        block = self.b.block_index().to(self.index_dtype)
        if schedule.tile is not None:
            self._wait()
            self._tiles(block, schedule.tile, schedule.outer[-1])
            return
        point, inside = self._point(block)
        if schedule.is_ragged:
            self._ragged(point, inside)
            return
        self._open(point, inside)
        if schedule.is_dependent:
            self._load_constants()
        self._wait()
        if inside is None or schedule.team == "column":  # whose threads meet at barriers
            self._team()
            return
        with self.b.when(inside):
            self._enter()
            self._team()

    def _ragged(self, point: Var, inside: Var | None) -> None:
        """A vector, or the points of an axis behind its last whole vector, one by one."""
        axis, width = self.schedule.vector, self.schedule.width
        assert axis is not None
        self._open(point, None)
        first = self.position(axis)[0]
        is_whole = first + width <= self.dim(axis.extent)
        masks = [is_whole] if inside is None else [is_whole, inside]
        self.scopes[0].mask = combined(masks)
        outer = self.scopes[0].index
        if self.schedule.is_dependent:
            self._load_constants()
        self._wait()
        assert self.scopes[0].mask is not None
        with self.b.when(self.scopes[0].mask):
            self._enter()
            self._team()
        self.vector = None
        is_part = ~is_whole if inside is None else ~is_whole & inside
        with (
            self.b.when(is_part),
            self.b.loop(first, self.number(axis.extent)) as index,
        ):
            self.scopes = [Scope(self.b.depth, {**outer, axis: [index]})]
            self._team()

    def _point(self, block: Var) -> tuple[Var, Var | None]:
        """Of the thread's team, and whether there is one; None where there always is."""
        b, schedule = self.b, self.schedule
        if self.teams == 1:
            return block, None
        teams = {"warp": b.warp, "thread": b.thread}
        number = teams.get(schedule.team, b.lane_of(schedule.lanes))
        point = block * self.teams + number.to(self.index_dtype)
        is_whole = exact_div(self.points, self.teams) is not None
        return point, None if is_whole else point < self.dim(self.points)

    def _open(self, point: Var, inside: Var | None) -> None:
        self.scopes = [Scope(self.b.depth, self._outer(point), inside)]
        self.chunks = [self.chunk(j) for j in range(self.schedule.chunks)]

    def _enter(self) -> None:
        """The same scopes in a region where the team's point is one; what is known stays so."""
        self.scopes = [s.moved(self.b.depth, None) for s in self.scopes]
        self.chunks = [c.moved(self.b.depth, c.mask) for c in self.chunks]

    def _load_constants(self) -> None:
        """What is small and depends on no kernel of the run, before it is waited for."""
        for node in early_loads(self.kernel, self.schedule):
            if node.free <= set(self.schedule.outer):
                self.request_load(node)
                continue
            for chunk in self.chunks:
                with self.inside(chunk):
                    self.request_load(node)

    def _team(self) -> None:
        schedule = self.schedule
        row = set(schedule.row)
        along = [s for s in self.kernel.stores if row & (s.at.axes | s.value.free)]
        lane = self.lane()
        first = [] if lane is None else [lane.eq(0)]
        for store in self.kernel.stores:
            if store not in along:
                self._store(store, first)
        if along:
            values = lambda: self._values(along)
            self.along(schedule.row, values, lambda: self._stores(along))

    def _values(self, stores: Sequence[Store]) -> None:
        for store in stores:
            self.value(store.value, self._guards(store))

    def _tiles(self, point: Var, tile: Axis, last: Axis) -> None:
        """Loads along the tile's axis fill squares in shared memory, which are read along the
        other; a row of a square is one element longer, so that a column's banks differ."""
        b, size = self.b, self.schedule.tile_size
        corner = self._outer(point)
        self.scopes = [Scope(b.depth, {a: corner[a] for a in corner if a not in (tile, last)})]
        start = {a: corner[a][0] * size for a in (tile, last)}
        if self.schedule.width == 2:
            self._pair_tiles(start, tile, last)
            return
        lane, groups = b.lane_of(size).to(self.index_dtype), self.schedule.block // size
        rows = [b.group_of(size).to(self.index_dtype) + k for k in range(0, size, groups)]
        loads = transposed_loads(self.kernel, tile, last)
        held = [
            b.shared(f"tile{i}", n.dtype.compute, size * (size + 1)) for i, n in enumerate(loads)
        ]
        for row in rows:
            place = {tile: [start[tile] + lane], last: [start[last] + row]}
            with self.inside(self._square(place)):
                for node, memory in zip(loads, held):
                    memory[row * (size + 1) + lane] = self.value(node)[0]
        b.barrier()
        for row in rows:
            scope = self._square({tile: [start[tile] + row], last: [start[last] + lane]})
            for node, memory in zip(loads, held):
                scope.known[node, ()] = [memory[lane * (size + 1) + row]]
            with self.inside(scope):
                self._stores(self.kernel.stores)

    def _pair_tiles(self, start: dict[Axis, Var], tile: Axis, last: Axis) -> None:
        """The same of half floats, two neighbours at a time: a thread reads two words of
        neighbouring rows and stores two of neighbouring columns. Word w of row r is at
        w ^ (r // 2), so that neither way two threads of a warp use a bank."""
        b, size, lanes = self.b, self.schedule.tile_size, self.schedule.lanes
        lane, number = (x.to(self.index_dtype) for x in (b.lane_of(lanes), b.group_of(lanes)))
        numbers = [number + k for k in range(0, lanes, self.schedule.block // lanes)]
        loads = transposed_loads(self.kernel, tile, last)
        held = [b.shared(f"tile{i}", n.dtype, size * size) for i, n in enumerate(loads)]
        self.vector = tile
        for row in [*numbers, *(n + lanes for n in numbers)]:
            first = start[tile] + lane * 2
            with self.inside(self._square({tile: [first, first + 1], last: [start[last] + row]})):
                for node, memory in zip(loads, held):
                    pair = [v.to(node.dtype) for v in self.value(node)]
                    memory.store(row * size + (lane ^ (row >> 1)) * 2, pair)
        b.barrier()
        self.vector = last
        for word in numbers:
            places = [(lane * 2 + side) * size + (lane ^ word) * 2 for side in range(2)]
            words = [[m.load(place, 2) for place in places] for m in held]
            for side in range(2):
                self._pair_stores(start, loads, words, word * 2 + side, side)

    def _pair_stores(
        self,
        start: dict[Axis, Var],
        loads: Sequence[Load],
        words: Sequence[Sequence[Values]],
        row: Var,
        side: int,
    ) -> None:
        """The stores of two neighbours in one row of a square."""
        tile, last = self.schedule.outer[-2:]
        first = start[last] + self.b.lane_of(self.schedule.lanes).to(self.index_dtype) * 2
        scope = self._square({tile: [start[tile] + row], last: [first, first + 1]})
        for node, (low, high) in zip(loads, words):
            compute = node.dtype.compute
            scope.known[node, ()] = [low[side].to(compute), high[side].to(compute)]
        with self.inside(scope):
            self._stores(self.kernel.stores)

    def _square(self, index: dict[Axis, Values]) -> Scope:
        """A point of a square, or two neighbours, if they are of the axes'."""
        mask = combined(v[0] < self.dim(a.extent) for a, v in index.items())
        return Scope(self.b.depth, index, mask)

    def _outer(self, point: Var) -> dict[Axis, Values]:
        """The outer axes at the team's point; of the vector axis, the thread's neighbours."""
        found: dict[Axis, Values] = {}
        axes = self.schedule.outer
        for number, axis in reversed(list(enumerate(axes))):
            slots = self.schedule.width if axis is self.vector else 1
            own = point if number == 0 else point % self.dim(self.counts[axis])
            point = point if number == 0 else point // self.dim(self.counts[axis])
            found[axis] = [own * slots + s for s in range(slots)]
        return found

    def _stores(self, stores: Sequence[Store]) -> None:
        for store in stores:
            self._store(store, [])

    def _store(self, store: Store, conditions: list[Var]) -> None:
        """What does not vary along an axis belongs to its first point; that axis may be empty."""
        guards = self._guards(store)
        values = self.value(store.value, guards)
        masks = self.masks(guards)
        missing = [a for a in self.kernel.axes if a not in store.at.axes and self._is_open(a)]
        firsts = [self.position(a)[0].eq(0) for a in missing]
        lists = [*([c] for c in (*conditions, *firsts)), *([masks] if masks else [])]
        made = [m for slot in zipped(lists) if (m := combined(slot)) is not None]
        self.store(store.result, store.at, values, made)

    def _is_open(self, axis: Axis) -> bool:
        return any(axis in s.index for s in self.scopes)

    def _guards(self, store: Store) -> Guards:
        """A point of an axis that is counted as one though it is empty is not the store's."""
        empty = [a for a in self.schedule.outer if is_padded(self.kernel, a) and a in store.at.axes]
        exprs = Exprs()
        return tuple((exprs.inside(Affine.of(a), 0, a.extent), True) for a in empty)


def _count(kernel: Kernel, schedule: GpuSchedule, axis: Axis) -> DimLike:
    """The points of an axis that teams are counted for."""
    if is_padded(kernel, axis):
        return dim_max(axis.extent, 1)
    if schedule.tile is not None and axis in schedule.outer[-2:]:
        return (axis.extent + (schedule.tile_size - 1)) // schedule.tile_size
    width = schedule.width if axis is schedule.vector else 1
    count = exact_div(axis.extent, width)
    return (axis.extent + (width - 1)) // width if count is None else count
