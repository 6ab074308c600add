"""Why: one node followed through the levels, from the user's name to bytes and time."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.core.errors import Error, InputError
from rlx.core.units import counted, flops_text, size_text, time_text
from rlx.explain.report import (
    NOT_NAMES,
    From,
    Report,
    ReportBuffer,
    ReportDecision,
    ReportKernel,
    ReportNode,
    RuleFired,
    RuleMissed,
    SourceNode,
)
from rlx.explain.text import clipped
from rlx.explain.text_table import aligned
from rlx.ir.outline import names_in

PHASES = {
    "prologue": "once, when weights are set",
    "steady_state": "every call",
    "epilogue": "at the end of a call",
}


_FUNCTION = re.compile(r"\bf\d+\b")
"""A function of native code, as the schedule of a kernel names it."""


@dataclass(frozen=True, slots=True)
class Why:
    """All that there is to say about what goes by one name."""

    name: str
    blocks: tuple[str, ...]
    """The blocks it is part of, and where it was written."""
    source: tuple[SourceNode, ...]
    """Ops before any pass."""
    rules: tuple[RuleFired, ...]
    missed_rules: tuple[RuleMissed, ...]
    decisions: tuple[ReportDecision, ...]
    nodes: tuple[ReportNode, ...]
    """Nodes of the final graph that it is in."""
    kernels: tuple[ReportKernel, ...]
    buffers: tuple[ReportBuffer, ...]

    def __str__(self) -> str:
        return why_text(self)


def follow(report: Report, name: str) -> Why:
    """What became of `name`: a front end's node, a block, a source line, a leaf, an output, a
    decision's id, or a kernel such as `k12`; where nothing is called so, the kernels of that op or
    kind, such as `gru` or `GEMM`, or that run a function such as `f7`."""
    wanted = _tags(report, name)
    source = [n for n in report.source if wanted & _tags_of(n.origins, n.name)]
    named = [k for k in report.kernels if _is_in(k, name, wanted)]
    of_kind = [k for k in report.kernels if name.casefold() in _kinds(k)]
    kernels = named or ([] if source else of_kind)
    held = {k.node for k in kernels}
    nodes = [n for n in report.nodes
             if n.id in held or wanted & _tags_of(n.origins, n.name)]  # fmt: skip
    if not (source or kernels or nodes):
        raise _unknown(report, name)
    used = {n.buffer for n in nodes} | {b for k in kernels for b in (*k.reads, *k.writes)}
    own = {t for k in kernels if _is_named(k, name) for t in k.where}
    return Why(
        name,
        tuple(dict.fromkeys(_full_name(o) for n in (*source, *nodes) for o in n.origins
                            if o.kind not in NOT_NAMES)),
        tuple(source),
        tuple(r for r in report.rules if _concerns((r.before, r.after), wanted, own)),
        tuple(m for m in report.missed_rules if _concerns((m.where,), wanted, own)),
        tuple(d for d in report.decisions if d.id == name or _concerns(d.where, wanted, own)),
        tuple(nodes),
        tuple(kernels),
        tuple(b for b in report.buffers if b.id in used),
    )  # fmt: skip


def _full_name(origin: From) -> str:
    return origin.text if origin.kind == "line" else f"{origin.kind} {origin.text}"


def _tags_of(origins: Iterable[From], name: str) -> set[str]:
    return {name, *(_full_name(o) for o in origins if o.kind not in NOT_NAMES)} - {""}


def _tags(report: Report, name: str) -> set[str]:
    """The origins that a name means: in full, without its kind, or the blocks below it."""
    found = {name} if name in dict(_names(report)) else set[str]()
    for tag, plain in _names(report):
        if name in (tag, plain) or plain.startswith((f"{name}.", f"{name}/")):
            found.add(tag)
    if found:
        return found
    for node in (v.node for v in report.model.outputs if v.name == name):
        found |= _tags_of(report.nodes[node].origins, report.nodes[node].name)
    labels = [w for d in report.decisions if d.id == name for w in d.where]
    return found | {tag for tag, _ in _names(report) if _mentions(labels, {tag})}


def _names(report: Report) -> Iterator[tuple[str, str]]:
    """(in full, without its kind) of every name that the user may know."""
    seen: dict[tuple[str, str], None] = {}
    for node in (*report.source, *report.nodes):
        if node.name:
            seen[node.name, node.name] = None
        for origin in node.origins:
            if origin.kind not in NOT_NAMES:
                seen[_full_name(origin), origin.text] = None
    for kernel in report.kernels:
        seen |= dict.fromkeys((w, w.partition(" ")[2] or w) for w in kernel.where)
    yield from seen


def _is_named(kernel: ReportKernel, name: str) -> bool:
    return name in (f"k{kernel.id}", kernel.name)


def _is_in(kernel: ReportKernel, name: str, wanted: set[str]) -> bool:
    return _is_named(kernel, name) or not wanted.isdisjoint(kernel.where)


def _kinds(kernel: ReportKernel) -> set[str]:
    """Its ops, what it runs as, and its functions."""
    functions = (f for line in kernel.schedule for f in _FUNCTION.findall(line))
    return {n.casefold() for n in (kernel.op, *kernel.ops, kernel.strategy, *functions)} - {""}


def _mentions(places: Iterable[str], tags: set[str]) -> bool:
    return any(place in tags or not tags.isdisjoint(names_in(place)) for place in places)


def _concerns(places: Sequence[str], wanted: set[str], own: set[str]) -> bool:
    """Is one of some places called by a wanted name, or by the names of a kernel and no others?"""
    inside = any(own.issuperset(names_in(place)) or place in own for place in places)
    return _mentions(places, wanted) or (bool(own) and inside)


def _unknown(report: Report, name: str) -> Error:
    kinds = (n for k in report.kernels for n in (k.op, *k.ops, k.strategy) if n)
    plain = [*(plain for _, plain in _names(report)), *kinds]
    known = list(dict.fromkeys([*plain, *(f"k{k.id}" for k in report.kernels)]))
    folded = {k.casefold(): k for k in reversed(known)}
    wanted = name.casefold()
    inside = [k for fold, k in reversed(folded.items()) if wanted and wanted in fold]
    close = (folded[f] for f in difflib.get_close_matches(wanted, folded, 3, 0.6))
    near = list(dict.fromkeys([*inside, *close]))[:3]
    hint = f"Did you mean {', '.join(near)}?" if near else f"It has {', '.join(known[:3])}, …"
    return InputError(f"{report.model.name}: there is no node or kernel {name!r}. {hint}")


def _became(found: Why) -> str:
    """Ops of the model and the kernels they are in; of a kernel itself, what it computes."""
    kernels = counted(len(found.kernels), "kernel")
    if found.source:
        return f"{counted(len(found.source), 'op')} became part of {kernels}"
    return f"{kernels} of {counted(sum(len(k.ops) for k in found.kernels), 'op')}"


def _rewritten(r: RuleFired) -> tuple[str, ...]:
    return r.rule, clipped(r.before), "→", clipped(r.after), r.identity


def why_text(found: Why) -> str:
    """The levels one below the other."""
    parts = [
        f"{found.name}: {_became(found)}",
        *_part("part of", [(b,) for b in found.blocks if b != found.name]),
        *_part("ops", [(f"#{n.id}", n.op, n.shape) for n in found.source]),
        *_part("rewrites", [_rewritten(r) for r in found.rules]),
        *_part("nearly", [(m.rule, clipped(m.where), m.reason) for m in found.missed_rules]),
        *_part("decisions", _decision_rows(found.decisions)),
        *(line for k in found.kernels for line in _kernel(k)),
        *_part("buffers", [_bytes(b) for b in found.buffers]),
    ]
    return "\n".join(parts) + "\n"


def _part(title: str, rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    lines = aligned([("",) * len(rows[0]), *rows])[1:]
    return [f"{title}:", *(f"  {line}" for line in lines)]


def _decision_rows(decisions: Sequence[ReportDecision]) -> list[tuple[str, ...]]:
    """By effect; those that say the same in one row, with the id of the first."""
    held: dict[tuple[Any, ...], list[ReportDecision]] = {}
    for d in decisions:
        held.setdefault((d.verdict, d.what, d.reason), []).append(d)
    groups = sorted(held.values(), key=lambda same: -abs(sum(d.predicted_ns for d in same)))
    return [_decision_row(same) for same in groups]


def _decision_row(same: Sequence[ReportDecision]) -> tuple[str, ...]:
    first, total = same[0], sum(d.predicted_ns for d in same)
    saves = time_text(total) if total else ""
    count = f"×{len(same)}" if len(same) > 1 else ""
    return "taken" if first.verdict else "refused", saves, count, first.what, first.reason, first.id


def _kernel(k: ReportKernel) -> list[str]:
    took = k.measured.get("median_ns") if k.measured else None
    measured = f", measured {time_text(took)}" if took is not None else ""
    how = f", as {k.strategy}" if k.strategy else ""
    return [
        f"kernel {k.name} ({PHASES[k.phase]}): {size_text(k.bytes)} of traffic, "
        f"{flops_text(k.flops)}, predicted "
        f"{time_text(k.predicted_ns)}{measured}{how}",
        *(f"  {line}" for line in k.source.splitlines()),
        *(f"  {line}" for line in k.schedule),
    ]


def _bytes(b: ReportBuffer) -> tuple[str, ...]:
    first = "start" if b.first < 0 else str(b.first)
    over = f"over buffer {b.over}" if b.over is not None else "external" if b.is_external else ""
    names = ", ".join(b.names[:3]) + (", …" if len(b.names) > 3 else "")
    return (
        f"{b.id}",
        f"{b.bytes:,}",
        f"{b.space} +{b.offset:,}",
        f"steps {first}..{b.last}",
        over,
        names,
    )
