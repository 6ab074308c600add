"""Advice: what only the user can change, priced by the same gate as everything else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rlx.cost.gate import FusionBenefit
from rlx.cost.terms import READS_ROWS, Terms
from rlx.dtype import DType
from rlx.explain.report import Advice
from rlx.ir.lir import Phase
from rlx.ir.mir import Node, topological, users_of
from rlx.passes.bodies import bodies_of
from rlx.passes.reasons import HINTS, WAITS_FOR_ITSELF

if TYPE_CHECKING:
    from rlx.pipeline import CompileResult

MOST_OUTPUTS = 16
"""Outputs that are priced one by one."""
MOST_NODES = 4000
"""A graph of more is not planned again for the sake of advice."""
LEAST_WEIGHT_BYTES = 1 << 16
"""Fewer stay in the nearest caches, whatever their dtype."""


def advise(result: CompileResult, terms: Terms) -> tuple[Advice, ...]:
    """What the user could change, the most valuable first."""
    found = [*_outputs(result, terms), *_dtypes(result, terms), *_dims(result), *_misses(result)]
    return tuple(sorted(found, key=lambda a: (-a.predicted_ns, -a.bytes_saved, a.text)))


def _outputs(result: CompileResult, terms: Terms) -> Iterator[Advice]:
    """Dropping one output: its readback, and the kernels that nothing else needs."""
    graph, plan = result.lir.mir.graph, result.lir.plan
    outputs = dict(zip(graph.output_names, graph.outputs))
    if not 2 <= len(outputs) <= MOST_OUTPUTS:
        return
    per_call = {k for k in plan.schedule if plan.phases[k] is not Phase.PROLOGUE}
    for name, node in outputs.items():
        others = [o for o in outputs.values() if o is not node]
        if len(others) + 1 < len(outputs):  # another output is the same value
            continue
        kept = set(topological(others))
        gone = [n for n in topological([node]) if n in per_call and n not in kept]
        benefit = _benefit(terms, gone, terms.bytes_of(node.shape))
        ns = terms.target.gate.score_ns(benefit)
        kernels = f" and {len(gone)} kernels" if len(gone) > 1 else ""
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
    """Half as many bytes of weights; f64 that may be f32."""
    plan, target = result.lir.plan, terms.target
    read: dict[Node, int] = {}
    for kernel in plan.schedule:
        if plan.phases[kernel] is Phase.PROLOGUE:
            continue
        for i, operand in enumerate(kernel.inputs):
            weight = plan.root(operand)
            if _is_weight(weight, plan.phases) and not _is_table(kernel, i):
                read[weight] = terms.bytes_of(weight.shape)
    by_dtype: dict[DType, int] = {}
    for node, size in read.items():
        by_dtype[node.shape.dtype] = by_dtype.get(node.shape.dtype, 0) + size
    wide = by_dtype.get(DType.F32, 0)
    if wide >= LEAST_WEIGHT_BYTES and result.options.precision is None:
        saved = wide // 2
        ns = saved / target.memory_gb_s(wide)
        text = f"a call reads {wide:,} bytes of f32 weights: precision='bf16' halves them"
        yield Advice("narrower_weights", (), text, ns, saved, 0)
    doubles = [n for n in result.lir.mir.graph.leaves if n.shape.dtype is DType.F64]
    if doubles:
        size = sum(terms.bytes_of(n.shape) for n in doubles)
        names = tuple(n.attrs["name"] for n in doubles[:4])
        text = f"{len(doubles)} inputs or weights are f64: in f32 they are half as large"
        ns = size / 2 / target.memory_gb_s(size)
        yield Advice("narrower_dtype", names, text, ns, size // 2, 0)


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


def _dims(result: CompileResult) -> Iterator[Advice]:
    """Fixing named dims: the plan becomes tight."""
    plan, graph = result.lir.plan, result.lir.mir.graph
    if not plan.dynamic_symbols or len(graph.nodes) > MOST_NODES:
        return
    tight = result.specialize(plan.representative).lir.plan
    saved = plan.arena_bytes - tight.arena_bytes
    if saved <= 0:
        return
    names = tuple(d.name for d in plan.dynamic_symbols)
    sizes = ", ".join(f"{k}={v}" for k, v in plan.representative.items())
    text = f"fix {', '.join(names)} if they never change: at {sizes} the arena shrinks"
    yield Advice("fix_dims", names, text, 0.0, saved, 0)


def _misses(result: CompileResult) -> Iterator[Advice]:
    """Fusions that failed on something in the model, with what would mend it; alike ones once."""
    told: dict[tuple[str, str], list[int]] = {}
    for i, d in enumerate(result.decisions):
        is_miss = d.kind == "fusion" and not d.verdict and d.reason in HINTS
        if is_miss and d.reason != WAITS_FOR_ITSELF:
            told.setdefault((d.what, d.reason), []).append(i)
    for (what, reason), places in told.items():
        held = [result.decisions[i] for i in places]
        text = f"{HINTS[reason]}: {what} fails, as {reason}"
        where = tuple(dict.fromkeys(w for d in held for w in d.where[:1]))
        yield Advice(
            "mend_fusion", where, text, sum(d.predicted_ns for d in held),
            sum(d.bytes_saved for d in held), sum(d.launches_saved for d in held),
        )  # fmt: skip
