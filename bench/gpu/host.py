"""`python -m bench.gpu.host`: what a bound call takes on the host, by the stream that it runs on.

A model is bound once to arrays of the device. The call is timed behind another one (after a wait,
so that the queue never fills), behind torch's own work on the inputs, and many times in a row.
Results are compared with torch's before anything is timed. Figures are medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

import rlx
from bench.gpu.__main__ import host_array
from bench.gpu.cases import Case, Maker, cases, graph_of

NAMES = ("tiny", "encoder_1x128")
STREAMS = ("rlx's own", "torch's default", "torch's side")
CALLS, ROW, WARM = 400, 50, 10


def main() -> None:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    print("| model, kernels | stream | behind a call | behind a wait | behind torch's | in a row |")
    print("|---|---|---|---|---|---|")
    with torch.inference_mode():
        for case in cases():
            if case.name in NAMES:
                _rows(torch, case)


def _rows(torch: Any, case: Case) -> None:
    maker = Maker(torch, {"bf16": torch.bfloat16, "f32": torch.float32}[case.dtype])
    params, inputs = case.params(maker), case.inputs(maker)
    weights = {k: host_array(torch, v) for k, v in params.items()}
    exe = rlx.compile(graph_of(case, params, inputs), target="cuda", params=weights)
    side = torch.cuda.Stream()
    for name in STREAMS:
        torch.cuda.synchronize()
        on_side = torch.cuda.stream(side) if name == STREAMS[2] else nullcontext()
        with on_side:
            given = [host_array(torch, x) for x in inputs] if name == STREAMS[0] else inputs
            bound = exe.bind(*given)
            _warm(bound)
            if not _error(bound, case.torch(torch, params)(*inputs)) <= 2 * case.tolerance:
                print(f"WRONG: {case.name} on {name} stream", flush=True)
            print(_line(case, name, bound, inputs), flush=True)


def _warm(bound: Any) -> None:
    for _ in range(WARM):
        bound()
    bound.wait()


def _error(bound: Any, wanted: Any) -> float:
    exact = wanted.float().cpu().numpy()
    made = bound.outputs[0].astype(np.float32).reshape(exact.shape)
    return float(np.linalg.norm(made - exact) / np.linalg.norm(exact))


def _line(case: Case, name: str, bound: Any, inputs: Any) -> str:
    others = [x.clone() for x in inputs]

    def change() -> None:
        for x, other in zip(inputs, others):
            x.copy_(other)

    found = [
        _one_us(bound, bound),
        _one_us(bound, lambda: None),
        _one_us(bound, change) if name != STREAMS[0] else float("nan"),
        _row_us(bound),
    ]
    times = " | ".join(f"{us:.2f}" for us in found)
    return f"| {case.name}, {bound.num_launches} | {name} | {times} |"


def _one_us(bound: Any, before: Callable[[], None]) -> float:
    """A call behind something else, all of which is waited for before the next."""
    times: list[float] = []
    for _ in range(CALLS):
        bound.wait()
        before()
        start = time.perf_counter_ns()
        bound()
        times.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(times)


def _row_us(bound: Any) -> float:
    times: list[float] = []
    for _ in range(CALLS // ROW * 4):
        bound.wait()
        start = time.perf_counter_ns()
        for _ in range(ROW):
            bound()
        times.append((time.perf_counter_ns() - start) / ROW / 1e3)
    return statistics.median(times)


if __name__ == "__main__":
    main()
