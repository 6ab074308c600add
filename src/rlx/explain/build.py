"""The report of a compile, built from its result."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rlx._version import __version__
from rlx.backends.base import Backend, Steps
from rlx.core.dim import evaluate
from rlx.cost.decision import Decision
from rlx.cost.machine import Machine
from rlx.cost.profile import profile_plan_io
from rlx.cost.stable_id import Identities
from rlx.cost.target import Target
from rlx.cost.terms import Terms
from rlx.explain.advice import advise
from rlx.explain.ir_lines import line_of, source_of
from rlx.explain.priced_again import at_sizes
from rlx.explain.report import (
    NOT_NAMES,
    About,
    From,
    Report,
    ReportBuffer,
    ReportDecision,
    ReportKernel,
    ReportNode,
    RuleFired,
    RuleMissed,
    SourceNode,
    TargetFacts,
    Totals,
    Value,
)
from rlx.explain.roofline import least_ns
from rlx.ir.lir import BufferPlan, Phase, Space
from rlx.ir.mir import Node, Origin
from rlx.ir.outline import place_of, rows_of
from rlx.ir.plan_report import lives_of
from rlx.ir.states import is_state_update
from rlx.passes.bodies import bodies_of, nodes_within
from rlx.plan.alternatives import SPLIT
from rlx.plan.phases import mark_planned, phase_reasons
from rlx.plan.planner import plan_choices
from rlx.rules import all_rules
from rlx.rules.engine import Fired, Missed

if TYPE_CHECKING:
    from rlx.backends.code_facts import CodeFacts
    from rlx.pipeline import CompileResult, Timing


def report_of(
    result: CompileResult,
    more: Sequence[Decision] = (),
    backend: Backend | None = None,
    code: CodeFacts | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    model: Any = None,
    cached_rows: int | None = None,
) -> Report:
    """The report of a compile; `more` are decisions taken before it, such as by a front end.
    `backend` is what runs it, its target's own where none is given; `code` what its compiler says
    of it. Everything is counted at `sizes` of named dims, or at those that decisions were weighed
    at, which are priced again for others, of `model` where the result is of the cache;
    `cached_rows` is how many rows caches hold, all where that is not given."""
    from rlx.explain.kernel_notes import machine_of, runner_of, steps_of

    result = at_sizes(result, sizes, model)
    lir = result.lir
    mark_planned(lir.mir.graph, lir.plan.phases)  # as advice does, so that a second report is equal
    terms = Terms(lir.target, sizes=result.options.sizes, cached_rows=cached_rows)
    steps, runner = steps_of(lir, result.options, backend), runner_of(lir.target.name, backend)
    decisions = decisions_of(result, steps, more)
    buffers, at = _buffers(result)
    kernels = _kernels(result, terms, at, steps)
    fired, missed = _rules(result)
    return Report(
        model=_about(result, terms),
        target=_target(lir.target),
        options=_options(result),
        versions={"rlx": __version__},
        fingerprint=lir.fingerprint,
        graph=lir.mir.graph.digest(),
        totals=_totals(result, terms, kernels),
        fusion=_fusion(result),
        phases=_phases(kernels),
        source=tuple(
            SourceNode(i, r.op, r.shape, r.inputs, _origins(r.origins), r.name, r.inside)
            for i, r in enumerate(result.source_rows)
        ),
        nodes=_nodes(result, at),
        kernels=kernels,
        buffers=buffers,
        decisions=decisions,
        rules=fired,
        missed_rules=missed,
        advice=advise(result, terms, _sizes(result)),
        cuts=tuple(d.id for d in decisions if d.kind == "cut"),
        code=None if code is None else code.to_dict(),
        runner=runner,
        machine=machine_of(runner),
        timings={
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "passes": [_lap(t) for t in result.timings],
        },
    )


def _lap(timing: Timing) -> dict[str, Any]:
    return {"name": timing.name, "nodes": timing.nodes, "ns": timing.stop_ns - timing.start_ns}


# -- decisions ------------------------------------------------------------------------------------


def decisions_of(
    result: CompileResult, steps: Steps | None = None, more: Sequence[Decision] = ()
) -> tuple[ReportDecision, ...]:
    """Every decision but rules: of the passes, of the plan, and of the backend, in that order."""
    every, left = [*more, *result.decisions], dict(steps or {})
    for choice in plan_choices(result.lir, result.options):
        if choice.decision.what != SPLIT:
            every.append(choice.decision)
        elif choice.node in left:
            every += [_split(choice.decision, d) for d in left.pop(choice.node).decisions]
    names = Identities()
    for node, facts in left.items():  # loops, and the Prologue: the plan splits none of them
        every += [_named(d, node, names) for d in facts.decisions if d.what != SPLIT]
    return tuple(_decision(d) for d in every)


def _named(found: Decision, node: Node, names: Identities) -> Decision:
    id_ = names.id_of(found.what, (node,), lambda _: False)
    return replace(found, id=id_, where=(place_of(node),))


def _split(named: Decision, found: Decision) -> Decision:
    """The backend knows the verdict and the price; the plan the name."""
    if found.what != named.what:
        return replace(
            found, id=f"{found.what}{named.id.removeprefix(named.what)}", where=named.where
        )
    is_forced = named.reason == "forced" and found.is_reversible
    verdict, reason = (named.verdict, "forced") if is_forced else (found.verdict, found.reason)
    return replace(found, id=named.id, where=named.where, verdict=verdict, reason=reason)


def _decision(d: Decision) -> ReportDecision:
    return ReportDecision(
        d.id, d.kind, d.what, d.where, d.verdict, d.reason, d.predicted_ns, d.bytes_saved,
        d.launches_saved, d.is_reversible, group_of(d),
    )  # fmt: skip


def group_of(d: Decision) -> str:
    """The class of equivalent decisions: names that differ in numbers only, at the same price."""
    where = re.sub(r"\d+", "#", d.where[0] if d.where else "")
    sign = "+" if d.verdict else "-"
    return f"{sign}{d.what} {where} {d.predicted_ns:.0f} {d.bytes_saved} {d.launches_saved}"


def _rules(result: CompileResult) -> tuple[tuple[RuleFired, ...], tuple[RuleMissed, ...]]:
    known = {r.name: r for r in all_rules()}
    fired = [
        RuleFired(
            e.id, e.rule, e.identity, e.before, e.after,
            e.rule not in known or not known[e.rule].slack,
            known[e.rule].why if e.rule in known else "",
        )
        for e in result.rewrites if isinstance(e, Fired)
    ]  # fmt: skip
    applied = {(e.rule, e.before) for e in fired}  # in a later sweep
    missed = [RuleMissed(e.rule, e.where, e.reason) for e in result.rewrites
              if isinstance(e, Missed) and (e.rule, e.where) not in applied]  # fmt: skip
    return tuple(fired), tuple(dict.fromkeys(missed))


# -- facts ----------------------------------------------------------------------------------------


def _about(result: CompileResult, terms: Terms) -> About:
    graph = result.lir.mir.graph
    number = {node: i for i, node in enumerate(graph.order())}
    outputs = zip(graph.output_names, graph.outputs)
    return About(
        result.lir.name,
        tuple(Value(n.attrs["name"], str(n.shape), number[n]) for n in graph.inputs),
        tuple(Value(name, str(node.shape), number[node]) for name, node in outputs),
        len(graph.params),
        sum(terms.bytes_of(n.shape) for n in graph.params),
        _sizes(result),
    )


def claims_of(target: Target) -> str:
    """A hash of what a target can do, whatever it costs."""
    return replace(target, machine=Target.of("cpu").machine).digest()


def _target(target: Target) -> TargetFacts:
    machine = target.machine
    return TargetFacts(
        target.name,
        target.digest(),
        claims_of(target),
        asdict(machine.gate),
        tuple({"bytes": c.bytes, "gb_s": c.gb_s} for c in machine.caches),
        {str(k): v for k, v in sorted(machine.peak_gflops.items(), key=lambda p: p[0].value)},
        machine.vector_bytes,
        machine.transpose_gb_s,
    )


def _options(result: CompileResult) -> dict[str, Any]:
    options, policy = result.options, result.options.policy
    return {
        "skip_fusion": options.skip_fusion,
        "limits": options.limits and asdict(options.limits),
        "dispatch": policy.mode,
        "force_common": sorted(policy.force_common),
        "force_native": sorted(policy.force_native),
        "force": dict(sorted(options.force.items())),
        "precision": options.precision,
        "sizes": dict(sorted(options.sizes.items())),
        "f64": options.f64,
        "one_of": list(options.one_of),
        "at_end": options.at_end if options.at_end is None else list(options.at_end),
        "alignment": result.lir.plan.alignment,
    }


def _fusion(result: CompileResult) -> dict[str, Any]:
    counts = asdict(result.fusion)
    counts.pop("missed")
    return counts


def _sizes(result: CompileResult) -> dict[str, int]:
    """Of named dims: what everything is counted at."""
    plan = result.lir.plan
    asked = {k: v for k, v in result.options.sizes.items() if k in plan.representative}
    return {**plan.representative, **asked}


def _totals(result: CompileResult, terms: Terms, kernels: Iterable[ReportKernel]) -> Totals:
    plan = result.lir.plan
    profile = profile_plan_io(result.lir, terms)
    calls = [k for k in kernels if k.phase != Phase.PROLOGUE.name.lower()]
    return Totals(
        kernels=len(calls),
        launches=profile.kernel_launches,
        sync_points=profile.sync_points,
        traffic_bytes=sum(k.bytes for k in calls),
        output_bytes=profile.host_output_bytes,
        flops=sum(k.flops for k in calls),
        predicted_ns=sum(k.predicted_ns for k in calls),
        arena_bytes=evaluate(plan.arena_formula, _sizes(result)),
        unshared_bytes=sum(
            evaluate(slot.size, _sizes(result))
            for slot in plan.assignments.values()
            if slot.space is Space.ARENA
        ),
        weight_bytes=plan.weight_bytes,
    )


def _phases(kernels: Iterable[ReportKernel]) -> dict[str, tuple[int, ...]]:
    held: dict[str, list[int]] = {p.name.lower(): [] for p in Phase}
    for kernel in kernels:
        held[kernel.phase].append(kernel.id)
    return {phase: tuple(ids) for phase, ids in held.items()}


# -- nodes, kernels, buffers ----------------------------------------------------------------------


def _origins(origins: Iterable[Origin]) -> tuple[From, ...]:
    return tuple(From(o.kind, o.text) for o in origins)


def names_of(node: Node) -> tuple[str, ...]:
    """The user's names of a node and of what is inside it."""
    within = [n for body in bodies_of(node) for n in nodes_within(body)]
    found = [o for n in (*within, node) for o in n.origins]
    return tuple(dict.fromkeys(str(o) for o in found if o.kind not in NOT_NAMES))


