"""Models on four processors of jax's against NumPy: run as a program, before which jax is
told to have four.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python -m tests.backend.tpu.mesh_runs
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import rlx
from bench.workload import Workload
from bench.workloads import llama, minilm

LLAMA = llama.Size(layers=1, width=64, heads=8, kv_heads=4, hidden=96, words=128, places=32)
MINILM = minilm.Size(layers=1, width=48, heads=12, hidden=96, words=64, places=32)


def workloads() -> dict[str, Workload]:
    params = llama.llama_params(LLAMA)
    encoder = minilm.minilm(4, 8, minilm.random_params(MINILM), MINILM)
    batch = rlx.Dim("batch", 1)
    return {
        "named": replace(encoder, model=lambda p: minilm.minilm_model(p, batch, 8, MINILM)),
        "minilm": encoder,
        "prefill": llama.prefill(params, 8, LLAMA),
        "decode": llama.decode(params, 8, LLAMA),
    }


CASES: tuple[tuple[str, Mapping[str, int]], ...] = (
    ("minilm", {"model": 4}),
    ("named", {"data": 2, "model": 2}),
    ("prefill", {"model": 4}),
    ("decode", {"model": 4}),
)


def runs() -> Iterator[dict[str, Any]]:
    made = workloads()
    for name, mesh in CASES:
        work = made[name]
        params = work.rlx_params()
        alone = rlx.compile(work.model(params), "reference", params=params)(*work.inputs)
        exe: Any = rlx.compile(work.model(params), "tpu:cpu", mesh=mesh, params=params)
        found = error(alone, exe(*work.inputs))
        sizes = {"batch": 4} if name == "named" else {}
        told = {"error": found, "collectives": dict(exe.code_facts(**sizes).collectives)}
        yield told | {"opened": error(alone, opened(exe)(*work.inputs))}


def opened(exe: Any) -> Any:
    """What a file of the program holds."""
    with tempfile.TemporaryDirectory() as folder:
        exe.save(f"{folder}/mesh.rlx")
        return rlx.load(f"{folder}/mesh.rlx")


def error(expected: Any, found: Any) -> float:
    """The largest difference, over the largest number."""
    pairs = zip(*(a if isinstance(a, tuple) else (a,) for a in (expected, found)), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)


if __name__ == "__main__":
    json.dump(list(runs()), sys.stdout)
