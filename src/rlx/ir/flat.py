"""Graphs as flat records, however deep they are: what `pickle`, `copy` and `deepcopy` carry.

Ops are named: what reads a record looks them up, and builds, infers and verifies each node as a
front end would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.core.errors import Error
from rlx.ir import block
from rlx.ir.mir import Graph, Node, Origin


@dataclass(frozen=True, slots=True)
class FlatNode:
    """A node whose operands are numbers."""

    op: str
    inputs: tuple[int, ...]
    attrs: Mapping[str, Any]
    origins: tuple[Origin, ...]


@dataclass(frozen=True, slots=True)
class FlatGraph:
    """A graph whose nodes are numbers."""

    name: str
    nodes: tuple[FlatNode, ...]
    outputs: Sequence[int]
    updates: Sequence[int]
    rest: Mapping[str, Any]


_REST = ("_output_names", "_required", "_sealed", "traces_lines")


def flat(graph: Graph) -> FlatGraph:
    """The record of a graph."""
    return FlatGraph(
        graph.name,
        tuple(map(_flat_node, graph.nodes)),
        [node.index for node in graph.outputs],
        [node.index for node in graph.updates],
        {name: getattr(graph, name) for name in _REST} | {"prefix": graph.extents.prefix},
    )


def _flat_node(node: Node) -> FlatNode:
    if block.find(node.op) is not node.decl:
        raise Error(
            f"{node.label}: {node.op!r} is no op of the table, so no other graph can be given it. "
            "Register it, or copy the graph with graph.rebuild()."
        )
    inputs = tuple(operand.index for operand in node.inputs)
    return FlatNode(node.op, inputs, dict(node.attrs), node.origins)


def graph_of(record: FlatGraph) -> Graph:
    """The graph that was recorded."""
    graph = Graph(record.name)
    graph.traces_lines, graph.extents.prefix = False, record.rest["prefix"]
    nodes: list[Node] = []
    for each in record.nodes:
        decl = block.find(each.op)
        nodes.append(graph.node(decl or each.op, [nodes[i] for i in each.inputs], each.attrs))
        graph.add_origins(nodes[-1], each.origins)
    parts = {
        "_outputs": tuple(nodes[i] for i in record.outputs),
        "_updates": tuple(nodes[i] for i in record.updates),
        **{name: record.rest[name] for name in _REST},
    }
    for name, value in parts.items():
        setattr(graph, name, value)
    return graph


def node_of(graph: Graph, index: int) -> Node:
    """A node by its number."""
    return graph.nodes[index]
