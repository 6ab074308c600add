"""What follows a product: finished sums in shared memory, expressions of them, and their stores.

Sums are where matrix instructions leave them, spread over the threads of a warp. Shared memory
makes rows of them, so that everything that is read and stored with them is contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlx.backends.gpu.lower.contraction.values import ProductValues
from rlx.backends.gpu.lower.elementwise import cast
from rlx.backends.gpu.lower.scopes import Scope, Values
from rlx.core.dtype import DType
from rlx.kernel.expr import Accumulator, Load
from rlx.program.nodes import MAX_VECTOR_BYTES
from rlx.program.values import SharedRef, Var

UNROLLED_NODES = 800
"""Expressions of the units that a thread has under way: more of them hide the latency of loads."""
MAX_UNROLLED = 4


@dataclass(frozen=True, slots=True)
class _Unit:
    """Neighbours of a line that a thread stores."""

    line: Var
    at: Var
    """The first column, of those in shared memory."""
    across: Scope
    """Its columns."""
    is_there: Var | None
    """Is there one? Always, if none is given."""


@dataclass
class SumsStore:
    """Lines of finished sums that some threads store together, a unit of neighbours at a time."""

    values: ProductValues
    sums: SharedRef
    first: Var
    """Where they are."""
    lines: int
    columns: int
    pitch: int
    thread: Var
    """The number of a thread among those that store."""
    threads: int
    column: Var
    """The flat position of the first column."""
    parts: int = 1
    """Sums of which each is a part, one behind the lines of the other."""
    is_whole: bool = False
    """Are all of the columns the product's?"""
    _across: Scope | None = None
    """The columns of a thread, where they are the same in all of its units."""

    def __post_init__(self) -> None:
        self.width = min(self.values.product.store_width, self.columns)
        self.per_line = self.columns // self.width
        if self.threads % self.per_line == 0 and self.values.product.rows:
            self._across = self._columns(self.thread)

    def _columns(self, unit: Var) -> Scope:
        """Of a unit."""
        values = self.values
        at = (unit % self.per_line * self.width).to(values.index_dtype)
        columns = values.product.columns
        return values.scope(columns, self.column + at, self.width, is_whole=self.is_whole)

    def request(self, constants: frozenset[int]) -> None:
        """Load what varies with columns alone and is constant."""
        values, across = self.values, self._across
        values.vector = next(iter(values.product.columns[-1:]), None)
        for node in values.product.contract.epilogue if across is not None else ():
            if isinstance(node, Load) and not node.args and node.operand in constants:
                assert across is not None
                if node.free and node.free <= set(across.index):
                    with values.inside(across):
                        values.value(node)

    @property
    def _row_nodes(self) -> int:
        """Expressions that are made for each row."""
        product = self.values.product
        return sum(bool(n.free & set(product.rows)) for n in product.contract.epilogue)

    def store(self, row_of: Callable[[Var], Var]) -> None:
        """Lines whose rows are given by number: each thread some units, several at a time."""
        b, threads = self.values.b, self.threads
        total = self.lines * self.per_line
        steps = -(-total // threads)
        nodes = max(1, self.width * self._row_nodes)
        most = min(steps, MAX_UNROLLED, max(1, UNROLLED_NODES // nodes))
        # as many as divide the steps: those behind the last would be units of other tiles
        together = next(n for n in range(most, 0, -1) if steps % n == 0)
        if steps == together:
            self._some([self._unit(self.thread, i * threads) for i in range(steps)], row_of)
        elif self._across is None:
            with b.loop(self.thread, total, threads * together) as at:
                self._some([self._unit(at, i * threads) for i in range(together)], row_of)
        else:
            lines = threads // self.per_line
            with b.loop(self.thread // self.per_line, self.lines, lines * together) as line:
                self._some([self._line(line + i * lines) for i in range(together)], row_of)

    def _unit(self, thread: Var, number: int) -> _Unit:
        """By the number of its first thread, and how many are before."""
        if self._across is not None:
            lines = number // self.per_line
            return self._line(thread // self.per_line + lines)
        unit = thread + number
        total = self.lines * self.per_line
        is_there = None if total % self.threads == 0 else unit < total
        line, at = unit // self.per_line, unit % self.per_line * self.width
        return _Unit(line, at, self._columns(unit), is_there)

    def _line(self, line: Var) -> _Unit:
        """Of a thread whose columns are the same in all lines."""
        assert self._across is not None
        is_there = None if self.lines * self.per_line % self.threads == 0 else line < self.lines
        at = self.thread % self.per_line * self.width
        return _Unit(line, at, self._across, is_there)

    def _some(self, units: list[_Unit], row_of: Callable[[Var], Var]) -> None:
        """Everything is read before anything is stored, which might be the same memory."""
        values, stores = self.values, self.values.product.contract.stores
        values.vector = next(iter(values.product.columns[-1:]), None)
        scopes = [self._scopes(u, row_of) for u in units]
        made: list[list[Values]] = []
        for across, row in scopes:
            with values.inside(across), values.inside(row):
                made.append([values.value(s.value) for s in stores])
        for (across, row), kept in zip(scopes, made):
            with values.inside(across), values.inside(row):
                for store, value in zip(stores, kept):
                    values.store(store.result, store.at, value, values.masks(()))

    def _scopes(self, unit: _Unit, row_of: Callable[[Var], Var]) -> tuple[Scope, Scope]:
        values = self.values
        row = values.scope(values.product.rows, row_of(unit.line))
        assert row.mask is not None
        row.mask = row.mask if unit.is_there is None else row.mask & unit.is_there
        # a value is where the innermost of its axes is: of a single row, that of the columns
        self._give(row if values.product.rows else unit.across, unit)
        return unit.across, row

    def _give(self, scope: Scope, unit: _Unit) -> None:
        """The finished sums as the values that they are."""
        total = self._summed(unit.line, unit.at, unit.is_there)
        b = self.values.b
        for node in self.values.product.contract.epilogue:
            if isinstance(node, Accumulator):
                scope.known[node, ()] = [cast(b, v, node.dtype) for v in total]

    def _summed(self, line: Var, at: Var, is_there: Var | None) -> Values:
        """Parts in their order."""
        total: Values = []
        for part in range(self.parts):
            start = self.first + (line + part * self.lines) * self.pitch + at
            found = self._read(start, is_there)
            total = found if not total else [x + y for x, y in zip(total, found)]
        return total

    def _read(self, start: Var, is_there: Var | None) -> Values:
        at_once = min(self.width, MAX_VECTOR_BYTES // self.sums.dtype.itemsize)
        starts = range(0, self.width, at_once)
        found = [v for s in starts for v in self.sums.load(start + s, at_once, is_there)]
        return [v.to(DType.F32) for v in found]
