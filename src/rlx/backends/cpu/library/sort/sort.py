"""Sort, argsort and top-k along an axis. A unit is a row."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

from rlx.backends.cpu.codegen.gemm.microkernel import below
from rlx.backends.cpu.codegen.loop.vector_access import load
from rlx.backends.cpu.library.sort.radix_keys import (
    HISTOGRAM_BYTES,
    INSERTION_SORT_MAX_KEYS,
    KEYS_PER_POLL,
    MAX_32BIT_POSITIONS,
    RadixKeys,
    key_lanes,
)
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import DimLike, product, provably_le
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Schedule, buffers

TOO_LONG = f"an axis of more than {MAX_32BIT_POSITIONS} elements is too long to sort"
SORT_NS, SCAN_PER_NS = 8, 8
"""Nanoseconds to sort a key, and elements per nanosecond that are compared with the threshold."""
UNROLL = 4
"""Vectors that are compared before a branch."""
MIN_CANDIDATES = 256
"""Candidates, where k is large, that are collected at least before they are sorted."""

Output = Literal["value", "position"]


@dataclass(frozen=True, slots=True)
class AxisRows:
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
        """The layout of the rows' first elements."""
        a, old = self.axis, self.layout
        return Layout(
            old.dims[:a] + old.dims[a + 1 :], old.strides[:a] + old.strides[a + 1 :], old.offset
        )

    def element(self, w: Writer, number: int, start: Bound, at: Bound, dtype: DType) -> str:
        """The address of an element of the row that begins at `start`."""
        step = w.code.i64("mul", at, w.size(self.stride))
        return w.pointer(number, w.code.i64("add", start, step), dtype)


@dataclass(frozen=True, slots=True)
class SortSpec:
    """The rows of a step, and their radix keys."""

    step: Step
    given: AxisRows
    made: tuple[AxisRows, ...]
    outputs: tuple[Output, ...]
    """What each result receives: the element or its position."""
    radix_keys: RadixKeys

    @classmethod
    def of(cls, step: Step, *outputs: Output, descending: bool) -> SortSpec:
        node = step.node
        axis = int(node.attrs["axis"]) % len(step.operands[0].dims)
        given, *made = (AxisRows(layout, axis) for layout in (*step.operands, *step.results))
        radix_keys = RadixKeys.of(node.inputs[0].shape.dtype, given.length, descending=descending)
        return cls(step, given, tuple(made), outputs, radix_keys)

    @property
    def count(self) -> DimLike:
        return product(self.given.starts.dims)

    @contextmanager
    def each(self, w: Writer) -> Generator[list[Bound]]:
        """The offset of each row: in the operand, then in the results."""
        if not self.radix_keys.is_wide and not provably_le(self.given.length, MAX_32BIT_POSITIONS):
            w.fail(w.code.compare("gt", w.size(self.given.length), MAX_32BIT_POSITIONS), 1)
        stop = w.code.least("%stop", w.size(self.count))
        with w.code.count("%start", stop, 1) as unit:
            at = w.split(unit, self.given.starts.dims)
            yield [w.place(rows.starts, at) for rows in (self.given, *self.made)]

    def key(self, w: Writer, start: Bound, at: Bound, mask: Vec | None = None) -> Vec:
        """The ordered bits of a vector of elements."""
        bits, stride = self.radix_keys.unsigned, 0 if w.code.lanes == 1 else 1
        pointer = self.given.element(w, 0, start, at, bits)
        return self.radix_keys.ordered_bits(load(w.code, bits, pointer, stride, mask))

    def store_key(self, w: Writer, start: Bound, at: Bound, keys: str) -> None:
        """Build the key of the element at a position."""
        pointer = self.given.element(w, 0, start, at, self.radix_keys.unsigned)
        raw = load(w.code, self.radix_keys.unsigned, pointer, 0)
        radix_key = self.radix_keys.pack(w.code, self.radix_keys.ordered_bits(raw).lane(), at)
        self.radix_keys.store(w.code, radix_key, keys, at)

    def store_result(self, w: Writer, starts: list[Bound], at: Bound, keys: str) -> None:
        """Write the element of the key at `at`, its position or both."""
        position = self.radix_keys.load_position(w.code, keys, at)
        for i, (rows, output) in enumerate(zip(self.made, self.outputs, strict=True), 1):
            kind = DType.I64 if output == "position" else self.radix_keys.unsigned
            to = rows.element(w, i, starts[i], at, kind)
            value = position if output == "position" else self._value(w, starts[0], position)
            w.code.do(f"store {ELEMENT[kind]} {value}, ptr {to}")

    def _value(self, w: Writer, start: Bound, position: str) -> str:
        pointer = self.given.element(w, 0, start, position, self.radix_keys.unsigned)
        return w.code.let(f"load {ELEMENT[self.radix_keys.unsigned]}, ptr {pointer}")

    def kernel_sequence(self, code: TaskCode, scratch: DimLike, row_ns: DimLike) -> Schedule[Task]:
        """One task over rows, each of which takes so long."""
        scratch = (scratch + 63) // 64 * 64
        grain = self.step.machine.units_per_task(self.count, self.count * row_ns)
        given = buffers(1, len(self.made))
        return Schedule((Task(code, given, self.count, grain, scratch, (TOO_LONG,)),))


