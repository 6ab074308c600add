"""Shadow execution of a plan: every byte has an owner, and a read must find its operand there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from rlx.core.dim import Dim, DimLike, Symbol, evaluate
from rlx.core.extent import measured_in
from rlx.core.formulas import compile_dims
from rlx.core.layout import Layout
from rlx.ir.lir import BufferPlan, Slot, Space
from rlx.ir.mir import Node
from rlx.plan.check.claims import Facts, Fault, Finding, finding
from rlx.plan.check.shadow_memory import Shadow

Value = Callable[[DimLike], int]
Range = tuple[int, int]

MOST_PADDING_BYTES = 1 << 40
"""Bytes that no value needs: more overflow what programs compute sizes with."""
UNBOUNDED_SAMPLE_FACTOR = 64
"""The multiple of its representative size at which an unbounded dim is sampled."""


def check_memory(facts: Facts) -> list[Finding]:
    """What goes wrong at the sizes of `sample_sizes`."""
    found: list[Finding] = []
    for sizes, value in _evaluators(facts):
        found += _Run(facts, sizes, value).findings()
    return found


def sample_sizes(plan: BufferPlan) -> list[dict[str, int]]:
    """Least, representative and greatest sizes, odd ones between, and mixtures of the ends."""
    ends = [(d.name, *_ends(d, plan.representative[d.name])) for d in plan.dynamic_symbols]
    samples = [
        dict(plan.representative),
        {name: low for name, low, _ in ends},
        {name: high for name, _, high in ends},
        {name: min(high, low + 16) for name, low, high in ends},
        {name: low + (high - low) // 3 for name, low, high in ends},
        {name: (low, high)[i % 2] for i, (name, low, high) in enumerate(ends)},
        {name: (high, low)[i % 2] for i, (name, low, high) in enumerate(ends)},
    ]
    return [s for i, s in enumerate(samples) if s not in samples[:i]]


def _ends(dim: Dim, typical: int) -> Range:
    low, high = dim.bounds
    return low or 0, UNBOUNDED_SAMPLE_FACTOR * max(1, typical) + 1 if high is None else high


def _evaluators(facts: Facts) -> Iterator[tuple[dict[str, int], Value]]:
    """Each sample with a function that gives any dim of the plan its value there."""
    dims = list(dict.fromkeys(d for d in _dims(facts) if isinstance(d, Dim)))
    measured = measured_in(dims)
    names = [*(d.name for d in facts.plan.dynamic_symbols), *(s.name for s in measured)]
    compiled = compile_dims(dims, names)
    for known in sample_sizes(facts.plan):
        for sizes in _measures(measured, known):
            values = dict(zip(dims, compiled(*(sizes[n] for n in names))))
            yield sizes, _evaluator(values)


def _measures(measured: Sequence[Symbol], known: dict[str, int]) -> Iterator[dict[str, int]]:
    """`known`, with measured sizes at their bounds, at a third of them, at 0, and mixed."""
    most = {s.name: evaluate(0 if s.max is None else s.max, known) for s in measured}
    samples = [
        {**known, **most},
        {**known, **{name: size // 3 for name, size in most.items()}},
        {**known, **dict.fromkeys(most, 0)},
        {**known, **{name: size * (i % 2) for i, (name, size) in enumerate(most.items())}},
    ]
    yield from (s for i, s in enumerate(samples) if s not in samples[:i])


def _evaluator(values: Mapping[Dim, int]) -> Value:
    if not values:
        return lambda dim: dim  # pyright: ignore[reportReturnType]
    return lambda dim: values[dim] if isinstance(dim, Dim) else dim


def _dims(facts: Facts) -> Iterator[DimLike]:
    plan = facts.plan
    yield from (plan.arena_formula, plan.weight_formula)
    for slot in plan.assignments.values():
        yield from (slot.offset, slot.size)
    for view in plan.views.values():
        yield from (*view.layout.dims, *view.layout.strides, view.layout.offset)
    for node in facts.nodes:
        yield from (d for shape in node.shapes for d in shape.dims)


class _Run:
    """One walk through the schedule at one set of sizes."""

    def __init__(self, facts: Facts, sizes: Mapping[str, int], value: Value) -> None:
        self.facts, self.plan, self.value = facts, facts.plan, value
        expected = facts.plan.representative
        self.is_representative = all(sizes[name] == size for name, size in expected.items())
        at = ", ".join(f"{k}={v}" for k, v in sizes.items())
        self.where = f" where {at}" if at else ""
        self.shadows = {space: Shadow() for space in Space}
        self.slots = {root: self._placed(slot) for root, slot in self.plan.assignments.items()}
        self.extents = {n: self._touched(n) for n in facts.nodes if not n.has_items}

    def findings(self) -> Iterator[Finding]:
        if any(self.value(d) < 0 for n in self.facts.nodes for s in n.shapes for d in s.dims):
            return
        yield from self._slots()
        yield from self._start()
        for step, kernel in enumerate(self.plan.schedule):
            for operand in dict.fromkeys(kernel.inputs):
                yield from self._read(step, kernel, operand)
            for result in self.facts.written(kernel):
                yield from self._write(step, kernel, result)
        for output in dict.fromkeys(self.facts.outputs):
            yield from self._deliver(output)

    # -- where things are ----------------------------------------------------------------------

    def _placed(self, slot: Slot) -> Range:
        start = self.value(slot.offset)
        return start, start + self.value(slot.size)

    def _touched(self, node: Node) -> Range:
        """The bytes from the first to behind the last element of a value, in its space."""
        view, itemsize = self.plan.views.get(node), node.shape.dtype.itemsize
        if view is None:
            start, count = self.slots[node][0], math.prod(map(self.value, node.shape.dims))
            return start, start + count * itemsize
        start, (low, high) = self.slots[view.root][0], _extent(view.layout, self.value)
        return start + low * itemsize, start + high * itemsize

    def _shadow(self, node: Node) -> Shadow:
        return self.shadows[self.plan.assignments[self.plan.root(node)].space]

    def _fault(self, kind: Fault, node: Node, message: str) -> Finding:
        return finding(kind, node, message + self.where)

    def _slots(self) -> Iterator[Finding]:
        """Slots are aligned, inside their space, and hold the elements assigned to them."""
        plan, limits = self.plan, self._limits()
        yield from self._totals(limits)
        for node, slot in plan.assignments.items():
            start, end = self.slots[node]
            limit = limits.get(slot.space, end)
            if not 0 <= start <= end <= limit:
                message = f"bytes {start}..{end} are not inside the {limit} of {slot.space.value}"
                yield self._fault(Fault.OUT_OF_ARENA, node, message)
            if start % plan.alignment:
                message = f"offset {start} is not a multiple of {plan.alignment}"
                yield self._fault(Fault.BAD_SLOT, node, message)
        for node in (n for n in self.facts.nodes if not n.has_items):
            start, end = self.slots[plan.root(node)]
            low, high = self.extents[node]
            if low < high and not start <= low < high <= end:
                message = f"elements at {low}..{high} are not inside their slot {start}..{end}"
                yield self._fault(Fault.BAD_SLOT, node, message)

    def _limits(self) -> dict[Space, int]:
        """The bytes of each space."""
        arena, weights = map(self.value, (self.plan.arena_formula, self.plan.weight_formula))
        if self.is_representative:
            arena, weights = min(arena, self.plan.arena_bytes), min(weights, self.plan.weight_bytes)
        return {Space.ARENA: arena, Space.WEIGHTS: weights}

    def _totals(self, limits: Mapping[Space, int]) -> Iterator[Finding]:
        """A space has no less bytes than none, and not many more than its slots, whose sizes may be
        bounds of what is measured in a call."""
        most = sum(end - start for start, end in self.slots.values()) + MOST_PADDING_BYTES
        for space, size in limits.items():
            if not 0 <= size <= most:
                message = (
                    f"the {space.value} has {size} bytes{self.where}, its slots {most} at most"
                )
                yield Finding(Fault.OUT_OF_ARENA, self.facts.name, message + self.where)

    # -- the walk ------------------------------------------------------------------------------

    def _start(self) -> Iterator[Finding]:
        """Leaves are there before the first step."""
        for node in (n for n in self.facts.nodes if n.is_leaf):
            yield from self._claim(-1, node, self.slots[node], ())

    def _read(self, step: int, kernel: Node, operand: Node) -> Iterator[Finding]:
        made = self.facts.ready.get(operand)
        low, high = self.extents[operand]
        if made is None or made >= step or low >= high:
            return
        if not self._shadow(operand).is_owned(low, high, self.plan.root(operand)):
            message = f"reads {operand.label} at step {step}, after it was overwritten"
            yield self._fault(Fault.READ_AFTER_OVERWRITE, kernel, message)

    def _write(self, step: int, kernel: Node, result: Node) -> Iterator[Finding]:
        over = self.plan.in_place.get(kernel)
        exempt = () if over is None else (self.plan.root(over),)
        own = result not in self.plan.views
        where = self.slots[result] if own else self.extents[result]
        yield from self._claim(step, result, where, exempt)

    def _claim(
        self, step: int, node: Node, where: Range, exempt: Sequence[Node]
    ) -> Iterator[Finding]:
        """Make the bytes the node's; whoever had them must be dead, or given up in place."""
        shadow, root = self._shadow(node), self.plan.root(node)
        for victim in shadow.owners(*where):
            if victim is not root and victim not in exempt and self._lives(victim, step):
                message = f"is written at step {step} over {victim.label}, which is still needed"
                yield self._fault(Fault.LIVE_OVERLAP, node, message)
        shadow.write(*where, root)

    def _lives(self, root: Node, step: int) -> bool:
        is_weight = self.plan.assignments[root].space is Space.WEIGHTS
        return is_weight or self.facts.last_use.get(root, step) >= step

    def _deliver(self, output: Node) -> Iterator[Finding]:
        low, high = self.extents[output]
        if output not in self.facts.ready or low >= high:
            return
        if not self._shadow(output).is_owned(low, high, self.plan.root(output)):
            yield self._fault(Fault.OUTPUT_CLOBBERED, output, "is overwritten before the end")


def _extent(layout: Layout, value: Value) -> Range:
    """The lowest and one past the highest element a layout touches; empty where it has none."""
    low = high = value(layout.offset)
    for d, s in zip(layout.dims, layout.strides):
        size, stride = value(d), value(s)
        if size == 0:
            return 0, 0
        low, high = low + min(0, (size - 1) * stride), high + max(0, (size - 1) * stride)
    return low, high + 1
