"""Published models in WebAssembly, run by node, against native code.

    python -m tests.backend.wasm.models [--only RE] [--kind simd | relaxed]

Both compute in f32 and add in unlike orders: outputs may differ by a part of the largest element of
each. Files are those of `tests.onnx.zoo` (RLX_ZOO names their folder), MiniLM-L6 and the spectra
those of the benchmarks.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import rlx
from rlx.backends.cpu.backend import CpuBackend
from rlx.frontends.onnx.model import Model as OnnxModel
from rlx.pipeline import CompilePipeline
from tests.backend.wasm.engine import Engine, why_not
from tests.backend.wgpu.models import MODELS, Model, differences, of_zoo

CALLS = 5
MORE = ("minilm_l6_int8", "lac", "ppocr2_cls", "magika_v3_3", "ddddocr_ocr", "swift_f0")
"""Of the zoo, beside those that WebGPU is tested with: quantised weights, recurrent layers."""


def read(source: Any, inputs: Any, options: Mapping[str, Any]) -> tuple[Any, Any, list[Any]]:
    """A graph, its params, and the arrays of its inputs in order."""
    if not isinstance(source, OnnxModel):
        return source, options["params"], list(inputs)
    made = source.specialised([inputs[n] for n in source.inputs])
    return made.graph, made.params, [inputs[n.attrs["name"]] for n in made.graph.inputs]


def run(engine: Engine, name: str, model: Model, kind: str) -> bool:
    source, inputs, options = model.make()
    graph, params, given = read(source, inputs, options)
    start = time.perf_counter()
    lir = CompilePipeline(CpuBackend("wasm").target()).compile(graph).lir
    held = {n: np.asarray(a) for n, a in params.items()}
    program = engine.program(lir, held, kind)
    compiled = time.perf_counter() - start
    got, times = program.timed(given, CALLS)
    program.drop()
    every = [inputs[n] for n in source.inputs] if isinstance(source, OnnxModel) else given
    wanted = rlx.compile(source, target="cpu", **options)(*every)
    worst = differences(tuple(got), wanted if isinstance(wanted, tuple) else (wanted,))
    is_right = worst <= model.tolerance
    print(
        f"{name}: {worst:.1e} of at most {model.tolerance:g}, compiled in {compiled:.1f} s, calls "
        f"of {statistics.median(times):.1f} ms{'' if is_right else ' WRONG'}",
        flush=True,
    )
    return is_right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--kind", default="simd", choices=("simd", "relaxed"))
    args = parser.parse_args()
    if missing := why_not():
        print(missing, file=sys.stderr)
        return 2
    every = {**MODELS, **{name: Model(lambda n=name: of_zoo(n)) for name in MORE}}
    engine, wrong = Engine(), 0
    for name, model in every.items():
        if re.search(args.only, name):
            try:
                wrong += not run(engine, name, model, args.kind)
            except rlx.Error as error:
                print(f"{name}: {type(error).__name__}: {str(error)[:500]}", flush=True)
                wrong += 1
    engine.close()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
