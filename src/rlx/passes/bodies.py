"""Nested graphs: passes run on branch and loop bodies as on the graph around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rlx.ir.mir import Graph, Node
from rlx.ops.op import Kind


def bodies_of(node: Node) -> list[Graph]:
    """The graphs that a node holds as attributes."""
    return [v for v in node.attrs.values() if isinstance(v, Graph)]


def nodes_within(graph: Graph) -> Iterator[Node]:
    """Every node the outputs need, and those of every graph held inside, at any depth."""
    graphs = [graph]
    for each in graphs:
        for node in each.order():
            yield node
            graphs += bodies_of(node)


def with_bodies(graph: Graph, one: Callable[[Graph], Graph]) -> Graph:
    """`one` applied to every body of control flow, innermost first, and then to the graph."""
    found = [graph]
    for each in found:
        found += [b for n in each.order() if n.decl.kind is Kind.CONTROL for b in bodies_of(n)]
    done: dict[int, Graph] = {}
    for each in reversed(found):
        if id(each) not in done:
            done[id(each)] = one(_replaced(each, done))
    return done[id(graph)]


def _replaced(graph: Graph, done: Mapping[int, Graph]) -> Graph:
    """The graph with the bodies that changed put in; itself where none did."""
    if not any(_changes(n, done) for n in graph.order()):
        return graph

    def make(new: Graph, node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if not _changes(node, done):
            return None
        return new.node(node.decl, inputs, {k: _swapped(v, done) for k, v in node.attrs.items()})

    return graph.rebuild(make)


def _changes(node: Node, done: Mapping[int, Graph]) -> bool:
    return node.decl.kind is Kind.CONTROL and any(
        done.get(id(b), b) is not b for b in bodies_of(node)
    )


def _swapped(value: Any, done: Mapping[int, Graph]) -> Any:
    return done.get(id(value), value) if isinstance(value, Graph) else value
