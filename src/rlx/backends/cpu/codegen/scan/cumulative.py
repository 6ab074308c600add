"""Cumulative ops (scans) along an axis, each row in order: a few rows interleaved, so that their
latencies overlap; vectorised over rows where those are contiguous."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlx.backends.cpu.codegen.math import elementary as maths
from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.library.strided_copy import (
    Blocks,
    Value,
    as_parts,
    at,
    dim_lanes,
    load_value,
    merged,
    multiply,
    outer_axes,
    per_part,
    real_dtype,
    row_lanes,
    step,
    store_value,
    vector_loop,
)
from rlx.backends.cpu.llvm.builder import Bound, Vec, two_sum
from rlx.backends.cpu.llvm.function import Code, Source
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.program.task import (
    KernelSequence,
    Step,
    Task,
    buffers,
    iterations_per_poll,
)
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.ops.math.reduction import carried

INTERLEAVED_ROWS = 4
"""The latency of an addition in cycles."""
NS_PER_ELEMENT, EXP_NS = 1, 10


def _log_add_exp(x: Vec, y: Vec) -> Vec:
    """log(eˣ + eʸ): the greater, and what the lesser adds to it, log(1 + e^-gap)."""
    small = maths.exp(-(x - y).abs())
    whole = small + 1.0
    more = maths.log(whole) + (small - (whole - 1.0)) / whole
    return arith.maximum(x, y) + more.like(math.log(2.0)).where(x.equals(y), more)


COMBINE: dict[str, Callable[[Value, Value], Value]] = {
    "cumsum": per_part(lambda x, y: x + y),
    "cumprod": multiply,
    "cummax": per_part(arith.maximum),
    "cummin": per_part(arith.minimum),
    "cum_log_sum_exp": per_part(lambda x, y: x.code.outlined("log_add_exp", _log_add_exp, x, y)),
}


COSTLY = ("cum_log_sum_exp",)
"""Those that take longer than to gather strided rows into lanes."""
ROUNDED = ("cumsum", "cumprod", "cum_log_sum_exp")
"""Those that round at every step, which carrying f64 hides from f32."""


def _add_exactly(state: Value, x: Value) -> Value:
    """Compensated sum: the sum, and its lost roundings; what is not finite loses
    nothing."""
    total, lost = two_sum(state[0], x[0])
    return total, state[1] + lost.where(lost.equals(lost), 0.0)


def make_cumulative(given: Step, name: str) -> KernelSequence:
    fold = _CumulativeScan.of(given)
    units = fold.units.count
    ns = given.node.shape.num_elements * NS_PER_ELEMENT
    grain = given.machine.units_per_task(units, ns)
    task = Task(Code(name, fold.source), buffers(1, 1), units, grain)
    return KernelSequence((task,))


@dataclass(frozen=True, slots=True)
class _Chain:
    """A scan along the axis from these offsets, in some lanes."""

    x: Bound
    y: Bound
    mask: Vec | None


@dataclass(frozen=True, slots=True)
class _CumulativeScan:
    given: Step
    dtype: DType
    parts: int
    """Real numbers of an element: 2 where complex ones are multiplied."""
    rows: Sequence[Layout]
    """x and the result without the axis."""
    strides: tuple[DimLike, DimLike]
    lanes: int
    wide: DType
    """The dtype of the carry."""

    @classmethod
    def of(cls, given: Step) -> _CumulativeScan:
        node, axis = given.node, given.node.attrs["axis"]
        dtype, parts = real_dtype(node.shape.dtype)
        apart = 1 if node.op == "cumprod" else parts
        layouts = [_reversed(v, axis) for v in (given.operands[0], given.results[0])]
        if not node.attrs["reverse"]:
            layouts = [given.operands[0], given.results[0]]
        rows = merged([as_parts(_without(v, axis), apart) for v in layouts])
        x, y = (v.strides[axis] * apart for v in layouts)
        wide = carried(dtype) if node.op in ROUNDED else dtype.compute
        lanes = 1 if apart < parts else row_lanes(given.isa, wide, rows)
        if node.op in COSTLY:
            lanes = dim_lanes(given.isa, wide, rows[0].dims[-1])
        return cls(given, dtype, parts // apart, rows, (x, y), lanes, wide)

    @property
    def is_compensated(self) -> bool:
        """Sums of f64 have no wider dtype for the carry."""
        return self.given.node.op == "cumsum" and self.dtype is DType.F64

    @property
    def size(self) -> DimLike:
        return self.given.node.shape.dims[self.given.node.attrs["axis"]]

    @property
    def units(self) -> Blocks:
        """With one lane, rows are numbered through."""
        dims = self.rows[0].dims
        return Blocks(dims if self.lanes > 1 else (product(dims),), INTERLEAVED_ROWS * self.lanes)

    def source(self, name: str) -> Source:
        w = Writer(self.given.isa, self.lanes)
        with self.units.each(w) as (outer, low, high), w.code.when(self.has_any(w)):
            count = w.code.let(f"sub i64 {high}, {low}")
            is_whole = w.code.let(f"icmp eq i64 {count}, {self.units.block}")
            with w.code.when(is_whole):
                starts = [at(w, low, n * self.lanes) for n in range(INTERLEAVED_ROWS)]
                self.run(w, [self.chain(w, outer, i, None) for i in starts])
            with w.code.when(w.code.let(f"xor i1 {is_whole}, true")):
                vector_loop(
                    w, low, high, lambda i, mask: self.run(w, [self.chain(w, outer, i, mask)])
                )
        return Source(w.function(name), w.sizes)

    def has_any(self, w: Writer) -> str:
        return w.code.let(f"icmp sgt i64 {w.size(self.size)}, 0")

    def chain(self, w: Writer, outer: list[Bound], i: Bound, mask: Vec | None) -> _Chain:
        """The row, or the vector of rows, with this index."""
        if self.lanes == 1:
            *outer, i = w.split(i, self.rows[0].dims)
        bases = [w.place(outer_axes(v), outer) for v in self.rows]
        x, y = (at(w, b, step(w, i, v.strides[-1])) for b, v in zip(bases, self.rows))
        return _Chain(x, y, mask)

    def run(self, w: Writer, chains: Sequence[_Chain]) -> None:
        """All scans from the first to the last element of the axis."""
        exclusive = self.given.node.attrs.get("exclusive", False)
        first = 1 if self.given.node.op == "cumprod" else 0
        fold = _add_exactly if self.is_compensated else COMBINE[self.given.node.op]
        slots = [self.begun(w, c, first if exclusive else None) for c in chains]
        cost = EXP_NS if self.given.node.op in COSTLY else NS_PER_ELEMENT
        polled = int(iterations_per_poll(len(chains) * self.lanes * cost))
        with w.code.count(1, w.size(self.size), 1, polled) as t:
            for chain, slot in zip(chains, slots):
                before = self.load_carry(w, slot)
                now = fold(before, self.read(w, chain, t))
                self.write(w, before if exclusive else now, chain, t)
                self.store_carry(w, now, slot)

    def begun(self, w: Writer, chain: _Chain, first: int | None) -> list[str]:
        """The first element is the first carry."""
        value = self.read(w, chain, 0)
        value = (*value, value[0].like(0)) if self.is_compensated else value
        made = value
        if first is not None:
            made = (w.code.const(first, value[0].dtype), *(v.like(0) for v in value[1:]))
        self.write(w, made, chain, 0)
        slots = [w.code.slot(v.type) for v in value]
        self.store_carry(w, value, slots)
        return slots

    # -- values ---------------------------------------------------------------------------------

    def read(self, w: Writer, chain: _Chain, t: Bound) -> Value:
        place = at(w, chain.x, step(w, t, self.strides[0]))
        read = load_value(w, 0, place, self.dtype, self.parts, chain.mask, self.between(w, 0))
        return tuple(v.to(self.wide) for v in read)

    def write(self, w: Writer, value: Value, chain: _Chain, t: Bound) -> None:
        place = at(w, chain.y, step(w, t, self.strides[1]))
        value = (value[0] + value[1],) if self.is_compensated else value
        value = tuple(v.to(self.dtype.compute) for v in value)
        store_value(w, value, 1, place, self.dtype, chain.mask, self.between(w, 1))

    def between(self, w: Writer, side: int) -> Bound:
        """The lane stride, in x or in the result."""
        return w.size(self.rows[side].strides[-1]) if self.lanes > 1 else 1

    def store_carry(self, w: Writer, value: Value, slots: Sequence[str]) -> None:
        w.code.do(*(f"store {v.type} {v.text}, ptr {s}" for v, s in zip(value, slots)))

    def load_carry(self, w: Writer, slots: Sequence[str]) -> Value:
        like = w.code.const(0, self.wide)
        return tuple(like.made(f"load {like.type}, ptr {s}") for s in slots)


def _without(layout: Layout, axis: int) -> Layout:
    dims, strides = layout.dims, layout.strides
    return Layout(
        dims[:axis] + dims[axis + 1 :], strides[:axis] + strides[axis + 1 :], layout.offset
    )


def _reversed(layout: Layout, axis: int) -> Layout:
    """Reversed along the axis."""
    size = layout.dims[axis]
    return layout.sliced(axis, size - 1, size, -1)
