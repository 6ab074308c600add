"""Non-maximum suppression: greedy per class from the best score on, each box against the ones
selected so far, vectorised over them. A unit is a class of a batch.

There is no table of all pairs; the work follows from the number of selected boxes.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.codegen.gemm.microkernel import below
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.library.compaction import size_of
from rlx.backends.cpu.library.counters import Variable, is_first_task, store_i64
from rlx.backends.cpu.library.sort.radix_keys import HISTOGRAM_BYTES, KEYS_PER_POLL, RadixKeys
from rlx.backends.cpu.library.strided_copy import at, load_integer
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import DimLike, dim_min
from rlx.core.dtype import DType
from rlx.core.extent import ceiling
from rlx.kernel.program.schedule import Buffer, Schedule

SORT_NS, PAIRS_PER_NS = 10, 4
BOXES_PER_POLL = 256
"""Boxes between two polls, each of which is compared with all selected ones."""
BOX_FIELDS = 5
"""Fields of a box: its low corner (2), its high corner (2), and its area."""

Box = list[Vec]


@dataclass(frozen=True, slots=True)
class _Nms:
    given: Step

    # -- sizes ----------------------------------------------------------------------------------

    @property
    def dtype(self) -> DType:
        return self.given.node.inputs[0].shape.dtype

    @property
    def rows(self) -> tuple[DimLike, DimLike]:
        """Batches and classes."""
        batch, classes, _ = self.given.node.inputs[1].shape.dims
        return batch, classes

    @property
    def units(self) -> DimLike:
        return self.rows[0] * self.rows[1]

    @property
    def length(self) -> DimLike:
        return self.given.node.inputs[1].shape.dims[2]

    @property
    def max_selected(self) -> DimLike:
        """Upper bound of the boxes selected in a class."""
        return dim_min(self.length, self.given.node.attrs["max_output_boxes_per_class"])

    @property
    def radix_keys(self) -> RadixKeys:
        return RadixKeys.of(self.dtype, self.length, descending=True)

    @property
    def temps(self) -> tuple[DimLike, DimLike]:
        """Bytes of the selected boxes of each class, and of their counts."""
        return 8 * ceiling(self.units * self.max_selected), 8 * ceiling(self.units)

    # -- one class ------------------------------------------------------------------------------

    @property
    def lanes(self) -> int:
        return self.given.isa.lanes(self.dtype)

    def select_task(self, name: str) -> Task:
        keys = 2 * self.radix_keys.key_bytes * self.length
        num_selected = BOX_FIELDS * (self.max_selected + self.lanes) * self.dtype.compute.itemsize
        row_ns = self.length * (SORT_NS + self.max_selected // PAIRS_PER_NS)
        return Task(
            TaskCode(name, self.select_source), (*_given(2), *_temps(2)), self.units,
            self.given.machine.units_per_task(self.units, ceiling(self.units * row_ns)),
            ceiling((HISTOGRAM_BYTES + keys + num_selected + 63) // 64 * 64),
            summary="greedy by score, each box against the selected ones",
        )  # fmt: skip

    def select_source(self, name: str) -> Source:
        w = Writer(self.given.isa, self.lanes)
        stop = w.code.least("%stop", w.size(self.units))
        with w.code.count("%start", stop, 1) as unit:
            self.unit(w, unit)
        return w.source(name)

    def unit(self, w: Writer, unit: Bound) -> None:
        code = w.code
        batch, row = w.split(unit, self.rows)
        keys = code.advanced("%scratch", HISTOGRAM_BYTES, DType.U8)
        spare = self.radix_keys.pointer(code, keys, w.size(self.length))
        boxes = self.radix_keys.pointer(code, spare, w.size(self.length))
        count = self.candidate_keys(w, [batch, row], keys)
        ordered = self.radix_keys.sort(code, keys, spare, "%scratch", count)
        num_selected = Variable(code, 0)
        with code.count(0, count, 1, BOXES_PER_POLL) as i:
            is_below_max = code.compare("lt", num_selected.get(), w.size(self.max_selected))
            with code.when(is_below_max):
                index = self.radix_keys.load_position(code, ordered, i)
                self.try_select(w, self.box(w, batch, index), boxes, num_selected, (unit, index))
        store_i64(w, num_selected.get(), 3, unit)

    def candidate_keys(self, w: Writer, row: list[Bound], keys: str) -> Bound:
        """The radix keys of the scores above the threshold, and how many they are."""
        code, scores = w.code, self.given.operands[1]
        least, count = self.given.node.attrs["score_threshold"], Variable(code, 0)
        with code.count(0, w.size(self.length), 1, KEYS_PER_POLL) as i:
            place = w.place(scores, [*row, i])
            score = w.load(1, place, self.dtype, 0)
            is_enough = score.equals(score) if least is None else score > least
            with code.when(is_enough.lane()):
                raw = load(code, self.radix_keys.unsigned, w.pointer(1, place, self.dtype), 0)
                radix_key = self.radix_keys.pack(code, self.radix_keys.ordered_bits(raw).lane(), i)
                self.radix_keys.store(code, radix_key, keys, count.get())
                count.add(1)
        return count.get()

    def try_select(
        self, w: Writer, box: Box, boxes: str, num_selected: Variable, indices: tuple[Bound, Bound]
    ) -> None:
        """Select a box if it overlaps none of the selected ones."""
        code, num_overlaps = w.code, Variable(w.code, 0)
        have = num_selected.get()
        with code.count(0, have, code.lanes) as i:
            is_selected = code.compare("eq", num_overlaps.get(), 0)
            with code.when(is_selected):
                others = [self.field(w, boxes, n, i) for n in range(BOX_FIELDS)]
                hits = self.overlaps(box, [load(code, v, p) for v, p in others])
                hits = hits & below(code, code.i64("sub", have, i))
                num_overlaps.add(code.converted(hits.any(), DType.BOOL, DType.I64))
        with code.when(code.compare("eq", num_overlaps.get(), 0)):
            for n, value in enumerate(box):
                kind, where = self.field(w, boxes, n, have)
                store(code, value, kind, where)
            unit, index = indices
            store_i64(w, index, 2, at(w, code.i64("mul", unit, w.size(self.max_selected)), have))
            num_selected.add(1)

    def field(self, w: Writer, boxes: str, n: int, i: Bound) -> tuple[DType, str]:
        """The address of a field of the i-th selected box. A vector may extend past the last."""
        kind = self.dtype.compute
        row = w.code.i64("mul", n, w.size(self.max_selected + w.code.lanes))
        return kind, advanced(w.code, boxes, at(w, row, i), kind)

    # -- boxes ----------------------------------------------------------------------------------

    def box(self, w: Writer, batch: Bound, index: Bound) -> Box:
        """A box, broadcast to every lane."""
        given = self.given.operands[0]
        places = [w.place(given, [batch, index, n]) for n in range(4)]
        numbers = [w.load(0, p, self.dtype, 0) for p in places]
        one, other = numbers[:2], numbers[2:]
        if self.given.node.attrs["center_point_box"]:
            half = [v / 2.0 for v in other]
            low, high = [a - b for a, b in zip(one, half)], [a + b for a, b in zip(one, half)]
        else:
            low = [arith.minimum(a, b) for a, b in zip(one, other)]
            high = [arith.maximum(a, b) for a, b in zip(one, other)]
        return [*low, *high, (high[0] - low[0]) * (high[1] - low[1])]

    def overlaps(self, box: Box, other: Box) -> Vec:
        """Is the intersection over union above the threshold? Not if one is empty."""
        low = [arith.maximum(a, b) for a, b in zip(box[:2], other[:2])]
        high = [arith.minimum(a, b) for a, b in zip(box[2:4], other[2:4])]
        sides = [arith.maximum(b - a, a.like(0)) for a, b in zip(low, high)]
        shared, (first, second) = sides[0] * sides[1], (box[4], other[4])
        union = first + second - shared
        made = shared / union > self.given.node.attrs["iou_threshold"]
        for size in (shared, first, second, union):
            made = made & (size > 0)
        return made

    # -- all classes ----------------------------------------------------------------------------

    def compact_task(self, name: str) -> Task:
        """Compact the selected boxes of all classes, and store their number."""
        given = (*_temps(2), Buffer("result", 0), size_of(self.given))
        return Task(TaskCode(name, self.compact_source), given)

    def compact_source(self, name: str) -> Source:
        w = Writer(self.given.isa)
        code, total = w.code, Variable(w.code, 0)
        offset = w.size(self.given.results[0].offset)
        with code.when(is_first_task(w)):
            with code.count(0, w.size(self.units), 1) as unit:
                row = w.split(unit, self.rows)
                base = code.i64("mul", unit, w.size(self.max_selected))
                with code.count(0, load_integer(w, 1, unit, DType.I64), 1) as i:
                    index = load_integer(w, 0, at(w, base, i), DType.I64)
                    place = at(w, offset, code.i64("mul", total.get(), 3))
                    for n, value in enumerate((*row, index)):
                        store_i64(w, value, 2, at(w, place, n))
                    total.add(1)
            store_i64(w, total.get(), 3, 0)
        return w.source(name)


def _given(count: int) -> tuple[Buffer, ...]:
    return tuple(Buffer("operand", i) for i in range(count))


def _temps(count: int) -> tuple[Buffer, ...]:
    return tuple(Buffer("temp", i) for i in range(count))


def make_nms(given: Step, name: str) -> Schedule[Task]:
    boxes = _Nms(given)
    return Schedule((boxes.select_task(f"{name}.class"), boxes.compact_task(name)), boxes.temps)
