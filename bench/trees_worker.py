"""One runtime with one ensemble of trees, in a process that is told when to run."""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from bench.forests import ASKED, errors, rows_of
from bench.worker import answer_turns, main


def serve(asked: Namespace, say: Any) -> None:
    """Load, compare all rows with the library, then answer turns of so many rows."""
    path, _, rows = asked.workload.rpartition(":")
    call, setup = _ours(asked, path) if asked.peer == "rlx" else _theirs(asked, path)
    every, some = rows_of(Path(path), ASKED), rows_of(Path(path), int(rows))
    made = call(every)
    outputs = list(made) if isinstance(made, list | tuple) else [made]
    wrong, error = errors(Path(path), outputs)
    answer_turns(lambda: call(some), {"setup_s": setup, "wrong": wrong, "error": error}, say)


def _ours(asked: Namespace, path: str) -> tuple[Any, float]:
    import onnx  # noqa: F401

    import rlx

    start = time.perf_counter()
    exe = rlx.compile(rlx.load(path), asked.target, threads=asked.threads, cache=False)
    return exe, time.perf_counter() - start


def _theirs(asked: Namespace, path: str) -> tuple[Any, float]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = asked.threads, 4
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x}), time.perf_counter() - start


if __name__ == "__main__":
    main(serve)
