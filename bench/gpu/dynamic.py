"""`python -m bench.gpu.dynamic`: the encoder with named batch and length, against static compiles.

One compile runs every shape; each shape of the table has a static compile of its own beside it.
Results are compared with the same function in f32 before anything is timed; times are medians of
calls on inputs that are on the device.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import rlx
from bench.gpu.__main__ import host_array
from bench.gpu.cases import LAYERS, WIDTH, Maker, encoder

SHAPES = ((1, 128), (8, 128), (8, 256), (32, 64), (64, 128), (2, 500))
BATCH, LENGTH = rlx.Dim("batch", 1, 64), rlx.Dim("length", 1, 512)
DRAWN = 50
TOLERANCE = encoder(1, 1.0).tolerance
CALLS, WARM = 50, 5


def main() -> None:
    args = _arguments()
    import torch

    with torch.inference_mode():
        maker = Maker(torch, torch.bfloat16)
        case = encoder(1, 1.0)
        params = case.params(maker)
        host = {k: host_array(torch, v) for k, v in params.items()}
        exact = case.torch(torch, {k: v.float() for k, v in params.items()})
        took, dynamic = _timed(lambda: _compiled(host, BATCH, LENGTH, args.tune))
        kernels = len(dynamic.loaded.program.artefact.codes)
        print(f"{LAYERS} layers, one compile: {took:.2f} s, {kernels} kernels", flush=True)
        _check_shapes(torch, dynamic, maker, exact)
        print(
            "| shape | static, µs | dynamic, µs | ratio | kernels | host of a bound call, µs "
            "| host of a new shape: bind, first call, recorded call, µs |"
        )
        print("|---|---|---|---|---|---|---|")
        for shape in _shapes(args):
            _row(torch, dynamic, _compiled(host, *shape, args.tune), maker, exact, shape, args)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.dynamic", description=__doc__)
    parser.add_argument("--kernels", action="store_true", help="time each kernel by itself, too")
    parser.add_argument("--shapes", default="", help="such as 1x128,64x128; six, if none is given")
    parser.add_argument("--tune", default="bitwise", help="the timed search of both compiles")
    return parser.parse_args()


def _shapes(args: argparse.Namespace) -> list[tuple[int, int]]:
    named = [s.split("x") for s in args.shapes.split(",") if s]
    return [(int(batch), int(length)) for batch, length in named] or list(SHAPES)


def _timed(make: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    made = make()
    return time.perf_counter() - start, made


def _compiled(host: dict[str, Any], batch: Any, length: Any, tune: Any = "bitwise") -> Any:
    graph = rlx.Graph("encoder")
    leaves = {k: graph.param(k, rlx.Shape(v.shape, "bf16")) for k, v in host.items()}
    x = graph.input("x", rlx.Shape([batch, length, WIDTH], "bf16"))
    graph.set_outputs([encoder(1, 1.0).rlx(leaves, (x,))])
    return rlx.compile(graph, target="cuda", params=host, tune=tune)


def _check_shapes(torch: Any, exe: Any, maker: Maker, exact: Any) -> None:
    """Shapes that are drawn, and the corners: results, and what a call of a new shape takes."""
    drawn = np.random.default_rng(0).integers([1, 1], [17, 257], (DRAWN, 2)).tolist()
    worst, wrong, times = 0.0, 0, list[float]()
    for batch, length in [*drawn, (1, 1), (64, 1), (1, 512), (64, 512)]:
        x = maker.normal(batch, length, WIDTH)
        torch.cuda.synchronize()
        took, made = _timed(lambda x=x: exe(x))
        times.append(took)
        error = _error(torch.from_dlpack(made), exact(x.float()))
        worst, wrong = max(worst, error), wrong + (not error <= TOLERANCE)
    print(
        f"{len(times)} shapes: {wrong} wrong, worst error {worst:.1e}; host of a first call "
        f"{statistics.median(times) * 1e6:.0f} µs",
        flush=True,
    )


def _error(made: Any, exact: Any) -> float:
    return float((made.float() - exact).norm() / exact.norm())


def _row(
    torch: Any, dynamic: Any, static: Any, maker: Maker, exact: Any, shape: Any, args: Any
) -> None:
    x = maker.normal(*shape, WIDTH)
    wanted, times, counts, host = exact(x.float()), list[float](), list[int](), list[float]()
    new: list[float] = []
    torch.cuda.synchronize()
    for exe in (static, dynamic):
        bind_s, bound = _timed(lambda e=exe: e.bind(x))
        new = [bind_s, _timed(bound)[0], _timed(bound)[0]]
        times.append(statistics.median(_device_times(bound)))
        host.append(_host_time(bound))
        counts.append(bound.num_launches)
        made = torch.from_numpy(bound.outputs[0].astype(np.float32)).cuda()
        if not _error(made, wanted) <= TOLERANCE:
            print(f"WRONG: {_error(made, wanted):.1e}")
        if args.kernels:
            _print_kernels(bound)
    print(
        f"| {shape[0]}×{shape[1]} | {times[0]:.1f} | {times[1]:.1f} | {times[1] / times[0]:.2f} "
        f"| {counts[0]}, {counts[1]} | {host[0]:.1f}, {host[1]:.1f} "
        f"| {', '.join(f'{t * 1e6:.0f}' for t in new)} |",
        flush=True,
    )


def _device_times(bound: Any) -> list[float]:
    for _ in range(WARM):
        bound()
    return [bound.time_ns() / 1e3 for _ in range(CALLS)]


def _host_time(bound: Any) -> float:
    """What the host takes to enqueue a call behind another: the first after a wait wakes it up."""
    times: list[float] = []
    for _ in range(CALLS):
        bound.wait()
        bound()
        start = time.perf_counter()
        bound()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def _print_kernels(bound: Any) -> None:
    """The sum of the times of equal kernels."""
    total, count = Counter[str](), Counter[str]()
    for name, us in bound.kernel_times():
        code = name.split()[-1]
        total[code] += us
        count[code] += 1
    for code, us in total.most_common():
        print(f"    {us:8.2f} {count[code]:3} {code}", flush=True)


if __name__ == "__main__":
    main()
