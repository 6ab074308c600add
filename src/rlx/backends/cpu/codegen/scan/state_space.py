"""State-space layers (selective scan, Mamba-2, linear attention, delta rule). The state's columns
are independent, so each unit runs all steps with some columns of one head, staged in scratch.

A kernel of a step is a loop over the rows of the state: what does not vary with the row is computed
before it, reductions over the rows are accumulators, and what needs them follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rlx.backends.cpu.codegen.gemm.microkernel import below
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.math.expression_vectors import apply_op
from rlx.backends.cpu.codegen.scan.positions import place, stored_value
from rlx.backends.cpu.library.strided_copy import at
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.multiply_add import multiply_add
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import Step, Task, iterations_per_poll
from rlx.backends.cpu.schedule.gemm_tiling import parts_of
from rlx.core.dim import DimLike, dim_max, is_static, product
from rlx.core.dtype import DType
from rlx.kernel.expr import Affine, Apply, Axis, Const, Expr, Kernel, Load, Reduce, Store
from rlx.kernel.lower.scan import lower_scan
from rlx.kernel.program.schedule import Schedule, buffers
from rlx.kernel.refusal import required
from rlx.kernel.scan import Scan, Value

ROW_PS, SCALED_ROW_PS = 150, 200
"""Picoseconds of a state row at a vector of columns, and of one that decays."""
EXP_ROW_PS, EXP_VECTOR_PS = 600, 3000
"""The same where a row has its own decay, and where each of its columns has."""


def make_state_space(step: Step, name: str) -> Schedule[Task]:
    """The tasks of a step that is a state-space layer."""
    form = required(lower_scan(step.node, step.operands, step.results))
    return state_space_schedule(form, step.machine, name)


def state_space_schedule(form: Scan, machine: CpuMachine, name: str) -> Schedule[Task]:
    """The tasks of a scan whose carry is a matrix of each head."""
    return Schedule((_Schedule.of(form, machine).task(name),))


@dataclass(frozen=True, slots=True)
class _Schedule:
    """How a state-space layer runs: a unit is some columns of the state of a head."""

    form: Scan
    machine: CpuMachine
    steps: tuple[Kernel, ...]

    @classmethod
    def of(cls, form: Scan, machine: CpuMachine) -> _Schedule:
        kernels = tuple(k for k in form.directions[0].steps if isinstance(k, Kernel))
        return cls(form, machine, kernels)

    @property
    def state(self) -> Value:
        return self.form.carries[0]

    @property
    def rows(self) -> Axis:
        return self.state.axes[-2]

    @property
    def columns(self) -> Axis:
        return self.state.axes[-1]

    @property
    def queries(self) -> Axis:
        """The query heads of a state."""
        return self.steps[-1].axes[-1]

    @property
    def num_queries(self) -> int:
        return int(self.queries.extent)

    @property
    def dtype(self) -> DType:
        return self.form.operands[0].dtype

    @property
    def lanes(self) -> int:
        return self.machine.isa.lanes(self.dtype)

    @property
    def vectors(self) -> int:
        """Vectors of columns at a time: independent accumulators, as many as hide the latency of an
        addition."""
        most = max(1, min(4, self.machine.isa.registers // 3 // self.num_queries))
        if not is_static(self.columns.extent):
            return min(most, 2)
        return max(1, min(most, -(-int(self.columns.extent) // self.lanes)))

    @property
    def width(self) -> int:
        return self.vectors * self.lanes

    @property
    def units(self) -> tuple[DimLike, ...]:
        """Batch, heads, blocks of columns."""
        outer = (a.extent for a in self.state.axes[:-2])
        return *outer, parts_of(self.columns.extent, self.width)

    @property
    def staged(self) -> tuple[Load, ...]:
        """What is the same at all positions and has an element for each of the state: such as the
        rates of a selective scan. It is read once, into scratch memory."""
        both = {self.rows, self.columns}
        loads = dict.fromkeys(n for k in self.steps for n in k.nodes if isinstance(n, Load))
        operands = len(self.form.operands)
        return tuple(
            n for n in loads
            if n.operand < operands and n.free >= both and self.form.time not in n.free
        )  # fmt: skip

    @property
    def row_ps(self) -> int:
        """Picoseconds of a state row at a vector of columns, by what its decay varies with."""
        nodes = [n for k in self.steps for n in k.nodes if isinstance(n, Apply)]
        decay = next((n for n in nodes if n.op.name == "exp"), None)
        if decay is None:
            return ROW_PS
        if self.rows not in decay.free:
            return SCALED_ROW_PS
        return EXP_VECTOR_PS if self.columns in decay.free else EXP_ROW_PS

    @property
    def step_ns(self) -> DimLike:
        """Nanoseconds of one step of a unit."""
        return dim_max(1, self.rows.extent * (self.vectors * self.row_ps) // 1000)

    @property
    def bytes(self) -> DimLike:
        """The state of a unit, and what is staged."""
        state = self.rows.extent * (self.width * self.state.dtype.itemsize)
        return state * (1 + len(self.staged))

    def task(self, name: str) -> Task:
        units = product(self.units)
        ns = units * self.form.time.extent * self.step_ns
        grain = self.machine.units_per_task(units, ns)
        given = buffers(len(self.form.operands), len(self.form.results))
        return Task(TaskCode(name, self.source), given, units, grain, self.bytes, ())

    def source(self, name: str) -> Source:
        return _Steps(self).source(name)


Known = dict[tuple[Expr, int, int], Vec]
"""Values by expression, query head and vector of columns."""


class _Steps:
    """The function of all steps under construction."""

    def __init__(self, schedule: _Schedule) -> None:
        self.schedule, self.form = schedule, schedule.form
        self.kind, self.lanes, self.width = schedule.state.dtype, schedule.lanes, schedule.width
        self.w = Writer(schedule.machine.isa, self.lanes)
        self.code = self.w.code
        self.where: dict[Axis, Bound] = {}
        self.masks: list[Vec] = []
        self.kept: dict[tuple[str, int], Vec] = {}
        """The values of a step by name and vector."""
        self.sums: dict[tuple[Expr, int, int], str] = {}

    def source(self, name: str) -> Source:
        schedule, w, code = self.schedule, self.w, self.code
        if schedule.columns.extent == 0:
            return Source(w.function(name), w.sizes)
        rows, columns = w.size(schedule.rows.extent), w.size(schedule.columns.extent)
        with code.count("%start", code.least("%stop", w.size(product(schedule.units))), 1) as unit:
            *outer, block = w.split(unit, schedule.units)
            column = code.i64("mul", block, self.width)
            self.where = dict(zip(schedule.state.axes[:-2], outer)) | {schedule.columns: column}
            ends = [code.i64("sub", columns, at(w, column, v * self.lanes)) for v in self.every()]
            self.masks = [below(code, e) for e in ends]
            self.unit(rows)
        return Source(w.function(name), w.sizes)

    def every(self) -> range:
        return range(self.schedule.vectors)

    def unit(self, rows: Bound) -> None:
        code, (start,), (finish,) = self.code, self.form.start, self.form.finish
        with code.count(0, rows, 1) as n:
            self.where[self.schedule.rows] = n
            for v in self.every():
                self.stored(start.stores[0], {}, 0, v)
                for number, one in enumerate(self.schedule.staged, 1):
                    value = self.operand(one, 0, v)
                    store(code, value, self.kind, self.line(v, number))
        polled = self.w.size(iterations_per_poll(self.schedule.step_ns))
        with code.count(0, self.w.size(self.form.time.extent), 1, polled) as time:
            self.where[self.form.time] = time
            for kernel in self.schedule.steps:
                self.kernel(kernel, rows)
        with code.count(0, rows, 1) as n:
            self.where[self.schedule.rows] = n
            for v in self.every():
                self.stored(finish.stores[0], {}, 0, v)

    # -- a kernel of a step ---------------------------------------------------------------------

    def kernel(self, kernel: Kernel, rows: Bound) -> None:
        """The loop over the rows, with what comes before and after it."""
        row = self.schedule.rows
        inside = [n for n in kernel.nodes if row in n.free]
        sums = [n for n in kernel.nodes if isinstance(n, Reduce)]
        known: Known = {}
        needed = (a for n in inside for a in n.args if row not in a.free)
        for node in dict.fromkeys(needed):
            for r, v in self.copies(node):
                self.value(node, r, v, known)
        self.begin(sums)
        by_row = [s for s in kernel.stores if row in s.at.axes]
        with self.code.count(0, rows, 1) as n:
            self.where[row] = n
            self.row(inside, by_row, sums, dict(known))
        for made in (s for s in kernel.stores if row not in s.at.axes):
            for r, v in self.copies_of(made.at.axes | {self.schedule.columns}):
                self.stored(made, known, r, v)

    def row(
        self, inside: Iterable[Expr], stores: Iterable[Store], sums: Iterable[Reduce], known: Known
    ) -> None:
        """One row of the state: what its columns share, then a vector of them at a time."""
        for node in (n for n in inside if self.schedule.columns not in n.free):
            for r, v in self.copies(node):
                self.value(node, r, v, known)
        for v in self.every():
            for made in stores:
                self.stored(made, known, 0, v)
            for total in sums:
                for r, _ in self.copies_of(total.free & {self.schedule.queries}):
                    self.add(total, known, r, v)

    def copies(self, node: Expr) -> list[tuple[int, int]]:
        return self.copies_of(node.free)

    def copies_of(self, free: Iterable[Axis]) -> list[tuple[int, int]]:
        """The query heads and the vectors that a value differs with."""
        axes = set(free)
        queries = self.schedule.num_queries if self.schedule.queries in axes else 1
        vectors = self.schedule.vectors if self.schedule.columns in axes else 1
        return [(r, v) for r in range(queries) for v in range(vectors)]

    def key(self, node: Expr, r: int, v: int) -> tuple[Expr, int, int]:
        own = self.schedule
        return node, r if own.queries in node.free else 0, v if own.columns in node.free else 0

    # -- accumulators ---------------------------------------------------------------------------

    def begin(self, sums: Iterable[Reduce]) -> None:
        zero = self.code.const(0, self.kind)
        for total in sums:
            for r, v in self.copies(total):
                slot = self.sums[total, r, v] = self.code.slot(zero.type)
                self.code.do(f"store {zero.type} {zero.text}, ptr {slot}")

    def total(self, node: Reduce, r: int, v: int) -> Vec:
        zero = self.code.const(0, self.kind)
        return zero.made(f"load {zero.type}, ptr {self.sums[self.key(node, r, v)]}")

    def add(self, node: Reduce, known: Known, r: int, v: int) -> None:
        """One more product."""
        x, y = (self.value(a, r, v, known) for a in node.args[0].args)
        made = multiply_add(x, y, self.total(node, r, v))
        self.code.do(f"store {made.type} {made.text}, ptr {self.sums[self.key(node, r, v)]}")

    # -- values ---------------------------------------------------------------------------------

    def value(self, root: Expr, r: int, v: int, known: Known) -> Vec:
        """The vector of an expression at the position, each computed once."""
        key = self.key(root, r, v)
        if key not in known:
            known[key] = self.compute(root, r, v, known)
        return known[key]

    def compute(self, node: Expr, r: int, v: int, known: Known) -> Vec:
        match node:
            case Const():
                return self.code.const(node.value.item(), node.dtype.compute)
            case Load():
                return self.load(node, r, v)
            case Reduce():
                return self.total(node, r, v)
            case Apply(args=(Apply() as left, right)) if _is_product(node, left):
                x, y = (self.value(a, r, v, known) for a in left.args)
                return multiply_add(x, y, self.value(right, r, v, known))
            case Apply():
                return apply_op(node, [self.value(a, r, v, known) for a in node.args])
            case _:
                raise AssertionError(node)

    def load(self, node: Load, r: int, v: int) -> Vec:
        if node in self.schedule.staged:
            number = self.schedule.staged.index(node) + 1
            return load(self.code, self.kind, self.line(v, number))
        name = self.name(node.operand - len(self.form.operands))
        if name is None:
            return self.operand(node, r, v)
        if name == self.schedule.state.name:
            return load(self.code, self.kind, self.line(v))
        return self.kept[name, v]

    def name(self, number: int) -> str | None:
        """Of a value, by its number behind the operands or the results."""
        return None if number < 0 else self.form.memory.values[number].name

    def operand(self, node: Load, r: int, v: int) -> Vec:
        """An element broadcast, or a vector of columns."""
        column = node.at.coefficient(self.schedule.columns)
        start = self.place(node.at, r, v)
        if column == 0:
            return self.w.load(node.operand, start, node.dtype, 0)
        return self.w.load(node.operand, start, node.dtype, self.w.size(column), self.masks[v])

    def stored(self, made: Store, known: Known, r: int, v: int) -> None:
        root = stored_value(made)
        value = self.value(root, r, v, known)
        name = self.name(made.result - len(self.form.results))
        if name is None:
            stride = self.w.size(made.at.coefficient(self.schedule.columns))
            number = len(self.form.operands) + made.result
            start = self.place(made.at, r, v)
            self.w.store(value, number, start, self.dtype, stride, self.masks[v])
        elif name == self.schedule.state.name:
            store(self.code, value, self.kind, self.line(v))
        else:
            self.kept[name, v] = value

    # -- memory ---------------------------------------------------------------------------------

    @property
    def dtype(self) -> DType:
        return self.schedule.dtype

    def place(self, index: Affine, r: int, v: int) -> Bound:
        column = at(self.w, self.where[self.schedule.columns], v * self.lanes)
        where = self.where | {self.schedule.columns: column, self.schedule.queries: r}
        return place(self.w, index, list(where.items()))

    def line(self, vector: int, number: int = 0) -> str:
        """A vector of a state row, or of what is staged behind the state in scratch."""
        row = self.where[self.schedule.rows]
        step = self.code.i64("mul", row, self.width)
        skip = self.w.size(self.schedule.rows.extent * (number * self.width))
        start = at(self.w, step, skip, vector * self.lanes)
        return advanced(self.code, "%scratch", start, self.kind)


def _is_product(node: Apply, left: Apply) -> bool:
    """Is it the sum of a product and something else?"""
    return node.op.name == "add" and left.op.name == "mul"
