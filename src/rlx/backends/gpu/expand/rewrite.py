"""SIMT programs rebuilt node by node, some of them replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rlx.backends.gpu.simt.builder import Builder
from rlx.backends.gpu.simt.nodes import Node, Region, Value
from rlx.backends.gpu.simt.program import Program
from rlx.backends.gpu.simt.values import Var

Rule = Callable[[Builder, Node, list[Var], int], Sequence[Var] | None]
"""The results of a node by other ones, made with the builder, or None to leave it as it is. The
last argument is how many loops are around it."""


def rewritten(program: Program, rule: Rule) -> Program:
    """The program with every node that the rule replaces replaced."""
    return _Rewriter(program, rule).program()


class _Rewriter:
    """A new program under construction beside the old one."""

    def __init__(self, program: Program, rule: Rule) -> None:
        self.b = Builder.empty(program)
        self.old, self.rule = program, rule
        self.new: dict[Value, Value] = {s.value: s.value for s in program.scalars}
        self.loops = 0

    def program(self) -> Program:
        self._nodes(self.old.body)
        return self.b.program()

    def _nodes(self, region: Region) -> None:
        for node in region.nodes:
            args = [Var(self.b, self.new[a]) for a in node.args]
            made = self.rule(self.b, node, args, self.loops)
            values = self._copied(node, args) if made is None else [v.value for v in made]
            self.new.update(zip(node.results, values, strict=True))

    def _copied(self, node: Node, args: list[Var]) -> Sequence[Value]:
        regions = tuple(self._region(node, r) for r in node.regions)
        results = tuple(Value(r.type) for r in node.results)
        values = tuple(a.value for a in args)
        copy = replace(node, args=values, results=results, regions=regions)
        return self.b.interned(copy).results

    def _region(self, node: Node, region: Region) -> Region:
        params = tuple(Value(p.type) for p in region.params)
        self.new.update(zip(region.params, params))
        is_loop = len(region.params) > 0
        self.loops += is_loop
        self.b.open(params)
        self._nodes(region)
        self.loops -= is_loop
        return self.b.close([self.new[y] for y in region.yields])
