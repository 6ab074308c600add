"""rlx on an engine beside the same model written by hand for it: `python -m bench.engines`.

    --target tpu:cpu (jax.numpy, the default) | mlx (mlx.core and mlx.nn)

Both run in one process and on the same device of the engine, call after call in turns, on NumPy's
inputs and to NumPy's results, with weights that are on the device. On jax compiling is measured in
turns too, from the model to the first result, in seconds of the processor and without what jax
keeps of compiles before; rlx's includes its own passes and the plan, and its cache of programs is
off. Calls of mlx are measured in seconds of the processor, too; it keeps its kernels in files that
both share. Exit 1 where a limit is passed.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import rlx
from bench import cache
from bench.alone import Check, parser, report
from bench.peers import listed
from bench.workload import Array, Workload, errors
from bench.workloads import WORKLOADS

NAMES = {
    "tpu": ("A_mlp", "C_1x16", "C_1x128", "C_8x128"),
    "mlx": ("A_mlp", "C_1x16", "C_1x128"),
}
BY_HAND = {"tpu": "jax.numpy", "mlx": "mlx"}
RESULTS = {"tpu": "engines", "mlx": "engines_mlx"}
CALLS, COMPILES, WARM, LEAST = 200, 3, 5, 5
SECONDS = 20.0
"""Of all calls of a workload."""
RUN_LIMIT, COMPILE_LIMIT = 1.05, 1.2

Call = Callable[[], list[Array]]


def in_jax(workload: Workload) -> Call:
    """The workload's function in jax.numpy, compiled, and its first call made."""
    import jax

    from bench.peers.jax_peer import traced

    function, params, inputs = traced(workload)
    fast: Any = jax.jit(function)
    held = jax.device_put(params)

    def call() -> list[Array]:
        return [np.asarray(a) for a in listed(fast(held, *inputs))]

    call()
    return call


def in_mlx(workload: Workload) -> Call:
    """The same in mlx."""
    from bench.dialects.for_mlx import mx
    from bench.peers.mlx_peer import on_host, traced

    function, held = traced(workload)

    def call() -> list[Array]:
        return on_host(function(held, *(mx.array(a) for a in workload.inputs)))

    call()
    return call


HANDS = {"tpu": in_jax, "mlx": in_mlx}
CLOCKS = {"tpu": time.perf_counter, "mlx": time.process_time}
"""mlx's Linux build computes on one thread of the process: what else runs on the machine does not
count."""


def by_rlx(workload: Workload, target: str) -> Call:
    """The workload's model, compiled, and its first call made."""
    params = workload.rlx_params()
    exe = rlx.compile(workload.model(params), target, params=params, cache=False)

    def call() -> list[Array]:
        return listed(exe(*workload.inputs))

    call()
    return call


def seconds(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    work()
    return clock() - start


def compile_times(makers: list[Callable[[], Call]]) -> list[float]:
    """The least processor time of each to be compiled, in turns: what else runs on the machine does
    not count."""
    import jax

    best = [float("inf")] * len(makers)
    for _ in range(COMPILES):
        for i, make in enumerate(makers):
            jax.clear_caches()
            gc.collect()
            best[i] = min(best[i], seconds(make, time.process_time))
    return best


def call_times(calls: list[Call], clock: Callable[[], float]) -> list[list[float]]:
    """The times of each, call by call in turns; the first ones of quick calls do not count."""
    times: list[list[float]] = [[] for _ in calls]
    start = time.perf_counter()
    for turn in range(WARM + CALLS):
        spent = time.perf_counter() - start
        if spent > SECONDS and len(times[0]) >= LEAST:
            break
        is_warm = turn >= WARM or spent > SECONDS / 4
        for each, call in zip(times, calls):
            took = seconds(call, clock)
            each += [took] if is_warm else []
    return times


def measured(name: str, target: str) -> list[Check]:
    workload, engine = WORKLOADS[name](), target.partition(":")[0]
    makers = [lambda: by_rlx(workload, target), lambda: HANDS[engine](workload)]
    calls = [make() for make in makers]
    exact = cache.exact(workload)
    for who, call in zip(("rlx", engine), calls):
        error = errors(call(), exact)
        assert error < workload.tolerance, f"{name}: {who} is off by {error:.1e}"
    ours, theirs = call_times(calls, CLOCKS[engine])
    ratio = statistics.median(a / b for a, b in zip(ours, theirs))
    rows = [
        Check(f"{name}, {workload.about}: rlx", statistics.median(ours) * 1e3, "ms"),
        Check(f"  by hand in {BY_HAND[engine]}", statistics.median(theirs) * 1e3, "ms"),
        Check("  the one over the other, call by call", ratio, "x", RUN_LIMIT),
    ]
    return rows + (compiled(makers) if engine == "tpu" else [])


def compiled(makers: list[Callable[[], Call]]) -> list[Check]:
    ours, theirs = compile_times(makers)
    return [
        Check("  compiled by rlx", ours, "s"),
        Check("  compiled by jax", theirs, "s"),
        Check("  the one over the other", ours / theirs, "x", COMPILE_LIMIT),
    ]


def main() -> int:
    options = parser(__doc__)
    options.set_defaults(target="tpu:cpu")
    options.add_argument("--only", help="workloads by name: A_mlp,C_1x128")
    asked = options.parse_args()
    engine = asked.target.partition(":")[0]
    names = asked.only.split(",") if asked.only else NAMES[engine]
    rows = [row for n in names for row in measured(n, asked.target)]
    return report(RESULTS[engine], rows, asked)


if __name__ == "__main__":
    sys.exit(main())
