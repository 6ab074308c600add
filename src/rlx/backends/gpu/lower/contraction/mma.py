"""Products on matrix instructions of warps, as SIMT programs.

    name(x0, x1, …, y0, …, failures, n0, …)

    for each tile of inner positions:
        wait for its stage; a barrier
        begin to fill the stage that was multiplied last
        multiply
    store

Rows, columns and inner positions behind the last ones are masked, so any sizes will do.
"""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.gpu.lower.contraction.epilogue import SumsStore
from rlx.backends.gpu.lower.contraction.loader import TileLoader
from rlx.backends.gpu.lower.contraction.values import ProductValues
from rlx.backends.gpu.lower.scopes import Scope
from rlx.backends.gpu.schedule.mma import TILE, MmaSchedule, ceil_div, steps_of
from rlx.backends.gpu.schedule.product import Operand, Product
from rlx.core.dim import exact_div
from rlx.core.dtype import DType
from rlx.program.builder import Builder
from rlx.program.program import Program
from rlx.program.types import TileType
from rlx.program.values import SharedRef, Var, Variable

F32 = DType.F32
SUMMED = "summed"
"""The barrier that counts the parts of sums that other blocks push."""


def emit(product: Product, schedule: MmaSchedule, name: str) -> Program:
    """The program of a product."""
    return _Mma(product, schedule, name).program()


