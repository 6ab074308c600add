"""One peer with one workload, in a process that is told when to run.

It prepares, checks its answer, says so in a line of JSON, and then times one turn for each number
of seconds it reads. It may be stopped at any time between turns.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

TIMER_NS = 100_000
"""Calls shorter than this are timed several at once, so that the clock costs next to nothing."""

MOST = 20_000


def turn(call: Callable[[], Any], seconds: float, one: float) -> list[float]:
    """Nanoseconds per call, again and again for `seconds`, after a few calls that warm caches."""
    together = max(1, int(TIMER_NS / max(one * 1e9, 1.0)))
    until = time.perf_counter() + seconds / 5
    while one < seconds and time.perf_counter() < until:
        call()
    made: list[float] = []
    until = time.perf_counter() + seconds
    while not made or (time.perf_counter() < until and len(made) < MOST):
        start = time.perf_counter_ns()
        for _ in range(together):
            call()
        made.append((time.perf_counter_ns() - start) / together)
    return made


def warmed(call: Callable[[], Any], seconds: float = 0.3) -> float:
    """Seconds that a call takes once it has run a while."""
    until, least = time.perf_counter() + seconds, float("inf")
    while True:
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        least = min(least, now - start)
        if now > until:
            return least


def peak_mb() -> int:
    """The most memory this process has held."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    return 0


def serve(asked: argparse.Namespace, say: Any) -> None:
    """Prepare, then one answer per line read."""
    from bench import cache
    from bench.peers import OURS, PEERS
    from bench.workload import errors
    from bench.workloads import WORKLOADS

    peer, workload = PEERS[asked.peer], WORKLOADS[asked.workload]()
    start = time.perf_counter()
    more = {"target": asked.target} if asked.peer in OURS else {}
    more |= {"precision": asked.precision} if asked.precision else {}
    runner = peer.prepare(workload, asked.threads, **more)
    made = runner.call()
    setup = time.perf_counter() - start
    found: dict[str, Any] = {"setup_s": setup}
    found["error"] = errors(runner.arrays(made), cache.exact(workload))
    if runner.launches is not None:
        found["launches"] = asdict(runner.launches())
    answer_turns(runner.call, found, say)


def answer_turns(call: Callable[[], Any], setup: dict[str, Any], say: Any) -> None:
    """Warm up and say that it is ready; then one turn for each line read."""
    one = warmed(call)
    say({**setup, "one_s": one, "peak_mb": peak_mb()})
    gc.collect()
    gc.disable()
    for line in sys.stdin:
        say({"ns": turn(call, float(line), one)})


Serve = Callable[[argparse.Namespace, Any], None]


def main(serve: Serve = serve) -> None:
    parser = argparse.ArgumentParser()
    for name in ("peer", "workload"):
        parser.add_argument(name)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--precision", default="")
    asked = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked.threads])
    # Libraries that print must not be heard on the line to the conductor.
    line = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(what: dict[str, Any]) -> None:
        print(json.dumps(what), file=line, flush=True)

    try:
        serve(asked, say)
    except Exception as error:
        say({"failed": f"{type(error).__name__}: {error}".splitlines()[0][:300]})


if __name__ == "__main__":
    main()
