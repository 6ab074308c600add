"""Kernels under compute-sanitizer: `python -m tests.backend.cuda.sanitize [--tools T …]`.

One small graph of every form of kernel, the laws of every op that has a program of its own in the
library, and a sample of all other laws: run whole, compared with the reference, and watched by
memcheck (accesses outside of allocations, misaligned ones) and racecheck (hazards between threads
in shared memory). Each part is a child process of its own; several run at once.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from rlx.backends.cuda.backend import CudaBackend
from rlx.backends.cuda.ptx.groups import Groups
from rlx.backends.gpu.claims import SCANS
from rlx.backends.gpu.library.table import DEDICATED, PRIMITIVES
from rlx.backends.gpu.machine import GpuMachine
from rlx.kernel.program.program import KernelSequence
from rlx.pipeline import CompilePipeline
from rlx.program.nodes import RegisterLimit
from tests.backend.cuda.forms import FORMS, Form
from tests.backend.gpu.all import OPS, Job, backend_of, judged
from tests.backend.gpu.simulated_backend import differences, outputs

TOOLS: tuple[str, ...] = ("memcheck", "racecheck")
TARGET = "cuda"
WARP = 32
FOUND = 99
"""The exit status of a tool that has found something."""
OWN = [o for row in (*DEDICATED, *PRIMITIVES) for o in row.ops if o in OPS]
LIBRARY = sorted({*OWN, *(s for s in SCANS if s in OPS)})
"""Ops with a program of their own."""
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) ")


def sampled(count: int) -> list[str]:
    """Ops evenly out of those that have no program of their own."""
    rest = [o for o in OPS if o not in LIBRARY]
    return [rest[i * len(rest) // count] for i in range(count)]


# -- inside of a child ----------------------------------------------------------------------------


def wrong(name: str) -> list[str]:
    """What is wrong of a form or of an op's law, in a line each."""
    form = next((f for f in FORMS if f.name == name), None)
    return judged(Job(TARGET, name, 0, 0)) if form is None else _form_wrong(form)


@dataclass(frozen=True)
class Narrow(CudaBackend):
    """A device with fewer processors, as schedules see it."""

    processors: int = 0

    @property
    def machine(self) -> GpuMachine:
        own = backend_of(TARGET).machine
        return replace(own, processors=self.processors or own.processors)


def _form_wrong(form: Form) -> list[str]:
    backend = Narrow(tune="off", processors=form.processors)
    graph, values = form.graph(), form.values()
    program = backend.program(CompilePipeline(backend.target()).compile(graph).lir)
    lowered = [s.lowering for s in (*program.main.prologue, *program.main.calls)]
    sequences = [s for s in lowered if isinstance(s, KernelSequence)]
    said = [t.text({}) for s in sequences for t in s.schedule.all_tasks]
    missed = [] if any(re.search(form.said, t) for t in said) else [f"not chosen: {said}"]
    return [*missed, *differences(graph, values, outputs(graph, values, backend))]


def _unlimited(self: Groups, node: RegisterLimit) -> None:
    """Threads keep their registers: code of the tools needs some, and a group that asks for those
    of another would wait for ever."""


def inside(names: Sequence[str]) -> int:
    """Run in a child, under a tool. All lanes arrive at mbarriers: racecheck does not see that a
    barrier of the warp orders the stores of all before the arrival of one."""
    Groups.register_limit = _unlimited
    device = CudaBackend().device()
    device.machine = replace(device.machine, arriving=WARP)
    bad = 0
    for name in names:
        lines = wrong(name)
        bad += bool(lines)
        for line in lines:
            print(f"WRONG {name}: {line[:400]}", flush=True)
        print(f"DONE {name}", flush=True)
    return int(bad > 0)


# -- children -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """Names that one process runs under a tool."""

    tool: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    part: Part
    errors: int | None
    """None where the tool said nothing, as it was stopped."""
    done: tuple[str, ...]
    lines: tuple[str, ...]
    """What it found, and what is wrong."""


