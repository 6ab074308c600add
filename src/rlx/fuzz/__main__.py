"""`python -m rlx.fuzz`: random graphs through every pipeline, with the op coverage."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from rlx import op as table
from rlx.cost.target import FusionTarget
from rlx.errors import Error
from rlx.fuzz.grow import grow
from rlx.fuzz.judge import judge
from rlx.runtime.session import Session

LEAST = 20
Job = tuple[int, int, tuple[str, ...], tuple[str, ...]]


def _one(job: Job) -> tuple[int, list[str], list[str]]:
    """One graph: its seed, the ops in it, and what is wrong with it."""
    seed, steps, targets, backends = job
    grown = grow(seed, steps)
    used = [n.op for n in grown.graph.order()]
    try:
        found = judge(grown, [FusionTarget(t) for t in targets], backends)
    except Error as error:
        return seed, used, [f"{type(error).__name__}: {error}"]
    return seed, used, [f"{m.target}: {m.output}: {m.message}" for m in found]


def _results(jobs: list[Job], workers: int) -> Iterator[tuple[int, list[str], list[str]]]:
    if workers == 1:
        yield from map(_one, jobs)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(_one, jobs, chunksize=8)


def main(argv: list[str] | None = None) -> int:
    """Exit 0 if all agree and all ops occurred, 1 if not."""
    parser = argparse.ArgumentParser(
        "python -m rlx.fuzz",
        description=__doc__,
        epilog="example: python -m rlx.fuzz --graphs 200 --backend cpu",
    )
    parser.add_argument("--graphs", type=_count, default=200, help="how many graphs (200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--steps", type=_count, default=12, help="ops drawn for a graph (12)")
    parser.add_argument("--jobs", type=_count, default=2, help="processes (2)")
    parser.add_argument(
        "--targets",
        type=_targets,
        default=",".join(t.value for t in FusionTarget),
        help="whose pipelines, by name (all seven)",
    )
    parser.add_argument(
        "--backend",
        type=_backends,
        default=(),
        help="judge these backends' own code instead of the pipelines' plans, such as cpu,cpu:avx2",
    )
    args = parser.parse_args(argv)
    targets = () if args.backend else args.targets
    jobs = [(args.first + i, args.steps, targets, args.backend) for i in range(args.graphs)]
    coverage: Counter[str] = Counter()
    wrong = 0
    for done, (seed, used, found) in enumerate(_results(jobs, args.jobs), 1):
        coverage.update(used)
        wrong += bool(found)
        for line in found:
            print(f"seed {seed}: {line}", flush=True)
        if sys.stderr.isatty():
            print(f"\r{done}/{args.graphs} graphs, {wrong} wrong", end="", file=sys.stderr)
    return _summary(coverage, args.graphs, wrong)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _targets(text: str) -> tuple[str, ...]:
    known = [t.value for t in FusionTarget]
    for name in text.split(","):
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of: {', '.join(known)}")
    return tuple(text.split(","))


def _backends(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        try:
            Session(name)
        except Error as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return names


def _summary(coverage: Counter[str], graphs: int, wrong: int) -> int:
    counts = {name: coverage[name] for name in table.table()}
    for name, count in sorted(counts.items(), key=lambda kv: (kv[1], kv[0])):
        print(f"{count:8d}  {name}")
    rare = [name for name, count in counts.items() if count < LEAST]
    print(
        f"{graphs} graphs, {wrong} with mismatches, {len(counts)} ops, "
        f"{len(rare)} of them under {LEAST} times{': ' + ', '.join(rare) if rare else ''}"
    )
    return 1 if wrong or (rare and graphs >= 2000) else 0


if __name__ == "__main__":
    sys.exit(main())
