"""Gather and scatter along an axis: take_along_axis, scatter, scatter_add.

Units partition the axes that indices do not address, so no two units write one element. Updates of
one element are applied in the order of their indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.library.strided_copy import (
    Blocks,
    BufferView,
    as_parts,
    at,
    axis_slice,
    copy_dtype,
    copy_task,
    load_index,
    load_value,
    loop_nest,
    merged,
    multiply,
    outer_axes,
    per_part,
    real_dtype,
    row_lanes,
    step,
    store_value,
    vector_loop,
)
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.core.extent import ceiling
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Buffer, Schedule, buffers

NS_PER_INDEX = 2
ROWS_PER_POLL = 1 << 13
"""Rows of updates between two polls."""
REDUCTIONS = {
    "add": per_part(lambda x, y: x + y),
    "mul": multiply,
    "max": per_part(arith.maximum),
    "min": per_part(arith.minimum),
}


def make_take_along_axis(given: Step, name: str) -> Schedule[Task]:
    """take_along_axis: y[…, i, …] = x[…, index[…, i, …], …]."""
    axis, indices = given.node.attrs["axis"], given.operands[1]
    dtype, parts = copy_dtype(given.node.shape.dtype)
    x = given.operands[0]
    stride = x.strides[axis] * parts
    still = Layout(indices.dims, (*x.strides[:axis], 0, *x.strides[axis + 1 :]), x.offset)
    row = merged(
        [as_parts(still, parts), as_parts(indices, parts, 0), as_parts(given.results[0], parts)]
    )
    reading = _Gather(given, dtype, stride, x.dims[axis], row)
    units = reading.units.count
    grain = given.machine.units_per_task(units, product(row[0].dims) * NS_PER_INDEX)
    return Schedule((Task(TaskCode(name, reading.source), buffers(2, 1), units, grain),))


@dataclass(frozen=True, slots=True)
class _Gather:
    """Merged layouts of x without its axis, the indices, and the result."""

    given: Step
    dtype: DType
    stride: DimLike
    """Stride of the axis in x."""
    size: DimLike
    row: Sequence[Layout]

    @property
    def units(self) -> Blocks:
        return Blocks(self.row[0].dims)

    def source(self, name: str) -> Source:
        w = self.per_row() if self.row[1].strides[-1] == 0 else self.per_element()
        return w.source(name)

    def index(self, w: Writer, place: Bound) -> Bound:
        kind = self.given.node.inputs[1].shape.dtype
        return step(w, load_index(w, 1, place, kind, w.size(self.size)), self.stride)

    def per_element(self) -> Writer:
        w = Writer(self.given.isa)
        with self.units.each(w) as (outer, low, high):
            bases = [w.place(outer_axes(v), outer) for v in self.row]
            with w.code.count(low, high, 1) as i:
                x, where, y = (at(w, b, step(w, i, v.strides[-1])) for b, v in zip(bases, self.row))
                value = w.load(0, at(w, x, self.index(w, where)), self.dtype)
                w.store(value, 2, y, self.dtype)
        return w

    def per_row(self) -> Writer:
        """Where one index addresses a row."""
        x, where, y = self.row
        w = Writer(self.given.isa, row_lanes(self.given.isa, self.dtype, (x, y)))
        with self.units.each(w) as (outer, low, high):
            base = self.index(w, w.place(outer_axes(where), outer))
            start, end = (w.place(outer_axes(v), outer) for v in (x, y))

            def body(i: Bound, mask: Vec | None) -> None:
                place = at(w, start, base, step(w, i, x.strides[-1]))
                value = w.load(0, place, self.dtype, mask=mask)
                w.store(value, 2, at(w, end, step(w, i, y.strides[-1])), self.dtype, mask=mask)

            vector_loop(w, low, high, body)
        return w


# -- scatter --------------------------------------------------------------------------------------


def make_scatter(given: Step, name: str) -> Schedule[Task]:
    """scatter and scatter_add: x copied, then rows stored into it or combined with it.

    Half-precision sums and products are f32 until all updates are applied, and then rounded once.
    """
    node = given.node
    reduction = node.attrs.get("reduction", "add")
    dtype, result = node.shape.dtype, Buffer("result", 0)
    x = BufferView(Buffer("operand", 0), given.operands[0], dtype)
    y = BufferView(result, given.results[0], dtype)
    if dtype.compute is dtype or reduction not in ("add", "mul"):
        copy = copy_task(x, y, given.machine, f"{name}.copy")
        return Schedule((copy, _updates(given, y, reduction, name)))
    wide = BufferView(Buffer("temp", 0), Layout.contiguous(y.layout.dims), dtype.compute)
    tasks = (
        copy_task(x, wide, given.machine, f"{name}.copy"),
        _updates(given, wide, reduction, name),
        copy_task(wide, y, given.machine, f"{name}.round"),
    )
    return Schedule(tasks, (ceiling(product(y.layout.dims)) * dtype.compute.itemsize,))


def _updates(given: Step, to: BufferView, reduction: str, name: str) -> Task:
    writing = _Scatter.of(given, to, reduction)
    units, node = writing.units.count, given.node
    traffic = 3 * node.inputs[2].shape.size_bytes
    count = node.inputs[1].shape.num_elements
    ns = given.machine.worker_ns(0, traffic) + units * count * NS_PER_INDEX
    given_to = (Buffer("operand", 1), Buffer("operand", 2), to.buffer)
    grain = given.machine.units_per_task(units, ns)
    return Task(TaskCode(name, writing.source), given_to, units, grain)


@dataclass(frozen=True, slots=True)
class _Scatter:
    """Rows of updates, one per index. Buffers: indices 0, updates 1, target 2."""

    given: Step
    reduction: str
    kinds: tuple[DType, DType]
    """The real dtypes of updates and of the target."""
    parts: int
    """Real numbers of an element: 2 where complex ones are multiplied."""
    free_axes: Sequence[Layout]
    """Updates and target on the axes that indices do not address."""
    index_axes: Sequence[Layout]
    """Indices and updates on the axes of the indices."""
    stride: DimLike

    @classmethod
    def of(cls, given: Step, to: BufferView, reduction: str) -> _Scatter:
        axis = given.node.attrs["axis"]
        indices, updates = given.operands[1:]
        last, dtype = axis + len(indices.dims), given.node.shape.dtype
        numbers, parts = real_dtype(dtype) if reduction in REDUCTIONS else copy_dtype(dtype)
        split = 1 if reduction == "mul" else parts
        target = (
            axis_slice(to.layout, 0, axis),
            axis_slice(to.layout, axis + 1, len(to.layout.dims)),
        )
        source = axis_slice(updates, 0, axis), axis_slice(updates, last, len(updates.dims))
        free_axes = [
            as_parts(_concat_axes(*parted, whole.offset), split)
            for parted, whole in ((source, updates), (target, to.layout))
        ]
        within = axis_slice(updates, axis, last)
        scaled = Layout(within.dims, tuple(s * split for s in within.strides))
        kinds = (numbers, to.dtype if to.dtype is not dtype else numbers)
        index_axes, stride = merged([indices, scaled]), to.layout.strides[axis] * split
        return cls(given, reduction, kinds, parts // split, merged(free_axes), index_axes, stride)

    @property
    def units(self) -> Blocks:
        return Blocks(self.free_axes[0].dims)

    def source(self, name: str) -> Source:
        given, node = self.given, self.given.node
        size = node.shape.dims[node.attrs["axis"]]
        lanes = 1 if self.parts > 1 else row_lanes(given.isa, self.kinds[0], self.free_axes)
        w = Writer(given.isa, lanes)
        with self.units.each(w) as (outer, low, high):
            source, target = (w.place(outer_axes(v), outer) for v in self.free_axes)
            with loop_nest(w, self.index_axes[0].dims, ROWS_PER_POLL) as positions:
                where, here = (w.place(v, positions) for v in self.index_axes)
                chosen = load_index(w, 0, where, node.inputs[1].shape.dtype, w.size(size))
                places = at(w, source, here), at(w, target, step(w, chosen, self.stride))
                vector_loop(w, low, high, lambda i, mask: self.apply_updates(w, places, i, mask))
        return w.source(name)

    def apply_updates(self, w: Writer, bases: Sequence[Bound], i: Bound, mask: Vec | None) -> None:
        """Apply the updates from `i` on to their target."""
        source, target = (
            at(w, b, step(w, i, v.strides[-1])) for b, v in zip(bases, self.free_axes)
        )
        value = load_value(w, 1, source, self.kinds[0], self.parts, mask)
        if self.reduction in REDUCTIONS:
            old = load_value(w, 2, target, self.kinds[1], self.parts, mask)
            value = REDUCTIONS[self.reduction](old, value)
        store_value(w, value, 2, target, self.kinds[1], mask)


def _concat_axes(front: Layout, back: Layout, offset: DimLike) -> Layout:
    return Layout(front.dims + back.dims, front.strides + back.strides, offset)
