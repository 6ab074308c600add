"""Which of two outputs is read back: the whole spectrum, or its peaks.

Outputs are the user's. Where one of two is enough, which only the caller knows
(`FusionOptions.one_of`), the graph is planned without the one and without the other, and the gate
decides between the two plans. The same trade is weighed for every output that an op which may wait
for the host computes from another; there the verdict is advice, and nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from rlx.core.errors import Error
from rlx.cost.decision import Candidate, Decision
from rlx.cost.gate import fusion_benefit
from rlx.cost.profile import PlanCost
from rlx.ir.mir import Graph, Node, topological
from rlx.passes.context import Context

WHAT = "fuse_or_read_back"
Price = Callable[[Graph], PlanCost]
"""What the plan of a graph takes on every call."""


def one_of_each(graph: Graph, ctx: Context, price: Price) -> Graph:
    """The graph with one output of each pair of `one_of`; other trades are logged."""
    for names in ctx.options.one_of:
        pair = _Pair.of(graph, names)
        is_second = _decision(pair, ctx, price, is_advice=False).verdict
        graph = without_output(graph, pair.first if is_second else pair.second)
    prices: dict[tuple[str, ...], PlanCost] = {}

    def priced_once(pruned: Graph) -> PlanCost:
        if pruned.output_names not in prices:
            prices[pruned.output_names] = price(pruned)
        return prices[pruned.output_names]

    for pair in _trades(graph):
        _decision(pair, ctx, priced_once, is_advice=True)
    return graph


def without_output(graph: Graph, name: str) -> Graph:
    """The graph without an output; inputs that only it needed stay."""
    new = graph.rebuild()
    outputs = dict(zip(new.output_names, new.outputs))
    new.set_outputs({k: v for k, v in outputs.items() if k != name})
    return new


@dataclass(frozen=True)
class _Pair:
    """Two outputs, of which one may be enough; the second may be computed from the first."""

    graph: Graph
    first: str
    second: str

    @classmethod
    def of(cls, graph: Graph, names: tuple[str, str]) -> _Pair:
        """The two outputs, what is computed from the other behind it."""
        unknown = [n for n in names if n not in graph.output_names]
        if unknown:
            listed = ", ".join(graph.output_names)
            raise Error(f"{graph.name}: one_of names no output {unknown[0]!r}. It has: {listed}.")
        pair = cls(graph, *names)
        first, second = pair.nodes
        return cls(graph, *reversed(names)) if second in topological([first]) else pair

    @cached_property
    def nodes(self) -> tuple[Node, Node]:
        outputs = dict(zip(self.graph.output_names, self.graph.outputs))
        return outputs[self.first], outputs[self.second]


def _decision(pair: _Pair, ctx: Context, price: Price, *, is_advice: bool) -> Decision:
    """Is the second read back instead of the first?"""
    before = price(without_output(pair.graph, pair.second))
    after = price(without_output(pair.graph, pair.first))
    why = f"{pair.second!r} is read back instead of {pair.first!r}"
    if is_advice:
        pair_text = f"({pair.first!r}, {pair.second!r})"
        why = f"if one of the two is enough, FusionOptions(one_of=[{pair_text}]) drops one: {why}"
    machine = ctx.target.machine
    traffic = max(before.io.device_traffic_bytes, after.io.device_traffic_bytes)
    memory_gb_s = machine.memory_gb_s(traffic)
    more_ns = after.beyond_bytes_ns(memory_gb_s) - before.beyond_bytes_ns(memory_gb_s)
    return ctx.log.decide(Candidate(
        WHAT, pair.nodes, fusion_benefit(before.io, after.io),
        round(more_ns * machine.gflops(pair.nodes[1].shape.dtype)), traffic,
        kind="output", why=why, is_reversible=not is_advice,
    ))  # fmt: skip


def _trades(graph: Graph) -> Iterable[_Pair]:
    """Outputs that an op which may wait for the host computes from other outputs."""
    names = {o: n for n, o in reversed(list(zip(graph.output_names, graph.outputs)))}
    for fused in dict.fromkeys(graph.outputs):
        if not fused.decl.syncs_host:
            continue
        name = names[fused]
        below = set(topological(fused.inputs))
        for source, other in names.items():
            if source is not fused and source in below and not source.is_leaf:
                yield _Pair(graph, other, name)
