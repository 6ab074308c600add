"""tinygrad on the device that DEV names, its kernels captured once and replayed."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bench.dialects import for_tinygrad
from bench.dialects.for_tinygrad import tinygrad
from bench.peers import Launches, Runner, listed, noted
from bench.workload import Array, Workload

DAWN = "libwebgpu_dawn_x86_64.so"
"""WebGPU as the package dawn-python has it, under a name that tinygrad does not look for."""

CAPTURING = 2
"""The first call runs, the second is captured; later ones replay it."""


def prepare(workload: Workload, threads: int) -> Runner:
    is_webgpu = os.environ["DEV"] == "WEBGPU"
    if is_webgpu:
        os.environ.setdefault("WEBGPU_PATH", str(_dawn()))
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
    counts = (lambda: launches(call)) if is_webgpu else None
    return Runner(call, lambda made: [t.numpy() for t in made], counts)


def _dawn() -> Path:
    spec = find_spec("pydawn")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "lib" / DAWN


def launches(call: Callable[[], Any]) -> Launches:
    """What a call asks of WebGPU: a program is one text."""
    home = import_module("tinygrad.runtime.ops_webgpu")
    with (
        noted(home.WebGPUProgram, "__call__", lambda program, *_: id(program)) as ran,
        noted(home.webgpu, "wgpuQueueSubmit", lambda *_: None) as submitted,
    ):
        call()
    return Launches(len(set(ran)), len(ran), len(submitted))


def _held(array: Array) -> Any:
    narrow = array.astype(np.int32) if array.dtype == np.int64 else array
    return tinygrad.Tensor(np.ascontiguousarray(narrow)).contiguous().realize()
