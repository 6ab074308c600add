"""Decision-tree ensembles as packed node records: what a walk needs of a node is in one cache line.

A record is the key of the threshold, the column to test, and the offset of the children: 8 bytes
where rows are f32 and offsets fit 16 bits, else 16. Keys are integers in the order of the floats,
so that one comparison serves: NaN of a row is greater than all in one copy of the row's keys and
less than all in a second one, and the column says which of them a node reads. A leaf tests a column
that is less than all, and is its own child; its threshold field holds its output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rlx.backends.cpu.codegen.loop.vector_access import load
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.library.strided_copy import at, load_integer
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import DimLike, is_static
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Buffer

F32, F64, I32, I64 = DType.F32, DType.F64, DType.I32, DType.I64
X, THRESHOLD, FEATURE, CHILD, MISSING, ROOT, WEIGHT, TARGET = range(8)
"""Operands."""
LeafOutput = Literal["weight", "pair", "row"]
"""What a leaf's record holds: its one weight; or the index of a (target, weight) pair, or of a row
of weights."""
RECORDS_PER_UNIT, NS_PER_RECORD = 1024, 4
WIDE_SPAN, WIDE_COLUMNS = 1 << 16, (1 << 15) - 1
"""Offsets and columns from which on records are wide."""
NODES_PER_POLL = 1 << 15
"""Nodes or trees between two polls."""
ROW_PADDING_KEYS = 16
"""Keys that rows are padded by: a stride of a whole page would put them all into one cache set."""
PAIR_BYTES, TREE_BYTES = 16, 8
BAD_TABLE = "a table of the trees leads out of range"


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
    def tables_key(self) -> tuple[object, ...]:
        """What the packed tables follow from, beside the values of the operands."""
        step, dtypes = self.step, tuple(i.shape.dtype for i in self.step.node.inputs)
        return self.isa, self.columns, step.operands[1:], dtypes, self.targets, self.span

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
        """The float dtype that keys are made of."""
        return F64 if self.is_wide else F32

    @property
    def field(self) -> DType:
        """The dtype of columns and offsets in a record."""
        return DType.U32 if self.is_wide else DType.U16

    @property
    def record_bytes(self) -> int:
        return self.key.itemsize + 2 * self.field.itemsize

    @property
    def leaf_output(self) -> LeafOutput:
        if self.has_targets:
            return "pair"
        is_held = self.is_wide or self.dtype(WEIGHT).compute is F32
        return "weight" if self.targets == 1 and is_held else "row"

    # -- rows -----------------------------------------------------------------------------------

    @property
    def stride(self) -> DimLike:
        """Keys from one row to the next: two copies of the row, and the column of the leaves."""
        integer = (2 * self.columns + ROW_PADDING_KEYS) // ROW_PADDING_KEYS * ROW_PADDING_KEYS
        is_odd = is_static(integer) and (int(integer) // ROW_PADDING_KEYS) % 2
        return integer if is_odd else integer + ROW_PADDING_KEYS

    @property
    def row_bytes(self) -> DimLike:
        return self.stride * self.key.itemsize


def ordered_key(value: Vec) -> tuple[Vec, Vec]:
    """Keys of floats, and which of them are NaN: the order of their bits, those of negative numbers
    inverted; 0 and -0 are equal."""
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
    """Tasks that pack the tables of an ensemble, each as its result 0."""

    of: Ensemble

    def tasks(self, name: str) -> list[tuple[Task, DimLike]]:
        """Each with the bytes that it writes: records, trees, and pairs where there are any."""
        made = [self.records(f"{name}.nodes"), self.roots(f"{name}.trees")]
        return [*made, self.pairs(f"{name}.leaves")] if self.of.leaf_output == "pair" else made

    def _units(self, count: DimLike) -> DimLike:
        return (count + RECORDS_PER_UNIT - 1) // RECORDS_PER_UNIT

    def _each(self, w: Writer, count: DimLike, body: Callable[[Bound], None]) -> None:
        """A loop over so many, in units."""
        stop = w.code.least("%stop", w.size(self._units(count)))
        with w.code.count("%start", stop, 1) as unit:
            first = w.code.i64("mul", unit, RECORDS_PER_UNIT)
            end = w.code.i64("add", first, RECORDS_PER_UNIT)
            with w.code.count(first, w.code.least(end, w.size(count)), 1) as i:
                body(i)

    def integer(self, w: Writer, operand: int, number: int, i: Bound) -> str:
        """An element of an integer table, which is buffer `number`."""
        return load_integer(
            w, number, w.place(self.of.layout(operand), [i]), self.of.dtype(operand)
        )

    def checked(self, w: Writer, value: str, limit: Bound) -> None:
        w.fail(w.code.compare("ge", value, limit, DType.U64), 1)

    def _task(
        self, name: str, write: Callable[[Writer], None], operands: tuple[int, ...],
        units: DimLike, scratch: DimLike = 0,
    ) -> Task:  # fmt: skip
        """A task whose function `write` emits."""

        def source(own: str) -> Source:
            w = Writer(self.of.isa)
            write(w)
            return w.source(own)

        code = TaskCode(name, source, ("tree tables", operands, self.of.tables_key))
        given = (*(Buffer("operand", o) for o in operands), Buffer("result", 0))
        grain = self.of.step.machine.units_per_task(units, units * RECORDS_PER_UNIT * NS_PER_RECORD)
        return Task(code, given, units, grain, scratch, failures=(BAD_TABLE,))

    # -- nodes ----------------------------------------------------------------------------------

    def records(self, name: str) -> tuple[Task, DimLike]:
        operands, nodes = (THRESHOLD, FEATURE, CHILD, MISSING, WEIGHT), self.of.nodes

        def write(w: Writer) -> None:
            self._each(w, nodes, lambda i: self._record(w, i, len(operands)))

        task = self._task(name, write, operands, self._units(nodes))
        return task, nodes * self.of.record_bytes

    def _record(self, w: Writer, i: Bound, result: int) -> None:
        code, of = w.code, self.of
        child, feature = self.integer(w, CHILD, 2, i), self.integer(w, FEATURE, 1, i)
        is_leaf = code.compare("eq", child, 0)
        self.check_child(w, i, child)
        limits = w.size(of.leaves), w.size(of.columns)
        limit = code.choose(is_leaf, limits[0], limits[1])
        self.checked(w, feature, limit)
        missing = load_integer(w, 3, w.place(of.layout(MISSING), [i]), DType.BOOL)
        copy = code.i64("mul", missing, w.size(of.columns))
        own = code.i64("add", feature, copy)
        last = w.size(2 * of.columns)
        column = code.choose(is_leaf, last, own)
        held = self._threshold_or_output(w, i, feature, is_leaf)
        record = code.let(
            f"getelementptr [{of.record_bytes} x i8], ptr {w.buffer(result)}, i64 {i}"
        )
        code.do(f"store {ELEMENT[of.key]} {held}, ptr {record}, align {of.record_bytes}")
        for number, value in enumerate((column, child)):
            self._field(code, record, number, value)

    def check_child(self, w: Writer, i: Bound, child: str) -> None:
        """0, or within the span and with its sibling in the table."""
        code = w.code
        self.checked(w, child, self.of.span + 1)
        last = code.i64("add", code.i64("add", i, child), 1)
        is_out = code.compare("ge", last, w.size(self.of.nodes))
        is_inner = code.compare("ne", child, 0)
        w.fail(code.both(is_out, is_inner), 1)

    def _field(self, code: Code, record: str, number: int, value: Bound) -> None:
        field = self.of.field
        offset = self.of.key.itemsize + number * field.itemsize
        where = code.advanced(record, offset, DType.U8)
        cut = code.let(f"trunc i64 {value} to {ELEMENT[field]}")
        code.do(f"store {ELEMENT[field]} {cut}, ptr {where}, align {field.itemsize}")

    def _threshold_or_output(self, w: Writer, i: Bound, feature: str, is_leaf: str) -> str:
        """The key of the threshold, or the leaf's output. No number is ≤ NaN."""
        code, of = w.code, self.of
        place = w.place(of.layout(THRESHOLD), [i])
        value = w.load(0, place, of.dtype(THRESHOLD), 0).to(of.number)
        key, is_nan = ordered_key(value)
        key = code.const(least_key(of.key) + 1, of.key).where(is_nan, key)
        if of.leaf_output == "weight":
            leaf = code.choose(is_leaf, feature, 0)
            given = self._weight(w, leaf).lane()
        else:
            given = code.converted(feature, DType.I64, DType.I32) if of.key is I32 else feature
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
        """The root of each tree, and its height: the most steps of a walk."""
        scratch = (4 * self.of.nodes + 63) // 64 * 64
        task = self._task(name, self._roots, (CHILD, ROOT), 1, scratch)
        return task, self.of.trees * TREE_BYTES

    def _roots(self, w: Writer) -> None:
        code = w.code
        with code.when(code.compare("eq", "%start", 0)):
            self._heights(w)
            with code.count(0, w.size(self.of.trees), 1, NODES_PER_POLL) as i:
                root = self.integer(w, ROOT, 1, i)
                self.checked(w, root, w.size(self.of.nodes))
                height = self._height(code, root)
                where = code.let(f"getelementptr [2 x i32], ptr {w.buffer(2)}, i64 {i}")
                cut = code.converted(root, DType.I64, DType.I32)
                code.store_scalar(where, cut, DType.I32, 4)
                second = code.advanced(where, 1, DType.I32)
                code.store_scalar(second, height, DType.I32, 4)

    def _heights(self, w: Writer) -> None:
        """From the last node to the first: one more than the greater of the children's."""
        code, nodes = w.code, w.size(self.of.nodes)
        with code.count(0, nodes, 1, NODES_PER_POLL) as back:
            i = code.i64("sub", code.i64("sub", nodes, 1), back)
            child = self.integer(w, CHILD, 0, i)
            self.check_child(w, i, child)
            first = code.i64("add", i, child)
            is_leaf = code.compare("eq", child, 0)
            # a leaf reads its own entry, and then ignores it
            second = code.choose(is_leaf, first, at(w, first, 1))
            both = [f"i32 {self._height(code, p)}" for p in (first, second)]
            taller = code.intrinsic("smax.i32", "i32", *both)
            more = code.integer("add", taller, 1, DType.I32)
            height = code.choose(is_leaf, 0, more, DType.I32)
            where = code.advanced("%scratch", i, DType.I32)
            code.store_scalar(where, height, DType.I32, 4)

    def _height(self, code: Code, node: Bound) -> str:
        where = code.advanced("%scratch", node, DType.I32)
        return code.load_scalar(where, DType.I32, 4)

    # -- leaves ---------------------------------------------------------------------------------

    def pairs(self, name: str) -> tuple[Task, DimLike]:
        """(weight, target) pairs of leaves, interleaved."""
        leaves = self.of.leaves

        def write(w: Writer) -> None:
            self._each(w, leaves, lambda i: self._pair(w, i))

        task = self._task(name, write, (WEIGHT, TARGET), self._units(leaves))
        return task, leaves * PAIR_BYTES

    def _pair(self, w: Writer, i: Bound) -> None:
        code, of = w.code, self.of
        target = self.integer(w, TARGET, 1, i)
        self.checked(w, target, of.targets)
        place = w.place(of.layout(WEIGHT), [i, 0])
        weight = w.load(0, place, of.dtype(WEIGHT), 0).to(F64)
        where = code.let(f"getelementptr [2 x i64], ptr {w.buffer(2)}, i64 {i}")
        code.store_scalar(where, weight.bits(I64).lane(), DType.I64, 8)
        second = code.advanced(where, 1, DType.I64)
        code.store_scalar(second, target, DType.I64, 8)
