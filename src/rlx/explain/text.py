"""Reports as text: the decisions that matter most first, those alike in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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


def report_text(report: Report) -> str:
    """The whole report, for a terminal or a file."""
    parts = [
        head(report),
        *_titled("advice", [_advice(a) for a in report.advice], ("saves", "bytes", "what to do")),
        *_titled("decisions", [_cells(x) for x in lines_of(report.decisions)], COLUMNS),
        *_titled("rules", _rule_cells(report), ("times", "rule", "identity")),
        *_titled("kernels", _kernel_cells(report), KERNEL_COLUMNS),
    ]
    return "\n".join(parts) + "\n"


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
    ])  # fmt: skip


COLUMNS = ("verdict", "saves", "bytes", "launches", "times", "decision", "where", "why")
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


def _advice(a: Advice) -> tuple[str, ...]:
    saves = time_text(a.predicted_ns) if a.predicted_ns else ""
    return saves, f"{a.bytes_saved:,}" if a.bytes_saved else "", a.text


def _titled(title: str, rows: Sequence[tuple[str, ...]], columns: tuple[str, ...]) -> list[str]:
    return ["", f"{title}:", *aligned([columns, *rows])] if rows else []


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
