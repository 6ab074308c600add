"""Block dot product: x · Wᵀ of activations rounded to int8 and weights in panels of bytes.

    y = Σ over 32 inputs  scale_x · Σ over groups  scale_w · (Σ level · code − zero · Σ code)
                          + offset_w · scale_x · Σ code

The inner sums are exact integers; the outer ones are f32, in the order of the inputs, whatever
the instruction set, the number of rows and of threads. One row streams panels from memory; a few
share what is read, with their sums in registers. Of many, a step of 32 inputs of a panel is decoded
to registers, and multiplied by `tile` rows at a time, with sums in scratch.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.lowp.block_dot.activations import Activations
from rlx.backends.cpu.codegen.lowp.block_dot.dots import Operands, dots_for
from rlx.backends.cpu.codegen.lowp.block_dot.packing import PanelPacking
from rlx.backends.cpu.codegen.lowp.block_dot.panel import (
    PANEL,
    WORDS,
    PanelLayout,
    PanelReader,
    codes_for,
    prefetched,
)
from rlx.backends.cpu.codegen.lowp.linear_step import LinearStep
from rlx.backends.cpu.library.strided_copy import BufferView, at, copy_task, masked_lane_stride
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.multiply_add import near_fma
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.program.task import Step, Task, TaskKind
from rlx.core.dim import DimLike, dim_min, is_static, product
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Buffer, PackedWeights, Schedule
from rlx.ops.quant.gguf_codes import BLOCK

ROWS = 128
"""Rows of x whose sums are in scratch: with a step's activations they fill half of the L1 cache."""
FEW = 4
"""Rows of x whose sums are in registers: one row takes as long as the latency of its sums."""
MANY = 16
"""Rows of x from which on a step is decoded once for all."""
PREFETCH_BYTES = 8192
"""How far ahead of the step a panel's lines are asked for: one thread of a Zen 5 reads 52 GB/s, and
45 with 2048 or without."""
BYTES_PER_NS, PRODUCTS_PER_NS = 24, 140
CODES, SCALES, CORRECTIONS, PANELS, RESULT = range(5)
"""Buffers of the product."""
F32, I8, I32, U8 = DType.F32, DType.I8, DType.I32, DType.U8


@dataclass(frozen=True, slots=True)
class Row:
    """A row's activations of 32 inputs, one of their roundings: addresses."""

    codes: str
    scale: str
    corrections: str


@dataclass(frozen=True, slots=True)
class PanelStep:
    """32 inputs of some outputs of a panel, in registers."""

    levels: list[Operands]
    factors: list[list[Vec]]
    """Scale and offset of each group."""


class _Sums:
    """Sums of rows that a loop carries."""

    def __init__(self, code: Code, count: int) -> None:
        self._code, self._kind = code, code.vector("float")
        self._slots = [code.slot(self._kind) for _ in range(count)]
        code.do(*(f"store {self._kind} zeroinitializer, ptr {s}" for s in self._slots))

    def get(self) -> list[Vec]:
        code = self._code
        return [code.vector_of(code.let(f"load {self._kind}, ptr {s}"), F32) for s in self._slots]

    def set(self, sums: Sequence[Vec]) -> None:
        pairs = zip(self._slots, sums)
        self._code.do(*(f"store {self._kind} {v.text}, ptr {s}" for s, v in pairs))


