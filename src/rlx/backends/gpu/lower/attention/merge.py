"""Sums over parts of the keys, combined: of the warps of a block, of the blocks of a cluster, or by
a second launch.

    m = max mᵢ     fᵢ = exp(mᵢ - m)     o = Σ fᵢ · oᵢ     l = Σ fᵢ · lᵢ

Parts are in the order of their keys, and so is every sum. In a cluster, each block has some columns
of the result: the others push theirs into its shared memory, where an mbarrier counts the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlx.backends.gpu.lower.attention.frame import Frame, Row, row_count
from rlx.backends.gpu.lower.attention.results import PARTS, STATS, Results
from rlx.backends.gpu.lower.attention.softmax import Softmax, tree
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.attention import MERGE_CHUNK as CHUNK
from rlx.backends.gpu.schedule.attention import AttentionSchedule
from rlx.core.dtype import DType
from rlx.kernel.attention import Attention
from rlx.program.builder import Builder
from rlx.program.program import Program
from rlx.program.values import SharedRef, Var

if TYPE_CHECKING:
    from rlx.backends.gpu.lower.attention.tiles import TileKernel, WarpTile

BARRIER = "merged"


@dataclass(frozen=True, slots=True)
class Parts:
    """What warps or blocks left of some rows in shared memory: sums [part, row, column], and the
    greatest score and the sum of the weights [part, row, 2]."""

    sums: SharedRef
    stats: SharedRef
    count: int
    rows: int
    columns: int

    @classmethod
    def of(cls, b: Builder, name: str, dtype: DType, count: int, rows: int, columns: int) -> Parts:
        sums = b.shared(f"{name}_sums", dtype, count * rows * columns)
        return cls(sums, b.shared(f"{name}_stats", dtype, count * rows * 2), count, rows, columns)

    def place(self, part: Var | int, row: Var) -> Var:
        return row + part * self.rows

    def merged(self, softmax: Softmax, row: Var, column: Var) -> tuple[Var, Var, list[Var]]:
        """Of a row: the greatest score, the sum of all weights, and the sums of a chunk."""
        b = softmax.b
        stats = [self.stats.load(self.place(i, row) * 2, 2) for i in range(self.count)]
        most = tree([m for m, _ in stats], Var.max)
        base = softmax.base(most)
        factors = [softmax.weight(m, base) for m, _ in stats]
        total = tree([f * l for f, (_, l) in zip(factors, stats)], Var.__add__)
        chunks = [
            self.sums.load(self.place(i, row) * self.columns + column, CHUNK)
            for i in range(self.count)
        ]
        return most, total, [_weighed(b, factors, list(c)) for c in zip(*chunks)]


def _weighed(b: Builder, factors: Sequence[Var], values: Sequence[Var]) -> Var:
    total = factors[0] * values[0]
    for factor, value in zip(factors[1:], values[1:]):
        total = b.fma(factor, value, total)
    return total


def merge_warps(kernel: TileKernel, tile: WarpTile) -> None:
    """Warps that have the same rows: their sums through shared memory, then to the result, to the
    second launch, or to the blocks of the cluster."""
    b, schedule, form = kernel.b, kernel.schedule, kernel.form
    columns = schedule.padded_value_depth
    parts = Parts.of(b, "warp", form.sums, schedule.warps, 16, columns)
    places = b.tile_place(kernel.score_tile)
    for half, state in enumerate(tile.states):
        row = parts.place(b.warp, places[2 * half][0])
        total = b.warp_reduce("add", state.total, 4)
        with b.when((b.lane % 4).eq(0)):
            b.shared_store(parts.stats, row * 2, [state.most, total])
        for column, values in tile.elements(half):
            b.shared_store(parts.sums, row * columns + column, values)
    b.barrier()
    if schedule.is_cluster:
        _merge_blocks(kernel, parts)
        return

    def store(row: Var, chunk: Var) -> None:
        most, total, values = parts.merged(kernel.softmax, row, chunk * CHUNK)
        found = [(chunk * CHUNK, values)]
        kernel.results.store(kernel.row(row), most, total, found, chunk.eq(0), kernel.softmax)

    _each(b, 16, columns // CHUNK, store)


def _each(b: Builder, rows: int, chunks: int, do: Callable[[Var, Var], None]) -> None:
    """All chunks of all rows, by the threads of the block."""
    total = rows * chunks
    for first in range(0, total, b.made.block):
        number = b.thread + first
        if first + b.made.block <= total:
            do(number // chunks, number % chunks)
            continue
        with b.when(number < total):
            do(number // chunks, number % chunks)


# -- clusters -------------------------------------------------------------------------------------


def prepare_cluster(kernel: TileKernel) -> Parts:
    """The memory that the blocks of the cluster push into, and its mbarrier."""
    b, schedule, dtype = kernel.b, kernel.schedule, kernel.form.sums
    columns = schedule.owned_columns
    parts = Parts.of(b, "block", dtype, schedule.splits, 16, columns)
    b.mbarrier(BARRIER)
    with b.when(b.thread.eq(0)):
        b.mbarrier_init(BARRIER, 1)
    b.barrier("cluster")
    return parts


def _merge_blocks(kernel: TileKernel, warps: Parts) -> None:
    b, schedule, softmax = kernel.b, kernel.schedule, kernel.softmax
    parts, each = kernel.cluster_parts, schedule.owned_columns // CHUNK
    assert parts is not None
    last = schedule.padded_value_depth // CHUNK - 1
    size = schedule.splits * 16 * (schedule.owned_columns + 2) * kernel.form.sums.itemsize
    with b.when(b.thread.eq(0)):
        b.mbarrier_arrive(BARRIER, expected_bytes=size)

    def push(row: Var, chunk: Var) -> None:
        """Blocks may have more chunks than there are columns: those are never read."""
        most, total, values = warps.merged(softmax, row, chunk.min(last) * CHUNK)
        owner, own = chunk // each, chunk % each
        at = parts.place(kernel.frame.split, row)
        b.push(parts.sums, at * parts.columns + own * CHUNK, values, owner, BARRIER)
        with b.when(own.eq(0)):
            b.push(parts.stats, at * 2, [most, total], owner, BARRIER)

    _each(b, 16, each * schedule.splits, push)
    b.mbarrier_wait(BARRIER, 0)

    def store(row: Var, chunk: Var) -> None:
        most, total, values = parts.merged(softmax, row, chunk * CHUNK)
        column = (b.rank * each + chunk) * CHUNK
        kernel.results.store(kernel.row(row), most, total, [(column, values)], chunk.eq(0), softmax)

    _each(b, 16, each, store)


# -- the second launch ----------------------------------------------------------------------------


def merge_program(
    form: Attention, schedule: AttentionSchedule, machine: GpuMachine, name: str
) -> Program:
    """A block for each row of each kv head."""
    chunks = -(-schedule.value_depth // CHUNK)
    block = -(-chunks // machine.warp) * machine.warp
    grid = (row_count(form) * form.batch * form.kv_heads,)
    b = Builder(name, block=block, grid=grid, warp=machine.warp)
    _Merge(form, schedule, machine, b).build()
    return b.program()


class _Merge:
    """The program of the second launch."""

    def __init__(
        self, form: Attention, schedule: AttentionSchedule, machine: GpuMachine, b: Builder
    ) -> None:
        self.b, self.form, self.schedule, self.machine = b, form, schedule, machine
        self.parts, self.stats = b.input(PARTS, form.sums), b.input(STATS, form.sums)
        self.frame = Frame(b, form, 1, index_bits=machine.index_bits)
        self.results = Results(self.frame, has_parts=False)
        self.softmax = Softmax(self.frame, is_scaled=schedule.form == "fma")
        self.factors = b.shared("factors", form.sums, schedule.splits + 1)

    def build(self) -> None:
        b, frame, form = self.b, self.frame, self.form
        frame.begin(self.machine.has_dependent_launch)
        row = frame.row(frame.first)
        unit = (frame.batch * form.kv_heads + frame.kv_head) * self.schedule.splits
        rows = frame.number(row_count(form), frame.index)
        self.first = unit.to(frame.index) * rows + frame.first.to(frame.index)
        self.step = rows
        with b.when(b.warp.eq(0)):
            self._factors()
        b.barrier()
        self._store(row)

    def _factors(self) -> None:
        """Of each part, by one warp, a lane a part; then the sum of all weights."""
        b, splits, warp = self.b, self.schedule.splits, self.machine.warp
        stats: list[tuple[Var, Var, Var]] = []
        for first in range(0, splits, warp):
            part = b.lane + first
            inside = part < splits
            at = (self.first + part.to(self.frame.index) * self.step) * 2
            most, total = b.load(self.stats, at, 2, inside)
            stats.append((part, most.where(inside, -float("inf")), total))
        most = b.warp_reduce("max", tree([m for _, m, _ in stats], Var.max))
        base = self.softmax.base(most)
        sums: list[Var] = []
        for part, own, total in stats:
            factor = self.softmax.weight(own, base)
            sums.append(factor * total)
            with b.when(part < splits):
                self.factors[part] = factor
        whole = b.warp_reduce("add", tree(sums, Var.__add__))
        with b.when(b.lane.eq(0)):
            self.factors[splits] = whole

    def _store(self, row: Row) -> None:
        b, depth = self.b, self.schedule.value_depth
        column = b.thread * CHUNK
        width = CHUNK if depth % CHUNK == 0 else 1
        sums = [b.const(0.0, self.form.sums)] * CHUNK
        for part in range(self.schedule.splits):
            factor = self.factors[part]
            at = (self.first + self.step * part) * depth + column.to(self.frame.index)
            loaded: list[Var] = []
            for i in range(0, CHUNK, width):
                inside = column + i < depth
                loaded += b.load(self.parts, at + i, width, inside)
            sums = [b.fma(factor, v, s) for v, s in zip(loaded, sums)]
        total = self.factors[self.schedule.splits]
        values = [(column, sums)]
        self.results.store(row, total, total, values, b.thread.eq(0), self.softmax)
