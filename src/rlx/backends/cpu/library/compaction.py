"""Stream compaction and data-dependent sizes: nonzero, arange. The count goes to a size, and
results are contiguous at that size, in memory for the upper bound."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rlx.backends.cpu.library.counters import Variable, each_bit, is_first_task, store_i64
from rlx.backends.cpu.library.strided_copy import (
    Blocks,
    at,
    load_integer,
    load_value,
    merged,
    outer_axes,
    real_dtype,
    row_lanes,
    step,
    vector_loop,
)
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dtype import DType
from rlx.core.extent import CAPACITY_EXCEEDED, ceiling, measured_in
from rlx.kernel.program.schedule import Buffer, Schedule, buffers

I64 = DType.I64
NS_PER_ELEMENT = 2


def size_of(given: Step) -> Buffer:
    """The buffer of the size that the node measures."""
    dims = (d for s in given.node.shapes for d in s.dims)
    names = [s.name for s in measured_in(dims)]
    return Buffer("size", names.index(given.node.attrs["extent"]))


# -- nonzero --------------------------------------------------------------------------------------


def make_nonzero(given: Step, name: str) -> Schedule[Task]:
    """Count per unit, prefix-sum the counts, scatter each element to its rank."""
    nonzero_bits = _Nonzero(given)
    tasks = (
        nonzero_bits.count_task(f"{name}.count"),
        nonzero_bits.prefix_sum_task(f"{name}.sum"),
        nonzero_bits.scatter_task(name),
    )
    return Schedule(tasks, (8 * (ceiling(nonzero_bits.units.count) + 1),))


class _Nonzero:
    """A temporary holds the counts of units, and after them the total."""

    def __init__(self, given: Step) -> None:
        self.given, self.shape = given, given.node.inputs[0].shape
        (self.x,) = merged(given.operands)
        self.dtype, self.parts = real_dtype(self.shape.dtype)
        self.units = Blocks(self.x.dims)
        self.lanes = 1 if self.parts > 1 else row_lanes(given.isa, self.dtype, (self.x,))

    def count_task(self, name: str) -> Task:
        machine = self.given.machine
        ns = machine.worker_ns(0, self.shape.size_bytes)
        grain = machine.units_per_task(self.units.count, ns)
        given_to = Buffer("operand", 0), Buffer("temp", 0)
        return Task(TaskCode(name, self.count_source), given_to, self.units.count, grain)

    def count_source(self, name: str) -> Source:
        w = Writer(self.given.isa, self.lanes)
        with self.units.unit_range(w) as unit:
            total = Variable(w.code, 0)
            self.nonzero_bits(w, unit, lambda bits, _: total.add(_popcount(w.code, bits)))
            store_i64(w, total.get(), 1, unit)
        return w.source(name)

    def prefix_sum_task(self, name: str) -> Task:
        """Exclusive prefix sum of the units' counts."""
        text = "more elements are not 0 than at_most allows"
        given_to = Buffer("temp", 0), size_of(self.given)
        return Task(TaskCode(name, self.prefix_sum_source), given_to, failures=(text,))

    def prefix_sum_source(self, name: str) -> Source:
        w = Writer(self.given.isa)
        total, at_most = Variable(w.code, 0), self.given.node.attrs["at_most"]
        count = w.size(self.units.count)
        with w.code.when(is_first_task(w)):
            with w.code.count(0, count, 1) as unit:
                here = load_integer(w, 0, unit, I64)
                store_i64(w, total.get(), 0, unit)
                total.add(here)
            if at_most is not None:
                w.fail(w.code.compare("gt", total.get(), w.size(at_most), DType.U64), 1)
            store_i64(w, total.get(), 0, count)
            store_i64(w, total.get(), 1, 0)
        return w.source(name)

    def scatter_task(self, name: str) -> Task:
        ns = self.shape.num_elements * NS_PER_ELEMENT
        grain = self.given.machine.units_per_task(self.units.count, ns)
        given_to = Buffer("operand", 0), Buffer("temp", 0), Buffer("result", 0)
        return Task(TaskCode(name, self.scatter_source), given_to, self.units.count, grain)

    def scatter_source(self, name: str) -> Source:
        w = Writer(self.given.isa, self.lanes)
        total = load_integer(w, 1, w.size(self.units.count), I64)
        with self.units.unit_range(w) as unit:
            place = Variable(w.code, load_integer(w, 1, unit, I64))
            row = self.row(w, unit)

            def each(bits: str, i: Bound) -> None:
                with each_bit(w.code, bits) as bit:
                    self.put(w, at(w, row, i, bit), place.get(), total)
                    place.add(1)

            self.nonzero_bits(w, unit, each)
        return w.source(name)

    def row(self, w: Writer, unit: Bound) -> Bound:
        """The flat index of a unit's first element."""
        across = w.size(self.units.blocks_per_row)
        return step(w, w.code.integer("div", unit, across, DType.U64), self.x.dims[-1])

    def put(self, w: Writer, element: Bound, place: Bound, total: Bound) -> None:
        """Store the coordinates of an element, one row per axis."""
        offset = w.size(self.given.results[0].offset)
        for axis, position in enumerate(w.split(element, self.shape.dims)):
            row = w.code.i64("mul", total, axis)
            store_i64(w, position, 2, at(w, offset, row, place))

    def nonzero_bits(self, w: Writer, unit: Bound, do: Callable[[str, Bound], None]) -> None:
        """Call `do` with a vector's bit mask of nonzero elements."""
        outer, low, high = self.units.block_of(w, unit)
        base = w.place(outer_axes(self.x), outer)

        def body(i: Bound, mask: Vec | None) -> None:
            place = at(w, base, step(w, i, self.x.strides[-1]))
            value = load_value(w, 0, place, self.dtype, self.parts, mask)
            is_any = value[0].to(DType.BOOL)
            for v in value[1:]:
                is_any = is_any | v.to(DType.BOOL)
            do(_bits(is_any), i)

        vector_loop(w, low, high, body)


