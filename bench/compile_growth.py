"""Compile time per node, by pass and target, at 1,000 and at 20,000 nodes of each family of graphs:
`python -m bench.compile_growth`. Exit 1 where the larger takes more than 1.5 times as long a node.

    python -m bench.compile_growth --families chain diamond --targets cpu cuda --nodes 1000 20000

Time is that of this process on all threads, which other work on the machine hardly changes. Judged
are the whole of a target, and every pass that takes a tenth of it or more. Code of GPUs is printed;
none is run. Engines compile elsewhere: what they would compile is traced on shapes.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from typing import Any

import rlx
from bench.graph_families import FAMILIES
from bench.shape_engine import engine_of
from rlx.backends.base import KernelBackend
from rlx.backends.engine.backend import EngineBackend
from rlx.backends.engine.module import Module
from rlx.backends.engine.program import EngineProgram
from rlx.backends.registry import find_backend
from rlx.core.gc_paused import gc_paused
from rlx.ir.mir import Graph
from rlx.ir.text import read, show
from rlx.ir.verify import verify
from rlx.passes.context import Context
from rlx.passes.options import FusionOptions
from rlx.pipeline import PASSES
from rlx.plan.check.checker import require_sound
from rlx.plan.lir_text import lir_text
from rlx.plan.planner import plan_module
from rlx.runtime.lir_file import read_lir

TARGETS = ("cpu", "cuda", "rocm", "metal", "wgpu", "mlx", "tpu", "reference")
LIMIT = 1.5
SHARE = 0.1
"""Of a target's time, from which on a pass is judged by itself."""
FRONT = "any target"
Times = dict[tuple[str, str], float]
"""Target and pass → seconds."""


class Laps:
    """Processor time from one lap to the next."""

    def __init__(self) -> None:
        self.times: Times = {}
        self._since = time.process_time()

    def lap(self, target: str, name: str) -> None:
        self.times[target, name] = time.process_time() - self._since
        self._since = time.process_time()


def measured(family: str, nodes: int, targets: Sequence[str]) -> tuple[int, Times]:
    """The nodes of a graph, and what each pass takes."""
    gc.collect()
    laps = Laps()
    model = FAMILIES[family](nodes)
    laps.lap(FRONT, "build")
    graph = model if isinstance(model, Graph) else model.lower().graph
    laps.lap(FRONT, "lower")
    text = show(graph)
    laps.lap(FRONT, "print")
    read(text)
    laps.lap(FRONT, "parse")
    for target in targets:
        compiled(graph, target, laps)
    return len(graph.nodes), laps.times


def compiled(graph: Graph, name: str, laps: Laps) -> None:
    """All passes, the plan and its checker, its text and back, kernel selection and code."""
    backend: Any = find_backend(name).tuned("off")  # no schedule is searched on a device
    target = backend.target()
    context = Context.of(target, FusionOptions())
    laps.lap(name, "open")
    for run in PASSES:
        made = run(graph, context)
        if made is not graph:
            verify(made)
        graph = made
        laps.lap(name, run.__name__)
    lir = plan_module(graph, target, options=FusionOptions(), alignment=64)
    laps.lap(name, "plan")
    require_sound(lir)
    laps.lap(name, "check")
    text = lir_text(lir)
    laps.lap(name, "save")
    read_lir(text)
    laps.lap(name, "read back")
    if isinstance(backend, KernelBackend):
        program = backend.program(lir)
        laps.lap(name, "select_kernels")
        backend.build(program)
        laps.lap(name, "code")
    elif isinstance(backend, EngineBackend):
        program = EngineProgram(Module.of(lir), engine_of(name))
        laps.lap(name, "steps")
        program.build()
        laps.lap(name, "trace")
    else:
        backend.compile(lir)
        laps.lap(name, "program")
    del laps.times[name, "open"]


def rows(family: str, sizes: Sequence[int], targets: Sequence[str]) -> list[str]:
    """A line for each target and pass, those over the limit marked."""
    with gc_paused():
        (few, first), (many, second) = (measured(family, n, targets) for n in sizes)
    whole: Times = {}
    lines: list[str] = []
    for target in dict.fromkeys(t for t, _ in first):
        passes = [key for key in first if key[0] == target]
        whole[target, "all"] = sum(second[k] for k in passes)
        first[target, "all"] = sum(first[k] for k in passes)
        second[target, "all"] = whole[target, "all"]
        for key in [*passes, (target, "all")]:
            before, after = first[key] / few * 1e6, second[key] / many * 1e6
            is_judged = second[key] >= SHARE * whole[target, "all"]
            is_over = is_judged and after > LIMIT * before
            mark = "OVER" if is_over else "ok  " if is_judged else "    "
            ratio = f"{after / before:5.2f}" if before > 0 else "    -"
            numbers = f"{before:10.1f} {after:10.1f}  {ratio}"
            lines.append(f"{mark} {family:18} {target:11} {key[1]:18} {numbers}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--targets", nargs="*", default=list(TARGETS), choices=TARGETS)
    parser.add_argument("--nodes", nargs=2, type=int, default=(1000, 20_000))
    asked = parser.parse_args()
    few, many = asked.nodes
    print(f"rlx {rlx.__version__}: microseconds of processor time a node, and their ratio")
    print(f"     {'family':18} {'target':11} {'pass':18} {few:>10} {many:>10}  ratio", flush=True)
    over = 0
    with gc_paused():  # what is imported and computed once per process is not measured
        measured(asked.families[0], 100, asked.targets)
    for family in asked.families:
        lines = rows(family, asked.nodes, asked.targets)
        print("\n".join(lines), flush=True)
        over += sum(line.startswith("OVER") for line in lines)
    print(f"{over} over {LIMIT} times")
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
