"""What a call costs when the work is next to nothing: B, in microseconds per call from Python."""

from __future__ import annotations

import sys
import timeit

import numpy as np

from bench.alone import Check, parser, report
from bench.peers.ours import compiled
from bench.workloads import WORKLOADS

CALLS, REPEATS = 2000, 15


def microseconds(call: object) -> float:
    """The least mean over many calls: what remains when nothing else runs."""
    timer = timeit.Timer("call()", globals={"call": call})
    once = timer.timeit(20) / 20
    number = max(1, min(CALLS, int(0.05 / once)))
    return min(timer.repeat(REPEATS, number)) / number * 1e6


def main() -> int:
    asked = parser(__doc__).parse_args()
    workload = WORKLOADS["B_tiny"]()
    exe = compiled(workload, asked.target, asked.threads)
    (x,) = workload.inputs
    out = np.empty_like(exe(x))
    rows = [
        Check("B tiny, a call that makes its output", microseconds(lambda: exe(x)), "µs", 2.0),
        Check("B tiny, a call with out=", microseconds(lambda: exe(x, out=out)), "µs"),
    ]
    return report("calls", rows, asked)


if __name__ == "__main__":
    sys.exit(main())
