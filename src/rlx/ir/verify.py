"""The verifier: runs at every level boundary, in every build.

Nodes are checked when they are made; this checks them again from scratch, so that a pass that
breaks a graph is caught where it did.
"""

from __future__ import annotations

from rlx.errors import GraphError
from rlx.ir.mir import Graph, Node


def verify(graph: Graph) -> None:
    """Raise a GraphError naming the first node that is wrong."""
    seen: set[Node] = set()
    for node in graph.order():
        if node.graph is not graph:
            raise GraphError(f"{node.label} belongs to another graph, {node.graph.name!r}")
        if any(i not in seen for i in node.inputs):
            raise GraphError(f"{node.label} is used before its inputs: the graph has a cycle")
        seen.add(node)
        verify_node(node)
    if not graph.outputs:
        raise GraphError(f"{graph.name} has no outputs. Call set_outputs.")
    if any(o not in seen for o in graph.outputs):
        raise GraphError(f"{graph.name}: an output is not in the graph")


def verify_node(node: Node) -> None:
    """The attributes are canonical and the shapes are those the rule gives."""
    try:
        shapes = node.decl.operand_shapes(node.inputs)
        attrs = node.decl.canonical(node.attrs, shapes)
        results = node.decl.infer(shapes, attrs)
    except GraphError as error:
        raise GraphError(f"{node.label}: {error}") from None
    if attrs != dict(node.attrs):
        raise GraphError(f"{node.label}: attributes are not canonical")
    if results != node.shapes:
        raise GraphError(f"{node.label}: has shape {node.shape}, the rule gives {results}")
