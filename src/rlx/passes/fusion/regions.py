"""Greedy region fusion of what the named patterns left.

A region is convex, has at most one anchor (a product, a convolution, attention, or an op with a
dedicated kernel), and holds what has the same iteration space: elementwise ops, reductions and
norms of one row, and movements that become index arithmetic. Values that others read are further
results of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlx.ir.inline import inline
from rlx.ir.mir import Graph, Node
from rlx.ops.op import Kind
from rlx.passes.context import Context
from rlx.passes.fusion import reasons
from rlx.passes.fusion.ask_gate import accepts, loss
from rlx.passes.fusion.graph_facts import Facts
from rlx.passes.fusion.groups import Groups
from rlx.passes.fusion.matches import Match, apply
from rlx.passes.fusion.members import Members, Union, is_inlined

WHAT = "fuse_region"
MAX_HIDDEN_FANOUT = 16
"""Readers of a value that is hidden in the first sweep; one with more is hidden in the second, once
its readers are in one group."""


def grow_regions(graph: Graph, ctx: Context) -> Graph:
    """The graph with its regions, each put to the gate."""
    facts = Facts.of(graph)
    grower = _Grower(facts, ctx)
    grower.grow()
    grower.log_refusals()
    matches = [m for m in grower.matches() if accepts(m, facts, ctx)]
    return apply(facts, matches)


class _Grower:
    """Groups grown greedily along edges, in topological order."""

    def __init__(self, facts: Facts, ctx: Context) -> None:
        self.facts, self.ctx = facts, ctx
        self.groups = Groups(facts.order)
        self.members = Members(facts, ctx, self.groups)
        self.refused: dict[tuple[int, int, str], None] = {}
        self._settled: set[tuple[int, int, int, int]] = set()

    def grow(self) -> None:
        """Merge every node into the groups of its operands: first where that makes all their
        results internal, then where they stay results as well."""
        for only_hiding in (True, False):
            for number, node in enumerate(self.facts.order):
                if self.members.has(number):
                    for operand in self._operands(node, only_hiding):
                        self._try(self.groups.number[operand], number, only_hiding)

    def _operands(self, node: Node, only_hiding: bool) -> list[Node]:
        """The operands of `node`; in the first sweep those of small fan-out."""
        most = MAX_HIDDEN_FANOUT if only_hiding else len(self.facts.order)
        return [i for i in dict.fromkeys(node.inputs) if len(self.facts.users[i]) <= most]

    def _try(self, producer: int, consumer: int, only_hiding: bool) -> None:
        first, second = self.groups.find(producer), self.groups.find(consumer)
        pair = first, second, len(self.groups.members[first]), len(self.groups.members[second])
        if first == second or pair in self._settled:
            return
        judged = self.members.judge(first, second)
        if only_hiding and not (isinstance(judged, Union) and judged.hides_all):
            return
        reason = None if judged is None else self._why_not(judged, first, second)
        if isinstance(judged, Union) and reason is None:
            state = self.members.merged(judged)
            self.members.place(self.groups.merge(first, second), state)
            return
        self._settled.add(pair)
        if reason is not None and reason != reasons.WOULD_CYCLE:
            self.refused[producer, consumer, reason] = None

    def _why_not(self, judged: Union | str, first: int, second: int) -> str | None:
        """Why there are two kernels. A third kernel between them is no missed fusion: the value
        bypasses it, such as a residual."""
        between = self.groups.why_not(first, second)
        if between == reasons.WOULD_CYCLE or isinstance(judged, Union):
            return between
        return judged

    def log_refusals(self) -> None:
        """One refusal per pair of final groups and reason."""
        logged: set[tuple[int, int, str]] = set()
        for producer, consumer, reason in self.refused:
            key = self.groups.find(producer), self.groups.find(consumer), reason
            if key[0] == key[1] or key in logged:
                continue
            logged.add(key)
            pair = self.facts.order[consumer], self.facts.order[producer]
            self.ctx.log.note(WHAT, pair, False, reason, **loss(pair[1], self.ctx))

    def matches(self) -> Iterator[Match]:
        """Every group of two or more, in the order of its last node."""
        found = [sorted(m) for m in self.groups.members if len(m) > 1]
        for numbers in sorted(found, key=lambda m: m[-1]):
            state = self.members.of(self.groups.find(numbers[0]))
            nodes = [self.facts.order[i] for i in numbers]
            results = [self.facts.order[i] for i in sorted(state.results)]
            match = region_match(nodes, results)
            if match.externals:  # a region has operands: positions alone read nothing
                yield match


def region_match(nodes: Sequence[Node], results: Sequence[Node]) -> Match:
    """`nodes` as one region that gives `results`."""
    inside = set(nodes)
    outer = dict.fromkeys(i for n in nodes for i in n.inputs if i not in inside)
    externals = tuple(n for n in outer if not is_inlined(n))
    body = _body(nodes, results, externals)
    op = "elementwise_region" if _is_elementwise(nodes) else "region"

    def make(*given: Node) -> tuple[Node, ...]:
        graph = given[0].graph
        made = graph.node(op, given, {"body": body})
        if not made.has_items:
            return (made,)
        return tuple(graph.node("item", (made,), {"index": i}) for i in range(len(results)))

    return Match(WHAT, tuple(results), tuple(nodes), externals, make)


def _is_elementwise(nodes: Sequence[Node]) -> bool:
    return all(n.decl.kind is Kind.ELEMENTWISE for n in nodes)


def _body(nodes: Sequence[Node], results: Sequence[Node], externals: Sequence[Node]) -> Graph:
    """The nodes as a graph of their own, regions of one result by what is in them; what they read
    from outside are its inputs."""
    body = Graph("region")
    body.traces_lines = False
    mapped = {node: body.input(f"v{i}", node.shape) for i, node in enumerate(externals)}
    for node in nodes:
        for operand in node.inputs:
            if operand not in mapped:  # a small constant, carried along
                mapped[operand] = body.node(operand.decl, (), operand.attrs)
        operands = [mapped[i] for i in node.inputs]
        if node.decl.kind is Kind.REGION:
            (mapped[node],) = inline(body, node.attrs["body"], operands)
            continue
        mapped[node] = body.node(node.decl, operands, node.attrs)
        body.add_origins(mapped[node], node.origins)
    body.set_outputs([mapped[r] for r in results])
    return body
