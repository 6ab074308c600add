"""Walks through decision-tree ensembles, eight interleaved: each waits for its next record, so that
one alone would leave the processor idle.

Of many rows a unit is eight of them, which walk through one tree after the other; a block of rows
whose keys stay in the L1 cache takes each tree in turn. Of few rows a unit is a chunk of trees,
eight of which one row walks through at once. Both add the trees of a chunk in order, and then the
chunks, in f64: a row has the same bits in either, for any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlx.backends.cpu.codegen.gemm.microkernel import below
from rlx.backends.cpu.codegen.loop.vector_access import load, store
from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.library.counters import Variable
from rlx.backends.cpu.library.shared_functions import helper
from rlx.backends.cpu.library.strided_copy import at, dim_lanes, masked_lane_stride
from rlx.backends.cpu.library.trees.node_records import (
    PAIR_BYTES,
    TREE_BYTES,
    WEIGHT,
    Ensemble,
    Packing,
    X,
    greatest_key,
    least_key,
    ordered_key,
)
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import DimLike, dim_max, dim_min, is_static, product
from rlx.core.dtype import DType
from rlx.kernel.program.schedule import Buffer, PackedWeights, Schedule
from rlx.ops.ml.trees import IDENTITY

F64, I64 = DType.F64, DType.I64
INTERLEAVED_WALKS = 8
"""Interleaved walks: a step waits about a dozen cycles for what takes about eight instructions."""
TREES_PER_CHUNK = 64
"""Trees per partial sum."""
TREE_PARALLEL_MAX_ROWS = 16
"""Up to this many rows, trees are parallelised, not rows."""
BLOCK_BYTES = 24 << 10
"""Bytes of keys: most of an L1 cache."""
UNTESTED_STEPS = 6
"""Steps of a walk before the first test whether all have ended."""
TREE_NS = 12
"""Nanoseconds of a walk, roughly."""
RECORDS, TREES, LEAVES = 1, 2, 3
"""Buffers of a task after x."""


@dataclass(frozen=True, slots=True)
class _Walks:
    """The tasks of a step."""

    of: Ensemble

    # -- sizes ----------------------------------------------------------------------------------

    @property
    def chunks(self) -> DimLike:
        return (self.of.trees + TREES_PER_CHUNK - 1) // TREES_PER_CHUNK

    @property
    def is_by_trees(self) -> DimLike:
        """1 where there are few rows, else 0."""
        return dim_min(1, TREE_PARALLEL_MAX_ROWS // dim_max(1, self.of.rows))

    @property
    def block(self) -> int:
        """Units whose keys are computed at once."""
        if not is_static(self.of.row_bytes):
            return 1
        return max(1, min(32, BLOCK_BYTES // (INTERLEAVED_WALKS * int(self.of.row_bytes))))

    @property
    def identity(self) -> float:
        return IDENTITY[self.of.step.node.attrs["aggregate"]]

    @property
    def nanoseconds(self) -> DimLike:
        return self.of.rows * self.of.trees * TREE_NS

    # -- operands -------------------------------------------------------------------------------

    def kernel_sequence(self, name: str) -> Schedule[Task]:
        packing = Packing(self.of).tasks(name)
        is_fixed = set(range(1, len(self.of.step.operands))) <= self.of.step.constants
        # a record names its column in either copy of a row, whose length may be dynamic
        is_fixed = is_fixed and is_static(self.of.columns)
        kind = "packed" if is_fixed else "temp"
        tables = tuple(Buffer(kind, i) for i in range(len(packing)))
        packed = tuple(PackedWeights(t, size) for t, size in packing) if is_fixed else ()
        temps: list[DimLike] = [] if is_fixed else [size for _, size in packing]
        before = [] if is_fixed else [_into_temporary(t, b) for (t, _), b in zip(packing, tables)]
        weights = (Buffer("operand", WEIGHT),) if self.of.leaf_output == "row" else ()
        given = (Buffer("operand", X), *tables[:2], *(weights or tables[2:]))
        tasks: list[Task] = []
        if not is_static(self.of.rows) or self.is_by_trees == 1:
            sums = Buffer("temp", len(temps))
            temps.append(product((self.few_rows, self.chunks, self.of.targets, 8)))
            tasks += [self.by_trees(f"{name}.few", (*given, sums)), self.sum_chunks(name, sums)]
        if not is_static(self.of.rows) or self.is_by_trees == 0:
            tasks.append(self.by_rows(f"{name}.many", (*given, Buffer("result", 0))))
        return Schedule((*before, *tasks), tuple(temps), packed)

    # -- many rows ------------------------------------------------------------------------------

    def by_rows(self, name: str, given: tuple[Buffer, ...]) -> Task:
        units = self.row_units
        grain = self.of.step.machine.units_per_task(units, self.nanoseconds)
        grain = dim_max(grain, dim_min(self.block, (units + 3) // 4))
        scratch = (self.block_keys_bytes + 2 * self.block_sums_bytes + 63) // 64 * 64
        return Task(
            TaskCode(name, self.by_rows_source), given, units, grain, scratch,
            summary=f"{INTERLEAVED_WALKS} interleaved rows per tree, "
            f"{INTERLEAVED_WALKS * self.block} rows per cache block",
        )  # fmt: skip

    @property
    def row_units(self) -> DimLike:
        rows = (1 - self.is_by_trees) * self.of.rows
        return (rows + INTERLEAVED_WALKS - 1) // INTERLEAVED_WALKS

    @property
    def block_keys_bytes(self) -> DimLike:
        return INTERLEAVED_WALKS * self.block * self.of.row_bytes

    @property
    def block_sums_bytes(self) -> int:
        return INTERLEAVED_WALKS * self.block * self.of.targets * 8

    def by_rows_source(self, name: str) -> Source:
        w = Writer(self.of.isa)
        code = w.code
        stop = code.least("%stop", w.size(self.row_units))
        parts = code.advanced("%scratch", w.size(self.block_keys_bytes), DType.U8)
        totals = code.advanced(parts, self.block_sums_bytes, DType.U8)
        with code.count("%start", stop, self.block) as first:
            count = code.least(code.i64("sub", stop, first), self.block)
            self._block(w, name, first, count, parts, totals)
        return w.source(name)

    def _block(
        self, w: Writer, name: str, first: Bound, count: Bound, parts: str, totals: str
    ) -> None:
        """Some units, through all trees."""
        code, targets = w.code, self.of.targets
        row = code.i64("mul", first, INTERLEAVED_WALKS)
        rows = code.i64("mul", count, INTERLEAVED_WALKS)
        last = code.i64("sub", w.size(self.of.rows), 1)
        with code.count(0, rows, 1) as i:
            self._keys(w, name, code.least(at(w, row, i), last), i)
        sums = code.i64("mul", rows, targets)
        self._fill(code, totals, sums)
        with code.count(0, w.size(self.of.trees), TREES_PER_CHUNK, polled=1) as tree:
            self._fill(code, parts, sums)
            end = code.least(code.i64("add", tree, TREES_PER_CHUNK), w.size(self.of.trees))
            with code.count(tree, end, 1) as t, code.count(0, count, 1) as unit:
                self._unit(w, name, t, unit, parts)
            with code.count(0, sums, 1) as i:
                self._fold(code, totals, i, self._sum(code, parts, i))
        left = code.i64("sub", w.size(self.of.rows), row)
        with code.count(0, code.least(rows, left), 1) as i:
            for k in range(targets):
                total = self._sum(code, totals, at(w, code.i64("mul", i, targets), k))
                self._store(w, total, at(w, row, i), k, w.buffer(self._result))

    @property
    def _result(self) -> int:
        return LEAVES if self.of.leaf_output == "weight" else LEAVES + 1

    def _unit(self, w: Writer, name: str, tree: Bound, unit: Bound, parts: str) -> None:
        """Eight rows through a tree, and their leaves' outputs to the sums."""
        code = w.code
        root, height = self._tree(w, tree)
        row = code.i64("mul", unit, INTERLEAVED_WALKS)
        base = self._row(w, row)
        rows = [base, *(self._after(w, base, n) for n in range(1, INTERLEAVED_WALKS))]
        found = self._walk(w, [root] * INTERLEAVED_WALKS, rows, height)
        for n, leaf in enumerate(found):
            place = code.i64("mul", at(w, row, n), self.of.targets)
            self._add_leaf(w, name, leaf, parts, place)

    # -- few rows -------------------------------------------------------------------------------

    @property
    def few_rows(self) -> DimLike:
        """Rows, as far as trees are parallelised."""
        return dim_min(self.of.rows, TREE_PARALLEL_MAX_ROWS)

    def by_trees(self, name: str, given: tuple[Buffer, ...]) -> Task:
        units, keys_bytes = self.chunks * self.is_by_trees, self.few_rows * self.of.row_bytes
        scratch = (keys_bytes + TREE_PARALLEL_MAX_ROWS * self.of.targets * 8 + 63) // 64 * 64
        grain = self.of.step.machine.units_per_task(units, self.nanoseconds)
        return Task(
            TaskCode(name, self.by_trees_source), given, units, grain, scratch,
            summary=f"{INTERLEAVED_WALKS} interleaved trees per row",
        )  # fmt: skip

    def by_trees_source(self, name: str) -> Source:
        w = Writer(self.of.isa)
        code, num_rows = w.code, w.size(self.few_rows * self.is_by_trees)
        stop = code.least("%stop", w.size(self.chunks * self.is_by_trees))
        keys_bytes = self.few_rows * self.of.row_bytes
        parts = code.advanced("%scratch", w.size(keys_bytes), DType.U8)
        with code.when(code.compare("lt", "%start", stop)):
            with code.count(0, num_rows, 1) as i:
                self._keys(w, name, i, i)
            with code.count("%start", stop, 1) as chunk:
                self._chunk(w, name, chunk, num_rows, parts)
        return w.source(name)

    def _chunk(self, w: Writer, name: str, chunk: Bound, num_rows: Bound, parts: str) -> None:
        """The sums of a chunk of trees, for all rows."""
        code, targets = w.code, self.of.targets
        sums = code.i64("mul", num_rows, targets)
        self._fill(code, parts, sums)
        start = code.i64("mul", chunk, TREES_PER_CHUNK)
        end = code.least(code.i64("add", start, TREES_PER_CHUNK), w.size(self.of.trees))
        rest = code.integer("rem", code.i64("sub", end, start), INTERLEAVED_WALKS)
        whole = code.i64("sub", end, rest)
        with (
            code.count(start, whole, INTERLEAVED_WALKS) as tree,
            code.count(0, num_rows, 1) as row,
        ):
            self._row_walks(w, name, tree, row, INTERLEAVED_WALKS, parts)
        with code.count(whole, end, 1) as tree, code.count(0, num_rows, 1) as row:
            self._row_walks(w, name, tree, row, 1, parts)
        with code.count(0, num_rows, 1) as row, code.count(0, targets, 1) as k:
            one = self._sum(code, parts, at(w, code.i64("mul", row, targets), k))
            place = at(w, code.i64("mul", row, w.size(self.chunks)), chunk)
            place = at(w, code.i64("mul", place, targets), k)
            w.store(one, self._result, place, F64)

    def _row_walks(
        self, w: Writer, name: str, tree: Bound, row: Bound, count: int, parts: str
    ) -> None:
        """One row through several trees; its leaves' outputs are added in their order."""
        code = w.code
        trees = [self._tree(w, at(w, tree, n)) for n in range(count)]
        most = trees[0][1]
        for _, height in trees[1:]:
            most = str(code.most(most, height))
        base = self._row(w, row)
        found = self._walk(w, [root for root, _ in trees], [base] * count, most)
        for leaf in found:
            self._add_leaf(w, name, leaf, parts, code.i64("mul", row, self.of.targets))

    def sum_chunks(self, name: str, sums: Buffer) -> Task:
        """Add the chunks of each row."""
        rows, given = self.of.rows * self.is_by_trees, (sums, Buffer("result", 0))
        return Task(TaskCode(name, self.sum_chunks_source), given, rows, dim_max(1, rows))

    def sum_chunks_source(self, name: str) -> Source:
        w = Writer(self.of.isa)
        code, targets = w.code, self.of.targets
        rows = self.of.rows * self.is_by_trees
        with code.count("%start", code.least("%stop", w.size(rows)), 1) as row:
            base = code.i64("mul", code.i64("mul", row, w.size(self.chunks)), targets)
            for k in range(targets):
                total = code.variable(code.const(self.identity, F64))
                with code.count(0, w.size(self.chunks), 1) as chunk:
                    place = at(w, base, code.i64("mul", chunk, targets), k)
                    before = code.load(total, F64)
                    code.store(total, self._folded(before, w.load(0, place, F64)))
                self._store(w, code.load(total, F64), row, k, w.buffer(1))
        return w.source(name)

    # -- rows as keys ---------------------------------------------------------------------------

    def _row(self, w: Writer, number: Bound) -> str:
        place = w.code.i64("mul", number, w.size(self.of.row_bytes))
        return w.code.advanced("%scratch", place, DType.U8)

    def _after(self, w: Writer, base: str, count: int) -> str:
        return w.code.advanced(base, w.size(count * self.of.row_bytes), DType.U8)

    def _keys(self, w: Writer, name: str, row: Bound, number: Bound) -> None:
        """The keys of a row of x, as the row of this index in scratch memory: with NaN greater than
        all, with NaN less than all, and what leaves test."""
        code, x, dtype = w.code, self.of.layout(X), self.of.dtype(X)
        helper(
            code, f"{name}.keys", "ptr %from, i64 %step, ptr %to, i64 %n", self._write_keys,
            self.of.isa.lanes(self.of.number),
        )  # fmt: skip
        source = w.pointer(0, w.place(x, [row, 0]), dtype)
        sizes = masked_lane_stride(w, x.strides[1]), w.size(self.of.columns)
        args = f"ptr {source}, i64 {sizes[0]}, ptr {self._row(w, number)}, i64 {sizes[1]}"
        code.do(f"call void @{name}.keys({args})")

    def _write_keys(self, code: Code) -> None:
        dtype, kind = self.of.dtype(X), self.of.key
        element, size = ELEMENT[kind], kind.itemsize
        is_dense = self.of.layout(X).strides[1] == 1
        second = code.let(f"getelementptr {element}, ptr %to, i64 %n")
        with code.count(0, "%n", code.lanes) as i:
            mask = below(code, code.i64("sub", "%n", i))
            place = i if is_dense else code.i64("mul", i, "%step")
            start = code.advanced("%from", _times(code, place, dtype), DType.U8)
            value = load(code, dtype, start, 1 if is_dense else "%step", mask).to(self.of.number)
            key, is_nan = ordered_key(value)
            for base, nan in (("%to", greatest_key(kind)), (second, least_key(kind))):
                to = code.let(f"getelementptr {element}, ptr {base}, i64 {i}")
                store(code, code.const(nan, kind).where(is_nan, key), kind, to, 1, mask)
        end = code.let(f"getelementptr {element}, ptr {second}, i64 %n")
        code.do(f"store {element} {least_key(kind)}, ptr {end}, align {size}")

    # -- walks ----------------------------------------------------------------------------------

    def _tree(self, w: Writer, number: Bound) -> tuple[str, str]:
        """The root's record of a tree, and its height."""
        code = w.code
        where = code.let(f"getelementptr [{TREE_BYTES} x i8], ptr {w.buffer(TREES)}, i64 {number}")
        root = code.load_scalar(where, DType.I32, 4)
        second = code.advanced(where, 1, DType.I32)
        height = code.load_scalar(second, DType.I32, 4)
        wide = code.converted(root, DType.U32, DType.I64)
        kind = f"[{self.of.record_bytes} x i8]"
        record = code.let(f"getelementptr {kind}, ptr {w.buffer(RECORDS)}, i64 {wide}")
        return record, code.converted(height, DType.U32, DType.I64)

    def _walk(
        self, w: Writer, starts: Sequence[str], rows: Sequence[str], height: Bound
    ) -> list[str]:
        """The leaves' records that walks from these records end at. After some steps, every other
        one tests whether a walk still moves."""
        code = w.code
        slots = [Variable(code, start, "ptr") for start in starts]
        with code.count(0, code.least(height, UNTESTED_STEPS), 1):
            for slot, row in zip(slots, rows):
                slot.set(self._step(code, slot.get(), row))
        with code.when(code.compare("gt", height, UNTESTED_STEPS)):
            moves = Variable(code, 1)
            with code.loop_while(lambda: code.compare("ne", moves.get(), 0)):
                for slot, row in zip(slots, rows):
                    slot.set(self._step(code, slot.get(), row))
                moves.set(0)
                for slot, row in zip(slots, rows):
                    old = slot.get()
                    slot.set(self._step(code, old, row))
                    self._note_moves(code, moves, old, slot.get())
        return [slot.get() for slot in slots]

    def _note_moves(self, code: Code, moves: Variable, old: str, new: str) -> None:
        places = [code.let(f"ptrtoint ptr {p} to i64") for p in (old, new)]
        difference = code.integer("xor", places[0], places[1])
        moves.set(code.integer("or", moves.get(), difference))

    def _step(self, code: Code, record: str, row: str) -> str:
        """The next record: one of the two children, or the same of a leaf."""
        of = self.of
        held = code.let(f"load {ELEMENT[of.key]}, ptr {record}, align {of.record_bytes}")
        column = self._field(code, record, 0)
        where = code.let(f"getelementptr {ELEMENT[of.key]}, ptr {row}, i64 {column}")
        key = code.let(f"load {ELEMENT[of.key]}, ptr {where}, align {of.key.itemsize}")
        is_second = code.let(f"icmp sgt {ELEMENT[of.key]} {key}, {held}")
        more = code.converted(is_second, DType.BOOL, DType.I64)
        distance = code.integer("add", self._field(code, record, 1), more)
        return code.let(f"getelementptr [{of.record_bytes} x i8], ptr {record}, i64 {distance}")

    def _field(self, code: Code, record: str, number: int) -> str:
        field = self.of.field
        offset = self.of.key.itemsize + number * field.itemsize
        where = code.advanced(record, offset, DType.U8)
        value = code.let(f"load {ELEMENT[field]}, ptr {where}, align {field.itemsize}")
        return code.let(f"zext {ELEMENT[field]} {value} to i64")

    # -- sums -----------------------------------------------------------------------------------

    def _add_leaf(self, w: Writer, name: str, leaf: str, sums: str, place: Bound) -> None:
        """Add a leaf's output to the sums of a row, which begin at an offset."""
        code, of = w.code, self.of
        kind = ELEMENT[of.key]
        if of.leaf_output == "weight":
            number = ELEMENT[of.number]
            value = code.let(f"load {number}, ptr {leaf}, align {of.record_bytes}")
            self._fold(code, sums, place, code.splat(value, of.number).to(F64))
            return
        raw = code.let(f"load {kind}, ptr {leaf}, align {of.record_bytes}")
        found = code.converted(raw, DType.U32, DType.I64) if of.key is DType.I32 else raw
        if of.leaf_output == "pair":
            pair = code.let(
                f"getelementptr [{PAIR_BYTES} x i8], ptr {w.buffer(LEAVES)}, i64 {found}"
            )
            weight = code.splat(code.load_scalar(pair, DType.F64, 8), F64)
            second = code.advanced(pair, 1, DType.I64)
            target = code.load_scalar(second, DType.I64, 8)
            self._fold(code, sums, at(w, place, target), weight)
            return
        self._add_leaf_row(w, name, found, sums, place)

    def _add_leaf_row(self, w: Writer, name: str, leaf: str, sums: str, place: Bound) -> None:
        code, layout, dtype = w.code, self.of.layout(WEIGHT), self.of.dtype(WEIGHT)
        is_dense = layout.strides[1] == 1
        lanes = dim_lanes(self.of.isa, F64, self.of.targets) if is_dense else 1
        helper(code, f"{name}.row", "ptr %from, i64 %step, ptr %sums", self._write_row, lanes)
        source = w.pointer(LEAVES, w.place(layout, [leaf, 0]), dtype)
        to = code.advanced(sums, place, DType.F64)
        code.do(
            f"call void @{name}.row(ptr {source}, i64 {w.size(layout.strides[1])}, ptr {to})"
        )  # fmt: skip

    def _write_row(self, code: Code) -> None:
        """Add a row of weights to a row of sums."""
        dtype, targets = self.of.dtype(WEIGHT), self.of.targets
        is_dense = self.of.layout(WEIGHT).strides[1] == 1
        for k in range(0, targets, code.lanes):
            mask = None if k + code.lanes <= targets else below(code, targets - k)
            offset: Bound = k if is_dense else code.i64("mul", k, "%step")
            start = code.advanced("%from", _times(code, offset, dtype), DType.U8)
            to = code.advanced("%sums", k, DType.F64)
            weight = load(code, dtype, start, 1, mask).to(F64)
            store(code, self._folded(load(code, F64, to, 1, mask), weight), F64, to, 1, mask)

    def _folded(self, total: Vec, value: Vec) -> Vec:
        match self.of.step.node.attrs["aggregate"]:
            case "min":
                return arith.minimum(total, value)
            case "max":
                return arith.maximum(total, value)
            case _:
                return total + value

    def _sum(self, code: Code, sums: str, place: Bound) -> Vec:
        return load(code, F64, code.advanced(sums, place, DType.F64))

    def _fold(self, code: Code, sums: str, place: Bound, value: Vec) -> None:
        where = code.advanced(sums, place, DType.F64)
        store(code, self._folded(load(code, F64, where), value), F64, where)

    def _fill(self, code: Code, sums: str, count: Bound) -> None:
        with code.count(0, count, 1) as i:
            where = code.advanced(sums, i, DType.F64)
            store(code, code.const(self.identity, F64), F64, where)

    def _store(self, w: Writer, total: Vec, row: Bound, k: int, result: str) -> None:
        """Store a finished sum."""
        code, dtype = w.code, self.of.step.node.shape.dtype
        if self.of.step.node.attrs["aggregate"] == "average":
            count = code.splat(w.size(dim_max(1, self.of.trees)), I64).to(F64)
            total = total / count
        place = w.place(self.of.step.results[0], [row, k])
        start = code.advanced(result, _times(code, place, dtype), DType.U8)
        store(code, total.to(dtype.compute), dtype, start)


def _times(code: Code, count: Bound, dtype: DType) -> Bound:
    return code.i64("mul", count, dtype.itemsize)


def _into_temporary(task: Task, to: Buffer) -> Task:
    """A task that writes a table, into a temporary."""
    given = tuple(to if b.kind == "result" else b for b in task.buffers)
    return replace(task, buffers=given)


def make_tree_ensemble(step: Step, name: str) -> Schedule[Task]:
    return _Walks(Ensemble(step)).kernel_sequence(name)