class _Mma:
    """One program."""

    def __init__(self, product: Product, schedule: MmaSchedule, name: str) -> None:
        self.product, self.schedule = product, schedule
        batch, rows, columns, _ = product.sizes
        self.down, self.across = ceil_div(rows, schedule.rows), ceil_div(columns, schedule.columns)
        self.steps = steps_of(product, schedule)
        grid = (self.down * self.across * batch * schedule.splits,)
        cluster = schedule.splits
        self.b = Builder(name, block=schedule.block, grid=grid, cluster=cluster, warp=schedule.warp)
        self.values = ProductValues(self.b, product, schedule.constants)

    def program(self) -> Program:
        b, schedule = self.b, self.schedule
        if schedule.is_dependent:
            b.release_dependents()
        row, column = self._open()
        self.left = self._loader("left", self.product.left, schedule.rows, row)
        self.right = self._loader("right", self.product.right, schedule.columns, column)
        stored = self._sums(column)
        self._prologue(stored)
        sums = self._whole() if self.is_whole else self._piped()
        self._store(sums, stored, row)
        return b.program()

    def _open(self) -> tuple[Var, Var]:
        """The block's place in the batch, and the first row and column of its tile."""
        b, values = self.b, self.values
        point = b.block_index().to(values.index_dtype) // self.schedule.splits
        zero = b.const(0, values.index_dtype)
        values.scopes = [Scope(b.depth, {a: [zero] for a in self.product.single})]
        down, across = values.dim(self.down), values.dim(self.across)
        row, rest = point % down, point // down
        column, batch = (rest, zero) if not self.product.batch else (rest % across, rest // across)
        values.scopes[0].index |= values.opened(self.product.batch, batch, 1)
        return row * self.schedule.rows, column * self.schedule.columns

    def _loader(self, name: str, operand: Operand, outer: int, first: Var) -> TileLoader:
        schedule = self.schedule
        count = schedule.stages * outer * schedule.depth
        memory = self.b.shared(name, self.product.dtype, count, is_swizzled=True)
        return TileLoader(
            self.values, operand, memory, outer, schedule.depth, schedule.block, first
        )

    # -- stages ----------------------------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """Is there a stage for every step, so that none is filled twice?"""
        return isinstance(self.steps, int) and self.steps <= self.schedule.stages

    @property
    def _has_tail(self) -> bool:
        """May a step go beyond the last inner position?"""
        every = self.schedule.depth * self.schedule.splits
        return not self.is_whole or exact_div(self.product.sizes[3], every) is None

    def _prologue(self, stored: SumsStore) -> None:
        """The first stages; of what is constant, before the kernels before are done."""
        stages = self.steps if self.is_whole else self.schedule.stages - 1
        assert isinstance(stages, int)
        early = [x for x in (self.left, self.right) if self._is_early(x)]
        late = [x for x in (self.left, self.right) if x not in early]
        for stage in range(stages):
            self._fill(early, self.b.index(stage), stage)
        if self.schedule.is_dependent:
            stored.request(self.schedule.constants)
            self.b.wait_dependencies()
        for stage in range(stages):
            self._fill(late, self.b.index(stage), stage)
            self.b.async_commit()

    def _fill(self, loaders: list[TileLoader], stage: Var, step: Var | int) -> None:
        for store in self._begin(loaders, stage, step):
            store()

    def _begin(
        self, loaders: list[TileLoader], stage: Var, step: Var | int
    ) -> list[Callable[[], None]]:
        return [x.fill(stage, self._start(step), has_tail=self._has_tail) for x in loaders]

    def _is_early(self, loader: TileLoader) -> bool:
        is_constant = loader.operand.is_constant(self.schedule.constants)
        return self.schedule.is_dependent and is_constant

    def _start(self, step: Var | int) -> Var:
        """The first inner position of a step of this block."""
        index = self.values.index_dtype
        at = self.b.const(step, index) if isinstance(step, int) else step.to(index)
        if self.schedule.splits > 1:
            at = at + self.b.rank.to(index) * self.values.dim(self.steps)
        return at * self.schedule.depth

    def _zeros(self) -> list[list[Variable]]:
        height, width = (n // TILE for n in self.schedule.warp_tile)
        zero = self.b.tile_fill(TileType("c", TILE, TILE, F32))
        return [[self.b.variable(zero) for _ in range(width)] for _ in range(height)]

    def _whole(self) -> list[list[Variable]]:
        """All stages are under way: each is multiplied as soon as it is there."""
        assert isinstance(self.steps, int)
        sums = self._zeros()
        for step in range(self.steps):
            self.b.async_wait(self.steps - 1 - step)
            self.b.barrier()
            self._multiply(self.b.index(step), sums)
        return sums

    def _piped(self) -> list[list[Variable]]:
        """A stage is filled anew when all warps have multiplied it."""
        b, stages, sums = self.b, self.schedule.stages, self._zeros()
        steps = self.values.number(self.steps).to(DType.I32)
        with b.loop(0, steps, carry=[v for row in sums for v in row]) as step:
            b.async_wait(stages - 2)
            b.barrier()
            following = step + (stages - 1)
            rest = self._begin([self.left, self.right], following % stages, following)
            b.async_commit()
            self._multiply(step % stages, sums)
            for store in rest:
                store()
        b.async_wait(0)
        return sums

    @property
    def warp(self) -> tuple[Var, Var, Var]:
        """The thread's warp along rows, columns and inner positions."""
        rows, columns, _ = self.schedule.warps
        warp = self.b.warp
        return warp % rows, warp // rows % columns, warp // (rows * columns)

    def _multiply(self, stage: Var, sums: list[list[Variable]]) -> None:
        """Matrices of the warp's part of a stage."""
        b, schedule = self.b, self.schedule
        down, across, inner = self.warp
        height, width = schedule.warp_tile
        a, bt = (TileType(role, TILE, TILE, self.product.dtype) for role in ("a", "b"))
        own = schedule.depth // schedule.warps[2]
        first = inner * own if schedule.warps[2] > 1 else b.index(0)
        x0 = self.left.start(stage, down * height, first)
        y0 = self.right.start(stage, across * width, first)
        for step in range(0, own, TILE):
            left = [self.left.matrix(a, x0, i, step) for i in range(0, height, TILE)]
            right = [self.right.matrix(bt, y0, j, step) for j in range(0, width, TILE)]
            for x, row in zip(left, sums):
                for y, total in zip(right, row):
                    total.set(b.tile_mul(x, y, total))

    # -- stores ----------------------------------------------------------------------------------

    @property
    def lines(self) -> int:
        """Rows of finished sums that a block stores in a pass."""
        return self.schedule.rows // (self.schedule.passes * self.schedule.splits)

    def _sums(self, column: Var) -> SumsStore:
        """Room for them; blocks of a cluster share the tile's rows."""
        b, schedule = self.b, self.schedule
        parts = schedule.warps[2] * schedule.splits
        sums = b.shared("sums", F32, self.lines * schedule.pitch * parts)
        if schedule.splits > 1:
            b.mbarrier(SUMMED)
            with b.when(b.thread.eq(0)):
                b.mbarrier_init(SUMMED, 1)
        return SumsStore(
            self.values, sums, b.index(0), self.lines, schedule.columns, schedule.pitch, b.thread,
            schedule.block, column, parts,
            is_whole=exact_div(self.product.sizes[2], schedule.columns) is not None,
        )  # fmt: skip

    def _store(self, tiles: list[list[Variable]], stored: SumsStore, row: Var) -> None:
        """Of every warp's matrices, some rows in each pass."""
        b, schedule = self.b, self.schedule
        if schedule.splits > 1:
            self._push(stored.sums, tiles)
            first = row + (b.rank * self.lines).to(self.values.index_dtype)
            stored.store(lambda line: first + line.to(self.values.index_dtype))
            return
        own = schedule.warp_tile[0] // schedule.passes
        for number in range(schedule.passes):
            if number:
                b.barrier()
            self._keep(stored.sums, tiles[number * own // TILE : (number + 1) * own // TILE])
            b.barrier()
            stored.store(lambda line, n=number: row + self._row(line, n, own))

    def _row(self, line: Var, number: int, own: int) -> Var:
        """Of a tile, by the line of a pass: each warp has the sums of neighbouring rows."""
        down = line // own * self.schedule.warp_tile[0] + number * own + line % own
        return down.to(self.values.index_dtype)

    def _keep(self, sums: SharedRef, tiles: list[list[Variable]]) -> None:
        pitch = self.schedule.pitch
        down, across, inner = self.warp
        line = inner * self.lines + down * (len(tiles) * TILE)
        column = across * self.schedule.warp_tile[1]
        for i, row in enumerate(tiles):
            for j, tile in enumerate(row):
                at = (line + i * TILE) * pitch + column + j * TILE
                self.b.tile_store(tile, sums, at, pitch)

    def _push(self, sums: SharedRef, tiles: list[list[Variable]]) -> None:
        """Each block of a cluster has the parts of its rows pushed to it by all of them, in places
        of their own, so that they are added in one order."""
        b, schedule, pitch = self.b, self.schedule, self.schedule.pitch
        parts = schedule.warps[2] * schedule.splits
        down, across, inner = self.warp
        part = (b.rank * schedule.warps[2] + inner) * self.lines
        places = b.tile_place(TileType("c", TILE, TILE, F32))
        with b.when(b.thread.eq(0)):
            b.mbarrier_arrive(SUMMED, expected_bytes=4 * parts * self.lines * schedule.columns)
        b.barrier("cluster")
        for i, row in enumerate(tiles):
            for j, tile in enumerate(row):
                held = b.tile_elements(tile)
                for e in range(0, len(held), 2):
                    line = down * schedule.warp_tile[0] + i * TILE + places[e][0]
                    column = across * schedule.warp_tile[1] + j * TILE + places[e][1]
                    at = (part + line % self.lines) * pitch + column
                    b.push(sums, at, held[e : e + 2], line // self.lines, SUMMED)
        b.mbarrier_wait(SUMMED, 0)
