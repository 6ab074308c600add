"""Is this version of rlx as fast as another? `python -m bench.versions --before FOLDER`.

FOLDER is another checkout. For every workload, and every published model that was fetched, each
checkout has a process of its own; the two are asked in turns for some calls, and the medians of
their times are compared. Compile times are those of the first compile in each process, without a
cache. Machines are noisy: only ratios count.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]

TURNS = 9
SECONDS = 0.15
"""Of calls in one turn."""


# -- in a checkout --------------------------------------------------------------------------------


def serve(name: str, threads: int) -> None:
    """Compile one case, say how long that took, and time calls whenever a line comes in."""
    start = time.perf_counter()
    call = prepared(name, threads)
    call()
    print(json.dumps(time.perf_counter() - start), flush=True)
    for _ in sys.stdin:
        print(json.dumps(timed(call)), flush=True)


def prepared(name: str, threads: int) -> Any:
    """A function that makes one call."""
    import rlx
    from bench.workloads import WORKLOADS

    if name in WORKLOADS:
        workload = WORKLOADS[name]()
        params = workload.rlx_params()
        exe: Any = rlx.compile(workload.model(params), "cpu", params=params, threads=threads)
        return lambda: exe(*workload.inputs)
    from tests.onnx.zoo import FOLDER, MODELS

    rng = np.random.default_rng(0)
    given = {k: make(rng) for k, make in MODELS[name].inputs.items()}
    model: Any = rlx.compile(rlx.load(FOLDER / f"{name}.onnx"), "cpu", threads=threads)
    return lambda: model.run(given)


def timed(call: Any) -> float:
    """The median of the calls that fit into a turn."""
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


# -- both ------------------------------------------------------------------------------------------


class Side:
    """A process of one checkout."""

    def __init__(self, folder: Path, name: str, threads: int) -> None:
        path = os.pathsep.join((str(folder / "src"), str(folder)))
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", name, "--threads", str(threads)],
            cwd=folder, env={**os.environ, "PYTHONPATH": path, "RLX_CACHE": "off"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.compile_s = self._read()

    def ask(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> float:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args}: it ended")
        return float(json.loads(line))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compared(name: str, before: Path, threads: int) -> tuple[float, float]:
    """This checkout's time by the other's, of a call and of the compile."""
    sides = [Side(before, name, threads), Side(ROOT, name, threads)]
    times: list[list[float]] = [[], []]
    for turn in range(TURNS):
        for number in (0, 1) if turn % 2 else (1, 0):
            times[number].append(sides[number].ask())
    for side in sides:
        side.close()
    call = statistics.median(b / a for a, b in zip(*times))
    return call, sides[1].compile_s / sides[0].compile_s


def names() -> list[str]:
    from bench.workloads import WORKLOADS
    from tests.onnx.zoo import FOLDER, MODELS

    return [*WORKLOADS, *(m for m in MODELS if (FOLDER / f"{m}.onnx").exists())]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.versions", description=__doc__)
    parser.add_argument("--before", type=Path, help="the other checkout")
    parser.add_argument("--only", metavar="RE", default="", help="cases whose name has this")
    parser.add_argument("--threads", type=int, default=2, help="of a call (2)")
    parser.add_argument("--serve", metavar="NAME", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        serve(args.serve, args.threads)
        return 0
    if args.before is None:
        parser.error("--before FOLDER is missing")
    ratios: list[tuple[float, float]] = []
    for name in (n for n in names() if re.search(args.only, n)):
        ratios.append(compared(name, args.before.resolve(), args.threads))
        print(f"{name:20} call {ratios[-1][0]:.3f}  compile {ratios[-1][1]:.3f}", flush=True)
    call, made = (math.exp(statistics.mean(map(math.log, r))) for r in zip(*ratios))
    print(f"{len(ratios)} cases, geometric means: call {call:.3f}, compile {made:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
