"""Reports as text: kernels by time, decisions by effect, those of equal layers in one line.

What matters least is counted, not listed: the text is for reading, and JSON has it all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.backends.code_facts import CodeFacts
from rlx.core.printable import printable
from rlx.core.units import counted, flops_text, size_text, time_text
from rlx.explain import memory_floor, naming
from rlx.explain.measured_text import (
    ABOVE,
    FASTER,
    WIDEST,
    busy_mark,
    call_text,
    measured_section,
    predicted_text,
)  # fmt: skip
from rlx.explain.memory_floor import PART_COLUMNS, kernel_cells, part_rows, step_text
from rlx.explain.naming import clipped_shapes, kernel_title, merged, place_text, template
from rlx.explain.report import Advice, Report, ReportDecision, ReportKernel, SourceNode, Value
from rlx.explain.shapes import sized
from rlx.explain.text_table import Section, folded, table_lines, without_empty
from rlx.plan.alternatives import SPLIT

MOST = 40
"""Rows of a table, unless all are asked for."""
MOST_PLAIN = 5
"""Refusals of what would cost more: enough to see what was considered."""
FIRST = ("import", "capacity", "sharding", "cut", "precision")
"""Kinds of decisions that change what a call is, whatever they cost."""
PER_CALL = ("compile_per_shapes", "compile_per_values")
"""Decisions for a program that is for some inputs only."""
PHASES = {"prologue": "once, for weights", "steady_state": "every step", "epilogue": "at the end"}
NARROW = 40
"""Characters of each shape."""


@dataclass(frozen=True, slots=True)
class Line:
    """Equivalent decisions, such as those of layers; figures are sums over all of them."""

    decision: ReportDecision
    """The one that matters most."""
    same: tuple[ReportDecision, ...]
    predicted_ns: float
    bytes_saved: int
    launches_saved: int

    @property
    def count(self) -> int:
        return len(self.same)

    @property
    def verdict(self) -> str:
        return "taken" if self.decision.verdict else "refused"

    @property
    def is_plain(self) -> bool:
        """Was it refused as it would cost more?"""
        return not self.decision.verdict and self.predicted_ns < 0

    @property
    def where(self) -> str:
        """The first place of each, as ranges of layers."""
        more = ", …" if len(self.decision.where) > 1 else ""
        return merged([place_text(d.where[:1]) for d in self.same]) + more

    @property
    def reason(self) -> str:
        """That of all; where theirs differ, of the one that matters most."""
        is_one = len({d.reason for d in self.same}) == 1
        return self.decision.reason if is_one else f"largest: {self.decision.reason}"


def lines_of(decisions: Iterable[ReportDecision]) -> list[Line]:
    """One line for the same decision at places whose names differ in numbers, whatever each saves;
    by what they save, then by name."""
    held: dict[str, list[ReportDecision]] = {}
    for d in _outermost(tuple(decisions)):
        held.setdefault(d.group.rsplit(" ", 3)[0], []).append(d)
    made = [
        Line(
            max(same, key=lambda d: abs(d.predicted_ns)), tuple(same),
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


def sections(report: Report, most: int | None = MOST) -> list[Section]:
    """The report's tables, those that hold anything, of at most so many rows."""
    split = [d for d in report.decisions if d.what == SPLIT]
    chosen = [d for d in report.decisions if d.kind == "schedule" and d.what != SPLIT]
    others = [d for d in report.decisions if d.kind != "schedule"]
    every = [
        _parts(report),
        _kernels(report, most),
        _phases(report),
        Section("advice", ("saves", "bytes", "what to do"), [_advice(a) for a in report.advice]),
        decision_section("decisions", others, most),
        decision_section("parallelisation", split, most),
        decision_section("schedules of launches", chosen, most),
        measured_section(report),
        Section("rewrites", ("count", "rule", "identity"), _rule_cells(report)),
        Section("rewrites that nearly applied", ("count", "rule", "first at", "why not"),
                _miss_cells(report)[:most]),
    ]  # fmt: skip
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
    return without_empty(Section(title, COLUMNS, [_cells(x) for x in shown], note))


def _chosen(lines: Sequence[Line], most: int) -> list[Line]:
    """The first of those that matter, few of them refusals of what costs more."""
    worth = [x for x in lines if _matters(x)]
    plain = [x for x in worth if x.is_plain][:MOST_PLAIN]
    return [x for x in worth if not x.is_plain or x in plain][:most]


def _matters(line: Line) -> bool:
    """Has it a price, or is it in no other table? How kernels run is in theirs."""
    has_price = line.predicted_ns or line.bytes_saved or line.launches_saved
    return bool(has_price) or line.decision.kind not in ("kernel", "layout", "schedule")