def _full_sort(spec: SortSpec, name: str) -> Schedule[Task]:
    """Rows sorted whole."""
    length = spec.given.length
    scratch = HISTOGRAM_BYTES + 2 * spec.radix_keys.key_bytes * length
    code = TaskCode(name, partial(_full_sort_source, spec))
    return spec.kernel_sequence(code, scratch, SORT_NS * length)


def _full_sort_source(spec: SortSpec, name: str) -> Source:
    w, length = Writer(spec.step.isa), spec.given.length
    with spec.each(w) as starts:
        n = w.size(length)
        keys = w.code.advanced("%scratch", HISTOGRAM_BYTES, DType.U8)
        spare = spec.radix_keys.pointer(w.code, keys, n)
        with w.code.count(0, n, 1, KEYS_PER_POLL) as i:
            spec.store_key(w, starts[0], i, keys)
        ordered = spec.radix_keys.sort(w.code, keys, spare, "%scratch", n)
        with w.code.count(0, n, 1, KEYS_PER_POLL) as i:
            spec.store_result(w, starts, i, ordered)
    return w.source(name)


# -- top-k ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopK:
    """Top-k by a threshold: the k least keys so far, sorted.

    A key that is not less than the k-th cannot enter, as equal elements go by position. Small k is
    maintained by insertion; for large k, candidates are collected until the buffer is full, and
    then sorted.
    """

    spec: SortSpec
    k: int

    @property
    def is_insertion(self) -> bool:
        return self.k <= INSERTION_SORT_MAX_KEYS

    @property
    def capacity(self) -> int:
        """Keys in the buffer at most."""
        return self.k + 1 if self.is_insertion else self.k + max(self.k, MIN_CANDIDATES)

    def kernel_sequence(self, name: str) -> Schedule[Task]:
        if self.k == 0:
            return self.spec.kernel_sequence(TaskCode(name, self.empty_source), 0, 0)
        scratch = HISTOGRAM_BYTES + 2 * self.capacity * self.spec.radix_keys.key_bytes
        row_ns = self.spec.given.length // SCAN_PER_NS + SORT_NS * self.k
        return self.spec.kernel_sequence(TaskCode(name, self.source), scratch, row_ns)

    def source(self, name: str) -> Source:
        writer = _TopKWriter(self)
        with self.spec.each(writer.w) as starts:
            writer.row(starts)
        return writer.w.source(name)

    def empty_source(self, name: str) -> Source:
        return Writer(self.spec.step.isa).source(name)


