"""Stream compaction: the elements for which a condition holds, in order.

Three launches: how many each block has, prefix sums of these counts by one block, and each element
to its rank. Ranks inside of a block are prefix sums again, so nothing depends on who is first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.writer import View, Writer
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.kernel.program.schedule import Schedule
from rlx.program.values import Var

I64, BOOL = DType.I64, DType.BOOL
PER_THREAD = 4
"""Elements that a thread does in turn."""
TOO_MANY = "more elements are not 0 than at_most allows"
Holds = Callable[[Writer, Var, Var], Var]
"""Does the condition hold for the element of this number? The mask says whether there is one."""
Put = Callable[[Writer, Var, Var, Var], None]
"""Stores an element (number, rank, how many there are) for which it holds."""
PutEach = Callable[[Writer, Var, Var, Var], None]
"""Stores any element: its number, how many stay before it and it among them, does it stay?"""


@dataclass(frozen=True, slots=True)
class Compaction:
    """A number of elements, and which of them stay."""

    made: Launches
    count: DimLike
    holds: Holds
    reads: tuple[View, ...]
    part: str = ""

    @property
    def counted(self) -> DType:
        return self.made.machine.count_dtype

    @property
    def chunk(self) -> int:
        """Elements of a block."""
        return self.made.machine.block * PER_THREAD

    @property
    def blocks(self) -> DimLike:
        return (self.count + (self.chunk - 1)) // self.chunk

    def _element(self, w: Writer, turn: int) -> tuple[Var, Var]:
        """The thread's element, and whether there is one."""
        start = w.block_index() * self.chunk + turn * self.made.machine.block
        number = start + w.wide(w.b.thread)
        return number, number < w.dim(self.count)

    def counts(self) -> View:
        """Launches that leave the number of elements before each block, and the total at the end,
        in a temporary."""
        made, block = self.made, self.made.machine.block
        sums = made.temp((self.blocks + 1,), self.counted)

        def tally(w: Writer) -> None:
            total = w.b.const(0, self.counted)
            for turn in range(PER_THREAD):
                number, inside = self._element(w, turn)
                total = total + (inside & self.holds(w, number, inside)).to(self.counted)
            whole = w.b.block_reduce("add", total)
            w.ref(sums).store(w.block_index(), [whole], w.b.thread.eq(0))

        made.program(
            f"{self.part}count",
            tally,
            grid=(self.blocks,),
            block=block,
            reads=self.reads,
            writes=(sums,),
        )
        return sums

    def prefix_sums(self, sums: View, *outputs: View, at_most: DimLike | None = None) -> None:
        """The counts as exclusive prefix sums; the total behind them, and in the outputs."""
        block = self.made.machine.block

        def scan(w: Writer) -> None:
            b, blocks, ref = w.b, w.number(self.blocks), w.ref(sums)
            carry = b.variable(0, self.counted)
            with b.loop(w.number(0), blocks, block, carry=[carry]) as start:
                i = start + w.wide(b.thread)
                (value,) = ref.load(i, 1, i < blocks)
                before = b.block_scan("add", value, is_inclusive=False)
                ref.store(i, [carry + before], i < blocks)
                carry.set(carry + b.block_reduce("add", value))
            if at_most is not None:
                w.fail((carry > w.number(at_most).to(self.counted)) & b.thread.eq(0), TOO_MANY)
            for view in outputs:
                w.ref(view).store(0, [carry.to(view.dtype)], b.thread.eq(0))
            ref.store(blocks, [carry], b.thread.eq(0))

        self.made.program(
            f"{self.part}scan",
            scan,
            grid=(1,),
            block=block,
            writes=outputs,
            updates=(sums,),
            failures=() if at_most is None else (TOO_MANY,),
        )

    def ranks(
        self, sums: View, put: Put, reads: tuple[View, ...], writes: tuple[View, ...]
    ) -> None:
        """Every element that stays to its rank."""

        def each(w: Writer, number: Var, up_to: Var, stays: Var) -> None:
            with w.b.when(stays):
                put(w, number, up_to - 1, w.ref(sums)[w.number(self.blocks)])

        self.each(sums, each, reads, writes)

    def each(
        self, sums: View, put: PutEach, reads: tuple[View, ...], writes: tuple[View, ...]
    ) -> None:
        """Every element with how many stay up to it."""

        def place(w: Writer) -> None:
            b = w.b
            rank = b.variable(w.ref(sums)[w.block_index()])
            for turn in range(PER_THREAD):
                number, inside = self._element(w, turn)
                stays = inside & self.holds(w, number, inside)
                one = stays.to(self.counted)
                up_to = rank + b.block_scan("add", one)
                with b.when(inside):
                    put(w, number, up_to, stays)
                rank.set(rank + b.block_reduce("add", one))

        self.made.program(
            f"{self.part}place",
            place,
            grid=(self.blocks,),
            block=self.made.machine.block,
            reads=(*self.reads, sums, *reads),
            writes=writes,
        )


def make_nonzero(made: Launches) -> Schedule[GpuTask]:
    """The coordinates of the elements that are not 0, one row per axis; a row is as long as there
    are elements."""
    x, y = made.operand(0), made.result()
    dims = x.layout.dims

    def holds(w: Writer, number: Var, inside: Var) -> Var:
        values = w.load(x, w.at(x.layout, w.split(number, dims)), inside)
        is_any = _is_set(values[0])
        for value in values[1:]:
            is_any = is_any | _is_set(value)
        return is_any

    def put(w: Writer, number: Var, rank: Var, total: Var) -> None:
        offset = w.number(y.layout.offset).to(rank.dtype)
        for axis, position in enumerate(w.split(number, dims)):
            w.ref(y)[offset + total * axis + rank] = position.to(I64)

    given = Compaction(made, product(dims), holds, (x,))
    sums = given.counts()
    given.prefix_sums(sums, made.measured(), at_most=made.node.attrs["at_most"])
    given.ranks(sums, put, (), (y,))
    return made.schedule()


def _is_set(value: Var) -> Var:
    return value if value.dtype is BOOL else value.to(value.dtype.compute).ne(0)
