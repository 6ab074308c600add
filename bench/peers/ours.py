"""rlx: called as a user would, or with arrays for the outputs that are used again."""

from __future__ import annotations

from typing import Any

import numpy as np

import rlx
from bench.peers import Runner, listed
from bench.workload import Workload


def prepare(
    workload: Workload,
    threads: int,
    *,
    reuses_outputs: bool,
    target: str,
    precision: str | None = None,
) -> Runner:
    exe = compiled(workload, target, threads, precision)
    inputs = workload.inputs
    if not reuses_outputs:
        return Runner(lambda: exe(*inputs), listed)
    out = [np.empty_like(a) for a in listed(exe(*inputs))]
    return Runner(lambda: exe(*inputs, out=out), listed)


def compiled(workload: Workload, target: str, threads: int, precision: str | None = None) -> Any:
    """The workload's executable, with its weights."""
    params = workload.rlx_params()
    how = options(target, threads)
    return rlx.compile(workload.model(params), target, params=params, precision=precision, **how)


def options(target: str, threads: int) -> dict[str, Any]:
    """The reference target has no threads to count."""
    return {} if target == "reference" else {"threads": threads}
