"""Products on matrix instructions of four warps, as SIMT programs.

    name(x0, x1, …, y0, …, failures, n0, …, left, right)

    one thread, for each tile and each stage of inner positions:
        wait until the stage is free; have both operands' boxes copied to it
    or four warps, where an operand is read through a window:
        wait until the stage is free; copy to it; say that an earlier one is there
    groups of four warps, for each tile:
        for each stage: wait until it is there; multiply; free the stage before
        store, or hand the sums over
    warps that store, for each tile:
        wait for the sums of some rows; store; free their place

What is outside of the operands is 0 to the copy engine, and rows and columns behind the last ones
are not stored, so any sizes will do.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.gpu.lower.contraction.loader import TileLoader
from rlx.backends.gpu.lower.contraction.tile_grid import TileGrid
from rlx.backends.gpu.lower.contraction.wgmma_stores import TileStores
from rlx.backends.gpu.schedule.product import Operand, Product
from rlx.backends.gpu.schedule.wgmma import (
    DEPTH,
    GROUP_ROWS,
    BulkOperand,
    WgmmaSchedule,
)
from rlx.backends.gpu.schedule.windows import WindowOperand
from rlx.core.dim import exact_div
from rlx.core.dtype import DType
from rlx.program.builder import Builder
from rlx.program.program import Program
from rlx.program.types import TileType
from rlx.program.values import Var, Variable

F32, I32 = DType.F32, DType.I32
LINE = 64
"""Half floats of 128 bytes."""
PANEL = DEPTH * LINE
"""Elements of a box whose lines are at one inner position each."""
FULL, EMPTY = "full", "empty"


def emit(product: Product, schedule: WgmmaSchedule, name: str) -> Program:
    """The program of a product."""
    return _Wgmma(product, schedule, name).program()


class _Ring:
    """The stage that comes next, and its phase: stages are used in turn, over all tiles."""

    def __init__(self, b: Builder, stages: int) -> None:
        self.b, self.stages = b, stages
        self.stage, self.turn = b.variable(0), b.variable(0)
        """The turn is that of the stage's use: 0, then 1, then 0 …"""

    @property
    def carried(self) -> list[Variable]:
        return [self.stage, self.turn]

    def before(self, steps: int) -> Var:
        """The stage so many steps before."""
        return (self.stage + (self.stages - steps)).where(self.stage < steps, self.stage - steps)

    def advance(self) -> None:
        is_last = self.stage.eq(self.stages - 1)
        self.turn.set((self.turn ^ 1).where(is_last, self.turn))
        self.stage.set(self.b.const(0, I32).where(is_last, self.stage + 1))


