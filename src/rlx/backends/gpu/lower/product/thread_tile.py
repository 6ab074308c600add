"""Products in tiles of single threads, straight from global memory and without a barrier.

    for each inner position, a few at a time:
        left[row, inner], right[inner, column]                    # vectors of global memory
        sums[row, column] += left[row, inner] · right[inner, column]
    epilogue and stores of the thread's sums

Rows and columns behind the last ones are read as the last ones, and not stored: nothing in the loop
is masked.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass

from rlx.backends.gpu.lower.product.expressions import (
    failures_of,
    legal_product,
    names_of,
    structure_of_product,
)
from rlx.backends.gpu.lower.product.register_tile import stores_along_columns
from rlx.backends.gpu.lower.product.split import split_product
from rlx.backends.gpu.lower.product.staged import with_staged_factors
from rlx.backends.gpu.lower.product.tiled import TiledProduct
from rlx.backends.gpu.lower.scopes import Scope
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.factors import Loader
from rlx.backends.gpu.schedule.thread_tile import (
    ThreadTileSchedule,
    choose_thread_splits,
    ranked_thread_tiles,
    thread_tile_cost,
    tile_count,
)
from rlx.backends.gpu.task import GpuTask, Launch, Variant
from rlx.core.dim import DimLike, exact_div, product
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Expr
from rlx.kernel.program.schedule import Schedule, buffers
from rlx.kernel.refusal import Refusal
from rlx.kernel.substitute import with_dims
from rlx.program.builder import Builder
from rlx.program.program import Program
from rlx.program.values import Var


def thread_tile_schedule(
    contract: Contract, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask] | Refusal:
    """The launches of a contraction of any size and dtype. Factors that are computed, and weights
    that are not contiguous, are written to memory first."""
    made = legal_product(contract if stores_along_columns(contract) else contract.swapped())
    if isinstance(made, Refusal):
        return made
    return with_staged_factors(
        made, machine, name, constants, lambda c, held: _launches(c, machine, name, held)
    )


def _launches(
    contract: Contract, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Schedule[GpuTask]:
    splits = choose_thread_splits(contract, machine)
    launch = lambda part, n: _launch(part, machine, n, constants)
    if splits > 1:
        return split_product(contract, splits, machine, name, constants, launch)
    return Schedule((launch(contract, name),))


def _launch(
    contract: Contract, machine: GpuMachine, name: str, constants: frozenset[int]
) -> Launch:
    price = lambda at, way: thread_tile_cost(at, way, machine) / machine.clock_ghz
    first, *others = (
        Variant(
            lambda n, way=way: emit_thread_tile(contract, way, n, constants),
            way.text,
            cost / machine.clock_ghz,
            way.order,
            lambda resize, way=way: price(with_dims(contract, resize), way),
        )
        for cost, way in ranked_thread_tiles(contract, machine)
    )
    every = buffers(len(contract.operands), len(contract.results))
    key = structure_of_product(contract), machine, constants, "thread tile"
    given = names_of(every), every, failures_of(contract)
    return Launch.of(name, key, *given, first, others)


def emit_thread_tile(
    contract: Contract, schedule: ThreadTileSchedule, name: str, constants: Iterable[int] = ()
) -> Program:
    """The program of a legal contraction."""
    return _ThreadTile(contract, schedule, name, constants).program()


@dataclass(slots=True)
class _Unit:
    """Neighbouring rows or columns whose elements are loaded together."""

    scopes: list[Scope]
    """Of its rows or columns, then of the inner axes that are open: each unit has its own, as what
    varies with both belongs to the inner one."""


@dataclass(slots=True)
class _Side:
    """A factor, and what the thread reads of it."""

    factor: Expr
    loader: Loader
    extent: DimLike
    count: int
    """Rows or columns of the thread."""
    first: Var
    units: list[_Unit]


class _ThreadTile(TiledProduct):
    def __init__(
        self,
        contract: Contract,
        schedule: ThreadTileSchedule,
        name: str,
        constants: Iterable[int],
    ) -> None:
        self.schedule = schedule
        self.counts = tile_count(contract, schedule)
        self.points = product(a.extent for a in schedule.batch) * product(self.counts)
        blocks = (self.points + (schedule.block - 1)) // schedule.block
        grid = (blocks if contract.stores else 0,)
        builder = Builder(name, block=schedule.block, grid=grid, warp=1)
        super().__init__(builder, contract, constants, None, schedule.index_bits)
        self.sides = frozenset(schedule.left.axes), frozenset(schedule.right.axes)

    def program(self) -> Program:
        b, index = self.b, self.index_dtype
        block = b.block_index().to(index) * self.schedule.block
        thread = block + b.thread.to(index)
        if exact_div(self.points, self.schedule.block) is not None:
            self._tile(thread)
            return b.program()
        with b.when(thread < self.dim(self.points)):
            self._tile(thread)
        return b.program()

    def _tile(self, thread: Var) -> None:
        b, schedule, contract = self.b, self.schedule, self.contract
        down, across = (self.dim(c) for c in self.counts)
        column, rest = thread % across, thread // across
        row, batch = rest % down, rest // down
        self.scopes = [self.scope(self.open_points(schedule.batch, batch))]
        self.left = self._side(contract.left, schedule.left, row, schedule.rows)
        self.right = self._side(contract.right, schedule.right, column, schedule.columns)
        zero = b.const(0, contract.sums)
        self.totals = [b.variable(zero) for _ in range(schedule.rows * schedule.columns)]
        self._loops(0)
        self._finish()

    def _side(self, factor: Expr, loader: Loader, number: Var, count: int) -> _Side:
        first = number * count
        extent = product(a.extent for a in loader.axes)
        side = _Side(factor, loader, extent, count, first, [])
        width = loader.width if loader.along == "outer" else 1
        for start in range(0, count, width):
            flat = first + start
            if exact_div(extent, count) is None:
                flat = flat.min(self.number(extent) - width)
            side.units.append(_Unit([self.scope(self.opened(loader.axes, flat, width))]))
        return side

    # -- inner positions -------------------------------------------------------------------------

    def _loops(self, number: int) -> None:
        """A loop for each inner axis from that number on."""
        axis, is_last = self.schedule.inner[number], number + 1 == len(self.schedule.inner)
        step = self.schedule.depth if is_last else 1
        zero = self.b.const(0, self.index_dtype)
        if axis.extent == step:
            self._inner(number, zero)
            return
        with self.b.loop(zero, self.number(axis.extent), step, self.totals) as at:
            self._inner(number, at)

    def _inner(self, number: int, at: Var) -> None:
        if number + 1 == len(self.schedule.inner):
            self._multiply(at)
            return
        units = [*self.left.units, *self.right.units]
        for unit in units:
            unit.scopes.append(self.scope({self.schedule.inner[number]: [at]}))
        self._loops(number + 1)
        for unit in units:
            unit.scopes.pop()

    def _multiply(self, start: Var) -> None:
        """The products of some steps of the last inner axis."""
        left, right = self._elements(self.left, start), self._elements(self.right, start)
        for x, y in zip(left, right):
            for i, total in enumerate(self.totals):
                row, column = divmod(i, self.schedule.columns)
                total.set(self.multiplied(total, x[row], y[column]))

    def _elements(self, side: _Side, start: Var) -> list[list[Var]]:
        """Of each step, those of all rows or columns."""
        axis, depth, loader = self.schedule.inner[-1], self.schedule.depth, side.loader
        self.vector = loader.vector
        width = loader.width if loader.along == "inner" else 1
        found: list[list[Var]] = [[] for _ in range(depth)]
        for step in range(0, depth, width):
            places = [start + (step + i) for i in range(width)]
            for unit in side.units:
                with self._opened(unit, self.scope({axis: places})):
                    values = self.factor(side.factor)
                own = side.count // len(side.units)
                for i in range(width):
                    found[step + i] += self._of_step(values, i, width, own)
        return found

    def _of_step(self, values: list[Var], step: int, steps: int, count: int) -> list[Var]:
        """The values of one step, for each neighbour: factors may vary with neither."""
        if len(values) == 1:
            return values * count
        return [values[step]] if steps > 1 else values

    @contextmanager
    def _opened(self, unit: _Unit, inner: Scope) -> Generator[None]:
        before = self.scopes
        self.scopes = [*before, *unit.scopes, inner]
        yield
        self.scopes = before

    # -- sums ------------------------------------------------------------------------------------

    def _finish(self) -> None:
        width = self.schedule.store_width
        rows, columns = self._lines(self.left, 1), self._lines(self.right, width)
        self.store_tile([*self.totals], rows, columns, width)

    def _lines(self, side: _Side, width: int) -> list[Scope]:
        """The thread's rows or columns, some neighbours at a time."""
        found: list[Scope] = []
        is_full = exact_div(side.extent, side.count) is not None
        for start in range(0, side.count, width):
            flat = side.first + start
            mask = None if is_full else flat < self.dim(side.extent)
            found.append(self.scope(self.opened(side.loader.axes, flat, width), mask))
        return found
