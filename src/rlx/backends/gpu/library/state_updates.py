"""Updates of arrays kept from call to call: append copies rows to a position, assign copies all.

A state is written in place: what is touched of it is in proportion to the rows. Of any other array
the update is a copy with the rows put into it. Rows are written in the order of their entries: of
entries that write one element the last one does, so that no two threads write it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.writer import View, Writer, is_row
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.kernel.program.schedule import Schedule
from rlx.program.values import Var

ROWS, AT, SLOTS = 1, 2, 3
"""Operands."""
NO_ROOM, NO_SLOT = "rows do not fit at their position", "a slot is out of range"


def make_assign(made: Launches) -> Schedule[GpuTask]:
    """assign: the value copied to the state."""
    made.copy(made.operand(1), made.result())
    return made.schedule()


def make_append(made: Launches) -> Schedule[GpuTask]:
    """append: rows copied to their position; first all of x, where it is no state."""
    if made.special.written is None:
        made.copy(made.operand(0), made.result())
    _Append.of(made).launch(made)
    return made.schedule()


@dataclass(frozen=True, slots=True)
class _Append:
    """Rows, their positions, perhaps slots, and what they are written to."""

    rows: View
    at: View
    slots: View | None
    y: View
    axis: int

    @classmethod
    def of(cls, made: Launches) -> _Append:
        has_slots = len(made.special.operands) > SLOTS
        slots = made.operand(SLOTS) if has_slots else None
        axis = made.node.attrs["axis"]
        return cls(made.operand(ROWS), made.operand(AT), slots, made.result(), axis)

    @property
    def entries(self) -> DimLike:
        """How many have a position."""
        return product(self.at.layout.dims)

    @property
    def is_ragged(self) -> bool:
        """Has each entry of the first axis a position of its own?"""
        return len(self.at.layout.dims) == 1

    def launch(self, made: Launches) -> None:
        """A thread for each element of the rows. The first threads look for wrong positions: there
        may be no element at all."""
        block, size = made.machine.block, product(self.rows.layout.dims)
        blocks = (size + (block - 1)) // block + (self.entries + (block - 1)) // block
        made.program(
            "rows",
            self.body,
            grid=(blocks,),
            block=block,
            reads=(self.rows, self.at, *([] if self.slots is None else [self.slots])),
            writes=(self.y,),
            failures=(NO_ROOM, NO_SLOT),
            note="writes rows in place",
        )

    def body(self, w: Writer) -> None:
        own, dims = w.thread, self.rows.layout.dims
        with w.b.when(own < w.dim(self.entries)):
            self._check(w, own)
        with w.b.when(own < w.dim(product(dims))):
            position = w.split(own, dims)
            entry = position[0] if self.is_ragged else w.number(0)
            start, fits = self._start(w, entry)
            slot, is_known = self._slot(w, entry)
            row = start + position[self.axis]
            is_last = self._is_last(w, entry, slot, row)
            with w.b.when(fits & is_known & is_last):
                values = w.load(self.rows, w.at(self.rows.layout, position))
                where = [slot, *position[1:]] if self.is_ragged else list(position)
                where[self.axis] = row
                w.store(self.y, w.at(self.y.layout, where), values)

    def _check(self, w: Writer, entry: Var) -> None:
        w.fail(~self._start(w, entry)[1], NO_ROOM)
        w.fail(~self._slot(w, entry)[1], NO_SLOT)

    def _start(self, w: Writer, entry: Var) -> tuple[Var, Var]:
        """The position of an entry's rows, 0 where they do not fit, and whether they do."""
        where = [entry] if self.is_ragged else []
        found = w.load(self.at, w.at(self.at.layout, where))[0]
        axis = self.axis
        room = w.number(self.y.layout.dims[axis]) - w.number(self.rows.layout.dims[axis]) + 1
        fits = is_row(found, room)
        return w.wide(found).where(fits, 0), fits

    def _slot(self, w: Writer, entry: Var) -> tuple[Var, Var]:
        """The entry of y that an entry's rows go to, 0 where there is none, and whether there
        is."""
        if self.slots is None:
            return entry, w.b.const(True, DType.BOOL)
        found = w.load(self.slots, w.at(self.slots.layout, [entry]))[0]
        is_known = is_row(found, w.dim(self.y.layout.dims[0]))
        return w.wide(found).where(is_known, 0), is_known

    def _is_last(self, w: Writer, entry: Var, slot: Var, row: Var) -> Var:
        """Does no later entry write the same row of the same slot?"""
        always = w.b.const(True, DType.BOOL)
        if self.slots is None:
            return always
        is_last = w.b.variable(always)
        count = w.number(self.rows.layout.dims[self.axis])
        with w.b.loop(entry + 1, w.number(self.entries), carry=[is_last]) as later:
            start, fits = self._start(w, later)
            other, is_known = self._slot(w, later)
            covers = (row >= start) & (row < start + count)
            is_last.set(is_last & ~(fits & is_known & other.eq(slot) & covers))
        return is_last
