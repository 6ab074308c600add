"""OpenVINO, its outputs read where it keeps them; in single precision unless another is asked
for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from bench.peers import Runner
from bench.prepare import path_of
from bench.quantised import with_bytes
from bench.workload import Workload


def prepare(workload: Workload, threads: int, *, precision: str | None = None) -> Runner:
    has_bytes = precision is not None and precision.startswith("int8")
    path = with_bytes(workload) if has_bytes else path_of(workload)
    ov: Any = import_module("openvino")
    how = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
    }
    core = ov.Core()
    model = core.compile_model(core.read_model(path), "CPU", how)
    request = model.create_infer_request()
    feed = dict(enumerate(workload.inputs))

    def call() -> Any:
        return request.infer(feed, share_inputs=True, share_outputs=True)

    def arrays(_: Any) -> list[Any]:
        return [np.array(request.get_output_tensor(i).data) for i in range(len(model.outputs))]

    return Runner(call, arrays)
