"""Every law and random graphs as MSL, compiled for the host and run through a stand-in of Metal.

    python -m tests.backend.metal.all [--draws N] [--graphs N] [--only RE] [--seconds S]

Of the first N drawn applications of each op, one of each dtype is compiled as for an Apple GPU, run
three times, of which the third replays what the second has recorded, and judged as the fuzzer does.
f64 does not exist there: such applications must be refused with that reason, and nothing else may
be. Jobs run in child processes, so that a crash loses one of them.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlx.core.errors import UnsupportedError
from rlx.fuzz.generate import grow
from rlx.fuzz.states import ends_of, grow_states, judge_calls, judge_phases, opened
from rlx.fuzz.workers import Lost, each
from rlx.ops import op as table
from tests.backend.gpu import laws
from tests.backend.gpu.simulated_backend import differences, outputs
from tests.backend.metal import host
from tests.backend.metal.fake import EmulatedBackend, FakeMetal

OPS = [o.name for o in table.table().values() if not o.why_no_cases]
DEVICES = {"apple": FakeMetal(), "mac2": FakeMetal(families=(2002,), device_name="AMD Radeon")}
"""With simdgroups of 32 threads and matrices; with neither."""
GRAPH = "graph"
STATES = "states"
CALLS = 3
LINE = 600
"""Characters of a finding."""
NO_DOUBLE = "the Metal shading language has no double"


@dataclass(frozen=True, slots=True)
class Job:
    """A drawn application of an op, or the random graph of a seed, perhaps with states."""

    device: str
    name: str
    number: int
    steps: int = 12
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a job: nothing wrong, a refusal, or findings."""

    is_refused: bool = False
    found: tuple[str, ...] = ()


@functools.cache
def backend(device: str) -> EmulatedBackend:
    return EmulatedBackend(DEVICES[device])


def found_wrong(job: Job) -> list[str]:
    if job.name == STATES:
        states = grow_states(job.number)
        session = opened(backend(job.device), states, ends_of(states.graph))
        found = judge_calls("metal", states, session) + judge_phases("metal", states, session)
        return [f"{m.output}: {m.message}" for m in found]
    if job.name == GRAPH:
        grown, about = grow(job.number, job.steps), ""
        graph, values = grown.graph, grown.values
    else:
        has_weights = job.number % 2 == 1
        op = table.lookup(job.name)
        (made,) = laws.drawn(op, job.number, 1, has_weights=has_weights)
        graph, values, about = made.graph, made.values, f" in {made.case}"
    got = outputs(graph, values, backend(job.device), CALLS)
    return [line + about for line in differences(graph, values, got)]


def judged(job: Job) -> Verdict:
    try:
        return Verdict(found=tuple(found_wrong(job)))
    except UnsupportedError as error:
        if NO_DOUBLE in str(error):
            return Verdict(is_refused=True)
        return Verdict(found=(f"refused: {error}",))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Verdict(
            found=(f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})",)
        )


@dataclass
class Tally:
    """Counts of jobs by dtype."""

    passed: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    wrong: int = 0

    def note(self, job: Job, got: Verdict | Lost) -> None:
        lines = (got.reason,) if isinstance(got, Lost) else got.found
        for line in lines:
            print(f"{job.device} {job.name} {job.number}: {line[:LINE]}", flush=True)
        self.wrong += bool(lines)
        if not lines:
            is_refused = isinstance(got, Verdict) and got.is_refused
            (self.refused if is_refused else self.passed)[job.dtype] += 1

    def text(self, what: str, seconds: float) -> str:
        kinds = sorted({*self.passed, *self.refused})
        each_kind = ", ".join(
            f"{k or 'all'} {self.passed[k]}"
            + (f" (+{self.refused[k]} refused: f64)" if self.refused[k] else "")
            for k in kinds
        )
        total = sum(self.passed.values()), sum(self.refused.values())
        return (
            f"{what}: {total[0]} passed, {total[1]} refused for f64, {self.wrong} wrong in "
            f"{seconds:.0f} s. {each_kind}"
        )


def report(what: str, jobs: Sequence[Job], workers: int, seconds: float) -> int:
    start, tally = time.monotonic(), Tally()
    for job, got in zip(jobs, each(judged, jobs, workers)):
        tally.note(job, got)
        if time.monotonic() - start > seconds:
            break
    print(tally.text(what, time.monotonic() - start), flush=True)
    return tally.wrong


def _laws(device: str, only: str, draws: int) -> list[Job]:
    found: list[Job] = []
    for name in (o for o in OPS if re.search(only, o)):
        op = table.lookup(name)
        for number in laws.one_of_each_dtype(op, draws):
            (made,) = laws.drawn(op, number, 1)
            dtype = str(made.case.specs[0].dtype) if made.case.specs else "none"
            found.append(Job(device, name, number, dtype=dtype))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 if all is right, 1 where something is not, 2 without clang."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--draws", type=int, default=3, help="applications of each op: one of each dtype (3)")
    add("--graphs", type=int, default=50, help="random graphs (50)")
    add("--states", type=int, default=10, help="random graphs with states (10)")
    add("--first", type=int, default=0, help="seed of the first graph (0)")
    add("--only", default="", help="ops whose names this expression finds (all)")
    add("--device", default="apple", choices=DEVICES)
    add("--seconds", type=float, default=float("inf"), help="for laws, and for each kind of graph")
    add("--jobs", type=int, default=2, help="processes")
    args = parser.parse_args(argv)
    if host.clang() is None:
        print("clang++ is not installed", file=sys.stderr)
        return 2
    found = _laws(args.device, args.only, args.draws)
    bad = report("laws", found, args.jobs, args.seconds)
    for what, name, count in (
        ("graphs", GRAPH, args.graphs),
        ("graphs with states", STATES, args.states),
    ):
        graphs = [Job(args.device, name, args.first + n) for n in range(count)]
        bad += report(what, graphs, args.jobs, args.seconds) if graphs else 0
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
