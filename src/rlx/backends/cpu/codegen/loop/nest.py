"""Loops over axes, vectorised along one, and loop-invariant code motion."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from rlx.backends.cpu.codegen.loop.expressions import Values
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.builder import Bound, Vec
from rlx.backends.cpu.schedule.index_set_splitting import Cut, Cuts, Piece
from rlx.core.dim import is_static
from rlx.core.dtype import DType
from rlx.kernel.expr import Apply, Axis, Expr, Kernel, Load, Reduce
from rlx.kernel.schedule import COSTS, Schedule

POLL_OPS = 1 << 18
"""Operations between two polls: some 100 µs."""
ASSUMED_EXTENT = 256
"""The assumed extent of a dynamic axis where a poll is placed."""


class Loops(Values):
    """Opens loops."""

    def __init__(self, kernel: Kernel, schedule: Schedule, isa: Isa) -> None:
        super().__init__(kernel, schedule, isa)
        self.cuts = Cuts(kernel, schedule)
        users: dict[Expr, int] = {}
        for node in kernel.nodes:
            for arg in node.args:
                users[arg] = users.get(arg, 0) + 1
        stored = {s.value for s in kernel.stores}
        self.once = {n for n, count in users.items() if count == 1 and n not in stored}
        """Values with one use."""

    def sweep(
        self, axis: Axis, body: Callable[[], None], is_lane: bool, is_shared: bool = False
    ) -> None:
        """Run `body` over the axis: in each piece whole blocks, then the remainder. A loop that is
        not the parallel one is inside one unit: where that is long, it polls."""
        for piece in self.cuts.pieces(axis):
            first, last = self.ends(piece, is_shared)
            run = self.blocks if is_lane else self.steps_of
            decided = {**self.at.decided, **piece.decided}
            low = piece.low[0] - piece.low[1] if is_lane else self.at.piece_low
            with self.scope(decided=decided, piece_low=low):
                run(axis, first, last, body, is_polled=not is_shared)

    def ends(self, piece: Piece, is_shared: bool) -> tuple[Bound, Bound]:
        """The range of a piece, clipped to this task's."""
        first, last = self.bound(piece.low), self.bound(piece.high)
        if not is_shared:
            return first, last
        first = self.code.most("%start", first)
        return first, self.code.most(first, self.code.least("%stop", last))

    def bound(self, cut: Cut) -> Bound:
        dim, offset = cut
        return self.code.i64("sub", self.dim(dim), self.dim(offset))

    def iterations_per_poll(self, axis: Axis, points: int) -> int:
        """The iterations of a loop between two polls, of so many points of the axis each."""
        open_ = self.at.index.keys() | {axis}
        total = 0
        for node in self.kernel.nodes:
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
        with count as i, self.scope(index={**self.at.index, axis: i}):
            body()

    def blocks(
        self, axis: Axis, low: Bound, high: Bound, body: Callable[[], None], is_polled: bool = False
    ) -> None:
        """Unrolled vectors, then single ones, the last of them masked."""
        most = self.schedule.accumulators if self.at.is_folding else self.schedule.unroll
        copies = [most] if most > 1 else []
        copies += [] if self.code.isa.has_masks else [1]
        for count in copies:
            step = count * self.lanes
            end = self.whole(low, high, step)
            self.block(axis, low, end, count, None, body, is_polled)
            low, is_polled = end, False
        self.block(axis, low, high, 1, high, body, is_polled)

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
            index = {**self.at.index, axis: i}
            with self.scope(index=index, lane=axis, copies=copies, tail=tail):
                body()

    def below(self, i: Bound, end: Bound) -> Vec:
        """The lanes before the end; compared in integers as wide as a lane."""
        width = max(8, min(64, 8 * self.code.isa.vector_bytes // self.lanes))
        kind = {8: DType.I8, 16: DType.I16, 32: DType.I32, 64: DType.I64}[width]
        left = self.code.least(self.code.i64("sub", end, i), self.lanes)
        narrow = left if width == 64 else self.code.let(f"trunc i64 {left} to i{width}")
        return self.code.iota(kind) < self.code.splat(narrow, kind)

    # -- liveness and hoisting ------------------------------------------------------------------

    def live(self, roots: Iterable[Expr]) -> list[Expr]:
        """What this piece needs for the roots, arguments first; not the sides of undecided selects,
        nor the bodies of computed reductions."""
        seen: dict[Expr, None] = {}
        stack = [(r, False) for r in roots]
        visited: set[Expr] = set()
        while stack:
            node, is_ready = stack.pop()
            if is_ready:
                seen[node] = None
            elif node not in visited:
                visited.add(node)
                is_made = node in self.at.staged or self.key(node, 0) in self.at.values
                below = node.args if isinstance(node, Reduce) and not is_made else self.needs(node)
                stack += [(node, True), *((a, False) for a in below)]
        return list(seen)

    def hoist(self, roots: Iterable[Expr]) -> None:
        """Hoist every value that is invariant in the next loop."""
        outer = self.at.index.keys()
        for node in self.live_outside(roots):
            if isinstance(node, Apply | Load) and node.free <= outer:
                for copy in range(self.copies_of(node)):
                    self.value(node, copy)

    def live_outside(self, roots: Iterable[Expr]) -> list[Expr]:
        """As `live`, without the bodies of reductions."""
        found: dict[Expr, None] = {}
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node not in found:
                found[node] = None
                stack += self.needs(node)
        return list(reversed(found))

    def copies_of(self, node: Expr) -> int:
        return self.at.copies if self.spread in node.free else 1


def _cost(node: Expr) -> int:
    return COSTS.get(node.op.name, 1) if isinstance(node, Apply) else 1


def _extent(axis: Axis) -> int:
    return int(axis.extent) if is_static(axis.extent) else ASSUMED_EXTENT
