"""Updates of arrays kept from call to call: append copies rows to a position, assign copies all.

A state is written in place. Of any other array the update is a copy with the rows put into it.
Units partition the axes beside entries and rows, so that no two units write one element; rows are
written in the order of their entries.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.library.strided_copy import (
    Blocks,
    BufferView,
    as_parts,
    at,
    copy_dtype,
    copy_task,
    load_index,
    load_integer,
    merged,
    outer_axes,
    row_lanes,
    step,
    vector_loop,
)
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Buffer, Schedule

NS_PER_ROW = 4
ROWS_PER_POLL = 1 << 12
ROWS, AT, SLOTS = 1, 2, 3
"""Operands."""
FAILURES = ("rows do not fit at their position", "a slot is out of range")


def make_assign(given: Step, name: str) -> Schedule[Task]:
    """assign: the value copied to the state."""
    dtype = given.node.shape.dtype
    value = BufferView(Buffer("operand", 1), given.operands[1], dtype)
    state = BufferView(Buffer("result", 0), given.results[0], dtype)
    return Schedule((copy_task(value, state, given.machine, name),))


def make_append(given: Step, name: str) -> Schedule[Task]:
    """append: rows copied to their position; first all of x, where it is no state."""
    if given.written is not None:
        return Schedule((_rows_task(given, name),))
    dtype = given.node.shape.dtype
    x = BufferView(Buffer("operand", 0), given.operands[0], dtype)
    y = BufferView(Buffer("result", 0), given.results[0], dtype)
    return Schedule((copy_task(x, y, given.machine, f"{name}.copy"), _rows_task(given, name)))


def _rows_task(given: Step, name: str) -> Task:
    rows = _Rows.of(given)
    units, count = rows.units.count, product(given.operands[ROWS].dims)
    ns = given.machine.worker_ns(0, 2 * count * given.node.shape.dtype.itemsize)
    grain = given.machine.units_per_task(units, ns + rows.count * NS_PER_ROW)
    read = tuple(Buffer("operand", i) for i in range(ROWS, len(given.operands)))
    buffers = (*read, Buffer("result", 0))
    return Task(TaskCode(name, rows.source), buffers, units, grain, failures=FAILURES)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of an append. Buffers: rows, positions, perhaps slots, the state."""

    given: Step
    dtype: DType
    """What elements are copied as."""
    parts: int
    free: tuple[Layout, Layout]
    """Rows and state on the axes that neither entries nor rows are along."""

    @classmethod
    def of(cls, given: Step) -> _Rows:
        dtype, parts = copy_dtype(given.node.shape.dtype)
        rows, state = given.operands[ROWS], given.results[0]
        skipped = {given.node.attrs["axis"], *([0] if _is_ragged(given) else [])}
        axes = [a for a in range(len(rows.dims)) if a not in skipped]
        source, target = (
            as_parts(
                Layout(tuple(rows.dims[a] for a in axes), tuple(x.strides[a] for a in axes),
                       x.offset),
                parts,
            )
            for x in (rows, state)
        )  # fmt: skip
        source, target = merged([source, target])
        return cls(given, dtype, parts, (source, target))

    @property
    def units(self) -> Blocks:
        return Blocks(self.free[0].dims)

    @property
    def count(self) -> DimLike:
        """Rows of one entry."""
        return self.given.operands[ROWS].dims[self.given.node.attrs["axis"]]

    def source(self, name: str) -> Source:
        w = Writer(self.given.isa, row_lanes(self.given.isa, self.dtype, self.free))
        with self.units.each(w) as (outer, low, high):
            bases = [w.place(outer_axes(v), outer) for v in self.free]
            if not _is_ragged(self.given):
                self._entry(w, 0, (bases[0], bases[1]), (low, high))
            else:
                with w.code.count(0, w.size(self.given.operands[ROWS].dims[0]), 1) as entry:
                    places = self._entry_places(w, entry)
                    both = at(w, bases[0], places[0]), at(w, bases[1], places[1])
                    self._entry(w, entry, both, (low, high))
        return w.source(name)

    def _entry_places(self, w: Writer, entry: Bound) -> tuple[Bound, Bound]:
        """Where an entry's rows begin, and those of its slot in the state."""
        rows, state, node = self.given.operands[ROWS], self.given.results[0], self.given.node
        slot = entry
        if len(self.given.operands) > SLOTS:
            layout = self.given.operands[SLOTS]
            size = w.size(node.shape.dims[0])
            dtype = node.inputs[SLOTS].shape.dtype
            slot = load_integer(w, SLOTS - ROWS, w.place(layout, [entry]), dtype)
            w.fail(w.code.compare("ge", slot, size, DType.U64), 2)
        return (
            step(w, entry, rows.strides[0] * self.parts),
            step(w, slot, state.strides[0] * self.parts),
        )

    def _entry(
        self, w: Writer, entry: Bound, bases: tuple[Bound, Bound], span: tuple[Bound, Bound]
    ) -> None:
        """All rows of one entry, in a part of the free axes."""
        given, axis = self.given, self.given.node.attrs["axis"]
        rows, state, positions = given.operands[ROWS], given.results[0], given.operands[AT]
        count = w.size(self.count)
        room = w.code.i64("sub", w.size(given.node.shape.dims[axis]), count)
        where = w.place(positions, [entry] if _is_ragged(given) else [])
        dtype = given.node.inputs[AT].shape.dtype
        start = load_index(w, AT - ROWS, where, dtype, w.code.i64("add", room, 1))
        with w.code.count(0, count, 1, ROWS_PER_POLL) as row:
            source = at(w, bases[0], step(w, row, rows.strides[axis] * self.parts))
            position = w.code.i64("add", start, row)
            target = at(w, bases[1], step(w, position, state.strides[axis] * self.parts))

            def copied(i: Bound, mask: Vec | None) -> None:
                x, y = (
                    at(w, base, step(w, i, v.strides[-1]))
                    for base, v in zip((source, target), self.free)
                )
                value = w.load(0, x, self.dtype, mask=mask)
                w.store(value, len(given.operands) - ROWS, y, self.dtype, mask=mask)

            vector_loop(w, span[0], span[1], copied)


def _is_ragged(given: Step) -> bool:
    """Has each entry of the first axis a position of its own?"""
    return len(given.operands[AT].dims) == 1
