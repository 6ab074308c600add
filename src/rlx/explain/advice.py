"""Advice: what only the user can change, priced by the same gate as everything else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rlx.core.dim import evaluate
from rlx.core.dtype import DType
from rlx.core.units import counted, size_text
from rlx.cost.decision import Decision
from rlx.cost.gate import FusionBenefit
from rlx.cost.terms import READS_ROWS, Terms
from rlx.explain.report import Advice
from rlx.explain.roofline import least_ns
from rlx.ir.lir import Phase
from rlx.ir.mir import Node, topological, users_of
from rlx.passes.bodies import bodies_of
from rlx.passes.fusion.reasons import HINTS

if TYPE_CHECKING:
    from rlx.pipeline import CompileResult

MOST_OUTPUTS = 16
"""Outputs that are priced one by one."""
MOST_NODES = 4000
"""A graph of more is not planned again for the sake of advice."""
LEAST_SHARE = 0.002
"""Of a call's time, or of the arena: less is not worth a user's."""
NOTHING = "nothing"
"""How hints begin that say so."""
MAIN_SHARE = 0.5
"""An output that takes more of a call's time is what the model is for."""


def advise(result: CompileResult, terms: Terms, sizes: Mapping[str, int]) -> tuple[Advice, ...]:
    """What the user could change and would notice at these sizes, the most valuable first."""
    found = [
        *_outputs(result, terms),
        *_dtypes(result, terms),
        *_doubles(result, terms),
        *_dims(result, sizes),
        *_misses(result),
    ]
    least_ns = LEAST_SHARE * sum(_ns(terms, k) for k in _per_call(result))
    least_bytes = LEAST_SHARE * evaluate(result.lir.plan.arena_formula, sizes)
    worth = [
        a for a in found
        if (a.predicted_ns >= least_ns if a.predicted_ns else a.bytes_saved >= least_bytes)
    ]  # fmt: skip
    return tuple(sorted(worth, key=lambda a: (-a.predicted_ns, -a.bytes_saved, a.text)))


def _per_call(result: CompileResult) -> list[Node]:
    plan = result.lir.plan
    return [k for k in plan.schedule if plan.phases[k] is not Phase.PROLOGUE]


def _ns(terms: Terms, kernel: Node, fewer_bytes: int = 0) -> float:
    """What a kernel takes, with so many bytes less to move."""
    size = max(0, terms.kernel(kernel).device_traffic_bytes - fewer_bytes)
    least = least_ns(terms.target.machine, size, terms.flops_of(kernel), kernel.shapes[0].dtype)
    return terms.target.gate.dispatch_ns + least


def _outputs(result: CompileResult, terms: Terms) -> Iterator[Advice]:
    """Dropping one output: its readback, and the kernels that nothing else needs."""
    graph = result.lir.mir.graph
    outputs = dict(zip(graph.output_names, graph.outputs))
    if not 2 <= len(outputs) <= MOST_OUTPUTS:
        return
    took = {k: _ns(terms, k) for k in _per_call(result)}
    for name, node in outputs.items():
        others = [o for o in outputs.values() if o is not node]
        if len(others) + 1 < len(outputs):  # another output is the same value
            continue
        kept = set(topological(others))
        gone = [n for n in topological([node]) if n in took and n not in kept]
        if sum(took[n] for n in gone) > MAIN_SHARE * sum(took.values()):
            continue
        benefit = _benefit(terms, gone, terms.bytes_of(node.shape))
        ns = terms.target.gate.score_ns(benefit)
        kernels = f" and {counted(len(gone), 'kernel')}" if gone else ""
        text = f"drop the output {name!r} if nobody reads it: its copy{kernels} would go"
        traffic = benefit.device_traffic_bytes_saved + benefit.host_readback_bytes_saved
        yield Advice("drop_output", (name,), text, ns, traffic, benefit.launches_saved)


def _benefit(terms: Terms, gone: Iterable[Node], readback: int) -> FusionBenefit:
    profiles = [terms.kernel(n) for n in gone]
    return FusionBenefit(
        len(profiles),
        sum(p.sync_points for p in profiles),
        readback,
        sum(p.device_traffic_bytes for p in profiles),
    )


