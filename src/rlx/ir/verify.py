"""The verifier: runs at every level boundary, in every build.

Nodes are checked when they are made; this checks them again from scratch, so that a pass that
breaks a graph is caught where it did.
"""

from __future__ import annotations

from rlx.core.errors import GraphError
from rlx.core.extent import measured_in
from rlx.ir.extents import measured_by, symbols_used
from rlx.ir.mir import Graph, Node
from rlx.ir.states import verify_states


def verify(graph: Graph) -> None:
    """Raise a GraphError naming the first node that is wrong."""
    seen: set[Node] = set()
    sizes: dict[str, Node] = {}
    for node in graph.order():
        if node.graph is not graph:
            raise GraphError(
                f"{node.label} belongs to another graph, {node.graph.name!r}. "
                "Use nodes of one graph"
            )
        if any(i not in seen for i in node.inputs):
            raise GraphError(f"{node.label} is used before its inputs: the graph has a cycle")
        seen.add(node)
        verify_node(node)
        _verify_sizes(node, sizes)
    if not graph.outputs:
        raise GraphError(f"{graph.name} has no outputs. Call set_outputs.")
    if any(o not in seen for o in graph.outputs):
        raise GraphError(f"{graph.name}: an output is not in the graph")
    verify_states(graph, graph.order())


def _verify_sizes(node: Node, known: dict[str, Node]) -> None:
    """A measured size has one node that measures it, before its users, and one bound."""
    for symbol in symbols_used(node):
        name = symbol.name
        if node.is_leaf:
            raise GraphError(f"{node.label}: the size {name} is one that nodes measure. Use a Dim.")
        if symbol in measured_by(node):
            if known.setdefault(name, node) is not node:
                raise GraphError(f"{node.label}: {known[name].label} measures {name}, too")
        elif name not in known:
            raise GraphError(f"{node.label} uses the size {name}, which nothing before it measures")
        if symbol not in measured_in(d for s in known[name].shapes for d in s.dims):
            raise GraphError(f"{node.label}: {known[name].label} measures {name} in another range")


def verify_node(node: Node) -> None:
    """The attributes are canonical and the shapes are those the rule gives."""
    try:
        shapes = node.decl.operand_shapes(node.inputs)
        attrs = node.decl.canonical(node.attrs, shapes)
        if attrs != dict(node.attrs):
            raise GraphError("attributes are not canonical")
        results = node.decl.inferred(shapes, attrs, node.attr_key)
    except GraphError as error:
        raise GraphError(f"{node.label}: {error}") from None
    if results != node.shapes:
        raise GraphError(f"{node.label}: has shape {node.shape}, the rule gives {results}")
