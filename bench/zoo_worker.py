"""One runtime with one real model, in a process that is told when to run (see `bench.worker`)."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.worker import answer_turns, main
from tests.onnx.zoo import ZOO


def inputs_of(name: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {k: make(rng) for k, make in ZOO[name].inputs.items()}


def serve(asked: Namespace, say: Any) -> None:
    """Load and compile, say how long that took, then answer turns."""
    runtime, path, threads, target = asked.peer, asked.workload, asked.threads, asked.target
    given = inputs_of(Path(path).stem)
    if runtime == "rlx":
        import onnx  # noqa: F401

        import rlx

        start = time.perf_counter()
        exe: Any = rlx.compile(rlx.load(path), target, threads=threads)
        setup = _until_called(lambda: exe.run(given), start)
        answer_turns(lambda: exe.run(given), {"setup_s": setup}, say)
    else:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 4
        start = time.perf_counter()
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        setup = _until_called(lambda: session.run(None, given), start)
        answer_turns(lambda: session.run(None, given), {"setup_s": setup}, say)


def _until_called(call: Callable[[], Any], start: float) -> float:
    """Seconds from `start` to the first result, less what a call takes: some models are compiled
    when they are first called."""
    call()
    first = time.perf_counter()
    call()
    return first - start - (time.perf_counter() - first)


if __name__ == "__main__":
    main(serve)
