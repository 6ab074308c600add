"""Non-maximum suppression: boxes by score, greedily, a block for each class of a batch.

A chunk of boxes, one a thread, is compared with all that were selected before; of those left the
best is selected and removes the ones that it overlaps, until none is left. So the number of steps
follows from the number of selected boxes, and no table of all pairs is made.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.sort.keys import Item, Keys, Rows
from rlx.backends.gpu.library.sort.sort import Sorted, sort_rows
from rlx.backends.gpu.library.writer import View, Writer
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import DimLike, dim_min, product, upper_bound
from rlx.core.dtype import DType
from rlx.core.extent import ceiling
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal
from rlx.program.values import SharedRef, Var, Variable

I32, I64, BOOL = DType.I32, DType.I64, DType.BOOL
FIELDS = 5
"""Of a box: its low corner (2), its high corner (2), and its area."""
Box = list[Var]


def make_nms(made: Launches) -> Schedule[GpuTask] | Refusal:
    """Scores sorted, boxes selected in each class, then all selected ones in a row."""
    given = _Nms.of(made)
    order = given.sorted_scores()
    if isinstance(order, Refusal):
        return order
    given.select(order)
    given.compact()
    return made.schedule()


@dataclass(frozen=True, slots=True)
class _Nms:
    made: Launches
    boxes: View
    scores: View
    selected: View
    """[rows, most]: which boxes, as i32."""
    counts: View
    """[rows + 1]: how many of each class (i64), then how many before each, and all."""

    @classmethod
    def of(cls, made: Launches) -> _Nms:
        boxes, scores = made.operand(0), made.operand(1)
        rows, length = product(scores.layout.dims[:2]), scores.layout.dims[2]
        most = dim_min(length, made.node.attrs["max_output_boxes_per_class"])
        selected = made.temp((rows, most), I32)
        return cls(made, boxes, scores, selected, made.temp((rows + 1,), made.machine.count_dtype))

    @property
    def rows(self) -> DimLike:
        return product(self.scores.layout.dims[:2])

    @property
    def length(self) -> DimLike:
        return self.scores.layout.dims[2]

    @property
    def most(self) -> DimLike:
        return self.selected.layout.dims[1]

    @property
    def dtype(self) -> DType:
        return self.boxes.dtype.compute

    def sorted_scores(self) -> View | Refusal:
        """[rows, length]: the boxes from the best score to the worst, NaN in front."""
        keys = Keys(self.scores.dtype, descending=True)
        order = self.made.temp((self.rows, self.length), I32)

        def put(w: Writer, row: Var, place: Var, item: Item) -> None:
            w.ref(order)[w.at(order.layout, (row, place))] = keys.index(item).bits(I32)

        given = Sorted(Rows(self.scores, 2), keys, (order,), put)
        done = sort_rows(self.made, given)
        return done if isinstance(done, Refusal) else order

    # -- one class -------------------------------------------------------------------------------

    def select(self, order: View) -> None:
        block = self.made.machine.max_block
        most = upper_bound(ceiling(self.most))
        fits = self.made.machine.shared_bytes // (FIELDS * self.dtype.itemsize) // 2
        is_shared = most is not None and most <= fits
        kept = None if is_shared else self.made.temp((self.rows, self.most, FIELDS), self.dtype)

        def body(w: Writer) -> None:
            size = max(1, most or 1) * FIELDS
            memory = w.b.shared("kept", self.dtype, size) if is_shared else None
            _Class(self, w, order, memory, kept).run()

        self.made.program(
            "select",
            body,
            grid=(self.rows,),
            block=block,
            reads=(self.boxes, self.scores, order),
            writes=(self.counts, self.selected),
            updates=() if kept is None else (kept,),
            note="a block a class, chunks of boxes against the selected ones",
        )

    # -- all classes -----------------------------------------------------------------------------

    def compact(self) -> None:
        """How many there are before each class, then every box to its place."""
        made, block, size, y = (
            self.made,
            self.made.machine.block,
            self.made.measured(),
            self.made.result(),
        )

        def scan(w: Writer) -> None:
            b, rows, ref = w.b, w.number(self.rows), w.ref(self.counts)
            carry = b.variable(0, self.counts.dtype)
            with b.loop(w.number(0), rows, block, carry=[carry]) as start:
                i = start + w.wide(b.thread)
                (value,) = ref.load(i, 1, i < rows)
                before = b.block_scan("add", value, is_inclusive=False)
                ref.store(i, [carry + before], i < rows)
                carry.set(carry + b.block_reduce("add", value))
            ref.store(rows, [carry], b.thread.eq(0))
            w.ref(size).store(0, [carry.to(I64)], b.thread.eq(0))

        def place(w: Writer) -> None:
            total = w.number(self.rows) * w.dim(self.most)
            with w.b.when(w.thread < total):
                row, slot = w.split(w.thread, (self.rows, self.most))
                before, after = (w.ref(self.counts)[row + n] for n in range(2))
                at = before + slot.to(before.dtype)
                with w.b.when(at < after):
                    box = w.ref(self.selected)[w.at(self.selected.layout, (row, slot))]
                    batch, number = w.split(row, self.scores.layout.dims[:2])
                    start = w.number(y.layout.offset).to(at.dtype) + at * 3
                    for n, value in enumerate((batch, number, box)):
                        w.ref(y)[start + n] = value.to(I64)

        made.program("scan", scan, grid=(1,), block=block, writes=(size,), updates=(self.counts,))
        made.program(
            "place",
            place,
            grid=((self.rows * self.most + (block - 1)) // block,),
            block=block,
            reads=(self.counts, self.selected),
            writes=(y,),
        )


@dataclass(frozen=True, slots=True)
class _Class:
    """The program of one class under construction."""

    given: _Nms
    w: Writer
    order: View
    memory: SharedRef | None
    kept: View | None
    """Where selected boxes are: in shared memory, or else here."""

    def run(self) -> None:
        w, b = self.w, self.w.b
        row, length = w.block_index(), w.number(self.given.length)
        start, count = b.variable(w.number(0)), b.variable(w.number(0))
        goes_on = b.variable(True, BOOL)
        with b.repeat([start, count, goes_on]) as again:
            again.when((start < length) & (count < w.dim(self.given.most)) & goes_on)
            self._chunk(row, start, count, goes_on)
            start.set(start + b.made.block)
        w.ref(self.given.counts).store(row, [count.to(self.given.counts.dtype)], b.thread.eq(0))

    def _chunk(self, row: Var, start: Var, count: Variable, goes_on: Variable) -> None:
        w, b = self.w, self.w.b
        at = start + w.wide(b.thread)
        inside = at < w.dim(self.given.length)
        index = w.ref(self.order).load(w.at(self.order.layout, (row, at)), 1, inside)[0]
        batch, number = w.split(row, self.given.scores.layout.dims[:2])
        score = w.element(self.given.scores, (batch, number, w.wide(index)), inside)
        scored, is_number = self._is_scored(score), score.eq(score)
        box = self._box(batch, w.wide(index), inside)
        alive = b.variable(inside & scored)
        with b.loop(w.number(0), count, carry=[alive]) as other:
            alive.set(alive & ~self._overlaps(box, self._load(row, other)))
        self._best_first(row, index, box, count, alive)
        # behind the first score that is too low there are only lower ones
        goes_on.set(~b.block_reduce("max", inside & is_number & ~scored))

    def _best_first(self, row: Var, index: Var, box: Box, count: Variable, alive: Variable) -> None:
        """Select the best that is left, and remove what it overlaps, as long as there is one."""
        w, b = self.w, self.w.b
        block = b.made.block
        with b.repeat([count, alive]) as again:
            first = b.block_reduce("min", b.thread.where(alive, block))
            again.when((first < block) & (count < w.dim(self.given.most)))
            own = b.block_reduce("min", b.thread.where(alive, block))
            is_own = b.thread.eq(own)
            self._store(row, count, box, is_own)
            selected = self.given.selected
            w.ref(selected).store(w.at(selected.layout, (row, count)), [index], is_own)
            b.barrier()
            alive.set(alive & ~is_own & ~self._overlaps(box, self._load(row, count)))
            count.set(count + 1)

    def _is_scored(self, score: Var) -> Var:
        least = self.given.made.node.attrs["score_threshold"]
        return score.eq(score) if least is None else score > least

    # -- boxes -----------------------------------------------------------------------------------

    def _store(self, row: Var, number: Var, box: Box, mask: Var) -> None:
        for field, value in enumerate(box):
            if self.memory is not None:
                self.memory.store(number.to(I32) * FIELDS + field, [value], mask)
            elif self.kept is not None:
                at = self.w.at(self.kept.layout, (row, number, field))
                self.w.ref(self.kept).store(at, [value], mask)

    def _load(self, row: Var, number: Var) -> Box:
        if self.memory is not None:
            start = number.to(I32) * FIELDS
            return [self.memory[start + field] for field in range(FIELDS)]
        assert self.kept is not None
        kept, w = self.kept, self.w
        return [w.ref(kept)[w.at(kept.layout, (row, number, f))] for f in range(FIELDS)]

    def _box(self, batch: Var, index: Var, mask: Var) -> Box:
        """Corners in order, and the area."""
        numbers = [self.w.element(self.given.boxes, (batch, index, n), mask) for n in range(4)]
        one, other = numbers[:2], numbers[2:]
        if self.given.made.node.attrs["center_point_box"]:
            half = [v / 2.0 for v in other]
            low, high = [a - h for a, h in zip(one, half)], [a + h for a, h in zip(one, half)]
        else:
            low = [a.min(c) for a, c in zip(one, other)]
            high = [a.max(c) for a, c in zip(one, other)]
        return [*low, *high, (high[0] - low[0]) * (high[1] - low[1])]

    def _overlaps(self, box: Box, other: Box) -> Var:
        """Is the intersection over union above the threshold? Not if one is empty."""
        low = [a.max(c) for a, c in zip(box[:2], other[:2])]
        high = [a.min(c) for a, c in zip(box[2:4], other[2:4])]
        sides = [(h - a).max(0.0) for a, h in zip(low, high)]
        shared, (first, second) = sides[0] * sides[1], (box[4], other[4])
        union = first + second - shared
        made = shared / union > self.given.made.node.attrs["iou_threshold"]
        for size in (shared, first, second, union):
            made = made & (size > 0.0)
        return made
