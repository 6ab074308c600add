"""Symbolic check: buffers that are live together are proved disjoint for all sizes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rlx.core.dim import Dim, DimLike, evaluate
from rlx.core.extent import ceiling
from rlx.ir.extents import measured_by
from rlx.ir.lir import BufferPlan, Slot, Space
from rlx.ir.mir import Node
from rlx.plan.check.claims import Facts, Fault, Finding, finding
from rlx.plan.size_proofs import Proofs, is_multiple

MAX_BETWEEN = 64
"""Buffers between two that are looked at."""


@dataclass(frozen=True, slots=True, order=True)
class _ByteRange:
    """A buffer of the arena, ordered by its offset at the representative sizes."""

    low: int
    high: int
    number: int

    @property
    def is_empty(self) -> bool:
        return self.low == self.high


def check_formulas(facts: Facts) -> Iterator[Finding]:
    """What is unproved of a plan with symbolic dims; a static plan needs no proof."""
    if facts.plan.dynamic_symbols or any(measured_by(n) for n in facts.nodes):
        proofs = Proofs()
        yield from _check_bounds(facts, proofs)
        yield from _Sweep(facts, proofs).findings()


def _check_bounds(facts: Facts, proofs: Proofs) -> Iterator[Finding]:
    plan = facts.plan
    for node, slot in plan.assignments.items():
        if not proofs.le(ceiling(node.shape.size_bytes), slot.size):
            message = f"{node.shape} may need more than its slot's {slot.size} bytes"
            yield finding(Fault.UNPROVEN, node, message)
        if not is_multiple(slot.offset, plan.alignment):
            yield finding(Fault.UNPROVEN, node, f"offset {slot.offset} may not be aligned")
    for node in _past_the_end(plan, proofs):
        yield finding(Fault.UNPROVEN, node, "may end past the arena's end")
    yield from _check_weights(plan)


def _check_weights(plan: BufferPlan) -> Iterator[Finding]:
    """Weights of named sizes are consecutive, so that they are disjoint, and as many bytes as their
    sizes sum to."""
    slots = [(n, s) for n, s in plan.assignments.items() if s.space is Space.WEIGHTS]
    end: DimLike = 0
    if any(isinstance(v, Dim) for _, s in slots for v in (s.offset, s.size)):
        sizes = plan.representative
        slots.sort(key=lambda p: (evaluate(p[1].offset, sizes), evaluate(p[1].size, sizes)))
        for node, slot in slots:
            if slot.offset != end:
                yield finding(Fault.UNPROVEN, node, "is a weight that is not behind the others")
            end = slot.offset + slot.size


def _past_the_end(plan: BufferPlan, proofs: Proofs) -> list[Node]:
    """Buffers that are not shown to end before the arena does."""
    order = _Order(plan, proofs)
    total = plan.arena_formula
    slots = {n: s for n, s in plan.assignments.items() if s.space is Space.ARENA}
    return [n for n, s in slots.items() if not order.is_before(s.offset + s.size, total)]


class _Order:
    """Which offsets are below others at all sizes: at once, or by buffers between them, each of
    which begins where the one before has ended or later. In a long sum no proof sees its parts."""

    def __init__(self, plan: BufferPlan, proofs: Proofs) -> None:
        self.plan, self.proofs = plan, proofs

    def is_before(self, end: DimLike, start: DimLike) -> bool:
        return self.proofs.le(end, start) or self._is_by_others(end, start)

    def _is_by_others(self, end: DimLike, start: DimLike) -> bool:
        first, last = self._value(end), self._value(start)
        at = bisect_left(self._slots, first, key=lambda each: each[0])
        reached = [end]
        for low, high, slot in self._slots[at : at + MAX_BETWEEN]:
            if low > last:
                break
            if high > last or not self.proofs.le(0, slot.size):
                continue
            if any(self.proofs.le(e, slot.offset) for e in reversed(reached)):
                reached.append(slot.offset + slot.size)
                if self.proofs.le(reached[-1], start):
                    return True
        return False

    def _value(self, dim: DimLike) -> int:
        return evaluate(dim, self.plan.representative)

    @cached_property
    def _slots(self) -> list[tuple[int, int, Slot]]:
        """Those of the arena with where they begin and end at the representative sizes, by that."""
        arena = {s for s in self.plan.assignments.values() if s.space is Space.ARENA}
        found = [(self._value(s.offset), self._value(s.offset + s.size), s) for s in arena]
        return sorted(found, key=lambda each: (each[0], each[1], str(each[2].offset)))


class _Sweep:
    """Sweep over the steps, with the live buffers sorted by offset.

    Being below another is transitive, so a newborn needs a proof against its two neighbours only. A
    buffer that is empty at the representative sizes has no neighbours there: it is compared with
    all.
    """

    def __init__(self, facts: Facts, proofs: Proofs) -> None:
        self.facts, self.plan, self.proofs = facts, facts.plan, proofs
        self.order = _Order(self.plan, proofs)
        self.values: dict[DimLike, int] = {}
        arena = (n for n, s in self.plan.assignments.items() if s.space is Space.ARENA)
        self.nodes: Sequence[Node] = list(arena)
        self.range_ = {node: self._range_of(i, node) for i, node in enumerate(self.nodes)}
        self.living: list[_ByteRange] = []
        self.empty: set[_ByteRange] = set()

    def _range_of(self, number: int, node: Node) -> _ByteRange:
        slot = self.plan.assignments[node]
        low = self._value(slot.offset)
        return _ByteRange(low, low + self._value(slot.size), number)

    def _value(self, dim: DimLike) -> int:
        if dim not in self.values:
            self.values[dim] = evaluate(dim, self.plan.representative)
        return self.values[dim]

    def findings(self) -> Iterator[Finding]:
        leaving: dict[int, list[_ByteRange]] = {}
        inputs = [node for _, node in self.plan.io.inputs]
        born = set(inputs)
        for node in inputs:
            yield from self._enter(node)
        for step, kernel in enumerate(self.plan.schedule):
            over = self.plan.in_place.get(kernel)
            if over is not None:
                self._leave(self.range_.get(self.plan.root(over)))
            for root in map(self.plan.root, self.facts.written(kernel)):
                if root in born or root not in self.range_:
                    continue
                born.add(root)
                yield from self._enter(root)
                leaving.setdefault(self.facts.last_use[root], []).append(self.range_[root])
            for range_ in leaving.pop(step, ()):
                self._leave(range_)

    def _leave(self, range_: _ByteRange | None) -> None:
        if range_ is None:
            return
        at = bisect_left(self.living, range_)
        if at < len(self.living) and self.living[at] == range_:
            del self.living[at]
            self.empty.discard(range_)

    def _enter(self, node: Node) -> Iterator[Finding]:
        range_ = self.range_[node]
        at = bisect_left(self.living, range_)
        near = self.living if range_.is_empty else self.living[max(0, at - 1) : at + 1]
        for other in dict.fromkeys([*near, *sorted(self.empty)]):
            if not self._is_disjoint(range_, other):
                message = f"may overlap {self.nodes[other.number].label} at some size"
                yield finding(Fault.UNPROVEN, node, message)
        insort(self.living, range_)
        if range_.is_empty:
            self.empty.add(range_)

    def _is_disjoint(self, a: _ByteRange, b: _ByteRange) -> bool:
        (a_low, a_high), (b_low, b_high) = self._formulas(a), self._formulas(b)
        if a.low > b.low:
            (a_low, a_high), (b_low, b_high) = (b_low, b_high), (a_low, a_high)
        order = self.order
        return order.is_before(a_high, b_low) or order.is_before(b_high, a_low)

    def _formulas(self, range_: _ByteRange) -> tuple[DimLike, DimLike]:
        slot = self.plan.assignments[self.nodes[range_.number]]
        return slot.offset, slot.offset + slot.size
