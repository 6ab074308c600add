"""Reductions: across the lanes of a row, or down the rows with an accumulator for each lane."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from rlx.backends.cpu.codegen.loop.combine import fold
from rlx.backends.cpu.codegen.loop.nest import Loops
from rlx.backends.cpu.llvm.builder import Bound, Vec
from rlx.core.dim import upper_bound
from rlx.core.dtype import DType
from rlx.kernel.expr import Axis, Expr, Load, Reduce, postorder
from rlx.kernel.refusal import NotLowered

CHAIN = 128
"""Float additions per chain; the chain's sum is then added to one in f64. A chain as long as the
axis was seven times as far from f64 on a mean of 6400 positive numbers."""


Slots = dict[tuple[Reduce, int], str]
"""The accumulators of reductions, for each copy."""


def is_rounded(r: Reduce) -> bool:
    """Does each step of the reduction round? Of products it is as little as it can be."""
    return r.fold == "sum" and r.dtype.compute in (DType.F32, DType.F64)


@dataclass(frozen=True, slots=True)
class Chain:
    """The loop of a reduction that is split so that chains of additions are short: the axis, and
    the iterations of one chain."""

    axis: Axis
    iterations: int


class Reductions(Loops):
    """Computes reductions."""

    def reduce_ready(self, roots: Sequence[Expr]) -> None:
        """Compute the reductions that are invariant in unopened axes, those over the same axes
        together."""
        while True:
            ready = [r for r in self.live(roots) if isinstance(r, Reduce) and self.is_ready(r)]
            if not ready:
                return
            axes = self.chain(ready[0])[0]
            self.reduce([r for r in ready if self.chain(r)[0] == axes], axes)

    def is_ready(self, r: Reduce) -> bool:
        """Not computed yet, and all that its body needs from outside it is."""
        if not r.free <= self.at.index.keys() or self.is_made(r):
            return False
        below = [n for n in self.live(self.chain(r)[1].args) if isinstance(n, Reduce)]
        return all(self.is_made(n) or not n.free <= self.at.index.keys() for n in below)

    def is_made(self, r: Reduce) -> bool:
        return r in self.at.staged or self.key(r, 0) in self.at.values

    def chain(self, r: Reduce) -> tuple[tuple[Axis, ...], Reduce]:
        """Nested reductions by one operation are one over several axes: those, and the
        innermost."""
        axes = [r.axis]
        inner = r
        while True:
            body = inner.args[0]
            if not (isinstance(body, Reduce) and body.fold == r.fold and body in self.once):
                return tuple(axes), inner
            if r.axis not in body.free:
                return tuple(axes), inner
            axes.append(body.axis)
            inner = body

    def reduced_alone(self, r: Reduce, copy: int) -> Vec:
        """A reduction under a guard: computed there, by itself."""
        self.reduce([r], self.chain(r)[0])
        return self.at.values[self.key(r, copy)]

    def reduce(self, group: Sequence[Reduce], axes: tuple[Axis, ...]) -> None:
        """Across the lanes if none are vectorised yet, else down the axes with one accumulator for
        each copy. Where an axis is open already, as with reductions of both axes of a result, the
        reduction would be repeated at each of its points: such kernels are split into steps."""
        if any(a in self.at.index for a in axes):
            raise NotLowered(f"{self.kernel.name}: its folds over {axes} are at each point of them")
        is_across = self.at.lane is None
        bodies = {r: self.chain(r)[1].args[0] for r in group}
        width = self.schedule.accumulators if is_across else self.at.copies
        slots = {(r, c): self.accumulator(r) for r in group for c in range(width)}
        lane = self.lane_of(axes, bodies.values()) if is_across else None
        loops = [a for a in axes if a is not lane] + ([lane] if lane else [])
        puts = self.staged_by(bodies.values()) if lane is self.schedule.vector else frozenset()
        self.hoist(bodies.values())
        cut = self.cut(loops, lane) if any(map(is_rounded, group)) else None
        wide = {k: self.wide_slot() for k in slots if cut is not None and is_rounded(k[0])}
        with self.scope(is_first_pass=bool(puts), is_folding=True):
            body = lambda: self.accumulate(bodies, slots, is_across)
            self.fold_over(loops, lane, body, cut, lambda: self.flush(slots, wide))
        self.at = replace(self.at, staged=self.at.staged | puts)
        for r in group:
            totals = [self.total(r, slots[r, c], wide.get((r, c))) for c in range(width)]
            if is_across:
                totals = [self.across(r, self.pairwise(r, totals))]
            made = {self.key(r, c): t.to(r.dtype.compute) for c, t in enumerate(totals)}
            self.at.values.update(made)

    # -- short chains of additions --------------------------------------------------------------

    def cut(self, loops: Sequence[Axis], lane: Axis | None) -> Chain | None:
        """The innermost loop with which the chains of additions would be too long."""
        steps = 1
        for axis in reversed(loops):
            extent = upper_bound(axis.extent)
            step = self.lanes * self.schedule.accumulators if axis is lane else 1
            if extent is None or steps * extent > CHAIN * step:
                return Chain(axis, max(1, CHAIN // steps))
            steps *= max(1, extent // step)
        return None

    def wide_slot(self) -> str:
        zero = self.code.const(0, DType.F64)
        slot = self.code.slot(zero.type)
        self.code.do(f"store {zero.type} {zero.text}, ptr {slot}")
        return slot

    def flush(self, slots: Slots, wide: Slots) -> None:
        """Add the sums of chains to those in f64, and reset them."""
        for key, slot in wide.items():
            total, zero = self.total(key[0], slots[key], slot), self.identity(key[0])
            self.code.do(f"store {total.type} {total.text}, ptr {slot}")
            self.code.do(f"store {zero.type} {zero.text}, ptr {slots[key]}")

    def total(self, r: Reduce, slot: str, wide: str | None) -> Vec:
        """The total so far, in f64 if chains were added there."""
        chain = self.loaded(r, slot)
        if wide is None:
            return chain
        like = self.code.const(0, DType.F64)
        return like.made(f"load {like.type}, ptr {wide}") + chain.to(DType.F64)

    def staged_by(self, bodies: Iterable[Expr]) -> frozenset[Expr]:
        """The row values that a pass over these bodies computes."""
        return frozenset(self.schedule.staged).intersection(self.live_outside(bodies))

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
            self.sweep(axes[0], inner, axes[0] is lane)
        else:
            self.swept_in_chains(cut, inner, flush, axes[0] is lane)

    def swept_in_chains(
        self, cut: Chain, body: Callable[[], None], flush: Callable[[], None], is_lane: bool
    ) -> None:
        """As `sweep`, flushed after each whole chain."""
        step = cut.iterations * (self.lanes * self.schedule.accumulators if is_lane else 1)
        for piece in self.cuts.pieces(cut.axis):
            first, last = self.ends(piece, is_shared=False)
            end = self.whole(first, last, step)
            low = piece.low[0] - piece.low[1] if is_lane else self.at.piece_low
            with self.scope(decided={**self.at.decided, **piece.decided}, piece_low=low):
                if first != end:
                    polled = self.iterations_per_poll(cut.axis, step)
                    with self.code.count(first, end, step, polled) as start:
                        self.chained(cut.axis, start, step, body, is_lane)
                        flush()
                (self.blocks if is_lane else self.steps_of)(cut.axis, end, last, body)

    def chained(
        self, axis: Axis, start: Bound, step: int, body: Callable[[], None], is_lane: bool
    ) -> None:
        stop = self.code.i64("add", start, step)
        if is_lane:
            self.block(axis, start, stop, self.schedule.accumulators, None, body)
        else:
            self.steps_of(axis, start, stop, body)

    def lane_of(self, axes: tuple[Axis, ...], bodies: Iterable[Expr]) -> Axis:
        """The axis that most loads are contiguous along."""
        if self.schedule.vector in axes:
            return self.schedule.vector
        loads = [n for n in postorder(bodies) if isinstance(n, Load)]
        return max(reversed(axes), key=lambda a: sum(n.at.coefficient(a) == 1 for n in loads))

    def accumulator(self, r: Reduce) -> str:
        identity = self.identity(r)
        slot = self.code.slot(identity.type)
        self.code.do(f"store {identity.type} {identity.text}, ptr {slot}")
        return slot

    def loaded(self, r: Reduce, slot: str) -> Vec:
        like = self.identity(r)
        return like.made(f"load {like.type}, ptr {slot}")

    def accumulate(self, bodies: dict[Reduce, Expr], slots: Slots, is_across: bool) -> None:
        self.reduce_ready(list(bodies.values()))
        for r, body in bodies.items():
            for copy in range(self.at.copies):
                value = self.value(body, copy)
                if is_across and self.at.tail is not None:
                    value = value.where(self.at.tail, self.identity(r))
                total = fold(r, self.loaded(r, slots[r, copy]), value)
                self.code.do(f"store {total.type} {total.text}, ptr {slots[r, copy]}")

    def pairwise(self, r: Reduce, values: list[Vec]) -> Vec:
        while len(values) > 1:
            pairs = [values[n : n + 2] for n in range(0, len(values), 2)]
            values = [fold(r, *p) if len(p) == 2 else p[0] for p in pairs]
        return values[0]

    def across(self, r: Reduce, value: Vec) -> Vec:
        """Butterfly reduction: after log₂ lanes steps every lane holds the total."""
        distance = self.lanes // 2
        while distance:
            value = fold(r, value, value.shuffled([n ^ distance for n in range(self.lanes)]))
            distance //= 2
        return value

    def identity(self, r: Reduce) -> Vec:
        return self.code.const(r.identity, r.dtype.compute)
