"""Products in tiles of registers, for numbers that no matrix instruction takes.

    the first stages of both factors to shared memory
    for each stage:
        barrier; copy or request the elements of a later stage
        sums[row, column] += left[inner, row] · right[inner, column]       # from shared memory
        what was requested, computed, to shared memory
    epilogue and stores of each thread's sums

A factor that is plainly loaded is copied asynchronously, several stages ahead; of any other, the
next stage's elements are in registers while this one is multiplied.

Stages are laid out with the inner axis outermost, so that a thread reads neighbouring rows and
columns as vectors; a row of it is one vector longer, so that a factor which is contiguous along the
inner axis is stored without bank conflicts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rlx.backends.gpu.lower.expressions import combined
from rlx.backends.gpu.lower.product.expressions import (
    failures_of,
    legal_product,
    names_of,
    structure_of_product,
)
from rlx.backends.gpu.lower.product.split import split_product
from rlx.backends.gpu.lower.product.tiled import TiledProduct
from rlx.backends.gpu.lower.scopes import Scope, Values
from rlx.backends.gpu.machine import GpuMachine, lanes_of
from rlx.backends.gpu.schedule.factors import Loader
from rlx.backends.gpu.schedule.register_tile import (
    VECTOR_BYTES,
    RegisterTileSchedule,
    choose_splits,
    ranked_register_tiles,
    register_tile_cycles,
)
from rlx.backends.gpu.task import GpuTask, Launch, Variant
from rlx.core.dim import DimLike, exact_div, product
from rlx.core.dtype import DType
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Expr
from rlx.kernel.program.schedule import Schedule, buffers
from rlx.kernel.refusal import Refusal
from rlx.kernel.substitute import with_dims
from rlx.program.builder import Builder
from rlx.program.program import Program
from rlx.program.values import SharedRef, Var

SECTOR_BYTES = 32
"""Neighbouring bytes that threads of a warp read of each row of a factor."""


def register_tile_schedule(
    contract: Contract, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask] | Refusal:
    """The launches of a contraction of any size and dtype."""
    made = legal_product(contract if stores_along_columns(contract) else contract.swapped())
    if isinstance(made, Refusal):
        return made
    splits = choose_splits(made, machine)
    if splits > 1:
        return split_product(
            made,
            splits,
            machine,
            name,
            constants,
            lambda part, n: _launch(part, machine, n, constants),
        )
    return Schedule((_launch(made, machine, name, constants),))


def stores_along_columns(contract: Contract) -> bool:
    """Are results contiguous along columns, or not along rows either?"""
    along = [s for s in contract.stores if s.at.coefficient(contract.rows) == 1]
    return not along or any(s.at.coefficient(contract.columns) == 1 for s in contract.stores)


def _launch(
    contract: Contract, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Launch:
    ranked = ranked_register_tiles(contract, machine)
    price = lambda at, way: register_tile_cycles(at, way, machine) / machine.clock_ghz
    first, *others = (
        Variant(
            lambda n, way=way: emit_register_tile(contract, way, n, constants),
            way.text,
            cycles / machine.clock_ghz,
            way.order,
            lambda resize, way=way: price(with_dims(contract, resize), way),
        )
        for cycles, way in ranked
    )
    every = buffers(len(contract.operands), len(contract.results))
    key = structure_of_product(contract), machine, constants, "register tile"
    given = names_of(every), every, failures_of(contract)
    return Launch.of(name, key, *given, first, others)


def emit_register_tile(
    contract: Contract, schedule: RegisterTileSchedule, name: str, constants: Iterable[int] = ()
) -> Program:
    """The program of a legal contraction."""
    return _RegisterTile(contract, schedule, name, constants).program()


@dataclass(slots=True)
class _Side:
    """A factor, and where this thread's vectors of its tiles go."""

    factor: Expr
    loader: Loader
    extent: DimLike
    """Of its rows or columns."""
    size: int
    """Of a tile's."""
    pitch: int
    memory: SharedRef
    vectors: list[_Vector]
    """Of a stage."""


@dataclass(slots=True)
class _Vector:
    """Neighbouring elements of a stage that a thread stores."""

    scope: Scope
    """Of its rows or columns."""
    step: Var
    """The first inner step."""
    place: Var
    """In the stage."""
    mask: Var | None
    """Is it one of the stage's? Not where there are more threads than vectors."""


