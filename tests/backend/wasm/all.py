"""Every law and random graphs in WebAssembly, run by node.

    python -m tests.backend.wasm.all [--draws N] [--graphs N] [--only RE] [--kind simd | relaxed]

Each drawn application of an op is compiled, linked, run and judged as the fuzzer judges targets;
every second has all operands but the first as weights. One process of node runs them all. Nothing
is installed: without node the exit code is 2.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence

from rlx.core.errors import UnsupportedError
from rlx.fuzz.generate import grow
from rlx.fuzz.job import refused_ops
from rlx.fuzz.judge import Expected, compare
from rlx.ir.mir import Graph
from rlx.ops import op as table
from rlx.ops.op import Array
from tests.backend.gpu import laws
from tests.backend.wasm.engine import Engine, outputs, why_not

OPS = [o.name for o in table.table().values() if not o.why_no_cases]
PROGRESS_S = 30.0
LINE = 500
"""Characters of a finding."""
MAX_ELEMENTS = 1 << 22
"""Of all operands, which the reference has to read too."""
Case = tuple[Graph, Mapping[str, Array], str]
"""A graph, values of its inputs and params, and what is said of it beside a finding."""


def law(op: str, number: int) -> Case:
    """A drawn application of an op."""
    has_weights = number % 2 == 1
    drawn = laws.drawn(table.lookup(op), number, 1, MAX_ELEMENTS, has_weights=has_weights)
    (made,) = drawn
    return made.graph, made.values, f" in {made.case}"


def random_graph(seed: int, steps: int) -> Case:
    """Without what the CPU backend refuses, or leaves to Python."""
    grown = grow(seed, steps, {*refused_ops(["cpu"]), "custom"})
    return grown.graph, grown.values, ""


def found_wrong(engine: Engine, case: Case, kind: str) -> list[str]:
    """What is computed wrongly, in a line each."""
    graph, values, about = case
    got = outputs(engine, graph, values, kind)
    return [f"{m.message}{about}" for m in compare("wasm", Expected(graph, values), got)]


def _judged(engine: Engine, make: Callable[[], Case], kind: str) -> list[str] | UnsupportedError:
    """The same, with errors as findings."""
    try:
        return found_wrong(engine, make(), kind)
    except UnsupportedError as error:
        return error
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return [f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"]


Job = tuple[str, Callable[[], Case]]


def report(engine: Engine, what: str, jobs: Sequence[Job], args: argparse.Namespace) -> int:
    """How many jobs are wrong: a line for each, and how far it is now and then."""
    start = shown = time.monotonic()
    bad = done = refused = 0
    for label, make in jobs:
        got = _judged(engine, make, args.kind)
        if isinstance(got, UnsupportedError):
            refused += 1
            print(f"refused {label}: {' '.join(str(got).split())[:LINE]}", flush=True)
            got = list[str]()
        bad, done = bad + bool(got), done + 1
        for line in got:
            print(f"{label}: {line[:LINE]}", flush=True)
        now = time.monotonic()
        if now - start > args.seconds:
            break
        if now - shown > PROGRESS_S:
            shown = now
            print(f"… {done} of {len(jobs)} {what}, {now - start:.0f} s", flush=True)
    took = time.monotonic() - start
    print(
        f"{what}: {done} of {len(jobs)}, {bad} wrong, {refused} refused, {took:.0f} s", flush=True
    )
    return bad


def _laws(args: argparse.Namespace) -> Iterator[Job]:
    """Draw by draw, so that a limit of time leaves out the last draws."""
    for number in range(args.first, args.first + args.draws):
        for name in (o for o in OPS if re.search(args.only, o)):
            yield f"{name} {number}", lambda name=name, number=number: law(name, number)


def _graphs(args: argparse.Namespace) -> Iterator[Job]:
    for seed in range(args.first, args.first + args.graphs):
        yield f"graph {seed}", lambda seed=seed: random_graph(seed, args.steps)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 if all is right, 1 where something is not, 2 without node."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--draws", type=int, default=1, help="applications of each op (1)")
    add("--graphs", type=int, default=20, help="random graphs (20)")
    add("--first", type=int, default=0, help="number of the first of both (0); 2, 5, … are large")
    add("--steps", type=int, default=12, help="ops of a random graph (12)")
    add("--only", default="", help="ops whose names this expression finds (all)")
    add("--seconds", type=float, default=float("inf"), help="for laws, and again for graphs")
    add("--kind", default="simd", choices=("simd", "relaxed"), help="which module (simd)")
    args = parser.parse_args(argv)
    if missing := why_not():
        print(missing, file=sys.stderr)
        return 2
    engine = Engine()
    try:
        bad = report(engine, "laws", list(_laws(args)), args)
        bad += report(engine, "graphs", list(_graphs(args)), args) if args.graphs else 0
    finally:
        engine.close()
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
