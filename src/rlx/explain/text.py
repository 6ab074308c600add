"""Decisions as text: what was considered where, the verdict, why, and the predicted saving."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rlx.cost.decision import Decision
from rlx.pipeline import CompileResult
from rlx.rules.engine import Fired


def explain(result: CompileResult) -> str:
    """The whole report of one compile."""
    lir, plan = result.lir, result.lir.plan
    taken = [d for d in result.decisions if d.verdict]
    refused = [d for d in result.decisions if not d.verdict]
    lines = [
        f"{lir.name} for {lir.target.name}: {len(plan.schedule)} kernels, "
        f"arena {lir.arena_bytes:,} bytes{_at(plan.representative)} "
        f"(saved {plan.bytes_saved:,} by sharing), "
        f"weights {plan.weight_bytes:,} bytes",
        str(result.fusion).rstrip(),
        *_rules(result),
        *_section("taken", taken),
        *_section("refused", refused),
    ]
    return "\n".join(lines)


def _at(sizes: Mapping[str, int]) -> str:
    """The sizes that stand for the named dims, where there are any."""
    return " at " + ", ".join(f"{k}={v}" for k, v in sizes.items()) if sizes else ""


def _rules(result: CompileResult) -> list[str]:
    """Which identities were used, how often."""
    fired = [e for e in result.rewrites if isinstance(e, Fired)]
    count = Counter(e.rule for e in fired)
    identity = {e.rule: e.identity for e in fired}
    return ["rules:", *(f"  {n} x {r}: {identity[r]}" for r, n in count.items())] if fired else []


def _section(title: str, decisions: list[Decision]) -> list[str]:
    if not decisions:
        return []
    return [f"{title}:", *(f"  {_line(d)}" for d in decisions)]


def _line(decision: Decision) -> str:
    where = ", ".join(decision.where[:4]) + (", …" if len(decision.where) > 4 else "")
    saved = (
        f" [{decision.predicted_ns:+,.0f} ns, {decision.launches_saved:+d} launches, "
        f"{decision.bytes_saved:+,} bytes]"
        if decision.predicted_ns or decision.launches_saved or decision.bytes_saved
        else ""
    )
    return f"{decision.what} ({decision.id}) at {where}: {decision.reason}{saved}"
