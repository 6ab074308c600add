"""`rlx bench MODEL`: the time of a call, also against onnxruntime."""

from __future__ import annotations

import enum
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.cli import options
from rlx.cli.progress import progress
from rlx.core.errors import Error, UnsupportedError
from rlx.core.other_load import OtherLoad, is_busy, warning
from rlx.core.units import time_text

if TYPE_CHECKING:
    from rlx.ops.op import Array
    from rlx.runtime.executable import Executable

EXAMPLE = "rlx bench model.onnx --against onnxruntime --threads 1"
ROUND_S = 0.05
"""One round of a runtime; rounds alternate, so that what slows the machine slows both."""
WARM_CALLS, DEVICE_CALLS = 3, 30
"""Calls of a device: work is recorded by the first ones."""
Call = Callable[[], Any]


class Rival(enum.Enum):
    """A runtime to compare with, in interleaved rounds."""

    ONNXRUNTIME = "onnxruntime"


def verb(
    model: options.ModelFile,
    against: Annotated[
        Rival | None, typer.Option("--against", help="Another runtime, for .onnx files.")
    ] = None,
    target: options.RunOn = None,
    threads: options.Threads = None,
    tune: options.Tuning = "bitwise",
    f64: options.Doubles = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds of each.")] = 20,
    files: options.InputFiles = None,
    params: options.ParamFiles = None,
    dims: options.Sizes = None,
    seed: options.Seed = 0,
    is_json: options.Json = False,
) -> int:
    """Time calls of a model, in rounds interleaved with another runtime if one is named.

    Each round is the median of calls in 50 ms. Alternating, whatever slows the machine slows both.
    On a GPU these bring their inputs and fetch their results; what the device takes is stated, too.
    """
    from rlx.cli import inputs, models

    if against and not model.endswith(".onnx"):
        raise typer.BadParameter(f"onnxruntime runs no {model}", param_hint="--against")
    wanted = inputs.Wanted.of(files, params, dims, seed)
    how: dict[str, Any] = {"is_weighed": wanted.has_sizes, "tune": tune, "f64": f64}
    exe = models.compiled(model, target, threads, wanted, **how)
    taken, made = inputs.ran(exe, wanted)
    given = taken.arrays
    arrays = list(given.values())
    calls: dict[str, Call] = {"rlx": lambda: exe(*arrays)}
    difference = None
    if against:
        other = calls[against.value] = _onnxruntime(model, threads, given)
        difference = _difference(made, other())
    load = OtherLoad()
    found = _timed(calls, rounds)
    busy = load.cores()
    device_ms = _device_ms(*exe.settled(given))
    if is_json:
        notes = {"made_up": list(taken.names), "difference": difference, "busy_cores": busy}
        facts = {"model": model, **notes, **_facts(found)}
        options.print_json(facts if device_ms is None else {**facts, "device_ms": device_ms})
        return 0
    inputs.print_made_up(taken)
    _report(found, difference, busy)
    if device_ms is not None:
        took = time_text(1e6 * device_ms)
        print(f"{'device':12} {took:>9} per call on arrays in its memory, by its own clock")
    return 0


def _device_ms(exe: Executable, arrays: Sequence[Array]) -> float | None:
    """The median call on memory of the device, without transfers; none where the host computes."""
    try:
        bound = exe.bind(*arrays)
    except UnsupportedError:
        return None
    for _ in range(WARM_CALLS):
        bound()
    return statistics.median(bound.time_ns() for _ in range(DEVICE_CALLS)) / 1e6


def _onnxruntime(model: str, threads: int | None, given: Mapping[str, Array]) -> Call:
    try:
        import onnxruntime  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise Error("onnxruntime is not installed: pip install onnxruntime.") from None
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads or 0
    settings.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
        feeds = dict(given)
        session.run(None, feeds)
    except Exception as error:  # its own errors have no common base
        raise Error(f"onnxruntime cannot run it: {str(error).splitlines()[0]}") from None
    return lambda: session.run(None, feeds)


def _difference(ours: Mapping[str, Array], theirs: list[Array]) -> float:
    """The largest difference of any output."""
    import numpy as np

    most = 0.0
    for (name, a), b in zip(ours.items(), theirs):
        if a.shape != np.shape(b):
            raise Error(f"output {name!r} is {a.shape}, onnxruntime's is {np.shape(b)}")
        if a.size:
            most = max(most, float(np.nanmax(np.abs(a.astype(np.float64) - b))))
    return most


def _timed(calls: Mapping[str, Call], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a call, the median of each round."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    with progress("timing") as report:
        for number in range(rounds + 1):
            report(number, rounds + 1, "")
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


def _facts(found: Mapping[str, list[float]]) -> dict[str, Any]:
    """Milliseconds of a call: the quartiles of the rounds, and the median ratio of two."""
    ends = {"low_ms": 0.25, "median_ms": 0.5, "high_ms": 0.75}
    quartiles: dict[str, Any] = {
        name: {end: _quantile(times, q) for end, q in ends.items()} for name, times in found.items()
    }
    if len(found) < 2:
        return {"times": quartiles}
    ours, theirs = found.values()
    return {"times": quartiles, "ratio": statistics.median(a / b for a, b in zip(ours, theirs))}


def _quantile(times: list[float], q: float) -> float:
    import numpy as np

    return float(np.quantile(times, q))


def _report(found: Mapping[str, list[float]], difference: float | None, busy: float) -> None:
    facts = _facts(found)
    if difference is not None:
        print(f"largest difference of any output: {difference:.3g}")
    for name, t in facts["times"].items():
        middle, low, high = (time_text(1e6 * t[k]) for k in ("median_ms", "low_ms", "high_ms"))
        mark = " *" if is_busy(busy) else ""
        print(f"{name:12} {middle:>9} per call (median; quartiles {low} to {high}){mark}")
    if "ratio" in facts:
        print(_compared(facts["ratio"], list(facts["times"])[1]))
    if is_busy(busy):
        print(warning(busy))


def _compared(ratio: float, other: str) -> str:
    """A ratio of times, with what it means."""
    by = f"{1 / ratio:.2f}× as fast as" if ratio < 1 else f"{ratio:.2f}× as slow as"
    return f"rlx is {by} {other}: {ratio:.2f}× its time, the median over rounds"
