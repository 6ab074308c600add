"""How far rlx and onnxruntime are from f64, on real models: `python -m tests.onnx.accuracy`.

A model is evaluated by the reference in f64, with every f32 of its file widened, and each output's
error is told as a part of the output's largest element. rlx may be at most twice as far as
onnxruntime. Errors below four roundings of f32 count as such: two runtimes that add in unlike
orders differ by as much.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.onnx.zoo import FOLDER, ZOO, fetched

FLOOR = 4 * 2.0**-24
MOST = 2.0
LIMIT_S = 600.0
FLOAT, DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
ALWAYS_FLOAT = {"Resize": (2,), "Upsample": (1,), "QuantizeLinear": (1,), "DequantizeLinear": (1,),
                "QLinearConv": (1, 4, 6), "QLinearMatMul": (1, 4, 6),
                "DynamicQuantizeLSTM": (8, 10)}  # fmt: skip
"""Operands that the standard has as f32 whatever the others are."""
DTYPES = ("to", "dtype", "output_dtype")


# -- widening ---------------------------------------------------------------------------------


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with f64 in the place of f32, but for what must be f32."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    _widen_graph(made.graph, frozenset())
    for function in made.functions:
        for node in function.node:
            _widen_node(node)
    return made


def _widen_graph(graph: onnx.GraphProto, outer: frozenset[str]) -> None:
    kept = outer | _kept(graph.node)
    for tensor in graph.initializer:
        if tensor.name not in kept:
            _widen_tensor(tensor)
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.name not in kept:
            _widen_type(info.type)
    for node in graph.node:
        if not (node.op_type == "Constant" and node.output[0] in kept):
            _widen_node(node, kept)


def _kept(nodes: Iterable[onnx.NodeProto]) -> frozenset[str]:
    """Names of what is read as f32."""
    return frozenset(
        node.input[i]
        for node in nodes
        for i in ALWAYS_FLOAT.get(node.op_type, ())
        if i < len(node.input)
    )


def _widen_node(node: onnx.NodeProto, kept: frozenset[str] = frozenset()) -> None:
    for attr in node.attribute:
        if attr.name in DTYPES and attr.i == FLOAT:
            attr.i = DOUBLE
        _widen_tensor(attr.t)
        for graph in (attr.g, *attr.graphs):
            _widen_graph(graph, kept)
        if node.op_type == "Constant" and attr.name in ("value_float", "value_floats"):
            value = attr.f if attr.name == "value_float" else list(attr.floats)
            attr.CopyFrom(onnx.helper.make_attribute(
                "value", numpy_helper.from_array(np.array(value, np.float64))))  # fmt: skip


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == FLOAT:
        wide = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))


def _widen_type(kind: onnx.TypeProto) -> None:
    if kind.tensor_type.elem_type == FLOAT:
        kind.tensor_type.elem_type = DOUBLE


# -- one model --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    path: str
    given: Mapping[str, Any]
    target: str


@dataclass(frozen=True, slots=True)
class Error:
    """Of one output, as parts of its largest element."""

    output: str
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return max(self.ours, FLOOR) / max(self.theirs, FLOOR)


def measured(job: Job) -> list[Error] | str:
    """The errors of all outputs of floats, or why there are none."""
    import onnxruntime

    import rlx

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    other = onnxruntime.InferenceSession(job.path, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in other.get_outputs()]
    theirs = dict(zip(names, other.run(None, dict(job.given))))
    ours = rlx.compile(rlx.load(job.path), job.target, cache=False).run(dict(job.given))
    try:
        exact = in_f64(onnx.load(job.path), job.given)
    except rlx.Error as error:
        return f"f64: {error}"
    return list(_errors(ours, theirs, exact))


def in_f64(model: onnx.ModelProto, given: Mapping[str, Any]) -> Mapping[str, Any]:
    import rlx

    wide = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in given.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "wide.onnx")
        onnx.save(widened(model), path, save_as_external_data=True)
        return rlx.compile(rlx.load(path), "reference", cache=False).run(wide)


def _errors(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], exact: Mapping[str, Any]
) -> Iterator[Error]:
    for name, want in exact.items():
        if want.dtype.kind == "f" and want.size and want.shape == theirs[name].shape:
            yield Error(name, _error(ours[name], want), _error(theirs[name], want))


def _error(made: Any, want: Any) -> float:
    """The root of the mean square of the difference over the largest element."""
    usable = np.isfinite(want) & np.isfinite(made)
    largest = float(np.abs(want[usable]).max(initial=0.0)) or 1.0
    apart = (made.astype(np.float64) - want)[usable]
    return float(np.sqrt(np.mean(apart * apart))) / largest if apart.size else 0.0


# -- all --------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.onnx.accuracy", description=__doc__,
        epilog="example: .venv-bench/bin/python -m tests.onnx.accuracy --only nudenet",
    )  # fmt: skip
    parser.add_argument("--only", metavar="RE", default="", help="models whose name has this")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"of files ({FOLDER})")
    parser.add_argument("--target", default="cpu", help="the target that is measured (cpu)")
    parser.add_argument("files", nargs="*", type=Path, help="other models, with drawn inputs")
    args = parser.parse_args(argv)
    os.environ["RLX_CACHE"] = "off"
    jobs = [Job(p.stem, str(p), drawn(p), args.target) for p in args.files] or [
        Job(n, str(fetched(n, args.folder)), _given(n), args.target)
        for n in ZOO
        if re.search(args.only, n)
    ]
    return told(jobs)


def _given(name: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {k: make(rng) for k, make in ZOO[name].inputs.items()}


def drawn(path: Path, size: int = 320) -> dict[str, Any]:
    """Inputs of a file that says their shapes: what it leaves open is 1, or `size` of an image."""
    rng = np.random.default_rng(0)
    graph = onnx.load(str(path), load_external_data=False).graph
    weights = {t.name for t in graph.initializer}
    made: dict[str, Any] = {}
    for info in (i for i in graph.input if i.name not in weights):
        kind = info.type.tensor_type
        sizes = [d.dim_value for d in kind.shape.dim]
        dims = [
            n if n > 0 else (size if i >= 2 and len(sizes) == 4 else 1) for i, n in enumerate(sizes)
        ]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        data = rng.random(dims) if np.dtype(dtype).kind == "f" else rng.integers(0, 100, dims)
        made[info.name] = data.astype(dtype)
    return made


def told(jobs: list[Job]) -> int:
    from rlx.fuzz.crew import Lost, each

    wrong = 0
    print(f"{'model':22} {'output':26} {'rlx':>9} {'ort':>9} {'ratio':>6}")
    for job, got in zip(jobs, each(measured, jobs, 1, LIMIT_S)):
        if isinstance(got, Lost | str):
            print(f"{job.name:22} {got.reason if isinstance(got, Lost) else got}", flush=True)
            wrong += 1
            continue
        for e in got:
            wrong += e.ratio > MOST
            print(f"{job.name:22} {e.output[:26]:26} {e.ours:9.2e} {e.theirs:9.2e} {e.ratio:6.2f}",
                  flush=True)  # fmt: skip
    print(f"{wrong} outputs are more than {MOST:g} times as far from f64 as onnxruntime's")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
