"""Every law and random graphs on a whole-graph engine.

    python -m tests.backend.engine.all --target mlx|tpu [--draws N] [--graphs N] [--only RE]
    python -m tests.backend.engine.all --target mlx --fused 20

Each drawn application of an op is compiled, run twice and judged as the fuzzer judges targets;
every second has all operands but the first as weights, so that the Prologue runs, too. Jobs run
in child processes, so that a crash or a hang loses one of them. mlx's Linux build runs a C++
compiler for each kernel that it fuses, which takes most of the time: `--fused` says how many laws
and graphs, evenly spread, have fused kernels.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlx.backends.engine.backend import EngineBackend
from rlx.backends.engine.program import EngineProgram
from rlx.backends.engine.steps import HostStep, each_step
from rlx.backends.registry import find_backend
from rlx.core.dtype import DType
from rlx.core.errors import UnsupportedError
from rlx.fuzz.generate import Grown, grow
from rlx.fuzz.judge import Expected, compare
from rlx.fuzz.states import ends_of, grow_states, judge_calls, judge_phases, opened
from rlx.fuzz.workers import Lost, each
from rlx.ir.mir import Graph
from rlx.ops import op as table
from rlx.pipeline import CompilePipeline
from tests.backend.gpu import laws

Array = np.ndarray[Any, Any]
OPS = [o.name for o in table.table().values() if not o.why_no_cases]
PROGRESS_S = 30.0
LINE = 500
"""Characters of a finding."""
GRAPH = "graph"
STATES = "states"
MLX = "mlx"
FLUSHING = ("tpu",)
"""Targets that take subnormal numbers for 0 and give 0 for them, as XLA on processors does."""
CALLS = 2
"""The second call finds all functions compiled."""


@dataclass(frozen=True, slots=True)
class Job:
    """A drawn application of an op, or the random graph of a seed, perhaps with states, on a
    target."""

    target: str
    name: str
    number: int
    steps: int
    is_fused: bool = True
    """Does mlx make one kernel of several ops?"""

    @property
    def label(self) -> str:
        return f"{self.name} {self.number}"


@dataclass(frozen=True, slots=True)
class Judged:
    """What was found: lines of what is wrong, and the ops that the host ran."""

    lines: tuple[str, ...] = ()
    hosted: tuple[str, ...] = ()
    refused: str = ""


def backend_of(target: str) -> EngineBackend:
    name, _, variant = target.partition(":")
    found = find_backend(name).configured(variant, None)
    assert isinstance(found, EngineBackend), f"{target} is no engine"
    return found


def outputs(program: EngineProgram, graph: Graph, values: Mapping[str, Array]) -> list[Array]:
    """What the last call gives."""
    params = {n.attrs["name"]: np.asarray(values[n.attrs["name"]]) for n in graph.params}
    weights = program.prepare(params, None)
    inputs = [np.asarray(values[n.attrs["name"]]) for n in graph.inputs]
    made: list[Array] = []
    for _ in range(CALLS):
        made = program.run(weights, inputs, [None] * len(graph.outputs))
    return made


def flushed(array: Array) -> Array:
    """The same with 0 for subnormal numbers."""
    made = np.array(array, order="C")
    parts = _parts(made)
    parts[_is_subnormal(parts)] = 0
    return made


def unflushed(got: Array, want: Array) -> Array:
    """What was got, with the subnormal numbers that are wanted where it is 0."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return got
    made = np.array(got, order="C")
    parts, wanted = _parts(made), _parts(np.ascontiguousarray(want))
    lost = _is_subnormal(wanted) & (parts == 0)
    parts[lost] = wanted[lost]
    return made


def _parts(array: Array) -> Array:
    """Its numbers in a row; of complex ones both parts."""
    flat = array.reshape(-1)
    return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat


def _is_subnormal(parts: Array) -> Array:
    """Below the least normal number of what its dtype computes in."""
    dtype = DType.of(parts.dtype).compute
    if not dtype.is_float:
        return np.zeros(parts.shape, bool)
    size = np.abs(parts.astype(np.float64))
    return (size > 0) & (size < float(np.finfo(dtype.numpy).tiny))


def set_fusion(is_fused: bool) -> None:
    """Of mlx, in this process."""
    import mlx.core

    mx: Any = mlx.core
    (mx.enable_compile if is_fused else mx.disable_compile)()


def found_wrong(job: Job) -> Judged:
    if job.target == MLX:
        set_fusion(job.is_fused)
    if job.name == STATES:
        return _wrong_calls(job)
    if job.name == GRAPH:
        grown, about = grow(job.number, job.steps), ""
        graph, values = grown.graph, grown.values
    else:
        has_weights = job.number % 2 == 1
        (made,) = laws.drawn(table.lookup(job.name), job.number, 1, has_weights=has_weights)
        graph, values, about = made.graph, made.values, f" in {made.case}"
    backend = backend_of(job.target)
    is_flushing = backend.name in FLUSHING
    values = {k: flushed(v) for k, v in values.items()} if is_flushing else values
    program = backend.compile(CompilePipeline(backend.target()).compile(graph).lir)
    expected, got = Expected(graph, values), outputs(program, graph, values)
    if is_flushing:
        got = [unflushed(g, w) for g, w in zip(got, expected.plain)]
    found = compare(job.target, expected, got)
    lines = tuple(m.message + about for m in found)
    steps = (*program.steps.prologue(program.steps.prologue_nodes), *program.steps.call)
    hosts = [s.node.op for s in each_step(steps) if isinstance(s, HostStep)]
    return Judged(lines, tuple(dict.fromkeys(hosts)))


