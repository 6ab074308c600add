"""What was measured, as text: a call beside its kernels, and decisions that were reversed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.core.other_load import is_busy
from rlx.core.units import time_text
from rlx.explain.naming import clipped, merged, place_text
from rlx.explain.report import Report
from rlx.explain.text_table import Section

ABOVE = 1.05
"""Of a ratio that is to be 1: what counts as more."""
FASTER = (
    "above 100% of the roofline: this machine is faster than the target's default rates; "
    "rlx calibrate measures its own"
)
WIDEST = 56
"""Characters of a cell that may hold a long name."""
BEYOND = 1.5
"""A call that takes so much longer than its kernels, each at its median, says what they take: it
was interrupted, its threads waited for a core, or most of it is the call itself."""
COLUMNS = (
    "verdict", "outcome", "of the call", "predicted", "measured", "low", "high", "count",
    "decision", "where",
)  # fmt: skip
NOTE = (
    "times are what taking saves, of all that were reversed together; 100% of the call is a call "
    "that takes twice as long without"
)


def predicted_text(report: Report) -> str:
    """What predicted times are of."""
    own = "" if report.runner.is_target else f", as code of {report.target.name}"
    return f"predicted time{own}"


def call_text(report: Report) -> str:
    """What a call takes: measured where it was, beside the prediction; and what its kernels take,
    where that differs."""
    predicted, took = report.totals.predicted_ns, report.timings.get("call_ns")
    if not took and not report.runner.is_target:
        return f"not predicted ({time_text(predicted)} as code of {report.target.name})"
    if not took:
        return f"predicted {time_text(predicted)}"
    kernels = [k for k in report.kernels if k.phase != "prologue"]
    within, share = sum(k.ns for k in kernels), report.timings.get("roofline_share")
    roof = f"; kernels reach {share:.0%} of the roofline" if share else ""
    if share and share > ABOVE and predicted > within:
        roof = "; kernels are faster than the target's default rates"
    return (
        f"measured {time_text(took)}{busy_mark(report)}{_beside(took, within)} "
        f"(predicted {time_text(predicted)}{roof})"
    )


def _beside(took: float, within: float) -> str:
    """A call and the sum of its kernels, which are timed apart."""
    if took > BEYOND * within > 0:
        return (
            f", {time_text(within)} of it in kernels, the rest in the call itself or in threads "
            "that wait for a core"
        )
    if within > ABOVE * took:
        return (
            f" beside {time_text(within)} in kernels, as these are timed in an instrumented build, "
            "which reads the clock at every task"
        )
    return ""


def busy_mark(report: Report) -> str:
    """Behind times of a call and of its kernels that were taken on a busy machine."""
    return " *" if is_busy(report.timings.get("call_busy_cores", 0.0)) else ""


@dataclass(frozen=True, slots=True)
class _Reversed:
    """Decisions that were reversed together, or firings of a rule."""

    what: str
    verdict: bool
    places: Sequence[str]
    times: Mapping[str, Any]

    def of_all(self, name: str) -> float:
        """A figure, which is that of one."""
        return self.times[name] * self.times["class_size"]


def measured_section(report: Report) -> Section:
    """What reversing decisions and rules changed, one line for those reversed together."""
    found = sorted(_reversed(report), key=lambda r: -abs(r.of_all("measured_ns")))
    call_ns = report.timings.get("call_ns") or 1.0
    rows = [_cells(each, call_ns) for each in found]
    return Section("measured decisions", COLUMNS, rows, NOTE)


def _reversed(report: Report) -> list[_Reversed]:
    rules: Mapping[str, Any] = report.timings.get("rules", {})
    every = [
        *((d.what, d.verdict, d.where, d.measured) for d in report.decisions if d.measured),
        *((r.rule, True, (r.before,), rules[r.id]) for r in report.rules if r.id in rules),
    ]
    held: dict[tuple[Any, ...], _Reversed] = {}
    for what, verdict, where, times in every:
        key = what, verdict, *sorted((times or {}).items())
        places = [*held[key].places] if key in held else []
        held[key] = _Reversed(what, verdict, [*places, place_text(where[:1])], times or {})
    return list(held.values())


def _cells(row: _Reversed, call_ns: float) -> tuple[str, ...]:
    m = row.times
    outcome = ("confirmed" if m["is_right"] else "refuted") if m["is_certain"] else "within noise"
    outcome += " *" if is_busy(m.get("busy_cores", 0.0)) else ""
    times = [row.of_all(k) for k in ("predicted_ns", "measured_ns", "low_ns", "high_ns")]
    return (
        "taken" if row.verdict else "refused",
        outcome,
        f"{abs(times[1]) / call_ns:.1%}",
        *map(time_text, times),
        f"×{m['class_size']}" if m["class_size"] > 1 else "",
        row.what,
        clipped(merged(row.places), WIDEST),
    )
