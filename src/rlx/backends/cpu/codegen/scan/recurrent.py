"""LSTM, GRU and RNN: one GEMM for the inputs of all time steps, then all steps in one kernel.

A unit is one direction of some rows of the batch. Its states stay in scratch over all time steps:
for a block of hidden columns, the gates' sums over the old state, from packed recurrent weights; on
the sums, the cell. A sum is a chain along the hidden columns, whatever the unit or the tile it is
in, so its bits depend on the sizes alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlx.backends.cpu.codegen.gemm.register_tile import tile_function
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.scan.recurrent_cells import Arithmetic, arithmetic
from rlx.backends.cpu.codegen.scan.recurrent_layer import (
    Pass,
    RecurrentSpec,
    input_projection,
    packed_recurrent_weights,
)
from rlx.backends.cpu.library.strided_copy import at, load_integer, vector_loop
from rlx.backends.cpu.llvm.builder import ELEMENT, Bound, Vec
from rlx.backends.cpu.llvm.function import Code, Source
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.program.task import (
    Buffer,
    KernelSequence,
    PackedWeights,
    Step,
    Task,
    buffers,
    iterations_per_poll,
)
from rlx.backends.cpu.schedule.contraction import contraction_tasks
from rlx.backends.cpu.schedule.gemm_tiling import INNER_BLOCK, Tiling, parts_of
from rlx.backends.cpu.schedule.loop import loop_task
from rlx.core.dim import DimLike, dim_max
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Affine, Axis, Exprs
from rlx.ops.nn.recurrent import Cell

CACHE_BYTES_PER_NS = 64
"""Recurrent weights are reread at every step, from a cache."""
NS_PER_COLUMN = 2
"""Nanoseconds of a cell at a hidden column, beside its sums."""


def make_recurrent(step: Step, name: str) -> KernelSequence:
    form = RecurrentSpec.of(step)
    made = contraction_tasks(step, input_projection(form), f"{name}.x")
    seen = Buffer("temp", len(made.temps))
    first = tuple(replace(t, buffers=_moved(t.buffers, seen)) for t in made.tasks)
    temps, tasks, packed = [*made.temps, form.seen_bytes], list(first), list(made.packed)
    where: list[Buffer] = []
    for i, one in enumerate(form.passes):
        kernel, called = packed_recurrent_weights(form, one), f"{name}.pack{i}"
        given, size = buffers(len(step.operands), 0), kernel.results[0].size_bytes
        if 2 in step.constants:
            to = [Buffer("result", 0)]
            task = loop_task(kernel, given, to, step.machine, called, has_key=True)
            where.append(Buffer("packed", len(packed)))
            packed.append(PackedWeights(task, size))
        else:
            where.append(Buffer("temp", len(temps)))
            tasks.append(loop_task(kernel, given, [where[-1]], step.machine, called))
            temps.append(size)
    own = (*buffers(len(step.operands), len(step.results)), seen, *where)
    tasks.append(_steps_task(form, name, own))
    return KernelSequence(tuple(tasks), tuple(temps), tuple(packed))


def _moved(given: tuple[Buffer, ...], to: Buffer) -> tuple[Buffer, ...]:
    return tuple(to if b.kind == "result" else b for b in given)


def _steps_task(form: RecurrentSpec, name: str, given: tuple[Buffer, ...]) -> Task:
    units = form.directions * parts_of(form.batch, form.row_block)
    ns = form.length * _step_ns(form, units, form.directions * form.batch)
    grain = form.step.machine.units_per_task(units, ns)
    _, size = _scratch(form)
    code = Code(name, lambda name: _Steps(form).source(name))
    return Task(code, given, units, grain, size * form.kind.itemsize, ())


def _step_ns(form: RecurrentSpec, units: DimLike, rows: DimLike) -> DimLike:
    """Nanoseconds of one step of so many rows in so many units on one worker."""
    weights = form.hidden * form.columns
    read = units * weights * form.kind.itemsize // CACHE_BYTES_PER_NS
    worked = rows * weights * 2 // form.step.machine.worker_flops_per_ns
    cells = rows * form.hidden * NS_PER_COLUMN // form.lanes
    return dim_max(read, worked) + cells


def _scratch(form: RecurrentSpec) -> tuple[dict[str, DimLike], DimLike]:
    """The scratch layout of a unit's states, two of `h`, and of what it reads at every step: the
    offset of each in elements, and their end."""
    rows = form.row_block
    lines = {"h": 2 * rows}
    if form.layer.states == 2:
        lines["c"] = rows
    if len(form.passes) == 2:
        lines |= {"z": rows, "seen": rows}
    lines |= {"bias": form.layer.gates} if form.extra("bias") is not None else {}
    lines |= {"peep": 3} if form.extra("peepholes") is not None else {}
    places: dict[str, DimLike] = {}
    end: DimLike = 0
    for name, count in lines.items():
        places[name] = end
        end = end + count * form.padded
    return places, end


@dataclass(frozen=True, slots=True)
class _Unit:
    """A direction, and rows of the batch from the first on."""

    direction: Bound
    first: Bound
    rows: Bound


class _Steps:
    """The function of all steps under construction."""

    def __init__(self, form: RecurrentSpec) -> None:
        self.form, self.kind = form, form.kind
        self.w = Writer(form.isa, form.lanes)
        self.code = self.w.code
        operands = len(form.step.operands)
        self.results = operands
        self.x = operands + len(form.step.results)
        self.lengths = form.extra("lengths")
        self.kept, _ = _scratch(form)
        self.sums = {p.first: self._slot(p) for p in form.passes}

    def _slot(self, one: Pass) -> str:
        size = self.form.row_block * one.count * self.form.width(one)
        return self.code.slot(f"[{size} x {ELEMENT[self.kind]}]")

    def source(self, name: str) -> Source:
        form, code, w = self.form, self.code, self.w
        blocks = parts_of(form.batch, form.row_block)
        with code.count("%start", code.least("%stop", w.size(form.directions * blocks)), 1) as unit:
            direction, block = w.split(unit, (form.directions, blocks))
            first = code.i64("mul", block, form.row_block)
            rows = code.least(form.row_block, code.i64("sub", w.size(form.batch), first))
            self.unit(_Unit(direction, first, rows))
        return Source(w.function(name), w.sizes)

    # -- a unit ---------------------------------------------------------------------------------

    def unit(self, unit: _Unit) -> None:
        """Directions have the same code, unless their activations differ."""
        cells = self.form.cells()
        if all(c.activations == cells[0].activations for c in cells):
            self.run(unit, cells[0])
            return
        for d, cell in enumerate(cells):
            with self.code.when(self.code.let(f"icmp eq i64 {unit.direction}, {d}")):
                self.run(unit, cell)

    def run(self, unit: _Unit, cell: Cell) -> None:
        code, form = self.code, self.form
        polled = self.w.size(iterations_per_poll(_step_ns(form, 1, form.row_block)))
        self.begin(unit)
        length = self.w.size(form.length)
        cells = [arithmetic(lambda v, p=p: p.build(cell, v), self.names(p), self.kind)
                 for p in form.passes]  # fmt: skip
        with code.count(0, length, 1, polled) as turn:
            time = self.time(unit, turn, length)
            old, new = self.states(turn)
            for number, (one, what) in enumerate(zip(form.passes, cells)):
                self.sweep(unit, one, number, time, old, new, what)
            self.deliver(unit, time, new)
        self.end(unit, self.states(length)[0])

    def names(self, one: Pass) -> list[str]:
        """The values that the cell of a pass may read."""
        gates = range(one.first, one.first + one.count)
        peeps = [f"peep{k}" for k in range(3)] if "peep" in self.kept else []
        alone = [n for n in ("h", "c", "z") if n in self.kept]
        return [*(f"x{k}" for k in gates), *(f"past{k}" for k in gates), *alone, *peeps]

    def time(self, unit: _Unit, turn: str, length: Bound) -> Bound:
        """The time step; the second direction, or a reversed one, counts from the end."""
        code, direction = self.code, self.form.attrs["direction"]
        if direction == "forward":
            return turn
        back = code.i64("sub", code.i64("sub", length, 1), turn)
        if direction == "reverse":
            return back
        is_second = code.let(f"icmp eq i64 {unit.direction}, 1")
        return code.let(f"select i1 {is_second}, i64 {back}, i64 {turn}")

    def states(self, turn: Bound) -> tuple[str, str]:
        """The buffers of the old and of the new state (ping-pong)."""
        code, one = self.code, self.place("h")
        other = self.place("h", self.form.row_block)
        is_odd = code.let(f"trunc i64 {turn} to i1")
        return (code.let(f"select i1 {is_odd}, ptr {other}, ptr {one}"),
                code.let(f"select i1 {is_odd}, ptr {one}, ptr {other}"))  # fmt: skip

    # -- scratch --------------------------------------------------------------------------------

    def place(self, name: str, line: Bound = 0) -> str:
        """The address of a line of scratch."""
        start = advanced(self.code, "%scratch", self.w.size(self.kept[name]), self.kind)
        return self.line(start, line)

    def line(self, start: str, number: Bound, column: Bound = 0) -> str:
        """A column of a line at an address."""
        step = self.code.i64("mul", number, self.w.size(self.form.padded))
        return advanced(self.code, start, at(self.w, step, column), self.kind)

    def begin(self, unit: _Unit) -> None:
        """The initial states, and what every step reads."""
        form, operands = self.form, self.form.step.operands
        for name in ("h", "c")[: form.layer.states]:
            number = form.extra(f"initial_{name}")
            layout = None if number is None else form.state(operands[number])
            with self.code.count(0, unit.rows, 1) as m:
                where = [unit.direction, at(self.w, unit.first, m)]
                self.bring(self.place(name, m), number, layout, where)
        for name, extra, skipped in (("bias", "bias", form.layer.gates), ("peep", "peepholes", 0)):
            number = form.extra(extra)
            if number is None:
                continue
            lines = form.layer.gates if name == "bias" else 3
            for k in range(lines):
                start = (skipped + k) * form.hidden
                layout = operands[number].sliced(1, start, form.hidden)
                self.bring(self.place(name, k), number, layout, [unit.direction])

    def bring(self, to: str, number: int | None, layout: Layout | None, where: list[Bound]) -> None:
        """Load the hidden columns of an operand, or zeros, into a line."""
        form, w, code = self.form, self.w, self.code
        begin = 0 if layout is None else w.place(_but_last(layout), where)

        def one(n: Bound, mask: Vec | None) -> None:
            value = code.const(0, self.kind)
            if number is not None and layout is not None:
                stride = w.size(layout.strides[-1])
                place = at(w, begin, code.i64("mul", n, stride))
                value = w.load(number, place, form.dtype, stride, mask)
            store(code, value, self.kind, advanced(code, to, n, self.kind))

        vector_loop(w, 0, w.size(form.hidden), one)

    def take(
        self, source: str, number: int, layout: Layout, where: list[Bound], inside: Vec | None
    ) -> None:
        """Store a line to the hidden columns of a result; zeros where the step is past the
        sequence's length."""
        form, w, code = self.form, self.w, self.code
        begin, stride = w.place(_but_last(layout), where), w.size(layout.strides[-1])

        def one(n: Bound, mask: Vec | None) -> None:
            value = load(code, self.kind, advanced(code, source, n, self.kind))
            value = value if inside is None else value.where(inside, 0.0)
            place = at(w, begin, code.i64("mul", n, stride))
            w.store(value, self.results + number, place, form.dtype, stride, mask)

        vector_loop(w, 0, w.size(form.hidden), one)

    def deliver(self, unit: _Unit, time: Bound, new: str) -> None:
        with self.code.count(0, unit.rows, 1) as m:
            row = at(self.w, unit.first, m)
            where = [time, unit.direction, row]
            inside = self.is_inside(row, time)
            self.take(self.line(new, m), 0, self.form.output(), where, inside)

    def end(self, unit: _Unit, last: str) -> None:
        form = self.form
        with self.code.count(0, unit.rows, 1) as m:
            where = [unit.direction, at(self.w, unit.first, m)]
            lines = [self.line(last, m)]
            lines += [self.place("c", m)] if form.layer.states == 2 else []
            for i, line in enumerate(lines, 1):
                self.take(line, i, form.state(form.step.results[i]), where, None)

    def is_inside(self, row: Bound, time: Bound) -> Vec | None:
        """Is the step before the row's length? All rows have all steps where there are no
        lengths."""
        form, number = self.form, self.lengths
        if number is None:
            return None
        layout, dtype = form.step.operands[number], form.step.node.inputs[number].shape.dtype
        end = load_integer(self.w, number, self.w.place(layout, [row]), dtype)
        return self.code.splat(self.code.let(f"icmp slt i64 {time}, {end}"), DType.BOOL)

    # -- a step ---------------------------------------------------------------------------------

    def sweep(
        self, unit: _Unit, one: Pass, number: int, time: Bound, old: str, new: str,
        what: Arithmetic,
    ) -> None:  # fmt: skip
        """All hidden columns, a block at a time."""
        code, form, w = self.code, self.form, self.w
        width, hidden = form.width(one), w.size(form.hidden)
        source = old if one.source == "h" else self.place(one.source)
        across = w.size(parts_of(form.hidden, width) * width)
        with code.count(0, hidden, width) as column:
            block = at(w, code.i64("mul", unit.direction, across), column)
            step = code.i64("mul", block, w.size(form.hidden * one.count))
            right = advanced(code, w.buffer(self.x + 1 + number), step, self.kind)
            self.product(unit, one, source, right)
            end = code.least(hidden, at(w, column, width))
            with code.count(0, unit.rows, 1) as m:
                row = at(w, unit.first, m)
                seen = w.place(form.seen(), [time, row, unit.direction, 0])
                inside = self.is_inside(row, time)
                with code.count(column, end, form.lanes) as n:
                    given = _Point(one, m, n, code.i64("sub", n, column), seen, old, new)
                    self.point(given, inside, what)

    def product(self, unit: _Unit, one: Pass, source: str, right: str) -> None:
        """The sums of a block's gates, for all rows of the unit."""
        code, form, w = self.code, self.form, self.w
        wide, hidden = one.count * form.width(one), w.size(form.hidden)
        tiling = Tiling(form.rows(one), one.count * form.vectors(one), form.lanes, True, 1)
        with code.count(0, hidden, INNER_BLOCK) as step:
            count = code.least(code.i64("sub", hidden, step), INNER_BLOCK)
            is_first = code.let(f"icmp eq i64 {step}, 0")
            b = advanced(code, right, code.i64("mul", step, wide), self.kind)
            begin: Bound = 0
            for rows in tiling.rows:
                turns = code.let(f"udiv i64 {code.i64('sub', unit.rows, begin)}, {rows}")
                until = at(w, begin, code.i64("mul", turns, rows))
                name = tile_function(_tiles(self.kind), tiling, code, rows, False)
                with code.count(begin, until, rows) as m:
                    a, to = self.line(source, m, step), code.i64("mul", m, wide)
                    sums = advanced(code, self.sums[one.first], to, self.kind)
                    left = f"ptr {a}, i64 {w.size(form.padded)}, i64 1"
                    more = f"ptr {b}, i64 {wide}, i64 {count}, i64 {wide}, ptr {sums}"
                    code.do(f"call void @{name}({left}, {more}, i1 {is_first})")
                begin = until

    def point(self, given: _Point, inside: Vec | None, what: Arithmetic) -> None:
        """The cell at a vector of columns of a row."""
        values = {name: self.value(name, given) for name in what.used}
        for name, made in what.of(self.code, values).items():
            start = given.new if name == "h" else self.place(name)
            before = values.get(name)
            if inside is not None and name in ("h", "c"):
                before = self.value(name, given) if before is None else before
                made = made.where(inside, before)
            store(self.code, made, self.kind, self.line(start, given.row, given.column))

    def value(self, name: str, given: _Point) -> Vec:
        code, form, one = self.code, self.form, given.one
        if name in ("h", "c", "z"):
            start = given.old if name == "h" else self.place(name)
            return load(code, self.kind, self.line(start, given.row, given.column))
        word, gate = name[:-1], int(name[-1])
        if word == "peep":
            return load(code, self.kind, self.line(self.place("peep", gate), 0, given.column))
        if word == "x":
            step = self.w.size(gate * form.hidden)
            place = at(self.w, given.seen, step, given.column)
            return self.w.load(self.x, place, self.kind)
        width = form.width(one)
        line = code.i64("mul", given.row, one.count * width)
        place = at(self.w, line, (gate - one.first) * width, given.inner)
        total = load(code, self.kind, advanced(code, self.sums[one.first], place, self.kind))
        if "bias" not in self.kept:
            return total
        bias = self.line(self.place("bias", gate), 0, given.column)
        return total + load(code, self.kind, bias)


@dataclass(frozen=True, slots=True)
class _Point:
    """A vector of columns of a row, at a time step."""

    one: Pass
    row: Bound
    column: Bound
    inner: Bound
    """The column, relative to the block's first."""
    seen: Bound
    """The offset of the row's input projections."""
    old: str
    new: str


def _but_last(layout: Layout) -> Layout:
    return Layout(layout.dims[:-1], layout.strides[:-1], layout.offset)


def _tiles(kind: DType) -> Contract:
    """The GEMM of the register tiles: row-major states, packed weights."""
    exprs, rows, columns, k = Exprs(), Axis("m", 1), Axis("n", 1), Axis("k", 1)
    left, right = (exprs.load(i, Affine.of(k), kind) for i in range(2))
    return Contract("steps", (), rows, columns, (k,), left, right, kind, (), (), ())
