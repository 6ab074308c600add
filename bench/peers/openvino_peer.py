"""OpenVINO in single precision, its outputs read where it keeps them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from bench.peers import Runner
from bench.prepare import path_of
from bench.workload import Workload


def prepare(workload: Workload, threads: int) -> Runner:
    ov: Any = import_module("openvino")
    how = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    core = ov.Core()
    model = core.compile_model(core.read_model(path_of(workload)), "CPU", how)
    request = model.create_infer_request()
    feed = dict(enumerate(workload.inputs))

    def call() -> Any:
        return request.infer(feed, share_inputs=True, share_outputs=True)

    def arrays(_: Any) -> list[Any]:
        return [np.array(request.get_output_tensor(i).data) for i in range(len(model.outputs))]

    return Runner(call, arrays)
