"""Reductions: across the lanes of a row, or down the rows with an accumulator for each lane."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rlx.backends.cpu.codegen.loop.combine import (
    CHAIN,
    across,
    fold,
    identity,
    is_rounded,
    pairwise,
)
from rlx.backends.cpu.codegen.loop.expressions import Expressions
from rlx.backends.cpu.codegen.loop.liveness import Liveness
from rlx.backends.cpu.codegen.loop.nest import LoopNest
from rlx.backends.cpu.codegen.loop.scope import LoopContext
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.schedule.repeated_reductions import chain_of, used_once
from rlx.core.dim import upper_bound
from rlx.core.dtype import DType
from rlx.kernel.expr import Axis, Expr, Load, Reduce, postorder

Slots = dict[tuple[Reduce, int], str]
"""The accumulators of reductions, for each copy."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The loop of a reduction that is split so that chains of additions are short: the axis, and
    the iterations of one chain."""

    axis: Axis
    iterations: int


class Reductions:
    """Computes reductions: their values are added to the scope."""

    def __init__(
        self, context: LoopContext, expressions: Expressions, liveness: Liveness, loops: LoopNest
    ) -> None:
        self.context, self.code, self.lanes = context, context.code, context.lanes
        self.expressions, self.liveness, self.loops = expressions, liveness, loops
        self.once = used_once(context.kernel)

    def reduce_ready(self, roots: Sequence[Expr]) -> None:
        """Compute the reductions that are invariant in unopened axes, those over the same axes
        together."""
        while True:
            live = self.liveness.live(roots)
            ready = [r for r in live if isinstance(r, Reduce) and self.is_ready(r)]
            if not ready:
                return
            axes = self.chain(ready[0])[0]
            self.reduce([r for r in ready if self.chain(r)[0] == axes], axes)

    def is_ready(self, r: Reduce) -> bool:
        """Not computed yet, and all that its body needs from outside it is."""
        is_made, known = self.context.is_made, self.context.at.index.keys()
        if not r.free <= known or is_made(r):
            return False
        below = [n for n in self.liveness.live(self.chain(r)[1].args) if isinstance(n, Reduce)]
        return all(is_made(n) or not n.free <= known for n in below)

    def chain(self, r: Reduce) -> tuple[tuple[Axis, ...], Reduce]:
        """The axes of nested reductions that are one, and the innermost of them."""
        return chain_of(r, self.once)

    def reduce_alone(self, r: Reduce) -> None:
        """A reduction under a guard: computed there, by itself."""
        self.reduce([r], self.chain(r)[0])

    def reduce(self, group: Sequence[Reduce], axes: tuple[Axis, ...]) -> None:
        """Across the lanes if none are vectorised yet, else down the axes with one accumulator for
        each copy. No axis of them is open: a schedule that would repeat a reduction is refused."""
        context, schedule = self.context, self.context.schedule
        assert not any(a in context.at.index for a in axes), (context.kernel.name, axes)
        is_across = context.at.lane is None
        bodies = {r: self.chain(r)[1].args[0] for r in group}
        width = schedule.accumulators if is_across else context.at.copies
        slots = {(r, c): self.accumulator(r) for r in group for c in range(width)}
        lane = self.lane_of(axes, bodies.values()) if is_across else None
        loops = [a for a in axes if a is not lane] + ([lane] if lane else [])
        puts = self.staged_by(bodies.values()) if lane is schedule.vector else frozenset()
        self.liveness.hoist(bodies.values())
        cut = self.cut(loops, lane) if any(map(is_rounded, group)) else None
        wide = {k: self.wide_slot() for k in slots if cut is not None and is_rounded(k[0])}
        with context.scope(is_first_pass=bool(puts), is_folding=True):
            body = lambda: self.accumulate(bodies, slots, is_across)
            self.fold_over(loops, lane, body, cut, lambda: self.flush(slots, wide))
        context.stage(puts)
        for r in group:
            totals = [self.total(r, slots[r, c], wide.get((r, c))) for c in range(width)]
            if is_across:
                totals = [across(r, pairwise(r, totals))]
            made = {context.key(r, c): t.to(r.dtype.compute) for c, t in enumerate(totals)}
            context.at.values.update(made)

    # -- short chains of additions --------------------------------------------------------------

    def cut(self, loops: Sequence[Axis], lane: Axis | None) -> Chain | None:
        """The innermost loop with which the chains of additions would be too long."""
        steps = 1
        for axis in reversed(loops):
            extent = upper_bound(axis.extent)
            step = self.lanes * self.context.schedule.accumulators if axis is lane else 1
            if extent is None or steps * extent > CHAIN * step:
                return Chain(axis, max(1, CHAIN // steps))
            steps *= max(1, extent // step)
        return None

    def wide_slot(self) -> str:
        zero = self.code.const(0, DType.F64)
        return self.code.variable(zero)

    def flush(self, slots: Slots, wide: Slots) -> None:
        """Add the sums of chains to those in f64, and reset them."""
        for key, slot in wide.items():
            total, zero = self.total(key[0], slots[key], slot), identity(self.code, key[0])
            self.code.store(slot, total)
            self.code.store(slots[key], zero)

    def total(self, r: Reduce, slot: str, wide: str | None) -> Vec:
        """The total so far, in f64 if chains were added there."""
        chain = self.loaded(r, slot)
        if wide is None:
            return chain
        return self.code.load(wide, DType.F64) + chain.to(DType.F64)

    def staged_by(self, bodies: Iterable[Expr]) -> frozenset[Expr]:
        """The row values that a pass over these bodies computes."""
        return frozenset(self.context.schedule.staged).intersection(
            self.liveness.live_outside(bodies)
        )

    def fold_over(
        self,
        axes: Sequence[Axis],
        lane: Axis | None,
        body: Callable[[], None],
        cut: Chain | None,
        flush: Callable[[], None],
    ) -> None:
        if not axes:
            body()
            return
        inner = lambda: self.fold_over(axes[1:], lane, body, cut, flush)
        if cut is None or cut.axis is not axes[0]:
            self.loops.fold(axes[0], inner, axes[0] is lane)
        else:
            self.swept_in_chains(cut, inner, flush, axes[0] is lane)

    def swept_in_chains(
        self, cut: Chain, body: Callable[[], None], flush: Callable[[], None], is_lane: bool
    ) -> None:
        """As `sweep`, flushed after each whole chain."""
        step = cut.iterations * (self.lanes * self.context.schedule.accumulators if is_lane else 1)
        for piece in self.loops.cuts.pieces(cut.axis):
            first, last = self.loops.bounds(piece)
            end = self.loops.whole(first, last, step)
            with self.loops.piece(piece, is_lane):
                if first != end:
                    polled = self.loops.iterations_per_poll(cut.axis, step)
                    with self.code.count(first, end, step, polled) as start:
                        self.chained(cut.axis, start, step, body, is_lane)
                        flush()
                (self.loops.blocks if is_lane else self.loops.steps_of)(cut.axis, end, last, body)

    def chained(
        self, axis: Axis, start: Bound, step: int, body: Callable[[], None], is_lane: bool
    ) -> None:
        stop = self.code.i64("add", start, step)
        if is_lane:
            self.loops.block(axis, start, stop, self.context.schedule.accumulators, None, body)
        else:
            self.loops.steps_of(axis, start, stop, body)

    def lane_of(self, axes: tuple[Axis, ...], bodies: Iterable[Expr]) -> Axis:
        """The axis that most loads are contiguous along."""
        if self.context.schedule.vector in axes:
            return self.context.schedule.vector
        loads = [n for n in postorder(bodies) if isinstance(n, Load)]
        return max(reversed(axes), key=lambda a: sum(n.at.coefficient(a) == 1 for n in loads))

    def accumulator(self, r: Reduce) -> str:
        return self.code.variable(identity(self.code, r))

    def loaded(self, r: Reduce, slot: str) -> Vec:
        return self.code.load(slot, identity(self.code, r).dtype)

    def accumulate(self, bodies: dict[Reduce, Expr], slots: Slots, is_across: bool) -> None:
        self.reduce_ready(list(bodies.values()))
        for r, body in bodies.items():
            for copy in range(self.context.at.copies):
                value = self.expressions.value(body, copy)
                if is_across and self.context.at.tail is not None:
                    value = value.where(self.context.at.tail, identity(self.code, r))
                total = fold(r, self.loaded(r, slots[r, copy]), value)
                self.code.store(slots[r, copy], total)
