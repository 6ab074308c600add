"""What it takes until MiniLM-L6 runs: compiled cold, and from the cache in a fresh process.

The import of rlx, building the model and `set_params` are apart from the compile. A process that
finds its code in the cache never imports LLVM.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from bench.alone import Check, parser, report

REPEATS = 5

CODE = """
import importlib, json, sys, time
def passed(start): return (time.perf_counter() - start) * 1e3
target, threads, names = sys.argv[1], int(sys.argv[2]), sys.argv[3].split()
start = time.perf_counter(); import numpy, ml_dtypes; numpy_ms = passed(start)
start = time.perf_counter()
import rlx
for name in names: importlib.import_module(name)
import_ms = passed(start)
from bench.peers.ours import options
from bench.workloads import minilm_params, minilm
workload = minilm.minilm(1, 128, minilm_params())
params = workload.rlx_params()
start = time.perf_counter(); model = workload.model(params); build_ms = passed(start)
start = time.perf_counter()
exe = rlx.compile(model, target, **options(target, threads))
compile_ms = passed(start)
start = time.perf_counter(); exe.set_params(params); params_ms = passed(start)
start = time.perf_counter(); exe(*workload.inputs); call_ms = passed(start)
print(json.dumps(dict(numpy_ms=numpy_ms, import_ms=import_ms, build_ms=build_ms,
    compile_ms=compile_ms, params_ms=params_ms, call_ms=call_ms,
    imports_llvm="llvmlite" in sys.modules,
    modules=" ".join(m for m in sys.modules if m.startswith("rlx.")))))
"""


def fresh(target: str, threads: int, cache: str, modules: str = "") -> dict[str, Any]:
    """A process of its own, with its cache in a folder that is given; it imports `modules` of rlx
    first, which would otherwise be imported when they are first needed."""
    where = {**os.environ, "XDG_CACHE_HOME": cache, "RLX_CACHE_DIR": cache}
    command = [sys.executable, "-c", CODE, target, str(threads), modules]
    done = subprocess.run(command, env=where, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def main() -> int:
    asked = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as cache:
        cold = fresh(asked.target, asked.threads, cache)
        lazy = [fresh(asked.target, asked.threads, cache) for _ in range(REPEATS)]
        used = lazy[0]["modules"]
        warm = [fresh(asked.target, asked.threads, cache, used) for _ in range(REPEATS)]
    best = {k: min(run[k] for run in warm) for k in warm[0]}
    late = min(run["compile_ms"] for run in lazy)
    rows = [
        Check("MiniLM-L6 1×128, cold compile", cold["compile_ms"] / 1e3, "s", 2.5),
        Check("the same from the cache, in a fresh process", best["compile_ms"], "ms", 80),
        Check("the same, with what it imports when first needed", late, "ms"),
        Check("processes of those that imported llvmlite", _llvm(lazy + warm), "", 0),
        Check("import of NumPy and ml_dtypes", best["numpy_ms"], "ms"),
        Check("import of rlx, all that is used", best["import_ms"], "ms"),
        Check("building the model", best["build_ms"], "ms"),
        Check("set_params, weights packed", best["params_ms"], "ms"),
        Check("the first call", best["call_ms"], "ms"),
    ]
    return report("startup", rows, asked)


def _llvm(runs: list[dict[str, Any]]) -> int:
    return sum(run["imports_llvm"] for run in runs)


if __name__ == "__main__":
    sys.exit(main())