def _bits(mask: Vec) -> str:
    """Bool lanes as the bits of an i64."""
    lanes = mask.code.lanes
    whole = mask.code.let(f"bitcast {mask.type} {mask.text} to i{lanes}")
    return whole if lanes == 64 else mask.code.let(f"zext i{lanes} {whole} to i64")


def _popcount(code: Code, bits: str) -> str:
    return code.intrinsic("ctpop.i64", "i64", f"i64 {bits}")


# -- arange ---------------------------------------------------------------------------------------


def make_arange(given: Step, name: str) -> Schedule[Task]:
    """Every unit computes the count for itself."""
    dtype, most = given.node.shape.dtype, ceiling(given.node.shape.dims[0])
    units = Blocks((most,)).count
    failures = (
        "this is no range: take finite numbers and a step that is not 0",
        _bound_exceeded(given, "the range has more numbers than at_most allows"),
    )
    machine = given.machine
    grain = machine.units_per_task(units, machine.worker_ns(0, most * dtype.itemsize))
    code, given_to = TaskCode(name, partial(_arange, given)), (*buffers(3, 1), size_of(given))
    return Schedule((Task(code, given_to, units, grain, failures=failures),))


def _arange(given: Step, name: str) -> Source:
    dtype, most = given.node.shape.dtype, ceiling(given.node.shape.dims[0])
    w = Writer(given.isa, given.isa.lanes(dtype))
    count = _integer_count(w, given) if dtype.is_integer else _float_count(w, given)
    store_i64(
        w, count, 4, 0
    )  # reported even where it exceeds the bound, so that the runtime knows how much to allocate
    w.fail(w.code.compare("gt", count, w.size(most), DType.U64), 2)
    start, delta = (_splat(w, given, n) for n in (0, 2))
    with Blocks((most,)).each(w) as (_, low, high):

        def body(i: Bound, mask: Vec | None) -> None:
            number = w.code.splat(i, I64) + w.code.iota(I64)
            value = start + number.to(dtype.compute) * delta
            w.store(value, 3, at(w, w.size(given.results[0].offset), i), dtype, mask=mask)

        vector_loop(w, low, w.code.most(low, w.code.least(high, count)), body)
    return w.source(name)


