"""Rows in order, and the first of a row in order. A unit is a row."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from rlx.backends.cpu.codegen.gemm.microkernel import below
from rlx.backends.cpu.codegen.loop.vector_access import load
from rlx.backends.cpu.library.sort.radix_keys import (
    COUNTS_BYTES,
    FEW,
    NARROW,
    POLLED,
    Order,
    key_lanes,
)
from rlx.backends.cpu.llvm.builder import ELEMENT, Bound, Vec
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.program.task import KernelSequence, Step, Task, buffers, grain_of
from rlx.core.dim import DimLike, product, provably_le
from rlx.core.dtype import DType
from rlx.core.layout import Layout

TOO_LONG = f"an axis of more than {NARROW} elements is too long to sort"
SORT_NS, SCAN_PER_NS = 8, 8
"""What a word takes to sort, and how many numbers are compared with the least kept."""
TOGETHER = 4
"""Vectors that are looked at before anything is decided."""
ROOM = 256
"""At least so many words are taken in, where many are kept, before they are sorted."""

Gift = Literal["value", "position"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Elements along one axis of an array."""

    layout: Layout
    axis: int

    @property
    def length(self) -> DimLike:
        return self.layout.dims[self.axis]

    @property
    def stride(self) -> DimLike:
        return self.layout.strides[self.axis]

    @property
    def starts(self) -> Layout:
        """Where the rows begin."""
        a, old = self.axis, self.layout
        return Layout(
            old.dims[:a] + old.dims[a + 1 :], old.strides[:a] + old.strides[a + 1 :], old.offset
        )

    def element(self, w: Writer, number: int, start: Bound, at: Bound, dtype: DType) -> str:
        """The address of an element of the row that begins at `start`."""
        step = w.code.i64("mul", at, w.size(self.stride))
        return w.pointer(number, w.code.i64("add", start, step), dtype)


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows of a step, and their order."""

    step: Step
    given: Rows
    made: tuple[Rows, ...]
    gives: tuple[Gift, ...]
    """What each result gets of an element."""
    order: Order

    @classmethod
    def of(cls, step: Step, *gives: Gift, descending: bool) -> Plan:
        node = step.node
        axis = int(node.attrs["axis"]) % len(step.operands[0].dims)
        given, *made = (Rows(layout, axis) for layout in (*step.operands, *step.results))
        order = Order.of(node.inputs[0].shape.dtype, given.length, descending=descending)
        return cls(step, given, tuple(made), gives, order)

    @property
    def count(self) -> DimLike:
        return product(self.given.starts.dims)

    @contextmanager
    def each(self, w: Writer) -> Generator[list[Bound]]:
        """Where each row begins: the operand's, then the results'."""
        if not self.order.is_wide and not provably_le(self.given.length, NARROW):
            w.fail(w.code.let(f"icmp sgt i64 {w.size(self.given.length)}, {NARROW}"), 1)
        stop = w.code.least("%stop", w.size(self.count))
        with w.code.count("%start", stop, 1) as unit:
            at = w.split(unit, self.given.starts.dims)
            yield [w.place(rows.starts, at) for rows in (self.given, *self.made)]

    def key(self, w: Writer, start: Bound, at: Bound, mask: Vec | None = None) -> Vec:
        """The keys of the lanes from an element of the row on."""
        bits, stride = self.order.bits, 0 if w.code.lanes == 1 else 1
        pointer = self.given.element(w, 0, start, at, bits)
        return self.order.key(load(w.code, bits, pointer, stride, mask))

    def take(self, w: Writer, start: Bound, at: Bound, words: str) -> None:
        """Make the word of an element, where it stands in the row."""
        pointer = self.given.element(w, 0, start, at, self.order.bits)
        raw = load(w.code, self.order.bits, pointer, 0)
        word = self.order.made(w.code, self.order.key(raw).lane(), at)
        self.order.store(w.code, word, words, at)

    def put(self, w: Writer, starts: list[Bound], at: Bound, words: str) -> None:
        """Write what the word at `at` says."""
        position = self.order.position_in(w.code, words, at)
        for i, (rows, gift) in enumerate(zip(self.made, self.gives, strict=True), 1):
            kind = DType.I64 if gift == "position" else self.order.bits
            to = rows.element(w, i, starts[i], at, kind)
            value = position if gift == "position" else self._value(w, starts[0], position)
            w.code.do(f"store {ELEMENT[kind]} {value}, ptr {to}")

    def _value(self, w: Writer, start: Bound, position: str) -> str:
        pointer = self.given.element(w, 0, start, position, self.order.bits)
        return w.code.let(f"load {ELEMENT[self.order.bits]}, ptr {pointer}")

    def recipe(self, w: Writer, name: str, scratch: DimLike, row_ns: DimLike) -> KernelSequence:
        """One task, of rows that take so long each."""
        lines = (scratch + 63) // 64 * 64
        grain = grain_of(self.count, self.count * row_ns)
        given = buffers(1, len(self.made))
        return KernelSequence(
            (Task(w.function(name), given, w.sizes, self.count, grain, lines, (TOO_LONG,)),)
        )


def _all(plan: Plan, name: str) -> KernelSequence:
    """Rows sorted whole."""
    w, length = Writer(plan.step.isa), plan.given.length
    word_bytes = plan.order.word_bytes
    with plan.each(w) as starts:
        n = w.size(length)
        words = w.code.let(f"getelementptr i8, ptr %scratch, i64 {COUNTS_BYTES}")
        room = plan.order.pointer(w.code, words, n)
        with w.code.count(0, n, 1, POLLED) as i:
            plan.take(w, starts[0], i, words)
        ordered = plan.order.sort(w.code, words, room, "%scratch", n)
        with w.code.count(0, n, 1, POLLED) as i:
            plan.put(w, starts, i, ordered)
    return plan.recipe(w, name, COUNTS_BYTES + 2 * word_bytes * length, SORT_NS * length)


# -- the first few --------------------------------------------------------------------------------


class Best:
    """Rows of which the first `k` in order are kept, as words that are in order themselves.

    A key that is not less than the last one kept cannot come in, as equals go by position. Few
    words are kept in order one by one; many are taken in until the room is full, and then sorted.
    """

    def __init__(self, plan: Plan, k: int) -> None:
        self.plan, self.order, self.k = plan, plan.order, k
        self.is_few = k <= FEW
        self.capacity = k + 1 if self.is_few else k + max(k, ROOM)
        is_beside = plan.given.stride == 1
        lanes = key_lanes(plan.step.isa, plan.order.dtype) if is_beside else 1
        self.w = Writer(plan.step.isa, lanes)
        self.code, self.n = self.w.code, self.w.size(plan.given.length)
        self.limit = self.code.slot(ELEMENT[plan.order.bits])
        """The key that others must be less than."""
        self.near = self.code.slot(self.code.vector(ELEMENT[plan.order.bits]))
        self.count = self.code.slot("i64")
        self.words = self._scratch(COUNTS_BYTES)
        self.room = self._scratch(COUNTS_BYTES + self.capacity * plan.order.word_bytes)

    def _scratch(self, start: int) -> str:
        name = self.code.name("scratch")
        self.code.entry.append(f"  {name} = getelementptr i8, ptr %scratch, i64 {start}")
        return name

    def recipe(self, name: str) -> KernelSequence:
        with self.plan.each(self.w) as starts:
            self.row(starts)
        scratch = COUNTS_BYTES + 2 * self.capacity * self.order.word_bytes
        row_ns = self.plan.given.length // SCAN_PER_NS + SORT_NS * self.k
        return self.plan.recipe(self.w, name, scratch, row_ns)

    def row(self, starts: list[Bound]) -> None:
        code = self.code
        first = self.k if self.is_few else code.least(self.n, self.capacity)
        with code.count(0, first, 1, POLLED) as i:
            self.plan.take(self.w, starts[0], i, self.words)
        self.settle(first)
        self.scan(starts[0], first)
        if not self.is_few:
            self.settle(code.let(f"load i64, ptr {self.count}"))
        with code.count(0, self.k, 1, POLLED) as i:
            self.plan.put(self.w, starts, i, self.words)

    def settle(self, count: Bound) -> None:
        """Keep the first `k` of the words, in order."""
        code, order = self.code, self.order
        made = order.sort(code, self.words, self.room, "%scratch", count)
        with (
            code.when(code.let(f"icmp ne ptr {made}, {self.words}")),
            code.count(0, self.k, 1) as i,
        ):
            order.store(code, order.load(code, made, i), self.words, i)
        code.do(f"store i64 {self.k}, ptr {self.count}")
        self.keep_limit()

    def keep_limit(self) -> None:
        key = self.order.key_in(self.code, self.words, self.k - 1)
        self.code.do(f"store {ELEMENT[self.order.bits]} {key}, ptr {self.limit}")

    # -- looking for more -----------------------------------------------------------------------

    def scan(self, start: Bound, first: Bound) -> None:
        """Offer all elements from `first` on that may come in."""
        code, together = self.code, TOGETHER * self.code.lanes
        rest = code.let(f"urem i64 {code.i64('sub', self.n, first)}, {together}")
        end = code.i64("sub", self.n, rest)
        with code.count(first, end, together, POLLED // together) as i:
            places = [code.i64("add", i, t * code.lanes) for t in range(TOGETHER)]
            hits = self.hits(self.plan.key(self.w, start, places[0]))
            for place in places[1:]:
                hits = hits | self.hits(self.plan.key(self.w, start, place))
            after = code.i64("add", i, together)
            with code.when(hits.any()), code.count(i, after, code.lanes) as j:
                self.offer_lanes(start, j, None)
        with code.count(end, self.n, code.lanes) as j:
            is_one = code.lanes == 1
            self.offer_lanes(start, j, None if is_one else below(code, code.i64("sub", self.n, j)))

    def hits(self, key: Vec) -> Vec:
        limit = self.code.let(f"load {ELEMENT[self.order.bits]}, ptr {self.limit}")
        return key < self.code.splat(limit, self.order.bits)

    def offer_lanes(self, start: Bound, at: Bound, mask: Vec | None) -> None:
        """Offer the lanes of a vector, if one of them may come in."""
        code, kind = self.code, ELEMENT[self.order.bits]
        key = self.plan.key(self.w, start, at, mask)
        hits = self.hits(key) if mask is None else self.hits(key) & mask
        with code.when(hits.any()):
            code.do(f"store {key.type} {key.text}, ptr {self.near}")
            end = code.least(code.i64("add", at, code.lanes), self.n)
            with code.count(at, end, 1) as i:
                lane = code.i64("sub", i, at)
                one = code.let(f"getelementptr {kind}, ptr {self.near}, i64 {lane}")
                self.offer(code.let(f"load {kind}, ptr {one}"), i)

    def offer(self, key: str, position: str) -> None:
        code, kind = self.code, ELEMENT[self.order.bits]
        limit = code.let(f"load {kind}, ptr {self.limit}")
        with code.when(code.let(f"icmp ult {kind} {key}, {limit}")):
            count = code.let(f"load i64, ptr {self.count}")
            self.order.store(code, self.order.made(code, key, position), self.words, count)
            self.insert() if self.is_few else self.append(count)

    def insert(self) -> None:
        self.order.insert(self.code, self.words, self.k)
        self.keep_limit()

    def append(self, count: str) -> None:
        code = self.code
        more = code.i64("add", count, 1)
        code.do(f"store i64 {more}, ptr {self.count}")
        with code.when(code.let(f"icmp eq i64 {more}, {self.capacity}")):
            self.settle(more)


# -- ops ------------------------------------------------------------------------------------------


def make_argsort(step: Step, name: str) -> KernelSequence:
    descending = bool(step.node.attrs["descending"])
    return _all(Plan.of(step, "position", descending=descending), name)


def make_sort(step: Step, name: str) -> KernelSequence:
    descending = bool(step.node.attrs["descending"])
    return _all(Plan.of(step, "value", descending=descending), name)


def make_top_k(step: Step, name: str) -> KernelSequence:
    attrs = step.node.attrs
    plan = Plan.of(step, "value", "position", descending=bool(attrs["largest"]))
    if attrs["k"] == 0:
        return plan.recipe(Writer(step.isa), name, 0, 0)
    return Best(plan, int(attrs["k"])).recipe(name)
