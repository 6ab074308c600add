"""A wgpu adapter by its Vulkan driver, on which modules run, for tests of their text.

A process loads one driver, so each adapter has a process of its own: `python -m
tests.backend.wgpu.adapter` runs the modules that it is given, and answers with their buffers.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from rlx.backends.wgpu.wgsl.module import Grid, Module, dispatch
from tests.backend.wgpu.drivers import ICD, file_of, why_not

Array = np.ndarray[Any, Any]
ALIGN = 256
GAP = 64
"""Elements in front of a buffer, so that its first one is not the binding's."""


@dataclass(frozen=True)
class Dispatch:
    """One launch of a module on flat arrays."""

    module: Module
    buffers: tuple[Array, ...]
    scalars: tuple[float, ...] = ()
    grid: Grid = (1, 1, 1)
    bindings: tuple[int, ...] | None = None


class Adapter:
    """A process that runs modules on one driver."""

    def __init__(self, driver: str) -> None:
        self.driver = driver
        why = why_not(driver)
        if why:
            pytest.skip(why)
        env = {**os.environ, ICD: str(file_of(driver))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.backend.wgpu.adapter"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def run(self, *dispatches: Dispatch) -> list[tuple[Array, ...]]:
        """The buffers of each after its launch."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(dispatches, self._process.stdin)
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)
        if isinstance(answer, str):
            raise AssertionError(answer)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10)


def _serve() -> None:
    import wgpu  # pyright: ignore[reportMissingImports]

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    found = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    features = ["shader-f16"] if "shader-f16" in found.features else []
    device = found.request_device_sync(required_features=features)
    while True:
        try:
            dispatches = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Any = [_run(wgpu, device, d) for d in dispatches]
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, answers)
        answers.flush()


def _run(wgpu: Any, device: Any, work: Dispatch) -> tuple[Array, ...]:
    """All buffers of a binding are in one GPU buffer, one behind the other."""
    module = work.module
    bindings = module.separate if work.bindings is None else work.bindings
    raws: list[bytearray] = [bytearray() for _ in range(max(bindings, default=-1) + 1)]
    firsts: list[int] = []
    for array, k in zip(work.buffers, bindings, strict=True):
        raws[k] += b"\xa5" * (GAP * array.itemsize - len(raws[k]) % ALIGN % (GAP * array.itemsize))
        raws[k] += b"\xa5" * (-len(raws[k]) % ALIGN)
        firsts.append(len(raws[k]) // array.itemsize)
        raws[k] += array.tobytes()
        raws[k] += b"\xa5" * (-len(raws[k]) % 16)
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    held = [device.create_buffer_with_data(data=bytes(raw), usage=usage) for raw in raws]
    params = module.params(firsts, work.scalars, work.grid)
    held.append(device.create_buffer_with_data(data=params, usage=wgpu.BufferUsage.UNIFORM))
    shader = device.create_shader_module(code=module.source(bindings))
    stage = {"module": shader, "entry_point": module.name}
    kinds = ["storage"] * len(raws) + ["uniform"]
    entries = [
        {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
        for i, kind in enumerate(kinds)
    ]
    layout = device.create_bind_group_layout(entries=entries)
    pipes = device.create_pipeline_layout(bind_group_layouts=[layout])
    pipeline = device.create_compute_pipeline(layout=pipes, compute=stage)
    resources = [
        {"binding": i, "resource": {"buffer": b, "offset": 0, "size": b.size}}
        for i, b in enumerate(held)
    ]
    group = device.create_bind_group(layout=layout, entries=resources)
    encoder = device.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, group)
    compute.dispatch_workgroups(*dispatch(work.grid))
    compute.end()
    device.queue.submit([encoder.finish()])
    read = [bytes(device.queue.read_buffer(b)) for b in held[:-1]]
    made: list[Array] = []
    for array, k, first in zip(work.buffers, bindings, firsts, strict=True):
        start = first * array.itemsize
        made.append(np.frombuffer(read[k][start : start + array.nbytes], array.dtype))
    return tuple(made)


if __name__ == "__main__":
    _serve()
