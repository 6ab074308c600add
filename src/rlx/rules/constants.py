"""Constants: what is known when the graph is built is computed then, by the op's own reference."""

from __future__ import annotations

from typing import Any

from rlx.core.dim import is_static
from rlx.core.errors import Error
from rlx.ir.interpret import evaluate_node
from rlx.ir.mir import Node
from rlx.ops.op import Kind
from rlx.rules.engine import rule

MAX_BYTES = 1 << 20
"""A folded constant is no larger than this, or than what it is made of."""
MAX_FLOPS = 10**8
"""A compile does not take long over what a run does once."""


def _reads_constants(node: Node) -> bool:
    source = node.inputs[0] if node.op == "item" else node
    return bool(source.inputs) and all(i.op == "constant" for i in source.inputs)


@rule(when=_reads_constants)
def fold_constants(node: Node) -> Any:
    """An op of constants is a constant, of exactly the dtype the op gives."""
    source = node.inputs[0] if node.op == "item" else node
    if source.decl.kind is Kind.CONTROL or source.decl.syncs_host or node.has_items:
        return None
    return node.graph.constant(made) if (made := _value(node, source)) is not None else None


def _value(node: Node, source: Node) -> Any:
    """The result, where it is small enough; an error of the data is left for the run to report."""
    if not _is_affordable(source):
        return None
    try:
        made = evaluate_node(source, [i.attrs["value"].array for i in source.inputs], {})
    except Error:
        return None
    return made[node.attrs["index"]] if node is not source else made


def _is_affordable(source: Node) -> bool:
    if not all(s.is_static for s in source.shapes):
        return False
    shapes = [i.shape for i in source.inputs]
    flops = source.decl.flops(shapes, source.shapes, source.attrs)
    limit = max(MAX_BYTES, sum(s.size_bytes for s in shapes))
    made = sum(int(s.size_bytes) for s in source.shapes)  # pyright: ignore[reportArgumentType]
    return made <= limit and is_static(flops) and flops <= MAX_FLOPS
