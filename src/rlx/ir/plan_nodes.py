"""The nodes of a plan: those the outputs need, and an item for every result."""

from __future__ import annotations

from rlx.core.dim import Dim, symbols_of
from rlx.core.extent import measured_in
from rlx.ir.mir import Graph, Node


def with_all_items(graph: Graph) -> Graph:
    """The graph with an item for every result, so that a kernel has somewhere to write it.

    What nothing needs is left out.
    """
    order = graph.order()
    if len(order) == len(graph) and not any(node.has_items for node in order):
        return graph
    return graph.rebuild(_with_items)


def _with_items(new: Graph, node: Node, inputs: tuple[Node, ...]) -> Node:
    made = new.copy(node, inputs)
    if made.has_items:
        for i in range(len(made.shapes)):
            new.add_origins(new.node("item", (made,), {"index": i}), node.origins)
    return made


def planned_nodes(graph: Graph) -> list[Node]:
    """`graph.order()`, and behind each node of several results the items that nothing reads."""
    order = graph.order()
    needed = set(order)
    spare: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "item" and node not in needed and node.inputs[0] in needed:
            spare.setdefault(node.inputs[0], []).append(node)
    if not spare:
        return order
    for items in spare.values():
        items.sort(key=lambda item: item.attrs["index"])
    return [n for node in order for n in (node, *spare.get(node, ()))]


def planned_symbols(graph: Graph) -> tuple[Dim, ...]:
    """The named dims that storage is a formula of, by name: those of values, and those that bound
    what is measured, such as capacities."""
    found = {d.name: d for d in graph.dynamic_symbols if not d.is_measured}
    dims = [d for n in graph.nodes for s in n.shapes for d in s.dims if isinstance(d, Dim)]
    bounds = [s.max for s in measured_in(dims) if isinstance(s.max, Dim)]
    found |= {d.name: d for d in symbols_of([*dict.fromkeys(dims), *bounds]) if not d.is_measured}
    return tuple(found[name] for name in sorted(found))


def items_of(nodes: list[Node]) -> dict[Node, list[Node]]:
    """Node of several results → its items."""
    items: dict[Node, list[Node]] = {}
    for node in nodes:
        if node.op == "item":
            items.setdefault(node.inputs[0], []).append(node)
    return items
