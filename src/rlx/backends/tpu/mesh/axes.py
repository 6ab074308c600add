"""The logical axes of a graph: axes of values that are split together, or not at all.

Heads, the hidden units of an MLP, the words of a vocabulary, the rows of a batch: each is one class
of places (node, axis) that ops tie to each other, found by union and find over the whole graph,
whatever names the model has for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rlx.backends.tpu.mesh.facts import Block, Columns, Place, Summed, Tie
from rlx.backends.tpu.mesh.rules import facts_of
from rlx.core.dim import Dim, DimLike, evaluate, symbols_of
from rlx.ir.mir import Graph, Node


@dataclass(slots=True)
class LogicalAxis:
    """A class of places, and what is known of it."""

    places: list[Place] = field(default_factory=list["Place"])
    units: list[DimLike] = field(default_factory=list["DimLike"])
    """What the number of parts must divide, beside the sizes of the places."""
    blocks: list[Block] = field(default_factory=list[Block])
    summed: list[Node] = field(default_factory=list[Node])
    """The nodes that reduce over it."""
    columns: list[Node] = field(default_factory=list[Node])
    """The products whose columns it is."""

    def absorb(self, other: LogicalAxis) -> None:
        """All that is known of another class, which is the same one."""
        self.places += other.places
        self.units += other.units
        self.blocks += other.blocks
        self.summed += other.summed
        self.columns += other.columns

    def indivisible(self, parts: int, sizes: Mapping[str, int]) -> DimLike | None:
        """A size that so many parts do not divide, or one that is not known; None where they divide
        all of them."""
        for unit in (*(v.shape.dims[a] for v, a in self.places), *self.units):
            if any(d.name not in sizes for d in symbols_of([unit])):
                return unit
            size = evaluate(unit, sizes) if isinstance(unit, Dim) else unit
            if size % parts:
                return size
        return None


class LogicalAxes:
    """The classes of a graph's places."""

    def __init__(self, graph: Graph) -> None:
        self._of: dict[Place, LogicalAxis] = {}
        self.nodes = graph.order()
        for node in self.nodes:
            if not node.has_items:
                for axis in range(node.shape.rank):
                    self._of[node, axis] = LogicalAxis([(node, axis)])
        for node in self.nodes:
            self._learn(node)

    def of(self, node: Node, axis: int) -> LogicalAxis:
        """The class of a place."""
        return self._of[node, axis]

    def __iter__(self) -> Iterable[LogicalAxis]:
        """Each class once, in the order of the graph."""
        return iter({id(a): a for a in self._of.values()}.values())

    def _learn(self, node: Node) -> None:
        for fact in facts_of(node):
            match fact:
                case Tie(a, b, units):
                    self._tie(a, b).units += units
                case Block(at):
                    self._of[at].blocks.append(fact)
                case Summed(at, by):
                    self._of[at].summed.append(by)
                case Columns(at, by):
                    self._of[at].columns.append(by)

    def _tie(self, a: Place, b: Place) -> LogicalAxis:
        """One class of two: the smaller one is renamed, so that all of it takes n log n steps."""
        first, second = self._of[a], self._of[b]
        if first is second:
            return first
        if len(first.places) < len(second.places):
            first, second = second, first
        first.absorb(second)
        for place in second.places:
            self._of[place] = first
        return first
