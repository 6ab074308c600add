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

from rlx.backends.gpu.lower.contraction.epilogue import Epilogue
from rlx.backends.gpu.lower.contraction.loader import TileLoader
from rlx.backends.gpu.lower.contraction.values import ProductValues
from rlx.backends.gpu.lower.scopes import Scope
from rlx.backends.gpu.schedule.mma import TILE, MmaSchedule
from rlx.backends.gpu.schedule.product import Operand, Product
from rlx.backends.gpu.simt.builder import Builder
from rlx.backends.gpu.simt.nodes import TileType
from rlx.backends.gpu.simt.program import Program
from rlx.backends.gpu.simt.values import Var, Variable
from rlx.core.dim import DimLike
from rlx.core.dtype import DType

F32 = DType.F32


def emit(product: Product, schedule: MmaSchedule, name: str) -> Program:
    """The program of a product."""
    return _Mma(product, schedule, name).program()


def _ceil(size: DimLike, by: int) -> DimLike:
    return (size + (by - 1)) // by


class _Mma:
    """One program."""

    def __init__(self, product: Product, schedule: MmaSchedule, name: str) -> None:
        self.product, self.schedule = product, schedule
        batch, rows, columns, inner = product.sizes
        self.down, self.across = _ceil(rows, schedule.rows), _ceil(columns, schedule.columns)
        self.steps = _ceil(inner, schedule.depth)
        grid = (self.down * self.across * batch,)
        self.b = Builder(name, block=schedule.block, grid=grid, warp=schedule.warp)
        self.values = ProductValues(self.b, product, schedule.constants)

    def program(self) -> Program:
        b, values, schedule = self.b, self.values, self.schedule
        if schedule.is_dependent:
            b.release_dependents()
        row, column = self._open()
        self.left = self._loader("left", self.product.left, schedule.rows, row)
        self.right = self._loader("right", self.product.right, schedule.columns, column)
        sums = b.shared(
            "sums", F32, schedule.rows * schedule.pitch * schedule.warps[2] // schedule.passes
        )
        self.epilogue = Epilogue(values, schedule, sums, row, column)
        self._prologue()
        self.epilogue.store(self._loop())
        return b.program()

    def _open(self) -> tuple[Var, Var]:
        """The block's place in the batch, and the first row and column of its tile."""
        b, values = self.b, self.values
        point = b.block_index().to(values.index_dtype)
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

    def _prologue(self) -> None:
        """The first stages; of what is constant, before the kernels before are done."""
        early = [x for x in (self.left, self.right) if self._is_early(x)]
        late = [x for x in (self.left, self.right) if x not in early]
        for loader in early:
            self._first(loader)
        if self.schedule.is_dependent:
            self.b.wait_dependencies()
        for stage in range(self.schedule.stages - 1):
            for loader in late:
                self._begin(loader, self.b.index(stage), self._start(stage))()
            self.b.async_commit()

    def _first(self, loader: TileLoader) -> None:
        for stage in range(self.schedule.stages - 1):
            self._begin(loader, self.b.index(stage), self._start(stage))()

    def _is_early(self, loader: TileLoader) -> bool:
        is_constant = loader.operand.is_constant(self.schedule.constants)
        return self.schedule.is_dependent and is_constant

    def _start(self, step: Var | int) -> Var:
        """The first inner position of a step."""
        index = self.values.index_dtype
        at = self.b.const(step, index) if isinstance(step, int) else step.to(index)
        return at * self.schedule.depth

    def _begin(self, loader: TileLoader, stage: Var, start: Var) -> Callable[[], None]:
        return loader.fill(stage, start)

    def _loop(self) -> list[list[Var]]:
        """The sums of the thread's warp."""
        b, stages = self.b, self.schedule.stages
        height, width = (n // TILE for n in self.schedule.warp_tile)
        tile = TileType("c", TILE, TILE, F32)
        zero = b.tile_fill(tile)
        sums = [[b.variable(zero) for _ in range(width)] for _ in range(height)]
        steps = self.values.number(self.steps).to(DType.I32)
        with b.loop(0, steps, carry=[v for row in sums for v in row]) as step:
            b.async_wait(stages - 2)
            b.barrier()
            following = step + (stages - 1)
            rest = [
                self._begin(x, following % stages, self._start(following))
                for x in (self.left, self.right)
            ]
            b.async_commit()
            self._multiply(step % stages, sums)
            for store in rest:
                store()
        b.async_wait(0)
        return [[Var(b, v.value) for v in row] for row in sums]

    def _multiply(self, stage: Var, sums: list[list[Variable]]) -> None:
        """Matrices of the warp's part of a stage."""
        b, schedule = self.b, self.schedule
        down, across, inner = self.epilogue.warp
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
