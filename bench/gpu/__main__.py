"""`python -m bench.gpu [parts]`: workloads on one GPU, against torch's best mode in the same run.

Every figure is the median of many calls on inputs that are on the device. Each result is compared
with the same function in f32 before anything is timed. Beside it: `python -m bench.gpu.dynamic`,
one compile for all shapes; `bench.gpu.products`, schedules of products; `bench.gpu.startup`, cold
compiles and those from cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from bench.gpu.cases import Case, Maker, cases, graph_of

CALLS, WARM = 50, 10
MODES = ("eager", "graph", "compile", "reduce-overhead")


@dataclass(slots=True)
class Row:
    """What was measured of a case, in microseconds."""

    case: str
    about: str
    goal: float
    floor: float
    rlx: float = float("nan")
    torch: dict[str, float] = field(default_factory=dict[str, float])
    error: float = float("nan")
    torch_error: float = float("nan")
    compile_s: float = float("nan")
    kernels: int = 0
    note: str = ""

    @property
    def best(self) -> float:
        return min(self.torch.values(), default=float("nan"))

    @property
    def ratio(self) -> float:
        return self.rlx / self.best


def main() -> None:
    args = _arguments()
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    rows: list[Row] = []
    for case in cases():
        if args.parts and not any(p in case.name for p in args.parts):
            continue
        rows.append(_measured(torch, case, args))
        print(_line(rows[-1]), flush=True)
        torch.cuda.empty_cache()
    print("\n".join(table(rows)))
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(r) for r in rows], indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", help="parts of names of cases; all, if none is given")
    parser.add_argument("--modes", default=",".join(MODES), help="of torch, with commas between")
    parser.add_argument("--kernels", action="store_true", help="time each kernel by itself, too")
    parser.add_argument("--json", help="write the rows to this file")
    return parser.parse_args()


# -- one case -------------------------------------------------------------------------------------


def _measured(torch: Any, case: Case, args: argparse.Namespace) -> Row:
    row = Row(case.name, case.about, case.goal, case.floor_us)
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[case.dtype]
    with torch.inference_mode():
        maker = Maker(torch, dtype)
        params, inputs = case.params(maker), case.inputs(maker)
        exact = _exact(torch, case, params, inputs)
        try:
            _ours(torch, case, params, inputs, exact, row, args)
        except rlx.Error as error:
            row.note = f"rlx: {str(error)[:300]}"
        wanted = [m for m in args.modes.split(",") if m]
        function = case.torch(torch, params)
        row.torch_error = _error(function(*inputs), exact)
        for mode in wanted:
            try:
                row.torch[mode] = _torch_time(torch, function, inputs, mode)
            except Exception as error:  # a mode of torch that fails has no time
                row.note += f" torch {mode}: {str(error)[:80]}"
    return row


def _exact(torch: Any, case: Case, params: Any, inputs: Any) -> Any:
    """The same function in f32, of the same rounded numbers."""

    def wide(x: Any) -> Any:
        return x.float() if x.is_floating_point() else x

    made = case.torch(torch, {k: wide(v) for k, v in params.items()})(*map(wide, inputs))
    return made.float()


def _error(made: Any, exact: Any) -> float:
    return float((made.float() - exact).norm() / exact.norm())


def _ours(
    torch: Any, case: Case, params: Any, inputs: Any, exact: Any, row: Row, args: Any
) -> None:
    start = time.perf_counter()
    graph = graph_of(case, params, inputs)
    exe = rlx.compile(
        graph, target="cuda", params={k: host_array(torch, v) for k, v in params.items()}
    )
    row.compile_s = time.perf_counter() - start
    bound = exe.bind(*inputs)
    for _ in range(3):
        bound()
    bound.wait()
    made = torch.from_numpy(bound.outputs[0].astype(np.float32)).cuda().view(exact.shape)
    row.error = _error(made, exact)
    if not row.error <= case.tolerance:
        row.note += f" WRONG: {row.error:.1e}"
        return
    row.kernels = bound.num_launches
    row.rlx = statistics.median(_our_times(bound))
    if args.kernels:
        for name, us in bound.kernel_times():
            print(f"    {us:8.2f} {name}", flush=True)


def _our_times(bound: Any) -> Iterator[float]:
    for _ in range(WARM):
        bound()
    for _ in range(CALLS):
        yield bound.time_ns() / 1e3


def host_array(torch: Any, tensor: Any) -> Any:
    """As an array of rlx's dtype."""
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.contiguous().view(torch.int16).cpu().numpy().view(ml_dtypes.bfloat16)
    return np.ascontiguousarray(tensor.cpu().numpy())


def _torch_time(torch: Any, function: Callable[..., Any], inputs: Any, mode: str) -> float:
    call = _torch_call(torch, function, inputs, mode)
    for _ in range(WARM):
        call()
    torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(CALLS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3)
    return statistics.median(times)


def _torch_call(torch: Any, function: Any, inputs: Any, mode: str) -> Callable[[], Any]:
    if mode == "eager":
        return lambda: function(*inputs)
    if mode == "graph":
        function(*inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function(*inputs)
        return graph.replay
    torch._dynamo.reset()
    compiled = torch.compile(function, mode=None if mode == "compile" else mode)
    compiled(*inputs)
    return lambda: compiled(*inputs)


# -- the table ------------------------------------------------------------------------------------


def _line(row: Row) -> str:
    modes = " ".join(f"{m} {us:.1f}" for m, us in row.torch.items())
    return (
        f"{row.case:24} rlx {row.rlx:9.1f} us  best torch {row.best:9.1f}  ratio {row.ratio:5.2f} "
        f"(goal {row.goal:.2f})  floor {row.floor:.0f}  error {row.error:.1e} "
        f"(torch {row.torch_error:.1e})  {row.kernels} kernels, compile {row.compile_s:.1f} s  "
        f"[{modes}] {row.note}"
    )


def table(rows: list[Row]) -> Iterator[str]:
    """The page's table."""
    yield "| workload | rlx, µs | best torch, µs | ratio | goal | floor, µs | share of the floor |"
    yield "|---|---|---|---|---|---|---|"
    for r in rows:
        share = r.floor / r.rlx
        yield (
            f"| {r.case}: {r.about} | {r.rlx:.1f} | {r.best:.1f} | {r.ratio:.2f} | {r.goal:.2f} "
            f"| {r.floor:.0f} | {share:.0%} |"
        )


if __name__ == "__main__":
    sys.exit(main())
