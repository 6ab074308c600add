"""`rlx bench FILE`: how long a call takes, beside onnxruntime if asked."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlx.cli import inputs
from rlx.cli.run import compiled, positive
from rlx.errors import Error
from rlx.op import Array

ROUND_S = 0.05
"""One turn of a contender; turns alternate, so that what slows the machine slows both."""
Call = Callable[[], Any]


def main(arguments: list[str]) -> int:
    """Prints the median of each contender, and the ratio of rounds."""
    parser = argparse.ArgumentParser(
        "rlx bench",
        description="Times calls of a model, in turns with another runtime if one is named.",
        epilog="example: rlx bench model.onnx --against onnxruntime --threads 1",
    )
    parser.add_argument("model", help="an .onnx file")
    parser.add_argument("--against", choices=["onnxruntime"], help="another runtime, in turns")
    parser.add_argument("--target", help="such as cpu (native code, if it is there)")
    parser.add_argument("--threads", type=positive, help="cores that calls may use (all)")
    parser.add_argument("--rounds", type=positive, default=20, help="turns of each (20)")
    inputs.add_options(parser)
    args = parser.parse_args(arguments)
    exe = compiled(args)
    given = inputs.inputs_of(exe, args)
    arrays = list(given.values())
    calls: dict[str, Call] = {"rlx": lambda: exe(*arrays)}
    if args.against:
        other = _onnxruntime(args, given)
        calls[args.against] = other
        print(_difference(exe.run(given), other()))
    _report(_timed(calls, args.rounds))
    return 0


def _onnxruntime(args: argparse.Namespace, given: Mapping[str, Array]) -> Call:
    try:
        import onnxruntime  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise Error("onnxruntime is not installed: pip install onnxruntime.") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads or 0
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            args.model, options, providers=["CPUExecutionProvider"]
        )
        feeds = dict(given)
        session.run(None, feeds)
    except Exception as error:  # its own errors have no common base
        raise Error(f"onnxruntime cannot run it: {str(error).splitlines()[0]}") from None
    return lambda: session.run(None, feeds)


def _difference(ours: Mapping[str, Array], theirs: list[Array]) -> str:
    """The largest difference of any output."""
    most = 0.0
    for (name, a), b in zip(ours.items(), theirs):
        if a.shape != np.shape(b):
            raise Error(f"output {name!r} is {a.shape}, onnxruntime's is {np.shape(b)}")
        if a.size:
            most = max(most, float(np.nanmax(np.abs(a.astype(np.float64) - b))))
    return f"outputs differ by at most {most:.3g}"


def _timed(calls: Mapping[str, Call], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a call, the median of each round."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            took = _round(call)
            if number:  # the first is for warming up
                found[name].append(took)
    return found


def _round(call: Call) -> float:
    times: list[float] = []
    end = time.perf_counter() + ROUND_S
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def _report(found: Mapping[str, list[float]]) -> None:
    for name, times in found.items():
        low, middle, high = (float(np.percentile(times, q)) for q in (25, 50, 75))
        print(f"{name:12} {middle:9.3f} ms  (quartiles {low:.3f} to {high:.3f})")
    if len(found) == 2:
        ours, theirs = found.values()
        ratio = statistics.median(a / b for a, b in zip(ours, theirs))
        print(f"rlx takes {ratio:.2f} of the other's time; below 1 is faster")
