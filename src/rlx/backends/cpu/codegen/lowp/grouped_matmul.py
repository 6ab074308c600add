"""Grouped GEMM with unquantised expert weights: vectorised over the columns of a weight.

Rows of one expert are multiplied together, as many as there are registers for; each sum is taken
along K in order, whatever the other rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.codegen.lowp.expert_rows import ExpertRuns
from rlx.backends.cpu.library.resize.coefficients import Accumulator
from rlx.backends.cpu.library.strided_copy import (
    Blocks,
    at,
    dim_lanes,
    load_integer,
    masked_lane_stride,
    step,
    unrolled_vector_loop,
)
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task, TaskKind
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.kernel.program.schedule import Buffer, Schedule

ROWS = 48
"""Rows of a run: together they read an expert's columns once from memory, then from cache."""
UNROLL = 4
"""Vectors of columns that are summed at a time."""
TILES, SMALL_TILES = (6, 2, 1), (2, 1)
"""Rows of register tiles, with 32 registers, or 16."""
X, W, Y, ORDER, RUNS = range(5)


@dataclass(frozen=True, slots=True)
class _Product:
    given: Step
    groups: ExpertRuns
    lanes: int

    @classmethod
    def of(cls, given: Step) -> _Product:
        dtype, n = given.node.shape.dtype, given.results[0].dims[1]
        return cls(given, ExpertRuns(given, ROWS), dim_lanes(given.isa, dtype, n))

    @property
    def dtype(self) -> DType:
        return self.given.node.shape.dtype

    @property
    def k(self) -> DimLike:
        return self.given.operands[0].dims[1]

    @property
    def units(self) -> Blocks:
        n = self.given.results[0].dims[1]
        return Blocks((self.groups.runs, n), UNROLL * self.lanes)

    def task(self, name: str) -> Task:
        m, n = self.given.results[0].dims
        weights = self.groups.runs * n * self.k
        ns = self.given.machine.worker_ns(2 * m * n * self.k, weights * self.dtype.itemsize)
        units = self.units.count
        grain = self.given.machine.units_per_task(units, ns)
        buffers = (Buffer("operand", 0), Buffer("operand", 1), Buffer("result", 0))
        return Task(
            TaskCode(name, self.source), (*buffers, *self.groups.buffers), units, grain,
            summary="grouped GEMM, vectorised over columns", kind=TaskKind.GEMM,
        )  # fmt: skip

    def source(self, name: str) -> Source:
        w = Writer(self.given.isa, self.lanes)
        with self.units.each(w) as ((number,), low, high):
            expert, first, count = self.groups.load_run(w, RUNS, number)
            self.unit(w, expert, first, count, (low, high))
        return Source(w.function(name), w.sizes)

    def unit(
        self, w: Writer, expert: Bound, first: Bound, count: Bound, columns: tuple[Bound, Bound]
    ) -> None:
        """The rows of a run in tiles: as many of the largest as fit, and on."""
        code, begun = w.code, first
        end = at(w, first, count)
        for tile in TILES if self.given.isa.registers >= 32 else SMALL_TILES:
            left = code.i64("sub", end, begun)
            stop = at(w, begun, code.i64("sub", left, code.integer("rem", left, tile, DType.U64)))
            with code.count(begun, stop, tile) as row:
                self.tile(w, expert, [at(w, row, i) for i in range(tile)], columns)
            begun = stop

    def tile(
        self, w: Writer, expert: Bound, rows: list[Bound], columns: tuple[Bound, Bound]
    ) -> None:
        x, y = self.given.operands[0], self.given.results[0]
        own = [load_integer(w, ORDER, row, DType.I64) for row in rows]
        froms, tos = ([w.place(v, [row, 0]) for row in own] for v in (x, y))

        def body(c: Bound, count: int, mask: Vec | None) -> None:
            sums = self.sums(w, expert, froms, c, count, mask)
            for to, line in zip(tos, sums):
                for v, total in enumerate(line):
                    place = at(w, to, step(w, at(w, c, v * self.lanes), y.strides[1]))
                    w.store(total.value, Y, place, self.dtype, w.size(y.strides[1]), mask)

        unrolled_vector_loop(w, *columns, UNROLL, body)

    def sums(
        self, w: Writer, expert: Bound, froms: list[Bound], c: Bound, count: int, mask: Vec | None
    ) -> list[list[Accumulator]]:
        """The sums of each row for some vectors of columns."""
        code, wide, weights = w.code, self.dtype.compute, self.given.operands[1]
        made = [[Accumulator(code, wide) for _ in range(count)] for _ in froms]
        stride, across = self.given.operands[0].strides[1], weights.strides[2]
        base = w.place(weights, [expert, 0, c])
        with code.count(0, w.size(self.k), 1) as k:
            start = at(w, base, step(w, k, weights.strides[1]))
            places = [at(w, start, step(w, v * self.lanes, across)) for v in range(count)]
            by = masked_lane_stride(w, across)
            line = [w.load(W, p, self.dtype, by, mask) for p in places]
            for row, place in zip(made, froms):
                value = w.load(X, at(w, place, step(w, k, stride)), self.dtype, 0)
                for total, weight in zip(row, line):
                    total.add(value, weight)
        return made


def make_grouped_matmul(given: Step, name: str) -> Schedule[Task]:
    made = _Product.of(given)
    return Schedule((made.groups.task(f"{name}.rows"), made.task(name)), made.groups.temps)
