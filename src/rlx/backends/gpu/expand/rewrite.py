"""SIMT programs rebuilt node by node, some of them replaced."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from rlx.backends.gpu.simt.builder import Builder
from rlx.backends.gpu.simt.nodes import Node, Region, Value
from rlx.backends.gpu.simt.program import Program
from rlx.backends.gpu.simt.values import Var

Rule = Callable[[Builder, Node, list[Var], int], Sequence[Var] | None]
"""The results of a node by other ones, made with the builder, or None to leave it as it is. The
last argument is how many loops are around it."""
Kinds = Collection[type[Node]]


def rewritten(program: Program, kinds: Kinds, rule: Rule) -> Program:
    """The program with every node that the rule replaces replaced; it is asked about nodes of
    these kinds."""
    return _Rewriter(program, kinds, rule).program()


class _Rewriter:
    """A new program under construction beside the old one. What nothing changes in is part of
    both: values and nodes have no owner."""

    def __init__(self, program: Program, kinds: Kinds, rule: Rule) -> None:
        self.b = Builder.empty(program)
        self.old, self.kinds, self.rule = program, kinds, rule
        self.new: dict[Value, Value] = {}
        """Of values that are others now."""
        self.loops = 0

    def program(self) -> Program:
        self._nodes(self.old.body)
        return self.b.program()

    def _nodes(self, region: Region) -> None:
        for node in region.nodes:
            values = self._replaced(node) if type(node) in self.kinds else None
            if values is None:
                values = self._kept(node)
            if values != node.results:
                self.new.update(zip(node.results, values, strict=True))

    def _replaced(self, node: Node) -> tuple[Value, ...] | None:
        args = [Var(self.b, a) for a in self._now(node.args)]
        made = self.rule(self.b, node, args, self.loops)
        return None if made is None else tuple(v.value for v in made)

    def _kept(self, node: Node) -> tuple[Value, ...]:
        args, regions = self._now(node.args), node.regions
        if regions:
            regions = tuple(map(self._region, regions))
        if args != node.args or regions != node.regions:
            node = replace(node, args=args, regions=regions)
        return self.b.interned(node).results

    def _now(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(map(self.new.get, values, values))

    def _region(self, region: Region) -> Region:
        is_loop = len(region.params) > 0
        self.loops += is_loop
        self.b.open(region.params)
        self._nodes(region)
        self.loops -= is_loop
        made = self.b.close(self._now(region.yields))
        is_same = made.nodes == region.nodes and made.yields == region.yields
        return region if is_same else made
