"""The fingerprint of a plan: a hash that is equal on every machine and run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from rlx._version import __version__
from rlx.core.atoms import exact_text
from rlx.core.dim import DimLike
from rlx.core.errors import GraphError
from rlx.ir.lir import BufferPlan, LirModule
from rlx.ir.mir import Graph, Node
from rlx.ir.plan_nodes import planned_nodes


def fingerprint(lir: LirModule) -> str:
    """A hash of ops, attributes, constants, shapes, plan, options, target and version, in hex.

    Nodes are numbered by their place in the graph's order.
    """
    h = hashlib.blake2b(digest_size=16)
    graph = lir.mir.graph
    for part in (__version__, graph.name, graph.digest(), lir.target.digest(), lir.options):
        h.update(repr(part).encode())
    number = numbers(graph)
    for line in plan_lines(lir.plan, number):
        h.update(line.encode() + b"\n")
    h.update(repr(_by_number(lir.split, number)).encode())
    return h.hexdigest()


def are_same_plans(a: BufferPlan, b: BufferPlan) -> bool:
    """Do two plans say the same of the same nodes, or of those of equal graphs?"""
    ours, theirs = _graph_of(a), _graph_of(b)
    if ours is theirs:
        return all(getattr(a, f.name) == getattr(b, f.name) for f in fields(a) if f.compare)
    try:
        return ours == theirs and _lines(a, ours) == _lines(b, theirs)
    except GraphError:  # of nodes that the graph does not compute
        return False


def are_same_modules(a: LirModule, b: LirModule) -> bool:
    """Have two modules one fingerprint?"""
    try:
        return a.fingerprint == b.fingerprint
    except GraphError:
        return False


def _graph_of(plan: BufferPlan) -> Graph | None:
    nodes = (*plan.schedule[:1], *plan.io.outputs[:1], *plan.io.inputs[:1])
    return next((n.graph if isinstance(n, Node) else n[1].graph for n in nodes), None)


def _lines(plan: BufferPlan, graph: Graph | None) -> list[str]:
    return [] if graph is None else list(plan_lines(plan, numbers(graph)))


class _Numbers(dict[Node, int]):
    """Node → its place among the planned nodes."""

    def __missing__(self, node: Any) -> int:
        shown = node.label if isinstance(node, Node) else repr(node)
        raise GraphError(f"the plan speaks of {shown}, which its graph does not compute")


def numbers(graph: Graph) -> Mapping[Node, int]:
    """Node → its place among the planned nodes; other nodes are an Error."""
    return _Numbers({node: i for i, node in enumerate(planned_nodes(graph))})


def plan_lines(plan: BufferPlan, number: Mapping[Node, int]) -> Iterator[str]:
    """Everything in a plan, as text, in an order that follows from structure alone."""
    yield f"arena {_dims([plan.arena_formula, plan.arena_bytes, plan.weight_bytes])}"
    yield f"alignment {plan.alignment} at {sorted(plan.representative.items())}"
    yield f"dims {_dims(plan.dynamic_symbols)}"
    yield f"schedule {[number[k] for k in plan.schedule]}"
    yield f"in place {sorted((number[k], number[v]) for k, v in plan.in_place.items())}"
    for node, rows in _by_number(plan.written, number):
        yield f"written {node} {_dims(rows.dims)} {_dims([*rows.strides, rows.offset])}"
    for node, slot in _by_number(plan.assignments, number):
        where = _dims([slot.offset, slot.size])
        yield f"slot {node} {where} {slot.space.value} {slot.is_external}"
    for node, view in _by_number(plan.views, number):
        layout = view.layout
        dims, strides = _dims(layout.dims), _dims([*layout.strides, layout.offset])
        yield f"view {node} of {number[view.root]} {dims} {strides}"
    yield f"phases {[(node, phase.value) for node, phase in _by_number(plan.phases, number)]}"
    for leaves in (plan.io.inputs, plan.io.params, plan.io.states):
        yield f"leaves {[(name, number[node]) for name, node in leaves]}"
    yield f"outputs {[number[node] for node in plan.io.outputs]}"
    if plan.io.at_end is not None:
        yield f"at end {plan.io.at_end}"


def _dims(dims: Iterable[DimLike]) -> str:
    return f"[{', '.join(map(exact_text, dims))}]"


def _by_number(table: Mapping[Node, Any], number: Mapping[Node, int]) -> list[tuple[int, Any]]:
    return sorted(((number[n], value) for n, value in table.items()), key=lambda pair: pair[0])
