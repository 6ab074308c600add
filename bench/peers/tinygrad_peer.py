"""tinygrad on its CPU device, its kernels captured once and replayed."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.dialects import for_tinygrad
from bench.dialects.for_tinygrad import tinygrad
from bench.peers import Runner, listed
from bench.workload import Array, Workload

CAPTURING = 2
"""The first call runs, the second is captured; later ones replay it."""


def prepare(workload: Workload, threads: int) -> Runner:
    params = {k: _held(v) for k, v in workload.params.items()}
    inputs = [_held(a) for a in workload.inputs]

    def once(*given: Any) -> tuple[Any, ...]:
        first, *rest = listed(workload.function(for_tinygrad, params, *given))
        first.realize(*rest)
        return (first, *rest)

    replay = tinygrad.TinyJit(once)
    device = tinygrad.Device[tinygrad.Device.DEFAULT]

    def call() -> Any:
        made = replay(*inputs)
        device.synchronize()
        return made

    for _ in range(CAPTURING):
        call()
    return Runner(call, lambda made: [t.numpy() for t in made])


def _held(array: Array) -> Any:
    narrow = array.astype(np.int32) if array.dtype == np.int64 else array
    return tinygrad.Tensor(np.ascontiguousarray(narrow)).contiguous().realize()
