"""One runner with one file, in a process that is told when to run (see `bench.worker`): each line
it reads names a workload, whose rate it answers."""

from __future__ import annotations

import gc
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from bench.lm.runners import RUNNERS, Setting
from bench.worker import main
from rlx.lm.bench import Workload

SPARE = 8
"""Positions of a context beyond those of its workloads."""


def written(test: Workload) -> str:
    """A workload as a line."""
    return f"{int(test.is_prompt)},{test.tokens},{test.depth},{test.sequences}"


def read(line: str) -> Workload:
    is_prompt, *rest = map(int, line.split(","))
    return Workload(bool(is_prompt), *rest)


def serve(asked: Namespace, say: Any) -> None:
    """`workload` is a file and the workloads that its context must hold."""
    path, *lines = asked.workload.split(";")
    tests = [read(line) for line in lines]
    context = max(t.context for t in tests) + SPARE
    setting = Setting(Path(path), asked.threads, context, max(t.sequences for t in tests))
    start = time.perf_counter()
    runner = RUNNERS[asked.peer](setting)
    say({"setup_s": time.perf_counter() - start})
    gc.collect()
    gc.disable()
    for line in sys.stdin:
        say({"rate": runner.rate(read(line))})


if __name__ == "__main__":
    main(serve)
