"""Where sums over keys go: to the result, or to what blocks that split the keys leave behind.

    parts   [unit, row, value depth]   sums of weighted values
    stats   [unit, row, 2]             the greatest score and the sum of the weights

A unit is a batch, a kv head and a split, in this order.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.gpu.lower.attention.frame import Frame, Row, row_count
from rlx.backends.gpu.lower.attention.softmax import Softmax
from rlx.core.dim import exact_div
from rlx.program.values import BufferRef, Var

PARTS, STATS = "t0", "t1"
"""The temporaries."""


class Results:
    """The buffers that a program writes."""

    def __init__(self, frame: Frame, *, has_parts: bool) -> None:
        self.frame, form, b = frame, frame.form, frame.b
        self.out: BufferRef | None = None
        if not has_parts:
            self.out = b.output("y0", form.dtype)
        else:
            self.parts, self.stats = b.output(PARTS, form.sums), b.output(STATS, form.sums)

    def store(
        self,
        row: Row,
        most: Var,
        total: Var,
        values: Sequence[tuple[Var, Sequence[Var]]],
        is_first: Var,
        softmax: Softmax,
    ) -> None:
        """A thread's columns of a row, neighbours together. `most` and `total` are the row's, and
        one of the threads that have it is the first."""
        if self.out is None:
            self._store_part(row, most, total, values, is_first)
            return
        frame, layout = self.frame, self.frame.form.out
        share = softmax.share(total)
        base = frame.of_row(layout, row)
        depth = int(layout.dims[3])
        for column, given in values:
            made = [(v * share).to(frame.form.dtype) for v in given]
            at = base + frame.times(column, layout.strides[3])
            self._put(self.out, at, column, made, row.is_inside, depth, self._is_aligned(len(made)))

    def has_vectors(self, width: int) -> bool:
        """Are so many neighbouring columns of the result contiguous from a multiple of it on?"""
        return self.out is not None and self._is_aligned(width)

    def _is_aligned(self, width: int) -> bool:
        layout = self.frame.form.out
        *others, step = layout.strides
        fixed = (*others, layout.offset, layout.dims[3])
        return step == 1 and all(exact_div(d, width) is not None for d in fixed)

    def _put(
        self,
        buffer: BufferRef,
        at: Var,
        column: Var,
        values: Sequence[Var],
        inside: Var,
        depth: int,
        is_vector: bool,
    ) -> None:
        """The columns that are inside of the depth."""
        frame = self.frame
        if is_vector:
            frame.b.store(buffer, at, values, inside & (column < depth))
            return
        step = frame.form.out.strides[3] if buffer is self.out else 1
        for i, value in enumerate(values):
            place = at + frame.times(frame.b.const(i, column.dtype), step)
            frame.b.store(buffer, place, [value], inside & (column + i < depth))

    def _store_part(
        self,
        row: Row,
        most: Var,
        total: Var,
        values: Sequence[tuple[Var, Sequence[Var]]],
        is_first: Var,
    ) -> None:
        frame, form = self.frame, self.frame.form
        depth = int(form.v.dims[3])
        unit = (frame.batch * form.kv_heads + frame.kv_head) * frame.splits + frame.split
        number = row.query * form.group + row.member
        place = frame.times(unit, row_count(form)) + number.to(frame.index)
        frame.b.store(self.stats, place * 2, [most, total], row.is_inside & is_first)
        for column, given in values:
            at = place * depth + column.to(frame.index)
            self._put(self.parts, at, column, given, row.is_inside, depth, depth % len(given) == 0)
