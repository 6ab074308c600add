"""Attention over a cache: each row of a batch reads one slot, up to its own queries.

A block has one head of one query. It goes through the keys of the slot in chunks of as many as it
has threads: each thread makes the score of a key, then each thread adds the values of one column,
weighted, with the softmax kept up as chunks come (the maximum so far, and sums relative to it).
Caches that are quantised are multiplied with the scales of their blocks as they are loaded.
What is behind the queries, or before their window, is not read; the order of sums follows from the
row's position alone, so that bits depend neither on the capacity nor on other rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rlx.backends.gpu.device import VECTOR_BYTES
from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.writer import View, Writer, is_row
from rlx.backends.gpu.simt.values import SharedRef, Var, Variable
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import DimLike, exact_div, is_static, product
from rlx.core.dtype import DType
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal
from rlx.ops.nn.cached_attention import BLOCK

SLOTS, SCALES = 4, 5
"""The operand of slots, and the first of the scales of keys and values that are quantised."""
MAX_WIDTH = 4
"""Elements of a row that a thread loads at once, if they are no more than a vector."""
NO_ROOM, NO_SLOT = "queries do not fit at their position", "a slot is out of range"
INF = math.inf


def make_cached_attention(made: Launches) -> Schedule[GpuTask] | Refusal:
    """cached_attention: a block for each query of each head."""
    depths = made.special.operands[0].dims[2], made.special.results[0].dims[2]
    if not all(map(is_static, depths)):
        return Refusal(f"{made.node.label}: the depth of its heads is not fixed")
    given = _Cached.of(made)
    made.program(
        "attend",
        given.body,
        grid=(product(given.blocks),),
        block=given.threads,
        reads=given.operands,
        writes=(given.y,),
        failures=(NO_ROOM, NO_SLOT),
        note="a block a query of a head",
    )
    return made.schedule()


@dataclass(frozen=True, slots=True)
class _Cached:
    """Operands and the result, with the sizes of heads."""

    q: View
    keys: View
    values: View
    at: View
    slots: View | None
    scales: tuple[View, ...]
    """Of keys and of values; none where they are floats."""
    y: View
    attrs: dict[str, Any]
    threads: int

    @classmethod
    def of(cls, made: Launches) -> _Cached:
        q, keys, values, at = (made.operand(i) for i in range(SLOTS))
        count = len(made.special.operands)
        slots = made.operand(SLOTS) if count > SLOTS else None
        scales = tuple(made.operand(i) for i in range(SCALES, count))
        attrs, y, machine = dict(made.node.attrs), made.result(), made.machine
        wanted = int(y.layout.dims[2]) // attrs["num_heads"]
        threads = max(machine.warp, min(machine.block, 1 << (wanted - 1).bit_length()))
        return cls(q, keys, values, at, slots, scales, y, attrs, threads)

    @property
    def operands(self) -> tuple[View, ...]:
        last = () if self.slots is None else (self.slots, *self.scales)
        return (self.q, self.keys, self.values, self.at, *last)

    @property
    def heads(self) -> int:
        return self.attrs["num_heads"]

    @property
    def kv_heads(self) -> int:
        return self.attrs["kv_heads"] or self.heads

    @property
    def depth(self) -> int:
        return int(self.q.layout.dims[2]) // self.heads

    @property
    def columns(self) -> int:
        """Of the values of a head."""
        return int(self.y.layout.dims[2]) // self.heads

    @property
    def blocks(self) -> tuple[DimLike, ...]:
        return (self.q.layout.dims[0], self.heads, self.q.layout.dims[1])

    @property
    def dtype(self) -> DType:
        """What it computes in."""
        return self.q.dtype.compute

    def body(self, w: Writer) -> None:
        row, head, query = w.split(w.block_index(), self.blocks)
        _Block(self, w, row, head, query).run()


@dataclass(slots=True)
class _Block:
    """The program of a block."""

    given: _Cached
    w: Writer
    row: Var
    head: Var
    query: Var

    def run(self) -> None:
        given, b, dtype = self.given, self.w.b, self.given.dtype
        slot, low, high = self._range()
        weights = b.shared("weights", dtype, given.threads)
        top, total = b.variable(-INF, dtype), b.variable(0.0, dtype)
        count = -(-given.columns // given.threads)
        sums = [b.variable(0.0, dtype) for _ in range(count)]
        with b.loop(low, high, given.threads, carry=[top, total, *sums]) as base:
            factor = self._weighted(weights, (slot, base, high), (top, total))
            b.barrier()
            for number, value in enumerate(sums):
                value.set(value * factor)
                self._added(weights, value, slot, (base, high), number)
            b.barrier()
        for number, value in enumerate(sums):
            self._stored(value / total.where(total.ne(0.0), 1.0), number)

    # -- what is read ------------------------------------------------------------------------------

    def _range(self) -> tuple[Var, Var, Var]:
        """The slot, and the keys that the query sees: none where the call is an error. Bounds of
        loops are the same in all threads, which no compiler believes of what is loaded."""
        given, w, b = self.given, self.w, self.w.b
        found = w.load(given.at, w.at(given.at.layout, [self.row]))[0]
        queries, capacity = w.number(given.q.layout.dims[1]), w.number(given.keys.layout.dims[1])
        fits = is_row(found, capacity - queries + 1)
        slot, is_known = self._slot()
        w.fail(~fits & b.thread.eq(0), NO_ROOM)
        w.fail(~is_known & b.thread.eq(0), NO_SLOT)
        place = w.wide(found).where(fits, 0) + self.query
        high = (place + 1).where(fits & is_known, 0)
        window = given.attrs["window"]
        low = w.number(0) if window is None else (place - window).max(0)
        return slot, self._same(low), self._same(high)

    def _same(self, value: Var) -> Var:
        """A value that is the same in all threads, as compilers know it."""
        return self.w.b.block_reduce("max", value)

    def _slot(self) -> tuple[Var, Var]:
        given, w = self.given, self.w
        if given.slots is None:
            return self.row, w.b.const(True, DType.BOOL)
        found = w.load(given.slots, w.at(given.slots.layout, [self.row]))[0]
        is_known = is_row(found, w.dim(given.keys.layout.dims[0]))
        return w.wide(found).where(is_known, 0), is_known

    def _kv_head(self) -> Var:
        return self.head // (self.given.heads // self.given.kv_heads)

    # -- scores ------------------------------------------------------------------------------------

    def _weighted(
        self, weights: SharedRef, where: tuple[Var, Var, Var], kept: tuple[Variable, Variable]
    ) -> Var:
        """The weights of a chunk of keys, relative to the greatest score so far; what was summed
        before is multiplied with what is returned."""
        w, b, (slot, base, high), (top, total) = self.w, self.w.b, where, kept
        key = base + w.wide(b.thread)
        inside = key < high
        score = self._score(slot, key.where(inside, 0)).where(inside, -INF)
        before = b.variable(top)
        top.set(top.max(b.block_reduce("max", score)))
        shift = top.where(top.ne(-INF), 0.0)
        weight, factor = (b.call("exp", x - shift) for x in (score, before))
        weights[b.thread] = weight
        total.set(total * factor + b.block_reduce("add", weight))
        return factor

    def _score(self, slot: Var, key: Var) -> Var:
        given, w, b = self.given, self.w, self.w.b
        depth, total = given.depth, b.variable(0.0, given.dtype)
        width = min(_width(given.q, depth), _width(given.keys, depth))
        first = [self.row, self.query, self.head * depth]
        second = [slot, key, self._kv_head() * depth]
        starts = [w.at(v.layout, p) for v, p in ((given.q, first), (given.keys, second))]
        steps = [int(v.layout.strides[2]) for v in (given.q, given.keys)]
        scales = self._scales(0, slot, key, self._kv_head() * depth)
        with b.loop(w.number(0), w.number(depth), width, carry=[total]) as d:
            both = [
                w.ref(v).load(start + d * step, width)
                for v, start, step in zip((given.q, given.keys), starts, steps)
            ]
            scale = None if scales is None else self._scale(0, scales, d)
            for x, y in zip(*both):
                total.set(total + x.to(given.dtype) * self._cached(y, scale))
        return self._scaled(total)

    def _scales(self, number: int, slot: Var, key: Var, first: Var) -> Var | None:
        """Where the scales of a head begin, from an element of a row on; none of floats."""
        if not self.given.scales:
            return None
        layout = self.given.scales[number].layout
        return self.w.at(layout, [slot, key, first // BLOCK])

    def _scale(self, number: int, start: Var, element: Var) -> Var:
        """Of an element of a head: blocks of a head are whole."""
        view = self.given.scales[number]
        at = start + element // BLOCK * self.w.dim(view.layout.strides[2])
        return self.w.ref(view)[at].to(self.given.dtype)

    def _cached(self, value: Var, scale: Var | None) -> Var:
        """What is cached, rounded as queries are."""
        wide = value.to(self.given.dtype)
        return (wide if scale is None else wide * scale).to(self.given.q.dtype).to(self.given.dtype)

    def _scaled(self, score: Var) -> Var:
        given, b = self.given, self.w.b
        scale, softcap = given.attrs["scale"], given.attrs["softcap"]
        made = score * (1 / math.sqrt(given.depth) if scale is None else scale)
        return made if softcap is None else b.call("tanh", made / softcap) * softcap

    # -- values ------------------------------------------------------------------------------------

    def _added(
        self, weights: SharedRef, value: Variable, slot: Var, keys: tuple[Var, Var], number: int
    ) -> None:
        """A thread's column of the values of a chunk, weighted."""
        given, w, b, (base, high) = self.given, self.w, self.w.b, keys
        column, inside = self._column(number)
        start = w.at(given.values.layout, [slot, base, self._kv_head() * given.columns + column])
        step = w.dim(given.values.layout.strides[1])
        scales = self._scales(1, slot, base, self._kv_head() * given.columns)
        with b.loop(w.number(0), (high - base).min(given.threads), carry=[value]) as key:
            (found,) = w.ref(given.values).load(start + key * step, 1, inside)
            scale = None
            if scales is not None:
                row = scales + key * w.dim(given.scales[1].layout.strides[1])
                scale = self._scale(1, row, column)
            value.set(value + weights[key] * self._cached(found, scale))

    def _column(self, number: int) -> tuple[Var, Var]:
        """The column of a thread, and whether there is one."""
        column = self.w.wide(self.w.b.thread) + number * self.given.threads
        inside = column < self.given.columns
        return column.where(inside, 0), inside

    def _stored(self, value: Var, number: int) -> None:
        given, w = self.given, self.w
        column, inside = self._column(number)
        place = [self.row, self.query, self.head * given.columns + column]
        made = [value.to(given.y.dtype)]
        w.store(given.y, w.at(given.y.layout, place), made, inside)


def _width(view: View, depth: int) -> int:
    """Elements that a thread loads at once: every head of a row begins at a multiple of them."""
    *outer, last = view.layout.strides
    width = min(MAX_WIDTH, VECTOR_BYTES // view.dtype.itemsize)
    parts = (depth, view.layout.offset, *outer)
    is_aligned = last == 1 and all(exact_div(p, width) is not None for p in parts)
    return width if is_aligned else 1
