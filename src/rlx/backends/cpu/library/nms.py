"""Boxes that stay: those of a class from the best score to the worst, each compared with the ones
that stay already, many at a time. A unit is a class of a batch.

So there is no table of all pairs, and what is compared follows from how many stay.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.codegen.gemm.microkernel import below
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.library.compaction import size_of
from rlx.backends.cpu.library.counters import Cell, is_first, put
from rlx.backends.cpu.library.sort.radix_keys import COUNTS_BYTES, POLLED, Order
from rlx.backends.cpu.library.strided_copy import at, whole_number
from rlx.backends.cpu.llvm.builder import Bound, Vec
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.program.task import Buffer, KernelSequence, Step, Task, grain_of
from rlx.core.dim import DimLike, dim_min
from rlx.core.dtype import DType
from rlx.core.extent import ceiling

SORT_NS, PAIRS_PER_NS = 10, 4
BOXES_POLLED = 256
"""Boxes between two polls, each of which is compared with all that stay."""
NUMBERS = 5
"""Of a box: the two numbers of its low corner, those of its high one, and its area."""

Box = list[Vec]


@dataclass(frozen=True, slots=True)
class _Boxes:
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
    def most(self) -> DimLike:
        """Boxes of a class that may stay."""
        return dim_min(self.length, self.given.node.attrs["max_output_boxes_per_class"])

    @property
    def order(self) -> Order:
        return Order.of(self.dtype, self.length, descending=True)

    @property
    def temps(self) -> tuple[DimLike, DimLike]:
        """The boxes of each class that stay, and how many they are."""
        return 8 * ceiling(self.units * self.most), 8 * ceiling(self.units)

    # -- one class ------------------------------------------------------------------------------

    def chosen(self, name: str) -> Task:
        w = Writer(self.given.isa, self.given.isa.lanes(self.dtype))
        stop = w.code.least("%stop", w.size(self.units))
        with w.code.count("%start", stop, 1) as unit:
            self.unit(w, unit)
        words = 2 * self.order.word_bytes * self.length
        kept = NUMBERS * (self.most + w.code.lanes) * self.dtype.compute.itemsize
        row_ns = self.length * (SORT_NS + self.most // PAIRS_PER_NS)
        return Task(
            w.function(name), (*_given(2), *_temps(2)), w.sizes, self.units,
            grain_of(self.units, ceiling(self.units * row_ns)),
            ceiling((COUNTS_BYTES + words + kept + 63) // 64 * 64),
            summary="from the best score on, each box against those that stay",
        )  # fmt: skip

    def unit(self, w: Writer, unit: Bound) -> None:
        code = w.code
        batch, row = w.split(unit, self.rows)
        words = code.let(f"getelementptr i8, ptr %scratch, i64 {COUNTS_BYTES}")
        room = self.order.pointer(code, words, w.size(self.length))
        boxes = self.order.pointer(code, room, w.size(self.length))
        count = self.scored(w, [batch, row], words)
        ordered = self.order.sort(code, words, room, "%scratch", count)
        kept = Cell(code, 0)
        with code.count(0, count, 1, BOXES_POLLED) as i:
            has_room = code.let(f"icmp slt i64 {kept.get()}, {w.size(self.most)}")
            with code.when(has_room):
                number = self.order.position_in(code, ordered, i)
                self.offer(w, self.box(w, batch, number), boxes, kept, (unit, number))
        put(w, kept.get(), 3, unit)

    def scored(self, w: Writer, row: list[Bound], words: str) -> Bound:
        """The words of the scores that are high enough; how many they are."""
        code, scores = w.code, self.given.operands[1]
        least, count = self.given.node.attrs["score_threshold"], Cell(code, 0)
        with code.count(0, w.size(self.length), 1, POLLED) as i:
            place = w.place(scores, [*row, i])
            score = w.load(1, place, self.dtype, 0)
            is_enough = score.equals(score) if least is None else score > least
            with code.when(is_enough.lane()):
                raw = load(code, self.order.bits, w.pointer(1, place, self.dtype), 0)
                word = self.order.made(code, self.order.key(raw).lane(), i)
                self.order.store(code, word, words, count.get())
                count.add(1)
        return count.get()

    def offer(
        self, w: Writer, box: Box, boxes: str, kept: Cell, names: tuple[Bound, Bound]
    ) -> None:
        """A box stays if it clashes with none that does."""
        code, clashes = w.code, Cell(w.code, 0)
        have = kept.get()
        with code.count(0, have, code.lanes) as i:
            is_free = code.let(f"icmp eq i64 {clashes.get()}, 0")
            with code.when(is_free):
                others = [self.number(w, boxes, n, i) for n in range(NUMBERS)]
                hits = self.clash(box, [load(code, v, p) for v, p in others])
                hits = hits & below(code, code.i64("sub", have, i))
                clashes.add(code.let(f"zext i1 {hits.any()} to i64"))
        with code.when(code.let(f"icmp eq i64 {clashes.get()}, 0")):
            for n, value in enumerate(box):
                kind, where = self.number(w, boxes, n, have)
                store(code, value, kind, where)
            unit, number = names
            put(w, number, 2, at(w, code.i64("mul", unit, w.size(self.most)), have))
            kept.add(1)

    def number(self, w: Writer, boxes: str, n: int, i: Bound) -> tuple[DType, str]:
        """Where a number of the box that stayed as the i-th lies. A vector may go past the last."""
        kind = self.dtype.compute
        row = w.code.i64("mul", n, w.size(self.most + w.code.lanes))
        return kind, advanced(w.code, boxes, at(w, row, i), kind)

    # -- boxes ----------------------------------------------------------------------------------

    def box(self, w: Writer, batch: Bound, number: Bound) -> Box:
        """A box in every lane."""
        given = self.given.operands[0]
        places = [w.place(given, [batch, number, n]) for n in range(4)]
        numbers = [w.load(0, p, self.dtype, 0) for p in places]
        one, other = numbers[:2], numbers[2:]
        if self.given.node.attrs["center_point_box"]:
            half = [v / 2.0 for v in other]
            low, high = [a - b for a, b in zip(one, half)], [a + b for a, b in zip(one, half)]
        else:
            low = [arith.minimum(a, b) for a, b in zip(one, other)]
            high = [arith.maximum(a, b) for a, b in zip(one, other)]
        return [*low, *high, (high[0] - low[0]) * (high[1] - low[1])]

    def clash(self, box: Box, other: Box) -> Vec:
        """Do they share more than the threshold of their union? Not if one is empty."""
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

    def listed(self, name: str) -> Task:
        """The boxes that stay, one class after the other, and how many they are."""
        w = Writer(self.given.isa)
        code, total = w.code, Cell(w.code, 0)
        offset = w.size(self.given.results[0].offset)
        with code.when(is_first(w)):
            with code.count(0, w.size(self.units), 1) as unit:
                row = w.split(unit, self.rows)
                base = code.i64("mul", unit, w.size(self.most))
                with code.count(0, whole_number(w, 1, unit, DType.I64), 1) as i:
                    number = whole_number(w, 0, at(w, base, i), DType.I64)
                    place = at(w, offset, code.i64("mul", total.get(), 3))
                    for n, value in enumerate((*row, number)):
                        put(w, value, 2, at(w, place, n))
                    total.add(1)
            put(w, total.get(), 3, 0)
        given = (*_temps(2), Buffer("result", 0), size_of(self.given))
        return Task(w.function(name), given, w.sizes)


def _given(count: int) -> tuple[Buffer, ...]:
    return tuple(Buffer("operand", i) for i in range(count))


def _temps(count: int) -> tuple[Buffer, ...]:
    return tuple(Buffer("temp", i) for i in range(count))


def make_nms(given: Step, name: str) -> KernelSequence:
    boxes = _Boxes(given)
    return KernelSequence((boxes.chosen(f"{name}.class"), boxes.listed(name)), boxes.temps)
