"""The report as one page that needs nothing else: styles, code and facts in one file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

from rlx.core.units import counted, flops_text, size_text, time_text
from rlx.explain.measured_text import predicted_text
from rlx.explain.memory_floor import PART_COLUMNS, floor_of, part_rows, step_text
from rlx.explain.naming import kernel_title
from rlx.explain.op_families import ANCHORS, FAMILIES, INT8_PRODUCTS, family_of_all
from rlx.explain.page_graph import kernel_graph, source_graph, weights_of
from rlx.explain.shapes import sized
from rlx.explain.text import headline, kernel_groups, op_count, runner_text
from rlx.explain.trace import CALLS, COMPILE, TIMED_BUILD, thread_name

if TYPE_CHECKING:
    from rlx.explain.report import Report, ReportBuffer, ReportDecision, ReportKernel
    from rlx.explain.trace import Event, Trace

SCRIPTS = (
    "base", "state", "groups", "tables", "exports", "charts", "layout", "cards", "pane", "details",
    "overview", "graph", "kernels", "memory", "decisions", "roofline", "trace", "search", "start",
)  # fmt: skip


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
    sources: dict[str, int] = {}
    shown = sized(report)
    touching = _touching(report.decisions)
    groups = kernel_groups(report.kernels)
    cut = set(report.cuts)
    makers = {b: k.id for k in reversed(report.kernels) for b in k.writes}
    arena = [b for b in report.buffers if b.space == "arena"]
    return {
        **_head(report),
        "kinds": FAMILIES,
        "anchors": ANCHORS,
        "kernels": [
            _kernel(report, k, shown(k.shape), sources, touching) | {"group": groups[k.id]}
            for k in report.kernels
        ],
        "graph": kernel_graph(report),
        "model": source_graph(report),
        "sources": list(sources),
        "steps": len(report.kernels),
        "arena_bytes": report.totals.arena_bytes,
        "buffers": [_buffer(b, makers) for b in arena],
        "phases": _phases(report),
        "decisions": [_decision(d) for d in report.decisions],
        "advice": [{"text": a.text, "where": a.where, "ns": a.predicted_ns} for a in report.advice],
        "cuts": [{"where": d.where, "reason": d.reason} for d in report.decisions if d.id in cut],
        "roofs": _roofs(report),
        "trace": _tracks(trace, report) if trace else [],
    }


# -- the head -------------------------------------------------------------------------------------


def _head(report: Report) -> dict[str, Any]:
    shown = sized(report)
    return {
        "title": report.model.name,
        "headline": headline(report),
        "call": {"ns": report.timings.get("call_ns"), "predicted_ns": report.totals.predicted_ns},
        "about": _about(report),
        "facts": _figures(report),
        "inputs": [[v.name, v.shape, shown(v.shape)] for v in report.model.inputs],
        "outputs": [[v.name, v.shape, shown(v.shape)] for v in report.model.outputs],
        "gate": report.timings.get("gate", ""),
        "step": _step(report),
    }


def _step(report: Report) -> dict[str, Any] | None:
    """Of a language model's step: its parts against the memory floor."""
    if report.step is None:
        return None
    columns = ["share of kernel time" if c == "share" else c for c in PART_COLUMNS]
    return {
        "text": step_text(report).split("\n"), "columns": columns, "rows": part_rows(report),
        "gb_s": floor_of(report).gb_s,
    }  # fmt: skip


def _about(report: Report) -> list[tuple[str, str]]:
    """Where and how it was compiled."""
    machine, threads = report.machine, report.machine.get("threads")
    sizes = ", ".join(f"{k} = {v}" for k, v in report.model.sizes.items())
    date = str(report.timings.get("date", "")).replace("T", " ").replace("+00:00", " UTC")
    return [
        (name, value)
        for name, value in (
            ("target", report.target.name),
            ("machine", f"{machine['processor']}, {counted(machine['cores'], 'core')}, "
             f"{machine['system']}" if machine else ""),
            ("runs on", _runs_on(report)),
            ("threads", str(threads) if threads else ""),
            ("named dims", sizes),
            ("date", date),
            ("compiler", f"rlx {report.versions['rlx']}"),
        )
        if value
    ]  # fmt: skip


