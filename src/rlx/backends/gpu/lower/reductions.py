"""Reductions of loop kernels.

What is the same for a whole team is folded by the team together: each thread its part of the row,
in order, then the parts, neighbours first. What varies along the row, each thread folds by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlx.backends.gpu.lower.expressions import Expressions
from rlx.backends.gpu.lower.scopes import Guards, Scope, Values
from rlx.backends.gpu.schedule.loop import GpuSchedule, chain_of
from rlx.core.dim import DimLike, exact_div, product, upper_bound
from rlx.core.dtype import DType
from rlx.kernel.expr import Axis, Expr, Kernel, Reduce
from rlx.program.builder import Builder
from rlx.program.nodes import ReduceOp
from rlx.program.values import Var, Variable

SUM_STEPS = 256
"""Terms that are added to one number: the rounding error of longer sums grows with their length,
so a thread adds up such blocks, and then the blocks."""
FOLDS: dict[str, ReduceOp] = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What a loop of a thread goes over."""

    low: Var
    extent: DimLike
    step: int


_Fold = Callable[[list[Variable], Var, Var | None], None]
"""Folds what is at an index into variables, where the mask holds."""


class Reductions(Expressions):
    """A team and its row."""

    def __init__(
        self, builder: Builder, kernel: Kernel, index: DType, schedule: GpuSchedule
    ) -> None:
        super().__init__(builder, kernel, index, schedule.vector, schedule.constants)
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
                return self.b.group_of(self.schedule.lanes)

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

    def along(self, axes: Sequence[Axis], *bodies: Callable[[], None]) -> None:
        """The team goes along axes: chunk by chunk of what it holds, or in a loop."""
        if self.is_staged(axes):
            self._each(self.chunks, bodies)
            return
        width = self.width_along(axes)
        step, extent = self.schedule.threads * width, product(a.extent for a in axes)
        unroll, high = self.schedule.unroll, self.number(extent)
        is_whole = exact_div(extent, unroll * step) is not None
        with self.b.loop(self._start(width), high, unroll * step) as flat:
            starts = [flat + number * step for number in range(unroll)]
            masks = [None if is_whole or not n else s < high for n, s in enumerate(starts)]
            opened = [self.opened(axes, s, width) for s in starts]
            self._each([Scope(self.b.depth, o, m) for o, m in zip(opened, masks)], bodies)

    def _each(self, scopes: Sequence[Scope], bodies: Sequence[Callable[[], None]]) -> None:
        """One after the other, each in all scopes: loads come before all stores, as a store may
        write what a later load reads, for all that an assembler knows."""
        for body in bodies:
            for scope in scopes:
                with self.inside(scope):
                    body()

    def is_staged(self, axes: Sequence[Axis]) -> bool:
        return bool(self.chunks) and set(axes) == set(self.schedule.row)

    # -- folding ---------------------------------------------------------------------------------

    def reduced(self, node: Reduce, guards: Guards) -> Values:
        """Called where the value belongs: the innermost scope is that one."""
        if self.schedule.threads > 1 and len(self.scopes) == 1:
            return self._together(node, guards)
        return self._alone(node, guards)

    def _alone(self, node: Reduce, guards: Guards) -> Values:
        """A loop of this thread, for each of its neighbours."""
        totals = self._totals(node, self._slots(node))
        bounds = _Bounds(self.b.const(0, self.index_dtype), node.axis.extent, 1)

        def fold(into: list[Variable], i: Var, mask: Var | None) -> None:
            with self.inside(Scope(self.b.depth, {node.axis: [i]}, mask)):
                self._masked_fold(node, into, self.value(node.args[0], guards))

        self._folded(node, totals, bounds, fold)
        return [Var(t.builder, t.value) for t in totals]

    def _folded(self, node: Reduce, totals: list[Variable], bounds: _Bounds, fold: _Fold) -> None:
        """A loop that folds; a long sum of floats in blocks."""
        b, step, high = self.b, bounds.step, self.number(bounds.extent)
        longest = upper_bound(product(a.extent for a in chain_of(node)[0]))
        is_short = longest is not None and longest <= SUM_STEPS * step
        if is_short or node.fold != "sum" or not node.dtype.is_float:
            self._unrolled(totals, bounds, (bounds.low, high), fold)
            return
        span = SUM_STEPS * step
        with b.loop(b.const(0, self.index_dtype), high, span, totals) as start:
            parts = self._totals(node, len(totals))
            self._unrolled(parts, bounds, (start + bounds.low, (start + span).min(high)), fold)
            self._fold(node, totals, [Var(p.builder, p.value) for p in parts])

    def _unrolled(
        self, totals: list[Variable], bounds: _Bounds, ends: tuple[Var, Var], fold: _Fold
    ) -> None:
        """A loop of several vectors at a time; those behind the end are masked."""
        unroll, step = self.schedule.unroll, bounds.step
        is_whole = exact_div(bounds.extent, unroll * step) is not None
        with self.b.loop(*ends, unroll * step, totals) as i:
            for number in range(unroll):
                at = i + number * step
                fold(totals, at, None if is_whole or not number else at < ends[1])

    def _together(self, node: Reduce, guards: Guards) -> Values:
        axes, body = chain_of(node)
        if self.is_staged(axes):
            axes = self.schedule.row
        wide = self._slots(node) if self.schedule.team == "column" else self.width_along(axes)
        totals = self._totals(node, wide)
        self._team_folded(node, totals, axes, body, guards)
        if self.schedule.team == "column":
            return self._down(node, totals)
        total = totals[0]
        for more in totals[1:]:
            total.set(_combine(node, total, more))
        op = FOLDS[node.fold]
        if self.schedule.team == "warp":
            return [self.b.warp_reduce(op, total)]
        return [self.b.block_reduce(op, total)]

    def _team_folded(
        self,
        node: Reduce,
        totals: list[Variable],
        axes: Sequence[Axis],
        body: Expr,
        guards: Guards,
    ) -> None:
        """Each thread's part of the row."""
        if self.is_staged(axes):
            fold_chunk = lambda: self._masked_fold(node, totals, self.value(body, guards))
            self._each(self.chunks, [fold_chunk])
            return
        width = self.width_along(axes)

        def fold(into: list[Variable], flat: Var, mask: Var | None) -> None:
            with self.inside(Scope(self.b.depth, self.opened(axes, flat, width), mask)):
                self._masked_fold(node, into, self.value(body, guards))

        extent = product(a.extent for a in axes)
        bounds = _Bounds(self._start(width), extent, self.schedule.threads * width)
        self._folded(node, totals, bounds, fold)

    def _down(self, node: Reduce, parts: Sequence[Var]) -> Values:
        """The parts of columns, through shared memory: the first group's first."""
        b, lanes, count = self.b, self.schedule.lanes, len(parts)
        block = self.schedule.block
        memory = b.shared(f"parts{len(b.made.shared)}", parts[0].dtype, block * count)
        for slot, part in enumerate(parts):
            memory[b.thread + slot * block] = part
        b.barrier()
        lane = b.lane_of(lanes)
        totals = [memory[lane + slot * block] for slot in range(count)]
        for group in range(1, self.schedule.threads):
            starts = [slot * block + group * lanes for slot in range(count)]
            totals = [_combine(node, t, memory[lane + s]) for t, s in zip(totals, starts)]
        return totals

    def _slots(self, node: Reduce) -> int:
        """Neighbours that a reduction is made for."""
        return max((len(self.position(a)) for a in node.free), default=1)

    def _totals(self, node: Reduce, slots: int) -> list[Variable]:
        start = self.b.const(node.identity, node.dtype.compute)
        return [self.b.variable(start) for _ in range(slots)]

    def _masked_fold(self, node: Reduce, totals: list[Variable], values: Values) -> None:
        """Behind the end of the row, nothing is added."""
        mask = self.scopes[-1].mask
        if mask is not None:
            values = [v.where(mask, node.identity) for v in values]
        self._fold(node, totals, values)

    def _fold(self, node: Reduce, totals: list[Variable], values: Values) -> None:
        for i, total in enumerate(totals):
            total.set(_combine(node, total, values[i if len(values) > 1 else 0]))


def _combine(node: Reduce, a: Var, b: Var) -> Var:
    return a.builder.binary(FOLDS[node.fold], a, b)