@dataclass(frozen=True, slots=True)
class BlockDot(LinearStep):
    """x[m, k] · W[n, k]ᵀ, W in panels."""

    layout: PanelLayout
    packing: PanelPacking

    @property
    def activations(self) -> Activations:
        return Activations(self.step, self.layout)

    @property
    def lanes(self) -> int:
        return self.step.isa.lanes(F32)

    @property
    def tile(self) -> int:
        """Rows that are multiplied at once: as many sums as there are registers beside levels and
        scales."""
        return 8 if self.step.isa.registers >= 32 else 4

    @property
    def units(self) -> tuple[DimLike, DimLike]:
        """Runs of rows of x, by panels."""
        return (self.m + ROWS - 1) // ROWS, self.packing.panels

    # -- tasks ----------------------------------------------------------------------------------

    def multiply(self, panels: Buffer, name: str) -> Task:
        units = product(self.units)
        grain = self.step.machine.units_per_task(units, self.nanoseconds)
        given = (*(Buffer("temp", n) for n in range(3)), panels, Buffer("result", 0))
        return Task(
            TaskCode(name, self.source), given, units, grain,
            dim_min(ROWS, self.m) * PANEL * F32.itemsize,
            summary=f"int8 dot products with panels of {PANEL} outputs, "
            f"{self.layout.codes.scheme}",
            kind=TaskKind.GEMM,
        )  # fmt: skip

    @property
    def nanoseconds(self) -> DimLike:
        read = self.packing.size_bytes * self.units[0] // BYTES_PER_NS
        return read + self.activations.terms * self.m * self.n * self.k // PRODUCTS_PER_NS

    # -- code -----------------------------------------------------------------------------------

    def source(self, name: str) -> Source:
        w = Writer(self.step.isa, self.lanes)
        code = w.code
        stop = code.least("%stop", w.size(product(self.units)))
        with code.count("%start", stop, 1) as unit:
            run, panel = w.split(unit, self.units)
            first = code.i64("mul", run, ROWS)
            rows = code.least(ROWS, code.i64("sub", w.size(self.m), first))
            self._unit(w, panel, first, rows)
        return w.source(name)

    def _unit(self, w: Writer, panel: Bound, first: Bound, rows: Bound) -> None:
        """Many rows share what a step of the panel is decoded to; the others have their sums in
        registers, `FEW` of them, or one. One row less is so many, too."""
        code, done = w.code, self._shared(w, panel, first, rows)
        for height in self._heights:
            left = code.i64("sub", rows, done)
            up = code.i64("add", left, 1 if height > 1 else 0)
            count = code.i64("mul", code.integer("div", up, height), height)
            end = at(w, first, rows)
            with code.count(0, count, height) as row:
                self._few_rows(w, panel, at(w, first, done, row), end, height)
            done = at(w, done, count)

    @property
    def _heights(self) -> tuple[int, ...]:
        """Of tiles with sums in registers, as far as there may be so many rows."""
        return tuple(h for h in (FEW, 1) if not is_static(self.m) or h <= int(self.m))

    def _panel(self, w: Writer, panel: Bound) -> str:
        at_ = w.code.i64("mul", panel, w.size(self.packing.panel_bytes))
        return w.pointer(PANELS, at_, U8)

    # -- few rows: sums in registers ------------------------------------------------------------

    def _few_rows(self, w: Writer, panel: Bound, first: Bound, end: Bound, height: int) -> None:
        """Rows behind the last repeat it."""
        code, start = w.code, self._panel(w, panel)
        last = code.i64("sub", end, 1)
        rows = [first, *(code.least(at(w, first, r), last) for r in range(1, height))]
        parts = range(0, PANEL, self.lanes)
        sums = [_Sums(code, height) for _ in parts]
        with code.count(0, w.size(self.packing.blocks), 1) as block:
            begin = advanced(code, start, code.i64("mul", block, self.layout.block_bytes), U8)
            readers = [PanelReader(code, self.layout, p) for p in parts]
            bases = [r.bases(begin) for r in readers]
            with self._steps(w, block, begin) as (number, place):
                prefetched(code, place, PREFETCH_BYTES, self.layout.step_bytes)
                for reader, own, totals in zip(readers, bases, sums):
                    step = self._decoded(reader, own, place)
                    totals.set(self._summed(w, step, number, rows, totals.get()))
        for part, totals in zip(parts, sums):
            for row, total in zip(rows, totals.get()):
                self._stored(w, total, panel, part, row)

    # -- many rows: a step in registers, sums in scratch ----------------------------------------

    def _shared(self, w: Writer, panel: Bound, first: Bound, rows: Bound) -> Bound:
        """How many of the rows were multiplied."""
        if is_static(self.m) and int(self.m) < MANY:
            return 0
        code = w.code
        whole = code.integer("and", rows, -self.tile)
        whole = code.choose(code.compare("ge", rows, MANY), whole, 0)
        with code.when(code.compare("gt", whole, 0)):
            self._many_rows(w, panel, first, whole)
        return whole

    def _many_rows(self, w: Writer, panel: Bound, first: Bound, rows: Bound) -> None:
        code, start = w.code, self._panel(w, panel)
        parts = range(0, PANEL, self.lanes)
        with code.count(0, code.i64("mul", rows, PANEL), self.lanes) as i:
            store(code, code.const(0.0, F32), F32, advanced(code, "%scratch", i, F32))
        with code.count(0, w.size(self.packing.blocks), 1) as block:
            begin = advanced(code, start, code.i64("mul", block, self.layout.block_bytes), U8)
            for part in parts:
                reader = PanelReader(code, self.layout, part)
                bases = reader.bases(begin)
                with self._steps(w, block, begin) as (number, place):
                    prefetched(code, place, PREFETCH_BYTES, self.layout.step_bytes)
                    step = self._decoded(reader, bases, place)
                    with w.code.count(0, rows, self.tile) as row:
                        self._tile(w, step, number, first, row, part)
        with code.count(0, rows, 1) as row:
            for part in parts:
                total = load(code, F32, self._sum(w, row, part))
                self._stored(w, total, panel, part, at(w, first, row))

    def _tile(
        self, w: Writer, step: PanelStep, number: Bound, first: Bound, row: Bound, part: int
    ) -> None:
        each = range(self.tile)
        places = [self._sum(w, at(w, row, r), part) for r in each]
        rows = [at(w, first, row, r) for r in each]
        sums = [load(w.code, F32, p) for p in places]
        for place, total in zip(places, self._summed(w, step, number, rows, sums)):
            store(w.code, total, F32, place)

    def _sum(self, w: Writer, row: Bound, part: int) -> str:
        return advanced(w.code, "%scratch", at(w, w.code.i64("mul", row, PANEL), part), F32)

    # -- 32 inputs ------------------------------------------------------------------------------

    @contextmanager
    def _steps(self, w: Writer, block: Bound, begin: str) -> Generator[tuple[Bound, str]]:
        """The steps of a block: which of a row's, and where in the panel."""
        code, layout = w.code, self.layout
        begin = advanced(code, begin, layout.head_bytes, U8)
        if layout.steps == 1:
            yield block, begin
            return
        with code.count(0, layout.steps, 1) as step:
            number = at(w, code.i64("mul", block, layout.steps), step)
            yield number, advanced(code, begin, code.i64("mul", step, layout.step_bytes), U8)

    def _row(self, w: Writer, number: Bound, row: Bound, term: int) -> Row:
        """A row's activations of a step."""
        code = w.code
        place = at(w, code.i64("mul", number, w.size(self.m)), row)
        place = at(w, code.i64("mul", place, self.activations.terms), term)
        return Row(
            w.pointer(CODES, code.i64("mul", place, BLOCK), I8),
            w.pointer(SCALES, place, F32),
            w.pointer(CORRECTIONS, code.i64("mul", place, self.layout.groups), I32),
        )

    def _decoded(self, reader: PanelReader, bases: list[Vec], place: str) -> PanelStep:
        dots = dots_for(reader.code, self.layout.codes.most)
        levels = [dots.levels(reader.levels(place, word)) for word in range(WORDS)]
        groups = range(self.layout.groups)
        return PanelStep(levels, [reader.factors(bases, place, g) for g in groups])

    def _summed(
        self, w: Writer, step: PanelStep, number: Bound, rows: Sequence[Bound], sums: Sequence[Vec]
    ) -> list[Vec]:
        """The sums of rows, and the products of a step with all roundings."""
        totals = list(sums)
        for term in range(self.activations.terms):
            given = [self._row(w, number, row, term) for row in rows]
            totals = self._added(w, step, given, totals)
        return totals

    def _added(
        self, w: Writer, step: PanelStep, rows: Sequence[Row], sums: Sequence[Vec]
    ) -> list[Vec]:
        """The sums of rows, and the products of a step."""
        scaled: list[Vec | None] = [None] * len(rows)
        totals = list(sums)
        for group, factors in enumerate(step.factors):
            dots = self._dots(w, step, rows, group)
            for r, dot in enumerate(dots):
                value, before = dot.to(F32), scaled[r]
                own = value * factors[0] if before is None else near_fma(value, factors[0], before)
                scaled[r] = own
        for r, (row, own) in enumerate(zip(rows, scaled)):
            assert own is not None
            totals[r] = near_fma(own, load(w.code, F32, row.scale, 0), totals[r])
            for group, factors in enumerate(step.factors):
                for offset in factors[1:]:
                    place = advanced(w.code, row.corrections, group, F32)
                    totals[r] = near_fma(offset, load(w.code, F32, place, 0), totals[r])
        return totals

    def _dots(self, w: Writer, step: PanelStep, rows: Sequence[Row], group: int) -> list[Vec]:
        """Σ level · code − zero · Σ code of a group, for each row."""
        code, count = w.code, WORDS // self.layout.groups
        dots = dots_for(code, self.layout.codes.most)
        made = [self._start(w, row, group) for row in rows]
        for word in range(group * count, (group + 1) * count):
            for r, row in enumerate(rows):
                place = advanced(code, row.codes, 4 * word, I8)
                given = dots.steps(load(code, DType.U32, place, 0))
                made[r] = dots.plus(made[r], step.levels[word], given)
        return made

    def _start(self, w: Writer, row: Row, group: int) -> Vec:
        if self.layout.codes.zero == 0:
            return w.code.const(0, I32)
        return load(w.code, I32, advanced(w.code, row.corrections, group, I32), 0)

    # -- results --------------------------------------------------------------------------------

    def _stored(self, w: Writer, total: Vec, panel: Bound, part: int, row: Bound) -> None:
        code, made = w.code, self.step.results[0]
        column = at(w, code.i64("mul", panel, PANEL), part)
        outer = w.place(self.lead, w.split(row, self.lead.dims))
        place = at(w, outer, code.i64("mul", column, w.size(made.strides[-1])))
        mask = None
        if not is_static(self.n) or int(self.n) % PANEL:
            left = code.splat(code.i64("sub", w.size(self.n), column), DType.I64)
            mask = code.iota(DType.I64) < left
        by, dtype = masked_lane_stride(w, made.strides[-1]), self.step.node.shape.dtype
        w.store(total.to(dtype.compute), RESULT, place, dtype, by, mask)


