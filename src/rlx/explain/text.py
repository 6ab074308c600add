"""Reports as text: the decisions that matter most first, those alike in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.explain.report import Advice, Report, ReportDecision

WIDEST = 56
"""Characters of a cell that may hold a long name."""


@dataclass(frozen=True, slots=True)
class Line:
    """Decisions alike, such as those of equal layers; figures are those of all together."""

    decision: ReportDecision
    """The first of them."""
    count: int
    predicted_ns: float
    bytes_saved: int
    launches_saved: int

    @property
    def verdict(self) -> str:
        return "taken" if self.decision.verdict else "refused"

    @property
    def where(self) -> str:
        held = self.decision.where
        return f"{held[0]}, …" if len(held) > 1 else "".join(held)


def lines_of(decisions: Iterable[ReportDecision]) -> list[Line]:
    """One line for decisions alike, by what they save, then by name."""
    held: dict[str, list[ReportDecision]] = {}
    for d in decisions:
        held.setdefault(d.group, []).append(d)
    made = [
        Line(
            same[0], len(same), sum(d.predicted_ns for d in same),
            sum(d.bytes_saved for d in same), sum(d.launches_saved for d in same),
        )
        for same in held.values()
    ]  # fmt: skip
    return sorted(made, key=_rank)


def _rank(line: Line) -> tuple[float, str, str]:
    return -abs(line.predicted_ns), line.decision.what, line.where


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the report."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def sections(report: Report) -> list[Section]:
    """The report's tables, those that hold anything."""
    every = [
        Section("advice", ("saves", "bytes", "what to do"), [_advice(a) for a in report.advice]),
        Section("decisions", COLUMNS, [_cells(x) for x in lines_of(report.decisions)]),
        Section("decisions by the clock", CLOCK_COLUMNS, _clock_cells(report)),
        Section("rules", ("times", "rule", "identity"), _rule_cells(report)),
        Section("kernels", KERNEL_COLUMNS, _kernel_cells(report)),
        Section("kernels by the clock", TIMED_COLUMNS, _timed_cells(report)),
    ]
    return [s for s in every if s.rows]


def report_text(report: Report) -> str:
    """The whole report, for a terminal or a file."""
    tables = [
        "\n".join(["", f"{s.title}:", *aligned([s.columns, *s.rows])]) for s in sections(report)
    ]
    return "\n".join([head(report), *tables]) + "\n"


def head(report: Report) -> str:
    """What was compiled, in a few lines."""
    t, model = report.totals, report.model
    sizes = ", ".join(f"{k}={v}" for k, v in model.sizes.items())
    saved = t.unshared_bytes - t.arena_bytes
    taken = sum(d.verdict for d in report.decisions)
    return "\n".join([
        f"{model.name} for {report.target.name}: {t.kernels} kernels a call, "
        f"about {time_text(t.predicted_ns)}{f' at {sizes}' if sizes else ''}",
        f"arena {t.arena_bytes:,} bytes (sharing saves {saved:,}), weights "
        f"{t.weight_bytes:,} bytes; a call moves {t.traffic_bytes:,} bytes and does "
        f"{t.flops:,} flops",
        f"{len(report.source)} nodes became {len(report.nodes)}; {len(report.rules)} rewrites, "
        f"{taken} decisions taken, {len(report.decisions) - taken} refused",
        *_clock_head(report),
    ])  # fmt: skip


COLUMNS = ("verdict", "saves", "bytes", "launches", "times", "decision", "where", "why")
CLOCK_COLUMNS = (
    "verdict", "clock", "of a call", "predicted", "measured", "from", "to", "times", "decision",
    "where",
)  # fmt: skip
TIMED_COLUMNS = (
    "step",
    "measured",
    "share",
    "GB/s",
    "GFLOP/s",
    "of the roofline",
    "kernel",
    "where",
)
KERNEL_COLUMNS = ("step", "phase", "predicted", "bytes", "flops", "how", "kernel", "where")