def _splat(w: Writer, given: Step, number: int) -> Vec:
    place = w.size(given.operands[number].offset)
    return w.load(number, place, given.node.shape.dtype, 0)


def _float_count(w: Writer, given: Step) -> str:
    """⌈(limit - start) / delta⌉, in f64."""
    start, limit, delta = (_splat(w, given, n).to(DType.F64) for n in range(3))
    count = (limit - start) / delta
    w.fail((count - count).differs(0.0).lane(), 1)
    count = -((-count).floor())
    count = count.where(count > 0.0, 0.0)
    return count.to(I64).lane()


def _integer_count(w: Writer, given: Step) -> str:
    """The same of integers. Differences of 64-bit integers are right as unsigned ones."""
    code, dtype = w.code, given.node.shape.dtype
    offsets = [w.size(layout.offset) for layout in given.operands]
    start, limit, delta = (load_integer(w, n, o, dtype) for n, o in enumerate(offsets))
    w.fail(code.compare("eq", delta, 0), 1)
    sign = "s" if dtype.is_signed else "u"
    is_up = code.let(f"icmp {sign}gt i64 {delta}, 0")
    low = code.choose(is_up, start, limit)
    high = code.choose(is_up, limit, start)
    back = code.integer("sub", 0, delta)
    size = code.choose(is_up, delta, back)
    gap = code.integer("sub", high, low)
    last = code.integer("div", code.integer("sub", gap, 1), size, DType.U64)
    is_some = code.let(f"icmp {sign}lt i64 {low}, {high}")
    return code.choose(is_some, code.integer("add", last, 1), 0)


def _bound_exceeded(given: Step, text: str) -> str:
    """The failure that more elements were found than the bound allows."""
    return CAPACITY_EXCEEDED if given.node.attrs["at_most"] is None else text


def make_as_size(given: Step, name: str) -> Schedule[Task]:
    """Only the size is written."""
    failures = "a size is negative", _bound_exceeded(given, "a size is larger than at_most allows")
    code, given_to = (
        TaskCode(name, partial(_as_size, given)),
        (Buffer("operand", 0), size_of(given)),
    )
    return Schedule((Task(code, given_to, failures=failures),))


def _as_size(given: Step, name: str) -> Source:
    w = Writer(given.isa)
    most = ceiling(given.node.shape.dims[0])
    dtype = given.node.inputs[0].shape.dtype
    value = load_integer(w, 0, w.size(given.operands[0].offset), dtype)
    w.fail(w.code.compare("lt", value, 0), 1)
    store_i64(w, value, 1, 0)
    w.fail(w.code.compare("gt", value, w.size(most), DType.U64), 2)
    return w.source(name)


def make_same_size(given: Step, name: str) -> Schedule[Task]:
    failures = (
        "two sizes are to be equal, and differ. A size of 1 that is found at run time is not "
        "repeated either",
    )
    code = TaskCode(name, partial(_same_size, given))
    return Schedule((Task(code, buffers(2, 1), failures=failures),))


def _same_size(given: Step, name: str) -> Source:
    w = Writer(given.isa)
    places = [w.size(layout.offset) for layout in (*given.operands, *given.results)]
    kinds = [i.shape.dtype for i in given.node.inputs]
    one, other = (load_integer(w, n, places[n], kinds[n]) for n in range(2))
    w.fail(w.code.compare("ne", one, other), 1)
    store_i64(w, 0, 2, places[2])
    return w.source(name)
