"""The fingerprint of a plan: equal on every machine and run for equal results."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rlx._version import __version__
from rlx.ir.lir import BufferPlan
from rlx.ir.mir import Graph, Node
from rlx.plan.nodes import planned_nodes

if TYPE_CHECKING:
    from rlx.cost.target import Target


def fingerprint(graph: Graph, plan: BufferPlan, target: Target, options: Any = None) -> str:
    """A hash of ops, attributes, constants, shapes, plan, options, target and version, in hex.

    Nodes are numbered by their place in the graph's order. `options` is what the compile was
    asked for: a value with a `text()`, or None.
    """
    h = hashlib.blake2b(digest_size=16)
    wanted = "" if options is None else options.text()
    for part in (__version__, graph.name, graph.digest(), target.digest(), wanted):
        h.update(part.encode() + b"\0")
    for line in plan_lines(graph, plan):
        h.update(line.encode() + b"\n")
    return h.hexdigest()


def plan_lines(graph: Graph, plan: BufferPlan) -> Iterator[str]:
    """Everything in a plan, as text, in an order that follows from structure alone."""
    number = {node: i for i, node in enumerate(planned_nodes(graph))}
    yield f"arena {plan.arena_formula} weights {plan.weight_bytes} alignment {plan.alignment}"
    yield f"dims {[(str(d), d.bounds) for d in plan.dynamic_symbols]}"
    yield f"schedule {[number[k] for k in plan.schedule]}"
    yield f"in place {sorted((number[k], number[v]) for k, v in plan.in_place.items())}"
    for node, slot in _by_number(plan.assignments, number):
        yield f"slot {node} {slot.offset} {slot.size} {slot.space.value} {slot.is_external}"
    for node, view in _by_number(plan.views, number):
        layout = view.layout
        dims, strides = ",".join(map(str, layout.dims)), ",".join(map(str, layout.strides))
        yield f"view {node} of {number[view.root]} [{dims}] [{strides}] {layout.offset}"
    yield f"phases {[phase.value for _, phase in _by_number(plan.phases, number)]}"


def _by_number(table: Mapping[Node, Any], number: Mapping[Node, int]) -> list[tuple[int, Any]]:
    return sorted(((number[n], value) for n, value in table.items()), key=lambda pair: pair[0])
