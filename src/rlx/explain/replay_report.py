"""Replay: the optimised graph from the unoptimised one and a report's JSON alone.

The passes run with a log that decides nothing. Every question is answered from the JSON, nothing
is priced, and a change that the JSON does not list is an error. So is a decision of the JSON
that nothing asked for. What comes out must have the hash that the JSON gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlx.core.errors import Error
from rlx.cost.decision import Candidate, Decision, DecisionLog
from rlx.cost.target import FusionLimits, FusionTarget, Target
from rlx.explain.build import claims_of
from rlx.explain.report import Report
from rlx.ir.mir import Graph, Node
from rlx.ir.plan_nodes import with_all_items
from rlx.ir.verify import verify
from rlx.passes.context import Context
from rlx.passes.options import DispatchPolicy, FusionOptions
from rlx.pipeline import cannot_compile, optimised

CHANGES = ("rule", "fusion", "lowering", "precision", "layout")
"""Kinds of decisions that change the graph where their verdict is yes."""


class RecordedLog(DecisionLog):
    """A log that answers from a report."""

    def __init__(self, target: Target, report: Report) -> None:
        super().__init__(target)
        self._verdicts = {r.id: True for r in report.rules}
        self._verdicts |= {d.id: d.verdict for d in report.decisions}
        self.asked: dict[str, None] = {}

    def decide(self, candidate: Candidate) -> Decision:
        """As it was decided; nothing is weighed."""
        what, where = candidate.what, candidate.where
        return self._record(candidate.nodes, Decision("", what, where, True, "recorded"))

    def _record(self, nodes: Sequence[Node], proposal: Decision) -> Decision:
        key = self._identities.id_of(proposal.what, nodes, self._is_refused)
        if key not in self._verdicts and proposal.verdict:
            raise Error(
                f"{proposal.what} at {nodes[0].label} changes the graph, and the report does not "
                f"list it ({key})."
            )
        self.asked[key] = None
        made = replace(proposal, id=key, verdict=self._verdicts.get(key, False))
        known = self._decisions.get(key)
        if known is None or not known.verdict:
            self._decisions[key] = made
        return self._decisions[key]


def replayed(model: Any, report: Report | str) -> Graph:
    """The final graph of the compile that `report` (or its JSON) is of, made anew from `model`:
    a Graph, a module, or what `rlx.load` gives."""
    recorded = Report.from_json(report) if isinstance(report, str) else report
    target, options = _target(recorded), _options(recorded)
    log = RecordedLog(target, recorded)
    made = with_all_items(optimised(_graph(model), Context(target, options, log)))
    verify(made)
    _require_all(recorded, log)
    if made.digest() != recorded.graph:
        raise Error(f"{recorded.model.name}: the replayed graph is not the one of the report.")
    return made


def _require_all(report: Report, log: RecordedLog) -> None:
    """Was everything asked for that the report says was done?"""
    taken = [r.id for r in report.rules]
    of_plan = ("alias", "slice_of_concat", "write_into_concat")
    taken += [d.id for d in report.decisions
              if d.verdict and d.kind in CHANGES and d.what not in of_plan]  # fmt: skip
    left = [id_ for id_ in taken if id_ not in log.asked]
    if left:
        raise Error(
            f"{report.model.name}: the report lists {len(left)} changes that do not apply "
            f"to this graph, such as {left[0]}."
        )


def _graph(model: Any) -> Graph:
    from rlx.ir.hir import HirModule

    lowered = model.lower() if isinstance(model, HirModule) else model
    graph = getattr(lowered, "graph", lowered)
    if not isinstance(graph, Graph):
        raise cannot_compile(model)
    return graph


def _target(report: Report) -> Target:
    """The target of that name which can do what it could; prices do not matter."""
    from rlx.backends.registry import target_of

    name = report.target.name
    documented = [Target.of(t) for t in FusionTarget if t.value == name]
    for target in (target_of(name), *documented):
        if claims_of(target) == report.target.claims:
            return target
    raise Error(
        f"{report.model.name}: target {name!r} has other kernels now than when the report was made."
    )


def _options(report: Report) -> FusionOptions:
    """As they were, but for forced verdicts: those are recorded like all others."""
    held = report.options
    limits = held["limits"]
    return FusionOptions(
        skip_fusion=held["skip_fusion"],
        limits=limits and FusionLimits(**limits),
        dispatch=DispatchPolicy(held["dispatch"], held["force_common"], held["force_native"]),
        precision=held["precision"],
        sizes=held["sizes"],
        f64=held.get("f64"),
        one_of=held.get("one_of", ()),
        at_end=held.get("at_end"),
    )
