"""State-space layers (selective scan, Mamba-2, linear attention, delta rule). The state's columns
are independent, so each unit runs all steps with some columns of one head, staged in scratch.

    S[n] ← decay[n] · S[n] + key[n] · change        for every row n of the state
    o    = scale · Σ_n query[n] · S[n]

A delta rule changes it by (value - Σ_n key[n] · S[n]) · strength, the others by the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlx.backends.cpu.codegen.gemm.microkernel import below
from rlx.backends.cpu.codegen.loop.vector_access import advanced, load, store
from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.library.strided_copy import at
from rlx.backends.cpu.llvm.builder import Bound, Vec, fma
from rlx.backends.cpu.llvm.function import Code, Source
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.program.task import (
    KernelSequence,
    Step,
    Task,
    buffers,
    iterations_per_poll,
)
from rlx.backends.cpu.schedule.gemm_tiling import parts_of
from rlx.core.dim import DimLike, dim_max, is_static, product
from rlx.core.dtype import DType
from rlx.core.layout import Layout

ROW_PS = {"none": 150, "head": 200, "row": 600, "each": 3000}
"""Picoseconds of a state row at a vector of columns, by its kind of decay."""


@dataclass(frozen=True, slots=True)
class OperandView:
    """An operand as [batch, length, head, index]; an index of extent 1 is broadcast, and groups of
    heads may use one of its heads."""

    number: int
    layout: Layout
    runs: DimLike = 1


@dataclass(frozen=True, slots=True)
class StateSpaceSpec:
    """A state-space step in canonical form."""

    heads: DimLike
    rows: DimLike
    columns: DimLike
    keys: OperandView
    values: OperandView
    queries: OperandView
    num_queries: int
    """Query heads per state head; outputs have as many."""
    output: Layout
    """[batch, length, query head, column]."""
    first: tuple[int, Layout] | None
    """The initial state, [batch, head, row, column]."""
    last: Layout
    decay: OperandView | None = None
    kind: Literal["none", "head", "row", "each"] = "none"
    """None, per head, per row, or per row and column."""
    rates: tuple[int, Layout] | None = None
    """What a time step is multiplied by for a decay: [head], or [column, row]."""
    strength: OperandView | None = None
    scale: float | None = None

    @property
    def has_times(self) -> bool:
        """Is the value multiplied by the time step, too?"""
        return self.rates is not None


def _at_heads(number: int, layout: Layout) -> OperandView:
    """[batch, length, head] or [batch, length, head, index]."""
    if len(layout.dims) == 4:
        return OperandView(number, layout)
    wide = Layout((*layout.dims, 1), (*layout.strides, 0), layout.offset)
    return OperandView(number, wide)


def _one_head(layout: Layout) -> Layout:
    """[batch, length, index] of a single head."""
    (b, s, i), (x, y, z) = layout.dims, layout.strides
    return Layout((b, s, 1, i), (x, y, 0, z), layout.offset)


def _by_head(layout: Layout, heads: int) -> Layout:
    """[batch, length, heads · index] with heads as an axis."""
    (b, s, w), (x, y, z) = layout.dims, layout.strides
    size = w // heads
    return Layout((b, s, heads, size), (x, y, size * z, z), layout.offset)


def _selective(step: Step) -> StateSpaceSpec:
    x, time, a, b, c, *state = step.operands

    def transposed(layout: Layout) -> Layout:
        (n, w, r), (i, j, k) = layout.dims, layout.strides
        return Layout((n, 1, r, w), (i, 0, k, j), layout.offset)

    return StateSpaceSpec(
        1, a.dims[1], a.dims[0], OperandView(3, _one_head(b)), OperandView(0, _one_head(x)),
        OperandView(4, _one_head(c)), 1, _one_head(step.results[0]),
        (5, transposed(state[0])) if state else None, transposed(step.results[1]),
        OperandView(1, _one_head(time)), "each", (2, a),
    )  # fmt: skip


def _mamba2(step: Step) -> StateSpaceSpec:
    x, time, a, b, c, *state = step.operands
    runs = dim_max(1, x.dims[2] // b.dims[2])
    perm = (0, 1, 3, 2)
    return StateSpaceSpec(
        x.dims[2], b.dims[3], x.dims[3], OperandView(3, b, runs), OperandView(0, x),
        OperandView(4, c, runs), 1, step.results[0],
        (5, state[0].permuted(perm)) if state else None, step.results[1].permuted(perm),
        _at_heads(1, time), "head", (2, a),
    )  # fmt: skip


def _delta(step: Step) -> StateSpaceSpec:
    q, k, v, g, beta, *state = step.operands
    n, scale = q.dims[3], step.node.attrs["scale"]
    return StateSpaceSpec(
        q.dims[2], n, v.dims[3], OperandView(1, k), OperandView(2, v), OperandView(0, q), 1,
        step.results[0],
        (5, state[0]) if state else None, step.results[1],
        _at_heads(3, g), "row" if len(g.dims) == 4 else "head", None, _at_heads(4, beta),
        float(n) ** -0.5 if scale is None else scale,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip


def _linear(step: Step) -> StateSpaceSpec:
    attrs, (q, k, v, *rest) = step.node.attrs, step.operands
    heads, kv, rule, scale = (attrs[n] for n in ("num_heads", "kv_heads", "rule", "scale"))
    queries, keys, values = _by_head(q, heads), _by_head(k, kv), _by_head(v, kv)
    n, number = keys.dims[3], 3
    decay = strength = None
    if rule.startswith("gated"):
        decay, rest, number = OperandView(number, _by_head(rest[0], kv)), rest[1:], number + 1
    if rule.endswith("delta"):
        (b, s, h), (x, y, z) = rest[0].dims, rest[0].strides
        shared = Layout((b, s, kv, 1), (x, y, 0 if h == 1 else z, 0), rest[0].offset)
        strength, rest, number = OperandView(number, shared), rest[1:], number + 1
    kind = "none" if decay is None else "head" if decay.layout.dims[3] == 1 else "row"
    return StateSpaceSpec(
        kv, n, values.dims[3], OperandView(1, keys), OperandView(2, values),
        OperandView(0, queries), heads // kv,
        _by_head(step.results[0], heads), (number, rest[0]) if rest else None, step.results[1],
        decay, kind, None, strength, float(n) ** -0.5 if scale is None else scale,
    )  # fmt: skip


SPECS = {
    "selective_scan": _selective, "mamba2": _mamba2, "gated_delta_net": _delta,
    "linear_attention": _linear,
}  # fmt: skip


def make_state_space(step: Step, name: str) -> KernelSequence:
    return KernelSequence((_Schedule(step, SPECS[step.node.op](step)).task(name),))


@dataclass(frozen=True, slots=True)
class _Schedule:
    """How a state-space step runs: a unit is some columns of the state of a head."""

    step: Step
    spec: StateSpaceSpec

    @property
    def dtype(self) -> DType:
        return self.step.node.inputs[0].shape.dtype

    @property
    def lanes(self) -> int:
        return self.step.isa.lanes(self.dtype)

    @property
    def vectors(self) -> int:
        """Vectors of columns at a time: independent accumulators, as many as hide the latency of an
        addition."""
        most = max(1, min(4, self.step.isa.registers // 3 // self.spec.num_queries))
        if not is_static(self.spec.columns):
            return min(most, 2)
        return max(1, min(most, -(-int(self.spec.columns) // self.lanes)))

    @property
    def width(self) -> int:
        return self.vectors * self.lanes

    @property
    def length(self) -> DimLike:
        return self.spec.values.layout.dims[1]

    @property
    def units(self) -> tuple[DimLike, DimLike, DimLike]:
        """Batch, heads, blocks of columns."""
        batch = self.spec.values.layout.dims[0]
        return batch, self.spec.heads, parts_of(self.spec.columns, self.width)

    @property
    def step_ns(self) -> DimLike:
        """Nanoseconds of one step of a unit."""
        return dim_max(1, self.spec.rows * (self.vectors * ROW_PS[self.spec.kind]) // 1000)

    @property
    def bytes(self) -> DimLike:
        """The state of a unit, and the rates of its rows and columns."""
        state = self.spec.rows * (self.width * self.dtype.compute.itemsize)
        return state * (2 if self.spec.kind == "each" else 1)

    def task(self, name: str) -> Task:
        units = product(self.units)
        grain = self.step.machine.units_per_task(units, units * self.length * self.step_ns)
        given = buffers(len(self.step.operands), 2)
        return Task(Code(name, self.source), given, units, grain, self.bytes, ())

    def source(self, name: str) -> Source:
        return _Steps(self).source(name)


class _Steps:
    """The function of all steps under construction."""

    def __init__(self, schedule: _Schedule) -> None:
        self.schedule, self.step, self.spec = schedule, schedule.step, schedule.spec
        self.dtype, self.kind = schedule.dtype, schedule.dtype.compute
        self.lanes, self.vectors, self.width = schedule.lanes, schedule.vectors, schedule.width
        self.w = Writer(self.step.isa, self.lanes)
        self.code = self.w.code
        self.rows = self.w.size(self.spec.rows)
        self.columns = self.w.size(self.spec.columns)

    def source(self, name: str) -> Source:
        w, code, dims = self.w, self.code, self.schedule.units
        with code.count("%start", code.least("%stop", w.size(product(dims))), 1) as unit:
            self.batch, self.head, block = w.split(unit, dims)
            self.column = code.i64("mul", block, self.width)
            ends = [code.i64("sub", self.columns, at(w, self.column, v * self.lanes))
                    for v in range(self.vectors)]  # fmt: skip
            self.masks = [below(code, e) for e in ends]
            self.unit(w.size(self.schedule.length))
        return Source(w.function(name), w.sizes)

    # -- memory ---------------------------------------------------------------------------------

    def line(self, row: Bound, vector: int, number: int = 0) -> str:
        """A vector of a state row, or of the rates, which follow the state in scratch."""
        step = self.code.i64("mul", row, self.width)
        skip = self.w.size(self.spec.rows * (number * self.width))
        place = at(self.w, step, skip, vector * self.lanes)
        return advanced(self.code, "%scratch", place, self.kind)

    def across(self, number: int, layout: Layout, where: Sequence[Bound], vector: int) -> Vec:
        """An operand at the columns, along its last axis."""
        stride = self.w.size(layout.strides[-1])
        column = at(self.w, self.column, vector * self.lanes)
        place = self.w.place(layout, [*where, column])
        if layout.strides[-1] == 0:
            return self.w.load(number, place, self.dtype, 0)
        return self.w.load(number, place, self.dtype, stride, self.masks[vector])

    def write(self, value: Vec, number: int, layout: Layout, where: Sequence[Bound], vector: int):
        column = at(self.w, self.column, vector * self.lanes)
        place = self.w.place(layout, [*where, column])
        stride = self.w.size(layout.strides[-1])
        made = len(self.step.operands) + number
        self.w.store(value, made, place, self.dtype, stride, self.masks[vector])

    def one(self, read: OperandView, time: Bound, index: Bound, head: Bound | None = None) -> Vec:
        """An element of an operand, broadcast."""
        place = self.w.place(read.layout, [self.batch, time, self.shared(read, head), index])
        return self.w.load(read.number, place, self.dtype, 0)

    def shared(self, read: OperandView, head: Bound | None = None) -> Bound:
        if head is not None or read.runs == 1:
            return self.head if head is None else head
        return self.code.let(f"udiv i64 {self.head}, {self.w.size(read.runs)}")

    def every(self) -> range:
        return range(self.vectors)

    # -- a unit ---------------------------------------------------------------------------------

    def unit(self, length: Bound) -> None:
        code, spec = self.code, self.spec
        with code.count(0, self.rows, 1) as n:
            for v in self.every():
                self.begin(n, v)
        polled = self.w.size(iterations_per_poll(self.schedule.step_ns))
        with code.count(0, length, 1, polled) as time:
            self.advance(time)
        with code.count(0, self.rows, 1) as n:
            for v in self.every():
                value = load(code, self.kind, self.line(n, v))
                self.write(value, 1, spec.last, [self.batch, self.head, n], v)

    def begin(self, n: str, v: int) -> None:
        code, spec = self.code, self.spec
        value = code.const(0, self.kind)
        if spec.first is not None:
            number, layout = spec.first
            value = self.across(number, layout, [self.batch, self.head, n], v)
        store(code, value, self.kind, self.line(n, v))
        if spec.kind == "each" and spec.rates is not None:
            number, layout = spec.rates
            rates = self.across(number, layout.permuted((1, 0)), [n], v)
            store(code, rates, self.kind, self.line(n, v, 1))

    def advance(self, time: str) -> None:
        """One step of the sequence."""
        spec = self.spec
        change = self.changes(time)
        whole = self.decay(time, None) if spec.kind == "head" else None
        if spec.strength is not None:
            change = self.corrected(time, change, whole)
            whole, is_kept = None, True
        else:
            is_kept = spec.kind == "none"
        totals = self.summed(time, change, whole, is_kept)
        for r, sums in enumerate(totals):
            for v, total in enumerate(sums):
                made = total if spec.scale is None else total * spec.scale
                head = at(self.w, self.code.i64("mul", self.head, spec.num_queries), r)
                self.write(made, 0, spec.output, [self.batch, time, head], v)

    def changes(self, time: str) -> list[Vec]:
        """The values, times their time step where they have one."""
        spec, where = self.spec, [self.batch, time, self.head]
        made = [self.across(spec.values.number, spec.values.layout, where, v)
                for v in self.every()]  # fmt: skip
        if not spec.has_times or spec.decay is None:
            return made
        read = spec.decay
        times = [self.across(read.number, read.layout, where, v) for v in self.every()]
        return [t * x for t, x in zip(times, made)]

    def decay(self, time: str, n: Bound | None, v: int = 0) -> Vec:
        """The decay factor of a row."""
        spec, read = self.spec, self.spec.decay
        assert read is not None
        if spec.kind == "each":
            times = self.across(read.number, read.layout, [self.batch, time, self.head], v)
            power = times * load(self.code, self.kind, self.line(n or 0, v, 1))
        else:
            power = self.one(read, time, 0 if n is None else n)
            if spec.rates is not None:
                number, layout = spec.rates
                power = power * self.w.load(
                    number, self.w.place(layout, [self.head]), self.dtype, 0
                )
        return arith.apply("exp", [power], {}, self.kind)

    def corrected(self, time: str, change: list[Vec], whole: Vec | None) -> list[Vec]:
        """Delta rule: the values less the decayed state's prediction, times the strength."""
        spec, read = self.spec, self.spec.strength
        assert read is not None
        sums = _Sums(self, 1)
        with self.code.count(0, self.rows, 1) as n:
            key, left = self.one(spec.keys, time, n), whole
            if spec.kind == "row":
                left = self.decay(time, n)
            for v in self.every():
                kept = load(self.code, self.kind, self.line(n, v))
                if left is not None:
                    kept = kept * left
                    store(self.code, kept, self.kind, self.line(n, v))
                sums.add(0, v, kept, key)
        where = [self.batch, time, self.head]
        by = [self.across(read.number, read.layout, where, v) for v in self.every()]
        return [(x - k) * b for x, k, b in zip(change, sums.made()[0], by)]

    def summed(
        self, time: str, change: list[Vec], whole: Vec | None, is_kept: bool
    ) -> list[list[Vec]]:
        """The new state, and the output of each query."""
        spec, code = self.spec, self.code
        sums = _Sums(self, spec.num_queries)
        first = code.i64("mul", self.head, spec.num_queries)
        heads: list[Bound | None] = [None]
        if spec.num_queries > 1:
            heads = [at(self.w, first, r) for r in range(spec.num_queries)]
        with code.count(0, self.rows, 1) as n:
            key, left = self.one(spec.keys, time, n), whole
            queries = [self.one(spec.queries, time, n, h) for h in heads]
            if not is_kept and spec.kind == "row":
                left = self.decay(time, n)
            for v in self.every():
                kept = load(code, self.kind, self.line(n, v))
                if not is_kept and spec.kind == "each":
                    left = self.decay(time, n, v)
                kept = kept if left is None else kept * left
                new = fma(key, change[v], kept) if code.isa.has_fma else key * change[v] + kept
                store(code, new, self.kind, self.line(n, v))
                for r, query in enumerate(queries):
                    sums.add(r, v, new, query)
        return sums.made()


class _Sums:
    """Accumulators over the rows, in registers."""

    def __init__(self, steps: _Steps, count: int) -> None:
        self.code, zero = steps.code, steps.code.const(0, steps.kind)
        self.slots = [[self.code.slot(zero.type) for _ in steps.every()] for _ in range(count)]
        self.zero = zero
        for slot in (s for run in self.slots for s in run):
            self.code.do(f"store {zero.type} {zero.text}, ptr {slot}")

    def _kept(self, slot: str) -> Vec:
        return self.zero.made(f"load {self.zero.type}, ptr {slot}")

    def add(self, number: int, vector: int, x: Vec, y: Vec) -> None:
        slot = self.slots[number][vector]
        total = self._kept(slot)
        made = fma(x, y, total) if self.code.isa.has_fma else x * y + total
        self.code.do(f"store {made.type} {made.text}, ptr {slot}")

    def made(self) -> list[list[Vec]]:
        return [[self._kept(s) for s in run] for run in self.slots]
