"""What a graph requires of the sizes of its inputs, beside the ranges of its named dims: what it
states itself, that every result has a size, and that windows fit. Bodies of control flow may not
run, so theirs do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rlx.core.dim import Dim, DimLike, substitute, symbols_of
from rlx.core.public_calls import public_class
from rlx.core.requirements import Requirement, may_be_negative, noting
from rlx.core.shape import OutOfRange
from rlx.ops.op import Kind

if TYPE_CHECKING:
    from rlx.ir.mir import Graph, Node


@public_class
class RequiredSizes:
    """What a graph states of the sizes that calls may have."""

    _required: tuple[Requirement, ...] = ()

    def require(self, size: DimLike, why: str) -> None:
        """Refuse calls at whose sizes `size` is negative: what the graph computes is not meant for
        them, though it could be computed."""
        if not isinstance(size, Dim):
            if size < 0:
                raise OutOfRange(why)
        elif may_be_negative(size):
            self._required = (*self._required, Requirement(size, why))

    @property
    def required(self) -> tuple[Requirement, ...]:
        """What was stated by `require`, where the ranges of named dims leave it open."""
        return self._required

    def _require_bound(self, sizes: Mapping[str, DimLike]) -> None:
        """State the same with sizes in the place of named dims."""
        before, self._required = self._required, ()
        for each in before:
            self.require(substitute(each.size, sizes), each.why)


def size_requirements(graph: Graph) -> tuple[Requirement, ...]:
    """What the graph states; then in its order, each size once, with the first node that has it."""
    known = _names(d for n in (*graph.given, *graph.params) for d in n.shape.dims)
    found: dict[object, Requirement] = {each.size: each for each in graph.required}
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