def ops_of(node: Node) -> tuple[str, ...]:
    """The ops that a kernel computes: those inside a region, or its own."""
    bodies = bodies_of(node)
    if not bodies:
        return (node.op,)
    within = [n for body in bodies for n in nodes_within(body)]
    return tuple(n.op for n in within if not n.is_leaf and n.op != "item")


def _nodes(result: CompileResult, at: Mapping[Node, int]) -> tuple[ReportNode, ...]:
    plan, nodes = result.lir.plan, result.lir.mir.graph.order()
    step = {node: i for i, node in enumerate(plan.schedule)}
    number = {node: i for i, node in enumerate(nodes)}
    made: list[ReportNode] = []
    for i, (node, row) in enumerate(zip(nodes, rows_of(nodes))):
        buffer = None if node.has_items else at.get(plan.root(node))
        made.append(ReportNode(
            i, row.op, row.shape, row.inputs, _origins(row.origins), row.name,
            plan.phases[node].name.lower(), step.get(node), buffer, line_of(node, number),
        ))  # fmt: skip
    return tuple(made)


def _kernels(
    result: CompileResult, terms: Terms, at: Mapping[Node, int], steps: Steps
) -> tuple[ReportKernel, ...]:
    plan, graph = result.lir.plan, result.lir.mir.graph
    number = {node: i for i, node in enumerate(graph.order())}
    items: dict[Node, list[Node]] = {}
    for node in plan.phases:
        if node.op == "item":
            items.setdefault(node.inputs[0], []).append(node)
    made: list[ReportKernel] = []
    reasons = phase_reasons(result.lir, plan.schedule)
    for step, node in enumerate(plan.schedule):
        size, flops = terms.kernel(node).device_traffic_bytes, terms.flops_of(node)
        facts, dtype = steps.get(node), node.shapes[0].dtype
        written = items.get(node, []) if node.has_items else [node]
        made.append(ReportKernel(
            step, f"k{step} {_title(node)}", node.op, ops_of(node), number[node], names_of(node),
            ", ".join(map(str, node.shapes)), plan.phases[node].name.lower(),
            tuple(dict.fromkeys(at[plan.root(i)] for i in node.inputs)),
            tuple(dict.fromkeys(at[plan.root(w)] for w in written)),
            size, flops, str(dtype), predicted_ns(terms.target.machine, size, flops, node),
            source_of(node, number), facts.strategy if facts else "", facts.tasks if facts else (),
            weight_bytes=_bytes_in(Space.WEIGHTS, node, plan, terms),
            state_bytes=_bytes_in(Space.STATE, node, plan, terms),
            phase_reason=reasons[node],
        ))  # fmt: skip
    return tuple(made)


