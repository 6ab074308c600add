"""The verifier's input: the plan's claims, and liveness derived from graph and schedule alone."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlx.core.dim import Symbol
from rlx.core.extent import measured_in
from rlx.ir.lir import BufferPlan, Phase
from rlx.ir.mir import Graph, Node


class Fault(enum.Enum):
    """What can be wrong with a plan."""

    LIVE_OVERLAP = "live-overlap"
    READ_AFTER_OVERWRITE = "read-after-overwrite"
    OUTPUT_CLOBBERED = "output-clobbered"
    OUT_OF_ARENA = "out-of-arena"
    ORDER_VIOLATION = "order-violation"
    DUPLICATE_SCHEDULE = "duplicate-schedule"
    OUTPUT_NOT_SCHEDULED = "output-not-scheduled"
    BAD_SLOT = "bad-slot"
    BAD_VIEW = "bad-view"
    BAD_IN_PLACE = "bad-in-place"
    PHASE_VIOLATION = "phase-violation"
    BAD_MANIFEST = "bad-manifest"
    BAD_SIZES = "bad-sizes"
    UNPROVEN = "unproven"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, the node it is about, and what is wrong."""

    kind: Fault
    node: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.node}: {self.message}"


def finding(kind: Fault, node: Node, message: str) -> Finding:
    return Finding(kind, node.label, message)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the plan claims, and what follows from the graph alone."""

    name: str
    plan: BufferPlan
    nodes: Sequence[Node]
    """All the graph needs, and all items of it, inputs before users."""
    outputs: tuple[Node, ...]
    step: Mapping[Node, int]
    """Kernel → its first place in the schedule."""
    ready: Mapping[Node, int]
    """Value → the step after which it is whole; values never made are not here."""
    items: Mapping[Node, Sequence[Node]]
    last_use: Mapping[Node, int]
    """Buffer → the last step at which it must not change."""
    given: tuple[Symbol, ...] = ()
    """In a body, the sizes that were measured around it."""

    @classmethod
    def of(cls, graph: Graph, plan: BufferPlan) -> Facts:
        needed = set(graph.order())
        made = {n for n in graph.nodes if n.op == "item" and n.inputs[0] in needed}
        nodes = [n for n in graph.nodes if n in needed or n in made]
        step: dict[Node, int] = {}
        for i, kernel in enumerate(plan.schedule):
            step.setdefault(kernel, i)
        items: dict[Node, list[Node]] = {}
        for node in nodes:
            if node.op == "item":
                items.setdefault(node.inputs[0], []).append(node)
        last = _last_uses(plan, graph, items)
        inputs = (d for leaf in graph.inputs for d in leaf.shape.dims)
        given = (*measured_in(inputs), *graph.extents.free.values())
        ready = _ready(nodes, step, plan)
        return cls(graph.name, plan, nodes, graph.outputs, step, ready, items, last, given)

    def written(self, kernel: Node) -> Sequence[Node]:
        """The values a kernel makes."""
        return _written(kernel, self.items)


def _ready(nodes: Sequence[Node], step: Mapping[Node, int], plan: BufferPlan) -> dict[Node, int]:
    """When each value is whole: leaves at once, kernels when run, the rest with their operands."""
    ready: dict[Node, int] = {}
    for node in nodes:
        if node.is_leaf:
            ready[node] = -1
        elif node in step:
            ready[node] = step[node]
        elif _follows_operands(node, plan) and all(i in ready for i in node.inputs):
            ready[node] = max(ready[i] for i in node.inputs)
    return ready


def _follows_operands(node: Node, plan: BufferPlan) -> bool:
    """Is the value there without a kernel: an item, a view, or a concat of slices written?"""
    is_assembled = node.op == "concat" and all(_is_slice(plan, node, i) for i in node.inputs)
    return node.op == "item" or node in plan.views or is_assembled


def _is_slice(plan: BufferPlan, concat: Node, operand: Node) -> bool:
    view = plan.views.get(operand)
    return view is not None and view.root is plan.root(concat)


def _last_uses(
    plan: BufferPlan, graph: Graph, items: Mapping[Node, Sequence[Node]]
) -> dict[Node, int]:
    """Inputs, outputs and what the Epilogue begins with must last, as it may run again; all else
    until its last write or read."""
    last: dict[Node, int] = {}
    roots = [[plan.root(v) for v in _written(kernel, items)] for kernel in plan.schedule]
    is_late = [plan.phases.get(kernel) is Phase.EPILOGUE for kernel in plan.schedule]
    early = {root for late, written in zip(is_late, roots) if not late for root in written}
    kept = {plan.root(node) for node in (*graph.outputs, *graph.inputs)}
    for i, (kernel, late, written) in enumerate(zip(plan.schedule, is_late, roots)):
        read = [plan.root(operand) for operand in kernel.inputs]
        last.update(dict.fromkeys((*read, *written), i))
        kept.update(root for root in read if late and (root in early or root.is_leaf))
    return last | dict.fromkeys(kept, len(plan.schedule))


def _written(kernel: Node, items: Mapping[Node, Sequence[Node]]) -> Sequence[Node]:
    return items.get(kernel, ()) if kernel.has_items else (kernel,)
