"""The process of an adapter: compute shaders that are pickled on standard input are run, and their
buffers pickled on standard output. It imports as little as it can, as it is started by tests."""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any

Work = tuple[str, str, list[bytes], bytes, tuple[int, int, int]]
"""The text, its entry point, the bytes of each binding, those of the params, and workgroups."""


def serve() -> None:
    import wgpu  # pyright: ignore[reportMissingImports]

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    found = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    features = ["shader-f16"] if "shader-f16" in found.features else []
    device = found.request_device_sync(required_features=features)
    while True:
        try:
            works: list[Work] = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Any = [_run(wgpu, device, *w) for w in works]
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, answers)
        answers.flush()


def _run(
    wgpu: Any, device: Any, text: str, entry: str, raws: list[bytes], params: bytes, groups: Any
) -> list[bytes]:
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    held = [device.create_buffer_with_data(data=raw, usage=usage) for raw in raws]
    held.append(device.create_buffer_with_data(data=params, usage=wgpu.BufferUsage.UNIFORM))
    kinds = ["storage"] * len(raws) + ["uniform"]
    entries = [
        {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
        for i, kind in enumerate(kinds)
    ]
    layout = device.create_bind_group_layout(entries=entries)
    pipeline = device.create_compute_pipeline(
        layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
        compute={"module": device.create_shader_module(code=text), "entry_point": entry},
    )
    resources = [
        {"binding": i, "resource": {"buffer": b, "offset": 0, "size": b.size}}
        for i, b in enumerate(held)
    ]
    encoder = device.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, device.create_bind_group(layout=layout, entries=resources))
    compute.dispatch_workgroups(*groups)
    compute.end()
    device.queue.submit([encoder.finish()])
    return [bytes(device.queue.read_buffer(b)) for b in held[:-1]]


if __name__ == "__main__":
    serve()
