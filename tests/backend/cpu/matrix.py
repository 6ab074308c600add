"""`python -m tests.backend.cpu.matrix`: all ops, all cases, on every instruction set.

Those that this machine has compute what the reference does; for the others code is made.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.cpu.isa import ISAS, NEON, why_not
from rlx.fuzz.workers import Lost, each
from rlx.ops.op import lookup
from tests.backend.cpu.laws import CLAIMED, batch, code_for, wrong

CASES = 24


@dataclass(frozen=True, slots=True)
class Job:
    """An op on an instruction set."""

    isa: str
    op: str
    cases: int


def judged(job: Job) -> list[str]:
    """What is wrong, in a line each."""
    ops = [lookup(job.op)]
    try:
        if why_not(ISAS[job.isa]) is None:
            return wrong(batch(ops, 0, job.cases), f"cpu:{job.isa}")
        code_for(batch(ops, 0, 1), ISAS[job.isa])
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return []


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 if all is right."""
    parser = argparse.ArgumentParser("python -m tests.backend.cpu.matrix", description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES, help="of each op (24)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--isa", default=",".join(_here()), help="which (all that matter here)")
    parser.add_argument("ops", nargs="*", help="ops by name (all that are claimed)")
    args = parser.parse_args(argv)
    names = args.ops or [o.name for o in CLAIMED]
    jobs = [Job(isa, op, args.cases) for isa in args.isa.split(",") for op in names]
    bad = 0
    for job, got in zip(jobs, each(judged, jobs, args.jobs)):
        lines = [got.reason] if isinstance(got, Lost) else got
        bad += bool(lines)
        for line in lines:
            print(f"{job.op} on {job.isa}: {line}", flush=True)
    print(f"{len(names)} ops on {args.isa}, {args.cases} cases each: {bad} wrong")
    return 1 if bad else 0


def _here() -> list[str]:
    """Those that run on this machine, and aarch64's."""
    return [i.name for i in ISAS.values() if i is NEON or why_not(i) is None]


if __name__ == "__main__":
    sys.exit(main())
