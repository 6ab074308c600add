"""Loop kernels as LLVM text with explicit vectors. Pure: kernel, schedule and instruction set in,
text out.

The method: open one loop per axis; at each level make every value that needs no deeper axis,
reductions included; where all axes of a store are open, store. All values are vectors; one that
does not vary along the lanes is the same in each.

    i32 name(ptr buffers, ptr sizes, i64 start, i64 stop, ptr scratch)

`buffers` holds the operands' and then the results' addresses; `sizes` the values of
`sizes_of(kernel)`; `scratch` is `scratch_bytes(...)` for this call alone, to keep row values in.
The part [start, stop) of the parallel axis is done; what does not vary along that axis belongs to
the part with its first point, so at least [0, 1) must be handed out. The result is 0, or n if a
row that the n-th gathering load wanted is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from rlx.backends.cpu import arith
from rlx.backends.cpu.cuts import Cut, Cuts, Piece
from rlx.backends.cpu.folds import fold, identity_of
from rlx.backends.cpu.halves import HALVES
from rlx.backends.cpu.ir import Bound, Vec
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.values import Values
from rlx.dtype import DType
from rlx.kernel.collapse import collapsed
from rlx.kernel.expr import (
    Apply,
    Axis,
    Expr,
    Kernel,
    Load,
    Reduce,
    Store,
    postorder,
)
from rlx.kernel.parts import SPLIT, has_complex, split, touches_complex
from rlx.kernel.schedule import Schedule, check
from rlx.kernel.spell import spelled

ATTRIBUTES = (
    'attributes #0 = {{ nounwind "min-legal-vector-width"="{0}" "prefer-vector-width"="{0}" }}'
)


BAND = 256
"""Rows of a band of tiles: their lines stay near until they are full."""
STREAMING = "!0 = !{i32 1}"


@dataclass(frozen=True, slots=True)
class Function:
    """One kernel's text, and what it shares with others of its module."""

    name: str
    text: str
    shared: tuple[tuple[str, str], ...]


def head_of(name: str) -> str:
    """How every function that a program calls begins."""
    args = "ptr %buffers, ptr %sizes, i64 %start, i64 %stop, ptr %scratch"
    return f"define dso_local i32 @{name}({args})"


def module(functions: Iterable[Function], isa: Isa) -> str:
    """The text of a module: what is shared once, then the functions."""
    made = list(functions)
    shared = {name: text for f in made for name, text in f.shared}
    attributes = ATTRIBUTES.format(isa.vector_bytes * 8)
    return "\n".join([*shared.values(), *(f.text for f in made), attributes, STREAMING, ""])


def legal(kernel: Kernel) -> Kernel:
    """The kernel in ops and dtypes that the CPU has; schedules are chosen for this one."""
    kernel = collapsed(kernel)
    if has_complex(kernel):
        kernel = split(spelled(kernel, _is_native_or_split))
    return spelled(kernel, lambda node: arith.is_native(node.op.name))


def _is_native_or_split(node: Apply) -> bool:
    return not touches_complex(node) or node.op.name in SPLIT


def emit(kernel: Kernel, schedule: Schedule, isa: Isa, name: str = "") -> Function:
    """The function of a legal kernel."""
    check(schedule, kernel)
    return Emitter(kernel, schedule, isa).function(name or kernel.name)


