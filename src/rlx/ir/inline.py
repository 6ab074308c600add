"""A body put where the node stood that holds it."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.mir import Graph, Node


def inline(graph: Graph, body: Graph, operands: Sequence[Node]) -> list[Node]:
    """The outputs of `body` with its inputs bound to `operands` by position, as nodes of `graph`.

    Each node keeps the origins that it had in the body.
    """
    mapped = dict(zip(body.inputs, operands, strict=True))
    for node in body.order():
        if node not in mapped:
            made = graph.copy(node, tuple(mapped[i] for i in node.inputs))
            graph.add_origins(made, node.origins)
            mapped[node] = made
    return [mapped[o] for o in body.outputs]
