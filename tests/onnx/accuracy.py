"""How far rlx and onnxruntime are from f64, on real models: `python -m tests.onnx.accuracy`.

A model is evaluated by the reference in f64, with every f32 of its file widened. The error of an
output is the root of the mean square of its differences over all draws of inputs, as a part of its
largest element; one draw of a model with a single output would tell of luck. rlx may be at most
twice as far as onnxruntime. Errors below four roundings of f32 count as such: two runtimes that add
in unlike orders differ by as much.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


Given = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    path: str
    draws: tuple[Given, ...]
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
    import rlx

    try:
        exact = run_in_f64(onnx.load(job.path), job.draws)
        exe: Any = rlx.compile(rlx.load(job.path), job.target, cache=False)
        ours = [exe.run(dict(given)) for given in job.draws]
    except rlx.Error as error:
        return f"{type(error).__name__}: {error}"
    return list(_errors(ours, _run_by_onnxruntime(job), exact))


def _run_by_onnxruntime(job: Job) -> list[Given]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    other = onnxruntime.InferenceSession(job.path, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in other.get_outputs()]
    return [dict(zip(names, other.run(None, dict(given)))) for given in job.draws]


def run_in_f64(model: onnx.ModelProto, draws: Iterable[Given]) -> list[Given]:
    import rlx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "wide.onnx")
        onnx.save(widened(model), path, save_as_external_data=True)
        exe: Any = rlx.compile(rlx.load(path), "reference", cache=False)
        return [exe.run({k: _wide(v) for k, v in given.items()}) for given in draws]


def _wide(x: Any) -> Any:
    return x.astype(np.float64) if x.dtype == np.float32 else x


def _errors(
    ours: Sequence[Given], theirs: Sequence[Given], exact: Sequence[Given]
) -> Iterator[Error]:
    for name, first in exact[0].items():
        if first.dtype.kind == "f" and first.size:
            want, *made = ([x[name] for x in run] for run in (exact, ours, theirs))
            yield Error(name, *(_error(x, want) for x in made))


def _error(made: Sequence[Any], want: Sequence[Any]) -> float:
    """The root of the mean square of the differences, each over the largest element of its draw.
    Where a size that was found in data differs, it is no number."""
    squares: list[float] = []
    for a, b in zip(made, want, strict=True):
        if a.shape != b.shape:
            return float("nan")
        usable = np.isfinite(a) & np.isfinite(b)
        largest = float(np.abs(b[usable]).max(initial=0.0)) or 1.0
        apart = (a.astype(np.float64) - b)[usable] / largest
        squares.append(float(np.mean(apart * apart)) if apart.size else 0.0)
    return float(np.sqrt(np.mean(squares)))


# -- all --------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.onnx.accuracy", description=__doc__,
        epilog="example: .venv-bench/bin/python -m tests.onnx.accuracy --only nudenet",
    )  # fmt: skip
    parser.add_argument("--only", metavar="RE", default="", help="models whose name has this")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"of files ({FOLDER})")
    parser.add_argument("--target", default="cpu", help="the target that is measured (cpu)")
    parser.add_argument("--draws", type=int, default=4, help="of inputs (4)")
    parser.add_argument("--high", type=float, default=1.0, help="of drawn floats from 0 on (1)")
    parser.add_argument("files", nargs="*", type=Path, help="other models, with drawn inputs")
    args = parser.parse_args(argv)
    os.environ["RLX_CACHE"] = "off"
    seeds = range(args.draws)
    jobs = [
        Job(p.stem, str(p), tuple(drawn(p, s, args.high) for s in seeds), args.target)
        for p in args.files
    ] or [
        Job(n, str(fetched(n, args.folder)), tuple(_given(n, s) for s in seeds), args.target)
        for n in ZOO
        if re.search(args.only, n)
    ]
    return told(jobs)


def _given(name: str, seed: int) -> Given:
    rng = np.random.default_rng(seed)
    return {k: make(rng) for k, make in ZOO[name].inputs.items()}


def drawn(path: Path, seed: int, high: float = 1.0, size: int = 320) -> Given:
    """Inputs of a file that says their shapes: what it leaves open is 1, or `size` of an image."""
    rng = np.random.default_rng(seed)
    graph = onnx.load(str(path), load_external_data=False).graph
    weights = {t.name for t in graph.initializer}
    made: dict[str, Any] = {}
    for info in (i for i in graph.input if i.name not in weights):
        kind = info.type.tensor_type
        sizes = [d.dim_value for d in kind.shape.dim]
        is_image = len(sizes) == 4
        dims = [n if n > 0 else size if is_image and i >= 2 else 1 for i, n in enumerate(sizes)]
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
        data = high * rng.random(dims) if dtype.kind == "f" else rng.integers(0, 100, dims)
        made[info.name] = data.astype(dtype)
    return made


def told(jobs: list[Job]) -> int:
    from rlx.fuzz.workers import Lost, each

    wrong = 0
    print(f"{'model':22} {'output':26} {'rlx':>9} {'ort':>9} {'ratio':>6}")
    for job, got in zip(jobs, each(measured, jobs, 1, LIMIT_S)):
        if isinstance(got, Lost | str):
            print(f"{job.name:22} {got.reason if isinstance(got, Lost) else got}", flush=True)
            wrong += 1
            continue
        for e in got:
            wrong += not e.ratio <= MOST
            print(f"{job.name:22} {e.output[:26]:26} {e.ours:9.2e} {e.theirs:9.2e} {e.ratio:6.2f}",
                  flush=True)  # fmt: skip
    print(f"{wrong} outputs are more than {MOST:g} times as far from f64 as onnxruntime's")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
