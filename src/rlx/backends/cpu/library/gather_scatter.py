"""Reading and writing at indices that are data.

One index decides where a row goes, so units of work never share a place: they differ in what
does not depend on the indices. Updates of one place come in the order of their indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.library.strided_copy import (
    Blocks,
    Place,
    at,
    computed_as,
    copy_task,
    each,
    index,
    load_value,
    loops,
    merged,
    moved_as,
    part,
    part_but_last,
    spread,
    step,
    store_value,
    times,
    vectors,
    width,
)
from rlx.backends.cpu.llvm.builder import Bound, Vec
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.program.task import (
    Buffer,
    KernelSequence,
    Step,
    Task,
    buffers,
    estimated_ns,
    grain_of,
)
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.core.extent import ceiling
from rlx.core.layout import Layout

NS_PER_INDEX = 2
ROWS_POLLED = 1 << 13
"""Rows of updates between two polls."""
FOLDS = {
    "add": each(lambda x, y: x + y),
    "mul": times,
    "max": each(arith.maximum),
    "min": each(arith.minimum),
}


def make_take_along_axis(given: Step, name: str) -> KernelSequence:
    """take_along_axis: what is read is where the index says on the axis, else in the same place."""
    axis, indices = given.node.attrs["axis"], given.operands[1]
    dtype, parts = moved_as(given.node.shape.dtype)
    x = given.operands[0]
    stride = x.strides[axis] * parts
    still = Layout(indices.dims, (*x.strides[:axis], 0, *x.strides[axis + 1 :]), x.offset)
    row = merged([spread(still, parts), spread(indices, parts, 0), spread(given.results[0], parts)])
    reading = _Reading(given, dtype, stride, x.dims[axis], row)
    w = reading.row_by_row() if row[1].strides[-1] == 0 else reading.one_by_one()
    units = reading.units.count
    grain = grain_of(units, product(row[0].dims) * NS_PER_INDEX)
    return KernelSequence((Task(w.function(name), buffers(2, 1), w.sizes, units, grain),))


@dataclass(frozen=True, slots=True)
class _Reading:
    """Walks over x without its axis, the indices, and the result."""

    given: Step
    dtype: DType
    stride: DimLike
    """From one entry of the axis to the next."""
    size: DimLike
    row: Sequence[Layout]

    @property
    def units(self) -> Blocks:
        return Blocks(self.row[0].dims)

    def index(self, w: Writer, place: Bound) -> Bound:
        kind = self.given.node.inputs[1].shape.dtype
        return step(w, index(w, 1, place, kind, w.size(self.size)), self.stride)

    def one_by_one(self) -> Writer:
        w = Writer(self.given.isa)
        with self.units.each(w) as (outer, low, high):
            bases = [w.place(part_but_last(v), outer) for v in self.row]
            with w.code.count(low, high, 1) as i:
                x, where, y = (at(w, b, step(w, i, v.strides[-1])) for b, v in zip(bases, self.row))
                value = w.load(0, at(w, x, self.index(w, where)), self.dtype)
                w.store(value, 2, y, self.dtype)
        return w

    def row_by_row(self) -> Writer:
        """Where one index stands for a row."""
        x, where, y = self.row
        w = Writer(self.given.isa, width(self.given.isa, self.dtype, (x, y)))
        with self.units.each(w) as (outer, low, high):
            base = self.index(w, w.place(part_but_last(where), outer))
            start, end = (w.place(part_but_last(v), outer) for v in (x, y))

            def body(i: Bound, mask: Vec | None) -> None:
                place = at(w, start, base, step(w, i, x.strides[-1]))
                value = w.load(0, place, self.dtype, mask=mask)
                w.store(value, 2, at(w, end, step(w, i, y.strides[-1])), self.dtype, mask=mask)

            vectors(w, low, high, body)
        return w


# -- writing --------------------------------------------------------------------------------------


def make_scatter(given: Step, name: str) -> KernelSequence:
    """scatter and scatter_add: x copied, then rows put into it or combined with it.

    Half floats that are added or multiplied are f32 until all updates have come, and then rounded
    once.
    """
    node = given.node
    reduction = node.attrs.get("reduction", "add")
    dtype, result = node.shape.dtype, Buffer("result", 0)
    x = Place(Buffer("operand", 0), given.operands[0], dtype)
    y = Place(result, given.results[0], dtype)
    if dtype.compute is dtype or reduction not in ("add", "mul"):
        copy = copy_task(x, y, given.isa, f"{name}.copy")
        return KernelSequence((copy, _updates(given, y, reduction, name)))
    wide = Place(Buffer("temp", 0), Layout.contiguous(y.layout.dims), dtype.compute)
    tasks = (
        copy_task(x, wide, given.isa, f"{name}.copy"),
        _updates(given, wide, reduction, name),
        copy_task(wide, y, given.isa, f"{name}.round"),
    )
    return KernelSequence(tasks, (ceiling(product(y.layout.dims)) * dtype.compute.itemsize,))


def _updates(given: Step, to: Place, reduction: str, name: str) -> Task:
    writing = _Writing.of(given, to, reduction)
    w = writing.written()
    units, node = writing.units.count, given.node
    traffic = 3 * node.inputs[2].shape.size_bytes
    count = node.inputs[1].shape.num_elements
    ns = estimated_ns(0, traffic) + units * count * NS_PER_INDEX
    given_to = (Buffer("operand", 1), Buffer("operand", 2), to.buffer)
    return Task(w.function(name), given_to, w.sizes, units, grain_of(units, ns))


@dataclass(frozen=True, slots=True)
class _Writing:
    """Rows of updates, one for each index. Numbers: indices 0, updates 1, target 2."""

    given: Step
    reduction: str
    kinds: tuple[DType, DType]
    """The numbers that updates and the target consist of."""
    parts: int
    """Numbers in a value: 2 where complex ones are multiplied."""
    rest: Sequence[Layout]
    """Updates and target on the axes that indices do not decide."""
    run: Sequence[Layout]
    """Indices and updates on the axes of the indices."""
    stride: DimLike

    @classmethod
    def of(cls, given: Step, to: Place, reduction: str) -> _Writing:
        axis = given.node.attrs["axis"]
        indices, updates = given.operands[1:]
        last, dtype = axis + len(indices.dims), given.node.shape.dtype
        numbers, parts = computed_as(dtype) if reduction in FOLDS else moved_as(dtype)
        apart = 1 if reduction == "mul" else parts
        target = part(to.layout, 0, axis), part(to.layout, axis + 1, len(to.layout.dims))
        source = part(updates, 0, axis), part(updates, last, len(updates.dims))
        rest = [
            spread(_joined(*parted, whole.offset), apart)
            for parted, whole in ((source, updates), (target, to.layout))
        ]
        within = part(updates, axis, last)
        scaled = Layout(within.dims, tuple(s * apart for s in within.strides))
        kinds = (numbers, to.dtype if to.dtype is not dtype else numbers)
        run, stride = merged([indices, scaled]), to.layout.strides[axis] * apart
        return cls(given, reduction, kinds, parts // apart, merged(rest), run, stride)

    @property
    def units(self) -> Blocks:
        return Blocks(self.rest[0].dims)

    def written(self) -> Writer:
        given, node = self.given, self.given.node
        size = node.shape.dims[node.attrs["axis"]]
        lanes = 1 if self.parts > 1 else width(given.isa, self.kinds[0], self.rest)
        w = Writer(given.isa, lanes)
        with self.units.each(w) as (outer, low, high):
            source, target = (w.place(part_but_last(v), outer) for v in self.rest)
            with loops(w, self.run[0].dims, ROWS_POLLED) as positions:
                where, here = (w.place(v, positions) for v in self.run)
                chosen = index(w, 0, where, node.inputs[1].shape.dtype, w.size(size))
                places = at(w, source, here), at(w, target, step(w, chosen, self.stride))
                vectors(w, low, high, lambda i, mask: self.put(w, places, i, mask))
        return w

    def put(self, w: Writer, bases: Sequence[Bound], i: Bound, mask: Vec | None) -> None:
        """Updates from `i` on go to their target."""
        source, target = (at(w, b, step(w, i, v.strides[-1])) for b, v in zip(bases, self.rest))
        value = load_value(w, 1, source, self.kinds[0], self.parts, mask)
        if self.reduction in FOLDS:
            old = load_value(w, 2, target, self.kinds[1], self.parts, mask)
            value = FOLDS[self.reduction](old, value)
        store_value(w, value, 2, target, self.kinds[1], mask)


def _joined(front: Layout, back: Layout, offset: DimLike) -> Layout:
    return Layout(front.dims + back.dims, front.strides + back.strides, offset)
