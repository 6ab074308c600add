"""LSTM, GRU and RNN: one GEMM for the inputs of all time steps, then all steps in one kernel.

A unit is one direction of some rows of the batch. Its states stay in scratch over all time steps:
for a block of hidden columns, the gates' sums over the old state, from packed recurrent weights; on
the sums, the cell. A sum is a chain along the hidden columns, whatever the unit or the tile it is
in, so its bits depend on the sizes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlx.backends.cpu.codegen.gemm.register_tile import tile_function
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.math.expression_vectors import vectors
from rlx.backends.cpu.codegen.scan.positions import Positions, place, stored_value
from rlx.backends.cpu.codegen.scan.recurrent_schedule import (
    RecurrentSchedule,
    Stage,
    packed_recurrent_weights,
)
from rlx.backends.cpu.library.strided_copy import at, load_integer, vector_loop
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.printer import ELEMENT
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import Step, Task, iterations_per_poll
from rlx.backends.cpu.schedule.contraction import contraction_tasks
from rlx.backends.cpu.schedule.gemm_tiling import INNER_BLOCK, Tiling, parts_of
from rlx.backends.cpu.schedule.loop import loop_task
from rlx.core.dtype import DType
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Accumulator, Affine, Axis, Expr, Exprs, Kernel, Load, Store, postorder
from rlx.kernel.lower.scan import lower_scan
from rlx.kernel.program.schedule import Buffer, PackedWeights, Schedule, buffers
from rlx.kernel.refusal import required
from rlx.kernel.scan import Leaf, Scan


def make_recurrent(step: Step, name: str) -> Schedule[Task]:
    """The tasks of a step that is a recurrent layer."""
    form = required(lower_scan(step.node, step.operands, step.results))
    return recurrent_schedule(form, step.constants, step.machine, name)


def recurrent_schedule(
    form: Scan, constants: frozenset[int], machine: CpuMachine, name: str
) -> Schedule[Task]:
    """The tasks of a recurrent layer; these of its operands follow from weights alone."""
    layer = RecurrentSchedule.of(form, machine)
    (before,) = form.before
    made = contraction_tasks(before.contract, constants, machine, f"{name}.x")
    projected = Buffer("temp", len(made.temps))
    first = tuple(replace(t, buffers=_moved(t.buffers, projected)) for t in made.tasks)
    temps, tasks, packed = [*made.temps, layer.projected_bytes], list(first), list(made.packed)
    where: list[Buffer] = []
    for i, one in enumerate(layer.stages[0]):
        kernel, called = packed_recurrent_weights(layer, one), f"{name}.pack{i}"
        given, size = buffers(len(form.operands), 0), kernel.results[0].size_bytes
        if 2 in constants:
            to = [Buffer("result", 0)]
            task = loop_task(kernel, given, to, machine, called, has_key=True)
            where.append(Buffer("packed", len(packed)))
            packed.append(PackedWeights(task, size))
        else:
            where.append(Buffer("temp", len(temps)))
            tasks.append(loop_task(kernel, given, [where[-1]], machine, called))
            temps.append(size)
    own = (*buffers(len(form.operands), len(form.results)), projected, *where)
    tasks.append(_steps_task(layer, machine, name, own))
    return Schedule(tuple(tasks), tuple(temps), tuple(packed))


def _moved(given: tuple[Buffer, ...], to: Buffer) -> tuple[Buffer, ...]:
    return tuple(to if b.kind == "result" else b for b in given)


def _steps_task(
    layer: RecurrentSchedule, machine: CpuMachine, name: str, given: tuple[Buffer, ...]
) -> Task:
    units = layer.directions * layer.blocks
    ns = layer.length * layer.step_ns(units, layer.directions * layer.batch)
    grain = machine.units_per_task(units, ns)
    _, size = layer.scratch()
    code = TaskCode(name, lambda name: _Steps(layer).source(name))
    return Task(code, given, units, grain, size * layer.kind.itemsize, ())


@dataclass(frozen=True, slots=True)
class _Unit:
    """A direction, and rows of the batch from the first on."""

    direction: Bound
    first: Bound
    rows: Bound


class _Steps:
    """The function of all steps under construction."""

    def __init__(self, layer: RecurrentSchedule) -> None:
        self.layer, self.form, self.kind = layer, layer.form, layer.kind
        self.w = Writer(layer.isa, layer.lanes)
        self.code = self.w.code
        self.results = len(self.form.operands)
        self.x = self.results + len(self.form.results)
        self.kept, _ = layer.scratch()
        self.sums = {s.first: self._slot(s) for s in layer.stages[0]}

    def _slot(self, one: Stage) -> str:
        size = self.layer.row_block * one.count * self.layer.width(one)
        return self.code.slot(f"[{size} x {ELEMENT[self.kind]}]")

    def source(self, name: str) -> Source:
        layer, code, w = self.layer, self.code, self.w
        blocks = layer.blocks
        stop = code.least("%stop", w.size(layer.directions * blocks))
        with code.count("%start", stop, 1) as unit:
            direction, block = w.split(unit, (layer.directions, blocks))
            first = code.i64("mul", block, layer.row_block)
            rows = code.least(layer.row_block, code.i64("sub", w.size(layer.batch), first))
            self.unit(_Unit(direction, first, rows))
        return Source(w.function(name), w.sizes)

    # -- a unit ---------------------------------------------------------------------------------

    def unit(self, unit: _Unit) -> None:
        """Directions have the same code, unless their cells differ."""
        ways = self.layer.stages
        if len(ways) == 1:
            self.run(unit, ways[0])
            return
        for d, stages in enumerate(ways):
            with self.code.when(self.code.compare("eq", unit.direction, d)):
                self.run(unit, stages)

    def run(self, unit: _Unit, stages: Sequence[Stage]) -> None:
        code, layer = self.code, self.layer
        polled = self.w.size(iterations_per_poll(layer.step_ns(1, layer.row_block)))
        self.begin(unit)
        length = self.w.size(layer.length)
        with code.count(0, length, 1, polled) as turn:
            time = self.time(unit, turn, length)
            old, new = self.states(turn)
            for number, one in enumerate(stages):
                self.sweep(unit, one, number, time, old, new)
            self.deliver(unit, time, new)
        self.end(unit, self.states(length)[0])

    def time(self, unit: _Unit, turn: str, length: Bound) -> Bound:
        """The time step; the second direction, or a reversed one, counts from the end."""
        code, reverse = self.code, [d.is_reversed for d in self.form.directions]
        if not any(reverse):
            return turn
        back = code.i64("sub", code.i64("sub", length, 1), turn)
        if all(reverse):
            return back
        is_second = code.compare("eq", unit.direction, 1)
        return code.choose(is_second, back, turn)

    def states(self, turn: Bound) -> tuple[str, str]:
        """The buffers of the old and of the new state (ping-pong)."""
        code, one = self.code, self.place("h")
        other = self.place("h", self.layer.row_block)
        is_odd = code.converted(turn, DType.I64, DType.BOOL)
        return (code.let(f"select i1 {is_odd}, ptr {other}, ptr {one}"),
                code.let(f"select i1 {is_odd}, ptr {one}, ptr {other}"))  # fmt: skip

    # -- scratch --------------------------------------------------------------------------------

    def place(self, name: str, line: Bound = 0) -> str:
        """The address of a line of scratch."""
        start = advanced(self.code, "%scratch", self.w.size(self.kept[name]), self.kind)
        return self.line(start, line)

    def line(self, start: str, number: Bound, column: Bound = 0) -> str:
        """A column of a line at an address."""
        step = self.code.i64("mul", number, self.w.size(self.layer.padded))
        return advanced(self.code, start, at(self.w, step, column), self.kind)

    def begin(self, unit: _Unit) -> None:
        """The initial states, and what every step reads."""
        (start,) = self.form.start
        for carry, initial in zip(self.form.carries, start.stores):
            given = next((n for n in _loads(initial)), None)
            with self.code.count(0, unit.rows, 1) as m:
                where = self.where(unit, at(self.w, unit.first, m))
                self.bring(self.place(carry.name, m), given and (given.operand, given.at), where)
        where = [(self.form.direction, unit.direction)]
        for name, line, given in self.lines():
            self.bring(self.place(name, line), given, where)

    def lines(self) -> list[tuple[str, int, tuple[int, Affine]]]:
        """The scratch lines of biases and peepholes, with their operands and index maps."""
        found: list[tuple[str, int, tuple[int, Affine]]] = []
        for one in self.layer.stages[0]:
            for gate in range(one.count):
                index = one.bias_of(gate)
                if one.bias is not None and index is not None:
                    found.append(("bias", one.first + gate, (one.bias.operand, index)))
        return [*found, *(("peep", k, given) for k, given in enumerate(self.layer.leaves("peep")))]

    def where(self, unit: _Unit, row: Bound, *more: tuple[Axis, Bound]) -> Positions:
        """A row of the batch, of a direction."""
        return [*more, (self.form.direction, unit.direction), (self.layer.state.axes[0], row)]

    def bring(self, to: str, given: tuple[int, Affine] | None, where: Positions) -> None:
        """Load the hidden columns of an operand, or zeros, into a line."""
        layer, w, code = self.layer, self.w, self.code
        begin = 0 if given is None else place(w, given[1], where)

        def one(n: Bound, mask: Vec | None) -> None:
            value = code.const(0, self.kind)
            if given is not None:
                stride = w.size(given[1].coefficient(layer.state.axes[1]))
                start = at(w, begin, code.i64("mul", n, stride))
                value = w.load(given[0], start, layer.dtype, stride, mask)
            store(code, value, self.kind, advanced(code, to, n, self.kind))

        vector_loop(w, 0, w.size(layer.hidden), one)

    def take(self, source: str, made: Store, where: Positions, inside: Vec | None = None) -> None:
        """Store what a line makes of the hidden columns of a result."""
        layer, w, code = self.layer, self.w, self.code
        begin = place(w, made.at, where)
        stride, root = w.size(made.at.coefficient(layer.state.axes[1])), stored_value(made)
        loads = _loads(made)

        def one(n: Bound, mask: Vec | None) -> None:
            value = load(code, self.kind, advanced(code, source, n, self.kind))
            given = {x: value if self.form.leaf(x).name != "inside" else inside for x in loads}
            known: dict[Expr, Vec] = {x: v for x, v in given.items() if v is not None}
            value = vectors(code, [root], known)[root]
            to = at(w, begin, code.i64("mul", n, stride))
            w.store(value, self.results + made.result, to, layer.dtype, stride, mask)

        vector_loop(w, 0, w.size(layer.hidden), one)

    def deliver(self, unit: _Unit, time: Bound, new: str) -> None:
        """The output of a step."""
        output = self.form.directions[0].steps[-1]
        (made,) = output.stores
        with self.code.count(0, unit.rows, 1) as m:
            row = at(self.w, unit.first, m)
            where = self.where(unit, row, (self.form.time, time))
            self.take(self.line(new, m), made, where, self.is_inside(row, time))

    def end(self, unit: _Unit, last: str) -> None:
        (finish,) = self.form.finish
        with self.code.count(0, unit.rows, 1) as m:
            where = self.where(unit, at(self.w, unit.first, m))
            lines = [self.line(last, m), *(self.place(c.name, m) for c in self.form.carries[1:])]
            for line, made in zip(lines, finish.stores):
                self.take(line, made, where)

    def is_inside(self, row: Bound, time: Bound) -> Vec | None:
        """Is the step before the row's length? All rows have all steps where there are no
        lengths."""
        first = self.form.directions[0].steps[0]
        if self.form.value("inside") is None or not isinstance(first, Kernel):
            return None
        (length,) = _loads(first.stores[0])
        begin = place(self.w, length.at, [(self.layer.state.axes[0], row)])
        end = load_integer(self.w, length.operand, begin, length.dtype)
        return self.code.splat(self.code.compare("lt", time, end), DType.BOOL)

    # -- a step ---------------------------------------------------------------------------------

    def sweep(self, unit: _Unit, one: Stage, number: int, time: Bound, old: str, new: str) -> None:
        """All hidden columns, a block at a time."""
        code, layer, w = self.code, self.layer, self.w
        width, hidden = layer.width(one), w.size(layer.hidden)
        source = old if one.source == "h" else self.place(one.source)
        across = w.size(parts_of(layer.hidden, width) * width)
        with code.count(0, hidden, width) as column:
            block = at(w, code.i64("mul", unit.direction, across), column)
            step = code.i64("mul", block, w.size(layer.hidden * one.count))
            right = advanced(code, w.buffer(self.x + 1 + number), step, self.kind)
            self.product(unit, one, source, right)
            end = code.least(hidden, at(w, column, width))
            with code.count(0, unit.rows, 1) as m:
                row = at(w, unit.first, m)
                seen = self.projected(unit, row, time)
                inside = self.is_inside(row, time)
                with code.count(column, end, layer.lanes) as n:
                    given = _Point(one, m, n, code.i64("sub", n, column), seen, inside, old, new)
                    self.point(given)

    def projected(self, unit: _Unit, row: Bound, time: Bound) -> Bound:
        """The offset of a row's input projections at a time step."""
        (_, index), *_ = self.layer.leaves("x")
        where = [(self.form.time, time), (self.layer.state.axes[0], row)]
        return place(self.w, index, [*where, (self.form.direction, unit.direction)])

    def product(self, unit: _Unit, one: Stage, source: str, right: str) -> None:
        """The sums of a block's gates, for all rows of the unit."""
        code, layer, w = self.code, self.layer, self.w
        wide, hidden = one.count * layer.width(one), w.size(layer.hidden)
        tiling = Tiling(layer.rows(one), one.count * layer.vectors(one), layer.lanes, True, 1)
        with code.count(0, hidden, INNER_BLOCK) as step:
            count = code.least(code.i64("sub", hidden, step), INNER_BLOCK)
            is_first = code.compare("eq", step, 0)
            b = advanced(code, right, code.i64("mul", step, wide), self.kind)
            begin: Bound = 0
            for rows in tiling.rows:
                turns = code.integer("div", code.i64("sub", unit.rows, begin), rows, DType.U64)
                until = at(w, begin, code.i64("mul", turns, rows))
                name = tile_function(_tiles(self.kind), tiling, code, rows, False)
                with code.count(begin, until, rows) as m:
                    a, to = self.line(source, m, step), code.i64("mul", m, wide)
                    sums = advanced(code, self.sums[one.first], to, self.kind)
                    left = f"ptr {a}, i64 {w.size(layer.padded)}, i64 1"
                    more = f"ptr {b}, i64 {wide}, i64 {count}, i64 {wide}, ptr {sums}"
                    code.do(f"call void @{name}({left}, {more}, i1 {is_first})")
                begin = until

    def point(self, given: _Point) -> None:
        """The cell at a vector of columns of a row."""
        cell, leaves = given.one.cell, self.form.leaves
        loads = {n: self.form.leaf(n) for n in cell.nodes if isinstance(n, Load)}
        order = sorted(loads, key=lambda n: leaves.index(loads[n]))
        values: dict[Expr, Vec] = {n: self.value(loads[n], given) for n in order}
        made = vectors(self.code, [s.value for s in cell.stores], values)
        for s in cell.stores:
            name = self.form.memory.values[s.result - len(self.form.results)].name
            start = given.new if name == "h" else self.place(name)
            line = self.line(start, given.row, given.column)
            store(self.code, made[s.value], self.kind, line)

    def value(self, leaf: Leaf, given: _Point) -> Vec:
        """What the cell loads."""
        code, name, gate = self.code, leaf.name, leaf.number
        if name == "inside":
            assert given.inside is not None
            return given.inside
        if name == "past":
            return self.past(gate, given)
        if name == "x":
            step = self.w.size(gate * self.layer.hidden)
            start = at(self.w, given.seen, step, given.column)
            return self.w.load(self.x, start, self.kind)
        if name == "peep":
            return load(code, self.kind, self.line(self.place("peep", gate), 0, given.column))
        start = given.old if name == "h" else self.place(name)
        return load(code, self.kind, self.line(start, given.row, given.column))

    def past(self, gate: int, given: _Point) -> Vec:
        """A gate's sum over the state, with its bias."""
        code, one, width = self.code, given.one, self.layer.width(given.one)
        line = code.i64("mul", given.row, one.count * width)
        start = at(self.w, line, (gate - one.first) * width, given.inner)
        total = load(code, self.kind, advanced(code, self.sums[one.first], start, self.kind))
        (made,) = one.sums.stores
        known: dict[Expr, Vec] = {n: total for n in one.sums.epilogue if isinstance(n, Accumulator)}
        if one.bias is not None:
            place = self.line(self.place("bias", gate), 0, given.column)
            known[one.bias] = load(code, self.kind, place)
        return vectors(code, [made.value], known)[made.value]


@dataclass(frozen=True, slots=True)
class _Point:
    """A vector of columns of a row, at a time step."""

    one: Stage
    row: Bound
    column: Bound
    inner: Bound
    """The column, relative to the block's first."""
    seen: Bound
    """The offset of the row's input projections."""
    inside: Vec | None
    old: str
    new: str


def _loads(made: Store) -> list[Load]:
    return [n for n in postorder([made.value]) if isinstance(n, Load)]


def _tiles(kind: DType) -> Contract:
    """The GEMM of the register tiles: row-major states, packed weights."""
    exprs, rows, columns, k = Exprs(), Axis("m", 1), Axis("n", 1), Axis("k", 1)
    left, right = (exprs.load(i, Affine.of(k), kind) for i in range(2))
    return Contract("steps", (), rows, columns, (k,), left, right, kind, (), (), ())
