"""Reports as text: the decisions that matter most first, equivalent ones in one line.

What matters least is counted, not listed: the text is for reading, and JSON has it all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.explain.report import Advice, Report, ReportDecision, ReportKernel, Value

MOST = 40
"""Rows of a table, unless all are asked for."""
MOST_PLAIN = 5
"""Refusals of what would cost more: enough to see what was considered."""
FIRST = ("import", "capacity", "cut", "precision")
"""Kinds of decisions that change what a call is, whatever they cost."""
PER_CALL = ("compile_per_shapes", "compile_per_values")
"""Decisions for a program that is for some inputs only."""
WIDEST = 56
"""Characters of a cell that may hold a long name."""


@dataclass(frozen=True, slots=True)
class Line:
    """Equivalent decisions, such as those of layers; figures are sums over all of them."""

    decision: ReportDecision
    """The one that matters most."""
    count: int
    predicted_ns: float
    bytes_saved: int
    launches_saved: int

    @property
    def verdict(self) -> str:
        return "taken" if self.decision.verdict else "refused"

    @property
    def is_plain(self) -> bool:
        """Was it refused as it would cost more?"""
        return not self.decision.verdict and self.predicted_ns < 0

    @property
    def where(self) -> str:
        held = self.decision.where
        return f"{held[0]}, …" if len(held) > 1 else "".join(held)


def lines_of(decisions: Iterable[ReportDecision]) -> list[Line]:
    """One line for the same decision at places whose names differ in numbers, whatever each saves;
    by what they save, then by name."""
    held: dict[str, list[ReportDecision]] = {}
    for d in _outermost(tuple(decisions)):
        held.setdefault(d.group.rsplit(" ", 3)[0], []).append(d)
    made = [
        Line(
            max(same, key=lambda d: abs(d.predicted_ns)), len(same),
            sum(d.predicted_ns for d in same),
            sum(d.bytes_saved for d in same), sum(d.launches_saved for d in same),
        )
        for same in held.values()
    ]  # fmt: skip
    return sorted(made, key=_rank)


def _outermost(decisions: Sequence[ReportDecision]) -> list[ReportDecision]:
    """Without what is part of another's saving: a node that moves to another phase moves all that
    it was lowered to, and the first of one place stands for the rest."""
    first: dict[tuple[bool, str], ReportDecision] = {}
    for d in decisions:
        if d.kind == "phase" and d.where:
            place = d.verdict, d.where[0].partition(" at ")[2]
            if place not in first or abs(d.predicted_ns) > abs(first[place].predicted_ns):
                first[place] = d
    stand = {d.id for d in first.values()}
    return [d for d in decisions if d.kind != "phase" or not d.where or d.id in stand]


def _rank(line: Line) -> tuple[bool, float, float, str, str]:
    """First what decides how a call runs; then what saves, or would have; then what costs more;
    then what has no price."""
    size = abs(line.predicted_ns)
    is_first = line.decision.kind in FIRST
    return not is_first, 0.0 if line.is_plain else -size, -size, line.decision.what, line.where


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the report."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""
    """What is not listed."""


def sections(report: Report, most: int | None = MOST) -> list[Section]:
    """The report's tables, those that hold anything, of at most so many rows."""
    every = [
        Section("advice", ("saves", "bytes", "what to do"), [_advice(a) for a in report.advice]),
        decision_section("decisions", report.decisions, most),
        Section("measured decisions", MEASURED_COLUMNS, _measured_cells(report)),
        Section("rules", ("count", "rule", "identity"), _rule_cells(report)),
        _kernels(report, most),
        Section("measured kernels", TIMED_COLUMNS, _timed_cells(report)[:most]),
    ]
    return [s for s in every if s.rows]


def decision_section(
    title: str, decisions: Iterable[ReportDecision], most: int | None = MOST
) -> Section:
    """The first lines that matter; the others counted by what was decided."""
    lines = lines_of(decisions)
    shown = lines if most is None else _chosen(lines, most)
    listed = {x.decision.id for x in shown}
    rest = [x for x in lines if x.decision.id not in listed]
    count = Counter[str]()
    for line in rest:
        count[f"{line.decision.what} {line.verdict}"] += line.count
    kinds = ", ".join(f"{what} ×{n}" for what, n in count.most_common())
    note = f"and {sum(count.values()):,} more: {kinds}" if rest else ""
    return Section(title, COLUMNS, [_cells(x) for x in shown], note)


def _chosen(lines: Sequence[Line], most: int) -> list[Line]:
    """The first of those that matter, few of them refusals of what costs more."""
    worth = [x for x in lines if _matters(x)]
    plain = [x for x in worth if x.is_plain][:MOST_PLAIN]
    return [x for x in worth if not x.is_plain or x in plain][:most]


def _matters(line: Line) -> bool:
    """Has it a price, or is it in no other table? How kernels run is in theirs."""
    has_price = line.predicted_ns or line.bytes_saved or line.launches_saved
    return bool(has_price) or line.decision.kind not in ("kernel", "layout", "schedule")


def _kernels(report: Report, most: int | None) -> Section:
    """Those that should take longest, in the order in which they run."""
    ranked = sorted(report.kernels, key=_when)
    shown, rest = ranked[:most], ranked[len(ranked) if most is None else most :]
    rows = [_kernel_cell(k) for k in sorted(shown, key=lambda k: k.id)]
    took = sum(k.predicted_ns for k in rest if k.phase != "prologue")
    note = f"and {len(rest):,} more, which take {time_text(took)} of a call" if rest else ""
    return Section("kernels", KERNEL_COLUMNS, rows, note)