def make_block_dot(step: Step, name: str) -> Schedule[Task]:
    """The product; panels are made once, or for every call where W is computed by it."""
    packed, place = step.operands[1], Buffer("operand", 1)
    layout = PanelLayout(codes_for(step.node.attrs["scheme"], step.isa))
    compact = Layout.contiguous(packed.dims)
    given = packed if packed.strides[1] == 1 else compact
    packing = PanelPacking(layout, given, step.machine)
    made = BlockDot(step, layout, packing)
    rounding, temps = made.activations.task(f"{name}.x"), made.activations.temps
    if 1 in step.constants and given is packed:
        task = packing.task(place, Buffer("result", 0), f"{name}.w")
        weights = (PackedWeights(task, packing.size_bytes),)
        return Schedule((rounding, made.multiply(Buffer("packed", 0), name)), temps, weights)
    tasks, source, panels = list[Task](), place, Buffer("temp", len(temps))
    temps = (*temps, packing.size_bytes)
    if given is not packed:
        source = Buffer("temp", len(temps))
        views = BufferView(place, packed, U8), BufferView(source, compact, U8)
        tasks.append(copy_task(*views, step.machine, f"{name}.rows"))
        temps = (*temps, product(packed.dims))
    tasks.append(packing.task(source, panels, f"{name}.w"))
    return Schedule((*tasks, rounding, made.multiply(panels, name)), temps)
