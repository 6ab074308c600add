"""Symbolic check: buffers that are live together are proved disjoint for all sizes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlx.core.dim import Dim, DimLike, evaluate
from rlx.core.extent import ceiling
from rlx.ir.extents import measured_by
from rlx.ir.lir import BufferPlan, Space
from rlx.ir.mir import Node
from rlx.plan.check.claims import Facts, Fault, Finding, finding
from rlx.plan.size_proofs import Proofs, is_multiple


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
        if slot.space is Space.ARENA and not proofs.le(slot.offset + slot.size, plan.arena_formula):
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


class _Sweep:
    """Sweep over the steps, with the live buffers sorted by offset.

    Being below another is transitive, so a newborn needs a proof against its two neighbours only. A
    buffer that is empty at the representative sizes has no neighbours there: it is compared with
    all.
    """

    def __init__(self, facts: Facts, proofs: Proofs) -> None:
        self.facts, self.plan, self.proofs = facts, facts.plan, proofs
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
        return self.proofs.le(a_high, b_low) or self.proofs.le(b_high, a_low)

    def _formulas(self, range_: _ByteRange) -> tuple[DimLike, DimLike]:
        slot = self.plan.assignments[self.nodes[range_.number]]
        return slot.offset, slot.offset + slot.size
