"""What every program of attention begins with: arguments, rows, results and softmax."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from rlx.backends.gpu.lower.attention.frame import Frame, Panel, Row
from rlx.backends.gpu.lower.attention.results import Results
from rlx.backends.gpu.lower.attention.rotary import TurnedRows
from rlx.backends.gpu.lower.attention.softmax import Softmax
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.attention import AttentionSchedule
from rlx.core.dim import exact_div, upper_bound
from rlx.kernel.attention import Attention
from rlx.program.builder import Builder
from rlx.program.values import SharedRef, Var


class AttentionKernel(ABC):
    """One program."""

    is_scaled = False
    """Are the queries multiplied by the scale before their products?"""

    def __init__(
        self,
        form: Attention,
        schedule: AttentionSchedule,
        machine: GpuMachine,
        constants: frozenset[int],
        b: Builder,
    ) -> None:
        self.form, self.schedule, self.machine, self.b = form, schedule, machine, b
        rows, splits = schedule.rows, schedule.splits
        self.frame = Frame(
            b, form, rows, splits, schedule.members, schedule.section, machine.index_bits
        )
        self.frame.take(constants)
        has_parts = schedule.splits > 1 and not schedule.is_cluster
        self.results = Results(self.frame, has_parts=has_parts)
        self.softmax = Softmax(self.frame, is_scaled=self.is_scaled)
        self.declare()

    @abstractmethod
    def declare(self) -> None:
        """Tiles, shared memory and barriers of the program."""

    @abstractmethod
    def build(self) -> None:
        """Write the program."""

    def row(self, number: Var) -> Row:
        """A row of the block."""
        return self.frame.row(self.frame.first + number)

    # -- rotary embeddings -----------------------------------------------------------------------

    def request_angles(self) -> None:
        """Of the queries and of new keys, if they are to be turned."""
        form, frame = self.form, self.frame
        if form.rotary is None:
            return
        threads, rows = self.b.made.block, self.schedule.rows
        count = (frame.count - frame.first).max(0).min(rows)
        most = upper_bound(form.queries * frame.members)
        most = rows if most is None else min(rows, most)
        query: Callable[[Var], Var] = lambda number: self.row(number).query
        self.turned_queries = TurnedRows(frame, threads, count, most, query)
        new = form.k.dims[2]
        self.turned_keys = TurnedRows(
            frame, threads, frame.number(new), upper_bound(new), lambda number: number
        )

    def turn_queries(self, memory: SharedRef, panels: tuple[Panel, ...]) -> None:
        """Where they have arrived, for all threads to see."""
        if self.form.rotary is not None:
            self.turned_queries.turn(memory, 0, panels, lambda row: (row, None))
            self.b.barrier()

    def turn_keys(
        self, first: Var, memory: SharedRef, base: Var, panels: tuple[Panel, ...]
    ) -> None:
        """The new ones of a tile of keys, from key `first` on."""
        form, frame, keys = self.form, self.frame, self.schedule.keys
        if form.rotary is None:
            return
        past = frame.number(0 if form.past is None else form.past.keys)

        def place(row: Var) -> tuple[Var, Var]:
            here = row + past - first
            return here, (here >= 0) & (here < keys)

        with self.b.when(first + keys > past):
            self.turned_keys.turn(memory, base, panels, place)
            self.b.barrier()

    def keys_divide(self) -> bool:
        """Are there only whole tiles of keys?"""
        return exact_div(self.form.keys, self.schedule.keys) is not None
