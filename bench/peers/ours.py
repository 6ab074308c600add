"""rlx: called as a user would, or with arrays for the outputs that are used again."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

import rlx
from bench.peers import Launches, Runner, listed, noted
from bench.workload import Workload

RECORDING = 3
"""Calls after which a GPU's work is replayed."""


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
    counts = launches if target.startswith("wgpu") else None
    if not reuses_outputs:
        return _runner(lambda: exe(*inputs), counts)
    out = [np.empty_like(a) for a in listed(exe(*inputs))]
    return _runner(lambda: exe(*inputs, out=out), counts)


def _runner(call: Callable[[], Any], counts: Callable[[Any], Launches] | None) -> Runner:
    return Runner(call, listed, counts and (lambda: counts(call)))


def launches(call: Callable[[], Any]) -> Launches:
    """What a call asks of wgpu, once it is recorded."""
    api = import_module("wgpu.backends.wgpu_native")
    for _ in range(RECORDING):
        call()
    with (
        noted(api.GPUComputePassEncoder, "set_pipeline", lambda _, pipeline: id(pipeline)) as used,
        noted(api.GPUComputePassEncoder, "dispatch_workgroups", lambda *_: None) as dispatched,
        noted(api.GPUQueue, "submit", lambda *_: None) as submitted,
    ):
        call()
    return Launches(len(set(used)), len(dispatched), len(submitted))


def compiled(workload: Workload, target: str, threads: int, precision: str | None = None) -> Any:
    """The workload's executable, with its weights."""
    params = workload.rlx_params()
    how = options(target, threads)
    return rlx.compile(workload.model(params), target, params=params, precision=precision, **how)


def options(target: str, threads: int) -> dict[str, Any]:
    """Native code alone has threads to count."""
    return {"threads": threads} if target.startswith("cpu") else {}