@dataclass(frozen=True, slots=True)
class KernelLine:
    """Kernels of the same ops at the same shapes, such as those of equal layers."""

    kernels: tuple[ReportKernel, ...]

    @property
    def ns(self) -> float:
        return sum(k.ns for k in self.kernels)

    def total(self, name: str) -> float:
        """Of a figure, over all of them."""
        return sum(getattr(k, name) for k in self.kernels)

    @property
    def where(self) -> str:
        return merged([place_text(k.where, 1) for k in self.kernels])


def kernel_groups(kernels: Sequence[ReportKernel]) -> dict[int, int]:
    """The number of each kernel's group: those of the same ops, shapes and strategy at places that
    differ in numbers alone, such as those of equal layers."""
    numbers: dict[tuple[Any, ...], int] = {}
    found: dict[int, int] = {}
    for k in kernels:
        key = (
            k.phase == "prologue", k.op, k.ops, k.shape, k.strategy, k.part,
            template(place_text(k.where, 1)),
        )  # fmt: skip
        found[k.id] = numbers.setdefault(key, len(numbers))
    return found


def kernel_lines(report: Report) -> list[KernelLine]:
    """The kernels of a call, equal ones together, the longest first."""
    called = [k for k in report.kernels if k.phase != "prologue"]
    groups, held = kernel_groups(called), dict[int, list[ReportKernel]]()
    for k in called:
        held.setdefault(groups[k.id], []).append(k)
    lines = [KernelLine(tuple(same)) for same in held.values()]
    return sorted(lines, key=lambda x: (-x.ns, x.kernels[0].id))


def _kernels(report: Report, most: int | None) -> Section:
    """By time; those that run once, when weights are set, are counted."""
    lines = kernel_lines(report)
    shown, rest = lines[:most], lines[len(lines) if most is None else most :]
    is_measured = any(k.measured for k in report.kernels)
    call_ns = sum(x.ns for x in lines) or 1.0
    notes = [f"and {sum(len(x.kernels) for x in rest):,} more, {time_text(sum(x.ns for x in rest))}"
             " of kernel time"] if rest else []  # fmt: skip
    once = sum(k.phase == "prologue" for k in report.kernels)
    shares = [k.measured["roofline_share"] for k in report.kernels if k.measured]
    notes += [FASTER] if any(share > ABOVE for share in shares) else []
    notes += [f"{counted(once, 'kernel')} run once, when weights are set"] if once else []
    columns = TIMED_COLUMNS if is_measured else KERNEL_COLUMNS
    shape = sized(report)
    rows = [_kernel_cell(x, shape, call_ns, is_measured) for x in shown]
    if report.step:
        columns = (*columns[:2], *memory_floor.KERNEL_COLUMNS, *columns[2:])
        own = [kernel_cells(x.kernels, report) for x in shown]
        rows = [(*row[:2], *more, *row[2:]) for row, more in zip(rows, own)]
    how = f"measured time{busy_mark(report)}" if is_measured else predicted_text(report)
    title = f"kernels by {how} (shares of kernel time)"
    return Section(title, columns, rows, "; ".join(notes))


def _phases(report: Report) -> Section:
    """What runs when, and why; nothing where all that a call computes is one phase."""
    held: dict[tuple[str, str], list[ReportKernel]] = {}
    for name in report.phases:
        for k in (k for k in report.kernels if k.phase == name):
            held.setdefault((name, k.phase_reason), []).append(k)
    rows = [
        (
            time_text(sum(k.ns for k in same)), f"{len(same):,}",
            size_text(sum(k.bytes for k in same)), PHASES[name], why,
        )
        for (name, why), same in held.items()
    ]  # fmt: skip
    is_split = bool(report.phases.get("epilogue"))
    return Section(
        "phases", ("time", "kernels", "traffic", "phase", "why"), rows if is_split else []
    )


def _parts(report: Report) -> Section:
    """Of a step; its kernels are timed in another build than the step itself."""
    is_measured = any(k.measured for k in report.kernels)
    note = "kernels as timed in an instrumented build, the step without it" if is_measured else ""
    title = "step by part of a layer (shares of kernel time)"
    return Section(title, PART_COLUMNS, part_rows(report), note)


def report_text(report: Report, most: int | None = MOST) -> str:
    """The report, for a terminal or a file; tables of at most so many rows."""
    tables = [line for s in sections(report, most) for line in table_lines(s)]
    return printable("\n".join([head(report), *tables]) + "\n")