def _runs_on(report: Report) -> str:
    """What runs it, where that is not the target's own code alone."""
    runner, more = report.runner, runner_text(report)
    return more if runner.is_target else f"{runner.name}: {runner.why}"


def _figures(report: Report) -> list[tuple[str, str]]:
    totals, took = report.totals, report.timings.get("call_ns")
    return [
        *([("measured per call", time_text(took))] if took else []),
        (f"{predicted_text(report)} per call", time_text(totals.predicted_ns)),
        ("kernels per call", f"{totals.kernels:,}"),
        ("ops of the model", f"{op_count(report):,}"),
        ("memory traffic per call", size_text(totals.traffic_bytes)),
        ("arithmetic per call", flops_text(totals.flops)),
        ("arena", size_text(totals.arena_bytes)),
        ("arena without buffer reuse", size_text(totals.unshared_bytes)),
        ("weights", size_text(totals.weight_bytes)),
    ]


def _phases(report: Report) -> list[dict[str, Any]]:
    kernels = {k.id: k for k in report.kernels}
    rows: list[dict[str, Any]] = []
    for name, ids in report.phases.items():
        own = [kernels[i] for i in ids]
        took = sum(k.ns for k in own)
        size = sum(k.bytes for k in own)
        rows.append({"name": name, "kernels": len(own), "bytes": size, "ns": took})
    return rows


def _roofs(report: Report) -> dict[str, Any] | None:
    peaks = report.target.peak_gflops
    first = "f32" if "f32" in peaks else next(iter(peaks), "")
    levels = [
        {"name": f"{_cache(i, report)} ({size_text(c['bytes'])})", "gb_s": c["gb_s"]}
        for i, c in enumerate(report.target.caches)
    ]
    beyond = report.target.gate.get("memory_gb_s")
    levels += [{"name": "memory", "gb_s": beyond}] if beyond else []
    return {"dtype": first, "peaks": peaks, "levels": levels} if peaks and levels else None


def _cache(number: int, report: Report) -> str:
    """Nearest first; of one alone only its place is known."""
    return f"L{number + 1} cache" if len(report.target.caches) > 1 else "last-level cache"


# -- kernels --------------------------------------------------------------------------------------


def _arithmetic(kernel: ReportKernel) -> str:
    """The dtype of its sums of products, which may be narrower than its result."""
    return "i8" if INT8_PRODUCTS & {kernel.op, *kernel.ops} else kernel.dtype


def _kernel(
    report: Report,
    kernel: ReportKernel,
    shape: str,
    sources: dict[str, int],
    touching: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    own = dict.fromkeys(i for name in kernel.where for i in touching.get(name, ()))
    took = kernel.measured
    return {
        "title": kernel_title(kernel), "op": kernel.op,
        "kind": family_of_all(kernel.ops or (kernel.op,)),
        "ops": kernel.ops, "where": kernel.where, "shape": shape,
        "formula": kernel.shape if kernel.shape != shape else "", "phase": kernel.phase,
        "bytes": kernel.bytes, "flops": kernel.flops, "arithmetic": _arithmetic(kernel),
        "predicted_ns": kernel.predicted_ns,
        "weight_bytes": kernel.weight_bytes, "state_bytes": kernel.state_bytes,
        "part": kernel.part,
        "measured_ns": took["median_ns"] if took else None,
        "roofline_share": took.get("roofline_share") if took else None,
        "strategy": kernel.strategy, "schedule": kernel.schedule,
        "weights": weights_of(report, kernel.id), "decisions": list(own)[:40],
        "source": sources.setdefault(kernel.source, len(sources)) if kernel.source else None,
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


def _decision(d: ReportDecision) -> dict[str, Any]:
    took = d.measured
    return {
        "group": d.group.rsplit(" ", 3)[0], "what": d.what, "kind": d.kind, "where": d.where,
        "verdict": d.verdict, "reason": d.reason,
        "ns": d.predicted_ns, "bytes": d.bytes_saved, "launches": d.launches_saved,
        "measured": {"ns": took["measured_ns"], "low": took["low_ns"], "high": took["high_ns"],
                     "count": took["class_size"]}
        if took else None,
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
