"""A fuzzing job: one graph generated from a seed, checked, and reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rlx.core.errors import UnsupportedError
from rlx.core.shape import Shape
from rlx.cost.target import FusionTarget
from rlx.fuzz.generate import Grown, grow
from rlx.fuzz.judge import Mismatch, judge
from rlx.ir.mir import Graph
from rlx.ops import op as table
from rlx.ops.draw import Draw
from rlx.ops.op import Op
from rlx.runtime.session import Session

Judge = Callable[[Grown], list[Mismatch]]


@dataclass(frozen=True, slots=True)
class Job:
    """A seed, and who is to be judged by its graph."""

    seed: int
    steps: int = 12
    targets: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()
    """Ops that none of the graphs may have."""
    sides: tuple[str, ...] = ()
    """Where guard pages touch the buffers of the native code."""
    is_large: bool = False
    """Do sizes fill vectors and tiles?"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the graph was made of, and what is wrong."""

    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    found: tuple[str, ...]
    refusal: str = ""


def verdict(job: Job) -> Verdict:
    """Every pipeline and backend of the job, judged."""
    if job.sides:
        return reported(job, lambda grown: _guarded(grown, job))
    return reported(job, lambda g: judge(g, [FusionTarget(t) for t in job.targets], job.backends))


def _guarded(grown: Grown, job: Job) -> list[Mismatch]:
    from rlx.fuzz.guard_pages import Side, judge_guarded

    sides = [Side(s) for s in job.sides]
    variants = [b.partition(":")[2] or "host" for b in job.backends]
    return [m for v in variants for m in judge_guarded(grown, v, sides)]


def reported(job: Job, judged: Judge) -> Verdict:
    """Any error is a finding, but for a target that says what it cannot do."""
    grown = grow(job.seed, job.steps, job.without, is_large=job.is_large)
    nodes = grown.graph.order()
    ops = tuple(n.op for n in nodes)
    dtypes = tuple(s.dtype.value for n in nodes for s in n.shapes)
    try:
        found = [f"{m.target}: {m.output}: {m.message}" for m in judged(grown)]
    except UnsupportedError as error:
        return Verdict(ops, dtypes, (), str(error))
    except Exception as error:
        found = [f"{type(error).__name__}: {error}"]
    return Verdict(ops, dtypes, tuple(found))


def refused_ops(backends: Iterable[str]) -> frozenset[str]:
    """Ops that one of the backends refuses, or whose decomposition into simpler ops has such."""
    refused = {op for b in backends for op in Session(b).target.refusals}
    if not refused:
        return frozenset()
    decomposed = {o.name: _decomposed(o) for o in table.table().values() if not o.why_no_cases}
    while grown := [n for n, ops in decomposed.items() if n not in refused and ops & refused]:
        refused.update(grown)
    return frozenset(refused)


def _decomposed(op: Op) -> frozenset[str]:
    """The ops of one application's lowering."""
    if op.lower is None:
        return frozenset()
    case = Draw([0x5EED]).case(op)
    graph = Graph(op.name)
    shapes = [Shape(s.dims, s.dtype) for s in case.specs]
    inputs = [graph.input(f"x{i}", s) for i, s in enumerate(shapes)]
    attrs = op.canonical(case.attrs, shapes)
    try:
        graph.set_outputs(list(op.lowered(inputs, attrs, graph)))
    except UnsupportedError:
        return frozenset()
    return frozenset(n.op for n in graph.order())
