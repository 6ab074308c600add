"""Reductions of loop kernels.

What is the same for a whole team is folded by the team together: each thread its part of the row,
in order, then the parts, neighbours first. What varies along the row, each thread folds by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from rlx.backends.gpu.lower.expressions import Expressions
from rlx.backends.gpu.lower.scopes import Guards, Scope, Values
from rlx.backends.gpu.schedule import GpuSchedule, chain_of
from rlx.backends.gpu.simt.builder import Builder
from rlx.backends.gpu.simt.nodes import ReduceOp
from rlx.backends.gpu.simt.values import Var, Variable
from rlx.core.dim import product
from rlx.core.dtype import DType
from rlx.kernel.expr import Axis, Expr, Kernel, Reduce

FOLDS: dict[str, ReduceOp] = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


class Reductions(Expressions):
    """A team and its row."""

    def __init__(
        self, builder: Builder, kernel: Kernel, index: DType, schedule: GpuSchedule
    ) -> None:
        super().__init__(builder, kernel, index, schedule.vector)
        self.schedule = schedule
        self.chunks: list[Scope] = []
        """What each thread holds of the row, where it is staged."""

    # -- the row ---------------------------------------------------------------------------------

    def lane(self) -> Var | None:
        """The thread's number in a team of several."""
        match self.schedule.team:
            case "thread":
                return None
            case "warp":
                return self.b.lane
            case "block":
                return self.b.thread
            case "column":
                return self.b.warp

    def width_along(self, axes: Sequence[Axis]) -> int:
        """Neighbours along axes that a thread does at once."""
        is_vector = self.vector is not None and axes[-1] is self.vector
        return self.schedule.width if is_vector else 1

    def chunk(self, number: int) -> Scope:
        """A vector of the row that each thread holds; behind the end it is masked."""
        schedule = self.schedule
        width = self.width_along(schedule.row)
        flat = self._start(width) + number * schedule.threads * width
        extent = product(a.extent for a in schedule.row)
        is_full = isinstance(extent, int) and schedule.threads * width * (number + 1) <= extent
        mask = None if is_full else flat < self.dim(extent)
        return Scope(self.b.depth, self.opened(schedule.row, flat, width), mask)

    def _start(self, width: int) -> Var:
        lane = self.lane()
        zero = self.b.const(0, self.index_dtype)
        return zero if lane is None else lane.to(self.index_dtype) * width

    def along(
        self, axes: Sequence[Axis], body: Callable[[], None], carry: Sequence[Variable] = ()
    ) -> None:
        """The team goes along axes: chunk by chunk of what it holds, or in a loop."""
        if self.is_staged(axes):
            for chunk in self.chunks:
                with self.inside(chunk):
                    body()
            return
        with self._looped(axes, carry):
            body()

    def is_staged(self, axes: Sequence[Axis]) -> bool:
        return bool(self.chunks) and set(axes) == set(self.schedule.row)

    @contextmanager
    def _looped(self, axes: Sequence[Axis], carry: Sequence[Variable]) -> Generator[None]:
        width = self.width_along(axes)
        step = self.schedule.threads * width
        extent = self.number(product(a.extent for a in axes))
        with self.b.loop(self._start(width), extent, step, carry) as flat:
            scope = Scope(self.b.depth, self.opened(axes, flat, width))
            with self.inside(scope):
                yield

    # -- folding ---------------------------------------------------------------------------------

    def reduced(self, node: Reduce, guards: Guards) -> Values:
        """Called where the value belongs: the innermost scope is that one."""
        if self.schedule.threads > 1 and len(self.scopes) == 1:
            return self._together(node, guards)
        return self._alone(node, guards)

    def _alone(self, node: Reduce, guards: Guards) -> Values:
        """A loop of this thread, for each of its neighbours."""
        totals = self._totals(node, self._slots(node))
        low = self.b.const(0, self.index_dtype)
        with self.b.loop(low, self.dim(node.axis.extent), 1, totals) as i:
            self.scopes.append(Scope(self.b.depth, {node.axis: [i]}))
            self._fold(node, totals, self.value(node.args[0], guards))
            self.scopes.pop()
        return [Var(t.builder, t.value) for t in totals]

    def _together(self, node: Reduce, guards: Guards) -> Values:
        axes, body = chain_of(node)
        if self.is_staged(axes):
            axes = self.schedule.row
        wide = self._slots(node) if self.schedule.team == "column" else self.width_along(axes)
        totals = self._totals(node, wide)
        self.along(axes, lambda: self._step(node, totals, body, guards), totals)
        if self.schedule.team == "column":
            return [self._down(node, total) for total in totals]
        total = totals[0]
        for more in totals[1:]:
            total.set(_combine(node, total, more))
        op = FOLDS[node.fold]
        if self.schedule.team == "warp":
            return [self.b.warp_reduce(op, total)]
        return [self.b.block_reduce(op, total)]

    def _down(self, node: Reduce, part: Var) -> Var:
        """The parts of a column, through shared memory: warp 0's first."""
        b, warp = self.b, self.schedule.warp
        memory = b.shared(f"parts{len(b.made.shared)}", part.dtype, self.schedule.block)
        memory[b.thread] = part
        b.barrier()
        total = memory[b.lane]
        for group in range(1, self.schedule.threads):
            total = _combine(node, total, memory[b.lane + group * warp])
        return total

    def _slots(self, node: Reduce) -> int:
        """Neighbours that a reduction is made for."""
        return max((len(self.position(a)) for a in node.free), default=1)

    def _totals(self, node: Reduce, slots: int) -> list[Variable]:
        start = self.b.const(node.identity, node.dtype.compute)
        return [self.b.variable(start) for _ in range(slots)]

    def _step(self, node: Reduce, totals: list[Variable], body: Expr, guards: Guards) -> None:
        """Behind the end of the row, nothing is added."""
        values = self.value(body, guards)
        mask = self.scopes[-1].mask
        if mask is not None:
            values = [v.where(mask, node.identity) for v in values]
        self._fold(node, totals, values)

    def _fold(self, node: Reduce, totals: list[Variable], values: Values) -> None:
        for i, total in enumerate(totals):
            total.set(_combine(node, total, values[i if len(values) > 1 else 0]))


def _combine(node: Reduce, a: Var, b: Var) -> Var:
    return a.builder.binary(FOLDS[node.fold], a, b)
