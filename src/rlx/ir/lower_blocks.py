"""HIR → MIR lowering: each block is decomposed into ops by its policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.ir.block import Block, FusionPolicy, results_of
from rlx.ir.mir import Graph, Node, Origin
from rlx.ir.verify import verify


def lower(graph: Graph, policy: FusionPolicy) -> Graph:
    """The graph without blocks. Each op made for a block carries its label and its origins."""
    verify(graph)
    new = graph.successor()
    made: dict[Node, Any] = {}
    for node in graph.order():
        operands = [made[i] for i in node.inputs]
        is_block = isinstance(node.decl, Block)
        made[node] = (_inlined if is_block else _copied)(new, node, operands, policy)
    new.set_results([made[o] for o in graph.results], graph)
    return new


def _inlined(new: Graph, node: Node, operands: Sequence[Node], policy: FusionPolicy) -> Any:
    """The ops of a block: one node, or a tuple of them where it has several results."""
    assert isinstance(node.decl, Block)
    label = Origin("block", node.decl.label(node.attrs))
    with new.scope(*node.origins, label):
        made = results_of(node.decl.decomposition(policy)(*operands, **node.attrs))
    return made if node.has_items else made[0]


def _copied(new: Graph, node: Node, operands: Sequence[Any], policy: FusionPolicy) -> Node:
    if node.op == "item" and isinstance(operands[0], tuple):
        return operands[0][node.attrs["index"]]
    attrs = {k: lower(v, policy) if isinstance(v, Graph) else v for k, v in node.attrs.items()}
    made = new.node(node.decl, operands, attrs)
    new.add_origins(made, node.origins)
    return made