def _bytes_in(space: Space, node: Node, plan: BufferPlan, terms: Terms) -> int:
    """What a kernel reads of weights, or reads and writes of states."""
    held = ((plan.assignments[plan.root(i)].space, n) for i, n in terms.reads(node).items())
    read = sum(n for each, n in held if each is space)
    is_written = space is Space.STATE and is_state_update(node)
    return read + (terms.bytes_of(node.inputs[1].shape) if is_written else 0)


def predicted_ns(machine: Machine, size: int, flops: int, node: Node) -> float:
    """A launch, and the longer of the bytes and the arithmetic: the roofline."""
    return machine.gate.dispatch_ns + least_ns(machine, size, flops, node.shapes[0].dtype)


def _title(node: Node) -> str:
    ops = ops_of(node)
    shown = " ".join(ops[:4]) + (" …" if len(ops) > 4 else "")
    return node.op if ops == (node.op,) else f"{node.op}({shown})"


def _buffers(result: CompileResult) -> tuple[tuple[ReportBuffer, ...], dict[Node, int]]:
    plan = result.lir.plan
    birth, death = lives_of(plan)
    names: dict[Node, list[str]] = {}
    for node in plan.phases:
        if not node.has_items:
            names.setdefault(plan.root(node), []).append(node.label)
    at = {node: i for i, node in enumerate(plan.assignments)}
    made: list[ReportBuffer] = []
    sizes = _sizes(result)
    last = len(plan.schedule)
    for node, i in at.items():
        slot = plan.assignments[node]
        over = plan.in_place.get(node)
        is_arena = slot.space is Space.ARENA
        made.append(ReportBuffer(
            i, slot.space.value, evaluate(slot.offset, sizes),
            evaluate(slot.size, sizes),
            birth.get(node, -1) if is_arena else -1, death.get(node, last) if is_arena else last,
            tuple(names.get(node, [node.label])), slot.is_external,
            None if over is None else at[plan.root(over)],
        ))  # fmt: skip
    return tuple(made), at
