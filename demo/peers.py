"""The same model, weights and tokens on other runtimes, where they are installed.

Each is timed in a process of its own: threads of one that wait in a loop would slow the others.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bench.peers import PEERS
from bench.workload import Workload
from bench.workloads.minilm import minilm, published_params
from demo.encoder import Array, Encoder

RIVALS = ("onnxruntime", "torch")
ROUNDS, ROUND_S = 10, 0.05


def timed(encoder: Encoder, text: str, threads: int) -> dict[str, tuple[float, float]]:
    """Runtime → milliseconds for the vector of one text, and how far it is from rlx's."""
    tokens = encoder.tokens([text])
    ours = encoder.exe(*tokens)
    found = {"rlx": (milliseconds(lambda: encoder.exe(*tokens)), 0.0)}
    for name in installed():
        told = _in_a_child(name, threads, *tokens[:2])
        if told is not None:
            theirs = np.array(told["vector"])
            found[name] = told["ms"], float(np.abs(theirs / np.linalg.norm(theirs) - ours).max())
    return found


def installed() -> list[str]:
    return [name for name in RIVALS if not PEERS[name].missing()]


def milliseconds(call: Callable[[], Any]) -> float:
    """Of a call: the median of rounds, of which the first is for warming up."""
    return statistics.median([_round(call) for _ in range(ROUNDS)][1:])


def _round(call: Callable[[], Any]) -> float:
    times: list[float] = []
    end = time.perf_counter() + ROUND_S
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def _in_a_child(name: str, threads: int, ids: Array, mask: Array) -> dict[str, Any] | None:
    """What a rival says; nothing where it cannot run. What it has to say beside is left out."""
    asked = json.dumps({"ids": ids.tolist(), "mask": mask.tolist()})
    command = [sys.executable, "-m", "demo.peers", name, str(threads)]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def _rival(name: str, threads: int) -> None:
    """Time one runtime on the tokens that stdin has."""
    given = json.load(sys.stdin)
    ids, mask = (np.array(given[k], np.int64) for k in ("ids", "mask"))
    workload = replace(
        minilm(*ids.shape, published_params()), name=f"demo_{ids.shape[1]}", inputs=(ids, mask)
    )
    runner = _prepared(name, workload, threads)
    ms = milliseconds(runner.call)
    vector = runner.arrays(runner.call())[0][0]
    print(json.dumps({"ms": ms, "vector": vector.tolist()}))


def _prepared(name: str, workload: Workload, threads: int) -> Any:
    if PEERS[name].needs_onnx:
        from bench.prepare import export

        export(workload)
    return PEERS[name].prepare(workload, threads)


if __name__ == "__main__":
    _rival(sys.argv[1], int(sys.argv[2]))
