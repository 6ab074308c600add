"""unique: rows sorted by their keys, equal ones grouped, and groups put in order.

Keys are contiguous unsigned integers in the order of the elements, so that comparing rows is
comparing integers. The sort is stable.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.cpu.library.compaction import size_of
from rlx.backends.cpu.library.counters import Variable, is_first_task, store_i64
from rlx.backends.cpu.library.sort.radix_keys import (
    HISTOGRAM_BYTES,
    KEYS_PER_POLL,
    MAX_32BIT_POSITIONS,
    RadixKeys,
)
from rlx.backends.cpu.library.sort.sort import TOO_LONG
from rlx.backends.cpu.library.strided_copy import (
    Blocks,
    BufferView,
    as_parts,
    at,
    copy_dtype,
    load_integer,
    loop_nest,
    map_task,
    merged,
    real_dtype,
    step,
)
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import DimLike, product, provably_le
from rlx.core.dtype import DType
from rlx.core.extent import ceiling
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Buffer, Schedule

I64 = DType.I64
NS_PER_VALUE = 2
COLUMNS_PER_POLL = 64
"""Columns that rows are sorted by between two polls, where there are few rows."""
GROUPS_PER_UNIT = 64
"""Groups of one unit."""
KEYS, ORDER, SPARE_ROWS, GROUP, RADIX_KEYS, SPARE_KEYS = range(6)
"""Temporaries: keys; sorted rows, later the ranks of groups; spare buffer, later the first row of
each group; the group of each row; and radix keys, with as much spare."""
FIRST, INVERSE, COUNTS, FOUND = range(6, 10)


def make_unique(given: Step, name: str) -> Schedule[Task]:
    groups = _Groups.of(given)
    count = ceiling(groups.rows)
    key_bytes = ceiling(groups.rows * groups.columns) * groups.key.itemsize
    tasks = (
        groups.keys_task(f"{name}.keys"),
        groups.sort_task(f"{name}.sort"),
        groups.values_task(name),
    )
    radix_bytes = count * groups.radix_keys.key_bytes
    return Schedule(tasks, (key_bytes, *(8 * count,) * 3, radix_bytes, radix_bytes))


@dataclass(frozen=True, slots=True)
class _Groups:
    given: Step
    table: Layout
    """x with the axis of the rows first."""
    rows: DimLike
    columns: DimLike
    """Elements of a row."""
    dtype: DType
    parts: int

    @classmethod
    def of(cls, given: Step) -> _Groups:
        x, axis = given.operands[0], given.node.attrs["axis"]
        dtype, parts = real_dtype(given.node.inputs[0].shape.dtype)
        if axis is None:
            return cls(given, x, product(x.dims), parts, dtype, parts)
        table = x.permuted((axis, *(a for a in range(len(x.dims)) if a != axis)))
        columns = product(table.dims[1:]) * parts
        return cls(given, table, table.dims[0], columns, dtype, parts)

    @property
    def radix_keys(self) -> RadixKeys:
        return RadixKeys.of(self.dtype, self.rows, descending=False)

    @property
    def key(self) -> DType:
        return self.radix_keys.unsigned

    # -- keys -----------------------------------------------------------------------------------

    def keys_task(self, name: str) -> Task:
        layout = as_parts(self.table, self.parts)
        x = BufferView(Buffer("operand", 0), layout, self.key)
        to = BufferView(Buffer("temp", KEYS), Layout.contiguous(layout.dims), self.key)
        return map_task(x, to, self.radix_keys.ordered_bits, self.given.machine, name)

    def key_of(self, w: Writer, row: Bound, column: Bound) -> str:
        place = at(w, step(w, row, self.columns), column)
        pointer = w.pointer(KEYS, place, self.key)
        return w.code.let(f"load {ELEMENT[self.key]}, ptr {pointer}, align {self.key.itemsize}")

    def is_equal(self, w: Writer, a: Bound, b: Bound) -> str:
        """Are two rows equal? NaN, whose key is the greatest, equals NaN only with `equal_nan`."""
        code, kind = w.code, ELEMENT[self.key]
        column, same = Variable(code, 0), Variable(code, "true", "i1")

        def more() -> str:
            is_inside = code.compare("lt", column.get(), w.size(self.columns))
            return code.both(is_inside, same.get())

        with code.loop_while(more):
            x, y = (self.key_of(w, row, column.get()) for row in (a, b))
            same.set(code.let(f"icmp eq {kind} {x}, {y}"))
            if self.dtype.is_float and not self.given.node.attrs["equal_nan"]:
                is_number = code.let(f"icmp ne {kind} {x}, -1")
                same.set(code.both(same.get(), is_number))
            column.add(1)
        return same.get()

    # -- order and groups -----------------------------------------------------------------------

    def sort_task(self, name: str) -> Task:
        temps = [
            Buffer("temp", n) for n in (KEYS, ORDER, SPARE_ROWS, GROUP, RADIX_KEYS, SPARE_KEYS)
        ]
        results = [Buffer("result", n) for n in (1, 2, 3)]
        code, given_to = TaskCode(name, self.sort_source), (*temps, *results, size_of(self.given))
        return Task(code, given_to, scratch=HISTOGRAM_BYTES, failures=(TOO_LONG,))

    def sort_source(self, name: str) -> Source:
        w = Writer(self.given.isa)
        count = w.size(self.rows)
        if not self.radix_keys.is_wide and not provably_le(self.rows, MAX_32BIT_POSITIONS):
            w.fail(w.code.compare("gt", count, MAX_32BIT_POSITIONS), 1)
        with w.code.when(is_first_task(w)):
            with w.code.count(0, count, 1, KEYS_PER_POLL) as i:
                store_i64(w, i, ORDER, i)
            order, spare = self.sorted(w, count)
            self.group(w, count, order, spare)
            self.results(w, count, order, spare)
        return w.source(name)

    def sorted(self, w: Writer, count: Bound) -> tuple[str, str]:
        """The sorted rows, and the spare buffer. Least significant column first, each pass
        stable."""
        code, columns = w.code, w.size(self.columns)
        order, spare = (Variable(code, w.buffer(n), "ptr") for n in (ORDER, SPARE_ROWS))
        with code.count(0, columns, 1, COLUMNS_PER_POLL) as done:
            column = code.i64("sub", code.i64("sub", columns, 1), done)
            given, to = order.get(), spare.get()
            with code.count(0, count, 1, KEYS_PER_POLL) as i:
                key = self.key_of(w, _get(code, given, i), column)
                self.radix_keys.store(
                    code, self.radix_keys.pack(code, key, i), w.buffer(RADIX_KEYS), i
                )
            keys = self.radix_keys.sort(
                code, w.buffer(RADIX_KEYS), w.buffer(SPARE_KEYS), "%scratch", count
            )
            with code.count(0, count, 1, KEYS_PER_POLL) as i:
                row = _get(code, given, self.radix_keys.load_position(code, keys, i))
                _set(code, row, to, i)
            order.set(to)
            spare.set(given)
        return order.get(), spare.get()

    def group(self, w: Writer, count: Bound, order: str, first: str) -> None:
        """The group of each row, and the first row of each group."""
        code = w.code
        found, before = Variable(code, 0), Variable(code, 0)
        with code.count(0, count, 1, KEYS_PER_POLL) as i:
            row, is_new = _get(code, order, i), Variable(code, "true", "i1")
            with code.when(code.compare("gt", i, 0)):
                same = self.is_equal(w, before.get(), row)
                is_new.set(code.negated(same))
            with code.when(is_new.get()):
                _set(code, row, first, found.get())
                found.add(1)
            store_i64(w, code.i64("sub", found.get(), 1), GROUP, row)
            before.set(row)
        store_i64(w, found.get(), FOUND, 0)

    def results(self, w: Writer, count: Bound, rank: str, first: str) -> None:
        """The first row of each group, the group of each row (inverse), and the size of each group
        (counts)."""
        code, sorts = w.code, self.given.node.attrs["is_sorted"]
        (inverse,) = merged([self.given.results[2]])
        firsts, counts = (w.size(self.given.results[n].offset) for n in (1, 3))
        found = Variable(code, 0)
        with code.count(0, count, 1, KEYS_PER_POLL) as row:
            group = load_integer(w, GROUP, row, I64)
            leader = _get(code, first, group)
            with code.when(code.compare("eq", leader, row)):
                place = group if sorts else found.get()
                _set(code, place, rank, group)
                store_i64(w, row, FIRST, at(w, firsts, place))
                store_i64(w, 0, COUNTS, at(w, counts, place))
                found.add(1)
            place = _get(code, rank, group)
            store_i64(w, place, INVERSE, w.place(inverse, w.split(row, inverse.dims)))
            where = at(w, counts, place)
            store_i64(w, code.i64("add", load_integer(w, COUNTS, where, I64), 1), COUNTS, where)

    # -- values ---------------------------------------------------------------------------------

    def values_task(self, name: str) -> Task:
        """Each group's first row. Buffers: x, first rows, the size, values."""
        units = self.value_units.count
        grain = self.given.machine.units_per_task(units, product(self.x.dims) * NS_PER_VALUE)
        given = Buffer("operand", 0), Buffer("result", 1), size_of(self.given), Buffer("result", 0)
        return Task(TaskCode(name, self.values_source), given, units, grain)

    @property
    def x(self) -> Layout:
        """The operand as numbers that are copied bitwise."""
        parts = copy_dtype(self.given.node.inputs[0].shape.dtype)[1]
        return as_parts(self.given.operands[0], parts)

    @property
    def value_units(self) -> Blocks:
        return Blocks((self.rows,), GROUPS_PER_UNIT)

    def values_source(self, name: str) -> Source:
        w, x = Writer(self.given.isa), self.x
        found = load_integer(w, 2, 0, I64)
        with self.value_units.each(w) as (_, low, high):
            last = w.code.most(low, w.code.least(high, found))
            with w.code.count(low, last, 1) as group:
                self.copy(w, x, group, found)
        return w.source(name)

    def copy(self, w: Writer, x: Layout, group: Bound, found: Bound) -> None:
        """Copy the first row of a group; the layout of values is [outer axes, groups, inner
        axes]."""
        kind, parts = copy_dtype(self.given.node.inputs[0].shape.dtype)
        outer, own, inner = self.split_axes(x, parts)
        firsts = w.size(self.given.results[1].offset)
        row = load_integer(w, 1, at(w, firsts, group), I64)
        base = at(w, w.size(x.offset), w.place(own, w.split(row, own.dims)))
        start = w.code.i64("mul", w.size(self.given.results[0].offset), parts)
        length = product(inner.dims)
        with loop_nest(w, (product(outer.dims), length)) as (o, i):
            places = [w.place(v, w.split(n, v.dims)) for v, n in ((outer, o), (inner, i))]
            value = w.load(0, at(w, base, *places), kind)
            to = step(w, at(w, w.code.i64("mul", o, found), group), length)
            w.store(value, 3, at(w, start, to, i), kind)

    def split_axes(self, x: Layout, parts: int) -> list[Layout]:
        """The axes before that of the rows, that one, and those after it; without an axis, x is
        flattened."""
        axis, rank = self.given.node.attrs["axis"], len(x.dims)
        low, high = (0, rank - (parts > 1)) if axis is None else (axis, axis + 1)
        return [_axes(x, *ends) for ends in ((0, low), (low, high), (high, rank))]


def _axes(layout: Layout, low: int, high: int) -> Layout:
    (made,) = merged([Layout(layout.dims[low:high], layout.strides[low:high])])
    return made


def _get(code: Code, array: str, number: Bound) -> str:
    return code.load_scalar(_pointer(code, array, number), DType.I64)


def _set(code: Code, value: Bound, array: str, number: Bound) -> None:
    code.store_scalar(_pointer(code, array, number), value, DType.I64)


def _pointer(code: Code, array: str, number: Bound) -> str:
    return code.advanced(array, number, DType.I64)