class _TopKWriter:
    """The function of a top-k under construction."""

    def __init__(self, of: TopK) -> None:
        spec = of.spec
        self.spec, self.radix_keys, self.k = spec, spec.radix_keys, of.k
        self.is_insertion, self.capacity = of.is_insertion, of.capacity
        is_contiguous = spec.given.stride == 1
        lanes = key_lanes(spec.step.isa, spec.radix_keys.dtype) if is_contiguous else 1
        self.w = Writer(spec.step.isa, lanes)
        self.code, self.n = self.w.code, self.w.size(spec.given.length)
        self.threshold = self.code.slot(ELEMENT[spec.radix_keys.unsigned])
        """The ordered bits that a candidate must be less than."""
        self.candidates = self.code.slot(self.code.vector(ELEMENT[spec.radix_keys.unsigned]))
        self.count = self.code.slot("i64")
        self.keys = self._scratch(HISTOGRAM_BYTES)
        self.spare = self._scratch(HISTOGRAM_BYTES + self.capacity * spec.radix_keys.key_bytes)

    def _scratch(self, start: int) -> str:
        name = self.code.name("scratch")
        self.code.enter(f"  {name} = getelementptr i8, ptr %scratch, i64 {start}")
        return name

    def row(self, starts: list[Bound]) -> None:
        code = self.code
        first = self.k if self.is_insertion else code.least(self.n, self.capacity)
        with code.count(0, first, 1, KEYS_PER_POLL) as i:
            self.spec.store_key(self.w, starts[0], i, self.keys)
        self.sort_and_truncate(first)
        self.scan(starts[0], first)
        if not self.is_insertion:
            self.sort_and_truncate(code.load_scalar(self.count, DType.I64))
        with code.count(0, self.k, 1, KEYS_PER_POLL) as i:
            self.spec.store_result(self.w, starts, i, self.keys)

    def sort_and_truncate(self, count: Bound) -> None:
        """Sort the keys and truncate them to the first `k`."""
        code, radix_keys = self.code, self.radix_keys
        made = radix_keys.sort(code, self.keys, self.spare, "%scratch", count)
        with (
            code.when(code.let(f"icmp ne ptr {made}, {self.keys}")),
            code.count(0, self.k, 1) as i,
        ):
            radix_keys.store(code, radix_keys.load(code, made, i), self.keys, i)
        code.store_scalar(self.count, self.k, DType.I64)
        self.update_threshold()

    def update_threshold(self) -> None:
        key = self.radix_keys.load_ordered_bits(self.code, self.keys, self.k - 1)
        self.code.do(f"store {ELEMENT[self.radix_keys.unsigned]} {key}, ptr {self.threshold}")

    # -- candidates -----------------------------------------------------------------------------

    def scan(self, start: Bound, first: Bound) -> None:
        """Try all elements from `first` on that pass the threshold."""
        code, block = self.code, UNROLL * self.code.lanes
        rest = code.integer("rem", code.i64("sub", self.n, first), block, DType.U64)
        end = code.i64("sub", self.n, rest)
        with code.count(first, end, block, KEYS_PER_POLL // block) as i:
            places = [code.i64("add", i, t * code.lanes) for t in range(UNROLL)]
            passes = self.passes(self.spec.key(self.w, start, places[0]))
            for place in places[1:]:
                passes = passes | self.passes(self.spec.key(self.w, start, place))
            after = code.i64("add", i, block)
            with code.when(passes.any()), code.count(i, after, code.lanes) as j:
                self.try_lanes(start, j, None)
        with code.count(end, self.n, code.lanes) as j:
            is_one = code.lanes == 1
            self.try_lanes(start, j, None if is_one else below(code, code.i64("sub", self.n, j)))

    def passes(self, key: Vec) -> Vec:
        threshold = self.code.let(f"load {ELEMENT[self.radix_keys.unsigned]}, ptr {self.threshold}")
        return key < self.code.splat(threshold, self.radix_keys.unsigned)

    def try_lanes(self, start: Bound, at: Bound, mask: Vec | None) -> None:
        """Try the lanes of a vector, if any passes the threshold."""
        code, kind = self.code, ELEMENT[self.radix_keys.unsigned]
        key = self.spec.key(self.w, start, at, mask)
        passes = self.passes(key) if mask is None else self.passes(key) & mask
        with code.when(passes.any()):
            code.do(f"store {key.type} {key.text}, ptr {self.candidates}")
            end = code.least(code.i64("add", at, code.lanes), self.n)
            with code.count(at, end, 1) as i:
                lane = code.i64("sub", i, at)
                one = code.let(f"getelementptr {kind}, ptr {self.candidates}, i64 {lane}")
                self.try_insert(code.let(f"load {kind}, ptr {one}"), i)

    def try_insert(self, key: str, position: str) -> None:
        code, kind = self.code, ELEMENT[self.radix_keys.unsigned]
        threshold = code.let(f"load {kind}, ptr {self.threshold}")
        with code.when(code.let(f"icmp ult {kind} {key}, {threshold}")):
            count = code.load_scalar(self.count, DType.I64)
            self.radix_keys.store(code, self.radix_keys.pack(code, key, position), self.keys, count)
            self.insert() if self.is_insertion else self.append(count)

    def insert(self) -> None:
        self.radix_keys.insert(self.code, self.keys, self.k)
        self.update_threshold()

    def append(self, count: str) -> None:
        code = self.code
        more = code.i64("add", count, 1)
        code.store_scalar(self.count, more, DType.I64)
        with code.when(code.compare("eq", more, self.capacity)):
            self.sort_and_truncate(more)


# -- ops ------------------------------------------------------------------------------------------


def make_argsort(step: Step, name: str) -> Schedule[Task]:
    descending = bool(step.node.attrs["descending"])
    return _full_sort(SortSpec.of(step, "position", descending=descending), name)


def make_sort(step: Step, name: str) -> Schedule[Task]:
    descending = bool(step.node.attrs["descending"])
    return _full_sort(SortSpec.of(step, "value", descending=descending), name)


def make_top_k(step: Step, name: str) -> Schedule[Task]:
    attrs = step.node.attrs
    spec = SortSpec.of(step, "value", "position", descending=bool(attrs["largest"]))
    return TopK(spec, int(attrs["k"])).kernel_sequence(name)
