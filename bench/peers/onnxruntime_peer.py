"""ONNX Runtime on its CPU provider, every optimisation on; int8 is its dynamic quantisation."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bench.peers import Runner, listed
from bench.prepare import path_of
from bench.quantised import dynamic
from bench.workload import Workload


def prepare(workload: Workload, threads: int, *, precision: str | None = None) -> Runner:
    path = dynamic(workload) if precision else path_of(workload)
    ort: Any = import_module("onnxruntime")
    how = ort.SessionOptions()
    how.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    how.intra_op_num_threads, how.inter_op_num_threads, how.log_severity_level = threads, 1, 3
    session = ort.InferenceSession(str(path), how, providers=["CPUExecutionProvider"])
    feed = {i.name: a for i, a in zip(session.get_inputs(), workload.inputs, strict=True)}
    return Runner(lambda: session.run(None, feed), listed)