def head(report: Report) -> str:
    """What was compiled, in a few lines."""
    t, model = report.totals, report.model
    taken = sum(d.verdict for d in report.decisions)
    lines = [
        headline(report),
        *([runner_text(report)] if runner_text(report) else []),
        *(step_text(report).splitlines() if report.step else []),
        f"inputs: {_values(model.inputs)}; outputs: {_values(model.outputs)}",
        f"memory: arena {size_text(t.arena_bytes)} ({size_text(t.unshared_bytes)} without buffer "
        f"reuse), weights {size_text(t.weight_bytes)}; per call {size_text(t.traffic_bytes)} of "
        f"traffic, {flops_text(t.flops)}",
        f"compile: {op_text(report)} to {counted(t.kernels, 'kernel')}; "
        f"{counted(len(report.rules), 'rewrite')}; {taken:,} decisions taken, "
        f"{len(report.decisions) - taken:,} refused",
        *(str(CodeFacts.from_dict(report.code)).splitlines() if report.code else []),
        *([report.timings["gate"]] if report.timings.get("gate") else []),
    ]  # fmt: skip
    return "\n".join(part for line in lines for part in folded(line))


def op_count(report: Report) -> int:
    """Of the model as it was given, without its inputs, weights and constants."""
    return sum(map(is_counted, report.source))


def op_text(report: Report) -> str:
    """The ops of the model, and those that its branches and loops hold."""
    inside = sum(n.inside for n in report.source)
    more = f" and {inside:,} inside of branches and loops" if inside else ""
    return f"{counted(op_count(report), 'op')}{more}"


def is_counted(node: SourceNode) -> bool:
    """Is it an op, rather than a value that is given?"""
    return node.op not in ("input", "param", "state", "constant")


def headline(report: Report) -> str:
    """What a call takes, of what, in one sentence."""
    threads, runner = report.machine.get("threads", 0), report.runner
    on = f"{report.target.name}, {counted(threads, 'thread')}" if threads else report.target.name
    if not runner.is_target:
        on = f"{runner.name} ({runner.why})"
    return (
        f"{report.model.name} on {on}: {counted(report.totals.kernels, 'kernel')} per call, "
        f"{call_text(report)}{_at(report)}"
    )


def runner_text(report: Report) -> str:
    """What takes time that is not predicted: a slow way into native code, and Python."""
    cuts = len(report.cuts)
    steps = f"{counted(cuts, 'step')} in Python, whose time is not predicted" if cuts else ""
    slow = report.runner.why if report.runner.is_target else ""
    return "; ".join(part for part in (slow, steps) if part)


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
KERNEL_COLUMNS = (
    "time", "share", "count", "kernel", "shape", "runs as", "traffic", "arithmetic", "where",
    "first",
)  # fmt: skip
TIMED_COLUMNS = (
    *KERNEL_COLUMNS[:2], "predicted", "GB/s", "GFLOP/s", "of roofline", *KERNEL_COLUMNS[2:],
)  # fmt: skip


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
        line.reason,
    )


def _rule_cells(report: Report) -> list[tuple[str, ...]]:
    """Which identities were used, how often."""
    count = Counter(r.rule for r in report.rules)
    first = {r.rule: r for r in reversed(report.rules)}
    return [(f"{n}", rule, first[rule].identity) for rule, n in count.most_common()]


def _miss_cells(report: Report) -> list[tuple[str, ...]]:
    """What was nearly recognised and stayed as it is, such as a softmax between two products."""
    count = Counter((m.rule, m.reason) for m in report.missed_rules)
    first = {(m.rule, m.reason): m.where for m in reversed(report.missed_rules)}
    return [(f"{n}", rule, clipped(first[rule, why]), why)
            for (rule, why), n in count.most_common()]  # fmt: skip


def _kernel_cell(
    line: KernelLine, shape: Callable[[str], str], call_ns: float, is_measured: bool
) -> tuple[str, ...]:
    first, flops = line.kernels[0], line.total("flops")
    count = f"×{len(line.kernels)}" if len(line.kernels) > 1 else ""
    return (
        time_text(line.ns), f"{line.ns / call_ns:.1%}",
        *(_rates(line) if is_measured else ()),
        count, clipped(kernel_title(first)), clipped_shapes(shape(first.shape), NARROW),
        first.strategy,
        size_text(line.total("bytes")), flops_text(flops) if flops else "",
        clipped(line.where), f"k{first.id}",
    )  # fmt: skip


def _rates(line: KernelLine) -> tuple[str, ...]:
    """Bytes and arithmetic for each nanosecond, and how near that is to what the machine can do."""
    ns = max(line.ns, 1.0)
    least = sum((k.measured or {}).get("roofline_ns", 0.0) for k in line.kernels)
    return (
        time_text(line.total("predicted_ns")), f"{line.total('bytes') / ns:,.1f}",
        f"{line.total('flops') / ns:,.1f}", f"{least / ns:.0%}",
    )  # fmt: skip


def _advice(a: Advice) -> tuple[str, ...]:
    saves = time_text(a.predicted_ns) if a.predicted_ns else ""
    return saves, size_text(a.bytes_saved) if a.bytes_saved else "", a.text


def clipped(text: str, most: int = WIDEST) -> str:
    """A cell that may hold a long name."""
    return naming.clipped(text, most)
