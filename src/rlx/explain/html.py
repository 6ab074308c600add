"""The report as one page that needs nothing else: styles, code and facts in one file.

What is drawn is laid out here, so that the page only shows it, and is the same for the same report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

from rlx.explain.graph_drawing import Card, neighbours, placed
from rlx.explain.text import size_text, time_text
from rlx.explain.trace import CALLS, COMPILE, TIMED_BUILD, thread_name
from rlx.ops.op import Kind, table

if TYPE_CHECKING:
    from rlx.explain.report import Report, ReportBuffer, ReportDecision, ReportKernel
    from rlx.explain.trace import Event, Trace

SCRIPTS = (
    "base", "overview", "graph", "arena", "decisions", "roofline", "trace", "start",
)  # fmt: skip
KINDS = (
    "matmuls", "elementwise", "convolutions", "attention", "norms and reductions", "data movement",
    "FFT, sort, recurrence", "control flow and others",
)  # fmt: skip
_KIND_OF = {
    Kind.CONTRACTION: 0, Kind.ELEMENTWISE: 1, Kind.CONVOLUTION: 2, Kind.ATTENTION: 3, Kind.ROW: 4,
    Kind.REDUCTION: 4, Kind.MOVEMENT: 5, Kind.SPECIAL: 6,
}  # fmt: skip
_ANCHORS = (0, 2, 3, 6, 4, 1, 5)
"""A region is of the kind of its first op in this order."""
MOST_OPS_SHOWN = 4


def page_of(report: Report, trace: Trace | None = None) -> str:
    """The whole page."""
    page = resources.files("rlx.explain") / "page"
    script = "\n".join((page / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    return Template((page / "page.html").read_text("utf-8")).substitute(
        title=_escaped(f"{report.model.name}: rlx report"),
        style=(page / "page.css").read_text("utf-8"),
        script=script,
        data=_embedded(facts_of(report, trace)),
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _embedded(facts: Mapping[str, Any]) -> str:
    """JSON that ends no script element, whatever names a model has."""
    text = json.dumps(facts, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def facts_of(report: Report, trace: Trace | None = None) -> dict[str, Any]:
    """What the page shows."""
    links = _links(report)
    cards = [_card(k) for k in report.kernels]
    spots, size = placed(cards, links)
    sources: dict[str, int] = {}
    touching = _touching(report.decisions)
    above, below = neighbours(len(cards), links)
    kernels = [
        {**_kernel(k, spot, sources, touching), "ins": above[k.id], "outs": below[k.id]}
        for k, spot in zip(report.kernels, spots)
    ]
    cut = set(report.cuts)
    makers = {b: k.id for k in reversed(report.kernels) for b in k.writes}
    arena = [b for b in report.buffers if b.space == "arena"]
    return {
        "title": report.model.name,
        "about": _about(report),
        "facts": _figures(report),
        "gate": report.timings.get("gate", ""),
        "kinds": KINDS,
        "kernels": kernels,
        "edges": links,
        "size": {"w": size[0], "h": size[1]},
        "sources": list(sources),
        "steps": len(report.kernels),
        "arena_bytes": report.totals.arena_bytes,
        "buffers": [_buffer(b, makers) for b in arena],
        "phases": _phases(report),
        "decisions": [_decision(i, d) for i, d in enumerate(report.decisions)],
        "advice": [{"text": a.text, "where": a.where, "ns": a.predicted_ns} for a in report.advice],
        "cuts": [{"where": d.where, "reason": d.reason} for d in report.decisions if d.id in cut],
        "roofs": _roofs(report),
        "trace": _tracks(trace, report) if trace else [],
    }


# -- the head -------------------------------------------------------------------------------------


def _about(report: Report) -> str:
    sizes = "".join(f", {k} = {v}" for k, v in report.model.sizes.items())
    return f"for {report.target.name}{sizes}, by rlx {report.versions['rlx']}"


def _figures(report: Report) -> list[tuple[str, str]]:
    totals = report.totals
    took = [k.measured["median_ns"] for k in report.kernels if k.measured]
    timed = [("measured in kernels, a call", time_text(sum(took)))] if took else []
    taken = sum(d.verdict for d in report.decisions)
    return [
        ("nodes as given", f"{len(report.source):,}"),
        ("kernels a call", f"{totals.kernels:,}"),
        *timed,
        ("predicted, a call", time_text(totals.predicted_ns)),
        ("memory traffic a call", size_text(totals.traffic_bytes)),
        ("arena", size_text(totals.arena_bytes)),
        ("buffers without aliasing", size_text(totals.unshared_bytes)),
        ("weights", size_text(totals.weight_bytes)),
        ("decisions taken", f"{taken:,} of {len(report.decisions):,}"),
        ("rewrites", f"{len(report.rules):,}"),
    ]


def _phases(report: Report) -> list[dict[str, Any]]:
    kernels = {k.id: k for k in report.kernels}
    rows: list[dict[str, Any]] = []
    for name, ids in report.phases.items():
        own = [kernels[i] for i in ids]
        took = sum(_time_of(k) for k in own)
        size = sum(k.bytes for k in own)
        rows.append({"name": name, "kernels": len(own), "bytes": size, "ns": took})
    return rows


def _time_of(kernel: ReportKernel) -> float:
    return kernel.measured["median_ns"] if kernel.measured else kernel.predicted_ns


def _roofs(report: Report) -> dict[str, Any] | None:
    peak = max(report.target.peak_gflops.values(), default=0.0)
    peak = report.target.peak_gflops.get("f32", peak)
    levels = [
        {"name": "memory" if c["bytes"] is None else size_text(int(c["bytes"])), "gb_s": c["gb_s"]}
        for c in _levels(report)
    ]
    return {"gflops": peak, "levels": levels} if peak and levels else None


def _levels(report: Report) -> list[dict[str, Any]]:
    beyond = report.target.gate.get("memory_gb_s")
    own: list[dict[str, Any]] = [dict(c) for c in report.target.caches]
    return [*own, {"bytes": None, "gb_s": beyond}] if beyond else own


# -- kernels --------------------------------------------------------------------------------------


def _links(report: Report) -> list[tuple[int, int]]:
    """From each kernel to those that read what it writes."""
    made: dict[int, int] = {}
    found: dict[tuple[int, int], None] = {}
    for k in report.kernels:
        for buffer in k.reads:
            if buffer in made and made[buffer] != k.id:
                found[made[buffer], k.id] = None
        made.update(dict.fromkeys(k.writes, k.id))
    return list(found)


def _card(kernel: ReportKernel) -> Card:
    return Card(_title(kernel), _lines(kernel), kernel.phase == "prologue")


def _title(kernel: ReportKernel) -> str:
    names = dict.fromkeys(kernel.ops)
    anchors = [n for a in _ANCHORS for n in names if _kind(n) == a]
    return kernel.op if kernel.op not in ("region", "elementwise_region") else _joined(anchors)


def _joined(anchors: Sequence[str]) -> str:
    rest = len(anchors) - 1
    return f"{anchors[0]} + {rest}" if rest > 0 else anchors[0] if anchors else "region"


def _lines(kernel: ReportKernel) -> tuple[str, ...]:
    """The ops inside, runs of the same one counted."""
    runs: list[tuple[str, int]] = []
    for op in kernel.ops if len(kernel.ops) > 1 else ():
        again = runs and runs[-1][0] == op
        runs = [*runs[:-1], (op, runs[-1][1] + 1)] if again else [*runs, (op, 1)]
    lines = [op if n == 1 else f"{op} ×{n}" for op, n in runs]
    if len(lines) > MOST_OPS_SHOWN:
        lines = [*lines[: MOST_OPS_SHOWN - 1], f"and {len(lines) - MOST_OPS_SHOWN + 1} more"]
    name = kernel.where[0] if kernel.where else ""
    return (*lines, *((name[-26:],) if name else ()))


def _kind(op: str) -> int:
    row = table().get(op)
    return _KIND_OF.get(row.kind, 7) if row else 7


def _kind_of(kernel: ReportKernel) -> int:
    kinds = {_kind(op) for op in (kernel.ops or (kernel.op,))}
    return next((a for a in _ANCHORS if a in kinds), 7)


def _kernel(
    kernel: ReportKernel,
    spot: tuple[float, float, float, float],
    sources: dict[str, int],
    touching: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    x, y, width, height = spot
    own = dict.fromkeys(i for name in kernel.where for i in touching.get(name, ()))
    took = kernel.measured
    return {
        "i": kernel.id, "step": kernel.id, "title": _title(kernel), "op": kernel.op,
        "kind": _kind_of(kernel), "lines": _lines(kernel), "ops": kernel.ops,
        "where": kernel.where, "shape": kernel.shape, "phase": kernel.phase,
        "bytes": kernel.bytes, "flops": kernel.flops, "predicted_ns": kernel.predicted_ns,
        "measured_ns": took["median_ns"] if took else None,
        "roofline_share": took.get("roofline_share") if took else None,
        "more": [["strategy", kernel.strategy], *(["schedule", s] for s in kernel.schedule)],
        "decisions": list(own)[:40],
        "source": sources.setdefault(kernel.source, len(sources)) if kernel.source else None,
        "find": " ".join((kernel.name, kernel.op, *kernel.ops, *kernel.where)).lower(),
        "x": x, "y": y, "w": width, "h": height,
    }  # fmt: skip


# -- buffers, decisions, trace --------------------------------------------------------------------


def _buffer(buffer: ReportBuffer, makers: Mapping[int, int]) -> dict[str, Any]:
    notes = ["the caller's memory"] if buffer.is_external else []
    notes += ["in place, over an operand"] if buffer.over is not None else []
    return {
        "name": ", ".join(buffer.names[:4]), "offset": buffer.offset, "bytes": buffer.bytes,
        "from": max(0, buffer.first), "to": max(0, buffer.last), "note": "; ".join(notes),
        "kernel": makers.get(buffer.id),
    }  # fmt: skip


def _touching(decisions: Sequence[ReportDecision]) -> dict[str, list[int]]:
    """Which decisions are about each name."""
    found: dict[str, list[int]] = {}
    for i, decision in enumerate(decisions):
        for name in decision.where:
            found.setdefault(name, []).append(i)
    return found


def _decision(index: int, d: ReportDecision) -> dict[str, Any]:
    took = d.measured
    return {
        "i": index, "group": d.group, "what": d.what, "where": d.where,
        "verdict": d.verdict, "reason": d.reason,
        "ns": d.predicted_ns, "bytes": d.bytes_saved, "launches": d.launches_saved,
        "measured": {"ns": took["measured_ns"], "low": took["low_ns"], "high": took["high_ns"]}
        if took else None,
        "find": " ".join((d.what, d.kind, d.reason, *d.where)).lower(),
    }  # fmt: skip


def _tracks(trace: Trace, report: Report) -> list[dict[str, Any]]:
    """Compile and calls, each a plot with a track for each thread. The instrumented build is not
    part of the program: it may have been compiled much later."""
    titles = {COMPILE: "Compiling", CALLS: "Calls"}
    groups: dict[int, list[Event]] = {}
    for event in trace.events:
        if event.category != TIMED_BUILD:
            groups.setdefault(event.process, []).append(event)
    return [_group(titles[p], events, report) for p, events in sorted(groups.items())]


def _add(track: list[dict[str, Any]], span: dict[str, Any]) -> None:
    """One more span; what a thread does of a kernel without a break, in parts, is one."""
    last = track[-1] if track else None
    if last is None or span["kernel"] is None or span["kernel"] != last["kernel"]:
        track.append(span)
        return
    last["ns"] = span["start"] + span["ns"] - last["start"]
    last["parts"] += 1


def _group(name: str, events: Sequence[Event], report: Report) -> dict[str, Any]:
    first = min(e.start_ns for e in events)
    called = [k.id for k in report.kernels if k.phase != "prologue"]
    tracks: dict[int, list[dict[str, Any]]] = {}
    for e in events:
        step = dict(e.args).get("step")
        span = {
            "name": e.name, "start": e.start_ns - first, "ns": e.stop_ns - e.start_ns,
            "kernel": called[step] if isinstance(step, int) and step < len(called) else None,
            "parts": 1,
        }  # fmt: skip
        _add(tracks.setdefault(e.thread, []), span)
    length = max(e.stop_ns for e in events) - first
    process = events[0].process
    rows = [{"name": thread_name(process, t), "spans": s} for t, s in sorted(tracks.items())]
    return {"name": name, "ns": length, "tracks": rows}
