"""Reports and programs as HTML for notebooks: a summary that fits below a cell.

The whole page of a report is `rlx explain --html`, or `rlx.explain.html.page_of(report)`. Colours
are those of the notebook, so that both of its themes can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from rlx.core.units import counted, flops_text, size_text, time_text
from rlx.explain.naming import kernel_title
from rlx.explain.text import KernelLine, decision_section, headline, kernel_lines

if TYPE_CHECKING:
    from rlx.explain.report import Report
    from rlx.runtime.executable import Executable

MOST = 8
"""Kernels and decisions of a summary."""
CELL = "text-align:left;padding:2px 10px 2px 0"
NUMBER = "text-align:right;padding:2px 10px 2px 0;white-space:nowrap"
BAR = (
    "display:inline-block;height:.7em;background:#4a80cc;border-radius:2px;margin-right:6px;"
    "width:{width:.0f}px"
)


def report_html(report: Report) -> str:
    """What a call takes, of which kernels, by which decisions."""
    t, values = report.totals, report.model
    shapes = [("input", v.name, v.shape) for v in values.inputs]
    shapes += [("output", v.name, v.shape) for v in values.outputs]
    memory = (
        f"arena {size_text(t.arena_bytes)}, weights {size_text(t.weight_bytes)}; per call "
        f"{size_text(t.traffic_bytes)} of traffic, {flops_text(t.flops)}"
    )
    others = [d for d in report.decisions if d.kind != "schedule"]
    decisions = decision_section("decisions", others, MOST)
    return "".join([
        f"<div><p><b>{escape(headline(report))}</b><br>{escape(memory)}</p>",
        _kernels(kernel_lines(report)),
        _folded("inputs and outputs", table_html(("", "name", "shape"), shapes)),
        _folded("decisions", table_html(decisions.columns, decisions.rows, decisions.note)),
        "</div>",
    ])  # fmt: skip


def _kernels(lines: Sequence[KernelLine]) -> str:
    total = sum(x.ns for x in lines) or 1.0
    rows = [
        f"<tr><td style='{NUMBER}'>{time_text(x.ns)}</td><td style='{CELL}'>"
        f"<span style='{BAR.format(width=120 * x.ns / total)}'></span>{x.ns / total:.1%}</td>"
        f"<td style='{CELL}'>{escape(kernel_title(x.kernels[0]))}{_times(x)}</td>"
        f"<td style='{CELL}'>{escape(x.where)}</td></tr>"
        for x in lines[:MOST]
    ]
    rest = lines[MOST:]
    left = sum(len(x.kernels) for x in rest)
    more = f"<p>and {left:,} more, {time_text(sum(x.ns for x in rest))}</p>" if rest else ""
    return f"<table>{''.join(rows)}</table>{more}"


def _times(line: KernelLine) -> str:
    return f" ×{len(line.kernels)}" if len(line.kernels) > 1 else ""


def executable_html(exe: Executable) -> str:
    """What can be called, with which arrays, and what it needs."""
    rows = [("input", name, str(shape)) for name, shape in exe.inputs.items()]
    rows += [("output", name, str(shape)) for name, shape in exe.outputs.items()]
    runner = exe.backend.runner()
    on = exe.lir.target.name if runner.is_target else f"{runner.name} ({runner.why})"
    threads = f", {counted(runner.threads, 'thread')}" if runner.threads else ""
    missing = exe.missing_params
    weights = f"{len(exe.params):,} weights"
    weights += f", {len(missing):,} of them not set" if missing else ""
    head = f"{exe.name} on {on}{threads}"
    plan = exe.lir.plan
    dims = ", ".join(plan.representative)
    arena = f"an arena that follows {dims}" if dims else f"arena {size_text(plan.arena_bytes)}"
    return (
        f"<div><p><b>{escape(head)}</b><br>{weights}, {size_text(plan.weight_bytes)}; {arena}</p>"
        f"{table_html(('', 'name', 'shape'), rows)}</div>"
    )


def table_html(columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """A table of texts."""
    head = "".join(f"<th style='{CELL}'>{escape(c)}</th>" for c in columns)
    body = "".join(
        f"<tr>{''.join(f'<td style={CELL!r}>{escape(c)}</td>' for c in row)}</tr>" for row in rows
    )
    more = f"<p>{escape(note)}</p>" if note else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{title}</summary>{inside}</details>"