class _Wgmma:
    """One program."""

    def __init__(self, product: Product, schedule: WgmmaSchedule, name: str) -> None:
        self.product, self.schedule = product, schedule
        self.grid = TileGrid(product, schedule, name)
        self.b, self.values = self.grid.b, self.grid.values
        self._declare()

    def _declare(self) -> None:
        b, schedule, half = self.b, self.schedule, self.product.dtype
        sizes = schedule.rows, schedule.columns
        sides = (self.product.left, schedule.left), (self.product.right, schedule.right)
        names = ("left", "right")
        self.memories = [
            b.shared(n, half, schedule.stages * size * DEPTH, is_swizzled=True)
            for n, size in zip(names, sizes)
        ]
        self.maps = [
            "" if bulk is None else self._map(n, operand, bulk, size)
            for n, (operand, bulk), size in zip(names, sides, sizes)
        ]
        self.stores = TileStores(self.grid)
        self.full, self.empty = (b.mbarrier(n, schedule.stages) for n in (FULL, EMPTY))
        self.stores.declare()

    def _map(
        self, name: str, operand: Operand, bulk: BulkOperand | WindowOperand, outer: int
    ) -> str:
        buffer = self.values.inputs[bulk.operand]
        if isinstance(bulk, WindowOperand):
            *_, last = bulk.axes
            return self.b.tensor_map(
                f"{name}_map", buffer, (last.extent, bulk.channel.extent), (outer, LINE),
                pitch=last.stride, offset=bulk.offset, outer=bulk.outer,
                windows=[a.windows for a in bulk.axes],
            )  # fmt: skip
        box = (outer, LINE) if operand.is_along_inner else (DEPTH, LINE)
        return self.b.tensor_map(
            f"{name}_map", buffer, bulk.dims, box, pitch=bulk.pitch, offset=bulk.offset
        )

    def program(self) -> Program:
        b, schedule = self.b, self.schedule
        if schedule.is_dependent:
            b.release_dependents()
        with b.when(b.thread.eq(0)):
            for stage in range(schedule.stages):
                b.mbarrier_init(self.full, self._arrivals, stage)
                b.mbarrier_init(self.empty, schedule.groups, stage)
            self.stores.initialise()
        b.barrier()
        if schedule.is_bulk:
            self._bulk_roles()
        else:
            self._wait()
            self._roles()
        return b.program()

    def _wait(self) -> None:
        if self.schedule.is_dependent:
            self.b.wait_dependencies()

    def _bulk_roles(self) -> None:
        """Warps that multiply, some that store, and one of which a thread has copies made."""
        b, schedule = self.b, self.schedule
        copying = schedule.warps + schedule.storing
        with b.when(b.warp >= copying), b.when(b.lane.eq(0)):
            self._copy()
        with b.otherwise():
            self._wait()
            with b.when(b.warp < schedule.warps):
                self._multiply()
            if schedule.storing:
                with b.otherwise():
                    self.stores.store_handed_over()

    def _roles(self) -> None:
        """Warps that copy, and those that multiply."""
        b = self.b
        with b.when(b.warp < self.schedule.multiplying):
            self._limit(0)
            self._copy_by_threads()
        with b.otherwise():
            self._limit(1)
            self._multiply()

    def _limit(self, role: int) -> None:
        counts = self.schedule.registers
        if counts is not None:
            self.b.register_limit(counts[role], is_more=role == 1)

    @property
    def _arrivals(self) -> int:
        """At a stage that is full: of the thread that has it copied, and of warps that copy."""
        schedule = self.schedule
        has_bulk = schedule.left is not None or schedule.right is not None
        return int(has_bulk) + (0 if schedule.is_bulk else 4)

    # -- copies ----------------------------------------------------------------------------------

    def _copy(self) -> None:
        b, ring, begun = self.b, _Ring(self.b, self.schedule.stages), self.b.variable(0)
        tiles = self.grid.number(self.grid.tiles)
        steps = self.grid.number(self.grid.steps)
        if self.schedule.is_dependent:
            self._begin(ring, begun, steps)
        carried = [begun, *ring.carried]
        with b.loop(b.block_index(), tiles, b.block_count(), carry=carried) as tile:
            row, column, batch = self.grid.place(tile)
            self.grid.open(batch)
            self._start_windows((row, column))
            with b.loop(begun, steps, carry=ring.carried) as k:
                b.mbarrier_wait(self.empty, ring.turn ^ 1, ring.stage)
                self._expect(ring.stage)
                self._bulk(ring.stage, (row, column), k * DEPTH)
                ring.advance()
            begun.set(0)

    def _begin(self, ring: _Ring, begun: Variable, steps: Var) -> None:
        """The first stages of a block: what is constant, before the kernels before are done."""
        b, stages = self.b, self.schedule.stages
        sides = self.product.left, self.product.right
        early = [side for side, x in enumerate(sides) if x.is_constant(self.schedule.constants)]
        if not early:
            b.wait_dependencies()
            return
        row, column, batch = self.grid.place(b.block_index())
        self.grid.open(batch)
        self._start_windows((row, column))
        first = steps.min(stages)
        with b.loop(0, first) as k:
            self._expect(k)
            self._bulk(k, (row, column), k * DEPTH, early)
        b.wait_dependencies()
        with b.loop(0, first) as k:
            self._bulk(k, (row, column), k * DEPTH, [s for s in (0, 1) if s not in early])
        begun.set(first)
        ring.turn.set((first >= stages).to(I32))
        ring.stage.set(b.const(0, I32).where(first >= stages, first))

    def _expect(self, stage: Var) -> None:
        """Of the copy engine, the bytes of a stage."""
        sides = (
            (self.schedule.rows, self.schedule.left),
            (self.schedule.columns, self.schedule.right),
        )
        size = sum(2 * DEPTH * n for n, bulk in sides if bulk is not None)
        self.b.mbarrier_arrive(self.full, stage, size)

    def _bulk(
        self, stage: Var, outer: tuple[Var, Var], inner: Var, sides: Sequence[int] = (0, 1)
    ) -> None:
        """What the copy engine fills a stage with, of one operand or both."""
        operands = self.product.left, self.product.right
        for side in sides:
            bulk = (self.schedule.left, self.schedule.right)[side]
            if bulk is not None:
                self._boxes(side, operands[side], bulk, (stage, outer[side], inner))

    def _copy_by_threads(self) -> None:
        """Each thread units of both operands, or of one beside the copy engine. A stage is full
        when the copies of some stages later are under way."""
        b, lag, ring = self.b, self.schedule.lag, _Ring(self.b, self.schedule.stages)
        step, tiles = b.variable(0), self.grid.number(self.grid.tiles)
        steps = self.grid.number(self.grid.steps)
        carried = [step, *ring.carried]
        with b.loop(b.block_index(), tiles, b.block_count(), carry=carried) as tile:
            row, column, batch = self.grid.place(tile)
            self.grid.open(batch)
            self._start_windows((row, column))
            loaders = self._loaders((row, column))
            with b.loop(0, steps, carry=carried) as k:
                self._arrive(step - lag, lag - 1)
                b.mbarrier_wait(self.empty, ring.turn ^ 1, ring.stage)
                if len(loaders) == 1:
                    with b.when(b.thread.eq(0)):
                        self._expect(ring.stage)
                        self._bulk(ring.stage, (row, column), k * DEPTH)
                self._fill(loaders, ring.stage, k)
                ring.advance()
                step += 1
        for left in reversed(range(lag)):
            self._arrive(step - (left + 1), left)

    def _loaders(self, outer: tuple[Var, Var]) -> list[TileLoader]:
        """Of the operands that threads copy."""
        schedule, index = self.schedule, self.values.index_dtype
        operands = (self.product.left, schedule.left), (self.product.right, schedule.right)
        sizes = schedule.rows, schedule.columns
        return [
            TileLoader(
                self.values, operand, memory, size, DEPTH, 4 * schedule.warp, first.to(index)
            )
            for (operand, bulk), memory, size, first in zip(operands, self.memories, sizes, outer)
            if bulk is None
        ]

    def _fill(self, loaders: list[TileLoader], stage: Var, k: Var) -> None:
        start = k.to(self.values.index_dtype) * DEPTH
        has_tail = exact_div(self.product.sizes[3], DEPTH) is None
        for loader in loaders:
            loader.fill(stage, start, has_tail=has_tail)()
        self.b.async_commit()

    def _arrive(self, step: Var, pending: int) -> None:
        """A warp's copies of a step are there, for products, too."""
        b = self.b
        b.async_wait(pending)
        b.proxy_fence()
        b.barrier("warp")
        with b.when(b.lane.eq(0) & (step >= 0)):
            b.mbarrier_arrive(self.full, step.max(0) % self.schedule.stages)

    def _start_windows(self, outer: tuple[Var, Var]) -> None:
        """Where the first window of a tile starts: in which image, and along its axes."""
        sides = self.schedule.left, self.schedule.right
        self.starts = {
            side: self._window(bulk, first)
            for side, (bulk, first) in enumerate(zip(sides, outer))
            if isinstance(bulk, WindowOperand)
        }

    def _window(self, bulk: WindowOperand, first: Var) -> list[Var]:
        image, *places = bulk.places
        axes = tuple(a for a in bulk.places if a is not None)
        at = self.values.opened(axes, first.to(self.values.index_dtype), 1)
        found = [self.b.index(0) if image is None else at[image][0].to(I32)]
        for place, axis in zip(places, bulk.axes):
            assert place is not None
            found.append(at[place][0].to(I32) * axis.windows.step + axis.windows.first)
        return found

    def _window_box(self, side: int, bulk: WindowOperand, stage: Var, inner: Var) -> None:
        """A stage of windows at one tap, and some channels of it."""
        operand = (self.product.left, self.product.right)[side]
        size = (self.schedule.rows, self.schedule.columns)[side]
        at = self.values.opened(operand.inner, inner.to(self.values.index_dtype), 1)
        index = {a: v[0].to(I32) for a, v in at.items()}
        *outer, last = self.starts[side]
        taps = [self.b.index(0) if a.tap is None else index[a.tap] * a.dilation for a in bulk.axes]
        self.b.bulk_copy(
            self.memories[side], stage * (size * DEPTH), self.maps[side], last,
            index[bulk.channel], self.full, stage, outer, taps,
        )  # fmt: skip

    def _boxes(
        self,
        side: int,
        operand: Operand,
        bulk: BulkOperand | WindowOperand,
        at: tuple[Var, Var, Var],
    ) -> None:
        """A stage of an operand: one box of its lines, or one for each 64 of its elements."""
        stage, outer, inner = at
        if isinstance(bulk, WindowOperand):
            self._window_box(side, bulk, stage, inner)
            return
        size = (self.schedule.rows, self.schedule.columns)[side]
        start, moved = stage * (size * DEPTH), self._moved(bulk)
        copy = lambda place, line, element: self.b.bulk_copy(
            self.memories[side], place, self.maps[side], line, element, self.full, stage
        )
        if operand.is_along_inner:
            copy(start, outer + moved, inner)
            return
        for number in range(size // LINE):
            copy(start + number * PANEL, inner + moved, outer + number * LINE)

    def _moved(self, bulk: BulkOperand) -> Var:
        """Lines before those of the tile's place in the batch."""
        total = self.b.index(0)
        for axis, step in bulk.batch:
            (index,) = self.values.position(axis)
            total = total + (index * self.values.dim(step)).to(I32)
        return total

    # -- products --------------------------------------------------------------------------------

    def _multiply(self) -> None:
        b, ring = self.b, _Ring(self.b, self.schedule.stages)
        tiles = self.grid.number(self.grid.tiles)
        self.stores.prepare()
        with b.loop(b.block_index(), tiles, b.block_count(), carry=ring.carried) as tile:
            row, column, batch = self.grid.place(tile)
            self.stores.open(batch)
            self.stores.finish(self._sums(ring), tile, row, column)

    @property
    def group(self) -> Var:
        """Of four warps: 0 has the first rows."""
        return self.stores.warp // 4

    def _sums(self, ring: _Ring) -> Var:
        b, schedule = self.b, self.schedule
        steps = self.grid.number(self.grid.steps)
        total = b.variable(b.tile_fill(TileType("c", 16, schedule.columns, F32)))
        with b.loop(0, steps, carry=[total, *ring.carried]) as k:
            b.mbarrier_wait(self.full, ring.turn, ring.stage)
            total.set(self._product(total, ring.stage))
            b.warpgroup_wait(schedule.flight)
            self._release(ring.before(schedule.flight), k >= schedule.flight)
            ring.advance()
        b.warpgroup_wait(0)
        for left in reversed(range(schedule.flight)):
            self._release(ring.before(left + 1), steps > left)
        return total

    def _product(self, total: Var, stage: Var) -> Var:
        left, right = self.memories
        rows, columns = self.schedule.rows, self.schedule.columns
        x = stage * (rows * DEPTH) + self.group * (GROUP_ROWS * DEPTH)
        sides = self.product.left, self.product.right
        panels = [0 if side.is_along_inner else PANEL for side in sides]
        return self.b.warpgroup_mul(
            total, left, x, right, stage * (columns * DEPTH), DEPTH,
            panels=(panels[0], panels[1]), is_async=True,
        )  # fmt: skip

    def _release(self, stage: Var, condition: Var) -> None:
        """One thread of each group: the products of all of its warps are done. A product begins
        when all four warps have asked for it (measured on an H200: a warp that comes 200,000 cycles
        later holds up the waits of the others), so each of them has seen the stage full by then,
        and none is left a phase behind."""
        is_first = (self.b.thread % (4 * self.schedule.warp)).eq(0)
        with self.b.when(condition & is_first):
            self.b.mbarrier_arrive(self.empty, stage)
