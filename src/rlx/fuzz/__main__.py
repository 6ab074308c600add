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

LEAST = 20


def _one(job: tuple[int, int, tuple[str, ...]]) -> tuple[int, list[str], list[str]]:
    """One graph: its seed, the ops in it, and what is wrong with it."""
    seed, steps, targets = job
    grown = grow(seed, steps)
    used = [n.op for n in grown.graph.order()]
    try:
        found = judge(grown, [FusionTarget(t) for t in targets])
    except Error as error:
        return seed, used, [f"{type(error).__name__}: {error}"]
    return seed, used, [f"{m.target}: {m.output}: {m.message}" for m in found]


def _results(
    jobs: list[tuple[int, int, tuple[str, ...]]], workers: int
) -> Iterator[tuple[int, list[str], list[str]]]:
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
        epilog=("example: python -m rlx.fuzz --graphs 200 --targets cpu,wgpu"),
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
    args = parser.parse_args(argv)
    jobs = [(args.first + i, args.steps, args.targets) for i in range(args.graphs)]
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
