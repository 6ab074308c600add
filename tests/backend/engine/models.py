"""Published models on a whole-graph engine against native code.

    python -m tests.backend.engine.models --target mlx|tpu [--only RE] [--calls N]

Every model is compiled for the engine and for cpu and given the same inputs. Integers must be
equal, floats within what `tests.onnx.zoo` takes from onnxruntime: engines order sums differently,
through up to some hundred layers. Models run in child processes, one after the other; files are
those of `tests.onnx.zoo` (RLX_ZOO names their folder).
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import rlx
from rlx.fuzz.workers import Lost, each
from tests.onnx.zoo import FOLDER, ZOO, compared, fetched, on_host

LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    target: str
    path: str
    calls: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What is wrong, or why it is refused; seconds, and milliseconds of a call."""

    wrong: str = ""
    refused: str = ""
    difference: float = 0.0
    first_s: float = 0.0
    call_ms: float = 0.0
    cpu_ms: float = 0.0
    hosted: int = 0

    @property
    def verdict(self) -> str:
        return f"refused: {self.refused}" if self.refused else self.wrong or "agrees"


def judged(job: Job) -> Answer:
    rng = np.random.default_rng(0)
    given = {k: make(rng) for k, make in ZOO[job.name].inputs.items()}
    model = rlx.load(job.path)
    start = time.perf_counter()
    try:
        exe = rlx.compile(model, job.target)
        made = exe.run(given)
    except rlx.UnsupportedError as error:
        return Answer(refused=str(error))
    except rlx.Error as error:
        return Answer(wrong=f"{type(error).__name__}: {error}")
    first = time.perf_counter() - start
    native = rlx.compile(model, "cpu")
    wrong, most = compared(native.run(given), made, ZOO[job.name].slack)
    times = (_call_ms(e, given, job.calls) for e in (exe, native))
    return Answer(wrong, "", most, first, *times, on_host(exe))


def _call_ms(exe: Any, given: Any, calls: int) -> float:
    """The fastest of some calls."""
    times = [np.inf]
    for _ in range(calls):
        start = time.perf_counter()
        exe.run(given)
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 if no model is wrong, 1 where one is."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--target", required=True, help="mlx, tpu, or a variant of them")
    add("--only", metavar="RE", default="", help="models whose names this expression finds (all)")
    add("--calls", type=int, default=3, help="timed calls of each (3)")
    args = parser.parse_args(argv)
    names = [n for n in ZOO if re.search(args.only, n)]
    jobs = [Job(n, args.target, str(fetched(n, FOLDER)), args.calls) for n in names]
    print(f"{'model':18} {'first':>8} {'call':>9} {'cpu':>9}  host  difference")
    agree = wrong = 0
    for job, got in zip(jobs, each(judged, jobs, 1, LIMIT_S)):
        a = Answer(got.reason) if isinstance(got, Lost) else got
        agree, wrong = agree + (a.verdict == "agrees"), wrong + bool(a.wrong)
        print(f"{job.name:18} {a.first_s:6.1f} s {a.call_ms:6.1f} ms {a.cpu_ms:6.1f} ms "
              f"{a.hosted:5}  {a.difference:8.2g}  {a.verdict}", flush=True)  # fmt: skip
    print(f"{agree} of {len(jobs)} models agree with cpu on {args.target}, {wrong} are wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
