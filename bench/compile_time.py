"""Compile-time limits, measured: `make bench-compile`. Exit 1 where one is passed.

Each line is the best of a few runs: what the compiler needs when nothing else runs on the machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import rlx
from bench.models import chain, transformer
from rlx.dim import Dim

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


def main() -> int:
    rows: list[tuple[str, float, float, str]] = []
    half, whole = compile_chain(12_000), compile_chain(24_000)
    rows.append(("chain of 24,000, fusion off", whole, 10.0, "s"))
    rows.append(("chain of 24,000 / chain of 12,000", whole / half, 2.4, "x"))
    module = transformer(48, 128)
    rows.append(
        (
            "48-layer transformer, cpu",
            seconds(lambda: rlx.CompilePipeline().compile_hir(module)),
            3.0,
            "s",
        )
    )
    dynamic = rlx.CompilePipeline().compile_hir(transformer(12, Dim("seq", 1, 4096)))
    dynamic.lir.plan.bind({"seq": 3})
    sizes = iter(range(4, 4000))
    bind = seconds(lambda: dynamic.lir.plan.bind({"seq": next(sizes)}), 50)
    rows.append(("binding a 12-layer dynamic plan", bind * 1e6, 200.0, "us"))
    for name, value, limit, unit in rows:
        mark = "ok  " if value <= limit else "OVER"
        print(f"{mark} {name}: {value:.2f} {unit} (limit {limit:g} {unit})")
    return int(any(value > limit for _, value, limit, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
