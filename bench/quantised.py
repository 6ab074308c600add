"""ONNX files of workloads with weights of eight bits, as peers want them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bench.prepare import path_of
from bench.workload import Array, Workload

LEAST = 4096
"""Smaller weights stay as they are, as rlx leaves them."""


def with_bytes(workload: Workload) -> Path:
    """The model with its linear weights as i8, a scale for each output: DequantizeLinear of a
    constant is what OpenVINO takes for compressed weights."""
    path = path_of(workload).with_suffix(".bytes.onnx")
    if not path.exists():
        onnx: Any = import_module("onnx")
        model = onnx.load(path_of(workload))
        _compress(model.graph)
        _save(onnx, model, path)
    return path


def dynamic(workload: Workload) -> Path:
    """The model with products of bytes, by ONNX Runtime's own tool: weights once, activations in
    each call."""
    path = path_of(workload).with_suffix(".dynamic.onnx")
    if not path.exists():
        onnx: Any = import_module("onnx")
        tool: Any = import_module("onnxruntime.quantization")
        part = path.with_suffix(".part.onnx")
        model = onnx.load(path_of(workload))
        del model.graph.value_info[:]
        onnx.save(model, part)
        made = path.with_suffix(".made.onnx")
        tool.quantize_dynamic(part, made, weight_type=tool.QuantType.QInt8, per_channel=True)
        part.unlink()
        made.replace(path)
    return path


def _save(onnx: Any, model: Any, path: Path) -> None:
    part = path.with_suffix(".part.onnx")
    onnx.save(model, part)
    part.replace(path)


def _compress(graph: Any) -> None:
    helper: Any = import_module("onnx.helper")
    arrays: Any = import_module("onnx.numpy_helper")
    held = {i.name: i for i in graph.initializer}
    made: dict[str, int] = _weights(graph, held)
    before: list[Any] = []
    for name, axis in made.items():
        numbers, scale = quantised(arrays.to_array(held[name]), axis)
        for array, part in ((numbers, "bytes"), (scale, "scale")):
            graph.initializer.append(arrays.from_array(array, f"{name}.{part}"))
        given = [f"{name}.bytes", f"{name}.scale"]
        before.append(helper.make_node("DequantizeLinear", given, [f"{name}.wide"], axis=axis))
        graph.initializer.remove(held[name])
    for node in graph.node:
        for i, given in enumerate(node.input):
            node.input[i] = f"{given}.wide" if given in made else given
    nodes = [*before, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def _weights(graph: Any, held: dict[str, Any]) -> dict[str, int]:
    """The linear weights, each with the axis of its outputs."""
    maker = {out: n for n in graph.node for out in n.output}
    found: dict[str, int] = {}
    for node in graph.node:
        if node.op_type not in ("MatMul", "Gemm"):
            continue
        name, axis = node.input[1], 1
        axis -= any(a.name == "transB" and a.i for a in node.attribute)
        if name not in held and name in maker and maker[name].op_type == "Transpose":
            name, axis = maker[name].input[0], 1 - axis
        if name in held and len(held[name].dims) == 2 and np.prod(held[name].dims) >= LEAST:
            found[name] = axis
    return found


def quantised(weights: Array, axis: int) -> tuple[Array, Array]:
    """Bytes, and a scale for each index of the axis that makes the greatest of them 127."""
    scale = np.abs(weights).max(axis=1 - axis, keepdims=True) / 127
    scale[scale == 0] = 1
    numbers = np.clip(np.rint(weights / scale), -127, 127).astype(np.int8)
    return numbers, scale.reshape(-1).astype(np.float32)
