"""`python -m rlx.fuzz`: random graphs through every pipeline, with the op coverage."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field

from rlx import op as table
from rlx.cost.target import FusionTarget
from rlx.errors import Error
from rlx.fuzz.crew import Lost, each
from rlx.fuzz.work import Job, Verdict, refused_ops, verdict
from rlx.runtime.session import Session

LEAST = 20
SIDES = ("starts", "ends", "tail")


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
    parser.add_argument(
        "--guard",
        action="store_true",
        help="with --backend cpu: every buffer between pages that may not be touched",
    )
    parser.add_argument(
        "--large", action="store_true", help="sizes up to 45, which fill vectors and tiles"
    )
    args = parser.parse_args(argv)
    if args.guard and {b.partition(":")[0] for b in args.backend} != {"cpu"}:
        parser.error("--guard is for native code: give --backend cpu, or such as cpu:avx2")
    jobs = _jobs(args)
    return _summary(_tally(jobs, args.jobs), jobs[0].without)


def _jobs(args: argparse.Namespace) -> list[Job]:
    """Backends are judged by graphs without the ops that they refuse."""
    targets = () if args.backend else args.targets
    without = refused_ops(args.backend)
    seeds = range(args.first, args.first + args.graphs)
    sides = SIDES if args.guard else ()
    made = (args.steps, targets, args.backend, without, sides, args.large)
    return [Job(s, *made) for s in seeds]


def _tally(jobs: list[Job], workers: int) -> Tally:
    """All jobs done; what is wrong is printed as it comes."""
    tally = Tally()
    for job, got in zip(jobs, each(verdict, jobs, workers)):
        for line in _lines(got):
            print(f"seed {job.seed}: {line}", flush=True)
        tally.add(got)
        if sys.stderr.isatty():
            text = f"\r{tally.graphs}/{len(jobs)} graphs, {tally.wrong} wrong"
            print(text, end="", file=sys.stderr)
    return tally


def _lines(got: Verdict | Lost) -> list[str]:
    if isinstance(got, Lost):
        return [got.reason]
    return [*got.found, *([f"refused: {got.refusal}"] if got.refusal else [])]


@dataclass
class Tally:
    """What the graphs were made of, and how many are wrong."""

    ops: Counter[str] = field(default_factory=Counter[str])
    dtypes: Counter[str] = field(default_factory=Counter[str])
    graphs: int = 0
    refused: int = 0
    wrong: int = 0

    def add(self, got: Verdict | Lost) -> None:
        self.graphs += 1
        if isinstance(got, Lost):
            self.wrong += 1
            return
        self.ops.update(got.ops)
        self.dtypes.update(got.dtypes)
        self.refused += bool(got.refusal)
        self.wrong += bool(got.found)


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


def _summary(tally: Tally, without: frozenset[str]) -> int:
    counts = {name: tally.ops[name] for name in table.table() if name not in without}
    for name, count in sorted(counts.items(), key=lambda kv: (kv[1], kv[0])):
        print(f"{count:8d}  {name}")
    print("values by dtype:", ", ".join(f"{n} {c}" for n, c in tally.dtypes.most_common()))
    rare = [name for name, count in counts.items() if count < LEAST]
    print(
        f"{tally.graphs} graphs, {tally.wrong} with mismatches, {tally.refused} refused, "
        f"{len(counts)} ops, "
        f"{len(rare)} of them under {LEAST} times{': ' + ', '.join(rare) if rare else ''}"
    )
    return 1 if tally.wrong or (rare and tally.graphs >= 2000) else 0


if __name__ == "__main__":
    sys.exit(main())
