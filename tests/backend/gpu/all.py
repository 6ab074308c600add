"""Every law and random graphs as whole programs on a GPU that is simulated.

    python -m tests.backend.gpu.all [--draws N] [--graphs N] [--only RE] [--machine NAME]

Each drawn application of an op is compiled, run and judged as the fuzzer judges targets; every
second has all operands but the first as weights, which are packed where kernels ask for it. Jobs
run in child processes, so that a crash or a hang loses one of them. `tests.backend.cuda.all` does
the same on a device.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlx.backends.cuda.errors import LostDeviceError
from rlx.backends.gpu.backend import GpuBackend
from rlx.backends.registry import find_backend
from rlx.core.errors import UnsupportedError
from rlx.fuzz.generate import Grown, grow
from rlx.fuzz.states import grow_states, judge_calls, opened
from rlx.fuzz.workers import Lost, each
from rlx.ops import op as table
from tests.backend.gpu import laws
from tests.backend.gpu.simulated_backend import SimulatedBackend, differences, outputs

OPS = [o.name for o in table.table().values() if not o.why_no_cases]
SIMULATED = {
    "simulated": SimulatedBackend(),
    "small": SimulatedBackend(laws.SMALL),
    "webgpu": SimulatedBackend(laws.WEBGPU),
    "software": SimulatedBackend(laws.SOFTWARE),
}
"""All that any device has; small blocks without matrix or asynchronous instructions; and what
WebGPU promises, on a GPU and in software."""
PROGRESS_S = 30.0
LINE = 500
"""Characters of a finding."""
GRAPH = "graph"
STATES = "states"
MAX_ELEMENTS = 1 << 22
"""Of all operands on a device, which the reference has to read too."""


@dataclass(frozen=True, slots=True)
class Job:
    """A drawn application of an op, or the random graph of a seed, perhaps with states, on a
    machine or device."""

    target: str
    name: str
    number: int
    steps: int

    @property
    def label(self) -> str:
        return f"{self.name} {self.number}"


def backend_of(target: str) -> GpuBackend:
    """Without a search of schedules, which would take longer than all else."""
    name, _, variant = target.partition(":")
    found = (SIMULATED.get(target) or find_backend(name).configured(variant, None)).tuned("off")
    assert isinstance(found, GpuBackend), f"{target} is no GPU"
    return found


def found_wrong(job: Job) -> list[str]:
    """What the target computes wrongly, in a line each. On a device the third call replays what
    the second has recorded; a simulation is slow enough with one."""
    is_simulated = job.target in SIMULATED
    if job.name == STATES:
        return _wrong_calls(job)
    if job.name == GRAPH:
        grown, about = grow(job.number, job.steps), ""
        graph, values = grown.graph, grown.values
    else:
        limit = laws.MAX_ELEMENTS if is_simulated else MAX_ELEMENTS
        has_weights = job.number % 2 == 1
        (made,) = laws.drawn(table.lookup(job.name), job.number, 1, limit, has_weights=has_weights)
        graph, values, about = made.graph, made.values, f" in {made.case}"
    if job.target.startswith("wgpu"):
        values = laws.flushed(values)
    got = outputs(graph, values, backend_of(job.target), 1 if is_simulated else 3)
    return [line + about for line in differences(graph, values, got)]


def _wrong_calls(job: Job) -> list[str]:
    """The same of calls of a session."""
    grown = grow_states(job.number)
    if job.target.startswith("wgpu"):
        grown = Grown(grown.graph, laws.flushed(grown.values))
    found = judge_calls(job.target, grown, opened(backend_of(job.target), grown))
    return [f"{m.output}: {m.message}" for m in found]


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a target does not run a job."""

    reason: str


def judged(job: Job) -> list[str] | Refused:
    """The same, with errors as findings; without its device a process cannot go on."""
    try:
        return found_wrong(job)
    except LostDeviceError:
        raise
    except UnsupportedError as error:
        return Refused(str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return [f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"]


def report(what: str, jobs: Sequence[Job], workers: int, seconds: float) -> int:
    """How many jobs are wrong: a line for each, and how far it is now and then."""
    start = shown = time.monotonic()
    bad = done = refused = 0
    for job, got in zip(jobs, each(judged, jobs, workers)):
        refused += isinstance(got, Refused)
        if isinstance(got, Refused):
            print(f"refused {job.label}: {' '.join(got.reason.split())[:LINE]}", flush=True)
            got = list[str]()
        lines = [got.reason] if isinstance(got, Lost) else got
        bad, done = bad + bool(lines), done + 1
        for line in lines:
            print(f"{job.label}: {line[:LINE]}", flush=True)
        now = time.monotonic()
        if now - start > seconds:
            break
        if now - shown > PROGRESS_S:
            shown = now
            print(f"… {done} of {len(jobs)} {what}, {now - start:.0f} s", flush=True)
    took = time.monotonic() - start
    counts = f"{bad} wrong, {refused} refused" if refused else f"{bad} wrong"
    print(f"{what}: {done} of {len(jobs)}, {counts}, {took:.0f} s", flush=True)
    return bad


def _laws(args: argparse.Namespace) -> Iterator[Job]:
    """One of each dtype; or draw by draw, so that a limit of time leaves out the last draws."""
    names = [o for o in OPS if re.search(args.only, o)]
    if args.dtypes:
        limit = laws.MAX_ELEMENTS if args.target in SIMULATED else MAX_ELEMENTS
        for name in names:
            numbers = laws.one_of_each_dtype(table.lookup(name), args.dtypes, limit)
            yield from (Job(args.target, name, n, 0) for n in numbers)
        return
    for number in range(args.first, args.first + args.draws):
        yield from (Job(args.target, name, number, 0) for name in names)


def main(argv: Sequence[str] | None = None, target: str = "") -> int:
    """Exit 0 if all is right, 1 where something is not, 2 without a device."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
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
    add("--seconds", type=float, default=float("inf"), help="for laws, and for each kind of graph")
    add("--jobs", type=int, default=1 if target else 2, help="processes")
    if target:
        parser.set_defaults(target=target)
    else:
        add("--machine", dest="target", default="simulated", choices=SIMULATED)
    args = parser.parse_args(argv)
    if missing := backend_of(args.target).missing():
        print(missing.reason, file=sys.stderr)
        return 2
    bad = report("laws", list(_laws(args)), args.jobs, args.seconds)
    for what, name, count in (
        ("graphs", GRAPH, args.graphs),
        ("graphs with states", STATES, args.states),
    ):
        numbers = range(args.first, args.first + count)
        graphs = [Job(args.target, name, n, args.steps) for n in numbers]
        bad += report(what, graphs, args.jobs, args.seconds) if graphs else 0
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