Requested = list[tuple[_Side, _Vector, Scope]]
"""Vectors on their way, with the scope of the inner steps."""


class _RegisterTile(TiledProduct):
    def __init__(
        self,
        contract: Contract,
        schedule: RegisterTileSchedule,
        name: str,
        constants: Iterable[int],
    ) -> None:
        self.schedule, tile = schedule, schedule.tile
        self.counts = [
            (product(a.extent for a in axes) + (size - 1)) // size
            for axes, size in (
                (schedule.left.axes, tile.rows),
                (schedule.right.axes, tile.columns),
            )
        ]
        points = product(a.extent for a in schedule.batch) * product(self.counts)
        grid = (points if contract.stores else 0,)
        resident = schedule.resident(contract.sums.itemsize)
        builder = Builder(
            name, block=schedule.block, grid=grid, warp=schedule.warp, resident=resident
        )
        super().__init__(builder, contract, constants, None, schedule.index_bits)
        self.sides = frozenset(schedule.left.axes), frozenset(schedule.right.axes)
        self.extent = product(a.extent for a in contract.inner)
        self.group = max(1, min(4, VECTOR_BYTES // contract.sums.itemsize))

    def program(self) -> Program:
        b, step = self.b, self.step
        if self.schedule.is_dependent:
            b.release_dependents()
        self._open()
        first = self._first_stages()
        self._store_stage(first, b.const(0, self.index_dtype))
        zero = b.const(0, self.index_dtype)
        with b.loop(zero, self.number(self.extent), step, self.totals) as start:
            self._await_stage()
            self._copy_stage(start + step * (self.schedule.stages - 1))
            following = self._requested(start + step)
            self._multiply(start)
            self._store_stage(following, start + step)
        if self._copied:
            b.async_wait()
        if self.schedule.slices == 1:
            self._finish([*self.totals])
        else:
            self._add_slices()
        return b.program()

    @property
    def step(self) -> int:
        """Inner positions of a stage of all slices."""
        return self.schedule.depth * self.schedule.slices

    def _add_slices(self) -> None:
        """The first slice adds the others' sums to its own, in order, and stores them."""
        b, threads = self.b, self.schedule.tile.threads
        count = len(self.totals) * threads
        memory = b.shared("slices", self.contract.sums, count * (self.schedule.slices - 1))
        for i, total in enumerate(self.totals):
            place = (self.slice - 1) * count + (self.own + i * threads)
            memory.store(place, [total], self.slice.ne(0))
        b.barrier()
        with b.when(self.slice.eq(0)):
            sums: list[Var] = [*self.totals]
            for n in range(self.schedule.slices - 1):
                parts = [memory[self.own + (n * count + i * threads)] for i in range(len(sums))]
                sums = [x + y for x, y in zip(sums, parts)]
            self._finish(sums)

    def _first_stages(self) -> Requested:
        """All stages but one on their way; those of constants, before the kernels before are
        waited for."""
        b, stages = self.b, self.schedule.stages
        starts = [b.const(i * self.step, self.index_dtype) for i in range(stages - 1)]
        early = [s for s in self._copied if self._is_constant(s)]
        for start in starts:
            self._copy(early, start)
        found = self._requested(starts[0], is_early=True)
        if self.schedule.is_dependent:
            b.wait_dependencies()
        for start in starts if self._copied else ():
            self._copy([s for s in self._copied if s not in early], start)
            b.async_commit()
        return found

    @property
    def _copied(self) -> list[_Side]:
        return [s for s in (self.left, self.right) if s.loader.source is not None]

    def _is_constant(self, side: _Side) -> bool:
        source = side.loader.source
        return source is not None and source.operand in self.constants

    def _await_stage(self) -> None:
        """This stage is there, for all threads, and all are done with the one before."""
        if self._copied:
            self.b.async_wait(self.schedule.stages - 2)
        self.b.barrier()

    def _copy_stage(self, start: Var) -> None:
        if self._copied:
            self._copy(self._copied, start)
            self.b.async_commit()

    def _copy(self, sides: list[_Side], start: Var) -> None:
        """Elements of a stage to shared memory, while threads go on."""
        for side in sides:
            self.vector = side.loader.vector
            for vector in side.vectors:
                if vector.mask is None:
                    self._copy_vector(side, vector, start)
                    continue
                with self.b.when(vector.mask):  # others would write zeros
                    self._copy_vector(side, vector, start)

    def _copy_vector(self, side: _Side, vector: _Vector, start: Var) -> None:
        source = side.loader.source
        assert source is not None
        with self.inside(vector.scope), self.inside(self._inner(side, start, vector.step)):
            index, masks = self.affine(source.at), self.masks(())
        mask, buffer = masks[0] if masks else None, self.inputs[source.operand]
        size = min(side.loader.width, self.group)
        for i in range(0, side.loader.width, size):
            place = self._stage(start, side) + vector.place + i
            self.b.async_copy(side.memory, place, buffer, index[i], size, mask)

    # -- where a thread is -----------------------------------------------------------------------

    def _open(self) -> None:
        """The block's tile, the thread's vectors of its factors, and its sums."""
        b, schedule, tile, index = self.b, self.schedule, self.schedule.tile, self.index_dtype
        point = b.block_index().to(index)
        self.slice = b.const(0, DType.I32)
        self.own = b.thread
        if schedule.slices > 1:
            self.slice, self.own = b.thread // tile.threads, b.thread % tile.threads
        down, across = (self.dim(c) for c in self.counts)
        row = point % down
        column, batch = point // down % across, point // down // across
        self.scopes = [self.scope(self.open_points(schedule.batch, batch))]
        self.corners = row * tile.rows, column * tile.columns
        self.left, self.right = (
            self._side("left", self.contract.left, schedule.left, tile.rows, self.corners[0]),
            self._side("right", self.contract.right, schedule.right, tile.columns, self.corners[1]),
        )
        self._place()
        zero = b.const(0, self.contract.sums)
        count = tile.thread_rows * tile.thread_columns
        self.totals = [b.variable(zero) for _ in range(count)]

    def _place(self) -> None:
        """Rows and columns of threads in the tile: a warp is about as high as it is wide."""
        b, tile, size = self.b, self.schedule.tile, lanes_of(self.schedule.warp)
        across = tile.columns // tile.thread_columns
        lanes = min(8, across)
        groups = across // lanes
        number = b.group_of(size) % max(1, tile.threads // size)
        self.row_thread = number // groups * (size // lanes) + b.lane_of(size) // lanes
        self.column_thread = number % groups * lanes + b.lane_of(size) % lanes

    def _side(self, name: str, factor: Expr, loader: Loader, size: int, corner: Var) -> _Side:
        b, sums, depth = self.b, self.contract.sums, self.schedule.depth
        pitch = size + max(1, VECTOR_BYTES // sums.itemsize)
        stages = self.schedule.stages * self.schedule.slices
        memory = b.shared(name, sums, stages * depth * pitch)
        extent = product(a.extent for a in loader.axes)
        side = _Side(factor, loader, extent, size, pitch, memory, [])
        count = depth * size // loader.width
        threads = self.schedule.tile.threads
        for start in range(0, count, threads):
            mask = None if start + threads <= count else self.own + start < count
            side.vectors.append(self._vector(side, self.own + start, corner, mask))
        return side

    def _vector(self, side: _Side, number: Var, corner: Var, is_there: Var | None) -> _Vector:
        """A vector of a stage: neighbouring threads have neighbouring elements."""
        loader, width = side.loader, side.loader.width
        if loader.along == "outer":
            each = side.size // width
            outer, step = number % each * width, number // each
        else:
            near = self._near(side)
            outer = number // near % side.size
            step = (number % near + number // (near * side.size) * near) * width
        flat = corner + outer.to(self.index_dtype)
        slots = width if loader.along == "outer" else 1
        is_full = exact_div(side.extent, side.size) is not None
        inside = None if is_full else flat < self.dim(side.extent)
        mask = combined(m for m in (is_there, inside) if m is not None)
        scope = self.scope(self.opened(loader.axes, flat, slots), mask)
        return _Vector(scope, step, step * side.pitch + outer, is_there)

    def _near(self, side: _Side) -> int:
        """Vectors of a row that neighbouring threads have."""
        size = side.loader.width * self.contract.sums.itemsize
        return max(1, min(self.schedule.depth // side.loader.width, SECTOR_BYTES // size))

    # -- stages ----------------------------------------------------------------------------------

    def _requested(self, start: Var, *, is_early: bool = False) -> Requested:
        """The elements of a stage, loaded and not used yet."""
        found: Requested = []
        for side in (self.left, self.right):
            self.vector = side.loader.vector
            for vector in side.vectors if side.loader.source is None else ():
                inner = self._inner(side, start, vector.step)
                with self.inside(vector.scope), self.inside(inner):
                    self.request(side.factor, is_early=is_early)
                found.append((side, vector, inner))
        return found

    def _inner(self, side: _Side, start: Var, step: Var) -> Scope:
        """The inner steps of a vector. Where a stage lies in one run of the last axis, the others
        are the same for all of it."""
        own = (self.slice * self.schedule.depth + step).to(self.index_dtype)
        slots = side.loader.width if side.loader.along == "inner" else 1
        is_full = exact_div(self.extent, self.step) is not None
        mask = (start if is_full else start + own) < self.dim(self.extent)
        axes = self.schedule.inner
        if exact_div(axes[-1].extent, self.step) is None:
            return self.scope(self.opened(axes, start + own, slots), mask)
        index = self.opened(axes, start, 1)
        index[axes[-1]] = [index[axes[-1]][0] + own + s for s in range(slots)]
        return self.scope(index, mask)

    def _stage(self, start: Var, side: _Side) -> Var:
        """Where a stage begins in a side's memory."""
        schedule = self.schedule
        number = (start.to(DType.I32) >> (self.step.bit_length() - 1)) & (schedule.stages - 1)
        return (self.slice * schedule.stages + number) * (schedule.depth * side.pitch)

    def _store_stage(self, requested: Requested, start: Var) -> None:
        """Factors to shared memory."""
        for side, vector, inner in requested:
            self.vector = side.loader.vector
            with self.inside(vector.scope), self.inside(inner):
                values = self.factor(side.factor)
            self._store_vector(side, self._stage(start, side) + vector.place, values, vector.mask)

    def _store_vector(self, side: _Side, start: Var, values: Values, mask: Var | None) -> None:
        width = side.loader.width
        held = values if len(values) == width else values * width
        if side.loader.along == "inner":
            for i, value in enumerate(held):
                side.memory.store(start + i * side.pitch, [value], mask)
            return
        size = min(width, self.group)
        for i in range(0, width, size):
            side.memory.store(start + i, held[i : i + size], mask)

    def _multiply(self, start: Var) -> None:
        """The products of a stage, step by step."""
        tile = self.schedule.tile
        for step in range(self.schedule.depth):
            x = self._fragment(self.left, start, step, self.row_thread, tile.thread_rows)
            y = self._fragment(self.right, start, step, self.column_thread, tile.thread_columns)
            for i, total in enumerate(self.totals):
                row, column = divmod(i, tile.thread_columns)
                total.set(self.multiplied(total, x[row], y[column]))

    def _fragment(self, side: _Side, stage: Var, step: int, thread: Var, count: int) -> list[Var]:
        """The rows or columns of a thread, in groups that neighbouring threads have in turn."""
        start = self._stage(stage, side) + thread * self._held(count)
        found: list[Var] = []
        for place in self._groups(side.size, count):
            found += side.memory.load(start + (step * side.pitch + place), self._held(count))
        return found

    def _held(self, count: int) -> int:
        """Neighbours of a group."""
        return min(self.group, count)

    def _groups(self, size: int, count: int) -> list[int]:
        """Where the groups of a thread begin, from the first of its place on."""
        groups = count // self._held(count)
        return [g * (size // groups) for g in range(groups)]

    # -- sums ------------------------------------------------------------------------------------

    def _finish(self, sums: list[Var]) -> None:
        tile = self.schedule.tile
        width = min(self.schedule.store_width, self._held(tile.thread_columns))
        rows = self._lines(self.left, self.corners[0], self.row_thread, tile.thread_rows, 1)
        columns = self._lines(
            self.right, self.corners[1], self.column_thread, tile.thread_columns, width
        )
        self.store_tile(sums, rows, columns, width)

    def _lines(self, side: _Side, corner: Var, thread: Var, count: int, width: int) -> list[Scope]:
        """The thread's rows or columns, some neighbours at a time, in the order of its sums."""
        held, found = self._held(count), list[Scope]()
        is_full = exact_div(side.extent, side.size) is not None
        for place in self._groups(side.size, count):
            for i in range(0, held, width):
                flat = corner + (thread * held + (place + i)).to(self.index_dtype)
                mask = None if is_full else flat < self.dim(side.extent)
                found.append(self.scope(self.opened(side.loader.axes, flat, width), mask))
        return found