def _wrong_calls(job: Job) -> Judged:
    """The same of calls of a session."""
    backend, grown = backend_of(job.target), grow_states(job.number)
    is_flushing = backend.name in FLUSHING
    if is_flushing:
        grown = Grown(grown.graph, {k: flushed(v) for k, v in grown.values.items()})
    session = opened(backend, grown, ends_of(grown.graph))
    found = judge_calls(job.target, grown, session, unflushed if is_flushing else None)
    found += judge_phases(job.target, grown, session)
    return Judged(tuple(f"{m.output}: {m.message}" for m in found))


def judged(job: Job) -> Judged:
    """The same, with errors as findings."""
    try:
        return found_wrong(job)
    except UnsupportedError as error:
        return Judged(refused=str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Judged((f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})",))


def report(what: str, jobs: Sequence[Job], args: argparse.Namespace) -> int:
    """How many jobs are wrong: a line for each, and how far it is now and then."""
    start = shown = time.monotonic()
    bad = done = refused = 0
    hosted: dict[str, int] = {}
    for job, got in zip(jobs, each(judged, jobs, args.jobs)):
        found = Judged((got.reason,)) if isinstance(got, Lost) else got
        bad, done, refused = bad + bool(found.lines), done + 1, refused + bool(found.refused)
        if found.refused:
            print(f"refused {job.label}: {' '.join(found.refused.split())[:LINE]}", flush=True)
        for line in found.lines:
            print(f"{job.label}: {line[:LINE]}", flush=True)
        for op in found.hosted:
            hosted[op] = hosted.get(op, 0) + 1
        now = time.monotonic()
        if now - start > args.seconds:
            break
        if now - shown > PROGRESS_S:
            shown = now
            print(f"… {done} of {len(jobs)} {what}, {now - start:.0f} s", flush=True)
    if hosted:
        listed = ", ".join(f"{op} ×{n}" for op, n in sorted(hosted.items(), key=lambda r: -r[1]))
        print(f"run by the host: {listed}", flush=True)
    took = time.monotonic() - start
    print(
        f"{what}: {done} of {len(jobs)}, {bad} wrong, {refused} refused, {took:.0f} s", flush=True
    )
    return bad


def _laws(args: argparse.Namespace) -> Iterator[Job]:
    """Draw by draw, so that a limit of time leaves out the last draws."""
    names = [o for o in OPS if re.search(args.only, o)]
    if args.dtypes:
        for name in names:
            numbers = laws.one_of_each_dtype(table.lookup(name), args.dtypes)
            yield from (Job(args.target, name, n, 0) for n in numbers)
        return
    for number in range(args.first, args.first + args.draws):
        yield from (Job(args.target, name, number, 0) for name in names)


def spread(jobs: Sequence[Job], fused: int | None) -> list[Job]:
    """As many fused as asked for, at even distances; all of them where nothing is asked."""
    if fused is None:
        return list(jobs)
    count = min(fused, len(jobs))
    chosen = {i * len(jobs) // count for i in range(count)}
    return [replace(job, is_fused=i in chosen) for i, job in enumerate(jobs)]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 if all is right, 1 where something is not, 2 without the engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--target", required=True, help="mlx, tpu, or a variant of them")
    add("--draws", type=int, default=1, help="applications of each op (1)")
    add(
        "--dtypes",
        type=int,
        default=0,
        metavar="N",
        help="of N applications of each op, one of each dtype, instead of --draws",
    )
    add("--graphs", type=int, default=20, help="random graphs (20)")
    add("--states", type=int, default=10, help="random graphs with states (10)")
    add("--first", type=int, default=0, help="number of the first of both (0); 2, 5, … are large")
    add("--steps", type=int, default=12, help="ops of a random graph (12)")
    add("--only", default="", help="ops whose names this expression finds (all)")
    add("--fused", type=int, metavar="N", help="of laws, and of graphs; on mlx alone (all)")
    add("--seconds", type=float, default=float("inf"), help="for laws, and for each kind of graph")
    add("--jobs", type=int, default=1, help="processes")
    args = parser.parse_args(argv)
    if args.fused is not None and args.target != MLX:
        parser.error("--fused is for --target mlx: others have no such choice")
    if missing := backend_of(args.target).missing():
        print(f"{missing.reason}: {missing.command}", file=sys.stderr)
        return 2
    laws_asked = spread(list(_laws(args)), args.fused) if args.draws or args.dtypes else []
    bad = report("laws", laws_asked, args) if laws_asked else 0
    for what, name, count in (
        ("graphs", GRAPH, args.graphs),
        ("graphs with states", STATES, args.states),
    ):
        numbers = range(args.first, args.first + count)
        graphs = [Job(args.target, name, n, args.steps) for n in numbers]
        bad += report(what, spread(graphs, args.fused), args) if graphs else 0
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
