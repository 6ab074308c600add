"""Ensembles of trees as packed records: what a walk needs of a node is in one cache line.

A record is the key of the threshold, the column to test, and the distance to the children: 8 bytes
where rows are f32 and distances fit 16 bits, else 16. Keys are whole numbers in the order of the
floats, so that one comparison serves: NaN of a row is greater than all in one copy of the row's
keys and less than all in a second one, and the column says which of them a node reads. A leaf tests
a column that is less than all, and leads to itself; its threshold's place holds what it gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rlx.backends.cpu.codegen.loop.vector_access import load
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.library.strided_copy import at, whole_number
from rlx.backends.cpu.llvm.builder import ELEMENT, Bound, Code, Vec
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.program.task import Buffer, Step, Task, grain_of
from rlx.core.dim import DimLike, is_static
from rlx.core.dtype import DType
from rlx.core.layout import Layout

F32, F64, I32, I64 = DType.F32, DType.F64, DType.I32, DType.I64
X, THRESHOLD, FEATURE, CHILD, MISSING, ROOT, WEIGHT, TARGET = range(8)
"""Operands."""
Gives = Literal["weight", "pair", "row"]
"""What a leaf's record holds: its one weight; or the number of a pair of target and weight, or of a
row of weights."""
RECORDS_AT_ONCE, NS_PER_RECORD = 1024, 4
WIDE_SPAN, WIDE_COLUMNS = 1 << 16, (1 << 15) - 1
"""Distances and columns from which on records are wide."""
POLLED = 1 << 15
"""Nodes or trees between two polls."""
LINE = 16
"""Keys that rows are padded by: a stride of a whole page would put them all into one cache set."""
PAIR_BYTES, TREE_BYTES = 16, 8
TABLES = "a table of the trees leads out of range"


@dataclass(frozen=True, slots=True)
class Ensemble:
    """A step of the op: sizes and layouts."""

    step: Step

    @property
    def isa(self) -> Isa:
        return self.step.isa

    def layout(self, operand: int) -> Layout:
        return self.step.operands[operand]

    def dtype(self, operand: int) -> DType:
        return self.step.node.inputs[operand].shape.dtype

    @property
    def rows(self) -> DimLike:
        return self.layout(X).dims[0]

    @property
    def columns(self) -> DimLike:
        return self.layout(X).dims[1]

    @property
    def nodes(self) -> DimLike:
        return self.layout(CHILD).dims[0]

    @property
    def trees(self) -> DimLike:
        return self.layout(ROOT).dims[0]

    @property
    def leaves(self) -> DimLike:
        return self.layout(WEIGHT).dims[0]

    @property
    def targets(self) -> int:
        return int(self.step.node.attrs["n_targets"])

    @property
    def span(self) -> int:
        return int(self.step.node.attrs["span"])

    @property
    def has_targets(self) -> bool:
        return len(self.step.operands) > TARGET

    # -- records --------------------------------------------------------------------------------

    @property
    def is_wide(self) -> bool:
        is_small = is_static(self.columns) and int(self.columns) <= WIDE_COLUMNS
        return not (self.dtype(X).compute is F32 and self.span < WIDE_SPAN and is_small)

    @property
    def key(self) -> DType:
        return I64 if self.is_wide else I32

    @property
    def number(self) -> DType:
        """The floats that keys are made of."""
        return F64 if self.is_wide else F32

    @property
    def field(self) -> DType:
        """Of columns and distances in a record."""
        return DType.U32 if self.is_wide else DType.U16

    @property
    def record_bytes(self) -> int:
        return self.key.itemsize + 2 * self.field.itemsize

    @property
    def gives(self) -> Gives:
        if self.has_targets:
            return "pair"
        is_held = self.is_wide or self.dtype(WEIGHT).compute is F32
        return "weight" if self.targets == 1 and is_held else "row"

    # -- rows -----------------------------------------------------------------------------------

    @property
    def stride(self) -> DimLike:
        """Keys from one row to the next: two copies of the row, and the column of the leaves."""
        whole = (2 * self.columns + LINE) // LINE * LINE
        is_odd = is_static(whole) and (int(whole) // LINE) % 2
        return whole if is_odd else whole + LINE

    @property
    def row_bytes(self) -> DimLike:
        return self.stride * self.key.itemsize


def ordered(value: Vec) -> tuple[Vec, Vec]:
    """Keys of floats, and which of them are NaN: the order of their bits, those of negative numbers
    the other way round; 0 and -0 are one number."""
    kind = I32 if value.dtype is F32 else I64
    bits = (value + 0.0).bits(kind)
    low = (1 << (8 * kind.itemsize - 1)) - 1
    return bits ^ ((bits >> (8 * kind.itemsize - 1)) & low), value.is_nan()


def least_key(kind: DType) -> int:
    return -(1 << (8 * kind.itemsize - 1))


def greatest_key(kind: DType) -> int:
    return (1 << (8 * kind.itemsize - 1)) - 1


# -- packing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packing:
    """Tasks that make the tables of an ensemble, each as its result 0."""

    of: Ensemble

    def tasks(self, name: str) -> list[tuple[Task, DimLike]]:
        """Each with the bytes that it makes: records, trees, and pairs where there are any."""
        made = [self.records(f"{name}.nodes"), self.roots(f"{name}.trees")]
        return [*made, self.pairs(f"{name}.leaves")] if self.of.gives == "pair" else made

    def _each(self, w: Writer, count: DimLike, body: Callable[[Bound], None]) -> DimLike:
        """The body for each of so many, in units."""
        units = (count + RECORDS_AT_ONCE - 1) // RECORDS_AT_ONCE
        stop = w.code.least("%stop", w.size(units))
        with w.code.count("%start", stop, 1) as unit:
            first = w.code.i64("mul", unit, RECORDS_AT_ONCE)
            end = w.code.i64("add", first, RECORDS_AT_ONCE)
            with w.code.count(first, w.code.least(end, w.size(count)), 1) as i:
                body(i)
        return units

    def whole(self, w: Writer, operand: int, number: int, i: Bound) -> str:
        """An element of a table of whole numbers, which is buffer `number`."""
        return whole_number(
            w, number, w.place(self.of.layout(operand), [i]), self.of.dtype(operand)
        )

    def checked(self, w: Writer, value: str, limit: Bound) -> None:
        w.fail(w.code.let(f"icmp uge i64 {value}, {limit}"), 1)

    def _task(
        self, w: Writer, name: str, operands: tuple[int, ...], units: DimLike, scratch: DimLike = 0
    ) -> Task:
        given = (*(Buffer("operand", o) for o in operands), Buffer("result", 0))
        grain = grain_of(units, units * RECORDS_AT_ONCE * NS_PER_RECORD)
        return Task(
            w.function(name), given, w.sizes, units, grain, scratch, failures=(TABLES,)
        )  # fmt: skip

    # -- nodes ----------------------------------------------------------------------------------

    def records(self, name: str) -> tuple[Task, DimLike]:
        w = Writer(self.of.isa)
        operands = (THRESHOLD, FEATURE, CHILD, MISSING, WEIGHT)
        units = self._each(w, self.of.nodes, lambda i: self._record(w, i, len(operands)))
        return self._task(w, name, operands, units), self.of.nodes * self.of.record_bytes

    def _record(self, w: Writer, i: Bound, result: int) -> None:
        code, of = w.code, self.of
        child, feature = self.whole(w, CHILD, 2, i), self.whole(w, FEATURE, 1, i)
        is_leaf = code.let(f"icmp eq i64 {child}, 0")
        self.check_child(w, i, child)
        limits = w.size(of.leaves), w.size(of.columns)
        limit = code.let(f"select i1 {is_leaf}, i64 {limits[0]}, i64 {limits[1]}")
        self.checked(w, feature, limit)
        missing = whole_number(w, 3, w.place(of.layout(MISSING), [i]), DType.BOOL)
        copy = code.i64("mul", missing, w.size(of.columns))
        own = code.i64("add", feature, copy)
        last = w.size(2 * of.columns)
        column = code.let(f"select i1 {is_leaf}, i64 {last}, i64 {own}")
        held = self._held(w, i, feature, is_leaf)
        record = code.let(
            f"getelementptr [{of.record_bytes} x i8], ptr {w.buffer(result)}, i64 {i}"
        )
        code.do(f"store {ELEMENT[of.key]} {held}, ptr {record}, align {of.record_bytes}")
        for number, value in enumerate((column, child)):
            self._field(code, record, number, value)

    def check_child(self, w: Writer, i: Bound, child: str) -> None:
        """0, or not further than the span and with its neighbour in the table."""
        code = w.code
        self.checked(w, child, self.of.span + 1)
        last = code.i64("add", code.i64("add", i, child), 1)
        is_out = code.let(f"icmp sge i64 {last}, {w.size(self.of.nodes)}")
        is_inner = code.let(f"icmp ne i64 {child}, 0")
        w.fail(code.let(f"and i1 {is_out}, {is_inner}"), 1)

    def _field(self, code: Code, record: str, number: int, value: Bound) -> None:
        field = self.of.field
        offset = self.of.key.itemsize + number * field.itemsize
        where = code.let(f"getelementptr i8, ptr {record}, i64 {offset}")
        cut = code.let(f"trunc i64 {value} to {ELEMENT[field]}")
        code.do(f"store {ELEMENT[field]} {cut}, ptr {where}, align {field.itemsize}")

    def _held(self, w: Writer, i: Bound, feature: str, is_leaf: str) -> str:
        """The key of the threshold, or what the leaf gives. No number is ≤ NaN."""
        code, of = w.code, self.of
        place = w.place(of.layout(THRESHOLD), [i])
        value = w.load(0, place, of.dtype(THRESHOLD), 0).to(of.number)
        key, is_nan = ordered(value)
        key = code.const(least_key(of.key) + 1, of.key).where(is_nan, key)
        if of.gives == "weight":
            leaf = code.let(f"select i1 {is_leaf}, i64 {feature}, i64 0")
            given = self._weight(w, leaf).lane()
        else:
            given = code.let(f"trunc i64 {feature} to i32") if of.key is I32 else feature
        return code.let(
            f"select i1 {is_leaf}, {ELEMENT[of.key]} {given}, {ELEMENT[of.key]} {key.lane()}"
        )

    def _weight(self, w: Writer, leaf: str) -> Vec:
        """The bits of a leaf's one weight; there may be no leaves at all."""
        code, of = w.code, self.of
        is_some = code.const(0, DType.I8).equals(0)
        if of.leaves == 0:
            return code.const(0, of.key)
        if not is_static(of.leaves):
            is_some = code.splat(w.size(of.leaves), I64) > 0
        pointer = w.pointer(4, w.place(of.layout(WEIGHT), [leaf, 0]), of.dtype(WEIGHT))
        found = load(code, of.dtype(WEIGHT), pointer, w.argument(1), is_some)
        return found.to(of.number).bits(of.key)

    # -- trees ----------------------------------------------------------------------------------

    def roots(self, name: str) -> tuple[Task, DimLike]:
        """The root of each tree, and how many steps a walk takes from there at most."""
        w = Writer(self.of.isa)
        code = w.code
        with code.when(code.let("icmp eq i64 %start, 0")):
            self._heights(w)
            with code.count(0, w.size(self.of.trees), 1, POLLED) as i:
                root = self.whole(w, ROOT, 1, i)
                self.checked(w, root, w.size(self.of.nodes))
                height = self._height(code, root)
                where = code.let(f"getelementptr [2 x i32], ptr {w.buffer(2)}, i64 {i}")
                cut = code.let(f"trunc i64 {root} to i32")
                code.do(f"store i32 {cut}, ptr {where}, align 4")
                second = code.let(f"getelementptr i32, ptr {where}, i64 1")
                code.do(f"store i32 {height}, ptr {second}, align 4")
        task = self._task(w, name, (CHILD, ROOT), 1, (4 * self.of.nodes + 63) // 64 * 64)
        return task, self.of.trees * TREE_BYTES

    def _heights(self, w: Writer) -> None:
        """From the last node to the first: one more than the greater of the children's."""
        code, nodes = w.code, w.size(self.of.nodes)
        with code.count(0, nodes, 1, POLLED) as back:
            i = code.i64("sub", code.i64("sub", nodes, 1), back)
            child = self.whole(w, CHILD, 0, i)
            self.check_child(w, i, child)
            first = code.i64("add", i, child)
            is_leaf = code.let(f"icmp eq i64 {child}, 0")
            # a leaf reads its own place, and then not what it read
            second = code.let(f"select i1 {is_leaf}, i64 {first}, i64 {at(w, first, 1)}")
            both = [f"i32 {self._height(code, p)}" for p in (first, second)]
            taller = code.intrinsic("smax.i32", "i32", *both)
            more = code.let(f"add i32 {taller}, 1")
            height = code.let(f"select i1 {is_leaf}, i32 0, i32 {more}")
            where = code.let(f"getelementptr i32, ptr %scratch, i64 {i}")
            code.do(f"store i32 {height}, ptr {where}, align 4")

    def _height(self, code: Code, node: Bound) -> str:
        where = code.let(f"getelementptr i32, ptr %scratch, i64 {node}")
        return code.let(f"load i32, ptr {where}, align 4")

    # -- leaves ---------------------------------------------------------------------------------

    def pairs(self, name: str) -> tuple[Task, DimLike]:
        """Weight and target of each leaf, next to each other."""
        w = Writer(self.of.isa)
        units = self._each(w, self.of.leaves, lambda i: self._pair(w, i))
        return self._task(w, name, (WEIGHT, TARGET), units), self.of.leaves * PAIR_BYTES

    def _pair(self, w: Writer, i: Bound) -> None:
        code, of = w.code, self.of
        target = self.whole(w, TARGET, 1, i)
        self.checked(w, target, of.targets)
        place = w.place(of.layout(WEIGHT), [i, 0])
        weight = w.load(0, place, of.dtype(WEIGHT), 0).to(F64)
        where = code.let(f"getelementptr [2 x i64], ptr {w.buffer(2)}, i64 {i}")
        code.do(f"store i64 {weight.bits(I64).lane()}, ptr {where}, align 8")
        second = code.let(f"getelementptr i64, ptr {where}, i64 1")
        code.do(f"store i64 {target}, ptr {second}, align 8")
