"""Diff of two compiles, such as for two targets, options or versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlx.core.units import flops_text, size_text, time_text
from rlx.explain.report import Report, ReportDecision
from rlx.explain.text import decision_section
from rlx.explain.text_table import aligned, table_lines

FIGURES = {
    "traffic_bytes": "memory traffic", "output_bytes": "outputs", "flops": "arithmetic",
    "predicted_ns": "predicted time", "measured_ns": "measured time", "arena_bytes": "arena",
    "unshared_bytes": "arena without buffer reuse", "weight_bytes": "weights",
    "sync_points": "synchronisations",
}  # fmt: skip
"""How figures are called in the text."""
SETTINGS = {
    "gate.dispatch_ns": "price of a launch", "gate.roundtrip_ns": "price of a sync with the host",
    "gate.memory_gb_s": "memory bandwidth", "gate.readback_gb_s": "bandwidth of reading back",
    "gate.unified_memory": "memory shared with the host",
    "gate.host_thunk_penalty_ns": "price of leaving the device for the host",
    "gate.min_gain_ns": "least gain of a fusion",
    "gate.unified_readback_gb_s": "bandwidth of copying out of shared memory",
}  # fmt: skip
"""How settings are called there; of others the words of the name."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure or fact, before and after."""

    what: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Difference:
    """What is not the same in two reports."""

    before: str
    after: str
    asked: tuple[Change, ...]
    """Target, options and versions."""
    totals: tuple[Change, ...]
    """Kernels, launches, bytes, arena, predicted time, and the time measured where both were."""
    kernels: tuple[Change, ...]
    """Kernels by what they compute: how many there are."""
    reversed: tuple[Change, ...]
    """Decisions of both, with opposite verdicts: id, and the two reasons."""
    removed: tuple[ReportDecision, ...]
    """Decisions of the first alone."""
    added: tuple[ReportDecision, ...]
    rules: tuple[Change, ...]
    """Rules by name: how often each fired."""

    @property
    def is_same(self) -> bool:
        """Are the two reports equal?"""
        found = (self.asked, self.totals, self.kernels, self.reversed, self.removed, self.added)
        return not any(found) and not self.rules

    def to_dict(self) -> dict[str, Any]:
        """As plain lists and dicts."""
        return {"schema": 1, "is_same": self.is_same, **asdict(self)}

    def __str__(self) -> str:
        return diff_text(self)


def compare(before: Report, after: Report) -> Difference:
    """From `before` to `after`."""
    first = {d.id: d for d in before.decisions}
    second = {d.id: d for d in after.decisions}
    both = [k for k in first if k in second and first[k].verdict != second[k].verdict]
    return Difference(
        _title(before),
        _title(after),
        _changes(_asked(before), _asked(after)),
        _changes(_totals(before), _totals(after)),
        _changes(_kernels(before), _kernels(after), 0),
        tuple(Change(k, first[k].reason, second[k].reason) for k in both),
        tuple(d for k, d in first.items() if k not in second and _counts(d)),
        tuple(d for k, d in second.items() if k not in first and _counts(d)),
        _changes(Counter(r.rule for r in before.rules), Counter(r.rule for r in after.rules), 0),
    )


def _title(report: Report) -> str:
    return f"{report.model.name} for {report.target.name}"


def _counts(d: ReportDecision) -> bool:
    """Views and notes that every graph has are no news."""
    return d.what not in ("alias", "slice_of_concat")


def _changes(
    before: Mapping[str, Any], after: Mapping[str, Any], nothing: Any = None
) -> tuple[Change, ...]:
    keys = dict.fromkeys((*before, *after))
    pairs = ((k, before.get(k, nothing), after.get(k, nothing)) for k in keys)
    return tuple(Change(k, a, b) for k, a, b in pairs if a != b)


def _asked(report: Report) -> dict[str, Any]:
    options = {f"options.{k}": v for k, v in report.options.items() if k != "sizes"}
    versions = {f"versions.{k}": v for k, v in report.versions.items()}
    facts = {"model": report.model.name, "target": report.target.name}
    prices = {f"gate.{k}": v for k, v in report.target.gate.items()}
    sizes = {f"sizes.{k}": v for k, v in report.model.sizes.items()}
    return {**facts, **options, **versions, **sizes, **prices}


def _totals(report: Report) -> dict[str, Any]:
    totals = asdict(report.totals)
    took = [k.measured["median_ns"] for k in report.kernels if k.measured]
    return {**totals, "measured_ns": sum(took)} if took else totals


def _kernels(report: Report) -> Counter[str]:
    return Counter(f"{' '.join(k.ops)} {k.shape} ({k.phase})" for k in report.kernels)


def diff_text(found: Difference) -> str:
    """What differs, for a terminal."""
    if found.is_same:
        return f"{found.before} and {found.after}: the same\n"
    parts = [f"{found.before}  →  {found.after}"]
    figures = [
        (_called(c.what), _figure(c.what, c.before), _figure(c.what, c.after), _by(c))
        for c in found.totals
    ]
    asked = [
        (_setting(c.what), _figure(c.what, c.before), _figure(c.what, c.after)) for c in found.asked
    ]
    parts += _part("totals", ("", "before", "after", "by"), figures)
    parts += _part("settings", ("", "before", "after"), asked)
    parts += _part("kernels", ("before", "after", "computes"), [_row(c) for c in found.kernels])
    parts += _part("rewrites", ("before", "after", "rule"), [_row(c) for c in found.rules])
    parts += _part("reversed", ("count", "decision", "before", "after"), _reversed(found))
    for title, held in (("removed", found.removed), ("added", found.added)):
        parts += table_lines(decision_section(f"decisions {title}", held)) if held else []
    return "\n".join(parts) + "\n"


def _called(figure: str) -> str:
    return FIGURES.get(figure, figure.replace("_", " "))


def _setting(name: str) -> str:
    kind, _, rest = name.partition(".")
    words = {"options": "option", "versions": "version of", "sizes": "size of"}.get(kind, kind)
    return SETTINGS.get(name) or f"{words} {rest.replace('_', ' ')}".rstrip()


def _reversed(found: Difference) -> list[tuple[str, ...]]:
    """One line for those reversed for the same reasons."""
    same = Counter((c.what.partition(":")[0], c.before, c.after) for c in found.reversed)
    return [(f"×{n}" if n > 1 else "", *what) for what, n in same.items()]


def _part(title: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return ["", f"{title}:", *aligned([head, *rows])] if rows else []


def _row(change: Change) -> tuple[str, ...]:
    return str(change.before), str(change.after), change.what


def _figure(what: str, value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return _quantity(what, value)
        case _:
            return str(value)


def _quantity(what: str, value: float) -> str:
    if what == "flops":
        return flops_text(value)
    for suffix, text in (("_ns", time_text), ("_bytes", size_text)):
        if what.endswith(suffix):
            return text(value)
    return f"{value:,g} GB/s" if what.endswith("_gb_s") else f"{value:,}"


def _by(change: Change) -> str:
    if not change.before or change.after is None:
        return ""
    return f"{100 * (change.after / change.before - 1):+.1f} %"
