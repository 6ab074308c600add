"""Compile-time limits, measured: `make bench-compile`. Exit 1 where one is passed.

Each line is the best of a few runs: what the compiler needs when nothing else runs on the machine.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import rlx
from bench.models import chain, transformer
from rlx.core.dim import Dim

REPEATS = 3


def seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The least time `work` took."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def compile_chain(nodes: int) -> float:
    graph = chain(nodes)
    pipeline = rlx.CompilePipeline(options=rlx.FusionOptions(skip_fusion=True))
    return seconds(lambda: pipeline.compile_graph(graph))


def bind_microseconds() -> float:
    """Binding the plan of a 12-layer transformer to a length it has not met."""
    module = transformer(12, Dim("seq", 1, 4096))
    plan = rlx.CompilePipeline().compile_hir(module).lir.plan
    plan.bind({"seq": 3})
    sizes = iter(range(4, 4000))
    return seconds(lambda: plan.bind({"seq": next(sizes)}), 50) * 1e6


def import_milliseconds() -> float:
    """What `import rlx` adds to importing NumPy and ml_dtypes, in a process of its own."""
    code = (
        "import numpy, ml_dtypes, time; start = time.perf_counter(); import rlx;"
        "print(time.perf_counter() - start)"
    )
    command = [sys.executable, "-c", code]
    runs = [subprocess.run(command, capture_output=True, check=True) for _ in range(7)]
    return min(float(r.stdout) for r in runs) * 1e3


def main() -> int:
    half, whole = compile_chain(12_000), compile_chain(24_000)
    module = transformer(48, 128)
    layers = seconds(lambda: rlx.CompilePipeline().compile_hir(module))
    rows = [
        ("chain of 24,000, fusion off", whole, 10.0, "s"),
        ("chain of 24,000 / chain of 12,000", whole / half, 2.4, "x"),
        ("48-layer transformer, cpu", layers, 3.0, "s"),
        ("binding a 12-layer dynamic plan", bind_microseconds(), 200.0, "us"),
        ("import rlx", import_milliseconds(), 60.0, "ms"),
    ]
    for name, value, limit, unit in rows:
        mark = "ok  " if value <= limit else "OVER"
        print(f"{mark} {name}: {value:.2f} {unit} (limit {limit:g} {unit})")
    return int(any(value > limit for _, value, limit, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