def _cells(line: Line) -> tuple[str, ...]:
    d = line.decision
    return (
        line.verdict,
        time_text(line.predicted_ns) if line.predicted_ns else "",
        f"{line.bytes_saved:,}" if line.bytes_saved else "",
        f"{line.launches_saved:,}" if line.launches_saved else "",
        f"×{line.count}" if line.count > 1 else "",
        d.what,
        clipped(line.where),
        d.reason,
    )


def _rule_cells(report: Report) -> list[tuple[str, ...]]:
    """Which identities were used, how often."""
    count = Counter(r.rule for r in report.rules)
    first = {r.rule: r for r in reversed(report.rules)}
    return [(f"{n}", rule, first[rule].identity) for rule, n in count.most_common()]


def _kernel_cells(report: Report) -> list[tuple[str, ...]]:
    return [
        (
            f"{k.id}", k.phase, time_text(k.predicted_ns), f"{k.bytes:,}", f"{k.flops:,}", k.way,
            clipped(k.name.partition(" ")[2]), clipped(", ".join(k.where[:2])),
        )
        for k in report.kernels
    ]  # fmt: skip


def _clock_cells(report: Report) -> list[tuple[str, ...]]:
    """What turning a decision around did, one line for those turned together; gains of taking."""
    held: dict[tuple[Any, ...], ReportDecision] = {}
    for d in report.decisions:
        if d.measured:
            held.setdefault((d.what, *sorted(d.measured.items())), d)
    found = sorted(held.values(), key=lambda d: -(d.measured or {})["share"])
    return [_clock_cell(d, d.measured or {}) for d in found]


def _clock_cell(d: ReportDecision, m: Mapping[str, Any]) -> tuple[str, ...]:
    clock = ("confirms" if m["is_right"] else "refutes") if m["is_certain"] else "cannot tell"
    times = [time_text(m[k]) for k in ("predicted_ns", "measured_ns", "low_ns", "high_ns")]
    alike = f"×{m['alike']}" if m["alike"] > 1 else ""
    verdict = "taken" if d.verdict else "refused"
    return (
        verdict,
        clock,
        f"{m['share']:.1%}",
        *times,
        alike,
        d.what,
        clipped(", ".join(d.where[:1])),
    )


def _timed_cells(report: Report) -> list[tuple[str, ...]]:
    """Kernels that were timed, the slowest first."""
    timed = [(k, k.measured) for k in report.kernels if k.measured]
    return [
        (
            f"{k.id}", time_text(m["median_ns"]), f"{m['share']:.1%}", f"{m['gb_s']:,.1f}",
            f"{m['gflop_s']:,.1f}", f"{m['roofline_share']:.0%}",
            clipped(k.name.partition(" ")[2]), clipped(", ".join(k.where[:2])),
        )
        for k, m in sorted(timed, key=lambda t: -t[1]["median_ns"])
    ]  # fmt: skip


def _clock_head(report: Report) -> list[str]:
    """What the clock says of a call, and of the gate."""
    t = report.timings
    if "gate" not in t:
        return []
    sizes = ", ".join(f"{k}={v}" for k, v in t["sizes"].items())
    return [
        f"measured: {time_text(t['call_ns'])} a call{f' at {sizes}' if sizes else ''}, "
        f"{t['roofline_share']:.0%} of the roofline",
        t["gate"],
    ]


def _advice(a: Advice) -> tuple[str, ...]:
    saves = time_text(a.predicted_ns) if a.predicted_ns else ""
    return saves, f"{a.bytes_saved:,}" if a.bytes_saved else "", a.text


def aligned(table: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns side by side; those of numbers to the right."""
    columns = range(len(table[0]))
    widths = [max(len(row[i]) for row in table) for i in columns]
    right = [all(row[i][:1] in "-+×0123456789" for row in table[1:]) for i in columns]
    return [
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right)
        ).rstrip()
        for row in table
    ]


def clipped(text: str, most: int = WIDEST) -> str:
    """The text, or its two ends."""
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def time_text(ns: float) -> str:
    """A time in the unit that suits it."""
    size = abs(ns)
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if size >= scale:
            return f"{ns / scale:,.2f} {unit}"
    return f"{ns:,.0f} ns"
