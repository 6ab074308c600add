"""Emitter of loop kernels: LLVM text with explicit vectors. Pure: kernel, schedule and instruction
set in, text out.

The method: open one loop per axis; at each level compute every value that is invariant in deeper
axes, reductions included; where all axes of a store are open, store. All values are vectors; one
that does not vary along the lanes is uniform.

    i32 name(ptr buffers, ptr sizes, i64 start, i64 stop, ptr scratch, ptr poll)

`buffers` holds the operands' and then the results' addresses; `sizes` the values of
`sizes_of(kernel)`; `scratch` is `scratch_bytes(...)` private to this call, to stage row values in;
`poll` points to a function that says whether to continue (`Code.poll`).
The range [start, stop) of the parallel axis is computed; what does not vary along that axis belongs
to the task with its first point, so at least [0, 1) must run. The result is 0, or n if the n-th
gathering load has an index out of range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from rlx.backends.cpu.codegen.loop.column_reductions import ColumnReductions
from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.codegen.math.storage_types import HALF_PRECISION
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.builder import Bound
from rlx.backends.cpu.llvm.function import Function, head_of
from rlx.backends.cpu.schedule.index_set_splitting import Piece
from rlx.core.dtype import DType
from rlx.kernel.collapse import collapsed
from rlx.kernel.decompose import decomposed
from rlx.kernel.expr import (
    Apply,
    Axis,
    Expr,
    Kernel,
    Store,
)
from rlx.kernel.reciprocal import by_reciprocals
from rlx.kernel.schedule import Schedule, check
from rlx.kernel.split_complex import SPLIT, has_complex, split, touches_complex

BAND_ROWS = 256
"""Rows of a band of tiles: their cache lines stay resident until they are full."""


def legal(kernel: Kernel) -> Kernel:
    """The kernel in ops and dtypes that the CPU has; schedules are chosen for this one."""
    kernel = collapsed(kernel)
    if has_complex(kernel):
        kernel = split(decomposed(kernel, _is_native_or_split))
    return by_reciprocals(decomposed(kernel, lambda node: arith.is_native(node.op.name)))


def _is_native_or_split(node: Apply) -> bool:
    return not touches_complex(node) or node.op.name in SPLIT


def emit(kernel: Kernel, schedule: Schedule, isa: Isa, name: str = "") -> Function:
    """The function of a legal kernel."""
    check(schedule, kernel)
    return Emitter(kernel, schedule, isa).function(name or kernel.name)


class Emitter(ColumnReductions):
    """One function."""

    def function(self, name: str) -> Function:
        code = self.code
        if self.schedule.streaming:
            self.streamed()
            self.schedule = replace(self.schedule, unroll=1)
        for stores in self.nests():
            self.nest(stores)
        code.do("ret i32 0")
        code.lines += self.failures
        code.entry[:0] = self.arguments()
        return Function(name, code.function(head_of(name)), tuple(code.shared.items()))

    def streamed(self) -> None:
        """The nests with non-temporal stores, if buffers and range are aligned to cache lines."""
        code = self.code
        places = [f"%y{i}" for i in range(len(self.kernel.results))]
        bits = [code.let(f"ptrtoint ptr {p} to i64") for p in places]
        together = "%start" if self.schedule.parallel is self.schedule.vector else "0"
        for number in bits:
            together = code.let(f"or i64 {together}, {number}")
        low = code.let(f"and i64 {together}, 63")
        is_aligned = code.let(f"icmp eq i64 {low}, 0")
        yes, no = code.label("yes"), code.label("no")
        code.do(f"br i1 {is_aligned}, label %{yes}, label %{no}")
        code.lines.append(f"{yes}:")
        self.is_streaming = True
        for stores in self.nests():
            self.nest(stores)
        self.is_streaming = False
        code.do("fence seq_cst", "ret i32 0")
        code.lines.append(f"{no}:")

    def arguments(self) -> Iterator[str]:
        """The entry block: loads of addresses and sizes."""
        names = [f"%x{i}" for i in range(len(self.kernel.operands))]
        names += [f"%y{i}" for i in range(len(self.kernel.results))]
        for i, name in enumerate(names):
            yield f"  %b{i} = getelementptr ptr, ptr %buffers, i64 {i}"
            yield f"  {name} = load ptr, ptr %b{i}"
        for i, name in enumerate(self.sizes.values()):
            yield f"  %n{i} = getelementptr i64, ptr %sizes, i64 {i}"
            yield f"  {name} = load i64, ptr %n{i}"

    def nests(self) -> list[list[Store]]:
        """Stores that share loops: each needs the outermost few. Others have loops of their own."""
        order = self.schedule.order
        shared: list[Store] = []
        alone: list[list[Store]] = []
        for store in self.kernel.stores:
            if self.kernel.results[store.result].num_elements == 0:
                continue
            is_outer = frozenset(order[: len(store.at.axes)]) == store.at.axes
            (shared.append(store) if is_outer and store.at.axes else alone.append([store]))
        return [shared, *alone] if shared else alone

    def nest(self, stores: list[Store]) -> None:
        needed = frozenset[Axis]().union(*(s.at.axes for s in stores))
        axes = tuple(a for a in self.schedule.order if a in needed)
        is_split = self.schedule.parallel in needed
        with nullcontext() if is_split else self.in_first_part(), self.scope():
            self.level(axes, stores)

    def in_first_part(self) -> AbstractContextManager[None]:
        code = self.code
        low = code.let("icmp sle i64 %start, 0")
        high = code.let("icmp sgt i64 %stop, 0")
        return code.when(code.let(f"and i1 {low}, {high}"))

    def level(self, axes: tuple[Axis, ...], stores: Sequence[Store]) -> None:
        """Compute what is invariant here, do the stores whose axes are open, open the next axis."""
        self.reduce_ready([s.value for s in stores])
        here = [s for s in stores if s.at.axes <= self.at.index.keys()]
        self.store_all(here)
        deeper = [s for s in stores if s not in here]
        if not axes or not deeper:
            return
        self.hoist(s.value for s in deeper)
        is_shared = axes[0] is self.schedule.parallel
        if axes[0] is self.schedule.tile:
            self.tiles(axes[0], axes[1], deeper, is_shared)
            return
        is_lane = axes[0] is self.schedule.vector
        if is_lane and self.schedule.row_accumulators:
            self.row_sweep(axes[0], deeper, lambda: self.level((), deeper), is_shared)
            return
        self.sweep(axes[0], lambda: self.level(axes[1:], deeper), is_lane, is_shared)

    def tiles(self, tile: Axis, lane: Axis, stores: Sequence[Store], is_shared: bool) -> None:
        """Whole square tiles of both axes, then the columns and the rows that are left."""
        for rows in self.cuts.pieces(tile):
            first, last = self.ends(rows, is_shared)
            end = self.whole(first, last, self.lanes)
            with self.scope(decided={**self.at.decided, **rows.decided}):
                for columns in self.cuts.pieces(lane):
                    decided = {**self.at.decided, **columns.decided}
                    low = columns.low[0] - columns.low[1]
                    with self.scope(decided=decided, piece_low=low):
                        polled = 0 if is_shared else self.iterations_per_poll(tile, BAND_ROWS)
                        self.tiled(tile, lane, (first, end), columns, stores, polled)
                self.steps_of(tile, end, last, lambda: self.level((lane,), stores))

    def tiled(
        self,
        tile: Axis,
        lane: Axis,
        rows: tuple[Bound, Bound],
        columns: Piece,
        stores: Sequence[Store],
        polled: int,
    ) -> None:
        """Bands of rows; in a band column by column, so that cache lines are used up."""
        low, high = self.ends(columns, is_shared=False)
        end = self.whole(low, high, self.lanes)
        code = self.code
        with code.count(rows[0], rows[1], BAND_ROWS, polled) as band:
            stop = code.least(code.i64("add", band, BAND_ROWS), rows[1])
            with code.count(low, end, self.lanes) as j, code.count(band, stop, self.lanes) as i:
                index = {**self.at.index, tile: i, lane: j}
                with self.scope(index=index, lane=lane, tile=tile, copies=self.lanes):
                    self.store_all(stores)
        rest = lambda: self.blocks(lane, end, high, lambda: self.level((), stores))
        if end != high:
            self.steps_of(tile, rows[0], rows[1], rest)

    def store_all(self, stores: Sequence[Store]) -> None:
        """All values first, then all stores: an output may alias an input."""
        count = {s: self.at.copies if self.spread in s.at.axes else 1 for s in stores}
        pairs = [(s, copy) for s in stores for copy in range(count[s])]
        values = [self.value(self.unrounded(s.value), copy) for s, copy in pairs]
        for (store, copy), value in zip(pairs, values):
            self.store(store, copy, value)

    def unrounded(self, value: Expr) -> Expr:
        """A cast to half precision just before a store is done by the store."""
        if isinstance(value, Apply) and value.op.name == "cast" and value.dtype in HALF_PRECISION:
            (given,) = value.args
            return given if given.dtype is DType.F32 else value
        return value
