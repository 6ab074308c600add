"""A report with measured times of its kernels and decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.core.dim import evaluate, symbols_of
from rlx.core.representative import representative
from rlx.core.shape import Shape
from rlx.explain.build import report_of
from rlx.explain.measure_decisions import MOST, Measured, Measurement, measure, summary
from rlx.explain.roofline import KernelTimes
from rlx.ir.lir import Phase

if TYPE_CHECKING:
    from rlx.cost.calibrate import Progress
    from rlx.explain.report import Report
    from rlx.ops.op import Array
    from rlx.runtime.executable import Executable, Inputs


def measured_report(
    exe: Executable,
    inputs: Inputs | None = None,
    *,
    most: int = MOST,
    seconds: float = 1.0,
    progress: Progress | None = None,
) -> Report:
    """The report of `exe`, its kernels timed and its decisions reversed and timed, on given inputs
    or on random ones of representative sizes."""
    given = sample_inputs(exe) if inputs is None else inputs
    times = exe.profile(given, seconds=seconds)
    found = measure(exe, given, most=most, seconds=seconds, progress=progress)
    return with_times(report_of(exe.result, exe.before, exe.backend), exe, times, found)


def with_times(report: Report, exe: Executable, times: KernelTimes, found: Measurement) -> Report:
    """The report with `measured` of what was timed."""
    plan = exe.lir.plan
    steps = [i for i, n in enumerate(plan.schedule) if plan.phases[n] is not Phase.PROLOGUE]
    by_step = {i: asdict(k) for i, k in zip(steps, times.kernels, strict=True)}
    by_id = {id_: decision_times(m) for m in found.measured for id_ in m.ids}
    timings = {
        **report.timings,
        "sizes": dict(times.sizes),
        "call_ns": found.call_ns or times.call_ns,
        "roofline_share": times.roofline_share,
        "gate": summary([found]),
        "not_measured": [asdict(s) for s in found.skipped],
        "rules": {id_: t for id_, t in by_id.items() if id_ in {r.id for r in report.rules}},
    }
    return replace(
        report,
        kernels=tuple(replace(k, measured=by_step.get(k.id)) for k in report.kernels),
        decisions=tuple(replace(d, measured=by_id.get(d.id)) for d in report.decisions),
        timings=timings,
    )


def decision_times(m: Measured) -> dict[str, Any]:
    """The row of a decision: gains of taking it, and how many were reversed with it."""
    return {
        "predicted_ns": m.predicted_ns, "measured_ns": m.measured_ns,
        "low_ns": m.low_ns, "high_ns": m.high_ns, "share": m.share, "class_size": len(m.ids),
        "rounds": m.rounds, "is_right": m.is_right, "is_certain": m.is_certain,
    }  # fmt: skip


def sample_inputs(exe: Executable) -> dict[str, Array]:
    """Numbers of a normal distribution; whole ones are 0 or 1, which are in range for most."""
    rng = np.random.default_rng(0)
    sizes = representative(symbols_of([d for s in exe.inputs.values() for d in s.dims]))
    return {name: _sample(shape, sizes, rng) for name, shape in exe.inputs.items()}


def _sample(shape: Shape, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    dims = [evaluate(d, sizes) for d in shape.dims]
    if shape.dtype.is_float or shape.dtype.is_complex:
        return rng.standard_normal(dims).astype(shape.dtype.numpy)
    return rng.integers(0, 2, dims).astype(shape.dtype.numpy)
