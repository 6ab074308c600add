"""SIMT programs rebuilt node by node, some of them replaced."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from rlx.core.dtype import DType
from rlx.program.builder import Builder
from rlx.program.nodes import Node, Region, Value
from rlx.program.program import Program
from rlx.program.values import Var

Rule = Callable[[Builder, Node, list[Var], int], Sequence[Var] | None]
"""The results of a node by other ones, made with the builder, or None to leave it as it is. The
last argument is how many loops are around it."""
Kinds = Collection[type[Node]]


def rewritten(program: Program, kinds: Kinds, rule: Rule) -> Program:
    """The program with every node that the rule replaces replaced; it is asked about nodes of
    these kinds."""
    return _Rewriter(program, kinds, rule).program()


def retyped(program: Program, kinds: Kinds, rule: Rule, dtype: Callable[[DType], DType]) -> Program:
    """The same with other dtypes of numbers, in every node that the rule does not replace."""
    return _Retyper(program, kinds, rule, dtype).program()


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


class _Retyper(_Rewriter):
    """Every node is made anew, with results and parameters of other dtypes."""

    def __init__(
        self, program: Program, kinds: Kinds, rule: Rule, dtype: Callable[[DType], DType]
    ) -> None:
        super().__init__(program, kinds, rule)
        self.dtype = dtype

    def _kept(self, node: Node) -> tuple[Value, ...]:
        args, regions = self._now(node.args), tuple(map(self._region, node.regions))
        results = tuple(map(self._value, node.results))
        made = replace(node, args=args, results=results, regions=regions)
        return self.b.interned(made).results

    def _value(self, old: Value) -> Value:
        return Value(self.dtype(old.type) if isinstance(old.type, DType) else old.type)

    def _region(self, region: Region) -> Region:
        params = tuple(map(self._value, region.params))
        self.new.update(zip(region.params, params))
        return super()._region(replace(region, params=params))
