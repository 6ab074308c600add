"""Loops over axes, vectorised along one, in pieces in which guards are decided."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

from rlx.backends.cpu.codegen.loop.scope import LoopContext
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.schedule.index_set_splitting import Cut, Cuts, Piece
from rlx.core.dim import is_static
from rlx.core.dtype import DType
from rlx.kernel.cost import cost_of
from rlx.kernel.expr import Apply, Axis, Expr, Reduce

POLL_OPS = 1 << 18
"""Operations between two polls: some 100 µs."""
ASSUMED_EXTENT = 256
"""The assumed extent of a dynamic axis where a poll is placed."""


class LoopNest:
    """Opens loops."""

    def __init__(self, context: LoopContext) -> None:
        self.context, self.code, self.lanes = context, context.code, context.lanes
        self.cuts = Cuts(context.kernel, context.schedule)

    def sweep(self, axis: Axis, body: Callable[[], None], is_lane: bool) -> None:
        """Run `body` over a loop of results, of a parallel one over this task's range. A loop that
        is not parallel is inside one unit: where that is long, it polls."""
        is_polled = axis not in self.context.schedule.parallel
        for piece in self.cuts.pieces(axis):
            self.run(axis, piece, self.ends(piece, axis), body, is_lane, is_polled)

    def fold(self, axis: Axis, body: Callable[[], None], is_lane: bool) -> None:
        """Run `body` over all of an axis that is reduced."""
        for piece in self.cuts.pieces(axis):
            self.run(axis, piece, self.bounds(piece), body, is_lane, is_polled=True)

    def run(
        self,
        axis: Axis,
        piece: Piece,
        ends: tuple[Bound, Bound],
        body: Callable[[], None],
        is_lane: bool,
        is_polled: bool,
    ) -> None:
        """In a piece of an axis whole blocks, then the remainder."""
        each = self.blocks if is_lane else self.steps_of
        with self.piece(piece, is_lane):
            each(axis, *ends, body, is_polled=is_polled)

    def piece(self, piece: Piece, is_lane: bool = False) -> AbstractContextManager[None]:
        """The scope of a piece, in which its guards are decided."""
        decided = {**self.context.at.decided, **piece.decided}
        low = piece.low[0] - piece.low[1] if is_lane else self.context.at.piece_low
        return self.context.scope(decided=decided, piece_low=low)

    def bounds(self, piece: Piece) -> tuple[Bound, Bound]:
        """The range of a piece."""
        return self.bound(piece.low), self.bound(piece.high)

    def ends(self, piece: Piece, axis: Axis) -> tuple[Bound, Bound]:
        """The range of a piece of a loop; of a parallel one, clipped to this task's."""
        first, last = self.bounds(piece)
        if axis not in self.context.schedule.parallel:
            return first, last
        start, stop = self.share(axis)
        first = self.code.most(start, first)
        return first, self.code.most(first, self.code.least(stop, last))

    def share(self, axis: Axis) -> tuple[Bound, Bound]:
        """This task's range of a parallel loop. Units number the iterations of all of them, the
        innermost the fastest: each outer loop that is open takes its part of a unit's number, and
        the rest is divided by the iterations inside of one of this loop, rounded outwards."""
        code, loops = self.code, self.context.schedule.parallel
        start: Bound = "%start"
        stop: Bound = "%stop"
        for number in range(loops.index(axis)):
            done = code.i64("mul", self.context.at.index[loops[number]], self.within(number))
            start, stop = code.i64("sub", start, done), code.i64("sub", stop, done)
        inside = self.within(loops.index(axis))
        if inside == 1:
            return start, stop
        last = code.i64("add", stop, code.i64("sub", inside, 1))
        return self.quotient(code.most(start, 0), inside), self.quotient(last, inside)

    def quotient(self, a: Bound, b: Bound) -> Bound:
        """Of an index that is not negative by a number that is positive."""
        return self.code.integer("div", a, b, DType.U64)

    def within(self, number: int) -> Bound:
        """The units in one iteration of a parallel loop: the iterations of those inside of it, and
        1 where there are none."""
        count: Bound = 1
        for axis in self.context.schedule.parallel[number + 1 :]:
            count = self.code.i64("mul", count, self.context.dim(axis.extent))
        return self.code.most(count, 1)

    def polls(self, axis: Axis, points: int) -> int:
        """The iterations of a loop between two polls; 0 for a parallel loop, of which a task runs a
        short part."""
        if axis in self.context.schedule.parallel:
            return 0
        return self.iterations_per_poll(axis, points)

    def bound(self, cut: Cut) -> Bound:
        dim, offset = cut
        return self.code.i64("sub", self.context.dim(dim), self.context.dim(offset))

    def iterations_per_poll(self, axis: Axis, points: int) -> int:
        """The iterations of a loop between two polls, of so many points of the axis each."""
        open_ = self.context.at.index.keys() | {axis}
        total = 0
        for node in self.context.kernel.nodes:
            varies = node.args[0] if isinstance(node, Reduce) else node
            if axis in varies.free:
                total += _cost(node) * math.prod(_extent(a) for a in varies.free - open_)
        return max(1, POLL_OPS // max(1, total * points))

    def steps_of(
        self, axis: Axis, low: Bound, high: Bound, body: Callable[[], None], is_polled: bool = False
    ) -> None:
        if low == high:
            return
        count = self.code.count(low, high, 1, self.iterations_per_poll(axis, 1) if is_polled else 0)
        with count as i, self.context.scope(index={**self.context.at.index, axis: i}):
            body()

    def blocks(
        self, axis: Axis, low: Bound, high: Bound, body: Callable[[], None], is_polled: bool = False
    ) -> None:
        """Unrolled vectors, then single ones, the last of them masked unless all are whole."""
        most = (
            self.context.schedule.accumulators
            if self.context.at.is_folding
            else self.context.schedule.unroll
        )
        copies = [most] if most > 1 else []
        copies += [1] if not self.code.isa.has_masks or self._is_whole(low, high) else []
        for count in copies:
            step = count * self.lanes
            end = self.whole(low, high, step)
            self.block(axis, low, end, count, None, body, is_polled)
            low, is_polled = end, False
        self.block(axis, low, high, 1, high, body, is_polled)

    def _is_whole(self, low: Bound, high: Bound) -> bool:
        if isinstance(low, str) or isinstance(high, str):
            return False
        return (high - low) % self.lanes == 0

    def whole(self, low: Bound, high: Bound, step: int) -> Bound:
        """The end of the last whole block."""
        if isinstance(low, int) and isinstance(high, int):
            return high - (high - low) % step
        left = self.code.i64("sub", high, low)
        rest = self.code.integer("rem", left, step)
        return self.code.i64("sub", high, rest)

    def block(
        self,
        axis: Axis,
        low: Bound,
        high: Bound,
        copies: int,
        end: Bound | None,
        body: Callable[[], None],
        is_polled: bool = False,
    ) -> None:
        """Vectors along the axis, masked at `end` if there is one."""
        if low == high:
            return
        step = copies * self.lanes
        with self.code.count(
            low, high, step, self.iterations_per_poll(axis, step) if is_polled else 0
        ) as i:
            tail = None if end is None else self.below(i, end)
            index = {**self.context.at.index, axis: i}
            with self.context.scope(index=index, lane=axis, copies=copies, tail=tail):
                body()

    def below(self, i: Bound, end: Bound) -> Vec:
        """The lanes before the end; compared in integers as wide as a lane."""
        width = max(8, min(64, 8 * self.code.isa.vector_bytes // self.lanes))
        kind = {8: DType.I8, 16: DType.I16, 32: DType.I32, 64: DType.I64}[width]
        left = self.code.least(self.code.i64("sub", end, i), self.lanes)
        narrow = left if width == 64 else self.code.converted(left, DType.I64, kind)
        return self.code.iota(kind) < self.code.splat(narrow, kind)


def _cost(node: Expr) -> int:
    return cost_of(node) if isinstance(node, Apply) else 1


def _extent(axis: Axis) -> int:
    return int(axis.extent) if is_static(axis.extent) else ASSUMED_EXTENT
