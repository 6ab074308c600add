"""What a graph requires of the sizes of its inputs, beside the ranges of its named dims: that every
result has a size, and that windows fit. Bodies of control flow may not run, so theirs do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rlx.core.dim import DimLike, symbols_of
from rlx.core.requirements import Requirement, may_be_negative, noting
from rlx.ops.op import Kind

if TYPE_CHECKING:
    from rlx.ir.mir import Graph, Node


def size_requirements(graph: Graph) -> tuple[Requirement, ...]:
    """In the graph's order, each size once, with the first node that has it."""
    known = _names(d for n in (*graph.given, *graph.params) for d in n.shape.dims)
    found: dict[object, Requirement] = {}
    seen: set[object] = set()
    for node in _nodes(graph):
        key = node.op, node.attr_key, tuple(n.shapes for n in node.inputs)
        if key not in seen:
            seen.add(key)
            for each in _own(node):
                found.setdefault(each.size, each)
    return tuple(r for r in found.values() if known.issuperset(_names([r.size])))


def _names(dims: Iterable[DimLike]) -> set[str]:
    return {s.name for s in symbols_of(dims)}


def _nodes(graph: Graph) -> Iterator[Node]:
    """Those whose sizes are not all known; of regions, those inside."""
    for node in graph.order():
        if node.decl.kind is Kind.REGION:
            yield from _nodes(node.attrs["body"])
        elif node.decl.kind is not Kind.LEAF and not _is_static(node):
            yield node


def _is_static(node: Node) -> bool:
    return all(s.is_static for n in (node, *node.inputs) for s in n.shapes)


def _own(node: Node) -> Iterator[Requirement]:
    with noting() as noted:
        node.decl.infer(node.decl.operand_shapes(node.inputs), node.attrs)
    for each in noted:
        yield Requirement(each.size, f"{node.label}: {each.why}")
    for shape in node.shapes:
        for axis, dim in enumerate(shape.dims):
            if may_be_negative(dim):
                why = f"{node.label}: axis {axis} of its result would have {dim} elements"
                yield Requirement(dim, why)  # pyright: ignore[reportArgumentType]