class Emitter(Values):
    """One function."""

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

    def function(self, name: str) -> Function:
        code = self.code
        if self.schedule.streaming:
            self.streamed()
        for stores in self.nests():
            self.nest(stores)
        code.do("ret i32 0")
        code.lines += self.failures
        code.entry[:0] = self.arguments()
        return Function(name, code.function(head_of(name)), tuple(code.shared.items()))

    def streamed(self) -> None:
        """The nests with stores that go past the caches, if buffers and part begin on a line."""
        code = self.code
        places = [f"%y{i}" for i in range(len(self.kernel.results))]
        bits = [code.let(f"ptrtoint ptr {p} to i64") for p in places]
        together = "%start" if self.schedule.parallel is self.schedule.vector else "0"
        for number in bits:
            together = code.let(f"or i64 {together}, {number}")
        low = code.let(f"and i64 {together}, 63")
        is_aligned = code.let(f"icmp eq i64 {low}, 0")
        yes, no = code.label("yes"), code.label("no")
        code.do(f"br i1 {is_aligned}, label %{yes}, label %{no}")
        code.lines.append(f"{yes}:")
        self.is_streaming = True
        for stores in self.nests():
            self.nest(stores)
        self.is_streaming = False
        code.do("fence seq_cst", "ret i32 0")
        code.lines.append(f"{no}:")

    def arguments(self) -> Iterator[str]:
        """The entry's lines that read addresses and sizes."""
        names = [f"%x{i}" for i in range(len(self.kernel.operands))]
        names += [f"%y{i}" for i in range(len(self.kernel.results))]
        for i, name in enumerate(names):
            yield f"  %b{i} = getelementptr ptr, ptr %buffers, i64 {i}"
            yield f"  {name} = load ptr, ptr %b{i}"
        for i, name in enumerate(self.sizes.values()):
            yield f"  %n{i} = getelementptr i64, ptr %sizes, i64 {i}"
            yield f"  {name} = load i64, ptr %n{i}"

    # -- loops ----------------------------------------------------------------------------------

    def nests(self) -> list[list[Store]]:
        """Stores that share loops: each needs the outermost few. Others have loops of their own."""
        order = self.schedule.order
        shared: list[Store] = []
        alone: list[list[Store]] = []
        for store in self.kernel.stores:
            if self.kernel.results[store.result].num_elements == 0:
                continue
            is_outer = frozenset(order[: len(store.at.axes)]) == store.at.axes
            (shared.append(store) if is_outer and store.at.axes else alone.append([store]))
        return [shared, *alone] if shared else alone

    def nest(self, stores: list[Store]) -> None:
        needed = frozenset[Axis]().union(*(s.at.axes for s in stores))
        axes = tuple(a for a in self.schedule.order if a in needed)
        is_split = self.schedule.parallel in needed
        with nullcontext() if is_split else self.in_first_part(), self.scope():
            self.level(axes, stores)

    def in_first_part(self) -> AbstractContextManager[None]:
        code = self.code
        low = code.let("icmp sle i64 %start, 0")
        high = code.let("icmp sgt i64 %stop, 0")
        return code.when(code.let(f"and i1 {low}, {high}"))

    def level(self, axes: tuple[Axis, ...], stores: Sequence[Store]) -> None:
        """Make what is known here, do the stores whose axes are open, go one axis deeper."""
        self.reduce_ready([s.value for s in stores])
        here = [s for s in stores if s.at.axes <= self.at.index.keys()]
        self.store_all(here)
        deeper = [s for s in stores if s not in here]
        if not axes or not deeper:
            return
        self.hoist(s.value for s in deeper)
        is_shared = axes[0] is self.schedule.parallel
        if axes[0] is self.schedule.tile:
            self.tiles(axes[0], axes[1], deeper, is_shared)
            return
        is_lane = axes[0] is self.schedule.vector
        self.sweep(axes[0], lambda: self.level(axes[1:], deeper), is_lane, is_shared)

    def sweep(
        self, axis: Axis, body: Callable[[], None], is_lane: bool, is_shared: bool = False
    ) -> None:
        """Run `body` over the axis: in each piece whole blocks, then the rest."""
        for piece in self.cuts.pieces(axis):
            first, last = self.ends(piece, is_shared)
            run = self.blocks if is_lane else self.steps_of
            decided = {**self.at.decided, **piece.decided}
            low = piece.low[0] - piece.low[1] if is_lane else self.at.piece_low
            with self.scope(decided=decided, piece_low=low):
                run(axis, first, last, body)

    def ends(self, piece: Piece, is_shared: bool) -> tuple[Bound, Bound]:
        """Where a piece begins and ends, as far as it is this part's work."""
        first, last = self.bound(piece.low), self.bound(piece.high)
        if not is_shared:
            return first, last
        first = self.code.most("%start", first)
        return first, self.code.most(first, self.code.least("%stop", last))

    def bound(self, cut: Cut) -> Bound:
        dim, offset = cut
        return self.code.i64("sub", self.dim(dim), self.dim(offset))

    def tiles(self, tile: Axis, lane: Axis, stores: Sequence[Store], is_shared: bool) -> None:
        """Whole squares of both axes, then the columns and the rows that are left."""
        for rows in self.cuts.pieces(tile):
            first, last = self.ends(rows, is_shared)
            end = self.whole(first, last, self.lanes)
            with self.scope(decided={**self.at.decided, **rows.decided}):
                for columns in self.cuts.pieces(lane):
                    decided = {**self.at.decided, **columns.decided}
                    low = columns.low[0] - columns.low[1]
                    with self.scope(decided=decided, piece_low=low):
                        self.tiled(tile, lane, (first, end), columns, stores)
                self.steps_of(tile, end, last, lambda: self.level((lane,), stores))

    def tiled(
        self,
        tile: Axis,
        lane: Axis,
        rows: tuple[Bound, Bound],
        columns: Piece,
        stores: Sequence[Store],
    ) -> None:
        """Bands of rows; in a band column by column, so that lines of memory are used up."""
        low, high = self.ends(columns, is_shared=False)
        end = self.whole(low, high, self.lanes)
        code = self.code
        with code.count(rows[0], rows[1], BAND) as band:
            stop = code.least(code.i64("add", band, BAND), rows[1])
            with code.count(low, end, self.lanes) as j, code.count(band, stop, self.lanes) as i:
                index = {**self.at.index, tile: i, lane: j}
                with self.scope(index=index, lane=lane, tile=tile, copies=self.lanes):
                    self.store_all(stores)
        rest = lambda: self.blocks(lane, end, high, lambda: self.level((), stores))
        if end != high:
            self.steps_of(tile, rows[0], rows[1], rest)

    def steps_of(self, axis: Axis, low: Bound, high: Bound, body: Callable[[], None]) -> None:
        if low == high:
            return
        with self.code.count(low, high, 1) as i, self.scope(index={**self.at.index, axis: i}):
            body()

    def blocks(self, axis: Axis, low: Bound, high: Bound, body: Callable[[], None]) -> None:
        """Unrolled vectors, then single ones, the last of them masked."""
        most = self.schedule.accumulators if self.at.is_folding else self.schedule.unroll
        copies = [most] if most > 1 else []
        copies += [] if self.code.isa.has_masks else [1]
        for count in copies:
            step = count * self.lanes
            end = self.whole(low, high, step)
            self.block(axis, low, end, count, None, body)
            low = end
        self.block(axis, low, high, 1, high, body)

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
    ) -> None:
        """Vectors of the axis as lanes, masked at `end` if there is one."""
        if low == high:
            return
        with self.code.count(low, high, copies * self.lanes) as i:
            tail = None if end is None else self.below(i, end)
            index = {**self.at.index, axis: i}
            with self.scope(index=index, lane=axis, copies=copies, tail=tail):
                body()

    def below(self, i: Bound, end: Bound) -> Vec:
        """The lanes before the end; counted in numbers as wide as a lane."""
        width = max(8, min(64, 8 * self.code.isa.vector_bytes // self.lanes))
        kind = {8: DType.I8, 16: DType.I16, 32: DType.I32, 64: DType.I64}[width]
        left = self.code.least(self.code.i64("sub", end, i), self.lanes)
        narrow = left if width == 64 else self.code.let(f"trunc i64 {left} to i{width}")
        return self.code.iota(kind) < self.code.splat(narrow, kind)

    # -- what a place needs ---------------------------------------------------------------------

    def live(self, roots: Iterable[Expr]) -> list[Expr]:
        """What this piece needs for the roots, arguments first; not the sides of open choices."""
        seen: dict[Expr, None] = {}
        stack = [(r, False) for r in roots]
        visited: set[Expr] = set()
        while stack:
            node, is_ready = stack.pop()
            if is_ready:
                seen[node] = None
            elif node not in visited:
                visited.add(node)
                below = node.args if isinstance(node, Reduce) else self.needs(node)
                stack += [(node, True), *((a, False) for a in below)]
        return list(seen)

    def hoist(self, roots: Iterable[Expr]) -> None:
        """Make every value that varies only with open axes, before the next loop begins."""
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

    def store_all(self, stores: Sequence[Store]) -> None:
        """All values first, then all stores: an output may be one of the inputs."""
        count = {s: self.at.copies if self.spread in s.at.axes else 1 for s in stores}
        pairs = [(s, copy) for s in stores for copy in range(count[s])]
        values = [self.value(self.unrounded(s.value), copy) for s, copy in pairs]
        for (store, copy), value in zip(pairs, values):
            self.store(store, copy, value)

    def unrounded(self, value: Expr) -> Expr:
        """What is rounded to a half float only to be stored is rounded by the store."""
        if isinstance(value, Apply) and value.op.name == "cast" and value.dtype in HALVES:
            (given,) = value.args
            return given if given.dtype is DType.F32 else value
        return value

    # -- reductions -----------------------------------------------------------------------------

    def reduce_ready(self, roots: Sequence[Expr]) -> None:
        """Make the reductions that vary only with open axes, those over the same axes together."""
        while True:
            ready = [r for r in self.live(roots) if isinstance(r, Reduce) and self.is_ready(r)]
            if not ready:
                return
            axes = self.chain(ready[0])[0]
            self.reduce([r for r in ready if self.chain(r)[0] == axes], axes)

    def is_ready(self, r: Reduce) -> bool:
        """Not made yet, and all that its body needs from outside it is."""
        if not r.free <= self.at.index.keys() or self.key(r, 0) in self.at.values:
            return False
        below = [n for n in self.live(self.chain(r)[1].args) if isinstance(n, Reduce)]
        return all(
            self.key(n, 0) in self.at.values or not n.free <= self.at.index.keys() for n in below
        )

    def chain(self, r: Reduce) -> tuple[tuple[Axis, ...], Reduce]:
        """Folds of folds by one operation are one over several axes: those, and the innermost."""
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
        """A reduction met under a guard: made there, by itself."""
        self.reduce([r], self.chain(r)[0])
        return self.at.values[self.key(r, copy)]

    def reduce(self, group: Sequence[Reduce], axes: tuple[Axis, ...]) -> None:
        """Across the lanes if none are open yet, else down the axes with one accumulator for each
        copy."""
        is_across = self.at.lane is None
        bodies = {r: self.chain(r)[1].args[0] for r in group}
        width = self.schedule.accumulators if is_across else self.at.copies
        slots = {(r, c): self.accumulator(r) for r in group for c in range(width)}
        lane = self.lane_of(axes, bodies.values()) if is_across else None
        loops = [a for a in axes if a is not lane] + ([lane] if lane else [])
        puts = self.kept_by(bodies.values()) if lane is self.schedule.vector else frozenset()
        self.hoist(bodies.values())
        with self.scope(is_first_pass=bool(puts), is_folding=True):
            self.fold_over(loops, lane, lambda: self.accumulate(bodies, slots, is_across))
        self.at = replace(self.at, kept=self.at.kept | puts)
        for r in group:
            totals = [self.loaded(r, slots[r, c]) for c in range(width)]
            if is_across:
                totals = [self.across(r, self.pairwise(r, totals))]
            self.at.values.update({self.key(r, c): t for c, t in enumerate(totals)})

    def kept_by(self, bodies: Iterable[Expr]) -> frozenset[Expr]:
        """The row values that a pass over these bodies makes."""
        return frozenset(self.schedule.keep).intersection(self.live_outside(bodies))

    def fold_over(self, axes: Sequence[Axis], lane: Axis | None, body: Callable[[], None]) -> None:
        if axes:
            inner = lambda: self.fold_over(axes[1:], lane, body)
            self.sweep(axes[0], inner, axes[0] is lane)
        else:
            body()

    def lane_of(self, axes: tuple[Axis, ...], bodies: Iterable[Expr]) -> Axis:
        """The axis that most loads run along."""
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

    def accumulate(
        self, bodies: dict[Reduce, Expr], slots: dict[tuple[Reduce, int], str], is_across: bool
    ) -> None:
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
        """A butterfly: after log₂ lanes steps every lane holds the whole fold."""
        distance = self.lanes // 2
        while distance:
            value = fold(r, value, value.shuffled([n ^ distance for n in range(self.lanes)]))
            distance //= 2
        return value

    def identity(self, r: Reduce) -> Vec:
        return self.code.const(identity_of(r), r.dtype.compute)
