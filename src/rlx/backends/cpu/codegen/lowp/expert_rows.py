"""Mixture-of-experts dispatch: rows sorted by expert, in runs of one expert each.

One worker sorts the rows by counting sort. The number of runs is data-dependent, but an expert has
at most one partial run: so there is a bound, and runs past the last are empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.library.counters import Variable, is_first_task, store_i64
from rlx.backends.cpu.library.strided_copy import at, load_index, load_integer
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import DimLike, dim_min
from rlx.core.dtype import DType
from rlx.kernel.program.schedule import Buffer

I64 = DType.I64
EXPERTS = 2
"""The operand with the expert of each row."""
RUN_FIELDS = 3
"""The expert of a run, its first row and its number of rows."""


@dataclass(frozen=True, slots=True)
class ExpertRuns:
    """Rows grouped by expert."""

    given: Step
    rows: int
    """Rows of a run, at most."""
    first: int = 0
    """The first of two temporaries: the permutation of rows, and the runs."""

    @property
    def m(self) -> DimLike:
        return self.given.operands[EXPERTS].dims[0]

    @property
    def experts(self) -> DimLike:
        return self.given.operands[1].dims[0]

    @property
    def runs(self) -> DimLike:
        return self.m // self.rows + dim_min(self.experts, self.m)

    @property
    def temps(self) -> tuple[DimLike, DimLike]:
        """Bytes of the permutation, and of the runs."""
        return 8 * self.m, 8 * RUN_FIELDS * self.runs

    @property
    def buffers(self) -> tuple[Buffer, Buffer]:
        return Buffer("temp", self.first), Buffer("temp", self.first + 1)

    def task(self, name: str) -> Task:
        given, scratch = (Buffer("operand", EXPERTS), *self.buffers), 8 * self.experts
        summary = "counting sort of rows by expert"
        return Task(TaskCode(name, self.source), given, scratch=scratch, summary=summary)

    def source(self, name: str) -> Source:
        w = Writer(self.given.isa)
        with w.code.when(is_first_task(w)):
            self.counted(w)
            self.cut(w)
            self.ordered(w)
        return Source(w.function(name), w.sizes)

    def expert(self, w: Writer, row: Bound) -> tuple[Bound, DType]:
        """The offset of a row's expert index."""
        layout = self.given.operands[EXPERTS]
        return w.place(layout, [row]), self.given.node.inputs[EXPERTS].shape.dtype

    def count(self, w: Writer, expert: Bound) -> str:
        """The address of an expert's counter: its rows, then the destination of its next row."""
        return w.code.advanced("%scratch", expert, DType.I64)

    def counted(self, w: Writer) -> None:
        code, experts = w.code, w.size(self.experts)
        with code.count(0, experts, 1) as e:
            code.store_scalar(self.count(w, e), 0, DType.I64)
        with code.count(0, w.size(self.m), 1) as row:
            where = self.count(w, load_index(w, 0, *self.expert(w, row), experts))
            more = code.integer("add", code.load_scalar(where, DType.I64), 1)
            code.store_scalar(where, more, DType.I64)

    def cut(self, w: Writer) -> None:
        """Split the rows of each expert into runs; its counter becomes the destination of its next
        row."""
        code, run, first = w.code, Variable(w.code, 0), Variable(w.code, 0)
        with code.count(0, w.size(self.experts), 1) as e:
            where = self.count(w, e)
            own, begun = code.load_scalar(where, DType.I64), first.get()
            with code.count(0, own, self.rows) as i:
                rows = code.least(self.rows, code.i64("sub", own, i))
                self.store_run(w, run.get(), (e, at(w, begun, i), rows))
                run.add(1)
            code.store_scalar(where, begun, DType.I64)
            first.add(own)
        with code.count(run.get(), w.size(self.runs), 1) as rest:
            self.store_run(w, rest, (0, 0, 0))

    def store_run(self, w: Writer, run: Bound, fields: tuple[Bound, Bound, Bound]) -> None:
        place = w.code.i64("mul", run, RUN_FIELDS)
        for i, field in enumerate(fields):
            store_i64(w, field, 2, at(w, place, i))

    def ordered(self, w: Writer) -> None:
        code = w.code
        with code.count(0, w.size(self.m), 1) as row:
            where = self.count(w, load_integer(w, 0, *self.expert(w, row)))
            place = code.load_scalar(where, DType.I64)
            store_i64(w, row, 1, place)
            code.store_scalar(where, code.i64("add", place, 1), DType.I64)

    def load_run(self, w: Writer, buffer: int, number: Bound) -> list[str]:
        """A run's expert, first row and count."""
        place = w.code.i64("mul", number, RUN_FIELDS)
        return [load_integer(w, buffer, at(w, place, i), I64) for i in range(RUN_FIELDS)]