def _when(kernel: ReportKernel) -> tuple[bool, float]:
    return kernel.phase == "prologue", -kernel.predicted_ns


def report_text(report: Report, most: int | None = MOST) -> str:
    """The report, for a terminal or a file; tables of at most so many rows."""
    tables = [line for s in sections(report, most) for line in table_lines(s)]
    return "\n".join([head(report), *tables]) + "\n"


def table_lines(section: Section) -> list[str]:
    """A table below its title."""
    note = [section.note] if section.note else []
    return ["", f"{section.title}:", *aligned([section.columns, *section.rows]), *note]


def head(report: Report) -> str:
    """What was compiled, in a few lines."""
    t, model = report.totals, report.model
    saved = t.unshared_bytes - t.arena_bytes
    taken = sum(d.verdict for d in report.decisions)
    return "\n".join([
        f"{model.name} for {report.target.name}: {t.kernels} kernels a call, "
        f"about {time_text(t.predicted_ns)}{_at(report)}",
        f"in {_values(model.inputs)}; out {_values(model.outputs)}",
        f"arena {size_text(t.arena_bytes)} (sharing saves {size_text(saved)}), weights "
        f"{size_text(t.weight_bytes)}; a call moves {size_text(t.traffic_bytes)} and does "
        f"{flops_text(t.flops)}",
        f"{len(report.source)} nodes became {len(report.nodes)}; {len(report.rules)} rewrites, "
        f"{taken} decisions taken, {len(report.decisions) - taken} refused",
        *_measured_head(report),
    ])  # fmt: skip


def _at(report: Report) -> str:
    """The sizes that everything is counted at, and how to set others."""
    sizes, asked = report.model.sizes, report.options.get("sizes", {})
    bound = ", ".join(f"{k}={v}" for k, v in sizes.items())
    if any(d.what in PER_CALL for d in report.decisions):
        return " for inputs of these sizes (set others by --dim NAME=SIZE or --input NAME=FILE)"
    if not bound or all(k in asked for k in sizes):
        return f" at {bound}" if bound else ""
    return f" at {bound}, the representative sizes (set others by --dim NAME=SIZE)"


def _values(values: Sequence[Value], most: int = 4) -> str:
    shown = ", ".join(f"{v.name} {v.shape}" for v in values[:most]) or "nothing"
    return f"{shown} and {len(values) - most} more" if len(values) > most else shown


COLUMNS = ("verdict", "saves if taken", "bytes", "launches", "count", "decision", "where", "why")
MEASURED_COLUMNS = (
    "verdict", "outcome", "of a call", "predicted", "measured", "low", "high", "count", "decision",
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
KERNEL_COLUMNS = ("step", "phase", "predicted", "bytes", "flops", "strategy", "kernel", "where")


def _cells(line: Line) -> tuple[str, ...]:
    d = line.decision
    return (
        line.verdict,
        time_text(line.predicted_ns) if line.predicted_ns else "",
        size_text(line.bytes_saved) if line.bytes_saved else "",
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


def _kernel_cell(k: ReportKernel) -> tuple[str, ...]:
    return (
        f"{k.id}", k.phase, time_text(k.predicted_ns), size_text(k.bytes),
        flops_text(k.flops) if k.flops else "", k.strategy,
        clipped(k.name.partition(" ")[2]), clipped(", ".join(k.where[:2])),
    )  # fmt: skip


def _measured_cells(report: Report) -> list[tuple[str, ...]]:
    """What reversing a decision changed, one line for those reversed together; gains of taking."""
    held: dict[tuple[Any, ...], ReportDecision] = {}
    for d in report.decisions:
        if d.measured:
            held.setdefault((d.what, *sorted(d.measured.items())), d)
    found = sorted(held.values(), key=lambda d: -(d.measured or {})["share"])
    return [_measured_cell(d, d.measured or {}) for d in found]


def _measured_cell(d: ReportDecision, m: Mapping[str, Any]) -> tuple[str, ...]:
    outcome = ("confirmed" if m["is_right"] else "refuted") if m["is_certain"] else "within noise"
    times = [time_text(m[k]) for k in ("predicted_ns", "measured_ns", "low_ns", "high_ns")]
    count = f"×{m['class_size']}" if m["class_size"] > 1 else ""
    verdict = "taken" if d.verdict else "refused"
    return (
        verdict,
        outcome,
        f"{m['share']:.1%}",
        *times,
        count,
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


def _measured_head(report: Report) -> list[str]:
    """The measured call, and the gate's predictions against measurements."""
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
    return saves, size_text(a.bytes_saved) if a.bytes_saved else "", a.text


def aligned(table: Sequence[tuple[str, ...]]) -> list[str]:
    """Aligned columns; those of numbers to the right."""
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
    """The text, or its two ends: names differ in the last of their parts."""
    if len(text) <= most:
        return text
    begin = most // 4
    return f"{text[:begin]}…{text[begin + 1 - most :]}"


def size_text(size: float) -> str:
    """Bytes in the unit that suits them."""
    return _scaled(size, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))) or f"{size:,} B"


def flops_text(flops: float) -> str:
    """Arithmetic in the unit that suits it."""
    return _scaled(flops, (("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3))) or f"{flops:,} FLOP"


def _scaled(value: float, units: Iterable[tuple[str, float]]) -> str:
    for unit, scale in units:
        if abs(value) >= scale:
            return f"{value / scale:,.2f} {unit}"
    return ""


def time_text(ns: float) -> str:
    """A time in the unit that suits it."""
    return _scaled(ns, (("s", 1e9), ("ms", 1e6), ("µs", 1e3))) or f"{ns:,.0f} ns"