def watched(part: Part, tool: str, seconds: float) -> Answer:
    """A part under a tool, which writes to the same pipe as the process."""
    command = [tool, "--tool", part.tool, "--error-exitcode", str(FOUND)]
    command += ["--print-limit", "4", "--require-cuda-init", "no"]
    command += [sys.executable, "-m", "tests.backend.cuda.sanitize", "--inside", *part.names]
    try:
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds, check=False
        )
        text = ended.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as stopped:
        text = (stopped.stdout or b"").decode(errors="replace") + "\nWRONG: out of time"
    summaries = [int(n) for n in SUMMARY.findall(text)]
    done = tuple(line[5:] for line in text.splitlines() if line.startswith("DONE "))
    lines = [x for x in text.splitlines() if re.match(r"=+ .|DONE|WRONG|Traceback|\w+Error", x)]
    return Answer(part, sum(summaries) if summaries else None, done, tuple(lines))


def parts(args: argparse.Namespace) -> Iterator[Part]:
    """Names in turns over the parts, so that long ones are apart."""
    groups = {"forms": [f.name for f in FORMS], "library": LIBRARY, "laws": sampled(args.laws)}
    names = [n for g in args.parts for n in groups[g] if re.search(args.only, n)]
    size = max(1, -(-len(names) // args.jobs))
    count = -(-len(names) // size)
    for tool in args.tools:
        yield from (Part(tool, tuple(names[i::count])) for i in range(count))


def _told(answer: Answer) -> bool:
    """Is it clean? What is not is shown."""
    missing = [n for n in answer.part.names if n not in answer.done]
    is_clean = answer.errors == 0 and not missing
    is_clean = is_clean and not any(x.startswith("WRONG") for x in answer.lines)
    if not is_clean:
        print(f"--- {answer.part.tool}: {answer.errors} errors, not done: {missing}")
        print("\n".join(answer.lines[:60]), flush=True)
    return is_clean


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 if every tool has found nothing, 1 where one has, 2 without a tool or device."""
    parser = argparse.ArgumentParser("python -m tests.backend.cuda.sanitize", description=__doc__)
    add = parser.add_argument
    add("--tools", nargs="*", default=TOOLS, choices=TOOLS, help="both, if none is given")
    add("--parts", nargs="*", default=("forms", "library", "laws"), help="all three")
    add("--laws", type=int, default=60, help="ops without a program of their own (60)")
    add("--only", default="", help="names that this expression finds (all)")
    add("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="processes of a tool")
    add("--seconds", type=float, default=600.0, help="for each process (600)")
    add("--inside", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.inside:
        return inside(args.inside)
    tool = shutil.which("compute-sanitizer") or str(Path("/usr/local/cuda/bin/compute-sanitizer"))
    if not Path(tool).exists():
        print("compute-sanitizer is not installed; it comes with the CUDA toolkit.")
        return 2
    if missing := backend_of(TARGET).missing():
        print(missing.reason, file=sys.stderr)
        return 2
    return _all(list(parts(args)), tool, args.seconds, args.jobs * len(args.tools))


def _all(wanted: Sequence[Part], tool: str, seconds: float, jobs: int) -> int:
    start, clean = time.monotonic(), list[bool]()
    done = dict.fromkeys(TOOLS, 0)
    with ThreadPoolExecutor(jobs) as pool:
        for answer in pool.map(lambda p: watched(p, tool, seconds), wanted):
            clean.append(_told(answer))
            done[answer.part.tool] += len(answer.done)
    took = time.monotonic() - start
    for name, count in done.items():
        print(
            f"{name}: {count} cases run, of {sum(len(p.names) for p in wanted if p.tool == name)}"
        )
    print(f"{sum(clean)} of {len(clean)} processes clean, {took:.0f} s", flush=True)
    return int(not all(clean))


if __name__ == "__main__":
    sys.exit(main())
