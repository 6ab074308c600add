"""A report with measured times of its kernels and decisions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.core.dim import evaluate, symbols_of
from rlx.core.other_load import OtherLoad
from rlx.core.representative import representative
from rlx.core.shape import Shape
from rlx.explain.build import report_of
from rlx.explain.measure_decisions import MOST, Measurement, measure, summary
from rlx.explain.measured import Measured
from rlx.explain.roofline import FEWEST, KernelTimes
from rlx.ir.lir import Phase

if TYPE_CHECKING:
    from rlx.cost.calibrate import Progress
    from rlx.explain.measure_journal import Journal
    from rlx.explain.report import Report
    from rlx.ops.op import Array
    from rlx.runtime.executable import Executable, Inputs


Call = Callable[[], Any]


def measured_report(
    exe: Executable,
    inputs: Inputs | None = None,
    *,
    most: int = MOST,
    seconds: float = 1.0,
    progress: Progress | None = None,
    journal: Journal | None = None,
) -> Report:
    """The report of `exe`, its kernels timed and its decisions reversed and timed, on given inputs
    or on random ones of representative sizes."""
    given = sample_inputs(exe) if inputs is None else inputs
    report = timed_report(exe, given, seconds=seconds)
    how: dict[str, Any] = {"progress": progress, "journal": journal}
    found = measure(exe, given, most=most, seconds=seconds, **how)
    return with_decisions(report, found)


def timed_report(
    exe: Executable, inputs: Inputs, *, seconds: float = 0.5, call: Call | None = None
) -> Report:
    """The report of `exe` with the times of a call and of its kernels. `call` is what the user
    calls, where that finds the program for its inputs first."""
    load = OtherLoad()
    times = exe.profile(inputs, seconds=seconds)
    arrays, sizes = exe.arrays(inputs), exe.sizes(inputs)
    report = report_of(exe.result, exe.before, exe.backend, sizes=sizes, model=exe.source)
    took_ns = call_ns(call or (lambda: exe(*arrays)), seconds)
    return with_times(report, exe, times, took_ns, load.cores())


def call_ns(call: Call, seconds: float) -> float:
    """The median call, as a user makes it and `rlx bench` times it."""
    call()
    took: list[int] = []
    until = time.perf_counter() + seconds
    while len(took) < FEWEST or time.perf_counter() < until:
        start = time.perf_counter_ns()
        call()
        took.append(time.perf_counter_ns() - start)
    return statistics.median(took)


def with_times(
    report: Report, exe: Executable, times: KernelTimes, took_ns: float, busy_cores: float
) -> Report:
    """The report with the times of kernels and of a call, and what others used meanwhile."""
    plan = exe.lir.plan
    steps = [i for i, n in enumerate(plan.schedule) if plan.phases[n] is not Phase.PROLOGUE]
    by_step = {i: asdict(k) for i, k in zip(steps, times.kernels, strict=True)}
    timings = {
        **report.timings,
        "sizes": dict(times.sizes),
        "call_ns": took_ns,
        "roofline_share": times.roofline_share,
        "busy_cores": busy_cores,
        "call_busy_cores": busy_cores,
    }
    kernels = tuple(replace(k, measured=by_step.get(k.id)) for k in report.kernels)
    return replace(report, kernels=kernels, timings=timings)


def with_decisions(report: Report, found: Measurement) -> Report:
    """The report with what reversing its decisions changed."""
    by_id = {id_: decision_times(m) for m in found.measured for id_ in m.ids}
    timings = {
        **report.timings,
        "gate": summary([found]),
        "busy_cores": max(found.busy_cores, report.timings.get("busy_cores", 0.0)),
        "interrupted": found.interrupted,
        "not_measured": [asdict(s) for s in found.skipped],
        "rules": {id_: t for id_, t in by_id.items() if id_ in {r.id for r in report.rules}},
    }
    decisions = tuple(replace(d, measured=by_id.get(d.id)) for d in report.decisions)
    return replace(report, decisions=decisions, timings=timings)


def decision_times(m: Measured) -> dict[str, Any]:
    """The row of a decision: gains of taking it, and how many were reversed with it."""
    return {
        "predicted_ns": m.predicted_ns, "measured_ns": m.measured_ns,
        "low_ns": m.low_ns, "high_ns": m.high_ns, "share": m.share, "class_size": len(m.ids),
        "rounds": m.rounds, "is_right": m.is_right, "is_certain": m.is_certain,
        "busy_cores": m.busy_cores,
    }  # fmt: skip


def sample_inputs(exe: Executable) -> dict[str, Array]:
    """Numbers of a normal distribution; whole ones are 0 or 1, which are in range for most."""
    rng = np.random.default_rng(0)
    sizes = representative(symbols_of([d for s in exe.loaded.inputs.values() for d in s.dims]))
    return {name: _sample(shape, sizes, rng) for name, shape in exe.loaded.inputs.items()}


def _sample(shape: Shape, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    dims = [evaluate(d, sizes) for d in shape.dims]
    if shape.dtype.is_float or shape.dtype.is_complex:
        return rng.standard_normal(dims).astype(shape.dtype.numpy)
    return rng.integers(0, 2, dims).astype(shape.dtype.numpy)
