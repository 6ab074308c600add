"""Cumulative ops along a row: a block takes several neighbours of each thread at a time.

Each thread folds its neighbours in order, the block scans what its threads have, and what came
before is folded in: the carry, then the threads before, then the neighbours before. Behind the end
of the row, nothing is folded and nothing stored.
"""

from __future__ import annotations

from rlx.backends.gpu.lower.expressions import combined, zipped
from rlx.backends.gpu.lower.loop import index_dtype_of
from rlx.backends.gpu.lower.scan.associative import Associative
from rlx.backends.gpu.lower.scan.steps import Steps
from rlx.backends.gpu.lower.scopes import Guards, Scope, Values
from rlx.backends.gpu.schedule.scan import RowSchedule
from rlx.core.dim import product
from rlx.core.errors import Error
from rlx.kernel.expr import Load, Reduce
from rlx.kernel.scan import Value
from rlx.program.builder import Builder
from rlx.program.program import Program
from rlx.program.values import Var


def emit_rows(
    step: Associative,
    schedule: RowSchedule,
    constants: frozenset[int],
    is_dependent: bool,
    name: str,
) -> Program:
    """The program of a cumulative op along rows."""
    return _Rows(step, schedule, constants, name).program(is_dependent)


class _Rows(Steps):
    """One program."""

    def __init__(
        self, step: Associative, schedule: RowSchedule, constants: frozenset[int], name: str
    ) -> None:
        self.step, self.schedule = step, schedule
        kernels = step.kernels
        chunk = schedule.chunks
        self.axes = (*([chunk.axis] if chunk else []), *schedule.points)
        self.count = product(a.extent for a in self.axes)
        builder = Builder(name, block=schedule.block, grid=(self.count,), warp=schedule.warp)
        reach = kernels.scan.time.extent + schedule.block * schedule.width
        index = index_dtype_of(kernels.whole, [self.count, reach], schedule.index_bits)
        vector = kernels.scan.time if schedule.is_aligned else None
        super().__init__(builder, kernels, index, vector, constants)

    def declare(self, constants: frozenset[int]) -> None:
        super().declare(constants)
        has_start = self.schedule.chunks is not None
        self.start = self.buffer("start", self.step.carry.dtype, "read", has_start)

    def program(self, is_dependent: bool) -> Program:
        if is_dependent:
            self.b.release_dependents()
            self.b.wait_dependencies()
        if self.count != 0:
            self._row()
        return self.b.program()

    def _row(self) -> None:
        """The tiles of a row, or of a chunk of one, each of a vector of every thread."""
        b, schedule, time = self.b, self.schedule, self.scan.time.extent
        point = b.block_index().to(self.index_dtype)
        index = self.opened(self.axes, point, 1)
        index[self.scan.direction] = [b.const(self.kernels.first, self.index_dtype)]
        self.scopes = [Scope(b.depth, index)]
        carry = b.variable(b.const(self.step.identity, self.step.carry.dtype.compute))
        low, high = b.const(0, self.index_dtype), self.number(time)
        if schedule.chunks is not None:
            carry.set(self.start[point].to(carry.dtype))
            (chunk,) = self.position(schedule.chunks.axis)
            length = self.dim(schedule.chunks.length)
            low = chunk * length
            high = (low + length).min(high)
        memory = b.shared("carry", carry.dtype, 1)
        own = b.thread.to(self.index_dtype) * schedule.width
        with b.loop(low, high, schedule.block * schedule.width, [carry]) as tile:
            last = self._tile(tile + own, high, Var(b, carry.value))
            memory.store(0, [last], b.thread.eq(schedule.block - 1))
            b.barrier()
            carry.set(memory[0])
            b.barrier()

    def _tile(self, first: Var, high: Var, carry: Var) -> Var:
        """The vectors of all threads at once; gives the carry behind this thread's."""
        b, op = self.b, self.step.op
        steps = [first + s for s in range(self.schedule.width)]
        inside = [s < high for s in steps]
        scope = Scope(b.depth, {self.scan.time: self._places(steps, high)}, self._mask(inside))
        nothing = b.const(self.step.identity, carry.dtype)
        with self.inside(scope):
            given = [x for x, _ in zipped([self.value(self.step.x), steps])]
            parts = [x.where(i, nothing) for x, i in zip(given, inside)]
            for i in range(1, len(parts)):
                parts[i] = b.binary(op, parts[i - 1], parts[i])
            start = b.binary(op, carry, b.block_scan(op, parts[-1], is_inclusive=False))
            behind = [b.binary(op, start, p) for p in parts]
            scope.known[self.step.now, ()] = behind
            scope.known[self.step.before, ()] = [start, *behind[:-1]]
            self._stores(inside)
        return behind[-1]

    def _places(self, steps: Values, high: Var) -> Values:
        """Positions of steps; those behind the end are the last one's, which is there to read."""
        near = steps if self.schedule.is_aligned else [s.min(high - 1) for s in steps]
        return [self.position_of(s, self.kernels.reversals[0]) for s in near]

    def _mask(self, inside: Values) -> Var | None:
        return inside[0] if self.schedule.is_aligned else None

    def _stores(self, inside: Values) -> None:
        (kernel,) = self.kernels.steps
        masks = inside[:1] if self.schedule.is_aligned else inside
        for store in kernel.stores:
            if self.kernels.stored_value(store) is None:
                firsts = [self.position(a)[0].eq(0) for a in kernel.axes if a not in store.at.axes]
                more = combined(firsts)
                made = masks if more is None else [m & more for m in masks]
                self.store(store.result, store.at, self.value(store.value), made)

    def held_value(self, node: Load, value: Value) -> Values:
        raise Error(f"{self.scan.name}: a carry is read before it is known.")

    def reduced(self, node: Reduce, guards: Guards) -> Values:
        raise Error(f"{self.scan.name}: a prefix scan reduces nothing else.")
