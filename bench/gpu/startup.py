"""`python -m bench.gpu.startup`: what it takes until MiniLM-L6 runs on a GPU, cold and from cache.

Every compile is in a process of its own: one into an empty cache, then some out of it, with batch
and length named, and again for 1×128 tokens. The model is f32, built here with random weights; or
it is the `--onnx` file, as that has it. A compile opens the device and uploads the weights, too.
What it imports when it is first needed is part of the first line; the second is a process that
imported it before. The driver's own cache of assembled code is off. Processes out of the cache must
give the bits of the cold one.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from bench.alone import Check

REPEATS = 3
COLD_S, CACHED_S = 3.0, 0.3
"""The limits."""
SHAPE = 1, 128


def main() -> int:
    args = _arguments()
    if args.child:
        print(json.dumps(_measured(args)))
        return 0
    kinds = ("onnx",) if args.onnx else args.kinds or ("named", "static")
    rows = [row for kind in kinds for row in _rows(args, kind)]
    return int(any(r.limit is not None and r.value > r.limit for r in rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.startup", description=__doc__)
    parser.add_argument("kinds", nargs="*", help="named, static; both, if none is given")
    parser.add_argument("--target", default="cuda", help="cuda or rocm, with the device's number")
    parser.add_argument("--onnx", default="", help="a model of two inputs i64[batch, length]")
    parser.add_argument("--stages", action="store_true", help="print what code generation took")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--modules", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


TITLES = {
    "named": "MiniLM-L6 with named batch and length",
    "static": "MiniLM-L6 of 1×128 tokens",
    "onnx": "the ONNX file",
}


def _rows(args: argparse.Namespace, kind: str) -> list[Check]:
    with tempfile.TemporaryDirectory() as cache:
        cold = _fresh(args, kind, cache)
        late = [_fresh(args, kind, cache) for _ in range(REPEATS)]
        early = [_fresh(args, kind, cache, late[0]["modules"]) for _ in range(REPEATS)]
    with tempfile.TemporaryDirectory() as cache:
        before = _fresh(args, kind, cache, cold["modules"])
    wrong = sum(run["bits"] != cold["bits"] for run in (*late, *early, before))
    rows = [
        Check(f"{TITLES[kind]}: cold compile, with imports", cold["compile_s"], "s", COLD_S),
        Check("  the same, imported before", before["compile_s"], "s", COLD_S),
        Check("  from cache, with imports", _least(late, "compile_s"), "s", CACHED_S),
        Check("  the same, imported before", _least(early, "compile_s"), "s", CACHED_S),
        Check("  reading the model, cold", cold["load_s"], "s"),
        Check("  reading the model, from cache", _least(late, "load_s"), "s"),
        Check("  import of all that a cached program uses", _least(early, "import_s"), "s"),
        Check("  the first call", _least(late, "call_s") * 1e3, "ms"),
        Check("  kernels", cold["kernels"], ""),
        Check("  processes of other bits", wrong, "", 0),
    ]
    print("\n".join(map(str, rows)), flush=True)
    if args.stages:
        print(f"  {cold['stages']}", flush=True)
    return rows


def _least(runs: list[dict[str, Any]], key: str) -> float:
    return min(run[key] for run in runs)


def _fresh(args: argparse.Namespace, kind: str, cache: str, modules: str = "") -> dict[str, Any]:
    """A process of its own, which imports `modules` first."""
    command = [sys.executable, "-m", "bench.gpu.startup", "--child", kind, "--modules", modules]
    command += ["--target", args.target, "--onnx", args.onnx]
    env = {k: v for k, v in os.environ.items() if k != "RLX_CACHE"}
    env |= {"RLX_CACHE_DIR": cache, "CUDA_CACHE_DISABLE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


# -- in a process of its own ----------------------------------------------------------------------


def _timed(make: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    made = make()
    return time.perf_counter() - start, made


def _measured(args: argparse.Namespace) -> dict[str, Any]:
    import ml_dtypes as ml_dtypes
    import numpy as np

    import_s, _ = _timed(lambda: [importlib.import_module(m) for m in args.modules.split()])
    import rlx

    load_s, (model, given) = _timed(_loader(args, args.child == "named"))
    compile_s, exe = _timed(lambda: rlx.compile(model, args.target, params=given))
    ids = np.arange(SHAPE[0] * SHAPE[1], dtype=np.int64).reshape(SHAPE) + 1
    call_s, made = _timed(lambda: exe(ids, np.ones_like(ids)))
    bits = hashlib.sha256(b"".join(a.tobytes() for a in _arrays(made))).hexdigest()
    spans = exe.loaded.program.codegen_spans
    return {
        "import_s": import_s, "load_s": load_s, "compile_s": compile_s, "call_s": call_s,
        "bits": bits, "kernels": len(exe.loaded.program.artefact.codes), "stages": _stages(spans),
        "modules": " ".join(m for m in sys.modules if m.startswith("rlx.")),
    }  # fmt: skip


def _arrays(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


def _stages(spans: Any) -> str:
    """Seconds of each part of code generation."""
    total: dict[str, float] = {}
    for span in spans:
        total[span.what] = total.get(span.what, 0.0) + (span.stop_ns - span.start_ns) / 1e9
    return ", ".join(f"{what} {s:.2f} s" for what, s in total.items())


def _loader(args: argparse.Namespace, is_named: bool) -> Callable[[], tuple[Any, Any]]:
    """What gives the model and its weights; random ones are drawn before."""
    import rlx

    if args.onnx:
        return lambda: (rlx.load(args.onnx), None)
    from bench.workloads import minilm

    params = minilm.minilm(*SHAPE, minilm.random_params()).rlx_params()
    dims: Any = rlx.Dim("batch", 1, 64), rlx.Dim("length", 1, minilm.MINILM.places)
    batch, length = dims if is_named else SHAPE
    return lambda: (minilm.minilm_model(params, batch, length, minilm.MINILM), params)


if __name__ == "__main__":
    sys.exit(main())