def _dtypes(result: CompileResult, terms: Terms) -> Iterator[Advice]:
    """Half as many bytes of weights, where a kernel is memory-bound."""
    if result.options.precision is not None:
        return
    plan = result.lir.plan
    read: dict[Node, int] = {}
    ns = 0.0
    for kernel in _per_call(result):
        weights = {
            w: terms.bytes_of(w.shape)
            for i, w in enumerate(map(plan.root, kernel.inputs))
            if _is_weight(w, plan.phases) and w.shape.dtype is DType.F32
            and not _is_table(kernel, i)
        }  # fmt: skip
        ns += _ns(terms, kernel) - _ns(terms, kernel, sum(weights.values()) // 2)
        read |= weights
    wide = sum(read.values())
    text = f"a call reads {size_text(wide)} of f32 weights: precision='bf16' halves them"
    if ns > 0:
        yield Advice("narrower_weights", (), text, ns, wide // 2, 0)


def _doubles(result: CompileResult, terms: Terms) -> Iterator[Advice]:
    """Inputs and weights of f64 that may be f32."""
    found = [n for n in result.lir.mir.graph.leaves if n.shape.dtype is DType.F64]
    if found:
        size = sum(terms.bytes_of(n.shape) for n in found)
        names = tuple(n.attrs["name"] for n in found[:4])
        listed = f"{', '.join(names)}{', …' if len(found) > 4 else ''}"
        text = f"{listed} {'are' if len(found) > 1 else 'is'} f64: in f32 it is half as large"
        ns = size / 2 / terms.target.machine.memory_gb_s(size)
        yield Advice("narrower_dtype", names, text, ns, size // 2, 0)


def _fused_anyway(result: CompileResult) -> set[str]:
    """Labels of what is in one kernel with what it reads first."""
    graph = result.lir.mir.graph
    inside = [n for k in graph.order() for body in bodies_of(k) for n in body.order()]
    return {n.label for n in inside if n.inputs and not n.inputs[0].is_leaf}


def _is_weight(node: Node, phases: Mapping[Node, Phase]) -> bool:
    """A param, or what follows from params alone; constants are the model's own numbers."""
    if node.is_leaf:
        return node.op == "param"
    return phases[node] is Phase.PROLOGUE


def _is_table(kernel: Node, number: int) -> bool:
    """Does the kernel read only some rows of the operand?"""
    if not bodies_of(kernel):
        return kernel.op in READS_ROWS and number == 0
    if not kernel.op.endswith("region"):  # bodies of loops and branches take operands of their own
        return False
    given = bodies_of(kernel)[0].inputs[number]
    readers = users_of(bodies_of(kernel)[0].order())[given]
    return bool(readers) and all(r.op in READS_ROWS and r.inputs[0] is given for r in readers)


def _dims(result: CompileResult, sizes: Mapping[str, int]) -> Iterator[Advice]:
    """Fixing named dims: the plan becomes tight."""
    plan, graph = result.lir.plan, result.lir.mir.graph
    if not graph.dynamic_symbols or len(graph.nodes) > MOST_NODES:
        return
    tight = result.specialize(sizes).lir.plan
    saved = evaluate(plan.arena_formula, sizes) - tight.arena_bytes
    if saved <= 0:
        return
    names = tuple(d.name for d in graph.dynamic_symbols)
    fixed = ", ".join(f"{n}={sizes[n]}" for n in names)
    change = "they never change" if len(names) > 1 else "it never changes"
    text = f"fix {', '.join(names)} if {change}: at {fixed} the arena shrinks"
    yield Advice("fix_dims", names, text, 0.0, saved, 0)


def _misses(result: CompileResult) -> Iterator[Advice]:
    """Fusions that failed on something in the model, with what would fix it; equal ones once.
    Nodes that another fusion put into one kernel are no misses."""
    missed: dict[tuple[str, str], list[Decision]] = {}
    fused = _fused_anyway(result)
    for d in result.decisions:
        hint = HINTS.get(d.reason, NOTHING)
        is_miss = d.kind == "fusion" and not d.verdict and not hint.startswith(NOTHING)
        if is_miss and not fused.issuperset(d.where[:1]):
            missed.setdefault((d.what, d.reason), []).append(d)
    for (what, reason), held in missed.items():
        first, *rest = dict.fromkeys(d.where[0] for d in held)
        more = f" and {len(rest)} more" if rest else ""
        text = f"{HINTS[reason]}: {what} fails at {first}{more}, as {reason}"
        yield Advice(
            "mend_fusion", (first, *rest), text, sum(d.predicted_ns for d in held),
            sum(d.bytes_saved for d in held), sum(d.launches_saved for d in held),
        )  # fmt: skip
