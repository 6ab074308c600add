"""Cumulative ops (scans) along an axis, each row in order: a few rows interleaved, so that their
latencies overlap; vectorised over rows where those are contiguous."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.cpu.codegen.math.expression_vectors import vectors
from rlx.backends.cpu.codegen.scan.positions import stored_value
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.library.strided_copy import (
    Blocks,
    at,
    dim_lanes,
    merged,
    outer_axes,
    row_lanes,
    step,
    vector_loop,
)
from rlx.backends.cpu.llvm.function import Source, TaskCode
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import Step, Task, iterations_per_poll
from rlx.core.dim import DimLike, product
from rlx.core.layout import Layout
from rlx.kernel.expr import Affine, Apply, Expr, Kernel, Load, Store
from rlx.kernel.lower.scan import lower_scan
from rlx.kernel.program.schedule import Schedule, buffers
from rlx.kernel.refusal import required
from rlx.kernel.scan import Scan

INTERLEAVED_ROWS = 4
"""The latency of an addition in cycles."""
NS_PER_ELEMENT, EXP_NS = 1, 10
COSTLY = frozenset({"exp", "log"})
"""A fold with one of these takes longer than to gather strided rows into lanes, and is a function
of its own."""


def make_cumulative(given: Step, name: str) -> Schedule[Task]:
    """The tasks of a step that is a cumulative op."""
    form = required(lower_scan(given.node, given.operands, given.results))
    return cumulative_schedule(form, given.machine, name)


def cumulative_schedule(form: Scan, machine: CpuMachine, name: str) -> Schedule[Task]:
    """The tasks of a scan whose carry is a number of each row."""
    fold = _CumulativeScan.of(form, machine.isa)
    units = fold.units.count
    ns = form.results[0].num_elements * NS_PER_ELEMENT
    grain = machine.units_per_task(units, ns)
    task = Task(TaskCode(name, fold.source), buffers(1, 1), units, grain)
    return Schedule((task,))


@dataclass(frozen=True, slots=True)
class _Chain:
    """A scan along the axis from these offsets, in some lanes."""

    x: Bound
    y: Bound
    mask: Vec | None


@dataclass(frozen=True, slots=True)
class _CumulativeScan:
    form: Scan
    isa: Isa
    rows: Sequence[Layout]
    """x and the result without the axis."""
    strides: tuple[DimLike, DimLike]
    lanes: int

    @classmethod
    def of(cls, form: Scan, isa: Isa) -> _CumulativeScan:
        kernel = form.directions[0].steps[0]
        assert isinstance(kernel, Kernel)
        maps = [_inputs(kernel)[0].at, _outputs(kernel)[0].at]
        rows = merged([_rows(form, m) for m in maps])
        sign = -1 if form.directions[0].is_reversed else 1
        x, y = (m.coefficient(form.time) * sign for m in maps)
        wide = form.carries[0].dtype
        if _is_costly(kernel):
            lanes = dim_lanes(isa, wide, rows[0].dims[-1])
        else:
            lanes = 1 if len(_inputs(kernel)) > 1 else row_lanes(isa, wide, rows)
        return cls(form, isa, rows, (x, y), lanes)

    @property
    def size(self) -> DimLike:
        return self.form.time.extent

    @property
    def step(self) -> Kernel:
        """What is done at each position but the first."""
        (kernel,) = self.form.directions[0].steps
        assert isinstance(kernel, Kernel)
        return kernel

    @property
    def units(self) -> Blocks:
        """With one lane, rows are numbered through."""
        dims = self.rows[0].dims
        return Blocks(dims if self.lanes > 1 else (product(dims),), INTERLEAVED_ROWS * self.lanes)

    def source(self, name: str) -> Source:
        w = Writer(self.isa, self.lanes)
        with self.units.each(w) as (outer, low, high), w.code.when(self.has_any(w)):
            count = w.code.integer("sub", high, low)
            is_whole = w.code.compare("eq", count, self.units.block)
            with w.code.when(is_whole):
                starts = [at(w, low, n * self.lanes) for n in range(INTERLEAVED_ROWS)]
                self.run(w, [self.chain(w, outer, i, None) for i in starts])
            with w.code.when(w.code.negated(is_whole)):
                vector_loop(
                    w, low, high, lambda i, mask: self.run(w, [self.chain(w, outer, i, mask)])
                )
        return Source(w.function(name), w.sizes)

    def has_any(self, w: Writer) -> str:
        return w.code.compare("gt", w.size(self.size), 0)

    def chain(self, w: Writer, outer: list[Bound], i: Bound, mask: Vec | None) -> _Chain:
        """The row, or the vector of rows, with this index."""
        if self.lanes == 1:
            *outer, i = w.split(i, self.rows[0].dims)
        bases = [w.place(outer_axes(v), outer) for v in self.rows]
        x, y = (at(w, b, step(w, i, v.strides[-1])) for b, v in zip(bases, self.rows))
        return _Chain(x, y, mask)

    def run(self, w: Writer, chains: Sequence[_Chain]) -> None:
        """All scans from the first to the last element of the axis."""
        slots = [self.begun(w, chain) for chain in chains]
        cost = EXP_NS if _is_costly(self.step) else NS_PER_ELEMENT
        polled = int(iterations_per_poll(len(chains) * self.lanes * cost))
        with w.code.count(1, w.size(self.size), 1, polled) as t:
            for chain, slot in zip(chains, slots):
                before = self.load_carries(w, slot)
                made = self.folded(w, before | self.loaded(w, chain, t, self.step))
                self.write(w, self.step, made, chain, t)
                self.store_carries(w, self.step, made, slot)

    def begun(self, w: Writer, chain: _Chain) -> list[str]:
        """The first position, and the slots of the carries that come from it."""
        (first,) = self.form.start
        made = self.loaded(w, chain, 0, first)
        self.write(w, first, made, chain, 0)
        slots = [w.code.slot(self.zero(w).type) for _ in self.form.carries]
        self.store_carries(w, first, made, slots)
        return slots

    # -- values ---------------------------------------------------------------------------------

    def zero(self, w: Writer) -> Vec:
        return w.code.const(0, self.form.carries[0].dtype)

    def loaded(self, w: Writer, chain: _Chain, t: Bound, kernel: Kernel) -> dict[Expr, Vec]:
        """x at a position, in the dtype of the carry."""
        place = at(w, chain.x, step(w, t, self.strides[0]))
        stride, made = self.between(w, 0), dict[Expr, Vec]()
        for n, load in enumerate(_inputs(kernel)):
            made[load] = w.load(0, at(w, place, n), load.dtype, stride, chain.mask)
        return vectors(w.code, _carried(kernel), made)

    def folded(self, w: Writer, given: dict[Expr, Vec]) -> dict[Expr, Vec]:
        """The new carries."""
        now = [s.value for s in _carries(self.step)]
        if not _is_costly(self.step):
            return vectors(w.code, now, given)
        leaves = [*_past(self.step), *_carried(self.step)]

        def build(*args: Vec) -> Vec:
            return vectors(args[0].code, now, dict(zip(leaves, args)))[now[0]]

        made = w.code.outlined(self.form.name, build, *(given[x] for x in leaves))
        return given | {now[0]: made}

    def write(
        self, w: Writer, kernel: Kernel, given: dict[Expr, Vec], chain: _Chain, t: Bound
    ) -> None:
        """The results at a position."""
        place = at(w, chain.y, step(w, t, self.strides[1]))
        for n, store in enumerate(_outputs(kernel)):
            dtype, value = store.value.dtype, stored_value(store)
            made = vectors(w.code, [value], given)[value]
            w.store(made, 1, at(w, place, n), dtype, self.between(w, 1), chain.mask)

    def between(self, w: Writer, side: int) -> Bound:
        """The lane stride, in x or in the result."""
        return w.size(self.rows[side].strides[-1]) if self.lanes > 1 else 1

    def store_carries(
        self, w: Writer, kernel: Kernel, given: dict[Expr, Vec], slots: Sequence[str]
    ) -> None:
        roots = [s.value for s in _carries(kernel)]
        made = vectors(w.code, roots, given)
        for root, slot in zip(roots, slots):
            w.code.do(f"store {made[root].type} {made[root].text}, ptr {slot}")

    def load_carries(self, w: Writer, slots: Sequence[str]) -> dict[Expr, Vec]:
        like = self.zero(w)
        loads = _past(self.step)
        return {x: like.made(f"load {like.type}, ptr {slots[x.operand - 1]}") for x in loads}


def _inputs(kernel: Kernel) -> list[Load]:
    """The loads of x, the real part of a complex number first."""
    return [n for n in kernel.nodes if isinstance(n, Load) and n.operand == 0]


def _past(kernel: Kernel) -> list[Load]:
    """The loads of the carries."""
    return [n for n in kernel.nodes if isinstance(n, Load) and n.operand > 0]


def _carried(kernel: Kernel) -> list[Expr]:
    """x in the dtype of the carry: the casts of its loads, or the loads."""
    loads = _inputs(kernel)
    casts = {
        n.args[0]: n
        for n in kernel.nodes
        if isinstance(n, Apply) and n.op.name == "cast" and n.args[0] in loads
    }
    return [casts.get(x, x) for x in loads]


def _outputs(kernel: Kernel) -> list[Store]:
    return [s for s in kernel.stores if s.result == 0]


def _carries(kernel: Kernel) -> list[Store]:
    return [s for s in kernel.stores if s.result > 0]


def _is_costly(kernel: Kernel) -> bool:
    return any(isinstance(n, Apply) and n.op.name in COSTLY for n in kernel.nodes)


def _rows(form: Scan, at: Affine) -> Layout:
    """Of an index map without the scanned axis, from the first position on."""
    axes = form.carries[0].axes
    strides = tuple(at.coefficient(a) for a in axes)
    offset = at.offset
    if form.directions[0].is_reversed:
        offset = offset + (form.time.extent - 1) * at.coefficient(form.time)
    return Layout(tuple(a.extent for a in axes), strides, offset)
