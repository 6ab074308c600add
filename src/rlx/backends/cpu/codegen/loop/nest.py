"""Loops over axes, vectorised along one, in pieces in which guards are decided."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

from rlx.backends.cpu.codegen.loop.scope import LoopContext
from rlx.backends.cpu.llvm.builder import Bound, Vec
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

    def sweep(
        self, axis: Axis, body: Callable[[], None], is_lane: bool, is_shared: bool = False
    ) -> None:
        """Run `body` over the axis: in each piece whole blocks, then the remainder. A loop that is
        not the parallel one is inside one unit: where that is long, it polls."""
        for piece in self.cuts.pieces(axis):
            first, last = self.ends(piece, is_shared)
            run = self.blocks if is_lane else self.steps_of
            with self.piece(piece, is_lane):
                run(axis, first, last, body, is_polled=not is_shared)

    def piece(self, piece: Piece, is_lane: bool = False) -> AbstractContextManager[None]:
        """The scope of a piece, in which its guards are decided."""
        decided = {**self.context.at.decided, **piece.decided}
        low = piece.low[0] - piece.low[1] if is_lane else self.context.at.piece_low
        return self.context.scope(decided=decided, piece_low=low)

    def ends(self, piece: Piece, is_shared: bool) -> tuple[Bound, Bound]:
        """The range of a piece, clipped to this task's."""
        first, last = self.bound(piece.low), self.bound(piece.high)
        if not is_shared:
            return first, last
        first = self.code.most("%start", first)
        return first, self.code.most(first, self.code.least("%stop", last))

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
        rest = self.code.let(f"srem i64 {left}, {step}")
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
        narrow = left if width == 64 else self.code.let(f"trunc i64 {left} to i{width}")
        return self.code.iota(kind) < self.code.splat(narrow, kind)


def _cost(node: Expr) -> int:
    return cost_of(node) if isinstance(node, Apply) else 1


def _extent(axis: Axis) -> int:
    return int(axis.extent) if is_static(axis.extent) else ASSUMED_EXTENT
