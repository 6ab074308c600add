"""The decisions of a compile at other sizes: each as it was taken, at the price it has there.

A compile weighs named dims at sizes of its own; a report may be of a call at others. The passes run
once more then, with a log that repeats the verdicts and prices anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlx.cost.decision import Decision, DecisionLog
from rlx.ir.hir import HirModule
from rlx.ir.mir import Graph, Node
from rlx.ir.outline import place_of
from rlx.passes.context import Context
from rlx.passes.options import FusionOptions
from rlx.pipeline import optimised
from rlx.rules.engine import Fired

if TYPE_CHECKING:
    from rlx.pipeline import CompileResult

ELSEWHERE = "at the sizes it was compiled for: "
"""Before the reason of a verdict that these sizes speak against, or that has no price at them."""


class PricedLog(DecisionLog):
    """A log of known verdicts: what is proposed is priced, and decided as it was before."""

    def __init__(self, result: CompileResult, sizes: Mapping[str, int]) -> None:
        super().__init__(result.lir.target, sizes=sizes)
        self._given = {d.id: d for d in result.decisions}
        self._fired = {e.id for e in result.rewrites if isinstance(e, Fired)}

    def _record(self, nodes: Sequence[Node], proposal: Decision) -> Decision:
        key = self._identities.id_of(proposal.what, nodes, self._is_refused)
        known = self._decisions.get(key)
        if known and (known.verdict or not proposal.is_reversible):
            return known
        where = proposal.where or tuple(dict.fromkeys(map(place_of, nodes)))
        given, verdict, reason = self._given.get(key), key in self._fired, proposal.reason
        if given is not None:
            verdict = given.verdict
            reason = reason if verdict == proposal.verdict else _elsewhere(given.reason)
        made = replace(proposal, id=key, where=where, verdict=verdict, reason=reason)
        self._decisions[key] = made
        return made


def at_sizes(
    result: CompileResult, sizes: Mapping[str, int] | None, model: Any = None
) -> CompileResult:
    """The result with its decisions at the prices of these sizes; as it is where none are given.
    `model` is what was compiled, for a result of the cache, which does not hold it: without either
    the decisions have no prices."""
    if sizes is None or _all(result, sizes) == _all(result, result.options.sizes):
        return result
    options = replace(result.options, sizes=dict(sizes))
    graph = result.source if isinstance(result.source, Graph) else _graph(model)
    again = {} if graph is None else _priced(result, graph, options)
    decisions = tuple(again.get(d.id) or _unpriced(d) for d in result.decisions)
    return replace(result, decisions=decisions, options=options)


def _all(result: CompileResult, sizes: Mapping[str, int]) -> dict[str, int]:
    usual = result.lir.plan.representative
    return {name: sizes.get(name, size) for name, size in usual.items()}


def _priced(result: CompileResult, graph: Graph, options: FusionOptions) -> dict[str, Decision]:
    log = PricedLog(result, options.sizes)
    optimised(graph, Context(result.lir.target, options, log))
    return {d.id: d for d in log.decisions}


def _graph(model: Any) -> Graph | None:
    """That of a model, or of a module."""
    lowered = model.lower() if isinstance(model, HirModule) else model
    found = getattr(lowered, "graph", lowered)
    return found if isinstance(found, Graph) else None


def _unpriced(d: Decision) -> Decision:
    if not (d.predicted_ns or d.bytes_saved):
        return d
    return replace(d, predicted_ns=0.0, bytes_saved=0, reason=_elsewhere(d.reason))


def _elsewhere(reason: str) -> str:
    return f"{ELSEWHERE}{reason.removeprefix(ELSEWHERE)}"
